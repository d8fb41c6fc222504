"""The hub's side of Flower: which node is which party, what is called when, and packets from one site to another.

It holds packets that are sealed to others and cannot read them. It knows no Flower: the app beside it tells which nodes
there are and carries calls and answers (``flower_app.py``).
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from coterie.deploy import logs
from coterie.deploy.flower_queue import Queue
from coterie.deploy.flower_words import NONCE_BYTES, Answer, Call, Carried, Ref, read_answer, write
from coterie.protocol.errors import PeerError
from coterie.transport.envelope import Keyring

CALL_S = 60.0
"""How long a party may work before it answers a call. Then it is called again."""
IDLE_S = 60.0
"""How often a party is called that nothing waits for, since it may have something to send."""
ROLL_S = 120.0
"""For so long after the app has come a party counts as connected that was reached before, and not yet again."""
CALL_BYTES = 32 << 20
"""A call and an answer have packets of so many bytes in all, or one packet."""
_AGAIN_S, _AWAY_S = 5.0, 20.0
"""After how long a node that gave no answer is called again, at first and later."""


@dataclass
class _Node:
    """A Flower node. name: the party that it has proven to be.  nonce: of the call under way.  owed: packets of it that
    are stored, and it does not know yet.  missed: calls in a row that got no answer.
    """

    due_s: float
    name: str = ""
    nonce: bytes = b""
    owed: set[Ref] = field(default_factory=set)
    missed: int = 0


class Switch:
    """Calls nodes for the hub. One call is under way to a node at a time.

    hub: its name.  parties: all names.  keyring: the keys that count now, with the hub's own.  refused: counts, by
    reason, what a node has done that it may not.
    """

    def __init__(
        self,
        queue: Queue,
        hub: str,
        parties: Collection[str],
        keyring: Callable[[], Keyring],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.refused = Counter[str]()
        self.leaving = False
        self._queue, self._hub, self._sites, self._keyring = queue, hub, frozenset(parties) - {hub}, keyring
        self._clock = clock
        self._nodes: dict[int, _Node] = {}
        self._met = set(queue.met())
        self._began_s: float | None = None

    def began(self) -> None:
        """The app has come, or come back: all nodes have to prove themselves again."""
        self._nodes.clear()
        self._began_s = self._clock()

    def present(self) -> frozenset[str]:
        """The parties whose nodes answer. Those that were reached before a restart count until they had time to answer.

        A party that was never reached does not, so that the first round begins when it can.
        """
        known = {one.name: one.missed == 0 for one in list(self._nodes.values()) if one.name}
        early = self._began_s is None or self._clock() < self._began_s + ROLL_S
        return frozenset(name for name in self._sites if known.get(name, early and name in self._met))

    def settled(self) -> bool:
        """Whether nothing is under way, and nothing waits for a party that is there."""
        here = [one for one in list(self._nodes.values()) if one.name and not one.missed]
        return not any(one.nonce or one.owed or self._queue.waits(to=one.name) for one in here)

    def turn(
        self, online: Collection[int], called: Collection[int], answers: Iterable[tuple[int, bytes | None]]
    ) -> list[tuple[int, bytes]]:
        """Take answers, and say what is to be called next.

        online: nodes that Flower knows to be there.  called: those that a call is under way to.
        """
        now_s = self._clock()
        for node in [node for node in self._nodes if node not in online]:
            del self._nodes[node]
        for node in online:
            self._nodes.setdefault(node, _Node(now_s))
        for node, data in answers:
            one = self._nodes.get(node)
            if one is not None and one.nonce:
                self._answered(node, one, data, now_s)
        due = [node for node, one in self._nodes.items() if node not in called and self._is_due(one, now_s)]
        return [(node, self._call(node, self._nodes[node])) for node in due]

    def _is_due(self, one: _Node, now_s: float) -> bool:
        if one.nonce or one.missed:
            return not one.nonce and now_s >= one.due_s
        urgent = bool(one.name) and (self._queue.waits(to=one.name) or (self.leaving and bool(one.owed)))
        return urgent or now_s >= one.due_s

    def _call(self, node: int, one: _Node) -> bytes:
        one.nonce = os.urandom(NONCE_BYTES)
        packets = self._queue.some(CALL_BYTES, to=one.name) if one.name else []
        carried = [Carried(each.src, each.dst, each.id, each.body) for each in packets]
        return write(self._keyring(), self._hub, node, Call(one.nonce, one.name, CALL_S, sorted(one.owed), carried))

    def _answered(self, node: int, one: _Node, data: bytes | None, now_s: float) -> None:
        nonce, one.nonce = one.nonce, b""
        try:
            answer = None if data is None else read_answer(self._keyring(), node, nonce, data)
            if answer is not None and answer.name not in self._sites:
                raise PeerError("no party that a site may be")
        except PeerError as error:
            self.refused["an answer that is not genuine"] += 1
            logs.refusal("engine", one.name, str(error))
            answer = None
        if answer is None:
            one.missed += 1
            again_s = min(_AWAY_S, _AGAIN_S * one.missed)
            one.due_s = now_s + again_s
            if data is None:
                logs.refusal("engine", one.name, f"Flower's node {node} gave no answer: called again in {again_s:g} s")
            return
        one.missed, one.owed = 0, set()
        one.due_s = now_s if answer.busy else now_s + IDLE_S
        if one.name != answer.name:
            former = [other for other in self._nodes.values() if other.name == answer.name]
            for other in former:  # its node before a restart, which Flower has not missed yet
                other.name, other.due_s = "", now_s + IDLE_S
            one.name = answer.name
            self._met.add(one.name)
            self._queue.meet(one.name)
            if not former:
                logs.event("reached", src=one.name, node=str(node))
        self._take(one, answer)

    def _take(self, one: _Node, answer: Answer) -> None:
        self._queue.stored(ref for ref in answer.stored if ref[1] == answer.name)
        full: set[str] = set()
        for packet in answer.packets:
            if packet.src != answer.name or packet.dst == answer.name or packet.dst not in {self._hub, *self._sites}:
                self.refused["a packet from or to another"] += 1
                continue
            if packet.dst not in full and self._queue.put(packet.src, packet.dst, packet.id, packet.body):
                one.owed.add((packet.src, packet.dst, packet.id))
            else:
                full.add(packet.dst)  # so that none overtakes it
