"""Fields, Ed25519 signatures, replays and sealing against hand-written encodings and a slow HPKE."""

from __future__ import annotations

import copy
import hashlib
import hmac
import math
import os

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from hypothesis import assume, given
from hypothesis import strategies as st
from tampering import flipped

from coterie.crypto import signing
from coterie.crypto.signing import (
    OVERHEAD_BYTES,
    OpeningKey,
    ReplayError,
    SealError,
    SealingKey,
    SignatureError,
    SigningKey,
    VerifyKey,
    check_fresh,
    digest,
)
from coterie.protocol.errors import CryptoError, DecodeError, PeerError

# RFC 8032, section 7.1, test 1
RFC_SEED = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
RFC_PUBLIC = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")

fields = st.lists(st.binary(max_size=5) | st.text("abü", max_size=5) | st.integers(), max_size=4)


def part(kind, content):
    return kind + len(content).to_bytes(8, "little") + content


def test_the_encoding_by_hand():
    expected = hashlib.sha256(
        part(b"s", b"d")
        + part(b"i", b"\x05")
        + part(b"b", b"xyz")
        + part(b"s", "ü".encode())
        + part(b"i", b"\x00")
        + part(b"i", b"\x80\x00")  # 128 needs a bit for its sign
        + part(b"i", b"\xff")
    )
    assert digest("d", b"xyz", "ü", 0, 128, -1) == expected.digest()
    assert digest("d", memoryview(b"xyz"), "ü", 0, 128, -1) == digest("d", bytearray(b"xyz"), "ü", 0, 128, -1)


@given(fields, fields)
def test_different_fields_differ(a, b):
    same = [(type(x), x) for x in a] == [(type(x), x) for x in b]
    assert (digest("d", *a) == digest("d", *b)) == same
    assert digest("d", *a) != digest("e", *a)


@pytest.mark.parametrize("bad", [1.5, None, True, [1], ("a",)])
def test_other_types_are_refused(bad):
    with pytest.raises(CryptoError):
        digest("d", bad)
    with pytest.raises(CryptoError):
        SigningKey.generate().sign("update", bad)


def test_signatures_are_ed25519_over_the_digest():
    key = SigningKey.load(RFC_SEED)
    assert key.public.to_bytes() == RFC_PUBLIC
    by_hand = Ed25519PrivateKey.from_private_bytes(RFC_SEED).sign(digest("coterie/signed/1", "update", b"c", 7))
    assert key.sign("update", b"c", 7) == by_hand
    VerifyKey.load(RFC_PUBLIC).verify(by_hand, "update", b"c", 7)


