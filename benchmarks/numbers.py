"""What every system computes, sends and shows, as numbers that a change of the code's shape must not move.

``python -m benchmarks.numbers FILE`` runs every system in every mode on a small federation. For each case it writes the
hash of the final models, payload bytes by role, virtual seconds, and digests of the views. ``--check`` runs
the same cases and says what differs from FILE. Models are equal bit for bit on machines of one kind only, so a record
is made where it is checked.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

ROUNDS = 3
QUICK = {
    "data": "digits",
    "samples": 500,
    "rounds": ROUNDS,
    "record": True,
    "progress": False,
    "eval_every": 1,
    "precision": "fp32",
}
SETTINGS: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("haccs", "paper"): [{"participation": 1.0}],
    ("flacc", "paper"): [{"settle": 1}],
    ("oort", "paper"): [{"participation": 1.0}],
    ("clsm_fl", "paper"): [{"clusters": 2}],
    ("ifca", "paper"): [{"clusters": 2}],
    ("rfl_ha", "paper"): [{"clusters": 2}],
    ("fedcaprivacy", "paper"): [{"clusters": 2, "schedule": "always"}, {"clusters": "auto"}],
    ("fedcaprivacy", "literal"): [{"clusters": 2, "schedule": "always"}],
    ("fedcaprivacy", "hardened"): [
        {"clusters": 2, "min_cluster": 2, "descriptor": "model", "sketch_dim": 8},
        {"clusters": 2, "min_cluster": 2, "descriptor": "model", "hardening": "rotation"},
        {"clusters": 2, "min_cluster": 2, "descriptor": "signature"},
    ],
    ("mingledpie", "paper"): [{"clusters": 3}, {"clusters": 2, "keys": "threshold", "rebuild": "none"}],
    ("mingledpie", "literal"): [{"clusters": 3}],
    ("mingledpie", "hardened"): [
        {"clusters": 3},
        {"clusters": 2, "hardening": "uploads"},
        {"clusters": 2, "hardening": "uploads", "keys": "threshold"},
    ],
    ("fedepc", "paper"): [{}, {"send": "noise", "distribute": "round", "describe_every": 1}],
    ("fedepc", "hardened"): [{"min_cluster": 2}],
    ("ofl", "paper"): [{"clusters": 3, "recluster_every": 2}],
    ("ofl", "literal"): [{"clusters": 3, "recluster_every": 2}],
    ("ofl", "hardened"): [{"clusters": 3, "recluster_every": 2}],
    ("pafed", "paper"): [{}, {"signs": "hidden"}, {"keys": "threshold"}],
}
REAL: dict[tuple[str, str, str], dict[str, Any]] = {
    ("fedcaprivacy", "paper", "paillier"): {"clusters": 2, "schedule": "always"},
    ("fedepc", "hardened", "paillier"): {"min_cluster": 2},
    ("mingledpie", "hardened", "ckks"): {"clusters": 2},
    ("ofl", "hardened", "ckks"): {"clusters": 3, "keys": "distributed"},
    ("pafed", "paper", "ckks"): {},
    ("pafed", "hardened", "ckks"): {},
}


class Case(NamedTuple):
    """One run. name: in the record.  options: of ``coterie.run``.  crypto: emulated, paillier or ckks."""

    name: str
    options: dict[str, Any]
    crypto: str = "emulated"


def _weights(path: Path) -> bytes:
    """What follows the header of a safetensors file, which has facts about the model."""
    data = path.read_bytes()
    return data[8 + int.from_bytes(data[:8], "little") :]


def cases() -> Iterator[Case]:
    """Every system, mode and variant with an MLP, the first variant with a CNN, and some with real ciphers."""
    from coterie.runs.registry import SYSTEMS

    for name, system in SYSTEMS.items():
        for mode in system.modes:
            for i, settings in enumerate(SETTINGS.get((name, mode), [{}])):
                for model, clients in [("mlp_small", 12), *([("cnn", 8)] if i == 0 else [])]:
                    label = "-".join([name, mode, model, *map(str, settings.values())])
                    options: dict[str, Any] = {"model": model, "clients": clients, "mode": mode}
                    if system.encrypted:
                        options["crypto"] = "emulated"
                    yield Case(label, {"system": name, **options, "settings": {"max_epochs": 2, **settings}})
    for (name, mode, cipher), real in REAL.items():
        options = {"model": "mlp_small", "clients": 9, "crypto": "real", "mode": mode}
        label = "-".join([name, mode, "real"])
        yield Case(label, {"system": name, **options, "settings": {"max_epochs": 1, **real}}, cipher)
    for name, extra in OTHERS.items():
        yield Case(name, {"clients": 8, "model": "mlp_small", **extra})


OTHERS: dict[str, dict[str, Any]] = {
    "attacked-fedavg": {"system": "fedavg", "attack": "sign_flip", "attackers": 0.25},
    "attacked-ofl": {
        "system": "ofl",
        "crypto": "emulated",
        "attack": "scale:10",
        "attackers": 0.25,
        "settings": {"clusters": 2},
    },
    "delayed-fedavg": {"system": "fedavg", "delta": 0.4},
    "mobile-fedavg": {"system": "fedavg", "devices": "mobile"},
    "fine-tuned-fedavg": {"system": "fedavg", "fine_tune": "held_out"},
    "grouped-fedcaprivacy": {
        "system": "fedcaprivacy",
        "partition": "permute:2",
        "crypto": "emulated",
        "settings": {"clusters": 2},
    },
}
"""What else a run can be asked for."""


def outcome(case: Case) -> dict[str, Any]:
    """What one case gives, without real time."""
    import torch

    import coterie

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        try:
            result = coterie.run(**{**QUICK, **case.options, "out": str(out)})
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}".partition(" Rounds ")[0]}
        found = result.summary
        keys = ["bytes_up_by_role", "bytes_down_by_role", "virtual_seconds", "local_accuracy", "global_accuracy"]
        kept = {key: found[key] for key in keys}
        kept["models"] = hashlib.sha256(
            b"".join(_weights(p) for p in sorted((out / "models").rglob("*.safetensors")))
        ).hexdigest()
        kept["rounds"] = [
            {key: line.get(key) for key in ("virtual_seconds", "local_loss", "late", "message_bytes")}
            for line in result.rounds
        ]
        with suppress(FileNotFoundError):
            kept |= views(out / "views.bin", case.crypto == "emulated")
        if case.crypto == "ckks":  # noise of the operating system's randomness stands in every model
            kept = {key: kept[key] for key in ("virtual_seconds", "received", "views")}
        return kept


def views(path: Path, exact: bool) -> dict[str, Any]:
    """Digests of recorded views: of who got what kind from whom, when and how long, and of the content."""
    from coterie.runs.views import _HEAD, _MAGIC, _RECORD

    data, at = path.read_bytes(), len(_MAGIC)
    ends: dict[str, Any] = {}
    shape, content, count = hashlib.sha256(), hashlib.sha256(), 0
    while at < len(data):
        (length,) = _HEAD.unpack_from(data, at)
        record = _RECORD.decode(data[at + _HEAD.size : at + _HEAD.size + length])
        at, count = at + _HEAD.size + length, count + 1
        party, role, time_s, round, src, dst, kind, size, frame = record
        key = f"{role}: {kind}"
        ends[key] = ends.get(key, 0) + 1
        shape.update(repr((party, role, time_s, round, src, dst, size if exact else 0)).encode())
        content.update(frame or b"-")
    kept: dict[str, Any] = {"received": dict(sorted(ends.items())), "views": shape.hexdigest()}
    return kept | ({"content": content.hexdigest()} if exact else {})


def differences(before: Any, after: Any, at: str = "") -> Iterator[str]:
    """What differs, by place."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            yield from differences(before.get(key, "absent"), after.get(key, "absent"), f"{at}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        yield from chain.from_iterable(
            differences(a, b, f"{at}/{i}") for i, (a, b) in enumerate(zip(before, after, strict=True))
        )
    elif before != after:
        yield f"{at}: {before!r} -> {after!r}"


def main() -> None:
    """Write a record, or hold this version against one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.numbers", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--check", action="store_true", help="compare with the record, and write nothing")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--jobs", type=int, default=2, help="processes [2]")
    given = parser.parse_args()
    chosen = [case for case in cases() if given.only in case.name]
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        found = {}
        for case, kept in zip(chosen, pool.map(outcome, chosen), strict=True):
            found[case.name] = json.loads(json.dumps(kept))
            sys.stderr.write(f"{case.name}{': ' + kept['error'] if 'error' in kept else ''}\n")
    if not given.check:
        given.file.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        return
    recorded = {name: kept for name, kept in json.loads(given.file.read_text()).items() if given.only in name}
    new = found.keys() - recorded
    if moved := list(differences(recorded, {name: kept for name, kept in found.items() if name not in new})):
        sys.exit("\n".join([*moved, f"{len(moved)} numbers differ"]))
    if new:
        sys.stdout.write(f"Not in the record: {', '.join(sorted(new))}.\n")
    sys.stdout.write(f"All of {len(recorded)} cases are equal.\n")


if __name__ == "__main__":
    main()
