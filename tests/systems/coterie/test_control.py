"""Control variates through hidden sums: SCAFFOLD's, where that is defined, and turns that cancel in a group's sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from coterie.protocol.errors import UserError
from coterie.protocol.steps import NoAnswerError
from coterie.protocols.hidden_servers import HubRows
from coterie.protocols.hidden_sums import ClientRow
from coterie.runs.config import RunConfig
from coterie.runs.experiment import Experiment, build

ALIKE = {"lr": 0.3, "batch_size": 1000, "slowest": 1.0, "max_epochs": 4}
QUIET = {"clusters": 1, "noise": 0.0, "fewest": 1}


def played(system: str, rounds: int, partition: str, **settings: Any) -> Experiment:
    options = {"clients": 8, "rounds": rounds, "model": "linear", "partition": partition, "crypto": "emulated"}
    experiment = build(RunConfig(system, settings=settings, **options))
    experiment.set_up()
    for r in range(1, rounds + 1):
        experiment.round(r)
    return experiment


def clients(experiment: Experiment) -> Mapping[str, Any]:
    return {party.name: party for party in experiment.federation.of_role("client")}


def test_with_all_there_equal_steps_and_neither_clip_nor_noise_it_is_scaffold() -> None:
    """The baseline sends control variates, and here a group's movement says them. Words are rounded to 2^-16."""
    ours = played("coterie", 4, "iid", **ALIKE, **QUIET, control_variates=1.0)
    theirs = played("scaffold", 4, "iid", **ALIKE)
    without = played("coterie", 4, "iid", **ALIKE, **QUIET)
    name = ours.names[0]
    expected = np.asarray(theirs.models(4)[name])
    assert np.abs(np.asarray(ours.models(4)[name]) - expected).max() < 1e-4
    assert np.abs(np.asarray(without.models(4)[name]) - expected).max() > 1e-3
    controls = {party.name: party.state.control for party in theirs.federation.of_role("client")}
    for name, party in clients(ours).items():
        assert party.state.control / (4 * 0.3) == pytest.approx(controls[name], abs=1e-3)


@pytest.mark.parametrize("share", [1.0, 0.6])
def test_turns_cancel_in_a_groups_sum_with_unequal_steps_weights_and_clipped_changes(share: float) -> None:
    settings = {"lr": 0.3, "clip": 0.5, "slowest": 0.2, "control_variates": share}
    experiment = played("coterie", 3, "dirichlet:0.3", **QUIET, **settings)
    parties = clients(experiment).values()
    turns = np.stack([party.state.control - party.state.drift for party in parties])
    weights = np.array([party.sums.secret.weight for party in parties], float)
    assert len(set(weights)) > 1
    assert np.abs(weights @ turns / weights.sum()).max() < 1e-4
    assert np.abs(turns).max() > 1e-2


def test_turns_cancel_after_a_round_that_was_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has moved no model, so it counts neither for the clients nor for the group."""
    adding = HubRows.add

    def add(self: Any, r: int, *rest: Any) -> Any:
        if r == 3:
            raise NoAnswerError("too few uploads")
        return (yield from adding(self, r, *rest))

    monkeypatch.setattr(HubRows, "add", add)
    settings = {"lr": 0.3, "clip": 0.5, "slowest": 0.2, "control_variates": 0.9}
    experiment = played("coterie", 5, "dirichlet:0.3", **QUIET, **settings)
    parties = clients(experiment).values()
    turns = np.stack([party.state.control - party.state.drift for party in parties])
    weights = np.array([party.sums.secret.weight for party in parties], float)
    assert {party.row.secret.rounds for party in parties} == {4}
    assert np.abs(weights @ turns / weights.sum()).max() < 1e-4
    assert np.abs(turns).max() > 1e-2


def test_a_client_that_was_away_counts_the_rounds_in_which_its_group_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a twin that sees which sums each client has opened."""
    sums: dict[str, list[tuple[int, np.ndarray]]] = {}
    opened = ClientRow.opened

    def opening(self: Any, msg: Any) -> Any:
        total = opened(self, msg)
        sums.setdefault(self.party.name, []).append((msg.sealed_in, total))
        return total

    monkeypatch.setattr(ClientRow, "opened", opening)
    experiment = played("coterie", 6, "iid", **QUIET, participation=0.5, server_lr=0.5, control_variates=0.9)
    gaps = set()
    for name, party in clients(experiment).items():
        last, model, drift = 0, np.zeros(party.spec.size), None
        for r, total in sums.get(name, []):
            new = party.grid.change(total, party.row.secret.total)
            now, kept = (model - new) / (0.5 * 0.5 * (r - last)), 0.5 ** (r - last)
            drift = now if drift is None else kept * drift + (1 - kept) * now
            gaps.add(r - last)
            last, model = r, new
        assert party.state.drift == pytest.approx(drift, abs=1e-5)
    assert len(gaps) > 1


def test_nothing_more_is_sent() -> None:
    lines = []
    for share in (0.0, 0.9):
        experiment = played("coterie", 1, "iid", **QUIET, max_epochs=1, control_variates=share)
        lines.append(experiment.round(2))
    first, second = lines
    assert first["message_bytes"] == second["message_bytes"]
    assert first["models_sha256"] != second["models_sha256"]


def test_momentum_would_falsify_them() -> None:
    with pytest.raises(UserError, match="momentum must be 0"):
        build(RunConfig("coterie", clients=8, settings={"control_variates": 0.9, "momentum": 0.5}))
