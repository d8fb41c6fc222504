"""The four hospitals of ``heart``: what UCI documents of them, how gaps and categories become inputs, and its folds."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

import coterie.data
from coterie.data.columns import Column, encoded, fitted, inputs_of
from coterie.data.dataset import fixed_split, folded
from coterie.data.preparing import new_samples
from coterie.data.sources import load
from coterie.protocol.errors import UserError
from coterie.runs import RunConfig, resolve
from coterie.runs.experiment import build

FOLDER = Path(coterie.data.__file__).with_name("heart")
PATIENTS = {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}
ILL = {"cleveland": 139, "hungarian": 106, "switzerland": 115, "va": 149}
GAPS = {  # of UCI's files, where a cholesterol or blood pressure of 0 is a gap
    "cleveland": {"ca": 4, "thal": 2},
    "hungarian": {"trestbps": 1, "chol": 23, "fbs": 8, "restecg": 1, "thalach": 1, "exang": 1, "slope": 190}
    | {"ca": 291, "thal": 266},
    "switzerland": {"trestbps": 2, "chol": 123, "fbs": 75, "restecg": 1, "thalach": 1, "exang": 1, "oldpeak": 6}
    | {"slope": 17, "ca": 118, "thal": 52},
    "va": {"trestbps": 57, "chol": 56, "fbs": 7, "thalach": 53, "exang": 53, "oldpeak": 56, "slope": 102, "ca": 198}
    | {"thal": 166},
}


def rows(hospital: str) -> list[dict[str, str]]:
    with (FOLDER / f"{hospital}.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_files_have_the_patients_the_prevalence_and_the_gaps_that_uci_documents() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == list(PATIENTS)
    for name, count in PATIENTS.items():
        found = rows(name)
        assert len(found) == count
        assert sum(row["disease"] == "1" for row in found) == ILL[name]
        gaps = {column: sum(row[column] == "" for row in found) for column in found[0]}
        assert {column: many for column, many in gaps.items() if many} == GAPS[name]


def test_the_hospitals_are_the_clients() -> None:
    data = load("heart")
    assert data.owners is not None
    assert data.owners.names == tuple(PATIENTS)
    assert data.targets.names == ("0", "1")
    for i, name in enumerate(PATIENTS):
        labels = np.concatenate([data.y_train[data.owners.train == i], data.y_test[data.owners.test == i]])
        assert (len(labels), int(labels.sum())) == (PATIENTS[name], ILL[name])


@pytest.mark.parametrize("seed", [0, 3, 7])
def test_inputs_are_those_of_a_slow_twin_and_know_no_test_patient(seed: int) -> None:
    """The mean of training patients for a number's gap, one input for each value of a category."""
    data = load("heart", own={"fold": (5, seed)})
    everybody = [row for name in PATIENTS for row in rows(name)]
    assert data.rows_test is not None
    tested = set(data.rows_test.tolist())
    values = {"cp": "1234", "restecg": "012", "slope": "123", "thal": "367"}
    wanted = []
    for column in [name for name in everybody[0] if name != "disease"]:
        if column in values:
            wanted += [[float(row[column] == value) for row in everybody] for value in values[column]]
            continue
        known = [float(row[column]) for i, row in enumerate(everybody) if i not in tested and row[column]]
        mean = sum(known) / len(known)
        wanted.append([float(row[column] or mean) for row in everybody])
    x = np.array(wanted, np.float32).T
    train = [i for i in range(len(everybody)) if i not in tested]
    np.testing.assert_allclose(data.x_train, x[train], rtol=1e-6)
    np.testing.assert_allclose(data.x_test, x[sorted(tested)], rtol=1e-6)
    inputs = data.inputs(split="test")
    mean, std = x[train].mean(0, dtype=np.float64), x[train].std(0, dtype=np.float64)
    np.testing.assert_allclose(inputs, (x[sorted(tested)] - mean) / std, rtol=1e-3, atol=1e-4)
    assert len(data.features) == x.shape[1] == 22


def test_a_column_that_a_hospital_lacks_tells_nothing_there() -> None:
    data = load("heart")
    assert data.owners is not None
    swiss = data.inputs()[data.owners.train == 2, data.features.index("chol")]
    assert np.ptp(swiss) == 0
    assert np.isfinite(swiss).all()


def test_seeds_test_every_patient_once_and_then_again_in_other_parts() -> None:
    y = np.random.default_rng(0).integers(3, size=103)
    assert (folded(y, 5, 0)[1] == fixed_split(y)[1]).all()
    for turn in range(2):
        tests = [folded(y, 5, 5 * turn + part)[1] for part in range(5)]
        assert sorted(np.concatenate(tests).tolist()) == list(range(103))
        for train, test in (folded(y, 5, 5 * turn + part) for part in range(5)):
            assert sorted([*train, *test]) == list(range(103))
        for label in range(3):
            counts = [int((y[test] == label).sum()) for test in tests]
            assert max(counts) - min(counts) <= 1
    assert (folded(y, 5, 5)[1] != folded(y, 5, 0)[1]).any()


def test_new_patients_come_as_the_hospitals_write_them(tmp_path: Path) -> None:
    data = load("heart")
    x, y, _ = new_samples(FOLDER / "va.csv", data.columns, data.label_columns)
    assert data.owners is not None
    fold = fixed_split(y)[1]
    np.testing.assert_allclose(x[fold], data.x_test[data.owners.test == 3], rtol=1e-6)
    header = (FOLDER / "va.csv").read_text().splitlines()[0].removesuffix(",disease")
    file = tmp_path / "new.csv"
    file.write_text(f"{header}\n50,0,9,,,,,,,,,,\n")
    with pytest.raises(UserError, match=r"column 'cp', line 2: '9' is none of 1, 2, 3, 4; leave the cell empty"):
        new_samples(file, data.columns, data.label_columns)


