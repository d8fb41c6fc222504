"""Large packets over slow lines: they take as long as the line, and little travels twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("nats", reason="the extra deploy is not installed")

from nats_rig import Rig

from benchmarks.lines import Line, Took, sent
from coterie.deploy import nats as engine_over_nats
from coterie.deploy import nats_parts
from coterie.deploy.nats import NatsEngine
from coterie.deploy.nats_link import ANSWER_S

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
        made._link.stream = made._link.client.jetstream(timeout=ANSWER_S / self.by)
        self.rig.engines.append(made)
        return made


def scene(folder: Path, at: pytest.MonkeyPatch, by: int, mbit_s: float = MBIT_S) -> Iterator[Scene]:
    part = nats_parts.PART // by
    at.setattr(nats_parts, "PART", part)
    at.setattr(engine_over_nats, "PART", part)
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
    return sent([of.engine("hub", slow=True)], recipients, size, of.line, lambda: of.line.up, 60 / of.by)


def as_fast_as_the_line(took: Took, count: int) -> None:
    """All has come, and not much later than the line needs for it."""
    assert took.came == count, took
    assert took.seconds < 2.5 * took.line_s, took


def test_five_parties_on_one_slow_line_send_large_packets(small: Scene) -> None:
    as_fast_as_the_line(five_send(small), 5)


@pytest.mark.long
def test_a_hub_on_a_slow_line_sends_to_many(small: Scene) -> None:
    as_fast_as_the_line(hub_sends_to_many(small), len(CLIENTS))


def test_a_packet_of_several_parts_comes_in_few_round_trips(far: Scene) -> None:
    """32 parts: the recipient does not ask for each by itself."""
    hub, one, line = far.engine("hub", slow=False), far.engine("client/1", slow=True), far.line
    took = sent([hub], [one], 32 * nats_parts.PART, line, lambda: line.down, 20)
    assert took.came == 1
    assert took.seconds < 16 * 2 * line.latency_s


@pytest.mark.long
def test_five_parties_send_10_mb_each_at_20_mbit_a_second(whole: Scene) -> None:
    as_fast_as_the_line(five_send(whole), 5)


@pytest.mark.long
def test_a_hub_sends_2_mb_to_each_of_24_at_20_mbit_a_second(whole: Scene) -> None:
    as_fast_as_the_line(hub_sends_to_many(whole), len(CLIENTS))
