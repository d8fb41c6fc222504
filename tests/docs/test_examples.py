"""The Python of the pages runs, and prints what they say; every notebook is committed without outputs: ``make docs``
executes it, and ``test_site.py`` looks at its outputs.
"""

from __future__ import annotations

import json
import re
import shlex
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command import Command

import coterie
from coterie.operate.folder import Folder, current_plan
from coterie.training.models import build

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOKS = DOCS / "notebooks"


def page(name: str) -> tuple[str, list[str]]:
    """The page, and its Python."""
    text = (DOCS / f"{name}.md").read_text()
    return text, re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def run(code: str, name: str = "example", **given: Any) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": name, **given}
    exec(compile(code, name, "exec"), names)
    return names


def test_clustering() -> None:
    _, (code,) = page("clustering")
    run(code)


def test_deploy(cli: Command) -> None:
    """The operator's files found a deployment, of the system and the groups that the page on practice comes from."""
    text, _ = page("deploy")
    for name, content in re.findall(r"```toml\n# (\w+\.toml)\n(.*?)```", text, re.DOTALL):
        Path(name).write_text(content)
    (words,) = re.findall(r"^coterie (deploy init .*)$", text, re.MULTILINE)
    ended = cli(*shlex.split(words))
    assert (ended.code, ended.err) == (0, "")
    found = current_plan(Folder(Path("study"))).resolved
    assert f"coterie compare {found.system} " in page("start_practice")[0]
    assert f"--set clusters={found.settings['clusters']}" in page("start_practice")[0]


@pytest.mark.long
def test_detection(capsys: pytest.CaptureFixture[str]) -> None:
    _, (code,) = page("detection")
    run(code)
    assert capsys.readouterr().out.strip().endswith(" 0]")


def test_resources(capsys: pytest.CaptureFixture[str]) -> None:
    text, (code,) = page("resources")
    run(code)
    assert f"This prints `{capsys.readouterr().out.strip()}`" in text


def test_selection(capsys: pytest.CaptureFixture[str]) -> None:
    text, (code, turns) = page("selection")
    run(turns)
    assert f"# {', '.join(capsys.readouterr().out.splitlines())}\n" in turns
    run(code)
    chosen, reason = capsys.readouterr().out.splitlines()
    assert chosen == "(0, 2)"
    assert f"`{reason}`" in text


def test_privacy() -> None:
    code = "\n".join([*page("privacy_uploads")[1], *page("privacy")[1]])
    names = run(code)
    said = re.findall(r"^(ledger\.\S+(?:\(.*?\))+) +# ([\d.]+)", code, re.MULTILINE)
    assert len(said) == 2
    said += re.findall(r"^((?:true_epsilon|claimed)\(.*\)) +# ([\d.]+)", code, re.MULTILINE)
    for expression, value in said:
        assert eval(expression, names) == pytest.approx(float(value), abs=0.05)
    assert names["z"] == pytest.approx(1.08, abs=0.005)
    assert len(names["sent"].releases) == 44


def test_models(cli: Command, capsys: pytest.CaptureFixture[str]) -> None:
    text, (code,) = page("models")
    (commands,) = re.findall(r"```\n(coterie .*?)```", text, re.DOTALL)
    run(code)
    clients, found, *_, alone = capsys.readouterr().out.splitlines()
    assert clients == str(tuple(f"client/{i}" for i in range(6)))
    assert found == alone
    ended = [cli(*shlex.split(line)[1:]) for line in commands.splitlines()]
    assert [one.code for one in ended] == [0, 0, 0]
    assert Path("client_3.safetensors").read_bytes() == Path("three.safetensors").read_bytes()
    assert Path("labels.csv").read_text() == ended[1].out
    assert [line.split(",")[0] for line in ended[1].out.splitlines()[1:]] == found.strip("[]").split()


