"""The wire between parties: numbers, seals, times, counts, loses and, under attack, replaces what they say."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from coterie.protocol.errors import RunError
from coterie.protocol.hollow import weighs
from coterie.protocol.party import Party
from coterie.transport.envelope import START, Envelope, Instant, Intercept, Sealer, arrival
from coterie.transport.handlers import Letter
from coterie.transport.links import Links
from coterie.transport.meter import Meter
from coterie.transport.transcript import Seen, Transcript


@lru_cache(maxsize=1)
def digest(frame: bytes) -> bytes:
    """32 bytes that stand for a frame; those of a broadcast, the same object again and again, are computed once."""
    return hashlib.sha256(frame).digest()


class Wire:
    """A star around the hub. What a party says to itself is on no wire: it takes no time and no bytes."""

    def __init__(
        self,
        parties: Mapping[str, Party],
        hub: Party,
        links: Links,
        sealer: Sealer | None,
        transcript: Transcript | None,
    ) -> None:
        self.parties = parties
        self.hub = hub
        self.links = links
        self.sealer = sealer
        self.transcript = transcript
        self.numbers: dict[str, int] = dict.fromkeys(parties, 0)  # last used, by sender
        self.last: dict[tuple[str, str], Instant] = {}  # arrival on each link: it keeps the order
        self._place = {name: place for place, name in enumerate(parties)}
        self._sent: dict[tuple[str, str, bytes], int] = {}  # numbers of what an attacker may have captured

    def address(self, src: str, letter: Letter, answers: int, round: int) -> tuple[Envelope, bytes]:
        """Number a message, and seal it if the hub would see it."""
        frame, sealed = letter.frame, False
        if self.hub.name not in (src, letter.dst) and src != letter.dst:
            if self.sealer is None:
                raise RunError(f"{src} writes to {letter.dst} through {self.hub.name}: the transport needs a sealer")
            frame, sealed = self.sealer.seal(src, letter.dst, frame), True
        self.numbers[src] += 1
        return Envelope(self.numbers[src], src, letter.dst, letter.kind, answers, round, 0.0, 0, sealed), frame

    def transmit(
        self, envelope: Envelope, frame: bytes, sent: Instant, meter: Meter, intercept: Intercept | None
    ) -> tuple[list[tuple[Envelope, bytes]], str | None]:
        """What arrives of a numbered message, and when; and if it does not arrive itself, why."""
        src, dst, kind, size = envelope.src, envelope.dst, envelope.kind, weighs(frame)
        hub, link = self.hub.name, (src, dst)
        up_s = 0.0 if src in (hub, dst) else self.links.up_s(src, size)
        down_s = 0.0 if dst in (hub, src) else self.links.down_s(dst, size)
        fate = "ok" if dst in (hub, src) else self.links.fate(dst, envelope.round, self._request(envelope))
        legs = [] if src == dst else [(src, hub), (hub, dst)] if envelope.sealed else [link]
        for a, b in legs[:-1] if fate == "offline" else legs:
            meter.moved(self.parties[a].role, self.parties[b].role, kind, size)
        if envelope.sealed and self.transcript is not None:
            seen = Seen(sent[0] + up_s, envelope.round, src, dst, kind, size, None)
            self.transcript.record(hub, self.hub.role, seen, 0)
        if fate != "ok":
            return [], fate
        arrives = self.last[link] = max(arrival(sent, up_s + down_s), self.last.get(link, START))
        envelope = msgspec.structs.replace(envelope, arrives_s=arrives[0], step=arrives[1])
        if intercept is None or src == dst:
            return [(envelope, frame)], None
        self._sent[*link, digest(frame)] = envelope.number
        frames = [(self._sent.get((*link, digest(f)), envelope.number), f) for f in intercept(envelope, frame)]
        lost = all(number != envelope.number for number, _ in frames)
        copies = [(msgspec.structs.replace(envelope, number=number), f) for number, f in frames]
        return copies, "lost on the way" if lost else None

    def _request(self, envelope: Envelope) -> int:
        """A number that no other message has, and that doesn't depend on the order in which handlers are run."""
        return envelope.number * len(self._place) + self._place[envelope.src]
