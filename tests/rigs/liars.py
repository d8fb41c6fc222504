"""A federation of nodes whose members, hub or broker lie, for tests: each with the keys that it really has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from federation import planted, rig
from nodes import Nodes, nodes

from coterie.deploy.logs import NodeObserver
from coterie.deploy.node import Node
from coterie.deploy.packets import Letter, Packet, wrap
from coterie.protocol import codec, state
from coterie.protocol.messages import Message
from coterie.runs import registry
from coterie.runs.keyring import PartyKeys
from coterie.transport.envelope import Envelope

SIZE, ROUNDS = 24, 2
TARGETS = planted([0, 0, 1, 1], SIZE)
SYSTEM = registry.get("fedcaprivacy")
HUB, CENTRE, CSP, CLIENT, OTHER = "business_server", "key_centre", "csp", "client/0", "client/1"


def apart(**options: Any) -> Nodes:
    made = rig(SYSTEM, TARGETS, delta=0.0, clusters=2, schedule="always")
    fresh = nodes(made, "fedcaprivacy", TARGETS, **options)
    return fresh


class Reasons(NodeObserver):
    """Keeps why things were refused."""

    def __init__(self) -> None:
        self.why: list[str] = []

    def refused(self, envelope: Envelope, role: str, reason: str) -> None:
        self.why.append(reason)

    def dropped(self, src: str, kind: str, reason: str) -> None:
        self.why.append(reason)


@dataclass
class Scene:
    """A federation after some rounds, with one party's node at work again. Others send what they want."""

    all: Nodes
    node: Node
    reasons: Reasons
    number: int = 1 << 50

    @property
    def name(self) -> str:
        return self.node.name

    def keys(self, name: str) -> PartyKeys:
        return self.all.keys(name)

    def put(self, src: str, body: bytes) -> None:
        """Bytes in the party's box, from a sender as the engine names it."""
        self.number += 1
        self.all.exchange.put(src, self.name, body, f"{src}.{self.number}")

    def packet(self, src: str, packet: Packet) -> None:
        """A packet that this sender wraps with its own keys."""
        self.number += 1
        self.put(src, wrap(self.keys(src), src, self.name, self.number, packet))

    def letter(self, sender: str, msg: Message, **changes: Any) -> None:
        """A message in a packet that this sender signs with its own keys. changes: what its envelope claims falsely."""
        keys, kind = self.keys(sender), type(msg).__name__
        frame = codec.encode(msg)
        sealed = HUB not in (sender, self.name)
        self.number += 1
        weight = codec.message_weight(msg, len(frame)) + keys.overhead * sealed
        era = self.node.kept.era or (0, 0)
        bare = Envelope(
            sender, self.name, self.all.roles[sender][0], kind, keys.session, *era, self.number, 0, sealed, weight
        )
        bare = msgspec.structs.replace(bare, **changes)
        digest = codec.frame_digest(frame)
        self.packet(sender, Letter(msgspec.structs.replace(bare, digest=digest), frame, era))

    def take(self) -> int:
        """Let the node take all that is in its box; gives how much it has refused then."""
        before = sum(self.node.queue.traffic.refused.values())
        while self.all.exchange.waiting(self.name) > len(self.node.queue.held):
            self.node.turn()
        return sum(self.node.queue.traffic.refused.values()) - before

    def state(self) -> bytes:
        """The party's state and secret."""
        party = self.node.member.party
        return state.dump({"state": party.state, "secret": party.secret})