@pytest.fixture
def one_round(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Runs of Python have one round, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(coterie, "run", partial(coterie.run, rounds=1, progress=False))


def visits(count: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {"age": rng.normal(60, 9, count), "dose": rng.normal(3, 1, count), "label": rng.integers(0, 2, count)}


def arrays(table: dict[str, Any]) -> tuple[Any, Any]:
    return np.stack([table["age"], table["dose"]], axis=1), table["label"]


def written(path: Path, *tables: dict[str, Any]) -> None:
    rows = [row for table in tables for row in zip(*table.values(), strict=True)]
    path.write_text("\n".join(",".join(map(str, row)) for row in [tuple(tables[0]), *rows]) + "\n")


@pytest.mark.usefixtures("one_round")
def test_data() -> None:
    (x1, y1), (x2, y2) = arrays(visits(60, 0)), arrays(visits(50, 1))
    both, (x, y) = visits(110, 2), arrays(visits(240, 3))
    frame = {
        "age": both["age"],
        "dose": both["dose"],
        "diagnosis": both["label"],
        "site": ["north"] * 60 + ["east"] * 50,
    }
    (code,) = page("data")[1]
    run(code, x1=x1, y1=y1, x2=x2, y2=y2, frame=frame, x=x, y=y)


@pytest.mark.usefixtures("one_round")
def test_tasks() -> None:
    Path("hospitals").mkdir()
    for seed, name in enumerate(("a", "b", "c")):
        written(Path("hospitals", f"{name}.csv"), visits(60, seed))
    costs = [{**visits(60, seed), "site": [seed] * 60} for seed in range(4)]
    written(Path("visits.csv"), *({("cost" if of == "label" else of): one[of] for of in one} for one in costs))
    (code,) = page("tasks")[1]
    run(code, coterie=SimpleNamespace(run=partial(coterie.run, rounds=1, crypto="emulated")))


def test_practice_with_few_who_are_ill(cli: Command) -> None:
    """Three tables with gaps and 6 % of one label, by the page's command."""
    rng = np.random.default_rng(4)
    Path("hospitals").mkdir()
    for name in ("a", "b", "c"):
        table = visits(150, len(name)) | {"sex": rng.choice(["f", "m"], 150), "smoker": rng.choice(["no", "yes"], 150)}
        gaps = rng.random(150) < 0.1
        dose = ["" if gap else value for gap, value in zip(gaps, table.pop("dose"), strict=True)]
        ill = (np.arange(150) % 17 == 3).astype(int)
        del table["label"]
        table["age"] += 12 * ill
        written(Path("hospitals", f"{name}.csv"), {**table, "dose": dose, "diagnosis": ill})
    (command,) = re.findall(r"```\n(coterie compare [^`]*--class-weights[^`]*)```", page("start_practice")[0])
    words = [*shlex.split(command.replace("\\\n", ""))[1:], "--seeds", "1", "--rounds", "2"]
    ended = cli(*words, "--out", "c")
    assert ended.code == 0, ended.err
    assert "make one group" not in ended.err
    measures = [one["name"] for one in json.loads(Path("c/compare.json").read_text())["measures"]]
    assert measures == ["auroc", "average_precision", "recall", "accuracy"]
    result = json.loads(Path("c/coterie-0/result.json").read_text())
    assert (result["skipped"], result["rounds_done"]) == ({}, 2)


def test_features() -> None:
    model = build("mlp_small", (1, 8, 8), 10)
    x = np.random.default_rng(0).normal(size=(6, 1, 8, 8)).astype(np.float32)
    (code,) = page("features")[1]
    s = run(code, model=model, weights=model.initial(0), x=x)["s"]
    assert (s.shape[0], s.min() >= 0, s.max() <= 1) == (6, True, True)


def test_the_python_of_every_page_runs_in_a_test() -> None:
    here = set(re.findall(r'page\("(\w+)"\)\[1\]|\) = page\("(\w+)"\)', Path(__file__).read_text()))
    elsewhere = {"extending", "from_others", "own_system"}  # test_extending.py, rigs/own_system.py
    found = {path.stem for path in DOCS.rglob("*.md") if "```python\n" in path.read_text()}
    assert found == {name for pair in here for name in pair if name} | elsewhere


def cells(path: Path, kind: str) -> list[str]:
    return ["".join(one["source"]) for one in json.loads(path.read_text())["cells"] if one["cell_type"] == kind]


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_clean(path: Path) -> None:
    content = json.loads(path.read_text())
    assert (content["nbformat"], content["metadata"]["kernelspec"]["name"]) == (4, "python3")
    assert set(content["metadata"]) == {"kernelspec", "language_info"}
    for cell in content["cells"]:
        assert cell["metadata"] == {}  # a tag could keep a cell from being executed
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
    assert len({cell["id"] for cell in content["cells"]}) == len(content["cells"])
    for target in re.findall(r"\]\((?!http)([^)#]+)", "\n".join(cells(path, "markdown"))):
        assert (NOTEBOOKS / target).exists(), target


def test_an_own_method_has_25_lines() -> None:
    own = cells(NOTEBOOKS / "5_your_own_method.ipynb", "code")
    first = next(cell for cell in own if cell.startswith("%%writefile"))
    assert len(first.splitlines()) - 1 <= 25
