"""A copy of an operator's folder, with the hub, in one file. A party's home is never copied: it joins again."""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from coterie.deploy.home import HUB, PLAN, STATE
from coterie.deploy.logs import LOG
from coterie.operate.folder import Folder, open_folder
from coterie.operate.server import admit
from coterie.protocol.errors import UserError
from coterie.record.files import FOLDER_MODE, check_new, locked, opened, reading, whole_folder, writing

_DEEPEST = 8  # folders in a backup


def back_up(path: Path, out: Path, *, authority: bool = False) -> int:
    """Write an operator's folder to a file (tar, gzip; mode 0600); returns its bytes. The hub may run: its state is
    copied first. authority: with the operator's keys. Raises UserError, RunError.
    """
    folder = open_folder(path)
    with locked(path, wait=True), writing(out):
        descriptor, name = tempfile.mkstemp(prefix=f".{out.name}.", dir=out.parent)
        try:
            with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as tar:
                for one in _files(folder, authority):
                    with contextlib.suppress(FileNotFoundError), opened(one, follow=False) as content:
                        tar.addfile(tar.gettarinfo(arcname=str(one.relative_to(path)), fileobj=content), content)
            os.replace(name, out)
        finally:
            Path(name).unlink(missing_ok=True)
    return out.stat().st_size


def _files(folder: Folder, authority: bool) -> Iterator[Path]:
    """The hub's state first. Without packets under way, logs and locks."""
    yield folder.path / HUB / STATE
    yield from (folder.plan, folder.operator, folder.config, folder.members, *folder.path.glob("*.cert"))
    private = [folder.authority] if authority else []
    for place in (folder.hub, folder.tls, folder.joined, folder.requests, folder.invitations, folder.run, *private):
        for one in sorted(place.rglob("*")):
            left = one.name.startswith((".", LOG, STATE)) or one == folder.authority / PLAN  # it would be old
            if one.is_file() and not one.is_symlink() and not left:
                yield one
    yield from folder.nats.glob("*.pem")


def restore(file: Path, path: Path) -> None:
    """As a new folder, whole or not at all. Raises UserError for a damaged backup."""
    check_new(path, "a deployment")
    with whole_folder(path) as begun:
        try:
            with reading(file), gzip.open(file) as data, tarfile.open(fileobj=data) as tar:
                for one in tar:
                    place = PurePosixPath(one.name)
                    content = tar.extractfile(one) if one.isreg() and not one.issparse() else None
                    strange = not 0 < len(place.parts) <= _DEEPEST or ".." in place.parts or "\0" in one.name
                    if content is None or strange or place.is_absolute():
                        raise tarfile.TarError(f"{one.name!r:.80} is in it")
                    for above in reversed(place.parents):
                        (begun / above).mkdir(FOLDER_MODE, exist_ok=True)
                    with (begun / place).open("xb") as copy:
                        shutil.copyfileobj(content, copy)
                    (begun / place).chmod(one.mode & 0o666)
                data.read()  # to the checksum at its end
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise UserError(f"{file} is damaged, or no backup of a deployment: {error}") from None
        folder = open_folder(begun)
        folder.restored.touch()
        admit(folder, at=path)
