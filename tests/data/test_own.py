"""One's own clients: every source gives the same data set, and every mistake is named with client, file and column."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from coterie.data.dataset import fixed_split
from coterie.data.own import dataset, from_python, to_arrays
from coterie.data.sources import load
from coterie.data.tasks import deal
from coterie.protocol.errors import CoterieWarning, UserError
from coterie.runs import RunConfig, resolve
from coterie.runs.experiment import build

SIZES = {"north": 50, "east": 30, "west": 40}
Clients = dict[str, tuple[NDArray[Any], NDArray[Any]]]


@pytest.fixture
def clients() -> Clients:
    """Three clients of different sizes, with labels in words."""
    draw = np.random.default_rng(1)
    found = {}
    for name, n in SIZES.items():
        x = draw.normal(size=(n, 3)).round(3)
        found[name] = x, np.where(x.sum(axis=1) > 0, "sick", "healthy")
    return found


def text(x: NDArray[Any], y: NDArray[Any], header: str = "age,bmi,sugar,label") -> str:
    rows = (",".join([*map(str, row), str(label)]) for row, label in zip(x, y, strict=True))
    return "\n".join([header, *rows]) + "\n"


@pytest.fixture
def folder(clients: Clients, tmp_path: Path) -> Path:
    """A folder of one csv file a client."""
    made = tmp_path / "hospitals"
    made.mkdir()
    for name, (x, y) in clients.items():
        (made / f"{name}.csv").write_text(text(x, y))
    return made


def own(data: Any, column: str | None = "client", **options: Any) -> Any:
    known = {key: options.pop(key) for key in ("by", "target") if key in options}
    return dataset("own", from_python(data, **known), column=column, **{"test_share": None, "kind": None, **options})


def by_client(data: Any) -> dict[str, tuple[Any, Any]]:
    """Sorted samples of every client, with their labels' names: (training, test)."""

    def samples(x: Any, y: Any, mine: Any) -> list[Any]:
        return sorted(
            [*map(float, row), data.targets.names[label]] for row, label in zip(x[mine], y[mine], strict=True)
        )

    return {
        name: (
            samples(data.x_train, data.y_train, data.owners.train == i),
            samples(data.x_test, data.y_test, data.owners.test == i),
        )
        for i, name in enumerate(data.owners.names)
    }


def test_a_folder_a_table_arrays_and_datasets_are_the_same_data_set(clients: Clients, folder: Path) -> None:
    expected = by_client(load(str(folder)))
    assert {name: len(train) + len(test) for name, (train, test) in expected.items()} == SIZES
    assert by_client(own(clients)) == expected
    x, y = (np.concatenate([part[i] for part in clients.values()]) for i in range(2))
    site = np.repeat(list(SIZES), list(SIZES.values()))
    table = {"site": site, **dict(zip(("age", "bmi", "sugar"), x.T, strict=True)), "label": y}
    assert by_client(own(table, "site", by="site")) == expected
    whole = folder.parent / "all.csv"
    whole.write_text(text(np.column_stack([site, x]), y, "site,age,bmi,sugar,label"))
    assert by_client(load(str(whole), own={"by": "site"})) == expected
    np.savez(folder.parent / "all.npz", x=x, y=y, site=site)
    assert by_client(load(str(folder.parent / "all.npz"), own={"by": "site"})) == expected


