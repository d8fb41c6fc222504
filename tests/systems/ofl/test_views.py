"""What every party of OFL sees is what the system says, and what one leader, the hub, and both can open of the rest."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from federation import Rig, misbehaving, planted
from matrix import few
from ofl_parts import WHOLE, counted, ofl, uploads
from scipy import stats

from coterie.crypto import threshold, threshold_pads
from coterie.protocol import codec
from coterie.protocol.messages import bundle, unbundle
from coterie.protocols.key_centre import KEY_CENTRE
from coterie.protocols.reports import StatusReport
from coterie.protocols.threshold import loaded
from coterie.protocols.threshold.keys import HubKey, lines
from coterie.protocols.threshold.pads import Contribute, Contributed, _pads
from coterie.systems.ofl import SYSTEM, messages

TARGETS = planted([0, 0, 0, 1, 1, 1, 2, 2, 2], 24)


@cache
def recorded(mode: str = "paper", emulated: bool = True, **options: Any) -> Rig:
    """Rounds with a late upload that is handed over."""
    made = ofl(
        TARGETS, mode=mode, emulated=emulated, clusters=3, recluster_every=2, leader_s=5.0, deadline_s=60.0, **options
    )
    made.round(1)
    leaders = set(made.hub.state.leaders.values())
    slow = next(name for of in made.hub.members().values() if len(of) > 1 for name in of if name not in leaders)
    made.links.slow[slow] = 12.0
    for r in range(2, 6):
        made.round(r)
    return made


def test_a_key_centre_takes_part_only_where_it_deals() -> None:
    names = tuple(f"client/{i}" for i in range(4))
    assert KEY_CENTRE not in SYSTEM.roles(SYSTEM.config(), names)
    assert KEY_CENTRE in SYSTEM.roles(SYSTEM.config(keys="dealer"), names)


def test_the_hub_relays_uploads_and_downloads_that_it_cannot_read() -> None:
    view = recorded().view(messages.HUB)
    relayed = {seen.kind for seen in view.seen if seen.message is None}
    assert {"Upload", "Work", "Fresh", "Inherited"} <= relayed
    assert not [
        seen for seen in view.seen if isinstance(seen.message, messages.Upload | messages.Work | messages.Fresh)
    ]


def test_a_leader_sees_the_uploads_of_those_whom_it_leads_in_that_round_and_of_nobody_else() -> None:
    run = recorded()
    assert run.transport.transcript is not None
    for view in run.transport.transcript.of_role(messages.LEADER):
        led = {seen.round: messages.named(msg.members, len(msg.counted)) for seen, msg in view.messages(messages.Lead)}
        for seen, upload in view.messages(messages.Upload):
            assert seen.src in led[upload.round]


@pytest.mark.long
def test_what_the_hub_holds_of_one_leader_is_uniform_without_that_leaders_share() -> None:
    """y_j, and y_j with what all other leaders contribute: below each prime as likely to be anywhere (9,000 numbers).

    So the hub, and the hub with all leaders but j, who know no more of a_j s_j, learn nothing of one model from it.
    """
    run = recorded(emulated=False, **{**WHOLE, "detection": "norms"})
    one = run.hub.joint.group(messages.MODEL)
    primes = one.moduli(one.limbs).astype(np.float64)
    sent = [message for _, message in run.view(messages.HUB).messages(messages.Submitted)][-3:]
    ciphers = [np.frombuffer(message.cipher, np.uint8) for message in sent]
    assert len({cipher.tobytes() for cipher in ciphers}) == 3
    names = [seen.src for seen, _ in run.view(messages.HUB).messages(messages.Submitted)][-3:]
    for name, message in zip(names, sent, strict=True):
        padded = loaded(HubKey(run.hub, messages.MODEL, 5), name, message.cipher, 24, one.holders)
        for limb in range(one.limbs):
            row = padded.array[0, limb].astype(np.float64) / float(primes[limb].reshape(-1)[0])
            assert stats.kstest(row, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("mode", few(["paper", "hardened"], ["hardened"]))
def test_all_leaders_but_one_and_the_hub_get_the_last_ones_model_by_subtraction(mode: str) -> None:
    """What no cipher prevents: they know all weights, the mean, and their own models."""
    made = ofl(TARGETS, mode=mode, clusters=3, recluster_every=9, full_samples=10, **SYSTEM.defaults(mode))
    made.round(1)
    held: dict[str, np.ndarray] = {}
    transport = made.transport

    def watch(envelope: Any, frame: bytes) -> list[bytes]:
        if envelope.kind == "Submitted":  # each leader's own model, as it is in its own memory then
            held[envelope.src] = made.party(envelope.src).secret.office.model.astype(np.float64)
        return [frame]

    transport.intercept = watch
    note = made.round(2)
    weights, divisor = note["weights"], note["divisor"]
    victim = max(weights, key=lambda name: weights[name])
    known = made.hub.state.weights.astype(np.float64)
    rest = sum(weights[name] * held[name] for name in weights if name != victim)
    found = (divisor * known - rest) / weights[victim]
    assert np.abs(found - held[victim]).max() < 0.01 * np.abs(held[victim]).max()


def test_a_leader_that_spoils_others_pads_alone_gets_the_model_of_one_that_it_spares() -> None:
    """The page's limit: nothing shows whose part of a pad was false, and a sum of two shows each the other's model."""
    made = ofl(planted([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3], 24), clusters=4, recluster_every=9)
    made.round(1)
    liar, spared, *_ = made.hub.state.leaders.values()

    def spoil(self: Any, msg: Contribute, honest: Contributed) -> Contributed:
        group, pads = self.joint.group(messages.MODEL), _pads(self.joint.group(messages.MODEL), msg, lines(msg.among))
        right = threshold.Share.load(group, self.secret.joint.held[messages.MODEL].share)
        wrong = threshold.Share(group, group.plus(right.numbers[None], right.numbers[None])[0])
        shares = {name: right if name == spared else wrong for name in pads if name != self.name}
        parts = [threshold_pads.contribution(group, share, self.name, pads[name]) for name, share in shares.items()]
        return Contributed(msg.round, msg.key, msg.number, bundle(parts))

    misbehaving(made.party(liar), Contribute, spoil)
    held: dict[str, np.ndarray] = {}

    def watch(envelope: Any, frame: bytes) -> list[bytes]:
        if envelope.kind == "Submitted":
            held[envelope.src] = made.party(envelope.src).secret.office.model.astype(np.float64)
        return [frame]

    made.transport.intercept = watch
    note = made.round(2)
    assert {name for name, weight in note["influence"].items() if weight} == {liar, spared}
    found = 2 * made.party(liar).secret.office.base - held[liar]  # the global model that it was given, and its own
    assert np.abs(found - held[spared]).max() < 1e-3 * np.abs(held[spared]).max()


def test_a_leader_that_adds_one_change_to_all_pads_moves_the_mean_by_it_and_none_is_suspect() -> None:
    """The page's limit, with real ciphers: the detection sees updates that agree."""
    settings = {**SYSTEM.defaults("hardened"), "full_samples": 10, "noise": 1e-6}
    made = ofl(planted([0] * 9, 24), mode="hardened", emulated=False, clusters=3, recluster_every=9, **settings)
    liar, start, moved = made.round(1)["leaders"]["0"], made.hub.state.weights.copy(), np.full(24, 3.0)

    def add(self: Any, msg: Contribute, honest: Contributed) -> Contributed:
        group, pads = self.joint.group(messages.MODEL), _pads(self.joint.group(messages.MODEL), msg, lines(msg.among))
        ring, fresh = group.ring, group.space.fresh
        extra = ring.encoded(moved / self.config.unit(24), fresh)
        parts = []
        for pad, data in zip(
            [pad for name, pad in pads.items() if name != self.name],
            unbundle(honest.parts, len(pads) - 1),
            strict=True,
        ):
            real, tag = (group.space.degree, group.space.levels + 1), pad.digest(group)
            numbers, _ = group.unpack("contribution", data, (1, group.limbs, group.degree), tag=tag, real=real)
            parts.append(group.pack("contribution", tag, group.plus(numbers, extra), real=real))
        return Contributed(msg.round, msg.key, msg.number, bundle(parts))

    misbehaving(made.party(liar), Contribute, add)
    misbehaving(made.party(liar), messages.Lead, lambda self, msg, led: shifted(self, led, moved))
    note = made.round(2)
    assert min(note["influence"].values()) > 0.8
    assert np.abs(made.hub.state.weights - start - moved).max() < 1.0


