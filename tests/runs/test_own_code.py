"""A run goes on with the code that it began with: edited modules of one's own are named, and nobody else's count."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coterie.protocol.errors import UserError
from coterie.runs import RunConfig, build, load_result, resolve, run
from coterie.runs.budget import plan
from coterie.runs.comparison import compare
from coterie.runs.own_code import check_same_code, own_code, with_code

FAST = {"data": "digits", "clients": 3, "partition": "iid", "fine_tune": "no", "samples": 200}
FILES = {
    "mymethod.py": """
from dataclasses import replace
import numpy, torch
import mytools
from coterie.baselines import fedavg

SYSTEM = replace(fedavg.SYSTEM, name="mymethod", title=mytools.TITLE)
""",
    "mytools.py": """
TITLE = "My method"

def later():
    from mypackage.deep import VALUE
    return VALUE
""",
    "mypackage/__init__.py": "",
    "mypackage/deep.py": "from . import deeper\nVALUE = 1\n",
    "mypackage/deeper.py": "",
    "mypackage/unused.py": "",
    "mymetric.py": "def hits(labels, scores):\n    return float((scores.argmax(1) == labels).mean())\n",
    "mymodel.py": """
from torch import nn

def width():
    return 5

def small(input_shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width()), nn.Linear(width(), outputs))
""",
    "myloss.py": """
from torch.nn.functional import cross_entropy

def mine(outputs, labels):
    return cross_entropy(outputs, labels)
""",
}
OPTIONS = {"model": "mymodel:small", "loss": "myloss:mine", "metrics": "accuracy,mymetric:hits"}
ALL = {"mymethod", "mytools", "mypackage", "mypackage.deep", "mypackage.deeper", "mymetric", "mymodel", "myloss"}


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with code of one's own, which is the working one."""
    (tmp_path / "mypackage").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text.replace("\\\n", "\n"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in ALL]:
        del sys.modules[name]


def begun(out: str, rounds: int = 1, **options: Any) -> RunConfig:
    config = RunConfig("mymethod:SYSTEM", **{**FAST, **OPTIONS, **options, "rounds": rounds, "out": out})
    run(config)
    return RunConfig(**{**vars(config), "rounds": rounds + 1})


def edit(path: Path, more: str = "\n# edited\n") -> None:
    path.write_text(path.read_text() + more)
    importlib.invalidate_caches()


def test_all_modules_of_ones_own_are_told_apart_and_no_others() -> None:
    found = own_code(resolve(RunConfig("mymethod:SYSTEM", **FAST, **OPTIONS, rounds=1)))
    assert set(found) == ALL
    assert all(len(digest) == 64 for digest in found.values())
    assert own_code(resolve(RunConfig("fedavg", **FAST, rounds=1))) == {}
    assert set(own_code(resolve(RunConfig("fedavg", **FAST, metrics="mymetric:hits", rounds=1)))) == {"mymetric"}


@pytest.mark.parametrize(
    ("file", "module"),
    [
        ("mymethod.py", "mymethod"),
        ("mytools.py", "mytools"),
        ("mypackage/deeper.py", r"mypackage\.deeper"),
        ("mymetric.py", "mymetric"),
        ("mymodel.py", "mymodel"),
        ("myloss.py", "myloss"),
    ],
)
def test_edited_code_is_no_code_to_go_on_with(mine: Path, file: str, module: str) -> None:
    goes_on = begun("runs/a")
    edit(mine / file)
    with pytest.raises(UserError, match=rf"has changed since this run was begun, in module '{module}', .*restore"):
        run(goes_on, resume=True)


def test_the_same_code_goes_on_and_so_does_what_was_restored(mine: Path) -> None:
    goes_on, before = begun("runs/a"), (mine / "mytools.py").read_text()
    edit(mine / "mytools.py")
    edit(mine / "mypackage" / "unused.py")
    with pytest.raises(UserError, match="in module 'mytools',"):
        run(goes_on, resume=True)
    (mine / "mytools.py").write_text(before)
    assert run(goes_on, resume=True).summary["rounds_done"] == 2
    assert set(load_result("runs/a").summary["own_code"]) == ALL


def test_several_modules_and_new_ones_are_all_named() -> None:
    with pytest.raises(UserError, match=r"^runs/a: .* in modules 'gone', 'new', 'other', "):
        check_same_code({"a": "1", "other": "1", "gone": "1"}, {"a": "1", "other": "2", "new": "1"}, "runs/a")
    check_same_code({"a": "1"}, {"a": "1"}, "runs/a")


def test_a_comparison_takes_no_result_of_other_code(mine: Path) -> None:
    planned = plan(["mymethod:SYSTEM"], {**FAST, "rounds": 1}, {})
    compare(planned, [0], "runs/race")
    compare(planned, [0], "runs/race", resume=True)
    edit(mine / "mytools.py")
    with pytest.raises(UserError, match="in module 'mytools'"):
        compare(planned, [0], "runs/race", resume=True)


def test_workers_must_have_the_same_code() -> None:
    experiment = build(RunConfig("mymethod:SYSTEM", **FAST, rounds=1))
    own = with_code(experiment.inputs_digest, experiment.own_code)
    assert own != with_code(experiment.inputs_digest, {**experiment.own_code, "mytools": "0"})
    experiment.close()
