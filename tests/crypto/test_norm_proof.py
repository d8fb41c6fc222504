"""The proof that a vector in two shares is short: right ones pass, no other does, and shares say nothing."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2, chisquare

from coterie.crypto import norm_proof
from coterie.crypto.norm_proof import ELEMENT_BYTES, PRIME, PROJECTIONS, WIRES
from coterie.crypto.one_hot import SEED_BYTES
from coterie.protocol.errors import CryptoError
from coterie.protocol.randomness import Secrets

CONTEXT = bytes(range(32))
LONGEST = 3000.0
BOUND = norm_proof.bound_of(LONGEST)


def shared(x: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Both shares of the projections of x, with R from this seed."""
    draw = np.random.default_rng(seed)
    hub = draw.integers(0, 2**32, len(x), dtype=np.uint32)
    both = norm_proof.projected(draw.bytes(SEED_BYTES), np.stack([hub, x.astype(np.int64).astype(np.uint32) - hub]))
    return both[0], both[1]


def passes(hub: np.ndarray, other: np.ndarray, proof: norm_proof.Proof, context: bytes = CONTEXT) -> bool:
    told = norm_proof.told(proof.share, proof.name, hub, BOUND, context)
    return norm_proof.holds(told, proof.seed, other, BOUND, context)


def proved(hub: np.ndarray, other: np.ndarray, seed: int = 1) -> norm_proof.Proof:
    proof = norm_proof.prove(hub, other, BOUND, CONTEXT, Secrets(np.random.default_rng(seed)))
    assert proof is not None
    return proof


def vector(length: float, size: int = 500, seed: int = 2) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=size)
    return np.rint(x * length / np.linalg.norm(x))


# ---------------------------------------------------------------------------------------------------------- projections


@given(st.integers(1, 40), st.integers(0, 99), st.integers(1, 3))
def test_projections_are_products_mod_2_to_the_32(size: int, seed: int, many: int) -> None:
    draw = np.random.default_rng(seed)
    seed_of_r = draw.bytes(SEED_BYTES)
    r = norm_proof.signs(seed_of_r, 0)[:, :size]
    x = draw.choice(np.array([0, 1, 2**31, 2**32 - 1, 12345], np.uint32), (many, size))
    exact = [[sum(int(a) * int(b) for a, b in zip(row, one, strict=True)) % 2**32 for row in r] for one in x]
    assert norm_proof.projected(seed_of_r, x).tolist() == exact


def test_sums_beyond_a_block_are_exact() -> None:
    size, seed = 3 * norm_proof.BLOCK + 5, bytes(SEED_BYTES)
    r = np.concatenate([norm_proof.signs(seed, block) for block in range(4)], axis=1)[:, :size]
    x = np.full((1, size), 2**32 - 1, np.uint32)
    assert norm_proof.projected(seed, x)[0].tolist() == [int(-row.sum()) % 2**32 for row in r.astype(np.int64)]


def test_an_entry_is_a_sign_half_of_the_time() -> None:
    first, second = (norm_proof.signs(b"0123456789abcdef", block) for block in range(2))
    assert not (first == second).all()
    values, counts = np.unique(first, return_counts=True)
    assert values.tolist() == [-1, 0, 1]
    assert chisquare(counts, counts.sum() * np.array([0.25, 0.5, 0.25])).pvalue > 1e-3


# ---------------------------------------------------------------------------------------------------------------- proof


@given(st.integers(0, 200))
def test_a_short_vector_passes(seed: int) -> None:
    hub, other = shared(vector(LONGEST, seed=seed), seed)
    assert passes(hub, other, proved(hub, other, seed))


@pytest.mark.parametrize("size", [1, 2, 500])
def test_one_that_is_three_times_as_long_has_no_proof(size: int) -> None:
    for seed in range(20):
        x = vector(3 * LONGEST, size, seed)
        assert norm_proof.prove(*shared(x, seed), BOUND, CONTEXT, Secrets(None)) is None


@pytest.mark.parametrize("coordinates", [[2**31], [2**31, 2**31], [2**30] * 4, [2**31 - 1, -(2**31)]])
def test_one_that_is_short_but_for_a_wrap_has_no_proof(coordinates: list[int]) -> None:
    """With signs alone, and no zeros, 2^31 twice would project to 0."""
    x = np.array([*coordinates, *np.zeros(50)])
    for seed in range(20):
        assert norm_proof.prove(*shared(x, seed), BOUND, CONTEXT, Secrets(None)) is None


def test_the_chances_that_pages_state_are_those_of_chi_square() -> None:
    """Of y^2 / (|x|^2 / 2): 128 degrees of freedom."""

    def chance(times: float) -> float:
        return float(chi2.cdf(norm_proof.SLACK * PROJECTIONS / times**2, PROJECTIONS))

    assert chance(1.45) == pytest.approx(0.5, abs=0.02)
    assert 1e-6 < chance(2) < 3e-6
    assert chance(3) < 1e-18
    refused = (norm_proof.SLACK * np.exp(1 - norm_proof.SLACK)) ** (PROJECTIONS / 2)
    assert refused == pytest.approx(1.1e-10, rel=0.1)
    assert 1 - chance(1) < refused


def test_the_bound_has_the_slack_that_it_says() -> None:
    x, ratios = vector(LONGEST), []
    for seed in range(60):
        hub, other = shared(x, seed)
        y = (hub + other).view(np.int32).astype(float)
        ratios.append(y @ y / BOUND)
    assert max(ratios) < 1
    assert np.mean(ratios) == pytest.approx(1 / norm_proof.SLACK, abs=0.03)


