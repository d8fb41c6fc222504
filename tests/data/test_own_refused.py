"""One's own data as they should not be: what is refused, with client or file, column and line; what is merged."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.data.dataset import Dataset
from coterie.data.own import dataset, from_python, load_own, to_arrays
from coterie.data.preparing import propose
from coterie.data.sources import load
from coterie.data.tasks import deal
from coterie.protocol.errors import CoterieWarning, UserError
from coterie.runs import RunConfig, resolve

X = np.random.default_rng(0).normal(size=(40, 5))
Y = np.arange(40) % 2


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is empty."""
    monkeypatch.chdir(tmp_path)


def table(path: str, header: str, rows: list[str]) -> str:
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text("\n".join([header, *rows]) + "\n")
    return path


def labelled(path: str, labels: list[str]) -> str:
    return table(path, "a,label", [f"{i},{label}" for i, label in enumerate(labels)])


def own(data: Any, column: str | None = None, **options: Any) -> Dataset:
    known = {key: options.pop(key) for key in ("by", "target") if key in options}
    return dataset("own", from_python(data, **known), column=column, **{"test_share": None, "kind": None, **options})


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["1", "1.0", "0", "0."], ("0", "1")),
        (["-1", "+1", "1.0", "-1.00"], ("-1", "1")),
        (["02", "01", "01", "10"], ("1", "2", "10")),
        (["1", "²", "1", "²"], ("1", "²")),
        (["--1", "2", "2", "2"], ("--1", "2")),
    ],
)
def test_labels_that_are_one_number_are_one_class(labels: list[str], names: tuple[str, ...]) -> None:
    assert load(labelled("./a.csv", labels * 5)).targets.names == names


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["01", "1", "0", "0"], "the labels '01' and '1' are the same number"),
        (["9" * 20, "1", "1", "2"], r"below 2\^53 or text; there is 9{20}"),
        (["1e300", "1", "1", "2"], r"below 2\^53 or text; there is 1e300"),
        (["0.5", "1", "1", "2"], r"there is 0\.5 .*task=regression"),
        (["1", "inf", "1", "2"], "there is inf"),
        *(
            (["1", word, "0", "1"], "a.csv, column 'label', line 3: there is no label")
            for word in ("NA", "NaN", "null")
        ),
        *(
            (["1", word, "0", "1"], "a.csv, column 'label', line 3: there is no label")
            for word in ("None", "<NA>", " ")
        ),
    ],
)
def test_labels_of_a_csv_that_are_refused(labels: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        load(labelled("./a.csv", labels * 5))


def test_labels_of_two_clients_are_numbers_or_text_and_one_number_is_one_class() -> None:
    labelled("many/north.csv", ["0", "1"] * 10)
    labelled("many/east.csv", ["0.0", "1.0"] * 10)
    assert load("./many").targets.names == ("0", "1")
    labelled("many/east.csv", ["no", "ill"] * 10)
    with pytest.raises(UserError, match=r"numbers and others' are text: '0' in .*north.csv, 'no' in .*east.csv"):
        load("./many")
    labelled("many/east.csv", ["00", "01"] * 10)
    with pytest.raises(UserError, match="are the same number"):
        load("./many")


@pytest.mark.parametrize("other", ["Ill", "ILL", "i ll"])
def test_labels_that_differ_only_in_case_or_blanks_are_refused_with_their_files(other: str) -> None:
    labelled("many/north.csv", ["no", "ill"] * 10)
    labelled("many/east.csv", ["no", other] * 10)
    with pytest.raises(UserError) as refused:
        load("./many")
    east, north = (f"{word!r} in {Path('many') / name}.csv" for word, name in ((other, "east"), ("ill", "north")))
    assert f"only in case or blanks: {east}, {north}. Write them in one way" in str(refused.value)
    with pytest.raises(UserError, match="only in case or blanks"):
        propose([Path("many/north.csv"), Path("many/east.csv")], "label")


def test_categories_that_differ_only_in_case_are_told() -> None:
    path = Path(table("./a.csv", "sex,label", [f"{'fFmm'[i % 4]},{i % 2}" for i in range(20)]))
    options = {"by": None, "target": None, "test_share": None, "kind": None}
    with pytest.warns(CoterieWarning, match=r"column 'sex': 'F' and 'f' are two categories, each an input"):
        load_own(path, categories="sex", **options)
    _, notes = propose([path], "label")
    assert ["'F' and 'f' are two categories" in str(note) for note in notes] == [True]


def test_labels_in_a_column_are_as_labels_in_a_row() -> None:
    labels = np.where(Y == 1, b"1 ", b"1.0")
    labels[:9] = b"0"
    assert own((X, labels[:, None])).targets.names == ("0", "1")
    with pytest.raises(UserError, match=r"labels have shape \(40, 2\)"):
        own((X, np.stack([Y, Y], 1)))


def test_large_labels_do_not_merge() -> None:
    for labels in (np.where(Y == 1, 1e30, 2e30), np.where(Y == 1, 2**60, 2**60 + 1)):
        with pytest.raises(UserError, match=r"below 2\^53"):
            own((X, labels))


def test_bytes_are_text() -> None:
    np.savez("b.npz", x=X, y=np.where(Y == 1, b"cat", b"dog"), site=np.repeat([b"n", b"e"], 20))
    data = load("./b.npz", own={"by": "site"})
    assert data.targets.names == ("cat", "dog")
    assert data.owners is not None
    assert data.owners.names == ("n", "e")
    np.savez("b.npz", x=X, y=np.where(Y == 1, b"\xff", b"dog"))
    with pytest.raises(UserError, match=r"label of sample 1: .* is not UTF-8"):
        load("./b.npz")
    with pytest.raises(UserError, match=r"label of sample 1: .* is not UTF-8"):
        own((X, np.where(Y == 1, "\ud800", "dog")))


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": X, "y": np.where(Y == 1, np.inf, 0)}, "there is inf"),
        ({"x": X, "y": np.where(Y == 1, np.nan, 0)}, "label of sample 1: there is no label"),
        ({"x": np.array(1.0), "y": np.array(1)}, r"x is \(\), but x is \(\): give one for each sample"),
        ({"x": X, "y": Y, "targets": np.array(["a", "b"])}, "targets holds 2 names, but y is"),
    ],
)
def test_arrays_that_are_refused(arrays: dict[str, Any], words: str) -> None:
    np.savez("b.npz", **arrays)
    with pytest.raises(UserError, match=rf"b.npz.*{words}"):
        load("./b.npz")