def shifted(party: Any, led: messages.Led, by: np.ndarray) -> messages.Led:
    """Its own model has the change, too."""
    party.secret.office.model = (party.secret.office.model + by).astype(np.float32)
    return led


def test_views_of_members_have_no_upload_and_no_model_of_another_member() -> None:
    run = recorded()
    assert run.transport.transcript is not None
    for view in run.transport.transcript.of_role(messages.CLIENT):
        assert not list(view.messages(messages.Upload))
        assert not list(view.messages(messages.Spread))
    assert set(counted(run).values()) == {1}
    assert uploads(run)


def test_with_a_proof_nothing_but_the_noisy_values_depends_on_a_members_data() -> None:
    """Another data set of as many samples: the same places, wishes and limits. That is what the ledger relies on."""
    half = {**WHOLE, "full_samples": 20, "noise": 4.0, "epsilon": 2.0, "clusters": 3, "recluster_every": 9}
    other = TARGETS.copy()
    made = ofl(TARGETS, **half)
    made.round(1)
    member = sorted(set(made.common.clients) - set(made.hub.state.leaders.values()))[0]
    other[int(member.split("/")[1])] *= -50
    again = ofl(other, **half)
    again.round(1)
    for r in (2, 3, 4, 5, 6):
        made.round(r)
        again.round(r)
    one, two = ({r: up for (name, r), up in uploads(each).items() if name == member} for each in (made, again))
    assert one.keys() == two.keys() == {1, 2, 3, 4, 5, 6}
    assert {len(up.values) for up in one.values()} == {12, 0}  # until the budget is spent
    for r, mine in one.items():
        theirs = two[r]
        assert (mine.places, mine.wanted, len(mine.values)) == (None, theirs.wanted, len(theirs.values))
        reports = [codec.decode(up.report, StatusReport) for up in (mine, theirs)]
        np.testing.assert_array_equal(reports[0].values, reports[1].values)
        if len(mine.values):
            assert (mine.values != theirs.values).any()
