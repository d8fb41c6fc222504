"""Evaluation keys, and hostile bytes of them and of vectors at every level; real and emulated."""

from __future__ import annotations

import pickle
import struct
import time
from functools import partial

import numpy as np
import pytest
from emulated import rounded
from tampering import flipped

from coterie.crypto import ckks, wire
from coterie.crypto.arrays import CiphertextError
from coterie.crypto.ckks_parameters import PARAMETERS
from coterie.crypto.keys import evaluation_key, public_key, secret_key
from coterie.crypto.tally import Form
from coterie.protocol.codec import content, weighs
from coterie.protocol.errors import CryptoError, DecodeError, KeyMismatchError

N = 1024
SET = "insecure-1024-deep"
MODULES = {"ckks": ckks, "rounded": rounded}
KEYS = {name: module.keygen(SET, allow_insecure=True) for name, module in MODULES.items()}
EVALUATION = {name: key.evaluation() for name, key in KEYS.items()}
P = KEYS["ckks"].parameters
both = pytest.mark.parametrize("scheme", list(MODULES))
HEADER = struct.Struct("<4sBBBB16sQII")
WEIGHT_HEADER = {"ckks": 0, "rounded": 16}  # bytes of the header that states a weight


def load(scheme, data):
    return ckks.EvaluationKey.load(data, allow_insecure=True)


def refused(action):
    start = time.process_time()
    with pytest.raises(DecodeError):
        action()
    assert time.process_time() - start < 0.5


# ---- evaluation keys


@both
def test_they_travel(scheme):
    key, keys = KEYS[scheme], EVALUATION[scheme]
    data = keys.to_bytes()
    assert len(P.elements) == 6
    assert weighs(data) == 20 + 16 + 6 * 4 * 2 * N * (7 + 5 + 5 + 5 + 8)  # automorphisms, digits, halves
    for back in (load(scheme, data), pickle.loads(pickle.dumps(keys))):  # noqa: S301
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
    read = partial(load, scheme)
    read(data)
    for index in range(start + 20):
        for bit in (1, 0x80):
            refused(lambda i=index, b=bit: read(flipped(data, i, b)))
    for bad in (b"", data[:19], data[:35], data[:-1], data + b"\0", data[:36], data[:52] * 2):
        refused(lambda b=bad: read(b))
    refused(lambda: ckks.EvaluationKey.load(data))  # an insecure set
    refused(lambda: read(data[:36] + bytes(len(data) - 36)) if scheme == "ckks" else read(bytes(content(data))))
    named = read(flipped(data, start + 21, 0x80))
    cipher = KEYS[scheme].public.encrypt(np.ones(3))
    with pytest.raises(KeyMismatchError, match="doesn't fit"):
        cipher.conjugated(named)


def test_residues_of_evaluation_keys_are_checked():
    data = EVALUATION["ckks"].to_bytes()
    widths, place = np.array(P.residue_bytes), 36
    sizes = [int(w) * N for w in widths]
    for limb in range(5):  # a residue of all ones, in every limb of the first polynomial, and the very last one
        at = place + sum(sizes[:limb])
        refused(lambda a=at, w=int(widths[limb]): load("ckks", data[:a] + b"\xff" * w + data[a + w :]))
    refused(lambda: load("ckks", data[:-8] + b"\xff" * 8))
    polynomial = sum(sizes)
    refused(lambda: load("ckks", data[:place] + bytes(polynomial) + data[place + polynomial :]))


def test_the_wrong_keys_numbers_give_nonsense_not_secrets():
    """Numbers of another key under this key's name: what comes out is refused when it is opened."""
    key, other = KEYS["ckks"], ckks.keygen(SET, allow_insecure=True).evaluation()
    data = other.to_bytes()
    forged = load("ckks", data[:20] + key.fingerprint + data[36:])
    cipher = key.public.encrypt(np.full(5, 0.4))
    with pytest.raises(CiphertextError):
        key.decrypt(cipher.dot(cipher.conjugated(forged), forged))


# ---- vectors at every level


def header(key, **fields) -> bytes:
    parts = {"magic": b"CoCv", "version": 1, "scheme": wire.SCHEMES[key.scheme], "level": 3, "scalar": 0}
    parts |= {"key": key.fingerprint, "length": 20, "terms": 1, "masks": 0} | fields
    return HEADER.pack(*parts.values())


@both
@pytest.mark.parametrize("level", range(4))
def test_vectors_at_every_level(scheme, level):
    key, start = KEYS[scheme], WEIGHT_HEADER[scheme]
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


@pytest.mark.parametrize("level", range(4))
def test_residues_at_every_level(level):
    key = KEYS["ckks"]
    data = key.public.encrypt(np.ones(20), level).to_bytes()
    sizes = [w * N for w in P.residue_bytes[: level + 1]]
    for half in (0, 1):
        for limb in range(level + 1):
            at, width = 40 + half * sum(sizes) + sum(sizes[:limb]), P.residue_bytes[limb]
            refused(lambda a=at, w=width: key.public.from_bytes(data[:a] + b"\xff" * w + data[a + w :]))
    refused(lambda: key.public.from_bytes(data[: 40 + sum(sizes)] + bytes(sum(sizes))))  # without randomness


def test_forged_vectors_in_a_dot_product_are_seen():
    """Random residues multiply to nonsense, which decryption refuses; a product that hides nothing, SEAL refuses."""
    key, keys = KEYS["ckks"], EVALUATION["ckks"]
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
