"""One-time pads over CKKS: sums open to what was padded, y moves c_0 only, and a pad hides all but its reuse."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from coterie.crypto import ckks, residues
from coterie.crypto.arrays import CiphertextError
from coterie.crypto.pads import Counterpart, Padded, PadKey, completed, counterpart, pad_bytes
from coterie.protocol.codec import weighs
from coterie.protocol.errors import CapacityError, CoterieError, CryptoError, DecodeError, KeyMismatchError

N, D = 1024, 1500
KEYS = {
    emulated: ckks.keygen(
        "insecure-1024-deep",
        emulated=emulated,
        allow_insecure=True,
        **({"random_bytes": np.random.default_rng(0).bytes} if emulated else {}),
    )
    for emulated in (False, True)
}


@pytest.fixture(params=[False, True], ids=["real", "emulated"])
def key(request: pytest.FixtureRequest) -> Any:
    return KEYS[request.param]


def pads(count: int, seed: int = 0) -> list[bytes]:
    source = np.random.default_rng(seed)
    return [source.bytes(32) for _ in range(count)]


def values(count: int, length: int = D) -> np.ndarray:
    return np.random.default_rng(1).normal(0, 0.1, (count, length))


def polynomials(key: Any, cipher: Any) -> np.ndarray:
    """What a real ciphertext opens to in its ring, noise and all: (ciphertexts, limbs, N) residues."""
    return np.asarray(key.arrays._plain(cipher.array))


# -- what it opens to --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "length"), [(1, 1), (1, D), (3, N), (7, D), (40, 30)])
def test_a_sum_of_padded_vectors_opens_to_their_sum_with_the_noise_of_one(key: Any, count: int, length: int) -> None:
    plain, keys = values(count, length), pads(count)
    padded = [PadKey(key.public, one).encrypt(row) for one, row in zip(keys, plain, strict=True)]
    vector = completed(sum(padded[1:], padded[0]), counterpart(key, reversed(keys), length))
    assert (vector.terms, vector.tally.form, vector.length) == (count, key.public.fresh, length)
    error = np.abs(key.decrypt(vector) - plain.sum(axis=0))
    assert error.max() < key.parameters.added(key.public.fresh.level, symmetric=True)
    fresh = key.public.from_bytes(vector.to_bytes(), length, terms=count, blinded=0, form=key.public.fresh)
    twice = fresh.times(key.public.encrypt_scalar(0.5)) + key.public.encrypt(plain[0]).times(
        key.public.encrypt_scalar(1.0)
    )
    np.testing.assert_allclose(key.decrypt(twice.rescaled()), plain.sum(axis=0) / 2 + plain[0], atol=1e-3)


def test_the_noise_is_that_of_an_encryption_under_the_secret_key(key: Any) -> None:
    errors = []
    for seed in range(6):
        made = PadKey(key.public, pads(1, seed)[0]).encrypt(np.zeros(2 * N))
        errors.append(key.decrypt(completed(made, counterpart(key, pads(1, seed), 2 * N))))
    expected = key.parameters.deviation(2.0**key.parameters.scale_bits, symmetric=True)
    assert np.std(errors) == pytest.approx(expected, rel=0.05)
    noise = residues.binomial((200_000,), lambda n: np.random.default_rng(0).bytes(n))
    assert (noise.min() >= -21, noise.max() <= 21) == (True, True)
    assert noise.mean() == pytest.approx(0, abs=0.05)
    assert noise.var() == pytest.approx(10.5, rel=0.02)


def test_every_counterpart_has_its_own_a_and_hides_the_pads() -> None:
    key = KEYS[False]
    first, second = (counterpart(key, pads(1), D) for _ in range(2))
    assert first.a != second.a
    assert (first.array != second.array).mean() > 0.999
    made = PadKey(key.public, pads(1)[0]).encrypt(np.zeros(D))
    ciphers = [completed(made, part) for part in (first, second)]
    assert (ciphers[0].array[:, 1] != ciphers[1].array[:, 1]).mean() > 0.999


def test_the_parts_are_those_of_the_formula_modulo_each_prime() -> None:
    """By whole numbers: c_0 = y + p, a is uniform and follows from the seed alone, and p + pads + a s is small."""
    key = KEYS[False]
    moduli, level = key.public.arrays.ring.moduli_at(3), 3
    (one,) = pads(1)
    made, part = PadKey(key.public, one).encrypt(values(1)[0]), counterpart(key, [one], D)
    vector = completed(made, part)
    for limb in range(level + 1):
        q = int(moduli[limb, 0])
        for at in range(0, N, 97):
            y, p = int(made.array[0, limb, at]), int(part.array[0, limb, at])
            assert int(vector.array[0, 0, limb, at]) == (y + p) % q
            s, a = int(key.arrays.secret[limb, at]), int(vector.array[0, 1, limb, at])
            expected = (a * s + y + p) % q
            assert int(polynomials(key, vector)[0, limb, at]) == expected
    again = residues.uniform(residues.secret_words(part.a), (2, level + 1, N), moduli)
    np.testing.assert_array_equal(vector.array[:, 1], again)


# -- y moves c_0 only --------------------------------------------------------------------------------------------------


def shifts(key: Any) -> dict[str, Any]:
    """What a sender may add to y: constants, the thief's among them, uniform numbers, an honest plaintext."""
    source = np.random.default_rng(5)
    if key.emulated:
        return {
            "one": np.int64(1),
            "large": np.int64(2**62),
            "uniform": source.integers(-(2**63), 2**63 - 1, D, dtype=np.int64),
        }
    moduli = key.public.arrays.ring.moduli_at(3)
    shape = 2, len(moduli), N
    return {
        "one": np.ones(shape, np.uint64),
        "the thief's K": np.full(shape, 2**30, np.uint64),
        "all but one": np.broadcast_to(moduli - np.uint64(1), shape),
        "uniform": residues.uniform(residues.secret_words(source.bytes(32)), shape, moduli),
        "a pad": key.public.arrays.draw(D, key.public.fresh, source.bytes),
        "an update": key.public.arrays.pad(np.ones(D), np.zeros(shape, np.uint64), key.public.fresh),
    }


