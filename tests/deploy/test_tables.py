"""A study of tables between machines trains what a simulation of the same tables trains, and reports its metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Command
from hospitals import COLUMNS, write_hospitals

from coterie.data.form import SampleForm
from coterie.data.own import PARTIES, is_path
from coterie.deploy.built_party import build_party
from coterie.deploy.packets import Report
from coterie.deploy.plan import Plan, Settings
from coterie.deploy.reported import Check, scored
from coterie.operate import authority, founding, joining
from coterie.operate.deployable import deployable, scores_of
from coterie.operate.folder import Folder, current_plan
from coterie.operate.members import PlannedMember
from coterie.protocol.errors import UserError
from coterie.runs.config import RunConfig, resolve
from coterie.runs.config_file import from_text
from coterie.training.models import build

SAME = ("model", "rounds", "task", "loss", "metrics", "class_weights", "mode", "precision", "settings")
MEMBERS = """
[[member]]
role = "server"
host = "hub.example.org"

[[member]]
name = "a"
role = "client"

[[member]]
name = "b"
role = "client"
"""


def founded(cli: Command, config: str, *more: str) -> tuple[str, Plan]:
    Path("run.toml").write_text(config)
    Path("members.toml").write_text(MEMBERS)
    words = "deploy init study --config run.toml --members members.toml --server nats://hub.example.org:4222"
    ended = cli(*words.split(), *more)
    assert (ended.code, ended.err) == (0, "")
    return ended.out, current_plan(Folder(Path("study")))


@pytest.mark.parametrize("system", ["fedavg", "scaffold"])
def test_a_study_of_tables_trains_what_its_simulation_trains(cli: Command, tmp_path: Path, system: str) -> None:
    """The same model, rate, batches, epochs and rounds, and none of digits."""
    said, plan = founded(cli, f'system = "{system}"\n', "--shape", str(COLUMNS), "--outputs", "2")
    ours = from_text(plan.config)
    tables = str(write_hospitals(tmp_path / "hospitals"))
    simulated = resolve(RunConfig(system, data=tables, target="outcome", precision="fp32"))  # as machines of any kind
    assert {key: getattr(ours, key) for key in SAME} == {key: getattr(simulated, key) for key in SAME}
    assert ours.data == PARTIES
    model, other = (build(str(of.model), plan.facts.input_shape, 2, of.task, of.loss) for of in (ours, simulated))
    assert model.spec == other.spec
    digits = resolve(RunConfig(system))
    assert (digits.model, digits.settings["batch_size"]) != (ours.model, ours.settings["batch_size"])
    batch = ours.settings["batch_size"]
    assert f"Parties train the model {ours.model} for 30 rounds, lr 0.1, batch_size {batch}" in said
    assert "as for data of their own" in said


def test_a_data_set_is_borrowed_from_where_it_is_named_and_not_in_silence(cli: Command) -> None:
    said, plan = founded(cli, 'system = "fedavg"\ndata = "digits"\n', "--shape", "30", "--outputs", "2")
    assert from_text(plan.config).settings["batch_size"] == 10
    assert "batch_size 10, max_epochs 5: as for digits" in said


def test_a_folder_of_that_name_is_not_taken_for_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(PARTIES).mkdir()
    assert not is_path(PARTIES)
    assert deployable(RunConfig("fedavg", data=PARTIES), clients=3).data == PARTIES


def test_scores_that_parties_may_report_are_the_metrics_of_the_run(cli: Command) -> None:
    _, plan = founded(cli, 'system = "fedavg"\nmetrics = "auroc,f1"\n', "--shape", "30", "--outputs", "2")
    assert plan.settings.scores == ("local_auroc", "local_f1", "local_accuracy", "local_loss", "samples")
    numbers = RunConfig("fedavg", task="regression", metrics="rmse")
    assert scores_of(numbers) == ("local_rmse", "local_loss", "samples")
    assert scores_of(RunConfig("fedavg")) == ("local_accuracy", "local_loss", "samples")
    words = "deploy init other --config run.toml --members members.toml --server nats://hub:4222 --shape 30 --outputs 2"
    ended = cli(*words.split(), "--scores", "local_aurok")
    assert ended.code == 2
    assert "there is no score 'local_aurok'; did you mean 'local_auroc'" in ended.err
    assert not Path("other").exists()


def report(scores: dict[str, float]) -> Report:
    return Report((1, 0), 1, 0.0, 0, 0, {}, scores, 0, closed=True)


@pytest.mark.parametrize(
    ("metrics", "scores", "kept"),
    [
        ("auroc", {"local_auroc": 0.8, "local_accuracy": 0.9}, {"local_auroc": 0.8, "local_accuracy": 0.9}),
        ("auroc", {"local_auroc": 1.8}, None),
        ("auroc", {"local_f1": 0.8, "local_loss": 2.0}, {"local_loss": 2.0}),
        (None, {"local_auroc": 0.8, "local_accuracy": 0.9}, {"local_accuracy": 0.9}),
    ],
)
def test_the_hub_takes_the_metrics_and_the_accuracy(metrics: Any, scores: Any, kept: Any) -> None:
    config = RunConfig("fedavg", metrics=metrics)
    check = Check(resolve(config), scores_of(config))
    found = check(report(scores), "client", "client")
    assert (None if found is None else found.scores) == kept
    if kept is not None and "local_auroc" in kept:
        line = scored({"a": kept, "b": {"local_auroc": 0.6}})
        assert line["metrics"]["local_auroc"] == pytest.approx(0.7)
        assert (line["local_accuracy"], line["reported"]) == (0.9, {"local_auroc": 2, "local_accuracy": 1})


def test_a_party_scores_what_its_owner_allows(tmp_path: Path) -> None:
    """AUROC and accuracy of its own model on its own held-out samples, as scikit-learn has them."""
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, COLUMNS)).astype(np.float32)
    np.savez(tmp_path / "own.npz", x=x[:150], y=(x[:150, 0] > 1), x_test=x[150:], y_test=(x[150:, 0] > 1))
    config = RunConfig("fedavg", data=PARTIES, metrics="auroc", rounds=2)
    settings = Settings("nats://hub.example.org:4222", scores=scores_of(config))
    members = (PlannedMember("server", "server", "hub.example.org"), PlannedMember("a", "client"))
    founding.init(tmp_path / "study", config, members, settings, SampleForm((COLUMNS,), 2))
    home, request = joining.join(
        authority.invite(tmp_path / "study", "a"), tmp_path / "a", tmp_path / "own.npz", report=("local_auroc",
        "local_accuracy"), out=tmp_path,
    )  # fmt: skip
    joining.accept(home, authority.approve(tmp_path / "study", request.read_text()).certificate.read_text())
    found = build_party(home)
    model = found.work.model.module_with(found.own_model()).eval()
    outputs = model(found.work.data.test_set.x).detach().numpy()
    y = found.work.data.test_set.y.numpy()
    assert found.scores() == {
        "local_auroc": pytest.approx(roc_auc_score(y, outputs[:, 1] - outputs[:, 0])),
        "local_accuracy": pytest.approx((outputs.argmax(1) == y).mean()),
    }
    with pytest.raises(UserError, match="no score 'local_f1' is reported in this deployment"):
        joining.join(
            authority.invite(tmp_path / "study", "a", again=True), tmp_path / "b", tmp_path / "own.npz",
            report=("local_f1",), out=tmp_path,
        )  # fmt: skip
