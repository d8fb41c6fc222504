"""How far the attacks on PAFed get: what ``docs/security/pafed.json`` holds.

Federations of random directions give numbers that have closed forms; what takes training, runs with
digits. Where a mask or a cipher is what is attacked, both the real and the emulated one are.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

import coterie.method as fl
from benchmarks.security.compared import compared, summary
from benchmarks.security.late_classes import class_weights
from benchmarks.security.played import Played, federation
from benchmarks.security.theft import thieves
from coterie.crypto.ckks import keygen
from coterie.crypto.seal import ring
from coterie.devices.links import Delays
from coterie.privacy.attacks.key_in_sum import coefficients
from coterie.privacy.attacks.masks import class_of, count_accuracy, count_posterior, telling_accuracy, told_apart
from coterie.privacy.attacks.result import AttackResult, Expected, top_share
from coterie.privacy.audits import Recorded
from coterie.privacy.audits.pafed import COUNTED, by_signs, passive, recorded_rounds
from coterie.protocol.effects import Vector
from coterie.protocol.errors import UserError
from coterie.runs import RunConfig
from coterie.runs.recorded import record
from coterie.systems.pafed import SYSTEM
from coterie.systems.pafed.classification import MASK_BITS, by_helper, by_minimum
from coterie.systems.pafed.config import PAFedConfig
from coterie.systems.pafed.messages import HELPER, HUB, SERVICE, USER, Convert, Refresh, Train, Update
from coterie.transport.wire import Links

Row = dict[str, Any]
Doubles = NDArray[np.float64]

COSINES = (0.5, 0.2, 0.1, 0.05, 0.01, 0.001, 0.0001)
ITERATIONS = (3, 5, 7, 8, 10, 12, 15)
HIDING: tuple[Row, ...] = ({"dummies": 0}, {"dummies": 4}, {"dummies": 20}, {"signs": "hidden", "dummies": 16})
"""Settings that say what hides the signs, to be compared in trained runs; of 20 clients, all of them asked."""


def study(
    *,
    seeds: int = 3,
    clients: int = 20,
    rounds: int = 10,
    partition: str = "dirichlet:0.3",
    hiding: Sequence[Row] = HIDING,
) -> Row:
    """All measurements. clients, rounds, partition: of the runs with digits.  hiding: settings to be compared there.

    Of these runs there are four times as many seeds, for each of their rounds gives but one count.
    """
    sections = {
        "a mask of real numbers": real_mask(),
        "the mask of the ring": ring_mask(),
        "how many updates conflict": conflicts(seeds),
        "how many updates conflict, trained on digits": [
            trained_conflicts(4 * seeds, given, clients=clients, rounds=rounds, partition=partition) for given in hiding
        ],
        "how much they conflict": sizes(),
        "weight in the wrong class": wrong_class(),
        "collusion": collusion(),
        "trained on digits": trained(seeds, clients=clients, rounds=rounds, partition=partition),
        "one client, deviating": thieves(seeds),
    }
    rows = [row for section in sections.values() for row in section if "agrees" in row]
    return {
        "data": "digits, and federations of random directions",
        "clients": clients,
        "rounds": rounds,
        "partition": partition,
        "seeds": seeds,
        "closed_forms": {"compared": len(rows), "off": [row for row in rows if not row["agrees"]]},
        **sections,
    }


def real_mask(draws: int = 300) -> list[Row]:
    """Two models that differ by .1 in every weight, under masks uniform in +-bound; what bound would hide it.

    Of the largest model fewer are drawn: 1.66 million weights each.
    """
    rows, source = [], np.random.default_rng(0)
    for cell, (weights, bounds) in enumerate(
        ((20, (1.0, 10.0, 100.0)), (1000, (10.0, 100.0, 1e3)), (1_660_000, (1e3, 1e5, 1e7)))
    ):
        first = np.random.default_rng(cell).normal(0, 0.05, weights)
        second = first + 0.1
        for bound in bounds:
            n = draws if weights < 10_000 else 40
            truth = source.random(n) < 0.5
            right = [
                told_apart((first if one else second)[None] + source.uniform(-bound, bound, weights), *pair, bound)[0]
                for one in truth
                for pair in [(first, second)]
            ]
            found = telling_accuracy(np.array(right), truth)
            theory = expected_told_apart(first, second, bound)
            needs = needed_bound(weights, 0.1)
            rows.append({"weights": weights, "bound": bound, "needs": needs, **compared([found], [theory])})
    return rows


def ring_mask(rounds: int = 200) -> list[Row]:
    """Two models, all weights +1 or all -1, told apart under the mask that is used, by which is nearer."""
    rows = []
    for emulated in (True, False):
        settings: Row = {"clip": 50.0, "server_lr": 1.0, "server_decay": 0.0}  # so that a round ends where it is told
        signs = np.random.default_rng(1).choice([-1.0, 1.0], rounds)
        with played(2, 0, size=400, emulated=emulated, **settings) as run:
            for r, sign in enumerate([*signs, 1.0], 1):
                run.round(r, partial(_towards, sign))
            key: Any = run.party(HELPER).keys.own(SERVICE)
            masked = [key.public.from_bytes(refresh.cipher) for _, refresh in run.views[HELPER].messages(Refresh)]
        guess = [float(decoded(key, vector).mean() > 0) for vector in masked]
        found = telling_accuracy(np.array(guess), signs > 0)
        rows.append({"crypto": _crypto(emulated), **compared([found], [Expected(0.5, 0.5, 0.5)])})
    return rows


def decoded(key: Any, vector: Any) -> Doubles:
    """(d,) what the key's holder gets by decoding a masked vector as if there were no mask: weights and the mask's
    numbers. A mask that is small beside the weights gives them away.
    """
    if key.emulated:
        return np.asarray(vector.array / float(key.public.encrypt(np.ones(1)).array[0]))
    made = ring(key.parameters)
    return made.decoded(key.arrays._plain(vector.array), made.unit(vector.tally.form)).ravel()[: vector.length]


def _towards(weight: float, _: str, weights: fl.Vector) -> fl.Vector:
    return np.float32(weight) - weights


def conflicts(seeds: int, rounds: int = 60) -> list[Row]:
    """How many of the late updates conflict, guessed by the helper; each does with probability 1/2.

    by: signs alone, or with the classes' sums, which tell it whether none conflicts, or all.  dummies: none, the
    default, as many as clients are asked, 16.
    """
    rows = []
    early = 3
    for late, dummies in ((n, count) for n in (3, 8) for count in (0, 4, early + n, 16)):
        found: dict[str, list[AttackResult]] = {"signs": [], "signs and sums": []}
        for seed in range(seeds):
            with played(early, late, seed=1000 * late + 10 * dummies + seed, dummies=dummies) as run:
                for r in range(1, rounds + 2):
                    run.round(r)
                recorded = [one for one in recorded_rounds(run.views, 1) if one.late]
            (finding,) = by_signs(recorded, dummies)
            found["signs and sums"].append(pooled(finding.results))
            truth = [int((one.cosines() < 0).sum()) for one in recorded]
            shown = [int((one.shown < 0).sum()) for one in recorded if one.shown is not None]
            found["signs"].append(count_accuracy([count_posterior(n, late, dummies) for n in shown], truth))
        for by, results in found.items():
            theory = [expected_count(late, dummies, sums=by != "signs")] * seeds
            rows.append({"late": late, "dummies": dummies, "by": by, **compared(results, theory)})
    return rows


def pooled(results: Sequence[AttackResult]) -> AttackResult:
    """Results of single rounds as one."""
    value, chance = (fmean(x) for x in zip(*((one.value, one.chance) for one in results), strict=True))
    return replace(results[0], value=value, chance=chance, n=sum(one.n for one in results))


def sizes(rounds: int = 300) -> list[Row]:
    """One late update a round and no dummies: what the helper sees of how much it conflicts."""
    with played(3, 1, dummies=0) as run:
        for r in range(1, rounds + 2):
            run.round(r)
        recorded = [one for one in recorded_rounds(run.views, 1) if one.late and one.shown is not None]
    seen = np.array([one.shown[0] for one in recorded if one.shown is not None])
    cosines = np.array([one.cosines()[0] for one in recorded])
    found = size_correlation(seen, cosines)
    theory = expected_correlation(cosines, MASK_BITS)
    return [{"mask_bits": MASK_BITS, **compared([found], [theory])}]


def wrong_class(draws: int = 20, iterations: Sequence[int] = ITERATIONS) -> list[Row]:
    """The share of |weight| that lands in the wrong class, for cosines of one size and both signs.

    by: the helper's signs under encryption; or d iterations of Min(), with plain numbers and, as many as a mode's
    ciphers have levels for, under encryption.
    """
    rows: list[Row] = []
    for emulated in (False, True):
        with played(1, 1, emulated=emulated) as run:
            for cosine in COSINES:
                share = misrouted(*by_signs_under_encryption(run, np.tile([cosine, -cosine], draws)))
                rows.append({"by": "helper", "crypto": _crypto(emulated), "cosine": cosine, "share": share})
    key: Any = keygen("ckks-32768-deep", emulated=True, random_bytes=np.random.default_rng(0).bytes)
    for d in iterations:
        for cosine in COSINES:
            pair = np.array([cosine, -cosine])
            share = misrouted(pair, *class_weights(pair, d))
            rows.append({"by": f"Min, d={d}", "crypto": "none", "cosine": cosine, "share": share})
            if d <= 7:
                dots = [key.public.encrypt_scalar(c, level=20) for c in pair]
                weights = [np.array([key.decrypt(w)[0] for w in found]) for found in by_minimum(dots, 1, d)]
                share = misrouted(pair, *weights)
                rows.append({"by": f"Min, d={d}", "crypto": "emulated", "cosine": cosine, "share": share})
    return rows


def by_signs_under_encryption(run: Directed, cosines: Doubles) -> tuple[Doubles, Doubles, Doubles]:
    """The cosines, and the weights that the two servers give them (opened by the observer).

    A round has as many as the helper compares in it.
    """
    helper, source = run.party(HELPER), fl.Secrets(np.random.default_rng(0))
    key: Any = helper.keys.own(SERVICE)
    weights: list[Doubles] = []
    most = helper.late(1)
    for at in range(0, len(cosines), most):
        dots = [key.public.encrypt_scalar(c, level=2) for c in cosines[at : at + most]]
        steps = by_helper(run.party(HUB), helper.state.compared + 1, dots, 1, source, coins=False)
        asked = next(steps)
        asked.fold(HELPER, helper.compare(asked.requests[HELPER], HUB))
        try:
            steps.send(fl.Answers((HELPER,)))
        except StopIteration as done:
            weights.append(np.array([[key.decrypt(w)[0] for w in found] for found in done.value[:2]]))
    agreeing, conflicting = np.concatenate(weights, axis=1)
    return cosines, agreeing, conflicting


def misrouted(cosines: Doubles, agreeing: Doubles, conflicting: Doubles) -> float:
    """The share of |weight| in the class of the other sign."""
    wrong = np.abs(np.where(cosines > 0, conflicting, agreeing)).sum()
    return float(wrong / (np.abs(agreeing).sum() + np.abs(conflicting).sum()))


def collusion() -> list[Row]:
    """What two parties open together, and its largest error; the last rows take an aggregator that deviates."""
    rows = []
    for emulated in (True, False):
        with played(3, 0, emulated=emulated) as run:
            draws = [run.source.normal(size=run.size) for _ in run.clients]
            truth = {name: draw / np.linalg.norm(draw) for name, draw in zip(run.clients, draws, strict=True)}
            for r in (1, 2):
                run.round(r, partial(_told, truth))
            key = run.party(HELPER).keys.own(SERVICE)
            updates = {seen.src: update.cipher for seen, update in run.views[HUB].messages(Update, 2)}
            opened = {name: key.decrypt(key.public.from_bytes(cipher)) for name, cipher in updates.items()}
            own, model = run.party("client/0").keys.own(USER), 0.8 * np.mean(list(truth.values()), axis=0)
            (train,) = (message for _, message in run.views["client/0"].messages(Train, 2))
            got = own.decrypt(own.public.from_bytes(train.cipher))
            stolen = [_error(converted(run, updates[n], "client/2", r), truth[n]) for r, n in enumerate(updates, 3)]
            shown = None if emulated else key_read_off(run, "client/2", 9)
        for who, what, error in (
            ("aggregator with the helper", "every update", max(_error(opened[name], truth[name]) for name in truth)),
            ("aggregator with one client", "the model of a round that asks it", _error(got, model)),
            ("the same, deviating", "every update, each in the place of a round's model", max(stolen)),
        ):
            rows.append({"crypto": _crypto(emulated), "who": who, "what": what, "error": error})
        if shown is not None:
            what = "the helper's secret key, by a forged ciphertext in the place of a round's model"
            rows.append({"crypto": "real", "who": who, "what": what, "error": _error(shown, np.rint(shown))})
    return rows


def _told(directions: Mapping[str, Doubles], name: str, _: fl.Vector) -> fl.Vector:
    return directions[name].astype(np.float32)


def _error(found: Doubles, truth: Doubles) -> float:
    return float(np.abs(found - truth).max())


def converted(run: Directed, cipher: bytes, client: str, r: int) -> Doubles:
    """What an aggregator that asks the helper to convert an update, not the model, makes of it with a client's key.

    To the helper it is one uniform vector a round as any other, and what round it is the aggregator says.
    """
    vector, own = _converted(run, run.party(HUB).keys.public(SERVICE).from_bytes(cipher), client, r)
    return np.asarray(own.decrypt(vector))


def key_read_off(run: Directed, client: str, r: int) -> Doubles:
    """The same with a forged ciphertext (0, c): opened it is c s. Gives what should be the (N,) coefficients of s.

    Those of a secret key are -1, 0 and 1; c is so large that the flood doesn't blur them. Real keys only.
    """
    service: Any = run.party(HUB).keys.public(SERVICE)
    honest = service.encrypt(np.zeros(run.size), 0)
    scale = service.parameters.scale(honest.tally.form)
    polynomials = np.zeros_like(honest.array)
    polynomials[:, 1] = int(scale / 64)  # a constant is the same at every root
    vector, own = _converted(run, replace(honest, array=polynomials), client, r)
    degree = service.parameters.degree
    values = own.decrypt(replace(vector, tally=replace(vector.tally, length=degree)))  # all slots of the polynomial
    return 64 * coefficients(values, service.parameters)


def _converted(run: Directed, vector: Any, client: str, r: int) -> tuple[Any, Any]:
    """A vector as algorithm 5 puts it under a client's key, and that key."""
    service = run.party(HUB).keys.public(SERVICE)
    mask = service.mask(run.size, os.urandom)
    helper = run.party(HELPER)
    helper.refresh(Refresh(r, vector.at_level(0).blind(mask).to_bytes()), HUB)
    own = run.party(client).keys.own(USER)
    return own.public.from_bytes(helper.convert(Convert(r, client), HUB).cipher).unblind(mask, 1), own


