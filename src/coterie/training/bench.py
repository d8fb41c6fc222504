"""How fast local training and scoring are: ratios of times taken side by side, which a busy machine spoils least.

``run()`` gives a dict; ``python -m coterie.training.bench [--quick] FILE`` writes it as JSON. Every time is the best of
several interleaved repetitions. Wall-clock ratios on a machine that does other work favour us unduly (torch's own
threads wait for each other at every operation): ``machine.load`` says how busy it was, and CPU seconds stand beside.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from coterie.training.engine import Job, batch_order, fit_many, judge_many
from coterie.training.model import Model, load
from coterie.training.models import build
from coterie.training.precision import has_fast_bf16
from coterie.training.solvers import Sgd

_SAMPLES, _EPOCHS = 600, 2
_SCORED = 10_000
_TARGETS = {"fp32": 2.5, "bf16": 4.0, "ragged": 0.8, "cnn": 1.0}  # bf16: where the CPU has AMX


def run(quick: bool = False) -> dict[str, Any]:
    """Measure everything; ``quick`` for a glance (fewer clients, one repetition)."""
    clients, repeats = (20, 2) if quick else (100, 5)
    return {
        "machine": machine(),
        "targets": _TARGETS,
        "mlp": mlp(clients, repeats),
        "ragged": ragged(clients, repeats),
        "cnn": cnn(4 if quick else 8, repeats),
        "scoring": scoring(clients, max(1, repeats - 2)),
        "memory": memory((10, 40) if quick else (50, 200)),
        "load_after": os.getloadavg(),
    }


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    flags: set[str] = set()
    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            key, _, value = line.partition(":")
            flags |= set(value.split()) if key.strip() == "flags" else set()
            model = value.strip() if key.strip() == "model name" else model
    return {
        "cpu": model,
        "vector_flags": sorted(f for f in flags if f.startswith(("avx2", "avx512f", "avx512_bf16", "amx", "fma"))),
        "amx": has_fast_bf16(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "load": os.getloadavg(),
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


def one_core_share(loop: Callable[[slice], object], jobs: int) -> None:
    """A loop with one thread over one core's share of the jobs: a process per core, ideally parallel."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        loop(slice(max(1, jobs // threads)))
    finally:
        torch.set_num_threads(threads)


def interleaved(contenders: dict[str, Callable[[], object]], repeats: int) -> dict[str, dict[str, float]]:
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


def over_share(times: dict[str, dict[str, float]]) -> dict[str, float]:
    """Ours over an ideal process per core, each looping on one thread: by the clock, and by CPU seconds."""
    share, cores = times["loop_share"], torch.get_num_threads()
    ratios = {}
    for name in ("fp32", "bf16"):
        ratios[f"{name}_over_process_per_core"] = share["seconds"] / times[name]["seconds"]
        ratios[f"{name}_over_process_per_core_cpu"] = share["cpu_seconds"] * cores / times[name]["cpu_seconds"]
    return ratios


def make_jobs(model: Model, sizes: Sequence[int], epochs: Sequence[int]) -> list[Job]:
    """Random samples in [0, 1) and labels: speed does not depend on them."""
    generator = torch.Generator().manual_seed(0)
    start = model.initial(0)
    classes = model.classes or 2
    return [
        Job(
            start,
            Sgd(lr=0.01, batch_size=50),
            passes,
            seed,
            torch.rand(n, *model.input_shape, generator=generator),
            torch.randint(classes, (n,), generator=generator),
        )
        for seed, (n, passes) in enumerate(zip(sizes, epochs, strict=True))
    ]


def useful(jobs: Sequence[Job]) -> int:
    """Samples that the jobs train on, over all epochs."""
    return sum(job.samples * job.epochs for job in jobs)


def mlp(clients: int, repeats: int) -> dict[str, Any]:
    """MLP 784-200-100-10, batch 50, 600 samples and 2 epochs a client."""
    model = build("mlp", (784,), 10)
    jobs = make_jobs(model, [_SAMPLES] * clients, [_EPOCHS] * clients)
    times = interleaved(
        {
            "loop": lambda: plain_loop(model, jobs),
            "loop_share": lambda: one_core_share(lambda part: plain_loop(model, jobs[part]), clients),
            "fp32": lambda: fit_many(model, jobs),
            "bf16": lambda: fit_many(model, jobs, precision="bf16"),
        },
        repeats,
    )
    ours, theirs = fit_many(model, jobs[:4]), plain_loop(model, jobs[:4])
    difference = max(float(np.abs(a.weights - b).max()) for a, b in zip(ours, theirs, strict=True))
    loop = times["loop"]["seconds"]
    return {
        "clients": clients,
        "times": times,
        "samples_per_s": {name: useful(jobs) / times[name]["seconds"] for name in ("loop", "fp32", "bf16")},
        "fp32_over_loop": loop / times["fp32"]["seconds"],
        "bf16_over_loop": loop / times["bf16"]["seconds"],
        "fp32_over_loop_cpu": times["loop"]["cpu_seconds"] / times["fp32"]["cpu_seconds"],
        "bf16_over_loop_cpu": times["loop"]["cpu_seconds"] / times["bf16"]["cpu_seconds"],
        **over_share(times),
        "max_difference_to_loop": difference,
    }


def dirichlet_sizes(clients: int, beta: float, rng: np.random.Generator) -> list[int]:
    """Clients' sample counts when each of 10 classes is spread by Dirichlet(beta); at least 10."""
    each = clients * _SAMPLES // 10
    counts = sum(rng.multinomial(each, rng.dirichlet([beta] * clients)) for _ in range(10))
    return [max(10, int(n)) for n in np.asarray(counts)]


