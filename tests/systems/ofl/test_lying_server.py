"""A server of OFL that lies about what is a sum: no leader helps, in any mode, and the round is skipped."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from federation import planted
from matrix import few
from ofl_parts import ofl

from coterie.crypto import threshold_opening, threshold_pads
from coterie.privacy.attacks.key_in_sum import forged
from coterie.protocol.steps import Steps
from coterie.protocols.threshold import HubKey
from coterie.protocols.threshold.opening import Closed, open_closed
from coterie.systems.ofl import SYSTEM, global_aggregation, poison_detection
from coterie.systems.ofl.messages import MODEL

TARGETS = planted([0, 0, 0, 1, 1, 1, 2, 2, 2], 24)


def summed(hub: Any, ciphers: Any, pads: Any, weights: dict[str, int]) -> Closed:
    total = None
    for name, weight in weights.items():
        part = ciphers[name].scale(weight)
        total = part if total is None else total + part
    make = partial(threshold_pads.sum_dec, hub.joint.group(MODEL), hub.keys.public(MODEL), total)
    return Closed(max(2, len(weights)), total.length, partial(make, {name: pads[name] for name in weights}, weights))


def alone(hub: Any, ciphers: Any, pads: Any) -> Closed:
    """One leader's model, 1,023 times: as many terms as a sum of 1,023."""
    return summed(hub, ciphers, pads, {next(iter(ciphers)): 1023})


def nearly_alone(hub: Any, ciphers: Any, pads: Any) -> Closed:
    first, *others = ciphers
    return summed(hub, ciphers, pads, {first: 1023, **dict.fromkeys(others, 1)})


def of_its_own(hub: Any, ciphers: Any, pads: Any) -> Closed:
    """A c_1 that shows the joint key, or any leader's model as it is."""
    total = next(iter(ciphers.values())).scale(3)
    if not total.emulated:
        total = forged(total, 0, 32.0)
    return Closed(3, total.length, partial(threshold_opening.server_dec, hub.joint.group(MODEL), total))


@pytest.mark.parametrize("emulated", few([True, False], [True]))
@pytest.mark.parametrize(
    ("lie", "says"),
    [
        (alone, "a sum of 1 vectors: of fewer than 2 it shows too much"),
        (nearly_alone, "one of 3 has nearly all of the sum"),
        (of_its_own, "no sum of a shared key"),
    ],
)
def test_a_server_that_has_something_else_opened_in_the_place_of_the_mean_is_refused(
    lie: Callable[..., Closed], says: str, emulated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ofl(
        TARGETS, clusters=3, recluster_every=9, mode="hardened", emulated=emulated, **SYSTEM.defaults("hardened")
    )
    made.round(1)

    def lying(key: HubKey, ciphers: Any, pads: Any, weights: Any, *, number: int) -> Steps[Any]:
        return (yield from open_closed(key, {number: lie(key.hub, ciphers, pads)}))

    monkeypatch.setattr(global_aggregation, "open_weighted", lying)
    before = made.hub.state.weights.copy()
    note = made.round(2)
    assert "refused" in note["skipped"]
    assert any(says in reason for reason in made.refused), made.refused
    np.testing.assert_array_equal(made.hub.state.weights, before)


@pytest.mark.parametrize(("detection", "mode"), [("fourier", "paper"), ("norms", "hardened")])
def test_a_server_gets_as_many_numbers_of_each_leader_as_the_detection_has(
    detection: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of each leader by the paper's detection, two by the other; one more is refused."""
    made = ofl(TARGETS, clusters=3, recluster_every=9, mode=mode, **{**SYSTEM.defaults(mode), "detection": detection})
    each = {"fourier": 3, "norms": 2}[detection]
    honest = global_aggregation.judge

    def curious(hub: Any, r: int, ciphers: Any) -> Steps[Any]:
        found = yield from honest(hub, r, ciphers)
        first = next(iter(ciphers.values()))
        norm = poison_detection.fourier.energy(first, hub.keys.evaluation(MODEL))
        yield from poison_detection.scalars(hub, r, {"one more": [norm]}, each * len(ciphers))
        return found

    made.round(1)
    monkeypatch.setattr(global_aggregation, "judge", curious)
    note = made.round(2)
    assert "refused" in note["skipped"]
    most = 3 * each
    assert any(
        f"{most + 1} scalars in round 2: {most} are opened, {each} for each holder" in why for why in made.refused
    )
