"""Whole jobs as a user starts them, from the command to its exit: Coterie's, Flower's simulation, and FedJAX's.

FedAvg on MNIST, 100 clients of 600 samples, batches of 50, two local epochs. All score the global model on the whole
test set after every round. Jobs take turns, so that a busy machine slows all alike. Each framework is installed in an
environment of its own, in a folder outside the checkout (``COTERIE_BENCH``, by default in the user's cache).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data import load

CLIENTS, EPOCHS, BATCH, RATE = 100, 2, 50, 0.05
REPEATS = 3
SAMPLED_S = 0.2
"""How often memory is looked at."""
Record = Mapping[str, Any]
OURS = "coterie"
DATA = "mnist.npz"
CONTENDERS = Path(__file__).with_name("contenders")
PACKAGES: Mapping[str, Sequence[str]] = {
    "flower": ("flwr[simulation]==1.41.0", "torch==2.13.0"),
    "fedjax": ("fedjax==0.0.17", "jax==0.4.25", "jaxlib==0.4.25", "dm-haiku==0.0.12", "numpy<2", "scipy<1.13"),
    "pfllib": (
        *(
            "torch==2.13.0",
            "torchvision==0.28.0",
            "numpy",
            "scikit-learn",
            "h5py",
            "ujson",
            "calmsize",
            "matplotlib",
            "cvxpy",
        ),
    ),
}
"""What each environment has. FedJAX's last release needs a jax of its time."""
CHECKOUTS = {"pfllib": ("https://github.com/TsingZ0/PFLlib", "004a405da7c159e843d98b2a53e2114d4f859912")}
"""Of what is no package: in the environment's folder ``source``. PFLlib's licence is the GPL: it stays outside."""
ACCURACY = re.compile(r"accuracy (?:on all test data)?\s*([\d.]+)( %)?")
"""How a job says the accuracy of its global model. The last one counts."""


@dataclass(frozen=True)
class Job:
    """name: of its row.  key: its short name.  share: of the clients that each round asks.

    precision: of Coterie's products, which alone has a choice; then it is the only one to run.
    """

    name: str
    key: str
    model: str
    rounds: int
    share: float
    precision: str = ""

    @property
    def frameworks(self) -> tuple[str, ...]:
        return (OURS,) if self.precision else (OURS, *PACKAGES)

    def environment(self, data: Path) -> dict[str, str]:
        """What the scripts in ``contenders`` read. data: MNIST, bytes of images and labels.

        Modules are compiled once, as on its user's machine.
        """
        values = {
            "DATA": data,
            "CLIENTS": CLIENTS,
            "ROUNDS": self.rounds,
            "EPOCHS": EPOCHS,
            "BATCH": BATCH,
            "RATE": RATE,
            "SHARE": self.share,
            "MODEL": self.model,
        }
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "PYTHONPATH": str(CONTENDERS)}
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return {**inherited, **quiet, **{f"JOB_{name}": str(value) for name, value in values.items()}}


JOBS = (
    Job("MLP, 20 rounds, 10 % of the clients", "mlp-some", "mlp", 20, 0.1),
    Job("MLP, 20 rounds, all clients", "mlp-all", "mlp", 20, 1.0),
    Job("CNN, 5 rounds, 10 % of the clients", "cnn-some", "cnn", 5, 0.1),
    Job("CNN, 5 rounds, 10 % of the clients, `--precision fp32`", "cnn-some-fp32", "cnn", 5, 0.1, "fp32"),
    Job("CNN, 2 rounds, all clients", "cnn-all", "cnn", 2, 1.0),
)
"""The CNN has two convolutions of 5 x 5 and 1,663,370 parameters, the MLP two hidden layers and 178,110."""