def test_arrays_that_are_not_used_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez("b.npz", x=X, y=Y, huge=X)
    monkeypatch.setattr("coterie.data.formats.read_array", lambda *_, **__: pytest.fail("an array was read"))
    with pytest.raises(UserError, match="holds 'huge', which is not used"):
        load("./b.npz")


@pytest.mark.parametrize("name", ["", " ", "nan", "None"])
def test_a_client_without_a_name_is_refused(name: str) -> None:
    rows = [f"{['n', name, 'n ', 'e'][i // 10]},{i},{i % 2}" for i in range(40)]
    with pytest.raises(UserError, match=r"s.csv, column 'site', line 12: there is no client"):
        load(table("./s.csv", "site,a,label", rows), own={"by": "site"})


def test_spaces_around_a_name_make_no_other_client() -> None:
    rows = [f"{['n', 'n ', ' e', 'e'][i // 10]},{i},{i % 2}" for i in range(40)]
    data = load(table("./s.csv", "site,a,label", rows), own={"by": "site"})
    assert data.owners is not None
    assert data.owners.names == ("n", "e")
    with pytest.raises(UserError, match="two clients are called 'n'"):
        own({"n": (X, Y), "n ": (X, Y)}, "client")


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_missing_client_of_a_frame_is_refused(missing: Any) -> None:
    pandas = pytest.importorskip("pandas")
    for names in (["a", missing], [1.0, missing]):
        frame = pandas.DataFrame({"a": X[:, 0], "site": names * 20, "label": Y})
        with pytest.raises(UserError, match="the data, column 'site', row 2: there is no client"):
            own(frame, "site", by="site")


