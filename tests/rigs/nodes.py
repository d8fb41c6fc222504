"""Federations of nodes over engines in memory, one thread a party, and single nodes without threads, for tests."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from federation import Pulled, Rig, Steady, public_target, rig
from memory_engine import Exchange, MemoryDelivery, MemoryEngine, MemoryStore

from coterie.deploy.hub import HubNode, RoundOutcome
from coterie.deploy.logs import NodeObserver
from coterie.deploy.node import Node
from coterie.deploy.packet_queue import NodeLimits
from coterie.deploy.packets import Letter, Packet, Report, unwrap, wrap
from coterie.protocol.messages import Message
from coterie.protocol.party import Party, To
from coterie.protocol.spool import Spool
from coterie.protocol.system import System
from coterie.runs import registry
from coterie.runs.digests import models_digest
from coterie.runs.keyring import PartyKeys
from coterie.transport.clock import RehearsedClock
from coterie.transport.envelope import Envelope
from coterie.transport.member import Member

QUICK = NodeLimits(patience_s=20.0, grace_s=5.0, poll_s=0.03)


class Killed(BaseException):
    """The process of a node is killed."""


class Doom:
    """Kills a node at some of its points: before and after each commit, push and acknowledgement. said: which.

    when: of its node and the point, once.
    """

    def __init__(
        self, at: Set[int] = frozenset(), when: Callable[[Node, str], bool] = lambda node, what: False
    ) -> None:
        self.at, self.died, self.count, self.said = at, 0, 0, [""]
        self.when, self.node = when, None

    node: Node | None

    def point(self, what: str) -> None:
        self.count += 1
        now = self.node is not None and self.when is not None and not self.died and self.when(self.node, what)
        if now or self.count - 1 in self.at:
            self.died += 1
            self.said.append(what)
            raise Killed(what)


class _Store(MemoryStore):
    doom: Doom | None = None

    def save(self, data: bytes) -> None:
        if self.doom is not None:
            self.doom.point("before a commit")
        super().save(data)
        if self.doom is not None:
            self.doom.point("after a commit")


class _Engine(MemoryEngine):
    doom: Doom

    def push(self, dst: str, body: bytes, key: str) -> None:
        self.doom.point(f"before a push to {dst}")
        super().push(dst, body, key)
        self.doom.point(f"after a push to {dst}")

    def pull(self, wait_s: float) -> MemoryDelivery | None:
        delivery = super().pull(wait_s)
        if delivery is not None:
            done = delivery.done

            def dies() -> None:
                self.doom.point("before it is done")
                done()
                self.doom.point("after it is done")

            delivery.done = dies  # type: ignore[method-assign]
        return delivery


@dataclass
class Nodes:
    """The parties of a rig as nodes, each with what it alone knows. Their nodes may be made anew from their stores.

    options: of a party's node.  closed, heard: are told of the hub's rounds and of parties' reports.
    """

    made: Rig
    system: System
    targets: np.ndarray
    limits: NodeLimits = QUICK
    rehearsed: bool = False
    exchange: Exchange = field(init=False)
    stores: dict[str, _Store] = field(init=False)
    parties: dict[str, Party] = field(init=False)
    dooms: dict[str, Doom] = field(default_factory=dict)
    errors: dict[str, BaseException] = field(default_factory=dict)
    rounds: list[RoundOutcome] = field(default_factory=list)
    options: Callable[[str], dict[str, Any]] = lambda name: {}
    closed: Callable[[RoundOutcome], None] = lambda one: None
    heard: Callable[[str, Report], None] | None = None

    def __post_init__(self) -> None:
        names = list(self.made.federation.parties)
        self.exchange = Exchange(names)
        self.stores = {name: _Store() for name in names}
        self.parties = {}
        parties = self.made.federation.parties
        self.roles = {n: (p.role, *sorted(p.roles - {p.role})) for n, p in parties.items()}

    @property
    def hub(self) -> str:
        return self.made.federation.hub

    def keys(self, name: str) -> PartyKeys:
        """The keys of a party, and all public ones."""
        identity = self.made.owns[name].identity
        assert identity is not None
        return PartyKeys(self.made.common.roster, {name: identity})

    def data(self, name: str) -> Mapping[str, np.ndarray]:
        common = self.made.common
        if name in common.clients:
            return {name: self.targets[common.clients.index(name)]}
        return {name: public_target(self.targets)} if name == self.hub and common.public else {}

    def node(self, name: str, **options: Any) -> Node:
        """A new node of a party, which goes on from its store."""
        own, common = self.made.owns[name], self.made.common
        party = self.parties[name] = self.system.make(own, common, self.made.config)
        roles = self.roles
        member = Member(name, {name: party}, self.hub, lambda n: roles.get(n, ()), self.keys(name), Spool(1 << 30))
        kind = HubNode if name == self.hub else Node
        effects = Pulled(self.data(name))
        clock = RehearsedClock(name, tuple(self.roles), deepcopy(self.made.links)) if self.rehearsed else None
        options = {"limits": self.limits, "clock": clock, **self.options(name), **options}
        engine, doom = self.exchange.engine(name), self.dooms.get(name)
        if doom is not None:
            engine.__class__, engine.doom, self.stores[name].doom = _Engine, doom, doom  # type: ignore[attr-defined]
        node = kind(member, effects, engine, self.stores[name], **options)
        if self.heard is not None and name == self.hub:
            node.observer.heard = self.heard  # type: ignore[method-assign]
        if doom is not None:
            doom.node = node
        return node

    def live(self, name: str, rounds: int) -> None:
        """A party's life, in a thread of its own. If it is killed, it goes on as another process would."""
        try:
            while True:
                node = self.node(name)
                with suppress(Killed):
                    self.drive(node, rounds)
                    return
        except BaseException as error:
            self.errors[name] = error

    def drive(self, node: Node, rounds: int) -> None:
        """A node's work, to its end."""
        if isinstance(node, HubNode):
            node.run(rounds, self._close)
        else:
            node.serve()

    def _close(self, one: RoundOutcome) -> None:
        self.rounds.append(one)
        self.closed(one)

    def run(self, rounds: int, live: Callable[[str, int], None] | None = None) -> None:
        """All parties at once, to the end of the run."""
        threads = [
            threading.Thread(target=live or self.live, args=(name, rounds), daemon=True, name=name)
            for name in self.made.federation.parties
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120.0)
            assert not thread.is_alive(), f"{thread.name} goes on and on; {self.errors}"
        for error in self.errors.values():
            raise error
        for name, party in self.made.federation.parties.items():
            party.state, party.secret = self.parties[name].state, self.parties[name].secret

    def models(self) -> np.ndarray:
        return self.made.models()


