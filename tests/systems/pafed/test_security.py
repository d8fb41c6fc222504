"""What the parties of PAFed find out, alone and together, beside closed forms; and that the attacks can succeed.

The documentation's numbers are made by ``benchmarks.security``; here are fast versions of the same measurements,
the attacks' own oracles, and that what scores them is the truth.
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matrix import few
from pafed_parts import REALLY, TARGETS, model, opened, paf, service_key, taken

from benchmarks.security import pafed as study
from benchmarks.security.__main__ import main
from benchmarks.security.compared import compared
from benchmarks.security.late_classes import class_weights
from benchmarks.security.pafed import (
    expected_correlation,
    expected_count,
    expected_told_apart,
    needed_bound,
    played,
    size_correlation,
)
from coterie.privacy.attacks.masks import class_of, count_accuracy, count_posterior, telling_accuracy, told_apart
from coterie.privacy.audits import pafed as audit
from coterie.protocol.errors import PeerError, UserError
from coterie.runs import RunConfig
from coterie.runs.recorded import recorded_run
from coterie.systems.pafed.messages import HELPER, HUB, SERVICE, Refresh, Train, Update
from coterie.transport.transcript import View

DOCS = Path(__file__).parents[3] / "docs" / "security" / "pafed.json"


# -- a mask of real numbers, as the paper's can be read ----------------------------------------------------------------


def test_one_weight_under_a_real_mask_is_told_apart_by_delta_over_twice_the_bound() -> None:
    """TV = delta / 2B in one coordinate: by counting the grid that both masks can reach."""
    for delta, bound in ((0.1, 1.0), (0.5, 1.0), (1.0, 0.6), (3.0, 1.0)):
        grid = np.linspace(-5, 5, 200_001)
        densities = [(np.abs(grid - w) <= bound) / (2 * bound) for w in (0.0, delta)]
        variation = 0.5 * np.abs(densities[0] - densities[1]).sum() * (grid[1] - grid[0])
        theory = expected_told_apart(np.zeros(1), np.full(1, delta), bound).accuracy
        assert theory == pytest.approx((1 + variation) / 2, abs=1e-4)
        assert theory == pytest.approx((1 + min(1.0, delta / (2 * bound))) / 2)


@pytest.mark.parametrize(("weights", "bound"), [(1, 0.5), (20, 1.0), (20, 10.0), (500, 20.0), (500, 100.0)])
def test_the_distinguisher_is_as_good_as_the_total_variation(weights: int, bound: float) -> None:
    source = np.random.default_rng(weights)
    first = source.normal(0, 0.1, weights)
    second = first + source.choice([-0.1, 0.1], weights)
    truth = source.random(400) < 0.5
    masked = np.where(truth[:, None], first, second) + source.uniform(-bound, bound, (400, weights))
    found = telling_accuracy(told_apart(masked, first, second, bound), truth)
    assert compared([found], [expected_told_apart(first, second, bound)])["agrees"]
    assert found.value > 0.5


def test_to_hide_a_model_a_real_mask_must_be_so_large_that_no_precision_is_left() -> None:
    """1.66 million weights that differ by .1, up to 2^-40: B near 10^17, 57 bits more than a weight."""
    bound = needed_bound(1_660_000, 0.1)
    assert bound == pytest.approx(0.1 * 1_660_000 / (2 * 2.0**-40), rel=1e-6)
    assert 0.9e17 < bound < 1e17
    scale = service_key(paf(TARGETS[:2])).public.parameters.scale_bits
    assert math.log2(bound) + scale > 50 + 36  # the plaintext's whole room at level 1 and more
    advantage = 2 * expected_told_apart(np.zeros(1000), np.full(1000, 0.1), needed_bound(1000, 0.1)).accuracy - 1
    assert advantage == pytest.approx(2.0**-40, rel=1e-3)


def test_a_model_that_neither_fits_is_no_evidence() -> None:
    assert told_apart(np.full((1, 3), 99.0), np.zeros(3), np.ones(3), 2.0).tolist() == [0.5]
    assert telling_accuracy(np.full(4, 0.5), np.array([True, False, True, True])).value == 0.5


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: count_posterior(9, 3, 4), "impossible here"),
        (lambda: size_correlation(np.ones(2), np.ones(2)), "at least three"),
        (lambda: size_correlation(np.zeros(4), np.ones(4)), "none of them 0"),
    ],
)
def test_mistakes_are_told(call: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        call()


# -- the mask that is used ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("emulated", REALLY)
def test_the_uniform_mask_hides_which_of_two_models_is_under_it_and_a_small_one_would_not(emulated: bool) -> None:
    """All weights +1 or all -1. The same attack on masks as large as weights are never fails."""
    run = paf(TARGETS[:2], emulated=emulated)
    key, source = service_key(run), np.random.default_rng(1)
    truth, uniform, small = source.random(200) < 0.5, [], []
    for sign in truth:
        vector = key.public.encrypt(np.full(50, 1.0 if sign else -1.0), 0)
        mask = key.public.mask(50, source.bytes)
        uniform.append(study.decoded(key, vector.blind(mask)).mean() > 0)
        small.append(study.decoded(key, vector.blind(narrow(key, mask, source))).mean() > 0)
    assert abs(telling_accuracy(np.array(uniform, float), truth).value - 0.5) < 5 * 0.5 / 200**0.5
    assert telling_accuracy(np.array(small, float), truth).value == 1.0


def narrow(key: Any, mask: Any, source: np.random.Generator) -> Any:
    """A mask of real numbers within about +-1: of the same form, but not uniform over the ring."""
    if key.emulated:
        return replace(mask, numbers=mask.numbers >> np.int64(26))
    numbers = source.integers(-(2**31), 2**31, (1, key.parameters.degree))
    return replace(mask, numbers=key.public.arrays.ring.transformed(numbers, 0))


# -- what the helper learns of late updates ----------------------------------------------------------------------------


def by_listing(negative: int, late: int, dummies: int) -> np.ndarray:
    """All signs of all late updates and dummies that have so many negative ones."""
    counts = np.zeros(late + 1)
    for signs in itertools.product((0, 1), repeat=late + dummies):
        if sum(signs) == negative:
            counts[sum(signs[:late])] += 1
    return counts / counts.sum()


@pytest.mark.parametrize(("late", "dummies"), [(1, 0), (3, 0), (3, 4), (5, 3)])
def test_the_posterior_of_the_number_is_that_of_all_signs(late: int, dummies: int) -> None:
    for negative in range(late + dummies + 1):
        expected = by_listing(negative, late, dummies)
        assert count_posterior(negative, late, dummies) == pytest.approx(expected)
        for k in range(late + 1):
            seen = np.array([class_of(j, late) == class_of(k, late) for j in range(late + 1)]) * expected
            if seen.sum():
                posterior = count_posterior(negative, late, dummies, class_of(k, late))
                assert posterior == pytest.approx(seen / seen.sum())


@pytest.mark.parametrize(
    ("late", "dummies", "sums", "theory"),
    [(3, 0, True, 1.0), (3, 4, False, 0.547), (3, 4, True, 0.766), (8, 16, True, 0.339)],
)
def test_the_closed_form_of_counting_is_that_of_many_rounds(late: int, dummies: int, sums: bool, theory: float) -> None:
    source, posteriors, truth = np.random.default_rng(0), [], []
    for _ in range(600):
        k = int(source.binomial(late, 0.5))
        negative = k + int(source.binomial(dummies, 0.5))
        posteriors.append(count_posterior(negative, late, dummies, class_of(k, late) if sums else None))
        truth.append(k)
    expected = expected_count(late, dummies, sums=sums)
    assert expected.accuracy == pytest.approx(theory, abs=5e-4)
    assert compared([count_accuracy(posteriors, truth)], [expected])["agrees"]


def test_dummies_blur_the_number_and_no_number_of_them_hides_that_nobody_conflicts() -> None:
    """The sums of both classes are inverted: one that has nobody in it shows, whatever the dummies say."""
    assert [round(expected_count(5, d).accuracy, 2) for d in (0, 4, 16)] == [1.0, 0.55, 0.45]
    assert expected_count(1, 300).accuracy == pytest.approx(1.0)
    assert expected_count(1, 300, sums=False).accuracy < 0.55
    assert expected_count(2, 300).accuracy == pytest.approx(1.0)  # none, one, or both: always told


@pytest.mark.parametrize(
    ("late", "dummies"), [(3, 4), *(pytest.param(*one, marks=pytest.mark.long) for one in ((3, 0), (4, 16)))]
)
def test_counting_in_whole_federations_agrees_with_its_closed_form(late: int, dummies: int) -> None:
    with played(2, late, dummies=dummies) as run:
        for r in range(1, 32):
            run.round(r)
        recorded = [one for one in audit.recorded_rounds(run.views, 1) if one.late]
    assert [len(one.late) for one in recorded] == [late] * 30
    (finding,) = audit.by_signs(recorded, dummies)
    row = compared([study.pooled(finding.results)], [expected_count(late, dummies)])
    assert row["agrees"]
    assert row["clients"] == 30
    if not dummies:
        assert row["measured"] == 1.0


@pytest.mark.long
def test_a_cosines_size_is_blurred_and_not_hidden() -> None:
    """log |x| = log |c| - u: a correlation of about a half."""
    (row,) = study.sizes(100)
    assert row["agrees"]
    assert 0.4 < row["closed_form"] < 0.7
    source = np.random.default_rng(0)
    cosines = source.normal(size=4000)
    seen = cosines * 2.0 ** -(8 * source.random(4000))
    assert compared([size_correlation(seen, cosines)], [expected_correlation(cosines, 8)])["agrees"]
    assert abs(size_correlation(source.permutation(seen), cosines).value) < 0.06


# -- the wrong class ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("emulated", REALLY)
def test_the_helpers_signs_put_next_to_no_weight_into_the_wrong_class(emulated: bool) -> None:
    """But for the noise: a share of 3e-5 / |cos| on average, which varies by a quarter of it."""
    with played(1, 1, emulated=emulated) as run:
        for cosine in (0.5, 0.05, 0.01, 0.001):
            cosines = np.tile([cosine, -cosine], 20)
            _, agreeing, conflicting = found = study.by_signs_under_encryption(run, cosines)
            assert study.misrouted(*found) < 1e-4 / cosine
            assert np.abs(agreeing + conflicting - cosines).max() < 1e-5  # eq. (13) leaves nothing out


@pytest.mark.long
def test_too_few_iterations_of_min_put_a_third_into_the_wrong_class_under_encryption_as_with_plain_numbers() -> None:
    found = {(row["by"], row["crypto"], row["cosine"]): row["share"] for row in study.wrong_class(5, iterations=(3, 7))}
    for d in (3, 7):
        for cosine in (0.5, 0.1, 0.05):
            plain = found[f"Min, d={d}", "none", cosine]
            pair = np.array([cosine, -cosine])
            assert plain == study.misrouted(pair, *class_weights(pair, d))
            assert found[f"Min, d={d}", "emulated", cosine] == pytest.approx(plain, abs=1e-3)
    assert found["Min, d=7", "none", 0.05] > 0.39
    assert found["helper", "real", 0.05] < 1e-2


# -- collusion ---------------------------------------------------------------------------------------------------------


def test_both_servers_together_open_every_update_and_the_model() -> None:
    """The paper's assumption, from the other side: the helper's key, from its own view, on the aggregator's."""
    run = paf(TARGETS[::2], emulated=False, delta=0.0, local="sgd")
    start = model(run)
    key = audit.held_key(run.view(HELPER), SERVICE)
    _, updates = taken(run, 1)
    for name, update in updates:
        unit = run.transport.effects.targets[name] - start
        found = key.decrypt(key.public.from_bytes(update.cipher))
        assert np.abs(found - unit / np.linalg.norm(unit)).max() < 1e-5
    assert np.abs(key.decrypt(key.public.from_bytes(run.hub.state.model)) - model(run)).max() == 0


