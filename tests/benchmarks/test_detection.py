"""The study of detection: its trials are what they say, and what was chosen is what the records say."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmarks import detection, detection_choice
from coterie.aggregation import detection as aggregation
from coterie.aggregation.detection import OUTLYING
from coterie.crypto import fourier
from coterie.privacy.attacks.active.deviations import cosine

DOCS = Path(__file__).parents[2] / "docs"
FOUND = json.loads((DOCS / "detection" / "detection.json").read_text())
CHOICE = json.loads((DOCS / "detection" / "choice.json").read_text())
COSTS = json.loads((DOCS / "detection" / "costs.json").read_text())


def test_every_leader_is_poisoned_in_four_of_sixteen_pairs() -> None:
    pairs = detection.pairs()
    assert len({frozenset(pair) for pair in pairs}) == FOUND["trials"] == 16
    assert set(Counter(i for pair in pairs for i in pair).values()) == {4}


@pytest.fixture(scope="module")
def ground() -> detection.Ground:
    return detection.ground("digits", 0)


def test_the_attacks_are_what_they_say(ground: detection.Ground) -> None:
    start, honest = ground.start, ground.honest
    assert set(ground.poisoned) == set(detection.ATTACKS)
    updates = {name: models - start for name, models in ground.poisoned.items()}
    np.testing.assert_allclose(updates["scale:10"], 10 * (honest - start), atol=1e-4)
    np.testing.assert_allclose(updates["update flipped"], start - honest, atol=1e-6)
    np.testing.assert_allclose(ground.poisoned["model flipped"], -honest)
    assert (ground.poisoned["noise:0.1"] - honest).std() == pytest.approx(0.1, rel=0.02)
    common = (honest - start).mean(axis=0)
    towards = updates["label flip"] - (honest - start)
    for update, own, aim in zip(updates["adaptive"], honest - start, towards, strict=True):
        assert np.linalg.norm(update) == pytest.approx(np.linalg.norm(own), rel=1e-3)
        assert cosine(update, common) == pytest.approx(cosine(own, common), abs=1e-3)
        assert cosine(update, aim) > cosine(own, aim) + 0.2  # an attack, not the honest update


def test_scores_are_those_of_the_parts(ground: detection.Ground) -> None:
    start, models = ground.start.astype(np.float64), ground.honest.astype(np.float64)
    order = np.random.default_rng(0).permutation(len(start))
    spectra = detection.spectra_of(models, start, [order])
    facts = detection.Facts.of(start, models)
    found = detection.scores(facts, {**spectra, "permuted": spectra["permuted"][0]})
    assert set(found) == set(detection.SCORES)
    high, total = fourier.energies(models[3])
    assert found["share"][3] == pytest.approx(high / total)
    assert found["share, permuted"][3] == pytest.approx(fourier.energies(models[3][order])[0] / total)
    assert found["distance"][3] == pytest.approx(((models[3] - start) ** 2).sum())
    updates = models - start
    assert found["1 - cosine"][3] == pytest.approx(1 - cosine(updates[3], updates.mean(axis=0)))
    assert facts.dots[3] == pytest.approx(updates[3] @ (facts.factors @ updates))


def test_the_multiple_was_chosen_on_other_seeds() -> None:
    assert detection_choice.chosen(CHOICE) == OUTLYING
    assert not set(CHOICE["seeds"]) & set(FOUND["seeds"])


def test_weights_of_the_choice_are_those_of_the_rule() -> None:
    updates = np.random.default_rng(0).normal(size=(detection.LEADERS, 50)) + 0.3
    gram = updates @ updates.T
    factors = aggregation.cut(np.diag(gram))
    found = aggregation.robust(np.diag(gram), gram @ factors, factors)
    np.testing.assert_allclose(detection_choice.weights(gram, OUTLYING), 1 - found.suspicion)


def test_the_former_rule_by_hand() -> None:
    """cos / med where both are above 0: of three equal updates and one across, the last one counts nothing."""
    updates = np.array([[1.0, 0], [1, 0], [1, 0], [0, 1]])
    gram = updates @ updates.T
    found = detection.before(np.diag(gram), gram @ [63, 63, 63, 63], np.full(4, 63))
    assert found.weights.tolist() == [1023, 1023, 1023, 0]
    assert found.divisor == 3 * 1023


def test_costs_are_within_what_was_asked() -> None:
    assert COSTS["transform"]["seconds"]["high energy"] <= 10
    assert COSTS["transform"]["largest error"] < COSTS["transform"]["stated error"]
    for name in ("shared transform", "shared lengths"):
        assert COSTS[name]["error"] < COSTS[name]["stated error"] < 1e-3
