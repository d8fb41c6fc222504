"""Checkpoints: what a run needs to go on after any end, with the numbers of an undisturbed run.

``checkpoint/checkpoint.bin`` holds the round, the parties' states, the messages under way and the lengths of the
growing files; it is replaced whole. After the magic: a length u64 (little end first) and so many bytes of head, the
same of states, then the frames under way, of which the head knows the sizes, and last a digest of all that. Frames are
written and read one at a time: nobody holds them all. Secrets are apart, in files under ``secrets/``. A secret's file
carries the round it was written in, and stays until a checkpoint that needs a newer one is there.

All of it is private: files of mode 0600 in folders of mode 0700. A checkpoint without its secrets still holds every
client's model in the plain, and all messages under way; leave ``checkpoint/``, ``secrets/`` and ``views.bin`` out of
what you hand on. The rest is no secret by its mode, but not all of it is public: ``metrics.jsonl``, ``result.json`` and
a report of them hold the observer's reasons for refusals and skipped rounds, which may carry a client's own numbers.

The digest finds damage, and every length, place and shape is checked against what is there before anything is built
from it. That is no signature: whoever may write in a run folder can write another checkpoint. So neither folder may be
a symbolic link or another user's: what is read, made private and deleted lies in the run folder itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Annotated, Any, TypeVar

import msgspec

import coterie
from coterie.protocol import state
from coterie.protocol.errors import CoterieError, PeerError, UserError
from coterie.protocol.party import Nothing
from coterie.protocol.system import Mixture
from coterie.runs.config import differences, from_text, to_toml
from coterie.runs.experiment import Experiment
from coterie.runs.folder import METRICS, atomic_write, parse_lines, writing
from coterie.transport.parcel import Snapshot

CHECKPOINT = Path("checkpoint") / "checkpoint.bin"
SECRETS = "secrets"
_MAGIC = b"coterie checkpoint 3\n"
_DIGEST_BYTES = 32
_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 20
_SEALING = "sealing"
_PRIVATE_FILE, _PRIVATE_FOLDER = 0o600, 0o700

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class _Kept(msgspec.Struct):
    """What stands before the states in the file. secrets: the round of each file of secrets, by its stem."""

    version: str
    config: str
    fingerprint: str
    round: Count
    metrics_bytes: Count
    views_bytes: Count
    views_stopped: Count | None
    set_up: str
    snapshot: Snapshot
    secrets: dict[str, Count]


class _SetUp(msgspec.Struct):
    """What a run reads of the costs of its set-up, as JSON."""

    bytes_up: dict[str, Count]
    bytes_down: dict[str, Count]
    refused: dict[str, Count]
    lost: dict[str, str]
    late: list[str]
    seconds: float


class _Line(msgspec.Struct):
    """What a run reads of a line of ``metrics.jsonl`` that it goes on from."""

    bytes_up: dict[str, Count]
    bytes_down: dict[str, Count]
    refused: dict[str, Count]
    lost: dict[str, str]
    late: list[str]
    seconds: float
    virtual_seconds: float | None
    notes: dict[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and belongs to the experiment. states, secrets: by party.  frames: once."""

    round: int
    metrics_bytes: int
    views_bytes: int
    views_stopped: int | None
    set_up: str
    snapshot: Snapshot
    frames: Iterator[bytes]
    states: dict[str, Any]
    secrets: dict[str, Any]
    sealing: dict[str, bytes]
    written: dict[str, tuple[int, bytes]]


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def _sealed(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The parts of a checkpoint's file, between magic and digest."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    yield _MAGIC
    for part in parts:
        digest.update(part)
        yield part
    yield digest.digest()


def _check_own(folder: Path) -> None:
    """Raises UserError where there is something at this place that is no folder of this user's own."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"cannot read {folder}: {error.strerror or error}; {_ADVICE}") from None
    if stat.S_ISLNK(found.st_mode):
        raise UserError(f"{folder} is a symbolic link, and checkpoints follow none: {_ADVICE}")
    if not stat.S_ISDIR(found.st_mode):
        raise UserError(f"{folder} is no folder: {_ADVICE}")
    if sys.platform != "win32" and found.st_uid != os.geteuid():
        raise UserError(f"{folder} belongs to another user (number {found.st_uid}): {_ADVICE}")


def _private(folder: Path) -> None:
    """A folder for this user alone, made if need be. Raises UserError for a link or another user's folder."""
    _check_own(folder)
    with writing(folder):
        folder.mkdir(mode=_PRIVATE_FOLDER, exist_ok=True)
        if stat.S_IMODE(folder.stat().st_mode) & ~_PRIVATE_FOLDER:
            os.chmod(folder, _PRIVATE_FOLDER)


def _stem(party: str) -> str:
    return re.sub(r"[^\w.-]", "-", party)


def _secret_file(out: Path, stem: str, round: int) -> Path:
    return out / SECRETS / f"{stem}.{round}.bin"


class Saver:
    """Writes checkpoints of one run. A secret is written again only when it has changed."""

    def __init__(self, out: Path, experiment: Experiment) -> None:
        self.out, self.experiment = out, experiment
        self.parties = experiment.federation.parties
        self._written: dict[str, tuple[int, bytes]] = {}

    def save(self, round: int, metrics_bytes: int, views_bytes: int, set_up: str) -> None:
        """Replace the checkpoint; raises RunError, and leaves the last one as it was, when that can't be done."""
        experiment, transcript = self.experiment, self.experiment.transport.transcript
        written = self._save_secrets(round)
        kept = _Kept(
            version=coterie.__version__,
            config=to_toml(experiment.config),
            fingerprint=experiment.fingerprint,
            round=round,
            metrics_bytes=metrics_bytes,
            views_bytes=views_bytes,
            views_stopped=None if transcript is None else transcript.stopped_at,
            set_up=set_up,
            snapshot=experiment.transport.snapshot(),
            secrets={stem: at for stem, (at, _) in written.items()},
        )
        head = msgspec.msgpack.encode(kept)
        states = state.dump({name: party.state for name, party in self.parties.items()})
        parts = (_LENGTH.pack(len(head)), head, _LENGTH.pack(len(states)), states)
        path = self.out / CHECKPOINT
        _private(path.parent)
        atomic_write(path, _sealed(chain(parts, experiment.transport.frames())), _PRIVATE_FILE)
        self._written = written
        self._drop_old_secrets()
        for left in path.parent.glob(f".{path.name}.*"):  # by a process that was killed while it wrote
            left.unlink(missing_ok=True)

    def _save_secrets(self, round: int) -> dict[str, tuple[int, bytes]]:
        _private(self.out / SECRETS)
        structs = {name: party.secret for name, party in self.parties.items() if not isinstance(party.secret, Nothing)}
        parts = {_stem(name): state.dump({name: secret}) for name, secret in structs.items()}
        parts[_SEALING] = msgspec.msgpack.encode(self.experiment.keyring.secrets())
        written = dict(self._written)
        for stem, data in parts.items():
            digest = _digest(data)
            if stem not in written or written[stem][1] != digest:
                atomic_write(_secret_file(self.out, stem, round), digest + data, _PRIVATE_FILE)
                written[stem] = round, digest
        return written

    def _drop_old_secrets(self) -> None:
        needed = {_secret_file(self.out, stem, at) for stem, (at, _) in self._written.items()}
        one = rf"({'|'.join(map(re.escape, self._written))})\.[0-9]+\.bin"
        ours = re.compile(rf"{one}|\.{one}\.[a-z0-9_]+")  # the second: by a process that was killed while it wrote
        with writing(self.out / SECRETS):
            for path in (self.out / SECRETS).iterdir():
                if path not in needed and ours.fullmatch(path.name):
                    path.unlink(missing_ok=True)

    def restore(self, kept: Checkpoint) -> None:
        """Put parties, transport and sealer where the checkpoint left them. Raises UserError for what does not fit."""
        for name, party in self.parties.items():
            party.state = kept.states[name]
            if name in kept.secrets:
                party.secret = kept.secrets[name]
        try:
            self.experiment.keyring.restore(kept.sealing)
        except PeerError as error:
            raise UserError(f"the sealing keys in {self.out / SECRETS} cannot be read: {error}; {_ADVICE}") from None
        self.experiment.transport.restore(kept.snapshot, kept.frames)
        self._check_models(kept.round)
        self._written = dict(kept.written)

    def _check_models(self, round: int) -> None:
        """That the states hold a model of this shape for every client, which nothing but they can tell."""
        d, path = self.experiment.model.spec.size, self.out / CHECKPOINT
        try:
            shapes = {
                name: model.models.shape[1:] if isinstance(model, Mixture) else model.shape
                for name, model in self.experiment.models(round).items()
            }
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise UserError(f"{path} holds states that are none of this system's ({error}): {_ADVICE}") from error
        for name, shape in shapes.items():
            if shape != (d,):
                raise UserError(f"{path} holds a model of shape {shape} of {name}, where {(d,)} is due: {_ADVICE}")


T = TypeVar("T")


def read(out: Path, experiment: Experiment) -> Checkpoint | None:
    """The checkpoint in a run folder, or None if there is none yet.

    Raises UserError for one that is damaged, of another version, or of another run (naming what differs), and where
    its folders are symbolic links or another user's.
    """
    path = out / CHECKPOINT
    for own in (path.parent, out / SECRETS):
        _check_own(own)
    if not path.exists():
        return None
    head, dumped, frames_at, frames_bytes = _parts(path)
    kept = _decoded(path, head, _Kept)
    sizes = kept.snapshot.sizes
    if any(size < 0 for size in sizes) or sum(sizes) != frames_bytes:
        raise UserError(
            f"{path} names {len(sizes)} messages under way of {sum(sizes)} bytes and holds {frames_bytes}; {_ADVICE}"
        )
    found = differences(from_text(kept.config), experiment.config)
    if found:
        raise UserError(f"{path} is of another run ({'; '.join(found)}): {_ADVICE}")
    if kept.version != coterie.__version__:
        raise UserError(
            f"{path} was written by coterie {kept.version}, this is {coterie.__version__}: go on with that version, or "
            "start the run anew with another --out"
        )
    if kept.fingerprint != experiment.fingerprint:
        raise UserError(f"{path}: its data, partition or initial weights are not those that are here now; {_ADVICE}")
    _check_lines(out / METRICS, kept)
    try:
        msgspec.json.decode(kept.set_up, type=_SetUp)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UserError(f"{path} tells nothing of the set-up ({error}): {_ADVICE}") from None
    parties = experiment.federation.parties
    structs = {name: type(p.secret) for name, p in parties.items() if not isinstance(p.secret, Nothing)}
    try:
        states = state.load(dumped, {name: type(party.state) for name, party in parties.items()})
        secrets: dict[str, Any] = {}
        written: dict[str, tuple[int, bytes]] = {}
        for name, kind in structs.items():
            data = _secret(out, kept, _stem(name), written)
            secrets |= state.load(data, {name: kind})
        sealing = _decoded(path, _secret(out, kept, _SEALING, written), dict[str, bytes])
    except CoterieError as error:
        raise UserError(f"{path} cannot be read: {error}; {_ADVICE}") from None
    return Checkpoint(
        kept.round,
        kept.metrics_bytes,
        kept.views_bytes,
        kept.views_stopped,
        kept.set_up,
        kept.snapshot,
        _frames(path, frames_at, kept.snapshot.sizes),
        states,
        secrets,
        sealing,
        written,
    )


_ADVICE = "start the run anew with another --out"


def _parts(path: Path) -> tuple[bytes, bytes, int, int]:
    """Head and states of a checkpoint, where its frames begin and how many bytes they have.

    Raises UserError where the digest isn't its own, or a part is longer than what is left.
    """
    with _reading(path), path.open("rb") as file:
        end = path.stat().st_size - _DIGEST_BYTES
        left = end - len(_MAGIC)
        digest, whole = hashlib.blake2b(digest_size=_DIGEST_BYTES), file.read(len(_MAGIC)) == _MAGIC
        while whole and left > 0 and (part := file.read(min(left, _CHUNK))):
            digest.update(part)
            left -= len(part)
        if not whole or left or file.read() != digest.digest():
            raise UserError(f"{path} is damaged, or of another version of coterie: {_ADVICE}")
        file.seek(len(_MAGIC))
        head, states = _part(file, end), _part(file, end)
        if head is None or states is None:
            raise UserError(f"{path} is cut: a part of it is longer than what is left; {_ADVICE}")
        return head, states, file.tell(), end - file.tell()


def _part(file: IO[bytes], end: int) -> bytes | None:
    """The next bytes behind their length, or None if there are fewer before ``end``."""
    room = end - file.tell() - _LENGTH.size
    if room < 0:
        return None
    (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
    return file.read(length) if length <= room else None


def _frames(path: Path, start: int, sizes: Sequence[int]) -> Iterator[bytes]:
    """The frames under way, one at a time."""
    with _reading(path), path.open("rb") as file:
        file.seek(start)
        for size in sizes:
            yield file.read(size)


def _check_lines(path: Path, kept: _Kept) -> None:
    """That the file holds the lines of all rounds up to the checkpoint's where it says so; raises UserError."""
    with _reading(path), path.open("rb") as file:
        if os.fstat(file.fileno()).st_size < kept.metrics_bytes:
            raise UserError(f"{path} is shorter than its checkpoint says: it was changed; {_ADVICE}")
        lines = parse_lines(path, file.read(kept.metrics_bytes))
    if [line.get("round") for line in lines] != list(range(1, kept.round + 1)):
        raise UserError(
            f"{path} does not hold the rounds 1 to {kept.round} of its checkpoint: it was changed; {_ADVICE}"
        )
    for number, line in enumerate(lines, 1):
        try:
            msgspec.convert(line, _Line)
        except (msgspec.ValidationError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: {error}; it was changed: {_ADVICE}") from None


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}; {_ADVICE}") from None


def _checked(path: Path) -> bytes:
    """The bytes of a file of secrets behind their digest; raises UserError for others."""
    with _reading(path):
        data = path.read_bytes()
    digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if _digest(body) != digest:
        raise UserError(f"{path} is damaged, or of another version of coterie: {_ADVICE}")
    return body


def _decoded(path: Path, body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is of another version of coterie ({error}): {_ADVICE}") from None


def _secret(out: Path, kept: _Kept, stem: str, written: dict[str, tuple[int, bytes]]) -> bytes:
    if stem not in kept.secrets:
        raise UserError(f"it names no secrets of {stem}")
    path = _secret_file(out, stem, kept.secrets[stem])
    data = _checked(path)
    written[stem] = kept.secrets[stem], _digest(data)
    return data
