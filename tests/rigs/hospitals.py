"""Tables of unequal hospitals: few positives, whose risk is a direction that all hospitals share."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

COLUMNS = 8
SIZES = (60, 120, 250, 400)


def write_hospitals(folder: Path, *, positives: float = 0.06, numbers: bool = False, seed: int = 0) -> Path:
    """A folder with a csv file for each hospital. numbers: the outcome is the risk itself, not who has the most."""
    rng = np.random.default_rng(seed)
    folder.mkdir()
    direction = rng.normal(size=COLUMNS)
    for number, n in enumerate(SIZES):
        x = rng.normal(size=(n, COLUMNS)) + 0.2 * rng.normal(size=COLUMNS)
        risk = x @ direction / COLUMNS**0.5 + 0.3 * rng.normal(size=n)
        ill = np.zeros(n, int)
        ill[np.argsort(-risk)[: max(4, round(positives * n))]] = 1
        with (folder / f"hospital-{number}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow([*(f"x{k}" for k in range(COLUMNS)), "outcome"])
            table.writerows([*row.round(4), y] for row, y in zip(x, risk.round(4) if numbers else ill, strict=True))
    return folder
