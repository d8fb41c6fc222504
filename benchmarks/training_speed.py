"""How fast local training and scoring are: ratios of times taken side by side, which a busy machine spoils least.

``run()`` gives a dict; ``python -m benchmarks.training_speed [--quick]`` prints it as JSON. Every time is the best of
several interleaved repetitions. Wall-clock ratios on a machine that does other work favour us unduly (torch's own
threads wait for each other at every operation): its load is recorded, and CPU seconds stand beside.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.stamps import stamp
from coterie.training.engine import fit_many
from coterie.training.evaluate import judge_many
from coterie.training.jobs import Job, batch_order
from coterie.training.model import Model, load
from coterie.training.models import build
from coterie.training.solvers import Sgd

_SAMPLES, _EPOCHS = 600, 2
_SCORED = 10_000
_TARGETS = {"fp32": 2.5, "ragged": 0.8, "cnn": 1.0, "cnn_bf16": 1.2}  # the last where the CPU has AMX

Loops = Mapping[str, Callable[[slice], object]]
"""Plain loops by name, each over a part of the jobs."""
Ours = Mapping[str, Callable[[], object]]
"""Ours over all jobs, by the precision of products. Dense models have no other than fp32."""


def run(quick: bool = False) -> dict[str, Any]:
    """Measure everything; ``quick`` for a glance (fewer clients, one repetition)."""
    clients, repeats = (20, 2) if quick else (100, 5)
    return {
        "targets": _TARGETS,
        "mlp": mlp(clients, repeats),
        "ragged": ragged(clients, repeats),
        "cnn": cnn(4 if quick else 8, repeats),
        "scoring": scoring(clients, max(1, repeats - 2)),
        "memory": memory((10, 40) if quick else (50, 200)),
        "load_after": os.getloadavg(),
    }


def plain_loop(model: Model, jobs: Sequence[Job], *, channels_last: bool = False) -> list[np.ndarray]:
    """The tuned PyTorch loop to beat: no DataLoader, an epoch shuffled by one index, foreach SGD, one module reused."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    module = model.module_with(jobs[0].weights).train()
    module.to(memory_format=layout)  # type: ignore[call-overload]  # missing in torch's own stubs
    results = []
    for job in jobs:
        load(module, model.unflatten(job.weights))
        optimizer = torch.optim.SGD(module.parameters(), lr=job.solver.lr, foreach=True)
        for epoch in range(job.epochs):
            order = torch.from_numpy(batch_order(job.seed, epoch, job.samples))
            x, y = job.x[order], job.y[order]
            if channels_last:
                x = x.contiguous(memory_format=layout)
            for samples, labels in zip(torch.split(x, job.batch), torch.split(y, job.batch), strict=True):
                optimizer.zero_grad(set_to_none=True)
                nn.functional.cross_entropy(module(samples), labels).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        results.append(model.flatten(module))
    return results


def interleaved(contenders: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, dict[str, float]]:
    """Best wall and CPU seconds of each, taken in turns after one warm-up."""
    best = {name: {"seconds": float("inf"), "cpu_seconds": float("inf")} for name in contenders}
    for work in contenders.values():
        work()
    for _ in range(repeats):
        for name, work in contenders.items():
            wall, cpu = time.perf_counter(), time.process_time()
            work()
            spent = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
            best[name] = {key: min(best[name][key], spent[key]) for key in spent}
    return best


