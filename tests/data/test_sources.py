"""Data sets by name: where they are looked for, in which forms, and what damaged files do."""

from __future__ import annotations

import gzip
import io
import os
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie.data import NAMES, cache_dir, load
from coterie.data.catalogue import ALL_LABELS, BUILT_IN
from coterie.protocol.errors import UserError

RNG = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def no_folders_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("COTERIE_DATA", raising=False)


def own(first_pixel: int = 0) -> dict[str, np.ndarray]:
    x = RNG.integers(0, 256, (24, 5, 5)).astype(np.uint8)
    x[0, 0, 0] = first_pixel
    return {"x_train": x[:16], "y_train": np.arange(16) % 4, "x_test": x[16:], "y_test": np.arange(8) % 4}


def write_tar(path: Path, members: dict[str, bytes], mode: str = "w:gz") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def get(name: str, folder: Path) -> object:
    return load(name, folder, download=False)


# Where


def test_argument_then_environment_then_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folders = [tmp_path / "argument", tmp_path / "environment", cache_dir()]
    for i, folder in enumerate(folders):
        folder.mkdir(parents=True)
        np.savez(folder / "own.npz", **own(first_pixel=i + 1))
    monkeypatch.setenv("COTERIE_DATA", str(folders[1]))
    for i, folder in enumerate(folders):
        data = load("own", folders[0])
        assert data.x_train[0, 0, 0, 0] == i + 1
        assert str(folder / "own.npz") in data.source
        (folder / "own.npz").unlink()
    with pytest.raises(UserError) as error:
        load("own", folders[0])
    assert all(str(folder) in str(error.value) for folder in folders)


