"""Who holds which samples: partitions of a training set over clients, and test samples of the same distribution.

``dirichlet:BETA``  each class is spread over the clients by its own draw p_k ~ Dir(BETA, ..., BETA) over clients
                    (Yurochkin et al., ICML 2019; Li et al., ICDE 2022): unequal sizes *and* unequal labels
``hsu:ALPHA``       each client draws its label proportions q_i ~ Dir(ALPHA * prior) over classes, the prior being the
                    training set's own class shares, which sum to 1 (Hsu, Qi and Brown, 2019): equal sizes. With K
                    classes of equal size the label skew of ``hsu:ALPHA`` is that of ``dirichlet:ALPHA/K``
``shards:N``        the samples sorted by label and cut into N shards a client, dealt at random (McMahan et al., 2017)
``labelsets:K``     the labels dealt into K disjoint sets, an equal number of clients to each set, each set's samples
                    dealt evenly to its clients; ``labelsets:K:LO-HI`` for sets of LO to HI labels and clients in
                    proportion to them (MingledPie's homogeneous and heterogeneous clusters). With ``,iid=RATE`` after
                    it a share RATE of each client's samples is drawn from all labels (its IID rate, appendix C.2);
                    with ``,iid=RATE@FIRST`` only for clients from number FIRST on (its newcomers, appendix C.3)
``labels:M``        each client holds M labels, ``labels:LO-HI`` a random number of them; every label is held by
                    (nearly) equally many clients, which share its samples evenly ("#C = M" of Li et al.)
``iid``             dealt evenly at random

Groups of clients whose tasks differ, crossed with any of these, are in ``coterie.data.tasks``.

Every training sample goes to exactly one client; the one exception is ``labels``, where a label that no client holds
(clients * M < classes) stays unused. How many samples of which class a client gets depends only on the class sizes,
the spec and the seed, never on the order in which the samples are stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.data.draws import Counts, Floats, allot, even_sizes, log_gamma, proportional_sizes, rounded
from coterie.protocol.errors import UserError

FORMS = {
    "dirichlet:BETA": "each class is spread over the clients by its own Dirichlet draw: unequal sizes, unequal labels",
    "hsu:ALPHA": "each client draws its label proportions from a Dirichlet distribution: equal sizes",
    "shards:N": "samples sorted by label, cut and dealt, N pieces a client",
    "labelsets:K[:LO-HI][,iid=RATE[@FIRST]]": "the labels dealt into K disjoint sets, each to a group of clients",
    "labels:M": "each client holds M labels",
    "labels:LO-HI": "each client holds LO to HI labels",
    "iid": "dealt evenly at random",
}
"""What a spec looks like, and how it deals the training set, in short."""

TASK_FORMS = {
    "rotate:K[+SKEW]": "group g of K sees images turned by g 360/K degrees",
    "permute:K[+SKEW]": "each of K groups has the labels in an order of its own",
    "swap:K[+SKEW]": "group g of K exchanges labels 2g and 2g + 1",
    "domains:A,B,...[+SKEW]": "each group has a data set of its own; the first is that of --data",
}
"""What ``coterie.data.deal`` takes too. SKEW is any of the forms above but labelsets, by default iid."""

OWN_FORMS = {"by:COLUMN": "one client for each value of a column of your own data; by:client for a folder of files"}
"""What ``coterie.data.deal`` takes for data that name their clients."""


def kinds(forms: Iterable[str]) -> list[str]:
    """The words that forms begin with."""
    return list(dict.fromkeys(re.split(r"[:+\[]", form)[0] for form in forms))


@dataclass(frozen=True, eq=False)
class Split:
    """Index lists of every client, ascending int64: into the training set and into the test set.

    A training sample has one client; a test sample may serve several (clients are tested one by one).
    groups: (clients,) int64, the true group of a client: its label set for ``labelsets``, its task where tasks differ
        (``coterie.data.tasks``); else None. With ``domains`` indices are into the data set of the client's own group.
    group_labels: the labels of each set, ascending int64, for ``labelsets``; else None.
    held_out: indices into the training set that each client keeps out of its training (``data/hold_out.py``); or ().
    names: of the clients in one's own data, or ().
    """

    spec: str
    seed: int
    train: tuple[NDArray[np.int64], ...]
    test: tuple[NDArray[np.int64], ...]
    groups: NDArray[np.int64] | None = None
    group_labels: tuple[NDArray[np.int64], ...] | None = None
    held_out: tuple[NDArray[np.int64], ...] = ()
    names: tuple[str, ...] = ()

    @property
    def clients(self) -> int:
        return len(self.train)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(clients,) number of training samples."""
        return np.array([len(indices) for indices in self.train], dtype=np.int64)


