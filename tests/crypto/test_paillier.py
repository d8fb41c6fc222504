"""Paillier against the textbook (in Python integers), public constants, hostile bytes and misuse."""

from __future__ import annotations

import copy
import math
import os
import pickle
import secrets
import struct
from dataclasses import replace

import numpy as np
import pytest
from emulated import exact, of_integers
from gmpy2 import mpz
from hypothesis import given
from hypothesis import strategies as st
from tampering import flipped

from coterie.crypto import Lanes, Layout, bigint, paillier, paillier_arrays, sum_ciphers
from coterie.crypto.arrays import CiphertextError
from coterie.protocol.codec import content, weighs
from coterie.protocol.errors import CapacityError, CryptoError, DecodeError, KeyMismatchError, PeerError, UserError

HEADER = struct.Struct("<4sBBH16sQII")


class Textbook:
    """Paillier 1999 as printed, in Python's own integers."""

    def __init__(self, p, q):
        self.n, self.lam = p * q, math.lcm(p - 1, q - 1)
        self.mu = pow((pow(self.n + 1, self.lam, self.n**2) - 1) // self.n, -1, self.n)

    def encrypt(self, m, r):
        return pow(self.n + 1, m, self.n**2) * pow(r, self.n, self.n**2) % self.n**2

    def decrypt(self, c):
        return (pow(c, self.lam, self.n**2) - 1) // self.n * self.mu % self.n


# two primes that everybody knows: the fields of secp256k1 and of NIST P-256; both are 3 mod 4
P = 2**256 - 2**32 - 977
Q = 2**256 - 2**224 + 2**192 + 2**96 - 1


def known_key(lanes=None):
    n = mpz(P * Q)
    public = paillier_arrays.Public(n, -(mpz(2) ** 2) % n, Layout(lanes or Lanes(), 512), flag=0)
    return paillier.SecretKey(paillier_arrays.Secret(mpz(P), mpz(Q), public))


@pytest.fixture(scope="module")
def key():
    return paillier.keygen(512, allow_insecure=True)


@pytest.fixture(scope="module")
def other():
    return paillier.keygen(512, allow_insecure=True)


def test_the_textbook_on_numbers_checked_by_hand():
    toy = Textbook(5, 7)  # N = 35: (1 + 4*35) * 2^35 mod 1225 = 141 * 18 mod 1225 = 88
    assert toy.encrypt(4, 2) == 88
    assert toy.decrypt(88) == 4


def test_the_textbook_opens_ours():
    key = known_key()
    numbers = Textbook(P, Q)
    cipher = key.public.encrypt([1.0, -1.0, 0.5, -128.0])
    lanes = [65536, -65536, 32768, -(2**23)] + [0] * 10  # 14 lanes of 32 bits
    packed = sum((lane + 2**23) << (32 * i) for i, lane in enumerate(lanes))
    assert [numbers.decrypt(int(unit)) for unit in cipher.array] == [packed]


def test_ours_opens_the_textbook_from_bytes_written_by_hand():
    key, numbers = known_key(), Textbook(P, Q)
    lanes = [65536, -65536, 32768] + [0] * 11
    packed = sum((lane + 2**23) << (32 * i) for i, lane in enumerate(lanes))
    number = numbers.encrypt(packed, 123456789)
    data = HEADER.pack(b"CoCv", 1, 1, 0, key.fingerprint, 3, 1, 0) + number.to_bytes(128, "little")
    assert key.decrypt(key.public.from_bytes(data)).tolist() == [1.0, -1.0, 0.5]


@given(st.lists(st.integers(0, 2**488), min_size=1, max_size=9))
def test_decryption_with_crt_equals_the_textbook(messages):
    key, numbers = known_key(), Textbook(P, Q)
    cipher = replace(
        key.public.encrypt([0.0]), array=tuple(mpz(numbers.encrypt(m, secrets.randbelow(P) + 1)) for m in messages)
    )
    assert list(key.arrays.open(cipher.array)) == messages


def test_short_randomness_is_a_power_of_h(monkeypatch):
    key = known_key()
    n, h = int(key.public.arrays.n), int(key.public.arrays.h)
    exponent = secrets.token_bytes(32)
    monkeypatch.setattr(bigint.secrets, "token_bytes", lambda size: exponent if size == 32 else b"")
    noise = bigint.short_noise(
        bigint.fixed_base_table(key.public.arrays.n, key.public.arrays.h), key.public.arrays.n_squared
    )
    assert noise == pow(h, n * int.from_bytes(exponent, "little"), n * n)


@pytest.mark.parametrize("randomness", ["short", "full"])
def test_encryption_is_randomised_and_both_kinds_mix(randomness):
    key = paillier.keygen(512, randomness=randomness, allow_insecure=True)
    values = np.linspace(-1, 1, 40)
    a, b = key.public.encrypt(values), key.public.encrypt(values)
    assert len(set(a.array) | set(b.array)) == 2 * len(a.array)
    kinds = [paillier.PublicKey(replace(key.public.arrays, flag=flag)) for flag in (0, 1)]
    assert kinds[0].fingerprint == kinds[1].fingerprint
    mixed = kinds[0].encrypt(values) + kinds[1].encrypt(values)
    assert np.abs(key.decrypt(mixed) - 2 * values).max() <= 2**-16


def test_a_real_key_end_to_end():
    key = paillier.keygen(2048)
    assert key.public.arrays.n.bit_length() == 2048
    assert key.arrays.p % 4 == key.arrays.q % 4 == 3
    assert key.layout.lanes_per_plaintext == 62
    values = np.random.default_rng(1).normal(0, 0.2, 1000).astype(np.float32)
    data = [key.public.encrypt(v).to_bytes() for v in (values, -2 * values, values)]
    assert {len(d) for d in data} == {key.public.wire_bytes(1000)} == {40 + 17 * 512}
    public = paillier.PublicKey.load(key.public.to_bytes())
    total = sum_ciphers(public.from_bytes(d, 1000, terms=1, blinded=0) for d in data)
    assert np.abs(paillier.SecretKey.load(key.to_bytes()).decrypt(total)).max() <= 2 * 2**-16
    assert public.nominal_seconds_encrypt(1000) == pytest.approx(17 * 0.00135)
    assert key.nominal_seconds_decrypt(1000) == pytest.approx(17 * 0.0035)
    assert not key.emulated
    assert key.scheme == key.public.scheme == "paillier"


@pytest.mark.parametrize("module", [paillier, exact])
@pytest.mark.parametrize("bits", [0, 512, 1024, 2047, 4096])
def test_only_named_sizes(module, bits):
    with pytest.raises(UserError, match="2048"):
        module.keygen(bits)
    with pytest.raises(UserError, match="randomness"):
        module.keygen(2048, randomness="none")


def test_threads_give_the_same(key, monkeypatch):
    values = np.random.default_rng(2).normal(0, 1, 700)
    for count in (1, 2, 7):
        monkeypatch.setattr(bigint, "cores", lambda count=count: count)
        assert np.array_equal(key.decrypt(key.public.encrypt(values).scale(3)), 3 * np.rint(values * 2**16) / 2**16)


# misuse


def test_keys_are_never_mixed(key, other):
    a, b = key.public.encrypt([1.0]), other.public.encrypt([1.0])
    for misuse in (
        lambda: a + b,
        lambda: other.decrypt(a),
        lambda: other.open_blinded(a.blind(key.public.mask(1, os.urandom))),
        lambda: a + exact.keygen(512, allow_insecure=True).public.encrypt([1.0]),
        lambda: key.decrypt(exact.keygen(512, allow_insecure=True).public.encrypt([1.0])),
        lambda: key.decrypt(a.to_bytes()),
        lambda: a.blind(exact.keygen(512, allow_insecure=True).public.mask(1, os.urandom)),
        lambda: a.blind(paillier.keygen(528, allow_insecure=True).public.mask(1, os.urandom)),
        lambda: other.public.encrypt_blinded(exact_blinded()),
        lambda: paillier.keygen(528, allow_insecure=True).public.encrypt_blinded(
            key.open_blinded(a.blind(key.public.mask(1, os.urandom)))
        ),
    ):
        with pytest.raises(KeyMismatchError):
            misuse()
    with pytest.raises(DecodeError, match="under key"):
        other.public.from_bytes(a.to_bytes())


def exact_blinded():
    key = exact.keygen(512, allow_insecure=True)
    return key.open_blinded(key.public.encrypt([1.0]).blind(key.public.mask(1, os.urandom)))


def test_the_same_primes_with_other_lanes_are_another_key():
    a, b = known_key(), known_key(Lanes(fraction_bits=15))
    with pytest.raises(KeyMismatchError):
        b.decrypt(a.public.encrypt([1.0]))


def test_comparison_is_refused(key):
    cipher, mask = key.public.encrypt([1.0]), key.public.mask(1, os.urandom)
    blinded = key.open_blinded(cipher.blind(mask))
    for thing in (cipher, blinded):
        with pytest.raises(CryptoError, match="compared"):
            thing == thing  # noqa: B015
        with pytest.raises(TypeError):
            hash(thing)


def test_lengths_and_weights(key):
    cipher = key.public.encrypt([1.0, 2.0])
    for weight in (0, -1, 1.5, 2.0, True, "2", None):
        with pytest.raises(CryptoError, match="weights"):
            cipher.scale(weight)
    for misuse in (
        lambda: cipher + key.public.encrypt([1.0]),
        lambda: cipher.add_plain([1.0]),
        lambda: cipher.blind(key.public.mask(3, os.urandom)),
        lambda: key.public.mask(0, os.urandom),
        lambda: key.public.mask(2, lambda n: bytes(n - 1)),
        lambda: sum_ciphers([]),
    ):
        with pytest.raises(CryptoError):
            misuse()
    assert key.decrypt(cipher.scale(np.int64(3))).tolist() == [3.0, 6.0]


def test_masks_guard_their_vectors(key):
    mask, cipher = key.public.mask(2, os.urandom), key.public.encrypt([1.0, 2.0])
    masked = cipher.blind(mask)
    with pytest.raises(CryptoError, match="still carries 1 masks"):
        key.decrypt(masked)
    with pytest.raises(CryptoError, match="no mask"):
        key.open_blinded(cipher)
    with pytest.raises(CryptoError, match="2 masks can't be taken off"):
        masked.unblind(mask, 2)
    with pytest.raises(CryptoError):
        cipher.unblind(mask, 1)
    with pytest.raises(CiphertextError):
        key.decrypt(masked.unblind(key.public.mask(2, os.urandom), 1))
    assert key.decrypt(masked.unblind(mask, 1)).tolist() == [1.0, 2.0]


def test_blinding_can_not_be_linked(key):
    cipher, mask = key.public.encrypt(np.ones(30)), key.public.mask(30, os.urandom)
    back = cipher.blind(mask).unblind(mask, 1)
    assert not set(back.array) & set(cipher.array)  # taking the mask off again doesn't lead back to the ciphertext


def test_a_mask_fills_its_bits(key):
    layout = key.layout
    assert key.public.mask(15, lambda n: b"\xff" * n).numbers == (2**layout.mask_bits - 1,) * 2
    assert layout.mask_bits == 14 * 32 + 40
    assert key.public.mask(1, bytes).numbers == (0,)


@pytest.mark.parametrize("guard", [0, 1, 4])
def test_nothing_wraps_at_the_very_edge(key, guard):
    lanes = Lanes(value_bits=24, guard_bits=guard)
    a, b = paillier.keygen(512, lanes, allow_insecure=True), paillier.keygen(512, lanes, allow_insecure=True)
    most, edge = 2**guard, np.array([2**23 - 1, -(2**23)] * 20)
    mask = a.public.mask(40, lambda n: b"\xff" * n)
    cipher = sum_ciphers(of_integers(a, edge).blind(mask) for _ in range(most))
    converted = b.public.encrypt_blinded(a.open_blinded(cipher)).unblind(mask, most)
    assert np.array_equal(b.decrypt_integers(converted), most * edge)
    for overflow in (lambda: cipher + of_integers(a, edge), lambda: cipher.scale(2)):
        with pytest.raises(CapacityError):
            overflow()
    with pytest.raises(CapacityError):
        cipher.blind(mask)


def test_nothing_secret_is_shown(key):
    mask = key.public.mask(1, os.urandom)
    shown = repr(key) + repr(key.public) + repr(mask) + repr(key.public.encrypt([1.0])) + str(key)
    for secret in (key.arrays.p, key.arrays.q, mask.numbers[0]):
        assert str(secret) not in shown
        assert f"{secret:x}" not in shown


def test_copies_and_pickles(key):
    cipher = key.public.encrypt([1.0, -2.0])
    for thing in (key, key.public, cipher, key.public.mask(2, os.urandom)):
        assert copy.deepcopy(thing) is thing
    assert pickle.loads(pickle.dumps(key)) == key  # noqa: S301
    assert key.decrypt(pickle.loads(pickle.dumps(cipher))).tolist() == [1.0, -2.0]  # noqa: S301
    assert key != key.public
    assert len({key, pickle.loads(pickle.dumps(key))}) == 1  # noqa: S301


# hostile bytes


def test_every_header_byte_matters(key):
    data = key.public.encrypt(np.ones(20)).to_bytes()
    assert key.decrypt(key.public.from_bytes(data, 20, terms=1, blinded=0)).tolist() == [1.0] * 20
    for index in range(HEADER.size):
        for flip in (1, 0x80, 0xFF):
            with pytest.raises(DecodeError):
                key.public.from_bytes(flipped(data, index, flip), 20, terms=1, blinded=0)


def test_lengths_on_the_wire(key):
    data = key.public.encrypt(np.ones(20)).to_bytes()
    for bad in (b"", data[:39], data[:40], data[:-1], data + b"\0", data + data[40:]):
        with pytest.raises(DecodeError):
            key.public.from_bytes(bad)
    with pytest.raises(DecodeError, match="20 values where 21"):
        key.public.from_bytes(data, 21)
    huge = HEADER.pack(b"CoCv", 1, 1, 0, key.fingerprint, 2**64 - 1, 1, 0) + data[40:]
    with pytest.raises(DecodeError):
        key.public.from_bytes(huge)
    empty = HEADER.pack(b"CoCv", 1, 1, 0, key.fingerprint, 0, 1, 0)
    with pytest.raises(DecodeError):
        key.public.from_bytes(empty)


@pytest.mark.parametrize(("terms", "blinded"), [(0, 0), (257, 0), (1, 257), (2**32 - 1, 0)])
def test_counts_that_lanes_can_not_hold(key, terms, blinded):
    body = key.public.encrypt([1.0]).to_bytes()[40:]
    with pytest.raises(DecodeError):
        key.public.from_bytes(HEADER.pack(b"CoCv", 1, 1, 0, key.fingerprint, 1, terms, blinded) + body)


def test_counts_that_were_not_expected(key):
    data = (key.public.encrypt([1.0]) + key.public.encrypt([1.0])).to_bytes()
    assert key.public.from_bytes(data).terms == 2
    with pytest.raises(DecodeError, match="2 terms where 1"):
        key.public.from_bytes(data, terms=1)
    with pytest.raises(DecodeError, match="0 masks where 1"):
        key.public.from_bytes(data, blinded=1)


def test_numbers_out_of_range(key):
    head = key.public.encrypt([1.0]).to_bytes()[:40]
    square = int(key.public.arrays.n) ** 2
    for bad in (0, square, square + 1, 2**1024 - 1):
        with pytest.raises(DecodeError, match="not in"):
            key.public.from_bytes(head + bad.to_bytes(128, "little"))
    for strange in (1, square - 1):  # in range, but nobody honest made them
        with pytest.raises(CiphertextError):
            key.decrypt(key.public.from_bytes(head + strange.to_bytes(128, "little")))


@given(st.integers(40, 167), st.integers(1, 255))
def test_damage_is_noticed(index, flip):
    key = known_key()
    data = key.public.encrypt([1.0, 2.0]).to_bytes()
    with pytest.raises(PeerError):
        key.decrypt(key.public.from_bytes(flipped(data, index, flip)))


def test_lanes_out_of_their_terms_are_noticed(key):
    n, square = int(key.public.arrays.n), int(key.public.arrays.n) ** 2
    cipher = key.public.encrypt([1.0, 2.0])
    for plaintext in (2**24, 2**31 << 32, 1 << (13 * 32), 2**448, n // 2):  # a lane too full, an unused lane, no lane
        forged = replace(cipher, array=(cipher.array[0] * (1 + plaintext * n) % square,))
        with pytest.raises(CiphertextError):
            key.decrypt(forged)
    masked = cipher.blind(key.public.mask(2, os.urandom))
    with pytest.raises(CiphertextError):
        key.open_blinded(replace(masked, array=(masked.array[0] * (1 + 2**500 * n) % square,)))


def test_a_sender_who_overfills_his_lanes_is_noticed_under_the_mask(key):
    n, square, mask = int(key.public.arrays.n), int(key.public.arrays.n) ** 2, key.public.mask(2, os.urandom)
    honest = key.public.encrypt([1.0, 2.0])
    reference = key.open_blinded(honest.blind(mask))
    for plaintext in (2**26, 2**31 << 32, 2**460):
        forged = replace(honest, array=(honest.array[0] * (1 + plaintext * n) % square,))
        with pytest.raises(CiphertextError):
            key.open_blinded(forged.blind(mask)).minus(reference)


@given(st.binary(max_size=400))
def test_any_bytes_decode_or_raise_decode_error(data):
    key = known_key()
    for load in (
        key.public.from_bytes,
        *(half.load for module in (paillier, exact) for half in (module.PublicKey, module.SecretKey)),
        lambda d: key.public.from_bytes(key.public.encrypt([1.0]).to_bytes()[:40] + d),
        lambda d: paillier.PublicKey.load(key.public.to_bytes()[:20] + d, allow_insecure=True),
        lambda d: paillier.SecretKey.load(key.to_bytes()[:20] + d, allow_insecure=True),
    ):
        with pytest.raises(DecodeError):
            load(data)


@pytest.mark.parametrize("module", [paillier, exact])
def test_keys_travel(module):
    key = module.keygen(512, Lanes(10, 20, 5, 50), randomness="full", allow_insecure=True)
    data, secret = key.public.to_bytes(), key.to_bytes()
    assert weighs(data) == weighs(secret) == 20 + 128
    load_public, load_secret = module.PublicKey.load, module.SecretKey.load
    public, again = load_public(data, allow_insecure=True), load_secret(secret, allow_insecure=True)
    assert public == key.public
    assert again == key
    assert public.layout == key.layout
    assert public.arrays.flag == again.public.arrays.flag == 1
    assert again.decrypt(public.encrypt([0.5])).tolist() == [0.5]
    assert public.scheme == again.scheme == key.scheme
    for load, small in ((load_public, data), (load_secret, secret)):
        with pytest.raises(DecodeError, match="refused"):
            load(small)
    place = len(data) - len(content(data)) + 5  # of the scheme: numbers are no name, nor a name numbers
    other = altered(data, place, 1 if module is exact else 2)
    for load, wrong in ((load_public, secret), (load_secret, data), (load_public, other)):
        with pytest.raises(DecodeError, match=r"not a|states no weight|are no key of"):
            load(wrong, allow_insecure=True)


def altered(data, index, value):
    return data[:index] + bytes([value]) + data[index + 1 :]


def test_dishonest_keys_are_refused(key):
    head, n, h = key.public.to_bytes()[:20], int(key.public.arrays.n), int(key.public.arrays.h)
    non_residue = next(x for x in range(2, 100) if bigint.gmpy2.jacobi(x, key.public.arrays.n) == -1)

    def load(modulus, base):
        data = head + modulus.to_bytes(64, "little") + base.to_bytes(64, "little")
        return paillier.PublicKey.load(data, allow_insecure=True)

    assert load(n, h) == key.public
    bad_bases = [(n, base) for base in (0, 1, n - 1, n, int(key.arrays.p), non_residue)]
    for modulus, base in (*bad_bases, (n - 1, h), (n >> 1, h)):
        with pytest.raises(DecodeError, match="honest"):
            load(modulus, base)
    secret = bytearray(key.to_bytes())
    secret[20] ^= 2  # p is no prime any more
    with pytest.raises(DecodeError):
        paillier.SecretKey.load(bytes(secret), allow_insecure=True)
    square = bytes(secret[:20]) + int(key.arrays.q).to_bytes(32, "little") * 2 + h.to_bytes(64, "little")
    with pytest.raises(DecodeError):
        paillier.SecretKey.load(square, allow_insecure=True)


def test_taking_a_mask_off_does_not_show_it_to_who_sees_both_sides(key):
    mask = key.public.mask(3, os.urandom)
    before = key.public.encrypt([1.0, 2.0, 3.0]).blind(mask)
    after = before.unblind(mask, 1)
    n, modulus = int(key.public.arrays.n), int(key.public.arrays.n_squared)
    for old, new in zip(before.array, after.array, strict=True):
        quotient = int(new) * pow(int(old), -1, modulus) % modulus
        assert quotient % n != 1  # 1 - mask * N would give the mask away
    assert key.decrypt(after).tolist() == [1.0, 2.0, 3.0]


# numbers that share a factor with N: anyone can send them, opening one betrays the key, and so none is taken


def test_a_multiple_of_n_would_open_to_a_number_that_factors_n(key):
    """Why those are refused: m (p + q) = 1 modulo N, so a party that is told m knows p + q, and so p and q."""
    n, p, q = int(key.public.arrays.n), int(key.arrays.p), int(key.arrays.q)
    (m,) = key.arrays.open((mpz(n),))
    assert pow(m, -1, n) == p + q


@given(data=st.data())
def test_only_units_are_accepted(key, data):
    """Multiples of N, of p or of q are refused wherever they stand among honest ones, and their neighbours are not."""
    n, p, q = int(key.public.arrays.n), int(key.arrays.p), int(key.arrays.q)
    honest = key.public.encrypt(np.ones(13 * 5))
    head, size, units = honest.to_bytes()[:40], key.layout.ciphertext_bytes, list(honest.array)
    assert len(units) > 4
    factor = data.draw(st.sampled_from([n, p, q, p * p, q * q]))
    at, times = data.draw(st.integers(0, len(units) - 1)), data.draw(st.integers(1, n * n // factor - 1))
    units[at] = factor * times
    with pytest.raises(DecodeError, match=rf"ciphertext {at} is no unit modulo N"):
        key.public.from_bytes(head + b"".join(int(unit).to_bytes(size, "little") for unit in units))
    units[at] = factor * times + 1
    if math.gcd(factor * times + 1, n) == 1:
        key.public.from_bytes(head + b"".join(int(unit).to_bytes(size, "little") for unit in units))


def test_two_of_them_that_make_n_together_are_told_by_the_first(key):
    """A multiple of p and one of q: their product is zero modulo N, and each alone is not."""
    honest = key.public.encrypt(np.ones(40))
    assert len(honest.array) > 2
    forged = replace(honest, array=(honest.array[0], key.arrays.q, key.arrays.p, *honest.array[3:]))
    with pytest.raises(DecodeError, match="ciphertext 1 is no unit"):
        key.public.from_bytes(forged.to_bytes())