def ragged(clients: int, repeats: int) -> dict[str, Any]:
    """Dirichlet-0.3 sizes with 1 to 5 epochs: useful samples a second over those of equal clients."""
    model = build("mlp", (784,), 10)
    rng = np.random.default_rng(0)
    sizes = dirichlet_sizes(clients, 0.3, rng)
    uneven = make_jobs(model, sizes, rng.integers(1, 6, clients).tolist())
    even = make_jobs(model, [_SAMPLES] * clients, [3] * clients)
    times = interleaved({"even": lambda: fit_many(model, even), "ragged": lambda: fit_many(model, uneven)}, repeats)
    speed = {
        key: useful(uneven) / times["ragged"][key] / (useful(even) / times["even"][key])
        for key in ("seconds", "cpu_seconds")
    }
    return {
        "clients": clients,
        "smallest": min(sizes),
        "largest": max(sizes),
        "times": times,
        "share_of_even_speed": speed["seconds"],
        "share_of_even_speed_cpu": speed["cpu_seconds"],
    }


def cnn(clients: int, repeats: int) -> dict[str, Any]:
    """The 5x5-32, 5x5-64, fc-512 network, 300 samples a client, against the better of two plain loops."""
    return {"x".join(map(str, shape)): _cnn(shape, clients, repeats) for shape in ((1, 28, 28), (3, 32, 32))}


def _cnn(shape: tuple[int, int, int], clients: int, repeats: int) -> dict[str, Any]:
    model = build("cnn", shape, 10)
    jobs = make_jobs(model, [300] * clients, [1] * clients)
    times = interleaved(
        {
            "loop": lambda: plain_loop(model, jobs),
            "loop_channels_last": lambda: plain_loop(model, jobs, channels_last=True),
            "loop_share": lambda: one_core_share(
                lambda part: plain_loop(model, jobs[part], channels_last=True), clients
            ),
            "fp32": lambda: fit_many(model, jobs),
            "bf16": lambda: fit_many(model, jobs, precision="bf16"),
        },
        max(1, repeats - 2),
    )
    best = min(("loop", "loop_channels_last"), key=lambda name: times[name]["seconds"])
    loop = times[best]
    return {
        "clients": clients,
        "times": times,
        "samples_per_s": {name: useful(jobs) / times[name]["seconds"] for name in (best, "fp32", "bf16")},
        "best_loop": best,
        "fp32_over_best_loop": loop["seconds"] / times["fp32"]["seconds"],
        "bf16_over_best_loop": loop["seconds"] / times["bf16"]["seconds"],
        "fp32_over_best_loop_cpu": loop["cpu_seconds"] / times["fp32"]["cpu_seconds"],
        **over_share(times),
    }


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
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(_SCORED, 784, generator=generator), torch.randint(10, (_SCORED,), generator=generator)
    times = interleaved(
        {
            "loop": lambda: plain_scores(model, weights, x, y),
            "loop_share": lambda: one_core_share(lambda part: plain_scores(model, weights[part], x, y), models),
            "fp32": lambda: judge_many(model, weights, x, y),
            "bf16": lambda: judge_many(model, weights, x, y, precision="bf16"),
        },
        repeats,
    )
    loop = times["loop"]
    difference = np.abs(judge_many(model, weights[:4], x, y).losses - plain_scores(model, weights[:4], x, y)).max()
    return {
        "models": models,
        "samples": _SCORED,
        "times": times,
        **{f"{name}_over_loop": loop["seconds"] / times[name]["seconds"] for name in ("fp32", "bf16")},
        **{f"{name}_over_loop_cpu": loop["cpu_seconds"] / times[name]["cpu_seconds"] for name in ("fp32", "bf16")},
        **over_share(times),
        "max_difference_to_loop": float(difference),
    }


def memory(clients: Sequence[int]) -> dict[str, Any]:
    """Peak memory that training adds to its data, a fresh process for each number of clients."""
    results = []
    for count in clients:
        command = [sys.executable, "-m", "coterie.training.bench", "--memory", str(count)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        results.append(json.loads(done.stdout))
    return {"runs": results, "extra_growth_mb": results[-1]["extra_mb"] - results[0]["extra_mb"]}


def peak_mb() -> float:
    """Largest resident size of this process so far."""
    unit = 1024.0**2 if sys.platform == "darwin" else 1024.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def resident_mb() -> float:
    """Resident size now; where the system does not tell, the largest so far."""
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * resource.getpagesize() / 1024**2 if status.exists() else peak_mb()


def _memory(clients: int) -> dict[str, float]:
    """Megabytes: data before training, and what training adds to its peak beyond the results."""
    model = build("mlp", (784,), 10)
    jobs = make_jobs(model, [_SAMPLES] * clients, [1] * clients)
    fit_many(model, jobs[:2])  # libraries load and threads start before the first reading
    before = resident_mb()
    results = fit_many(model, jobs)
    after = peak_mb()
    kept = sum(fitted.weights.nbytes for fitted in results) / 1024**2
    data = sum(job.x.nbytes + job.y.nbytes for job in jobs) / 1024**2
    return {"clients": clients, "data_mb": data, "results_mb": kept, "extra_mb": after - before - kept}


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: measure and write the JSON file, or (for ``memory``) measure one number of clients."""
    parser = argparse.ArgumentParser(prog="python -m coterie.training.bench", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, help="JSON file to write; standard output without it")
    parser.add_argument("--quick", action="store_true", help="a glance, in seconds")
    parser.add_argument("--memory", type=int, metavar="CLIENTS", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    result: object = _memory(options.memory) if options.memory else run(options.quick)
    text = json.dumps(result, indent=None if options.memory else 2) + "\n"
    if options.file is None:
        sys.stdout.write(text)
    else:
        options.file.write_text(text)


if __name__ == "__main__":
    main()
