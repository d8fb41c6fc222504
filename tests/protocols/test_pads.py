"""Pads in a federation (PAFed, mode ``hardened``): each is used once, is erased then, and moves c_0 only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from federation import Rig, misbehaving
from pafed_parts import TARGETS, change, four, model, opened, paf, service_key, signed, small_keys, taken
from tampering import flipped

import coterie.method as fl
from coterie.crypto.pads import Counterpart, Padded, PadKey, completed, counterpart
from coterie.privacy.attacks.key_in_sum import forged, key_agreement, key_coefficients
from coterie.privacy.views import granted
from coterie.protocol.codec import weighs
from coterie.protocols import pads
from coterie.protocols.pads import PADS
from coterie.systems.pafed.messages import HELPER, HUB, SERVICE, PaddedUpdate, Train, Update
from tests.privacy.test_attacks_key_in_sum import TARGETS as LARGE
from tests.privacy.test_attacks_key_in_sum import robbed

D = TARGETS.shape[1]
HARD: dict[str, Any] = {"mode": "hardened"}


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    with small_keys():
        yield


def pk(party: Any) -> Any:
    return party.keys.public(SERVICE)


# -- the ratchet -------------------------------------------------------------------------------------------------------


def test_two_ratchets_from_one_key_agree_in_any_order_and_give_each_key_once() -> None:
    client, keeper = pads.Ratchet(b"k" * 32), pads.Ratchet(b"k" * 32)
    used = {}
    for r in (1, 2, 5, 9):
        used[r] = client.take(r)
        client.forget(r + 1)
    assert len(set(used.values())) == 4
    assert not client.kept
    for r in (5, 1, 9, 2):
        assert keeper.take(r) == used[r]
        with pytest.raises(fl.PeerError, match=f"the pad of round {r} was used before"):
            keeper.take(r)
    with pytest.raises(fl.PeerError, match="used before"):
        client.take(3)  # it was not asked then


def test_a_ratchet_s_state_holds_no_key_that_was_used_or_is_too_old() -> None:
    fresh, ratchet = pads.Ratchet(b"k" * 32), pads.Ratchet(b"k" * 32)
    keys = {r: fresh.take(r) for r in range(0, 12)}
    ratchet.take(10)
    ratchet.forget(8)
    state = msgspec.msgpack.encode(ratchet)
    assert {r for r, key in keys.items() if key in state} == {8, 9, 11}
    assert sorted(ratchet.kept) == [8, 9]
    with pytest.raises(fl.PeerError, match="is too old"):
        ratchet.take(7)
    assert b"k" * 8 not in state
    assert "k" * 8 not in repr(ratchet)


def test_a_ratchet_goes_no_further_than_a_bound_at_once() -> None:
    ratchet = pads.Ratchet(b"k" * 32)
    for far in (pads.MOST_AHEAD, 2**62):
        with pytest.raises(fl.PeerError, match="rounds ahead"):
            ratchet.take(far)
    assert ratchet.round == 0
    assert ratchet.take(-1 + 1)
    with pytest.raises(fl.PeerError):
        ratchet.take(-5)


def test_the_pad_depends_on_key_round_nonce_and_the_recipient_s_key() -> None:
    run = four(emulated=False, **HARD)
    public, other = pk(run.party("client/0")), run.hub.keys.public("user client/0")
    made = {
        pads.pad_key(key, ratchet, nonce).key
        for key in (public, other)
        for ratchet in (b"a" * 32, b"b" * 32)
        for nonce in (bytes(16), b"n" * 16)
    }
    assert len(made) == 8


# -- a federation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("emulated", [True, False], ids=["emulated", "real"])
def test_models_are_those_of_mode_paper_and_uploads_have_half_the_bytes(emulated: bool) -> None:
    sizes = {}
    for mode in ("paper", "hardened"):
        run = paf(seed=1, mode=mode, emulated=emulated, delta=0.0)
        notes, updates = taken(run, 1)
        assert notes["participants"] == 8
        assert not run.refused
        sizes[mode] = {weighs(u.cipher if mode == "paper" else u.padded) for _, u in updates}, model(run)
    (whole,), (half,) = (sizes[mode][0] for mode in ("paper", "hardened"))
    assert half == (whole - 40) // 2 + 32
    assert np.abs(sizes["paper"][1] - sizes["hardened"][1]).max() < 1e-5


def test_a_round_sums_those_in_time_and_opens_no_single_one_of_them() -> None:
    """The helper answers once for the sum in time, and once for each late update."""
    run = four(emulated=False, **HARD)
    run.rounds(3)
    for r in range(1, 4):
        asked = [list(pads.entries(message)) for _, message in run.view(HELPER).messages(pads.Unpad, r)]
        in_time = [held for held in asked if held[0][1] == r]
        late = [held for held in asked if held[0][1] < r]
        assert len(in_time) == 1
        assert all(len(held) == 1 for held in late)
        assert len(late) == (2 if r > 1 else 0)
        assert len(list(run.view(HUB).messages(pads.Unpadded, r))) == len(asked)


def test_one_round_and_two_nonces_show_no_difference_of_updates() -> None:
    """A client that is taken back into a round pads with another nonce. With one pad the difference would show."""
    run = four(emulated=False, delta=0.0, **HARD)
    client = run.party("client/0")
    public = pk(client)
    client.randomness = fl.Randomness(0, emulated=False)  # a real run's: the operating system's
    kept = msgspec.msgpack.encode(client.secret.pads)
    sent = []
    for _ in range(2):
        client.secret.pads = msgspec.msgpack.decode(kept, type=pads.PadKeys)
        sent.append(client.pads.take(public, 1))
    (first, one), (second, two) = sent
    assert first != second
    assert one.key != two.key
    updates = np.random.default_rng(0).normal(0, 0.1, (2, D))
    moduli = public.arrays.ring.moduli_at(3)

    def difference(keys: tuple[PadKey, PadKey]) -> np.ndarray:
        a, b = (key.encrypt(update).array for key, update in zip(keys, updates, strict=True))
        return np.asarray((a + (moduli - b)) % moduli)

    truth = difference((PadKey(public, bytes(32)), PadKey(public, bytes(32))))
    np.testing.assert_array_equal(difference((one, one)), truth)  # what a two-time pad would show
    assert (difference((one, two)) != truth).mean() > 0.999
    with pytest.raises(fl.PeerError, match="the pad of round 1 was used before"):
        client.pads.take(public, 1)


@pytest.mark.parametrize("emulated", [True, False], ids=["emulated", "real"])
@pytest.mark.parametrize("what", ["padded", "another message", "scalar"])
def test_a_full_ciphertext_as_an_update_is_refused(emulated: bool, what: str) -> None:
    run = four(emulated=emulated, delta=0.0, **HARD)
    run.round(1)

    def full(party: Any, request: Train, update: PaddedUpdate) -> Any:
        cipher = (pk(party).encrypt_scalar(0.5) if what == "scalar" else pk(party).encrypt(np.zeros(D))).to_bytes()
        if what == "another message":
            return signed(party, Update(update.round, update.spec, cipher, 1.0))
        return signed(party, change(update, padded=cipher))

    misbehaving(run.party("client/0"), Train, full)
    before = model(run)
    notes, updates = taken(run, 2)
    assert notes["participants"] == 3
    ((reason, count),) = run.refused.items()
    assert count == 1
    assert "aggregator" in reason
    assert "no padded vector" in reason or what == "another message"
    honest = [opened(run, u) for name, u in updates if name != "client/0"]
    assert np.abs(model(run) - before - run.config.server_step(2) * np.mean(honest, axis=0)).max() < 1e-4


BAD = [
    (lambda p, u: signed(p, change(u, nonce=u.nonce[:15])), "a nonce of 15 bytes"),
    (lambda p, u: signed(p, change(u, nonce=b"")), "a nonce of 0 bytes"),
    (lambda p, u: change(u, nonce=bytes(16)), "signature"),
    (lambda p, u: change(u, padded=flipped(u.padded)), "signature"),
    (lambda p, u: signed(p, change(u, spec=bytes(16))), "another shape"),
    (lambda p, u: signed(p, change(u, round=1)), "an answer of round 1 to a request of round"),
    (lambda p, u: signed(p, change(u, length=2.0)), "2.0 long"),
    (
        lambda p, u: signed(p, change(u, padded=PadKey(pk(p), bytes(32)).encrypt(np.zeros(D - 1)).to_bytes())),
        "19 values where 20",
    ),
    (
        lambda p, u: signed(
            p, change(u, padded=PadKey(p.keys.own("user").public, bytes(32)).encrypt(np.zeros(D)).to_bytes())
        ),
        "made for key",
    ),
    (lambda p, u: signed(p, change(u, padded=b"")), "no padded vector"),
]


def test_a_bad_padded_update_is_refused_and_the_others_go_on() -> None:
    run = four(delta=0.0, **HARD)
    run.round(1)
    lies = dict(enumerate(BAD, 2))
    misbehaving(run.party("client/0"), Train, lambda party, request, update: lies[request.round][0](party, update))
    for r, (_, why) in lies.items():
        notes = run.round(r)
        ((reason, count),) = run.refused.items()
        assert reason.startswith("aggregator/PaddedUpdate:")
        assert why in reason
        assert (count, notes["participants"]) == (1, 3)


def test_a_client_that_says_another_nonce_spoils_its_round_as_one_that_encrypts_noise_does() -> None:
    """The sum opens to noise. The next round's clients refuse the model, and the last good one is taken up."""
    run = four(delta=0.0, **HARD)
    run.round(1)

    def lie(party: Any, request: Train, update: PaddedUpdate) -> PaddedUpdate:
        return signed(party, change(update, nonce=bytes(16))) if request.round == 2 else update

    misbehaving(run.party("client/0"), Train, lie)
    run.round(2)
    assert "taken up again" in run.round(3)["skipped"]
    assert run.round(4)["participants"] == 4


