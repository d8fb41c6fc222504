"""Joint pads: what a sender adds comes out as it went in."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threshold_parts import MUL, SUM, N, made, opened

from coterie.crypto import CiphertextError, threshold_pads
from coterie.crypto import threshold as th
from coterie.protocol.codec import weighs
from coterie.protocol.errors import CapacityError, CryptoError, DecodeError, PeerError, UserError

BOTH = pytest.mark.parametrize("emulated", [False, True], ids=["real", "emulated"])
CONTEXT = b"round 7"


def sent(shared, values, among=(), senders=None):
    """What each encrypts, over the wire."""
    g, out = shared.group, {}
    for name, value in zip(senders or g.holders, values, strict=True):
        padding = threshold_pads.Padding(g, shared.key, shared.shares[name], name, CONTEXT, among)
        data = padding.encrypt(value).to_bytes()
        out[name] = threshold_pads.Padded.load(g, data, name, CONTEXT, len(value), among)
    return out


def joined(shared, padded, parts):
    joining = threshold_pads.Joining(shared.group, padded)
    for name, part in parts.items():
        joining.take(name, part)
    return joining.cipher(shared.key)


def completed(shared, padded):
    """The ciphertext under the joint key."""
    g, pad = shared.group, padded.pad
    parts = {k: threshold_pads.contribution(g, shared.shares[k], k, pad) for k in pad.among if k != pad.sender}
    return joined(shared, padded, parts)


def summed(shared, padded, weights):
    g, pads = shared.group, {name: one.pad for name, one in padded.items()}
    data = {
        k: threshold_pads.pad_partial(g, shared.shares[k], k, pads, weights, shared.zeros[k], th.Answered())[0]
        for k in padded
    }
    return threshold_pads.padded_sum(g, shared.key, padded, weights, data)


@BOTH
@settings(max_examples=8)
@given(st.integers(0, 2**32), st.sampled_from([1, 50, 4096]), st.integers(2, 4), st.integers(1, 2600))
def test_weighted_sums_without_contributions(emulated, seed, most, senders, length):
    shared, rng = made(SUM, 4, emulated=emulated), np.random.default_rng(seed)
    values = rng.normal(0, 1, (senders, length)).clip(-60, 60)
    present = shared.group.holders[:senders]  # the others have left: nobody needs them
    weights = dict(zip(present, map(int, rng.integers(1, most + 1, senders)), strict=True))
    found = summed(shared, sent(shared, values, senders=present), weights)
    wanted = np.array(list(weights.values())) @ values
    np.testing.assert_allclose(found, wanted, atol=threshold_pads.padded_error(shared.group, weights), rtol=0)
    assert threshold_pads.padded_error(shared.group, weights) <= shared.group.error(sum(weights.values()))


@pytest.mark.parametrize("emulated", [False, True])
def test_the_stated_deviation_of_padded_sums(emulated):
    shared = made(SUM, 4, emulated=emulated)
    weights = dict.fromkeys(shared.group.holders, 10)
    error = summed(shared, sent(shared, np.zeros((4, 20 * N))), weights)
    assert 0.9 < np.std(error) / (threshold_pads.padded_error(shared.group, weights) / 10) < 1.1


@BOTH
@pytest.mark.parametrize("threshold", [0, 3])
def test_joint_ciphertexts_are_ciphertexts(emulated, threshold):
    shared = made(MUL, 4, threshold, emulated)
    g, among = shared.group, shared.group.holders[1:4] if threshold else ()
    values = np.random.default_rng(1).normal(0, 0.05, (2, 2100))
    senders = g.holders[1:3]
    one, two = (completed(shared, padded) for padded in sent(shared, values, among, senders).values())
    some = g.holders[: g.needed]
    np.testing.assert_allclose(opened(shared, one.scale(3) + two, some), 3 * values[0] + values[1], atol=g.error(4))
    dot = one.dot(two.conjugated(shared.evaluation), shared.evaluation, constant=True, at_most=16)
    assert abs(opened(shared, dot, some)[0] - values[0] @ values[1]) <= g.error(16, dot.tally.form)


def test_what_a_sender_adds_comes_out_as_it_went_in():
    """For several X: with the same contributions, y + X is the same ciphertext with X more, to the last bit."""
    shared, rng = made(SUM, 3), np.random.default_rng(2)
    g = shared.group
    padded = sent(shared, [np.ones(2 * N)], senders=("leader-2",))["leader-2"]
    honest = completed(shared, padded).array
    for x in (np.ones_like(padded.array), rng.integers(0, 2**40, padded.array.shape).astype(np.uint64)):
        x = x % g.moduli(g.limbs)
        lying = completed(shared, threshold_pads.Padded(g, padded.pad, g.plus(padded.array, x), None)).array
        assert (g.minus(lying[:, 0], honest[:, 0]) == x).all()
        assert (lying[:, 1] == honest[:, 1]).all()


@BOTH
def test_a_ciphertext_is_no_padded_vector(emulated):
    shared = made(SUM, 3, emulated=emulated)
    data = shared.key.encrypt(np.ones(N)).to_bytes()
    with pytest.raises(DecodeError):
        threshold_pads.Padded.load(shared.group, data, "leader-1", CONTEXT, N)


def test_one_round_two_nonces():
    """Two messages of one round don't show their difference, as they would under one pad."""
    shared = made(SUM, 3)
    g = shared.group
    one, two = (sent(shared, [np.zeros(N)], senders=("leader-1",))["leader-1"] for _ in range(2))
    assert one.pad != two.pad
    difference = g.minus(one.array, two.array)[0, 0].astype(np.float64) / float(g.moduli(1)[0, 0])
    assert np.histogram(difference, 8, (0, 1))[0].min() > 70


