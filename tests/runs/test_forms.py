"""What clients can make of their models: forms of them, on their own and on other test labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from coterie.record.comparison import FORMS, MIXES
from coterie.report.score_table import FORMS_TITLE, form_note, form_table
from coterie.runs import RunConfig, benefit, build
from coterie.runs.forms import of_mix
from coterie.runs.on_data import ClientData, TensorSamples
from coterie.runs.tuning import gain_shown
from coterie.training.evaluate import judge_many


def test_drawn_labels_are_uniform_over_the_classes_of_the_mix() -> None:
    y = torch.tensor([0] * 50 + [1] * 5 + [2] * 5)
    test_set = TensorSamples(torch.arange(60.0)[:, None], y)
    own = ClientData(torch.zeros(3, 2), torch.tensor([0, 1, 1]), test_set=test_set, tests=np.arange(3000) % 60)
    assert [*MIXES] == ["local", "own_classes", "all_classes"]
    assert torch.equal(of_mix(own, "local", 0, "client/0").y, y[own.test])
    for mix, classes in (("own_classes", 2), ("all_classes", 3)):
        drawn = of_mix(own, mix, 0, "client/0")
        assert torch.equal(y[drawn.x[:, 0].long()], drawn.y)
        counts = np.bincount(drawn.y, minlength=3)
        assert counts.sum() == 3000
        assert (counts > 0).sum() == classes
        assert abs(counts[:classes] - 3000 / classes).max() < 150


def test_a_gain_is_shown_from_a_standard_error_on() -> None:
    one = np.array([1.0] + [0.0] * 10)  # one sample of eleven: just a standard error
    assert gain_shown(one)
    assert not gain_shown(-one)
    assert not gain_shown(np.zeros(5))
    assert not gain_shown(np.array([1.0]))
    assert not gain_shown(np.array([1.0, 1.0, -1.0, 0.0]))
    draw = np.random.default_rng(0)
    for _ in range(50):
        values = draw.normal(0.1, 1, 20)
        assert gain_shown(values) == (values.mean() >= values.std(ddof=1) / 20**0.5)


def test_a_tuned_model_counts_only_where_loss_and_accuracy_gain() -> None:
    """Against a plain twin, on each client's held-out samples."""
    one = build(RunConfig("fedavg", clients=8, rounds=3, model="linear", partition="iid", fine_tune="held_out"))
    one.set_up()
    for r in (1, 2, 3):
        line = one.round(r)
    starts = one.models(3)
    kept, tuned = one.observer.fine_tuned(3)
    epochs = []
    for name, found in tuned.items():
        own, both = one.data[name].held_out, np.stack([np.asarray(starts[name]), found.weights])
        assert own is not None
        losses, right = judge_many(one.model, both, own.x, own.y)
        gains = [losses[0].astype(float) - losses[1], right[1].astype(float) - right[0]]
        shown = found.epochs > 0 and all(gain_shown(of) for of in gains)
        assert found.gains == shown
        assert np.array_equal(kept[name], found.weights if shown else starts[name])
        epochs.append(found.epochs if shown else 0)
    assert line["fine_tuned_epochs"] == epochs
    assert 0 in epochs
    one.close()


