"""Fetch one file over HTTP, check it, and only then let it appear under its name."""

from __future__ import annotations

import hashlib
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory

from coterie.protocol.errors import UserError

Progress = Callable[[str, int, int | None], None]
"""Called with (file name, bytes so far, bytes in all or None) as a download goes on."""

_BLOCK = 1 << 18
_MAX_BYTES = 1 << 30  # above every file that we know: a wrong server cannot fill the disk


@dataclass(frozen=True)
class Remote:
    """A file on the web. md5: of its content, as its publisher or torchvision states it; guards against a broken or
    foreign file (an attacker cannot make a second file for a *given* MD5)."""

    url: str
    md5: str

    @property
    def file_name(self) -> str:
        return self.url.rpartition("/")[2]


def fetch(remote: Remote, folder: Path, progress: Progress | None = None, timeout_s: float = 30.0) -> Path:
    """Download into ``folder`` and return the path. An interrupted or wrong download leaves nothing behind.

    Raises UserError when the address does not answer, the content is not what it should be, or the folder cannot be
    written. timeout_s: how long to wait for the server to say anything.
    """
    target = folder / remote.file_name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".part-", dir=folder) as temporary:
            part = Path(temporary, "part")
            with part.open("wb") as file:
                digest = _copy(remote, file.write, progress, timeout_s)
            if digest != remote.md5:
                raise UserError(f"{remote.url} gave a file with MD5 {digest} instead of {remote.md5}: refused")
            part.replace(target)
    except (OSError, HTTPException, ValueError) as exc:  # URLError and timeouts are OSErrors, ValueError: no address
        raise UserError(f"cannot download {remote.url} to {folder}: {exc}") from exc
    return target


def _copy(remote: Remote, write: Callable[[bytes], object], progress: Progress | None, timeout_s: float) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    request = urllib.request.Request(remote.url, headers={"User-Agent": "coterie"})
    done = 0
    with urllib.request.urlopen(request, timeout=timeout_s) as response:
        length = response.headers.get("Content-Length")
        total = int(length) if length and length.isdigit() else None
        while block := response.read(_BLOCK):
            done += len(block)
            if done > _MAX_BYTES:
                raise UserError(f"{remote.url} sends more than {_MAX_BYTES >> 20} MiB: refused")
            digest.update(block)
            write(block)
            if progress:
                progress(remote.file_name, done, total)
    if total is not None and done < total:
        raise UserError(f"{remote.url} broke off after {done:,} of {total:,} bytes: try again")
    return digest.hexdigest()
