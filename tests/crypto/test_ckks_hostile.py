"""Bytes that no honest party sends: each is refused at once, with a DecodeError, or seen when it is opened."""

from __future__ import annotations

import struct
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from emulated import rounded
from tampering import flipped

from coterie.crypto import ckks, keys
from coterie.crypto.arrays import CiphertextError
from coterie.crypto.tally import Tally
from coterie.protocol.codec import content, weighted
from coterie.protocol.errors import CryptoError, DecodeError, KeyMismatchError, PeerError

N = 1024
HEADER = struct.Struct("<4sBBBB16sQII")  # magic, version, scheme, level, scalar, key, length, terms, masks
WEIGHT_HEADER = {"ckks": 0, "rounded": 16}  # bytes before it: the header that states a weight


def made(module):
    return [module.keygen(name, allow_insecure=True) for name in ("insecure-1024-add", "insecure-1024-mul")]


KEYS = {"ckks": made(ckks), "rounded": made(rounded)}
EVERY = [pytest.param(key, id=f"{scheme}-{key.size[-3:]}") for scheme, keys in KEYS.items() for key in keys]


def refused(action, error=DecodeError):
    start = time.process_time()
    with pytest.raises(error):
        action()
    assert time.process_time() - start < 0.25


def header(owner, **fields) -> bytes:
    code = {"ckks": 3, "rounded": 4}[owner.scheme]
    parts = {"magic": b"CoCv", "version": 1, "scheme": code, "level": owner.parameters.levels, "scalar": 0}
    parts |= {"key": owner.fingerprint, "length": 20, "terms": 1, "masks": 0} | fields
    return HEADER.pack(*parts.values())


@pytest.mark.parametrize("key", EVERY)
def test_headers(key):
    data = key.public.encrypt(np.ones(20)).to_bytes()
    start = WEIGHT_HEADER[key.scheme]
    assert data[start : start + 40] == header(key)
    outer, body = data[:start], data[start + 40 :]
    read = partial(key.public.from_bytes, length=20, terms=1, form=key.public.fresh)
    read(data)
    for index in range(start + 40):
        for bit in (1, 0x80):
            refused(lambda i=index, b=bit: read(flipped(data, i, b)))
    for fields in (
        {"magic": b"CoKy"},
        {"version": 2},
        {"scheme": 1},
        {"scheme": 7 - data[start + 5]},
        {"level": 9},
        {"scalar": 1},
        {"scalar": 2},
        {"key": bytes(16)},
        {"length": 0},
        {"length": N + 1},
        {"length": 2**63},
        {"terms": 0},
        {"terms": 4097},
        {"masks": 1},
    ):
        refused(lambda f=fields: key.public.from_bytes(outer + header(key, **f) + body))
    for wanted in ({"length": 21}, {"terms": 2}, {"blinded": 1}, {"form": key.public.fresh_scalar}):
        refused(lambda w=wanted: key.public.from_bytes(data, **w))
    if key.parameters.levels:
        refused(lambda: key.public.from_bytes(data, form=key.public.fresh._replace(level=0)))