def test_a_column_of_gaps_alone_is_refused_and_inputs_have_names() -> None:
    columns = (Column("a"), Column("b", values=()))
    x = np.array([[None, "10"], [None, None], [7.0, "x"], [8.0, "2"]], object)
    train = np.array([True, True, False, True])
    with pytest.raises(UserError, match=r"north, column 'a': no training sample of any client has a value"):
        fitted(columns, x, np.array([True, True, False, False]), "north")
    x[0, 0] = 4.0
    with pytest.raises(UserError, match=r"north: two columns or inputs are called 'b=x'.*rename one"):
        fitted((Column("b=x"), columns[1]), x, train, "north")
    found = fitted(columns, x, train, "north")
    assert inputs_of(found) == ("a", "b=2", "b=10", "b=x")
    assert encoded(found, x).tolist() == [[4, 0, 1, 0], [6, 0, 0, 0], [7, 0, 0, 1], [8, 1, 0, 0]]


def test_a_folder_of_ones_own_with_these_files_is_the_same_data_set(tmp_path: Path) -> None:
    own: dict[str, object] = {"target": "disease", "gaps": "mean", "categories": "cp, restecg,slope,thal"}
    ours, theirs = load("heart"), load(str(FOLDER), own=own)
    assert (ours.x_train == theirs.x_train).all()
    assert (ours.x_test == theirs.x_test).all()
    assert ours.columns == theirs.columns
    with pytest.raises(UserError, match=r"cleveland.csv, column 'ca', line 168: the cell is empty; fill it, .*--gaps"):
        load(str(FOLDER), own={"target": "disease"})
    with pytest.raises(UserError, match=r"cleveland.csv, column 'ca', line 168: the cell is empty; .*--gaps"):
        load(str(FOLDER), own={"target": "disease", "categories": "restecg,ca,thal,slope"})
    with pytest.raises(UserError, match="has no column 'sex2'"):
        load(str(FOLDER), own={**own, "categories": "sex2"})
    with pytest.raises(UserError, match="gaps=mean is for your own data at a path, and has no effect on digits"):
        load("digits", own={"gaps": "mean"})


def test_words_may_be_categories(tmp_path: Path) -> None:
    for name, rows in {"north": "m,1,a\nf,2,b\nm,3,a\nf,,b\nm,5,a\n", "south": "f,1,b\n,3,a\nf,2,b\nm,9,a\n"}.items():
        (tmp_path / f"{name}.csv").write_text(f"sex,age,label\n{rows}")
    data = load(str(tmp_path), own={"gaps": "mean", "categories": "sex"})
    assert data.features == ("sex=f", "sex=m", "age")
    with pytest.raises(UserError, match=r"'m' is not a number; say categories=sex \(--categories\)"):
        load(str(tmp_path), own={"gaps": "mean"})
    np.savez(tmp_path / "a.npz", x=np.ones((4, 2)), y=[0, 1, 0, 1])
    with pytest.raises(UserError, match="from csv and parquet files, not from npz: write it as one of these, or fill"):
        load(str(tmp_path / "a.npz"), own={"gaps": "mean"})


def test_arrays_with_gaps_are_refused_with_a_way_that_works(tmp_path: Path) -> None:
    x, y = np.arange(60.0).reshape(20, 3), np.arange(20) % 2
    x[3, 1] = np.nan
    np.savez(tmp_path / "a.npz", x=x, y=y)
    with pytest.raises(UserError, match="write csv or parquet files, whose gaps --gaps mean or a schema fills"):
        load(str(tmp_path / "a.npz"))
    rows = ["one,two,three,label", *(",".join(map(str, (*row, label))) for row, label in zip(x, y, strict=True))]
    (tmp_path / "a.csv").write_text("\n".join(rows))
    assert load(str(tmp_path / "a.csv"), own={"gaps": "mean"}).features == ("one", "two", "three")


def test_a_run_has_the_hospitals_a_logistic_model_and_auroc_first() -> None:
    config = resolve(RunConfig("fedavg", data="heart"))
    assert (config.partition, config.model, config.metrics, config.folds) == ("by:hospital", "linear", "auroc", 5)
    experiment = build(config)
    assert experiment.split.names == tuple(PATIENTS)
    assert [metric.name for metric in experiment.observer.metrics] == ["auroc", "accuracy"]
    experiment.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clients": 7}, "partition by:hospital makes 4 clients, not 7: leave out clients"),
        ({"partition": "by:site"}, "not heart, whose clients are in 'hospital'"),
        ({"samples": 50}, "samples=50 has no effect with partition by:hospital"),
        ({"target": "num"}, "target=num is for your own data at a path, and has no effect on heart"),
        ({"folds": 3, "test_share": 0.3}, "test_share=0.3 has no effect beside folds=3"),
        ({"data": "digits", "folds": 3}, "folds=3 is for your own data at a path, and has no effect on digits"),
    ],
)
def test_what_has_no_meaning_for_the_hospitals_is_said(options: dict[str, object], words: str) -> None:
    with pytest.raises(UserError) as error:
        build(RunConfig(**{"system": "fedavg", "data": "heart", **options}))  # type: ignore[arg-type]
    assert words in str(error.value)


def test_the_patients_may_be_dealt_anew() -> None:
    experiment = build(RunConfig("fedavg", data="heart", partition="iid", clients=6))
    assert experiment.split.clients == 6
    experiment.close()
