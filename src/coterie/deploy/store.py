"""What a node keeps: one file, replaced by each commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from coterie.deploy.engine import OutgoingPacket
from coterie.deploy.packets import CarriedNumbers, Era, Letter
from coterie.dp.ledger import Entries
from coterie.protocol import state
from coterie.protocol.party import Party
from coterie.record.files import FILE_MODE, atomic_write, opened, reading
from coterie.transport.clock import Times
from coterie.transport.envelope import Count

Counts = dict[str, Count]
ADVICE = "restore it, or let the operator enrol this party anew"
_PARTS = "state", "secret", "start", "start secret", "kept"


class FileStore:
    """A private file (0600). Raises UserError where it can't be read, RunError where it can't be written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> bytes | None:
        with reading(self.path, ADVICE):
            for left in self.path.parent.glob(f".{self.path.name}.*"):
                left.unlink(missing_ok=True)
        return self.read()

    def read(self) -> bytes | None:
        with reading(self.path, ADVICE):
            try:
                with opened(self.path, follow=False) as file:
                    return file.read()
            except FileNotFoundError:
                return None

    def save(self, data: bytes) -> None:
        atomic_write(self.path, data, FILE_MODE)


class Numbering(msgspec.Struct):
    """Of a node's packets, and never back: each start begins beyond all before it.  sent: the last number used.  taken:
    by sender, the highest that has come.  open: those up to it that are not done.
    """

    starts: Count = 0
    sent: Count = 0
    taken: dict[str, Count] = msgspec.field(default_factory=dict)
    open: dict[str, list[Count]] = msgspec.field(default_factory=dict)


class Kept(msgspec.Struct):
    """Beside the party's state and secret.  era: None before the first.  mark: of this attempt.  leads: it coordinates.
    numbers: of the member.  outbox: packets that may not have left.  again: messages of earlier rounds that this one
    took, for another attempt.  retaken: how many of them this attempt has taken.  inbox: for a coordinator of a later
    round.  sent, received: packets of this era, by the other end.  tallies: it tells the hub of them.  times, before:
    of the virtual clock, now and when the round began.  keys: by party, the public key.  released: its releases, up to
    message released_to.

    Of the hub: done: its last round.  stops: the round that says that it is the last one, or 0.  heard: by party, the
    newest known commit.  excluded: why a party is asked nothing until it is enrolled anew.  forced: in how many rounds
    a party has had an attempt repeated.
    """

    commits: Count = 0
    era: Era | None = None
    mark: Count = 0
    leads: bool = False
    numbers: CarriedNumbers = msgspec.field(default_factory=CarriedNumbers)
    numbering: Numbering = msgspec.field(default_factory=Numbering)
    outbox: list[OutgoingPacket] = msgspec.field(default_factory=list)
    again: list[Letter] = msgspec.field(default_factory=list)
    retaken: Count = 0
    inbox: list[Letter] = msgspec.field(default_factory=list)
    sent: Counts = msgspec.field(default_factory=dict)
    received: Counts = msgspec.field(default_factory=dict)
    tallies: bool = False
    times: Times = msgspec.field(default_factory=Times)
    before: Times = msgspec.field(default_factory=Times)
    ended: bool = False
    keys: dict[str, bytes] = msgspec.field(default_factory=dict)
    released: Entries = msgspec.field(default_factory=list)
    released_to: Count = 0
    done: int = -1
    stops: Count = 0
    heard: dict[str, Count] = msgspec.field(default_factory=dict)
    excluded: dict[str, str] = msgspec.field(default_factory=dict)
    forced: dict[str, Count] = msgspec.field(default_factory=dict)


def begun_after(former: bytes) -> Kept:
    """At the beginning of a run.  former: the last commit of the former one, whose numbers and releases go on. Raises
    UserError.
    """
    old: Kept = state.load(former, {**dict.fromkeys(_PARTS, object), "kept": Kept})["kept"]
    numbering = Numbering(old.numbering.starts, old.numbering.sent, old.numbering.taken)
    return Kept(
        commits=old.commits, numbering=numbering, keys=old.keys, released=old.released, released_to=old.released_to
    )


def pack(kept: Kept, now: tuple[Any, Any], start: tuple[Any, Any]) -> bytes:
    """SECRET: a commit.  now, start: the party's state and secret, now and when the round began."""
    return state.dump(dict(zip(_PARTS, (*now, *start, kept), strict=True)))


def unpack(data: bytes, party: Party) -> tuple[Kept, tuple[Any, Any]]:
    """Put the party into its state of a commit; returns the rest. Raises UserError for an invalid commit."""
    one, other = type(party.state), type(party.secret)
    found = state.load(data, dict(zip(_PARTS, (one, other, one, other, Kept), strict=True)))
    party.state, party.secret = found["state"], found["secret"]
    kept: Kept = found["kept"]
    return kept, (found["start"], found["start secret"])