def test_the_aggregator_with_one_client_has_every_model_that_client_is_sent_and_no_update() -> None:
    run = paf(TARGETS[::2], emulated=False, delta=0.0)
    run.round(1)
    before = model(run)
    run.round(2)
    own = run.party("client/0").keys.own("user")
    ((_, train),) = run.view("client/0").messages(Train, 2)
    assert np.abs(own.decrypt(own.public.from_bytes(train.cipher)) - before).max() < 2e-4
    for _, update in run.view(HUB).messages(Update):
        with pytest.raises(Exception, match="under key"):
            own.decrypt(own.public.from_bytes(update.cipher))


@pytest.mark.parametrize("emulated", REALLY)
def test_an_aggregator_that_deviates_has_an_update_converted_instead_of_the_model(emulated: bool) -> None:
    """A limit of algorithm 5: the helper can't know what is under a perfect mask, nor what round it is."""
    run = paf(TARGETS[::2], emulated=emulated, delta=0.0)
    run.rounds(2)
    for r, (_, update) in enumerate(run.view(HUB).messages(Update, 2), 3):
        stolen = study.converted(as_played(run), update.cipher, "client/2", r)
        assert np.abs(stolen - opened(run, update)).max() < 2e-4
    with pytest.raises(PeerError, match=f"round {r} after one of round {r}"):
        study.converted(as_played(run), update.cipher, "client/2", r)