@given(fields, fields, st.integers(0, 511))
def test_only_what_was_signed_verifies(signed, claimed, bit):
    key = SigningKey.load(RFC_SEED)
    signature = key.sign(*signed)
    key.public.verify(signature, *signed)
    with pytest.raises(SignatureError):
        key.public.verify(flipped(signature, bit // 8, 1 << bit % 8), *signed)
    with pytest.raises(SignatureError):
        SigningKey.generate().public.verify(signature, *signed)
    assume([(type(x), x) for x in signed] != [(type(x), x) for x in claimed])
    with pytest.raises(SignatureError):
        key.public.verify(signature, *claimed)


def test_what_this_process_has_signed_is_not_verified_by_the_curve_again(monkeypatch):
    key = SigningKey.generate()
    theirs = Ed25519PrivateKey.generate()
    public = VerifyKey.load(theirs.public_key().public_bytes_raw())
    by_hand = theirs.sign(digest("coterie/signed/1", "a"))
    ours = key.sign("a")
    with pytest.raises(SignatureError):
        public.verify(ours, "a")
    public.verify(by_hand, "a")
    monkeypatch.setattr(signing, "Ed25519PublicKey", None)
    for _ in range(2):
        key.public.verify(ours, "a")
        public.verify(by_hand, "a")
    for one, signature, field in ((key.public, by_hand, "a"), (public, ours, "a"), (public, by_hand, "b")):
        with pytest.raises(AttributeError):  # the curve is asked
            one.verify(signature, field)


def test_few_signatures_are_remembered():
    known = signing._Known(most=2)  # a full one has thousands
    for i in range(3):
        known.add(b"key", b"signature", bytes([i]))
    assert [(b"key", b"signature", bytes([i])) in known for i in range(3)] == [False, True, True]


def test_hostile_signatures_and_keys():
    key = SigningKey.generate()
    for bad in (b"", b"x", bytes(64), bytes(65), key.sign("a")[:-1]):
        with pytest.raises(SignatureError):
            key.public.verify(bad, "a")
    for load in (VerifyKey.load, SigningKey.load, SealingKey.load, OpeningKey.load):
        for data in (b"", bytes(31), bytes(33)):
            with pytest.raises(DecodeError):
                load(data)
    with pytest.raises(SignatureError):
        VerifyKey(b"\xff" * 32).verify(bytes(64), "a")
    assert issubclass(SignatureError, PeerError)


@pytest.mark.parametrize("kind", [SigningKey, OpeningKey])
def test_secrets_are_not_shown_and_seeds_repeat(kind):
    key = kind.generate()
    assert key.key.hex() not in repr(key)
    assert repr(key.key) not in repr(key)
    assert kind.load(key.to_bytes()).public == key.public == copy.deepcopy(key).public
    assert kind.generate(lambda n: b"\x07" * n).to_bytes() == b"\x07" * 32
    assert kind.generate().public != key.public
    with pytest.raises(CryptoError):
        kind.generate(lambda n: b"")


# replays


def check(sent, last=None, current_round=5, now_s=100.0, max_ahead_s=2.0):
    check_fresh("c1", sent, last, current_round, now_s, max_age_s=10.0, max_ahead_s=max_ahead_s)


def test_each_round_is_accepted_once_and_in_order():
    check((1, 100.0), None, 1, 105.0)
    check((2, 106.0), (1, 100.0), 2, 106.0)
    check((2, 100.0), (1, 100.0), 2, 105.0)  # a clock may stand still between two rounds
    for sent, last, current_round in (
        ((1, 100.0), (1, 100.0), 1),  # the same again
        ((1, 104.0), (1, 100.0), 1),  # another in the same round
        ((2, 99.9), (1, 100.0), 2),  # a time before that of round 1
        ((2, 107.0), (2, 106.0), 2),
    ):
        with pytest.raises(ReplayError, match="does not follow"):
            check(sent, last, current_round, 106.0)


@pytest.mark.parametrize(
    ("message_round", "timestamp_s", "accepted"),
    [
        (5, 100.0, True),
        (4, 100.0, False),
        (6, 100.0, False),
        (5, 90.0, True),
        (5, 89.999, False),
        (5, 102.0, True),
        (5, 102.001, False),
        (5, math.nan, False),
        (5, math.inf, False),
        (5, -math.inf, False),
    ],
)
def test_age_and_round_limits(message_round, timestamp_s, accepted):
    if accepted:
        check((message_round, timestamp_s))
    else:
        with pytest.raises(ReplayError):
            check((message_round, timestamp_s))


# sealing


def slow_hpke_seal(data, recipient, info):
    """RFC 9180 base mode, single shot, with DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20Poly1305, step by step."""

    def extract(suite, salt, label, ikm):
        return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + ikm, "sha256")

    def expand(suite, prk, label, info, length):
        labelled, block, out = length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info, b"", b""
        for counter in range(1, 3):
            block = hmac.digest(prk, block + labelled + bytes([counter]), "sha256")
            out += block
        return out[:length]

    kem, suite = b"KEM\x00\x20", b"HPKE\x00\x20\x00\x01\x00\x03"
    ephemeral = X25519PrivateKey.generate()
    enc = ephemeral.public_key().public_bytes_raw()
    shared = extract(kem, b"", b"eae_prk", ephemeral.exchange(X25519PublicKey.from_public_bytes(recipient)))
    shared = expand(kem, shared, b"shared_secret", enc + recipient, 32)
    context = b"\0" + extract(suite, b"", b"psk_id_hash", b"") + extract(suite, b"", b"info_hash", info)
    secret = extract(suite, shared, b"secret", b"")
    key, nonce = expand(suite, secret, b"key", context, 32), expand(suite, secret, b"base_nonce", context, 12)
    return enc + ChaCha20Poly1305(key).encrypt(nonce, data, b"")


@given(st.binary(max_size=100), st.text(max_size=5), st.integers())
def test_sealed_bytes_open_and_so_do_the_slow_twin_s(data, sender, recipient):
    key = OpeningKey.generate()
    sealed = key.public.seal(data, sender, recipient, b"round", 3)
    assert len(sealed) == len(data) + OVERHEAD_BYTES
    assert key.open(sealed, sender, recipient, b"round", 3) == data
    info = digest("coterie/sealed/1", sender, recipient, b"round", 3)
    assert key.open(slow_hpke_seal(data, key.public.to_bytes(), info), sender, recipient, b"round", 3) == data
    assert key.public.seal(data, sender, recipient) != key.public.seal(data, sender, recipient)


def test_nothing_else_opens():
    key, data = OpeningKey.generate(), os.urandom(50)
    sealed = key.public.seal(data, "client", "helper", 3)
    for sender, recipient, *context in (
        ("helper", "client", 3),
        ("client2", "helper", 3),
        ("client", "leader", 3),
        ("client", "helper", 4),
        ("client", "helper"),
        ("clienth", "elper", 3),
    ):
        with pytest.raises(SealError):
            key.open(sealed, sender, recipient, *context)
    with pytest.raises(SealError):
        OpeningKey.generate().open(sealed, "client", "helper", 3)
    for index in range(len(sealed)):
        with pytest.raises(SealError):
            key.open(flipped(sealed, index), "client", "helper", 3)
    for bad in (b"", sealed[:31], sealed[:47], sealed[:-1], sealed + b"\0", bytes(len(sealed))):
        with pytest.raises(SealError):
            key.open(bad, "client", "helper", 3)
    assert issubclass(SealError, PeerError)


def test_a_recipient_key_that_keeps_no_secret_is_refused():
    for weak in (bytes(32), b"\x01" + bytes(31)):
        with pytest.raises(DecodeError):
            SealingKey(weak).seal(b"data", "a", "b")
