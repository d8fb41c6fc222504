"""Algorithms 2 and 4 once more, slowly and in plain numpy, with no parties, messages or ciphers: the same models.

Random numbers are those of the system, by party, purpose and round. Clusters, leaders and s-factors of eq. (6) are read
off the notes: they have tests of their own. The robust mean of mode ``hardened`` is computed from whole vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import pytest
from federation import Rig, planted
from ofl_parts import ofl

from coterie.dp import heuristic
from coterie.dp.uploads import shared_set
from coterie.selection.parameters import density, gumbel_top_k
from coterie.systems.ofl import SYSTEM

SIZE, LR, CLIENTS = 24, 0.5, 7
TARGETS = planted([0, 0, 0, 1, 1, 2, 2], SIZE)


@dataclass
class Plain:
    """One client: its model, theta_0 and theta_1, and the rounds of its last downloads."""

    name: str
    target: np.ndarray
    model: np.ndarray
    last: np.ndarray | None
    before: np.ndarray | None
    synced: np.ndarray


def o_factors(theta: np.ndarray, last: np.ndarray, before: np.ndarray, literal: bool) -> np.ndarray:
    """Eq. (5), one parameter after the other."""
    found, dense = [], density(theta)
    for i, value in enumerate(theta):
        gap = abs(last[i] - before[i])
        below = np.log2(1 + gap) + 1e-12 if literal else np.log2(2 + gap)
        found.append(abs(value - last[i]) * dense[i] / below)
    return np.array(found)


def robust(updates: np.ndarray, unit: float) -> np.ndarray:
    """The mean that ``aggregation.detection.robust`` states, from vectors (k, d), with the rounding of its weights.

    unit: by what leaders divide them. For three leaders: the estimated deviation is 1.4826 x 1.495 x the median one.
    """
    lengths = [float(np.linalg.norm(update)) for update in updates]
    usual = sorted(lengths)[(len(lengths) - 1) // 2]
    factors = [int(63 * min(1, usual / length)) for length in lengths]
    cosines, errors = [], []
    for i, update in enumerate(updates):
        others = sum(factors[j] * updates[j] for j in range(len(updates)) if j != i)
        both = lengths[i] * float(np.linalg.norm(others))
        cosines.append(update @ others / both)
        errors.append(5 * 5e-5 * len(updates) * (1 + factors[i] ** 2) ** 0.5 / (both / unit**2))
    middle = median(cosines)
    assert len(updates) == 3
    scale = max(abs(middle), 3 * 1.4826 * 1.495 * median(abs(cosine - middle) for cosine in cosines))
    agreed = []
    for cosine, error in zip(cosines, errors, strict=True):
        short = middle - cosine - error
        agreed.append(1.0 if short <= 0 else max(0.0, 1 - short / scale))
    weights = [int(1023 * a * min(1, usual / length)) for a, length in zip(agreed, lengths, strict=True)]
    return sum(w * update for w, update in zip(weights, updates, strict=True)) / (1023 * sum(agreed))


class Twin:
    """The whole federation. made: only for its random numbers, its session and its settings."""

    def __init__(self, made: Rig, mode: str, gamma: float) -> None:
        self.made, self.mode, self.config = made, mode, made.config
        self.k, self.k_down = max(1, int(gamma * SIZE)), SIZE
        start = made.common.initial
        self.globally = start.copy()
        self.clients = {
            name: Plain(name, TARGETS[i].astype(np.float32), start.copy(), None, None, np.zeros(SIZE))
            for i, name in enumerate(made.common.clients)
        }

    def trained(self, one: Plain) -> np.ndarray:
        return (one.model - np.float32(LR) * (one.model - one.target)).astype(np.float32)

    def upload(self, one: Plain, r: int) -> tuple[np.ndarray, np.ndarray]:
        """Places and values: algorithm 2, l. 6 to 14."""
        party, start = self.made.party(one.name), one.model
        one.model = self.trained(one)
        if self.config.mechanism == "standard":
            places = shared_set(np.arange(SIZE), self.k, self.made.common.roster.session, one.name, r)
            change = (one.model - start)[places].astype(np.float64)
            change /= max(1.0, float(np.linalg.norm(change)) / self.config.clip)
            noise = self.config.standard().noised(np.zeros(self.k), party.secrets("upload noise", r))
            return places, change + noise
        twice = one.last is not None and one.before is not None
        last, before = (one.last, one.before) if twice else (np.zeros(SIZE), np.zeros(SIZE))
        assert last is not None
        assert before is not None
        scores = o_factors(one.model.astype(np.float64), last, before, self.mode == "literal")
        utility = (scores - scores.min()) / (scores.max() - scores.min())
        places = gumbel_top_k(utility, self.k, self.config.epsilon1, party.secrets("selection", r))
        dense = density(one.model)[places]
        noisy = heuristic.perturbed(one.model[places], dense, self.config.epsilon2, party.secrets("upload noise", r))
        return places, noisy.astype(np.float64)

    def round(self, r: int, note: Mapping[str, Any], clusters: Mapping[int, list[str]]) -> None:
        """Algorithm 4, l. 15, and the downloads. The s-factors of eq. (6) are those of the notes."""
        models, s = [], []
        for k, leader in ((int(k), name) for k, name in sorted(note["leaders"].items())):
            model, members = self.globally.astype(np.float64), clusters[k]
            for name in [leader, *(name for name in members if name != leader)]:
                places, values = self.upload(self.clients[name], r)
                for place, value in zip(places, values, strict=True):
                    if self.mode == "literal" or self.config.mechanism == "standard":
                        model[place] += value / len(members)  # l. 20 as printed; and for changes
                    else:
                        model[place] = (1 - 1 / len(members)) * model[place] + value / len(members)
            models.append(model)
            s.append(round(1023 * note["s_factors"][leader]) / 1023)
        if self.config.detection == "norms":
            self.globally = self.globally + robust(np.array(models) - self.globally, self.config.unit(SIZE))
        else:
            whole = len(s) if self.mode == "literal" else sum(s)  # l. 15 as printed: 1/n
            self.globally = s @ np.array(models) / whole
        for one in self.clients.values():
            stalest = np.sort(np.argsort(one.synced, kind="stable")[: self.k_down])
            model = one.model.copy()
            model[stalest] = self.globally[stalest]
            one.before, one.last, one.model = one.last, model, model
            one.synced[stalest] = r


@pytest.mark.parametrize(
    ("mode", "settings"),
    [
        ("paper", {}),
        ("literal", {}),
        ("hardened", {}),
        ("paper", {"detection": "none"}),
        ("paper", {"mechanism": "standard", "detection": "fourier", "noise": 0.3, "clip": 0.5}),
    ],
    ids=["paper", "literal", "hardened", "without detection", "standard"],
)
def test_models_are_those_of_algorithms_2_and_4_in_plain_numpy(mode: str, settings: dict[str, Any]) -> None:
    """To within the rounding of the ciphers, in hardened the noise of opened scalars, too; over a new clustering."""
    defaults = {**SYSTEM.defaults(mode), **settings}
    made = ofl(TARGETS, mode=mode, clusters=3, recluster_every=2, full_samples=25, **defaults)
    twin = Twin(made, mode, gamma=10 / 25)
    for r in range(1, 5):
        note = made.round(r)
        twin.round(r, note, made.hub.members())
        close = {"rtol": 0, "atol": 1e-3 if made.config.detection == "norms" else 2e-4}
        np.testing.assert_allclose(made.hub.state.weights, twin.globally, **close)
        ours = np.stack([twin.clients[name].model for name in made.common.clients])
        np.testing.assert_allclose(made.models(), ours, **close)
    assert np.abs(made.hub.state.weights - made.common.initial).max() > 0.1


def test_downloads_are_the_stalest_parameters_first() -> None:
    """A link on which only part of the model comes down in a step: each parameter comes once before any comes twice."""
    made = ofl(TARGETS, clusters=3, recluster_every=9, step_s=1e-6, gamma_min=0.0, full_samples=10, detection="none")
    made.round(1)
    down = made.party("client/0").state.ratios[1]
    assert 0 < down < 1
    seen = np.zeros(SIZE, int)
    for r in range(2, 2 + int(np.ceil(1 / down)) + 1):
        before = made.party("client/0").synced.copy()
        made.round(r)
        seen += made.party("client/0").synced != before
        assert seen.max() - seen.min() <= 1
