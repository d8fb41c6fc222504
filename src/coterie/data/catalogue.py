"""Data sets known by name, with their publishers' files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from coterie.data.dataset import Graph
from coterie.data.formats import Arrays, read_cifar, read_csv, read_idx, read_svhn, read_tar
from coterie.data.graphs import read_linqs
from coterie.protocol.arrays import Array
from coterie.protocol.errors import UserError

FOUR = ("x_train", "y_train", "x_test", "y_test")
Found = tuple[Arrays | Graph, str]
"""What a file holds, and where it was found."""
Progress = Callable[[str, int, int | None], None]
"""Called with (file name, bytes so far, bytes in all or None)."""

_BLOCK = 1 << 18
_MAX_BYTES = 1 << 30  # above every file that we know: a wrong server cannot fill the disk

BUILT_IN = ("digits", "heart")
"""Installed with Coterie."""
SYNTHETIC = "synthetic:FEATURESxCLASSES"
"""The names of made-up data sets (``data/synthetic.py``)."""


def is_synthetic(name: str) -> bool:
    return name.partition(":")[0] == "synthetic"


@dataclass(frozen=True)
class RemoteFile:
    """md5: as its publisher or torchvision states it."""

    url: str
    md5: str

    @property
    def file_name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class NamedDataSet:
    """samples: training and test samples; None where the split is ours.  read: reads the publishers' files in one
    folder; None where some are missing.  place: a subfolder for downloads, since files of MNIST and Fashion-MNIST have
    equal names.  remote: these files.  by_hand: where to get them without a checksum.
    """

    classes: int
    samples: tuple[int, int] | None
    read: Callable[[Path], Found | None]
    place: str = "."
    remote: tuple[RemoteFile, ...] = ()
    by_hand: str = ""


def _four(train: Sequence[Array], test: Sequence[Array], source: Path) -> Found:
    return dict(zip(FOUR, (*train, *test), strict=True)), str(source)


def _files(folder: Path, archive: str, inner: str, names: Sequence[str]) -> tuple[Path, list[bytes]] | None:
    if (folder / archive).is_file():
        blocks = read_tar(folder / archive, names)
        return folder / archive, [blocks[name] for name in names]
    if all((folder / inner / name).is_file() for name in names):
        return folder / inner, [(folder / inner / name).read_bytes() for name in names]
    return None


def _mnist_like(torchvision: str, base: str, *md5: str) -> NamedDataSet:
    stems = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")

    def read(folder: Path) -> Found | None:
        either = ((folder / f"{stem}-ubyte.gz", folder / f"{stem}-ubyte") for stem in stems)
        paths = [next((path for path in forms if path.is_file()), None) for forms in either]
        if None in paths:
            return None
        arrays = [read_idx(path) for path in paths if path]
        return _four(arrays[:2], arrays[2:], folder)

    remote = tuple(RemoteFile(f"{base}{stem}-ubyte.gz", digest) for stem, digest in zip(stems, md5, strict=True))
    return NamedDataSet(10, (60_000, 10_000), read, f"{torchvision}/raw", remote)


def _cifar(classes: int, md5: str, inner: str, *names: str) -> NamedDataSet:
    """inner: the folder in the archive.  names: the last is the test set's."""
    archive = f"cifar-{classes}-binary.tar.gz"
    label_bytes = 2 if classes == 100 else 1  # coarse and fine label, or one

    def read(folder: Path) -> Found | None:
        if not (found := _files(folder, archive, inner, names)):
            return None
        source, (*train, test) = found
        return _four(read_cifar(train, label_bytes, str(source)), read_cifar([test], label_bytes, str(source)), source)

    remote = RemoteFile(f"https://www.cs.toronto.edu/~kriz/{archive}", md5)
    return NamedDataSet(classes, (50_000, 10_000), read, remote=(remote,))


def _read_svhn_files(folder: Path) -> Found | None:
    train, test = folder / "train_32x32.mat", folder / "test_32x32.mat"
    return _four(read_svhn(train), read_svhn(test), folder) if train.is_file() and test.is_file() else None


def _membership(classes: int, archive: str, *names: str) -> NamedDataSet:
    """One table with the label first, or one of features and one of labels, from 1."""

    def read(folder: Path) -> Found | None:
        if not (found := _files(folder, archive, ".", names)):
            return None
        source, texts = found
        tables = [read_csv(text, source / name) for text, name in zip(texts, names, strict=True)]
        x, y = (tables[0][:, 1:], tables[0]) if len(tables) == 1 else tables
        return {"x": x, "y": y[:, 0].astype(np.int64) - 1}, str(source)

    by_hand = f"{archive} from https://github.com/privacytrustlab/datasets (which states no checksum)"
    return NamedDataSet(classes, None, read, by_hand=by_hand)


