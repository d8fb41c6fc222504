"""One-hot shares and rows against a slow twin: pure integers, one AES block at a time, from the published equations."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

from coterie.crypto import one_hot, shared_rows
from coterie.protocol.randomness import Derived, Secrets

Q = 2**32
CONTEXT = hashlib.sha256(b"context").digest()


def block(key: bytes, counter: int) -> bytes:
    encryptor = Cipher(AES(key), ECB()).encryptor()
    return encryptor.update(counter.to_bytes(16, "big"))


def stream(key: bytes, count: int, start: int = 0) -> bytes:
    blocks = (block(key, (start + i) % 2**128) for i in range(-(-count // 16)))
    return b"".join(blocks)[:count]


def words(key: bytes, count: int, start: int = 0) -> list[int]:
    data = stream(key, 4 * count, start)
    return [int.from_bytes(data[4 * i : 4 * i + 4], "little") for i in range(count)]


def hashed(place: int, seed: bytes) -> list[int]:
    return list(hashlib.sha512(b"coterie/one-hot/" + CONTEXT + bytes([place % 256, place // 256]) + seed).digest())


def tag(seeds: list[bytes], check: list[int], word: list[int]) -> bytes:
    told = b"coterie/tag/" + CONTEXT + bytes(check)
    told += hashlib.sha256(b"".join(w.to_bytes(4, "little") for w in word)).digest()
    for j, seed in enumerate(seeds):
        bit = seed[0] % 2
        told += bytes(h ^ (c if bit else 0) for h, c in zip(hashed(j, seed), check, strict=True))
    return hashlib.sha256(told).digest()


def upload(
    x: list[int], place: int, groups: int, master: bytes, other: bytes
) -> tuple[list[int], list[int], list[bytes]]:
    """cw, cs and the helper's seeds (4, 5). other: b_g, its lowest bit still free."""
    all_ours = stream(master, 16 * groups)
    ours = [all_ours[16 * j : 16 * j + 16] for j in range(groups)]
    a = ours[place]
    b = bytes([other[0] // 2 * 2 + 1 - a[0] % 2]) + other[1:]
    sign = 1 if a[0] % 2 else -1
    pa, pb = words(a, len(x)), words(b, len(x))
    word = [sign * (v - p + q) % Q for v, p, q in zip(x, pa, pb, strict=True)]
    check = [h ^ k for h, k in zip(hashed(place, a), hashed(place, b), strict=True)]
    return word, check, [b if j == place else s for j, s in enumerate(ours)]


def folded(rows: list[list[int]], seeds: list[bytes], word: list[int], weight: int) -> list[list[int]]:
    found = []
    for row, seed in zip(rows, seeds, strict=True):
        mask = words(seed, len(word))
        found.append([(t + weight * (p + seed[0] % 2 * w)) % Q for t, p, w in zip(row, mask, word, strict=True)])
    return found


@pytest.mark.parametrize(("groups", "d"), [(1, 7), (2, 7), (5, 64)])
def test_the_fast_path_is_the_twin(groups: int, d: int) -> None:
    ours, theirs = np.zeros((groups, d), np.uint32), np.zeros((groups, d), np.uint32)
    slow_ours, slow_theirs = ours.tolist(), theirs.tolist()
    wanted = [[0] * d for _ in range(groups)]
    for at in range(6):
        rng = np.random.default_rng((groups, at))
        x, place, weight = rng.integers(0, Q, d, np.uint32), int(rng.integers(groups)), int(rng.integers(1, 33))
        key = b"%d %d" % (groups, at)
        fast, source = one_hot.shared(x, place, groups, CONTEXT, Derived(key)), Derived(key)
        master, other = source.bytes(16), source.bytes(16)
        while groups == 1 and stream(master, 1)[0] % 2 == 0:
            master = source.bytes(16)
        word, check, seeds = upload(x.tolist(), place, groups, master, other)
        assert fast.word.tolist() == word
        assert fast.check == bytes(check)
        assert (fast.master, fast.seeds) == (master, b"".join(seeds))
        mine = [stream(master, 16 * groups)[16 * j : 16 * j + 16] for j in range(groups)]
        for own in (mine, seeds):
            assert one_hot.tag(CONTEXT, b"".join(own), fast.check, one_hot.word_name(fast.word)) == tag(
                own, check, word
            )
        one_hot.fold(ours, b"".join(mine), fast.word, weight)
        one_hot.fold(theirs, fast.seeds, fast.word, -weight)
        slow_ours, slow_theirs = folded(slow_ours, mine, word, weight), folded(slow_theirs, seeds, word, -weight)
        wanted[place] = [(t + weight * v) % Q for t, v in zip(wanted[place], x.tolist(), strict=True)]
    assert (ours.tolist(), theirs.tolist()) == (slow_ours, slow_theirs)
    assert [
        [(a + b) % Q for a, b in zip(p, q, strict=True)] for p, q in zip(slow_ours, slow_theirs, strict=True)
    ] == wanted


def test_masks_are_the_twins() -> None:
    rows = np.arange(15, dtype=np.uint32).reshape(3, 5)
    keys, nonce = [bytes([j]) * 16 for j in range(3)], bytes([255] * 15 + [254])  # the counter wraps
    slow = [
        [(t + p) % Q for t, p in zip(row, words(key, 5, int.from_bytes(nonce, "big")), strict=True)]
        for row, key in zip(rows.tolist(), keys, strict=True)
    ]
    assert shared_rows.masked(rows, keys, nonce).tolist() == slow


def test_vectors_that_another_implementation_must_give() -> None:
    """Frozen: what clients and servers of different versions must agree on."""
    drawn = iter((MASTER, OTHER))
    secrets = Secrets(SimpleNamespace(bytes=lambda count: next(drawn)))  # type: ignore[arg-type]
    shares = one_hot.shared(np.arange(7, dtype=np.uint32), 1, 3, CONTEXT, secrets)
    told = one_hot.tag(CONTEXT, shares.seeds, shares.check, one_hot.word_name(shares.word))
    assert hashlib.sha256(shares.word.tobytes() + shares.check + shares.seeds).hexdigest() == VECTOR
    assert told.hex() == TAG


MASTER, OTHER = (bytes.fromhex(one) for one in ("fa6db0a5c5400637d8ab7653f46090a0", "fb1d61b38a5f102757d46edf73756bf0"))
VECTOR = "81c1ad0976e4267e2741a28e16bf4c108ab811496d505a8d445b68882f3f8fd3"
TAG = "79f2a5820e3255a59e11c6f22a090c7fc0f8b917f27469acc081c5445e41ffbc"
