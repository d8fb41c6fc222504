"""Small files that say they hold very much: they are refused by what they claim, and not after the memory is full."""

from __future__ import annotations

import io
import json
import os
import sys
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command import QUICK, Command
from numpy.lib.format import write_array_header_1_0

from coterie.data.columns import Column
from coterie.data.form import SampleForm, read_data
from coterie.data.formats import read_npz
from coterie.data.own import packed
from coterie.data.preparing import new_samples
from coterie.data.samples import _read_parquet
from coterie.data.sources import load
from coterie.protocol.errors import UserError
from coterie.runs.models import load_exported

CLAIMED = 16 << 20
"""Bytes of a small file's array, above what any file may hold here."""
LITTLE = 4 << 20


@pytest.fixture(autouse=True)
def _files_may_hold_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.data.formats._FREE", 8 << 20)  # less than in use, for the sake of time


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < LITTLE


def header(shape: tuple[int, ...], dtype: str = "|u1") -> bytes:
    file = io.BytesIO()
    write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


def archive(path: Path, compression: int = zipfile.ZIP_DEFLATED, **members: tuple[bytes, int]) -> Path:
    """An npz file. members: the header of each array, and how many zeros follow."""
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, (head, zeros) in members.items():
            with file.open(f"{name}.npy", "w") as member:
                member.write(head)
                for at in range(0, zeros, 1 << 20):
                    member.write(bytes(min(1 << 20, zeros - at)))
    return path


def swollen(path: Path) -> Path:
    """Some 20 kB that hold 16 MiB of zeros as samples of 64 features, and labels."""
    n = CLAIMED // 64
    return archive(path, x=(header((n, 64)), CLAIMED), y=(header((n,)), n))


FACTS = SampleForm((64,), 10, "classes")


@pytest.mark.parametrize(
    "read",
    [read_npz, lambda path: load(str(path)), lambda path: read_data(path, FACTS)],
    ids=["read_npz", "own data", "deploy join"],
)
def test_zeros_that_are_compressed_a_thousand_times_are_not_unpacked(
    tmp_path: Path, read: Callable[[Path], Any]
) -> None:
    path = swollen(tmp_path / "b.npz")
    assert path.stat().st_size < CLAIMED / 500
    claims = r"b\.npz has [\d,]+ bytes and claims to hold 1[\d,]+, which .* write it again without compression"
    with pytest.raises(UserError, match=claims), little_memory():
        read(path)


