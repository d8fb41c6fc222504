"""Paillier, padded vectors and their emulated twins are equal bit for bit, and equal plain integers: in results,
refusals and sizes.
"""

from __future__ import annotations

import os
from functools import partial

import numpy as np
import pytest
from emulated import exact, of_integers, pads, plain
from hypothesis import given
from hypothesis import strategies as st

from coterie.crypto import Lanes, paillier, sum_ciphers
from coterie.crypto.arrays import CiphertextError
from coterie.protocol.codec import content, weighs
from coterie.protocol.errors import CapacityError, CryptoError, DecodeError, PeerError

FORMATS = [Lanes(), Lanes(8, 12, 5), Lanes(4, 9, 0), Lanes(16, 30, 3), Lanes(20, 40, 8), Lanes(6, 8, 8, kappa=64)]


def keys(lanes):
    """Of Paillier, its twin, pads and theirs: an (aggregating, users') pair of secret keys."""
    return tuple(
        (m.keygen(512, lanes, allow_insecure=True), m.keygen(512, lanes, allow_insecure=True))
        for m in (paillier, exact, pads, plain)
    )


KEYS = {lanes: keys(lanes) for lanes in FORMATS}


@st.composite
def work(draw):
    """A round: who sends what, with which weights, in which clusters."""
    lanes = draw(st.sampled_from(FORMATS))
    length = draw(st.integers(1, 40))
    limit = lanes.offset
    clients = draw(st.integers(1, 4))
    seed = draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    values = rng.integers(-limit, limit, (clients, length))
    values[:, 0] = draw(st.sampled_from([-limit, limit - 1, 0]))
    if draw(st.booleans()):
        values[0], values[-1] = limit - 1, -limit
    weights = draw(st.lists(st.integers(1, 4), min_size=clients, max_size=clients))
    return lanes, values, weights


def attempt(action):
    """What happens: ("ok", result), or the kind of error and its words."""
    try:
        return "ok", action()
    except CryptoError as error:
        return type(error), str(error)


def round_of(pair, values, weights):
    """Encrypt, weigh, blind, open, subtract, sum, convert, unblind, decrypt: everything that is seen on the way."""
    first, second = pair
    length = values.shape[1]
    sent = [of_integers(first, v) for v in values]
    received = [first.public.from_bytes(c.to_bytes(), length, terms=1, blinded=0) for c in sent]
    weighed = [c.scale(w) for c, w in zip(received, weights, strict=True)]
    plain_total = first.decrypt_integers(sum_ciphers(weighed))
    mask = first.public.mask(length, os.urandom)
    opened = [first.open_blinded(c.blind(mask)) for c in received]
    differences = [a.minus(opened[0]) for a in opened]
    total = sum_ciphers(opened)
    converted = second.public.encrypt_blinded(total)
    converted = second.public.from_bytes(converted.to_bytes(), length, terms=len(sent), blinded=len(sent))
    mean = second.decrypt(converted.unblind(mask, len(sent)))
    return plain_total.tolist(), [d.tolist() for d in differences], mean.tolist()


@given(work())
def test_a_whole_round_equals_plain_integers_and_its_twin(case):
    lanes, values, weights = case
    real, *others = KEYS[lanes]
    result = attempt(lambda: round_of(real, values, weights))
    for other in others:
        assert attempt(lambda pair=other: round_of(pair, values, weights)) == result
    fits = sum(weights) <= lanes.max_terms and len(values) <= lanes.max_terms and lanes.max_terms >= 2
    assert (result[0] == "ok") == fits
    if fits:
        total, differences, mean = result[1]
        assert total == (values * np.array(weights)[:, None]).sum(axis=0).tolist()
        assert differences == (values - values[0]).tolist()
        assert mean == (values.sum(axis=0) / 2**lanes.fraction_bits).tolist()
    else:
        assert result[0] is CapacityError


@given(st.sampled_from(FORMATS), st.lists(st.floats(allow_nan=True, width=32), min_size=1, max_size=20))
def test_floats_are_treated_alike(lanes, values):
    results = [attempt(lambda k=k: k.decrypt(k.public.encrypt(values)).tolist()) for k, _ in KEYS[lanes]]
    assert results == results[:1] * 4
    if results[0][0] == "ok":
        assert np.abs(np.array(results[0][1]) - values).max() <= 0.5 / 2**lanes.fraction_bits
    else:
        assert results[0][0] is CapacityError