# ---------------------------------------------------------------------------------------- a prover that does not follow


def forged(hub: np.ndarray, other: np.ndarray, change: dict[int, int], moved: int = 0) -> bool:
    """Whether a proof passes with these other numbers as bits, if (3) would hold for what is left.

    moved: by so much the prover changes the first ten y.
    """
    sums = [(int(h) + 2**31) % 2**32 + int(k) for h, k in zip(hub, other, strict=True)]
    carries = [change.get(at, total >> 32) for at, total in enumerate(sums)]
    y = [total - 2**31 - (carry << 32) for total, carry in zip(sums, carries, strict=True)]
    y = [one + moved * (at < 10) for at, one in enumerate(y)]
    left, size = BOUND - sum(one * one for one in y), BOUND.bit_length()
    bits = [left >> j & 1 for j in range(size)] if 0 <= left < 2**size else [left % PRIME, *[0] * (size - 1)]
    bits = [change.get(PROJECTIONS + j, bit) for j, bit in enumerate(bits)]
    shape = norm_proof._Shape.of(BOUND)
    proof = norm_proof._proof([*carries, *bits], y, shape, CONTEXT, Secrets(np.random.default_rng(3)))
    return passes(hub, other, proof)


def test_the_forger_passes_where_it_lies_nowhere() -> None:
    assert forged(*shared(vector(LONGEST)), {})


def test_no_forged_numbers_pass() -> None:
    short, long = shared(vector(LONGEST)), shared(vector(5 * LONGEST))
    assert not forged(*long, {}), "what is left is no sum of bits"
    assert not forged(*short, {0: 7}), "a carry of 7"
    assert not forged(*short, {5: 2}), "another carry makes y long"
    assert not forged(*short, {PROJECTIONS: 2, PROJECTIONS + 1: 0}), "a bit of 2"
    assert not forged(*short, {}, moved=1), "other y than the shares'"


@pytest.mark.parametrize("at", [0, SEED_BYTES, SEED_BYTES + ELEMENT_BYTES * 140, -1])
def test_no_changed_proof_passes(at: int) -> None:
    hub, other = shared(vector(LONGEST))
    proof = proved(hub, other)
    bad = bytearray(proof.share)
    bad[at] ^= 1
    assert not passes(hub, other, norm_proof.Proof(bytes(bad), proof.seed, proof.name))


def test_no_proof_of_something_else_passes() -> None:
    hub, other = shared(vector(LONGEST))
    proof, again = proved(hub, other), proved(hub, other, 9)
    assert passes(hub, other, proof)
    assert not passes(hub, other, proof, CONTEXT[::-1])
    assert not passes(*shared(vector(LONGEST), 1), proof)
    assert not passes(hub + np.uint32(1), other, proof)
    assert not passes(hub, other, norm_proof.Proof(proof.share, again.seed, again.name))
    assert not passes(hub, other, norm_proof.Proof(proof.share, again.seed, proof.name))


@given(st.binary(max_size=64))
def test_bytes_that_are_none_are_refused(data: bytes) -> None:
    hub, other = shared(vector(LONGEST))
    proof = proved(hub, other)
    with pytest.raises(CryptoError):
        norm_proof.told(data, proof.name, hub, BOUND, CONTEXT)
    assert not norm_proof.holds(data, proof.seed, other, BOUND, CONTEXT)


# ------------------------------------------------------------------------------------------------- what the servers see


def test_the_hubs_share_and_what_is_opened_are_uniform() -> None:
    """For one x in 200 proofs: bytes of the share, and of all wires at r. The rest follows from these."""
    hub, other = shared(vector(LONGEST))
    shares, wires = bytearray(), bytearray()
    for seed in range(200):
        proof = proved(hub, other, seed)
        shares += proof.share[SEED_BYTES:]
        told = norm_proof.told(proof.share, proof.name, hub, BOUND, CONTEXT)
        numbers = norm_proof._decoded(told[96:])
        shape = norm_proof._Shape.of(BOUND)
        names = [told[32 * k : 32 * (k + 1)] for k in range(3)]
        rho, r = norm_proof._challenges(CONTEXT, names, shape)
        masks, bits, values = norm_proof._of_other(proof.seed, shape)
        own = norm_proof._evaluated([int(one) for one in other], bits, masks, values, rho, r, shape)
        both = [(a + b) % PRIME for a, b in zip(own, numbers, strict=True)]
        wires += b"".join(norm_proof._encoded(both[: 2 * WIRES]))
        assert both[-1] == 0
    for data in (shares, wires):
        low = np.frombuffer(bytes(data), np.uint8).reshape(-1, ELEMENT_BYTES)[:, :15]  # the top bit is always 0
        assert chisquare(np.bincount(low.ravel(), minlength=256)).pvalue > 1e-4


def test_a_hub_that_shifts_its_share_learns_nothing_from_a_refusal() -> None:
    """Whatever it adds to its projections, and whatever x is, the proof fails."""
    for x, at in product((vector(LONGEST), np.zeros(500)), (0, 5)):
        hub, other = shared(x)
        proof = proved(hub, other)
        shift = np.zeros(PROJECTIONS, np.uint32)
        shift[at] = 1
        assert not passes(hub + shift, other, proof)
