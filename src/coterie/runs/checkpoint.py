"""Checkpoints, from which a run continues after any end, with the numbers of an undisturbed run.

``checkpoint/parties.N.bin`` is a log of changed parties. ``checkpoint/checkpoint.bin`` is replaced as a whole: the
head's length (u64, little-endian), the head (``Checkpoint``), and the frames under way. All of it is private. A digest
detects damage and is no signature.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import msgspec

import coterie
import coterie.method as fl
from coterie.crypto.roster import DerivedRoster, check_roster, entry
from coterie.record import files
from coterie.record.files import ADVICE
from coterie.record.folder import METRICS
from coterie.runs.config import Resolved
from coterie.runs.config_file import differences, from_text, to_toml
from coterie.runs.experiment import Experiment
from coterie.runs.own_code import check_same_code
from coterie.transport.wire import Snapshot

CHECKPOINT = Path("checkpoint") / "checkpoint.bin"
_LENGTH_BYTES = 8
_LOG = re.compile(r"parties\.[0-9]+\.bin")

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class Place(msgspec.Struct, frozen=True, array_like=True):
    """A party's place in the log. at, size: in bytes.  digest: 32 bytes."""

    at: Count
    size: Count
    digest: bytes


class KeptParty(msgspec.Struct, frozen=True):
    """SECRET: a party in the log.  kept: of ``runs.parties.dumped``."""

    name: str
    identity: fl.Identity
    kept: bytes

    def __repr__(self) -> str:
        return f"<KeptParty {self.name}>"