def test_an_aggregator_that_deviates_reads_the_helper_s_key_off_a_forged_ciphertext() -> None:
    """A limit of every scheme that opens chosen ciphertexts: masks and flooding are for honest ones."""
    run = paf(TARGETS[::2], emulated=False, delta=0.0)
    run.rounds(2)
    found = study.key_read_off(as_played(run), "client/2", 3)
    assert np.abs(found - np.rint(found)).max() < 0.01
    assert set(np.rint(found)) == {-1, 0, 1}
    np.testing.assert_array_equal(np.rint(found), np.rint(study.key_read_off(as_played(run), "client/1", 4)))


def as_played(run: Any) -> Any:
    class Seen:
        size = TARGETS.shape[1]
        party = staticmethod(run.party)

    return Seen()


# -- the audit ---------------------------------------------------------------------------------------------------------


def test_rounds_are_read_off_the_views_as_the_aggregator_used_them() -> None:
    run = paf(seed=1, delay="uniform:1-3", max_staleness=2)
    truth = []
    for r in range(1, 8):
        notes, updates = taken(run, r)
        kept = [(name, u) for name, u in updates if r - u.round <= 2]
        truth.append((notes, kept, r))
    found = audit.recorded_rounds(run.transport.transcript.views, 2)
    assert [one.number for one in found] == list(range(1, 8))
    for one, (notes, kept, r) in zip(found, truth, strict=True):
        assert len(one.early) == notes["staleness"][0]
        assert len(one.late) == sum(notes["staleness"][1:])
        assert list(one.early) == [name for name, u in kept if u.round == r]
        for values, (_, update) in zip(one.late, [entry for entry in kept if entry[1].round < r], strict=True):
            assert (values == opened(run, update)).all()
        if one.late:
            assert one.shown is not None
            assert len(one.shown) == len(one.late) + 4


