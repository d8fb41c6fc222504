"""Rounds that moved no model are skipped, in every system; a run of nothing else has no result."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ended import stop_at
from every_system import model_for
from matrix import few
from typer.testing import CliRunner

from coterie.cli.app import app
from coterie.protocol.errors import RunError
from coterie.protocol.system import Federation, Mixture, System
from coterie.record.folder import METRICS, RESULT, read_lines
from coterie.report import render
from coterie.runs import SYSTEMS, Experiment, RunConfig, build, load_result, run
from coterie.runs.digests import federation_digest
from coterie.runs.failures import AllSkippedError, check_not_all_skipped, why_still

MODES = [(name, mode) for name, of in SYSTEMS.items() for mode in of.modes]
QUICK = {("fedavg", "paper"), ("ofl", "hardened"), ("mingledpie", "literal"), ("fedepc", "paper"), ("pafed", "paper")}
NO_RESULT = "--delta", "1", "--partition", "iid", "--clients", "4"
LATE = RunConfig("fedavg_late", samples=300, clients=4, rounds=4, checkpoint_every=1, delta=1.0, delay="uniform:2-2")


def all_offline(made: Experiment) -> Callable[[], None]:
    """No client can be reached, until what this returns is called."""
    links: Any = made.transport.links
    links.fate = lambda party, round, request: "offline" if party in links.profiles else "ok"
    return lambda: links.__dict__.pop("fate")


@pytest.mark.parametrize(("name", "mode"), few(MODES, QUICK))
def test_a_round_without_clients_is_skipped_in_every_system(name: str, mode: str) -> None:
    """And the same round with clients is not, but where the system itself cannot move a model."""
    options: dict[str, Any] = {"mode": mode, "model": model_for(name, None), "crypto": "emulated"}
    config = RunConfig(name, samples=300, clients=6, rounds=2, delta=0.0, **options)
    made = build(config)
    made.set_up()
    back = all_offline(made)
    first = made.round(1)
    assert first["notes"]["skipped"]
    assert first["notes"].get("participants", 0) == 0
    back()
    second = made.round(2)
    assert second["notes"]["participants"] == second["notes"]["asked"]
    assert ("skipped" in second["notes"]) == ((name, mode) == ("mingledpie", "literal"))
    made.close()


# -- MingledPie's identity sets that mingle too alike ------------------------------------------------------------------


def pie(**options: Any) -> RunConfig:
    settings = {"clusters": 10, "start": "pretrained", **options.pop("settings", {})}
    given = {"clients": 60, "partition": "labelsets:10", "seed": 1, "rounds": 3, "crypto": "emulated", **options}
    return RunConfig("mingledpie", "digits", settings=settings, **given)


@pytest.mark.long
def test_identity_sets_of_a_large_condition_do_not_stop_the_training(tmp_path: Path) -> None:
    """Seed 1's first H has a condition number of 330: everybody used to keep its models in every round."""
    made = build(pie())
    made.set_up()
    starts = {name: np.array(model) for name, model in made.models().items()}
    for r in (1, 2, 3):
        notes = made.round(r)["notes"]
        assert notes["rebuilt"] == {"by": 60, "refused_by": 0}
        assert "skipped" not in notes
        seen = made.system.observe(made.federation)
        if r == 1:
            assert seen["condition"] == [pytest.approx(329.7, abs=0.1)] * 60
            assert min(seen["ridge"]) > 0
    assert all((model != starts[name]).any() for name, model in made.models().items())
    assert seen["identity_sets_drawn"] == [1] * 60  # nobody shows the server a second set
    made.close()


def test_a_run_of_skipped_rounds_ends_with_an_error_that_says_why(tmp_path: Path) -> None:
    """As printed, eq. (3) puts everybody everywhere. Clients choose other models from round to round; none is new."""
    out = tmp_path / "run"
    with pytest.raises(RunError, match="all 3 rounds were skipped, so there is no result: no model changed: the coeff"):
        run(pie(mode="literal", clients=20, out=str(out)))
    why = "no model changed: the coefficients' condition number is inf, above 30, so all models were kept"
    assert [line["notes"]["skipped"] for line in read_lines(out / METRICS)] == [why] * 3
    assert not (out / RESULT).exists()
    with pytest.raises(RunError, match="Rounds 1 to 3 are kept in"):
        run(pie(mode="literal", clients=20, out=str(out)), resume=True)


# -- runs --------------------------------------------------------------------------------------------------------------


def test_the_command_line_says_what_to_change(tmp_path: Path) -> None:
    out = tmp_path / "run"
    ran = CliRunner().invoke(app, ["run", "fedavg_drop", "--rounds", "2", "-q", "--out", str(out), *NO_RESULT])
    assert ran.exit_code == 1
    said = " ".join(ran.output.split())
    assert "all 2 rounds were skipped, so there is no result: no update came: 2 answers are late" in said
    assert "give clients more time (deadline_s" in said
    assert "--resume" not in said


def test_skipped_rounds_are_in_metrics_result_console_and_report(tmp_path: Path) -> None:
    """Every update is two rounds late, and then under way: rounds 1 to 3 move nothing."""
    out = tmp_path / "run"
    options = ["--delta", "1", "--delay", "uniform:2-2", "--clients", "4", "--partition", "iid"]
    ran = CliRunner().invoke(app, ["run", "fedavg_late", "--rounds", "4", "-q", "--out", str(out), *options])
    assert ran.exit_code == 0, ran.output
    skipped = load_result(out).summary["skipped"]
    assert list(skipped) == ["1", "2", "3"]
    assert all(why.startswith("no update came") for why in skipped.values())
    lines = read_lines(out / METRICS)
    assert [line["notes"].get("skipped") for line in lines] == [*skipped.values(), None]
    assert len({line["models_sha256"] for line in lines[:3]}) == 1
    assert lines[2]["models_sha256"] != lines[3]["models_sha256"]
    assert "3 of 4 rounds; round 1: no update came" in " ".join(ran.output.split())
    page = tmp_path / "report.html"
    render([out], page)
    assert "Skipped: 3" in page.read_text()
    assert skipped["1"] in page.read_text()


