"""Parties that are no rehearsal's: each has its own data and its own random numbers, and the machine's clock runs."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_deployment import FACTS, Live, live
from typer.testing import CliRunner

from benchmarks.engines import reload
from coterie.cli.app import app
from coterie.data.form import read_data
from coterie.deploy.built_party import build_party
from coterie.deploy.kills import Kill
from coterie.operate.authority import revoke
from coterie.operate.own_model import own_model
from coterie.operate.server import access_of
from coterie.operate.watching import read_log, read_status
from coterie.protocol.errors import UserError
from coterie.runs.config import RunConfig
from coterie.runs.finished import load_result
from coterie.runs.models import export_model, load_exported

pytest.importorskip("nats", reason="the engine is an extra, deploy")

QUICK = {"lr": 0.3, "batch_size": 10, "max_epochs": 3}
NAMES = ("hospital-a", "hospital-b", "hospital-c")
ROUNDS = 300  # of some 30 ms: they last longer than a revoked party stays connected


@pytest.mark.parametrize(
    ("system", "settings", "servers", "steps"),
    [
        ("fedavg", {}, {"server"}, 4),
        pytest.param(
            "fedcaprivacy", {"clusters": 2}, {"business_server", "csp", "key_centre"}, 3, marks=pytest.mark.long
        ),
    ],
)
def test_a_deployment_learns_from_data_that_nobody_shares(
    tmp_path: Path, system: str, settings: dict[str, Any], servers: set[str], steps: int
) -> None:
    """steps: the set-up, the rounds, and what follows them."""
    config = RunConfig(system, rounds=2, settings={**QUICK, **settings})
    with live(tmp_path, config, NAMES) as deployed:
        deployed.run()
        places = {name: build_party(home) for name, home in deployed.homes.items()}
        its_owner_has_the_model(tmp_path, deployed, steps)
    result = load_result(deployed.folder.run)
    first, last = result.rounds
    assert first["local_loss"] > last["local_loss"] < 0.9 * math.log(10)  # better than chance
    assert result.summary["crypto"] == ("none" if system == "fedavg" else "real")
    assert (result.summary["global_accuracy"], result.summary["virtual_seconds"]) == (None, None)
    assert not (deployed.folder.run / "models").exists()
    seeds = {one.party.randomness.seed for one in places.values()}
    assert len(seeds) == len(places)  # each its own, from its home
    assert not any(one.party.randomness.emulated for one in places.values())
    for name, one in places.items():
        assert set(one.work.effects.data) == ({name} if name in NAMES else set())
        assert not one.clock.rehearsed
    status = read_status(deployed.folder.run)
    assert {one.name for one in status.parties} == {*NAMES, *servers}


def its_owner_has_the_model(tmp_path: Path, deployed: Live, steps: int) -> None:
    """Out of its home: as good as the party has reported, on samples as they were given. Nobody else's home has it."""
    homes = deployed.homes
    own: dict[str, float] = {}
    for i, name in enumerate(NAMES):
        model, done = own_model(homes[name].path)
        assert (done, model.facts.client) == (2, name)
        data = read_data(homes[name].data, FACTS)
        own[name] = float((model.predict(data.x_test) == data.y_test).mean())
        export_model(model, tmp_path / f"{i}.safetensors")
        again = load_exported(tmp_path / f"{i}.safetensors")
        assert (again.predict(data.x_test) == model.predict(data.x_test)).all()
        x = np.round(data.x_test * 255).astype(np.uint8)
        assert again.predict(x, proba=True) == pytest.approx(again.predict(x.astype(np.float32) / 255, proba=True))
    with pytest.raises(UserError, match=r"sample 0 holds .*, far beyond the training samples"):
        model.predict(data.x_test * 255)
    reported = read_status(deployed.folder.run).scores["local_accuracy"]
    assert reported == pytest.approx(np.mean(list(own.values())))
    with pytest.raises(UserError, match=f"{deployed.hub} has no model, for it is no client"):
        own_model(homes[deployed.hub].path)
    said = CliRunner().invoke(app, ["export", str(homes[NAMES[0]].path), "--out", str(tmp_path / "m.safetensors")])
    first, second = said.stdout.splitlines()
    assert first == f"Model of {NAMES[0]} after round 2: {tmp_path / 'm.safetensors'}"
    assert second.startswith("Released of its data so far: no proof for: ")
    assert "score local_accuracy; score local_loss" in second
    *_, last = (line for line in read_log(homes[NAMES[0]].log) if line["event"] == "privacy")
    assert set(last["epsilon"].values()) == {"infinite"}  # models, and scores, have no proof
    assert last["released"]["score local_accuracy"] == steps
    assert (tmp_path / "m.safetensors").read_bytes() == (tmp_path / "0.safetensors").read_bytes()
    said = CliRunner().invoke(
        app, ["export", str(homes[deployed.hub].path), "--client", "x", "--out", str(tmp_path / "n")]
    )
    assert said.exit_code == 2


def test_a_party_that_has_not_begun_has_no_model(tmp_path: Path) -> None:
    config = RunConfig("fedavg", rounds=1, settings=QUICK)
    none = pytest.raises(UserError, match="hospital-a has no model yet")
    with live(tmp_path, config, NAMES) as deployed, none:
        own_model(deployed.homes["hospital-a"].path)


