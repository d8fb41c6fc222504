"""The masked-sum check: a sender that does not know what its ciphertext opens to is found before it is added."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from federation import Rig, misbehaving
from joint_parts import CLIENTS, HOLDERS, KEY, drive, false_share, joint, made, small_keys

from coterie.privacy.attacks.key_in_sum import forged
from coterie.protocol.codec import weighs
from coterie.protocol.errors import PeerError
from coterie.protocol.steps import NoAnswerError
from coterie.protocols.threshold_check import FORGED, Challenge, Response, check_senders

MODELS = np.random.default_rng(0).normal(size=(5, 1500))
BOTH = pytest.mark.parametrize("emulated", [True, False], ids=["emulated", "real"])


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    with small_keys():
        yield


def sent(run: Rig, r: int = 1) -> dict[str, Any]:
    """Ciphertexts and claims, of senders that hold no share, too."""
    uploads = {}
    for name, model in zip(CLIENTS, MODELS, strict=True):
        committed = run.party(name).checks.claim(KEY, r, model)
        uploads[name] = run.hub.keys.public(KEY).encrypt(model), committed
    return uploads


def checked(run: Rig, uploads: Any, r: int = 1) -> dict[str, str]:
    return dict(drive(run, check_senders(run.hub, KEY, uploads, r), r))


@BOTH
@pytest.mark.parametrize("settings", [{}, {"threshold": 3, "least": 3}], ids=str)
def test_honest_senders_pass(settings: dict[str, Any], emulated: bool) -> None:
    run = joint(emulated=emulated, **settings)
    made(run)
    for r in (1, 2):
        assert checked(run, sent(run, r), r) == {}
    assert not run.refused


@pytest.mark.parametrize("share_bits", [8, 40, 55])
def test_who_changed_its_second_polynomial_is_found(share_bits: int) -> None:
    """From a change of 2^48 on, where the scale is 2^110; in one ciphertext of two."""
    run = joint(emulated=False)
    made(run)
    uploads = sent(run)
    cipher, committed = uploads["client/4"]
    uploads["client/4"] = forged(cipher, 1, 2.0**share_bits), committed
    assert checked(run, uploads) == {"client/4": FORGED}


def test_all_of_them_may_be_found() -> None:
    run = joint(emulated=False)
    made(run)
    uploads = {name: (forged(cipher, 0), committed) for name, (cipher, committed) in sent(run).items()}
    assert checked(run, uploads) == dict.fromkeys(CLIENTS, FORGED)


def test_a_claim_for_another_vector_is_found() -> None:
    run = joint(emulated=False)
    made(run)
    uploads = sent(run)
    uploads["client/1"] = uploads["client/2"][0], uploads["client/1"][1]
    assert checked(run, uploads) == {"client/1": FORGED}


@pytest.mark.parametrize("answer", [None, b"", b"garbage", b"\xff" * 100_000])
def test_a_sender_that_gives_no_answer_is_left_out(answer: bytes | None) -> None:
    run = joint(emulated=False)
    made(run)

    def lie(party: Any, request: Any, honest: Response) -> Any:
        return None if answer is None else Response(1, KEY, 1, answer)

    misbehaving(run.party("client/4"), Challenge, lie)
    assert checked(run, sent(run)).keys() == {"client/4"}
    uploads = sent(run, 2)
    uploads["client/3"] = uploads["client/3"][0], b"garbage"
    assert "client/3" in checked(run, uploads, 2)


def test_one_challenge_is_answered_and_only_of_the_hub() -> None:
    """Two answers would show the vector."""
    run = joint(emulated=False)
    made(run)
    party = run.party("client/0")
    with pytest.raises(PeerError, match="has claimed nothing in round 1"):
        party.checks.respond(Challenge(1, KEY, 1, bytes(32)), "hub")
    sent(run)
    for challenge, src, says in [
        (Challenge(1, KEY, 1, bytes(32)), "client/1", "only the hub may send one"),
        (Challenge(2, KEY, 1, bytes(32)), "hub", "has claimed nothing in round 2"),
        (Challenge(1, KEY, 2, bytes(32)), "hub", "has claimed nothing"),
        (Challenge(1, KEY, 1, bytes(31)), "hub", "a challenge of 31 bytes"),
    ]:
        with pytest.raises(PeerError, match=says):
            party.checks.respond(challenge, src)
    assert party.checks.respond(Challenge(1, KEY, 1, bytes(32)), "hub").answer
    with pytest.raises(PeerError, match="or has answered for it"):
        party.checks.respond(Challenge(1, KEY, 1, b"x" * 32), "hub")
    assert "values" not in repr(party.secret.joint)


def test_a_false_share_blames_no_sender() -> None:
    run = joint(emulated=False)
    made(run)
    false_share(run, HOLDERS[1])
    with pytest.raises(NoAnswerError, match="gave a false share"):
        checked(run, sent(run))
    run = joint(emulated=False, threshold=3, least=3)
    made(run)
    false_share(run, HOLDERS[1])
    uploads = sent(run)
    uploads["client/2"] = forged(uploads["client/2"][0], 0), uploads["client/2"][1]
    assert checked(run, uploads) == {"client/2": FORGED}  # opened without the holder that lies


def test_it_costs_as_much_emulated() -> None:
    sizes = {}
    for emulated in (True, False):
        run = joint(emulated=emulated)
        made(run)
        party = run.party("client/0")
        committed = party.checks.claim(KEY, 1, MODELS[0])
        answer = party.checks.respond(Challenge(1, KEY, 1, bytes(32)), "hub").answer
        sizes[emulated] = weighs(committed), weighs(answer)
    assert sizes[True] == sizes[False]
