"""Noise of the servers: what the ledger says of it, and when a client sends nothing more."""

from __future__ import annotations

import dataclasses
import json
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from msgspec.structs import replace

from coterie.crypto.shared_rows import PARTS, Grid
from coterie.deploy.account import account_of
from coterie.dp.gaussian import epsilon
from coterie.protocol.errors import CoterieWarning, PeerError, RunError, UserError
from coterie.protocol.steps import NoAnswerError
from coterie.protocols import hidden_servers
from coterie.protocols.hidden_servers import HubRows
from coterie.protocols.hidden_sums import Shares
from coterie.runs import RunConfig, run
from coterie.runs.experiment import Experiment, build
from coterie.systems.coterie.config import CoterieConfig
from coterie.systems.coterie.messages import Train

OPTIONS: dict[str, Any] = {"clients": 6, "partition": "iid", "crypto": "emulated", "model": "linear", "rounds": 5}


def made(**settings: Any) -> Experiment:
    experiment = build(
        RunConfig("coterie", settings={"clusters": 1, "lr": 0.1, "max_epochs": 1, **settings}, **OPTIONS)
    )
    experiment.set_up()
    return experiment


@pytest.mark.parametrize("parts", [1, 2])
def test_no_upload_is_longer_than_the_stated_bound(parts: int) -> None:
    rng, apart = np.random.default_rng(parts), np.arange(400) < 100
    for clients, scale in ((10, 0.01), (1000, 3.0), (30_000, 1000.0)):
        grid = Grid.of(2.0, clients, 400, parts)
        for _ in range(20):
            change = scale * rng.normal(size=400)
            x = grid.words(change, 1.0, rng, apart if parts == 2 else None).view(np.int32).astype(np.float64)
            assert np.linalg.norm(x) <= grid.longest
        assert grid.longest <= 1.1 * parts**0.5 * grid.steps, "what the room for noise is reckoned with"


def test_epsilon_sets_the_noise_of_each_server_alone() -> None:
    """Replacing a client moves a sum by at most twice the longest upload; a Gaussian of ten rounds has epsilon 8."""
    experiment = made(epsilon=8.0)
    config, spec = experiment.settings, experiment.common.spec
    grid = config.grid(6, spec)
    release = config.release(grid, 3)
    deviation = config.noise_on(grid)
    assert release.noise_multiplier == pytest.approx(deviation / (2 * grid.longest))
    assert release.sensitivity_l2 == pytest.approx(2 * grid.longest * grid.clip / grid.steps)
    assert release.neighbours == "replace one client"
    assert epsilon(deviation / (2 * grid.longest), 1e-5, 10) == pytest.approx(8.0, rel=1e-4)
    experiment.close()


def test_with_epsilon_unequal_clients_weigh_the_same() -> None:
    """The noise is as large as the heaviest client needs: of lighter ones less than the noise would be left."""
    weights = {}
    for budget in (None, 8.0):
        config = RunConfig(
            "coterie", settings={"clusters": 1, "epsilon": budget}, **{**OPTIONS, "partition": "dirichlet:0.1"}
        )
        experiment = build(config)
        experiment.set_up()
        clients = [experiment.federation.look(name) for name in experiment.common.clients]
        weights[budget] = {client.sums.secret.weight for client in clients}
        assert {client.row.secret.total for client in clients} == {sum(c.sums.secret.weight for c in clients)}
        experiment.close()
    assert len(weights[None]) > 1
    assert weights[8.0] == {PARTS}


def test_the_ledger_counts_rounds_with_an_upload_once_in_process_and_between_machines() -> None:
    experiment = made(epsilon=8.0)
    for r in (1, 2, 3):
        experiment.round(r)
    client = experiment.federation.alter("client/2")
    account = account_of(experiment.system, client, experiment.settings)
    assert [one.round for one in client.releases()] == [one.round for one in account.new()] == [1, 2, 3]
    client.state.round = 2  # a round that is tried again
    assert client.state.uploads == (1, 2, 3)
    experiment.close()


