"""What CONTRIBUTING.md says suffices: the additions beside this file are all that was written for them, and work."""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from math import nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from command import Command
from federation import Rig, misbehaving, planted, rig

import coterie
import coterie.method as fl
from coterie.clustering.histograms import density_clusters, hellinger

from .contributing import fedadagrad, nearest_leader, told_loss
from .contributing.loss_audit import told_losses
from .contributing.one_way import one_way

HERE = Path(__file__).parent / "contributing"
MODULE = told_loss.__package__
TARGETS = planted([0, 0, 1, 1, 2], 40)

ADDITIONS: dict[str, tuple[int, list[str]]] = {
    "a server rule": (35, ["fedadagrad.py"]),
    "a clustering rule": (30, ["nearest_leader.py"]),
    "a message and its handlers": (20, ["told_loss.py: Told Client Server"]),
    "an attack by a client": (10, ["one_way.py"]),
    "an attack on views": (10, ["loss_audit.py: told_losses AUDIT", "told_loss.py: audit=AUDIT"]),
}
"""By addition the most lines, and the files that it touches: all of each, or what it names there."""

# -- how much it is ----------------------------------------------------------------------------------------------------


def written(text: str) -> dict[str, int]:
    """By definition at the top of a module its lines, with decorators, docstrings and blanks; by ``key=value`` one."""
    found = dict.fromkeys((line.strip(" ,") for line in text.splitlines()), 1)
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found[node.name] = node.end_lineno - min(one.lineno for one in (node, *node.decorator_list)) + 1
        elif isinstance(node, ast.Assign):
            found[ast.unparse(node.targets[0])] = node.end_lineno - node.lineno + 1
    return found


def lines(file: str) -> int:
    name, _, parts = file.partition(": ")
    text = (HERE / name).read_text()
    known = written(text)
    return sum(known[part] for part in parts.split()) if parts else len(text.splitlines())


@pytest.mark.parametrize("addition", ADDITIONS)
def test_an_addition_is_short(addition: str) -> None:
    most, files = ADDITIONS[addition]
    assert 1 <= len(files) <= 2
    assert 0 < sum(map(lines, files)) <= most


def test_nothing_else_was_written_for_them() -> None:
    """All files count, and they import the library, and of each other only what one addition touches."""
    files = {file.partition(":")[0] for _, touched in ADDITIONS.values() for file in touched}
    assert {path.name for path in HERE.glob("*.py")} == files | {"__init__.py"}
    assert not (HERE / "__init__.py").read_text()
    imports = [(name, node) for name in files for node in ast.walk(ast.parse((HERE / name).read_text()))]
    own = {(name, node.module) for name, node in imports if isinstance(node, ast.ImportFrom) and node.level}
    assert own == {("told_loss.py", "loss_audit")}


def test_lines_are_counted_as_they_are_read() -> None:
    text = 'X = f(\n    y=1,\n)\n\n\n@mark\n@other\nclass C:\n    """One."""\n\n    def g(self):\n        return 1\n'
    assert {name: written(text)[name] for name in ("X", "y=1", "C")} == {"X": 3, "y=1": 1, "C": 7}


# -- what it does ------------------------------------------------------------------------------------------------------


def test_adagrad_takes_the_papers_steps() -> None:
    made = rig(fedadagrad.SYSTEM, TARGETS)
    w, v = made.models()[0].astype(np.float64), np.zeros(40)
    for r in (1, 2, 3):
        made.round(r)
        change = 0.5 * (TARGETS.mean(axis=0) - w)
        v += change**2
        w += 0.1 * change / (np.sqrt(v) + 1e-3)
        assert np.abs(made.models() - w).max() < 1e-5


def test_leaders_find_planted_groups_and_make_no_chains() -> None:
    groups = [0, 1, 0, 2, 1, 2, 0, 1, 2]
    draw, classes = np.random.default_rng(0), np.kron(np.eye(3), np.ones(3)) * 0.25 + 0.25 / 9
    histograms = np.stack([draw.multinomial(300, classes[k]) for k in groups])
    assert nearest_leader.leaders(hellinger(histograms), 0.35).tolist() == groups
    chain = 0.3 * np.abs(np.subtract.outer(np.arange(5), np.arange(5)))
    assert density_clusters(chain, "dbscan", 0.35).tolist() == [0, 0, 0, 0, 0]
    assert nearest_leader.leaders(chain, 0.35).tolist() == [0, 0, 1, 1, 2]