def test_files_of_a_folder_may_end_in_any_case(clients: Clients, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = by_client(load(str(folder)))
    (folder / "north.csv").rename(folder / "north.CSV")
    (folder / "east.csv").rename(folder / "east.Csv")
    assert by_client(load(str(folder))) == expected
    monkeypatch.chdir(folder)
    assert load("north.CSV").source.startswith("north.CSV: ")
    (folder / "north.CSV").write_text("age,label\nold,sick\n")
    with pytest.raises(UserError, match=r"coterie prepare propose .*\.CSV --out schema\.toml"):
        load("north.CSV")
    arrays = folder.parent / "arrays"
    arrays.mkdir()
    for name, (x, y) in clients.items():
        np.savez(arrays / f"{name}.npz", x=x, y=y)
        (arrays / f"{name}.npz").rename(arrays / f"{name}.NPZ")
    assert by_client(load(str(arrays))) == expected


def test_a_torch_dataset_gives_its_pairs(clients: Clients) -> None:
    def torch_one(x: Any, y: Any) -> Any:
        return torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y == "sick").long())

    plain = own({name: (x, (y == "sick").astype(int)) for name, (x, y) in clients.items()})
    assert by_client(own({name: torch_one(*part) for name, part in clients.items()})) == by_client(plain)
    pair = {name: (torch_one(x[:20], y[:20]), torch_one(x[20:], y[20:])) for name, (x, y) in clients.items()}
    assert [len(test) for _, test in by_client(own(pair)).values()] == [n - 20 for n in SIZES.values()]


def test_a_data_frame_is_a_table(clients: Clients) -> None:
    pandas = pytest.importorskip("pandas")
    x, y = (np.concatenate([part[i] for part in clients.values()]) for i in range(2))
    frame = pandas.DataFrame(x, columns=["age", "bmi", "sugar"])
    frame["diagnosis"], frame["site"] = y, np.repeat(list(SIZES), list(SIZES.values()))
    assert by_client(own(frame, "site", by="site", target="diagnosis")) == by_client(own(clients))


