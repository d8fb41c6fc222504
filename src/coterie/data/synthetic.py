"""Made-up samples for any number of clients, each made when asked for: ``--data synthetic:64x10`` (docs/scale.md).

A sample is one of its class's two centres (on average 5 apart from any other), by a fair coin, plus standard normal
noise. Centres, 10,000 test samples and as many reference samples follow from F and K alone; a client's samples from the
seed and its number. ``dirichlet`` is the limit for very many clients, with at least ``min_samples`` (by default 10, or
m/2 if that is less). ``permute`` and ``swap`` go with any law but ``labelsets``. Test samples have a client's own class
proportions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial

import numpy as np

from coterie.data.catalogue import SYNTHETIC
from coterie.data.dataset import Dataset, from_arrays
from coterie.data.partition import Split, drawn_test, pools_of, set_aside, whole
from coterie.data.schemes import even_sizes, log_gamma, parse, rounded
from coterie.data.tasks import Task, parts_of, tasks_of
from coterie.protocol.arrays import Doubles, Floats, Integers
from coterie.protocol.errors import UserError
from coterie.protocol.randomness import rng

MEAN_SAMPLES = 100
"""Training samples of a client, on average."""
TEST_SAMPLES = 200
"""The most of a client."""
HELD_CLIENTS = 4096
"""Clients whose data are kept once made."""
_WHOLE_SET = 10_000
_CENTRES, _APART = 2, 5.0
_MOST_NUMBERS = 1 << 26  # of the test set
_LAWS = ("iid", "hsu", "dirichlet", "labels", "shards", "labelsets")

Law = Callable[[np.random.Generator, int], Integers]
"""(classes,) samples of each class, from a client's random numbers and its number."""


def shape_of(name: str) -> tuple[int, int]:
    """Features and classes of ``synthetic:FxK``. Raises UserError for any other name."""
    found = re.fullmatch(r"synthetic:([1-9][0-9]{0,6})x([1-9][0-9]{0,4})", name)
    features, classes = (int(found[1]), int(found[2])) if found else (0, 0)
    if classes < 2 or features * _WHOLE_SET > _MOST_NUMBERS or 2 * classes > _WHOLE_SET:
        raise UserError(
            f"data {name!r}: write {SYNTHETIC}, for example synthetic:64x10, with 1 to {_MOST_NUMBERS // _WHOLE_SET:,} "
            f"features and 2 to {_WHOLE_SET // 2:,} classes"
        )
    return features, classes


@lru_cache(maxsize=4)
def synthetic(name: str) -> Dataset:
    """The test set, with reference samples as training samples; raises UserError."""
    _, classes = shape_of(name)
    labels = np.arange(_WHOLE_SET, dtype=np.int64) % classes
    train, test = (drawn(name, labels, rng(0, name, part)) for part in ("reference", "test"))
    found = from_arrays(name, train, labels, test, labels, classes=classes, kind="tabular", source="made up")
    return replace(found, source=f"made up: {_WHOLE_SET:,} test samples, and each client's own when it is asked")


@lru_cache(maxsize=4)
def _centres(name: str) -> Floats:
    features, classes = shape_of(name)
    normal = rng(0, name, "centres").standard_normal((classes, _CENTRES, features), dtype=np.float32)
    return normal * np.float32(_APART / np.sqrt(2 * features))


