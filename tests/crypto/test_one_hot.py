"""One-hot shares: the difference of both servers' sums is the vector at its place, and a tag is for one place alone."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from coterie.crypto import one_hot
from coterie.protocol.errors import CryptoError
from coterie.protocol.randomness import Derived, Secrets, keystream

CONTEXT = bytes(range(32))
D = 9


def vector(seed: int, d: int = D) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, d, np.uint32)


def tags(shares: one_hot.Shares, groups: int, context: bytes = CONTEXT) -> tuple[bytes, bytes]:
    own = one_hot.seeds_of(shares.master, groups)
    return one_hot.tag(context, own, shares.check, one_hot.word_name(shares.word)), one_hot.tag(
        context, shares.seeds, shares.check, one_hot.word_name(shares.word)
    )


@given(
    uploads=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 32), st.integers(0, 2**31)), max_size=6),
    groups=st.integers(5, 7),
)
@settings(max_examples=40, deadline=None)
def test_the_servers_rows_differ_by_the_weighted_sums_of_their_groups(
    uploads: list[tuple[int, int, int]], groups: int
) -> None:
    ours, theirs = np.zeros((groups, D), np.uint32), np.zeros((groups, D), np.uint32)
    wanted = [[0] * D for _ in range(groups)]
    for at, (group, weight, seed) in enumerate(uploads):
        x = vector(seed)
        shares = one_hot.shared(x, group, groups, CONTEXT, Derived(b"client %d" % at))
        assert len(set(tags(shares, groups))) == 1
        one_hot.fold(ours, one_hot.seeds_of(shares.master, groups), shares.word, weight)
        one_hot.fold(theirs, shares.seeds, shares.word, -weight)
        wanted[group] = [(old + weight * int(new)) % 2**32 for old, new in zip(wanted[group], x, strict=True)]
    assert (ours + theirs).tolist() == wanted


def test_with_one_place_the_second_server_needs_no_word() -> None:
    x, theirs = vector(3), np.zeros((1, D), np.uint32)
    shares = [one_hot.shared(x, 0, 1, CONTEXT, Derived(b"client %d" % at)) for at in range(8)]
    for one in shares:
        own = one_hot.seeds_of(one.master, 1)
        ours = np.zeros((1, D), np.uint32)
        one_hot.fold(ours, own, one.word, 3)
        one_hot.fold(theirs, one.seeds, one_hot.no_word(one.seeds, D), -3)
        assert ((ours + theirs)[0] == x * np.uint32(3)).all()
        theirs[:] = 0
        with pytest.raises(CryptoError, match="of which there is only the name"):
            one_hot.no_word(own, D)  # its lowest bit is 1
    assert len({one.master for one in shares}) == 8
    with pytest.raises(CryptoError):
        one_hot.no_word(2 * shares[0].seeds, D)


def at_places(x: np.ndarray, places: list[int], groups: int) -> one_hot.Shares:
    """An upload that adds x at several places, as far as seeds allow it."""
    honest = one_hot.shared(x, places[0], groups, CONTEXT, Derived(b"one"))
    seeds = bytearray(honest.seeds)
    for j in places[1:]:
        seeds[one_hot.SEED_BYTES * j] ^= 1  # another lowest bit: the word is added there, too
    return one_hot.Shares(honest.word, honest.check, honest.master, bytes(seeds))


@pytest.mark.parametrize("places", [[1, 2], [0, 1, 2, 3]])
def test_a_vector_at_several_places_has_no_tag(places: list[int]) -> None:
    one, two = tags(at_places(vector(1), places, 4), 4)
    assert one != two


def test_another_word_check_context_or_place_has_no_tag() -> None:
    shares = one_hot.shared(vector(2), 1, 3, CONTEXT, Derived(b"two"))
    own, word = one_hot.seeds_of(shares.master, 3), shares.word.copy()
    good = one_hot.tag(CONTEXT, shares.seeds, shares.check, one_hot.word_name(shares.word))
    word[3] += 1
    check = bytes([shares.check[0] ^ 1]) + shares.check[1:]
    seeds = own[one_hot.SEED_BYTES :] + own[: one_hot.SEED_BYTES]
    assert one_hot.tag(CONTEXT, own, shares.check, one_hot.word_name(shares.word)) == good
    assert one_hot.tag(CONTEXT, own, shares.check, one_hot.word_name(word)) != good
    assert one_hot.tag(CONTEXT, own, check, one_hot.word_name(shares.word)) != good
    assert one_hot.tag(bytes(32), own, shares.check, one_hot.word_name(shares.word)) != good
    assert one_hot.tag(CONTEXT, seeds, shares.check, one_hot.word_name(shares.word)) != good


def test_a_wrong_check_is_not_repaired_by_both_servers_alike() -> None:
    """Both servers get the same cs, and their bits differ at the place: a changed cs changes one of two values only."""
    shares = one_hot.shared(vector(3), 0, 2, CONTEXT, Derived(b"three"))
    wrong = one_hot.Shares(shares.word, bytes(one_hot.CHECK_BYTES), shares.master, shares.seeds)
    assert len(set(tags(wrong, 2))) == 2


def test_what_a_server_gets_looks_the_same_for_every_place_and_vector() -> None:
    for group, x in ((0, np.zeros(4096, np.uint32)), (3, vector(4, 4096))):
        shares = one_hot.shared(x, group, 4, CONTEXT, Secrets(None))
        for seen in (shares.word.tobytes(), shares.check * 64, shares.seeds * 64):
            assert len(seen) in (16384, 4096)
        counts = np.bincount(np.frombuffer(shares.word.tobytes(), np.uint8), minlength=256)
        assert chisquare(counts).pvalue > 1e-6
    bits = [
        one_hot.shared(vector(5), 2, 4, CONTEXT, Derived(b"%d" % i)).seeds[2 * one_hot.SEED_BYTES] & 1
        for i in range(200)
    ]
    assert 60 < sum(bits) < 140, "the other seed's bit follows from the first's, which the helper does not know"


def test_two_uploads_of_one_vector_have_nothing_in_common() -> None:
    one, two = (one_hot.shared(vector(6), 1, 2, CONTEXT, Secrets(None)) for _ in range(2))
    assert one.master != two.master
    assert one.check != two.check
    assert not (one.word == two.word).any()


def test_streams_are_those_of_aes_in_counter_mode() -> None:
    """NIST SP 800-38A, F.5.1: the keystream is the ciphertext minus the plaintext."""
    key = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c")
    start = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    stream = keystream(key, 32, start)
    plain = bytes.fromhex("6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51")
    cipher = bytes.fromhex("874d6191b620e3261bef6864990db6ce9806f66b7970fdff8617187bb9fffdff")
    assert bytes(a ^ b for a, b in zip(stream, plain, strict=True)) == cipher
    assert next(one_hot.streamed(key, 2, start))[1].tobytes() == stream[:8]


@pytest.mark.parametrize("count", [1, one_hot.BLOCK - 1, one_hot.BLOCK, one_hot.BLOCK + 1, 3 * one_hot.BLOCK + 5])
def test_parts_of_a_stream_are_the_stream(count: int) -> None:
    key, whole = bytes(range(16)), Cipher(AES(bytes(range(16))), CTR(bytes(16))).encryptor().update(bytes(4 * count))
    parts = [(place, words.tobytes()) for place, words in one_hot.streamed(key, count)]
    assert b"".join(data for _, data in parts) == whole == keystream(key, 4 * count)
    assert [place.start for place, _ in parts] == list(range(0, count, one_hot.BLOCK))
    assert parts[-1][0].stop == count
    words, x = vector(1, count), vector(1, count)
    one_hot.move(words, np.add, key)
    assert (words == x + np.frombuffer(whole, "<u4")).all()
    one_hot.move(words, np.subtract, key)
    assert (words == x).all()


def test_rows_of_many_parts_are_the_sums_in_the_clear() -> None:
    d, x = 2 * one_hot.BLOCK + 3, vector(5, 2 * one_hot.BLOCK + 3)
    shares, rows = one_hot.shared(x, 1, 3, CONTEXT, Derived(b"long")), np.zeros((2, 3, d), np.uint32)
    one_hot.fold(rows[0], one_hot.seeds_of(shares.master, 3), shares.word, 5)
    one_hot.fold(rows[1], shares.seeds, shares.word, -5)
    assert (rows.sum(axis=0, dtype=np.uint32) == np.stack([0 * x, 5 * x, 0 * x])).all()
    assert (
        one_hot.share(one_hot.seeds_of(shares.master, 3), shares.word) - one_hot.share(shares.seeds, shares.word) == x
    ).all()


def test_nonsense_is_refused() -> None:
    shares = one_hot.shared(vector(7), 0, 2, CONTEXT, Derived(b"four"))
    rows = np.zeros((2, D), np.uint32)
    for wrong in (
        lambda: one_hot.shared(vector(7), 2, 2, CONTEXT, Derived(b"")),
        lambda: one_hot.shared(vector(7), -1, 2, CONTEXT, Derived(b"")),
    ):
        with pytest.raises(CryptoError):
            wrong()
    with pytest.raises(CryptoError):
        one_hot.tag(CONTEXT, shares.seeds[:-1], shares.check, one_hot.word_name(shares.word))
    with pytest.raises(CryptoError):
        one_hot.tag(CONTEXT, shares.seeds, shares.check[:-1], one_hot.word_name(shares.word))
    with pytest.raises(CryptoError):
        one_hot.fold(rows, shares.seeds, shares.word[:-1], 1)
    with pytest.raises(CryptoError):
        one_hot.fold(rows, shares.seeds + bytes(16), shares.word, 1)
    assert hashlib.sha256(rows).digest() == hashlib.sha256(np.zeros((2, D), np.uint32)).digest()
