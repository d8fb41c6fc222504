"""Numbers that share a factor with N: anyone can send them, opening one betrays the key, and so none is taken."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given
from hypothesis import strategies as st

from coterie.crypto import paillier
from coterie.protocol.errors import DecodeError


@pytest.fixture(scope="module")
def key():
    return paillier.keygen(512, allow_insecure=True)


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
