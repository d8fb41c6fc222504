"""How many samples of which class each client gets, by the spec of a partition.

Sources and details of ``FORMS``:

``dirichlet``  p_k ~ Dir(BETA, ..., BETA) over clients, for each class k (Yurochkin et al., ICML 2019; Li et al., ICDE
               2022)
``hsu``        q_i ~ Dir(ALPHA * prior) over classes, the prior being the training set's class shares (Hsu, Qi and
               Brown, 2019). With K equal classes its skew is that of ``dirichlet:ALPHA/K``
``shards``     McMahan et al., 2017
``labelsets``  an equal number of clients to each set, each set's samples dealt evenly to its clients; with ``LO-HI``
               sets of LO to HI labels, and clients in proportion to them (MingledPie's homogeneous and heterogeneous
               clusters). With ``iid`` a share RATE of each client's samples is drawn from all labels (its IID rate,
               appendix C.2); with FIRST only for clients from that number on (its newcomers, appendix C.3)
``labels``     (nearly) equally many clients hold every label and share its samples evenly ("#C = M" of Li et al.). A
               label that no client holds (clients * M < classes) stays unused
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from coterie.protocol.arrays import Doubles, Integers
from coterie.protocol.errors import UserError
from coterie.protocol.import_path import import_object, is_object

FORMS = {
    "dirichlet:BETA": "each class is spread over the clients by its own Dirichlet draw: unequal sizes, unequal labels",
    "hsu:ALPHA": "each client draws its label proportions from a Dirichlet distribution: equal sizes",
    "shards:N": "samples sorted by label, cut and dealt, N pieces a client",
    "labelsets:K[:LO-HI][,iid=RATE[@FIRST]]": "the labels dealt into K disjoint sets, each to a group of clients",
    "labels:M": "each client holds M labels",
    "labels:LO-HI": "each client holds LO to HI labels",
    "iid": "dealt evenly at random",
}
"""What a spec looks like, and how it deals the training set."""

TASK_FORMS = {
    "rotate:K[+SKEW]": "group g of K sees images turned by g 360/K degrees",
    "permute:K[+SKEW]": "each of K groups has the labels in an order of its own",
    "swap:K[+SKEW]": "group g of K exchanges labels 2g and 2g + 1",
    "shift:K[+SKEW]": "each of K groups sees samples with a gain and an offset of its own",
    "blur:K[+SKEW]": "group g of K sees images blurred by g/32 of their side",
    "colour:K[+SKEW]": "group g of K sees colour images with hues turned by g 360/K degrees",
    "domains:A,B,...[+SKEW]": "each group has a data set of its own; the first is that of --data",
}
"""For ``coterie.data.deal``, too. SKEW is any form above but labelsets, by default iid."""

OWN_FORMS = {"by:COLUMN": "one client for each value of a column of your own data; by:client for a folder of files"}
"""For data that name their clients."""


def kinds(forms: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(re.split(r"[:+\[]", form)[0] for form in forms))


class Division(NamedTuple):
    """counts: (clients, K).  For ``labelsets`` groups: (clients,), and sets: their classes, ascending."""

    counts: Integers
    groups: Integers | None = None
    sets: tuple[Integers, ...] = ()


Scheme = Callable[[Integers, int, int, Generator], Division]
"""From class sizes (K,), clients, and the least samples of a client."""


def parse(spec: str) -> Scheme:
    """A spec's scheme. Raises UserError for an unknown one."""
    if not isinstance(spec, str):
        raise UserError(f"partition is {spec!r}; it must be a text such as {next(iter(FORMS))}")
    kind, _, rest = spec.partition(":")
    if is_own(spec):
        return _own(spec)
    number, span = "([0-9]{1,9})", "([0-9]{1,9})-([0-9]{1,9})"
    if spec == "iid":
        return lambda sizes, clients, floor, rng: Division(_iid(sizes, clients, rng))
    if kind in ("dirichlet", "hsu"):
        concentration = _within(rest, spec, "", 1e-6, 1e6, "1e-6 (each its own) to 1e6 (all alike)")
        if kind == "hsu":
            return lambda sizes, clients, floor, rng: Division(_hsu(sizes, clients, concentration, rng))
        return lambda sizes, clients, floor, rng: Division(_dirichlet(sizes, clients, concentration, floor, rng))
    if kind == "shards" and re.fullmatch(number, rest) and int(rest):
        return lambda sizes, clients, floor, rng: Division(_shards(sizes, clients, int(rest), rng))
    mixed = f"(?:,iid=([^@]*)(?:@{number})?)?"
    if kind == "labelsets" and (match := re.fullmatch(f"{number}(?::{span})?{mixed}", rest)) and int(match[1]):
        count, bounds = int(match[1]), _span(match[2], match[3], spec) if match[2] else None
        mix, first = "0" if match[4] is None else match[4], int(match[5] or 0)
        rate = _within(mix, spec, "iid=", 0, 1, "0 (label sets alone) to 1 (all labels alike)")
        return lambda sizes, clients, floor, rng: _label_sets(sizes, clients, count, bounds, rate, first, rng)
    if kind == "labels" and (match := re.fullmatch(f"{span}|{number}", rest)):
        lo, hi = _span(match[1] or match[3], match[2] or match[3], spec)
        return lambda sizes, clients, floor, rng: Division(_labels(sizes, clients, lo, hi, rng))
    if kind in kinds(TASK_FORMS):
        raise UserError(
            f"partition {spec!r} changes samples or labels, which are not given here: use coterie.data.deal"
        )
    raise UserError(
        f"partition {spec!r} is none of {', '.join(FORMS)} (BETA, ALPHA: positive numbers; RATE: 0 to 1; others: whole)"
    )


