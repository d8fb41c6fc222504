"""Partitions and attacks that are functions of one's own: from Python, by name, resumed, and told when edited."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie import run as run_by_api
from coterie.protocol.errors import UserError
from coterie.runs import RunConfig, build, run

FAST: dict[str, Any] = {"samples": 300, "clients": 6, "rounds": 2, "model": "mlp_small"}
CODE = '''
import numpy as np
from dataclasses import replace

def two_sites(sizes, clients, rng):
    """The lower half of the classes to the first clients, and the others to the rest."""
    groups = (np.arange(clients) >= clients // 2).astype(int)
    counts = np.zeros((clients, len(sizes)), int)
    for k, size in enumerate(sizes):
        mine = np.flatnonzero(groups == (k >= len(sizes) // 2))
        counts[mine, k] = size // len(mine)
    return counts, groups

def too_many(sizes, clients, rng):
    return np.tile(sizes, (clients, 1))

def half_back(party, fit, strength):
    """Goes back by a share of its step."""
    fitted = yield fit
    return replace(fitted, weights=fit.weights - np.float32(strength) * (fitted.weights - fit.weights))
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    importlib.invalidate_caches()
    return tmp_path / "mine.py"


def config(out: str, **options: Any) -> RunConfig:
    return RunConfig("fedavg", out=out, **{**FAST, **options})


def digests(result: Any) -> list[str]:
    return [line["models_sha256"] for line in result.rounds[1:]]


def test_a_partition_deals_by_class_and_says_the_groups(mine: Path) -> None:
    experiment = build(config("unused", partition="mine:two_sites"))
    assert experiment.split.groups is not None
    assert experiment.split.groups.tolist() == [0, 0, 0, 1, 1, 1]
    experiment.close()
    with pytest.raises(UserError, match="makes groups of its own, and so does rotate:2"):
        build(config("unused", partition="rotate:2+mine:two_sites"))
    with pytest.raises(UserError, match=r"deals .* more samples of class"):
        build(config("unused", partition="mine:too_many"))


def test_an_attack_replaces_the_attackers_training_by_name_and_from_python(mine: Path) -> None:
    options = {"attack": "mine:half_back:2", "attackers": 0.5}
    named, honest = run(config("named", **options)), run(config("honest"))
    assert digests(named) != digests(honest)
    assert named.rounds[1]["poisoned"]
    module = importlib.import_module("mine")
    given = run_by_api("fedavg", out="given", attack=module.half_back, attackers=0.5, **FAST)
    assert given.rounds[1]["poisoned"]


def test_it_is_resumed_and_edited_code_is_noticed(mine: Path) -> None:
    options = {"attack": "mine:half_back:2", "attackers": 0.5, "partition": "mine:two_sites"}
    straight = digests(run(config("straight", **options)))
    run(config("resumed", rounds=1, **options))
    assert np.array_equal(digests(run(config("resumed", **options), resume=True)), straight)
    mine.write_text(CODE + "\n# edited\n")
    with pytest.raises(UserError, match="your own code has changed"):
        run(config("resumed", rounds=3, **options), resume=True)