STEPS = ["add", "plain", "scale", "double", "blind", "unblind"]


def apply(step, key, mask, cipher, fresh, factor):
    """One operation on a ciphertext vector."""
    match step:
        case "add":
            return cipher + of_integers(key, fresh)
        case "plain":
            return cipher.add_plain(key.layout.lanes.dequantise(fresh))
        case "scale":
            return cipher.scale(factor)
        case "double":
            return cipher + cipher
        case "blind":
            return cipher.blind(mask)
    return cipher.unblind(mask, factor)


def predict(step, values, terms, blinded, fresh, factor):
    """The same operation on plain integers: (values, terms, masks)."""
    match step:
        case "add" | "plain":
            return values + fresh, terms + 1, blinded
        case "scale":
            return values * factor, terms * factor, blinded * factor
        case "double":
            return values * 2, terms * 2, blinded * 2
        case "blind":
            return values, terms, blinded + 1
    return values, terms, blinded - factor


@given(st.data())
def test_any_program_of_operations(data):
    """Random operations: the twins agree with each other and with plain integers, in results and in refusals."""
    lanes = Lanes(8, 12, 4)
    twins = [m.keygen(256, lanes, allow_insecure=True) for m in (paillier, exact, pads, plain)]
    length = data.draw(st.integers(1, 9))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    masks = [key.public.mask(length, os.urandom) for key in twins]
    values, terms, blinded = rng.integers(-lanes.offset, lanes.offset, length), 1, 0
    ciphers = [of_integers(key, values) for key in twins]
    for step in data.draw(st.lists(st.sampled_from(STEPS), max_size=8)):
        fresh, factor = rng.integers(-lanes.offset, lanes.offset, length), int(rng.integers(1, 4))
        calls = [
            partial(apply, step, key, mask, cipher, fresh, factor)
            for key, mask, cipher in zip(twins, masks, ciphers, strict=True)
        ]
        results = [attempt(call) for call in calls]
        after = predict(step, values, terms, blinded, fresh, factor)
        legal = after[1] <= 16 and 0 <= after[2] <= 16
        assert [kind == "ok" for kind, _ in results] == [legal] * 4
        if legal:
            ciphers, (values, terms, blinded) = [result for _, result in results], after
        else:
            assert results == results[:1] * 4
    assert [(c.length, c.terms, c.blinded) for c in ciphers] == [(length, terms, blinded)] * 4
    for key, mask, cipher in zip(twins, masks, ciphers, strict=True):
        bare = cipher.unblind(mask, blinded) if blinded else cipher
        travelled = bare if key.scheme in ("pads", "plain") else key.public.from_bytes(bare.to_bytes())  # too many keys
        assert key.decrypt_integers(travelled).tolist() == values.tolist()


@pytest.mark.parametrize("module", [paillier, exact, pads, plain])
def test_masks_must_be_the_same(module):
    key = module.keygen(512, allow_insecure=True)
    values = np.linspace(-1, 1, 50)
    a, b = (key.open_blinded(key.public.encrypt(values).blind(key.public.mask(50, os.urandom))) for _ in range(2))
    with pytest.raises(CiphertextError, match="same mask"):
        a.minus(b)
    with pytest.raises(CryptoError, match="equal numbers"):
        a.minus(a + a)
    other = module.keygen(512, allow_insecure=True)
    theirs = other.open_blinded(other.public.encrypt(values).blind(other.public.mask(50, os.urandom)))
    for misuse in (lambda: a.minus(theirs), lambda: a + theirs):
        with pytest.raises(CryptoError):
            misuse()
    with pytest.raises(CryptoError):
        sum_ciphers([])


@pytest.mark.parametrize("module", [paillier, exact, pads])
def test_what_is_opened_hides_the_values(module):
    key = module.keygen(512, allow_insecure=True)
    values = np.zeros(14)  # one plaintext
    tops = []
    for _ in range(200):
        blinded = key.open_blinded(key.public.encrypt(values).blind(key.public.mask(14, os.urandom)))
        tops.append(np.ravel(blinded.array[0])[0] / (2**key.layout.mask_bits if module is paillier else 2**32))
    assert 0.3 < np.mean(tops) < 0.7  # uniform in [0, 1]: 1/2 within 10 standard errors of .02
    assert 0.2 < np.std(tops) < 0.38
    with pytest.raises(CapacityError):
        blinded + key.open_blinded(key.public.encrypt(values).blind(key.public.mask(14, os.urandom)).scale(256))