def test_names_of_parties_are_refused() -> None:
    with pytest.raises(UserError, match="client 'client/1' has a name like those that a run gives"):
        own({"client/1": (X, Y), "client/2": (X, 1 - Y)}, "client")


@pytest.mark.parametrize("name", ["site", "Hospital", "client"])
def test_a_column_of_clients_is_no_feature(name: str) -> None:
    path = table("./s.csv", f"{name},a,label", [f"{i // 20},{i},{i % 2}" for i in range(40)])
    with pytest.raises(UserError, match=f"column '{name}': it seems to name clients.*--partition by:{name}"):
        load(path)
    assert load(path, own={"by": name}).input_shape == (1,)


def test_dates_are_no_feature() -> None:
    days = np.arange(40).astype("datetime64[D]")
    with pytest.raises(UserError, match=r"column 'day': it holds datetime64\[D\]"):
        own({"a": X[:, 0], "day": days, "label": Y})


def test_a_target_is_named_once() -> None:
    path = table("./m.csv", "a,l", [f"{i},{i % 2}" for i in range(40)])
    with pytest.raises(UserError, match="target=l,l names the column 'l' twice"):
        load(path, own={"target": "l,l", "task": "multilabel"})


def test_a_long_cell_is_refused_and_does_not_widen_its_column() -> None:
    rows = [f"{i},{i % 2}" for i in range(20)]
    with pytest.raises(UserError, match=r"big.csv, column 'a', line 22: the cell has more than 1,000 characters"):
        load(table("./big.csv", "a,label", [*rows, "0." + "0" * 1000 + ",1"]))
    long = "w" * 1000
    parts = from_python({"a": np.arange(4.0), "label": np.array([long, "b", long, "b"], object)})
    assert parts[0].y.dtype == object


@pytest.mark.parametrize(
    ("cells", "gaps", "words"),
    [
        ([*"123456789", "?"], False, r"'\?' is not a number; the column's others are: leave the cell empty, .*--gaps"),
        ([*"12", "", "", "n/a", "high"], True, "the column's others are: leave the cell empty"),
        (["", "", "", "", "m", "f", "m", "f"], True, "'m' is not a number; say categories=a"),
        (
            [f"name {i}" for i in range(10)],
            False,
            "'name 0' is not a number; nearly every row has another word: drop the column "
            r'\(in a schema kind = "ignore" or "id"\)',
        ),
        ([*"mfmfmfmfm", "1"], False, "'m' is not a number; say categories=a .*a schema kind.*--partition by:a"),
    ],
)
def test_words_in_a_column_of_numbers_are_no_categories(cells: list[str], gaps: bool, words: str) -> None:
    path = table("./a.csv", "a,label", [f"{cell},{i % 2}" for i, cell in enumerate(cells)])
    with pytest.raises(UserError, match=words):
        load(path, own={"gaps": "mean"} if gaps else {})


def test_a_line_is_that_of_the_file() -> None:
    Path("a.csv").write_text('a,b,label\n\n1,2,x\n\n1,"2\n",y\n1,high,y\n')
    with pytest.raises(UserError, match=r"a.csv, column 'b', line 7: 'high' is not a number"):
        load("./a.csv")


def test_a_wide_header_is_read_in_time() -> None:
    names = [f"c{i}" for i in range(100_000)]
    rows = [",".join(["1"] * 100_000 + [str(i % 2)]) for i in range(6)]
    path = table("./wide.csv", ",".join([*names, "label"]), rows)
    found = threading.Thread(target=load, args=(path,), daemon=True)
    found.start()
    found.join(10)
    assert not found.is_alive()


def test_a_pipe_is_no_file() -> None:
    Path("pipes").mkdir()
    os.mkfifo("pipes/a.csv")
    with pytest.raises(UserError, match=r"pipes: a.csv is not an ordinary file"):
        load("./pipes")
    with pytest.raises(UserError, match="there is no data at"):
        load("./pipes/a.csv")


