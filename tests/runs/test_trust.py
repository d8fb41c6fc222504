"""A run folder is believed for what it is: of these data, of this code, and without code of its own."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
from torch import nn

import coterie
from coterie.privacy.plain import like_samples
from coterie.protocol import import_path
from coterie.protocol.errors import UserError
from coterie.runs import SYSTEMS, RunConfig, models, registry

X = np.random.default_rng(0).normal(size=(200, 5))
Y = (X[:, 0] > 0).astype(int)
OWN = {"partition": "iid", "clients": 3, "progress": False, "lr": 0.1, "rounds": 1}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def net(act):
    return nn.Sequential(nn.Linear(5, 8), act, nn.Linear(8, 2))


def run(**options):
    return coterie.run("fedavg", **{"data": (X, Y), "model": "linear", "out": "o", **OWN, **options})


# -- the data ----------------------------------------------------------------------------------------------------------


def binary(names=("no", "yes"), row=None):
    """1000 rows of zeros and ones. row: of one that a value is changed in, between those of the fingerprint's steps."""
    x = np.random.default_rng(1).integers(0, 2, (1000, 3))
    y = x[:, 0].copy()
    if row is not None:
        x[row, 2] ^= 1
    lines = [
        f"{a},{b},{c},{names[label]},{'test' if i % 5 == 0 else 'train'}"
        for i, ((a, b, c), label) in enumerate(zip(x, y, strict=True))
    ]
    Path("d.csv").write_text("\n".join(["a,b,c,label,split", *lines]) + "\n")


@pytest.mark.parametrize("change", [{"names": ("benign", "malign")}, {"row": 11}, {"row": 5}])
def test_a_run_that_goes_on_notices_other_data(change):
    binary()
    run(data="d.csv")
    binary(**change)
    with pytest.raises(UserError, match="data"):
        run(data="d.csv", rounds=2, resume=True)


def hospitals(flip=0):
    for k in range(4):
        x = np.random.default_rng(k).normal(size=(60, 3))
        y = (x[:, 0] > 0.3 * (k - 2)).astype(int) ^ flip
        rows = [",".join(map(str, [*row, label])) for row, label in zip(x, y, strict=True)]
        Path("h").mkdir(exist_ok=True)
        Path(f"h/s{k}.csv").write_text("\n".join(["a,b,c,label", *rows]) + "\n")


HOSPITALS = {"data": "h", "rounds": 1, "model": "linear", "progress": False}


def test_an_audit_notices_other_data():
    hospitals()
    coterie.run("fedavg", record=True, out="o", **HOSPITALS)
    assert coterie.audit("o")["attacks"]
    hospitals(1)
    with pytest.raises(UserError, match="other data"):
        coterie.audit("o")


def test_a_comparison_that_goes_on_notices_other_data():
    hospitals()
    options = {**HOSPITALS, "seeds": 1, "out": "c"}
    coterie.compare(["fedavg"], **options)
    shutil.rmtree("c/local-0")
    coterie.compare(["fedavg"], resume=True, **options)
    shutil.rmtree("c/local-0")
    hospitals(1)
    with pytest.raises(UserError, match="other data"):
        coterie.compare(["fedavg"], resume=True, **options)


# -- objects of Python -------------------------------------------------------------------------------------------------


def test_a_result_keeps_its_architecture():
    first = run(model=net(nn.ReLU()), out="a")
    expected = first.predict("client/0", X, proba=True)
    run(model=net(nn.Tanh()), out="b")
    np.testing.assert_array_equal(first.predict("client/0", X, proba=True), expected)
    with pytest.raises(UserError, match="give it again"):
        coterie.load("a").model("client/0")
    np.testing.assert_array_equal(coterie.load("a", model=net(nn.ReLU())).predict("client/0", X, proba=True), expected)


def test_a_run_that_goes_on_notices_another_architecture():
    run(model=net(nn.ReLU()))
    with pytest.raises(UserError, match="model or loss of your own"):
        run(model=net(nn.Tanh()), rounds=2, resume=True)
    assert len(run(model=net(nn.ReLU()), rounds=2, resume=True).rounds) == 2


def test_a_run_that_goes_on_notices_another_loss():
    def made(sign):
        def loss(outputs, labels):
            return sign * nn.functional.cross_entropy(outputs, labels, reduction="none")

        return loss

    run(loss=made(1))
    with pytest.raises(UserError, match="model or loss of your own"):
        run(loss=made(-1), rounds=2, resume=True)
    assert len(run(loss=made(1), rounds=2, resume=True).rounds) == 2


