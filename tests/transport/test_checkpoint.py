"""A run that is stopped after any round and built anew from its checkpoint is the run that was never stopped."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from transport_toys import Client, Doubling, Go, Server, Table, Up, federation, wired

import coterie.method as fl
from coterie.transport.local import LocalTransport
from coterie.transport.wire import Snapshot

NAMES = ("c0", "c1", "c2", "c3", "c4")
ROUNDS = 6


@fl.message(src="client", dst="client")
class Gossip(fl.Message, frozen=True):
    """A client's model for the next client."""

    w: bytes


class Member(Client, role="client"):
    """Draws, keeps a model, and tells its neighbour; everything that a resumed run could get wrong."""

    class State(msgspec.Struct):
        n: int = 0
        w: Any = None
        heard: dict[str, bytes] = msgspec.field(default_factory=dict)
        log: list[tuple[int, float]] = msgspec.field(default_factory=list)

    def __init__(self, name: str, plus: float, work_s: float, randomness: fl.Randomness) -> None:
        super().__init__(name, plus, work_s)
        self.randomness = randomness

    @fl.on(Go, Client.cost)
    def go(self, msg: Go, src: str) -> fl.Work[tuple[fl.To, ...]]:
        noise = self.rng("noise", msg.round).normal(size=2) + self.secrets("mask", msg.round).permutation(2)
        twice = yield self.state.n
        self.state.n += 1
        self.state.w = (msg.w + self.plus + noise + twice + len(self.state.heard)).astype(np.float32)
        self.state.log.append((msg.round, self.now_s))
        neighbour = NAMES[(NAMES.index(self.name) + 1) % len(NAMES)]
        return fl.To("server", Up(msg.round, self.state.w)), fl.To(neighbour, Gossip(self.state.w.tobytes()))

    @fl.on(Gossip)
    def gossip(self, msg: Gossip, src: str) -> None:
        self.state.heard[f"{src} {self.state.n}"] = msg.w


class Stale(Server, role="server"):
    def round(self, r: int) -> fl.Steps[Any]:
        total, ages = np.zeros(2), []

        def fold(name: str, up: Up) -> None:
            total[:] = total + up.w / (1 + r - up.round)
            ages.append((name, up.round, self.now_s))

        requests = dict.fromkeys(NAMES, Go(r, self.state.w))
        answers = yield from fl.for_each(requests, Up, fold, deadline_s=2.0)
        yield from fl.take(Up, fold)
        self.state.w = (self.state.w + total / len(NAMES)).astype(np.float32)
        return ages, answers.got, dict(answers.missing)


def build(chunk: int = 2) -> tuple[dict[str, fl.Party], LocalTransport]:
    randomness = fl.Randomness(3, emulated=True)
    clients = [Member(name, i, 0.7 * i * i, randomness) for i, name in enumerate(NAMES)]
    server = Stale(NAMES)
    delays = {name: 0.1 * (1 + i) for i, name in enumerate(NAMES)}
    links = Table(delays, delays, {("c1", 3): "offline", ("c0", 4): "dropped"}, {("c2", 2): 2, ("c0", 5): 1})
    transport = wired(server, *clients, effects=Doubling(chunk), links=links, spool_bytes=100)
    return dict(transport.parties), transport


def rounds(parties: dict[str, fl.Party], transport: LocalTransport, first: int, last: int) -> list[Any]:
    lines = []
    for r in range(first, last + 1):
        result = transport.drive(parties["server"].round(r), r)  # type: ignore[attr-defined]
        meter = transport.meter
        lines.append((result, transport.clock_s, meter.bytes_up, meter.bytes_down, meter.late, dict(meter.lost)))
    return lines


def seen(parties: dict[str, fl.Party]) -> dict[str, bytes]:
    return {name: fl.state.dump({name: party.state}) for name, party in parties.items()}


@pytest.fixture(scope="module")
def undisturbed() -> tuple[list[Any], dict[str, bytes], int]:
    parties, transport = build()
    lines = rounds(parties, transport, 1, ROUNDS)
    pending = len(transport.snapshot().parcels)
    transport.close()
    return lines, seen(parties), pending


@pytest.mark.parametrize("stop", range(ROUNDS))
def test_resumed_after_any_round_it_is_the_same_run(undisturbed: Any, stop: int) -> None:
    """Parties, transport and all are made again; only bytes pass from the one to the other."""
    parties, transport = build()
    lines = rounds(parties, transport, 1, stop)
    saved = msgspec.msgpack.encode(transport.snapshot()), fl.state.dump({name: p.state for name, p in parties.items()})
    frames = list(transport.frames())
    transport.close()
    parties, transport = build()
    for name, loaded in fl.state.load(saved[1], {n: type(p.state) for n, p in parties.items()}).items():
        parties[name].state = loaded
    transport.restore(msgspec.msgpack.decode(saved[0], type=Snapshot), iter(frames))
    lines += rounds(parties, transport, stop + 1, ROUNDS)
    pending = len(transport.snapshot().parcels)
    transport.close()
    assert lines == undisturbed[0]
    assert seen(parties) == undisturbed[1]
    assert pending == undisturbed[2]


def test_the_toy_has_what_could_go_wrong(undisturbed: Any) -> None:
    """Late ones of several rounds, an offline and a dropped one; requests and answers under way between rounds."""
    parties, transport = build()
    under_way = []
    for r in range(1, ROUNDS + 1):
        rounds(parties, transport, r, r)
        under_way += [(p.envelope.kind, r - p.envelope.round) for p in transport.snapshot().parcels]
    transport.close()
    assert set(under_way) >= {("Go", 0), ("Go", 2), ("Up", 1), ("Gossip", 1)}
    lines = undisturbed[0]
    ages = {(name, r - sent) for r, ((ages, _, _), *_) in enumerate(lines, 1) for name, sent, _ in ages}
    assert {age for _, age in ages} >= {0, 1, 2}
    assert lines[2][0][2]["c1"] == "offline"
    assert lines[3][0][2]["c0"] == "dropped"


def test_a_restored_transport_has_the_same_snapshot() -> None:
    """Numbers, links, busy devices and all that is under way, equal frames once. Taking it changes nothing."""
    parties, transport = build()
    rounds(parties, transport, 1, 3)
    first, frames = transport.snapshot(), list(transport.frames())
    assert first == transport.snapshot()
    assert first.sizes == [len(frame) for frame in frames]
    assert len(set(frames)) == len(frames) < len(first.parcels)
    one = msgspec.msgpack.encode(first)
    other = build()[1]
    other.restore(msgspec.msgpack.decode(one, type=Snapshot), transport.frames())
    assert msgspec.msgpack.encode(other.snapshot()) == one
    assert list(other.frames()) == list(transport.frames())
    taken = {(src, dst): n for dst, numbers in other.snapshot().numbers.items() for src, n in numbers.taken.items()}
    assert {link[:2] for link in other.snapshot().links} - taken.keys()  # a link whose first message is under way
    assert max(taken.values()) > 3
    transport.close()
    other.close()


def test_a_checkpoint_of_another_federation_is_refused() -> None:
    _, transport = federation([Client("x")])
    _, other = federation([Client("y")])
    with pytest.raises(fl.UserError, match="another federation"):
        other.restore(transport.snapshot(), transport.frames())
