"""Vectors that are split between ciphertexts and joined again: values, sums, masks and refusals; real and emulated."""

from __future__ import annotations

import os

import numpy as np
import pytest
from emulated import exact, rounded

from coterie.crypto import ckks
from coterie.protocol.errors import CryptoError, KeyMismatchError

N = 1024
SET = "insecure-1024-deep"
MODULES = {"ckks": ckks, "rounded": rounded}
KEYS = {name: module.keygen(SET, allow_insecure=True) for name, module in MODULES.items()}
LENGTH = 2 * N + 7
VALUES = np.linspace(-4, 4, LENGTH)
both = pytest.mark.parametrize("scheme", list(MODULES))


@both
@pytest.mark.parametrize("at", [N, 2 * N])
def test_what_is_split_can_be_opened_summed_and_joined(scheme, at):
    key = KEYS[scheme]
    error = key.parameters.error(4)
    head, tail = key.public.encrypt(VALUES).split(at)
    assert (head.length, tail.length) == (at, LENGTH - at)
    for part, values in ((head, VALUES[:at]), (tail, VALUES[at:])):
        assert np.abs(key.decrypt(part) - values).max() <= error
        again = key.public.from_bytes(part.to_bytes(), len(values), terms=1, form=key.public.fresh)
        assert np.abs(key.decrypt(again + key.public.encrypt(values)) - 2 * values).max() <= error
    other = (tail + tail).at_level(3)
    whole = head.joined(other)
    assert (whole.length, whole.terms, whole.blinded) == (LENGTH, 2, 0)
    assert np.abs(key.decrypt(whole) - np.concatenate((VALUES[:at], 2 * VALUES[at:]))).max() <= error
    back = key.public.from_bytes(whole.to_bytes(), LENGTH, terms=2)
    assert np.abs(key.decrypt(back) - key.decrypt(whole)).max() == 0


@both
def test_a_joined_vector_carries_masks_as_any_other(scheme):
    key = KEYS[scheme]
    head, tail = key.public.encrypt(VALUES, 0).split(N)
    mask = key.public.mask(LENGTH, os.urandom)
    opened = key.open_blinded(head.joined(tail).blind(mask))
    back = key.public.encrypt_blinded(opened).unblind(mask, 1)
    assert np.abs(key.decrypt(back) - VALUES).max() <= 4 * key.parameters.added(0)


@both
def test_the_parts_keep_their_own_products(scheme):
    """A dot product of heads knows nothing of the tails."""
    key = KEYS[scheme]
    keys = key.evaluation()
    unit = np.zeros(LENGTH)
    unit[:N], unit[N:] = 1 / N**0.5, 4.0
    head, _ = key.public.encrypt(unit).split(N)
    assert key.decrypt(head.dot(head.conjugated(keys), keys))[0] == pytest.approx(1.0, abs=1e-4)


@both
def test_what_has_no_parts_is_refused(scheme):
    key, other = KEYS[scheme], MODULES[scheme].keygen(SET, allow_insecure=True)
    vector = key.public.encrypt(VALUES)
    keys = key.evaluation()
    head, tail = vector.split(N)
    masked = key.public.encrypt(VALUES, 0).blind(key.public.mask(LENGTH, os.urandom))
    product = vector.times(key.encrypt_scalar(0.5))
    for at in (0, -N, 1, N - 1, LENGTH, 3 * N):
        with pytest.raises(CryptoError, match=f"at a multiple of {N}, not at {at}"):
            vector.split(at)
    for whole in (key.encrypt_scalar(0.5), masked, product, vector.conjugated(keys)):
        with pytest.raises(CryptoError, match="has no parts"):
            whole.split(N)
        with pytest.raises(CryptoError, match=r"has no parts|can't be joined"):
            whole.joined(tail)
        with pytest.raises(CryptoError, match="can't be joined"):
            head.joined(whole)
    with pytest.raises(CryptoError, match="can't be joined"):
        head.joined(tail.at_level(1))
    with pytest.raises(CryptoError, match="nothing can follow them"):
        tail.joined(head)
    with pytest.raises(KeyMismatchError, match="two keys"):
        head.joined(other.public.encrypt(VALUES))
    with pytest.raises(KeyMismatchError):
        head.joined(exact.keygen(512, allow_insecure=True).public.encrypt(VALUES))
