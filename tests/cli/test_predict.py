"""``coterie export`` and ``coterie predict``."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command import QUICK, Command

import coterie
from coterie.data.sources import load as load_data
from coterie.runs import load, load_exported

DATA = load_data("digits")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    return coterie.run("local", samples=300, clients=4, rounds=2, max_epochs=1, out=out, progress=False).folder


@pytest.fixture
def trained(cli: Command, finished: Path) -> Path:
    """A finished run in the current folder, and samples beside it."""
    shutil.copytree(finished, "run")
    np.savez("new.npz", x=DATA.x_test[:50])
    np.savez("known.npz", x=DATA.x_test, y=DATA.y_test)
    return Path("run").absolute()


def test_predictions_are_the_library_s_own(cli: Command, trained: Path) -> None:
    expected = load(trained).predict("client/2", DATA.x_test[:50])
    proba = load(trained).predict("client/2", DATA.x_test[:50], proba=True)

    ended = cli("predict", "run", "new.npz", "--client", "client/2")
    assert ended.code == 0
    rows = list(csv.DictReader(io.StringIO(ended.out)))
    assert [int(row["label"]) for row in rows] == expected.tolist()
    assert [float(row["probability"]) for row in rows] == pytest.approx(proba.max(axis=1), rel=1e-5)

    assert cli("predict", "run", "new.npz", "--client", "client/2", "--out", "labels.csv").code == 0
    assert Path("labels.csv").read_text() == ended.out
    assert cli("predict", "run", "new.npz", "--client", "client/2", "--out", "labels.npz").code == 0
    with np.load("labels.npz") as found:
        assert found["label"].tolist() == expected.tolist()
        assert found["names"].tolist() == list(range(10))
        np.testing.assert_array_equal(found["scores"], proba)


def test_an_exported_model_predicts_alone(cli: Command, trained: Path) -> None:
    ended = cli("export", "run", "--client", "client/1", "--out", "one.safetensors")
    assert (ended.code, ended.out) == (0, "Model of client/1 after round 2: one.safetensors\n")
    before = cli("predict", "run", "known.npz", "--client", "client/1")
    for name in ("KNOWN.NPZ", "known"):
        Path(name).write_bytes(Path("known.npz").read_bytes())
        assert cli("predict", "run", name, "--client", "client/1") == before
    trained.rename("gone")
    after = cli("predict", "one.safetensors", "known.npz")
    assert after == before
    accuracy = json.loads(Path("gone/clients.json").read_text())["global_accuracy"][1]
    assert before.err == f"Accuracy on 360 samples (may contain training samples): {accuracy:.1%}\n"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["predict", "run", "new.npz"], "say --client"),
        (["predict", "run", "new.npz", "--client", "clent/1"], "has no client 'clent/1'; did you mean 'client/1'?"),
        (["predict", "run", "new.npz", "--client", "client/1", "--out", "new.npz"], "new.npz is there already"),
        (["predict", "run", "new.npz", "--client", "client/1", "--out", "new.txt"], "FILE.csv or FILE.npz"),
        (["predict", "run", "absent.npz", "--client", "client/1"], "absent.npz is not a file"),
        (["predict", "run", "run/config.toml", "--client", "client/1"], "is no csv, parquet or npz file"),
        (["predict", "run", "wide.npz", "--client", "client/1"], "wide.npz: x has shape (3, 65)"),
        (["predict", "run", "nan.npz", "--client", "client/1"], "nan.npz: x: sample 0 holds NaN"),
        (["predict", "run", "unknown.npz", "--client", "client/1"], "unknown.npz: y: sample 1 has label '10'"),
        (["predict", "run", "few.npz", "--client", "client/1"], "few.npz: y has shape (1,)"),
        (["predict", "run", "site.npz", "--client", "client/1"], "site.npz holds site, x"),
        (["predict", "run/config.toml", "new.npz"], "run/config.toml"),
        (["predict", "nowhere", "new.npz"], "cannot read nowhere: No such file"),
        (["export", "run", "--client", "client/7", "--out", "a"], "has no client 'client/7'"),
        (["export", "run", "--client", "client/1", "--out", "new.npz"], "new.npz is there already"),
        (
            ["export", "run", "--client", "client/1", "--out", "a.onnx"],
            "a.onnx: a model is written as FILE.safetensors",
        ),
        (["export", "nowhere", "--client", "client/1", "--out", "a"], "nowhere holds no models"),
    ],
    ids=" ".join,
)
def test_mistakes_are_told_and_nothing_is_written(cli: Command, trained: Path, words: list[str], error: str) -> None:
    image = np.zeros((2, 8, 8))
    np.savez("wide.npz", x=np.zeros((3, 65)))
    np.savez("nan.npz", x=image + np.nan)
    np.savez("unknown.npz", x=image, y=[3, 10])
    np.savez("few.npz", x=image, y=[3])
    np.savez("site.npz", x=image, site=[3])
    before = sorted(Path().iterdir())
    ended = cli(*words)
    assert (ended.code, ended.out) == (2, "")
    assert error in ended.err
    assert sorted(Path().iterdir()) == before


def test_other_tasks_have_a_column_for_each_output(cli: Command) -> None:
    from tests.runs.test_model_files import file

    Path("one").write_bytes(file(task="multilabel", class_names=["cough", "fever"]))
    np.savez("new.npz", x=np.eye(3))
    rows = list(csv.DictReader(io.StringIO(cli("predict", "one", "new.npz").out)))
    expected = load_exported("one").predict(np.eye(3), proba=True)
    assert [[float(row[name]) for name in ("cough", "fever")] for row in rows] == [
        pytest.approx(row, rel=1e-5) for row in expected.tolist()
    ]


def test_an_exported_model_is_of_one_client(cli: Command, trained: Path) -> None:
    assert cli("export", "run", "--client", "client/1", "--out", "one").code == 0
    assert cli("predict", "one", "new.npz", "--client", "client/1").code == 0
    ended = cli("predict", "one", "new.npz", "--client", "client/2")
    assert (ended.code, ended.out) == (2, "")
    assert "holds the model of 'client/1', not of 'client/2'" in ended.err


def test_code_of_one_s_own_is_named_by_the_caller(cli: Command) -> None:
    own = "batch_norm_models:small"
    assert cli("run", "fedavg", "--model", own, "--out", "run", *QUICK).code == 0
    np.savez("new.npz", x=DATA.x_test[:5])
    assert cli("export", "run", "--client", "client/0", "--out", "one").code == 0
    expected = cli("predict", "run", "new.npz", "--client", "client/0")
    ended = cli("predict", "one", "new.npz")
    assert ended.code == 2
    assert f"--model {own}" in ended.err
    assert cli("predict", "one", "new.npz", "--model", own) == expected


def test_control_characters_of_a_label_do_not_reach_the_terminal(cli: Command, trained: Path) -> None:
    from dataclasses import replace

    import msgspec

    from coterie.runs import export_model

    model = load(trained).models.of("client/0")
    names = tuple(f"\x1b[2J{i}" for i in range(10))
    export_model(replace(model, facts=msgspec.structs.replace(model.facts, class_names=names)), "one")
    ended = cli("predict", "one", "new.npz")
    assert ended.code == 0
    assert "\x1b" not in ended.out
    assert r"\x1b[2J" in ended.out
    np.savez("known.npz", x=DATA.x_test[:1], y=["\x1b[1m"])
    assert "\x1b[1m" not in cli("predict", "one", "known.npz").err


def test_a_table_is_predicted_by_the_names_of_its_columns(cli: Command, tmp_path: Path) -> None:
    """Columns in another order give the same predictions; a column too few or too many is refused."""
    tables(tmp_path / "clinics", "label", lambda a, b: "ill" if a > b else "well")
    run = tmp_path / "run"
    assert cli("run", "fedavg", "--data", str(tmp_path / "clinics"), "--rounds", "2", "--out", str(run)).code == 0
    new = {
        "same.csv": "age,bmi\n1,2\n3,0\n",
        "SAME.CSV": "age,bmi\n1,2\n3,0\n",
        "turned.csv": "bmi,age\n2,1\n0,3\n",
        "few.csv": "age\n1\n",
        "more.csv": "age,bmi,sugar\n1,2,3\n",
        "labelled.csv": "age,bmi,label\n1,2,well\n3,0,ill\n",
    }
    ended = {}
    for name, content in new.items():
        (tmp_path / name).write_text(content)
        ended[name] = cli("predict", str(run), str(tmp_path / name), "--client", "north")
    assert ended["same.csv"].code == 0
    assert ended["same.csv"].out == ended["turned.csv"].out == ended["labelled.csv"].out == ended["SAME.CSV"].out
    assert "Accuracy on 2 samples (may contain training samples)" in ended["labelled.csv"].err
    assert "has no column 'bmi'" in ended["few.csv"].err
    assert "There are: age" in ended["few.csv"].err
    assert "does not know the column 'sugar'" in ended["more.csv"].err
    assert json.loads((run / "partition.json").read_text())["class_names"] == ["ill", "well"]
    assert "2 clients (east, north)" in " ".join(cli("predict", str(run), str(tmp_path / "same.csv")).err.split())


def tables(folder: Path, header: str, row: Callable[[float, float], str]) -> None:
    """Two clients with samples of two columns, and what ``row`` makes of them."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for name in ("north", "east"):
        rows = [f"{a},{b},{row(a, b)}\n" for a, b in rng.normal(size=(40, 2))]
        (folder / f"{name}.csv").write_text(f"age,bmi,{header}\n{''.join(rows)}")