def test_it_is_seen_after_a_resume_and_in_rounds_that_are_not_evaluated(tmp_path: Path) -> None:
    late = replace(LATE, eval_every=4)
    whole = run(replace(late, out=str(tmp_path / "whole")))
    part = replace(late, out=str(tmp_path / "part"))
    with pytest.raises(OSError, match="stop"):
        run(part, stop_at(1, OSError("stop")))
    resumed = run(part, resume=True)
    assert [line["notes"] for line in resumed.rounds] == [line["notes"] for line in whole.rounds]
    assert ["skipped" in line["notes"] for line in whole.rounds] == [True, True, True, False]


def test_more_rounds_can_give_a_result(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    with pytest.raises(RunError, match="all 2 rounds were skipped"):
        run(replace(LATE, rounds=2, out=out))
    assert list(run(replace(LATE, out=out), resume=True).summary["skipped"]) == ["1", "2", "3"]


# -- what counts as moved ----------------------------------------------------------------------------------------------


class Party:
    """Stands for a hub: it has a name, a role and weights."""

    name = role = "hub"

    def __init__(self) -> None:
        self.weights = np.arange(6, dtype=np.float32).reshape(2, 3)
        self.choice = 0


@pytest.fixture
def watched() -> tuple[Party, Callable[..., System], Federation]:
    hub = Party()

    def system(models: Callable[[Federation], Any], pool: Any = None) -> System:
        return System("toy", "Toy", "none", dict, lambda *_: None, models, {}, pool=pool)  # type: ignore[arg-type,return-value]

    return hub, system, Federation({"hub": hub}, "hub", None, lambda name: hub, lambda name: hub)  # type: ignore[arg-type]


def test_one_bit_of_one_model_is_a_move_and_a_copy_is_none(watched: Any) -> None:
    hub, made, federation = watched
    system = made(lambda _: {"client/0": hub.weights[0], "client/1": hub.weights[1]})
    before = federation_digest(system, federation)
    hub.weights = hub.weights.copy()
    assert federation_digest(system, federation) == before
    hub.weights[1, 2] = np.nextafter(hub.weights[1, 2], np.float32(9))
    assert federation_digest(system, federation) != before


def test_a_client_that_chooses_another_model_moves_none(watched: Any) -> None:
    hub, made, federation = watched
    choosing = lambda _: {"client/0": hub.weights[hub.choice]}  # noqa: E731
    for system, moved in ((made(choosing), True), (made(choosing, lambda _: [hub.weights]), False)):
        hub.choice = 0
        before = federation_digest(system, federation)
        hub.choice = 1
        assert (federation_digest(system, federation) != before) == moved


def test_of_a_mixture_the_models_count(watched: Any) -> None:
    hub, made, federation = watched
    shares = np.array([0.5, 0.5])
    system = made(lambda _: {"client/0": Mixture(shares, hub.weights)})
    before = federation_digest(system, federation)
    shares[:] = 0.25, 0.75
    assert federation_digest(system, federation) == before
    hub.weights[0, 0] = 7
    assert federation_digest(system, federation) != before


# -- reasons -----------------------------------------------------------------------------------------------------------


def line(r: int = 1, **notes: Any) -> dict[str, Any]:
    return {"round": r, "refused": {}, "lost": {}, "late": [], "notes": notes}


@pytest.mark.parametrize(
    ("changed", "kept", "words"),
    [
        ({}, [], "no model changed"),
        ({"notes": {"asked": 0, "participants": 0}}, [], "nobody was asked"),
        ({"notes": {"asked": 3, "participants": 0}, "late": ["a", "b"]}, [], "no update came: 2 answers are late"),
        ({"notes": {"participants": 3}}, ["H is broken"], "no model changed: H is broken"),
        ({"refused": {"client/Train: no": 2, "csp/Cluster: why": 1}}, [],
         "no model changed: client/Train: no (2 times); csp/Cluster: why"),
        ({"refused": {"a": 1, "b": 2, "c": 3}, "lost": {"x": "offline", "y": "offline"}}, ["k"],
         "no model changed: k; c (3 times); b (2 times); and 2 more reasons"),
        ({"refused": {**{f"client/Train: client/{i} spent": 2 for i in range(240)}, "client/Train: no": 1}}, [],
         "no model changed: client/Train: client/0 spent (480 times); client/Train: no"),
    ],
)  # fmt: skip
def test_why_no_model_moved(changed: dict[str, Any], kept: list[str], words: str) -> None:
    assert why_still({**line(), **changed}, kept) == words


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([line(skipped="no x", participants=0)],
         r"^the only round was skipped, so there is no result: no x\. To get one, give clients more time"),
        ([line(skipped="no x", participants=3), line(2, skipped="no x")],
         r"^all 2 rounds were skipped, so there is no result: no x\. To get one, change the mode or the setting"),
        ([line(skipped="rare"), line(2, skipped="often"), line(3, skipped="often")], r"often \(2 of them for this"),
    ],
)  # fmt: skip
def test_nothing_but_skipped_rounds(lines: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(AllSkippedError, match=words):
        check_not_all_skipped(json.loads(json.dumps(lines)))


def test_one_round_that_moved_a_model_is_enough() -> None:
    check_not_all_skipped([line(skipped="x"), line(2, participants=0), line(3, skipped="x")])
    check_not_all_skipped([])
