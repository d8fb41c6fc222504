"""Checkpoints: files from which a run continues after any end, with the numbers of an undisturbed run.

``checkpoint/checkpoint.bin`` is always replaced as a whole: the head's length (u64, little-endian), the head
(``Checkpoint``), then the frames under way, whose sizes the head states. ``parties/<name>.<round>.bin`` is a whole
party, written when it has changed. The head names the round and digest of each, so files of different rounds or runs
cannot be mixed.

All of it is private (0600 in folders of 0700). ``metrics.jsonl``, ``result.json`` and reports are not, though they hold
reasons for refusals and skipped rounds, which may contain a client's own numbers.

Every file ends with a digest, which detects damage but is no signature, and every length, place and shape is checked
before use. Neither folder may be a symbolic link or another user's. So a run reads, changes and deletes only files in
its own folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import msgspec

import coterie
from coterie.crypto.roster import DerivedRoster, check_roster, entry
from coterie.protocol.errors import PeerError, UserError
from coterie.protocol.setup_info import Identity, Roster
from coterie.protocol.system import Mixture
from coterie.record import files
from coterie.record.files import ADVICE
from coterie.record.folder import METRICS
from coterie.runs.config import Resolved, differences, from_text, to_toml
from coterie.runs.experiment import Experiment
from coterie.runs.own_code import check_same_code
from coterie.transport.wire import Snapshot

CHECKPOINT = Path("checkpoint") / "checkpoint.bin"
PARTIES = "parties"
_LENGTH_BYTES = 8

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class Written(msgspec.Struct, frozen=True, array_like=True):
    """One party's file. round: in which it was written.  digest: of its content, 32 bytes."""

    round: Count
    digest: bytes


class KeptParty(msgspec.Struct, frozen=True):
    """SECRET: the content of a party's file. kept: its state and secret, by ``runs.parties.dumped``."""

    name: str
    identity: Identity
    kept: bytes

    def __repr__(self) -> str:
        return f"<KeptParty {self.name}>"


class Checkpoint(msgspec.Struct):
    """The head of a checkpoint's file, before the frames.

    fingerprint: of data, partition, initial weights, own model and loss.  own_code: by own module, its digest.
    set_up: its costs, as of a line of ``metrics.jsonl``.
    roster: signed by the operator that it names; None if it follows from the seed (``DerivedRoster``).
    parties: every party's file, by name; without a roster only of those ever asked.
    """

    version: str
    config: str
    fingerprint: str
    own_code: dict[str, str]
    round: Count
    metrics_bytes: Count
    views_bytes: Count
    views_stopped: Count | None
    set_up: dict[str, Any]
    roster: Roster | None
    snapshot: Snapshot
    parties: dict[str, Written]


class _Line(msgspec.Struct):
    """The fields that a resumed run reads of a line of ``metrics.jsonl``; the set-up lacks the last two."""

    bytes_up: dict[str, Count]
    bytes_down: dict[str, Count]
    refused: dict[str, Count]
    lost: dict[str, str]
    late: list[str]
    seconds: float
    virtual_seconds: float | None
    round: Count
    notes: dict[str, Any]


def party_file(out: Path, party: str, round: int) -> Path:
    """The path of a party's file that was written in this round."""
    return out / PARTIES / f"{_stem(party)}.{round}.bin"


def _stem(party: str) -> str:
    return re.sub(r"[^\w./]", lambda odd: f"%{ord(odd[0]):x}.", party).replace("/", "-")


def read_party(out: Path, party: str, round: int, its_digest: bytes | None = None) -> KeptParty:
    """SECRET: one party as it was after a round, from its own file alone.

    Raises UserError for a file that is damaged, of another party, or of another digest than the checkpoint's.
    """
    path = party_file(out, party, round)
    with files.checked(path) as (file, length):
        body = file.read(length)
    found = files.decoded(path, body, KeptParty)
    if found.name != party:
        raise UserError(f"{path} is of {found.name}, not of {party}: {ADVICE}")
    if its_digest not in (None, files.digest(body)):
        raise UserError(f"{path} is not the file that the checkpoint was written with: {ADVICE}")
    return found


def _kept(roster: Roster) -> Roster | None:
    """What a checkpoint holds of a roster: nothing of one that follows from the seed."""
    return None if isinstance(roster, DerivedRoster) else roster


