"""A slow line, and what large packets take over it: a TCP proxy on loopback with a rate and a latency.

``python -m benchmarks.lines docs/engines/lines.json`` (some four minutes). The parties on the line send to, or hear
from, one that is beside the server. All that they send is random, so nothing on the way can shorten it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.engines import HUB, deployment
from coterie.deploy.engine import OutgoingPacket
from coterie.deploy.nats import NatsEngine
from coterie.record.provenance import write_record
from coterie.runs import RunConfig, registry, run

CHUNK = 1 << 14
TICK_S = 0.002
"""No sleep is shorter, or sleeping would be the line."""
HELD = 1024
"""So many chunks of one connection and direction are on the line at the same time. What follows waits at its sender."""


class Line:
    """Relays TCP to a port of this machine. All connections share the line, each direction by itself.

    mbit_s: of one direction.  latency_s: from one end to the other.  stalls: this share of the chunks comes a round
    trip late, and what follows with it, as after a packet that was lost.  up, down: bytes that were relayed to and from
    the server. As a context manager it is open until the end.
    """

    def __init__(self, port: int, mbit_s: float, latency_s: float, stalls: float = 0.0) -> None:
        self.up = self.down = 0
        self.stalls, self._dice = stalls, random.Random(1)
        self._open: set[asyncio.StreamWriter] = set()
        self._target, self.bytes_s, self.latency_s = port, mbit_s * 1e6 / 8, latency_s
        self._free_s = {"up": 0.0, "down": 0.0}  # by direction, when the line is free again
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * CHUNK)  # else the kernel would be a long line
        self.url = f"nats://127.0.0.1:{listening.getsockname()[1]}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="line", daemon=True)
        self._thread.start()
        starting = asyncio.start_server(self._relay, sock=listening, limit=CHUNK)
        asyncio.run_coroutine_threadsafe(starting, self._loop).result()

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *error: object) -> None:
        async def end() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """End all connections."""
        for writer in list(self._open):
            self._loop.call_soon_threadsafe(writer.transport.abort)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target, limit=CHUNK)
            ways = (self._way("up", reader, back), self._way("down", there, writer))
            await asyncio.wait([asyncio.ensure_future(way) for way in ways], return_when=asyncio.FIRST_COMPLETED)
            back.close()
        except OSError:
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _way(self, direction: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction of a connection, until it ends."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(HELD)
        arriving = asyncio.ensure_future(self._arrive(direction, under_way, writer))
        try:
            while data := await reader.read(CHUNK):
                now = time.monotonic()
                leaves_s = max(now, self._free_s[direction]) + len(data) / self.bytes_s
                self._free_s[direction] = leaves_s
                if leaves_s - now > TICK_S:
                    await asyncio.sleep(leaves_s - now)
                late_s = 2 * self.latency_s if self._dice.random() < self.stalls else 0.0
                await under_way.put((leaves_s + self.latency_s + late_s, data))
            await under_way.join()
        finally:
            arriving.cancel()

    async def _arrive(
        self, direction: str, under_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        while True:
            at_s, data = await under_way.get()
            if (left_s := at_s - time.monotonic()) > TICK_S:
                await asyncio.sleep(left_s)
            writer.write(data)
            await writer.drain()
            setattr(self, direction, getattr(self, direction) + len(data))
            under_way.task_done()


class Took(NamedTuple):
    """What packets took. seconds: until all had come, or until it was given up.  came: how many had.  wire_mb: bytes
    that the line has carried towards the recipients, in MB.  line_s: what the line needs for the packets alone.
    """

    seconds: float
    came: int
    wire_mb: float
    line_s: float


def sent(
    senders: Sequence[NatsEngine],
    recipients: Sequence[NatsEngine],
    size: int,
    line: Line,
    carried: Callable[[], int],
    most_s: float,
) -> Took:
    """Each sender sends a packet of ``size`` bytes to each recipient, all at the same time. carried: bytes of the line
    in this direction so far.  A sender whose packets are not stored tries again, as a node does.
    """
    ends_s, count, began, before = (
        time.monotonic() + most_s,
        len(senders) * len(recipients),
        time.monotonic(),
        carried(),
    )
    came: list[float] = []

    def send(engine: NatsEngine) -> None:
        left = [OutgoingPacket(to.name, f"{time.monotonic()}", os.urandom(size)) for to in recipients]
        while left and time.monotonic() < ends_s:
            left = [one for one, problem in zip(left, engine.push_all(left), strict=True) if problem is not None]

    def take(engine: NatsEngine) -> None:
        left = len(senders)
        while left and time.monotonic() < ends_s:
            if (delivery := engine.pull(0.1)) is not None:
                assert len(delivery.body) == size
                delivery.done()
                came.append(time.monotonic() - began)
                left -= 1

    threads = [threading.Thread(target=send, args=(one,)) for one in senders]
    threads += [threading.Thread(target=take, args=(one,)) for one in recipients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = max(came) if len(came) == count else time.monotonic() - began
    return Took(seconds, len(came), (carried() - before) / 1e6, count * size / line.bytes_s)


CLIENTS = tuple(f"client/{number}" for number in range(1, 25))
LATENCY_S = 0.02


def case(mbit_s: float, up: Sequence[str], down: Sequence[str], size: int, most_s: float = 120.0) -> dict[str, Any]:
    """Parties on a slow line send to the hub (up); or the hub, on a slow line, sends to parties (down)."""
    with deployment(parties=(HUB, *up, *down)) as made, Line(made.server.listen.port, mbit_s, LATENCY_S) as line:
        near = [made.engine(name) for name in down or [HUB]]
        far = [made.engine(name, line.url) for name in up or [HUB]]
        took = sent(far, near, size, line, lambda: line.up, most_s)
        for engine in (*near, *far):
            engine.close()
    return took._asdict()


def received(mbit_s: float, size: int, most_s: float = 120.0) -> dict[str, Any]:
    """One party on a slow line takes what the hub sends."""
    with deployment() as made, Line(made.server.listen.port, mbit_s, LATENCY_S) as line:
        hub, client = made.engine(HUB), made.engine(CLIENTS[0], line.url)
        took = sent([hub], [client], size, line, lambda: line.down, most_s)
        hub.close()
        client.close()
    return took._asdict()


SYSTEMS = ("fedavg", "ifca", "fedepc", "coterie", "fedcaprivacy", "pafed", "mingledpie", "ofl")
FIVE, ROUNDS = 5, 3
MODEL_BYTES, NEED_MBIT_S = 10_000_000, 20.0


def need(system: str) -> dict[str, Any]:
    """What five clients need in a round after the first: models that each sends and receives, those on the broker's
    line if the hub is beside it, and the seconds of a model of 10 MB. Emulated ciphers have the lengths of real ones.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig(system, data="synthetic:784x10", model="mlp", clients=FIVE, rounds=ROUNDS, crypto="emulated")
        made = run(replace(config, out=f"{folder}/run"))
    summary, rounds, model = made.summary, made.rounds[1:], 4 * made.summary["parameters"]
    definition = registry.get(system)
    hub, clients = next(iter(definition.parties(definition.config()))), definition.acting(str(summary["client_role"]))

    def models(way: str, counts: Callable[[str], bool]) -> float:
        found = sum(n for line in rounds for role, n in line[way].items() if counts(role))
        return float(found / len(rounds) / model)

    line = models("bytes_up", lambda role: role != hub) + models("bytes_down", lambda role: role != hub)
    return {
        "system": definition.title,
        "sends": models("bytes_up", clients.__contains__) / FIVE,
        "receives": models("bytes_down", clients.__contains__) / FIVE,
        "on the line": line,
        "seconds": line * MODEL_BYTES * 8 / (NEED_MBIT_S * 1e6),
    }