def nodes(made: Rig, name: str, targets: np.ndarray, **options: Any) -> Nodes:
    """Nodes of a fresh rig."""
    return Nodes(made, registry.get(name), targets, **options)


def steady(targets: np.ndarray, name: str = "fedavg", limits: NodeLimits = QUICK, **options: Any) -> Nodes:
    """Nodes of a system over links that lose and delay nothing."""
    return nodes(rig(registry.get(name), targets, delta=0.0, links=Steady(), **options), name, targets, limits=limits)


def digest(models: np.ndarray) -> str:
    return models_digest(dict(enumerate(models)))


def keys_of(apart: Nodes, *names: str) -> PartyKeys:
    """The keys of some parties together, as an attacker holds them."""
    owns = {name: apart.made.owns[name].identity for name in names}
    return PartyKeys(apart.made.common.roster, {name: own for name, own in owns.items() if own})


class Noted(NodeObserver):
    """What a node has told its log."""

    def __init__(self) -> None:
        self.said: Counter[str] = Counter()

    def dropped(self, src: str, kind: str, reason: str) -> None:
        self.said[f"{kind} of {src}"] += 1

    def refused(self, envelope: Envelope, role: str, reason: str) -> None:
        self.said[f"{envelope.kind}: {reason}"] += 1


def opened(apart: Nodes, name: str, **options: Any) -> tuple[Node, Noted]:
    """A node at work that no thread drives."""
    noted = Noted()
    node = apart.node(name, observer=noted, **options)
    node.open()
    return node, noted


def take_all(node: Node) -> None:
    """Let a node take all that has come."""
    engine: Any = node.queue.engine
    while len(engine.held) < engine.exchange.waiting(node.name):
        node.turn()


class Driven:
    """A party that no thread drives, and the hub's member and keys."""

    def __init__(self, apart: Nodes, name: str) -> None:
        self.apart, self.name, self.numbers = apart, name, itertools.count(1)
        self.hub = apart.node(apart.hub).member
        self.start()

    def start(self) -> None:
        """Its node begins, or begins again."""
        self.node, self.noted = opened(self.apart, self.name)

    def tell(self, packet: Packet) -> None:
        """A packet of the hub comes, and all that waits for it is taken."""
        body = wrap(self.apart.keys(self.apart.hub), self.apart.hub, self.name, next(self.numbers), packet)
        self.apart.exchange.put(self.apart.hub, self.name, body, str(body))
        while (arrived := self.node.queue.pull(0.0)) is not None:
            self.node.take(arrived)

    def ask(self, message: Message, r: int, attempt: int = 0, *, sent_in: int | None = None) -> int:
        """A message of round ``sent_in`` comes in round r; gives its number."""
        of, at = (r, attempt) if sent_in is None else (sent_in, 0)
        (sent,) = self.hub.send([To(self.name, message)], self.hub.party.role, round=of, attempt=at)
        self.tell(Letter(sent.envelope, sent.frame, (r, attempt)))
        return sent.envelope.number

    def said(self) -> list[Packet]:
        """What the hub was told since it was last asked."""
        engine, found = self.apart.exchange.engine(self.apart.hub), []
        while (delivery := engine.pull(0.0)) is not None:
            found.append(unwrap(self.apart.keys(self.apart.hub), self.name, self.apart.hub, delivery.body)[1])
            delivery.done()
        return found