class Saver:
    """Writes checkpoints of one run. A party is written again only when it has changed."""

    def __init__(self, out: Path, experiment: Experiment) -> None:
        self.out, self.experiment = out, experiment
        self._written: dict[str, Written] = {}

    def save(self, round: int, metrics_bytes: int, views_bytes: int, set_up: dict[str, Any]) -> None:
        """Replace the checkpoint. Raises RunError if that fails, and then leaves the last checkpoint as it was."""
        experiment, transcript = self.experiment, self.experiment.transport.transcript
        written = self._save_parties(round)
        kept = Checkpoint(
            version=coterie.__version__,
            config=to_toml(experiment.config),
            fingerprint=experiment.fingerprint,
            own_code=experiment.own_code,
            round=round,
            metrics_bytes=metrics_bytes,
            views_bytes=views_bytes,
            views_stopped=None if transcript is None else transcript.stopped_at,
            set_up=set_up,
            roster=_kept(experiment.common.roster),
            snapshot=experiment.transport.snapshot(),
            parties=written,
        )
        head = msgspec.msgpack.encode(kept)
        parts = chain((len(head).to_bytes(_LENGTH_BYTES, "little"), head), experiment.transport.frames())
        files.make_folder((self.out / CHECKPOINT).parent)
        files.atomic_write(self.out / CHECKPOINT, files.sealed(parts), files.FILE_MODE)
        self._written = written
        self._drop_old_files()

    def _save_parties(self, round: int) -> dict[str, Written]:
        """Write the files of all changed parties beside the last ones. Returns every party's newest file."""
        files.make_folder(self.out / PARTIES)
        written, parties = dict(self._written), self.experiment.parties
        derived = isinstance(self.experiment.common.roster, DerivedRoster)
        for name in parties.touched_names if derived else parties:
            own = self.experiment.owns[name]
            if name in written and not parties.touched(name):
                continue  # it is as it was made, and so is what its file holds
            assert own.identity is not None
            data = msgspec.msgpack.encode(KeptParty(name, own.identity, parties.dumped(name)))
            its_digest = files.digest(data)
            if name not in written or written[name].digest != its_digest:
                files.atomic_write(party_file(self.out, name, round), data + its_digest, files.FILE_MODE)
                written[name] = Written(round, its_digest)
        return written

    def _drop_old_files(self) -> None:
        """Remove the files of other checkpoints, and those that a killed process left half written."""
        needed = {party_file(self.out, name, file.round) for name, file in self._written.items()}
        stems = map(_stem, self._written)
        of_names = (
            r"[\w.-]+" if isinstance(self.experiment.common.roster, DerivedRoster) else "|".join(map(re.escape, stems))
        )
        one = rf"({of_names})\.[0-9]+\.bin"
        ours = re.compile(rf"{one}|\.{one}\.[a-z0-9_]+")
        path = self.out / CHECKPOINT
        old = [path for path in (self.out / PARTIES).iterdir() if path not in needed and ours.fullmatch(path.name)]
        with files.writing(self.out / PARTIES):
            for left in chain(old, path.parent.glob(f".{path.name}.*")):
                left.unlink(missing_ok=True)

    def restore(self, kept: Checkpoint) -> None:
        """Put parties and transport into the state of the checkpoint.

        Raises UserError for states of another system, other data or own code, and for an experiment that was not built
        with the checkpoint's roster (``founded``).
        """
        path, experiment = self.out / CHECKPOINT, self.experiment
        check_same_code(kept.own_code, experiment.own_code, str(path))
        if kept.fingerprint != experiment.fingerprint:
            raise UserError(
                f"{path}: its data, partition or initial weights, or a model or loss of your own, differ from the "
                f"present ones; {ADVICE}"
            )
        if kept.roster != _kept(experiment.common.roster):
            raise UserError(f"{path} has another roster than the federation that is to go on: {ADVICE}")
        if strangers := [name for name in kept.parties if name not in experiment.parties]:
            raise UserError(f"{path} has a party that this federation has not, {strangers[0]!r:.40}: {ADVICE}")
        for name, file in kept.parties.items():
            experiment.parties.put(name, read_party(self.out, name, file.round, file.digest).kept)
        experiment.transport.restore(kept.snapshot, frames(self.out, kept.snapshot))
        self._check_models(kept.round)
        self._written = dict(kept.parties)

    def _check_models(self, round: int) -> None:
        """Raises UserError unless the states hold a model of this shape for every client."""
        path, expected = self.out / PARTIES, (self.experiment.model.spec.size,)
        try:
            for name, model in self.experiment.models(round).items():
                shape = model.models.shape[1:] if isinstance(model, Mixture) else model.shape
                if shape != expected:
                    raise UserError(f"{path} holds a model of shape {shape} of {name} instead of {expected}: {ADVICE}")
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise UserError(f"{path} holds states that are not of this system ({error}): {ADVICE}") from error