def trained_conflicts(seeds: int, hiding: Row, **options: Any) -> Row:
    """How many of the late updates conflict, guessed by the helper in runs with digits that hide it by these settings.

    chance: the likeliest number if each conflicted with probability 1/2.  commonest: always the number that was the
    truth most often, which takes no look at anything.  with conflicts: of those rounds in which some conflict.
    """
    by_seed: list[float] = []
    found: list[AttackResult] = []
    truth: list[int] = []
    for seed in range(seeds):
        run = digits(seed, hiding, **options)
        results = {finding.what: finding.results for finding in passive(run)}.get(COUNTED, ())
        rounds = [one for one in recorded_rounds(run.views, run.settings.max_staleness) if one.shown is not None]
        truth += [int((one.cosines() < 0).sum()) for one in rounds]
        by_seed += [fmean(result.value for result in results)] if results else []
        found += results
    if not by_seed:
        raise fl.UserError("no late update was compared in these runs: more rounds, or more clients")
    some = [result.value for result, number in zip(found, truth, strict=True) if number]
    return {
        **hiding,
        "seeds": seeds,
        "measured": fmean(by_seed),
        "standard_error": stdev(by_seed) / len(by_seed) ** 0.5 if len(by_seed) > 1 else 0.0,
        "chance": fmean(result.chance for result in found),
        "commonest": max(Counter(truth).values()) / len(truth),
        "rounds": len(truth),
        "with conflicts": {"measured": fmean(some) if some else None, "rounds": len(some)},
    }


