"""Delays of an experiment: which clients are late, by how many rounds; an option of the run that every system obeys."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from every_system import model_for
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from coterie.cli.app import app
from coterie.devices.links import Delays, FleetLinks, delay_law
from coterie.protocol.errors import UserError
from coterie.protocol.randomness import rng
from coterie.protocols.local_training import asked_in, sample_clients
from coterie.record.folder import CONFIG, read_lines
from coterie.runs import SYSTEMS, Interrupted, RunConfig, build, from_toml, get, resolve, run
from coterie.runs.budget import plan
from coterie.runs.surroundings import delays_of

NAMES = tuple(f"client/{i}" for i in range(10))


def drawn_delays(names: tuple[str, ...], participation: float, share: float, law: str, seed: int) -> Delays:
    return Delays(lambda r: sample_clients(names, participation, seed, r), share, law, seed)


# -- the table --------------------------------------------------------------------------------------------------------


def owing_twin(delays: Delays, asked: tuple[str, ...], r: int) -> set[str]:
    """Who has not delivered what a round before r asked for, by looking at all of them."""
    return {name for name in asked if any(q + delays.of(q).get(name, 0) > r for q in range(1, r))}


@given(st.integers(0, 99), st.floats(0, 1), st.floats(0.1, 1), st.sampled_from(["uniform:1-5", "geometric:0.4"]))
def test_the_share_of_those_asked_is_late(seed: int, share: float, participation: float, law: str) -> None:
    delays = drawn_delays(NAMES, participation, share, law, seed)
    for r in range(1, 25):
        asked, late = sample_clients(NAMES, participation, seed, r), delays.of(r)
        owing = owing_twin(delays, asked, r)
        assert owing <= set(late) <= set(asked)
        assert len(late) == max(len(owing), round(share * len(asked)))
        assert all(rounds >= 1 for rounds in late.values())
        for name in owing:  # arrives with what it owes
            assert r + late[name] == max(q + delays.of(q)[name] for q in range(1, r) if name in delays.of(q))


def test_the_law_is_what_it_says() -> None:
    source = np.random.default_rng(1)
    for text, expected in (
        ("uniform:1-5", dict.fromkeys(range(1, 6), 0.2)),
        ("uniform:3", {3: 1.0}),
        ("uniform:2-3", {2: 0.5, 3: 0.5}),
        ("geometric:0.5", {k: 0.5**k for k in range(1, 5)}),
    ):
        law = delay_law(text)
        drawn = Counter(law(source) for _ in range(4000))
        for rounds, share in expected.items():
            assert drawn[rounds] / 4000 == pytest.approx(share, abs=0.03)
        if text.startswith("uniform"):
            assert drawn.keys() == expected.keys()


def test_delays_repeat_in_any_order_of_asking() -> None:
    one, other = (drawn_delays(NAMES, 0.5, 0.5, "uniform:1-5", 3) for _ in range(2))
    backwards = {r: other.of(r) for r in range(30, 0, -1)}
    assert all(one.of(r) == backwards[r] for r in range(1, 31))
    assert any(one.of(r) != drawn_delays(NAMES, 0.5, 0.5, "uniform:1-5", 4).of(r) for r in range(1, 31))


@pytest.mark.parametrize(
    "law",
    ["", "uniform", "uniform:0-3", "uniform:4-2", "uniform:1.5-2", "geometric:0", "geometric:1.5", "normal:2", "3"],
)
def test_laws_that_make_no_sense_are_refused(law: str) -> None:
    with pytest.raises(UserError, match="write uniform:A-B"):
        drawn_delays(NAMES, 0.5, 0.5, law, 0)


@pytest.mark.parametrize("share", [1.1, -0.1, float("nan")])
def test_shares_that_make_no_sense_are_refused(share: float) -> None:
    with pytest.raises(UserError, match="delta is the share of the clients asked"):
        drawn_delays(NAMES, 0.5, share, "uniform:1", 0)


def test_nobody_is_late_in_the_set_up() -> None:
    delays = drawn_delays(NAMES, 1.0, 1.0, "uniform:1-5", 0)
    links = FleetLinks({}, 0, delays)
    assert [links.rounds(name, 0) for name in NAMES] == [0] * 10
    assert all(links.rounds(name, 1) for name in NAMES)
    assert links.rounds("server", 1) == 0


def test_randomness_of_delays_is_that_of_the_seed_and_round_alone() -> None:
    """A known answer: runs repeat across versions only if the draws never change."""
    source = rng(7, "network", "delays", 1)
    asked = sample_clients(NAMES, 1.0, 7, 1)
    places = source.choice(10, 3, replace=False)
    expected = {asked[place]: int(source.integers(1, 5, endpoint=True)) for place in places}
    assert drawn_delays(NAMES, 1.0, 0.3, "uniform:1-5", 7).of(1) == expected


# -- every system ------------------------------------------------------------------------------------------------------

QUICK = ("fedavg", "scaffold", "fedcaprivacy", "mingledpie", "fedepc", "pafed", "rfl_ha")
MODES = [
    pytest.param(name, mode, marks=() if mode == "paper" and name in QUICK else pytest.mark.long, id=f"{name}-{mode}")
    for name, of in SYSTEMS.items()
    for mode in of.modes
]
ROUNDS = 3


def lines_of(config: RunConfig) -> list[dict[str, Any]]:
    """The set-up and all rounds, without what takes real time."""
    made = build(config)
    lines = [made.set_up(), *(made.round(r) for r in range(1, ROUNDS + 1))]
    made.close()
    real = {"seconds", "phase_seconds", "observing_seconds"}
    return [{key: value for key, value in line.items() if key not in real} for line in lines]


@pytest.mark.parametrize(("name", "mode"), MODES)
def test_every_system_obeys(name: str, mode: str) -> None:
    """Half of those asked are late in each round, as the table says; the run ends, and its numbers repeat."""
    given: dict[str, Any] = {"max_epochs": 1, **({"clusters": 3} if name in ("fedcaprivacy", "mingledpie") else {})}
    options: dict[str, Any] = {"clients": 6, "rounds": ROUNDS, "partition": "iid"}
    options["model"] = model_for(name)
    config = resolve(RunConfig(name, mode=mode, crypto="emulated", delta=0.5, settings=given, **options))
    set_up, *lines = lines_of(config)
    assert set_up["late"] == []
    own = get(name).config(**config.settings)
    clients = tuple(f"client/{i}" for i in range(6))
    table = delays_of(config, clients, own)
    for r, line in enumerate(lines, 1):
        late, asked = set(table.of(r)), asked_in(clients, own, 0, r)
        assert set(line["late"]) <= late if own.selects else set(line["late"]) == late
        assert len(late) >= round(0.5 * len(asked)) > 0
        assert late <= set(asked)
    assert [set_up, *lines] == lines_of(config)


@pytest.mark.parametrize(
    "name",
    ["pafed", *(pytest.param(name, marks=pytest.mark.long) for name in ("fedcaprivacy", "mingledpie", "scaffold"))],
)
def test_a_run_resumes_with_delayed_answers_under_way(name: str, tmp_path: Path) -> None:
    config = RunConfig(
        name, samples=300, clients=6, rounds=3, partition="iid", model="linear", crypto="emulated", delta=0.5,
        checkpoint_every=1,
        settings={"max_epochs": 1, **({"clusters": 3} if name in ("fedcaprivacy", "mingledpie") else {})},
    )  # fmt: skip

    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 2:
            raise KeyboardInterrupt

    run(replace(config, out=str(tmp_path / "a")))
    with pytest.raises(Interrupted):
        run(replace(config, out=str(tmp_path / "b")), stop)
    run(replace(config, out=str(tmp_path / "b")), resume=True)
    a, b = (
        [(line["models_sha256"], line["late"], line["lost"]) for line in read_lines(tmp_path / out / "metrics.jsonl")]
        for out in "ab"
    )
    assert a == b
    assert any("too late" in lost.values() for _, _, lost in a) or name == "pafed"


def test_a_system_whose_settings_say_nothing_of_it_has_all_its_clients_asked() -> None:
    config = resolve(RunConfig("fedavg", delta=0.5))
    table = delays_of(config, NAMES, SimpleNamespace())
    assert [len(table.of(r)) for r in (1, 2)] == [5, 5]
    assert all(table.of(r) == drawn_delays(NAMES, 1.0, 0.5, "uniform:1-5", 0).of(r) for r in range(1, 20))


def test_those_who_have_not_joined_are_not_late() -> None:
    """And half of the rest are."""
    joining = RunConfig("fedavg", delta=0.5, settings={"founders": 4, "newcomers": 2, "join_every": 2})
    config = resolve(joining)
    table = delays_of(config, NAMES, get("fedavg").config(**config.settings))
    for r, here in ((1, 4), (2, 4), (3, 6), (5, 8)):
        assert set(table.of(r)) <= set(NAMES[:here])
        assert len(table.of(r)) >= here // 2


# -- options of the run ------------------------------------------------------------------------------------------------


def test_what_nobody_says_is_up_to_the_system() -> None:
    late = {name for name, system in SYSTEMS.items() if resolve(RunConfig(name)).delta}
    assert {resolve(RunConfig(name)).delta for name in late} == {0.3}
    assert late == {
        "pafed", "ca2fl", "fedadmm", "fedasync", "fedbuff", "fedavg_drop", "fedavg_late", "fedavg_stale",
        "fedprox_drop", "fedprox_stale",
        "time_weighted",
    }  # fmt: skip
    assert resolve(RunConfig("pafed")).delay == "uniform:1-5"
    assert resolve(RunConfig("pafed", delta=0.0)).delta == 0.0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"delta": 1.5}, r"option 'delta' must lie in \[0, 1\], not 1.5"),
        ({"delta": -0.1}, r"must lie in \[0, 1\], not -0.1"),
        ({"delta": float("nan")}, "option 'delta'"),
        ({"delta": 0.5, "delay": "sometimes"}, "delay 'sometimes': write uniform:A-B"),
        ({"delta": 0.5, "delay": "uniform:0-2"}, "write uniform:A-B"),
        ({"delay": "geometric:0.5"}, "delay=geometric:0.5 has no effect with delta=0: give delta"),
        (
            {"settings": {"delta": 0.5}},
            "delta is no setting of fedavg but an option of the run: give --delta, or write",
        ),
        ({"settings": {"data_dir": "x"}}, "data_dir is no setting of fedavg .* --data-dir"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(options: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        resolve(RunConfig("fedavg", **options))


def test_the_command_line_takes_them_and_sends_set_on_its_way(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["run", "scaffold", "--clients", "4", "--rounds", "2", "--partition", "iid", "--model", "linear", "-q"]
    ran = CliRunner().invoke(app, [*words, "--delta", "0.5", "--delay", "uniform:1", "--out", str(out)])
    assert ran.exit_code == 0, ran.output
    assert [len(line["late"]) for line in read_lines(out / "metrics.jsonl")] == [2, 2]
    config = from_toml(out / CONFIG)
    assert (config.delta, config.delay) == (0.5, "uniform:1")
    for command in ("run", "compare"):
        wrong = CliRunner().invoke(app, [command, "pafed", "--set", "delta=0.5"])
        assert wrong.exit_code == 2
        assert "delta" in wrong.output
        assert "give --delta" in " ".join(wrong.output.split())
        assert "--delay" in CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output


def test_they_are_part_of_a_comparison_s_budget() -> None:
    """Of the first method, whatever the others would have; no method can have its own."""
    digits = {"data": "digits", "clients": 6, "rounds": 2}
    for first, share in (("pafed", 0.3), ("scaffold", 0.0)):
        planned = plan(dict.fromkeys((first, "pafed", "mingledpie", "scaffold")), digits, {})
        assert {config.delta for config in planned.methods.values()} == {share}
    planned = plan(["fedavg", "pafed"], {**digits, "delta": 0.5, "delay": "geometric:0.5"}, {})
    assert {config.delay for config in planned.methods.values()} == {"geometric:0.5"}
    assert planned.budget is not None
    assert (planned.budget["delta"], planned.budget["delay"]) == (0.5, "geometric:0.5")
    for key, whose in (("delta", "these methods"), ("pafed.delta", "pafed"), ("pafed.delay", "pafed")):
        option = key.rpartition(".")[2]
        with pytest.raises(UserError, match=f"^{option} is no setting of {whose} but an option of the run: give --"):
            plan(["fedavg", "pafed"], digits, {key: "0.5"})