def read(out: Path, config: Resolved) -> Checkpoint | None:
    """The checkpoint in a run folder, or None. No party's file is read. config: of the run to continue.

    Raises UserError for a checkpoint that is damaged, of another version or of another run (naming what differs), for a
    roster that its operator has not signed, and for folders that are symbolic links or belong to another user.
    """
    path = out / CHECKPOINT
    for own in (path.parent, out / PARTIES):
        files.check_own(own)
    if not path.exists():
        return None
    with files.checked(path) as (file, end):
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if length > end - file.tell():
            raise UserError(f"{path} is cut: its head is longer than the rest of the file; {ADVICE}")
        kept, frames_bytes = files.decoded(path, file.read(length), Checkpoint), end - file.tell()
    sizes = kept.snapshot.sizes
    if any(size < 0 for size in sizes) or sum(sizes) != frames_bytes:
        raise UserError(
            f"{path} names {len(sizes)} messages under way of {sum(sizes)} bytes and holds {frames_bytes}; {ADVICE}"
        )
    if found := differences(from_text(kept.config), config):
        raise UserError(f"{path} is of another run ({'; '.join(found)}): {ADVICE}")
    if kept.version != coterie.__version__:
        raise UserError(
            f"{path} was written by coterie {kept.version}, this is {coterie.__version__}: go on with that version, or "
            "start the run anew with another --out"
        )
    _line(f"{path}, the set-up", msgspec.convert, {**kept.set_up, "round": 0, "notes": {}})
    _check_lines(out / METRICS, kept)
    if kept.roster is None:
        return kept
    try:
        check_roster(kept.roster, kept.roster.operator)
    except PeerError as error:
        raise UserError(f"the roster in {path} is not as its operator signed it ({error}): {ADVICE}") from None
    if strangers := sorted(kept.parties.keys() ^ kept.roster.by_name.keys()):
        raise UserError(f"{path}: {strangers[0]} is only in one of the roster and the list of files; {ADVICE}")
    return kept


def founded(out: Path, kept: Checkpoint) -> tuple[Roster, dict[str, Identity]] | None:
    """SECRET: the roster of the run in this folder, and every party's keys; None if both follow from the seed.

    Raises UserError for a party's file that is damaged, swapped, of another checkpoint, or whose keys are not those of
    the roster.
    """
    if kept.roster is None:
        return None
    identities = {}
    for one in kept.roster.entries:
        file = kept.parties[one.name]
        identities[one.name] = identity = read_party(out, one.name, file.round, file.digest).identity
        try:
            same = entry(one.name, one.role, identity) == one
        except PeerError:  # they are no keys
            same = False
        if not same:
            path = party_file(out, one.name, file.round)
            raise UserError(f"{path} holds keys of {one.name} that differ from the roster's: {ADVICE}")
    return kept.roster, identities


def frames(out: Path, snapshot: Snapshot) -> Iterator[bytes]:
    """The frames under way, one at a time."""
    path = out / CHECKPOINT
    with files.reading(path), files.opened(path, follow=False) as file:
        file.seek(-files.DIGEST_BYTES - sum(snapshot.sizes), os.SEEK_END)
        for size in snapshot.sizes:
            yield file.read(size)


def _check_lines(path: Path, kept: Checkpoint) -> None:
    """Raises UserError unless the file holds the lines of all rounds up to the checkpoint's."""
    with files.reading(path), files.opened(path, follow=False) as file:
        if os.fstat(file.fileno()).st_size < kept.metrics_bytes:
            raise UserError(f"{path} is shorter than its checkpoint says: it was changed; {ADVICE}")
        lines = file.read(kept.metrics_bytes).splitlines()
    found = [_line(f"{path}, line {number}", msgspec.json.decode, line) for number, line in enumerate(lines, 1)]
    if [line.round for line in found] != list(range(1, kept.round + 1)):
        raise UserError(
            f"{path} does not hold the rounds 1 to {kept.round} of its checkpoint: it was changed; {ADVICE}"
        )


def _line(where: str, read: Callable[..., _Line], line: object) -> _Line:
    try:
        return read(line, type=_Line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{where}: {error}; it was changed: {ADVICE}") from None
