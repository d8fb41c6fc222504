"""Settings of MingledPie that could never work are refused before anything runs, with what to do instead."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from federation import rig
from mingledpie_parts import TARGETS, pies

from coterie.protocol.errors import UserError
from coterie.protocol.names import Names
from coterie.systems.mingledpie import SYSTEM
from coterie.systems.mingledpie.config import MingledPieConfig, check

CONFIG = [
    ({"clusters": 1}, "at least|2 to"),
    ({"clusters": 0}, "clusters must be at least 1"),
    ({"p": 0.3}, "1/2, 1/4, 1/8"),
    ({"p": 0.0}, "1/2, 1/4, 1/8"),
    ({"p": float("nan")}, "1/2, 1/4, 1/8"),
    ({"p": 2.0**-33, "threshold": 1}, "2\\^-32"),
    ({"p": 2.0**-12, "threshold": 4}, "tries a set: raise p .* or lower the threshold"),
    ({"p_changes": "10:0.3"}, "1/2, 1/4, 1/8"),
    ({"p_changes": "10"}, "of the form ROUND:RATE, such as 10:0.25"),
    ({"p_changes": "10:0.25;20:0.5"}, "not of the form ROUND:RATE"),
    ({"p_changes": "0:0.25"}, "before round 1"),
    ({"p_changes": "3:0.25,3:0.125"}, "its round stands there twice"),
    ({"p_changes": "5:0.000244140625", "threshold": 4}, "tries a set"),
    ({"threshold": 0}, "threshold of identities lies in 1 to 5, not at 0"),
    ({"threshold": 5, "threshold_counts": "false_positives"}, "lies in 1 to 4, not at 5"),
    ({"threshold_counts": "friends"}, "identities"),
    ({"rebuild": "guess"}, "rebuild must be one of counts, ideal, none"),
    ({"rebuild": "ideal", "p_changes": "3:0.25"}, "rebuild=ideal rests on one p"),
    ({"hardening": "hope"}, "hardening must be one of uploads, products"),
    ({"max_condition": 1.0}, "max_condition"),
    ({"max_condition": 1e13}, "max_condition"),
    ({"max_condition": float("nan")}, "max_condition"),
    ({"min_participants": 0}, "min_participants"),
]


@pytest.mark.parametrize(("wrong", "why"), CONFIG, ids=lambda value: str(value) if isinstance(value, dict) else "")
def test_impossible_settings_are_the_callers_mistakes(wrong: dict, why: str) -> None:
    with pytest.raises(UserError, match=why):
        MingledPieConfig(**wrong)


AMONG = [
    ({"min_participants": 13}, "min_participants is 13, but round 1 asks only 12 of 12 clients"),
    ({"participation": 0.25, "min_participants": 4}, "asks only 3 of 12"),
    ({"founders": 2, "min_participants": 3}, "asks only 2 of 2"),
    ({"threshold": 3}, "puts every client into all 3 clusters"),
    ({"mode": "hardened", "rebuild": "none"}, "rebuild=none has no effect with mode hardened"),
    ({"mode": "hardened", "p_changes": "3:0.25"}, "p_changes=3:0.25 has no effect with mode hardened"),
    ({"mode": "literal", "rebuild": "ideal"}, "rebuild=ideal has no effect with mode literal"),
    ({"mode": "hardened", "p": 0.25}, "p=0.25 has no effect with mode hardened"),
]


@pytest.mark.parametrize(("wrong", "why"), AMONG, ids=lambda value: str(value) if isinstance(value, dict) else "")
def test_what_can_not_work_among_these_clients_or_in_this_mode_is_refused(wrong: dict, why: str) -> None:
    with pytest.raises(UserError, match=why):
        pies(**wrong)


def test_all_clusters_for_everybody_is_possible_where_nothing_is_rebuilt() -> None:
    """Then it is federated averaging, told in k ways."""
    run = pies(threshold=3, rebuild="none")
    run.round(1)
    assert np.abs(run.models() - TARGETS.mean(axis=0)).max() < 1e-5


def test_more_clients_than_ciphertexts_can_sum_up_are_refused() -> None:
    among: Any = SimpleNamespace(mode="paper", clients=Names(4098), spec=pies().common.spec)
    with pytest.raises(UserError, match="4098 clients, but ckks-4096-add sums up at most 4096"):
        check(MingledPieConfig(), among)


def test_the_rate_of_a_round() -> None:
    config = MingledPieConfig(p_changes=" 10:0.25, 30:0.5 ,")
    assert [config.rate(r) for r in (0, 1, 9, 10, 29, 30, 99)] == [0.5, 0.5, 0.5, 0.25, 0.25, 0.5, 0.5]
    assert [config.bits(r) for r in (1, 10, 30)] == [1, 2, 1]


def test_defaults_are_the_papers() -> None:
    config = MingledPieConfig()
    assert (config.clusters, config.p, config.threshold, config.threshold_counts) == (5, 0.5, 2, "identities")
    assert SYSTEM.modes == ("paper", "literal", "hardened")
    assert SYSTEM.encrypted


def test_a_hardening_without_the_hardened_mode_is_refused() -> None:
    """Who asks for exact sums and forgets the mode would otherwise send identities."""
    with pytest.raises(UserError, match="hardening=uploads has no effect with mode paper"):
        rig(SYSTEM, TARGETS, clusters=3, hardening="uploads")
