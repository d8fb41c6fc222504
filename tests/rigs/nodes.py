"""Federations of nodes over engines in memory, one thread a party, for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from federation import Pulled, Rig, public_target
from memory_engine import Exchange, MemoryDelivery, MemoryEngine, MemoryStore

from coterie.deploy.clock import RehearsedClock
from coterie.deploy.hub import HubNode, RoundOutcome
from coterie.deploy.node import Node
from coterie.deploy.surroundings import NodeSettings
from coterie.protocol.party import Party
from coterie.protocol.spool import Spool
from coterie.protocol.system import System
from coterie.runs import registry
from coterie.runs.keyring import PartyKeys
from coterie.transport.member import Member

QUICK = NodeSettings(patience_s=20.0, grace_s=5.0, poll_s=0.03)


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
    """The parties of a rig as nodes, each with what it alone knows. Their nodes may be made anew from their stores."""

    made: Rig
    system: System
    targets: np.ndarray
    settings: NodeSettings = QUICK
    rehearsed: bool = False
    exchange: Exchange = field(init=False)
    stores: dict[str, _Store] = field(init=False)
    parties: dict[str, Party] = field(init=False)
    dooms: dict[str, Doom] = field(default_factory=dict)
    errors: dict[str, BaseException] = field(default_factory=dict)
    rounds: list[RoundOutcome] = field(default_factory=list)

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
        options = {"settings": self.settings, "clock": clock, **options}
        engine, doom = self.exchange.engine(name), self.dooms.get(name)
        if doom is not None:
            engine.__class__, engine.doom, self.stores[name].doom = _Engine, doom, doom  # type: ignore[attr-defined]
        node = kind(member, effects, engine, self.stores[name], **options)
        if doom is not None:
            doom.node = node
        return node

    def live(self, name: str, rounds: int) -> None:
        """A party's life, in a thread of its own. If it is killed, it goes on as another process would."""
        try:
            while True:
                node = self.node(name)
                with suppress(Killed):
                    if isinstance(node, HubNode):
                        node.run(rounds, self.rounds.append)
                    else:
                        node.serve()
                    return
        except BaseException as error:
            self.errors[name] = error

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


def nodes(rig: Rig, name: str, targets: np.ndarray, **options: Any) -> Nodes:
    """Nodes of a fresh rig."""
    return Nodes(rig, registry.get(name), targets, **options)
