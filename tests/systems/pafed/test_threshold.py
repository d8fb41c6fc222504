"""PAFed with keys=threshold: rounds are those of one helper's key, and what the two servers have seen opens nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from federation import Rig, misbehaving
from pafed_parts import TARGETS, change, four, model, opened, paf

from coterie.crypto.arrays import CiphertextError
from coterie.crypto.ckks import CipherVector
from coterie.crypto.split_key import CommitteeShare, Partial, switched
from coterie.privacy.attacks.key_in_sum import KeyThief, key_coefficients
from coterie.privacy.attacks.wrapping import wrap
from coterie.privacy.audits.pafed_keys import whole_key
from coterie.privacy.views import granted, held_key
from coterie.protocol.errors import PeerError, UserError
from coterie.protocol.messages import bundle, unbundle
from coterie.protocols.committee import Switch, Turned
from coterie.runs import RunConfig, build
from coterie.systems.pafed import SYSTEM
from coterie.systems.pafed.messages import HELPER, HUB, SERVICE, Update
from tests.privacy.test_attacks_key_in_sum import TARGETS as LARGE
from tests.systems.pafed.test_twin import follow

JOINT: dict[str, Any] = {"keys": "threshold", "members": 4, "openers": 2}


# -- rounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {},
        *(pytest.param(one, marks=pytest.mark.long) for one in ({"delta": 0.0}, {"project": "none"})),
        pytest.param({"local": "sgd", "clip": 0.5, "signs": "hidden"}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_a_round_is_the_papers(settings: dict[str, Any]) -> None:
    """With a committee of whom at least two are always there."""
    errors = follow(paf(seed=1, **{**JOINT, "members": 8}, **settings), 6, floods=JOINT["openers"])
    assert len(errors) >= 4
    assert np.median(errors) < 5e-3


def test_models_are_those_of_one_helper_s_key() -> None:
    for emulated in (True, False):
        runs = [four(emulated=emulated, delta=0.0, **options) for options in ({}, JOINT)]
        for run in runs:
            assert [run.round(r)["participants"] for r in (1, 2, 3)] == [4, 4, 4]
            assert not run.refused
        assert np.abs(model(runs[0]) - model(runs[1])).max() < 5e-3
        assert np.abs(runs[1].models()[0] - model(runs[1])).max() < 1e-6


def test_each_role_receives_exactly_what_the_system_says() -> None:
    run = paf(TARGETS[::2], seed=1, delay="uniform:1", **JOINT)
    run.rounds(4)
    kinds: dict[str, set[str]] = {}
    for view in run.transport.transcript.views.values():
        kinds.setdefault(view.role, set()).update(view.kinds())
    said = SYSTEM.views("paper", run.config)
    assert kinds == {role: {kind.__name__ for kind in sees.receives} for role, sees in said.items()}
    assert SYSTEM.views("paper", paf(delta=0.0).config) == SYSTEM.views("paper")


def test_a_member_that_is_away_is_replaced_and_too_few_skip_the_round() -> None:
    run = four(delta=0.0, **JOINT)
    run.round(1)
    for name in ("client/0", "client/1"):
        run.links.away[name, 2] = "offline"
    assert run.round(2)["participants"] == 2
    for name in ("client/0", "client/1", "client/3"):
        run.links.away[name, 3] = "offline"
    assert "1 members of the committee are there, and 2 have to help" in run.round(3)["skipped"]
    assert run.round(4)["participants"] == 4


# -- what the servers open, together -----------------------------------------------------------------------------------


def updates(run: Rig) -> list[tuple[str, Update]]:
    return [(seen.src, update) for seen, update in run.view(HUB).messages(Update)]


def test_with_a_committee_both_servers_open_no_update_and_with_two_members_every_one() -> None:
    run = four(emulated=False, delta=0.0, **JOINT)
    run.rounds(2)
    key, public = held_key(run.view(HELPER), SERVICE), run.hub.keys.public(SERVICE)
    shares = [CommitteeShare.load(granted(run.view(name))[f"secret {SERVICE}"]) for name in run.common.clients]
    for _, update in updates(run):
        cipher, truth = public.from_bytes(update.cipher), opened(run, update)
        bare = CipherVector(key.public, replace(cipher.tally, fingerprint=key.fingerprint), cipher.array)
        with pytest.raises(CiphertextError):
            key.decrypt(bare)
        with pytest.raises(CiphertextError):
            key.decrypt(switched(cipher, [shares[0].partial(cipher, [1], 0)], key.public))
        parts = [shares[i].partial(cipher, [2, 4], 0) for i in (1, 3)]
        np.testing.assert_allclose(key.decrypt(switched(cipher, parts, key.public)), truth, atol=1e-4)


def test_both_servers_that_deviate_open_every_update_by_calling_each_a_scalar() -> None:
    """The page's limit: a member can't see what a ciphertext holds. Scalars have no number a round."""
    run = four(emulated=False, delta=0.0, **JOINT)
    run.rounds(2)
    key, public = held_key(run.view(HELPER), SERVICE), run.hub.keys.public(SERVICE)
    ciphers = [public.from_bytes(update.cipher) for _, update in updates(run)]
    called = [
        replace(cipher, tally=replace(cipher.tally, length=1, form=cipher.tally.form._replace(scalar=True)))
        for cipher in ciphers
    ]
    request = Switch(9, 1, np.array([1, 2]), len(called), bundle([cipher.to_bytes() for cipher in called]))
    answers = [run.party(name).seat.switch(request, HUB) for name in ("client/0", "client/1")]
    given = [unbundle(answer.parts, len(called)) for answer in answers]
    for i, (_, update) in enumerate(updates(run)):
        parts = [Partial.from_bytes(public, own[i], called[i]) for own in given]
        found = key.decrypt(switched(ciphers[i], parts, key.public))
        np.testing.assert_allclose(found, opened(run, update), atol=1e-3)


def test_a_client_off_the_committee_and_the_aggregator_hold_no_secret_of_the_key() -> None:
    run = paf(emulated=False, delta=0.0, **JOINT)
    run.round(1)
    for i, name in enumerate(run.common.clients):
        assert (f"secret {SERVICE}" in granted(run.view(name))) == (i < 4)
    assert not any(name.startswith("secret") for name in granted(run.view(HUB)))


def test_a_thief_reads_this_key_too() -> None:
    """A committee is no help against a client that forges its c_1: mode ``hardened`` is."""
    run = paf(LARGE, emulated=False, delta=0.0, **JOINT)
    thief = KeyThief(run.common.spec, share=4, summands=2)
    wrap(run.party("client/0"), thief.between)
    run.rounds(3)
    truth = key_coefficients(whole_key(run.transport.transcript.views))
    assert set(truth) == {-2, -1, 0, 1, 2}
    np.testing.assert_array_equal(thief.guess, truth)


# -- hostile -----------------------------------------------------------------------------------------------------------


def asked(run: Rig, number: int = 1, among: tuple[int, ...] = (1, 2), r: int = 9, **options: Any) -> Switch:
    public = run.hub.keys.public(SERVICE)
    scalars = [public.encrypt_scalar(0.5).to_bytes()]
    ciphers = options.get("ciphers", scalars)
    return Switch(r, number, np.array(among), len(ciphers), bundle(ciphers))


def test_a_member_helps_with_scalars_and_one_masked_vector_a_round() -> None:
    run = four(delta=0.0, **JOINT)
    run.rounds(2)
    party, public = run.party("client/0"), run.hub.keys.public(SERVICE)
    vector = public.encrypt(np.zeros(20), 0)
    masked = vector.blind(public.mask(20, np.random.default_rng(0).bytes)).to_bytes()
    stranger = run.hub.keys.public("user client/0").encrypt_scalar(0.5).to_bytes()
    assert party.seat.switch(asked(run, ciphers=[masked]), HUB).number == 1
    for wrong, why in (
        (asked(run, 1), "request 1 of round 9 after 1 of round 9"),
        (asked(run, 5, r=8), "request 5 of round 8 after"),
        (asked(run, 2, ciphers=[masked]), "a second masked vector in round 9"),
        (asked(run, 2, r=10, ciphers=[masked, masked]), "a second masked vector in round 10"),
        (asked(run, 2, ciphers=[vector.to_bytes()]), "with 0 masks, which would show it"),
        (asked(run, 2, ciphers=[public.encrypt(np.zeros(20)).to_bytes()]), "which would show it"),
        (asked(run, 2, (1,)), "are not the 2 that answer"),
        (asked(run, 2, (2, 3)), "member 1 is not of them"),
        (asked(run, 2, (1, 1)), "are not the 2"),
        (asked(run, 2, (1, 0)), "are not the 2"),
        (asked(run, 2, ciphers=[stranger]), "under key"),
        (change(asked(run, 2), count=0), "request 2"),
        (change(asked(run, 2), ciphers=b""), "no bundle"),
    ):
        with pytest.raises(PeerError, match=why):
            party.seat.switch(wrong, HUB)
    with pytest.raises(PeerError, match="only the hub may send one"):
        party.seat.switch(asked(run, 2), "client/1")


def test_a_member_helps_with_no_more_scalars_a_round_than_an_honest_round_can_have() -> None:
    """An update that is called scalars, coordinate by coordinate, ends there. They are counted over all requests."""
    run = four(delta=0.0, **JOINT)
    run.rounds(1)
    party, one = run.party("client/0"), run.hub.keys.public(SERVICE).encrypt_scalar(0.5).to_bytes()
    most = 4 * run.config.max_staleness + run.config.dummies + 4
    assert party.seat.limits(party)[2] == most
    assert party.seat.switch(asked(run, 1, ciphers=[one] * most), HUB).number == 1
    with pytest.raises(PeerError, match=f"{most + 1} scalars in round 9: it helps with {most} at most"):
        party.seat.switch(asked(run, 2), HUB)
    assert party.seat.switch(asked(run, 1, r=10), HUB).number == 1


def test_a_client_off_the_committee_is_of_no_help() -> None:
    run = paf(delta=0.0, **JOINT)
    with pytest.raises(PeerError, match="has no service"):
        run.party("client/7").seat.switch(asked(run), HUB)


@pytest.mark.parametrize("wrong", ["another number", "too few"])
def test_a_member_that_answers_badly_skips_the_round(wrong: str) -> None:
    run = four(delta=0.0, **JOINT)
    run.round(1)

    def answer(party: Any, request: Switch, reply: Turned) -> Any:
        if request.round != 2:
            return reply
        return change(reply, number=7) if wrong == "another number" else change(reply, parts=bundle([]))

    misbehaving(run.party("client/0"), Switch, answer)
    assert run.round(2)["skipped"].startswith("client/0 did not answer Switch: ")
    assert run.round(3)["participants"] == 4


def test_settings_that_cannot_work_are_refused() -> None:
    for options, why in (
        ({"settings": {"members": 3}}, "members=3 has no effect with keys=helper"),
        ({"settings": {"openers": 3}}, "openers=3 has no effect with keys=helper"),
        (
            {"settings": {"keys": "threshold"}, "mode": "hardened"},
            "has no effect with mode hardened",
        ),
        ({"settings": {"keys": "threshold"}, "mode": "literal"}, "has no effect with mode literal"),
        ({"settings": {"keys": "threshold", "members": 2, "openers": 3}}, "3 of 2 members can't help"),
        ({"settings": {"keys": "threshold", "members": 21}}, "of 21 members can't help the helper, with 20 clients"),
    ):
        with pytest.raises(UserError, match=why):
            build(RunConfig("pafed", **options))
