"""Partial participation, drop-outs and late ones at every step: the round completes with who is there, or says why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
from fedcaprivacy_parts import at_own_model
from fedcaprivacy_parts import two_groups as _two_groups
from federation import Steady, misbehaving, on_the_wire

from coterie.protocol.errors import PeerError
from coterie.protocol.messages import Message
from coterie.protocols.anonymous import Forget, Relayed
from coterie.protocols.cluster_sums import ClusterModel, ClusterSum, Convert
from coterie.systems.fedcaprivacy.messages import Aggregate, Clustered, Upload

two_groups = partial(_two_groups, alpha=1e9)
EVERYBODY = [f"client/{i}" for i in range(6)]


# -- lost messages -----------------------------------------------------------------------------------------------------

ALL, NONE = [True] * 6, [False] * 6
GROUP_0 = [True] * 3 + [False] * 3


@dataclass(frozen=True)
class Lost:
    """A message that is lost in round 2, and who is then left without a cluster model."""

    kind: type[Message]
    which: Callable[[Message], bool]
    without: list[bool]
    why: str = ""
    mode: str = "paper"


def every(message: Message) -> bool:
    return True


def first_cluster(message: Message) -> bool:
    return message.cluster == 0  # type: ignore[attr-defined]


LOST = [
    Lost(Relayed, every, ALL, "skipped"),
    Lost(Clustered, every, ALL, "skipped"),
    Lost(Aggregate, every, ALL, "unreleased"),
    Lost(ClusterSum, first_cluster, GROUP_0, "unreleased"),
    Lost(Convert, first_cluster, GROUP_0, "unreleased", "hardened"),
    Lost(ClusterModel, first_cluster, GROUP_0),
    Lost(Forget, every, NONE),
]


@pytest.mark.parametrize("case", LOST, ids=lambda case: f"{case.mode}-{case.kind.__name__}-{case.which.__name__}")
def test_whatever_is_lost_between_the_servers_the_round_ends_and_the_next_one_is_as_ever(case: Lost) -> None:
    run = two_groups(mode=case.mode)
    assert run.round(1)["membership"] == [[0]] * 3 + [[1]] * 3
    on_the_wire(run.transport, case.kind, lambda m: None if case.which(m) else m, rounds=[2])
    note = run.round(2)
    assert run.transport.meter.lost
    assert at_own_model(run) == case.without
    if case.why == "skipped":
        assert note["skipped"]
        assert not note["clustered"]
        assert note["membership"] == [[0]] * 3 + [[1]] * 3  # phi of round 1 is kept
    else:
        assert set(note["clusters"]["unreleased"]) == (
            {"0", "1"} if case.without == ALL else {"0"} if case.why else set()
        )
        assert all("lost on the way" in why for why in note["clusters"]["unreleased"].values())
    run.transport.intercept = None
    note = run.round(3)
    assert "skipped" not in note
    assert at_own_model(run) == NONE
    assert run.party("csp").state.opened == {}


def test_a_lost_blinded_vector_leaves_its_sender_out_and_the_others_go_on() -> None:
    run = two_groups()
    run.round(1)
    on_the_wire(run.transport, Relayed, lambda m: None if m.position == 3 else m, rounds=[2])
    note = run.round(2)
    (out,) = note["left_out"]
    assert at_own_model(run) == [name == out for name in EVERYBODY]
    assert sum(note["clusters"]["sizes"]) == 5


# -- drop-outs and late ones -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", ["offline", "dropped"])
def test_who_is_away_keeps_its_model_and_phi_and_comes_back(fate: str) -> None:
    run = two_groups(links=Steady(away={("client/0", 2): fate, ("client/4", 2): fate}))
    run.round(1)
    before = run.models()
    note = run.round(2)
    assert note["participants"] == 4
    assert note["clusters"]["sizes"] == [2, 2]
    assert note["membership"] == [[0]] * 3 + [[1]] * 3
    changed = (run.models() != before).any(axis=1).tolist()
    assert changed == [False, True, True, True, False, True]
    assert run.round(3)["participants"] == 6


def test_a_slow_client_is_late_and_its_old_upload_never_counts_in_a_later_round() -> None:
    """It needs 15 s and a round waits 10 s: its upload of round r arrives in round r + 1, and is not taken there."""
    run = two_groups(links=Steady(slow={"client/0": 15.0}), deadline_s=10.0)
    for r in (1, 2, 3, 4):
        note = run.round(r)
        assert note["participants"] == 5
        assert "client/0" in run.transport.meter.late
        assert note["clusters"]["sizes"] == [2, 3]
    assert run.party("client/0").state.round > 0  # it did work, too late
    assert not [seen for seen, _ in run.view("business_server").messages(Upload) if seen.src == "client/0"]
    assert run.refused == {}


@pytest.mark.parametrize(("there", "least"), [(0, 1), (3, 4)])
def test_too_few_participants_skip_the_round(there: int, least: int) -> None:
    links = Steady(away={(name, 1): "offline" for name in EVERYBODY[there:]})
    run = two_groups(links=links, min_participants=least)
    note = run.round(1)
    assert note["skipped"] == f"{there} uploads, at least {least} are needed"
    assert not list(run.view("csp").messages(Relayed))  # nothing of it was shown to the service
    assert (run.models()[there:] == run.common.initial).all()
    note = run.round(2)
    assert note["clustered"]  # nobody has a cluster yet
    assert at_own_model(run) == NONE


def test_a_sample_of_the_clients_is_asked() -> None:
    run = two_groups(participation=0.5)
    asked = []
    for r in range(1, 9):
        note = run.round(r)
        assert (note["asked"], note["participants"]) == (3, 3)
        asked.append(frozenset(seen.src for seen, _ in run.view("business_server").messages(Upload, r)))
    assert len(set(asked)) > 1
    assert frozenset().union(*asked) == set(EVERYBODY)


# -- a service that refuses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "kind"), [("paper", Aggregate), ("hardened", Convert)])
def test_a_service_that_refuses_one_cluster_leaves_that_one_unreleased(mode: str, kind: type[Message]) -> None:
    def only_the_first(party: object, message: Aggregate, answer: object) -> object:
        if message.cluster == 0:
            raise PeerError("not this one")
        return answer

    run = two_groups(mode=mode)
    misbehaving(run.party("csp"), kind, only_the_first)
    note = run.round(1)
    assert note["clusters"]["unreleased"] == {"0": "csp: refused"}
    assert run.refused == {f"csp/{kind.__name__}: not this one": 1}
    assert sum(at_own_model(run)) == note["clusters"]["sizes"][0]
