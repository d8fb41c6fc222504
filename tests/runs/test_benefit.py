"""Whether training together helps a client: closed forms, slow twins, and a comparison of four hospitals."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Command
from msgspec import to_builtins
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

import coterie
from coterie.protocol.errors import UserError
from coterie.protocol.randomness import rng
from coterie.report.gains import help_rows, help_sentences
from coterie.report.statement import statement
from coterie.runs import benefit
from coterie.runs.benefit import Predicted, benefits, drawn_differences, gain
from coterie.runs.metrics import METRICS

CLASSES = METRICS["classes"]


def predicted(rows: NDArray[Any], labels: NDArray[Any], p: NDArray[Any]) -> Predicted:
    """Two classes, of which the second has these probabilities."""
    return Predicted(rows, labels, {"": np.stack([1 - p, p], axis=1)})


def some(seed: int, n: int = 60, better: float = 0.0) -> tuple[Predicted, Predicted]:
    """Two models on the same samples, the other one better by so much."""
    draw = np.random.default_rng(seed)
    labels, base = np.arange(n) % 2, draw.normal(size=n)
    one, other = (base + strength * labels + 0.3 * draw.normal(size=n) for strength in (0.5, 0.5 + better))
    rows = np.arange(n) + 1000 * seed
    return tuple(predicted(rows, labels, 1 / (1 + np.exp(-z))) for z in (one, other))  # type: ignore[return-value]


@pytest.mark.parametrize("name", ["accuracy", "auroc"])
@pytest.mark.parametrize("classes", [2, 3])
def test_many_draws_at_once_are_one_after_the_other(name: str, classes: int) -> None:
    """By scikit-learn, one class after the other."""

    def twin(labels: NDArray[Any], scores: NDArray[Any]) -> float:
        if name == "accuracy":
            return float(np.mean((scores > 0.5 if labels.ndim > 1 else scores.argmax(axis=1)) == labels))
        found = []
        for k in range(classes if labels.ndim > 1 or classes > 2 else 1):
            of_class = labels[:, k] > 0 if labels.ndim > 1 else labels == (1 if classes == 2 else k)
            own = scores[:, 1 if labels.ndim == 1 and classes == 2 else k]
            found += [roc_auc_score(of_class, own)] if 0 < of_class.sum() < len(labels) else []
        return float(np.mean(found)) if found else np.nan

    draw = np.random.default_rng(classes)
    labels, scores = draw.integers(classes, size=30), draw.integers(5, size=(30, classes)) / 4  # with ties
    counts = draw.multinomial(30, np.full(30, 1 / 30), size=20)
    counts[0] = 1
    counts[1] = np.where(labels == 0, 2, 0)  # a draw of one class
    for true in (labels, draw.integers(2, size=(30, classes))):
        fast = CLASSES[name].on_draws(true, scores, counts)
        slow = [twin(true[chosen], scores[chosen]) for chosen in (np.repeat(np.arange(30), c) for c in counts)]
        np.testing.assert_allclose(fast, slow, atol=1e-12)
        assert CLASSES[name](true, scores) == pytest.approx(slow[0], abs=1e-12)


def test_a_model_that_has_diverged_is_worst_in_every_draw() -> None:
    one, _ = some(0)
    scores = one.scores[""].copy()
    scores[3] = np.nan
    assert CLASSES["auroc"].on_draws(one.labels, scores, np.ones((2, 60), np.int64)).tolist() == [0, 0]


def test_the_interval_of_an_accuracy_is_the_closed_form() -> None:
    """A difference of shares is a mean of -1, 0 and 1: its deviation is that of these over the root of their number."""
    n = 400
    labels, right = np.ones(n, np.int64), np.random.default_rng(1).random((2, n)) < [[0.6], [0.75]]
    pair = tuple(predicted(np.arange(n), labels, np.where(row, 0.9, 0.1)) for row in right)
    each = right[1].astype(float) - right[0]
    found = gain(CLASSES["accuracy"], [pair], "", 4000, "client/0")  # type: ignore[list-item]
    assert found.gain == pytest.approx(each.mean())
    half = 1.96 * each.std() / n**0.5
    assert (found.low, found.high) == pytest.approx((each.mean() - half, each.mean() + half), abs=0.1 * half)
    assert found.verdict == "better"


def test_draws_are_those_of_a_slow_twin() -> None:
    """Two runs that share samples, and one apart: by hand, sample by sample."""
    first, second = some(1), some(2)
    (third, fourth) = some(1, better=0.5)
    pairs = [first, (third, fourth), second]
    found = drawn_differences(CLASSES["auroc"], pairs, "", 5, "client/0")
    draw = rng(0, "client/0", "bootstrap")
    rows = sorted({*first[0].rows.tolist(), *second[0].rows.tolist()})
    counts = draw.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=5)
    lots = draw.multinomial(2, np.full(2, 1 / 2), size=5)  # among the first two, which test the same samples
    draw.multinomial(1, [1.0], size=5)
    for b in range(5):
        total, weight = 0.0, 0.0
        for (one, other), times in zip(pairs, (*lots[b], 1), strict=True):
            chosen = [i for i, row in enumerate(one.rows) for _ in range(counts[b, rows.index(row)])]
            ours, theirs = (CLASSES["auroc"](of.labels[chosen], of.scores[""][chosen]) for of in (other, one))
            total, weight = total + times * (ours - theirs), weight + times
        assert found[b] == pytest.approx(total / weight)


def test_the_same_model_gains_nothing_and_a_better_one_something() -> None:
    one, _ = some(0)
    same = gain(CLASSES["auroc"], [(one, one)], "", 100, "client/0")
    assert (same.gain, same.low, same.high, same.verdict) == (0, 0, 0, "undecided")
    better, worse = some(3, better=2.0), some(3, better=2.0)[::-1]
    assert gain(CLASSES["auroc"], [better], "", 500, "client/0").verdict == "better"
    assert gain(CLASSES["auroc"], [worse], "", 500, "client/0").verdict == "worse"
    lower = gain(CLASSES["log_loss"], [better], "", 200, "client/0")  # one draw after the other, and lower is better
    assert lower.gain is not None
    assert lower.alone is not None
    assert lower.together is not None
    assert lower.gain == pytest.approx(lower.alone - lower.together)


def test_a_metric_that_is_not_defined_is_not_judged() -> None:
    one = Predicted(np.arange(1), np.ones((1, 1)), {"": np.zeros((1, 1))})
    found = gain(METRICS["regression"]["r2"], [(one, one)], "", 100, "client/0")
    assert (found.alone, found.gain, found.verdict, found.samples, found.instead) == (None, None, None, 1, None)


def test_one_label_is_judged_by_accuracy() -> None:
    """A site of healthy people whom the common model calls ill is harmed, though it has no AUROC."""
    rows, labels = np.arange(20), np.zeros(20, np.int64)
    pair = predicted(rows, labels, np.full(20, 0.1)), predicted(rows, labels, np.full(20, 0.9) - (rows < 4))
    found = gain(CLASSES["auroc"], [pair], "", 200, "client/0")
    assert (found.instead, found.alone, found.together, found.verdict) == ("accuracy", 1, 0.2, "worse")
    by_accuracy = gain(CLASSES["accuracy"], [pair], "", 200, "client/0")
    assert by_accuracy.instead is None
    assert (by_accuracy.low, by_accuracy.high) == (found.low, found.high)


def test_a_comparison_says_how_a_client_of_one_label_is_judged_and_warns_once(cli: Command) -> None:
    """In the terminal, the report and the statement."""
    Path("own").mkdir()
    for name in ("north", "south", "west"):
        rows = "".join(f"{i},{0 if name == 'west' else i % 2}\n" for i in range(20))
        Path(f"own/{name}.csv").write_text(f"dose,label\n{rows}")
    words = ["compare", "fedavg", "--data", "own", "--model", "linear", "--rounds", "1", "--seeds", "2"]
    ended = cli(*words, "--metrics", "auroc", "--out", "c")
    assert ended.err.count("all labels of its training samples are '0'") == 1
    assert "(one label: accuracy instead)" in ended.out
    assert "accuracy judges it" in ended.out
    page = Path("c/report.html").read_text()
    assert "(one label: accuracy instead)" in page
    assert "accuracy judges it" in page
    west = json.loads(Path("c/compare.json").read_text())["benefits"][0]["clients"][2]
    assert (west["name"], west["instead"], west["verdict"] in ("better", "worse", "undecided")) == (
        "west",
        "accuracy",
        True,
    )
    said = statement(Path("c/fedavg-0"))
    assert "(one label: accuracy instead)" in said
    assert "accuracy judges it" in said


@pytest.mark.long
@pytest.mark.parametrize("rarer", [4, 8])
def test_intervals_of_an_auroc_hold_the_truth_where_a_class_is_rare(rarer: int) -> None:
    """Both models are equally good, so the truth is 0. Quantiles as for 60 samples hold .91 and .92 of the time."""
    labels, held = (np.arange(60) < rarer).astype(int), []
    for trial in range(400):
        draw = np.random.default_rng(trial)
        base = draw.normal(size=60) + labels
        one, other = (predicted(np.arange(60), labels, base + draw.normal(size=60)) for _ in range(2))
        found = gain(CLASSES["auroc"], [(one, other)], "", 300, f"client/{trial}")
        assert found.low is not None
        assert found.high is not None
        held.append(found.low <= 0 <= found.high)
    assert 0.925 <= np.mean(held) <= 0.985


def test_a_ranking_counts_the_samples_of_the_rarer_class() -> None:
    labels = np.array([0] * 7 + [1] * 3)
    assert CLASSES["accuracy"].counted(labels, 2) == 10
    assert CLASSES["auroc"].counted(labels, 2) == CLASSES["auroc"].counted(1 - labels, 2) == 3
    assert CLASSES["auroc"].counted(labels * 0, 2) == 0
    three = np.array([0] * 6 + [1] * 3 + [2] * 2)  # of the 11, each class against the rest: 5, 3, 2
    assert CLASSES["auroc"].counted(three, 3) == pytest.approx(3 / (1 / 5 + 1 / 3 + 1 / 2))
    assert CLASSES["auroc"].counted(np.eye(3)[three][:, 1:], 2) == pytest.approx(2 / (1 / 3 + 1 / 2))
    single = predicted(np.arange(10), (np.arange(10) == 0).astype(int), np.linspace(0, 1, 10))
    assert gain(CLASSES["auroc"], [(single, single)], "", 100, "client/0").verdict is None


@pytest.mark.long
def test_nineteen_of_twenty_intervals_hold_the_truth() -> None:
    """Five folds of a hospital with 200 patients, and models that differ from fold to fold."""
    metric, held, estimates, spans = CLASSES["auroc"], 0, [], []
    for trial in range(300):
        draw = np.random.default_rng(trial)
        labels, base = np.r_[np.zeros(50), np.ones(150)].astype(int), draw.normal(size=200)
        pairs = []
        for fold in range(5):
            here, noise = np.arange(200) % 5 == fold, 0.3 * draw.normal(size=(2, 40)) * draw.normal(size=(2, 1))
            signs = (base[here] + s * labels[here] + 0.6 * draw.normal(size=40) for s in (1.0, 1.4))
            both = (predicted(np.flatnonzero(here), labels[here], z + w) for z, w in zip(signs, noise, strict=True))
            pairs.append(tuple(both))
        found = gain(metric, pairs, "", 300, f"client/{trial}")  # type: ignore[arg-type]
        estimates.append(found.gain)
        spans.append((found.low, found.high))
    truth = np.mean(estimates)  # type: ignore[arg-type]
    held = sum(low <= truth <= high for low, high in spans)  # type: ignore[operator]
    assert 0.91 <= held / 300 <= 0.98


def runs(seeds: int, clients: int) -> tuple[dict[int, dict[str, Predicted]], dict[int, dict[str, Predicted]]]:
    made = {s: {f"client/{i}": some(10 * s + i, better=2.0 * (i == 0)) for i in range(clients)} for s in range(seeds)}
    return tuple({s: {c: of[c][k] for c in of} for s, of in made.items()} for k in range(2))  # type: ignore[return-value]


def test_clients_with_names_are_one_over_all_seeds_and_others_one_with_each() -> None:
    alone, together = runs(2, 3)
    (found,) = benefits(CLASSES["auroc"], alone, {"fedavg": together}, {f"client/{i}": f"h{i}" for i in range(3)})
    assert [(one.name, one.seed, one.samples) for one in found.clients] == [(f"h{i}", None, 120) for i in range(3)]
    assert found.clients[0].verdict == "better"
    (each,) = benefits(CLASSES["auroc"], alone, {"fedavg": together}, {})
    assert [(one.client, one.seed) for one in each.clients] == [(f"client/{i}", s) for s in range(2) for i in range(3)]
    content = {"benefits": [to_builtins(each)], "measures": [CLASSES["auroc"].facts]}
    (line,) = help_sentences(content)
    count = Counter(one.verdict for one in each.clients)
    assert line.startswith(f"fedavg, of 6 clients, 3 with each of 2 seeds: better for {count['better']}, worse for ")
    many = {**content, "benefits": [{**content["benefits"][0], "clients": content["benefits"][0]["clients"] * 20}]}
    assert len(help_rows(content)) == 6
    assert not help_rows(many)


def test_a_gain_that_tuning_does_not_change_stands_once() -> None:
    """Clients take a fine-tuned model only where held-out samples gain by it."""
    alone, together = runs(1, 2)
    names = {f"client/{i}": f"h{i}" for i in range(2)}
    (found,) = benefits(CLASSES["auroc"], alone, {"fedavg": together}, names)
    plain = to_builtins(found)
    moved = {**plain["clients"][1], "together": 0.99}
    tuned = {**plain, "tuned": True, "clients": [plain["clients"][0], moved]}

    def told(*benefits: Any) -> tuple[list[tuple[str, ...]], list[str]]:
        content = {"benefits": benefits, "measures": [CLASSES["auroc"].facts]}
        return [row[:2] for row in help_rows(content)], [one.split(", of ")[0] for one in help_sentences(content)]

    rows = [("h0", "fedavg, tuned or not"), ("h1", "fedavg"), ("h1", "fedavg, both tuned")]
    assert told(plain, tuned) == (rows, ["fedavg", "fedavg, both tuned"])
    once = [("h0", "fedavg, tuned or not"), ("h1", "fedavg, tuned or not")]
    assert told(plain, {**plain, "tuned": True}) == (once, ["fedavg, tuned or not"])
    assert told(plain) == ([("h0", "fedavg"), ("h1", "fedavg")], ["fedavg"])


def test_a_slow_metric_is_judged_only_where_it_takes_little(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, together = runs(1, 3)
    monkeypatch.setattr(benefit, "SLOW_DRAWS", 20)
    (found,) = benefits(CLASSES["f1"], alone, {"fedavg": together}, {})
    assert found.clients[0].verdict in ("better", "undecided")
    monkeypatch.setattr(benefit, "MOST_VALUES", 12 * 9)
    (found,) = benefits(CLASSES["f1"], alone, {"fedavg": together}, {})
    assert found.clients[0].verdict is None
    assert found.clients[0].gain is not None


def test_a_comparison_says_whether_it_helps_each_hospital(cli: Command) -> None:
    words = ["compare", "fedavg", "--data", "heart", "--rounds", "2", "--seeds", "2", "--out", "c"]
    ended = cli(*words)
    assert ended.code == 0
    assert ended.out.startswith("Does it help? AUROC on each client's own test samples, together against alone")
    content = json.loads(Path("c/compare.json").read_text())
    assert [(one["method"], one["tuned"]) for one in content["benefits"]] == [("fedavg", False), ("fedavg", True)]
    for form, one in zip(("local_auroc", "fine_tuned_local_auroc"), content["benefits"], strict=True):
        for i, client in enumerate(one["clients"]):
            assert client["name"] == ("cleveland", "hungarian", "switzerland", "va")[i]
            folders = [[Path(f"c/{name}-{seed}/clients.json") for seed in range(2)] for name in ("local", "fedavg")]
            values = [[json.loads(file.read_text())[form][i] for file in of] for of in folders]
            assert [client["alone"], client["together"]] == pytest.approx(np.mean(values, axis=1).tolist())
            assert client["low"] <= client["gain"] <= client["high"]
    assert [client["samples"] for client in content["benefits"][0]["clients"]] == [122, 118, 50, 80]
    page = Path("c/report.html").read_text()
    assert page.index("Does it help?") < page.index("<h2>Results</h2>")
    assert "fedavg, both tuned" in page
    for line in help_sentences(content):
        assert line in ended.out.replace("\n", "")
    before = Path("c/fedavg-1/metrics.jsonl").read_bytes()
    Path("c/local-0/result.json").unlink()
    assert cli(*words, "--resume").code == 0
    assert Path("c/fedavg-1/metrics.jsonl").read_bytes() == before
    assert json.loads(Path("c/compare.json").read_text())["benefits"] == content["benefits"]
    assert Path("c/fedavg-0/predictions.npz").stat().st_mode & 0o077 == 0
    Path("c/fedavg-0/predictions.npz").write_bytes(b"PK")
    assert cli(*words, "--resume").code == 2
    np.savez("c/fedavg-0/predictions.npz", clients=["client/0"], sizes=[3], rows=[1], labels=[1], outputs=[[0.0, 1.0]])
    with pytest.raises(UserError, match="holds no clients' test samples"):
        benefit.read(Path("c/fedavg-0"), "classes")


GOOD = {
    "clients": np.array(["client/0", "client/1"]),
    "sizes": np.array([2, 1]),
    "rows": np.array([4, 5, 0]),
    "labels": np.array([0, 1, 1]),
    "outputs": np.eye(2, dtype=np.float32)[[0, 1, 1]],
}


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ({"clients": np.array(["client/0", "client/0"])}, "no different names"),
        ({"clients": np.array([0, 1])}, "no different names"),
        ({"clients": np.array("client/0")}, "no different names"),
        ({"clients": np.array(["client/0"])}, "sizes are not those"),
        ({"sizes": np.array([1.5, 1.5])}, "sizes are no whole numbers"),
        ({"sizes": np.array([[2, 1]])}, "sizes are no whole numbers"),
        ({"sizes": np.array([4, -1])}, "sizes are no whole numbers"),
        ({"sizes": np.array([2**62, 3])}, "sizes are not those"),
        ({"sizes": np.array([1, 1])}, "sizes are not those"),
        ({"rows": np.array([4.0, np.nan, 0])}, "rows are no whole numbers"),
        ({"labels": np.array([0.0, np.nan, 1])}, "labels are no numbers of 2 classes"),
        ({"labels": np.array([0, 1, 2])}, "labels are no numbers of 2 classes"),
        ({"labels": np.array([[0], [1], [1]])}, "do not fit together"),
        ({"labels": np.array(["0", "1", "1"])}, "do not fit together"),
        ({"outputs": np.eye(2)[0]}, "outputs are no rows"),
        ({"outputs": np.array([["a", "b"]] * 3)}, "outputs are no rows"),
        ({"outputs": np.eye(2)}, "do not fit together"),
        ({"fine_tuned_outputs": np.eye(3)}, "outputs are no rows"),
    ],
    ids=str,
)
def test_predictions_that_are_plain_and_damaged_are_refused(damage: dict[str, Any], says: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "predictions.npz", **GOOD)
    found = benefit.read(tmp_path, "classes")
    assert {name: one.rows.tolist() for name, one in found.items()} == {"client/0": [4, 5], "client/1": [0]}
    np.savez(tmp_path / "predictions.npz", **{**GOOD, **damage})
    with pytest.raises(UserError, match=says):
        benefit.read(tmp_path, "classes")


def test_labels_of_other_tasks_are_finite(tmp_path: Path) -> None:
    labels = np.array([[0.0, 1], [1, 0], [np.nan, 1]])
    np.savez(tmp_path / "predictions.npz", **{**GOOD, "labels": labels})
    with pytest.raises(UserError, match="labels are not finite"):
        benefit.read(tmp_path, "regression")
    np.savez(tmp_path / "predictions.npz", **{**GOOD, "labels": np.nan_to_num(labels)})
    assert set(benefit.read(tmp_path, "multilabel")) == {"client/0", "client/1"}


def test_other_tasks_and_methods_without_fine_tuning_have_gains_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benefit, "SLOW_DRAWS", 20)
    draw = np.random.default_rng(0)
    data = {name: ((x := draw.normal(size=(40, 3))), x.sum(axis=1) + draw.normal(size=40)) for name in ("a", "b", "c")}
    race = coterie.compare(
        ["fedavg"], data, seeds=2, task="regression", rounds=1, out=str(tmp_path / "r"), progress=False, folds=2
    )
    values = [one["alone"] for one in race.benefits[0]["clients"]]
    summary = [of.summary["metrics"]["local_r2"] for of in race.results["local"]]
    assert np.mean(values) == pytest.approx(np.mean(summary))
    assert "Does it help" not in race._repr_html_()
    assert "both tuned, of 3 clients" in race._repr_html_()
    mixed = coterie.compare(["fedem"], "heart", seeds=1, rounds=1, out=str(tmp_path / "m"), progress=False)
    assert [one["tuned"] for one in mixed.benefits] == [False]
    assert coterie.compare(["fedavg"], "heart", seeds=1, rounds=1, local=False, out=str(tmp_path / "n")).benefits == []


def test_few_test_samples_of_own_tables_are_worth_folds(cli: Command) -> None:
    Path("own").mkdir()
    for name in ("north", "south"):
        rows = "".join(f"{i},{i % 2}\n" for i in range(20))
        Path(f"own/{name}.csv").write_text(f"age,label\n{rows}")
    words = ["compare", "fedavg", "--data", "own", "--model", "linear", "--rounds", "1"]
    assert "Only 8 samples are tested; without a column split, --folds 5 --seeds 5 tests all." in cli(*words).out
    assert "samples are tested" not in cli(*words, "--folds", "5", "--out", "folded").out
