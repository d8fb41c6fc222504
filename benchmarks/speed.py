"""The speeds that the documentation quotes, as ratios of one run each: ``python -m benchmarks.speed FILE [PART ...]``.

Training against a tuned plain PyTorch loop, packed Paillier against one ciphertext a parameter, CKKS against bare SEAL,
a shared key against one key, rounds with real ciphers against emulated ones, whole jobs against those of other
frameworks. Takes two hours and wants a quiet machine. With parts, only these are measured anew, and the others of the
file stay: each part has a stamp, which says by what, when and on what it was made. ``--only`` narrows
jobs and memory.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import cipher_floors, cipher_rounds, crypto_speed, jobs, threshold_speed, training_speed
from benchmarks.stamps import stamp
from coterie.record.files import atomic_write

MEASURES: dict[str, Callable[..., Mapping[str, Any]]] = {
    "paillier": crypto_speed.run,
    "ckks": crypto_speed.run_ckks,
    "ckks_deep": crypto_speed.run_deep,
    "threshold": threshold_speed.run,
    "ciphers": cipher_rounds.run,
    "floors": cipher_floors.run,
    "training": training_speed.run,
    "jobs": jobs.run,
    "memory": jobs.memory,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument("file", type=Path, help="JSON file to write")
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(MEASURES)}; all of them without it")
    narrow = {jobs.OURS, *jobs.PACKAGES, *(job.key for job in jobs.JOBS)}
    parser.add_argument("--only", action="append", choices=sorted(narrow), help="of jobs and memory; again for another")
    given = parser.parse_args(arguments)
    if unknown := set(given.parts) - set(MEASURES):
        parser.error(f"unknown part {', '.join(sorted(unknown))}: there are {', '.join(MEASURES)}")
    if given.only and not {"jobs", "memory"}.issuperset(given.parts or MEASURES):
        parser.error("--only narrows jobs and memory: give no other part beside it")
    measure(given.file, given.parts, given.only or ())


def measure(path: Path, parts: Sequence[str] = (), only: Sequence[str] = ()) -> None:
    """Measure everything, or these parts, and write the file after each. only: of jobs."""
    console = Console(highlight=False)
    results: dict[str, object] = json.loads(path.read_text()) if parts and path.exists() else {}
    for name in parts or MEASURES:
        console.print(f"measuring {name} ...")
        made = stamp(
            " ".join(["python -m benchmarks.speed", path.as_posix(), name, *(f"--only {one}" for one in only)])
        )
        results[name] = measured(name, made, only, results.get(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, (json.dumps({"command": "make bench", **results}, indent=1) + "\n").encode())
        console.print_json(data=results[name])
        console.print(f"written: {path}")


def measured(name: str, made: Mapping[str, Any], only: Sequence[str], before: Any) -> Mapping[str, Any]:
    """One part, with its stamp. Rows of jobs have one each."""
    if name == "jobs":
        return jobs.run(made, only, before)
    if name == "memory":
        return {"made": made, **jobs.memory(only)}
    return {"made": made, **MEASURES[name]()}


if __name__ == "__main__":
    main()
