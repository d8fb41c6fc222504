"""Checkpoints: what a run needs to go on after any end, with the numbers of an undisturbed run.

``checkpoint/checkpoint.bin`` holds the round, the roster, the messages under way and the lengths of the growing files.
It is replaced whole. After the magic: a length u64 (little end first) and so many bytes of head, then the frames under
way, of which the head knows the sizes, and last a digest of all that. Frames are written and read one at a time, so
they are never all in memory.

Every party has a file of its own under ``parties/``, with its identity, its state and its secret: that is the whole
party, and ``read_party`` gives it alone. Its name says in which round it was written. It is written again only when the
party has changed, and stays until there is a checkpoint that needs a newer one. The head names the round and the digest
of every party's file, so the files of two rounds or of two runs don't mix.

All of it is private: files of mode 0600 in folders of mode 0700. Leave ``checkpoint/``, ``parties/`` and ``views.bin``
out of what you hand on. The rest is no secret by its mode, but not all of it is public: ``metrics.jsonl``,
``result.json`` and a report of them hold the observer's reasons for refusals and skipped rounds, which may carry a
client's own numbers.

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
from coterie.crypto.roster import check_roster, entry
from coterie.protocol.errors import PeerError, UserError
from coterie.protocol.roster import Entry, Identity, Roster
from coterie.protocol.system import Mixture
from coterie.runs.config import RunConfig, differences, from_text, to_toml
from coterie.runs.experiment import Experiment
from coterie.runs.folder import METRICS, atomic_write, parse_lines, writing
from coterie.transport.envelope import Snapshot

CHECKPOINT = Path("checkpoint") / "checkpoint.bin"
PARTIES = "parties"
_MAGIC = b"coterie checkpoint 4\n"
_DIGEST_BYTES = 32
_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 20
_PRIVATE_FILE, _PRIVATE_FOLDER = 0o600, 0o700

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class Written(msgspec.Struct, frozen=True, array_like=True):
    """One party's file. round: in which it was written.  digest: of what it holds, 32 bytes."""

    round: Count
    digest: bytes


class _Kept(msgspec.Struct):
    """What stands before the frames in the file. parties: every party's file, by the party's name."""

    version: str
    config: str
    fingerprint: str
    round: Count
    metrics_bytes: Count
    views_bytes: Count
    views_stopped: Count | None
    set_up: str
    roster: Roster
    snapshot: Snapshot
    parties: dict[str, Written]


class KeptParty(msgspec.Struct, frozen=True):
    """SECRET: what a party's file holds. kept: its state and secret, as ``runs/parties.py: dumped`` gives them."""

    name: str
    identity: Identity
    kept: bytes

    def __repr__(self) -> str:
        return f"<KeptParty {self.name}>"


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
    """A checkpoint that was read, of the same work.

    fingerprint: of data, partition and initial weights.  roster: signed by the operator whom it names.
    frames: once.  parties: every party's file, by name, none of which has been read.
    """

    round: int
    fingerprint: str
    metrics_bytes: int
    views_bytes: int
    views_stopped: int | None
    set_up: str
    roster: Roster
    snapshot: Snapshot
    frames: Iterator[bytes]
    parties: dict[str, Written]


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
    """The beginning of a party's file name, another for every party."""
    return re.sub(r"[^\w./]", lambda odd: f"%{ord(odd[0]):x}", party).replace("/", "-")


def _party_file(out: Path, party: str, round: int) -> Path:
    return out / PARTIES / f"{_stem(party)}.{round}.bin"