def drawn(name: str, labels: Integers, source: np.random.Generator) -> Floats:
    """(n, features) float32 of classes (n,), in stored units."""
    centres = _centres(name)
    chosen = centres[labels, source.integers(_CENTRES, size=len(labels))]
    return chosen + source.standard_normal(chosen.shape, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Drawn(Split):
    """The split of synthetic data, without lists of indices.  count: of the clients.  tasks: of the groups.  law: of a
    client's samples.  public: indices of reference samples.
    """

    count: int = 0
    tasks: tuple[Task, ...] = ()
    law: Law | None = None

    @property
    def clients(self) -> int:
        return self.count

    def task(self, client: int) -> Task:
        return self.tasks[0 if self.groups is None or len(self.tasks) == 1 else int(self.groups[client])]

    def counts(self, client: int) -> Integers:
        """(classes,) training samples, by the data set's names. Read-only."""
        assert self.law is not None
        return _counts(self.law, self.seed, client)

    @cached_property
    def _pools(self) -> tuple[Integers, ...]:
        dataset = self.tasks[0].dataset  # groups have other labels for the same samples
        return pools_of(dataset.y_test, np.arange(dataset.classes))

    def size(self, client: int) -> int:
        return int(self.counts(client).sum())

    def train_samples(self, client: int) -> tuple[Floats, Integers]:
        """Normalised samples (n, features) and labels (n,) of the client's task."""
        task, counts = self.task(client), self.counts(client)
        labels = np.repeat(np.arange(len(counts)), counts)
        x = drawn(task.dataset.name, labels, rng(self.seed, f"client/{client}", "samples"))
        zero, unit = task.dataset.zero_and_unit
        return (x - zero) / unit, labels if task.names is None else task.names[labels]

    def test_samples(self, client: int) -> Integers:
        """Indices into the test set, ascending."""
        source = rng(self.seed, f"client/{client}", "test samples")
        (found,) = drawn_test(self.counts(client)[None], self._pools, TEST_SAMPLES, source)
        return found


@lru_cache(HELD_CLIENTS)  # asked for a client's size, its samples and its test samples
def _counts(law: Law, seed: int, client: int) -> Integers:
    found = law(rng(seed, f"client/{client}", "classes"), client)
    found.setflags(write=False)
    return found


def deal_synthetic(
    spec: str,
    dataset: Dataset,
    clients: int,
    seed: int,
    min_samples: int | None = None,
    *,
    public: float = 0.0,
    samples: int | None = None,
) -> tuple[Drawn, tuple[Task, ...]]:
    """As ``tasks.deal``, for ``synthetic``. samples: of all clients, on average. Raises UserError."""
    whole("clients", clients, 1)
    whole("seed", seed, 0)
    kind, skew = parts_of(spec)
    if kind.startswith(("domains", "shift")) or skew.partition(":")[0] not in _LAWS:
        known = ", ".join(_LAWS)
        raise UserError(f"partition {spec} does not go with {dataset.name}: use one of {known}, permute, swap")
    mean = MEAN_SAMPLES if samples is None else samples / clients
    if mean < 1:
        raise UserError(f"samples={samples:,} are fewer than one for each of {clients:,} clients: take more samples")
    tasks = tasks_of(kind, dataset, clients, seed, None) if kind else (Task(dataset),)
    sets = labels = None
    groups: Integers | None = None
    many = len(tasks)
    if skew.startswith("labelsets"):
        sets = label_sets(skew, dataset.classes, clients, seed)
        many, labels = len(sets), tuple(map(np.sort, sets))
    if kind or sets:
        source = rng(seed, "partition", "groups")
        groups = source.permutation(np.repeat(np.arange(many), even_sizes(clients, many, source)))
    law = law_of(skew, dataset.classes, mean, min_samples, groups, sets)
    taken = set_aside(dataset.y_train, public, seed)
    split = Drawn(spec, int(seed), (), (), groups, labels, public=taken, count=clients, tasks=tasks, law=law)
    return split, tasks


def label_sets(skew: str, classes: int, clients: int, seed: int) -> tuple[Integers, ...]:
    """The classes of ``labelsets:K``, disjoint, nearly equal, by the seed; raises UserError."""
    found = re.fullmatch("labelsets:([1-9][0-9]{0,8})", skew)
    if found is None or int(found[1]) > min(classes, clients):
        raise UserError(
            f"partition {skew}: for synthetic data write labelsets:K, with at most as many sets as there are classes "
            f"({classes}) and clients ({clients:,})"
        )
    source = rng(seed, "partition", "label sets")
    widths = even_sizes(classes, int(found[1]), source)
    return tuple(np.split(source.permutation(classes), np.cumsum(widths)[:-1]))


def law_of(
    skew: str,
    classes: int,
    mean: float,
    min_samples: int | None = None,
    groups: Integers | None = None,
    sets: tuple[Integers, ...] | None = None,
) -> Law:
    """What a label skew makes of one client. groups: (clients,) into sets. Raises UserError."""
    parse(skew)  # which knows what is wrong with it
    kind, _, rest = skew.partition(":")
    many = round(mean)
    if kind == "dirichlet":
        least = max(1, min(10, int(mean / 2))) if min_samples is None else min_samples
        return partial(_gammas, classes, float(rest), mean, least)
    if many < (min_samples or 1):
        raise UserError(f"each client has {many} training samples, fewer than min_samples = {min_samples}")
    if kind == "iid":
        return lambda source, client: source.multinomial(many, np.full(classes, 1 / classes))
    if kind == "hsu":
        return partial(_proportions, np.full((1, classes), float(rest) / classes), many)
    if kind == "shards":
        return lambda source, client: _spread(classes, many, source.integers(classes, size=int(rest)), source)
    if kind == "labels":
        low, _, high = rest.partition("-")
        first, last = int(low), int(high or low)
        if last > classes:
            raise UserError(f"partition {skew}: a client cannot hold {last} labels, there are only {classes}")

        def some_labels(source: np.random.Generator, client: int) -> Integers:
            held = source.permutation(classes)[: source.integers(first, last + 1)]
            return _spread(classes, many, held, source)

        return some_labels
    assert sets is not None
    assert groups is not None
    owned, of = sets, groups

    def of_group(source: np.random.Generator, client: int) -> Integers:
        counts, own = np.zeros(classes, np.int64), owned[of[client]]
        counts[own] = source.multinomial(many, np.full(len(own), 1 / len(own)))
        return counts

    return of_group


def _spread(classes: int, many: int, held: Integers, source: np.random.Generator) -> Integers:
    counts = np.zeros(classes, np.int64)
    np.add.at(counts, held, even_sizes(many, len(held), source))
    return counts


def _proportions(weights: Doubles, many: int, source: np.random.Generator, client: int) -> Integers:
    log_q = log_gamma(weights, source)[0]
    q = np.exp(log_q - log_q.max())
    return source.multinomial(many, q / q.sum())


def _gammas(classes: int, beta: float, mean: float, least: int, source: np.random.Generator, client: int) -> Integers:
    log_g = log_gamma(np.full((1, classes), beta), source)
    wanted = mean / classes / beta * np.exp(log_g).sum()
    total = max(least, int(np.floor(wanted + source.random())))
    q = np.exp(log_g - log_g.max())
    counts: Integers = rounded(np.array([total]), q / q.sum(), source)[0]
    return counts
