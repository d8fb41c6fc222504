"""Large packets over slow lines: they take as long as the line, and little travels twice."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("nats", reason="the extra deploy is not installed")

from nats_rig import Rig

from benchmarks.lines import Line, Took, sent
from coterie.deploy import nats as engine_over_nats
from coterie.deploy import nats_link, nats_parts
from coterie.deploy.engine import OutgoingPacket
from coterie.deploy.nats import NatsEngine
from coterie.deploy.nats_link import ANSWER_S, CALM_S, LEAST, MOST, Window

MBIT_S, LATENCY_S, SIZE, PUSH_S = 20.0, 0.02, 10_000_000, 10.0
CLIENTS = tuple(f"client/{number}" for number in range(1, 25))


@dataclass
class Scene:
    """A line and a server. All times and sizes are divided by ``by``, so that it does the same in less time."""

    rig: Rig
    line: Line
    by: int

    def engine(self, name: str, *, slow: bool) -> NatsEngine:
        """slow: on the line; else beside the server."""
        urls = [self.line.url] if slow else self.rig.urls
        made = NatsEngine(name, urls, self.rig.tls[name], self.rig.parties, push_s=PUSH_S / self.by)
        self.rig.engines.append(made)
        return made


def scene(folder: Path, at: pytest.MonkeyPatch, by: int, mbit_s: float = MBIT_S) -> Iterator[Scene]:
    part = nats_parts.PART // by
    at.setattr(nats_parts, "PART", part)
    at.setattr(engine_over_nats, "PART", part)
    at.setattr(engine_over_nats, "ANSWER_S", ANSWER_S / by)
    at.setattr(nats_link, "CALM_S", CALM_S / by)
    with Rig(folder, ("hub", *CLIENTS)) as made, Line(made.server.listen.port, mbit_s, LATENCY_S / by) as line:
        yield Scene(made, line, by)
        for engine in made.engines:
            engine.close()


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    yield from scene(tmp_path, monkeypatch, 10)


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """A fast line with a long way."""
    for made in scene(tmp_path, monkeypatch, 1, mbit_s=1000):
        made.line.latency_s = 0.1
        yield made


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    yield from scene(tmp_path, monkeypatch, 1)


def five_send(of: Scene) -> Took:
    senders = [of.engine(name, slow=True) for name in CLIENTS[:5]]
    return sent(senders, [of.engine("hub", slow=False)], SIZE // of.by, of.line, lambda: of.line.up, 60 / of.by)


def hub_sends_to_many(of: Scene) -> Took:
    recipients = [of.engine(name, slow=False) for name in CLIENTS]
    size = SIZE // 5 // of.by
    return sent([of.engine("hub", slow=True)], recipients, size, of.line, lambda: of.line.up, 60)


def as_fast_as_the_line(of: Scene, took: Took, count: int) -> None:
    """All has come, not much later than the line needs for it, over the first connection of each, and once."""
    assert took.came == count, took
    assert took.seconds < 2.5 * took.line_s + 20 * of.line.latency_s, took
    assert took.wire_mb < 1.1 * took.line_s * of.line.bytes_s / 1e6 + 0.1, took
    assert {one._link.connections for one in of.rig.engines} == {1}


def test_five_parties_on_one_slow_line_send_large_packets(small: Scene) -> None:
    as_fast_as_the_line(small, five_send(small), 5)


@pytest.mark.long
def test_a_hub_on_a_slow_line_sends_to_many(small: Scene) -> None:
    as_fast_as_the_line(small, hub_sends_to_many(small), len(CLIENTS))


def test_a_packet_of_several_parts_comes_in_few_round_trips(far: Scene) -> None:
    """64 parts, with a window that doubles in each round trip, and then follows the line."""
    hub, one, line = far.engine("hub", slow=False), far.engine("client/1", slow=True), far.line
    for sender, recipient, carried in ((hub, one, lambda: line.down), (one, hub, lambda: line.up)):
        took = sent([sender], [recipient], 64 * nats_parts.PART, line, carried, 20)
        assert took.came == 1
        assert took.seconds < 10 * 2 * line.latency_s, "a window that grows by one in each takes 12"


def test_a_short_packet_does_not_wait_for_a_long_one_to_another_party(small: Scene) -> None:
    hub, short = small.engine("hub", slow=True), small.engine("client/2", slow=False)
    packets = [
        OutgoingPacket("client/1", "long", bytes(4 * SIZE // small.by)),
        OutgoingPacket("client/2", "short", bytes(10**5)),
    ]
    came = list[float]()

    def take() -> None:
        assert short.pull(30) is not None
        came.append(time.monotonic())

    taking = threading.Thread(target=take)
    taking.start()
    began = time.monotonic()
    assert hub.push_all(packets) == [None, None]
    seconds = time.monotonic() - began
    taking.join()
    assert came[0] - began < seconds / 2


def test_a_line_that_is_cut_costs_the_parts_that_were_under_way(small: Scene) -> None:
    one, hub, line = small.engine("client/1", slow=True), small.engine("hub", slow=False), small.line
    one._push_s = PUSH_S
    threading.Timer(8 * SIZE / small.by / line.bytes_s / 16, line.cut).start()
    took = sent([one], [hub], SIZE // small.by, line, lambda: line.up, 60)
    assert took.came == 1
    assert one._link.connections == 2
    assert took.wire_mb < 1.5 * SIZE / small.by / 1e6


@pytest.mark.long
def test_five_parties_send_10_mb_each_at_20_mbit_a_second(whole: Scene) -> None:
    as_fast_as_the_line(whole, five_send(whole), 5)


@pytest.mark.long
def test_a_hub_sends_2_mb_to_each_of_24_at_20_mbit_a_second(whole: Scene) -> None:
    as_fast_as_the_line(whole, hub_sends_to_many(whole), len(CLIENTS))


@pytest.mark.long
@pytest.mark.parametrize("up", [True, False])
@pytest.mark.parametrize("latency_s", [0.025, 0.2])
@pytest.mark.parametrize("mbit_s", [0.3, 1.0, 5.0, 20.0])
def test_a_party_on_a_slow_line_that_loses_packets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mbit_s: float, latency_s: float, up: bool
) -> None:
    """1 % of TCP's packets of 1500 bytes are lost, so 10 % of the line's chunks come a round trip late."""
    for made in scene(tmp_path, monkeypatch, 1, mbit_s):
        line = made.line
        line.latency_s, line.stalls = latency_s, 0.1
        one, hub = made.engine("client/1", slow=True), made.engine("hub", slow=False)
        size = int(max(500_000, 15 * line.bytes_s))
        sender, recipient, way = (one, hub, "up") if up else (hub, one, "down")
        took = sent([sender], [recipient], size, line, partial(getattr, line, way), 120)
        as_fast_as_the_line(made, took, 1)


# -- the window, on a line that a few lines of arithmetic are --


def on_a_line(window: Window, parts_s: float, round_trip_s: float, until_s: float) -> float:
    """Parts each second, in the second half of the time, over a line that takes so many."""
    free_s, done, under_way = 0.0, 0, list[tuple[float, float]]()
    now_s = 0.0
    while now_s < until_s:
        while len(under_way) < window.size:
            free_s = max(now_s, free_s) + 1 / parts_s
            under_way.append((free_s + round_trip_s, now_s))
        now_s, sent_s = under_way.pop(0)
        window.answered(sent_s, now_s)
        done += now_s > until_s / 2
    return done / (until_s / 2)


@pytest.mark.parametrize("round_trip_s", [0.002, 0.05, 0.4])
@pytest.mark.parametrize("parts_s", [0.25, 1, 5, 20, 1000])
def test_a_window_follows_the_line(parts_s: float, round_trip_s: float) -> None:
    window = Window()
    found = on_a_line(window, parts_s, round_trip_s, 100.0)
    assert found > 0.9 * min(parts_s, MOST / (round_trip_s + 1 / parts_s)) - 0.05
    assert LEAST <= window.size <= min(MOST, max(LEAST, parts_s * (3 * CALM_S + round_trip_s) + 2))


def test_a_window_that_was_large_shrinks_when_the_line_gets_slow() -> None:
    window = Window()
    on_a_line(window, 1000, 0.05, 10)
    assert window.size == MOST
    on_a_line(window, 2, 0.05, 300)
    assert window.size <= 5


def test_room_is_given_in_turn_and_none_is_lost_with_those_that_give_up() -> None:
    async def play() -> list[int]:
        window, came = Window(), list[int]()

        async def enter(number: int) -> None:
            await window.enter()
            came.append(number)

        tasks = [asyncio.ensure_future(enter(number)) for number in range(8)]
        await asyncio.sleep(0)
        window.leave()  # the third has room,
        tasks[2].cancel()  # and gives up before it knows
        tasks[4].cancel()
        for _ in range(5):
            await asyncio.sleep(0)
            window.leave()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert window.used == 0
        return came

    assert asyncio.run(play()) == [0, 1, 3, 5, 6, 7]
