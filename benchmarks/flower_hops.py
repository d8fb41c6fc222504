"""How long a hop over Flower takes, and where the time goes.

``python -m benchmarks.flower_hops docs/engines/flower.json`` (some six minutes, with the extra ``flower``). A
SuperLink,
SuperNodes with TLS on loopback, and the engines of all parties in this process. The hub sends a small packet to each
site, and each site sends it back at once. A hop is over when the hub has all answers.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.flower_rig import TASK_POLL, Flower
from coterie.deploy.engine import Engine
from coterie.deploy.engines import connect
from coterie.deploy.flower import FlowerEngine
from coterie.deploy.home import hub_home, plan_of, read_home
from coterie.operate.allowed import deployable
from coterie.operate.nats_server import free_port
from coterie.operate.trial import found
from coterie.runs.config import RunConfig
from coterie.runs.experiment import build

POLLS_S = (1.0, 0.1)
"""Of Flower's SuperExec: its default, and what docs/engines.md advises."""
SITES = (1, 3)
SMALL = 1000


@dataclass
class Times:
    """Seconds of each hop: until the last site has its packet, and from then on until the hub has all answers.

    reached: from ``flwr run`` on, until all sites were reached.
    """

    reached: float = 0.0
    there: list[float] = field(default_factory=list)
    back: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        whole = [there + back for there, back in zip(self.there, self.back, strict=True)]
        return {
            "until all are reached, s": round(self.reached, 2),
            **{
                f"{name}, s": {
                    word: round(of(times), 2) for word, of in (("median", median), ("least", min), ("most", max))
                }
                for name, times in (("hop", whole), ("to the sites", self.there), ("back", self.back))
            },
        }


@contextmanager
def echoing(engines: Sequence[Engine], hub: str, came: dict[str, float]) -> Iterator[None]:
    """Sites that send back what comes. came: by site, when the last packet came."""
    stop = threading.Event()

    def echo(engine: Engine) -> None:
        number = 0
        while not stop.is_set():
            if (delivery := engine.pull(0.2)) is not None:
                came[engine.name] = time.perf_counter()
                engine.push(hub, delivery.body, f"{number}")
                delivery.done()
                number += 1

    threads = [threading.Thread(target=echo, args=(engine,)) for engine in engines]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def measured(sites: int, hops: int, poll_s: float) -> Times:
    """A run with so many sites and hops."""
    times, came = Times(), dict[str, float]()
    with ExitStack() as held:
        at = Path(held.enter_context(tempfile.TemporaryDirectory()))
        experiment = build(deployable(RunConfig("fedavg", clients=sites, rounds=1), rehearsal=True))
        held.callback(experiment.close)
        port = free_port()
        ready = found(at / "d", experiment, f"flower://127.0.0.1:{port}", 120.0)
        homes = {name: read_home(path) for name, path in ready.homes.items()}
        homes[ready.hub] = hub_home(ready.folder.path)  # with the newest plan
        engines = {name: connect(home, plan_of(homes[ready.hub])) for name, home in homes.items()}
        held.callback(_left, engines)
        hub, names = engines[ready.hub], engines.keys() - {ready.hub}
        held.enter_context(echoing([engines[name] for name in names], ready.hub, came))
        flower = Flower(at / "flwr", port, ready.folder.nats, ready.folder.flower, {TASK_POLL: str(poll_s)})
        held.enter_context(flower)
        flower.link()
        for name in names:
            flower.node(name.replace("/", "-"), ready.homes[name])
        began = time.perf_counter()
        flower.run()
        while not names <= set(hub.nodes()):
            time.sleep(0.05)
        times.reached = time.perf_counter() - began
        for number in range(hops):
            began = time.perf_counter()
            for name in names:
                hub.push(name, os.urandom(SMALL), f"{number}")
            left = set(names)
            while left:
                if (delivery := hub.pull(1.0)) is not None:
                    left.remove(delivery.src)
                    delivery.done()
            there = max(came.values())
            times.there.append(there - began)
            times.back.append(time.perf_counter() - there)
    return times


def _left(engines: dict[str, Engine]) -> None:
    """Close the engines, which need not wait for each other any more."""
    for engine in engines.values():
        assert isinstance(engine, FlowerEngine)
        engine._called_s = float("-inf")
        engine.close()


def study(hops: int) -> dict[str, Any]:
    return {
        "flwr": version("flwr"),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "hops": hops,
        "runs": [
            {
                "sites": sites,
                TASK_POLL: poll_s,
                "load before": round(os.getloadavg()[0], 1),
                **measured(sites, hops, poll_s).summary(),
            }
            for sites in SITES
            for poll_s in POLLS_S
        ],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flower_hops")
    parser.add_argument("out", type=Path, help="JSON file to write")
    parser.add_argument("--hops", type=int, default=10)
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(study(given.hops), indent=1) + "\n")