def compared(loops: Loops, ours: Ours, jobs: int, samples: int, repeats: int) -> dict[str, Any]:
    """Ours over the best loop, and over an ideal process per core, each with the last loop on one thread.

    By the clock, and by CPU seconds.  samples: of all jobs.
    """
    cores = torch.get_num_threads()

    def share_of_one_core() -> None:
        torch.set_num_threads(1)
        try:
            [*loops.values()][-1](slice(max(1, jobs // cores)))
        finally:
            torch.set_num_threads(cores)

    whole = {name: partial(loop, slice(None)) for name, loop in loops.items()}
    times = interleaved({**whole, "loop_share": share_of_one_core, **ours}, repeats)
    best = min(loops, key=lambda name: times[name]["seconds"])
    over = "best_loop" if len(loops) > 1 else "loop"
    ratios = {}
    for name in ours:
        for key, suffix, shares in (("seconds", "", 1), ("cpu_seconds", "_cpu", cores)):
            ratios[f"{name}_over_{over}{suffix}"] = times[best][key] / times[name][key]
            ratios[f"{name}_over_process_per_core{suffix}"] = shares * times["loop_share"][key] / times[name][key]
    speed = {name: samples / times[name]["seconds"] for name in (best, *ours)}
    return {"times": times, "best_loop": best, "samples_per_s": speed, **ratios}


def make_samples(model: Model, count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Random samples in [0, 1) and labels: speed does not depend on them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, *model.input_shape, generator=generator)
    return x, torch.randint(model.classes or 2, (count,), generator=generator)


def make_jobs(model: Model, sizes: Sequence[int], epochs: Sequence[int]) -> list[Job]:
    """A job for each number of samples, and of epochs."""
    start = model.initial(0)
    samples = [make_samples(model, n, seed) for seed, n in enumerate(sizes)]
    solver = Sgd(lr=0.01, batch_size=50)
    return [Job(start, solver, epochs[i], i, x, y) for i, (x, y) in enumerate(samples)]


def useful(jobs: Sequence[Job]) -> int:
    """Samples that the jobs train on, over all epochs."""
    return sum(job.samples * job.epochs for job in jobs)


def mlp(clients: int, repeats: int) -> dict[str, Any]:
    """MLP 784-200-100-10, batch 50, 600 samples and 2 epochs a client."""
    model = build("mlp", (784,), 10)
    jobs = make_jobs(model, [_SAMPLES] * clients, [_EPOCHS] * clients)
    loops: Loops = {"loop": lambda part: plain_loop(model, jobs[part])}
    found = compared(loops, {"fp32": partial(fit_many, model, jobs)}, clients, useful(jobs), repeats)
    ours, theirs = fit_many(model, jobs[:4]), plain_loop(model, jobs[:4])
    difference = max(float(np.abs(a.weights - b).max()) for a, b in zip(ours, theirs, strict=True))
    return {"clients": clients, **found, "max_difference_to_loop": difference}


def ragged(clients: int, repeats: int) -> dict[str, Any]:
    """Dirichlet-0.3 sizes of at least 10, with 1 to 5 epochs: useful samples a second over those of equal clients."""
    model = build("mlp", (784,), 10)
    rng = np.random.default_rng(0)
    counts = sum(rng.multinomial(clients * _SAMPLES // 10, rng.dirichlet([0.3] * clients)) for _ in range(10))
    sizes = np.maximum(10, counts).tolist()
    uneven = make_jobs(model, sizes, rng.integers(1, 6, clients).tolist())
    even = make_jobs(model, [_SAMPLES] * clients, [3] * clients)
    times = interleaved({"even": lambda: fit_many(model, even), "ragged": lambda: fit_many(model, uneven)}, repeats)
    share = useful(uneven) / useful(even)
    return {
        "clients": clients,
        "smallest": min(sizes),
        "largest": max(sizes),
        "times": times,
        "share_of_even_speed": share * times["even"]["seconds"] / times["ragged"]["seconds"],
        "share_of_even_speed_cpu": share * times["even"]["cpu_seconds"] / times["ragged"]["cpu_seconds"],
    }


def cnn(clients: int, repeats: int) -> dict[str, Any]:
    """The 5x5-32, 5x5-64, fc-512 network, 300 samples a client, against the better of two plain loops."""
    return {"x".join(map(str, shape)): _cnn(shape, clients, repeats) for shape in ((1, 28, 28), (3, 32, 32))}


def _cnn(shape: tuple[int, int, int], clients: int, repeats: int) -> dict[str, Any]:
    model = build("cnn", shape, 10)
    jobs = make_jobs(model, [300] * clients, [1] * clients)
    loops: Loops = {
        "loop": lambda part: plain_loop(model, jobs[part]),
        "loop_channels_last": lambda part: plain_loop(model, jobs[part], channels_last=True),
    }
    ours: Ours = {name: partial(fit_many, model, jobs, precision=name) for name in ("fp32", "bf16")}
    found = compared(loops, ours, clients, useful(jobs), max(1, repeats - 2))
    return {"clients": clients, **found}


def plain_scores(model: Model, weights: np.ndarray, x: torch.Tensor, y: torch.Tensor) -> np.ndarray:
    """(k, n) losses, one model after the other in batches of 1,024, from the logits on in float64."""
    losses = np.empty((len(weights), len(x)), np.float32)
    with torch.inference_mode():
        for row, vector in enumerate(weights):
            module = model.module_with(vector)
            logits = torch.cat([module(part) for part in torch.split(x, 1024)]).double()
            losses[row] = nn.functional.cross_entropy(logits, y, reduction="none").numpy()
    return losses


def scoring(models: int, repeats: int) -> dict[str, Any]:
    """Different MLPs 784-200-100-10, all on the same 10,000 samples: what evaluating personal models costs."""
    model = build("mlp", (784,), 10)
    weights = np.stack([model.initial(seed) for seed in range(models)])
    x, y = make_samples(model, _SCORED)
    loops: Loops = {"loop": lambda part: plain_scores(model, weights[part], x, y)}
    ours: Ours = {"fp32": partial(judge_many, model, weights, x, y)}
    found = compared(loops, ours, models, models * _SCORED, repeats)
    difference = np.abs(judge_many(model, weights[:4], x, y).losses - plain_scores(model, weights[:4], x, y)).max()
    return {"models": models, "samples": _SCORED, **found, "max_difference_to_loop": float(difference)}


def memory(clients: Sequence[int]) -> dict[str, Any]:
    """Peak memory that training adds to its data, a fresh process for each number of clients."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as fresh:
        results = [*fresh.map(added_memory, clients)]
    return {"runs": results, "extra_growth_mb": results[-1]["extra_mb"] - results[0]["extra_mb"]}


def memory_mb(kind: str) -> float:
    """``VmRSS``, what this process has in memory, or ``VmHWM``, its peak, which any system tells."""
    if (status := Path("/proc/self/status")).exists():
        return next(int(line.split()[1]) / 1024 for line in status.read_text().splitlines() if line.startswith(kind))
    unit = 1024.0**2 if sys.platform == "darwin" else 1024.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def added_memory(clients: int) -> dict[str, float]:
    """Megabytes: data before training, and what training adds to its peak beyond the results."""
    model = build("mlp", (784,), 10)
    jobs = make_jobs(model, [_SAMPLES] * clients, [1] * clients)
    fit_many(model, jobs[:2])  # libraries load and threads start before the first reading
    before = memory_mb("VmRSS")
    results = fit_many(model, jobs)
    after = memory_mb("VmHWM")
    kept = sum(fitted.weights.nbytes for fitted in results) / 1024**2
    data = sum(job.x.nbytes + job.y.nbytes for job in jobs) / 1024**2
    return {"clients": clients, "data_mb": data, "results_mb": kept, "extra_mb": after - before - kept}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions and clients")
    quick = parser.parse_args(arguments).quick
    made = stamp("python -m benchmarks.training_speed" + " --quick" * quick)
    sys.stdout.write(json.dumps({"made": made, **run(quick)}, indent=2) + "\n")


if __name__ == "__main__":
    main()