# -- the keeper --------------------------------------------------------------------------------------------------------


def asking(run: Rig, r: int, *held: tuple[str, int, bytes]) -> Any:
    return run.party(HELPER).pads.unpad(pads.Collected(held, lambda: None).request(r), HUB)  # type: ignore[arg-type,return-value]


def test_the_keeper_answers_once_for_a_client_and_round_and_for_none_that_is_too_old() -> None:
    run = four(max_staleness=2, **HARD)
    helper, nonce = run.party(HELPER), bytes(16)
    assert asking(run, 3, ("client/0", 3, nonce), ("client/1", 2, nonce)).round == 3
    for held in (("client/0", 3, nonce), ("client/0", 3, b"n" * 16), ("client/1", 2, nonce)):
        with pytest.raises(fl.PeerError, match=f"the pad of round {held[1]} was used before"):
            asking(run, 3, held)
    asking(run, 3, ("client/1", 1, nonce))
    asking(run, 4, ("client/0", 2, nonce))
    with pytest.raises(fl.PeerError, match="the pad of round 1 was used before, or is too old"):
        asking(run, 4, ("client/0", 1, nonce))
    with pytest.raises(fl.PeerError, match="the pad of round 3 was used"):
        asking(run, 4, ("client/2", 3, nonce), ("client/2", 3, nonce))
    ratchet = helper.secret.pads.ratchets["client/3"]
    assert (ratchet.round, ratchet.kept) == (2, {})