def partition(
    spec: str,
    y_train: NDArray[Any],
    y_test: NDArray[Any],
    clients: int,
    seed: int,
    min_samples: int | None = None,
    test_samples: int = 200,
) -> Split:
    """Deal the training set to ``clients`` as ``spec`` says, and draw each client's test samples.

    y_train, y_test: (N,) integer labels.  seed: decides everything.
    min_samples: training samples that each client has at least. ``dirichlet`` sees to it, see :func:`_top_up` (by
        default 10, or half the mean where that is less); the other forms are as they are and raise where it can't hold
        (by default 1).
    test_samples: a client's test samples are drawn without repetition from the test set, stratified by the client's
        own training label shares; where the test set has too few of a class for ``test_samples`` at these shares, the
        client gets as many as fit, so that the shares stay right. Labels that the test set lacks are left out.

    Raises UserError for a spec that is unknown or cannot be met. Specs with tasks are dealt by ``coterie.data.deal``,
    which knows the samples.
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
    counts, sets = scheme(np.bincount(y), clients, floor, deal_rng)
    poorest, least = int(counts.sum(axis=1).min()), min_samples or 1
    if poorest < least:
        raise UserError(
            f"partition {spec} leaves a client with {poorest} training samples, fewer than min_samples = {least}; use "
            "fewer clients, another partition or a smaller min_samples"
        )
    return Split(
        spec,
        int(seed),
        _deal(y, counts, deal_rng),
        _test(counts, present, y_test, test_samples, test_rng),
        sets.groups if sets else None,
        tuple(present[own] for own in sets.labels) if sets else None,
    )


def label_counts(split: Split, y: NDArray[Any], classes: int, part: str = "train") -> NDArray[np.int64]:
    """``(clients, classes) int64``: how many samples of which class each client has; part: "train" or "test"."""
    if part not in ("train", "test"):
        raise UserError(f"part is {part!r}; it must be 'train' or 'test'")
    lists = split.test if part == "test" else split.train
    return np.stack([np.bincount(y[indices], minlength=classes) for indices in lists]).astype(np.int64)


@dataclass(frozen=True, eq=False)
class _LabelSets:
    """groups: (clients,) the set of each client.  labels: the classes of each set, ascending."""

    groups: Counts
    labels: tuple[Counts, ...]


# A scheme turns (class sizes (K,), clients, least samples a client, rng) into counts (clients, K), and label sets.
Scheme = Callable[[Counts, int, int, np.random.Generator], tuple[Counts, _LabelSets | None]]


def parse(spec: str) -> Scheme:
    """The scheme that a spec names; raises UserError for one that names none. Knows nothing of the data yet."""
    if not isinstance(spec, str):
        raise UserError(f"partition is {spec!r}; it must be a text such as {next(iter(FORMS))}")
    kind, _, rest = spec.partition(":")
    span = r"([0-9]{1,9})-([0-9]{1,9})"
    if spec == "iid":
        return lambda sizes, clients, floor, rng: (_iid(sizes, clients, rng), None)
    if kind in ("dirichlet", "hsu"):
        concentration = _concentration(rest, spec)
        if kind == "hsu":
            return lambda sizes, clients, floor, rng: (_hsu(sizes, clients, concentration, rng), None)
        return lambda sizes, clients, floor, rng: (_dirichlet(sizes, clients, concentration, floor, rng), None)
    if kind == "shards" and re.fullmatch("[0-9]{1,9}", rest) and int(rest) > 0:
        return lambda sizes, clients, floor, rng: (_shards(sizes, clients, int(rest), rng), None)
    mixed = "(?:,iid=([^@]*)(?:@([0-9]{1,9}))?)?"
    if kind == "labelsets" and (match := re.fullmatch(f"([0-9]{{1,9}})(?::{span})?{mixed}", rest)) and int(match[1]):
        sets, bounds = int(match[1]), _span(match[2], match[3], spec) if match[2] else None
        rate, first = _rate("0" if match[4] is None else match[4], spec), int(match[5] or 0)
        return lambda sizes, clients, floor, rng: _label_sets(sizes, clients, sets, bounds, rate, first, rng)
    if kind == "labels" and (match := re.fullmatch(f"{span}|([0-9]{{1,9}})", rest)):
        lo, hi = _span(match[1] or match[3], match[2] or match[3], spec)
        return lambda sizes, clients, floor, rng: (_labels(sizes, clients, lo, hi, rng), None)
    if kind in kinds(TASK_FORMS):
        raise UserError(
            f"partition {spec!r} changes samples or labels, which are not given here: use coterie.data.deal"
        )
    raise UserError(
        f"partition {spec!r} is none of {', '.join(FORMS)} (BETA, ALPHA: positive numbers; RATE: 0 to 1; others: whole)"
    )


def _concentration(text: str, spec: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 1e-6 <= value <= 1e6:  # NaN fails too
        raise UserError(f"partition {spec!r}: {text!r} must be a number from 1e-6 (each its own) to 1e6 (all alike)")
    return value


def _span(lo: str, hi: str, spec: str) -> tuple[int, int]:
    if not 1 <= int(lo) <= int(hi):
        raise UserError(f"partition {spec!r}: {lo}-{hi} labels; both must be at least 1 and the first not the larger")
    return int(lo), int(hi)


def _rate(text: str, spec: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value <= 1:
        raise UserError(f"partition {spec!r}: iid={text} must be from 0 (label sets alone) to 1 (all labels alike)")
    return value


def whole(name: str, value: Any, least: int) -> None:
    """Raises UserError unless the value is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise UserError(f"{name} is {value!r}; it must be a whole number of at least {least}")


