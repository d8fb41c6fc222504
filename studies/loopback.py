"""What processes and a server on loopback cost: rounds of ``coterie deploy try`` beside those of ``coterie run``.

    python -m studies.loopback fedcaprivacy --pairs 3 --rounds 6
    taskset -c 0 python -m studies.loopback fedcaprivacy      # on one core: one training at a time on both sides

The sides take turns, so that a busy machine slows all. The first round is left out: keys are made and caches filled.

A round's seconds are the hub's, without what it computes for an observer. The span is not quite the same on both sides.
In one process it ends with the hub's last step, and nothing is stored in it. Between processes it ends with the hub's
commit, and holds the commits of all parties. It also holds the scores of the round before, which each party computes
when it hears of the next one. A process of a party trains with one thread. One process takes as many as the machine
has, unless OMP_NUM_THREADS says 1, or taskset leaves it one core.

One process can train many small models as one (``training.engine``), and processes cannot. So there are two numbers for
one process: with one training at a time, as each party's own process does it, and with all together.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from coterie.deploy.supervision import warm
from coterie.deploy.trial import rehearse
from coterie.runs import on_data
from coterie.runs.config import RunConfig
from coterie.runs.runner import Result, run
from coterie.training import engine


def seconds(result: Result) -> list[float]:
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
    results = {
        "in_process_s": apart,
        "in_process_together_s": run(RunConfig(**config, out=str(place / "together"))),
        "loopback_s": rehearse(place / "try", RunConfig(**config)),
    }
    digests = {name: result.rounds[-1]["models_sha256"] for name, result in results.items()}
    if len(set(digests.values())) > 1:
        raise ValueError(f"the models differ: {digests}")
    return {name: seconds(result) for name, result in results.items()}


def main(words: Sequence[str] | None = None) -> None:
    """Print the medians in seconds, and the ratio of processes to one process that trains one at a time, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("system")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--crypto", default="real")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--model", default=None)
    given = parser.parse_args(words)
    config = {key: value for key, value in vars(given).items() if key != "pairs" and value is not None}
    warm()
    all_s: dict[str, list[float]] = {}
    for _ in range(given.pairs):
        with tempfile.TemporaryDirectory(prefix="coterie-") as place:
            for name, found in measured(config, Path(place)).items():
                all_s.setdefault(name, []).extend(found)
    medians = {name: median(found) for name, found in all_s.items()}
    ratio = medians["loopback_s"] / medians["in_process_s"]
    json.dump({**config, **medians, "ratio": ratio, "rounds": given.pairs * (given.rounds - 1)}, sys.stdout)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
