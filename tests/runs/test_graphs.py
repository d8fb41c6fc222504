"""Runs on graphs: every system and baseline trains the graph convolutional network as it trains any other model."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matrix import few
from small_graphs import communities, graph_of, save

from coterie.data import load
from coterie.data.neighbourhoods import MOST_ROWS, adjacency, as_nodes, normalised
from coterie.protocol.errors import UserError
from coterie.runs import SYSTEMS, RunConfig, build, resolve, run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path / "citations.npz", communities())
    return tmp_path


def config(folder: Path, system: str = "fedavg", **options: object) -> RunConfig:
    given = {"data": "citations", "model": "gcn", "clients": 6, "rounds": 2, "partition": "iid", "crypto": "emulated"}
    return RunConfig(system, data_dir=str(folder), **{**given, **options})


@pytest.mark.parametrize(
    "system",  # FedBN needs batch normalisation, which it does not have
    few([name for name in SYSTEMS if name != "fedbn"], {"fedavg", "fedcaprivacy", "scaffold", "fedem"}),
)
def test_every_system_trains_it(system: str, folder: Path) -> None:
    experiment = build(config(folder, system))
    try:
        experiment.set_up()
        lines = [experiment.round(r) for r in (1, 2)]
        assert np.isfinite(lines[-1]["global_loss"])
        assert not any("skipped" in line["notes"] for line in lines)
    finally:
        experiment.close()


def test_it_learns_what_edges_tell(folder: Path) -> None:
    found = run(config(folder, rounds=12, settings={"lr": 0.3}, out=str(folder / "run")))
    assert found.summary["global_accuracy"] > 0.85


def test_augmented_views_multiply_the_training_samples_alone(folder: Path) -> None:
    plain, more = (build(config(folder, augment=count, fine_tune="held_out")) for count in (0, 2))
    try:
        for name, own in plain.dealt.data.items():
            views = more.dealt.data[name]
            assert len(views.y) == 3 * len(own.y)
            np.testing.assert_array_equal(views.x[: len(own.y)], own.x)
            np.testing.assert_array_equal(views.y, np.tile(own.y, 3))
            assert not np.array_equal(views.x[len(own.y) : 2 * len(own.y)], own.x)
            assert own.held_out is not None
            assert views.held_out is not None
            np.testing.assert_array_equal(views.held_out.x, own.held_out.x)
        np.testing.assert_array_equal(more.label_counts, 3 * plain.label_counts)
    finally:
        plain.close()
        more.close()


def test_public_data_of_a_graph_are_a_subgraph_of_the_hub(folder: Path) -> None:
    experiment = build(config(folder, public=0.2))
    try:
        public = experiment.data["server"]
        assert len(public.y) == len(experiment.split.public) == 12
        assert tuple(public.x.shape[1:]) == experiment.model.input_shape
    finally:
        experiment.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": "digits"}, "model gcn takes nodes of a graph, and digits is none: use cora"),
        ({"data": "digits", "model": "mlp", "augment": 1}, "augment=1 adds views of a graph"),
        ({"model": "mlp", "augment": 1}, "augment=1 adds views of a graph"),
        ({"augment": -1}, "option 'augment' must be at least 0"),
        ({"partition": "rotate:2"}, "a node of a graph"),
    ],
)
def test_what_is_refused(options: dict[str, object], message: str, folder: Path) -> None:
    with pytest.raises(UserError, match=message):
        build(config(folder, **options))


def test_a_graph_at_a_path_is_told_its_name(folder: Path) -> None:
    with pytest.raises(
        UserError, match=f"is a graph: give its name and its folder, --data citations --data-dir {folder}"
    ):
        build(config(folder, data=str(folder / "citations.npz"), clients=None))


def test_a_graph_without_edges_runs(folder: Path) -> None:
    bare = graph_of(90, np.empty((2, 0)), np.arange(60), np.arange(60, 90))
    save(folder / "bare.npz", bare)
    experiment = build(config(folder, data="bare", augment=4))
    try:
        assert experiment.model.input_shape == (1, 6)
        experiment.set_up()
        assert np.isfinite(experiment.round(1)["global_loss"])
    finally:
        experiment.close()


def test_the_rate_follows_data_set_and_model() -> None:
    assert resolve(RunConfig("fedavg", data="cora", model="gcn")).settings["lr"] == 0.3
    assert resolve(RunConfig("fedavg", data="cora")).settings["lr"] == 10
    assert resolve(RunConfig("fedavg", data="cora")).model == "linear"
    assert resolve(RunConfig("fedavg", data="citeseer_all", model="gcn", settings={"lr": 1.0})).settings["lr"] == 1


def test_a_trained_model_predicts_neighbourhoods(folder: Path) -> None:
    found = run(config(folder, rounds=6, settings={"lr": 0.3}, out=str(folder / "run")))
    data = as_nodes(load("citations", folder))
    right = found.models.of("client/0").predict(data.inputs(split="test")) == data.labels(split="test")
    assert right.mean() == pytest.approx(found.summary["global_accuracy"])


def real(name: str) -> str:
    folder = os.environ.get("COTERIE_DATA")
    if not folder or not (Path(folder) / f"{name}.npz").is_file():
        pytest.skip(f"COTERIE_DATA has no {name}.npz")
    return folder


@pytest.mark.long
@pytest.mark.real_data
@pytest.mark.parametrize(("name", "most"), [("cora", 0.018), ("citeseer", 0.009)])
def test_few_nodes_have_more_neighbours_than_a_sample_shows(name: str, most: float) -> None:
    data = as_nodes(load(name, real(name)))
    degrees = np.diff(adjacency(data.graph).indptr)
    assert 0 < (degrees >= MOST_ROWS).mean() < most
    hat, x = normalised(adjacency(data.graph)), data.graph.x
    for node, sample in zip(data.graph.test[:50], data.inputs(np.arange(50), "test"), strict=True):
        if degrees[node] < MOST_ROWS:  # A^ A^ X, which is what two layers see without their weights
            twice = sample[:, -1] @ sample[:, :-1]
            expected = (hat[[node]] @ hat @ x)[0] * x.shape[1] ** 0.5
            np.testing.assert_allclose(twice, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.real_data
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "low", "high"), [("cora", 0.76, 0.84), ("citeseer", 0.62, 0.72), ("cora_all", 0.83, 0.89)]
)
def test_accuracies_that_others_state(name: str, low: float, high: float, tmp_path: Path) -> None:
    """Kipf and Welling: .815 and .703 with dropout, weight decay and early stopping, of all nodes together."""
    folder = real(name.partition("_")[0])
    one = RunConfig("fedavg", data=name, model="gcn", clients=1, partition="iid", data_dir=folder)
    found = run(replace(one, out=str(tmp_path / name)))
    assert low < found.summary["global_accuracy"] < high
