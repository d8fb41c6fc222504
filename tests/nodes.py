"""Federations of nodes over engines in memory, one thread a party, for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from federation import Pulled, Rig, public_target

from coterie.deploy.clock import RehearsedClock
from coterie.deploy.hub import HubNode, Round
from coterie.deploy.memory import Exchange
from coterie.deploy.node import Node, Settings
from coterie.deploy.store import MemoryStore
from coterie.protocol.party import Party
from coterie.protocol.spool import Spool
from coterie.protocol.system import System
from coterie.runs import registry
from coterie.runs.keyring import PartyKeys
from coterie.transport.member import Member

QUICK = Settings(patience_s=20.0, grace_s=5.0, poll_s=0.2)


@dataclass
class Nodes:
    """The parties of a rig as nodes, each with what it alone knows. Their nodes may be made anew from their stores."""

    made: Rig
    system: System
    targets: np.ndarray
    settings: Settings = QUICK
    rehearsed: bool = False
    exchange: Exchange = field(init=False)
    stores: dict[str, MemoryStore] = field(init=False)
    parties: dict[str, Party] = field(init=False)
    errors: dict[str, BaseException] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = list(self.made.federation.parties)
        self.exchange = Exchange(names)
        self.stores = {name: MemoryStore() for name in names}
        self.parties = {}
        parties = self.made.federation.parties
        self.roles = {n: (p.role, *sorted(p.roles - {p.role})) for n, p in parties.items()}

    @property
    def hub(self) -> str:
        return self.made.federation.hub

    def data(self, name: str) -> Mapping[str, np.ndarray]:
        common = self.made.common
        if name in common.clients:
            return {name: self.targets[common.clients.index(name)]}
        return {name: public_target(self.targets)} if name == self.hub and common.public else {}

    def node(self, name: str, **options: Any) -> Node:
        """A new node of a party, which goes on from its store."""
        own, common = self.made.owns[name], self.made.common
        assert own.identity is not None
        party = self.parties[name] = self.system.make(own, common, self.made.config)
        keyring = PartyKeys(common.roster, {name: own.identity})
        roles = self.roles
        member = Member(name, {name: party}, self.hub, lambda n: roles.get(n, ()), keyring, Spool(1 << 30))
        kind = HubNode if name == self.hub else Node
        effects = Pulled(self.data(name))
        clock = RehearsedClock(name, tuple(self.roles), deepcopy(self.made.links)) if self.rehearsed else None
        options = {"settings": self.settings, "clock": clock, **options}
        return kind(member, effects, self.exchange.engine(name), self.stores[name], **options)

    def live(self, name: str, rounds: int) -> None:
        """A party's life, in a thread of its own."""
        try:
            node = self.node(name)
            if isinstance(node, HubNode):
                self.rounds += node.run(rounds)
            else:
                node.serve()
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