def ours(job: Job, folder: Path) -> list[str]:
    """The command as its user writes it, with all that a run leaves: records, checkpoints, models, a report."""
    settings = {
        "participation": job.share,
        "max_epochs": EPOCHS,
        "slowest": 1.0,
        "batch_size": BATCH,
        "lr": RATE,
    }
    given = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    options = {"data": "mnist", "model": job.model, "clients": CLIENTS, "rounds": job.rounds, "partition": "iid"}
    options |= {"precision": job.precision} if job.precision else {}
    named = [part for key, value in options.items() for part in (f"--{key}", str(value))]
    return [sys.executable, "-m", "coterie", "run", "fedavg", *named, *given, "--out", str(folder / "run")]


def script(framework: str) -> Callable[[Job, Path], list[str]]:
    """The command of a framework's script, in its environment. Data that a framework has in files are dealt before."""
    words = [str(environment(framework)), str(CONTENDERS / f"{framework}_job.py")]

    def command(job: Job, folder: Path) -> list[str]:
        if framework in CHECKOUTS:
            subprocess.run([*words, "deal"], env=job.environment(folder / DATA), check=True)
        return words

    return command


def saved(path: Path) -> Path:
    """MNIST as a file that the other frameworks' scripts read."""
    data = load("mnist")
    np.savez(path, x_train=data.x_train, y_train=data.y_train, x_test=data.x_test, y_test=data.y_test)
    return path


def environment(framework: str) -> Path:
    """The Python of the framework's environment, which is made at first."""
    cache = os.environ.get("COTERIE_BENCH") or Path.home() / ".cache" / "coterie-bench"
    folder = Path(cache) / framework
    python, done = folder / "bin" / "python", folder / "done"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES[framework]], check=True)
        if framework in CHECKOUTS:
            address, commit = CHECKOUTS[framework]
            subprocess.run(["git", "clone", "--quiet", address, str(folder / "source")], check=True)
            subprocess.run(["git", "-C", str(folder / "source"), "checkout", "--quiet", commit], check=True)
        done.touch()
    return python