def test_differences_reach_the_edge_of_a_lane():
    for lanes in FORMATS:
        if not lanes.guard_bits:
            continue
        for key, _ in KEYS[lanes]:
            half = lanes.max_terms // 2
            mask = key.public.mask(2, os.urandom)
            high = of_integers(key, [lanes.offset - 1, -lanes.offset]).scale(half).blind(mask)
            low = of_integers(key, [-lanes.offset, lanes.offset - 1]).scale(half).blind(mask)
            expected = half * (2 * lanes.offset - 1)
            assert key.open_blinded(high).minus(key.open_blinded(low)).tolist() == [expected, -expected]
            one = key.open_blinded(of_integers(key, [-lanes.offset, 5]).blind(mask))
            rest = of_integers(key, [lanes.offset - 1, -7]).scale(lanes.max_terms - 1).blind(mask)
            top = (lanes.max_terms - 1) * (lanes.offset - 1) + lanes.offset  # unequal numbers of terms
            assert key.open_blinded(rest).minus(one).tolist() == [top, -7 * (lanes.max_terms - 1) - 5]
            assert one.minus(key.open_blinded(rest)).tolist() == [-top, 7 * (lanes.max_terms - 1) + 5]
            more = of_integers(key, [0, 0]).scale(half + 1).blind(mask)
            with pytest.raises(CapacityError):
                key.open_blinded(high).minus(key.open_blinded(more))


def test_sizes_and_times_are_paillier_s():
    for lanes in FORMATS:
        (real, _), (twin, _), *_ = KEYS[lanes]
        for length in (1, real.layout.lanes_per_plaintext, real.layout.lanes_per_plaintext + 1, 999):
            size = real.public.wire_bytes(length)
            assert twin.public.wire_bytes(length) == size
            assert weighs(twin.public.encrypt(np.zeros(length)).to_bytes()) == size
            assert twin.public.nominal_seconds_encrypt(length) == real.public.nominal_seconds_encrypt(length)
            assert twin.nominal_seconds_decrypt(length) == real.nominal_seconds_decrypt(length)
        assert len(real.public.encrypt(np.zeros(99)).to_bytes()) == real.public.wire_bytes(99)
    assert exact.keygen(512, randomness="full", allow_insecure=True).public.nominal_seconds_encrypt(
        9
    ) == paillier.keygen(512, randomness="full", allow_insecure=True).public.nominal_seconds_encrypt(9)


def test_it_is_labelled_and_repeats():
    draw = np.random.default_rng(3).bytes
    a = exact.keygen(2048, random_bytes=draw)
    b = exact.keygen(2048, random_bytes=np.random.default_rng(3).bytes)
    c = exact.keygen(2048, random_bytes=draw)
    assert a == b
    assert a != c
    assert a.emulated
    assert a.public.emulated
    assert a.public.encrypt([1.0]).emulated
    assert a.scheme == "exact"
    assert a.public.encrypt([1.0]).to_bytes() == b.public.encrypt([1.0]).to_bytes()
    with pytest.raises(CryptoError, match="randomness"):
        exact.keygen(2048, random_bytes=lambda n: b"short")


def test_hostile_bytes():
    key = exact.keygen(512, allow_insecure=True)
    data = key.public.encrypt(np.ones(20)).to_bytes()
    for index in range(len(data)):
        bad = bytearray(data)
        bad[index] ^= 0x80
        if index >= 16 + 40:  # the lanes themselves: seen at decryption, if at all
            if index % 4 == 3:
                with pytest.raises(PeerError):
                    key.decrypt(key.public.from_bytes(bytes(bad), 20, terms=1, blinded=0))
        else:
            with pytest.raises(DecodeError):
                key.public.from_bytes(bytes(bad), 20, terms=1, blinded=0)
    secret = key.to_bytes()
    for bad in (secret[:-1], secret + b"\0", secret.ljust(20 + 128, b"\0"), content(secret)):
        with pytest.raises(DecodeError):
            exact.SecretKey.load(bytes(bad), allow_insecure=True)
