"""Small parties, links and effects for the tests of protocol and transport."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

import coterie.method as fl
from coterie.protocol.interpreters import Interpreters, each, interpret
from coterie.transport.envelope import Envelope
from coterie.transport.local import LocalTransport
from coterie.transport.wire import Links

RANDOMNESS = fl.Randomness(0, emulated=True)


@fl.message(src="server", dst="client")
class Go(fl.Message, frozen=True):
    """Work on w."""

    round: int
    w: fl.Floats


@fl.message(src="client", dst="server")
class Up(fl.Message, frozen=True):
    """The result."""

    round: int
    w: fl.Floats


@dataclass(frozen=True)
class Table(Links):
    """Links by table: seconds down, up and of work; fates, and rounds late, by (party, round)."""

    down: Mapping[str, float] = field(default_factory=dict)
    up: Mapping[str, float] = field(default_factory=dict)
    fates: Mapping[tuple[str, int], str] = field(default_factory=dict)
    late: Mapping[tuple[str, int], int] = field(default_factory=dict)

    def down_s(self, party: str, size: int) -> float:
        return self.down.get(party, 0.0)

    def up_s(self, party: str, size: int) -> float:
        return self.up.get(party, 0.0)

    def work_s(self, party: str, cost: fl.Cost) -> float:
        return cost.crypto_s

    def rounds(self, party: str, round: int) -> int:
        return self.late.get((party, round), 0)

    def fate(self, party: str, round: int, request: int) -> str:
        return self.fates.get((party, round), "ok")


def raising(party: str, effect: str) -> None:
    raise fl.PeerError(effect)


DOUBLES: Interpreters = {int: each(lambda party, effect: 2 * effect), str: each(raising)}


@dataclass
class Doubling:
    """Effects that double a number; strings are errors to raise. Remembers how it was called."""

    chunk: int = 10
    calls: list[list[tuple[str, Any]]] = field(default_factory=list)

    def run(self, wanted: Sequence[tuple[str, Any]]) -> list[Any]:
        self.calls.append(list(wanted))
        return interpret(DOUBLES, wanted)


class Keys:
    """A keyring that costs nothing: signatures and seals are hashes of what they bind, and easy to tell from it."""

    session = "toys"
    overhead = 32

    def sign(self, src: str, header: bytes, digest: bytes) -> bytes:
        return hashlib.sha256(src.encode() + header + digest).digest()

    def verify(self, src: str, signature: bytes, header: bytes, digest: bytes) -> None:
        if signature != self.sign(src, header, digest):
            raise fl.PeerError("another signature")

    def seal(self, src: str, dst: str, frame: bytes, header: bytes) -> bytes:
        mark = hashlib.sha256(f"{src}>{dst}".encode() + header).digest()
        return mark + bytes(b ^ 0xFF for b in frame)

    def open(self, src: str, dst: str, sealed: bytes, header: bytes) -> bytes:
        if sealed[:32] != hashlib.sha256(f"{src}>{dst}".encode() + header).digest():
            raise fl.PeerError("sealed by somebody else")
        return bytes(b ^ 0xFF for b in sealed[32:])


KEYS = Keys()


def resigned(envelope: Envelope, frame: bytes, **changes: Any) -> tuple[Envelope, bytes]:
    """What its sender would have sent, had it sent this: the envelope signed anew. changes: of its fields."""
    bare = msgspec.structs.replace(envelope, **{"weight": len(frame), **changes})
    digest = hashlib.sha256(frame).digest()
    signature = KEYS.sign(bare.src, bare.header(), digest)
    return msgspec.structs.replace(bare, digest=digest, signature=signature), frame


class Client(fl.Party, role="client"):
    """Adds its constant to what it gets; counts."""

    class State(msgspec.Struct):
        n: int = 0
        rounds: list[int] = msgspec.field(default_factory=list)

    def __init__(self, name: str, plus: float = 0.0, work_s: float = 0.0) -> None:
        super().__init__(fl.Own(name, RANDOMNESS))
        self.state = self.State()
        self.plus, self.work_s = plus, work_s

    def cost(self, msg: Go) -> fl.Cost:
        return fl.Cost(crypto_s=self.work_s)

    @fl.on(Go, cost)
    def go(self, msg: Go, src: str) -> Up:
        self.state.n += 1
        self.state.rounds.append(msg.round)
        return Up(msg.round, msg.w + np.float32(self.plus))


class Server(fl.Party, role="server"):
    """Asks all clients and notes who answered with what."""

    takes = (Up,)

    class State(msgspec.Struct):
        w: Any
        notes: list[Any] = msgspec.field(default_factory=list)

    def __init__(self, clients: Sequence[str], deadline_s: float | None = None) -> None:
        super().__init__(fl.Own("server", RANDOMNESS))
        self.clients, self.deadline_s = clients, deadline_s
        self.state = self.State(np.zeros(2, np.float32))

    def round(self, r: int) -> fl.Steps[Any]:
        fold = self.note
        return (
            yield from fl.for_each({c: Go(r, self.state.w) for c in self.clients}, Up, fold, deadline_s=self.deadline_s)
        )

    def note(self, name: str, up: Up) -> None:
        self.state.notes.append((name, up.round, float(up.w[0])))


def wired(*parties: fl.Party, **options: Any) -> LocalTransport:
    """The transport of these parties, the hub first."""
    options = {"effects": Doubling(), "keyring": KEYS, **options}
    return LocalTransport({party.name: party for party in parties}, parties[0].name, **options)


def federation(
    clients: Sequence[Client], deadline_s: float | None = None, **options: Any
) -> tuple[Server, LocalTransport]:
    """A server, its clients and their transport."""
    server = Server([c.name for c in clients], deadline_s)
    return server, wired(server, *clients, **options)