@BOTH
def test_a_pad_is_a_pad_for_one_thing(emulated):
    shared = made(SUM, 4, emulated=emulated)
    g, weights = shared.group, {"leader-1": 2, "leader-2": 1}
    padded = sent(shared, np.ones((2, 50)), senders=tuple(weights))
    pads = {name: one.pad for name, one in padded.items()}
    zero = shared.zeros["leader-1"]
    data, answered = threshold_pads.pad_partial(
        g, shared.shares["leader-1"], "leader-1", pads, weights, zero, th.Answered()
    )
    with pytest.raises(PeerError, match="same ciphertext again"):
        threshold_pads.pad_partial(
            g, shared.shares["leader-1"], "leader-1", pads, {**weights, "leader-2": 2}, zero, answered
        )
    other = threshold_pads.pad_partial(
        g, shared.shares["leader-2"], "leader-2", pads, weights, shared.zeros["leader-2"], answered
    )
    with pytest.raises(DecodeError, match="leader-1: a partial for something else"):  # weights are part of the name
        threshold_pads.padded_sum(
            g, shared.key, padded, {**weights, "leader-1": 1}, {"leader-2": other[0], "leader-1": other[0]}
        )
    with pytest.raises(CryptoError, match="an answer of each"):
        threshold_pads.padded_sum(g, shared.key, padded, weights, {"leader-1": data})
    with pytest.raises(CryptoError, match="sent nothing"):
        threshold_pads.pad_partial(
            g, shared.shares["leader-3"], "leader-3", pads, weights, shared.zeros["leader-3"], answered
        )
    with pytest.raises(CryptoError, match="two senders"):  # it would open one message
        threshold_pads.pad_partial(
            g, shared.shares["leader-1"], "leader-1", {"leader-1": pads["leader-1"]}, {"leader-1": 1}, zero, answered
        )
    with pytest.raises(CapacityError, match="weights"):
        threshold_pads.pad_partial(
            g, shared.shares["leader-1"], "leader-1", pads, {**weights, "leader-2": 1 << 20}, zero, answered
        )
    alone = th.Zero("leader-2", dict.fromkeys(shared.zeros["leader-2"].seeds, bytes(32)))
    bad, _ = threshold_pads.pad_partial(g, shared.shares["leader-2"], "leader-2", pads, weights, alone, th.Answered())
    with pytest.raises(CiphertextError, match="nonsense"):  # an answer with another share of zero
        threshold_pads.padded_sum(g, shared.key, padded, weights, {"leader-1": data, "leader-2": bad})


def test_t_of_n_pads_are_of_those_that_contribute():
    shared = made(SUM, 4, 2)
    g, among = shared.group, ("leader-2", "leader-4")
    padded = sent(shared, [np.ones(10)], among, ("leader-2",))["leader-2"]
    assert (
        padded.pad.polynomials(g).tobytes()
        != threshold_pads.Pad("leader-2", CONTEXT, 10, padded.pad.nonce, g.holders[:2]).polynomials(g).tobytes()
    )
    with pytest.raises(UserError, match="not among"):
        threshold_pads.contribution(g, shared.shares["leader-1"], "leader-1", padded.pad)
    with pytest.raises(CryptoError, match="takes contributions of leader-4"):
        joined(shared, padded, {})
    joining, part = (
        threshold_pads.Joining(g, padded),
        threshold_pads.contribution(g, shared.shares["leader-4"], "leader-4", padded.pad),
    )
    with pytest.raises(DecodeError):
        joining.take("leader-4", part[:-1])
    joining.take("leader-4", part)
    for name in ("leader-4", "leader-2", "leader-3"):  # once, of the others, of those that contribute
        with pytest.raises(CryptoError, match="not missing"):
            joining.take(name, part)
    np.testing.assert_array_equal(joining.cipher(shared.key).array, joined(shared, padded, {"leader-4": part}).array)
    with pytest.raises(DecodeError, match="other holders"):
        threshold_pads.Padded.load(g, padded.to_bytes(), "leader-2", CONTEXT, 10, ("leader-2", "leader-3"))
    with pytest.raises(CryptoError, match="t of n"):
        threshold_pads.pad_partial(
            g,
            shared.shares["leader-2"],
            "leader-2",
            {"leader-2": padded.pad},
            {"leader-2": 1},
            shared.zeros["leader-2"],
            th.Answered(),
        )


def test_contributions_repeat_to_the_bit():
    """Fresh noise each time would be averaged away, and the share read."""
    shared = made(SUM, 3)
    pad = sent(shared, [np.ones(10)], senders=("leader-1",))["leader-1"].pad
    first, second = (
        threshold_pads.contribution(shared.group, shared.shares["leader-2"], "leader-2", pad) for _ in range(2)
    )
    assert first == second
    with pytest.raises(CryptoError, match="of others"):
        threshold_pads.contribution(shared.group, shared.shares["leader-1"], "leader-1", pad)


def test_the_twin_of_a_pad_weighs_what_is_real_and_a_wrong_share_spoils_it():
    real, twin = made(SUM, 3), made(SUM, 3, emulated=True)
    pairs = [sent(shared, np.ones((3, 2100)))["leader-1"] for shared in (real, twin)]
    assert len(pairs[0].to_bytes()) == weighs(pairs[0].to_bytes()) == weighs(pairs[1].to_bytes())
    assert weighs(pairs[0].to_bytes()) < 0.51 * real.key.wire_bytes(2100)
    for shared, padded in zip((real, twin), pairs, strict=True):
        wrong = shared._replace(shares={**shared.shares, "leader-2": shared.shares["leader-3"]})
        with pytest.raises(CiphertextError, match="nonsense"):
            opened(shared, completed(wrong, padded))
