"""What processes and a server on loopback cost: rounds of ``coterie deploy try`` beside those of ``coterie run``.

    python -m studies.loopback fedcaprivacy --pairs 3 --rounds 6
    taskset -c 0 python -m studies.loopback fedcaprivacy      # on one core: one training at a time on both sides

The two take turns, so that a busy machine slows both. The first round is left out: keys are made and caches filled.
A round's seconds are the hub's, from its beginning to its commit, without the observer's.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from coterie.deploy.supervision import warm
from coterie.deploy.trial import rehearse
from coterie.runs.config import RunConfig
from coterie.runs.runner import Result, run


def seconds(result: Result) -> list[float]:
    """Of all rounds but the first."""
    return [float(line["seconds"]) for line in result.rounds[1:]]


def pair(config: dict[str, object], settings: dict[str, object], place: Path) -> tuple[list[float], list[float]]:
    """The same run in one process and as processes. Raises ValueError if the models differ where they must not."""
    here = run(RunConfig(**config, settings=settings, out=str(place / "run")))  # type: ignore[arg-type]
    there = rehearse(place / "try", RunConfig(**config, settings=settings))  # type: ignore[arg-type]
    digests = [result.rounds[-1]["models_sha256"] for result in (here, there)]
    if digests[0] != digests[1]:
        raise ValueError(f"the models differ: {digests}")
    return seconds(here), seconds(there)


def main(words: Sequence[str] | None = None) -> None:
    """Print both medians in seconds and their ratio, as JSON."""
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
    here: list[float] = []
    there: list[float] = []
    for _ in range(given.pairs):
        with tempfile.TemporaryDirectory(prefix="coterie-") as place:
            ours, theirs = pair(config, {}, Path(place))
            here, there = here + ours, there + theirs
    found = {"in_process_s": median(here), "loopback_s": median(there), "rounds": len(here), **config}
    json.dump({**found, "ratio": found["loopback_s"] / found["in_process_s"]}, sys.stdout)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