@pytest.mark.parametrize("name", ["a" * 300, "./" + "a" * 300])
def test_a_name_that_no_file_can_have_is_an_error(name: str) -> None:
    with pytest.raises(UserError, match="no file can have the name"):
        load(name)
    with pytest.raises(UserError, match="no file can have the name"):
        resolve(RunConfig("fedavg", data=name))


def test_names_are_text() -> None:
    with pytest.raises(UserError, match="letters, digits"):
        load("./a\0")
    with pytest.raises(UserError, match=r"the name of a client .* is not UTF-8"):
        from_python({"a\ud800": (X, Y), "b": (X, Y)})
    with pytest.raises(UserError, match=r"the data: the name of a column .* is not UTF-8"):
        from_python({"a\ud800": X[:, 0], "label": Y})


def test_names_of_targets_and_kinds_stay() -> None:
    parts = from_python({"age": X[:, 0], "cost": X[:, 1], "stay": X[:, 2]}, target="cost,stay")
    np.savez("own.npz", **to_arrays(parts, None, None, None))  # type: ignore[arg-type]
    assert load("./own.npz", own={"task": "regression"}).targets.names == ("cost", "stay")
    two: list[dict[str, Any]] = [{"x": np.zeros((40, 5, 5), np.uint8), "y": Y} for _ in range(2)]
    two[1]["kind"] = np.array("series")
    assert own({"a": two[0], "b": two[1]}, "client").kind == "series"
    two[0]["kind"] = np.array("image")
    with pytest.raises(UserError, match="kind of the samples is image in client 'a' and series in client 'b'"):
        own({"a": two[0], "b": two[1]}, "client")


@pytest.mark.parametrize("name", ["x", "y"])
def test_clients_in_a_column_called_as_an_array(name: str) -> None:
    parts = from_python({"a": X[:, 0], name: np.repeat(["n", "e"], 20), "label": Y}, by=name)
    with pytest.raises(UserError, match="the column cannot be called x or y"):
        to_arrays(parts, name, None, None)
    np.savez("b.npz", x=X, y=Y)
    with pytest.raises(UserError, match=f"{name} is one of the arrays of samples"):
        load("./b.npz", own={"by": name})


def test_two_columns_of_one_name() -> None:
    pandas = pytest.importorskip("pandas")
    for names in ([1, "1", "label"], ["a", "a", "label"]):
        with pytest.raises(UserError, match=f"two columns are called '{names[1]}'"):
            from_python(pandas.DataFrame(np.column_stack([X[:, :2], Y]), columns=names))


def test_columns_of_unequal_length() -> None:
    with pytest.raises(UserError, match=r"column 'a': it has shape \(39,\), but column 'label' \(40,\)"):
        from_python({"a": X[:39, 0], "label": Y})


@pytest.mark.parametrize("kind", ["series", "volume"])
def test_only_images_are_turned(kind: str) -> None:
    x = X.reshape(40, 5, 1) if kind == "series" else X.reshape(40, 1, 1, 5, 1)
    with pytest.raises(UserError, match=f"turns square images, and a sample of own is a {kind}"):
        deal("rotate:2", own((x, Y), kind=kind), 2, 0)


def test_tensors_and_lists() -> None:
    x, y = torch.tensor(X, dtype=torch.float32), torch.tensor(Y)
    expected = own((x.numpy(), Y)).x_train
    np.testing.assert_array_equal(own((x.clone().requires_grad_(), y)).x_train, expected)
    np.testing.assert_array_equal(own((x.bfloat16(), y)).x_train, own((x.bfloat16().float(), y)).x_train)
    given = [(row.clone().requires_grad_(), label) for row, label in zip(x, y, strict=True)]
    np.testing.assert_array_equal(own(Pairs(given)).x_train, expected)
    with pytest.raises(UserError, match="the data: x cannot become an array"):
        own(([[1, 2], [3]], [0, 1]))
    with pytest.raises(UserError, match="client 'a': x cannot become an array"):
        own({"a": (torch.zeros(2, 2).to_sparse(), [0, 1])}, "client")


class Pairs:
    """A Dataset of torch: numbered pairs."""

    def __init__(self, pairs: list[Any]) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, i: int) -> Any:
        return self.pairs[i]
