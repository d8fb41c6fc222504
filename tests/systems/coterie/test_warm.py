"""A run that begins with the models that clients have of a former one: groups begin at the mean of their members'."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from coterie.protocol.errors import CoterieWarning, UserError
from coterie.protocol.setup_info import Common, Own
from coterie.protocols.hidden_sums import ClientRow
from coterie.runs import parties
from coterie.runs.experiment import Experiment, build
from coterie.systems.coterie import SYSTEM
from coterie.systems.coterie.config import CoterieConfig
from tests.systems.coterie.test_renewal import clients_of, config, groups_of, made, party

NONE = {"foundings": 2}


def warm(models: dict[str, np.ndarray]) -> Experiment:
    """Another run, whose clients begin with these models. New ones have none."""

    def own(name: str, *rest: Any) -> Own:
        return Own(name, *rest, starts=models[name][None] if name in models else None)

    with patch.object(parties, "Common", partial(Common, warm=True)), patch.object(parties, "Own", own):
        experiment = build(config(NONE, 14))
        experiment.set_up()
        return experiment


def test_groups_begin_at_the_mean_of_their_members_models_and_a_new_client_takes_its_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw, first = np.random.default_rng(0), made(NONE, 14)
    initial = first.common.initial
    models = {
        name: initial + draw.normal(0, 0.3, len(initial)).astype(np.float32)
        for name in first.common.clients
        if name != "client/13"
    }
    first.close()
    experiment, sent, upload = warm(models), dict[str, np.ndarray](), ClientRow.upload

    def uploading(self: Any, x: np.ndarray, r: int) -> Any:
        sent[self.party.name] = x.view(np.int32).astype(np.float64)
        return upload(self, x, r)

    monkeypatch.setattr(ClientRow, "upload", uploading)
    assert all((party(experiment, name).last_starts()[0] == model).all() for name, model in models.items())
    line = experiment.round(1)
    assert line["refused"] == {
        "client/TrainWhole: client/13 has no model of a former run, and waits for its group's": 1
    }
    assert set(sent) == set(models)
    grid, names = experiment.settings.grid(14, experiment.common.spec), experiment.common.clients
    groups = dict(zip(names, groups_of(experiment), strict=True))
    for name in names:
        held = [one for one in models if groups[one] == groups[name]]
        mean = initial + grid.clip * sum(sent[n][:-1] for n in held) / sum(sent[n][-1] for n in held)
        np.testing.assert_allclose(party(experiment, name).state.weights, mean, atol=1e-4)
        weights = {one: party(experiment, one).sums.secret.weight for one in held}
        plain = sum(weights[one] * models[one].astype(np.float64) for one in held) / sum(weights.values())
        assert np.linalg.norm(mean - plain) <= grid.clip + 0.01  # beside it their changes, each of at most clip
    assert {client.state.wholes for client in clients_of(experiment)} == {(1,), ()}  # no clip bounds them in the ledger
    second = experiment.round(2)
    assert not second["refused"]
    assert set(sent) == set(names)
    experiment.close()


def test_few_clients_begin_with_models_by_what_the_refusals_say() -> None:
    """Each refusal's advice is followed, and the last settings are taken."""
    with pytest.raises(UserError, match="set foundings=2 and leave clusters=1 out"):
        SYSTEM.check_warm(CoterieConfig(clusters=1), "paper")
    with pytest.raises(UserError, match="leave clusters out: fewer than 6 clients are one group all the same"):
        made({"clusters": 1, "foundings": 2}, 4)
    SYSTEM.check_warm(CoterieConfig(foundings=2), "paper")
    with pytest.warns(CoterieWarning, match="4 clients make one group") as told:
        made({"foundings": 2}, 4).close()
    assert "Set a smaller min_cluster" in str(told[0].message)
