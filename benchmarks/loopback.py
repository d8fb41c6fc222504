"""What processes and a server on loopback cost: rounds of ``coterie deploy try`` beside those of ``coterie run``.

    python -m benchmarks.loopback docs/engines/loopback.json             # some four minutes, on an idle machine
    python -m benchmarks.loopback found.json --only fedavg-digits --pairs 1

The sides take turns, so that a busy machine slows all. The first round is left out: keys are made and caches filled.

A round's seconds are the hub's, without what it computes for an observer. The span is not quite the same on both sides.
In one process it ends with the hub's last step, and nothing is stored in it. Between processes it ends with the hub's
commit, and holds the commits of all parties. Parties report no scores here, since what an observer computes is left out
in one process, too. A process of a party trains with one thread. One process takes as many as the machine has, unless
OMP_NUM_THREADS says 1, or taskset leaves it one core.

One process can train many small models as one (``training.engine``), and processes cannot. So there are two numbers for
one process: with one training at a time, as each party's own process does it, and with all together. A rehearsal's
processes may train at the same time, as many as there are cores.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from coterie.operate.rehearsal import rehearse
from coterie.operate.supervision import warm
from coterie.record.provenance import write_record
from coterie.runs import FinishedRun, RunConfig, on_data, run
from coterie.training import engine

COMMON: dict[str, Any] = {"clients": 4, "rounds": 8, "seed": 7, "crypto": "real"}
CASES: dict[str, dict[str, Any]] = {
    "fedavg-digits": {"system": "fedavg", "data": "digits"},
    "fedavg-digits-mlp": {"system": "fedavg", "data": "digits", "model": "mlp"},
    "fedavg-mnist-mlp": {"system": "fedavg", "data": "mnist", "model": "mlp"},
    "fedepc-digits": {"system": "fedepc", "data": "digits"},
    "fedcaprivacy-digits": {"system": "fedcaprivacy", "data": "digits"},
}


def seconds(result: FinishedRun) -> list[float]:
    """Of all rounds but the first."""
    return [float(line["seconds"]) for line in result.rounds[1:]]


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Within it this process trains each client's model by itself."""
    together = engine.fit_many

    def each(model: Any, jobs: Sequence[Any], **how: Any) -> list[Any]:
        return [fitted for job in jobs for fitted in together(model, [job], **how)]

    on_data.fit_many = each  # type: ignore[attr-defined]
    try:
        yield
    finally:
        on_data.fit_many = together  # type: ignore[attr-defined]


def measured(config: dict[str, Any], place: Path) -> dict[str, list[float]]:
    """The same run in one process, twice, and as processes: seconds of its rounds.

    Raises ValueError if the models differ where they must not.
    """
    with one_at_a_time():
        apart = run(RunConfig(**config, out=str(place / "apart")))
    processes = rehearse(place / "try", RunConfig(**config), scores=())
    results = {
        "in_process_s": apart,
        "in_process_together_s": run(RunConfig(**config, out=str(place / "together"))),
        "loopback_s": processes,
    }
    digests = {name: result.rounds[-1]["models_sha256"] for name, result in results.items()}
    if len(set(digests.values())) > 1:
        raise ValueError(f"the models differ: {digests}")
    return {name: seconds(result) for name, result in results.items()}


def case(name: str, pairs: int) -> dict[str, Any]:
    """A case of the study: all seconds, their medians, and the ratio of processes to one at a time."""
    config = {**COMMON, **CASES[name]}
    load, all_s = os.getloadavg()[0], dict[str, list[float]]()
    for _ in range(pairs):
        with tempfile.TemporaryDirectory(prefix="coterie-") as place:
            for side, found in measured(config, Path(place)).items():
                all_s.setdefault(side, []).extend(found)
    medians = {side: median(found) for side, found in all_s.items()}
    ratio = medians["loopback_s"] / medians["in_process_s"]
    return {"config": config, "load before": round(load, 1), "ratio": ratio, "medians": medians, "seconds": all_s}


def main(words: Sequence[str] | None = None) -> None:
    """Measure, and write the numbers of all rounds to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", choices=CASES, action="append", help="this case; may be given several times")
    parser.add_argument("--pairs", type=int, default=3, help="how often the sides take turns")
    given = parser.parse_args(words)
    warm()
    found = {
        "pairs": given.pairs,
        "cases": {name: case(name, given.pairs) for name in given.only or CASES},
    }
    command = " ".join(["python -m benchmarks.loopback", *(words if words is not None else sys.argv[1:])])
    write_record(given.out, command, found)


if __name__ == "__main__":
    main()
