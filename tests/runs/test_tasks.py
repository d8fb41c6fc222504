"""Runs whose groups have tasks of their own: everything that a client has, and is scored on, is its own task's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import coterie.method as fl
from coterie.cli.app import app
from coterie.data import load
from coterie.runs import Experiment, RunConfig, build, run
from coterie.runs.evaluation import train_accuracies
from coterie.runs.recorded import read_recorded

DIGITS = load("digits")


def built(partition: str, **options: Any) -> Experiment:
    given = {"clients": 6, "rounds": 1, "model": "linear", **options}
    return build(RunConfig("fedavg", partition=partition, **given))


def always(experiment: Experiment, label: int) -> np.ndarray:
    """The linear model that answers one label, whatever it sees."""
    vector = np.zeros(experiment.model.spec.size, np.float32)
    vector[-10:][label] = 5
    return vector


@pytest.mark.parametrize("partition", ["permute:3+dirichlet:0.5", "swap:2"])
def test_a_constant_answer_is_right_as_often_as_the_group_calls_something_so(partition: str) -> None:
    """Closed form: the share of the test set, of the own test samples and of the own training samples so called."""
    experiment = built(partition)
    groups = experiment.split.groups
    assert groups is not None
    for label in (0, 3):
        vector = always(experiment, label)
        both = fl.Mixture(np.array([0.25, 0.75]), np.stack([vector, vector]))
        for model in (vector, both):
            everybodys = dict.fromkeys(experiment.common.clients, model)
            scores = experiment.observer.scores(everybodys)
            trained = []
            for i, name in enumerate(experiment.common.clients):
                names = experiment.tasks[groups[i]].names
                was = label if names is None else int(np.flatnonzero(names == label)[0])
                own_test, own_train = (
                    DIGITS.y_test[experiment.split.test[i]],
                    DIGITS.y_train[experiment.split.train[i]],
                )
                assert scores.values["global_accuracy"][i] == pytest.approx((DIGITS.y_test == was).mean())
                assert scores.values["local_accuracy"][i] == pytest.approx((own_test == was).mean())
                assert experiment.label_counts[i, label] == (own_train == was).sum()
                trained.append((own_train == was).mean())
                effects = [(name, fl.Evaluate(vector, split)) for split in ("test", "train")]
                on_test, on_train = experiment.effects.run(effects)
                assert on_test.accuracy == pytest.approx((own_test == was).mean())
                assert on_train.accuracy == pytest.approx((own_train == was).mean())
            found = train_accuracies(experiment.observer.trained(everybodys))
            assert found is not None
            assert found.values["train_accuracy"] == pytest.approx(np.array(trained))


def test_turned_images_are_what_everything_sees() -> None:
    """Training data, losses, and both accuracies against a softmax regression by hand on images turned by hand."""
    experiment = built("rotate:4+shards:2", clients=8, scaling="unit")
    groups = experiment.split.groups
    assert groups is not None
    vector = experiment.model.initial(3)
    w, b = vector[:640].reshape(10, 64).astype(np.float64), vector[640:].astype(np.float64)
    scores = experiment.observer.scores(dict.fromkeys(experiment.common.clients, vector))
    for i, (name, own) in enumerate(experiment.effects.data.items()):
        turned = {
            part: np.stack([np.rot90(image, groups[i]) for image in x[:, 0]]) / 16 for part, x in _parts().items()
        }
        train = turned["train"][experiment.split.train[i]]
        np.testing.assert_allclose(own.x[:, 0].numpy(), train, atol=1e-6)
        logits = turned["test"].reshape(-1, 64) @ w.T + b
        right = logits.argmax(1) == DIGITS.y_test
        assert scores.values["global_accuracy"][i] == pytest.approx(right.mean())
        assert scores.values["local_accuracy"][i] == pytest.approx(right[experiment.split.test[i]].mean())
        logits = train.reshape(-1, 64) @ w.T + b
        nll = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(train)), DIGITS.y_train[experiment.split.train[i]]]
        (losses,) = experiment.effects.run([(name, fl.Losses(vector[None]))])
        np.testing.assert_allclose(losses[0], nll, atol=1e-5)


def _parts() -> dict[str, np.ndarray]:
    return {"train": DIGITS.x_train, "test": DIGITS.x_test}


def test_training_data_are_held_once_and_test_sets_once_a_task() -> None:
    experiment = built("rotate:3+dirichlet:0.5", clients=9)
    held = list(experiment.effects.data.values())
    assert sum(own.x.numel() for own in held) == DIGITS.x_train.size
    assert len({id(own.test_set) for own in held}) == len({id(own.test_set.x) for own in held}) == 3


def test_groups_that_a_server_knows_can_be_trained_beforehand() -> None:
    """Each pre-trained model is best on its own group's task."""
    settings = {"start": "pretrained", "pretrain_epochs": 3, "lr": 0.3}
    config = RunConfig("ifca", partition="permute:3", clients=9, rounds=1, model="linear")
    experiment = build(replace(config, settings={**settings, "clusters": 3}))
    groups = experiment.split.groups
    assert groups is not None
    assert len(experiment.common.starts) == 3
    for g, vector in enumerate(experiment.common.starts):
        accuracy = experiment.observer.scores(dict.fromkeys(experiment.common.clients, vector)).values[
            "global_accuracy"
        ]
        assert accuracy[groups == g].min() > 0.8
        assert accuracy[groups != g].max() < 0.2
    with pytest.raises(
        fl.UserError, match=r"4 known groups, and partition permute:3 has 3: choose labelsets:4 or permute:4"
    ):
        build(replace(config, settings={**settings, "clusters": 4}))