def telling(*rounds: list[float]) -> Rig:
    """A federation whose clients say that they had these losses in round 1, 2, ..."""
    made = rig(told_loss.SYSTEM, TARGETS)
    for i in range(len(TARGETS)):
        says = lambda party, msg, told, i=i: msgspec.structs.replace(told, loss=rounds[msg.round - 1][i])  # noqa: E731
        misbehaving(made.party(f"client/{i}"), fl.Train, says)
    return made


def test_the_server_notes_the_mean_of_the_losses_that_it_is_sent() -> None:
    made = telling([0.0, 1.0, 2.0, 4.0, 8.0])
    assert made.round(1)["mean_loss"] == 3.0
    came = {
        seen.src: seen.message.loss for seen in made.view("server").seen if isinstance(seen.message, told_loss.Told)
    }
    assert came == {f"client/{i}": loss for i, loss in enumerate([0.0, 1.0, 2.0, 4.0, 8.0])}
    assert np.allclose(made.models(), (made.common.initial + TARGETS.mean(axis=0)) / 2, atol=1e-6)


@pytest.mark.parametrize("loss", [nan, float("inf"), -1.0])
def test_an_impossible_loss_is_refused(loss: float) -> None:
    made = telling([0.0, loss, 2.0, 4.0, 8.0])
    notes = made.round(1)
    assert (notes["participants"], notes["mean_loss"]) == (4, 3.5)


def test_losses_rank_clients_by_the_variety_of_their_labels() -> None:
    """Client i has i + 1 classes. In round 2 two neighbours are in the wrong order: 1 - 6 (1 + 1) / (5 (25 - 1))."""
    made = telling([0.0, 1.0, 2.0, 4.0, 8.0], [0.0, 1.0, 2.0, 8.0, 4.0])
    made.rounds(2)
    run: Any = SimpleNamespace(
        federation=made.federation,
        views={made.federation.hub: made.view(made.federation.hub)},
        label_counts=np.tri(5, dtype=np.int64),
        numbers=lambda names: [int(name.removeprefix("client/")) for name in names],
    )
    (finding,) = told_losses(run)
    assert [result.value for result in finding.results] == pytest.approx([1.0, 0.9])


def test_an_attacker_goes_its_own_way() -> None:
    start = np.array([1, 2, 3, 4], np.float32)
    fit = fl.Fit(start, fl.Sgd(0.1, 1), 1, 0)
    trained = one_way(None, fit, 5.0)
    assert next(trained) is fit
    with pytest.raises(StopIteration) as ended:
        trained.send(fl.Fitted(np.array([1, 4, 3, 2], np.float32), 7, 1, 0.5))
    assert ended.value.value.weights.tolist() == [6, 7, 8, 9]
    assert ended.value.value.samples == 7


# -- by name -----------------------------------------------------------------------------------------------------------


def notes(folder: str | Path) -> list[Any]:
    return [json.loads(line)["notes"] for line in Path(folder, "metrics.jsonl").read_text().splitlines()]


def test_methods_are_compared(tmp_path: Path) -> None:
    adagrad, leaders = f"{MODULE}.fedadagrad:SYSTEM", f"{MODULE}.nearest_leader:SYSTEM"
    options: dict[str, Any] = {"clients": 6, "rounds": 2, "partition": "labelsets:3", "out": tmp_path / "race"}
    own = {f"{leaders}.epsilon": float("inf")}
    coterie.compare([adagrad, leaders], seeds=1, local=False, progress=False, settings=own, **options)
    first, second = (tmp_path / "race" / f"{name.replace(':', '_')}-0" for name in (adagrad, leaders))
    assert [note["participants"] for note in notes(first)] == [6, 6]
    assert notes(second)[-1]["clusters"]["sizes"] == [2, 2, 2]


def test_a_run_is_attacked_and_audited(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.report.run_view.figures", lambda *_: defaultdict(lambda: None))
    options = ["--clients", "4", "--rounds", "2", "--attack", f"{MODULE}.one_way:one_way:3", "--record"]
    ended = cli("run", f"{MODULE}.told_loss:SYSTEM", *options, "--out", "seen", "--quiet")
    assert ended.code == 0, ended.err
    assert list(json.loads(Path("seen/result.json").read_text())["poisoned"].values()) == [2]
    assert all(note["mean_loss"] > 0 for note in notes("seen"))
    audit = json.loads(cli("audit", "seen", "--json").out)
    assert "server: variety of labels, by losses" in [one["name"] for one in audit["attacks"]]
