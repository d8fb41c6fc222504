"""Bytes that no honest party sends, of vectors and keys: each is refused at once, or seen when it is opened."""

from __future__ import annotations

import pickle
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
from coterie.crypto.ckks_parameters import PARAMETERS
from coterie.crypto.keys import evaluation_key, public_key, secret_key
from coterie.crypto.tally import Form
from coterie.protocol.codec import content, weighs, weighted
from coterie.protocol.errors import CryptoError, DecodeError, KeyMismatchError, PeerError

N = 1024
HEADER = struct.Struct("<4sBBBB16sQII")  # magic, version, scheme, level, scalar, key, length, terms, masks
WEIGHT_HEADER = {"ckks": 0, "rounded": 16}  # bytes before it: the header that states a weight


SET = "insecure-1024-deep"
MODULES = {"ckks": ckks, "rounded": rounded}
SETS = "insecure-1024-add", "insecure-1024-mul", SET
ALL = {scheme: [module.keygen(name, allow_insecure=True) for name in SETS] for scheme, module in MODULES.items()}
KEYS = {scheme: keys[:2] for scheme, keys in ALL.items()}
DEEP = {scheme: keys[2] for scheme, keys in ALL.items()}
EVALUATION = {scheme: key.evaluation() for scheme, key in DEEP.items()}
P = DEEP["ckks"].parameters
both = pytest.mark.parametrize("scheme", list(MODULES))
EVERY = [pytest.param(key, id=f"{scheme}-{key.size[-3:]}") for scheme, keys in KEYS.items() for key in keys]


def load(data):
    return ckks.EvaluationKey.load(data, allow_insecure=True)


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


@pytest.mark.parametrize("key", ALL["ckks"], ids=SETS)
def test_residues_at_every_level(key):
    moduli = [int(q) for q in key.public.arrays.ring.moduli[:, 0]]
    for level in range(key.parameters.levels + 1):
        data, widths = key.public.encrypt(np.ones(2 * N), level).to_bytes(), key.parameters.residue_bytes[: level + 1]
        starts = np.cumsum([0, *(N * w for w in widths)])  # of the limbs of a polynomial
        for polynomial in range(4):
            for limb, width in enumerate(widths):
                at = 40 + polynomial * starts[-1] + starts[limb] + 77 * width
                for bad in (moduli[limb], 2 ** (8 * width) - 1):
                    forged = data[:at] + bad.to_bytes(width, "little") + data[at + width :]
                    refused(lambda f=forged: key.public.from_bytes(f))
                fine = data[:at] + (moduli[limb] - 1).to_bytes(width, "little") + data[at + width :]
                refused(lambda f=fine: key.decrypt(key.public.from_bytes(f)), CiphertextError)
        second = 40 + 2 * starts[-1]
        empty = data[: second + starts[-1]] + bytes(starts[-1])
        refused(lambda e=empty: key.public.from_bytes(e))  # the second ciphertext's message stands there to read
        refused(lambda d=data: key.public.from_bytes(d[:40] + bytes(len(d) - 40)))


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
    vector = replace(key.public.encrypt([0.5, 0.5]), tally=key.public.encrypt_scalar(0.5).tally)
    refused(lambda: key.decrypt(vector), CiphertextError)  # no constant


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


# ---- evaluation keys


@both
def test_they_travel(scheme):
    key, keys = DEEP[scheme], EVALUATION[scheme]
    data = keys.to_bytes()
    assert len(P.elements) == 6
    assert weighs(data) == 20 + 16 + 6 * 4 * 2 * N * (7 + 5 + 5 + 5 + 8)  # automorphisms, digits, halves
    for back in (load(data), pickle.loads(pickle.dumps(keys))):  # noqa: S301
        assert (back.fingerprint, back.scheme, back.emulated) == (key.fingerprint, scheme, scheme == "rounded")
        assert back.to_bytes() == data
        assert back == keys
        cipher = key.public.encrypt(np.full(5, 0.4))
        assert key.decrypt(cipher.dot(cipher.conjugated(back), back))[0] == pytest.approx(0.8, abs=1e-6)
    assert repr(keys) == f"<EvaluationKey {scheme} {SET} {key.fingerprint.hex()[:8]}>"