def _checked(y: NDArray[Any], name: str) -> NDArray[np.int64]:
    y = np.asarray(y)
    if y.ndim != 1 or y.dtype.kind not in "ui" or not len(y) or int(y.min()) < 0:
        raise UserError(f"{name} is {y.dtype} {y.shape}; it must be a list of labels 0, 1, 2, ... with at least one")
    return y.astype(np.int64)


def _tally(client: Counts, sizes: Counts, clients: int) -> Counts:
    """(clients, K) from the client of every sample, the samples in order of their label."""
    label = np.repeat(np.arange(len(sizes)), sizes)
    return np.bincount(client * len(sizes) + label, minlength=clients * len(sizes)).reshape(clients, len(sizes))


def _iid(sizes: Counts, clients: int, rng: np.random.Generator) -> Counts:
    owners = np.repeat(np.arange(clients), even_sizes(int(sizes.sum()), clients, rng))
    return _tally(rng.permutation(owners), sizes, clients)


def _shards(sizes: Counts, clients: int, per_client: int, rng: np.random.Generator) -> Counts:
    n, shards = int(sizes.sum()), clients * per_client
    if shards > n:
        raise UserError(
            f"partition shards:{per_client} cuts {shards:,} shards for {clients:,} clients, but there are only {n:,} "
            "training samples; use fewer shards or clients"
        )
    owner = rng.permutation(np.repeat(np.arange(clients), per_client))
    return _tally(owner[np.repeat(np.arange(shards), even_sizes(n, shards, rng))], sizes, clients)