def test_code_differs_by_what_it_says():
    same = [eval("lambda x: x in {'a', 'b'} and [y for y in x]") for _ in range(2)]
    others = [lambda x: x + 1, lambda x: x + 2, lambda x: x.real, lambda x: x.imag, lambda x, k=1: x, lambda x, k=2: x]
    assert len({import_path.code_of(one) for one in same}) == 1
    assert len({import_path.code_of(one) for one in others}) == len(others)


def test_model_and_loss_may_both_be_lambdas():
    run(model=lambda shape, n: nn.Linear(shape[0], n), loss=lambda o, y: nn.functional.cross_entropy(o, y))


def test_a_built_in_system_is_not_replaced():
    import dataclasses

    registry.register(SYSTEMS["fedavg"])
    with pytest.raises(UserError, match="built-in"):
        registry.register(dataclasses.replace(SYSTEMS["fedavg"], title="mine"))


# -- folders of somebody else ------------------------------------------------------------------------------------------

EVIL = "open('OWNED', 'w')\nfrom torch import nn\ndef net(s, c): return nn.Linear(5, 2)\n"


def renamed(folder, name):
    """The architecture of a run's model is called otherwise."""
    index, path = folder / "models/index.json", folder / "models/0.safetensors"
    data = path.read_bytes()
    head = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    facts = {**json.loads(head["__metadata__"]["coterie"]), "model": name}
    path.write_bytes(safetensors.torch.save(safetensors.torch.load(data), {"coterie": json.dumps(facts)}))
    told = json.loads(index.read_text())
    told["sha256"]["0.safetensors"] = hashlib.sha256(path.read_bytes()).hexdigest()
    index.write_text(json.dumps(told))


@pytest.mark.parametrize("inside", [False, True])
def test_a_foreign_folder_runs_no_code_of_its_own(inside, monkeypatch):
    run(out="foreign", record=True)
    Path("foreign/evil.py").write_text(EVIL)
    here = Path.cwd()
    name, folder = ("evil:net", Path()) if inside else ("foreign.evil:net", Path("foreign"))
    renamed(Path("foreign"), name)
    if inside:
        monkeypatch.chdir("foreign")
    with pytest.raises(UserError, match="lies in"):
        coterie.load(folder).predict("client/0", X)
    written = (folder / "config.toml").read_text()
    for what in ("system", "model", "loss", "metrics"):
        lines = [line for line in written.splitlines() if not line.startswith(f"{what} =")]
        (folder / "config.toml").write_text("\n".join([f'{what} = "{name}"', *lines]))
        with pytest.raises(UserError, match="lies in"):
            coterie.audit(folder)
        with pytest.raises(UserError, match="lies in"):
            coterie.runs.run(RunConfig("fedavg", out=str(folder)), resume=True)
    assert not list(here.rglob("OWNED"))


def test_code_beside_a_run_folder_is_imported(monkeypatch):
    Path("net_of_the_trust_test.py").write_text(EVIL)
    found = run(model="net_of_the_trust_test:net", out="runs/a", record=True)
    assert found.predict("client/0", X).shape == (200,)
    assert coterie.load("runs/a").audit()["attacks"]


def test_a_model_file_is_read_once(monkeypatch):
    run()
    index = Path("o/models/index.json")
    told = json.loads(index.read_text())
    for entry in told["clients"].values():
        entry["files"], entry["shares"] = ["0.safetensors"] * 500, [1 / 500] * 500
    index.write_text(json.dumps(told))
    reads, old = [], models.decode
    monkeypatch.setattr(models, "decode", lambda *a: reads.append(1) or old(*a))
    models.load_models("o").of("client/0")
    assert len(reads) == 1


