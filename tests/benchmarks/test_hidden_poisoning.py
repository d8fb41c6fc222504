"""The study of malicious clients in hidden groups: its attacker differs in its clip alone."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import hidden_poisoning as study
from coterie.crypto.shared_rows import Grid


def test_words_are_those_of_an_honest_client_up_to_the_later_clip() -> None:
    honest, change = Grid(0.5, 1 << 14, 40), np.random.default_rng(0).normal(size=40)
    long = study.Lengthened(0.5 * 4, 4 << 14, 40)
    for times, same in ((0.4, True), (2.0, False)):
        scaled = change * (times * 0.5 / np.linalg.norm(change))
        drawn = [grid.words(scaled, 1.0, np.random.default_rng(1)) for grid in (honest, long)]
        assert (drawn[0] == drawn[1]).all() == same
        assert long.last == pytest.approx(times * honest.longest, rel=0.02)


def test_one_client_moves_its_group_alone_and_not_at_all_where_lengths_are_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(study, "ROUNDS", 1)
    monkeypatch.setattr(study, "CLIENTS", 12)
    calm = study.one(0, "tag", None, 1)
    clips, free, checked = (study.attacked(0, variant, "sign_flip:5", calm) for variant in ("clips", "tag", "norm"))
    assert (clips["same"], free["same"]) == (1.0, 1.0)
    assert clips["longest"] <= 1 < free["longest"]
    assert (free["counted"], checked["counted"]) == (1.0, 0.0)
    assert checked["longest"] == 0
