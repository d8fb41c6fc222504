"""The masked-sum check: a sender that does not know what its ciphertext opens to is found before it is added."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import joint_parts
import numpy as np
import pytest
import threshold_parts
from federation import Rig, misbehaving, rig
from joint_parts import CLIENTS, HOLDERS, KEY, drive, false_share, made, small_keys
from threshold_parts import MUL, SUM, N, answers

from benchmarks.security import sender_check
from coterie.crypto import threshold as th
from coterie.crypto import threshold_opening
from coterie.crypto.arrays import CiphertextError
from coterie.privacy.attacks.key_in_sum import forged
from coterie.protocol.codec import weighs
from coterie.protocol.errors import CryptoError, DecodeError, PeerError
from coterie.protocol.steps import NoAnswerError

MODELS = np.random.default_rng(0).normal(size=(5, 1500))
BOTH = pytest.mark.parametrize("emulated", [True, False], ids=["emulated", "real"])
SEED, CHALLENGE = b"s" * sender_check.SEED_BYTES, bytes(range(sender_check.SEED_BYTES))


# ---- one ciphertext, among holders without a protocol


def judged(shared: threshold_parts.Shared, cipher: Any, values: np.ndarray) -> None:
    """Raises CiphertextError unless the sender of this ciphertext knows that it holds these values."""
    g = shared.group
    z = sender_check.answer(shared.key, values, SEED, CHALLENGE)
    prepared = sender_check.difference(g, cipher, sender_check.committed(shared.key, SEED), CHALLENGE, z)
    threshold_opening.opened(g, prepared, answers(shared, prepared))


@BOTH
def test_an_honest_sender_passes(emulated: bool) -> None:
    shared = threshold_parts.made(SUM, 3, emulated=emulated)
    values = np.random.default_rng(3).normal(0, 1, 5 * N + 3)
    judged(shared, shared.key.encrypt(values), values)


@pytest.mark.parametrize("bits", [47, 50, 60, 100])
def test_a_sender_that_does_not_know_what_its_ciphertext_holds_is_caught(bits: int) -> None:
    shared = threshold_parts.made(SUM, 3)
    values = np.random.default_rng(3).normal(0, 1, 5 * N + 3)
    cipher = forged(shared.key.encrypt(values), 2, 2.0 ** (110 - bits))
    with pytest.raises(CiphertextError):
        judged(shared, cipher, values)
    with pytest.raises(CiphertextError):  # a lie about its own values is none that it knows
        judged(shared, shared.key.encrypt(values), values + 1e-9)


def test_what_passes_the_check_is_drowned_in_the_sum() -> None:
    """The largest K that may pass is, once the sum is divided, far below the flooding of one holder."""
    g = th.Group("threshold-8192-sum", tuple("abcdefgh"))
    switched = g.switched(g.space.fresh)
    noise = g.fresh_deviation * np.sqrt(1 + 22 * 8192 * 2 / 3)
    most = 2 * 10 * 4 * g.flood(noise, scalar=False) / (60 * np.sqrt(8))
    assert most < 2**52
    assert most / switched.divisor < g.flood(g.rounding(switched), scalar=False) * 2.0**-33


def test_answers_to_a_challenge_are_checked() -> None:
    shared = threshold_parts.made(SUM, 3)
    g, values, claim = shared.group, np.ones(10), sender_check.committed(shared.key, SEED)
    cipher, z = shared.key.encrypt(values), sender_check.answer(shared.key, values, SEED, CHALLENGE)
    for bad in (z[:-1], b"", b"\xff" * len(z)):
        with pytest.raises(DecodeError):
            sender_check.difference(g, cipher, claim, CHALLENGE, bad)
    with pytest.raises(DecodeError):
        sender_check.difference(g, cipher, claim[:-1], CHALLENGE, z)
    with pytest.raises(CryptoError, match="fresh vectors"):
        sender_check.difference(g, cipher.scale(2), claim, CHALLENGE, z)
    with pytest.raises(CryptoError, match="32 bytes"):
        sender_check.answer(shared.key, values, SEED, b"")
    mul = threshold_parts.made(MUL, 3)
    with pytest.raises(CryptoError, match="sums are divided"):
        sender_check.difference(mul.group, mul.key.encrypt(values), claim, CHALLENGE, z)


# ---- in a federation


class Sender(joint_parts.Client, role="client"):
    checks = sender_check.Checks()


SYSTEM = replace(joint_parts.SYSTEM, parties=lambda config: {**joint_parts.parties(config), "client": Sender})


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    with small_keys():
        yield


def joint(emulated: bool = False, **settings: Any) -> Rig:
    """Five clients, some of whom hold shares of a key."""
    run = rig(SYSTEM, np.zeros((len(CLIENTS), 6)), emulated=emulated, fewest=1, **settings)
    made(run)
    return run


def sent(run: Rig, r: int = 1) -> dict[str, Any]:
    """Ciphertexts and claims, of senders that hold no share, too."""
    uploads = {}
    for name, model in zip(CLIENTS, MODELS, strict=True):
        claim = run.party(name).checks.claim(KEY, r, model)
        uploads[name] = run.hub.keys.public(KEY).encrypt(model), claim
    return uploads


def checked(run: Rig, uploads: Any, r: int = 1) -> dict[str, str]:
    return dict(drive(run, sender_check.check_senders(run.hub, KEY, uploads, r), r))


@BOTH
@pytest.mark.parametrize("settings", [{}, {"threshold": 3, "least": 3}], ids=str)
def test_honest_senders_pass(settings: dict[str, Any], emulated: bool) -> None:
    run = joint(emulated=emulated, **settings)
    for r in (1, 2):
        assert checked(run, sent(run, r), r) == {}
    assert not run.refused


@pytest.mark.parametrize("share_bits", [8, 40, 55])
def test_who_changed_its_second_polynomial_is_found(share_bits: int) -> None:
    """From a change of 2^49 on, where the scale is 2^110; in one ciphertext of two."""
    run = joint()
    uploads = sent(run)
    cipher, claim = uploads["client/4"]
    uploads["client/4"] = forged(cipher, 1, 2.0**share_bits), claim
    assert checked(run, uploads) == {"client/4": sender_check.FORGED}


def test_all_of_them_may_be_found() -> None:
    run = joint()
    uploads = {name: (forged(cipher, 0), claim) for name, (cipher, claim) in sent(run).items()}
    assert checked(run, uploads) == dict.fromkeys(CLIENTS, sender_check.FORGED)


def test_a_claim_for_another_vector_is_found() -> None:
    run = joint()
    uploads = sent(run)
    uploads["client/1"] = uploads["client/2"][0], uploads["client/1"][1]
    assert checked(run, uploads) == {"client/1": sender_check.FORGED}


@pytest.mark.parametrize("answered", [None, b"", b"garbage", b"\xff" * 100_000])
def test_a_sender_that_gives_no_answer_is_left_out(answered: bytes | None) -> None:
    run = joint()

    def lie(party: Any, request: Any, honest: sender_check.Response) -> Any:
        return None if answered is None else sender_check.Response(1, KEY, 1, answered)

    misbehaving(run.party("client/4"), sender_check.Challenge, lie)
    assert checked(run, sent(run)).keys() == {"client/4"}
    uploads = sent(run, 2)
    uploads["client/3"] = uploads["client/3"][0], b"garbage"
    assert "client/3" in checked(run, uploads, 2)


def test_one_challenge_is_answered_and_only_of_the_hub() -> None:
    """Two answers would show the vector."""
    run = joint()
    party = run.party("client/0")
    with pytest.raises(PeerError, match="has claimed nothing in round 1"):
        party.checks.respond(sender_check.Challenge(1, KEY, 1, bytes(32)), "hub")
    sent(run)
    for challenge, src, says in [
        (sender_check.Challenge(1, KEY, 1, bytes(32)), "client/1", "only the hub may send one"),
        (sender_check.Challenge(2, KEY, 1, bytes(32)), "hub", "has claimed nothing in round 2"),
        (sender_check.Challenge(1, KEY, 2, bytes(32)), "hub", "has claimed nothing"),
        (sender_check.Challenge(1, KEY, 1, bytes(31)), "hub", "a challenge of 31 bytes"),
    ]:
        with pytest.raises(PeerError, match=says):
            party.checks.respond(challenge, src)
    assert party.checks.respond(sender_check.Challenge(1, KEY, 1, bytes(32)), "hub").answer
    with pytest.raises(PeerError, match="or has answered for it"):
        party.checks.respond(sender_check.Challenge(1, KEY, 1, b"x" * 32), "hub")
    assert repr(sender_check.Claimed(1, MODELS[0], SEED)) == "<Claimed in round 1>"


def test_a_false_share_blames_no_sender() -> None:
    run = joint()
    false_share(run, HOLDERS[1])
    with pytest.raises(NoAnswerError, match="gave a false share"):
        checked(run, sent(run))
    run = joint(threshold=3, least=3)
    false_share(run, HOLDERS[1])
    uploads = sent(run)
    uploads["client/2"] = forged(uploads["client/2"][0], 0), uploads["client/2"][1]
    assert checked(run, uploads) == {"client/2": sender_check.FORGED}  # opened without the holder that lies


def test_it_costs_as_much_emulated() -> None:
    sizes = {}
    for emulated in (True, False):
        checks = joint(emulated=emulated).party("client/0").checks
        claim = checks.claim(KEY, 1, MODELS[0])
        sizes[emulated] = (
            weighs(claim),
            weighs(checks.respond(sender_check.Challenge(1, KEY, 1, bytes(32)), "hub").answer),
        )
    assert sizes[True] == sizes[False]
