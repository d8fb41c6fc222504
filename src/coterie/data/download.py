"""Fetch one file over HTTP and check it before it appears under its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coterie.protocol.errors import UserError

Progress = Callable[[str, int, int | None], None]
"""Called with (file name, bytes so far, bytes in all or None) as a download goes on."""

_BLOCK = 1 << 18
_MAX_BYTES = 1 << 30  # above every file that we know: a wrong server cannot fill the disk


@dataclass(frozen=True)
class RemoteFile:
    """A file on the web. md5: as its publisher or torchvision states it, against a broken or foreign file (an
    attacker cannot make a second file for a *given* MD5).
    """

    url: str
    md5: str

    @property
    def file_name(self) -> str:
        return self.url.rpartition("/")[2]


class _Told:
    """The progress of a download from pooch: block by block, and at the end all once more."""

    def __init__(self, remote: RemoteFile, progress: Progress | None) -> None:
        self.total, self._done = 0, 0  # pooch sets the total, 0 if the server does not say it
        self._remote, self._progress = remote, progress

    def update(self, count: int) -> None:
        """More bytes, the last block as if whole. Raises UserError for a too large file."""
        self._done += count
        if self._done > _MAX_BYTES:
            raise UserError(f"{self._remote.url} sends more than {_MAX_BYTES >> 20} MiB: refused")
        if self._progress:
            self._progress(self._remote.file_name, min(self._done, self.total or self._done), self.total or None)

    def reset(self) -> None:
        """All is there, and has been told."""
        self._done, self._progress = 0, None

    def close(self) -> None:
        """Nothing more comes."""


def fetch(remote: RemoteFile, folder: Path, progress: Progress | None = None, timeout_s: float = 30.0) -> Path:
    """Download into ``folder``, unless the right file is there, and return the path. An interrupted or wrong download
    leaves nothing behind.

    Raises UserError if the address does not answer, the content is wrong, or the folder cannot be written. timeout_s:
    how long to wait for the server to say anything.
    """
    import pooch  # here, as it and what it needs would make every list wait
    from requests import RequestException

    pooch.get_logger().setLevel("WARNING")
    headers = {"User-Agent": "coterie", "Accept-Encoding": "identity"}  # else a .gz might come unpacked
    get = pooch.HTTPDownloader(_Told(remote, progress), _BLOCK, timeout=timeout_s, headers=headers)
    try:
        path = pooch.retrieve(remote.url, f"md5:{remote.md5}", remote.file_name, folder, downloader=get)
    except (RequestException, OSError) as exc:
        raise UserError(f"cannot download {remote.url} to {folder}: {exc}") from exc
    except ValueError as exc:
        raise UserError(f"{remote.url} gave a file with another MD5 instead of {remote.md5}: refused") from exc
    return Path(path)