def timed(command: Sequence[str], surroundings: Mapping[str, str]) -> dict[str, float]:
    """The last accuracy, seconds from start to exit, CPU seconds, and the peak of the largest process in MB.

    Of a process and those that it waited for: Ray's workers count for neither (``memory``).
    """
    with tempfile.TemporaryFile() as said:
        start = time.perf_counter()
        process = subprocess.Popen(command, env=surroundings, stdout=said, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        said.seek(0)
        text = said.read().decode()
    process.returncode = status
    if status:
        raise RuntimeError(f"{' '.join(command)} failed:\n{text[-2000:]}")
    number, percent = ACCURACY.findall(text)[-1]
    return {
        "accuracy": float(number) / (100 if percent else 1),
        "seconds": seconds,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_mb": used.ru_maxrss / 1024,
    }


def run(made: Mapping[str, Any], only: Collection[str] = (), before: Record | None = None) -> dict[str, Any]:
    """Every job, in turns, with every repetition.

    made: the stamp of what is measured now.  only: names of frameworks and keys of jobs; the others' rows stay as they
    are ``before``, with their own stamps.
    """
    chosen, names = narrowed(only)
    rows = {row["job"]: row for row in (before or {}).get("jobs", ())}
    for job in chosen:
        now = [name for name in job.frameworks if name in names]
        old = rows.get(job.name, {"times": {}})
        found = {**old["times"], **in_turns(job, now)}
        times = {name: found[name] for name in job.frameworks if name in found}
        stamps = {**old.get("made", {}), **dict.fromkeys(now, made)}
        rows[job.name] = {"job": job.name, "rounds": job.rounds, "made": stamps, **figures(times, stamps)}
    kept = [rows[job.name] for job in JOBS if job.name in rows and rows[job.name]["times"]]
    return {"packages": PACKAGES, "repeats": REPEATS, "jobs": kept}


def narrowed(only: Collection[str]) -> tuple[list[Job], list[str]]:
    """Jobs and frameworks by their keys and names; all where it names none of a kind."""
    keys = set(only) & {job.key for job in JOBS} or {job.key for job in JOBS}
    names = set(only) & {OURS, *PACKAGES} or {OURS, *PACKAGES}
    return [job for job in JOBS if job.key in keys], [name for name in (OURS, *PACKAGES) if name in names]


def in_turns(job: Job, names: Sequence[str]) -> dict[str, list[dict[str, float]]]:
    """What each framework takes, one after the other, as often as it is repeated."""
    times: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for name in [*names] * REPEATS:
        with tempfile.TemporaryDirectory() as folder:
            place, command = Path(folder), ours if name == OURS else script(name)
            data = saved(place / DATA)
            found = timed(command(job, place), job.environment(data))
            times[name].append(found | ({"training_s": training_s(place / "run")} if name == OURS else {}))
    return times


def training_s(run_folder: Path) -> float:
    """Seconds in which a run's clients trained."""
    lines = (run_folder / "metrics.jsonl").read_text().splitlines()
    return sum(float(json.loads(line)["phase_seconds"].get("client/Fit", 0.0)) for line in lines)


def figures(times: Mapping[str, Sequence[Mapping[str, float]]], stamps: Mapping[str, Any]) -> dict[str, Any]:
    """Medians, and the medians of the ratios of each turn, with the times.

    over_coterie: of what was measured in turns with ours, which its stamp says.
    """
    medians = {name: statistics.median(one["seconds"] for one in found) for name, found in times.items()}
    over = {
        name: statistics.median(a["seconds"] / b["seconds"] for a, b in zip(found, times[OURS], strict=True))
        for name, found in times.items()
        if name != OURS and stamps.get(name) == stamps.get(OURS)
    }
    return {"medians": medians, "over_coterie": over, "times": times}


def memory(only: Collection[str] = ()) -> dict[str, Any]:
    """The peak of every job in MB, all of its processes together. only: names of frameworks and keys of jobs, alone."""
    rows, (chosen, frameworks) = [], narrowed(only)
    for job in chosen:
        names = [name for name in job.frameworks if name in frameworks]
        commands = {name: ours if name == OURS else script(name) for name in names}
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            surroundings = job.environment(saved(place / DATA))
            peaks = {name: peak_mb(command(job, place), surroundings) for name, command in commands.items()}
        rows.append({"job": job.name, "peak_mb": peaks})
    return {"every_s": SAMPLED_S, "jobs": rows}


def peak_mb(command: Sequence[str], surroundings: Mapping[str, str]) -> float:
    """The most memory of a process and its descendants at one time, in MB; shared pages count once (PSS, Linux)."""
    process = subprocess.Popen(command, env=surroundings, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    most = 0.0
    while process.poll() is None:
        most = max(most, sum(map(_pss_mb, _family(process.pid))))
        time.sleep(SAMPLED_S)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed")
    return most


def _family(pid: int) -> Iterator[int]:
    yield pid
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has ended
            for child in path.read_text().split():
                yield from _family(int(child))


def _pss_mb(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # it has ended
        return 0.0
    return sum(int(number) for number in re.findall(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)) / 1024


def picture(record: Mapping[str, Any], path: Path) -> None:
    """Bars of the medians of what several ran, each with its repetitions as points."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.2), layout="constrained")
    rows = [row for row in record["jobs"] if len(row["times"]) > 1]
    panels = figure.subplots(1, len(rows), squeeze=False)[0]
    for axes, row in zip(panels, rows, strict=True):
        names = list(row["medians"])
        axes.bar(names, list(row["medians"].values()), color=["tab:blue", *["lightgrey"] * len(PACKAGES)])
        for at, name in enumerate(names):
            seconds = [one["seconds"] for one in row["times"][name]]
            axes.plot([at] * len(seconds), seconds, "k.", markersize=4)
        axes.set_title(row["job"], fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("seconds from start to exit")
    figure.savefig(path, dpi=110)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Draw the measured jobs: docs/bench.json docs/speed.png")
    parser.add_argument("record", type=Path, help="a file that `python -m benchmarks.speed` has written")
    parser.add_argument("picture", type=Path, help="the PNG file to write")
    given = parser.parse_args(arguments)
    picture(json.loads(given.record.read_text())["jobs"], given.picture)


if __name__ == "__main__":
    main()