def _hsu(sizes: Counts, clients: int, alpha: float, rng: np.random.Generator) -> Counts:
    """Equal sizes; where several clients want more of a class than is left, lots decide (see ``allot``)."""
    log_q = log_gamma(np.broadcast_to(alpha * sizes / sizes.sum(), (clients, len(sizes))), rng)
    return allot(even_sizes(int(sizes.sum()), clients, rng), log_q, sizes, rng)


def _dirichlet(sizes: Counts, clients: int, beta: float, floor: int, rng: np.random.Generator) -> Counts:
    log_p = log_gamma(np.full((len(sizes), clients), beta), rng)
    log_p -= np.logaddexp.reduce(log_p, axis=1, keepdims=True)
    counts = rounded(sizes, np.exp(log_p), rng).T
    return _top_up(counts, log_p.T + np.log(sizes), floor, rng)


def _top_up(counts: Counts, log_q: Floats, floor: int, rng: np.random.Generator) -> Counts:
    """Bring every client to ``floor`` samples by moving samples, and disturb the draw no further.

    A client that is short gets what it lacks with classes drawn from *its own* label proportions q_i (log_q: (clients,
    K), unnormalised; a client without a single sample has them too), so its label skew stays as drawn. The samples
    come from clients above the floor: what each may lose is chosen by lot among all its samples, and what of that goes
    by lot within the class, so no giver is preferred beyond how much it has to spare. No client's number matters
    either, so the mean over draws of every client's count of a class remains (class size) / clients.

    The usual ways do worse: drawing again until all are large enough conditions the draw towards even ones (and never
    ends for a small BETA); filling up with random samples makes small clients less skewed than they were drawn.
    Where the givers run out of a class, the rest is drawn from the client's other classes in proportion.
    """
    sizes = counts.sum(axis=1)
    lacking = np.maximum(floor - sizes, 0)
    if not lacking.any():
        return counts
    givers = np.flatnonzero(sizes > floor)
    spare = np.stack([rng.multivariate_hypergeometric(counts[i], sizes[i] - floor) for i in givers])
    given = allot(lacking, log_q, spare.sum(axis=0), rng)
    taken = [
        rng.multivariate_hypergeometric(column, total) for column, total in zip(spare.T, given.sum(axis=0), strict=True)
    ]
    counts = counts + given
    counts[givers] -= np.stack(taken, axis=1)
    return counts


def _label_sets(
    sizes: Counts,
    clients: int,
    sets: int,
    bounds: tuple[int, int] | None,
    rate: float,
    first: int,
    rng: np.random.Generator,
) -> tuple[Counts, _LabelSets]:
    """Clients from ``first`` on are spread over the sets as all clients are, and mix a share ``rate`` of their data."""
    classes = len(sizes)
    if sets > min(classes, clients):
        raise UserError(
            f"partition labelsets:{sets} needs at least {sets} labels and {sets} clients; there are {classes} labels "
            f"and {clients} clients"
        )
    if clients - first < sets:
        raise UserError(
            f"partition labelsets:{sets} with iid={rate:g}@{first}: clients {first} to {clients - 1} must be at least "
            f"{sets}, one of each set, to have all labels to draw from; FIRST can be {clients - sets} at most"
        )
    if bounds is None:
        widths = even_sizes(classes, sets, rng)
        members = even_sizes(clients, sets, rng)
    else:
        widths = _random_widths(classes, sets, *bounds, rng)
        members = proportional_sizes(clients, widths)
    late = proportional_sizes(clients - first, members)  # all of them where first is 0
    groups = np.concatenate([rng.permutation(np.repeat(np.arange(sets), part)) for part in (members - late, late)])
    labels = np.split(rng.permutation(classes), np.cumsum(widths)[:-1])
    counts = np.zeros((clients, classes), dtype=np.int64)
    for group, own in enumerate(labels):
        rows = np.flatnonzero(groups == group)
        counts[np.ix_(rows, own)] = _iid(sizes[own], len(rows), rng)
    if rate > 0:
        counts[first:] = _mixed(counts[first:], rate, rng)
    return counts, _LabelSets(groups, tuple(np.sort(own) for own in labels))