class Saver:
    """Writes checkpoints of one run. A party is written again only when it has changed."""

    def __init__(self, out: Path, experiment: Experiment) -> None:
        self.out, self.experiment = out, experiment
        self._written: dict[str, Written] = {}

    def save(self, round: int, metrics_bytes: int, views_bytes: int, set_up: str) -> None:
        """Replace the checkpoint; raises RunError, and leaves the last one as it was, when that can't be done."""
        experiment, transcript = self.experiment, self.experiment.transport.transcript
        written = self._save_parties(round)
        kept = _Kept(
            version=coterie.__version__,
            config=to_toml(experiment.config),
            fingerprint=experiment.fingerprint,
            round=round,
            metrics_bytes=metrics_bytes,
            views_bytes=views_bytes,
            views_stopped=None if transcript is None else transcript.stopped_at,
            set_up=set_up,
            roster=experiment.common.roster,
            snapshot=experiment.transport.snapshot(),
            parties=written,
        )
        head = msgspec.msgpack.encode(kept)
        parts = (_LENGTH.pack(len(head)), head)
        path = self.out / CHECKPOINT
        _private(path.parent)
        atomic_write(path, _sealed(chain(parts, experiment.transport.frames())), _PRIVATE_FILE)
        self._written = written
        self._drop_old_files()
        for left in path.parent.glob(f".{path.name}.*"):  # by a process that was killed while it wrote
            left.unlink(missing_ok=True)

    def _save_parties(self, round: int) -> dict[str, Written]:
        _private(self.out / PARTIES)
        written, parties = dict(self._written), self.experiment.parties
        for name, own in self.experiment.owns.items():
            if name in written and not parties.touched(name):
                continue  # as it was made, which is what its file holds
            assert own.identity is not None
            data = msgspec.msgpack.encode(KeptParty(name, own.identity, parties.dumped(name)))
            digest = _digest(data)
            if name not in written or written[name].digest != digest:
                atomic_write(_party_file(self.out, name, round), digest + data, _PRIVATE_FILE)
                written[name] = Written(round, digest)
        return written

    def _drop_old_files(self) -> None:
        needed = {_party_file(self.out, name, file.round) for name, file in self._written.items()}
        one = rf"({'|'.join(re.escape(_stem(name)) for name in self._written)})\.[0-9]+\.bin"
        ours = re.compile(rf"{one}|\.{one}\.[a-z0-9_]+")  # the second: by a process that was killed while it wrote
        with writing(self.out / PARTIES):
            for path in (self.out / PARTIES).iterdir():
                if path not in needed and ours.fullmatch(path.name):
                    path.unlink(missing_ok=True)

    def restore(self, kept: Checkpoint) -> None:
        """Put parties and transport where the checkpoint left them.

        Raises UserError for what does not fit: states of another system, other data, or an experiment that was not
        built with the checkpoint's own roster (``founded``).
        """
        path = self.out / CHECKPOINT
        if kept.fingerprint != self.experiment.fingerprint:
            raise UserError(
                f"{path}: its data, partition or initial weights are not those that are here now; {_ADVICE}"
            )
        if kept.roster != self.experiment.common.roster:
            raise UserError(f"{path} has another roster than the federation that is to go on: {_ADVICE}")
        parties = self.experiment.parties
        for name, file in kept.parties.items():
            parties.put(name, _expected(self.out, name, file).kept)
        self.experiment.transport.restore(kept.snapshot, kept.frames)
        self._check_models(kept.round)
        self._written = dict(kept.parties)

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


