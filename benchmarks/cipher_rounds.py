"""What a round with real ciphers costs over its emulated twin, for every system and mode that encrypts."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from coterie.runs.registry import SYSTEMS

TARGET = 3.0
REPEATS = 3
ROUNDS = 4
NO_ROUND = {"mingledpie-literal": "as printed every client joins every cluster, so no model changes"}
JOB = "--data", "digits", "--clients", "20", "--rounds", str(ROUNDS), "--eval-every", str(ROUNDS), "--quiet"


class Cost(NamedTuple):
    """round_seconds: wall-clock, median of the rounds but the first.  cpu_seconds: of the job and its processes."""

    round_seconds: float
    cpu_seconds: float


def run(only: Collection[str] = (), repeats: int = REPEATS) -> dict[str, object]:
    """Measures jobs on digits with 20 clients, each in a process of its own, real and emulated in turns.

    only: names of systems, or SYSTEM-MODE.  A case has medians over ``repeats``, and the ratios of these.
    """
    cases = [(name, mode) for name, system in SYSTEMS.items() if system.encrypted for mode in system.modes]
    chosen = [case for case in cases if not only or {case[0], "-".join(case)} & set(only)]
    chosen = [case for case in chosen if "-".join(case) not in NO_ROUND]
    measured = {"-".join(case): compared(*case, repeats) for case in chosen}
    met = all(figures["round_ratio"] <= TARGET for figures in measured.values())
    return {
        "job": " ".join(JOB),
        "repeats": repeats,
        "target": TARGET,
        "met": met,
        "no_round": NO_ROUND,
        "cases": measured,
    }


def compared(system: str, mode: str, repeats: int) -> dict[str, float]:
    pairs = [[job(system, mode, crypto) for crypto in ("emulated", "real")] for _ in range(repeats)]
    figures: dict[str, float] = {}
    for crypto, costs in zip(("emulated", "real"), zip(*pairs, strict=True), strict=True):
        for what, values in zip(Cost._fields, zip(*costs, strict=True), strict=True):
            figures[f"{crypto}_{what}"] = median(values)
    figures["round_ratio"] = figures["real_round_seconds"] / figures["emulated_round_seconds"]
    figures["cpu_seconds_of_ciphers_a_round"] = (figures["real_cpu_seconds"] - figures["emulated_cpu_seconds"]) / ROUNDS
    return figures


def job(system: str, mode: str, crypto: str) -> Cost:
    with TemporaryDirectory() as folder:
        out, before = Path(folder, "run"), resource.getrusage(resource.RUSAGE_CHILDREN)
        command = sys.executable, "-W", "ignore", "-m", "coterie", "run", system, "--mode", mode, "--crypto", crypto
        subprocess.run([*command, *JOB, "--out", str(out)], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        rounds = [json.loads(line)["seconds"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    return Cost(median(rounds[1:]), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
