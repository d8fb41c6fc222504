"""Settings of FedEPC that could never work, or mean nothing beside others, are refused when the federation is built."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.clustering.isomorphic import Aidc
from coterie.protocol.errors import UserError
from coterie.runs import RunConfig, build, resolve
from coterie.runs.budget import budget_of
from coterie.selection.bandit import Cics
from coterie.systems.fedepc import SYSTEM
from coterie.systems.fedepc.config import FedEPCConfig

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"time_budget": 0.0}, "time_budget must be a positive number or 'auto', not 0"),
    ({"time_budget": "much"}, "time_budget"),
    ({"converged": -1.0}, "converged must be a finite number of at least 0"),
    ({"fill": 1.5}, r"fill must lie in \[0, 1\]"),
    ({"panel": 0}, "panel must be at least 1"),
    ({"history": 0}, "history must be at least 1"),
    ({"leave_after": 0}, "leave_after must be at least 1"),
    ({"describe_every": -1}, "describe_every must be at least 0"),
    ({"send": "noise", "epsilon": 0.0}, r"epsilon must lie in \(0, 1"),
    ({"send": "noise", "epsilon": 1e300}, r"epsilon must lie in \(0, 1000000.0\]"),
    ({"send": "noise", "dp_delta": 1.0}, "dp_delta"),
    ({"send": "noise", "dp_delta": 1e-100}, r"dp_delta must lie in \[1e-15, 1\)"),
    ({"send": "noise", "clip": -1.0}, "clip must be from 1e-06 to 1e.06, or 0"),
    ({"send": "noise", "clip": 1e-300}, "clip must be from"),
    ({"send": "loud"}, "send must be one of clear, noise"),
    ({"epsilon": 1.0}, "epsilon=1.0 has no effect with send=clear"),
    ({"clip": 1.0}, "clip=1.0 has no effect with send=clear"),
    ({"extractor": "random", "extractor_steps": 9}, "extractor_steps=9 has no effect with extractor=random"),
    ({"time_budget": 5.0, "participation": 0.7}, "participation=0.7 has no effect with time_budget=5.0"),
    ({"straggler": 0.5}, "straggler must be a finite number of at least 1, not 0.5"),
    ({"straggler": float("nan")}, "straggler must be a finite number of at least 1"),
    ({"time_budget": 5.0, "straggler": 2.0}, "straggler=2.0 has no effect with time_budget=5.0"),
    ({"settle": 0}, "settle must be at least 1"),
    ({"converged": 0.0, "settle": 2}, "settle=2 has no effect with converged=0"),
    ({"singles_to": -1}, "singles_to must be at least 0"),
    ({"theta_split": 0.1}, "theta_split = 0.1 is below theta_merge"),
    ({"confidence": 1.0}, "confidence"),
    ({"mu": -1.0}, "mu must be"),
    ({"neighbours": 0}, "neighbours"),
]


@pytest.mark.parametrize(("settings", "named"), WRONG, ids=[str(one[0]) for one in WRONG])
def test_settings_that_can_not_be(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        FedEPCConfig(**settings)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"settings": {"min_cluster": 4}}, "min_cluster=4 has no effect with mode paper"),
        ({"mode": "literal", "settings": {"key_bits": 3072}}, "key_bits=3072 has no effect with mode literal"),
        ({"mode": "hardened", "settings": {"distribute": "end"}}, "distribute=end is not for mode hardened"),
        ({"mode": "hardened", "settings": {"reference_mode": True}}, "reference_mode=True is not for mode hardened"),
        ({"mode": "hardened", "settings": {"min_cluster": 5}}, "min_cluster is 5, but only 4 of 4 clients begin"),
        ({"mode": "literal", "settings": {"reference_mode": True}}, "choose one"),
        ({"settings": {"neighbours": 3}}, "neighbours=3 has no effect with singles_to=2000"),
        ({"settings": {"eta": 0.5}}, "eta=0.5 has no effect with singles_to=2000"),
        (
            {"mode": "hardened", "settings": {"participation": 0.5}},
            "min_cluster is 3, but participation=0.5 of 4 clients lets 2 train in a round: raise participation",
        ),
        (
            {"mode": "hardened", "public": 0.0, "settings": {"extractor": "random"}},
            "mode hardened needs public samples at the hub",
        ),
        ({"public": 0.0}, "extractor=pretrained needs public samples at the hub: .*--public 0.05"),
        ({"public": 0.0, "settings": {"extractor": "random", "send": "noise"}}, "send=noise needs public samples"),
    ],
)
def test_settings_that_can_not_be_among_these_clients_or_in_this_mode(options: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        build(RunConfig("fedepc", clients=4, crypto="emulated", **options))


def test_settings_that_may_be_said() -> None:
    FedEPCConfig(theta_split=0.1, force_thresholds=True)
    FedEPCConfig(send="noise", clip=1.0, epsilon=1.0)
    assert (FedEPCConfig().window, FedEPCConfig().singles_to) == (Cics().window, Aidc().singles_to), "as the studies"
    build(RunConfig("fedepc", clients=4, settings={"singles_to": 3, "neighbours": 2, "eta": 2.0})).close()
    build(RunConfig("fedepc", clients=4, mode="literal", settings={"eta": 2.0})).close()
    build(RunConfig("fedepc", clients=4, public=0.0, settings={"extractor": "random"})).close()


def test_a_random_extractor_needs_no_public_samples() -> None:
    experiment = build(RunConfig("fedepc", clients=6, public=0.0, rounds=1, settings={"extractor": "random"}))
    experiment.set_up()
    assert experiment.round(1)["notes"]["participants"] > 0
    experiment.close()


def test_what_a_comparison_is_told() -> None:
    pretrained, panel = (
        {"extractor": "its server trains an extractor on its public samples, for 150 steps"},
        {"panel": "so many devices of each cluster also get its model to measure it, and do not train it"},
    )
    assert FedEPCConfig().beyond_budget() == pretrained | panel
    assert FedEPCConfig(extractor="random").beyond_budget() == panel
    assert FedEPCConfig(extractor="random", participation=1.0).beyond_budget() == {}, "all get all models anyway"
    assert set(FedEPCConfig(extractor="random", time_budget=9.0).beyond_budget()) == {"time_budget", "panel"}
    assert set(FedEPCConfig(extractor="random", distribute="round").beyond_budget()) == {"panel", "distribute"}
    budget = budget_of(resolve(RunConfig("fedepc")), ())
    assert budget["participation"] == 0.5
    assert budget["public"] == 0.05


def test_roles_and_defaults_by_mode() -> None:
    config = SYSTEM.config()
    assert set(SYSTEM.roles(config, ["client/0"], "paper").values()) == {"server", "device"}
    assert set(SYSTEM.roles(config, ["client/0"], "hardened").values()) == {"server", "key_centre", "helper", "device"}
    assert [SYSTEM.encrypts(mode) for mode in SYSTEM.modes] == [False, False, True]
    assert SYSTEM.defaults("literal") == {"fill": 0.0}