class Checkpoint(msgspec.Struct):
    """The head of the file.

    own_code: digests by own module.  set_up: its costs, as of a line.  roster: signed by its operator; None if it
    follows from the seed.  log: its number.  log_bytes: its length then.  parties: by name; without a roster only those
    ever asked.
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
    roster: fl.Roster | None
    snapshot: Snapshot
    log: Count
    log_bytes: Count
    parties: dict[str, Place]


class _Line(msgspec.Struct):
    bytes_up: dict[str, Count]
    bytes_down: dict[str, Count]
    refused: dict[str, Count]
    lost: dict[str, str]
    late: list[str]
    seconds: float
    virtual_seconds: float | None
    round: Count
    notes: dict[str, Any]


def log_file(out: Path, number: int) -> Path:
    return out / CHECKPOINT.parent / f"parties.{number}.bin"


def read_parties(out: Path, kept: Checkpoint, names: Iterable[str]) -> Iterator[KeptParty]:
    """SECRET: these parties at the checkpoint, each from its own bytes alone. Raises UserError for damaged bytes, and
    for another party or digest.
    """
    path = log_file(out, kept.log)
    for name, body in _bodies(path, {name: kept.parties[name] for name in names}):
        found = files.decoded(path, body, KeptParty)
        if found.name != name:
            raise fl.UserError(f"{path} holds {found.name} where {name} lies: {ADVICE}")
        yield found


def _bodies(path: Path, places: Mapping[str, Place]) -> Iterator[tuple[str, bytes]]:
    with files.reading(path), files.opened(path, follow=False) as file:
        end = os.fstat(file.fileno()).st_size
        for name, place in places.items():
            file.seek(place.at)
            body = file.read(min(place.size, end))
            if files.digest(body) != place.digest:
                raise fl.UserError(
                    f"{path} is damaged, or not the file that the checkpoint was written with, where {name} lies: "
                    f"{ADVICE}"
                )
            yield name, body


def _kept(roster: fl.Roster) -> fl.Roster | None:
    return None if isinstance(roster, DerivedRoster) else roster


class Saver:
    def __init__(self, out: Path, experiment: Experiment) -> None:
        self.out, self.experiment = out, experiment
        self._log: files.Log | None = None
        self._number = 0  # of the log
        self._places: dict[str, Place] = {}

    def save(self, round: int, metrics_bytes: int, views_bytes: int, set_up: dict[str, Any]) -> None:
        """Raises RunError on failure, and leaves the last checkpoint as it was."""
        experiment, transcript = self.experiment, self.experiment.transport.transcript
        files.make_folder((self.out / CHECKPOINT).parent)
        log = self._written()
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
            log=self._number,
            log_bytes=log.length(),
            parties=self._places,
        )
        head = msgspec.msgpack.encode(kept)
        parts = chain((len(head).to_bytes(_LENGTH_BYTES, "little"), head), experiment.transport.frames())
        files.atomic_write(self.out / CHECKPOINT, files.sealed(parts), files.FILE_MODE)
        experiment.parties.changed.clear()
        self._drop_old_files()

    def _written(self) -> files.Log:
        experiment, live = self.experiment, sum(place.size for place in self._places.values())
        names = [*experiment.parties.changed, *experiment.parties.pinned]
        if not self._places and _kept(experiment.common.roster) is not None:
            names = [*experiment.parties]
        if self._log is None or self._log.size() >= 2 * live:
            self._begin_log({name: self._places[name] for name in self._places.keys() - set(names)})
        assert self._log is not None
        for name in dict.fromkeys(names):
            identity = experiment.owns[name].identity
            assert identity is not None
            body = msgspec.msgpack.encode(KeptParty(name, identity, experiment.parties.dumped(name)))
            digest = files.digest(body)
            if name not in self._places or self._places[name].digest != digest:
                self._add(name, body, digest)
        return self._log

    def _begin_log(self, keep: Mapping[str, Place]) -> None:
        last = self._log
        self._number += 1
        path = log_file(self.out, self._number)
        if not path.is_symlink():  # which opening refuses
            path.unlink(missing_ok=True)  # it may be linked elsewhere
        self._log, self._places = files.Log(path, files.FILE_MODE), {}
        if last is not None:
            for name, body in _bodies(last.path, keep):
                self._add(name, body, keep[name].digest)
            last.close()

    def _add(self, name: str, body: bytes, digest: bytes) -> None:
        assert self._log is not None
        self._places[name] = Place(self._log.append(body), len(body), digest)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def restore(self, kept: Checkpoint) -> None:
        """Raises UserError for states of another system, data or own code, and without the checkpoint's roster."""
        path, experiment = self.out / CHECKPOINT, self.experiment
        check_same_code(kept.own_code, experiment.own_code, str(path))
        if kept.fingerprint != experiment.fingerprint:
            raise fl.UserError(
                f"{path}: its data, partition or initial weights, or a model or loss of your own, differ from the "
                f"present ones; {ADVICE}"
            )
        if kept.roster != _kept(experiment.common.roster):
            raise fl.UserError(f"{path} has another roster than the federation that is to go on: {ADVICE}")
        if strangers := [name for name in kept.parties if name not in experiment.parties]:
            raise fl.UserError(f"{path} has a party that this federation has not, {strangers[0]!r:.40}: {ADVICE}")
        for party in read_parties(self.out, kept, kept.parties):
            experiment.parties.put(party.name, party.kept)
        experiment.transport.restore(kept.snapshot, frames(self.out, kept.snapshot))
        self._check_models(kept.round)
        experiment.parties.changed.clear()
        self._number, self._places = kept.log, kept.parties
        self._log = files.Log(log_file(self.out, kept.log), files.FILE_MODE)
        self._log.truncate(kept.log_bytes)

    def _drop_old_files(self) -> None:
        folder, own = (self.out / CHECKPOINT).parent, log_file(self.out, self._number)
        with files.writing(folder):
            old = [path for path in folder.iterdir() if path != own and _LOG.fullmatch(path.name)]
            for left in chain(old, folder.glob(f".{CHECKPOINT.name}.*")):
                left.unlink(missing_ok=True)

    def _check_models(self, round: int) -> None:
        path, expected = self.out / CHECKPOINT, (self.experiment.model.spec.size,)
        try:
            for name, model in self.experiment.models(round).items():
                shape = model.models.shape[1:] if isinstance(model, fl.Mixture) else model.shape
                if shape != expected:
                    raise fl.UserError(
                        f"{path} holds a model of shape {shape} of {name} instead of {expected}: {ADVICE}"
                    )
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise fl.UserError(f"{path} holds states that are not of this system ({error}): {ADVICE}") from error


