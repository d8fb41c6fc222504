"""``import coterie``: options and settings alike, data and models as objects, results that can be used further."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import coterie
from coterie.data.own import from_python, packed, to_arrays
from coterie.protocol.errors import RunError, UserError
from coterie.runs.folder import resumed

Clients = dict[str, tuple[NDArray[Any], NDArray[Any]]]


@pytest.fixture
def clients() -> Clients:
    """Three clients whose labels one feature decides."""
    draw = np.random.default_rng(0)
    made = {}
    for name in ("north", "east", "west"):
        x = draw.normal(size=(40, 4))
        made[name] = x, np.where(x[:, 0] > 0, "ill", "well")
    return made


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def digests(result: coterie.Result) -> list[Any]:
    return [line["models_sha256"] for line in result.rounds]


def test_options_and_settings_are_keywords_alike(here: Path) -> None:
    result = coterie.run("fedavg", data="digits", lr=0.05, samples=300, clients=3, rounds=2, progress=False)
    config = resumed(result.folder)
    assert (config.clients, config.settings["lr"]) == (3, 0.05)
    again = coterie.run("fedavg", samples=300, clients=3, rounds=2, settings={"lr": 0.05}, progress=False)
    assert digests(again) == digests(result)


def test_a_run_and_its_audit_leave_the_report_as_their_commands_do(here: Path) -> None:
    options = {"samples": 300, "clients": 3, "rounds": 1, "model": "linear", "record": True}
    result = coterie.run("fedavg", **options, progress=False)
    page = result.folder / "report.html"
    assert "What the attacks found" not in page.read_text()
    assert page.read_bytes() == result.report().read_bytes()
    page.unlink()
    result.audit()
    assert "What the attacks found" in page.read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"client": 3}, "'client' is neither an option of a run nor a setting of fedavg; did you mean 'clients'"),
        ({"momentun": 0.9}, "did you mean 'momentum'"),
        ({"lr": 0.1, "settings": {"lr": 0.2}}, "setting 'lr' is given twice"),
        ({"rounds": "ten"}, "option 'rounds' must be a whole number"),
        ({"seed": "a"}, "option 'seed' must be a whole number"),
        ({"data": ([[0.0], [1.0]] * 20, [0, 1] * 20), "test_share": "0.2"}, "option 'test_share' must be a number"),
        ({"data": ([[0.0], [1.0]] * 20, [0, 1] * 20), "rounds": -1}, "option 'rounds' must be at least 1"),
        ({"by": "site"}, "by=site is for your own data at a path, and has no effect on digits"),
        ({"data": "hospitls", "by": "site"}, "and there is no folder 'hospitls' here"),
    ],
)
def test_names_that_are_neither_are_refused_before_anything_is_written(
    here: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        coterie.run("fedavg", **options)
    assert not list(here.iterdir())


def test_data_and_model_as_objects(here: Path, clients: Clients) -> None:
    result = coterie.run("fedavg", data=clients, model=small(), rounds=2, out="runs/a", progress=False, lr=0.1)
    assert result.summary["clients"] == 3
    assert json.loads((result.folder / "partition.json").read_text())["names"] == list(clients)
    (kept,) = (here / "runs" / "data").iterdir()
    longer = {"data": clients, "model": small(), "progress": False, "lr": 0.1}
    resumed_run = coterie.run("fedavg", rounds=3, out="runs/a", resume=True, **longer)
    whole = coterie.run("fedavg", rounds=3, out="runs/b", **longer)
    assert digests(resumed_run) == digests(whole)
    assert list((here / "runs" / "data").iterdir()) == [kept]  # the same data are one file


def test_the_same_arrays_are_one_file_and_others_another(clients: Clients) -> None:
    arrays = to_arrays(from_python(clients), "client", None, None)
    assert packed(arrays) == packed(arrays)
    assert packed({**arrays, "x_test": arrays["x_test"] + 1})[0] != packed(arrays)[0]


def test_data_are_written_whole_for_this_user_or_not_at_all(
    here: Path, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    options: dict[str, Any] = {"data": clients, "rounds": 1, "lr": 0.1, "progress": False}
    with monkeypatch.context() as patched:
        patched.setattr("os.replace", full)
        with pytest.raises(RunError, match="No space left"):
            coterie.run("fedavg", **options)
    assert not [path for path in here.rglob("*") if path.is_file()]
    first = coterie.run("fedavg", **options)
    (kept,) = (here / "runs" / "data").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-1])
    assert digests(coterie.run("fedavg", **options)) == digests(first)
    assert kept.read_bytes() == whole
    (here / "file" / "data").parent.mkdir()
    (here / "file" / "data").write_text("no folder")
    with pytest.raises(RunError, match=r"cannot write .*file/data"):
        coterie.run("fedavg", out="file/a", **options)


def test_a_comparison_writes_nothing_before_a_user_error(here: Path, clients: Clients) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"seeds": [0, 1]}, "seeds must be at least 1, not .*how many"),
        ({"seed": "a"}, "option 'seed' must be a whole number"),
        ({"rounds": -1}, "option 'rounds' must be at least 1"),
    ]
    for options, words in wrong:
        with pytest.raises(UserError, match=words):
            coterie.compare(["fedavg"], data=clients, **options)
    assert not list(here.iterdir())


def test_targets_in_a_list_keep_their_names_and_out_may_be_a_path(here: Path) -> None:
    draw = np.random.default_rng(0)
    table = {name: draw.normal(size=60) for name in ("age", "cost", "stay")}
    options: dict[str, Any] = {"task": "regression", "partition": "iid", "clients": 3, "rounds": 1, "progress": False}
    result = coterie.run("fedavg", data=table, target=["cost", "stay"], out=here / "a", model="linear", **options)
    assert result.models.of("client/0").facts.class_names == ("cost", "stay")
    assert result.report().exists()
    assert result.folder == here / "a"


@pytest.mark.long
def test_a_model_given_as_an_object_is_asked_for_again_in_another_process(here: Path, clients: Clients) -> None:
    def local(shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Linear(shape[0], classes)

    result = coterie.run("fedavg", data=clients, model=local, rounds=1, out="a", progress=False)
    code = "import coterie; coterie.run('fedavg', data=%r, model=%r, by='client', rounds=2, out='a', resume=True)"
    config = resumed(result.folder)
    ended = subprocess.run(
        [sys.executable, "-c", code % (config.data, config.model)], capture_output=True, text=True, check=False
    )
    assert "was given as an object of Python" in ended.stderr
    assert "give it again" in ended.stderr


def test_a_module_starts_anew_by_the_seed_and_stays_as_it_is(here: Path, clients: Clients) -> None:
    module = small()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    options: dict[str, Any] = {"data": clients, "model": module, "rounds": 1, "progress": False, "lr": 0.1}
    first, again, other = (coterie.run("fedavg", seed=seed, **options) for seed in (1, 1, 2))
    assert digests(first) == digests(again) != digests(other)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_comparison_holds_its_runs(here: Path, clients: Clients) -> None:
    race = coterie.compare(["ifca", "fedavg"], data=clients, seeds=2, rounds=2, lr=0.1, progress=False, clusters=2)
    assert list(race.results) == ["ifca", "fedavg", "local"]
    assert [len(found) for found in race.results.values()] == [2, 2, 2]
    loaded = coterie.load(race.folder)
    assert isinstance(loaded, coterie.Comparison)
    assert loaded.content["rows"] == race.content["rows"]
    assert "<html" in (race.folder / "report.html").read_text()[:200]  # as coterie compare writes it
    assert len(race.plot().axes) == 2
    assert "fedavg" in race._repr_html_()
    with pytest.raises(UserError, match="seeds must be at least 1"):
        coterie.compare(["fedavg"], seeds=0)


def test_a_result_for_notebooks(here: Path) -> None:
    result = coterie.run("fedavg", samples=300, clients=3, rounds=2, progress=False)
    html = result._repr_html_()
    assert html.count("<table>") == html.count("</table>") == 1
    assert "FedAvg, 2 rounds of 3 clients" in html
    assert repr(result) == f"<FedAvg on digits, 2 rounds of 3 clients, in {result.folder}>"
    (local, whole) = result.plot().axes
    assert [len(line.get_xdata()) for ax in (local, whole) for line in ax.get_lines()] == [2, 2]
    assert result.report().is_file()
    assert result.summary["models_sha256"] == result.rounds[-1]["models_sha256"]
    pandas = pytest.importorskip("pandas")
    frame = result.frame()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["global_accuracy"].tolist() == [line["global_accuracy"] for line in result.rounds]


def test_an_audit_for_notebooks(here: Path) -> None:
    """It is a table there, and a dict that JSON takes everywhere else."""
    result = coterie.run("fedavg", samples=300, clients=4, rounds=2, record=True, progress=False)
    found = result.audit()
    html = found._repr_html_()
    assert html.count("<table>") == html.count("</table>") == 1
    assert html.count("<tr>") == len(found["attacks"])
    assert "models, as they are sent</th><td>everything (1.00 ± 0.00)</td>" in html
    assert json.loads(json.dumps(found)) == found
    other = coterie.run("fedavg", samples=300, clients=4, rounds=2, record=True, seed=1)
    two = coterie.audit(result.folder, other.folder)
    assert two._repr_html_().count("<table>") == len(two["methods"]) == 1


def test_everything_public_is_documented_with_an_example() -> None:
    for name in coterie.__all__:
        words = getattr(coterie, name).__doc__
        assert words, name
        assert ">>>" in words, name
