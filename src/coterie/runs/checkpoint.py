"""Checkpoints: the files with which a run goes on after any end, with the numbers of an undisturbed run.

``checkpoint/checkpoint.bin`` holds the round, the roster, the messages under way and the lengths of the growing files.
It is always replaced as a whole. After the magic come a length (u64, little-endian) and a head of that length, then the
frames under way, whose sizes the head states, and last a digest of all these. Frames are written and read one at a
time, so they are never all in memory.

Every party has a file of its own (``party_files.py``), with its identity, its state and its secret. The head names the
round and the digest of each, so files of different rounds or runs cannot be mixed.

All of it is private: files of mode 0600 in folders of mode 0700. Do not share ``checkpoint/``, ``parties/`` and
``views.bin``. The other files are not secret by their mode, but may hold private numbers. ``metrics.jsonl``,
``result.json`` and a report of them hold the observer's reasons for refusals and skipped rounds, which may contain a
client's own numbers.

The digest detects damage, and every length, place and shape is checked before anything is built from it. The digest is
no signature: any user who may write in a run folder can write another checkpoint. Neither folder may be a symbolic link
or belong to another user. So a run reads, changes and deletes only files in the run folder itself.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any

import msgspec

import coterie
from coterie.crypto.roster import check_roster, entry
from coterie.protocol.errors import PeerError, UserError
from coterie.protocol.roster import Entry, Identity, Roster
from coterie.protocol.system import Mixture
from coterie.runs.config import RunConfig, differences, from_text, to_toml
from coterie.runs.experiment import Experiment
from coterie.runs.folder import METRICS, atomic_write, opened, parse_lines
from coterie.runs.party_files import PARTIES, Count, Written, drop_old_files, expected, party_file, save_parties
from coterie.runs.private import ADVICE, DIGEST_BYTES, FILE_MODE, check_own, decoded, make_folder, reading
from coterie.transport.parcel import Snapshot

CHECKPOINT = Path("checkpoint") / "checkpoint.bin"
_MAGIC = b"coterie checkpoint 4\n"
_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 20


class _Kept(msgspec.Struct):
    """The head of the file, before the frames. parties: every party's file, by the party's name."""

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


class _SetUp(msgspec.Struct):
    """The costs of the set-up that a run reads, as JSON."""

    bytes_up: dict[str, Count]
    bytes_down: dict[str, Count]
    refused: dict[str, Count]
    lost: dict[str, str]
    late: list[str]
    seconds: float


class _Line(msgspec.Struct):
    """The fields that a resumed run reads of a line of ``metrics.jsonl``."""

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

    fingerprint: of data, partition and initial weights.  roster: signed by the operator that it names.
    frames: can be read once.  parties: every party's file, by name; none has been read.
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


def _sealed(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The parts of a checkpoint's file, between magic and digest."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    yield _MAGIC
    for part in parts:
        digest.update(part)
        yield part
    yield digest.digest()


class Saver:
    """Writes checkpoints of one run. A party is written again only when it has changed."""

    def __init__(self, out: Path, experiment: Experiment) -> None:
        self.out, self.experiment = out, experiment
        self._written: dict[str, Written] = {}

    def save(self, round: int, metrics_bytes: int, views_bytes: int, set_up: str) -> None:
        """Replace the checkpoint. If that is impossible, raises RunError and leaves the last checkpoint as it was."""
        experiment, transcript = self.experiment, self.experiment.transport.transcript
        written = save_parties(self.out, experiment.parties, experiment.owns, round, self._written)
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
        make_folder(path.parent)
        atomic_write(path, _sealed(chain(parts, experiment.transport.frames())), FILE_MODE)
        self._written = written
        drop_old_files(self.out, written)
        for left in path.parent.glob(f".{path.name}.*"):  # by a process that was killed while it wrote
            left.unlink(missing_ok=True)

    def restore(self, kept: Checkpoint) -> None:
        """Put parties and transport into the state of the checkpoint.

        Raises UserError for states of another system, for other data, and for an experiment that was not built with the
        checkpoint's own roster (``founded``).
        """
        path = self.out / CHECKPOINT
        if kept.fingerprint != self.experiment.fingerprint:
            raise UserError(f"{path}: its data, partition or initial weights differ from the present ones; {ADVICE}")
        if kept.roster != self.experiment.common.roster:
            raise UserError(f"{path} has another roster than the federation that is to go on: {ADVICE}")
        parties = self.experiment.parties
        for name, file in kept.parties.items():
            parties.put(name, expected(self.out, name, file).kept)
        self.experiment.transport.restore(kept.snapshot, kept.frames)
        self._check_models(kept.round)
        self._written = dict(kept.parties)

    def _check_models(self, round: int) -> None:
        """Raises UserError unless the states hold a model of this shape for every client."""
        d, path = self.experiment.model.spec.size, self.out / PARTIES
        try:
            shapes = {
                name: model.models.shape[1:] if isinstance(model, Mixture) else model.shape
                for name, model in self.experiment.models(round).items()
            }
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise UserError(f"{path} holds states that are not of this system ({error}): {ADVICE}") from error
        for name, shape in shapes.items():
            if shape != (d,):
                raise UserError(f"{path} holds a model of shape {shape} of {name} instead of {(d,)}: {ADVICE}")


def read(out: Path, config: RunConfig) -> Checkpoint | None:
    """The checkpoint in a run folder, or None if there is none yet. No party's file is read.

    config: of the run that is to go on, resolved. Raises UserError for a checkpoint that is damaged, of another version
    or of another run (naming what differs), for a roster that its operator has not signed, and for folders that are
    symbolic links or belong to another user.
    """
    path = out / CHECKPOINT
    for own in (path.parent, out / PARTIES):
        check_own(own)
    if not path.exists():
        return None
    head, frames_at, frames_bytes = _parts(path)
    kept = decoded(path, head, _Kept)
    sizes = kept.snapshot.sizes
    if any(size < 0 for size in sizes) or sum(sizes) != frames_bytes:
        raise UserError(
            f"{path} names {len(sizes)} messages under way of {sum(sizes)} bytes and holds {frames_bytes}; {ADVICE}"
        )
    found = differences(from_text(kept.config), config)
    if found:
        raise UserError(f"{path} is of another run ({'; '.join(found)}): {ADVICE}")
    if kept.version != coterie.__version__:
        raise UserError(
            f"{path} was written by coterie {kept.version}, this is {coterie.__version__}: go on with that version, or "
            "start the run anew with another --out"
        )
    _check_lines(out / METRICS, kept)
    try:
        msgspec.json.decode(kept.set_up, type=_SetUp)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UserError(f"{path} has no readable costs of the set-up ({error}): {ADVICE}") from None
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


def _check_roster(path: Path, kept: _Kept) -> None:
    """Raises UserError unless the operator signed the roster, and exactly its parties have files."""
    try:
        check_roster(kept.roster, kept.roster.operator)
    except PeerError as error:
        raise UserError(f"the roster in {path} is not as its operator signed it ({error}): {ADVICE}") from None
    if strangers := sorted(kept.parties.keys() ^ kept.roster.by_name.keys()):
        raise UserError(f"{path}: {strangers[0]} is only in one of the roster and the list of files; {ADVICE}")


def founded(out: Path, kept: Checkpoint) -> tuple[Roster, dict[str, Identity]]:
    """SECRET: the roster of the run in this folder, and every party's keys. The run is built again with them.

    Raises UserError for a party's file that is damaged, swapped, of another checkpoint, or whose keys are not those of
    the roster.
    """
    identities = {one.name: expected(out, one.name, kept.parties[one.name]).identity for one in kept.roster.entries}
    for one in kept.roster.entries:
        if _entry(one, identities[one.name]) != one:
            path = party_file(out, one.name, kept.parties[one.name].round)
            raise UserError(f"{path} holds keys of {one.name} that differ from the roster's: {ADVICE}")
    return kept.roster, identities


def _entry(one: Entry, identity: Identity) -> Entry | None:
    """The roster entry of a party with these keys, or None if they are no valid keys."""
    try:
        return entry(one.name, one.role, identity)
    except PeerError:
        return None


def _parts(path: Path) -> tuple[bytes, int, int]:
    """Head of a checkpoint, where its frames begin and how many bytes they have.

    Raises UserError if the digest is wrong, or if a part is longer than the rest of the file.
    """
    with reading(path), opened(path, follow=False) as file:
        end = path.stat().st_size - DIGEST_BYTES
        left = end - len(_MAGIC)
        digest, whole = hashlib.blake2b(digest_size=DIGEST_BYTES), file.read(len(_MAGIC)) == _MAGIC
        while whole and left > 0 and (part := file.read(min(left, _CHUNK))):
            digest.update(part)
            left -= len(part)
        if not whole or left or file.read() != digest.digest():
            raise UserError(f"{path} is damaged, or of another version of coterie: {ADVICE}")
        file.seek(len(_MAGIC))
        head = _part(file, end)
        if head is None:
            raise UserError(f"{path} is cut: a part of it is longer than the rest of the file; {ADVICE}")
        return head, file.tell(), end - file.tell()


def _part(file: IO[bytes], end: int) -> bytes | None:
    """The next bytes after their length, or None if there are fewer before ``end``."""
    room = end - file.tell() - _LENGTH.size
    if room < 0:
        return None
    (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
    return file.read(length) if length <= room else None


def _frames(path: Path, start: int, sizes: Sequence[int]) -> Iterator[bytes]:
    """The frames under way, one at a time."""
    with reading(path), opened(path, follow=False) as file:
        file.seek(start)
        for size in sizes:
            yield file.read(size)


def _check_lines(path: Path, kept: _Kept) -> None:
    """That the file holds the lines of all rounds up to the checkpoint's where it says so; raises UserError."""
    with reading(path), opened(path, follow=False) as file:
        if os.fstat(file.fileno()).st_size < kept.metrics_bytes:
            raise UserError(f"{path} is shorter than its checkpoint says: it was changed; {ADVICE}")
        lines = parse_lines(path, file.read(kept.metrics_bytes))
    if [line.get("round") for line in lines] != list(range(1, kept.round + 1)):
        raise UserError(
            f"{path} does not hold the rounds 1 to {kept.round} of its checkpoint: it was changed; {ADVICE}"
        )
    for number, line in enumerate(lines, 1):
        try:
            msgspec.convert(line, _Line)
        except (msgspec.ValidationError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: {error}; it was changed: {ADVICE}") from None