def test_the_fingerprint_tells_tasks_and_groups_apart() -> None:
    specs = ("iid", "rotate:2", "rotate:3", "permute:2", "permute:3", "swap:1", "swap:2", "rotate:2+shards:2")
    found = {spec: built(spec).fingerprint for spec in specs}
    assert len(set(found.values())) == len(specs)
    assert found["permute:3"] == built("permute:3").fingerprint


def test_a_run_writes_its_true_groups_and_its_audit_reads_the_own_labels(tmp_path: Path) -> None:
    config = RunConfig(
        "fedavg", samples=300, clients=6, rounds=1, partition="permute:3+shards:2", record=True, out=str(tmp_path / "a")
    )
    experiment = build(config)
    run(config)
    written = json.loads((tmp_path / "a" / "partition.json").read_text())
    assert written["groups"] == experiment.split.groups.tolist()  # type: ignore[union-attr]
    assert written["tasks"] == [task.words for task in experiment.tasks]
    plain = build(replace(config, partition="shards:2"))
    for i, g in enumerate(written["groups"]):
        names = experiment.tasks[g].names
        counts = np.array(written["label_counts"][i])[np.arange(10) if names is None else names]
        np.testing.assert_array_equal(counts, plain.label_counts[i])
    np.testing.assert_array_equal(read_recorded(tmp_path / "a").label_counts, written["label_counts"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two data sets that a single pixel decides, each another one; and one of other samples."""
    rng = np.random.default_rng(0)
    for name, pixel, shape in (("left", 0, (2, 2)), ("right", 3, (2, 2)), ("large", 0, (3, 3))):
        y, y_test = np.arange(80) % 2, np.arange(40) % 2
        x, x_test = (rng.random((len(labels), *shape), np.float32) for labels in (y, y_test))
        for images, labels in ((x, y), (x_test, y_test)):
            images.reshape(len(labels), -1)[:, pixel] = labels
        np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test, kind="image")
    return tmp_path


def test_domains_are_each_group_s_own_data_set(folder: Path) -> None:
    experiment = built("domains:left,right", data="left", data_dir=str(folder), clients=8)
    groups = experiment.split.groups
    assert groups is not None
    sizes = {name: experiment.owns[name].samples for name in experiment.common.clients}
    assert set(sizes.values()) == {20}
    for i, own in enumerate(experiment.effects.data.values()):
        decides = own.x.reshape(len(own.x), 4)[:, 3 * groups[i]]
        assert ((decides > 0).numpy() == (own.y == 1).numpy()).all()
    left, right = (torch.tensor([pixel == at for pixel in range(4)]) for at in (0, 3))
    for g, sees in enumerate((left, right)):
        vector = torch.cat([-3.0 * sees, 3.0 * sees, torch.zeros(2)]).numpy().astype(np.float32)
        accuracy = experiment.observer.scores(dict.fromkeys(experiment.common.clients, vector)).values[
            "global_accuracy"
        ]
        assert (accuracy[groups == g] == 1).all()
        assert (accuracy[groups != g] < 0.8).all()


@pytest.mark.parametrize(
    ("partition", "data", "says"),
    [
        ("domains:right,left", "left", "say --data right"),
        ("domains:left,large", "left", "input shape is (1, 2, 2) in left and (1, 3, 3) in large"),
        ("domains:left,lost", "left", "unknown data set 'lost'"),
        ("rotat:4", "digits", "did you mean 'rotate'"),
        ("swap:6", "digits", "use at most swap:5"),
    ],
)
def test_mistakes_on_the_command_line(folder: Path, partition: str, data: str, says: str) -> None:
    words = ["run", "fedavg", "--data", data, "--data-dir", str(folder), "--partition", partition, "--model", "linear"]
    ended = CliRunner().invoke(app, [*words, "--clients", "8", "--out", str(folder / "out")])
    assert ended.exit_code == 2
    assert says in " ".join(ended.stderr.split())
    assert not (folder / "out").exists()


def test_all_forms_are_listed() -> None:
    ended = CliRunner().invoke(app, ["list", "partitions"], env={"COLUMNS": "200"})
    assert ended.exit_code == 0
    for form in (
        "dirichlet:BETA",
        "labelsets:K[:LO-HI][,iid=RATE[@FIRST]]",
        "rotate:K[+SKEW]",
        "domains:A,B,...[+SKEW]",
    ):
        assert form in ended.stdout
