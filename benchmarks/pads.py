"""What PAFed's uploads under one-time pads cost beside ciphertexts, and what a thief reads off the models.

    python -m benchmarks.pads docs/security/pads.json

CPU seconds are of one core of this machine. The runs with a thief are those of ``benchmarks.security.theft`` in mode
``hardened``: digits, an MLP, default settings, real keys.
"""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.security.theft import thieves
from coterie.crypto import ckks
from coterie.crypto.pads import PadKey, completed, counterpart
from coterie.record.provenance import write_record
from papers.mingledpie_costs import timed

Row = dict[str, Any]
WEIGHTS = 178_110
"""Of an MLP on Fashion-MNIST."""


def costs(weights: int = WEIGHTS, vectors: int = 8, parameters: str = "ckks-8192-deep") -> list[Row]:
    """CPU seconds, bytes and largest error of an upload as a ciphertext and under a pad; of the mean of ``vectors``."""
    key, source = ckks.keygen(parameters, allow_insecure=True), np.random.default_rng(0)
    updates = source.normal(0, 0.01, (vectors, weights))
    pads = [PadKey(key.public, secrets.token_bytes(32)) for _ in updates]
    seeds = [pad.key for pad in pads]
    key.public.encrypt(updates[0])  # tables are made at the first use
    completed(pads[0].encrypt(updates[0]), counterpart(key, seeds[:1], weights))
    plain_s, sealed = _least(lambda: [key.public.encrypt(row) for row in updates])
    pad_s, padded = _least(lambda: [pad.encrypt(row) for pad, row in zip(pads, updates, strict=True)])
    part_s, part = _least(lambda: counterpart(key, seeds, weights))
    one_s, _ = _least(lambda: counterpart(key, seeds[:1], weights))
    add_s, total = _least(lambda: completed(sum(padded[1:], padded[0]), part))
    truth = updates.sum(axis=0)
    errors = [float(np.abs(key.decrypt(vector) - truth).max()) for vector in (sum(sealed[1:], sealed[0]), total)]
    return [
        {
            "upload": "ciphertext",
            "bytes": len(sealed[0].to_bytes()),
            "client_s": plain_s / vectors,
            "helper_s": 0.0,
            "helper_each_s": 0.0,
            "helper_bytes": 0,
            "error": errors[0],
        },
        {
            "upload": "one-time pad",
            "bytes": len(padded[0].to_bytes()),
            "client_s": pad_s / vectors,
            "helper_s": one_s,
            "helper_each_s": (part_s - one_s) / (vectors - 1),
            "helper_bytes": len(part.to_bytes()),
            "aggregator_s": add_s / vectors,
            "error": errors[1],
        },
    ]


def _least(work: Callable[[], Any]) -> tuple[float, Any]:
    """The least CPU seconds of three times, and what the work then gives."""
    return min((timed(work) for _ in range(3)), key=itemgetter(0))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[12, 20])
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args(words)
    found = {
        "weights": WEIGHTS,
        "costs": costs(),
        "thieves": thieves(given.seeds, given.sizes, mode="hardened", rounds=given.rounds),
    }
    write_record(given.out, "python -m benchmarks.pads docs/security/pads.json", found)


if __name__ == "__main__":
    main()
