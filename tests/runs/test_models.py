"""The models of a run: what comes out of its folder predicts as the run's own evaluation did."""

from __future__ import annotations

import json
import shutil
import stat
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import batch_norm_models
import numpy as np
import pytest
import torch
from ended import interrupt
from every_system import model_for
from matrix import few
from numpy.typing import NDArray
from torch import nn

import coterie
from coterie.data.dataset import Dataset
from coterie.data.sources import load as load_data
from coterie.data.targets import Targets
from coterie.data.tasks import of_clients
from coterie.protocol.errors import RunError, UserError
from coterie.protocol.system import Mixture
from coterie.record.files import atomic_write
from coterie.runs import FinishedRun, RunConfig, build, export_model, from_toml, load, load_exported, load_models, run
from coterie.runs.trained import Mixed
from tests.systems.test_parties_restart import CASES

QUICK = RunConfig(
    "fedavg", clients=4, rounds=2, model="linear", crypto="emulated", seed=1, settings={"max_epochs": 1}, eval_every=1
)
MIXED = replace(QUICK, system="fedem", model="mlp_small")
NORMED = "batch_norm_models:small"


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A run of one model. Tests that write in its folder have a copy."""
    return run(replace(QUICK, out=str(tmp_path_factory.mktemp("quick") / "run")))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A run whose clients have mixtures of models."""
    return run(replace(MIXED, out=str(tmp_path_factory.mktemp("mixed") / "run")))