def test_samples_to_be_predicted_are_refused_by_their_shape(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("run", "local", "--out", "run", *QUICK).code == 0
    archive(Path("wide.npz"), x=(header((1000, 999)), 999_000))
    swollen(Path("b.npz"))
    monkeypatch.setattr("coterie.data.formats.read_array", lambda *_, **__: pytest.fail("an array was read"))
    for name, words in {"wide": "x has shape (1000, 999)", "b": "claims to hold"}.items():
        ended = cli("predict", "run", f"{name}.npz", "--client", "client/1")
        assert (ended.code, words in ended.err) == (2, True), ended.err


def test_samples_of_another_shape_than_the_plan_s_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.data.formats.read_array", lambda *_, **__: pytest.fail("an array was read"))
    wide = archive(tmp_path / "wide.npz", x=(header((10, 65)), 650), y=(header((10,)), 10))
    with pytest.raises(UserError, match=r"x has shape \(10, 65\); the plan's model takes \(n, 64\)"):
        read_data(wide, FACTS)
    few = archive(tmp_path / "few.npz", x=(header((10, 64)), 640), y=(header((9,)), 9))
    with pytest.raises(UserError, match=r"y has shape \(9,\)"):
        read_data(few, FACTS)
    with pytest.raises(UserError, match=r"y is \(9,\), but x is \(10, 64\)"):
        load(str(few))


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"x": (header((1 << 40,)), 10)}, "not as long as its shape"),  # memory would be taken for all of it
        ({"x": (header((10,)), CLAIMED // 4)}, "not as long as its shape"),
        ({"x": (header((-1,)), 0)}, "not as long as its shape"),
        ({"x": (header((2, -5)), 0)}, "not as long as its shape"),
        ({"x": (header((10,), "|O"), 80)}, "array of Python objects"),
        ({"x": (b"\x93NUMPY\x03\x00", 100)}, "version"),
        ({"x": (b"no array", 100)}, "magic string"),
    ],
)
def test_members_that_are_not_what_their_headers_say(tmp_path: Path, members: Any, words: str) -> None:
    path = archive(tmp_path / "a.npz", **members)
    with pytest.raises(UserError, match=rf"a\.npz.*{words}"), little_memory():
        read_npz(path)


def test_one_name_twice_and_other_compressions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x.npy", header((3,)) + bytes(3))
        with pytest.warns(UserWarning, match="Duplicate name"):
            file.writestr("x.npy", header((3,)) + bytes(3))
    with pytest.raises(UserError, match="same name"):
        read_npz(path)
    archive(path, zipfile.ZIP_BZIP2, x=(header((3,)), 3))
    with pytest.raises(UserError, match="another way than numpy's"):
        read_npz(path)


def test_what_numpy_writes_is_read(tmp_path: Path) -> None:
    """Also sparse samples in a compressed file, which are a hundred times as long in memory."""
    sparse = np.zeros((2_000, 800), np.float32)
    sparse[::40, 7] = 1
    written = {
        "x": sparse,
        "f": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "one": np.array("kind"),
        "none": X[:0],
    }
    np.savez_compressed(tmp_path / "a.npz", **written)
    assert sparse.nbytes > 100 * (tmp_path / "a.npz").stat().st_size
    found = read_npz(tmp_path / "a.npz")
    assert [*found] == [*written]
    for name, array in written.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


def test_objects_of_zeros_are_written_so_that_they_are_read_again(tmp_path: Path) -> None:
    for rows in (1_000, CLAIMED // 64):
        arrays = {"x": np.zeros((rows, 64), np.uint8), "y": np.zeros(rows, np.uint8)}
        name, data = packed(arrays)
        (tmp_path / name).write_bytes(data)
        assert (len(data) < rows) == (rows == 1_000)  # compressed where that can be read
        np.testing.assert_array_equal(read_npz(tmp_path / name)["x"], arrays["x"])


X = np.zeros((2, 3))


def test_other_archives_are_refused_by_what_they_claim(tmp_path: Path) -> None:
    import gzip
    import tarfile

    from coterie.data.formats import read_idx, read_tar

    idx = tmp_path / "train-images.gz"
    with gzip.open(idx, "wb") as file:
        file.write(b"\0\0\x08\x01" + CLAIMED.to_bytes(4, "big"))
    with pytest.raises(UserError, match="claims to hold 16,777,216"), little_memory():
        read_idx(idx)
    tar = tmp_path / "cora.tgz"
    with tarfile.open(tar, "w:gz") as packed:
        member = tarfile.TarInfo("cora/cora.content")
        member.size = CLAIMED
        with (tmp_path / "zeros").open("wb+") as zeros:
            zeros.truncate(CLAIMED)
            packed.addfile(member, zeros)
    with pytest.raises(UserError, match="claims to hold 16,777,216"), little_memory():
        read_tar(tar, ["cora.content"])


@pytest.mark.parametrize("dtype", ["<U0", "|S0", "|V0"])
def test_values_of_no_bytes_are_refused_since_any_number_of_them_fits_a_small_file(tmp_path: Path, dtype: str) -> None:
    n = 10**9
    path = archive(tmp_path / "b.npz", x=(header((n, 2), dtype), 0), y=(header((n,), dtype), 0))
    with little_memory(), pytest.raises(UserError, match=r"b.npz cannot be read .* x.npy has values of no bytes"):
        load(str(path))


@pytest.mark.parametrize("order", "<>")
def test_words_of_characters_that_there_are_not_are_refused(tmp_path: Path, order: str) -> None:
    x, y = np.zeros((4, 1), "<f4"), np.full(4, sys.maxunicode + 1, f"{order}u4").view(f"{order}U1")
    np.savez(tmp_path / "b.npz", x=x, y=y)
    with pytest.raises(UserError, match=r"b.npz cannot be read .* y holds words with characters that there are not"):
        load(str(tmp_path / "b.npz"))
    np.savez(tmp_path / "b.npz", x=x, y=np.array([chr(sys.maxunicode)] * 4).astype(f"{order}U1"))
    assert read_npz(tmp_path / "b.npz")["y"].tolist() == [chr(sys.maxunicode)] * 4


# -- parquet ----------------------------------------------------------------------------------------------------------


def footer(rows: int, *columns: tuple[int, int, int]) -> Any:
    """A footer as pyarrow gives it. columns: of each its values, their fixed length or 0, and its bytes."""
    schema = [
        SimpleNamespace(path=f"c{j}", physical_type="DOUBLE", length=length) for j, (_, length, _) in enumerate(columns)
    ]
    chunks = [SimpleNamespace(num_values=values, total_uncompressed_size=size) for values, _, size in columns]
    return SimpleNamespace(
        num_rows=rows,
        num_columns=len(columns),
        num_row_groups=1,
        schema=SimpleNamespace(column=schema.__getitem__),
        row_group=lambda row: SimpleNamespace(column=chunks.__getitem__),
    )


@pytest.mark.parametrize(
    "told",
    [
        footer(CLAIMED, (100, 0, 100)),
        footer(10, (CLAIMED, 0, 100)),  # of a list
        footer(10, (100, 0, CLAIMED), (100, 0, 100)),
        footer(10, (CLAIMED // 64, 64, 100)),
    ],
    ids=["rows", "values", "bytes", "long values"],
)
def test_a_table_is_refused_by_its_footer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Any) -> None:
    pandas, parquet = ModuleType("pandas"), ModuleType("pyarrow.parquet")
    monkeypatch.setattr(pandas, "read_parquet", lambda *_, **__: pytest.fail("it was read"), raising=False)
    monkeypatch.setattr(parquet, "read_metadata", lambda path: told, raising=False)
    for module in (pandas, parquet, ModuleType("pyarrow")):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    path = tmp_path / "t.parquet"
    path.write_bytes(bytes(1000))
    with pytest.raises(UserError, match=r"t\.parquet has 1,000 bytes and claims .* write it again as a csv file"):
        new_samples(path, [Column("c0")])


def test_a_table_of_repeated_values_is_refused_or_takes_little_memory(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    many = arrow.table({"a": arrow.DictionaryArray.from_arrays(np.zeros(CLAIMED // 8, np.int8), np.zeros(1))})
    parquet.write_table(many, tmp_path / "many.parquet", store_schema=False)
    with pytest.raises(UserError, match=r"many\.parquet has .* claims to hold"), little_memory():
        new_samples(tmp_path / "many.parquet", [Column("a")])
    a, codes = np.arange(4_000), np.tile([0, 1], 2_000)
    labels = arrow.DictionaryArray.from_arrays(codes, ["p" * 100_000, "n"])  # 200 MB, were they written out
    parquet.write_table(arrow.table({"a": a, "label": labels}), tmp_path / "long.parquet", store_schema=False)
    with little_memory():
        x, found, _ = new_samples(tmp_path / "long.parquet", [Column("a")])
    assert found is not None
    assert (x[:, 0].tolist(), found.tolist()) == (a.tolist(), labels.to_pylist())
    assert arrow.default_memory_pool().max_memory() < CLAIMED


def test_words_and_missing_words_of_a_table_are_read(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    words = ["p", None, "q", "p"]
    kinds = pandas.Categorical([3, 1, None, 3])
    pandas.DataFrame({"w": words, "b": [b"x", b"y", b"x", b"z"], "k": kinds}).to_parquet(tmp_path / "t.parquet")
    found = _read_parquet(tmp_path / "t.parquet").columns
    assert [None if word != word else word for word in found["w"]] == words
    assert found["b"].tolist() == [b"x", b"y", b"x", b"z"]
    np.testing.assert_array_equal(found["k"], [3, 1, np.nan, 3])


# -- models -----------------------------------------------------------------------------------------------------------


def test_a_sparse_file_is_refused_as_a_model_without_reading_it(tmp_path: Path) -> None:
    for name, beginning in {"zeros": b"", "model": (2).to_bytes(8, "little") + b"{}"}.items():
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(beginning)
        os.truncate(path, 1 << 30)
        with pytest.raises(UserError, match=r"not a complete \.safetensors file"), little_memory():
            load_exported(path)


def test_a_tensor_of_very_many_axes_is_refused_before_they_are_multiplied(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    told = json.dumps({"a": {"dtype": "F32", "shape": [1] * 65, "data_offsets": [0, 4]}}).encode()
    path.write_bytes(len(told).to_bytes(8, "little") + told + bytes(4))
    with pytest.raises(UserError, match=r"not a complete \.safetensors file \(a tensor has more than 64 axes\)"):
        load_exported(path)
