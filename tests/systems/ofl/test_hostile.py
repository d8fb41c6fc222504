"""OFL against members and leaders that deviate: each message is refused with a reason, and the round goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from federation import misbehaving, on_the_wire, planted
from matrix import few
from ofl_parts import counted, ofl
from prepared import begun

import coterie.method as fl
from coterie.crypto.roster import signed
from coterie.dp.uploads import Standard
from coterie.protocols.reports import StatusReport
from coterie.systems.ofl import SYSTEM, messages
from coterie.systems.ofl import messages as msgs
from coterie.systems.ofl.sparse import bits, places_of

TARGETS = planted([0, 0, 0, 1, 1, 1, 2, 2, 2], 24)
replace = msgspec.structs.replace


def settled(mode: str = "paper", **settings: Any) -> Any:
    """After round 1, so that clusters and leaders are known."""
    given = {"mode": mode, "clusters": 3, "recluster_every": 9, **settings}
    return begun(f"ofl {given}", lambda: ofl(TARGETS, **given), 1)


def member_of(made: Any, cluster: int = 0) -> str:
    leaders = set(made.hub.state.leaders.values())
    return next(name for name in made.hub.members()[cluster] if name not in leaders)


def resigning(party: Any, change: Callable[[msgs.Upload], msgs.Upload]) -> None:
    """This member signs another upload than its own."""
    misbehaving(party, msgs.Work, lambda self, msg, upload: signed(self.own, change(upload)))


WRONG: list[tuple[Callable[[msgs.Upload], msgs.Upload], str]] = [
    (lambda u: replace(u, places=u.places[::-1].copy()), "do not ascend"),
    (lambda u: replace(u, places=u.places + np.int32(1000)), "outside the model"),
    (lambda u: replace(u, values=u.values[:-1]), "values for"),
    (lambda u: replace(u, values=u.values * np.float32(1e30)), "the largest that is taken"),
    (lambda u: replace(u, places=None), "not by mechanism=paper"),
    (lambda u: replace(u, wanted=b"\xff" * len(u.wanted) + b"\x01"), "bytes for 24 bits"),
    (lambda u: replace(u, report=b"\xc1"), ""),
]


@pytest.mark.parametrize(("change", "why"), WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_an_upload_that_no_honest_member_sends_is_refused_and_the_others_count(change: Any, why: str) -> None:
    made = settled(detection="none")
    liar = member_of(made)
    resigning(made.party(liar), change)
    note = made.round(2)
    assert any(key.startswith("leader/Upload") and why in key for key in made.refused), made.refused
    assert note["participants"] == 8
    assert (liar, 2) not in counted(made)


def resent(party: Any, upload: msgs.Upload, r: int) -> msgs.Upload:
    """The same upload, signed for another round, with a report of that round."""
    report = replace(fl.codec.decode(upload.report, StatusReport), round=r)
    report = signed(party.own, report, party.common.roster.session)
    return signed(party.own, replace(upload, round=r, report=fl.codec.encode(report)))


def test_an_upload_of_a_later_round_does_not_have_its_leader_refused() -> None:
    made = settled(detection="none")
    liar, leader = member_of(made), made.hub.state.leaders[0]

    def twice(self: Any, msg: msgs.Work, upload: msgs.Upload) -> Any:
        return (fl.To(leader, upload), fl.To(leader, resent(self, upload, 99))) if msg.round == 2 else upload

    misbehaving(made.party(liar), msgs.Work, twice)
    made.round(2)
    note = made.round(3)
    assert note["participants"] == 9
    assert leader in note["s_factors"]
    assert not made.refusals("server", "Led")


def test_a_report_of_another_client_in_an_upload_does_not_have_the_leader_refused() -> None:
    made = settled(detection="none")
    liar, leader, other = member_of(made), made.hub.state.leaders[0], made.party(member_of(made, 1))
    report = replace(fl.codec.decode(other.state.report, StatusReport), round=2)
    foreign = fl.codec.encode(signed(other.own, report, other.common.roster.session))
    resigning(made.party(liar), lambda upload: replace(upload, report=foreign))
    note = made.round(2)
    assert note["participants"] == 8
    assert leader in note["s_factors"]
    assert not made.refusals("server", "Led")


@pytest.mark.parametrize(
    "settings",
    [{"detection": "none"}, {"detection": "fourier"}, {"mode": "hardened", "mechanism": "standard"}],
    ids=["none", "fourier", "hardened"],
)
def test_an_upload_that_no_cipher_has_room_for_does_not_keep_its_leader_out(settings: dict[str, Any]) -> None:
    made = settled(**({"detection": "norms"} | settings))
    liar, leader = member_of(made), made.hub.state.leaders[0]
    resigning(made.party(liar), lambda u: replace(u, values=np.full_like(u.values, 2.0**30)))
    note = made.round(2)
    assert not made.refusals("leader", "Submit")
    assert leader in note["s_factors"]
    assert note["participants"] == 8


def test_a_member_that_leaves_out_the_clip_is_refused_and_honest_noise_never_is() -> None:
    made = settled(mode="hardened", mechanism="standard", detection="norms", noise=0.5)
    resigning(made.party(member_of(made)), lambda u: replace(u, values=u.values * np.float32(20)))
    assert made.round(2)["participants"] == 8
    assert made.refusals("leader", "Upload") == 1
    standard, normal = Standard(1.0, 0.5), fl.Randomness(0, emulated=True).secrets("client/0", "noise")
    for count in (1, 10, 1000):
        sent = [np.linalg.norm(standard.noised(np.ones(count), normal)) for _ in range(50)]
        assert max(sent) <= standard.longest(count) <= 12 * np.sqrt(count) + 12


def test_a_leader_without_the_hubs_signature_leads_nobody() -> None:
    made = settled(detection="none")
    leader = made.hub.state.leaders[0]
    on_the_wire(
        made.transport, msgs.Lead, lambda msg: replace(msg, mandates=msg.mandates[64:] + msg.mandates[:64]), dst=leader
    )
    note = made.round(2)
    assert made.refusals("client", "Work") == len(made.hub.members()[0]) - 1  # each has another's
    assert "skipped" not in note
    assert note["participants"] == 9 - 2


def test_a_leader_cannot_tell_its_members_another_median_of_samples() -> None:
    """With it a leader would set how much of its model a member uploads. The hub signs it."""
    made = settled(detection="none", full_samples=None)
    leader = made.hub.state.leaders[0]
    on_the_wire(made.transport, msgs.Lead, lambda msg: replace(msg, usual=msg.usual / 10), dst=leader)
    made.round(2)
    assert made.refusals("client", "Work") == len(made.hub.members()[0]) - 1


def test_a_mandate_of_an_earlier_round_is_none() -> None:
    made = settled(detection="none")
    leader = made.hub.state.leaders[0]
    old = on_the_wire(made.transport, msgs.Lead, lambda msg: msg, dst=leader)
    made.round(2)
    mandates = old[0].mandates
    on_the_wire(made.transport, msgs.Lead, lambda msg: replace(msg, mandates=mandates), dst=leader)
    made.round(3)
    assert made.refusals("client", "Work") == len(made.hub.members()[0]) - 1


def test_parameters_come_from_the_leader_of_the_day_once_and_no_more_than_were_asked_for() -> None:
    made = settled(detection="none")
    name, leader = member_of(made), made.hub.state.leaders[0]
    party = made.party(name)
    right = msgs.Mandate(2, 0, leader, made.hub.state.usual)
    mandate = signed(made.hub.own, right, name).signature
    good = msgs.Fresh(2, 0, mandate, right.usual, bits(np.array([1]), 24), np.ones(1, np.float32))
    cases = [
        (replace(good, cluster=1), leader, "signature"),
        (replace(good, usual=right.usual + 1), leader, "signature"),
        (good, made.hub.state.leaders[1], "signature"),
        (replace(good, places=bytes(3)), leader, "values for"),
        (replace(good, round=1), leader, "signature"),
    ]
    for msg, src, why in cases:
        with pytest.raises(fl.PeerError, match=why):
            party.fresh(msg, src)
    party.state.wants = 0
    with pytest.raises(fl.PeerError, match="0 were asked for"):
        party.fresh(good, leader)
    party.state.wants = 24
    party.fresh(good, leader)
    assert party.model[1] == 1
    with pytest.raises(fl.PeerError, match="after those of round 2"):
        party.fresh(good, leader)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda led: replace(led, rounds=led.rounds - 1), "a second time"),
        (lambda led: replace(led, rounds=led.rounds + 1), "a second time"),
        (lambda led: replace(led, cluster=led.cluster + 1), "leads cluster"),
        (lambda led: replace(led, up=2.0), "of shares"),
        (lambda led: replace(led, reports=fl.bundle([])), "bundle"),
        (lambda led: replace(led, members=msgs.names(["client/8"] * len(led.rounds))), "not in its cluster"),
    ],
    ids=["counted before", "not yet", "cluster", "shares", "reports", "members"],
)
def test_a_leader_that_counts_what_it_must_not_gives_no_model(change: Any, why: str) -> None:
    made = settled(detection="none")
    liar = made.hub.state.leaders[0]
    assert "client/8" not in made.hub.members()[0]
    misbehaving(made.party(liar), messages.Lead, lambda self, msg, led: change(led))
    note = made.round(2)
    assert any(key.startswith("server/Led") and why in key for key in made.refused), made.refused
    assert set(note["s_factors"]) == set(note["leaders"].values()) - {liar}
    assert made.round(3)["leaders"]["0"] != liar


@pytest.mark.parametrize("detection", ["none", "norms"])
def test_a_leader_that_sends_garbage_for_a_ciphertext_is_left_out(detection: str) -> None:
    made = settled(mode="hardened", mechanism="standard", detection=detection)
    liar = made.hub.state.leaders[1]
    misbehaving(made.party(liar), msgs.Submit, lambda self, msg, sent: msgs.Submitted(msg.round, b"no ciphertext"))
    note = made.round(2)
    assert made.refusals("server", "Submitted") >= 1
    assert liar not in note["s_factors"]
    assert "skipped" not in note


def lengthening(party: Any, factor: float) -> None:
    """This leader's change is so many times as long."""

    def scaled(self: Any, msg: Any, led: Any) -> Any:
        office = self.secret.office
        office.model = (office.base + factor * (office.model - office.base)).astype(np.float32)
        return led

    misbehaving(party, messages.Lead, scaled)


