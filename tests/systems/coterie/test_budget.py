"""A time budget: slow clients are asked in turn, and no choice of who is left out leaves a group with too few."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from prepared import prepared

from coterie.protocol.errors import UserError
from coterie.runs import RunConfig
from coterie.runs.experiment import Experiment
from coterie.systems.coterie.config import CoterieConfig

SETTINGS: dict[str, Any] = {"lr": 0.1, "max_epochs": 1, "noise": 0.0, "min_cluster": 4, "fewest": 2}


def made(**settings: Any) -> Experiment:
    options = {"partition": "permute:2", "crypto": "emulated", "model": "linear", "seed": 3, "devices": "slow_tail"}
    both = {**SETTINGS, **settings}
    return prepared(RunConfig("coterie", clients=12, rounds=8, settings=both, **options))


def test_rounds_are_shorter_and_everybody_is_asked_again() -> None:
    plain = made()
    clock = [plain.round(r)["virtual_seconds"] for r in (1, 2)]  # all are alike
    plain.close()
    experiment = made(budget_s=0.15)  # one client takes 1.01 s, the others .1
    lines = [experiment.round(r) for r in range(1, 9)]
    asked = [line["notes"]["asked"] for line in lines]
    assert asked == [12, *[11] * 6, 12]
    assert all(line["notes"]["added"] == count for line, count in zip(lines, asked, strict=True))
    hub = experiment.federation.alter("hub")
    assert {name for name, (r, _) in hub.state.paces.items() if r > 1} == set(experiment.common.clients)
    assert lines[7]["virtual_seconds"] - lines[0]["virtual_seconds"] < 0.9 * 7 * (clock[1] - clock[0])
    experiment.close()


def test_clients_that_are_away_anyway_use_up_who_may_be_left_out() -> None:
    """Two may be away. If two did not answer last time, the round would be skipped without the slow one, too."""
    experiment = made(budget_s=0.15)
    experiment.round(1)
    hub = experiment.federation.alter("hub")
    slow = next(name for name, (_, seconds) in hub.state.paces.items() if seconds > 0.15)
    hub.state.silent = dict.fromkeys([name for name in experiment.common.clients if name != slow][:2], 1)
    assert experiment.round(2)["notes"]["asked"] == 12
    assert experiment.round(3)["notes"]["asked"] == 11
    experiment.close()


def test_no_choice_of_absences_leaves_a_group_with_too_few() -> None:
    """Against all choices: the bound is the most that any of them can do, and the helper applies it, too."""
    for smallest, fewest in ((4, 2), (5, 3), (3, 1), (4, 4)):
        config = CoterieConfig(min_cluster=smallest, fewest=fewest, budget_s=1.0)
        groups = [set(range(smallest)), set(range(smallest, 10))]
        for away in range(10):
            worst = min(len(one - set(some)) for some in combinations(range(10), away) for one in groups)
            refused = bool(config.shows_few(10, 10 - away, 2))
            assert refused == (worst < fewest) or (worst < fewest <= smallest and refused)
            if not refused:
                assert worst >= fewest


@pytest.mark.parametrize("settings", [{"min_cluster": 2}, {"deadline_s": 5.0}])
def test_a_budget_that_nobody_can_be_left_out_for_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="budget_s=1"):
        made(budget_s=1.0, **settings)