class OfHuggingFace:
    """What Coterie uses of a ``datasets.Dataset``: its columns, as numpy arrays."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.columns, self.column_names = columns, list(columns)

    def with_format(self, kind: str) -> dict[str, NDArray[Any]]:
        assert kind == "numpy"
        return {name: np.asarray(column) for name, column in self.columns.items()}


def test_a_hugging_face_dataset_is_a_table(clients: Clients) -> None:
    x, y = (np.concatenate([part[i] for part in clients.values()]) for i in range(2))
    site = np.repeat(list(SIZES), list(SIZES.values()))
    table = {**dict(zip(("age", "bmi", "sugar"), x.T, strict=True)), "label": y, "site": site}
    assert by_client(own(OfHuggingFace(table), "site", by="site")) == by_client(own(clients))


def test_images_in_a_column_are_samples(clients: Clients) -> None:
    images, labels = np.arange(20 * 16, dtype=np.uint8).reshape(20, 4, 4), np.arange(20) % 2
    data = own(OfHuggingFace({"image": images, "label": labels}), None)
    assert (data.kind, data.input_shape) == ("image", (1, 4, 4))


def test_clients_stay_in_their_order_and_the_test_share_is_kept_for_every_label(clients: Clients) -> None:
    data = own(clients, test_share=0.25)
    assert data.owners.names == tuple(SIZES)
    for i, name in enumerate(SIZES):
        for label, words in enumerate(data.targets.names):
            n = int((clients[name][1] == words).sum())
            share = int(((data.owners.test == i) & (data.y_test == label)).sum())
            assert abs(share - n / 4) < 1


@pytest.mark.parametrize("share", [1 / 3, 1 / 7, 0.3, 0.2])
def test_a_share_is_exact_for_many_samples_too(share: float) -> None:
    y = np.arange(60_000) % 10
    _, test = fixed_split(y, share)
    assert np.abs(np.bincount(y[test]) - 6000 * share).max() < 1


def test_a_csv_is_split_as_the_same_arrays_are(tmp_path: Path) -> None:
    x, y = np.arange(60.0).reshape(30, 2), np.arange(30) - 12
    table = {"a": x[:, 0].astype(str), "b": x[:, 1].astype(str), "label": y.astype(str)}
    plain, text_ = own((x, y), None, task="regression"), own(table, None, task="regression")
    np.testing.assert_array_equal(plain.x_test, text_.x_test)


def test_a_split_of_ones_own_is_kept(clients: Clients) -> None:
    x, y = clients["north"]
    split = np.where(np.arange(len(x)) % 3 == 0, "test", "train")
    table = {"a": x[:, 0], "split": split, "label": y}
    data = own(table, None)
    assert data.x_test[:, 0].tolist() == x[::3, 0].astype(np.float32).tolist()
    with pytest.raises(UserError, match="test_share has no effect"):
        own(table, None, test_share=0.5)


def test_in_memory_data_are_the_same_after_they_were_written(clients: Clients, tmp_path: Path) -> None:
    parts = from_python(clients)
    np.savez(tmp_path / "own.npz", **to_arrays(parts, "client", 0.3, None))  # type: ignore[arg-type]
    again = load(str(tmp_path / "own.npz"), own={"by": "client"})
    assert by_client(again) == by_client(own(clients, test_share=0.3))
    assert again.owners is not None
    assert again.owners.names == tuple(SIZES)


def test_columns_in_another_order_are_put_in_the_first_clients(clients: Clients, folder: Path) -> None:
    expected = by_client(load(str(folder)))
    x, y = clients["west"]
    (folder / "west.csv").write_text(text(x[:, [2, 0, 1]], y, "sugar,age,bmi,label"))
    assert by_client(load(str(folder))) == expected


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([3, 1, 1, 3, 1], ("1", "3")),
        (["10", "9", "9", "10", "9"], ("9", "10")),
        ([True, False] * 2 + [True], ("0", "1")),
    ],
)
def test_labels_are_numbered_in_their_order(labels: list[Any], names: tuple[str, ...]) -> None:
    x = np.arange(10.0).reshape(5, 2)
    data = own((x, np.array(labels)), None)
    assert data.targets.names == names
    assert data.classes == 2


def test_kinds_of_samples() -> None:
    draw = np.random.default_rng(0)
    y = np.arange(20) % 2
    series, volume = draw.normal(size=(20, 7, 3)), draw.normal(size=(20, 2, 4, 5, 6))
    data = own((series, y), None, kind="series")
    assert (data.kind, data.input_shape) == ("series", (7, 3))
    inputs = data.inputs().reshape(-1, 3)
    assert np.allclose(inputs.mean(0), 0, atol=1e-5)
    assert np.allclose(inputs.std(0), 1, atol=1e-5)
    data = own((volume, y), None)
    assert (data.kind, data.input_shape) == ("volume", (2, 4, 5, 6))
    assert np.allclose(data.inputs().std((0, 2, 3, 4)), 1, atol=1e-5)
    with pytest.raises(UserError, match="kind=image or kind=series"):
        own((series, y), None)
    with pytest.raises(UserError, match="a shape of kind series, not of volume"):
        own((series, y), None, kind="volume")
    with pytest.raises(UserError, match="did you mean 'series'"):
        own((series, y), None, kind="serie")


def test_a_column_of_clients_deals_the_samples(folder: Path) -> None:
    data = load(str(folder))
    split, (task,) = deal("by:client", data, None, seed=5)
    assert split.names == ("east", "north", "west")
    assert split.sizes.tolist() == [24, 40, 32]
    assert sorted(np.concatenate(split.test)) == list(range(24))
    assert task.dataset is data
    for spec, clients, words in (
        ("by:site", None, "whose clients are in 'client'"),
        ("by:", None, "names no column"),
        ("by:client", 4, "makes 3 clients, not 4"),
        ("iid", None, "say how many"),
    ):
        with pytest.raises(UserError, match=words):
            deal(spec, data, clients, seed=5)
    with pytest.raises(UserError, match="fewer than min_samples = 25"):
        deal("by:client", data, None, 0, min_samples=25)
    with pytest.raises(UserError, match="which does not name its clients"):
        deal("by:client", load("digits"), None, 0)


def test_a_folder_does_not_hide_a_known_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load("digits").name == "digits"
    assert resolve(RunConfig("fedavg", data="digits")).partition == "dirichlet:0.3"
    with pytest.raises(UserError, match="holds no csv, npz or parquet file"):
        load("./digits")


def test_a_run_has_the_clients_of_its_data(folder: Path) -> None:
    config = RunConfig("fedavg", data=str(folder), rounds=1)
    assert resolve(config).partition == "by:client"
    experiment = build(config)
    try:
        assert experiment.config.clients == 3
        assert experiment.label_counts.sum() == 96
        experiment.set_up()
        line = experiment.round(1)
        assert 0 <= line["global_accuracy"] <= 1
    finally:
        experiment.close()


def rewritten(change: Callable[[str], str]) -> Callable[[Path], None]:
    def rewrite(path: Path) -> None:
        path.write_text(change(path.read_text()))

    return rewrite


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (rewritten(lambda t: t.replace("age", "bmi", 1)), "different column names; ['bmi'] is there twice"),
        (rewritten(lambda t: t + "1,2\n"), "line 52: 2 cells under a header of 4"),
        (rewritten(lambda t: t + ",2,3,sick\n"), "column 'age', line 52: the cell is empty"),
        (rewritten(lambda t: t + "1,high,3,sick\n"), "column 'bmi', line 52: 'high' is not a number"),
        (rewritten(lambda t: t + "1,2,nan,sick\n"), "column 'sugar', line 52: nan is not a finite number"),
        (rewritten(lambda t: t + "1,2,inf,sick\n"), "column 'sugar', line 52: inf is not a finite number"),
        (rewritten(lambda t: t + "1,2,3,\n"), "column 'label', line 52: there is no label"),
        (rewritten(lambda t: "age,bmi,sugar,label\n"), "has no samples"),
        (rewritten(lambda t: ""), "different column names; its first line is empty"),
        (rewritten(lambda t: t.replace(",", "|")), "its columns are separated by '|': save it with commas"),
        (rewritten(lambda t: "age,bmi,sugar,label\n1,2,3,sick\n"), "has no training sample"),
        (rewritten(lambda t: t.replace("label", "dx", 1)), "has no column label, y, target, class"),
        (rewritten(lambda t: t.replace("label", "split", 1).replace("bmi", "label", 1)), "neither train nor test"),
        (lambda path: path.write_bytes(b"\xff\xfe\x00age"), "cannot be read as a csv file: it is not in UTF-8"),
    ],
)
def test_a_damaged_file_is_named_with_its_column_and_line(
    folder: Path, break_it: Callable[[Path], object], words: str
) -> None:
    break_it(folder / "north.csv")
    with pytest.raises(UserError, match=f"north.csv.*{re.escape(words)}"):
        load(str(folder))


def test_a_client_with_one_label_is_named_and_trains(folder: Path) -> None:
    path = folder / "north.csv"
    path.write_text(path.read_text().replace("sick", "healthy"))
    with pytest.warns(CoterieWarning, match=r"north\.csv, column 'label': all labels of .* are 'healthy'\. It trains"):
        found = load(str(folder))
    assert found.owners is not None
    assert len(found.owners.names) == 3


def test_tables_without_a_schema_name_the_commands_that_show_all_findings(folder: Path) -> None:
    path = folder / "north.csv"
    path.write_text(path.read_text() + ",2,3,sick\n")
    with pytest.raises(UserError, match=r"coterie prepare propose .*\*\.csv --out schema\.toml, coterie prepare check"):
        load(str(folder))
    with pytest.raises(UserError) as error:
        load(str(folder / "none.csv"))
    assert "prepare" not in str(error.value)


def test_clients_that_do_not_fit_together_are_named(clients: Clients, folder: Path, tmp_path: Path) -> None:
    x, y = clients["east"]
    with pytest.raises(UserError, match=r"client 'odd': a sample has shape \(2,\), but \(3,\) in client 'north'"):
        own({**clients, "odd": (x[:, :2], y)})
    with pytest.raises(UserError, match="two clients are called '1'"):
        own({1: (x, y), "1": (x, y)})
    with pytest.raises(UserError, match="numbers and others' are text"):
        own({**clients, "odd": (x, np.arange(30) % 2)})
    with pytest.raises(UserError, match=r"client 'odd': y is \(29,\)"):
        own({**clients, "odd": (x, y[:-1])})
    with pytest.raises(UserError, match="is neither"):
        own({"odd": object()})
    (folder / "west.csv").write_text(text(x, y, "age,bmi,height,label"))
    with pytest.raises(
        UserError,
        match=r"west.csv lacks the column 'sugar': all clients must have the columns of .*east.*; add it with empty",
    ):
        load(str(folder))
    (folder / "notes.txt").write_text("x")
    with pytest.raises(UserError, match=r"notes.txt is not a csv, npz or parquet file"):
        load(str(folder))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no csv, npz or parquet file"):
        load(str(tmp_path / "empty"))


def test_what_is_not_used_is_refused(clients: Clients, folder: Path, tmp_path: Path) -> None:
    x, y = clients["north"]
    np.savez(tmp_path / "site.npz", x=x, y=y, site=np.repeat(["a", "b"], 25))
    with pytest.raises(UserError, match=r"holds 'site', which is not used: .* --partition by:site"):
        load(str(tmp_path / "site.npz"))
    with pytest.raises(UserError, match=r"has no column 'sight'; did you mean 'site'"):
        load(str(tmp_path / "site.npz"), own={"by": "sight"})
    with pytest.raises(UserError, match="target=y is for your own data"):
        load("digits", own={"target": "y"})
    with pytest.raises(UserError, match="there is no data at"):
        load(str(tmp_path / "nothing.csv"))
    with pytest.raises(UserError, match="dealt by:client, not by:site"):
        load(str(folder), own={"by": "site"})


def test_a_model_with_other_outputs_than_classes_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="gives 13 outputs, but the data have 2 classes"):
        build(RunConfig("fedavg", data=str(folder), rounds=1, model="tests.data.test_own:thirteen"))


def thirteen(input_shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    return torch.nn.Linear(input_shape[0], 13)


def test_several_labels_and_numbers(clients: Clients, tmp_path: Path) -> None:
    rows = "\n".join(f"{i},{i % 2},{i // 2 % 2},{10 + 3 * i}" for i in range(40))
    path = tmp_path / "many.csv"
    path.write_text("a,cough,fever,cost\n" + rows + "\n")

    def read(target: str, task: Any) -> Any:
        columns = {"cough", "fever", "cost"} - set(target.split(","))
        kept = [name for name in ("a", "cough", "fever", "cost") if name not in columns]
        table = np.genfromtxt(path, delimiter=",", names=True)
        return own({name: table[name] for name in kept}, None, target=target, task=task)

    data = read("cough,fever", "multilabel")
    assert (data.classes, data.targets.names) == (2, ("cough", "fever"))
    assert data.y_train.dtype == np.float32
    assert sorted(map(tuple, np.concatenate([data.y_train, data.y_test]))) == sorted(
        (i % 2, i // 2 % 2) for i in range(40)
    )
    data = read("cost", "regression")
    assert (data.classes, data.targets.names) == (1, ("cost",))
    np.testing.assert_allclose([data.y_train.mean(), data.y_train.std()], [0, 1], atol=1e-6)
    stored = data.targets.stored(np.concatenate([data.y_train, data.y_test]))[:, 0]
    np.testing.assert_allclose(sorted(stored), [10 + 3 * i for i in range(40)], rtol=1e-6)
    with pytest.raises(UserError, match="must be 0 or 1, there is"):
        read("cost", "multilabel")
    with pytest.raises(UserError, match="by their class, but the task is regression: use iid, or by:COLUMN"):
        deal("dirichlet:0.5", data, 4, 0)
    split, _ = deal("iid", data, 4, 0)
    assert sorted(np.concatenate(split.train)) == list(range(len(data.y_train)))
    with pytest.raises(UserError, match=r"labels of this task are numbers; '(ill|well)' is none"):
        own((np.eye(3), np.array(["ill", "well", "ill"])), None, task="regression")
    with pytest.raises(UserError, match=r"all training samples have the value 0\.1"):
        own((np.eye(10), np.full(10, 0.1)), None, task="regression")
