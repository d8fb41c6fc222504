"""Preference profiling: what a server reads off the models that reach it, in the clear or opened with somebody's help.

The second attack of MingledPie's adversary (A2, section III-B): a client's local model tells which labels its data
prefer. Works for every system whose updates carry a model; messages are read by the names of their types and fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.attacks.labels import (
    label_shares,
    pair_auc,
    pair_correlation,
    share_correlation,
    telling,
    top_label_hit_rate,
)
from coterie.attacks.result import Result
from coterie.audits import Audit, Recorded
from coterie.audits.measured import Measured, findings
from coterie.clustering.affinity import pairwise_distances
from coterie.protocol.errors import UserError
from coterie.protocol.model_spec import ModelSpec
from coterie.transport.transcript import View


def plain_steps(views: Mapping[str, View], size: int, hub: str) -> Iterator[tuple[list[str], NDArray[np.float64]]]:
    """Round by round: names (n,), and what each client's training added to the model that it was sent, (n, size).

    An ``Update`` carries the model after training, a ``Train`` of the same round the one before; of several, the
    update's ``cluster`` says which. The server has both, as it sent the one and received the other.
    """
    rounds: dict[int, dict[str, NDArray[np.float64]]] = {}
    for seen in views[hub].seen if hub in views else ():
        weights = getattr(seen.message, "weights", None)
        if seen.kind == "Update" and weights is not None:
            starts = _sent(views.get(seen.src), seen.round, size)
            if starts is not None:
                start = starts[getattr(seen.message, "cluster", 0)]
                rounds.setdefault(seen.round, {})[seen.src] = np.subtract(weights, start, dtype=np.float64)
    for _, steps in sorted(rounds.items()):
        yield list(steps), np.stack(list(steps.values()))


def _sent(view: View | None, round: int, size: int) -> NDArray[Any] | None:
    """The models (k, size) that a client was last sent in a round."""
    sent = [seen.message for seen in view.seen if (seen.kind, seen.round) == ("Train", round)] if view else []
    weights = getattr(sent[-1], "weights", None) if sent else None
    return None if weights is None else np.asarray(weights).reshape(-1, size)


def profiles(who: str, steps: NDArray[Any], label_counts: NDArray[Any], spec: ModelSpec) -> Iterator[Measured]:
    """Label shares and top labels from updates (n, d) of clients whose samples have these labels, (n, classes)."""
    estimate = label_shares(steps, spec)
    yield Measured(f"{who}: label shares", share_correlation(estimate, label_counts))
    yield Measured(f"{who}: top label", top_label_hit_rate(estimate, label_counts))


def alike(
    who: str, by: str, pairs: NDArray[Any], clients: Any, label_counts: NDArray[Any], groups: NDArray[Any] | None
) -> Iterator[Measured]:
    """Which pairs of these clients (n,) are similar, guessed by (n, n) numbers that grow with similarity.

    label_counts, groups: of all clients, as for ``plain_findings``.
    """
    yield Measured(f"{who}: which pairs have similar labels, by {by}", pair_correlation(pairs, label_counts[clients]))
    if groups is not None and telling(groups[clients]):
        yield Measured(f"{who}: which pairs are of one group, by {by}", pair_auc(pairs, groups[clients]))


@findings
def plain_findings(run: Recorded) -> Iterator[Measured]:
    """What the server of a system without encryption finds out, in every round with at least 2 clients.

    Models and names are in the updates themselves, so reading and following them takes no attack.
    Raises UserError where the views have no such round.
    """
    attacked, hub = False, run.federation.hub
    for names, steps in plain_steps(run.views, run.spec.size, hub):
        n, who = len(names), [run.clients.index(name) for name in names]
        if n < 2:
            continue
        attacked = True
        yield from profiles(hub, steps, run.label_counts[who], run.spec)
        yield Measured(f"{hub}: models, as they are sent", Result("models read (share)", 1.0, 0.0, 1.0, n))
        yield Measured(f"{hub}: re-linked, by name", Result("re-linked clients (share)", 1.0, 1 / n, 1.0, n))
        if n > 2:
            yield from alike(hub, "updates", -pairwise_distances(steps), who, run.label_counts, run.groups)
    if not attacked:
        raise UserError(f"in the view of {hub!r} no round has two clients' models in the clear")


PLAIN = Audit(plain_findings)
"""Of systems without encryption: what a server reads off the models that it is sent."""
NOTHING = Audit(lambda run: [])
"""Where no server receives anything of models or data, so that there is nothing to attack."""
