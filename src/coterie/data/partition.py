"""Partitions of a training set over clients, and test samples of the same distribution (docs/partitions.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from coterie.data.dataset import Part
from coterie.data.schemes import parse, rounded
from coterie.protocol.arrays import Array, Integers
from coterie.protocol.errors import UserError
from coterie.protocol.randomness import rng


@dataclass(frozen=True, eq=False)
class Split:
    """Index lists of every client, ascending int64, into the training and the test set.

    A training sample has at most one client; a test sample may serve several.
    groups: (clients,) int64, the true groups: label sets for ``labelsets``, tasks where they differ; else None. With
        ``domains`` indices are into the own group's data set.
    group_labels: the labels of each set, ascending int64, for ``labelsets``; else None.
    held_out: training indices out of training (``hold_out``); or ().
    names: of the clients in one's own data, or ().
    public: training indices of the public data (``set_aside``).
    """

    spec: str
    seed: int
    train: tuple[Integers, ...]
    test: tuple[Integers, ...]
    groups: Integers | None = None
    group_labels: tuple[Integers, ...] | None = None
    held_out: tuple[Integers, ...] = ()
    names: tuple[str, ...] = ()
    public: Integers = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def clients(self) -> int:
        return len(self.train)

    @property
    def sizes(self) -> Integers:
        """(clients,) training samples."""
        return np.array([len(indices) for indices in self.train], dtype=np.int64)


def partition(
    spec: str,
    y_train: Array,
    y_test: Array,
    clients: int,
    seed: int,
    min_samples: int | None = None,
    test_samples: int = 200,
) -> Split:
    """Deal the training set to ``clients`` as ``spec`` says, and draw each client's test samples.

    y_train, y_test: (N,) integer labels.  seed: decides everything.
    min_samples: for training, of each client. ``dirichlet`` tops up (by default to 10, or half the mean if that is
        less); other forms raise if it can't hold (by default 1).
    test_samples: of each client, without repetition, in its training label shares; fewer where the test set lacks
        some.

    Raises UserError for a spec that is unknown or cannot be met. ``coterie.data.deal`` deals specs with tasks.
    """
    scheme = parse(spec)
    y_train, y_test = _checked(y_train, "y_train"), _checked(y_test, "y_test")
    whole("clients", clients, 1)
    whole("seed", seed, 0)
    whole("test_samples", test_samples, 1)
    if min_samples is not None:
        whole("min_samples", min_samples, 1)
    n = len(y_train)
    if clients > n:
        raise UserError(f"{clients:,} clients cannot share {n:,} training samples; use fewer clients or more data")
    floor = max(1, min(10, n // (2 * clients))) if min_samples is None else min_samples
    if floor * clients > n:
        raise UserError(
            f"min_samples is {floor}, but {n:,} training samples make at most {n // clients} for each of {clients:,} "
            "clients; lower it or use fewer clients"
        )
    present, y = np.unique(y_train, return_inverse=True)
    deal_rng, test_rng = np.random.default_rng([seed, 0x7EA1]), np.random.default_rng([seed, 0x7E57])
    counts, groups, sets = scheme(np.bincount(y), clients, floor, deal_rng)
    if (poorest := int(counts.sum(axis=1).min())) < (least := min_samples or 1):
        raise UserError(
            f"partition {spec} leaves a client with {poorest} training samples, fewer than min_samples = {least}; use "
            "fewer clients, another partition or a smaller min_samples"
        )
    return Split(
        spec,
        int(seed),
        _deal(y, counts, deal_rng),
        drawn_test(counts, pools_of(y_test, present), test_samples, test_rng),
        groups,
        tuple(present[own] for own in sets) if sets else None,
    )


def set_aside(strata: Array, share: float, seed: int) -> Integers:
    """The server's public data among N training samples, ascending: round(share * N), drawn by the seed.

    strata: (N,) integers, a class or owner: each gives its share within one sample, and keeps one. Raises UserError for
    a share outside [0, 0.5], or without a sample.
    """
    if not 0 <= share <= 0.5:
        raise UserError(f"public is the share of the training data that the server holds: 0 to 0.5, not {share}")
    if not share:
        return np.empty(0, np.int64)
    given = _stratified(strata, round(share * len(strata)), rng(seed, "partition", "public"))
    if not len(given):
        raise UserError(
            f"public={share:g} of {len(strata):,} training samples gives the server none: take a larger share, or 0"
        )
    return given


def kept_of(strata: Array, samples: int | None, seed: int, part: Part = "train") -> Integers:
    """The samples of N that a run uses, ascending, drawn by the seed; None for all.

    strata: (N,) integers, a sample's class, which keeps its share within one sample. Raises UserError for more samples
    than there are, or fewer than two of a class.
    """
    if samples is None or samples == len(strata):
        return np.arange(len(strata))
    name = "samples" if part == "train" else "test_samples"
    smallest = int(np.unique(strata, return_counts=True)[1].min())
    if not 2 * len(strata) <= samples * smallest <= len(strata) * smallest:
        least, kind = -(-2 * len(strata) // smallest), "training" if part == "train" else "test"
        raise UserError(
            f"{name}={samples:,} of {len(strata):,} {kind} samples: take {least:,} to {len(strata):,}, so that every "
            "class keeps two"
        )
    return _stratified(strata, samples, rng(seed, "partition", name))


def _stratified(strata: Array, wanted: int, source: np.random.Generator) -> Integers:
    _, stratum, sizes = np.unique(strata, return_inverse=True, return_counts=True)
    quota = wanted / len(strata) * sizes
    counts = np.floor(quota).astype(np.int64)
    counts[np.argsort(counts - quota, kind="stable")[: wanted - int(counts.sum())]] += 1
    counts = np.minimum(counts, sizes - 1)
    shuffled = source.permutation(len(strata))
    by_stratum = np.split(shuffled[np.argsort(stratum[shuffled], kind="stable")], np.cumsum(sizes)[:-1])
    given = [own[:count] for own, count in zip(by_stratum, counts, strict=True)]
    return np.sort(np.concatenate(given)).astype(np.int64)


def hold_out(split: Split, share: float = 0.2) -> Split:
    """The same split with ``share`` of every client's training samples moved to ``held_out``: round(share * n) of n,
    but at least one, and not all, by the seed, its number and its samples. Raises UserError for a share outside (0, 1),
    and a second time.
    """
    if not 0 < share < 1:
        raise UserError(f"the share of held-out samples must lie between 0 and 1, not {share}")
    if split.held_out:
        raise UserError("this split has held samples out already")
    parted = [held_out_of(split.seed, client, own, share) for client, own in enumerate(split.train)]
    return replace(split, train=tuple(kept for kept, _ in parted), held_out=tuple(held for _, held in parted))


def held_out_of(seed: int, client: int, own: Integers, share: float = 0.2) -> tuple[Integers, Integers]:
    """What one client keeps, and what it holds out."""
    count = min(len(own) - 1, max(1, round(share * len(own))))
    given = np.random.default_rng([seed, 0x401D, client]).choice(len(own), count, replace=False)
    return np.delete(own, given), own[np.sort(given)]


def label_counts(split: Split, y: Array, classes: int, part: str = "train") -> Integers:
    """``(clients, classes) int64`` samples of each class. part: "train" or "test"."""
    if part not in ("train", "test"):
        raise UserError(f"part is {part!r}; it must be 'train' or 'test'")
    lists = split.test if part == "test" else split.train
    return np.stack([np.bincount(y[indices], minlength=classes) for indices in lists]).astype(np.int64)


def whole(name: str, value: Any, least: int) -> None:
    """Raises UserError unless the value is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise UserError(f"{name} is {value!r}; it must be a whole number of at least {least}")