@pytest.mark.long
def test_the_hub_begins_with_a_quorum_and_asks_no_one_for_what_its_owner_keeps(tmp_path: Path) -> None:
    config = RunConfig("fedavg", rounds=2, settings=QUICK)
    with live(tmp_path, config, (*NAMES, "late"), absent=["late"], quorum=3, report=()) as deployed:
        deployed.run()
        said = CliRunner().invoke(app, ["deploy", "hub", str(deployed.folder.path)]).stdout
    assert said.startswith("server, the hub. Plan: version 4, ")
    assert "The run has ended: 2 rounds done.\n" in said
    assert said.endswith(f"Its numbers: coterie report {deployed.folder.run}\n")
    result = load_result(deployed.folder.run)
    assert [line["notes"]["participants"] for line in result.rounds] == [3, 3]
    assert result.summary["local_accuracy"] is None
    assert not any(line["reported"] for line in result.rounds)


def test_without_a_quorum_the_hub_does_not_begin(tmp_path: Path) -> None:
    config = RunConfig("fedavg", rounds=1, settings=QUICK)
    with (
        live(tmp_path, config, NAMES, absent=NAMES[2:]) as deployed,
        pytest.raises(Exception, match="there are not yet hospital-c"),
    ):
        deployed.run()
    assert any("hospital-c" in str(line) for line in read_log(deployed.homes["server"].log))


def test_a_party_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    config = RunConfig("fedavg", rounds=3, settings=QUICK)
    with live(tmp_path, config, NAMES) as deployed:
        processes = deployed.run(kills=[Kill("server", 2), Kill("hospital-b", 2), Kill("hospital-c", 3, mid=True)])
    assert processes.started == {"server": 2, "hospital-a": 1, "hospital-b": 2, "hospital-c": 2}
    result = load_result(deployed.folder.run)
    assert [line["notes"].get("participants") for line in result.rounds[:2]] == [3, 3]
    assert result.rounds[2]["notes"]["gone"] == {"hospital-c": "gone"}
    assert result.rounds[2]["notes"]["participants"] == 2
    assert np.isfinite(result.rounds[2]["local_accuracy"])


@pytest.mark.long
def test_no_round_is_used_up_while_a_server_is_away(tmp_path: Path) -> None:
    """The round that it broke is lost, and the next one begins when it is back."""
    config = RunConfig("fedcaprivacy", rounds=8, settings={**QUICK, "clusters": 2})
    with live(tmp_path, config, NAMES) as deployed:
        deployed.run(kills=[Kill("csp", 2, mid=True)])
    lines = load_result(deployed.folder.run).rounds
    assert [line["round"] for line in lines if "skipped" in line["notes"]] == [2]
    assert "gone" in lines[1]["notes"]["skipped"]


@pytest.mark.long
def test_a_party_that_is_revoked_is_cut_off_and_the_rounds_go_on(tmp_path: Path) -> None:
    """Within 5 seconds it is not connected any more, and the next round has the others."""
    config = RunConfig("fedavg", rounds=ROUNDS, settings={**QUICK, "max_epochs": 1})
    revoked_s: list[float] = []
    away_s: list[float] = []
    with live(tmp_path, config, NAMES) as deployed:

        def tell() -> None:
            if not (deployed.folder.run / "status.json").exists():
                return
            status = read_status(deployed.folder.run)
            if status.done >= 2 and not revoked_s:
                revoked_s.append(time.monotonic())
                revoke(deployed.folder.path, "hospital-c")
                reload(deployed.server, access_of(deployed.folder))
            connected = {one.name for one in status.parties if one.connected}
            if revoked_s and not away_s and "hospital-c" not in connected:
                away_s.append(time.monotonic())

        processes = deployed.run(tell, failing=["hospital-c"])
    assert "revoked" in processes.failing["hospital-c"]
    assert away_s[0] - revoked_s[0] < 5.0
    lines = load_result(deployed.folder.run).rounds
    assert len(lines) == ROUNDS
    assert lines[1]["notes"]["participants"] == 3
    assert lines[-1]["notes"]["participants"] == 2


# -- large packets, and many parties: what a hub's process holds, between parties that are no rehearsal's --


MB = 1_000_000
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def peak(at: Path, clients: int, model: str, rounds: int) -> int:
    """The largest resident size of the hub's process, in bytes."""
    at.mkdir()
    config = RunConfig("fedavg", rounds=rounds, model=f"wide_models:{model}", settings={"lr": 0.1, "max_epochs": 1})
    found = [0]
    with live(at, config, [f"client/{i}" for i in range(clients)], patience_s=300.0) as deployed:
        home = deployed.homes["server"]

        def look() -> None:
            starts = (
                [line["pid"] for line in read_log(home.log) if line["event"] == "start"] if home.log.exists() else []
            )
            if starts and (status := Path(f"/proc/{starts[-1]}/status")).exists():
                lines = [line.split() for line in status.read_text().splitlines()]
                found[0] = max([found[0], *(int(words[1]) * 1024 for words in lines if words[0] == "VmHWM:")])

        deployed.run(look)
    result = load_result(deployed.folder.run)
    assert [line["notes"]["participants"] for line in result.rounds] == [clients] * rounds
    assert result.summary["parameters"] * 4 > 7 * MB
    return found[0]


@pytest.mark.long
@ON_LINUX
def test_the_hub_holds_no_packet_for_each_party(tmp_path: Path) -> None:
    """20 parties take less than 3 packets more than 4 do."""
    few, many = (peak(tmp_path / str(clients), clients, "of_8_mb", 2) for clients in (4, 20))
    assert many - few < 3 * 8 * MB, f"{(many - few) / MB:.0f} MB more for 20 parties than for 4"


@pytest.mark.long
@ON_LINUX
def test_a_packet_of_100_mb_passes(tmp_path: Path) -> None:
    assert peak(tmp_path / "one", 2, "of_100_mb", 1) > 100 * MB