def _citations(classes: int, path: str, md5: str) -> NamedDataSet:
    remote = RemoteFile(f"https://linqs-data.soe.ucsc.edu/public/{path}", md5)

    def read(folder: Path) -> Found | None:
        own = folder / remote.file_name
        return (read_linqs(own), f"{own}, split by ourselves, not Planetoid's") if own.is_file() else None

    return NamedDataSet(classes, None, read, remote=(remote,))


KNOWN: dict[str, NamedDataSet] = {
    "mnist": _mnist_like(
        "MNIST",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    "fashion_mnist": _mnist_like(
        "FashionMNIST",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
    "cifar10": _cifar(
        10,
        "c32a1d4ab5d03f1284b67883e8d87530",
        "cifar-10-batches-bin",
        *(f"data_batch_{i}.bin" for i in range(1, 6)),
        "test_batch.bin",
    ),
    "cifar100": _cifar(100, "03b5dce01913d631647c71ecec9e9cb8", "cifar-100-binary", "train.bin", "test.bin"),
    "svhn": NamedDataSet(
        10,
        (73_257, 26_032),
        _read_svhn_files,
        remote=(
            RemoteFile("http://ufldl.stanford.edu/housenumbers/train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
            RemoteFile("http://ufldl.stanford.edu/housenumbers/test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
        ),
    ),
    "purchase100": _membership(100, "dataset_purchase.tgz", "dataset_purchase"),
    "texas100": _membership(100, "dataset_texas.tgz", "texas/100/feats", "texas/100/labels"),
    "cora": _citations(7, "lbc/cora.tgz", "2fc040bee8ce3d920e4204effd1e9214"),
    "citeseer": _citations(6, "lbc/citeseer.tgz", "c8ded8ed395b31899576bfd1e91e4d6e"),
    "pubmed": _citations(3, "Pubmed-Diabetes.tgz", "9fa24b917990c47e264a94079b9599fe"),
    "location30": _membership(30, "dataset_location.tgz", "bangkok"),
}

ALL_LABELS = {f"{name}_all": name for name in ("cora", "citeseer", "pubmed")}
"""Graphs where all labelled nodes train that neither test nor validate, and whose files they use."""


class _Told:
    def __init__(self, remote: RemoteFile, progress: Progress | None) -> None:
        self.total, self._done = 0, 0  # pooch sets the total, 0 if the server does not say it
        self._remote, self._progress = remote, progress

    def update(self, count: int) -> None:
        """The last block counts as whole. Raises UserError for a too large file."""
        self._done += count
        if self._done > _MAX_BYTES:
            raise UserError(f"{self._remote.url} sends more than {_MAX_BYTES >> 20} MiB: refused")
        if self._progress:
            self._progress(self._remote.file_name, min(self._done, self.total or self._done), self.total or None)

    def reset(self) -> None:
        self._done, self._progress = 0, None

    def close(self) -> None:
        """Nothing more comes."""


def fetch(remote: RemoteFile, folder: Path, progress: Progress | None = None, timeout_s: float = 30.0) -> Path:
    """Download into ``folder`` unless the right file is there, and return the path. A failure leaves nothing behind.

    timeout_s: how long the server may be silent. Raises UserError without an answer, for wrong content, or if the
    folder can't be written.
    """
    import pooch  # here, as it and what it needs would make every list wait
    from requests import HTTPError, RequestException, Timeout

    pooch.get_logger().setLevel("WARNING")
    headers = {"User-Agent": "coterie", "Accept-Encoding": "identity"}  # else a .gz might come unpacked
    get = pooch.HTTPDownloader(_Told(remote, progress), _BLOCK, timeout=timeout_s, headers=headers)
    try:
        path = pooch.retrieve(remote.url, f"md5:{remote.md5}", remote.file_name, folder, downloader=get)
    except Timeout as exc:
        raise UserError(f"cannot download {remote.url}: no answer in {timeout_s:g} s") from exc
    except HTTPError as exc:
        raise UserError(f"cannot download {remote.url}: {exc}") from exc
    except RequestException as exc:  # its own text is that of three libraries
        host = urlsplit(remote.url).hostname
        raise UserError(f"cannot download {remote.url}: the connection to {host} fails") from exc
    except OSError as exc:
        raise UserError(f"cannot download {remote.url} to {folder}: {exc}") from exc
    except ValueError as exc:
        raise UserError(f"{remote.url} gave a file with another MD5 instead of {remote.md5}: refused") from exc
    return Path(path)