@pytest.mark.parametrize("factor", few([10.0, -10.0, 1e4], [-10.0]))
def test_hardened_damps_a_leader_that_replaces_its_model(factor: float) -> None:
    """One whose numbers have no room under encryption is left out."""
    made = ofl(planted([0] * 10, 24), mode="hardened", mechanism="standard", detection="norms", clusters=5)
    honest = made.round(1)
    liar = made.hub.state.leaders[0]
    assert "skipped" not in honest
    before = made.hub.state.weights.copy()
    lengthening(made.party(liar), factor)
    note = made.round(2)
    assert "skipped" not in note, note
    assert note["influence"].get(liar, 0.0) <= 0.15
    assert max(note["influence"].values()) == 1.0
    step = np.linalg.norm(made.hub.state.weights - before)
    assert step < 2.0 * np.abs(TARGETS).max() * np.sqrt(24)


@pytest.mark.parametrize("clusters", few([2, 3], [3]))
@pytest.mark.parametrize("factor", few([10.0, -10.0], [10.0]))
def test_in_hardened_no_leader_moves_the_model_further_than_the_usual_change(clusters: int, factor: float) -> None:
    """Of two leaders, too, where the weight of a long change leaves the other one's alone in the sum."""
    made = ofl(TARGETS, mode="hardened", clusters=clusters, recluster_every=9, **SYSTEM.defaults("hardened"))
    made.round(1)
    before, liar = made.hub.state.weights.copy(), made.hub.state.leaders[0]
    lengthening(made.party(liar), factor)
    note = made.round(2)
    lengths = {name: np.sqrt(square) for name, (square, _) in note["scalars"].items()}
    assert lengths[liar] > 5 * (usual := sorted(lengths.values())[(clusters - 1) // 2])
    step = float(np.linalg.norm(made.hub.state.weights - before))
    assert step <= 1.01 * usual * made.config.unit(24)
    if clusters == 2:  # both are in the sum, each with the same length
        assert note["weights"][liar] * lengths[liar] == pytest.approx(1023 * usual, rel=0.01)


def test_an_inherited_upload_that_its_member_has_not_signed_is_refused() -> None:
    made = settled(detection="none")
    made.hub.state.owing = {made.hub.state.leaders[0]: 2}
    victim = member_of(made, 1)
    false = msgs.Upload(1, made.common.spec.digest, np.zeros(0, np.int32), np.zeros(0, np.float32), bytes(3), b"")

    def forged(self: Any, msg: Any, sent: Any) -> Any:
        letter = msgs.Inherited(msg.round, msgs.names([victim]), fl.bundle([fl.codec.encode(false)]), False)
        return (*sent, fl.To(made.hub.state.leaders[1], letter))

    misbehaving(made.party(made.hub.state.leaders[0]), msgs.HandOver, forged)
    note = made.round(2)
    assert any(key.startswith(("leader/Inherited", "client/Inherited")) for key in made.refused), made.refused
    assert note["participants"] == 9


def test_refusals_say_no_value_to_a_coordinator() -> None:
    """A leader that refuses a request for its own numbers tells the hub no more than that."""
    made = settled(detection="none")
    resigning(made.party(member_of(made)), lambda u: replace(u, values=u.values * np.float32(1e30)))
    assert "1e30" not in str(made.round(2))


def test_bits_and_places_by_hand() -> None:
    assert places_of(bits(np.array([0, 3, 8]), 9), 9).tolist() == [0, 3, 8]
    assert bits(np.array([], np.int64), 9) == bytes(2)


def test_buffers_never_travel() -> None:
    """Of a model with running statistics, uploads and downloads have the parameters only."""
    parts = (
        fl.Part("w", (20,), "float32", "parameter", "shared", 0),
        fl.Part("running_var", (4,), "float32", "buffer", "shared", 20),
    )
    starts = np.ones((1, 24), np.float32)
    made = ofl(
        TARGETS,
        clusters=3,
        spec=fl.ModelSpec(parts, 144.0, outputs=3),
        starts=starts,
        detection="none",
        full_samples=10,
    )
    made.rounds(2)
    assert made.transport.transcript is not None
    sent = [u for view in made.transport.transcript.of_role("leader") for _, u in view.messages(msgs.Upload)]
    assert sent
    assert all(u.places is not None and u.places.max() < 20 for u in sent)
    assert (made.hub.state.weights[20:] == 1).all()
    assert {made.party(name).model[20:].tobytes() for name in made.common.clients} != {np.ones(4, np.float32).tobytes()}


def test_the_modes_have_their_mechanisms() -> None:
    assert SYSTEM.config(**SYSTEM.defaults("hardened")).mechanism == "standard"
    assert SYSTEM.config(**SYSTEM.defaults("paper")).mechanism == "paper"
