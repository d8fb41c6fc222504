"""The first metric that was named leads conclusions, leads, bold, progress and warnings, also if lower is better."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Command
from hospitals import write_hospitals
from matrix import few
from report_folders import write_comparison, write_run

from coterie.record.load import find, load
from coterie.report import comparison, render
from coterie.runs import RunConfig, resolve
from coterie.runs.advice import no_better_than_chance
from coterie.runs.metrics import METRICS, metrics_of
from coterie.runs.scores import _leads

RMSE = {"name": "rmse", "label": "RMSE", "share": False, "higher": False}
AUROC = {"name": "auroc", "label": "AUROC", "share": True, "higher": True}
ACCURACY = {"name": "accuracy", "label": "accuracy", "share": True, "higher": True}


def spread(*values: float) -> dict[str, Any]:
    return {"mean": float(np.mean(values)), "values": list(values), "interval": 0.1 if len(values) > 1 else None}


def words(page: str) -> str:
    """The text of a page."""
    return re.sub(r"\s+", " ", re.sub(r"<style>.*?</style>|<svg.*?</svg>|<[^>]+>", " ", page, flags=re.DOTALL))


def test_few_positives_are_compared_by_auroc(cli: Command, tmp_path: Path) -> None:
    """Every answer is negative after two rounds, so accuracy is that of the most frequent class. AUROC is not."""
    data = str(write_hospitals(tmp_path / "hospitals"))
    asked = ["--data", data, "--target", "outcome", "--metrics", "auroc", "--rounds", "2", "--model", "linear"]
    ended = cli("compare", "fedavg", *asked, "--seeds", "2", "--out", "c")
    assert ended.code == 0, ended.err
    rows = {row["method"]: row for row in json.loads(Path("c/compare.json").read_text())["rows"]}
    assert np.mean(rows["fedavg"]["local_accuracy"]["values"]) == pytest.approx(0.94, abs=0.03)
    said = [line for line in ended.out.splitlines() if line.startswith(("fedavg: ", "local: "))]
    for line, method in zip(said, ("fedavg", "local"), strict=True):
        mean = rows[method]["metrics"]["local_auroc"]["mean"]
        assert line.startswith(f"{method}: AUROC {100 * mean:.1f}")
        assert "right on" not in line
    head, *_ = [line for line in ended.out.splitlines() if line.startswith("fedavg: ")]
    ours, alone = (rows[method]["metrics"]["fine_tuned_local_auroc"]["values"] for method in ("fedavg", "local"))
    gain = f"{100 * np.mean(np.subtract(ours, alone)):.1f} points against training alone (2 seeds"
    assert gain in head.replace("+", "")
    assert "Warning" not in ended.err
    rounds = [line for line in ended.err.splitlines() if "round 2 of 2" in line]
    assert len(rounds) == 4
    assert all(re.search(r"  AUROC own kind \d+\.\d %  global \d+\.\d %  ", line) for line in rounds)
    page = Path("c/report.html").read_text()
    assert "did not do the same work" not in page
    text = words(page)
    for wanted in ("AUROC over the rounds", "over local", "2 methods on the same work", "local AUROC"):
        assert wanted in text
    assert "Accuracy over the rounds" not in text
    bold = {float(value) for value in re.findall(r'class="n best"><data value="([^"]+)"', page)}
    assert len(bold) == 2
    best = [
        max(row["metrics"][f"{tuned}{side}_auroc"]["mean"] for row in rows.values() for tuned in ("", "fine_tuned_"))
        for side in ("global", "local")
    ]
    assert sorted(bold) == pytest.approx(sorted(best))
    alone_said = cli("run", "fedavg", *asked, "--out", "r").out.splitlines()
    assert alone_said[1].strip().startswith("AUROC on all test data")
    run_text = words(Path("r/report.html").read_text())
    assert "client's model has AUROC" in run_text.replace("&#39;", "'")
    assert "AUROC and loss" in run_text


@pytest.mark.long
def test_lower_is_better_in_every_conclusion(cli: Command, tmp_path: Path) -> None:
    data = str(write_hospitals(tmp_path / "hospitals", numbers=True))
    asked = ["--data", data, "--target", "outcome", "--task", "regression", "--metrics", "rmse,r2", "--rounds", "3"]
    ended = cli("compare", "fedavg", *asked, "--seeds", "2", "--no-fine-tune", "--model", "linear", "--out", "c")
    assert ended.code == 0, ended.err
    content = json.loads(Path("c/compare.json").read_text())
    ours, alone = (row["metrics"]["local_rmse"]["values"] for row in content["rows"])
    (lead,) = content["leads"]
    assert lead["metrics"]["local_rmse"]["values"] == pytest.approx(np.subtract(alone, ours))
    assert lead["metrics"]["local_r2"]["mean"] * lead["metrics"]["local_rmse"]["mean"] > 0
    assert f"fedavg: RMSE {np.mean(ours):.4g} on each client's own kind of data" in ended.out
    assert "lower is better" in ended.out
    page = Path("c/report.html").read_text()
    bold = [float(value) for value in re.findall(r'class="n best"><data value="([^"]+)"', page)]
    sides = ("global", "local")
    assert bold == pytest.approx([min(row["metrics"][f"{s}_rmse"]["mean"] for row in content["rows"]) for s in sides])
    assert "RMSE over the rounds" in words(page)
    for field, key in zip(("global_rmse", "local_rmse"), sides, strict=True):
        groups = comparison.group([load(folder) for folder in find([Path("c")])])
        measure = comparison.leading(groups)
        target = comparison.common_target(groups, field, measure)
        assert measure.name == "rmse"
        assert target is not None
        for found in groups:
            rounds, mean, _ = found.curve(field)
            assert found.rounds_to(field, target, higher=False) == next(
                int(r) for r, value in zip(rounds, mean, strict=True) if value <= target
            ), key


@pytest.mark.parametrize(
    ("measure", "ours", "alone", "said"),
    [
        (RMSE, (1.0, 1.1, 0.9), (2.0, 2.1, 2.2), "RMSE 1 on each client's own kind of data; on average over the "),
        (RMSE, (2.0, 2.1, 2.2), (1.0, 1.1, 0.9), "1.1 ± 0.43 worse than training alone, and lower is better"),
        (RMSE, (2.0, 1.0, 3.0), (1.9, 1.2, 2.6), "shown (higher by 0.1 ± 0.745, and lower is better)"),
        (
            AUROC,
            (0.8, 0.81, 0.79),
            (0.6, 0.61, 0.59),
            "b: AUROC 80.0 % on each client's own kind of data; on average over the clients, 20.0 ± 0.0 points better",
        ),
        (AUROC, (0.6, 0.61, 0.59), (0.8, 0.81, 0.79), "20.0 ± 0.0 points worse than training alone"),
        (ACCURACY, (0.8, 0.81, 0.79), (0.7, 0.71, 0.69), "on average over the clients, 10.0 ± 0.0 points better than"),
        (ACCURACY, (0.8, 0.81), (0.7, 0.71), "+10.0 points against training alone (2 seeds, so"),
        (ACCURACY, (0.8,), (0.7,), "+10.0 points against training alone (1 seed, so"),
    ],
)
def test_the_sentence_follows_the_first_metric(measure: Any, ours: Any, alone: Any, said: str) -> None:
    """Accuracies say the contrary, unless accuracy is named first."""
    field = f"local_{measure['name']}"

    def row(method: str, values: tuple[float, ...]) -> dict[str, Any]:
        other = {"local_accuracy": spread(*(0.5 for _ in values))}
        own = {field: spread(*values)}
        return {"method": method, **other, "metrics": own} | (own if measure is ACCURACY else {})

    content = {"measures": [measure, ACCURACY], "rows": [row("b", ours), row("local", alone)]}
    first, _ = comparison.sentences(content)
    assert said in first.replace("\u202f", " ")
    for one in content["rows"]:
        one[f"fine_tuned_{field}"] = one["metrics"][field]
    tuned, _ = comparison.sentences(content)
    assert "; after fine-tuning, on average over the clients, " in tuned


@pytest.mark.parametrize("measure", [RMSE, AUROC])
def test_a_lead_is_above_0_where_the_first_is_better(measure: Any) -> None:
    rows = [
        {"method": name, "metrics": {f"{side}_{measure['name']}": spread(*values) for side in ("local", "global")}}
        | {f"{side}_accuracy": None for side in ("local", "global")}
        for name, values in (("a", (0.2, 0.4)), ("b", (0.5, 0.6)))
    ]
    (lead,) = _leads(rows, [measure])
    sign = 1 if measure["higher"] else -1
    assert lead["metrics"][f"local_{measure['name']}"]["values"] == pytest.approx([sign * -0.3, sign * -0.2])
    content = {"measures": [measure], "rows": rows, "leads": [lead]}
    assert [head for _, head, _ in comparison.lead_columns(content)] == [
        f"local {measure['label']}",
        f"global {measure['label']}",
    ]
    assert ("RMSE: by how much it is lower, which is better." in comparison.lead_note(content)) == (measure is RMSE)
    assert (", in points," in comparison.lead_title(content)) == (measure is AUROC)


@pytest.mark.parametrize("counts", [(94, 6), (50, 50), (10, 60, 30), (25, 25, 25, 25)])
@pytest.mark.parametrize("name", [name for name, metric in METRICS["classes"].items() if metric.chance is not None])
def test_chance_is_what_equal_answers_have(name: str, counts: tuple[int, ...]) -> None:
    """Against the metric itself, on samples that all get the shares of the classes as their scores."""
    metric, *_ = metrics_of([name], "classes")
    shares = np.array(counts) / sum(counts)
    labels = np.repeat(np.arange(len(counts)), counts)
    assert metric.chance is not None
    assert metric.chance(shares[None]) == pytest.approx(metric(labels, np.tile(shares, (len(labels), 1))))


@pytest.mark.parametrize("name", [name for name, metric in METRICS["classes"].items() if metric.chance is not None])
@pytest.mark.parametrize("classes", few([2, 6], [2]))
def test_chance_on_each_clients_own_data_is_that_of_the_best_constant_model(name: str, classes: int) -> None:
    """Against the metric itself, over clients with labels of their own: some lack classes, and one has a single one."""
    metric, draw = metrics_of([name], "classes")[0], np.random.default_rng(classes)
    counts = np.array(
        [draw.multinomial(60, draw.dirichlet([0.3] * classes)) for _ in range(12)] + [[9] + [0] * (classes - 1)]
    )
    shares = counts / counts.sum(axis=1, keepdims=True)
    labels = [np.repeat(np.arange(classes), own) for own in counts]
    answers = [*np.eye(classes), shares.mean(axis=0)]
    means = [np.nanmean([metric(own, np.tile(one, (len(own), 1))) for own in labels]) for one in answers]
    assert metric.chance is not None
    assert metric.chance(shares) == pytest.approx(max(means) if metric.higher else min(means))


@pytest.mark.parametrize(
    ("metrics", "value", "told"),
    [
        (
            "auroc",
            0.5,
            "AUROC is 50.0 % on all test data, and a model that gives every sample the same answer has 50.0 %",
        ),
        ("auroc", 0.6, None),
        ("auroc,accuracy", 0.6, None),
        ("accuracy,auroc", 0.6, "accuracy is 94.0 %"),
        ("mcc", 0.01, "MCC is 0.01"),
        ("MCC", 0.01, None),
        ("mcc", 0.1, None),
        ("log_loss", 0.226, "log loss is 0.226"),
        ("log_loss", 0.15, None),
        ("tests.runs.test_metrics:sensitivity", 0.0, None),
    ],
)
def test_nothing_is_learnt_where_the_leading_metric_says_so(metrics: str, value: float, told: str | None) -> None:
    if metrics == "MCC":  # no value on each client's own data, so nothing can be said
        metrics, local = "mcc", None
    else:
        local = value
    config = resolve(RunConfig("fedavg", clients=4, metrics=metrics))
    name = metrics.partition(",")[0].rpartition(":")[2]
    name = "auroc" if name == "accuracy" else name
    summary = {
        "task": "classes",
        "global_accuracy": 0.94,
        "local_accuracy": 0.94,
        "metrics": {f"global_{name}": value, f"local_{name}": local},
    }
    said = no_better_than_chance(config, summary, np.array([[94, 6]] * 4))
    assert (said is None) == (told is None)
    assert (told or "") in (said or "")


def test_results_are_not_taken_for_options(tmp_path: Path) -> None:
    """Every run has values of its own in ``metrics``. Runs differ in their work if other metrics were named."""
    write_comparison(tmp_path / "same", clients=4, rounds=2, seeds=1)
    for number, path in enumerate(sorted((tmp_path / "same").glob("*/result.json"))):
        result = json.loads(path.read_text())
        values = {"global_auroc": 0.7 + number / 100, "local_auroc": 0.8}
        path.write_text(json.dumps(result | {"metrics": values, "measures": [AUROC, ACCURACY]}))
        path.with_name("config.toml").write_text(f'metrics = "auroc"\n{path.with_name("config.toml").read_text()}')
    runs = [load(folder) for folder in find([tmp_path / "same"])]
    assert comparison.differing_work(runs) == {}
    config = runs[0].folder / "config.toml"
    config.write_text(config.read_text().replace('"auroc"', '"f1"'))
    other = [load(folder) for folder in find([tmp_path / "same"])]
    assert comparison.differing_work(other)["metrics"] == ["f1", "auroc"]


def test_a_folder_without_metrics_is_led_by_accuracy(tmp_path: Path) -> None:
    write_run(tmp_path / "old", clients=4, rounds=2)
    assert load(tmp_path / "old").leading.name == "accuracy"
    assert "Accuracy and loss" in words(render([tmp_path / "old"]).read_text())
