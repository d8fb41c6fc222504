"""The active attacks on FedEPC: a recorded run is repeated with one device that lies about itself or sends a bad model.

Data, delays and the honest devices' randomness are the same, by the same seed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np

from coterie.devices.links import Delays
from coterie.privacy.attacks.result import Result
from coterie.privacy.attacks.wrapping import wrap
from coterie.privacy.audits import Finding, Recorded
from coterie.protocol.effects import Fit, Fitted, Local
from coterie.protocol.errors import UserError
from coterie.protocol.messages import Message
from coterie.protocol.system import Federation

BOAST = 10.0
"""How many times its clock rate a boasting device says."""
AGAINST = 10.0
"""How many times its step a spoiling device goes, backwards."""
RAISED = 1.5
"""A cluster counts as spoiled if its loss, over the rounds, is at least so many times what it was without the liar."""


def active(run: Recorded) -> list[Finding]:
    """Both attacks. Raises UserError for a run of fewer than 3 rounds, or in which no device was selected."""
    if len(run.lines) < 3:
        raise UserError("what a liar does shows after some rounds: repeat the run with 3 rounds or more")
    return [boasting(run), spoiling(run)]


def boasting(run: Recorded) -> Finding:
    """The device of the largest cluster that was selected least says that it is ``BOAST`` times as fast."""
    name = max(largest(run), key=lambda one: -selected(run)[one])

    def faster(message: Message, effect: Local, result: Any) -> Any:
        return (BOAST * result[0], result[1]) if effect.name == "device resources" else result

    lied = run.again(lambda federation, delays: wrap(federation.alter(name), {Local: faster}))
    before, after = (selected(one)[name] / len(one.lines) for one in (run, lied))
    by_chance = float(np.sqrt(before * (1 - before) / len(run.lines)))
    result = Result("rounds in which it is selected (share)", after, before, 1.0, 1, by_chance)
    return Finding(f"{name}, deviating: selected, for a clock rate that it does not have", (result,))


def spoiling(run: Recorded) -> Finding:
    """The device of the largest cluster that was selected most sends its step backwards, enlarged."""
    name = max(largest(run), key=lambda one: selected(run)[one])

    def backwards(message: Message, effect: Fit, fitted: Fitted) -> Fitted:
        step = fitted.weights - effect.weights
        return replace(fitted, weights=(effect.weights - AGAINST * step).astype(np.float32))

    def meddle(federation: Federation, delays: Delays) -> None:
        wrap(federation.alter(name), {Fit: backwards})

    before, after = loss_of(run), loss_of(run.again(meddle))
    both = sorted(before.keys() & after.keys())
    if not both:
        raise UserError("the loss of no cluster is known, so none shows what a liar does: take more rounds")
    share = float(np.mean([not after[one] < RAISED * before[one] for one in both]))
    result = Result("devices in a cluster whose mean loss it raises by half (share)", share, 0.0, 1.0, len(both))
    return Finding(f"{name}, deviating: spoiled clusters", (result,))


def largest(run: Recorded) -> list[str]:
    """The devices of the largest cluster at the end. Raises UserError where there is none."""
    last = dict(zip(run.clients, run.lines[-1]["notes"]["membership"], strict=True))
    sizes = Counter(k for own in last.values() for k in own)
    if not sizes:
        raise UserError("no device was in a cluster")
    k = max(sizes, key=lambda k: (sizes[k], -k))
    return [name for name, own in last.items() if k in own]


def selected(run: Recorded) -> Counter[str]:
    """How often each device was selected."""
    return Counter(name for line in run.lines for name in line["notes"]["selected"])


def loss_of(run: Recorded) -> dict[str, float]:
    """By device, the mean loss of its cluster's model over the rounds after the first, where it is known.

    A mean, since a cluster in which honest devices train recovers.
    """
    found: dict[str, list[float]] = {}
    for line in run.lines[1:]:
        notes = line["notes"]
        for name, own in zip(run.clients, notes["membership"], strict=True):
            loss = notes["loss"].get(str(own[0])) if own else None
            if loss is not None:
                found.setdefault(name, []).append(loss)
    return {name: fmean(values) for name, values in found.items()}