def test_what_a_sender_adds_to_y_comes_out_as_it_is_bit_for_bit(key: Any) -> None:
    """open(y + X) - X is open(y) in the ring, for every X: nothing of it is multiplied by s."""
    made, part = PadKey(key.public, pads(1)[0]).encrypt(values(1)[0]), counterpart(key, pads(1), D)
    honest = completed(made, part)
    for what in shifts(key).values():
        if key.emulated:
            changed = Padded(key.public, made.tally, made.array + what)
            np.testing.assert_array_equal(completed(changed, part).array - what, honest.array)
            continue
        moduli = key.public.arrays.ring.moduli_at(3)
        array = residues.add(made.array, np.ascontiguousarray(what), moduli)
        changed = completed(Padded(key.public, made.tally, array), part)
        np.testing.assert_array_equal(changed.array[:, 1], honest.array[:, 1])
        back = residues.add(polynomials(key, changed), moduli - what, moduli)
        np.testing.assert_array_equal(back, polynomials(key, honest))


def test_with_a_ciphertext_of_its_own_a_sender_would_move_it_by_a_multiple_of_s() -> None:
    """The other side: what the test above rules out is what a chosen c_1 does."""
    key = KEYS[False]
    vector = key.public.encrypt(values(1)[0])
    array, moduli = vector.array.copy(), key.public.arrays.ring.moduli_at(3)
    array[:, 1] = residues.add(array[:, 1], np.full_like(array[:, 1], 2**30), moduli)
    before, after = (polynomials(key, type(vector)(key.public, vector.tally, each)) for each in (vector.array, array))
    moved = residues.add(after, moduli - before, moduli)
    np.testing.assert_array_equal(moved[0], residues.multiple(key.arrays.secret[None, :4], 2**30, moduli)[0])


# -- what a pad hides --------------------------------------------------------------------------------------------------


def test_a_padded_vector_is_uniform_without_its_pad_and_two_under_one_pad_are_not() -> None:
    key = KEYS[False]
    q = key.public.arrays.ring.moduli_at(3).astype(np.float64)
    plain = values(2, 20 * N)
    padded = [PadKey(key.public, pads(1)[0]).encrypt(row) for row in plain]
    for one in padded:
        assert stats.kstest((one.array / q).ravel(), "uniform").pvalue > 1e-4
    moduli = key.public.arrays.ring.moduli_at(3)
    zero = np.zeros_like(padded[0].array)
    shown = residues.add(padded[0].array, moduli - padded[1].array, moduli)
    bare = [key.public.arrays.pad(row, zero, key.public.fresh) for row in plain]
    np.testing.assert_array_equal(shown, residues.add(bare[0], moduli - bare[1], moduli))
    other = PadKey(key.public, pads(2)[1]).encrypt(plain[1])
    assert (residues.add(padded[0].array, moduli - other.array, moduli) != shown).mean() > 0.999


def test_the_counterpart_of_other_pads_opens_to_noise(key: Any) -> None:
    made = PadKey(key.public, pads(1)[0]).encrypt(values(1)[0])
    with pytest.raises(CiphertextError):
        key.decrypt(completed(made, counterpart(key, pads(2)[1:], D)))


# -- bytes -------------------------------------------------------------------------------------------------------------


