"""A party in an operating-system process of its own, for tests: a node, over a pipe to whoever started it."""

from __future__ import annotations

import queue
import resource
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import msgspec
import numpy as np
import torch
from federation import Pulled, Steady
from memory_engine import MemoryStore

from coterie.deploy.engine import Engine
from coterie.deploy.hub import HubNode
from coterie.deploy.node import Node
from coterie.deploy.packet_queue import NodeLimits
from coterie.protocol import state
from coterie.protocol.setup_info import Common, Own
from coterie.protocol.spool import Spool
from coterie.runs import registry
from coterie.runs.keyring import PartyKeys
from coterie.transport.clock import RehearsedClock
from coterie.transport.member import Member

PATIENCE_S = 120.0
ENDED = ""  # the recipient of what a process says at its end


@dataclass(frozen=True)
class Place:
    """What a process is told: what everybody knows, what its party alone knows, and its own data, if it has any."""

    own: Own
    common: Common
    roles: dict[str, tuple[str, ...]]
    system: str
    config: Any
    rounds: int
    data: np.ndarray | None


class Ended(msgspec.Struct):
    """What a process says at its end. peak_bytes: the most memory that it had."""

    states: bytes
    peak_bytes: int


@dataclass(eq=False)
class _Delivery:
    src: str
    body: bytes

    def done(self) -> None:
        """A pipe loses nothing."""

    def working(self) -> None:
        """And repeats nothing."""


@dataclass(eq=False)
class PipeEngine(Engine):
    """The pipe of one party. others: all of them."""

    name: str
    pipe: Connection
    others: Collection[str]

    def nodes(self) -> Collection[str]:
        return self.others

    def push(self, dst: str, body: bytes, key: str) -> None:
        self.pipe.send_bytes(msgspec.msgpack.encode((dst, body)))

    def pull(self, wait_s: float) -> _Delivery | None:
        if not self.pipe.poll(wait_s):
            return None
        return _Delivery(*msgspec.msgpack.decode(self.pipe.recv_bytes(), type=tuple[str, bytes]))

    def close(self) -> None:
        """The pipe is still needed."""


def live(place: Place, pipe: Connection) -> None:
    """One party's life: it leads the rounds, or serves, and gives its state at the end."""
    torch.set_num_threads(1)
    own, roster = place.own, place.common.roster
    assert own.identity is not None
    party = registry.get(place.system).make(own, place.common, place.config)
    keyring, roles = PartyKeys(roster, {own.name: own.identity}), place.roles
    member = Member(own.name, {own.name: party}, roster.hub, lambda name: roles.get(name, ()), keyring, Spool(0))
    options: dict[str, Any] = {
        "clock": RehearsedClock(own.name, tuple(roles), Steady()),
        "limits": NodeLimits(patience_s=PATIENCE_S, grace_s=10.0, poll_s=0.2),
    }
    engine, effects = (
        PipeEngine(own.name, pipe, tuple(roles)),
        Pulled({own.name: place.data} if place.data is not None else {}),
    )
    if own.name == roster.hub:
        HubNode(member, effects, engine, MemoryStore(), **options).run(place.rounds)
    else:
        Node(member, effects, engine, MemoryStore(), **options).serve()
    ended = Ended(
        state.dump({"state": party.state, "secret": party.secret}),
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
    )
    pipe.send_bytes(msgspec.msgpack.encode((ENDED, msgspec.msgpack.encode(ended))))


def relay(pipes: Mapping[str, Connection]) -> dict[str, Ended]:
    """Pass packets on, whose content it cannot read, until all processes have ended."""
    names = {id(pipe): name for name, pipe in pipes.items()}
    boxes: dict[str, queue.Queue[bytes | None]] = {name: queue.Queue() for name in pipes}

    def write(name: str) -> None:  # a thread for each, since a process may be busy with sending itself
        while (data := boxes[name].get()) is not None:
            pipes[name].send_bytes(data)

    threads = [threading.Thread(target=write, args=(name,), daemon=True) for name in pipes]
    for thread in threads:
        thread.start()
    ended: dict[str, Ended] = {}
    while len(ended) < len(pipes):
        ready = wait([pipe for name, pipe in pipes.items() if name not in ended], PATIENCE_S)
        assert ready, f"nobody says anything any more; {sorted(ended)} have ended"
        for pipe in ready:
            src = names[id(pipe)]
            dst, body = msgspec.msgpack.decode(pipe.recv_bytes(), type=tuple[str, bytes])  # type: ignore[union-attr]
            if dst == ENDED:
                ended[src] = msgspec.msgpack.decode(body, type=Ended)
            elif dst not in ended:
                boxes[dst].put(msgspec.msgpack.encode((src, body)))
    for box in boxes.values():
        box.put(None)
    return ended