def test_what_led_in_the_run_leads_where_few_are_ill(cli: Command, tmp_path: Path) -> None:
    """Also of an exported model."""
    tables(tmp_path / "clinics", "label", lambda a, b: "ill" if a * a > 1.5 else "well")
    data, north = str(tmp_path / "clinics"), tmp_path / "clinics" / "north.csv"
    assert cli("run", "fedavg", "--data", data, "--metrics", "auroc,brier", "--rounds", "2", "--out", "run").code == 0
    assert cli("export", "run", "--client", "north", "--out", "n.safetensors").code == 0
    ended = cli("predict", "n.safetensors", str(north))
    assert ended == cli("predict", "run", str(north), "--client", "north")
    truth = np.array([row["label"] == "ill" for row in csv.DictReader(north.read_text().splitlines())])
    rows = list(csv.DictReader(io.StringIO(ended.out)))
    ill = np.array([float(row["P(ill)"]) for row in rows])
    pairs = ill[truth][:, None], ill[~truth]
    auroc = np.mean((pairs[0] > pairs[1]) + (pairs[0] == pairs[1]) / 2)
    accuracy = np.mean(truth == [row["label"] == "ill" for row in rows])
    shown = f"{auroc:.1%}, brier {np.mean((ill - truth) ** 2):.3g}, accuracy {accuracy:.1%}"
    assert ended.err == f"AUROC on 40 samples (may contain training samples): {shown}\n"


