"""One page for those who answer for the data: what left, how private, what attacks found, and whether it helps."""

from __future__ import annotations

import json
import re
import shutil
from html import unescape
from pathlib import Path

import pytest
from typer.testing import CliRunner

import coterie
from coterie.cli.app import app
from coterie.protocol.errors import UserError
from coterie.report.statement import statement
from coterie.report.words import leak_halves
from coterie.runs.audited import kept
from coterie.runs.findings import merged, noise


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared") / "all"
    coterie.compare(["fedavg"], data="heart", seeds=1, rounds=1, record=True, audit=True, out=out, progress=False)
    return out


def test_a_page_says_it_all(compared: Path) -> None:
    page = statement(compared / "fedavg-0")
    result = json.loads((compared / "fedavg-0" / "result.json").read_text())
    assert page.startswith(
        "# Statement: FedAvg on heart\n\n4 clients trained a model together for 1 round, in a simulation"
    )
    assert "| server | Update | " in page
    assert f"{result['bytes_up_by_role']['client'] / 4:.0f} B from each client, on average" in page
    assert "- **server** learns every client's plain model and number of samples in every round, by name." in page
    assert "**This holds only if** all parties follow the protocol, and show nobody else what they see. " in page
    assert "**broker**" not in page
    assert "| all 4 clients | anybody who sees it all, and knows no server's noise | no proof | no proof |" in page
    assert "Counted: trained model and number of samples." in page
    assert "| server: models, as they are sent | everything | 1.00 ± 0.00 |" in page
    assert "## Does it help? AUROC on each client's own test samples, together against alone" in page
    (cleveland,) = [line for line in page.splitlines() if line.startswith("| cleveland | ")]
    assert " | fedavg, tuned or not | " in cleveland  # nobody has taken its fine-tuned model
    assert len(page.split()) < 800
    head = page.partition("## What left")[0]
    assert "In this simulation all files were on one computer" in head
    assert "Samples stayed" not in page
    assert "- cleveland: training together is " in head
    assert sum(line.endswith(" of AUROC, both tuned.") for line in head.splitlines() if line.startswith("- ")) == 4
    assert sum(line.startswith("- ") for line in head.splitlines()) == 4


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With two seeds."""
    out = tmp_path_factory.mktemp("twice") / "all"
    coterie.compare(["fedavg"], data="heart", seeds=2, rounds=1, record=True, audit=True, out=out, progress=False)
    return out


def test_attacks_are_over_the_seeds_of_the_gains_and_the_page_says_which(twice: Path, tmp_path: Path) -> None:
    over = "are over the runs with the seeds 0, 1, all else is of the run with seed 1."
    page = statement(twice / "fedavg-1")
    assert f"Gains and attacks {over}" in page
    for row in merged([(kept(twice / f"fedavg-{seed}") or {})["attacks"] for seed in (0, 1)])[:12]:
        assert f"| {row['name']} | {row['verdict']} | {row['leak']:.2f} ± " in page
    shutil.copytree(twice, tmp_path / "all")
    result = tmp_path / "all" / "fedavg-0" / "result.json"
    result.write_text(json.dumps({**json.loads(result.read_text()), "audit": None}))
    page = statement(tmp_path / "all" / "fedavg-1")
    assert f"Gains {over}" in page
    for row in (kept(twice / "fedavg-1") or {})["attacks"][:12]:
        assert f"| {row['name']} | {row['verdict']} | {row['leak']:.2f} ± " in page
    shutil.rmtree(result.parent)  # a run is handed on beside its comparison
    assert "are over the runs" not in statement(tmp_path / "all" / "fedavg-1")


def test_gains_by_seed_are_those_of_the_run(tmp_path: Path) -> None:
    """Without names a seed has clients of its own."""
    options = {"samples": 300, "clients": 3, "rounds": 1, "model": "linear", "progress": False}
    coterie.compare(["fedavg"], "digits", seeds=2, out=tmp_path / "all", **options)
    page = statement(tmp_path / "all" / "fedavg-1")
    assert "are over the runs" not in page
    assert "- client/2, seed 1: training together" in page
    assert "seed 0" not in page


def test_an_interval_wider_than_the_scale_is_not_a_number_anywhere(twice: Path) -> None:
    found = coterie.audit(twice)
    least, *_, half = sorted(map(noise, found["methods"][0]["attacks"]))
    assert half > 1 > least
    printed = [CliRunner(env={"COLUMNS": str(width)}).invoke(app, ["audit", str(twice)]).output for width in (80, 180)]
    page = (twice / "report.html").read_text()
    texts = [statement(twice / "fedavg-0").replace("\\", ""), found._repr_html_(), page, *printed]
    for text in (unescape(re.sub("<svg.*?</svg>", "", of, flags=re.DOTALL)) for of in texts):
        assert ">1" in text
        assert f"{half:.2f}" not in text
    said = ">1: too few seeds or clients"
    assert [said in " ".join(unescape(of).split()) for of in texts] == [True, False, True, True, True]
    assert leak_halves([0.4, 1.0]) == "±: half of its 95 % interval, a smaller leak counts as chance"


def test_clients_alone_have_a_model_each_and_count_nothing(compared: Path) -> None:
    page = statement(compared / "local-0")
    assert "4 clients trained a model each for 1 round, " in page
    assert "Counted:" not in page


def test_what_would_have_been_possible_stands_after_what_was(compared: Path, tmp_path: Path) -> None:
    for name in ("result.json", "metrics.jsonl", "config.toml"):
        (tmp_path / name).write_text((compared / "fedavg-0" / name).read_text())
    result = json.loads((tmp_path / "result.json").read_text())
    first = result["audit"]["attacks"][0]
    again = {**first, "name": "helper, if groups were made twice: who is alike"}
    result["audit"]["attacks"] = [again, first]
    (tmp_path / "result.json").write_text(json.dumps(result))
    page = statement(tmp_path)
    real, possible = page.index(f"| {first['name']} |"), page.index("| helper, if groups")
    assert real < page.index("What would have been possible:") < possible


def test_what_is_not_known_is_said_with_the_command_that_helps(compared: Path, tmp_path: Path) -> None:
    for name in ("result.json", "metrics.jsonl", "config.toml"):
        (tmp_path / name).write_text((compared / "fedavg-0" / name).read_text())
    result = json.loads((tmp_path / "result.json").read_text())
    epsilon = {"replace one sample": 2.5}
    for i, one in enumerate(result["ledger"].values()):
        one["against"] = {"server": epsilon if i else {}}
    (tmp_path / "result.json").write_text(json.dumps({**result, "audit": None, "data": "a|b\n<b>"}))
    page = statement(tmp_path)
    assert r"# Statement: FedAvg on a\|b \<b\>" in page
    assert "This run was not attacked: record a simulation with `--record`, and use `coterie audit`." in page
    assert "was not compared: use `coterie compare`" in page
    assert "| client/1, client/2, client/3 | server | 2.5 | no proof |" in page
    assert "| client/0 | server | no proof | no proof |" in page
    assert ", the mean over the clients. Whether" in page
    (tmp_path / "views.bin").touch()
    deployment = {"reporting": [0, 1]}
    assert "Samples stayed" not in page
    for rehearsal in (True, False):
        told = {**result, "audit": None, "deployment": {**deployment, "rehearsal": rehearsal}}
        (tmp_path / "result.json").write_text(json.dumps(told))
        page = statement(tmp_path)
        assert ("This run was not attacked: use `coterie audit`." in page) == rehearsal
        assert ("was not compared: use `coterie compare`." in page) == rehearsal
        assert ("not attacked: nobody has what all its parties have received. Attack a simulation" in page) != rehearsal
        assert ("was not compared: nobody has the data of all. On data that may be" in page) != rehearsal
        assert ("Samples stayed where they were" in page) != rehearsal
        assert ", the mean over the 1 of 4 clients that report it. Whether" in page
    with pytest.raises(UserError, match="no such folder"):
        statement(tmp_path / "nothing")


def test_a_comparison_is_refused_with_the_runs_in_it(compared: Path) -> None:
    names = re.escape(f"{compared / 'fedavg-0'}, {compared / 'local-0'}")
    with pytest.raises(UserError, match=f"a statement is about one: give one of {names}$"):
        statement(compared)
