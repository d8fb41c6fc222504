"""Readers of the files that data sets come in. None of them ever unpickles anything.

Every reader raises UserError with the file's name when the file is not what it should be.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.errors import UserError

Arrays = dict[str, NDArray[Any]]
Bytes = NDArray[np.uint8]

_MAX_BYTES = 1 << 31  # no member of a known file comes near: stops a damaged header or a decompression bomb


@contextmanager
def _reading(path: Path, form: str) -> Iterator[None]:
    """Turn whatever a decoder raises on damaged bytes into the caller's error."""
    try:
        yield
    except UserError:
        raise
    except Exception as exc:
        raise UserError(
            f"{path} cannot be read as {form}: {type(exc).__name__}: {exc}. Replace the file, or remove it so that "
            "another copy is used"
        ) from exc


def read_npz(path: Path, check: Callable[[list[str]], object] | None = None) -> Arrays:
    """All arrays of an ``.npz`` file. Arrays of Python objects are refused: they would have to be unpickled.

    check: of the names of the arrays, before any is read. It raises UserError.
    """
    with _reading(path, "an .npz file of plain arrays"):
        try:
            archive = np.load(path, allow_pickle=False)
        except ValueError:  # numpy takes it for a pickle, and says how to load it unsafely
            raise UserError(f"{path} cannot be read as an .npz file: it is none; write one with numpy.savez") from None
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise UserError(f"{path} holds a single array, not an .npz archive; write it with numpy.savez")
        with archive:
            if check is not None:
                check(archive.files)
            return {key: _array(archive, key, path) for key in archive.files}


def _array(archive: np.lib.npyio.NpzFile, key: str, path: Path) -> NDArray[Any]:
    """One array of an archive. Raises UserError for Python objects, which numpy would have to unpickle."""
    try:
        return archive[key]
    except ValueError as error:
        if "Object arrays" not in str(error):
            raise
        raise UserError(
            f"{path}: {key} is an array of Python objects, such as rows of different lengths or words; it must hold "
            "numbers, as numpy.asarray(rows, numpy.float32) makes them"
        ) from None


def read_idx(path: Path) -> Bytes:
    """An IDX file of unsigned bytes (the form of MNIST), gzipped or not."""
    with _reading(path, "an IDX file of bytes"), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        magic = file.read(4)
        if len(magic) != 4 or magic[:3] != b"\x00\x00\x08" or not 1 <= magic[3] <= 4:
            raise ValueError(f"starts with {magic.hex() or 'nothing'} instead of 000008 and the number of axes")
        shape = tuple(int(n) for n in np.frombuffer(file.read(4 * magic[3]), dtype=">u4"))
        size = prod(shape)
        if len(shape) != magic[3] or size > _MAX_BYTES:
            raise ValueError(f"a header with shape {shape}")
        body = file.read(size + 1)
        if len(body) != size:
            raise ValueError(
                f"the header says {size:,} bytes, the file has {'more' if len(body) > size else len(body)}"
            )
        return np.frombuffer(body, dtype=np.uint8).reshape(shape)


def read_tar(path: Path, names: Sequence[str]) -> dict[str, bytes]:
    """The named members of a tar archive (any compression), found by the end of their path, in memory."""
    found: dict[str, bytes] = {}
    with _reading(path, "a tar archive"), tarfile.open(path) as archive:
        for member in archive:
            name = next((n for n in names if f"/{member.name}".endswith(f"/{n}")), None)
            if name is None or not member.isreg():
                continue
            if member.size > _MAX_BYTES:
                raise ValueError(f"member {member.name} claims {member.size:,} bytes")
            file = archive.extractfile(member)
            if file is not None:
                found[name] = file.read()
            if len(found) == len(names):
                break
    if missing := [name for name in names if name not in found]:
        raise UserError(f"{path} does not hold {', '.join(missing)}; it is not the archive that its name says")
    return found


def read_cifar(blocks: Sequence[bytes], label_bytes: int, where: str) -> tuple[Bytes, Bytes]:
    """Images (N, 3, 32, 32) and labels (N,) of CIFAR's binary version; of CIFAR-100's two labels the fine one."""
    record = label_bytes + 3072
    data = b"".join(blocks)
    if not data or any(len(block) % record for block in blocks):
        raise UserError(f"{where}: sizes {[len(b) for b in blocks]} are not whole records of {record} bytes")
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, record)
    return rows[:, label_bytes:].reshape(-1, 3, 32, 32), rows[:, label_bytes - 1]


def read_svhn(path: Path) -> tuple[Bytes, NDArray[np.int64]]:
    """Images (N, 3, 32, 32) and labels (N,) of SVHN's cropped digits; the file's label 10 is the digit 0."""
    from scipy.io import loadmat

    with _reading(path, "a MATLAB file with X and y"):
        content = loadmat(path, variable_names=["X", "y"])
        x, y = content["X"], content["y"].reshape(-1)
        if x.dtype != np.uint8 or x.shape != (32, 32, 3, len(y)) or y.dtype.kind not in "ui":
            raise ValueError(
                f"X is {x.dtype} {x.shape} and y {y.dtype} {y.shape}, not (32, 32, 3, N) bytes and N labels"
            )
        if len(y) and not 1 <= y.min() <= y.max() <= 10:
            raise ValueError(f"labels {y.min()}..{y.max()} instead of 1..10")
        return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), y.astype(np.int64) % 10


def read_csv(text: bytes, where: Path) -> Bytes:
    """A table (rows, columns) of integers 0..255 separated by commas."""
    with _reading(where, "a comma-separated table of integers 0..255"):
        if not text.strip():
            raise ValueError("the file is empty")
        return np.loadtxt(io.BytesIO(text), delimiter=",", dtype=np.uint8, ndmin=2, quotechar='"', comments=None)
