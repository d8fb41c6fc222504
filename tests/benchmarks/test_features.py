"""The study of sparsity features: its fleets and its tables are what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import features
from coterie.training.models import build


def test_public_samples_are_a_share_of_the_training_data_and_no_device_has_one() -> None:
    found, other = features.ground("digits", 0), features.ground("digits", 1)
    assert (len(found.public.y_train), len(found.private.y_train)) == (72, 1365)
    rows = {part.tobytes() for part in found.public.x_train}
    assert len(rows & {part.tobytes() for part in found.private.x_train}) <= 1  # digits has a few samples twice
    assert (found.public.y_train[:20] != other.public.y_train[:20]).any()


@pytest.mark.parametrize(
    "spec", ["sets:2", "sets:5:uneven", "sets:10", "pairs", "shares:70", "iid", "rotate:4", "swap:4", "hsu:0.1"]
)
def test_a_fleet_has_disjoint_devices_whose_labels_it_tells(spec: str) -> None:
    data = features.ground("digits", 0).private
    found = features.fleet(spec, data, 3)
    assert len(found.devices) == len(found.tasks) == 50
    every = np.concatenate(found.devices)
    assert len(set(every.tolist())) == len(every)
    for part, task, shares in zip(found.devices, found.tasks, found.shares, strict=True):
        assert 1 <= len(part) <= 200
        np.testing.assert_allclose(shares * len(part), np.bincount(task.labels(part), minlength=10), atol=1e-9)
    assert (found.groups is None) == spec.startswith("hsu")


def test_sets_share_no_class_and_uneven_groups_are_one_to_three() -> None:
    data = features.ground("digits", 0).private
    for k in (2, 5, 10):
        for uneven in ("", ":uneven"):
            found = features.fleet(f"sets:{k}{uneven}", data, 0)
            assert found.groups is not None
            held = [found.shares[found.groups == g].sum(axis=0) > 0 for g in range(k)]
            np.testing.assert_array_equal(np.sum(held, axis=0), 1)
            sizes = np.bincount(found.groups)
            assert sizes.max() - sizes.min() <= 1 if not uneven else 2 <= sizes[-1] / sizes[0] <= 4


def test_an_extractor_is_trained_on_public_samples_or_as_it_was_drawn() -> None:
    data = features.ground("digits", 0)
    model = build("mlp_small", data.private.input_shape, 10)
    np.testing.assert_array_equal(features.extractor_weights(data, model, "random", 2), model.initial(2))
    module = model.module_with(features.extractor_weights(data, model, "pretrained", 2))
    import torch

    with torch.inference_mode():
        guessed = module(torch.from_numpy(data.private.inputs())).argmax(1).numpy()
    assert (guessed == data.private.y_train).mean() > 0.75


def cell(**values: Any) -> dict[str, list[Any]]:
    return {"between": [0.5, 0.6], "spearman": [0.5, 0.7], "aidc clusters": [2, 3], **values}


def test_tables_have_means_and_worst_seeds() -> None:
    scores = {
        "aidc": [1.0, 0.5],
        "floors 20": [1.0, 1.0],
        "floors 5": [1.0, 1.0],
        "literal": [0.0, 0.0],
        "reference": [0.25, 0.75],
    }
    alike = {
        "between": [None, None],
        "literal clusters": [50, 50],
        "floors 20 clusters": [1, 1],
        "floors 5 clusters": [1, 1],
        "reference clusters": [3, 4],
        "aidc clusters": [1, 1],
    }
    cells = {"d/f/pretrained/iid": cell(**scores) | alike, "d/f/pretrained/sets:2": cell(**scores)}
    cells["d/f/pretrained/hsu:0.1"] = cell(**{key: [None, None] for key in scores})
    lines = features.tables({"cells": cells}).splitlines()
    assert "| data | features | extractor | iid | sets:2 |" in lines
    assert "| d | f | pretrained | 1 | 0.75 (0.50) |" in lines
    assert "| d | f | pretrained | 50 | 0.00 (0.00) |" in lines
    assert "| d | f | pretrained | 3 to 4 | 0.50 (0.25) |" in lines
    assert "| d | f | pretrained | 2 to 3; 0.60 |" in lines


def test_it_runs_and_shows_what_it_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "FEATURES", {"digits": ("mlp_small dense", "cnn dense")})
    out = tmp_path / "features.json"
    picked = ["--data", "digits", "--partition", "iid", "--partition", "sets:10", "--partition", "hsu:0.1"]
    features.main([str(out), "--seeds", "1", *picked])
    shown = capsys.readouterr().out
    told = json.loads(out.read_text())
    assert told["command"].startswith("python -m benchmarks.features ")
    assert "--seeds=1 --data=digits --partition=iid" in told["command"]
    assert set(told["cells"]) == {
        f"digits/{kind}/{extractor}/{spec}"
        for kind in features.FEATURES["digits"]
        for extractor in ("pretrained", "random")
        for spec in ("iid", "sets:10", "hsu:0.1")
    }
    assert told["cells"]["digits/mlp_small dense/pretrained/iid"]["aidc clusters"] == [1]
    assert told["cells"]["digits/cnn dense/pretrained/sets:10"]["aidc"][0] > 0.7
    assert told["cells"]["digits/cnn dense/pretrained/hsu:0.1"]["spearman"][0] > 0.4
    features.main([str(out), "--show"])
    assert capsys.readouterr().out == shown
