"""Preference profiling: what a server reads off the models that reach it, in the clear or opened with somebody's help.

The second attack of MingledPie's adversary (A2, section III-B): a client's local model tells which labels its data
prefer. Works for every system whose updates carry a model; messages are read by the names of their types and fields.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
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
from coterie.audit import Audit, Finding, Recorded
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


def profiled(steps: NDArray[Any], label_counts: NDArray[Any], spec: ModelSpec) -> tuple[Result, Result]:
    """Label shares and top labels from updates (n, d) of clients whose samples have these labels, (n, classes)."""
    estimate = label_shares(steps, spec)
    return share_correlation(estimate, label_counts), top_label_hit_rate(estimate, label_counts)


def profiling(who: str, rounds: Sequence[tuple[Result, Result]]) -> list[Finding]:
    """The findings of whoever got ``profiled`` in each of these rounds; none where there were none."""
    if not rounds:
        return []
    shares, top = zip(*rounds, strict=True)
    return [Finding(f"{who}: label shares", shares), Finding(f"{who}: top label", top)]


def plain_findings(run: Recorded) -> list[Finding]:
    """What the server of a system without encryption finds out, in every round with at least 2 clients.

    Models and names are in the updates themselves, so reading and following them takes no attack.
    Raises UserError where the views have no such round.
    """
    hub, found = run.federation.hub, defaultdict[str, list[Result]](list)
    for names, steps in plain_steps(run.views, run.spec.size, hub):
        n, who = len(names), [run.clients.index(name) for name in names]
        if n < 2:
            continue
        counts, near = run.label_counts[who], -pairwise_distances(steps)
        shares, top = profiled(steps, counts, run.spec)
        found["label shares"].append(shares)
        found["top label"].append(top)
        found["models, as they are sent"].append(Result("models read (share)", 1.0, 0.0, 1.0, n))
        found["re-linked, by name"].append(Result("re-linked clients (share)", 1.0, 1 / n, 1.0, n))
        if n > 2:
            found["which pairs have similar labels, by updates"].append(pair_correlation(near, counts))
        if n > 2 and run.groups is not None and telling(run.groups[who]):
            found["which pairs are of one group, by updates"].append(pair_auc(near, run.groups[who]))
    if not found:
        raise UserError(f"in the view of {hub!r} no round has two clients' models in the clear")
    return [Finding(f"{hub}: {name}", tuple(results)) for name, results in found.items()]


PLAIN = Audit(plain_findings)
"""Of systems without encryption: what a server reads off the models that it is sent."""
NOTHING = Audit(lambda run: [])
"""Where no server receives anything of models or data, so that there is nothing to attack."""
