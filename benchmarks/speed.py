"""The speeds that the documentation quotes, as ratios of one run each: ``python -m benchmarks.speed FILE [PART ...]``.

Training against a tuned plain PyTorch loop, packed Paillier against one ciphertext a parameter, CKKS against bare SEAL,
a shared key against one key, rounds with real ciphers against emulated ones. Takes half an hour and wants a quiet
machine; the file says which machine it was. With parts, only these are measured anew, and the file's others stay.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks import cipher_rounds, crypto_speed, jobs, threshold_speed, training_speed
from coterie.record.provenance import write_record

MEASURES: dict[str, Callable[[], object]] = {
    "paillier": crypto_speed.run,
    "ckks": crypto_speed.run_ckks,
    "ckks_deep": crypto_speed.run_deep,
    "threshold": threshold_speed.run,
    "ciphers": cipher_rounds.run,
    "training": training_speed.run,
    "jobs": jobs.run,
    "memory": jobs.memory,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument("file", type=Path, help="JSON file to write")
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(MEASURES)}; all of them without it")
    given = parser.parse_args(arguments)
    if unknown := set(given.parts) - set(MEASURES):
        parser.error(f"unknown part {', '.join(sorted(unknown))}: there are {', '.join(MEASURES)}")
    measure(given.file, given.parts)


def measure(path: Path, parts: Sequence[str] = ()) -> None:
    """Measure everything, or these parts, and write the file."""
    console = Console(highlight=False)
    results: dict[str, object] = json.loads(path.read_text()) if parts and path.exists() else {}
    for name in parts or MEASURES:
        console.print(f"measuring {name} ...")
        results[name] = MEASURES[name]()
    write_record(path, "make bench", results)
    console.print_json(data=results)
    console.print(f"written: {path}")


if __name__ == "__main__":
    main()
