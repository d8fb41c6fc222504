"""Label counts between machines: as in one process, at a client's home, for its predictions and in the report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from live_deployment import another_run
from typer.testing import CliRunner

from coterie.cli.app import app
from coterie.deploy.built_party import stored_party
from coterie.deploy.home import plan_of, read_home
from coterie.operate.authority import revoke
from coterie.operate.folder import Folder
from coterie.operate.local_deployment import HOMES
from coterie.operate.own_model import own_model, own_prior
from coterie.operate.rehearsal import rehearse
from coterie.protocol.errors import UserError
from coterie.runs.config import RunConfig, resolve
from coterie.runs.config_file import to_toml
from coterie.runs.priors import Priors
from coterie.runs.runner import run

pytest.importorskip("nats", reason="the engine is an extra, deploy")


def options(out: Path | None = None, **more: Any) -> dict[str, Any]:
    settings = {"label_counts": True, "lr": 0.1, **more}
    base = {"rounds": 2, "clients": 6, "model": "linear", "partition": "dirichlet:0.3", "seed": 7}
    return {**base, "settings": settings, "out": None if out is None else str(out)}


@pytest.mark.parametrize(
    ("name", "more"), [("fedavg", {}), pytest.param("coterie", {"clusters": 2}, marks=pytest.mark.long)]
)
def test_homes_hold_the_counts_and_predict_as_the_simulation_does(
    tmp_path: Path, name: str, more: dict[str, Any]
) -> None:
    emulated = {"crypto": "emulated"} if name == "coterie" else {}
    ours = run(RunConfig(name, fine_tune="held_out", **options(tmp_path / "simulated", **more), **emulated))
    alone = run(RunConfig(name, **options(tmp_path / "plain", **more), **emulated))
    result = rehearse(tmp_path / "d", RunConfig(name, **options(**more), **emulated))
    assert result.summary["models_sha256"] == alone.rounds[-1]["models_sha256"]
    assert ours.summary["rounds_done"] == 2
    priors = msgspec.json.decode((tmp_path / "plain" / "priors.json").read_bytes(), type=Priors)
    assert len(priors.clients) >= 5
    shown = 0
    for place in (tmp_path / "d" / HOMES).iterdir():
        model, _ = own_model(place) if place.name.startswith("client") else (None, 0)
        if model is None or model.facts.client not in priors.clients:
            continue
        want, found = priors.clients[model.facts.client], own_prior(place)
        for key in ("own", "mixture", "predicted"):
            np.testing.assert_array_equal(getattr(found, key), getattr(want, key))
        shown += 1
    assert shown == len(priors.clients)
    assert (tmp_path / "d" / "run" / "priors.json").read_bytes() == (tmp_path / "plain" / "priors.json").read_bytes()
    assert name == "fedavg" or "prior_local_accuracy" in result.rounds[-1]["reported"]


def test_a_further_run_of_a_deployment_shows_no_client_by_difference(tmp_path: Path) -> None:
    """Each home remembers its list, also over a run without: the same clients have the same sum, fewer have none."""
    at, config = tmp_path / "d", RunConfig("fedavg", **{**options(), "clients": 4, "rounds": 1})
    rehearse(at, config)
    first = told(at)
    assert first.keys() == {f"client/{i}" for i in range(4)}
    assert len({(names, tuple(total)) for names, total in first.values()}) == 1
    another_run(at, config=written(tmp_path / "none.toml", replace(config, settings={"lr": 0.1})))
    assert all(total is None for _, total in told(at).values())
    another_run(at, config=written(tmp_path / "counts.toml", config))
    assert told(at) == first
    revoke(at, "client/3")
    another_run(at)
    assert told(at) == {name: (first[name][0], None) for name in first.keys() - {"client/3"}}


def written(path: Path, config: RunConfig) -> Path:
    path.write_text(to_toml(resolve(config)))
    return path


def told(at: Path) -> dict[str, tuple[str, Any]]:
    """By client of the present run: its list, and its model's label counts."""
    members = dict(plan_of(read_home(Folder(at).hub)).members)
    homes = [read_home(place) for place in (at / HOMES).iterdir()]
    clients = [home for home in homes if home.role == "client" and home.name in members]
    secrets = {home.name: stored_party(home)[0].party.secret.counts for home in clients}
    return {name: (one.names, None if one.total is None else one.total.tolist()) for name, one in secrets.items()}


def test_a_home_without_counts_says_how_to_get_them(tmp_path: Path) -> None:
    rehearse(tmp_path / "d", RunConfig("fedavg", rounds=1, clients=3, model="linear", seed=7))
    home = next(one for one in (tmp_path / "d" / HOMES).iterdir() if one.name.startswith("client"))
    with pytest.raises(UserError, match="label_counts = true under"):
        own_prior(home)
    new = tmp_path / "new.npz"
    np.savez(new, x=np.zeros((2, 1, 8, 8), np.float32))
    found = CliRunner().invoke(app, ["predict", str(home), str(new), "--prior"])
    assert found.exit_code == 2
    assert "--client client/" in found.output
    assert found.output.rstrip().endswith("--prior")
    run_folder = str(tmp_path / "d" / "run")
    found = CliRunner().invoke(app, ["predict", run_folder, str(new), "--prior", "--client", "client/0"])
    assert found.exit_code == 2
    assert "label_counts=true" in found.output