@pytest.mark.parametrize(
    ("mode", "crypto"),
    few([("paper", "emulated"), ("literal", "emulated"), ("paper", "real")], [("paper", "emulated")]),
)
def test_an_audit_of_a_run_on_digits(mode: str, crypto: str) -> None:
    """Alone the servers learn how many conflict, at most; together they read label shares off updates.

    As printed the helper also tells each round's model from the one before, as its mask is one of real numbers.
    """
    settings: dict[str, Any] = {"max_epochs": 2, "batch_size": 10}
    settings |= {"participation": 1.0, **({"mask_bound": 1.0} if mode == "literal" else {})}
    clients = 10 if crypto == "emulated" else 5
    given: dict[str, Any] = {"mode": mode, "crypto": crypto, "clients": clients, "rounds": 4, "model": "linear"}
    given |= {"delta": 0.4, "delay": "uniform:1"}
    config = RunConfig("pafed", record=True, partition="dirichlet:0.3", settings=settings, **given)
    run, experiment = recorded_run(config)
    experiment.close()
    found = {finding.name: finding for finding in audit.AUDIT.passive(run)}
    together = found["aggregator with the helper: label shares"].results
    assert together[0].value > 0.5
    mask = found["helper: the model under its mask"].results
    if mode == "literal":
        assert [(result.value, result.n) for result in mask] == [(1.0, 2)]
    else:
        assert all(abs(result.value - result.chance) < 8 * result.chance_sd for result in mask)
    assert found["aggregator with one client: global model"].row()["value"] < 1e-3
    assert ("helper: number of conflicting late updates" in found) == (mode == "paper")
    assert all(finding.name.split(":")[0] != "aggregator" for finding in found.values())


