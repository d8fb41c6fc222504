"""Measure what the parties of a system find out and write one JSON file: ``python -m ... SYSTEM FILE``."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.security import coterie, fedcaprivacy, mingledpie, pafed
from coterie.record.provenance import write_record

STUDIES: Mapping[str, Callable[..., dict[str, Any]]] = {
    "coterie": coterie.study,
    "coterie-grouping": coterie.grouping,
    "fedcaprivacy": fedcaprivacy.study,
    "mingledpie": mingledpie.study,
    "pafed": pafed.study,
}
"""Options, where given: seeds, and clients, rounds and partition of the runs that train."""


def main(arguments: list[str] | None = None) -> None:
    """Measure and write. Without options a study takes its own defaults, which the documentation shows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.security", description=__doc__)
    parser.add_argument("system", choices=sorted(STUDIES))
    parser.add_argument("out", type=Path)
    for name in ("seeds", "clients", "rounds"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--partition")
    given = {key: value for key, value in vars(parser.parse_args(arguments)).items() if value is not None}
    system, out = given.pop("system"), given.pop("out")
    options = [f"--{key}={value}" for key, value in given.items()]
    command = shlex.join(["python", "-m", "benchmarks.security", system, out.as_posix(), *options])
    write_record(out, command, STUDIES[system](**given))


if __name__ == "__main__":
    main()