def is_own(spec: str) -> bool:
    """Whether a spec is ``module:NAME`` of one's own."""
    known = kinds([*FORMS, *TASK_FORMS, *OWN_FORMS])
    return is_object(spec) and spec.partition(":")[0] not in known


def _own(spec: str) -> Scheme:
    """``function(sizes, clients, rng)``: counts (clients, K), or these and groups (clients,)."""
    function = import_object(spec, "partition")

    def scheme(sizes: Integers, clients: int, floor: int, rng: Generator) -> Division:
        made = function(sizes.copy(), clients, rng)
        counts, groups = made if isinstance(made, tuple) else (made, None)
        counts, wanted = np.asarray(counts), (clients, len(sizes))
        if counts.shape != wanted or counts.dtype.kind not in "iu" or counts.min(initial=0) < 0:
            raise UserError(
                f"partition {spec} gives {counts.dtype} of shape {counts.shape}; it must give whole numbers of samples "
                f"of shape {wanted}: of each client, of each class"
            )
        if (over := counts.sum(axis=0) - sizes).max() > 0:
            k = int(over.argmax())
            raise UserError(f"partition {spec} deals {over[k]} more samples of class {k} than there are ({sizes[k]})")
        if groups is not None:
            groups = np.asarray(groups)
            if groups.shape != (clients,) or groups.dtype.kind not in "iu" or groups.min(initial=0) < 0:
                raise UserError(f"partition {spec} gives groups {groups}; it must give a number for each client")
            groups = groups.astype(np.int64)
        return Division(counts.astype(np.int64), groups)

    return scheme


