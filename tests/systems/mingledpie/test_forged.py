"""What clients of MingledPie are sent and shouldn't be, by servers, others and the wire: refused, and put right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from federation import on_the_wire
from mingledpie_parts import change, held, near
from tampering import flipped

from coterie.clustering.identities import ClusterKeys
from coterie.protocol import codec
from coterie.systems.mingledpie.messages import Mingled, Parameters, Train
from tests.systems.mingledpie.test_hostile import SIX, kept_models, six

# -- sums and parameters ---------------------------------------------------------------------------------------------


def test_forged_sums_are_refused_and_their_recipient_catches_up() -> None:
    run = six()
    run.round(1)
    before = held(run)
    on_the_wire(run.transport, Mingled, lambda m: change(m, sizes=m.sizes + 1), dst="client/1")
    note = run.round(2)
    assert note["rebuilt"]["by"] == 5
    assert run.refusals("client", "Mingled") == 1
    assert kept_models(run, before) == [False, True, False, False, False, False]
    run.transport.intercept = None
    note = run.round(3)
    assert note["behind"] == []
    assert note["participants"] == 6
    assert len({held(run, name).tobytes() for name in SIX}) == 1


def test_genuine_sums_of_an_earlier_round_do_not_come_back() -> None:
    """Sent once more under a new number."""
    run = six()
    old = on_the_wire(run.transport, Mingled, lambda m: m, dst="client/1", rounds=[1])
    run.rounds(2)
    after = held(run)
    on_the_wire(run.transport, Mingled, lambda m: old[0], dst="client/1", rounds=[3])
    run.round(3)
    reason = "client/Mingled: sums of round 1 for models of round 2, or of another shape"
    assert dict(run.refused) == {reason: 1}
    assert held(run, "client/1").tobytes() == after.tobytes()


def test_forged_parameters_are_refused_and_asked_for_again() -> None:
    """In the set-up: the federation begins without it, and it gets them in round 1."""

    def forge(parameters: Parameters) -> Parameters:
        return change(parameters, keys=flipped(parameters.keys))

    run = six(wire=lambda t: on_the_wire(t, Parameters, forge, dst="client/1", rounds=[0]))
    assert run.refusals("client", "Parameters") == 1
    assert run.party("client/1").state.models is None
    assert (run.models()[1] == near()[0]).all()  # for whoever evaluates
    note = run.round(1)
    assert note["participants"] == 6
    assert note["behind"] == []


def test_old_parameters_do_not_come_back() -> None:
    """Replayed under a new number after p has changed: the client would draw other sets, which could be intersected."""
    old: list[Parameters] = []

    def keep(envelope: Any, frame: bytes) -> list[bytes]:
        if envelope.kind == "Parameters" and envelope.dst == "client/1":
            old.append(codec.decode(frame, Parameters))
        return [frame]

    run = six(p_changes="2:0.25,3:0.125", intercept=keep)
    run.rounds(2)
    keys = run.party("client/1").state.keys
    on_the_wire(run.transport, Parameters, lambda m: old[1], dst="client/1")
    note = run.round(3)
    assert dict(run.refused) == {"client/Parameters: parameters of round 2 after those of round 2": 1}
    assert run.party("client/1").state.keys == keys
    assert note["behind"] == ["client/1"]


@pytest.mark.parametrize(
    ("clusters", "bits", "why"),
    [
        (4, 2, "keys of 4 clusters instead of 3"),
        (3, 10, "keys of 10 bits instead of 2, which p requires"),  # each true cluster among next to no others
    ],
)
def test_keys_at_odds_with_the_settings_are_refused(
    monkeypatch: pytest.MonkeyPatch, clusters: int, bits: int, why: str
) -> None:
    run = six(p_changes="1:0.25")
    other = ClusterKeys.generate(clusters, bits)
    monkeypatch.setattr(ClusterKeys, "generate", lambda *_: other)
    note = run.round(1)
    assert note["participants"] == 0
    assert dict(run.refused) == {f"client/Parameters: {why}": 6}


STALE: list[tuple[str, Callable[[Train], Train], str]] = [
    ("an older basis", lambda m: change(m, basis=0), "on models of round 0, but it holds those of 1"),
    ("a later basis", lambda m: change(m, basis=5), "on models of round 5, but it holds those of 1"),
    ("a round that is over", lambda m: change(m, round=1), "asked to train for round 1 after round 1"),
    ("a round of nobody", lambda m: change(m, round=0), "asked to train for round 0 after round 1"),
]


@pytest.mark.parametrize(("name", "forge", "why"), STALE, ids=[name for name, *_ in STALE])
def test_a_client_trains_nothing_but_the_models_that_it_is_asked_to(name: str, forge: Callable, why: str) -> None:
    run = six()
    run.round(1)
    on_the_wire(run.transport, Train, forge, dst="client/1")
    assert run.round(2)["participants"] == 5
    ((reason, _),) = run.refused.items()
    assert reason.startswith("client/Train:")
    assert why in reason
    run.transport.intercept = None
    assert run.round(3)["participants"] == 6