@pytest.mark.parametrize("key", EVERY)
def test_lengths(key):
    data = key.public.encrypt(np.ones(N + 5)).to_bytes()
    for size in (0, 1, 39, 40, 41, len(data) // 2, len(data) - 1):
        refused(lambda s=size: key.public.from_bytes(data[:s]))
    for longer in (data + b"\0", data + data, data * 50):
        refused(lambda d=longer: key.public.from_bytes(d))
    for noise in (bytes(100), b"\xff" * 70_000, b"CoCv" * 1000):
        refused(lambda d=noise: key.public.from_bytes(d))
    assert key.public.from_bytes(bytearray(data)).length == N + 5


@pytest.mark.parametrize("key", EVERY)
def test_keys_of_others(key):
    data = key.public.encrypt(np.ones(20)).to_bytes()
    others = [other for keys in KEYS.values() for other in keys if other is not key]
    others.append({"ckks": ckks, "rounded": rounded}[key.scheme].keygen(key.size, allow_insecure=True))
    for other in others:
        refused(lambda o=other: o.public.from_bytes(data))
        refused(lambda o=other: o.decrypt(key.public.from_bytes(data)), KeyMismatchError)


@pytest.mark.parametrize("key", KEYS["ckks"], ids=["add", "mul"])
def test_residues(key):
    cipher = key.public.encrypt(np.ones(2 * N))
    data, widths = cipher.to_bytes(), key.parameters.residue_bytes[:-1]
    moduli = [int(q) for q in key.public.arrays.ring.moduli[:, 0]]
    starts = np.cumsum([0, *(N * w for w in widths)])  # of the limbs of a polynomial
    for ciphertext in range(2):
        for polynomial in range(2):
            for limb, width in enumerate(widths):
                at = 40 + (2 * ciphertext + polynomial) * starts[-1] + starts[limb] + 77 * width
                for bad in (moduli[limb], 2 ** (8 * width) - 1):
                    forged = data[:at] + bad.to_bytes(width, "little") + data[at + width :]
                    refused(lambda f=forged: key.public.from_bytes(f))
                fine = data[:at] + (moduli[limb] - 1).to_bytes(width, "little") + data[at + width :]
                refused(lambda f=fine: key.decrypt(key.public.from_bytes(f)), CiphertextError)
    second = 40 + 2 * starts[-1]
    empty = data[: second + starts[-1]] + bytes(starts[-1])
    refused(lambda: key.public.from_bytes(empty))  # the second ciphertext's message stands there for all to read
    refused(lambda: key.public.from_bytes(data[:40] + bytes(len(data) - 40)))


@pytest.mark.parametrize("key", KEYS["ckks"], ids=["add", "mul"])
def test_a_changed_bit_is_seen_when_it_is_opened(key):
    cipher = key.public.encrypt(np.linspace(-1, 1, N))
    rng = np.random.default_rng(0)
    for _ in range(20):
        polynomials = cipher.array.copy()
        where = tuple(rng.integers(0, size) for size in polynomials.shape)
        polynomials[where] ^= np.uint64(1) << np.uint64(rng.integers(0, 40))
        refused(lambda p=polynomials: key.decrypt(replace(cipher, array=p)), CiphertextError)


@pytest.mark.parametrize("key", KEYS["ckks"], ids=["add", "mul"])
def test_what_does_not_belong_there_is_seen(key):
    long = key.public.encrypt(np.full(N, 0.5))
    refused(lambda: key.decrypt(replace(long, tally=replace(long.tally, length=N - 1))), CiphertextError)
    large = key.public.encrypt([64.0]).scale(2)
    assert key.decrypt(large)[0] == pytest.approx(128)
    refused(lambda: key.decrypt(replace(large, tally=replace(large.tally, terms=1))), CiphertextError)
    scalar = key.public.encrypt_scalar(0.5)
    refused(lambda: key.decrypt(replace(scalar, tally=replace(scalar.tally, form=key.public.fresh))), CiphertextError)
    vector = replace(key.public.encrypt([0.5]), tally=scalar.tally)
    refused(lambda: key.decrypt(vector), CiphertextError)  # a scalar that stands in one slot only


def test_sums_made_to_hide_nothing():
    """Each half is fine; together their second polynomials vanish, which SEAL refuses to multiply."""
    key = KEYS["ckks"][1]
    cipher, moduli = key.public.encrypt(np.ones(N)), key.public.arrays.ring.moduli_at(1)
    mirrored = cipher.array.copy()
    mirrored[:, 1] = moduli - mirrored[:, 1]
    data = replace(cipher, array=mirrored).to_bytes()
    total = cipher + key.public.from_bytes(data, N, terms=1, form=key.public.fresh)
    refused(lambda: total.times(key.public.encrypt_scalar(1.0)).times(total), (PeerError, CryptoError))
    refused(lambda: key.decrypt(total), CiphertextError)
    both = replace(total, array=total.array * np.uint64(0))
    refused(lambda: both.times(replace(both, tally=key.public.encrypt_scalar(1.0).tally)), CiphertextError)


@pytest.mark.parametrize("key", KEYS["rounded"], ids=["add", "mul"])
def test_emulated_vectors(key):
    data = key.public.encrypt(np.ones(20)).to_bytes()
    whole = key.public.wire_bytes(20)
    for bad in (data[:-8], data + bytes(8), content(data), content(data).tobytes().ljust(whole, b"\0")):
        refused(lambda b=bad: key.public.from_bytes(b))
    for claim in (0, 1, 200, whole - 1, whole + 1, 2**48 + 1, 2**64 - 1):
        refused(lambda c=claim: key.public.from_bytes(data[:8] + c.to_bytes(8, "little") + data[16:]))
    for index in range(16 + 47, 16 + 200, 8):  # the top byte of a value
        refused(lambda i=index: key.decrypt(key.public.from_bytes(flipped(data, i, 0x80))), CiphertextError)
    smallest = data[: 16 + 40] + np.full(20, -(2**63)).tobytes()
    refused(lambda: key.decrypt(key.public.from_bytes(smallest)), CiphertextError)


@pytest.mark.parametrize("real", KEYS["ckks"], ids=["add", "mul"])
def test_a_real_key_or_vector_is_never_hollow(real):
    data = real.public.encrypt(np.ones(20)).to_bytes()
    for held in (40, 41, len(data) - 1):
        refused(lambda h=held: real.public.from_bytes(weighted(len(data), data[:h])))
    for kind, whole in ((type(real), real.to_bytes()), (type(real.public), real.public.to_bytes())):
        refused(lambda k=kind, w=whole: k.load(weighted(len(w), w[:52]), allow_insecure=True))


@pytest.mark.parametrize("key", EVERY)
def test_keys_as_bytes(key):
    kinds = type(key), type(key.public)
    for kind, data in zip(kinds, (key.to_bytes(), key.public.to_bytes()), strict=True):
        assert kind.load(data, allow_insecure=True).fingerprint == key.fingerprint
        refused(lambda k=kind, d=data: k.load(d))  # insecure
        refused(lambda d=data: keys.public_key(d))
        refused(lambda d=data: keys.secret_key(d))
        for size in (0, 19, 20, 21, len(data) - 1):
            refused(lambda k=kind, d=data, s=size: k.load(d[:s], allow_insecure=True))
        refused(lambda k=kind, d=data: k.load(d + b"\0", allow_insecure=True))
        for index in range(WEIGHT_HEADER[key.scheme] + 20):
            refused(lambda k=kind, d=data, i=index: k.load(flipped(d, i, 0x80), allow_insecure=True))
        last = flipped(data, bits=0x80) if key.scheme == "ckks" else data + bytes(32)  # a residue; no name alone
        refused(lambda k=kind, d=last: k.load(d, allow_insecure=True))
    refused(lambda: kinds[0].load(key.public.to_bytes(), allow_insecure=True))
    refused(lambda: kinds[1].load(key.to_bytes(), allow_insecure=True))


def test_secret_keys_that_are_none():
    for key in KEYS["ckks"]:
        other = ckks.keygen(key.size, allow_insecure=True)
        split = 20 + key.parameters.secret_bytes
        mixed = other.to_bytes()[:split] + key.to_bytes()[split:]
        refused(lambda k=key, m=mixed: type(k).load(m, allow_insecure=True))
        large = flipped(key.to_bytes(), 27, 0xFF)
        refused(lambda k=key, d=large: type(k).load(d, allow_insecure=True))
        empty = key.public.to_bytes()[:20] + bytes(key.parameters.key_bytes("public", key.public.arrays.flag))
        refused(lambda k=key, d=empty: type(k.public).load(d, allow_insecure=True))


def test_tallies_stay_what_they_were():
    """Forms don't change what Paillier's headers look like, and default to those of a plain vector."""
    assert Tally(bytes(16), 3).form == (0, False, False, False, False)
    assert Tally(bytes(16), 3) == Tally(bytes(16), 3, 1, 0)