def digits(seed: int, settings: Row, **options: Any) -> Recorded:
    """A run with digits in which all clients are asked and three of ten are late."""
    given: Row = {"participation": 1.0, **settings}
    options = {"delta": 0.3, **options}
    return record(RunConfig("pafed", crypto="emulated", record=True, seed=seed, settings=given, **options))


def trained(seeds: int, **options: Any) -> list[Row]:
    """Audits of runs with digits: what both servers together read off updates, and what each does alone."""
    runs: list[Mapping[str, Sequence[AttackResult]]] = [
        {finding.what: finding.results for finding in passive(digits(seed, {}, **options))} for seed in range(seeds)
    ]
    return [{"who": name, **row} for name, row in summary(runs).items()]


def _crypto(emulated: bool) -> str:
    return "emulated" if emulated else "real"


def expected_count(late: int, dummies: int, *, sums: bool = True) -> Expected:
    """The closed form of `count_accuracy` for conflicts with probability 1/2. sums: whether they are seen."""
    mean, square = 0.0, 0.0
    for k, probable in enumerate(binom.pmf(np.arange(late + 1), late, 0.5)):
        for positive in range(dummies + 1):
            weight = float(probable * binom.pmf(positive, dummies, 0.5))
            posterior = count_posterior(k + positive, late, dummies, class_of(k, late) if sums else None)
            score = float(top_share(posterior)[k])
            mean, square = mean + weight * score, square + weight * score**2
    return Expected.of_moments(mean, square)


