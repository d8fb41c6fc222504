"""Padded vectors: opened by hand, what travels, hostile bytes, and how much work they are."""

from __future__ import annotations

import hashlib
import os

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from emulated import pads, plain
from tampering import flipped

from coterie.crypto import Lanes, padded, paillier, signing, sum_ciphers
from coterie.crypto.arrays import CiphertextError
from coterie.protocol.codec import weighs
from coterie.protocol.errors import DecodeError, KeyMismatchError

HEADER, SEALED = 40, 80
VALUES = np.linspace(-1, 1, 20)


@pytest.fixture(scope="module")
def key():
    return pads.keygen()


def pad_of(key, sealed, size):
    """The stream of a sealed key, from RFC 9180 and RFC 8439."""
    seed = key.arrays.key.open(sealed, "sender of a pad", "owner of a key")
    stream = ChaCha20(hashlib.sha256(b"coterie/sketch/pad/" + seed).digest(), bytes(16))
    return np.frombuffer(Cipher(stream, mode=None).encryptor().update(bytes(4 * size)), "<u4")


def test_a_vector_is_its_integers_plus_the_stream_of_its_key(key):
    data = key.public.encrypt(VALUES).to_bytes()
    assert len(data) == key.public.wire_bytes(20) == HEADER + 20 * 4 + SEALED
    words = np.frombuffer(data[HEADER:-SEALED], "<u4")
    opened = (words - pad_of(key, data[-SEALED:], 20)).view("<i4")
    assert opened.tolist() == np.rint(VALUES * 2**16).astype(int).tolist()


def test_what_others_see_is_fresh_and_without_an_order(key):
    a, b = key.public.encrypt(VALUES), key.public.encrypt(VALUES)
    assert not np.intersect1d(a.array.words, b.array.words).size
    assert (a + b).to_bytes() == (b + a).to_bytes()
    mask = key.public.mask(20, os.urandom)
    masked = a.blind(mask)
    assert not np.intersect1d(masked.array.words - a.array.words, mask.numbers).size  # the difference is no mask
    assert not np.intersect1d(masked.unblind(mask, 1).array.words, a.array.words).size


def test_a_twin_sends_as_much(key):
    sent = []
    for one in (key, plain.keygen()):
        cipher, mask = one.public.encrypt(VALUES), one.public.mask(20, os.urandom)
        vectors = (
            cipher,
            cipher + cipher,
            cipher.scale(3),
            (cipher + cipher).blind(mask),
            cipher.blind(mask).unblind(mask, 1),
        )
        sent.append([weighs(vector.to_bytes()) for vector in vectors])
    assert sent[0] == sent[1] == [HEADER + 80 + SEALED * keys for keys in (1, 2, 3, 3, 3)]


def test_the_number_of_summands_can_be_hidden(key):
    a, b = (key.public.encrypt(VALUES) for _ in range(2))
    mask = key.public.mask(20, os.urandom)
    few, many = a.blind(mask).among(5), sum_ciphers([a, b, a, b, a]).blind(mask).among(5)
    assert len(few.to_bytes()) == len(many.to_bytes()) == HEADER + 80 + 6 * SEALED
    assert key.decrypt(few.unblind(mask, 1)).tolist() == key.decrypt(a).tolist()


def test_keys_travel(key):
    for one in (key, plain.keygen()):
        public = paillier.PublicKey.load(one.public.to_bytes())
        again = paillier.SecretKey.load(one.to_bytes())
        assert (public, again) == (one.public, one)
        assert again.decrypt(public.encrypt([0.5])).tolist() == [0.5]
        for data in (one.to_bytes(), one.public.to_bytes()):
            with pytest.raises(DecodeError):
                paillier.SecretKey.load(data[:-1])
            with pytest.raises(DecodeError):
                paillier.PublicKey.load(data + b"\0")
    with pytest.raises(KeyMismatchError):
        pads.keygen().decrypt(key.public.encrypt([0.5]))


@pytest.mark.parametrize("lanes", [Lanes(), Lanes(16, 30, 20), Lanes(40, 60, 2, kappa=256)])
def test_any_lanes_have_a_word(lanes):
    key = paillier.SecretKey.load(pads.keygen(lanes=lanes).to_bytes())
    assert np.abs(key.decrypt(key.public.encrypt(VALUES)) - VALUES).max() <= 0.5 / 2**lanes.fraction_bits
    assert key.public.wire_bytes(20) == HEADER + 20 * lanes.word.itemsize + SEALED


def test_hostile_bytes(key):
    data = key.public.encrypt(VALUES).to_bytes()
    for index in range(HEADER):
        with pytest.raises(DecodeError):
            key.public.from_bytes(flipped(data, index, 0x80), 20, terms=1, blinded=0)
    for index in range(len(data) - SEALED, len(data)):
        with pytest.raises(CiphertextError, match="does not open"):
            key.decrypt(key.public.from_bytes(flipped(data, index, 0x80), 20, terms=1, blinded=0))
    many = data[:-SEALED] + 513 * data[-SEALED:]
    for bad in (data[:HEADER], data[:-1], data + b"\0", data[:-SEALED], data[: -SEALED - 4], many):
        with pytest.raises(DecodeError):
            key.public.from_bytes(bad, 20, terms=1, blinded=0)
    with pytest.raises(CiphertextError, match="no sum of 1"):  # what a pad too much makes of it
        key.decrypt(key.public.from_bytes(data + data[-SEALED:], 20))


@pytest.mark.parametrize("keys", [0, 2, 20, 512])
def test_a_fresh_upload_has_one_key(key, keys):
    """Else one sender's keys would take all the room that a sum has for those of others."""
    for one in (key, plain.keygen()):
        data = one.public.encrypt(VALUES).to_bytes()
        with pytest.raises(DecodeError, match="bytes"):
            one.public.from_bytes(data[:-SEALED] + keys * data[-SEALED:], 20, terms=1, blinded=0)
        assert one.public.from_bytes(data, 20, terms=1, blinded=0).to_bytes() == data


def test_one_key_exchange_a_vector_and_one_for_each_in_a_sum(key, monkeypatch):
    done = {"seal": 0, "open": 0}
    for kind, name in ((signing.SealingKey, "seal"), (signing.OpeningKey, "open")):
        work = getattr(kind, name)

        def counted(*given, name=name, work=work):
            done[name] += 1
            return work(*given)

        monkeypatch.setattr(kind, name, counted)
    total = sum_ciphers(key.public.encrypt(np.ones(5000)) for _ in range(10))
    assert done == {"seal": 10, "open": 0}
    assert key.decrypt(total.scale(3)).tolist() == [30.0] * 5000
    assert done == {"seal": 10, "open": 10}
    assert len(total.array.keys) == 10
    assert padded.SEALED_BYTES == SEALED