def read(out: Path, config: RunConfig) -> Checkpoint | None:
    """The checkpoint in a run folder, or None if there is none yet. No party's file is read.

    config: of the run that is to go on, resolved. Raises UserError for a checkpoint that is damaged, of another version
    or of another run (naming what differs), for a roster that its operator has not signed, and where its folders are
    symbolic links or another user's.
    """
    path = out / CHECKPOINT
    for own in (path.parent, out / PARTIES):
        _check_own(own)
    if not path.exists():
        return None
    head, frames_at, frames_bytes = _parts(path)
    kept = _decoded(path, head, _Kept)
    sizes = kept.snapshot.sizes
    if any(size < 0 for size in sizes) or sum(sizes) != frames_bytes:
        raise UserError(
            f"{path} names {len(sizes)} messages under way of {sum(sizes)} bytes and holds {frames_bytes}; {_ADVICE}"
        )
    found = differences(from_text(kept.config), config)
    if found:
        raise UserError(f"{path} is of another run ({'; '.join(found)}): {_ADVICE}")
    if kept.version != coterie.__version__:
        raise UserError(
            f"{path} was written by coterie {kept.version}, this is {coterie.__version__}: go on with that version, or "
            "start the run anew with another --out"
        )
    _check_lines(out / METRICS, kept)
    try:
        msgspec.json.decode(kept.set_up, type=_SetUp)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UserError(f"{path} tells nothing of the set-up ({error}): {_ADVICE}") from None
    _check_roster(path, kept)
    return Checkpoint(
        kept.round,
        kept.fingerprint,
        kept.metrics_bytes,
        kept.views_bytes,
        kept.views_stopped,
        kept.set_up,
        kept.roster,
        kept.snapshot,
        _frames(path, frames_at, kept.snapshot.sizes),
        kept.parties,
    )


_ADVICE = "start the run anew with another --out"


def _check_roster(path: Path, kept: _Kept) -> None:
    """That the roster is its operator's, and that there is a file for each of its parties and for nobody else."""
    try:
        check_roster(kept.roster, kept.roster.operator)
    except PeerError as error:
        raise UserError(f"the roster in {path} is not as its operator signed it ({error}): {_ADVICE}") from None
    if strangers := sorted(kept.parties.keys() ^ kept.roster.by_name.keys()):
        raise UserError(f"{path}: {strangers[0]} stands only in one of the roster and the list of files; {_ADVICE}")


def founded(out: Path, kept: Checkpoint) -> tuple[Roster, dict[str, Identity]]:
    """SECRET: the roster of the run in this folder, and every party's keys, with which the run is built again.

    Raises UserError for a party's file that is damaged, swapped, of another checkpoint, or whose keys are not those of
    the roster.
    """
    identities = {one.name: _expected(out, one.name, kept.parties[one.name]).identity for one in kept.roster.entries}
    for one in kept.roster.entries:
        if _entry(one, identities[one.name]) != one:
            path = _party_file(out, one.name, kept.parties[one.name].round)
            raise UserError(f"{path} holds other keys of {one.name} than the roster names: {_ADVICE}")
    return kept.roster, identities


def _entry(one: Entry, identity: Identity) -> Entry | None:
    """What a roster would say of a party with these keys; None where they are none."""
    try:
        return entry(one.name, one.role, identity)
    except PeerError:
        return None


def read_party(out: Path, name: str, round: int) -> KeptParty:
    """SECRET: one party as it was after a round, from its own file alone: its identity, and all that it keeps.

    ``runs.parties.restore`` puts a party that was just made there. Raises UserError for a file that is damaged, or of
    another party.
    """
    return _read_party(out, name, round)[0]


def _read_party(out: Path, name: str, round: int) -> tuple[KeptParty, bytes]:
    """A party and the digest of its file."""
    path = _party_file(out, name, round)
    body = _checked(path)
    found = _decoded(path, body, KeptParty)
    if found.name != name:
        raise UserError(f"{path} is of {found.name}, not of {name}: {_ADVICE}")
    return found, _digest(body)


def _expected(out: Path, name: str, file: Written) -> KeptParty:
    """The party in this very file; raises UserError where another lies in its place."""
    found, digest = _read_party(out, name, file.round)
    if digest != file.digest:
        path = _party_file(out, name, file.round)
        raise UserError(f"{path} is not the file that {out / CHECKPOINT} was written with: {_ADVICE}")
    return found


def _parts(path: Path) -> tuple[bytes, int, int]:
    """Head of a checkpoint, where its frames begin and how many bytes they have.

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
        head = _part(file, end)
        if head is None:
            raise UserError(f"{path} is cut: a part of it is longer than what is left; {_ADVICE}")
        return head, file.tell(), end - file.tell()


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
    """The bytes of a party's file behind their digest; raises UserError for others."""
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
