"""Energy and memory by type of device: closed forms, the result of a run, and the report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from every_system import model_for
from matrix import few
from report_folders import write_run
from torch import nn

from coterie.devices.profiles import fleet
from coterie.protocol.errors import UserError
from coterie.protocol.model_spec import ModelSpec, Part
from coterie.record import load
from coterie.record.folder import read_lines
from coterie.report import render, tables, words
from coterie.runs import SYSTEMS, RunConfig, run
from coterie.runs.folder import resumed
from coterie.runs.outcome import training_bytes
from coterie.runs.settings import field_types
from coterie.training.model import Model

TWO = """
[[device]]
name = "slow"
compute_flops_per_s = 1e8
up_bytes_per_s = 1e5
down_bytes_per_s = 2e5
latency_s = 0.5
compute_watts = 4.0
radio_watts = 0.25
idle_watts = 1.0
memory_gib = 0.5

[[device]]
name = "fast"
compute_flops_per_s = 1e9
up_bytes_per_s = 1e6
down_bytes_per_s = 1e6
compute_watts = 8.0
"""


def ran(folder: Path, **options: Any) -> Any:
    folder.mkdir(exist_ok=True)
    (folder / "two.toml").write_text(TWO)
    given: dict[str, Any] = {
        "devices": str(folder / "two.toml"),
        "clients": 4,
        "rounds": 2,
        "partition": "iid",
        "model": "linear",
        "samples": 200,
        "settings": {"max_epochs": 1, "batch_size": 10},
    }
    return run(RunConfig("fedavg", out=str(folder / "run"), **{**given, **options}))


def test_time_and_energy_by_hand(tmp_path: Path) -> None:
    """50 samples and one epoch a client and round; one message down and one up, of sizes that the run tells."""
    result = ran(tmp_path)
    used, rounds = result.summary["devices_used"], result.rounds
    assert set(used) == {"slow", "fast"}
    flops = 6 * 64 * 10 * 50
    sizes = {key: sum(line["message_bytes"][key] for line in rounds) for key in rounds[0]["message_bytes"]}
    down, up = sizes["server > client Train"] / 8, sizes["client > server Update"] / 8
    for kind, speed, up_rate, down_rate, latency in (("slow", 1e8, 1e5, 2e5, 0.5), ("fast", 1e9, 1e6, 1e6, 0.05)):
        own, messages = used[kind], 2 * 2  # clients times rounds
        assert own["clients"] == 2
        assert own["compute_s"] == pytest.approx(messages * flops / speed)
        assert own["radio_s"] == pytest.approx(messages * (2 * latency + down / down_rate + up / up_rate))
        assert own["there_s"] == pytest.approx(2 * result.summary["virtual_seconds"])
    joules = used["slow"]["joules"]
    assert joules["compute"] == pytest.approx(4.0 * used["slow"]["compute_s"])
    assert joules["radio"] == pytest.approx(0.25 * used["slow"]["radio_s"])
    assert joules["idle"] == pytest.approx(1.0 * used["slow"]["there_s"])
    assert used["slow"]["memory_gib"] == 0.5
    spec = ModelSpec((Part("w", (650,), "float32", "parameter", "shared", 0),), activations=74)  # flattened, and 10
    largest = max(line["device_messages"]["slow"] for line in rounds)
    assert largest == pytest.approx(max(up, down), abs=8)
    expected = training_bytes(spec, samples=50, numbers=64, batch=10, message=largest)
    assert used["slow"]["peak_memory_bytes"] == expected


def test_memory_by_hand() -> None:
    """3 x 650 weights, 2 x 10 samples x 10 activations, 50 samples x 64 numbers; the message twice."""
    spec = ModelSpec((Part("w", (650,), "float32", "parameter", "shared", 0),), activations=10)
    assert training_bytes(spec, samples=50, numbers=64, batch=10, message=2700) == 4 * (1950 + 200 + 3200) + 5400
    few = training_bytes(spec, samples=5, numbers=64, batch=10, message=0)
    assert few == 4 * (1950 + 100 + 320)


def test_activations_are_what_all_layers_give_for_a_sample() -> None:
    dense = Model(nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10)), (1, 8, 8))
    assert dense.spec.activations == 64 + 20 + 20 + 10
    conv = Model(nn.Sequential(nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 10)), (1, 8, 8))
    assert conv.spec.activations == 3 * 36 + 27 + 27 + 10


def test_what_is_counted_does_not_depend_on_a_resumption(tmp_path: Path) -> None:
    options: dict[str, Any] = {"rounds": 3, "checkpoint_every": 1, "availability": "diurnal"}
    whole = ran(tmp_path / "whole", **options).summary["devices_used"]
    ran(tmp_path / "parts", **options | {"rounds": 2})
    kept = replace(resumed(tmp_path / "parts" / "run"), rounds=3, out=str(tmp_path / "parts" / "run"))
    assert run(kept, resume=True).summary["devices_used"] == whole


def test_pauses_between_rounds_cost_nothing_and_those_away_are_not_there(tmp_path: Path) -> None:
    (folder := tmp_path / "a").mkdir()
    (folder / "trace.csv").write_text("client,start_s,end_s\n0,0,9999\n1,0,9999\n2,0,9999\n3,5000,9999\n")
    result = ran(folder, availability=f"{folder / 'trace.csv'}@3600")
    lengths = [line["virtual_seconds"] - line["began_virtual_seconds"] for line in result.rounds]
    assert result.rounds[1]["began_virtual_seconds"] - result.rounds[0]["virtual_seconds"] == 3600
    there = sum(one["there_s"] for one in result.summary["devices_used"].values())
    assert there == pytest.approx(4 * result.summary["set_up"]["virtual_seconds"] + 3 * sum(lengths))


@pytest.mark.parametrize("name", few(SYSTEMS, {"fedavg", "fedasync", "fedcaprivacy", "oort"}))
def test_every_system_follows_a_trace_and_counts_its_devices(name: str, tmp_path: Path) -> None:
    """client/5 is away for the first hour: no message reaches it in round 1, and all runs end."""
    (tmp_path / "trace.csv").write_text(
        "client,start_s,end_s\n" + "".join(f"{i},{3000 if i == 5 else 0},9000\n" for i in range(6))
    )
    given: dict[str, Any] = {"max_epochs": 1, **({"clusters": 3} if name in ("fedcaprivacy", "mingledpie") else {})}
    given |= {"participation": 1.0} if "participation" in field_types(SYSTEMS[name].config) else {}
    options: dict[str, Any] = {"clients": 6, "rounds": 2, "partition": "iid", "samples": 120, "delta": 0.0}
    options["model"] = model_for(name)
    trace = f"{tmp_path / 'trace.csv'}@3600"
    options |= {"crypto": "emulated", "availability": trace, "devices": "jetson", "out": str(tmp_path / "o")}
    result = run(RunConfig(name, settings=given, **options))
    first, second = result.rounds
    assert first["virtual_seconds"] < 3000 < 3600 <= second["began_virtual_seconds"]
    reached = {what.split()[0] for what, why in first["lost"].items() if why == "offline"}
    assert reached <= {"client/5"}
    asked = [seen for seen in first["message_bytes"] if "> client" in seen or "> device" in seen]
    assert reached or not asked
    assert not second["lost"]
    used = result.summary["devices_used"]
    assert sum(one["clients"] for one in used.values()) == 6
    assert all(one["compute_s"] >= 0 and one["joules"]["idle"] >= 0 for one in used.values())


# -- the report --------------------------------------------------------------------------------------------------------

USED = {
    "clients": 4,
    "compute_s": 8.0,
    "radio_s": 2.0,
    "there_s": 40.0,
    "joules": {"compute": 80.0, "radio": 0.4, "idle": 140.0},
    "peak_memory_bytes": 3_000_000,
    "memory_gib": 0.001,
}


def folder(tmp_path: Path, used: Any) -> Path:
    out = write_run(tmp_path / "run", clients=6, rounds=4)
    content = json.loads((out / "result.json").read_text())
    (out / "result.json").write_text(json.dumps(content | {"devices_used": used}))
    return out


def test_a_row_has_the_means_of_a_type(tmp_path: Path) -> None:
    (row,) = tables.device_table(load.load(folder(tmp_path, {"A": USED})).result.devices_used)
    assert (row["name"], row["clients"], row["compute_s"], row["radio_s"], row["there_s"]) == ("A", 4, 2.0, 0.5, 10.0)
    assert row["joules"] == pytest.approx([20.0, 0.1, 35.0, 55.1])
    assert not row["fits"]


def test_the_report_shows_types_and_says_that_all_is_nominal(tmp_path: Path) -> None:
    page = render([folder(tmp_path, {"A<b>": USED})]).read_text()
    assert "What it cost the devices" in page
    assert "nothing was measured on a device." in page
    for shown in ("A&lt;b&gt;", ">20.0 J<", ">3.00 MB (it has 1.07 MB)<"):
        assert shown in page.replace("\u202f", " ")
    assert "What it cost the devices" not in render([folder(tmp_path / "old", None)]).read_text()


@pytest.mark.parametrize("wrong", [{"clients": 0}, {"compute_s": -1.0}, {"joules": {"compute": 1.0}}, {"radio_s": "a"}])
def test_a_crafted_result_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"result\.json"):
        load.load(folder(tmp_path, {"A": USED | wrong}))


def test_energy_in_words() -> None:
    shown = [words.energy(value) for value in (0.0, 0.0412, 1.5, 1410.0, 2.5e6, 3e9)]
    assert shown == ["0.00 mJ", "41.2 mJ", "1.50 J", "1.41 kJ", "2.50 MJ", "3.00 GJ"]
    assert words.energy(None) == words.MISSING


def test_a_run_s_lines_have_the_counters(tmp_path: Path) -> None:
    ran(tmp_path, devices="jetson")
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    names = {profile.name for profile in fleet("jetson", 4, 0)}
    assert {key.split("/")[0] for key in lines[0]["device_seconds"]} == names == set(lines[0]["device_messages"])
