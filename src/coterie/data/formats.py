"""Readers of data sets' files, without pickles. Each raises UserError naming a bad file."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from sys import maxunicode
from typing import Any

import numpy as np
from numpy.lib.format import MAGIC_PREFIX, read_array, read_array_header_1_0, read_array_header_2_0, read_magic
from numpy.typing import NDArray

from coterie.protocol.errors import UserError

Arrays = dict[str, NDArray[Any]]
Bytes = NDArray[np.uint8]

_MAX_BYTES = 1 << 31  # no member of a known file comes near: stops a damaged header or a decompression bomb
_FREE, _MOST_TIMES = 64 << 20, 200  # bytes that any file may hold, and how many times its own size
_HEADERS: Mapping[tuple[int, int], Callable[..., Any]] = {(1, 0): read_array_header_1_0, (2, 0): read_array_header_2_0}


@contextmanager
def _reading(path: Path, form: str) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except Exception as exc:
        raise UserError(
            f"{path} cannot be read as {form}: {type(exc).__name__}: {exc}. Replace the file, or remove it so that "
            "another copy is used"
        ) from exc


def swollen(size: int, claimed: int) -> bool:
    """Whether so small a file claims too much memory."""
    return claimed > max(_FREE, _MOST_TIMES * size)


def check_claim(path: Path, claimed: int, again: str = "without compression") -> None:
    """Raises UserError for a swollen file, before it is read.

    claimed: bytes in memory.  again: how to write it.
    """
    size = path.stat().st_size
    if swollen(size, claimed):
        raise UserError(
            f"{path} has {size:,} bytes and claims to hold {claimed:,}, which could fill the memory. If it is yours, "
            f"write it again {again}"
        )


def read_npz(path: Path, check: Callable[[Arrays], object] | None = None) -> Arrays:
    """All arrays of an ``.npz`` file. Raises UserError, also for Python objects and swollen files.

    check: is given empty arrays of the same shapes and types first, and raises UserError.
    """
    with _reading(path, "an .npz file of plain arrays"):
        if not zipfile.is_zipfile(path):
            with path.open("rb") as file:
                single = file.read(len(MAGIC_PREFIX)) == MAGIC_PREFIX
            what = "a single array, no archive" if single else "none"
            raise UserError(f"{path} cannot be read as an .npz file: it is {what}; write one with numpy.savez")
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            check_claim(path, sum(member.file_size for member in members))
            names = [member.filename.removesuffix(".npy") for member in members]
            if len({*names}) < len(names):
                raise ValueError("two of its arrays have the same name")
            empty = {key: _empty(archive, member, path) for key, member in zip(names, members, strict=True)}
            if check is not None:
                check(empty)
            found = {}
            for key, member in zip(names, members, strict=True):
                with archive.open(member) as stored:
                    found[key] = read_array(stored, allow_pickle=False)
                if not _is_text(found[key]):
                    raise ValueError(f"{key} holds words with characters that there are not")
            return found


def _empty(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> NDArray[Any]:
    """An array as in a member's header, which takes no memory.

    Raises UserError for Python objects, and ValueError unless the member is as long as it says.
    """
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others are read in parts of any size
        raise ValueError(f"{member.filename} is compressed in another way than numpy's")
    with archive.open(member) as stored:
        version = read_magic(stored)
        if version not in _HEADERS:
            raise ValueError(f"{member.filename} has version {version} of the form")
        shape, _, dtype = _HEADERS[version](stored)
        begin = stored.tell()
    if dtype.hasobject:
        raise UserError(
            f"{path}: {member.filename.removesuffix('.npy')} is an array of Python objects, such as rows of different "
            "lengths or words; it must hold numbers, as numpy.asarray(rows, numpy.float32) makes them"
        )
    if not dtype.itemsize:  # as many as a header likes take no bytes
        raise ValueError(f"{member.filename} has values of no bytes ({dtype})")
    if min(shape, default=0) < 0 or begin + prod(shape) * dtype.itemsize != member.file_size:
        raise ValueError(f"{member.filename} is not as long as its shape {shape} and type {dtype} say")
    return np.broadcast_to(np.empty((), dtype), shape)


def _is_text(array: NDArray[Any]) -> bool:
    if array.dtype.kind != "U" or not array.size:
        return True
    return bool(
        np.frombuffer(array.tobytes(), np.dtype(np.uint32).newbyteorder(array.dtype.byteorder)).max() <= maxunicode
    )


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
        check_claim(path, size)
        body = file.read(size + 1)
        if len(body) != size:
            raise ValueError(
                f"the header says {size:,} bytes, the file has {'more' if len(body) > size else len(body)}"
            )
        return np.frombuffer(body, dtype=np.uint8).reshape(shape)


def read_tar(path: Path, names: Sequence[str]) -> dict[str, bytes]:
    """The named members of a tar archive, found by the end of their path."""
    found: dict[str, bytes] = {}
    with _reading(path, "a tar archive"), tarfile.open(path) as archive:
        for member in archive:
            name = next((n for n in names if f"/{member.name}".endswith(f"/{n}")), None)
            if name is None or not member.isreg():
                continue
            if member.size > _MAX_BYTES:
                raise ValueError(f"member {member.name} claims {member.size:,} bytes")
            check_claim(path, member.size)
            file = archive.extractfile(member)
            if file is not None:
                found[name] = file.read()
            if len(found) == len(names):
                break
    if missing := [name for name in names if name not in found]:
        raise UserError(f"{path} does not hold {', '.join(missing)}; it is not the archive that its name says")
    return found


def read_cifar(blocks: Sequence[bytes], label_bytes: int, where: str) -> tuple[Bytes, Bytes]:
    """Images (N, 3, 32, 32) and labels (N,) of CIFAR's binary version; CIFAR-100's fine labels."""
    record = label_bytes + 3072
    data = b"".join(blocks)
    if not data or any(len(block) % record for block in blocks):
        raise UserError(f"{where}: sizes {[len(b) for b in blocks]} are not whole records of {record} bytes")
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, record)
    return rows[:, label_bytes:].reshape(-1, 3, 32, 32), rows[:, label_bytes - 1]


def read_svhn(path: Path) -> tuple[Bytes, NDArray[np.int64]]:
    """Images (N, 3, 32, 32) and labels (N,) of SVHN's cropped digits; label 10 becomes 0."""
    from scipy.io import loadmat, whosmat

    with _reading(path, "a MATLAB file with X and y"):
        check_claim(path, sum(8 * prod(shape) for name, shape, _ in whosmat(path) if name in ("X", "y")))
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