def test_the_column_that_was_the_target_is_compared(cli: Command) -> None:
    """The training file itself can be predicted, of a run and of an exported model."""
    tables(Path("clinics"), "outcome", lambda a, b: "ill" if a > b else "well")
    words = ["--data", "./clinics", "--target", "outcome", "--rounds", "2", "--out", "run", "--quiet"]
    assert cli("run", "fedavg", *words).code == 0
    ended = cli("predict", "run", "clinics/north.csv", "--client", "north")
    assert (ended.code, "Accuracy on 40 samples" in ended.err) == (0, True), ended.err
    assert cli("export", "run", "--client", "north", "--out", "n.safetensors").code == 0
    assert cli("predict", "n.safetensors", "clinics/north.csv") == ended
    Path("label.csv").write_text("age,bmi,label\n1,2,ill\n")
    assert "does not know the column 'label'" in cli("predict", "n.safetensors", "label.csv").err


def test_targets_of_other_tasks_are_passed_over(cli: Command) -> None:
    tables(Path("clinics"), "cough,fever", lambda a, b: f"{int(a > 0)},{int(b > 0)}")
    words = ["--data", "./clinics", "--target", "cough,fever", "--task", "multilabel", "--rounds", "2", "--quiet"]
    assert cli("run", "fedavg", *words, "--out", "run").code == 0
    ended = cli("predict", "run", "clinics/north.csv", "--client", "north")
    assert (ended.code, ended.err, ended.out.splitlines()[0]) == (0, "", "cough,fever")