def _within(text: str, spec: str, name: str, least: float, most: float, words: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:  # NaN fails too
        raise UserError(f"partition {spec!r}: {name}{text or 'what follows the colon'} must be a number from {words}")
    return value


def _span(lo: str, hi: str, spec: str) -> tuple[int, int]:
    if not 1 <= int(lo) <= int(hi):
        raise UserError(f"partition {spec!r}: {lo}-{hi} labels; both must be at least 1 and the first not the larger")
    return int(lo), int(hi)


def _tally(client: Integers, sizes: Integers, clients: int) -> Integers:
    label = np.repeat(np.arange(len(sizes)), sizes)
    return np.bincount(client * len(sizes) + label, minlength=clients * len(sizes)).reshape(clients, len(sizes))


def _iid(sizes: Integers, clients: int, rng: Generator) -> Integers:
    owners = np.repeat(np.arange(clients), even_sizes(int(sizes.sum()), clients, rng))
    return _tally(rng.permutation(owners), sizes, clients)


def _shards(sizes: Integers, clients: int, per_client: int, rng: Generator) -> Integers:
    n, shards = int(sizes.sum()), clients * per_client
    if shards > n:
        raise UserError(
            f"partition shards:{per_client} cuts {shards:,} shards for {clients:,} clients, but there are only {n:,} "
            "training samples; use fewer shards or clients"
        )
    owner = rng.permutation(np.repeat(np.arange(clients), per_client))
    return _tally(owner[np.repeat(np.arange(shards), even_sizes(n, shards, rng))], sizes, clients)


def _hsu(sizes: Integers, clients: int, alpha: float, rng: Generator) -> Integers:
    """Equal sizes; where a class runs out, lots decide."""
    log_q = log_gamma(np.broadcast_to(alpha * sizes / sizes.sum(), (clients, len(sizes))), rng)
    return allot(even_sizes(int(sizes.sum()), clients, rng), log_q, sizes, rng)


def _dirichlet(sizes: Integers, clients: int, beta: float, floor: int, rng: Generator) -> Integers:
    log_p = log_gamma(np.full((len(sizes), clients), beta), rng)
    log_p -= np.logaddexp.reduce(log_p, axis=1, keepdims=True)
    counts = rounded(sizes, np.exp(log_p), rng).T
    return _top_up(counts, log_p.T + np.log(sizes), floor, rng)


def _top_up(counts: Integers, log_q: Doubles, floor: int, rng: Generator) -> Integers:
    """Move samples until every client has ``floor``.  log_q: (clients, K), label proportions, unnormalised.

    Clients that are short get classes by their proportions, from lots of those above: the skew stays, and a class's
    mean count.
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
    sizes: Integers, clients: int, sets: int, bounds: tuple[int, int] | None, rate: float, first: int, rng: Generator
) -> Division:
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
    return Division(counts, groups, tuple(np.sort(own) for own in labels))


def _mixed(counts: Integers, rate: float, rng: Generator) -> Integers:
    """Every client puts a share ``rate`` of its samples into one pot, by lot, and draws as many."""
    exact = rate * counts.sum(axis=1)
    shares = exact.astype(np.int64) + (rng.random(len(counts)) < exact % 1)
    given = np.stack([rng.multivariate_hypergeometric(row, share) for row, share in zip(counts, shares, strict=True)])
    owners = rng.permutation(np.repeat(np.arange(len(counts)), shares))
    return counts - given + _tally(owners, given.sum(axis=0), len(counts))


def _random_widths(classes: int, sets: int, lo: int, hi: int, rng: Generator) -> Integers:
    if not sets * lo <= classes <= sets * hi:
        raise UserError(f"partition labelsets:{sets}:{lo}-{hi}: {sets} such sets cannot make up {classes} labels")
    widths = np.full(sets, lo)
    for _ in range(classes - sets * lo):
        widths[rng.choice(np.flatnonzero(widths < hi))] += 1
    return widths


def _labels(sizes: Integers, clients: int, lo: int, hi: int, rng: Generator) -> Integers:
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


def even_sizes(total: int, parts: int, rng: Generator) -> Integers:
    """``(parts,)`` sizes that sum to ``total`` and differ by at most one, by lot."""
    base, odd = divmod(total, parts)
    sizes = np.full(parts, base, dtype=np.int64)
    sizes[rng.permutation(parts)[:odd]] += 1
    return sizes


def proportional_sizes(total: int, weights: Integers) -> Integers:
    """``(parts,)`` sizes >= 1 that sum to ``total >= parts``, nearest to ``weights``' shares."""
    quota = total * weights / weights.sum()
    sizes: Integers = np.maximum(np.floor(quota), 1).astype(np.int64)
    while missing := total - int(sizes.sum()):
        step = 1 if missing > 0 else -1
        error = np.where((step > 0) | (sizes > 1), step * (quota - sizes), -np.inf)
        sizes[error.argmax()] += step
    return sizes


def log_gamma(shape: Doubles, rng: Generator) -> Doubles:
    """Logarithms of independent Gamma(shape, 1) draws; rows normalised to sum to 1 are Dirichlet draws. Against
    underflow: Gamma(a) = Gamma(a + 1) U^(1/a).
    """
    return np.log(rng.standard_gamma(shape + 1)) + np.log1p(-rng.random(shape.shape)) / shape


def rounded(totals: Integers, shares: Doubles, rng: Generator) -> Integers:
    """Whole numbers ``(rows, parts)`` with row sums ``totals`` and means ``totals * shares``, each its mean rounded up
    or down, by systematic sampling: one random offset a row.
    """
    edges = np.cumsum(shares, axis=1)
    edges = totals[:, None] * (edges / edges[:, -1:]) + rng.random((len(shares), 1))
    whole = np.minimum(np.floor(edges).astype(np.int64), totals[:, None])
    whole[:, -1] = totals
    return np.diff(whole, axis=1, prepend=0)


def allot(want: Integers, log_weights: Doubles, supply: Integers, rng: Generator) -> Integers:
    """Give every row ``want[i]`` units, of kinds drawn by its weights, from a limited supply of each: (rows, kinds)
    counts.

    want: (rows,).  log_weights: (rows, kinds), unnormalised.  supply: (kinds,), in all at least ``want.sum()``. If a
    kind is short, lots among all that asked decide, and losers draw again.
    """
    counts = np.zeros(log_weights.shape, dtype=np.int64)
    want, supply = want.copy(), supply.copy()
    while want.any():
        log_q = np.where(supply > 0, log_weights, -np.inf)
        q = np.exp(log_q - log_q.max(axis=1, keepdims=True))
        asked = rng.multinomial(want, q / q.sum(axis=1, keepdims=True))
        for kind in np.flatnonzero(asked.sum(axis=0) > supply):
            asked[:, kind] = rng.multivariate_hypergeometric(asked[:, kind], supply[kind])
        counts += asked
        supply -= asked.sum(axis=0)
        want -= asked.sum(axis=1)
    return counts
