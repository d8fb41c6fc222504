"""What very many clients cost, and what it costs to send trainings to workers: the tables of docs/scale.md.

``clients``: each run is a process of its own, so its peak memory is its own. ``workers``: the same trainings in this
process and on a Ray cluster on this machine, one after the other, so that both see the same machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import inf
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.protocol.effects import Fit
from coterie.record.provenance import write_record
from coterie.runs import RunConfig, experiment, run
from coterie.runs.on_data import Here
from coterie.training.solvers import Sgd

CLIENTS = (1_000, 10_000, 100_000)
ASKED = 1_000
ROUNDS = 3


def config(clients: int, asked: int, evaluated: int, rounds: int) -> RunConfig:
    """``coterie run fedavg --data synthetic:64x10 --clients N --evaluated ... --set participation=... --rounds ...``"""
    one = RunConfig("fedavg", data="synthetic:64x10", clients=clients, evaluated=evaluated, rounds=rounds)
    return replace(one, settings={"participation": asked / clients}, checkpoint_every=1)


def ran(clients: int, asked: int, evaluated: int, rounds: int) -> dict[str, Any]:
    """One run, for a process of its own. Processor seconds are those of all threads; other work adds little to them."""
    spent = [time.process_time()]

    def told(line: Mapping[str, Any]) -> None:
        spent.append(time.process_time())

    with tempfile.TemporaryDirectory() as home:
        out = Path(home) / "run"
        result = run(replace(config(clients, asked, evaluated, rounds), out=str(out)), told)
        files = [path for path in out.rglob("*") if path.is_file()]
        return {
            "clients": clients,
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "round_s": min(line["seconds"] + line["observing_seconds"] for line in result.rounds),
            "round_processor_s": min(after - before for before, after in pairwise(spent)),
            "run_processor_s": time.process_time(),
            "folder_mb": sum(path.stat().st_size for path in files) / 1e6,
            "files": len(files),
            "global_accuracy": result.summary["global_accuracy"],
        }


def clients(numbers: Sequence[int] = CLIENTS, asked: int = ASKED, rounds: int = ROUNDS) -> dict[str, Any]:
    """A run for each number of clients, all of which ask and evaluate as many."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as fresh:
        runs = [fresh.submit(ran, number, asked, asked, rounds).result() for number in numbers]
    return {"asked": asked, "evaluated": asked, "rounds": rounds, "cores": os.cpu_count(), "runs": runs}


def fastest(runs: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """The fewest seconds of each call, made in turn: what else a machine does can only add to them."""
    found = dict.fromkeys(runs, inf)
    for _ in range(repeats):
        for name, call in runs.items():
            started = time.perf_counter()
            call()
            found[name] = min(found[name], time.perf_counter() - started)
    return found


def workers(repeats: int = 9, parties: int = 100, samples: int = 600) -> dict[str, Any]:
    """Trainings of 784-200-100-10 networks, and one short training, in this process and at one worker and at two."""
    torch.set_num_threads(1)
    plain = RunConfig("fedavg", data="synthetic:784x10", model="mlp", clients=parties, partition="iid", rounds=1)
    plain = replace(plain, samples=parties * samples, evaluated=1)
    found: dict[str, Any] = {"parties": parties, "samples": samples, "repeats": repeats, "cores": os.cpu_count()}
    same = True
    for count in (1, 2):
        started = time.perf_counter()
        made = experiment.build(replace(plain, workers=f"ray:{count}"))
        start_s = time.perf_counter() - started
        try:
            here = Here(made.model, made.data, made.effects.how)
            there, start = made.effects.workers, made.common.initial
            many = [(f"client/{i}", Fit(start, Sgd(0.1, 50), 2, i)) for i in range(parties)]
            short = [("client/0", Fit(start, Sgd(0.1, 600), 1, 0))]
            pairs = zip(here.run(many), there.run(many), strict=True)  # data are made, libraries loaded
            same &= all(np.array_equal(a.weights, b.weights) for a, b in pairs)
            found[f"ray:{count}"] = {
                "start_s": start_s,
                "chunk": fastest({"here_s": partial(here.run, many), "there_s": partial(there.run, many)}, repeats),
                "one": fastest({"here_s": partial(here.run, short), "there_s": partial(there.run, short)}, 9 * repeats),
            }
        finally:
            made.close()
    found["weights_mb"] = parties * made.model.spec.size * 4 / 1e6
    found["same_models"] = same
    for kind in ("chunk", "one"):
        of = found["ray:1"][kind]
        found[f"overhead_of_{kind}_s"] = of["there_s"] - of["here_s"]
    return found


def main() -> None:
    """Write the record of one of the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("table", choices=["clients", "workers"])
    parser.add_argument("file", type=Path, help="where the record is written, as JSON")
    given = parser.parse_args()
    record = clients() if given.table == "clients" else workers()
    command = f"python -m benchmarks.scale {given.table} {given.file.as_posix()}"
    write_record(given.file, command, rounded(record, 4))


def rounded(record: Mapping[str, Any], digits: int) -> dict[str, Any]:
    """All floats to so many significant digits."""
    found: dict[str, Any] = json.loads(json.dumps(record), parse_float=lambda text: float(f"{float(text):.{digits}g}"))
    return found


if __name__ == "__main__":
    main()