def test_steps_are_powers_of_the_radix_and_sum_up_all_slots():
    for parameters in (P, PARAMETERS["ckks-8192-deep"], PARAMETERS["ckks-8192-mul"], PARAMETERS["ckks-32768-deep"]):
        reached = {0}
        for step, times in parameters.rotations:
            reached = {at + step * i for at in reached for i in range(times + 1)}
        assert reached == set(range(parameters.degree // 2))
        assert parameters.elements[0] == 3
        assert parameters.elements[-1] == 2 * parameters.degree - 1
        assert len(set(parameters.elements)) == len(parameters.rotations) + 1


@both
def test_real_ones_must_be_asked_for_with_levels(scheme):
    module = MODULES[scheme]
    with pytest.raises(CryptoError, match="without products"):
        module.keygen("insecure-1024-add", allow_insecure=True).evaluation()
    shallow = module.keygen("insecure-1024-mul", allow_insecure=True)
    keys, cipher = shallow.evaluation(), shallow.public.encrypt(np.full(5, 0.4))
    assert shallow.decrypt(cipher.dot(cipher.conjugated(keys), keys))[0] == pytest.approx(0.8, abs=1e-7)


def test_live_objects_by_name():
    for emulated in (False, True):
        key = ckks.keygen("ckks-8192-deep", emulated=emulated, random_bytes=lambda n: bytes(n))
        data = key.evaluation().to_bytes()
        loaded = evaluation_key(data)
        assert loaded is evaluation_key(data)
        assert loaded.fingerprint == key.fingerprint
        for other in (key.public.to_bytes(), b"", data[:-1]):
            with pytest.raises(DecodeError):
                evaluation_key(other)
        for reader in (public_key, secret_key):
            with pytest.raises(DecodeError):
                reader(data)
    with pytest.raises(DecodeError, match="not a evaluation key"):
        evaluation_key(b"CoKy\1\1" + bytes(40))


@both
def test_hostile_evaluation_keys(scheme):
    data, start = EVALUATION[scheme].to_bytes(), WEIGHT_HEADER[scheme]
    read = load
    read(data)
    for index in range(start + 20):
        for bit in (1, 0x80):
            refused(lambda i=index, b=bit: read(flipped(data, i, b)))
    for bad in (b"", data[:19], data[:35], data[:-1], data + b"\0", data[:36], data[:52] * 2):
        refused(lambda b=bad: read(b))
    refused(lambda: ckks.EvaluationKey.load(data))  # an insecure set
    refused(lambda: read(data[:36] + bytes(len(data) - 36)) if scheme == "ckks" else read(bytes(content(data))))
    named = read(flipped(data, start + 21, 0x80))
    cipher = DEEP[scheme].public.encrypt(np.ones(3))
    with pytest.raises(KeyMismatchError, match="doesn't fit"):
        cipher.conjugated(named)


def test_residues_of_evaluation_keys_are_checked():
    data = EVALUATION["ckks"].to_bytes()
    widths, place = np.array(P.residue_bytes), 36
    sizes = [int(w) * N for w in widths]
    for limb in range(5):  # a residue of all ones, in every limb of the first polynomial, and the very last one
        at = place + sum(sizes[:limb])
        refused(lambda a=at, w=int(widths[limb]): load(data[:a] + b"\xff" * w + data[a + w :]))
    refused(lambda: load(data[:-8] + b"\xff" * 8))
    polynomial = sum(sizes)
    refused(lambda: load(data[:place] + bytes(polynomial) + data[place + polynomial :]))


def test_the_wrong_keys_numbers_give_nonsense_not_secrets():
    """Numbers of another key under this key's name: what comes out is refused when it is opened."""
    key, other = DEEP["ckks"], ckks.keygen(SET, allow_insecure=True).evaluation()
    data = other.to_bytes()
    forged = load(data[:20] + key.fingerprint + data[36:])
    cipher = key.public.encrypt(np.full(5, 0.4))
    with pytest.raises(CiphertextError):
        key.decrypt(cipher.dot(cipher.conjugated(forged), forged))


# ---- vectors at every level


@both
@pytest.mark.parametrize("level", range(4))
def test_vectors_at_every_level(scheme, level):
    key, start = DEEP[scheme], WEIGHT_HEADER[scheme]
    vector = key.public.encrypt(np.ones(20), level)
    for cipher, changes in (
        (vector, {}),
        (vector.scale(7), {"terms": 7}),
        (key.public.encrypt_scalar(0.5, at_most=3, level=level), {"length": 1, "scalar": 1, "terms": 3}),
        (vector.blind(key.public.mask(20, bytes, level)), {"masks": 1}),
    ):
        data = cipher.to_bytes()
        assert data[start : start + 40] == header(key, level=level, **changes)
        back = key.public.from_bytes(data)
        assert back.tally == cipher.tally
        assert back.to_bytes() == data
        for other in {0, 1, 2, 3, 4, 255} - {level}:
            refused(lambda d=data, o=other: key.public.from_bytes(d[: start + 6] + bytes([o]) + d[start + 7 :]))
        refused(lambda d=data: key.public.from_bytes(d, form=Form((level + 1) % 4)))
        for bad in (data[:-1], data + b"\0", data[:40], data[:7]):
            refused(lambda b=bad: key.public.from_bytes(b))
    outer, body = vector.to_bytes()[:start], vector.to_bytes()[start + 40 :]
    scalar = key.public.encrypt_scalar(0.5, level=level).to_bytes()
    lone, one = scalar[:start], scalar[start + 40 :]
    for fields in ({"terms": 0}, {"terms": 1025}, {"terms": 2**32 - 1}, {"masks": 1025}, {"scalar": 1}, {"scalar": 2}):
        refused(lambda f=fields: key.public.from_bytes(outer + header(key, level=level, **f) + body))
    room = 2**12 if level == 0 else 2**24
    fields = {"level": level, "length": 1, "scalar": 1}
    assert key.public.from_bytes(lone + header(key, **fields, terms=room) + one).terms == room
    refused(lambda: key.public.from_bytes(lone + header(key, **fields, terms=room + 1) + one))


def test_forged_vectors_in_a_dot_product_are_seen():
    """Random residues multiply to nonsense, which decryption refuses; a product that hides nothing, SEAL refuses."""
    key, keys = DEEP["ckks"], EVALUATION["ckks"]
    honest = key.public.encrypt(np.full(9, 0.3))
    rng = np.random.default_rng(1)
    noise = rng.integers(0, 2**35, honest.array.shape, dtype=np.uint64)
    forged = ckks.CipherVector(key.public, honest.tally, noise)
    with pytest.raises(CiphertextError):
        key.decrypt(forged.dot(honest.conjugated(keys), keys))
    empty = ckks.CipherVector(key.public, honest.tally, np.zeros_like(noise))
    for action in (
        lambda: empty.dot(honest.conjugated(keys), keys),
        lambda: empty.times_plain(0.5),
        lambda: empty.at_level(1),
        lambda: empty.conjugated(keys),
    ):
        with pytest.raises(CiphertextError, match="forged"):
            action()
