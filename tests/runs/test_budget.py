"""One budget for all methods of a comparison: shared setting by setting, what can't be shared listed, both tuned."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.protocol.errors import UserError
from coterie.runs.budget import BUDGET, OPTIONS, WITHOUT, ComparisonPlan, plan
from coterie.runs.intervals import mean_and_interval, spread

DIGITS = {"data": "digits", "clients": 6, "rounds": 2}


def settings(planned: ComparisonPlan) -> dict[str, dict[str, Any]]:
    """Every method's resolved settings, by its label."""
    return {label: dict(config.settings) for label, config in planned.methods.items()}


def delayed(planned: ComparisonPlan) -> dict[str, tuple[float | None, str]]:
    """Every method's resolved delays."""
    return {label: (config.delta, config.delay) for label, config in planned.methods.items()}


def differing(planned: ComparisonPlan) -> set[tuple[str, str]]:
    return {(found.method, found.setting) for found in planned.differences}


def test_everybody_trains_on_the_budget_of_the_first_method() -> None:
    """PAFed's defaults (half the clients, 10 epochs, momentum, a decaying step) and FedAvg's own are far apart."""
    planned = plan(["pafed", "fedadmm", "fedavg"], {**DIGITS, "delta": 0.5}, {})
    found = settings(planned)
    for key in ("participation", "max_epochs", "momentum", "batch_size", "lr", "slowest"):
        assert found["fedavg"][key] == found["fedadmm"][key] == found["pafed"][key], key
    assert found["fedavg"]["server_lr"] == found["pafed"]["server_lr"] == 0.8
    assert found["fedavg"]["server_decay"] == found["pafed"]["server_decay"] == 0.05
    assert found["pafed"]["momentum"] == 0.5
    assert planned.budget_from == "pafed"
    assert planned.budget is not None
    delays = {"delta": 0.5, "delay": "uniform:1-5"}
    assert all(planned.budget[key] == value for key, value in delays.items())
    assert delayed(planned) == dict.fromkeys(("pafed", "fedadmm", "fedavg"), (0.5, "uniform:1-5"))
    shared = {key: found["fedavg"][key] for key in planned.budget if key not in OPTIONS}
    assert shared | delays | {"public": 0.0} == dict(planned.budget)
    assert differing(planned) == {("fedadmm", "server_lr"), ("fedadmm", "server_decay")}


def test_the_methods_own_budgets_on_request() -> None:
    planned = plan(["pafed", "fedavg"], DIGITS, {}, each_own=True)
    found = settings(planned)
    assert (found["pafed"]["max_epochs"], found["fedavg"]["max_epochs"]) == (10, 5)
    assert {name: share for name, (share, _) in delayed(planned).items()} == {"pafed": 0.3, "fedavg": 0.0}
    assert planned.budget is None


def test_the_budget_of_another_method() -> None:
    planned = plan(["pafed", "fedavg"], DIGITS, {}, budget_from="fedavg")
    assert settings(planned)["pafed"]["max_epochs"] == settings(planned)["fedavg"]["max_epochs"] == 5
    assert delayed(planned)["pafed"][0] == 0
    assert planned.budget_from == "fedavg"


def test_a_method_without_delays_runs_others_without_them_too() -> None:
    """IFCA's server takes the whole mean and waits for everybody, so beside it PAFed does, too."""
    planned = plan(["ifca", "pafed"], DIGITS, {})
    found = settings(planned)["pafed"]
    assert {key: found[key] for key in WITHOUT} == dict(WITHOUT)
    assert delayed(planned)["pafed"][0] == 0


def test_what_a_method_lacks_or_refuses_is_a_difference_with_its_reason() -> None:
    planned = plan(["pafed", "scaffold", "ifca", "fedasync"], DIGITS, {})
    reasons = {(found.method, found.setting): found for found in planned.differences}
    assert "no momentum" in reasons["scaffold", "momentum"].why
    assert (reasons["scaffold", "momentum"].value, reasons["scaffold", "momentum"].shared) == (0, 0.5)
    assert reasons["ifca", "server_lr"].value is None
    assert "as if it were 1" in reasons["ifca", "server_lr"].why
    assert not [key for key in reasons if key[1] in OPTIONS]  # every system obeys
    assert reasons["fedasync", "server_lr"].value == 0.2
    assert ("ifca", "momentum") not in reasons