def read(out: Path, config: Resolved) -> Checkpoint | None:
    """The checkpoint in a run folder, without its parties, or None.  config: of the run to continue.

    Raises UserError for a checkpoint that is damaged, of another version or run, an unsigned roster, and folders that
    are not this user's own.
    """
    path = out / CHECKPOINT
    files.check_own(path.parent)
    if not path.exists():
        return None
    with files.checked(path) as (file, end):
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if length > end - file.tell():
            raise fl.UserError(f"{path} is cut: its head is longer than the rest of the file; {ADVICE}")
        kept, frames_bytes = files.decoded(path, file.read(length), Checkpoint), end - file.tell()
    sizes = kept.snapshot.sizes
    if any(size < 0 for size in sizes) or sum(sizes) != frames_bytes:
        raise fl.UserError(
            f"{path} names {len(sizes)} messages under way of {sum(sizes)} bytes and holds {frames_bytes}; {ADVICE}"
        )
    if found := differences(from_text(kept.config), config):
        raise fl.UserError(f"{path} is of another run ({'; '.join(found)}): {ADVICE}")
    if kept.version != coterie.__version__:
        raise fl.UserError(
            f"{path} was written by coterie {kept.version}, this is {coterie.__version__}: go on with that version, or "
            "start the run anew with another --out"
        )
    _line(f"{path}, the set-up", msgspec.convert, {**kept.set_up, "round": 0, "notes": {}})
    _check_lines(out / METRICS, kept)
    if kept.roster is None:
        return kept
    try:
        check_roster(kept.roster, kept.roster.operator)
    except fl.PeerError as error:
        raise fl.UserError(f"the roster in {path} is not as its operator signed it ({error}): {ADVICE}") from None
    if strangers := sorted(kept.parties.keys() ^ kept.roster.by_name.keys()):
        raise fl.UserError(f"{path}: {strangers[0]} is only in one of the roster and the list of parties; {ADVICE}")
    return kept


def founded(out: Path, kept: Checkpoint) -> tuple[fl.Roster, dict[str, fl.Identity]] | None:
    """SECRET: this run's roster, and every party's keys; None if both follow from the seed. Raises UserError as
    ``read_parties``, and for keys that are not the roster's.
    """
    if kept.roster is None:
        return None
    identities, entries = {}, kept.roster.entries
    for one, party in zip(entries, read_parties(out, kept, [one.name for one in entries]), strict=True):
        identities[one.name] = identity = party.identity
        try:
            same = entry(one.name, one.role, identity) == one
        except fl.PeerError:  # they are no keys
            same = False
        if not same:
            raise fl.UserError(
                f"{log_file(out, kept.log)} holds keys of {one.name} that differ from the roster's: {ADVICE}"
            )
    return kept.roster, identities


def frames(out: Path, snapshot: Snapshot) -> Iterator[bytes]:
    path = out / CHECKPOINT
    with files.reading(path), files.opened(path, follow=False) as file:
        file.seek(-files.DIGEST_BYTES - sum(snapshot.sizes), os.SEEK_END)
        for size in snapshot.sizes:
            yield file.read(size)


def _check_lines(path: Path, kept: Checkpoint) -> None:
    with files.reading(path), files.opened(path, follow=False) as file:
        if os.fstat(file.fileno()).st_size < kept.metrics_bytes:
            raise fl.UserError(f"{path} is shorter than its checkpoint says: it was changed; {ADVICE}")
        lines = file.read(kept.metrics_bytes).splitlines()
    found = [_line(f"{path}, line {number}", msgspec.json.decode, line) for number, line in enumerate(lines, 1)]
    if [line.round for line in found] != list(range(1, kept.round + 1)):
        raise fl.UserError(
            f"{path} does not hold the rounds 1 to {kept.round} of its checkpoint: it was changed; {ADVICE}"
        )


def _line(where: str, read: Callable[..., _Line], line: object) -> _Line:
    try:
        return read(line, type=_Line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise fl.UserError(f"{where}: {error}; it was changed: {ADVICE}") from None