def test_a_comparison_has_the_worst_decile_and_the_interval_over_clients_of_every_form(tmp_path: Path) -> None:
    options = {"samples": 300, "clients": 6, "rounds": 2, "model": "linear", "progress": False}
    done = coterie.compare(["fedavg", "fedem"], "digits", seeds=2, out=tmp_path / "c", max_epochs=2, **options)
    fedavg, fedem, _ = done.content["rows"]
    of_seeds = [json.loads((done.folder / name / "clients.json").read_text()) for name in fedavg["runs"]]
    for form in FORMS:
        for side in MIXES:
            score = f"{form}{side}_accuracy"
            values = [np.array(of[score]) for of in of_seeds]
            over = fedavg["clients"][score]
            assert over["worst_decile"]["values"] == pytest.approx([np.quantile(of, 0.1) for of in values])
            halves = [2.5706 * of.std(ddof=1) / 6**0.5 for of in values]  # Student's t of five degrees of freedom
            assert over["interval"] == pytest.approx(np.mean(halves), rel=1e-4)
            spread = fedavg["metrics"].get(score) or fedavg[score]
            assert spread["values"] == pytest.approx([of.mean() for of in values])
        assert fedavg["metrics"][f"{form}local_balanced_accuracy"]["mean"] > 0
    assert fedem["metrics"]["own_classes_accuracy"]["mean"] > 0
    assert "prior_own_classes_accuracy" not in fedem["metrics"]  # mixtures of models have no prior
    heads, rows = form_table(done.content)
    assert [row[:2] for row in rows if row[0] == "fedavg"] == [["fedavg", words] for words in FORMS.values()]
    assert len({len(row) for row in rows} | {len(heads)}) == 1
    lines = [line for line in done.to_csv().splitlines() if line.startswith('fedavg,"all classes, prior"')]
    assert [float(line.rpartition(",")[2]) for line in lines] == pytest.approx(
        fedavg["metrics"]["prior_all_classes_accuracy"]["values"]
    )
    assert FORMS_TITLE in done.report().read_text()
    assert all(f"{word}: " in form_note(done.content) for word in ("Tuned", "Prior", "Mixed", "Worst decile"))


def test_where_less_is_better_leads_turn_and_the_worst_are_above_in_every_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accuracy keeps its own direction."""
    monkeypatch.setattr(benefit, "SLOW_DRAWS", 2)  # for the intervals, which are not looked at
    options: dict[str, Any] = {"samples": 300, "clients": 6, "rounds": 2, "model": "linear", "progress": False}
    done = coterie.compare(["fedavg"], "digits", seeds=1, metrics="log_loss", out=tmp_path / "c", **options)
    (fedavg, local), (lead,) = done.content["rows"], done.content["leads"]
    scores = json.loads((done.folder / fedavg["runs"][0] / "clients.json").read_text())
    for name, decile, sign in (("log_loss", 0.9, -1), ("accuracy", 0.1, 1)):
        for form in FORMS:
            score = f"{form}local_{name}"
            (worst,) = fedavg["clients"][score]["worst_decile"]["values"]
            assert worst == pytest.approx(np.quantile(scores[score], decile))
            ours, theirs, found = ((of["metrics"].get(score) or of[score])["mean"] for of in (fedavg, local, lead))
            assert found == pytest.approx(sign * (ours - theirs))
            assert ours != theirs
    assert lead["metrics"]["prior_own_classes_accuracy"]["mean"] == pytest.approx(
        fedavg["metrics"]["prior_own_classes_accuracy"]["mean"] - local["metrics"]["prior_own_classes_accuracy"]["mean"]
    )
    assert "Worst decile: a tenth of the clients are above." in form_note(done.content)


def test_numbers_have_no_prior_and_no_other_label_mix(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    data = {name: (draw.normal(size=(40, 3)), draw.normal(size=40)) for name in ("a", "b", "c")}
    done = coterie.compare(["fedavg"], data, seeds=1, task="regression", rounds=1, out=tmp_path / "c", progress=False)
    first, *_ = done.content["rows"]
    assert not [name for name in first["metrics"] if "classes" in name or name.startswith(("prior", "mixed"))]
    assert first["clients"]["local_r2"]["worst_decile"]["mean"] <= first["metrics"]["local_r2"]["mean"]
    assert "not offered beyond classes" in form_note(done.content)
    assert not [word for word in ("Prior:", "Mixed:", "Own classes") if word in form_note(done.content)]
    assert form_note(done.content).startswith("Tuned: where held-out loss gains by a standard error. ± clients: ")
    assert "a tenth of the clients are below" in form_note(done.content)
    assert [row[1] for row in form_table(done.content)[1] if row[0] == "fedavg"] == ["as it is", "tuned"]
