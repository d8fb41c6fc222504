"""The data sets known by name: their classes and sizes, their publishers' files, and where these are on the web."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from coterie.data.dataset import Graph
from coterie.data.download import Remote
from coterie.data.formats import Arrays, read_cifar, read_csv, read_idx, read_svhn, read_tar
from coterie.data.graphs import read_linqs

FOUR = ("x_train", "y_train", "x_test", "y_test")
Found = tuple[Arrays | Graph, str]
"""What a file holds, and where it was found, in words."""


@dataclass(frozen=True)
class Known:
    """What is fixed about a named data set.

    samples: training and test samples of the complete set; None where the split is ours.
    read: reads the publishers' files that lie in one folder; None where they are not all there.
    places: subfolders to look in, the first also where downloads go. MNIST and Fashion-MNIST use the same file names,
        so theirs never count when they lie bare in a data folder.
    remote: these files on the web.  by_hand: where to get them when nobody offers them with a checksum.
    """

    classes: int
    samples: tuple[int, int] | None
    read: Callable[[Path], Found | None]
    places: tuple[str, ...]
    remote: tuple[Remote, ...] = ()
    by_hand: str = ""


def _read_idx_files(folder: Path) -> Found | None:
    paths = [_first(folder / f"{stem}-ubyte.gz", folder / f"{stem}-ubyte") for stem in _IDX]
    if not all(paths):
        return None
    return dict(zip(FOUR, (read_idx(path) for path in paths if path), strict=True)), str(folder)


def _read_cifar_files(archive: str, inner: str, train: tuple[str, ...], test: str, folder: Path) -> Found | None:
    names = (*train, test)
    if (folder / archive).is_file():
        source, blocks = folder / archive, read_tar(folder / archive, names)
    elif all((folder / inner / name).is_file() for name in names):
        source, blocks = folder / inner, {name: (folder / inner / name).read_bytes() for name in names}
    else:
        return None
    label_bytes = 2 if inner == "cifar-100-binary" else 1  # coarse and fine label, or one
    x_train, y_train = read_cifar([blocks[name] for name in train], label_bytes, str(source))
    x_test, y_test = read_cifar([blocks[test]], label_bytes, str(source))
    return dict(zip(FOUR, (x_train, y_train, x_test, y_test), strict=True)), str(source)


def _read_svhn_files(folder: Path) -> Found | None:
    paths = (folder / "train_32x32.mat", folder / "test_32x32.mat")
    if not all(path.is_file() for path in paths):
        return None
    x_train, y_train = read_svhn(paths[0])
    x_test, y_test = read_svhn(paths[1])
    return dict(zip(FOUR, (x_train, y_train, x_test, y_test), strict=True)), str(folder)


def _read_tables(archive: str, names: tuple[str, ...], folder: Path) -> Found | None:
    """One table with the label first, or a table of features and one of labels; labels count from 1."""
    if (folder / archive).is_file():
        source, texts = folder / archive, read_tar(folder / archive, names)
    elif all((folder / name).is_file() for name in names):
        source, texts = folder / names[0], {name: (folder / name).read_bytes() for name in names}
    else:
        return None
    tables = [read_csv(texts[name], source) for name in names]
    x, y = (tables[0][:, 1:], tables[0][:, 0]) if len(tables) == 1 else (tables[0], tables[1][:, 0])
    return {"x": x, "y": y.astype(np.int64) - 1}, str(source)


def _read_graph_archive(archive: str, folder: Path) -> Found | None:
    path = folder / archive
    return (read_linqs(path), f"{path}, split by ourselves, not Planetoid's") if path.is_file() else None


def _first(*paths: Path) -> Path | None:
    return next((path for path in paths if path.is_file()), None)


_IDX = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def _mnist_like(name: str, torchvision: str, base: str, *md5: str) -> Known:
    remote = tuple(Remote(f"{base}{stem}-ubyte.gz", digest) for stem, digest in zip(_IDX, md5, strict=True))
    return Known(10, (60_000, 10_000), _read_idx_files, (name, f"{torchvision}/raw"), remote)


def _cifar(name: str, classes: int, inner: str, train: tuple[str, ...], test: str, archive: str, md5: str) -> Known:
    read = partial(_read_cifar_files, archive, inner, train, test)
    remote = Remote(f"https://www.cs.toronto.edu/~kriz/{archive}", md5)
    return Known(classes, (50_000, 10_000), read, (name, "."), (remote,))


def _membership(name: str, classes: int, archive: str, *names: str) -> Known:
    by_hand = f"{archive} from https://github.com/privacytrustlab/datasets (which states no checksum)"
    return Known(classes, None, partial(_read_tables, archive, names), (name, "."), by_hand=by_hand)


def _citations(name: str, classes: int, path: str, md5: str) -> Known:
    remote = Remote(f"https://linqs-data.soe.ucsc.edu/public/{path}", md5)
    return Known(classes, None, partial(_read_graph_archive, remote.file_name), (name, "."), (remote,))


KNOWN: dict[str, Known] = {
    "mnist": _mnist_like(
        "mnist",
        "MNIST",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    "fashion_mnist": _mnist_like(
        "fashion_mnist",
        "FashionMNIST",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
    "cifar10": _cifar(
        "cifar10",
        10,
        "cifar-10-batches-bin",
        tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
        "test_batch.bin",
        "cifar-10-binary.tar.gz",
        "c32a1d4ab5d03f1284b67883e8d87530",
    ),
    "cifar100": _cifar(
        "cifar100",
        100,
        "cifar-100-binary",
        ("train.bin",),
        "test.bin",
        "cifar-100-binary.tar.gz",
        "03b5dce01913d631647c71ecec9e9cb8",
    ),
    "svhn": Known(
        10,
        (73_257, 26_032),
        _read_svhn_files,
        ("svhn", "."),
        (
            Remote("http://ufldl.stanford.edu/housenumbers/train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
            Remote("http://ufldl.stanford.edu/housenumbers/test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
        ),
    ),
    "purchase100": _membership("purchase100", 100, "dataset_purchase.tgz", "dataset_purchase"),
    "texas100": _membership("texas100", 100, "dataset_texas.tgz", "texas/100/feats", "texas/100/labels"),
    "cora": _citations("cora", 7, "lbc/cora.tgz", "2fc040bee8ce3d920e4204effd1e9214"),
    "citeseer": _citations("citeseer", 6, "lbc/citeseer.tgz", "c8ded8ed395b31899576bfd1e91e4d6e"),
    "pubmed": _citations("pubmed", 3, "Pubmed-Diabetes.tgz", "9fa24b917990c47e264a94079b9599fe"),
    "location30": _membership("location30", 30, "dataset_location.tgz", "bangkok"),
}
