"""Shared secrets of 32 bytes: any t shares give them, fewer give nothing, and bad ones are refused."""

from __future__ import annotations

from itertools import combinations

import pytest

from coterie.crypto import residues, shared_seed
from coterie.protocol.errors import DecodeError
from coterie.protocol.randomness import Secrets, rng

NAMES = tuple(f"client/{i}" for i in range(5))
SHARE = residues.np.array([[(1 << 61) - 1] * 5], "<u8").tobytes()


def made(needed: int = 3, seed: int = 0) -> tuple[bytes, dict[str, bytes]]:
    """The second of two secrets."""
    (_, secret), shares = shared_seed.shared(NAMES, needed, Secrets(rng(seed, "a dealer", "shares", 0)).bytes, 2)
    return secret, {name: both[40:] for name, both in shares.items()}


def test_any_t_shares_give_the_secret_and_one_less_does_not() -> None:
    secret, shares = made()
    for size in (3, 4, 5):
        for some in combinations(NAMES, size):
            assert shared_seed.joined(NAMES, {name: shares[name] for name in some}) == secret
    for some in combinations(NAMES, 2):
        assert shared_seed.joined(NAMES, {name: shares[name] for name in some}) != secret


def test_shares_are_shamirs_by_plain_integers() -> None:
    """Each number of a share is a polynomial of degree t - 1 at the holder's place, so t values give all others."""
    prime, (_, shares) = (1 << 61) - 1, made()
    numbers = [[int.from_bytes(shares[name][at : at + 8], "little") for at in range(0, 40, 8)] for name in NAMES]
    for of in range(5):
        for place in (4, 5):  # from the values at 1, 2 and 3, by Lagrange
            value = 0
            for i in (1, 2, 3):
                term = numbers[i - 1][of]
                for j in (1, 2, 3):
                    if i != j:
                        term = term * (place - j) * pow(i - j, -1, prime) % prime
                value += term
            assert value % prime == numbers[place - 1][of]


def test_secrets_and_shares_differ_from_each_other() -> None:
    (one, shares), (other, _) = made(), made(seed=1)
    assert len({one, other, *shares.values()}) == 7


@pytest.mark.parametrize("wrong", [b"", bytes(39), SHARE])
def test_bytes_that_are_no_share_are_refused(wrong: bytes) -> None:
    _, shares = made()
    with pytest.raises(DecodeError, match="share"):
        shared_seed.joined(NAMES, {**shares, NAMES[0]: wrong})