def _mixed(counts: Counts, rate: float, rng: np.random.Generator) -> Counts:
    """Every client throws a share ``rate`` of its samples, by lot, into one pot, and draws as many from it blindly.

    So sizes stay, and the pot has the labels in the proportions of all these clients' data. A share that is no whole
    number is rounded up or down at random.
    """
    exact = rate * counts.sum(axis=1)
    shares = exact.astype(np.int64) + (rng.random(len(counts)) < exact % 1)
    given = np.stack([rng.multivariate_hypergeometric(row, share) for row, share in zip(counts, shares, strict=True)])
    owners = rng.permutation(np.repeat(np.arange(len(counts)), shares))
    return counts - given + _tally(owners, given.sum(axis=0), len(counts))


def _random_widths(classes: int, sets: int, lo: int, hi: int, rng: np.random.Generator) -> Counts:
    if not sets * lo <= classes <= sets * hi:
        raise UserError(f"partition labelsets:{sets}:{lo}-{hi}: {sets} such sets cannot make up {classes} labels")
    widths = np.full(sets, lo)
    for _ in range(classes - sets * lo):
        widths[rng.choice(np.flatnonzero(widths < hi))] += 1
    return widths


def _labels(sizes: Counts, clients: int, lo: int, hi: int, rng: np.random.Generator) -> Counts:
    classes = len(sizes)
    if hi > classes:
        raise UserError(f"partition labels:{hi}: a client cannot hold {hi} labels, there are only {classes}")
    held = np.zeros((clients, classes), dtype=bool)
    for client, width in zip(rng.permutation(clients), rng.integers(lo, hi + 1, clients), strict=True):
        by_holders = np.lexsort((rng.random(classes), held.sum(axis=0)))  # fewest holders first, lots among equals
        held[client, by_holders[:width]] = True
    counts = np.zeros((clients, classes), dtype=np.int64)
    for label, size in enumerate(sizes):
        holders = np.flatnonzero(held[:, label])
        if len(holders):
            counts[holders, label] = even_sizes(int(size), len(holders), rng)
    return counts


def _deal(y: Counts, counts: Counts, rng: np.random.Generator) -> tuple[NDArray[np.int64], ...]:
    """Hand out the samples: which of a class's samples go where is by lot."""
    clients = len(counts)
    unused = np.bincount(y) - counts.sum(axis=0)
    table = np.vstack([counts, unused])  # the last row is nobody
    shuffled = rng.permutation(len(y))
    by_label = shuffled[np.argsort(y[shuffled], kind="stable")]
    owner = np.empty(len(y), dtype=np.int64)
    owner[by_label] = np.repeat(np.tile(np.arange(clients + 1), len(unused)), table.T.ravel())
    by_owner = np.argsort(owner, kind="stable").astype(np.int64)  # ascending within an owner
    return tuple(np.split(by_owner, np.cumsum(table.sum(axis=1))[:-1])[:clients])


def _test(
    counts: Counts, present: Counts, y_test: Counts, samples: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], ...]:
    pools = [np.flatnonzero(y_test == label).astype(np.int64) for label in present]
    stock = np.array([len(pool) for pool in pools])
    weights = counts * (stock > 0)
    blind = np.flatnonzero(weights.sum(axis=1) == 0)
    if len(blind):
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
            np.concatenate([rng.choice(pools[k], row[k], replace=False, shuffle=False) for k in np.flatnonzero(row)])
        )
        for row in wanted
    )