REQUESTS: list[tuple[Any, str]] = [
    (lambda m: change(m, names="client/9"), "'client/9' has no pads"),
    (lambda m: change(m, names=HELPER), "'helper' has no pads"),
    (lambda m: change(m, names="", rounds=np.zeros(0, np.int64), nonces=b""), "1 names, 0 rounds"),
    (lambda m: change(m, nonces=bytes(15)), "15 bytes of nonces"),
    (lambda m: change(m, rounds=np.array([1, 1])), "1 names, 2 rounds"),
    (lambda m: change(m, rounds=np.array([3])), "asked in round 2 for pads of rounds 3 to 3"),
    (lambda m: change(m, rounds=np.array([0])), "rounds 0 to 0"),
    (lambda m: change(m, round=2**62, rounds=np.array([2**62])), "rounds ahead"),
]


def test_the_keeper_refuses_a_request_that_makes_no_sense() -> None:
    run = four(**HARD)
    good = pads.Unpad(2, "client/0", np.array([2]), bytes(16))
    helper = run.party(HELPER)
    for make, why in REQUESTS:
        helper.pads.unpad_cost(make(good))
        with pytest.raises(fl.PeerError, match=why):
            helper.pads.unpad(make(good), HUB)
    with pytest.raises(fl.PeerError, match="only the hub may send one"):
        helper.pads.unpad(good, "client/0")


@pytest.mark.parametrize("wrong", ["another round", "nothing", "garbage", "a ciphertext", "short"])
def test_a_wrong_answer_of_the_keeper_skips_a_round_and_the_next_goes_on(wrong: str) -> None:
    run = four(delta=0.0, **HARD)
    run.round(1)

    def answer(helper: Any, request: pads.Unpad, reply: pads.Unpadded) -> Any:
        service = helper.keys.own(SERVICE)
        if request.round != 2:
            return reply
        return {
            "another round": change(reply, round=1),
            "nothing": None,
            "garbage": change(reply, part=bytes(50)),
            "a ciphertext": change(reply, part=service.encrypt(np.zeros(D)).to_bytes()),
            "short": change(reply, part=counterpart(service, [bytes(32)], D - 1).to_bytes()),
        }[wrong]

    misbehaving(run.party(HELPER), pads.Unpad, answer)
    notes = run.round(2)
    assert notes["skipped"].startswith("helper did not answer Unpad: ")
    assert (notes["participants"], notes["lost_updates"]) == (0, 4)
    assert run.round(3)["participants"] == 4


