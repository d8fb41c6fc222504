"""What an audit of Coterie finds: nothing at the hub, likeness without names at the helper, all at both together."""

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


def test_the_hub_finds_nothing() -> None:
    """A leak of uniform words is chance: its standard error is about .2 for 24 clients."""
    hub = {what: one for (who, what), one in found().items() if who == "hub"}
    assert {"label shares", "top label"} <= hub.keys()
    assert len(hub) >= 4
    for what, one in hub.items():
        assert abs(one.leak) < 0.35, what


def test_the_helper_tells_who_is_alike_without_a_name() -> None:
    assert leak("helper", "which pairs are of one group") > 0.9


def test_both_servers_together_learn_everything() -> None:
    """The control: else the other findings say nothing."""
    assert leak(TOGETHER, "which pairs are of one group") > 0.95
    assert leak(TOGETHER, "label shares") > 0.4


@pytest.mark.parametrize("who", ["hub", "helper"])
def test_no_server_alone_gets_labels(who: str) -> None:
    assert all(abs(one.leak) < 0.35 for (by, _), one in found().items() if by == who and one.topic == "labels")


def test_a_real_run_is_audited_with_the_helpers_own_key() -> None:
    real = found("real")
    assert any(who == "helper" and one.leak > 0.9 for (who, _), one in real.items())