def _checked(y: Array, name: str) -> Integers:
    y = np.asarray(y)
    if y.ndim != 1 or y.dtype.kind not in "ui" or not len(y) or int(y.min()) < 0:
        raise UserError(f"{name} is {y.dtype} {y.shape}; it must be a list of labels 0, 1, 2, ... with at least one")
    return y.astype(np.int64)


def _deal(y: Integers, counts: Integers, rng: np.random.Generator) -> tuple[Integers, ...]:
    clients = len(counts)
    unused = np.bincount(y) - counts.sum(axis=0)
    table = np.vstack([counts, unused])  # the last row is nobody
    shuffled = rng.permutation(len(y))
    by_label = shuffled[np.argsort(y[shuffled], kind="stable")]
    owner = np.empty(len(y), dtype=np.int64)
    owner[by_label] = np.repeat(np.tile(np.arange(clients + 1), len(unused)), table.T.ravel())
    by_owner = np.argsort(owner, kind="stable").astype(np.int64)  # ascending within an owner
    return tuple(np.split(by_owner, np.cumsum(table.sum(axis=1))[:-1])[:clients])


def pools_of(y_test: Integers, present: Integers) -> tuple[Integers, ...]:
    """For each of these labels (K,) its test samples (n,), ascending."""
    return tuple(np.flatnonzero(y_test == label).astype(np.int64) for label in present)


def drawn_test(
    counts: Integers, pools: Sequence[Integers], samples: int, rng: np.random.Generator
) -> tuple[Integers, ...]:
    """Each client's test samples, ascending, in the proportions of its training samples.

    counts: (clients, K) of training samples.  pools: indices of each label.  samples: the most. Raises UserError for a
    client without any.
    """
    stock = np.array([len(pool) for pool in pools])
    weights = counts * (stock > 0)
    if len(blind := np.flatnonzero(weights.sum(axis=1) == 0)):
        raise UserError(
            f"the test set has no sample of any label that client {blind[0]} holds ({len(blind)} such clients); use "
            "another partition or a complete test set"
        )
    shares = weights / weights.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.where(shares > 0, stock / shares, np.inf).min(axis=1)
    totals = np.minimum(samples, np.floor(room + 1e-9)).astype(np.int64)
    wanted = np.minimum(rounded(totals, shares, rng), stock)
    return tuple(
        np.sort(
            np.concatenate(
                [rng.choice(pools[k], row[k], replace=False, shuffle=False) for k in np.flatnonzero(row).tolist()]
            )
        )
        for row in wanted
    )