def test_cache_folder_is_the_platforms(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_dir() == tmp_path / "xdg" / "coterie"
    monkeypatch.setenv("HOME", str(tmp_path))
    for xdg in ("", "relative/cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", xdg)
        assert cache_dir() == tmp_path / ".cache" / "coterie"


def test_an_older_versions_downloads_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It kept them in $XDG_CACHE_HOME where the platform has another place, too."""
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *_, **__: tmp_path / "platform")
    places = tmp_path / "xdg" / "coterie", tmp_path / "platform"
    for i, folder in enumerate(places):
        folder.mkdir(parents=True)
        np.savez(folder / "own.npz", **own(first_pixel=7 + i))
    assert load("own").x_train[0, 0, 0, 0] == 7
    (places[0] / "own.npz").unlink()
    assert load("own").x_train[0, 0, 0, 0] == 8


@pytest.mark.parametrize("name", [n for n in NAMES if n not in BUILT_IN])
def test_missing_data_say_what_to_put_where(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        get(name, tmp_path)
    file = f"{ALL_LABELS.get(name, name)}.npz"
    for part in (str(tmp_path), str(cache_dir()), file, "://", "--data-dir", "COTERIE_DATA", "digits"):
        assert part in str(error.value)


@pytest.mark.parametrize("name", ["nonesuch", "MNIST", "cifar-10"])
def test_unknown_names(name: str) -> None:
    with pytest.raises(UserError, match=f"unknown data set '{name}'") as error:
        load(name)
    for part in (*NAMES, f"{name}.npz", "x_train", "--data-dir", "COTERIE_DATA"):
        assert part in str(error.value)


@pytest.mark.parametrize("name", ["", ".hidden", "a b", "a\x00b", "ünï"])
def test_names_that_are_no_names(name: str) -> None:
    with pytest.raises(UserError, match="letters, digits"):
        load(name)


@pytest.mark.parametrize("path", ["../mnist", "a/b", "/etc/nothing", "nothing.csv"])
def test_paths_to_nothing(path: str) -> None:
    with pytest.raises(UserError, match=f"there is no data at {path}: --data takes a known name, a folder"):
        load(path)


def test_data_dir_must_exist(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "none", tmp_path / "file"):
        with pytest.raises(UserError, match=r"--data-dir\) does not exist"):
            load("own", wrong)


# The .npz forms


def test_own_npz(tmp_path: Path) -> None:
    arrays = own()
    np.savez_compressed(tmp_path / "own.npz", **arrays, remark=np.array("kept out"))
    data = load("own", str(tmp_path))
    np.testing.assert_array_equal(data.x_test[:, 0], arrays["x_test"])
    assert (data.name, data.classes, data.kind) == ("own", 4, "image")
    assert "16 training and 8 test" in data.source


def test_npz_in_one_piece_is_split(tmp_path: Path) -> None:
    x, y = RNG.integers(0, 2, (60, 12)).astype(np.uint8), np.repeat(np.arange(3), 20)
    np.savez(tmp_path / "own.npz", x=x, y=y)
    np.savez(tmp_path / "hot.npz", features=x, labels=np.eye(3)[y])
    for name in ("own", "hot"):
        data = load(name, tmp_path)
        np.testing.assert_array_equal(np.bincount(data.y_test), [4, 4, 4])
        np.testing.assert_array_equal(data.x_test, x[::5])
        assert "fixed 80/20 split" in data.source


def test_a_part_of_a_known_set_says_so(tmp_path: Path) -> None:
    x, y = RNG.integers(0, 256, (30, 8, 8, 3)).astype(np.uint8), np.arange(30) % 100
    np.savez(tmp_path / "cifar100.npz", x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])
    data = load("cifar100", tmp_path)
    assert data.classes == 100  # though only 30 occur
    assert "30 training and 10 test samples (the complete set has 50,000 and 10,000)" in data.source
    np.savez(tmp_path / "cifar10.npz", x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])
    with pytest.raises(UserError, match=r"cifar10.*y_train has label 29, but labels must be 0\.\.9"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "holds nothing; it needs x_train, y_train, x_test, y_test"),
        ({"x_train": np.zeros((3, 2)), "a": np.zeros(1)}, "holds a, x_train; it needs"),
        ({"x": np.zeros((6, 2)), "y": np.zeros(5, int)}, r"x is \(6, 2\) and y \(5,\)"),
        ({"x": np.zeros(()), "y": np.zeros((), int)}, r"x is \(\) and y \(\)"),
        ({"x": np.zeros((2, 2)), "y": np.array([[1, 1, 0], [0, 0, 1]])}, "rows with a single 1"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, int)}, "one label for each sample"),
        ({**own(), "x_train": np.array([None] * 16)}, "x_train is an array of Python objects"),
    ],
)
def test_npz_with_the_wrong_content(arrays: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(UserError, match=message) as error:
        load("own", tmp_path)
    assert str(tmp_path / "own.npz") in str(error.value)


class _Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return (os.mkdir, (str(self.path),))


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    trap = np.array([_Trap(tmp_path / "sprung")], dtype=object)
    np.savez(tmp_path / "own.npz", **{**own(), "x_test": trap})
    np.save(tmp_path / "other.npy", trap)
    (tmp_path / "other.npy").rename(tmp_path / "other.npz")
    for name, words in (("own", "x_test is an array of Python objects"), ("other", "cannot be read")):
        with pytest.raises(UserError, match=words):
            load(name, tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_files_that_are_no_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "good.npz", **own())
    good = (tmp_path / "good.npz").read_bytes()
    huge = io.BytesIO()
    np.lib.format.write_array_header_1_0(huge, {"descr": "<f8", "fortran_order": False, "shape": (1 << 45,)})
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive:
        archive.writestr("x_train.npy", huge.getvalue())
    np.save(tmp_path / "single.npy", np.zeros(3))
    (tmp_path / "single.npy").rename(tmp_path / "single.npz")
    for name, content in (
        ("empty", b""),
        ("text", b"not a zip"),
        ("cut", good[: len(good) // 2]),
        ("tail", good[-99:]),
    ):
        (tmp_path / f"{name}.npz").write_bytes(content)
    for name in ("empty", "text", "cut", "tail", "huge", "single"):
        with pytest.raises(UserError) as error:
            load(name, tmp_path)
        assert str(tmp_path / f"{name}.npz") in str(error.value)


@given(
    position=st.floats(0, 1, exclude_max=True),
    value=st.integers(0, 255),
    cut=st.sampled_from([0, 0, 0, 1, 30]),
    compressed=st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_is_noticed_or_harmless(
    position: float, value: int, cut: int, compressed: bool, tmp_path: Path
) -> None:
    target = tmp_path / "own.npz"
    arrays = {key: np.arange(len(array) * array[0].size).reshape(array.shape) % 4 for key, array in own().items()}
    (np.savez_compressed if compressed else np.savez)(target, **arrays)
    content = bytearray(target.read_bytes())
    content[int(position * len(content))] = value
    target.write_bytes(bytes(content[: len(content) - cut]))
    try:
        data = load("own", tmp_path)
    except UserError as exc:
        message = str(exc)
    else:  # the archive's checksums hold: whatever was changed was not the data
        np.testing.assert_array_equal(data.x_train[:, 0], arrays["x_train"])
        return
    assert str(target) in message


# The publishers' files


def idx(array: np.ndarray) -> bytes:
    return struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


IDX_NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def write_idx(folder: Path, seed: int, zipped: bool) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    arrays = [
        rng.integers(0, 256, (20, 28, 28)),
        rng.integers(0, 10, 20),
        rng.integers(0, 256, (5, 28, 28)),
        np.arange(5),
    ]
    arrays = [array.astype(np.uint8) for array in arrays]
    folder.mkdir(parents=True)
    for name, array in zip(IDX_NAMES, arrays, strict=True):
        content = gzip.compress(idx(array)) if zipped else idx(array)
        (folder / (name + (".gz" if zipped else ""))).write_bytes(content)
    return arrays


def test_idx_files_in_their_folders(tmp_path: Path) -> None:
    wanted = {
        "mnist": write_idx(tmp_path / "a" / "mnist", 0, zipped=True),
        "fashion_mnist": write_idx(tmp_path / "a" / "FashionMNIST" / "raw", 1, zipped=False),
    }
    for name, arrays in wanted.items():
        data = get(name, tmp_path / "a")
        got = (data.x_train[:, 0], data.y_train, data.x_test[:, 0], data.y_test)
        for one, other in zip(got, arrays, strict=True):
            np.testing.assert_array_equal(one, other)
        assert "the complete set has 60,000 and 10,000" in data.source
    write_idx(tmp_path / "bare", 0, zipped=True)  # could be either: must not pass for Fashion-MNIST
    with pytest.raises(UserError, match="not in"):
        get("fashion_mnist", tmp_path / "bare")
    (tmp_path / "a" / "mnist" / f"{IDX_NAMES[3]}.gz").unlink()
    with pytest.raises(UserError, match="not in"):
        get("mnist", tmp_path / "a")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\x00",
        b"\x00\x00\x09\x03" + idx(np.zeros((2, 2, 2), np.uint8))[4:],  # signed bytes
        b"\x1f\x8b\x08\x00garbage",
        idx(np.zeros((20, 28, 28), np.uint8))[:-1],
        idx(np.zeros((20, 28, 28), np.uint8)) + b"!",
        struct.pack(">HBB3I", 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1),
        b"\x00\x00\x08\x03\x00\x00",
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_damaged_idx_files(content: bytes, zipped: bool, tmp_path: Path) -> None:
    write_idx(tmp_path / "mnist", 0, zipped)
    path = tmp_path / "mnist" / (IDX_NAMES[0] + (".gz" if zipped else ""))
    path.write_bytes(gzip.compress(content) if zipped else content)
    with pytest.raises(UserError, match="cannot be read as an IDX file") as error:
        get("mnist", tmp_path)
    assert str(path) in str(error.value)
    if zipped:
        path.write_bytes(gzip.compress(idx(np.zeros((20, 28, 28), np.uint8)))[:-12])
        with pytest.raises(UserError, match="cannot be read as an IDX file"):
            get("mnist", tmp_path)


def cifar_records(labels: list[list[int]], images: np.ndarray) -> bytes:
    return b"".join(bytes(label) + image.tobytes() for label, image in zip(labels, images, strict=True))


def test_cifar_binaries(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (60, 3, 32, 32)).astype(np.uint8)
    ten = {
        f"cifar-10-batches-bin/{name}.bin": cifar_records(
            [[(i + k) % 10] for k in range(10)], images[10 * i : 10 * i + 10]
        )
        for i, name in enumerate([f"data_batch_{b}" for b in range(1, 6)] + ["test_batch"])
    }
    shuffled = dict(sorted(ten.items(), reverse=True))  # the order inside the archive must not matter
    write_tar(tmp_path / "packed" / "cifar-10-binary.tar.gz", {"cifar-10-batches-bin/readme.html": b"?", **shuffled})
    for name, content in ten.items():
        path = tmp_path / "loose" / "cifar10" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for folder in ("packed", "loose"):
        data = get("cifar10", tmp_path / folder)
        np.testing.assert_array_equal(data.x_train, images[:50])
        np.testing.assert_array_equal(data.x_test, images[50:])
        np.testing.assert_array_equal(data.y_train, [(i + k) % 10 for i in range(5) for k in range(10)])
    hundred = {
        "cifar-100-binary/train.bin": cifar_records([[k % 20, 99 - k] for k in range(40)], images[:40]),
        "cifar-100-binary/test.bin": cifar_records([[19, k] for k in range(20)], images[40:]),
    }
    write_tar(tmp_path / "packed" / "cifar-100-binary.tar.gz", hundred)
    data = get("cifar100", tmp_path / "packed")
    np.testing.assert_array_equal(data.y_train, [99 - k for k in range(40)])  # the fine labels
    np.testing.assert_array_equal(data.x_test, images[40:])


def test_damaged_cifar_archives(tmp_path: Path) -> None:
    path = tmp_path / "cifar-100-binary.tar.gz"
    whole = {"cifar-100-binary/train.bin": bytes(3074 * 3), "cifar-100-binary/test.bin": bytes(3074)}
    write_tar(path, whole)
    good = path.read_bytes()
    write_tar(path, {"cifar-100-binary/train.bin": bytes(3074)})
    with pytest.raises(UserError, match=r"does not hold test\.bin"):
        get("cifar100", tmp_path)
    write_tar(path, {**whole, "cifar-100-binary/train.bin": bytes(3075)})
    with pytest.raises(UserError, match="not whole records of 3074 bytes"):
        get("cifar100", tmp_path)
    for content in (b"", b"\x1f\x8b", good[:-40], os.urandom(500)):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"cannot be read as a tar archive|does not hold"):
            get("cifar100", tmp_path)


def test_svhn_mat_files(tmp_path: Path) -> None:
    from scipy.io import savemat

    x = RNG.integers(0, 256, (32, 32, 3, 20)).astype(np.uint8)
    y = (np.arange(20) % 10 + 1).astype(np.uint8)[:, None]  # 1..10, as the publisher counts
    savemat(tmp_path / "train_32x32.mat", {"X": x, "y": y})
    savemat(tmp_path / "test_32x32.mat", {"X": x[..., :4], "y": y[:4]}, do_compression=True)
    data = get("svhn", tmp_path)
    np.testing.assert_array_equal(data.x_train[7], x[..., 7].transpose(2, 0, 1))
    np.testing.assert_array_equal(data.y_train[:11], [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1])
    for wrong in ({"X": x[..., :3], "y": y}, {"X": x.astype(float), "y": y}, {"X": x}, {"X": x, "y": y + 1}):
        savemat(tmp_path / "train_32x32.mat", wrong)
        with pytest.raises(UserError, match="cannot be read as a MATLAB file"):
            get("svhn", tmp_path)
    for content in (b"", b"MATLAB 5.0 MAT-file" + bytes(200), os.urandom(400)):
        (tmp_path / "train_32x32.mat").write_bytes(content)
        with pytest.raises(UserError, match="cannot be read as a MATLAB file"):
            get("svhn", tmp_path)


def test_half_of_svhn_is_not_svhn(tmp_path: Path) -> None:
    (tmp_path / "svhn").mkdir()
    (tmp_path / "svhn" / "train_32x32.mat").write_bytes(b"?")
    with pytest.raises(
        UserError, match=r"put svhn\.npz there, or svhn/train_32x32\.mat, svhn/test_32x32\.mat from http"
    ):
        get("svhn", tmp_path)


def test_membership_inference_tables(tmp_path: Path) -> None:
    x, y = RNG.integers(0, 2, (60, 9)), np.arange(60) % 30
    rows = [",".join(map(str, [label + 1, *row])) for label, row in zip(y, x, strict=True)]
    quoted = "\n".join('"' + row.replace(",", '",', 1) for row in rows)  # a quoted label reads the same
    write_tar(tmp_path / "dataset_location.tgz", {"bangkok": "\n".join(rows).encode()})
    write_tar(tmp_path / "dataset_purchase.tgz", {"./dataset_purchase": quoted.encode()})
    feats, labels = "\n".join(row.partition(",")[2] for row in rows), "\n".join(str(label + 1) for label in y)
    write_tar(tmp_path / "dataset_texas.tgz", {"texas/100/labels": labels.encode(), "texas/100/feats": feats.encode()})
    (tmp_path / "loose").mkdir()
    (tmp_path / "loose" / "bangkok").write_text("\n".join(rows))
    for name, folder in (("location30", ""), ("purchase100", ""), ("texas100", ""), ("location30", "loose")):
        data = get(name, tmp_path / folder)
        assert data.classes == int(name.removeprefix("location").removeprefix("purchase").removeprefix("texas"))
        np.testing.assert_array_equal(np.sort(np.concatenate([data.y_train, data.y_test])), np.sort(y))
        i = np.flatnonzero(data.y_train == 5)[0]
        assert any((data.x_train[i] == x[j]).all() for j in np.flatnonzero(y == 5))
        assert (len(data.y_train), len(data.y_test)) == (48, 12)
    for wrong in (b"", b"1,0,x\n", b"1,0,1\n2,0\n", b"1,0,999\n", b"\xff\xfe"):
        (tmp_path / "loose" / "bangkok").write_bytes(wrong)
        with pytest.raises(UserError, match="cannot be read as a comma-separated table"):
            get("location30", tmp_path / "loose")
    (tmp_path / "loose" / "bangkok").write_text("0,1,1\n1,0,0\n")
    with pytest.raises(UserError, match="label -1"):
        get("location30", tmp_path / "loose")