def size_correlation(seen: NDArray[Any], cosines: NDArray[Any]) -> AttackResult:
    """Correlation of log |seen| with log |cosine|, (n,) each. Chance: the mean of |r| of independent numbers."""
    with np.errstate(divide="ignore"):
        x, y = (np.log2(np.abs(np.asarray(values, np.float64))) for values in (seen, cosines))
    if x.shape != y.shape or len(x) < 3 or not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise UserError("give a masked number for each of at least three cosines, none of them 0")
    r = float(np.corrcoef(x, y)[0, 1])
    return AttackResult(
        "correlation of sizes", r, math.sqrt(2 / (math.pi * len(x))), 1.0, len(x), 1 / math.sqrt(len(x))
    )


def expected_correlation(cosines: NDArray[Any], mask_bits: int) -> Expected:
    """The closed form of `size_correlation` for these cosines under masks 2^u, u uniform in [0, mask_bits]."""
    spread = float(np.var(np.log2(np.abs(np.asarray(cosines, np.float64)))))
    r = math.sqrt(spread / (spread + mask_bits**2 / 12))
    return Expected(r, 1 - r * r, 1 - r * r)  # asymptotic standard deviation of a correlation, times sqrt(n)


def expected_told_apart(first: NDArray[Any], second: NDArray[Any], bound: float) -> Expected:
    """The closed form of `telling_accuracy` for masks uniform in [-bound, bound]: (1 + total variation) / 2."""
    apart = np.abs(np.asarray(first, np.float64) - np.asarray(second, np.float64)) / (2 * bound)
    with np.errstate(divide="ignore"):
        variation = -math.expm1(float(np.log1p(-np.minimum(apart, 1.0)).sum()))
    sd = math.sqrt(variation * (1 - variation)) / 2  # right for sure, or by half
    return Expected((1 + variation) / 2, sd, math.sqrt(1 - variation**2) / 2)