def main(words: Sequence[str] | None = None) -> None:
    """Measure, and write what was found to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    given = parser.parse_args(words)
    found = {
        "load before": round(os.getloadavg()[0], 1),
        "latency_s": LATENCY_S,
        "five send 10 MB each at 20 Mbit/s": case(20, CLIENTS[:5], (), 10_000_000),
        "one sends 10 MB at 5 Mbit/s": case(5, CLIENTS[:1], (), 10_000_000),
        "one sends 4 MB at 2 Mbit/s": case(2, CLIENTS[:1], (), 4_000_000),
        "the hub sends 2 MB to each of 24 at 20 Mbit/s": case(20, (), CLIENTS, 2_000_000),
        "one receives 10 MB at 5 Mbit/s": received(5, 10_000_000),
        "one sends 50 MB at 1 Gbit/s": case(1000, CLIENTS[:1], (), 50_000_000),
        "one receives 50 MB at 1 Gbit/s": received(1000, 50_000_000),
        "one sends 1 MB at 0.3 Mbit/s": case(0.3, CLIENTS[:1], (), 1_000_000),
        "one receives 1 MB at 0.3 Mbit/s": received(0.3, 1_000_000),
        "needs": [need(system) for system in SYSTEMS],
    }
    command = " ".join(["python -m benchmarks.lines", *(words if words is not None else sys.argv[1:])])
    write_record(given.out, command, found)


if __name__ == "__main__":
    main()
