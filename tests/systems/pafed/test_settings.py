"""Settings of PAFed that could never work are refused before anything runs, with what to do instead."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from pafed_parts import paf, small_keys

from coterie.protocol.errors import UserError
from coterie.systems.pafed import SYSTEM
from coterie.systems.pafed.config import MOST_ASKED, PARAMETERS, PAFedConfig, Rates


@pytest.fixture
def _small() -> Iterator[None]:
    with small_keys():
        yield


CONFIG = [
    ({"rho": 0.0}, "rho must be a finite number above 0"),
    ({"local": "adam"}, "local must be one of admm, sgd, not 'adam'"),
    ({"project": "twice"}, "project must be one of exact, printed, none"),
    ({"agreeing": -0.1}, "at least 0"),
    ({"conflicting": float("inf")}, "finite"),
    ({"clip": -1.0}, "clip must be a finite number of at least 0, not -1"),
    ({"clip": float("inf")}, "clip"),
    ({"dummies": -1}, "dummies"),
    ({"dummies": 4097}, r"dummies must lie in \[0, 4096\], not 4097"),
    ({"iterations": 8}, r"iterations must lie in \[0, 7\], not 8"),
    ({"signs": "seen"}, "signs must be one of shown, hidden"),
    ({"mask_bound": 0.0}, r"mask_bound must lie in \(0, 512.0\], not 0"),
    ({"mask_bound": 513.0}, "mask_bound"),
    ({"founders": 3}, "founders: clients that join later are not supported"),
]


@pytest.mark.parametrize(("wrong", "why"), CONFIG, ids=lambda value: str(value) if isinstance(value, dict) else "")
def test_impossible_settings_are_the_callers_mistakes(wrong: dict, why: str) -> None:
    with pytest.raises(UserError, match=why):
        PAFedConfig(**wrong)


TOGETHER = [
    ({"server_rounds": 9}, "server_rounds=9 and server_decay=0.05 are two schedules of the server's step"),
    ({"rule": "averaged", "project": "none"}, "project=none has no effect with rule=averaged"),
    ({"rule": "averaged", "clip": 2.0}, "clip=2.0 has no effect with rule=averaged"),
    ({"rule": "averaged", "signs": "hidden"}, "signs=hidden has no effect with rule=averaged"),
    ({"mode": "literal", "rule": "averaged"}, "rule=averaged is not for mode literal"),
    ({"mode": "literal", "server_rounds": 9}, "server_rounds=9 is not for mode literal"),
    ({"mode": "literal", "ema": 0.5}, "ema=0.5 is not for mode literal"),
    ({"iterations": 3}, "iterations=3 has no effect with mode paper: leave it out, or change that"),
    ({"mask_bound": 3.0}, "mask_bound=3.0 has no effect with mode paper"),
    ({"mode": "literal", "dummies": 9}, "dummies=9 has no effect with mode literal"),
    ({"mode": "literal", "project": "exact"}, "project=exact is not for mode literal, which is the printed text"),
    ({"mode": "literal", "server_decay": 0.05}, "server_decay=0.05 is not for mode literal.*: there it is 0.0"),
    ({"mode": "literal", "local": "sgd"}, "local=sgd is not for mode literal.*: there it is admm"),
    ({"local": "sgd", "rho": 0.5}, "rho=0.5 has no effect with local=sgd"),
    ({"project": "none", "conflicting": 0.5}, "conflicting=0.5 has no effect with project=none"),
    ({"server_lr": 200.0}, "steps 200 times as long as updates don't fit the ciphers, which have room for 192"),
    ({"clip": 1000.0}, "steps 800 times as long"),
    ({"clip": 100.0, "conflicting": 3.0}, "steps 241 times as long"),
]


@pytest.mark.parametrize(("wrong", "why"), TOGETHER, ids=lambda value: str(value) if isinstance(value, dict) else "")
def test_what_means_nothing_or_does_not_fit_is_refused_before_a_run(wrong: dict, why: str) -> None:
    with pytest.raises(UserError, match=why):
        paf(**wrong)


def test_more_clients_a_round_than_ciphertexts_have_room_for_are_refused() -> None:
    many = np.zeros((2 * MOST_ASKED + 2, 4))
    with pytest.raises(UserError, match="514 clients a round, but CKKS has room for 256: lower participation"):
        paf(many)
    with pytest.raises(UserError, match="257 clients a round"):
        paf(many, participation=0.5)


@pytest.mark.long
@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("signs", ["shown", pytest.param("hidden", marks=pytest.mark.long)])
def test_the_largest_round_has_room(signs: str) -> None:
    """So many in time and so many late that squares of sums are near what scalars have room for."""
    targets = np.random.default_rng(0).normal(size=(MOST_ASKED, 6))
    run = paf(targets, delta=0.4, delay="uniform:1", server_lr=150.0, signs=signs)
    assert [run.round(r)["participants"] for r in (1, 2)] == [154, 256]
    assert not run.refused
    assert np.isfinite(run.models()).all()


def test_the_schedule_and_the_rates() -> None:
    """alpha_0 decays as every baseline's step does; alpha_1 and alpha_2 are multiples of it."""
    config = PAFedConfig(server_lr=0.5, server_decay=0.1, agreeing=0.5, conflicting=2.0)
    assert config.rates(1) == Rates(0.5, 0.25, 1.0)
    assert config.rates(11) == Rates(0.25, 0.125, 0.5)
    assert PAFedConfig(server_decay=0.0).rates(100) == Rates(0.8, 0.8, 0.8)
    falling = PAFedConfig(server_lr=0.8, server_decay=0.0, server_rounds=4)
    assert [falling.server_step(r) for r in range(1, 7)] == pytest.approx([0.8, 0.6, 0.4, 0.2, 0.2, 0.2])
    assert falling.rates(3) == Rates(0.4, 0.4, 0.4)
    assert [PAFedConfig(clip=clip).largest_share for clip in (0.0, 0.5, 10.0)] == [1, 1, 8]


def test_defaults_are_the_papers_where_it_says_something() -> None:
    """Table III: rho, alpha, E, B, lr, momentum; the mended reading of eq. (12) and (14)."""
    config = PAFedConfig()
    assert (config.rho, config.server_lr, config.max_epochs, config.batch_size) == (0.01, 0.8, 10, 50)
    assert (config.lr, config.momentum, SYSTEM.delta) == (0.1, 0.5, 0.3)
    assert (config.project, config.local, config.clip) == ("exact", "admm", 0.0)
    assert SYSTEM.modes == ("paper", "literal", "hardened")
    assert dict.fromkeys(("paper", "hardened"), "ckks-8192-deep") | {"literal": "ckks-32768-deep"} == PARAMETERS
    assert SYSTEM.encrypted
