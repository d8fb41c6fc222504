"""``python -m coterie.bench FILE``: the speeds that the documentation quotes, as ratios measured in one run.

Training against a tuned plain PyTorch loop, packed Paillier against one ciphertext a parameter, CKKS against bare SEAL.
Takes some minutes and wants a quiet machine; the file says which machine it was.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

import coterie
from coterie.crypto import bench as crypto_bench
from coterie.training import bench as training_bench

MEASURES: dict[str, Callable[[], object]] = {
    "paillier": crypto_bench.run,
    "ckks": crypto_bench.run_ckks,
    "ckks_deep": crypto_bench.run_deep,
    "training": training_bench.run,
}


def main(path: Path) -> None:
    """Measure everything and write the file."""
    console = Console(highlight=False)
    results: dict[str, object] = {"version": coterie.__version__, "command": "make bench"}
    for name, measure in MEASURES.items():
        console.print(f"measuring {name} ...")
        results[name] = measure()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    console.print_json(data=results)
    console.print(f"written: {path}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
