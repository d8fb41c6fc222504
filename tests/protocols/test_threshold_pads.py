"""Joint pads: senders that hold shares of a key, of whom none chooses the second half of its ciphertext."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from federation import Rig, misbehaving
from joint_parts import BOTH, HOLDERS, KEY, MODELS, SIZE, Fresh, drive, held, keyed, opened, sent, weighted_sum

import coterie.method as fl
from coterie.crypto import threshold, threshold_pads
from coterie.protocol.codec import weighs
from coterie.protocols.threshold import HubKey, complete_pads, loaded, open_padded, open_weighted, padding
from coterie.protocols.threshold.pads import Answer, AnswerFor, Contribute, Count

pytestmark = pytest.mark.usefixtures("small_ring")


def sum_of(run: Rig, uploads: Any, r: int = 1, **options: Any) -> Any:
    return drive(run, open_padded(HubKey(run.hub, KEY, r), uploads, **options), r)


@BOTH
@pytest.mark.parametrize("weights", [None, {"client/0": 3, "client/1": 1, "client/2": 2, "client/3": 5}], ids=str)
def test_the_weighted_sum_is_opened_by_one_answer_of_each(weights: Any, emulated: bool) -> None:
    run = keyed(emulated=emulated)
    ended = sum_of(run, sent(run), weights=weights)
    expected = weights or dict.fromkeys(HOLDERS, 1)
    assert np.abs(ended.values - weighted_sum(expected)).max() <= threshold_pads.padded_error(
        run.hub.joint.group(KEY), expected
    )
    assert ended.among == HOLDERS
    assert not run.refused


@BOTH
@pytest.mark.parametrize("settings", [{}, {"threshold": 3, "least": 3}, {"products": True}], ids=str)
def test_pads_become_ciphertexts_under_the_joint_key(settings: dict[str, Any], emulated: bool) -> None:
    run = keyed(emulated=emulated, pads=True, scalars=1, effective=1.5, **settings)
    among = HOLDERS[:3] if "threshold" in settings else ()
    senders = among or HOLDERS
    uploads = sent(run, 1, senders, among)
    ciphers = drive(run, complete_pads(HubKey(run.hub, KEY, 1), uploads), 1)
    pads, weights = {name: padded.pad for name, padded in uploads.items()}, {"client/0": 1, "client/1": 2}
    ended = drive(run, open_weighted(HubKey(run.hub, KEY, 1), ciphers, pads, weights), 1)
    expected = MODELS["client/0"] + 2 * MODELS["client/1"]
    assert np.abs(ended.values - expected).max() <= 3 * run.hub.joint.group(KEY).error(3)
    if settings.get("products"):
        keys = run.hub.keys.evaluation(KEY)
        dot = ciphers["client/0"].dot(ciphers["client/1"].conjugated(keys), keys, constant=True, at_most=2**11)
        product = opened(run, dot, 3).values[0]
        assert abs(product - MODELS["client/0"] @ MODELS["client/1"]) < 1e-3


def test_an_upload_has_half_the_bytes_of_a_ciphertext() -> None:
    sizes = {}
    for emulated in (True, False):
        run = keyed(emulated=emulated)
        data = padding(run.party("client/0"), KEY, 1).encrypt(MODELS["client/0"]).to_bytes()
        cipher = run.hub.keys.public(KEY).encrypt(MODELS["client/0"]).to_bytes()
        sizes[emulated] = weighs(data), weighs(cipher)
    assert sizes[True] == sizes[False]
    assert 0.5 < sizes[True][0] / sizes[True][1] < 0.51


@pytest.mark.parametrize("shift", [1.0, -7.5, 0.001])
def test_what_a_sender_adds_is_all_that_it_moves(shift: float) -> None:
    """y moves c_0 only: what was added comes out again, and nothing that hangs on the key."""
    run = keyed(emulated=False)
    group = run.hub.joint.group(KEY)
    uploads = sent(run)
    added = np.full(SIZE, shift)
    moved = uploads["client/0"]
    message = threshold_pads.Padding(
        group, run.hub.keys.public(KEY), _zero_share(run), "client/0", b"", (), lambda n: bytes(n)
    )
    plain = message.encrypt(added)
    uploads["client/0"] = type(moved)(group, moved.pad, group.plus(moved.array, plain.array), None)
    ended = sum_of(run, uploads)
    expected = weighted_sum(dict.fromkeys(HOLDERS, 1)) + added
    assert np.abs(ended.values - expected).max() <= 2 * threshold_pads.padded_error(group, dict.fromkeys(HOLDERS, 1))


def _zero_share(run: Rig) -> Any:
    group = run.hub.joint.group(KEY)
    share = threshold.Share.load(group, held(run, "client/0").share)
    return threshold.Share(group, np.zeros_like(share.numbers))


def test_two_pads_of_one_round_differ_so_that_their_difference_is_not_that_of_the_models() -> None:
    """A sender that is taken back to the beginning of a round pads anew."""
    run = keyed(emulated=False)
    group, party = run.hub.joint.group(KEY), run.party("client/0")
    party.randomness = Fresh(0, False)
    first, second = (padding(party, KEY, 1).encrypt(MODELS["client/0"]) for _ in range(2))
    assert first.pad.nonce != second.pad.nonce
    difference = group.minus(first.array, second.array)
    for limb in range(group.limbs):  # uniform: nothing shows
        spread = (difference[:, limb] / float(group.moduli(group.limbs)[limb, 0])).std()
        assert abs(spread - np.sqrt(1 / 12)) < 0.02


def test_one_padding_hides_one_vector() -> None:
    run = keyed(emulated=False)
    pad = padding(run.party("client/0"), KEY, 1)
    pad.encrypt(MODELS["client/0"])
    with pytest.raises(fl.CryptoError, match="a pad hides one vector"):
        pad.encrypt(MODELS["client/0"])


def test_a_whole_ciphertext_is_no_padded_vector() -> None:
    run = keyed(emulated=False)
    cipher = run.hub.keys.public(KEY).encrypt(MODELS["client/0"]).to_bytes()
    with pytest.raises(fl.DecodeError):
        loaded(HubKey(run.hub, KEY, 1), "client/0", cipher, SIZE)
    data = padding(run.party("client/0"), KEY, 1).encrypt(MODELS["client/0"]).to_bytes()
    for wrong in (data[:-1], data + b"x", b"", data[:30]):
        with pytest.raises(fl.DecodeError):
            loaded(HubKey(run.hub, KEY, 1), "client/0", wrong, SIZE)
    with pytest.raises(fl.DecodeError):
        loaded(HubKey(run.hub, KEY, 1), "client/0", data, SIZE - 1)
    with pytest.raises(fl.PeerError, match="client/4 holds no share"):
        loaded(HubKey(run.hub, KEY, 1), "client/4", data, SIZE)
    with pytest.raises(fl.PeerError, match="client/4 holds no share of key 'sum', and pads need one"):
        padding(run.party("client/4"), KEY, 1)
    again = loaded(HubKey(run.hub, KEY, 2), "client/0", data, SIZE)  # of another round: it opens to nonsense
    uploads = {**sent(run, 2), "client/0": again}
    with pytest.raises(fl.NoAnswerError, match="stays closed, as a sender in it does not answer: client/0: "):
        sum_of(run, uploads, 2)
    assert any("a nonce of client/0 that it has not drawn in round 2" in reason for reason in run.refused)


def test_a_sender_that_is_gone_when_they_are_counted_falls_out() -> None:
    run = keyed()
    uploads = sent(run)
    misbehaving(run.party("client/2"), Count, lambda party, request, answer: None)
    ended = sum_of(run, uploads)
    rest = {name: 1 for name in HOLDERS if name != "client/2"}
    assert ended.among == tuple(rest)
    assert np.abs(ended.values - weighted_sum(rest)).max() < 1e-6


def test_a_sender_that_goes_later_keeps_the_sum_closed_and_nobody_answers_again() -> None:
    run = keyed(emulated=False)
    uploads = sent(run)
    misbehaving(run.party("client/2"), AnswerFor, lambda party, request, answer: None)
    with pytest.raises(fl.NoAnswerError, match="stays closed, as a sender in it does not answer: client/2: "):
        sum_of(run, uploads)
    rest = {name: padded for name, padded in uploads.items() if name != "client/2"}
    with pytest.raises(fl.NoAnswerError, match="stays closed"):  # what a hub would ask that has its answer after all
        sum_of(run, rest, 1)
    assert any("a second sum of the vectors of round 1" in reason for reason in run.refused)
    misbehaving(run.party("client/2"), AnswerFor, lambda party, request, answer: Answer(2, KEY, 1, b"garbage"))
    with pytest.raises(fl.NoAnswerError, match="client/2: its answer cannot be read"):
        sum_of(run, sent(run, 2), 2)


def test_all_senders_gone() -> None:
    run = keyed()
    uploads = sent(run)
    for name in HOLDERS:
        misbehaving(run.party(name), Count, lambda party, request, answer: None)
    with pytest.raises(fl.NoAnswerError, match="0 senders of a sum that needs 2: client/0: "):
        sum_of(run, uploads)


def test_a_single_vector_is_not_opened() -> None:
    """Neither by a sum of one, nor by one sender's answer alone: a share of zero is in it."""
    run = keyed(emulated=False)
    uploads = sent(run)
    one = {"client/0": uploads["client/0"]}
    with pytest.raises(fl.NoAnswerError, match="1 senders of a sum that needs 2"):
        sum_of(run, one)
    pad = uploads["client/0"].pad
    party = run.party("client/0")
    for senders, weights in [("client/0", [1]), ("client/1\nclient/2", [1, 1]), ("client/0\nclient/1", [1, 0])]:
        count = senders.count("\n") + 1
        message = AnswerFor(1, KEY, 1, senders, pad.nonce * count, SIZE, np.array(weights))
        with pytest.raises(fl.PeerError, match=r"shows too much|without that of client/0 or without weights"):
            party.pads.answer_for(message, "hub")
    for senders, nonces, length in [
        ("", b"", SIZE),
        ("client/0\nclient/0", pad.nonce * 2, SIZE),
        ("client/0\nclient/4", pad.nonce * 2, SIZE),
        ("client/0\nclient/1", pad.nonce, SIZE),
        ("client/0\nclient/1", pad.nonce * 2, 0),
    ]:
        with pytest.raises(fl.PeerError, match=r"pads with .* bytes of nonces|pads for 0 values"):
            party.pads.answer_for(AnswerFor(1, KEY, 1, senders, nonces, length, np.array([1, 1])), "hub")
    for kind in (AnswerFor, Contribute):
        extra = np.array([1, 1]) if kind is AnswerFor else ""
        message = kind(1, KEY, 1, "client/0\nclient/1", pad.nonce * 2, SIZE, extra)
        with pytest.raises(fl.PeerError, match="only the hub may send one"):
            party.handlers[kind].run(party, message, "client/3")


@pytest.mark.parametrize("parts", [b"garbage", fl.bundle([]), fl.bundle([b""] * 3)])
def test_a_contribution_that_is_none(parts: bytes) -> None:
    run = keyed(emulated=False)
    uploads = sent(run)
    misbehaving(run.party("client/3"), Contribute, lambda party, request, answer: type(answer)(1, KEY, 1, parts))
    with pytest.raises(fl.NoAnswerError, match="client/3: "):
        drive(run, complete_pads(HubKey(run.hub, KEY, 1), uploads), 1)