# -- the prior of a client's own labels --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def federated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("federated") / "run"
    options = {"clients": 4, "rounds": 2, "max_epochs": 2, "partition": "dirichlet:0.3"}
    return coterie.run("fedavg", **options, out=out, progress=False).folder


def test_the_prior_is_added_unless_a_large_batch_looks_like_other_labels(cli: Command, federated: Path) -> None:
    shutil.copytree(federated, "run")
    assert Path("run/priors.json").stat().st_mode & 0o077 == 0
    known = json.loads(Path("run/priors.json").read_text())["clients"]["client/1"]
    own, mixture = (np.array(known[key]) + 0.5 for key in ("own", "mixture"))
    ratio = (own / own.sum()) / (mixture / mixture.sum())
    np.savez("few.npz", x=DATA.x_test[:20])
    plain = load(federated).predict("client/1", DATA.x_test[:20], proba=True)
    ended = cli("predict", "run", "few.npz", "--client", "client/1", "--prior", "--out", "few-labels.npz")
    assert ended.code == 0
    assert "not checked with fewer than 30 samples" in ended.err
    with np.load("few-labels.npz") as found:
        expected = plain * ratio / (plain * ratio).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(found["scores"], expected, rtol=1e-9)
    np.savez("others.npz", x=DATA.x_test)  # of all classes alike
    ended = cli("predict", "run", "others.npz", "--client", "client/1", "--prior")
    assert "The prior is left out: the batch does not look like the client's own labels" in ended.err
    assert ended.out == cli("predict", "run", "others.npz", "--client", "client/1").out
    draw = np.random.default_rng(0)
    labels = draw.choice(10, 60, p=np.array(known["own"]) / sum(known["own"]))
    np.savez("own.npz", x=DATA.x_test[[draw.choice(np.flatnonzero(DATA.y_test == label)) for label in labels]])
    assert (
        "Predicted with the prior of the client's labels\n"
        in cli("predict", "run", "own.npz", "--client", "client/1", "--prior").err
    )


def test_no_prior_without_the_run_and_none_of_other_models(cli: Command, federated: Path) -> None:
    shutil.copytree(federated, "run")
    np.savez("new.npz", x=DATA.x_test[:3])
    assert cli("export", "run", "--client", "client/1", "--out", "one.safetensors").code == 0
    ended = cli("predict", "one.safetensors", "new.npz", "--prior")
    assert (ended.code, ended.out) == (2, "")
    assert "give the run's folder, or the party's home, instead" in ended.err
    whole = json.loads(Path("run/priors.json").read_text())
    first = whole["clients"]["client/1"]
    for damaged in (
        {**whole, "round": 1},
        {**whole, "clients": {}},
        {**whole, "clients": {"client/1": {**first, "own": [1, 2]}}},
        {**whole, "clients": {"client/1": {**first, "own": [-1] * 10}}},
        {**whole, "clients": {"client/1": {**first, "own": [1 << 70] * 10}}},
        {**whole, "clients": {"client/1": {**first, "mixture": [float("nan")] * 10}}},
        {**whole, "clients": {"client/1": {**first, "predicted": [1 << 30] * 10}}},
    ):
        Path("run/priors.json").write_text(json.dumps(damaged))
        ended = cli("predict", "run", "new.npz", "--client", "client/1", "--prior")
        assert (ended.code, ended.out) == (2, "")
        assert "priors.json" in ended.err
