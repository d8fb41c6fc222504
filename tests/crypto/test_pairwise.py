"""Pads that cancel: whoever drops out, the sum of those that remain is exact; one vector alone shows nothing."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from coterie.crypto import marks
from coterie.crypto.marks import masked, unmasked
from coterie.crypto.signing import OpeningKey
from coterie.protocol.arrays import Words64

NAMES = ("client/10", "client/2", "client/3", "client/9")
KEYS = {name: OpeningKey(bytes([i + 1]) * 32) for i, name in enumerate(NAMES)}
SEEDS = {name: bytes([64 + i]) * 32 for i, name in enumerate(NAMES)}
OF = bytes(32)
X = {name: np.random.default_rng(i).integers(0, 1 << 63, 50, np.uint64) * 2 for i, name in enumerate(NAMES)}


def sent(name: str, of: bytes = OF) -> Words64:
    others = {other: KEYS[other].public for other in NAMES if other != name}
    return masked(X[name], SEEDS[name], KEYS[name], name, others, of)


def added(vectors: list[Words64]) -> Words64:
    return np.sum(vectors, axis=0, dtype=np.uint64)


def test_the_sum_of_those_that_remain_is_exact_whoever_drops_out() -> None:
    for count in range(1, len(NAMES) + 1):
        for there in combinations(NAMES, count):
            gone = {name: KEYS[name] for name in NAMES if name not in there}
            public = {name: KEYS[name].public for name in there}
            found = unmasked(added([sent(n) for n in there]), [SEEDS[n] for n in there], gone, public, OF)
            assert (found == added([X[name] for name in there])).all()


def test_without_a_seed_or_a_key_of_one_that_dropped_out_nothing_is_opened() -> None:
    there, public = NAMES[:3], {name: KEYS[name].public for name in NAMES[:3]}
    total, right = added([sent(n) for n in there]), added([X[n] for n in there])
    all_seeds = [SEEDS[n] for n in there]
    for seeds, gone in ((all_seeds[:2], {NAMES[3]: KEYS[NAMES[3]]}), (all_seeds, {})):
        assert (unmasked(total, seeds, gone, public, OF) != right).mean() > 0.9


def test_a_vector_stays_hidden_from_all_others_keys_without_its_seed_and_from_its_seed_without_keys() -> None:
    """The two masks hide it each alone: y - x is a pad of the seed and a pad of the pairs, which are both needed."""
    name, *others = NAMES
    pads = marks.pad(KEYS[name], name, {other: KEYS[other].public for other in others}, OF, 50)
    assert (sent(name) - pads != X[name]).all()
    only_seed = unmasked(sent(name), [SEEDS[name]], {}, {}, OF)
    assert (only_seed != X[name]).all()


def test_pads_are_new_for_each_sum() -> None:
    assert (sent(NAMES[0]) != sent(NAMES[0], bytes(31) + b"\1")).mean() > 0.9