def test_an_upload_has_half_the_bytes_of_a_ciphertext(key: Any) -> None:
    made, part = PadKey(key.public, pads(1)[0]).encrypt(values(1)[0]), counterpart(key, pads(1), D)
    data, whole = made.to_bytes(), key.public.encrypt(values(1)[0]).to_bytes()
    assert weighs(data) == pad_bytes(key.public, D) == (weighs(whole) - 40) // 2 + 32
    assert weighs(part.to_bytes()) == pad_bytes(key.public, D) + 32
    read = Padded.from_bytes(key.public, data, D), Counterpart.from_bytes(key.public, part.to_bytes(), D)
    np.testing.assert_array_equal(key.decrypt(completed(*read)), key.decrypt(completed(made, part)))
    real = pad_bytes(ckks.keygen("ckks-8192-deep", products=False, emulated=True).public, 178_110)
    assert real == 3_964_960


def test_what_is_no_padded_vector_of_this_key_is_refused(key: Any) -> None:
    public, made = key.public, PadKey(key.public, pads(1)[0]).encrypt(values(1)[0])
    stranger = ckks.keygen("insecure-1024-deep", allow_insecure=True, emulated=key.emulated)
    part = counterpart(key, pads(1), D)
    for data, why in (
        (public.encrypt(values(1)[0]).to_bytes(), "no padded vector"),
        (public.encrypt(values(1)[0], 1).to_bytes(), "no padded vector"),
        (part.to_bytes(), "no padded vector"),
        (b"", "no padded vector|bytes are no padded"),
        (bytes(4000), "no padded vector"),
        (made.to_bytes()[:-1], "bytes"),
        (made.to_bytes() + b"0", "bytes"),
        (PadKey(stranger.public, pads(1)[0]).encrypt(values(1)[0]).to_bytes(), "made for key"),
        (PadKey(public, pads(1)[0]).encrypt(np.zeros(3)).to_bytes(), "3 values where 1500"),
    ):
        with pytest.raises(DecodeError, match=why):
            Padded.from_bytes(public, data, D)
    with pytest.raises(DecodeError, match="no ciphertext vector"):
        public.from_bytes(made.to_bytes())
    with pytest.raises(DecodeError, match="no counterpart vector"):
        Counterpart.from_bytes(public, made.to_bytes())
    with pytest.raises(DecodeError):
        Padded.from_bytes(KEYS[not key.emulated].public, made.to_bytes())


def test_a_residue_that_is_not_below_its_prime_is_refused() -> None:
    key = KEYS[False]
    data = bytearray(PadKey(key.public, pads(1)[0]).encrypt(np.zeros(5)).to_bytes())
    data[32:39] = b"\xff" * 7
    with pytest.raises(DecodeError, match="not below its prime"):
        Padded.from_bytes(key.public, bytes(data))


@given(st.data())
def test_any_bytes_give_a_vector_or_a_decode_error(data: st.DataObject) -> None:
    key = KEYS[data.draw(st.booleans())]
    good = PadKey(key.public, pads(1)[0]).encrypt(np.zeros(4)).to_bytes()
    cut = bytearray(good[: data.draw(st.integers(0, len(good)))] if data.draw(st.booleans()) else good)
    for at in data.draw(st.lists(st.integers(0, max(0, len(cut) - 1)), max_size=4)) if cut else ():
        cut[at] ^= data.draw(st.integers(1, 255))
    for kind in (Padded, Counterpart):
        with suppress(DecodeError):
            assert kind.from_bytes(key.public, bytes(cut)).length >= 1


# -- misuse ------------------------------------------------------------------------------------------------------------


def test_misuse_is_an_error(key: Any) -> None:
    public = key.public
    with pytest.raises(CryptoError, match="32 bytes, not 31"):
        PadKey(public, bytes(31))
    with pytest.raises(CapacityError, match="value nan at index 1"):
        PadKey(public, bytes(32)).encrypt([0.0, np.nan])
    with pytest.raises(CryptoError, match="a counterpart of no pads"):
        counterpart(key, [], D)
    made = PadKey(public, bytes(32)).encrypt(np.zeros(3))
    with pytest.raises(CryptoError, match="doesn't fit 3"):
        completed(made, counterpart(key, [bytes(32)], 4))
    stranger = ckks.keygen("insecure-1024-deep", allow_insecure=True, emulated=key.emulated)
    with pytest.raises(KeyMismatchError, match="can't belong together"):
        completed(made, counterpart(stranger, [bytes(32)], 3))
    with pytest.raises(CoterieError, match="3 and 4 values"):
        made + PadKey(public, bytes(32)).encrypt(np.zeros(4))
    for shown in (repr(PadKey(public, b"k" * 32)), repr(made), repr(counterpart(key, [b"k" * 32], 3))):
        assert "kkk" not in shown
        assert (b"k" * 32).hex() not in shown