@pytest.mark.parametrize("place", ["fedavg", "fedprox"])
def test_a_setting_for_one_method_is_no_budget(place: str) -> None:
    """Not even where it is the first method's, whose budget all others take."""
    planned = plan(["fedavg", "fedprox"], DIGITS, {f"{place}.momentum": "0.7"})
    found = settings(planned)
    assert {name: values["momentum"] for name, values in found.items()} == {
        "fedavg": 0.7 if place == "fedavg" else 0,
        "fedprox": 0.7 if place == "fedprox" else 0,
    }
    assert [(f.method, f.setting, f.value, f.why) for f in planned.differences] == [
        (place, "momentum", 0.7, "set for it alone")
    ]


def test_a_step_that_is_part_of_one_method_is_nobodys_budget() -> None:
    """FedAsync's 0.2 is the share of one client's model; FedADMM's constant 1 follows the mean of all clients."""
    for first in ("fedasync", "fedadmm"):
        planned = plan([first, "fedavg", "pafed"], DIGITS, {})
        found = settings(planned)
        assert found["fedavg"]["server_lr"] == found["pafed"]["server_lr"] == WITHOUT["server_lr"]
    assert settings(plan(["fedasync", "fedavg"], DIGITS, {}))["fedasync"]["server_lr"] == 0.2
    assert ("fedasync", "server_lr") in differing(plan(["fedasync", "fedavg"], DIGITS, {}))
    given = settings(plan(["fedasync", "fedavg"], DIGITS, {"server_lr": "0.5"}))
    assert given["fedasync"]["server_lr"] == given["fedavg"]["server_lr"] == 0.5


def test_work_and_knowledge_beyond_the_budget_are_said() -> None:
    planned = plan(["mingledpie", "fedavg", "fedem"], DIGITS, {"start": "pretrained"})
    told = {(f.method, f.setting): f for f in planned.differences if f.shared is None}
    assert "all data of the true groups" in told["mingledpie", "start"].why
    assert told["fedem", "components"].value == 3
    assert not [f for f in plan(["mingledpie", "fedavg"], DIGITS, {}).differences if f.setting == "start"]


def test_modes_are_methods() -> None:
    planned = plan(
        ["fedcaprivacy", "fedcaprivacy@hardened"],
        DIGITS,
        {"fedcaprivacy.clusters": "3", "fedcaprivacy@hardened.min_cluster": "2", "lr": "0.3"},
    )
    assert [(label, config.mode) for label, config in planned.methods.items()] == [
        ("fedcaprivacy", "paper"),
        ("fedcaprivacy@hardened", "hardened"),
    ]
    found = settings(planned)
    assert [values["clusters"] for values in found.values()] == [3, 3]
    assert [values["min_cluster"] for values in found.values()] == [3, 2]
    assert [values["lr"] for values in found.values()] == [0.3, 0.3]
    for order in (1, -1):
        given = dict(list({"fedcaprivacy.lr": "0.3", "fedcaprivacy@hardened.lr": "0.2"}.items())[::order])
        found = settings(plan(["fedcaprivacy", "fedcaprivacy@hardened"], DIGITS, given))
        assert [values["lr"] for values in found.values()] == [0.3, 0.2]
    found = settings(plan(["fedcaprivacy", "fedcaprivacy@hardened"], DIGITS, {"fedcaprivacy@paper.lr": "0.3"}))
    assert [values["lr"] for values in found.values()] == [0.3, 0.1]
    by_option = plan(["fedcaprivacy", "fedavg"], {**DIGITS, "mode": "hardened"}, {})
    assert list(by_option.methods) == ["fedcaprivacy@hardened", "fedavg"]
    with pytest.raises(UserError, match="takes each method once"):
        plan(["fedcaprivacy@hardened", "fedcaprivacy"], {**DIGITS, "mode": "hardened"}, {})


def test_training_alone_is_added_once() -> None:
    assert list(plan(["fedavg"], DIGITS, {}, local=True).methods) == ["fedavg", "local"]
    assert list(plan(["local", "fedavg"], DIGITS, {}, local=True).methods) == ["local", "fedavg"]


def test_every_setting_of_a_budget_is_one_of_some_method() -> None:
    found = settings(plan(["pafed"], DIGITS, {}))["pafed"]
    assert set(BUDGET) <= set(found)


def test_the_interval_is_students() -> None:
    """Three values 1, 2, 3: t(0.975, 2) = 4.302653, standard deviation 1."""
    mean, half = mean_and_interval([1.0, 2.0, 3.0])
    assert (mean, half) == (2.0, pytest.approx(4.302653 / 3**0.5))
    assert mean_and_interval([0.5]) == (0.5, None)
    assert spread([0.5, None]) is None
    assert spread([]) is None