def test_metadata_null_is_a_user_error():
    run()
    data = Path("o/models/0.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    head = json.dumps({**json.loads(data[8 : 8 + size]), "__metadata__": None}).encode()
    head += b" " * (-len(head) % 8)
    with pytest.raises(UserError, match="no metadata"):
        models.decode(len(head).to_bytes(8, "little") + head + data[8 + size :], "f")


# -- metrics -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["loss", "accuracy", "auroc"])
def test_a_metric_does_not_take_the_name_of_another_score(name):
    def mine(labels, scores):
        return 0.123

    mine.__qualname__ = name
    with pytest.raises(UserError, match="rename it"):
        run(metrics=[mine])


def boom(labels, scores):
    raise ValueError("boom")


@pytest.mark.parametrize(
    ("option", "own", "said"),
    [
        ("metrics", [boom], "boom"),
        ("metrics", [lambda labels, scores: scores], "one number"),
        ("loss", boom, "boom"),
        ("loss", lambda outputs, labels: 1.0, "loss fails"),
        ("loss", lambda outputs, labels: outputs.detach().sum(1), "gradient"),
        ("loss", lambda outputs, labels: outputs, "each sample"),
    ],
)
def test_a_function_that_fails_is_refused_before_anything_is_written(option, own, said):
    with pytest.raises(UserError, match=said):
        run(**{option: own})
    assert not Path("o").exists()


# -- comparisons -------------------------------------------------------------------------------------------------------


def test_a_comparison_takes_the_architecture():
    coterie.compare(["fedavg"], data=(X, Y), model=net(nn.ReLU()), seeds=1, local=False, out="c", **OWN)
    import_path._given.clear()
    coterie.load("c", model=net(nn.ReLU())).results["fedavg"][0].model("client/0")


def test_a_comparison_of_one_method_with_its_own_budget_is_loaded():
    coterie.compare(["fedavg"], data=(X, Y), model="linear", seeds=1, each_own=True, local=False, out="c", **OWN)
    assert len(coterie.load("c").results["fedavg"]) == 1


ROW = {"method": "m", "runs": ["r"], "local_accuracy": {"mean": 0.5, "values": [0.5]}}


@pytest.mark.parametrize(
    "rows", [None, [], [{"method": "m"}], *([{**ROW, "runs": [at]}] for at in ("../r", "/r", ".."))]
)
def test_a_hostile_comparison_is_refused(rows):
    run(out="r")
    Path("c").mkdir()
    content = {"budget_from": "m"} if rows is None else {"budget_from": "m", "rows": rows}
    Path("c/compare.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"compare\.json"):
        coterie.load("c")


def test_a_comparison_and_a_run_without_keys_are_shown():
    pytest.importorskip("pandas")
    run(out="c/r")
    told = json.loads(Path("c/r/result.json").read_text())
    for key in ("refused", "outliers", "skipped", "title", "lost", "metrics"):
        del told[key]
    told["measures"] = [{"name": "accuracy", "label": "accuracy"}]
    Path("c/r/result.json").write_text(json.dumps(told))
    Path("c/compare.json").write_text(json.dumps({"rows": [ROW], "measures": told["measures"]}))
    race = coterie.load("c")
    assert "50.0 %" in race._repr_html_()
    assert race.frame().shape[0] == 1
    for found in (race, race.results["m"][0]):
        assert found.plot().axes
    assert "rounds" in race.results["m"][0]._repr_html_()
    del told["clients"]
    Path("c/r/result.json").write_text(json.dumps(told))
    with pytest.raises(UserError, match=r"result\.json.*clients"):
        coterie.load("c").frame()


# -- audits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (3,)])
def test_like_samples_take_labels_of_any_shape(shape):
    """Several labels of a sample are one code: the draws are those of its rows as classes."""
    rng = np.random.default_rng(0)
    y = [rng.integers(0, 2, (60, *shape)) for _ in range(3)]
    x = [np.concatenate([rows.reshape(60, -1), rng.normal(size=(60, 2))], 1) for rows in y]
    own, draws, share = like_samples(list(zip(x, y, strict=True)), 0, None, rng)
    assert 0 < share <= 1
    width = x[0].shape[1] - 2
    for drawn in draws:
        np.testing.assert_array_equal(own[:, :width], drawn[:, :width])


@pytest.mark.parametrize("system", ["fedcaprivacy", "mingledpie", "ifca", "pafed", "scaffold"])
@pytest.mark.parametrize("task", [pytest.param("regression", marks=pytest.mark.long), "multilabel"])
def test_tasks_without_classes_are_audited(system, task):
    y = X[:, :2] + 0.1 if task == "regression" else (X[:, :2] > 0).astype(int)
    options = {**OWN, "clients": 6, "rounds": 2, "model": "mlp_small", "task": task, "record": True, "out": "o"}
    coterie.run(system, data=(X, y), crypto="emulated", **options)
    found = coterie.audit("o")
    assert found["attacks"]
    if system != "pafed":  # of one client in a round nothing is compared
        assert any("label" in row["name"] for row in found["attacks"]) == (task == "multilabel")
    if task == "regression":
        assert any("no classes" in why for why in found["not_applicable"].values())
