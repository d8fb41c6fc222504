"""What an audit of Coterie finds: nothing at hub and helper alone, all at both together."""

from __future__ import annotations

from functools import cache

import pytest

from coterie.privacy.audits import Finding
from coterie.privacy.audits.coterie import AUDIT, TOGETHER
from coterie.runs import RunConfig
from coterie.runs.recorded import record


@cache
def found(crypto: str = "emulated") -> dict[tuple[str, str], Finding]:
    settings = {"lr": 0.1, "max_epochs": 2}
    config = RunConfig(
        "coterie",
        clients=24,
        rounds=2,
        partition="permute:4+dirichlet:0.5",
        crypto=crypto,
        model="linear",
        settings=settings,
        record=True,
    )
    return {(one.who, one.what): one for one in AUDIT.passive(record(config))}


def leak(who: str, what: str) -> float:
    return next(one.leak for (by, about), one in found().items() if by == who and about.startswith(what))


@pytest.mark.parametrize(("who", "least"), [("hub", 5), ("helper", 2)])
def test_a_server_finds_nothing(who: str, least: int) -> None:
    """A leak of uniform words is chance: its standard error is about .2 for 24 clients."""
    own = {what: one for (by, what), one in found().items() if by == who and one.results}
    assert "which pairs are of one group, by rows" in own
    assert len(own) >= least
    for what, one in own.items():
        assert abs(one.leak) < 0.4, what


def test_the_groups_of_positions_are_said_to_be_known() -> None:
    one = found()["helper", "which positions are of one group"]
    assert not one.results
    assert "no name belongs to a position" in one.why


def test_both_servers_together_learn_everything() -> None:
    """The control: else the other findings say nothing."""
    assert leak(TOGETHER, "which pairs are of one group") > 0.95
    assert leak(TOGETHER, "label shares") > 0.4


def test_a_real_run_is_audited_with_the_helpers_own_key() -> None:
    assert ("helper", "which pairs are of one group, by rows") in found("real")