def needed_bound(weights: int, difference: float, variation: float = 2.0**-40) -> float:
    """The B that hides this many weights, each different by this much, up to this total variation."""
    per_weight = -math.expm1(math.log1p(-variation) / weights)
    return difference / (2 * per_weight)


Direction = Callable[[str, Vector], Vector]


@dataclass(frozen=True, eq=False)
class Directed(Played):
    """source: of directions that nobody tells."""

    source: np.random.Generator

    @property
    def size(self) -> int:
        """d."""
        return int(self.starts.shape[1])

    def round(self, r: int, direction: Direction | None = None) -> None:
        """One round. direction: where each client goes; by default each in a random direction of its own."""
        drawn = dict(zip(self.clients, self.source.normal(size=(len(self.clients), self.size)), strict=True))
        moved = direction or (lambda client, _: drawn[client].astype(np.float32))
        self.effects.trained = lambda client, weights: weights + moved(client, weights)
        super().round(r)


class Delayed(Links):
    """Everything is immediate but what an experiment holds back."""

    def __init__(self, delays: Delays) -> None:
        self.delays = delays

    def rounds(self, party: str, round: int) -> int:
        """By how many rounds, from the table."""
        return self.delays.of(round).get(party, 0)


@contextmanager
def played(
    early: int, late: int, *, size: int = 20, seed: int = 0, emulated: bool = True, **settings: Any
) -> Iterator[Directed]:
    """A federation after its set-up in which every round from the second on has so many in time and so many late."""
    clients, start = early + late, np.zeros((1, size), np.float32)
    config = PAFedConfig(**{"participation": 1.0, "local": "sgd", **settings})

    def links(names: Sequence[str]) -> Delayed:
        return Delayed(Delays(lambda r: names, late / clients, "uniform:1", seed))

    with federation(SYSTEM, config, clients, start, seed=seed, emulated=emulated, links=links) as run:
        yield Directed(**vars(run), source=np.random.default_rng(seed))