def test_only_one_client_s_pads_are_with_a_client_and_all_of_them_with_the_helper() -> None:
    run = four(emulated=False, **HARD)
    everything = pads.dealt_pads(granted(run.view(HELPER))[f"secret {PADS}"])
    assert list(everything) == list(run.common.clients)
    assert len(set(everything.values())) == 4
    for name in run.common.clients:
        assert granted(run.view(name))[f"secret {PADS}"] == everything[name]
    assert not any(PADS in name for name in granted(run.view(HUB)))
    with pytest.raises(fl.DecodeError):
        pads.dealt_pads(fl.bundle([b"a\nb", bytes(32)])[:-1])


# -- forward secrecy ---------------------------------------------------------------------------------------------------


def test_after_a_round_no_state_opens_an_update_of_it_but_only_their_sum() -> None:
    """Whoever gets all states of helper and clients later, with all that the aggregator was handed before."""
    run = four(emulated=False, delta=0.0, **HARD)
    _, updates = taken(run, 1)
    key = service_key(run)
    truths = [opened(run, update) for _, update in updates]
    for name, update in updates:
        for ratchet in (run.party(HELPER).secret.pads.ratchets[name], run.party(name).secret.pads.ratchets[name]):
            state = msgspec.msgpack.encode(ratchet)
            with pytest.raises(fl.PeerError, match="used before"):
                msgspec.msgpack.decode(state, type=pads.Ratchet).take(update.round)
        ratchet = run.party(HELPER).secret.pads.ratchets[name]
        held = {ratchet.key, *ratchet.kept.values()}
        for one in held:
            pad = pads.pad_key(key.public, one, update.nonce)
            padded = Padded.from_bytes(key.public, update.padded)
            with pytest.raises(fl.PeerError):
                key.decrypt(completed(padded, counterpart(key, [pad.key], D)))
    assert all(PADS not in run.party(name).secret.keys.secret for name in (HELPER, *run.common.clients))
    ((_, reply),) = run.view(HUB).messages(pads.Unpadded, 1)
    first, *rest = (Padded.from_bytes(key.public, update.padded) for _, update in updates)
    total = sum(rest, first)
    found = key.decrypt(completed(total, Counterpart.from_bytes(key.public, reply.part)))
    np.testing.assert_allclose(found, np.sum(truths, axis=0), atol=1e-5)


# -- the attack --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [pytest.param(0, marks=pytest.mark.long), 1])
def test_a_thief_agrees_with_s_no_better_than_a_constant_guess(late: int) -> None:
    """By three standard errors at most, where in mode paper it has all of the key (test_attacks_key_in_sum.py)."""
    options: dict[str, Any] = {"delta": 0.0} if not late else {"delta": 0.3, "delay": "uniform:3", "project": "none"}
    run, thief = robbed(LARGE, late=late, **options, **HARD)
    notes = run.rounds(5)
    assert all("skipped" not in note for note in notes)
    assert not run.refused
    assert thief.key is None
    assert len(thief.forged_in) > 1
    truth = key_coefficients(service_key(run))
    agreement = key_agreement(thief.guess, truth)
    error = np.sqrt(agreement.chance * (1 - agreement.chance) / len(truth))
    assert agreement.value < agreement.chance + 3 * error  # of a real key; a guess that knows nothing may do worse


def test_what_it_puts_in_opens_to_itself_and_not_to_a_multiple_of_s() -> None:
    run = paf(LARGE, emulated=False, delta=0.0, **HARD)
    key = service_key(run)
    made = PadKey(key.public, bytes(32)).encrypt(np.zeros(LARGE.shape[1]))
    part = counterpart(key, [bytes(32)], LARGE.shape[1])
    honest, changed = (key.decrypt(completed(vector, part)) for vector in (made, forged(made, 1, 64.0)))
    moved = changed - honest
    constant = np.zeros_like(moved)
    constant[1024] = np.sqrt(512) / 64  # K over the scale of a coefficient, in the second ciphertext's first one
    np.testing.assert_allclose(moved, constant, atol=1e-9)


def test_an_old_update_in_a_new_message_is_refused() -> None:
    """client/0 sends its update of round 1 again instead of each later one; its signature is good."""
    run, kept = four(delta=0.0, **HARD), []
    misbehaving(run.party("client/0"), Train, lambda p, r, update: kept.append(update) or kept[0])
    assert [run.round(r)["participants"] for r in (1, 2, 3)] == [4, 3, 3]
    assert run.refusals(HUB, "PaddedUpdate") == 1


def test_an_old_vector_under_a_new_signature_opens_to_noise() -> None:
    """It is of another round's pad: the sum opens to nothing that a client would train on."""
    run, kept = four(delta=0.0, **HARD), []

    def again(party: Any, request: Train, update: PaddedUpdate) -> PaddedUpdate:
        kept.append(update)
        return signed(party, change(kept[0], round=update.round))

    misbehaving(run.party("client/0"), Train, again)
    run.rounds(2)
    assert "taken up again" in run.round(3)["skipped"]