def test_a_spent_budget_ends_uploads() -> None:
    experiment = made(epsilon=4.0, private_rounds=2)
    lines = [experiment.round(r) for r in (1, 2, 3)]
    assert [line["notes"]["added"] for line in lines] == [6, 6, 0]
    assert any("spent its privacy budget" in why for why in lines[2]["refused"])
    experiment.close()


def test_a_result_says_against_whom_and_groups_have_no_proof(tmp_path: Path) -> None:
    found = {}
    for name, settings in {"one": {"clusters": 1, "epsilon": 8.0}, "several": {"epsilon": 8.0}}.items():
        run(RunConfig("coterie", settings=settings, out=str(tmp_path / name), **{**OPTIONS, "rounds": 2}))
        found[name] = json.loads((tmp_path / name / "result.json").read_bytes())["ledger"]["client/0"]
    assert found["one"]["against"].keys() == {"hub", "helper", "other clients"}
    assert 0 < found["one"]["epsilon"]["replace one client"] < 8
    assert found["several"]["epsilon"]["replace one client"] == "infinite"
    assert {row["what"] for row in found["several"]["releases"] if row["mechanism"] == "none"} == {
        "label statistics, in a sum",
        "which group, without a name",
    }


def test_a_budget_without_room_for_one_upload_is_said() -> None:
    with pytest.warns(CoterieWarning, match="allows no upload"):
        build(RunConfig("coterie", settings={"clusters": 1, "epsilon": 0.5, "noise": 0.01}, **OPTIONS)).close()


def test_noise_beyond_the_words_is_refused() -> None:
    experiment = made()
    with pytest.raises(UserError, match="do not fit words"):
        CoterieConfig(noise=1e5).grid(100, experiment.common.spec)
    experiment.close()


def test_an_upload_is_in_the_sealed_sums_of_one_round_in_all_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub has a round sealed, drops that attempt, and relays its uploads as late ones: the second sums would have
    noise of their own, and the ledger counts one release."""
    experiment, sent = made(), list[Shares]()

    def first_again(r: int, names: str, rounds: Any, on_time: int, *rest: Any) -> Shares:
        sent.append(Shares(r, names, rounds, on_time, *rest))
        return replace(sent[0], round=r, on_time=on_time)

    def withheld(*_: Any) -> Any:
        raise NoAnswerError("withheld")
        yield

    monkeypatch.setattr(hidden_servers.sums, "Shares", first_again)
    experiment.transport.retries = True
    hub, helper = (experiment.federation.alter(name) for name in ("hub", "helper"))
    with patch.object(HubRows, "give", side_effect=RunError("killed")), pytest.raises(RunError, match="killed"):
        experiment.transport.drive(hub.round(1), 1)
    with patch.object(HubRows, "add", withheld):
        assert experiment.transport.drive(hub.round(1), 1, 1)["added"] == 0
    assert not helper.rows.secret.taken
    assert experiment.transport.drive(hub.round(2), 2)["added"] == 0
    assert helper.rows.secret.adding.round == 2
    assert not helper.rows.secret.adding.of
    experiment.close()


def test_an_attempt_in_other_groups_lets_no_second_upload_pass() -> None:
    """The servers' noise of the first attempt comes again in the third, whatever the one between was for."""
    experiment = made(clusters="auto", noise=0.005, foundings=2)
    client = experiment.federation.alter("client/0")

    def uploads(since: int, more: float) -> None:
        """In an attempt of round 1 of groups of this round."""
        client.state.round, client.row.secret.since = 0, since
        work = client.handlers[Train].run(client, Train(1), "hub")
        (fitted,) = experiment.effects.run([(client.name, next(work))])
        with suppress(StopIteration):
            work.send(dataclasses.replace(fitted, weights=fitted.weights + np.float32(more)))

    for since, more in ((0, 0.0), (1, 0.01), (0, 0.0)):
        uploads(since, more)
    for since in (0, 1):
        with pytest.raises(PeerError, match="another upload for round 1"):
            uploads(since, 0.02)
    experiment.close()
