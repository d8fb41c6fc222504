"""Files of models from elsewhere: whatever they hold, a clear error or a model, and never code that runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from coterie.protocol.errors import UserError
from coterie.runs import RunConfig, load_exported, load_models, run
from coterie.runs.models import decode, encode
from coterie.runs.trained import ModelFacts, TrainedModel, state
from coterie.training.models import NAMES, build
from coterie.training.names import GRAPH_MODEL

FACTS: dict[str, Any] = {
    "format": 1,
    "model": "linear",
    "input_shape": [3],
    "classes": 2,
    "class_names": None,
    "task": "classes",
    "data_kind": "tabular",
    "version": "1",
}
SCALE = {"coterie.zero": torch.zeros(3), "coterie.unit": torch.ones(3)}
NET = state(build("linear", (3,), 2).module)


def file(tensors: dict[str, Tensor] | None = None, **facts: Any) -> bytes:
    """A file of a linear model, with other tensors or facts."""
    return safetensors.torch.save({**NET, **SCALE, **(tensors or {})}, {"coterie": json.dumps({**FACTS, **facts})})


def mixture(shares: Any = (0.5, 0.5), count: int = 2) -> bytes:
    tensors = {f"coterie.{m}.{name}": value.clone() for m in range(count) for name, value in NET.items()}
    return safetensors.torch.save(
        {**tensors, **SCALE, "coterie.shares": torch.tensor(shares, dtype=torch.float64)},
        {"coterie": json.dumps(FACTS)},
    )


def header(text: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text


def test_the_file_that_the_others_are_made_of_is_right() -> None:
    assert decode(file(), "f").predict(np.zeros((1, 3))).shape == (1,)
    assert decode(mixture(), "f").predict(np.zeros((1, 3)), proba=True).sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", "not a complete"),
        (b"\x80\x04K\x01." + bytes(9), "header of"),  # a pickle
        (b"PK\x03\x04" + bytes(40), "header of"),
        (header(b"[]"), "not a complete"),
        (header(b"{}"), "no metadata of Coterie"),
        (header(b"[" * 100_000), "not a complete"),
        ((1 << 62).to_bytes(8, "little") + b"{}", "header of"),
        (header(b'{"a":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4]}}') + bytes(4), "not a complete"),
        (header(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4000]}}') + bytes(4), "not a complete"),
        (file()[:-1], "not a complete"),
        (file() + b"x", "not a complete"),
        (safetensors.torch.save({**NET, **SCALE}), "no metadata of Coterie"),
        (safetensors.torch.save(NET, {"coterie": "{}"}), "missing required field"),
        (safetensors.torch.save(NET, {"coterie": "[" * 100_000}), "metadata are not those"),
        (file(format=2), "Invalid enum value 2"),
        (file(model=3), "Expected `str`"),
        (file(model="m" * 70_000), "length <= 65536"),
        (file(input_shape=[]), "length >= 1"),
        (file(input_shape=[0]), ">= 1"),
        (file(input_shape=[1 << 31, 1 << 31]), "too large"),
        (file(classes=0), ">= 1"),
        (file(classes=10**30), "metadata are not those"),
        *(
            (file(class_names=names), "of them different, for 2 classes")
            for names in (["a"], ["a", "a"], ["a", "b", "a"])
        ),
        *(
            (file(columns=columns), error)
            for columns, error in (
                ([{"name": "a"}, {"name": "a"}, {"name": "b"}], "columns or inputs are called 'a'"),
                ([{"name": "a=1"}, {"name": "a", "values": ["1", "2"]}], "columns or inputs are called 'a=1'"),
                ([{"name": "a"}, {"name": "b", "values": ["x", "x"]}], "'b' needs different values"),
                ([{"name": "a"}, {"name": "b", "values": ["x", ""]}], "'b' needs different values, none empty"),
                ([{"name": x, "values": []} for x in "abc"], "'a' has no value"),
                ([{"name": "b", "values": [str(i) for i in range(1001)]}], "'b' needs different values"),
                ([{"name": "a"}, {"name": "b"}], "columns make 2 inputs"),
            )
        ),
        (
            file({"coterie.zero": torch.zeros(4)}),
            r"'coterie\.zero' is \(4,\) torch\.float32, and torch\.float32 for the shape \(3,\) is needed",
        ),
        (file({"coterie.zero": torch.zeros(1, 3)}), r"for the shape \(3,\)"),
        (file({"coterie.zero": torch.zeros(3).double()}), "float64"),
        (file({"coterie.unit": torch.zeros(3)}), "not above 0"),
        (file({"coterie.unit": -torch.ones(3)}), "not above 0"),
        (file({"coterie.unit": torch.full((3,), torch.nan)}), "not finite"),
        *((file({"w": torch.zeros(2).to(kind)}), f"'w' is {kind}") for kind in (torch.float16, torch.complex64)),
        (file({"w": torch.zeros(2, dtype=torch.uint8).view(torch.float8_e4m3fn)}), "'w' is torch.float8"),
        (file({"w": torch.full((3,), torch.inf)}), "'w' holds numbers that are not finite"),
        (safetensors.torch.save(NET, {"coterie": json.dumps(FACTS)}), r"'coterie\.zero' is missing"),
        (mixture((0.5, 0.6)), "sum to 1"),
        (mixture((1.5, -0.5)), "at least 0"),
        (mixture((float("nan"), 1.0)), "not finite"),
        (mixture((0.2, 0.3, 0.5), 4), r"'coterie\.3\.\S+' belongs to none of the 3 models"),
        (mixture([[1.0]]), r"shares of a mixture are \(1, 1\)"),
        (file({"coterie.shares": torch.tensor([0.5, 0.5]).double()}), "belongs to none"),
    ],
    ids=lambda x: x[:40] if isinstance(x, str) else "",
)
def test_a_file_that_is_no_model_is_refused_by_name(data: bytes, error: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(data)
    with pytest.raises(UserError, match=error) as caught:
        load_exported(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (file({"extra": torch.zeros(1)}), r"'extra' is \(1,\) float32 in the file and missing in the architecture"),
        (file(classes=3), "in the file and"),
        (file(model="mlp"), "in the file and"),
        (file({name: value.double() for name, value in NET.items()}), "float64 in the file"),
        (file({"coterie.zero": torch.zeros(1), "coterie.unit": torch.ones(1)}, input_shape=[1 << 31]), "in the file"),
        (mixture((0.2, 0.3, 0.5), 2), "is missing in the file"),
        (file(model="os:system"), "not imported on the word of a file"),
        (file(model="given:this"), "given as an object of Python"),
        (file(model="this"), "given as an object of Python"),
    ],
    ids=lambda x: x[:40] if isinstance(x, str) else "",
)
def test_a_model_that_does_not_fit_is_refused(data: bytes, error: str) -> None:
    sys.modules.pop("this", None)
    with pytest.raises(UserError, match=error):
        decode(data, "bad").module()
    assert "this" not in sys.modules


def test_another_number_of_features_is_refused_by_the_file_s_name() -> None:
    with pytest.raises(UserError, match=r"new\.npz has 5 features a sample, and f takes 3"):
        decode(file(), "f").predict(np.zeros((2, 5)), where="new.npz")
    with pytest.raises(UserError, match=r"new\.npz: sample 1, feature 2 holds NaN"):
        decode(file(), "f").predict([[0, 0, 0], [0, 0, np.nan]], where="new.npz")


def test_samples_far_from_the_training_data_are_no_silent_guess() -> None:
    small = {"coterie.unit": torch.full((3,), 1e-30)}
    with pytest.raises(UserError, match="scaled as the training samples were"):
        decode(file(small), "f").predict(np.full((1, 3), 1e30))


def test_several_labels_at_once_are_zeros_and_ones() -> None:
    trained = decode(file(task="multilabel", class_names=["cough", "fever"]), "f")
    x = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    with torch.no_grad():
        expected = torch.sigmoid(trained.module()(torch.from_numpy(x)).double()).numpy()
    np.testing.assert_allclose(trained.predict(x, proba=True), expected)
    np.testing.assert_array_equal(trained.predict(x), expected > 0.5)
    with pytest.raises(UserError, match="labels are compared for task classes"):
        trained.checked_labels([0], 1)


def test_numbers_come_back_in_the_units_of_the_data() -> None:
    scale = {
        "coterie.target_zero": torch.tensor([10.0, 0]).double(),
        "coterie.target_unit": torch.tensor([2.0, 5]).double(),
    }
    trained = decode(file(scale, task="regression"), "f")
    x = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    with torch.no_grad():
        outputs = trained.module()(torch.from_numpy(x)).double().numpy()
    np.testing.assert_allclose(trained.predict(x), outputs * [2, 5] + [10, 0])
    assert decode(encode(trained), "g").predict(x).tobytes() == trained.predict(x).tobytes()
    for wrong in (torch.zeros(2).double(), torch.ones(3).double(), torch.ones(2)):
        with pytest.raises(UserError, match=r"coterie\.target_unit"):
            decode(file({**scale, "coterie.target_unit": wrong}, task="regression"), "f")
    with pytest.raises(UserError, match=r"'coterie\.target_zero' is missing"):
        decode(file(task="regression"), "f")
    with pytest.raises(UserError, match="metadata are not those"):
        decode(file(task="divination"), "f")


@given(st.data())
def test_damage_anywhere_is_an_error_or_a_model(data: st.DataObject) -> None:
    whole = bytearray(data.draw(st.sampled_from([file(), mixture()])))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))]) if data.draw(st.booleans()) else bytes(whole)
    with contextlib.suppress(UserError):
        assert np.isfinite(decode(cut, "bad").predict(np.zeros((2, 3)), proba=True)).all()


@given(
    st.lists(st.floats(0.01, 1), min_size=1, max_size=3),
    st.one_of(st.none(), st.lists(st.text(), min_size=2, max_size=2, unique=True)),
)
def test_what_is_written_is_read(shares: list[float], names: list[str] | None) -> None:
    facts = msgspec.convert({**FACTS, "class_names": names}, ModelFacts)
    nets = tuple(state(build("linear", (3,), 2).module) for _ in shares)
    own = np.array(shares) / sum(shares)
    zero, unit = np.array([1, 2, 3], np.float32), np.array([0.5, 2, 1], np.float32)
    model = TrainedModel(facts, own if len(own) > 1 else np.ones(1), nets, zero, unit, "here")
    data = encode(model)
    back = decode(data, "there")
    assert back.facts == facts
    assert back.shares.tobytes() == model.shares.tobytes()
    assert (back.zero.tobytes(), back.unit.tobytes()) == (zero.tobytes(), unit.tobytes())
    assert all(torch.equal(a[key], b[key]) for a, b in zip(nets, back.tensors, strict=True) for key in a)
    assert encode(back) == data


@pytest.mark.parametrize("name", NAMES)
def test_every_built_in_model_comes_back(name: str) -> None:
    shape, kind = ((4, 10), "graph") if name == GRAPH_MODEL else ((3, 32, 32), "image")
    model = build(name, shape, 10)
    facts = msgspec.convert(
        {**FACTS, "model": name, "input_shape": shape, "classes": 10, "data_kind": kind}, ModelFacts
    )
    channels = (1,) if name == GRAPH_MODEL else (3, 1, 1)
    scale = np.zeros(channels, np.float32), np.ones(channels, np.float32)
    data = encode(TrainedModel(facts, np.ones(1), (state(model.module),), *scale, "here"))
    x = np.random.default_rng(0).normal(size=(4, *shape)).astype(np.float32)
    trained = decode(data, "there")
    with torch.no_grad():
        rows = torch.from_numpy(x)
        expected = model.module_with(model.flatten())(rows)
        assert torch.equal(trained.module()(rows), expected)
    np.testing.assert_array_equal(trained.predict(x), expected.numpy().argmax(axis=1))


def test_reserved_names_are_refused_on_writing() -> None:
    model = decode(file(), "f")
    with pytest.raises(UserError, match="reserved"):
        encode(replace(model, tensors=({"coterie.zero": torch.zeros(3)},)))


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, error in {"pipe": "no regular file", ".": "", "nothing": "No such file"}.items():
        with pytest.raises(UserError, match=f"cannot read .*{error}"):
            load_exported(tmp_path / path)


# -- the folder of a run -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    run(RunConfig("fedem", samples=300, clients=2, rounds=1, model="linear", settings={"max_epochs": 1}, out=str(out)))
    return out


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def change(folder: Path, **fields: Any) -> None:
    """Other fields in the index; those of client/0 in ``client``."""
    path = folder / "models/index.json"
    content = json.loads(path.read_text())
    content["clients"]["client/0"] |= fields.pop("client", {})
    path.write_text(json.dumps({**content, **fields}))


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"format": 2}, "not an index of models"),
        ({"clients": {}}, "not an index of models"),
        ({"clients": []}, "not an index of models"),
        (
            {"clients": {"client/0\x1b[2J": {"name": None, "data": "d", "files": [], "shares": []}}},
            "not an index of models",
        ),
        ({"client": {"files": []}}, "not an index of models"),
        ({"client": {"files": ["../result.json"]}}, "not an index of models"),
        ({"client": {"files": ["/etc/passwd"]}}, "not an index of models"),
        ({"client": {"files": ["0.safetensors\n"]}}, "not an index of models"),
        ({"client": {"files": ["9.safetensors"], "shares": [1.0]}}, "cannot read .*9.safetensors"),
        ({"client": {"shares": [1.0]}}, "needs one share for each of its files"),
        ({"client": {"shares": [0.5, 0.5, 0.5]}}, "sum to 1"),
        ({"client": {"shares": [2.0, -1.0, 0.0]}}, "at least 0"),
        ({"sha256": {}}, "was changed"),
    ],
    ids=str,
)
def test_a_damaged_index_is_refused_by_name(fields: dict[str, Any], error: str, folder: Path) -> None:
    change(folder, **fields)
    with pytest.raises(UserError, match=error) as caught:
        load_models(folder).of("client/0")
    assert str(folder / "models") in str(caught.value)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 100_000, b"null"], ids=lambda text: str(text[:4]))
def test_an_index_that_is_no_json_is_refused(text: bytes, folder: Path) -> None:
    (folder / "models/index.json").write_bytes(text)
    with pytest.raises(UserError, match=r"index\.json is not an index of models"):
        load_models(folder)


def test_changed_and_missing_files_are_told(folder: Path) -> None:
    path = folder / "models/0.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"0\.safetensors is not the file that index\.json names: it was changed"):
        load_models(folder).of("client/0")
    path.unlink()
    path.symlink_to(folder / "models/1.safetensors")
    with pytest.raises(UserError, match=r"cannot read .*symbolic link"):
        load_models(folder).of("client/0")


def test_files_of_different_inputs_make_no_mixture(folder: Path) -> None:
    path = folder / "models/0.safetensors"
    model = decode(path.read_bytes(), "f")
    path.write_bytes(encode(replace(model, zero=model.zero + 1)))
    digests = json.loads((folder / "models/index.json").read_text())["sha256"]
    change(folder, sha256={**digests, "0.safetensors": hashlib.sha256(path.read_bytes()).hexdigest()})
    with pytest.raises(UserError, match="differ in their inputs or classes"):
        load_models(folder).of("client/0")


def test_a_folder_without_models_says_what_to_do(folder: Path, tmp_path: Path) -> None:
    shutil.move(folder / "models", tmp_path / "models")
    with pytest.raises(UserError, match=r"holds no models: run it again with coterie run --config"):
        load_models(folder)
    (folder / "models").symlink_to(tmp_path / "models")
    with pytest.raises(UserError, match="symbolic link"):
        load_models(folder)
    with pytest.raises(UserError, match="holds no models: give the folder of a run"):
        load_models(tmp_path / "nowhere")


def test_the_folder_of_a_comparison_names_one_of_its_runs(folder: Path, tmp_path: Path) -> None:
    race = tmp_path / "race"
    for name in ("fedavg-1", "fedavg-0"):
        shutil.copytree(folder, race / name)
    with pytest.raises(UserError, match=f"{race} holds no models: give the folder of a run, such as {race}/fedavg-0"):
        load_models(race)
