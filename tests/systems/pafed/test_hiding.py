"""``signs=hidden``: the helper sees coins for signs, and sums among decoys that nothing tells from the real ones."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from pafed_parts import REALLY, paf, service_key
from scipy import stats

import coterie.method as fl
from benchmarks.security.pafed import played
from coterie.crypto.ckks import SANITISING_BITS
from coterie.privacy.attacks.masks import class_of, count_accuracy, count_among_decoys
from coterie.privacy.audits import pafed as audit
from coterie.privacy.views import held_key
from coterie.runs import RunConfig
from coterie.runs.recorded import recorded_run
from coterie.systems.pafed.classification import delta, drawn
from coterie.systems.pafed.messages import HELPER, LARGEST, SERVICE, Compare, Invert

# -- the decoys' law ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("patterns", [2, 3])
@pytest.mark.parametrize("decoys", [0, 3, 6])
@pytest.mark.parametrize("epsilon", [0.0, 0.7])
def test_delta_is_the_hockey_stick_divergence_of_all_views(decoys: int, epsilon: float, patterns: int) -> None:
    """Views are how many sets show each pattern; their probabilities by listing what every decoy may show."""
    views: dict[int, Counter[tuple[int, ...]]] = {real: Counter() for real in (0, 1)}
    for shown in itertools.product(range(patterns), repeat=decoys):
        for real, view in views.items():
            counts = Counter((*shown, real))
            view[tuple(counts[p] for p in range(patterns))] += 1
    total = patterns**decoys
    expected = sum(max(0.0, n - math.exp(epsilon) * views[1][view]) for view, n in views[0].items()) / total
    assert delta(decoys, epsilon, patterns) == pytest.approx(expected, abs=1e-12)


def test_more_decoys_hide_more_and_none_hides_nothing() -> None:
    assert delta(0, 5.0) == 1.0
    found = [delta(decoys, 1.0) for decoys in (0, 2, 4, 8, 16, 32, 64)]
    assert all(a > b for a, b in itertools.pairwise(found))
    assert found[-1] < 1e-3
    for wrong in (
        {"decoys": -1, "epsilon": 1.0},
        {"decoys": 1, "epsilon": -1.0},
        {"decoys": 1, "epsilon": 1.0, "patterns": 4},
    ):
        with pytest.raises(fl.UserError, match="decoys"):
            delta(**wrong)


@pytest.mark.parametrize("late", [1, 2, 5])
def test_patterns_and_numbers_are_uniform_and_so_is_who_conflicts(late: int) -> None:
    sets = drawn(late, 6000, fl.Secrets(np.random.default_rng(0)))
    patterns = Counter(class_of(len(conflicting), late) for conflicting in sets)
    assert len(patterns) == min(3, late + 1)
    assert stats.chisquare(list(patterns.values())).pvalue > 1e-6
    some = Counter(len(conflicting) for conflicting in sets if 0 < len(conflicting) < late)
    assert len(some) == max(0, late - 1)
    members = Counter(j for conflicting in sets if 0 < len(conflicting) < late for j in conflicting)
    for counts in (some, members):
        assert len(counts) < 2 or stats.chisquare(list(counts.values())).pvalue > 1e-6
    assert not drawn(late, 0, fl.Secrets(None))


# -- what the helper sees ----------------------------------------------------------------------------------------------


def opened(run: Any, kind: Any, each: int, *, own: bool = False) -> list[np.ndarray]:
    """By round, what the helper opens: (count, each)."""
    key: Any = service_key(run)
    rows = []
    for _, message in run.views[HELPER].messages(kind) if own else run.view(HELPER).messages(kind):
        parts = fl.unbundle(message.ciphers, each * message.count)
        values = [float(key.decrypt(key.public.from_bytes(part))[0]) for part in parts]
        rows.append(np.reshape(values, (-1, each)))
    return rows


def agreeing(run: Any, rounds: int) -> None:
    """Everybody moves in nearly one direction: no late update conflicts."""
    base = run.source.normal(size=run.size)
    for r in range(1, rounds + 1):
        noise = dict(zip(run.clients, run.source.normal(0, 0.3, (len(run.clients), run.size)), strict=True))
        run.round(r, lambda name, _, noise=noise: (base + noise[name]).astype(np.float32))


@pytest.mark.parametrize("emulated", REALLY)
def test_signs_are_fair_coins_where_none_conflicts_and_where_they_are_shown_they_are_not(emulated: bool) -> None:
    seen: dict[str, np.ndarray] = {}
    for signs in ("hidden", "shown"):
        with played(3, 4, emulated=emulated, signs=signs, dummies=0) as run:
            agreeing(run, 21 if emulated else 6)
            seen[signs] = np.concatenate(opened(run, Compare, 1, own=True)).ravel()
    assert (seen["shown"] > 0).all()
    n, negative = len(seen["hidden"]), int((seen["hidden"] < 0).sum())
    assert n >= 20
    assert stats.binomtest(negative, n).pvalue > 1e-6
    sizes = np.log2(np.abs(seen["hidden"]))
    assert sizes.max() - sizes.min() < 8 + 1  # as much as the masks spread, and the cosines


@pytest.mark.parametrize("emulated", REALLY)
def test_nothing_but_its_sums_tells_the_real_set_from_a_decoy(emulated: bool) -> None:
    """Header by header alike; an empty class is the same noise in both; |m|^2 is one number in all."""
    with played(3, 3, emulated=emulated, signs="hidden", dummies=9) as run:
        agreeing(run, 21 if emulated else 6)
        key: Any = service_key(run)
        for _, message in run.views[HELPER].messages(Invert):
            assert message.count == 10
            parts = [key.public.from_bytes(part) for part in fl.unbundle(message.ciphers, 40)]
            for place in range(4):
                assert len({(x.terms, x.length, x.blinded, x.tally.form) for x in parts[place::4]}) == 1
        rows = opened(run, Invert, 4, own=True)
    noise = key.parameters.flood_deviation(0)
    zeros = np.concatenate([row[np.abs(row[:, 1]) < 1 / 2048, 1] for row in rows])  # decoys' and the real one's
    assert 2.5 < len(zeros) / len(rows) < 6  # a third of nine and the real one
    if emulated:  # whose noise is a function of the values: equal ones have equal noise
        assert np.abs(zeros).max() < 6 * noise
    else:
        assert stats.kstest(zeros, "norm", (0, noise)).pvalue > 1e-6
    for row in rows:
        assert np.ptp(row[:, 2]) < 20 * noise
        assert (row[:, 0] > -20 * noise).all()
        assert (row[:, 1] < 20 * noise).all()


def test_a_real_empty_class_has_no_more_noise_than_a_decoy() -> None:
    """Without decoys the sums are the real ones: the noise of the scalars is all that stands in an empty class."""
    with played(3, 3, signs="hidden", dummies=0) as run:
        agreeing(run, 41)
        rows = np.concatenate(opened(run, Invert, 4, own=True))
        noise = service_key(run).parameters.flood_deviation(0)
    assert (rows[:, 0] > 0.05).all()
    assert stats.kstest(rows[:, 1], "norm", (0, noise)).pvalue > 1e-4
    assert rows[:, 1].std() == pytest.approx(noise, rel=0.25)


@pytest.mark.parametrize(
    ("late", "decoys"), [(3, 8), pytest.param(1, 8, marks=pytest.mark.long), pytest.param(3, 0, marks=pytest.mark.long)]
)
def test_counting_in_whole_federations_is_as_good_as_the_posterior_says(late: int, decoys: int) -> None:
    """Each late update conflicts with probability 1/2; with no decoys the sums show the pattern, as ever."""
    source, scores = np.random.default_rng(0), []
    for _ in range(500):
        k = int(source.binomial(late, 0.5))
        fakes = [class_of(len(s), late) for s in drawn(late, decoys, fl.Secrets(source))]
        scores.append(count_accuracy([count_among_decoys([*fakes, class_of(k, late)], late)], [k]).value)
    with played(2, late, signs="hidden", dummies=decoys) as run:
        for r in range(1, 32):
            run.round(r)
        recorded = [one for one in audit.recorded_rounds(run.views, 1) if one.late]
    (finding,) = audit.by_signs(recorded, decoys, hidden=True)
    found = [result.value for result in finding.results]
    assert len(found) == 30
    assert np.mean(found) == pytest.approx(np.mean(scores), abs=5 * np.std(scores) / 30**0.5)
    if decoys:
        assert np.mean(found) < (0.75 if late == 1 else 0.6)


@pytest.mark.long
def test_the_place_of_the_real_set_is_uniform() -> None:
    """The one with the sums of the cosines as they are."""
    places = []
    with played(3, 2, signs="hidden", dummies=3) as run:
        for r in range(1, 72):
            run.round(r)
        recorded = [one for one in audit.recorded_rounds(run.views, 1) if one.late]
    for one in recorded:
        c = one.cosines()
        assert one.sums is not None
        if (c < 0).sum() != 1:
            continue
        n1, n2 = c[c > 0].sum(), c[c < 0].sum()
        ratios = [(x / n1, y / n2) for x, y, *_ in one.sums]
        fits = [all(1 / 8 - 1e-2 < ratio < 1 + 1e-2 for ratio in pair) for pair in ratios]
        if sum(fits) == 1:
            places.append(fits.index(True))
    assert len(places) > 8
    assert stats.chisquare(np.bincount(places, minlength=4)).pvalue > 1e-4


# -- as a setting ------------------------------------------------------------------------------------------------------


def test_hidden_signs_cost_sets_of_scalars_and_no_more() -> None:
    """Of each decoy four scalars at level 0 go to the helper and three fresh ones come back."""
    size = {}
    for dummies in (0, 5):
        run = paf(seed=1, delay="uniform:1", signs="hidden", dummies=dummies)
        run.rounds(2)
        size[dummies] = run.transport.meter.message_bytes
    key = service_key(run).public
    at_zero = key.wire_bytes(1, key.fresh_scalar._replace(level=0))
    more = {kind.split()[-1]: size[5][kind] - size[0][kind] for kind in size[5]}
    assert {kind for kind, n in more.items() if n} == {"Invert", "Inverted"}
    assert more["Invert"] == pytest.approx(5 * 4 * at_zero, rel=0.01)
    assert more["Inverted"] == pytest.approx(5 * 3 * key.wire_bytes(1, key.fresh_scalar), rel=0.01)


def test_an_audit_counts_by_decoys() -> None:
    settings = {"participation": 1.0, "max_epochs": 1, "signs": "hidden", "dummies": 8}
    given: dict[str, Any] = {
        "delta": 0.4,
        "delay": "uniform:1",
        "clients": 8,
        "rounds": 5,
        "model": "linear",
        "crypto": "emulated",
        "record": True,
    }
    run, experiment = recorded_run(RunConfig("pafed", settings=settings, **given))
    experiment.close()
    found = {finding.name: finding for finding in audit.AUDIT.passive(run)}
    results = found["helper: number of conflicting late updates"].results
    assert len(results) == 4
    assert np.mean([result.value for result in results]) < 0.8


# -- signs=shown: what is opened of an empty class ---------------------------------------------------------------------


@pytest.mark.parametrize("keys", ["helper", pytest.param("threshold", marks=pytest.mark.long)])
@pytest.mark.parametrize("emulated", REALLY)
def test_the_noise_of_an_empty_class_stays_far_below_what_counts_as_a_class(emulated: bool, keys: str) -> None:
    """Taking a mask off must not raise the noise, or the noise would be turned and averaged like a conflict.

    The helper leaves out a class below 1/2048. Each cosine brings the noise of an opening, divided by its mask, and the
    opened sum its own.
    """
    committee: dict[str, Any] = {"keys": keys, "members": 6, "openers": 2} if keys == "threshold" else {}
    with played(3, 3, emulated=emulated, signs="shown", **committee) as run:
        agreeing(run, 12 if emulated else 6)
        key: Any = held_key(run.views[HELPER], SERVICE)
        rows = [fl.unbundle(message.ciphers, 4) for _, message in run.views[HELPER].messages(Invert)]
        empty = [key.public.from_bytes(row[1]) for row in rows]
        values = np.array([float(key.decrypt(cipher)[0]) for cipher in empty])
        level = empty[0].tally.form.level
        floods = 1 + (2 if committee else 0)
        deviation = math.sqrt((3 + 1) * floods) * key.parameters.flood_deviation(level, SANITISING_BITS)
    assert len(empty) >= 5
    assert np.abs(values).max() < 6 * deviation
    assert 6 * deviation < 1 / (8 * LARGEST)
