"""A federation of two levels, for tests: the server asks leaders, and each leads its own cluster for one round.

    server --Lead--> leader --Train--> client --Trained--> leader --Summed--> server

Any client may lead. Who leads changes from round to round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from transport_toys import KEYS, RANDOMNESS, Doubling

import coterie.method as fl
from coterie.transport.local import LocalTransport
from coterie.transport.transcript import Transcript
from coterie.transport.wire import Links


@fl.message(src="server", dst="leader")
class Lead(fl.Message, frozen=True):
    """Lead these clients, named with commas between, in this round, from x."""

    round: int
    members: str
    x: int


@fl.message(src="leader", dst="client")
class Train(fl.Message, frozen=True):
    """Add yourself to x."""

    round: int
    x: int


@fl.message(src="client", dst="leader")
class Trained(fl.Message, frozen=True):
    """x + what the client is worth."""

    round: int
    x: int


@fl.message(src="leader", dst="server")
class Summed(fl.Message, frozen=True):
    """The sum of what a cluster's clients gave, and how many they were."""

    round: int
    total: int
    count: int


class Client(fl.Party, role="client", also=("leader",)):
    """Worth its number plus one; needs ``work_s`` for a training and nothing to lead."""

    class State(msgspec.Struct):
        """What it did in which role, in order."""

        trained: list[int] = msgspec.field(default_factory=list)
        led: list[int] = msgspec.field(default_factory=list)

    def __init__(self, number: int, work_s: float = 1.0, deadline_s: float | None = None) -> None:
        super().__init__(fl.Own(f"c{number}", RANDOMNESS))
        self.worth, self.work_s, self.deadline_s = number + 1, work_s, deadline_s
        self.state = self.State()

    def cost(self, msg: Train) -> fl.Cost:
        return fl.Cost(crypto_s=self.work_s)

    @fl.on(Train, cost)
    def train(self, msg: Train, src: str) -> fl.Work[Trained]:
        self.state.trained.append(msg.round)
        twice = yield self.worth
        return Trained(msg.round, msg.x + twice // 2)

    @fl.on(Lead)
    def lead(self, msg: Lead, src: str) -> fl.Steps[Summed]:
        """Ask the others, train itself meanwhile (an effect), and sum up."""
        self.state.led.append(msg.round)
        got: dict[str, int] = {}

        def fold(name: str, trained: Trained) -> None:
            if trained.round != msg.round:
                raise fl.PeerError(f"{name} trained for round {trained.round}")
            got[name] = trained.x

        others = [name for name in msg.members.split(",") if name != self.name]
        yield from fl.for_each(
            dict.fromkeys(others, Train(msg.round, msg.x)), Trained, fold, deadline_s=self.deadline_s
        )
        twice = yield self.worth
        if len(got) < len(others) / 2:
            raise fl.PeerError(f"only {len(got)} of {len(others)} members answer")
        return Summed(msg.round, msg.x + twice // 2 + sum(got.values()), 1 + len(got))


class Server(fl.Party, role="server"):
    """Asks the leaders of this round: of each cluster, its members in turn."""

    takes = (Summed,)

    class State(msgspec.Struct):
        """sums: (round, leader, total, count, when)."""

        x: int = 0
        sums: list[tuple[int, str, int, int, float]] = msgspec.field(default_factory=list)

    def __init__(self, clusters: Sequence[Sequence[str]], deadline_s: float | None = None) -> None:
        super().__init__(fl.Own("server", RANDOMNESS))
        self.clusters, self.deadline_s = clusters, deadline_s
        self.state = self.State()

    def leader(self, cluster: Sequence[str], r: int) -> str:
        return cluster[r % len(cluster)]

    def round(self, r: int) -> fl.Steps[Any]:
        asks = {self.leader(c, r): Lead(r, ",".join(c), self.state.x) for c in self.clusters}

        def fold(name: str, summed: Summed) -> None:
            self.state.sums.append((summed.round, name, summed.total, summed.count, self.now_s))

        answers = yield from fl.for_each(asks, Summed, fold, deadline_s=self.deadline_s)
        self.state.x += 1
        return answers.got, dict(answers.missing)


@dataclass
class Net(Links):
    """A leg takes a second. dies: parties that drop every message of a round that doesn't come from the server.

    leaves: the second from which a party is away.
    """

    dies: set[tuple[str, int]] = field(default_factory=set)
    away: set[tuple[str, int]] = field(default_factory=set)
    parties: int = 0
    legs: Mapping[str, float] = field(default_factory=dict)
    leaves: Mapping[str, float] = field(default_factory=dict)

    def there(self, party: str, round: int, at_s: float) -> bool:
        return at_s < self.leaves.get(party, at_s + 1)

    def down_s(self, party: str, size: int) -> float:
        return self.legs.get(party, 1.0)

    def up_s(self, party: str, size: int) -> float:
        return self.legs.get(party, 1.0)

    def work_s(self, party: str, cost: fl.Cost) -> float:
        return cost.crypto_s

    def rounds(self, party: str, round: int) -> int:
        return 0

    def fate(self, party: str, round: int, request: int) -> str:
        """The server is the first of the parties; the number of a request tells its sender."""
        if (party, round) in self.away:
            return "offline"
        return "dropped" if (party, round) in self.dies and request % self.parties else "ok"


CLUSTERS = (("c0", "c1", "c2"), ("c3", "c4"))


def two_levels(
    clients: Sequence[Client] | None = None,
    *,
    net: Net | None = None,
    chunk: int = 10,
    deadline_s: float | None = None,
    others: Sequence[fl.Party] = (),
    server: Any = None,
) -> tuple[Any, LocalTransport]:
    """Two clusters of three and two clients; everything takes whole seconds."""
    clients = clients or [Client(i) for i in range(5)]
    server = server or Server(CLUSTERS, deadline_s)
    net = net or Net()
    parties = {party.name: party for party in (server, *clients, *others)}
    net.parties = len(parties)
    transport = LocalTransport(
        parties, "server", Doubling(chunk), keyring=KEYS, links=net, transcript=Transcript(1 << 30), spool_bytes=100
    )
    return server, transport