def test_views_without_what_an_audit_needs_are_refused() -> None:
    with pytest.raises(UserError, match="holds no keys: record from the set-up on"):
        audit.held_key(View(HELPER, HELPER), SERVICE)
    run = study.digits(0, {"max_epochs": 1}, clients=2, rounds=1, model="linear")
    with pytest.raises(UserError, match="holds no updates"):
        audit.passive(replace(run, views={**run.views, HUB: View(HUB, HUB)}))


def test_what_is_far_from_uniform_is_told() -> None:
    """The finding about the mask can fail: an opened vector with a mask of zeros is seen at once."""
    run = paf(TARGETS[:2], delta=0.0)
    key = service_key(run)
    mask = key.public.mask(20, np.random.default_rng(0).bytes)
    bare = key.public.encrypt(np.ones(20), 0).blind(replace(mask, numbers=np.zeros_like(mask.numbers)))
    run.rounds(2)
    view = run.view(HELPER)
    seen = [replace(one, message=Refresh(2, bare.to_bytes())) if one.kind == "Refresh" else one for one in view.seen]
    (honest,), (caught,) = (audit.by_mask({HELPER: shown}) for shown in (view, View(HELPER, HELPER, seen)))
    assert honest.results[0].value < 0.4
    assert caught.results[0].value > 0.9


@pytest.mark.long
def test_counts_in_trained_runs_stand_beside_the_commonest_number() -> None:
    """No dummies: always right. However many there are, "none" is never hidden, and mostly it is none."""
    options: dict[str, Any] = {"clients": 10, "rounds": 6, "model": "linear", "partition": "dirichlet:0.3"}
    rows = [study.trained_conflicts(2, {"dummies": dummies, "max_epochs": 2}, **options) for dummies in (0, 10)]
    assert [row["dummies"] for row in rows] == [0, 10]
    assert rows[0]["measured"] == 1.0
    assert rows[0]["rounds"] == rows[1]["rounds"] > 4
    run = study.digits(0, {"dummies": 10, "max_epochs": 2}, **options)
    rounds = [one for one in audit.recorded_rounds(run.views, 10) if one.shown is not None]
    (finding,) = audit.by_signs(rounds, 10)
    for one, result in zip(rounds, finding.results, strict=True):
        assert result.value == 1.0 or (one.cosines() < 0).any()
    for row in rows:
        assert row["chance"] < row["commonest"] <= row["measured"]
        assert row["with conflicts"]["rounds"] == round((1 - row["commonest"]) * row["rounds"])
    with pytest.raises(UserError, match="no late update was compared"):
        study.trained_conflicts(1, {}, delta=0.0, **options)


# -- the file ----------------------------------------------------------------------------------------------------------


def test_the_documentations_numbers_agree_with_their_closed_forms() -> None:
    content = json.loads(DOCS.read_text())
    assert content["command"] == "python -m benchmarks.security pafed docs/security/pafed.json"
    rows = [row for section in content.values() if isinstance(section, list) for row in section]
    held = [row for row in rows if "closed_form" in row]
    assert len(held) == content["closed_forms"]["compared"] > 20
    assert content["closed_forms"]["off"] == []
    broken = [row for row in content["a mask of real numbers"] if row["weights"] == 1_660_000]
    assert broken[0]["measured"] == 1.0
    assert all(row["needs"] > 9e16 for row in broken)
    share = {(row["by"], row["crypto"], row["cosine"]): row["share"] for row in content["weight in the wrong class"]}
    assert share["helper", "real", 0.05] < 0.002 < 0.39 < share["Min, d=7", "none", 0.05]
    assert max(row["error"] for row in content["collusion"]) < 1e-3
    who = {row["who"]: row for row in content["trained on digits"]}
    assert who["aggregator with the helper: label shares"]["value"] > 0.3


@pytest.mark.long
def test_the_command_writes_such_a_file(tmp_path: Path) -> None:
    out = tmp_path / "pafed.json"
    main(["pafed", str(out), "--seeds", "1", "--clients", "6", "--rounds", "4"])
    assert json.loads(out.read_text())["seeds"] == 1