@pytest.fixture(scope="module")
def normed(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A run of a model of one's own, with batch normalisation."""
    return run(replace(QUICK, model=NORMED, out=str(tmp_path_factory.mktemp("normed") / "run")))


def accuracies(predict: Any, config: RunConfig) -> dict[str, list[float]]:
    """Of ``predict(client, x)`` for every client: on its own test samples and on all of its task, as they are stored.

    Images of tasks that are turned by right angles are turned here, without the library's own code.
    """
    made = build(replace(config, out=None))
    tasks = of_clients(made.split, made.tasks)
    found: dict[str, list[float]] = {"global_accuracy": [], "local_accuracy": []}
    for name in made.models():
        task, own = tasks[int(name.split("/")[1])], made.split.test[int(name.split("/")[1])]
        quarters = int(4 * Fraction(task.change.key)) if task.change else 0
        x = np.rot90(task.dataset.x_test, quarters, axes=(-2, -1))
        right = predict(name, x) == task.labels(split="test")
        found["global_accuracy"].append(float(right.mean()))
        found["local_accuracy"].append(float(right[own].mean()))
    made.close()
    return found


def recorded(out: Path) -> dict[str, Any]:
    content = json.loads((out / "clients.json").read_text())
    return {key: pytest.approx(content[key], abs=1e-12) for key in ("global_accuracy", "local_accuracy")}


def files(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((out / "models").iterdir())}


SHORT = [case for case in CASES if case.id in ("fedepc-paper", "ofl-hardened-2-2", "fedem-paper")]


@pytest.mark.parametrize(("system", "mode", "settings"), few(CASES, SHORT))
def test_every_system_s_models_predict_as_the_run_did(
    system: str, mode: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    model = model_for(system, QUICK.model)
    config = replace(QUICK, system=system, mode=mode, model=model, clients=5, partition="permute:2", settings=settings)
    run(replace(config, out=str(tmp_path / "run")))
    result = load(tmp_path / "run")
    found = accuracies(result.predict, config)
    assert found == recorded(result.folder)
    assert np.mean(found["local_accuracy"]) == pytest.approx(result.summary["local_accuracy"])


@pytest.mark.parametrize(
    "options",
    [
        {"model": NORMED, "system": "local"},
        {"scaling": "unit"},
        {"partition": "rotate:4"},
        {"fine_tune": "held_out"},
        {"system": "fedem", "model": "mlp_small", "partition": "rotate:2"},
    ],
    ids=str,
)
def test_models_of_any_kind_predict_as_the_run_did(options: dict[str, Any], tmp_path: Path) -> None:
    config = replace(QUICK, **options)
    result = run(replace(config, out=str(tmp_path / "run")))
    found = accuracies(result.predict, config)
    assert found == recorded(result.folder)
    assert result.clients == tuple(f"client/{i}" for i in range(4))
    for client in result.clients:
        result.export(client, tmp_path / client.replace("/", "_"))
    exported = {client: load_exported(tmp_path / client.replace("/", "_")) for client in result.clients}
    own = config.model if ":" in str(config.model) else None
    assert accuracies(lambda client, x: exported[client].predict(x, model=own), config) == found


def test_every_distinct_model_is_written_once(tmp_path: Path) -> None:
    for system, count in {"fedavg": 1, "local": 4, "fedem": 3}.items():
        run(replace(QUICK, system=system, out=str(tmp_path / system)))
        assert len(files(tmp_path / system)) == count + 1
        index = json.loads((tmp_path / system / "models/index.json").read_text())
        assert {name for client in index["clients"].values() for name in client["files"]} == set(index["sha256"])
        assert (index["model"], index["input_shape"], index["classes"]) == ("linear", [1, 8, 8], 10)


def test_the_files_are_for_this_user_alone(quick: FinishedRun) -> None:
    folder = quick.folder / "models"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in folder.iterdir())


def test_buffers_of_batch_normalisation_travel(normed: FinishedRun) -> None:
    trained = normed.model("client/2")
    assert isinstance(trained, nn.Sequential)
    assert not any(layer.training for layer in trained.modules())
    norm = trained[1]
    assert isinstance(norm, nn.BatchNorm2d)
    assert not torch.equal(norm.running_mean, torch.zeros(4))  # type: ignore[arg-type]
    assert not torch.equal(norm.running_var, torch.ones(4))  # type: ignore[arg-type]


def test_a_mixture_mixes_probabilities(mixed: FinishedRun) -> None:
    trained, whole = mixed.models.of("client/1"), mixed.model("client/1")
    assert isinstance(whole, Mixed)
    x = torch.from_numpy(trained.scaled(load_data("digits").x_test[:9]))
    with torch.no_grad():
        outputs = [model(x).double().numpy() for model in whole.models]
        p = np.exp(whole(x).double().numpy())
    softmax = [np.exp(out) / np.exp(out).sum(axis=1, keepdims=True) for out in outputs]
    expected = sum(share * p for share, p in zip(trained.shares, softmax, strict=True))
    assert len(set(trained.shares)) == 3
    for found in (p, mixed.predict("client/1", load_data("digits").x_test[:9], proba=True)):
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_share_of_nothing_does_no_harm() -> None:
    """log 0 is -inf, and stays in its own model."""
    models = [nn.Linear(3, 2), nn.Linear(3, 2)]
    x = torch.randn(5, 3)
    found = Mixed(models, np.array([0.0, 1.0]))(x)
    torch.testing.assert_close(found, torch.log_softmax(models[1](x), 1))


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Gives the digits names, and their clients names of their own."""
    names = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

    def loaded(*args: Any, **options: Any) -> Dataset:
        return replace(load_data(*args, **options), targets=Targets(names=names))

    monkeypatch.setattr("coterie.runs.inputs.load", loaded)
    return names


def test_label_names_come_back(named: tuple[str, ...], tmp_path: Path) -> None:
    result = run(replace(QUICK, rounds=6, out=str(tmp_path / "run")))
    data = load_data("digits")
    found = result.predict("client/0", data.x_test)
    assert set(found) <= set(named)
    assert float((found == np.array(named)[data.y_test]).mean()) == pytest.approx(result.summary["global_accuracy"])
    trained = result.models.of("client/0")
    assert trained.checked_labels(["two", "nine"], 2).tolist() == ["two", "nine"]
    with pytest.raises(UserError, match=r"y: sample 1 has label 'seve'.*did you mean 'seven'\?"):
        trained.checked_labels(["two", "seve"], 2)


def test_clients_of_one_s_own_predict_in_their_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    data = {}
    for site, shift in {"hospital_a": 0.0, "hospital_b": 1.0, "hospital_c": 2.0}.items():
        x = draw.normal(size=(60, 4)) * [1, 10, 100, 1000]
        data[site] = (x, np.where(x[:, 3] > 1000 * (shift - 1), "ill", "well"))
    result = coterie.run("local", data=data, rounds=5, out="run", progress=False, max_epochs=5)
    found = json.loads((tmp_path / "run/clients.json").read_text())
    for i, (site, (x, y)) in enumerate(data.items()):
        assert set(result.predict(site, x)) == {"ill", "well"}
        assert float((result.predict(site, x) == y).mean()) > 0.8
        assert (result.predict(site, x) == result.predict(f"client/{i}", x)).all()
    assert coterie.load("run").model("hospital_b").training is False
    own = build(RunConfig(**{**vars(from_toml("run/config.toml")), "out": None}))
    for i, site in enumerate(data):
        x, y = own.split.test[i], own.observer.data[f"client/{i}"].test_set
        right = result.predict(site, own.tasks[0].dataset.x_test[x]) == np.array(["ill", "well"])[y.y[x].numpy()]
        assert float(right.mean()) == pytest.approx(found["local_accuracy"][i])
    own.close()
    with pytest.raises(UserError, match=r"has no client 'hospital_d'; did you mean 'hospital_"):
        result.predict("hospital_d", data["hospital_a"][0])


def test_a_module_that_was_given_as_an_object_predicts_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def net(input_shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

    for i, model in enumerate((net, net((1, 8, 8), 10))):
        result = coterie.run("fedavg", model=model, clients=3, rounds=1, out=f"run{i}", progress=False, max_epochs=1)
        found = result.predict("client/1", load_data("digits").x_test)
        assert float((found == load_data("digits").y_test).mean()) == pytest.approx(result.summary["global_accuracy"])
        result.export("client/1", f"one{i}")
        with pytest.raises(UserError, match="given as an object of Python"):
            load_exported(f"one{i}").module()
        assert (load_exported(f"one{i}").predict(load_data("digits").x_test, model=model) == found).all()


@pytest.mark.parametrize("y", [[0, 10], [-1, 3], [0.5, 1], ["0", "1"], [1], [[1], [2]]], ids=str)
def test_unknown_labels_are_refused(y: Any, quick: FinishedRun) -> None:
    trained = quick.models.of("client/0")
    with pytest.raises(UserError, match="file y"):
        trained.checked_labels(y, 2, "file y")


def test_clients_are_found_by_their_own_names(quick: FinishedRun, tmp_path: Path) -> None:
    shutil.copytree(quick.folder, tmp_path / "run")
    index = tmp_path / "run/models/index.json"
    content = json.loads(index.read_text())
    content["clients"]["client/2"]["name"] = "hospital_a"
    index.write_text(json.dumps(content))
    models = load_models(tmp_path / "run")
    assert models.of("hospital_a").facts.client == "client/2"
    assert models.of("client/2").facts.name == "hospital_a"
    for wrong, hint in {"hospital_b": "'hospital_a'", "client/9": "'client/", "hopsital": "'hospital_a'"}.items():
        with pytest.raises(
            UserError, match=rf"has no client '{wrong}'; did you mean {hint}.*client/2 \('hospital_a'\)"
        ):
            models.of(wrong)
    with pytest.raises(UserError, match=r"no client 'x'\. It has client/0"):
        quick.model("x")


def test_a_client_that_has_not_joined_has_no_model(tmp_path: Path) -> None:
    settings = {"max_epochs": 1, "founders": 2, "newcomers": 1, "join_every": 5}
    result = run(replace(QUICK, settings=settings, out=str(tmp_path / "run")))
    assert result.clients == ("client/0", "client/1")
    with pytest.raises(UserError, match="has no client 'client/3'"):
        result.model("client/3")


# -- architectures of one's own ----------------------------------------------------------------------------------------


def test_code_of_one_s_own_runs_only_if_the_caller_names_it(normed: FinishedRun, tmp_path: Path) -> None:
    x = load_data("digits").x_test[:3]
    expected = normed.predict("client/0", x, proba=True)
    normed.export("client/0", tmp_path / "one.safetensors")
    exported = load_exported(tmp_path / "one.safetensors")
    with pytest.raises(UserError, match=r"not imported on the word of a file: if you trust it, give model="):
        exported.predict(x)
    for given in (NORMED, batch_norm_models.small, batch_norm_models.small((1, 8, 8), 10)):
        assert (exported.predict(x, proba=True, model=given) == expected).all()
    with pytest.raises(UserError, match=r"is missing in the architecture|in the file and"):
        exported.predict(x, model="linear")
    with pytest.raises(UserError, match=r"not a torch\.nn\.Module"):
        exported.predict(x, model=lambda shape, classes: 3)  # type: ignore[arg-type,return-value]


def test_a_module_that_is_given_is_copied(normed: FinishedRun) -> None:
    own = batch_norm_models.small((1, 8, 8), 10)
    before = {name: value.clone() for name, value in own.state_dict().items()}
    found = load(normed.folder, own).model("client/0")
    assert found is not own
    assert not found.training
    assert all(torch.equal(value, before[name]) for name, value in own.state_dict().items())


def test_random_numbers_of_the_caller_stay_as_they_were(quick: FinishedRun) -> None:
    before = torch.get_rng_state()
    quick.model("client/0")
    assert torch.equal(torch.get_rng_state(), before)


def test_an_export_overwrites_nothing(quick: FinishedRun, tmp_path: Path) -> None:
    trained = quick.models.of("client/0")
    path = tmp_path / "one"
    export_model(trained, path)
    assert path.read_bytes()
    for taken in (path, tmp_path, tmp_path / "nowhere/one"):
        with pytest.raises(UserError, match=r"is there already|is not a folder"):
            export_model(trained, taken)


# -- samples -----------------------------------------------------------------------------------------------------------


def test_inputs_are_scaled_as_on_training(tmp_path: Path) -> None:
    for scaling in ("standard", "unit"):
        result = run(replace(QUICK, scaling=scaling, out=str(tmp_path / scaling)))  # type: ignore[arg-type]
        data = replace(load_data("digits"), scaling=scaling)  # type: ignore[arg-type]
        trained = result.models.of("client/0")
        expected = data.inputs(split="test")
        forms: list[NDArray[Any]] = [data.x_test, data.x_test[:, 0], data.x_test[:, 0, ..., None]]
        for x in [*forms, data.x_test.astype(np.float64)]:
            np.testing.assert_array_equal(trained.scaled(x), expected)


@pytest.mark.parametrize(
    ("x", "error"),
    [
        (np.zeros((2, 64)), r"new\.npz has shape \(2, 64\), and the model of 'client/0'"),
        (np.zeros((8, 8)), r"shape \(8, 8\) of one sample: give x\[None\]"),
        (np.zeros((0, 1, 8, 8)), "holds no samples"),
        (np.zeros((2, 3, 8, 8)), r"takes \('n', 1, 8, 8\)"),
        (np.full((2, 8, 8), np.nan), "sample 0 holds NaN, infinity or a value too large for float32, and so do 1 more"),
        (np.full((2, 8, 8), 1e39), "too large for float32"),
        (np.full((2, 8, 8), "a"), "it must hold numbers"),
        (np.zeros((2, 8, 8), complex), "it must hold numbers"),
        ([[1, 2], [3]], "samples differ in shape"),
        (None, "it must hold numbers"),
    ],
    ids=lambda x: str(getattr(x, "shape", x)),
)
def test_wrong_samples_are_refused(x: Any, error: str, quick: FinishedRun) -> None:
    trained = quick.models.of("client/0")
    with pytest.raises(UserError, match=error):
        trained.predict(x, where="new.npz")


def test_a_batch_of_one_is_predicted(quick: FinishedRun) -> None:
    assert quick.models.of("client/0").predict(np.zeros((1, 8, 8))).shape == (1,)


def test_the_models_are_the_evaluation_s_own(mixed: FinishedRun) -> None:
    """Bit for bit, for a mixture too."""
    made = build(MIXED)
    made.set_up()
    for r in (1, 2):
        made.round(r)
    for name, own in made.models().items():
        assert isinstance(own, Mixture)
        trained = mixed.models.of(name)
        assert trained.shares.tobytes() == own.weights.tobytes()
        for tensors, vector in zip(trained.tensors, own.models, strict=True):
            assert all(torch.equal(tensors[key], value) for key, value in made.model.unflatten(vector.copy()).items())
    made.close()


# -- runs that stop and go on ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", ["fedavg", "local"])
def test_a_stopped_run_has_the_models_of_its_last_kept_round(system: str, tmp_path: Path) -> None:
    config = replace(QUICK, system=system, rounds=5, checkpoint_every=2, out=str(tmp_path / "run"))
    interrupt(config, 3)
    models = load_models(tmp_path / "run")
    assert models.index.round == 2
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    found = accuracies(lambda client, x: models.of(client).predict(x), config)
    for key, values in found.items():
        assert np.mean(values) == pytest.approx(lines[1][key], abs=1e-12)
        assert np.mean(values) != pytest.approx(lines[2][key], abs=1e-12)
    with pytest.raises(UserError, match="no finished run"):
        load(tmp_path / "run")

    run(config, resume=True)
    run(replace(config, out=str(tmp_path / "undisturbed")))
    assert files(tmp_path / "run") == files(tmp_path / "undisturbed")
    assert load(tmp_path / "run").models.index.round == 5


def test_models_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(QUICK, system="local", rounds=3, out=str(tmp_path / "run"), checkpoint_every=1)
    written: list[str] = []

    def full(path: Path, data: Any, mode: int = 0o644) -> None:
        written.append(path.name)
        if len(written) == 7:  # in the second round
            raise RunError(f"cannot write {path}: no space left on device")
        atomic_write(path, data, mode)

    monkeypatch.setattr("coterie.runs.models.atomic_write", full)
    with pytest.raises(RunError, match="no space left"):
        run(config)
    assert written == [f"{i}.safetensors" for i in (0, 1, 2, 3, 0, 1, 2)]
    with pytest.raises(UserError, match=r"holds no models: finish it with coterie run --resume --out"):
        load_models(tmp_path / "run")
    run(config, resume=True)
    run(replace(config, out=str(tmp_path / "undisturbed")))
    assert files(tmp_path / "run") == files(tmp_path / "undisturbed")


def test_files_that_are_left_over_go_and_a_user_s_own_stay(tmp_path: Path) -> None:
    config = replace(QUICK, out=str(tmp_path / "run"))
    interrupt(replace(config, checkpoint_every=1), 1)
    folder = tmp_path / "run/models"
    for name in ("7.safetensors", ".3.safetensors.abc", "notes.txt", "mine.safetensors"):
        (folder / name).write_bytes(b"x")
    run(config, resume=True)
    assert {path.name for path in folder.iterdir()} == {"0.safetensors", "index.json", "notes.txt", "mine.safetensors"}


def test_no_link_is_followed_on_writing(tmp_path: Path) -> None:
    interrupt(replace(QUICK, checkpoint_every=1, out=str(tmp_path / "run")), 1)
    folder, other = tmp_path / "run/models", tmp_path / "other"
    folder.rename(other)
    folder.symlink_to(other)
    before = sorted(path.read_bytes() for path in other.iterdir())
    with pytest.raises(UserError, match="symbolic link"):
        run(replace(QUICK, out=str(tmp_path / "run")), resume=True)
    assert sorted(path.read_bytes() for path in other.iterdir()) == before
