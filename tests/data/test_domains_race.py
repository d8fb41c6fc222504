"""Groups with data sets of their own in a race: every method takes them, Coterie too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import coterie
from coterie.data import Dataset, from_arrays
from coterie.runs import inputs


def images(name: str, seed: int) -> Dataset:
    """Four classes of noisy stripes, which lie elsewhere in each data set."""
    draw = np.random.default_rng(seed)
    y = np.arange(240) % 4
    x = draw.integers(0, 80, (240, 8, 8))
    for i, label in enumerate(y):
        x[i, (2 * label + seed) % 8] += 150
    return from_arrays(name, x[:160], y[:160], x[160:], y[160:], classes=4, kind="image")


@pytest.mark.parametrize(
    "methods",
    [["coterie", "fedavg"], pytest.param(["ifca", "scaffold", "fedcaprivacy@hardened"], marks=pytest.mark.long)],
)
def test_a_race_on_domains(methods: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"one": images("one", 0), "two": images("two", 3)}
    monkeypatch.setattr(inputs, "load", lambda name, *_, **__: known[name])
    options = {"clients": 12, "rounds": 2, "model": "linear", "crypto": "emulated", "lr": 0.1, "progress": False}
    done = coterie.compare(
        methods, "one", partition="domains:one,two+dirichlet:1", seeds=1, out=tmp_path / "c", **options
    )
    content = done.content
    assert [row["method"] for row in content["rows"]] == [*methods, "local"]
    for row in content["rows"]:
        assert row["local_accuracy"]["mean"] > 0.3
        assert row["prior_local_accuracy"]["mean"] > 0.3
    (groups,) = {
        (done.folder / row["runs"][0] / "partition.json").read_text().partition('"groups": ')[2].partition("]")[0]
        for row in content["rows"]
    }
    assert sorted(groups.strip("[").split(", ")) == ["0"] * 6 + ["1"] * 6
