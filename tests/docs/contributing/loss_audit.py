"""What the losses of a round tell a server."""

from collections.abc import Iterator

from coterie.privacy.audits import Audit, Measured, Recorded, attack
from coterie.privacy.measures import by_variety


@attack("told-losses", "server", "labels")
def told_losses(run: Recorded) -> Iterator[Measured]:
    """Takes clients with large losses for those with many classes."""
    came = [seen for seen in run.views[run.federation.hub].seen if hasattr(seen.message, "loss")]
    for r in sorted({seen.round for seen in came}):
        losses = {seen.src: seen.message.loss for seen in came if seen.round == r}
        yield by_variety("server", "losses", list(losses.values()), run.label_counts[run.numbers(losses)])


AUDIT = Audit(told_losses, attacks=(told_losses,))
