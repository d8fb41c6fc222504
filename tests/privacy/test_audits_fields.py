"""Fields of clients' messages: a label histogram is found wherever it stands, and what no attack reads is named."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from typer.testing import CliRunner

import coterie
import coterie.method as fl
from coterie.baselines import fedavg
from coterie.cli.app import app
from coterie.privacy.attacks.labels import label_numbers
from coterie.privacy.audits import Audit, Finding, Recorded
from coterie.privacy.fields import MOST_NUMBERS, NotJudged, field_findings, watched
from coterie.report import render
from coterie.runs import RunConfig, run
from coterie.runs.attacked import attacked
from coterie.runs.findings import together
from coterie.runs.recorded import record

OPTIONS: dict[str, Any] = {
    "data": "digits", "model": "linear", "clients": 8, "rounds": 2, "partition": "dirichlet:0.5", "fine_tune": "no",
    "samples": 800,
}  # fmt: skip
BY_FIELD = "server: label shares, by Told.extra"
rng = np.random.default_rng(4)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# -- the comparison ----------------------------------------------------------------------------------------------------


def counts_of(n: int, classes: int = 10) -> np.ndarray:
    return np.stack([rng.multinomial(60, rng.dirichlet([0.5] * classes)) for _ in range(n)])


def verdict(numbers: np.ndarray, counts: np.ndarray) -> tuple[str, float]:
    found = Finding("server", "x", "other", (label_numbers(numbers, counts),))
    return found.verdict, found.leak


@pytest.mark.parametrize(("n", "more"), [(5, 0), (8, 3), (20, 300)])
def test_counts_and_shares_are_found_in_any_order_and_scale_among_any_numbers(n: int, more: int) -> None:
    counts = counts_of(n)
    order, others = rng.permutation(10 + more), 20 * rng.normal(size=(n, more))
    for numbers in (counts, counts / counts.sum(axis=1, keepdims=True), 3 - 0.01 * counts, np.log(1 + counts)):
        assert verdict(np.hstack([numbers, others])[:, order], counts) == ("everything", pytest.approx(1))


def test_half_a_histogram_is_half_of_it_and_a_noisy_one_less_than_all() -> None:
    counts = counts_of(30)
    said, leak = verdict(counts[:, :5], counts)
    assert said == "much"
    assert 0.4 < leak < 0.7
    said, leak = verdict(counts + 3 * rng.normal(size=counts.shape), counts)
    assert said == "much"
    assert leak < 0.98


def test_noise_is_nothing() -> None:
    said = {(n, m): verdict(rng.normal(size=(n, m)), counts_of(n))[0] for n in (5, 8, 20, 40) for m in (3, 10, 200)}
    none = [at for at, word in said.items() if word == "nothing found"]
    unsure = [at for at, word in said.items() if word == "cannot tell"]
    assert len(none) + len(unsure) >= len(said) - 1  # each may be wrong once in twenty times
    assert all(n <= 8 for n, _ in unsure), "so few clients leave half of everything within luck"


def test_two_classes_are_told_by_one_number() -> None:
    counts = counts_of(12, classes=2)
    assert verdict((counts[:, :1] / counts.sum(axis=1, keepdims=True)), counts)[0] == "everything"


def test_chance_is_the_same_with_rows_in_random_orders() -> None:
    """A slow twin with numpy's own correlation; shares are the only form that these numbers follow."""
    counts = counts_of(6, classes=3)
    numbers = rng.normal(size=(6, 4))
    found = label_numbers(numbers, counts)
    shares = counts / counts.sum(axis=1, keepdims=True)
    forms = [counts, shares, counts / np.linalg.norm(counts, axis=1, keepdims=True), np.log1p(counts)]

    def slow(order: np.ndarray) -> float:
        by_form = []
        for form in forms:
            by_class = [max(abs(np.corrcoef(form[order, k], numbers[:, j])[0, 1]) for j in range(4)) for k in range(3)]
            by_form.append(np.mean(by_class))
        return max(by_form)

    assert found.value == pytest.approx(slow(np.arange(6)))
    lucky = [slow(rng.permutation(6)) for _ in range(200)]
    assert found.chance == pytest.approx(np.mean(lucky), abs=5 * np.std(lucky) / np.sqrt(100))
    assert found.chance_sd == pytest.approx(np.std(lucky), rel=0.4)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_label_counts_of_a_few_clients_are_found_or_not_judged(classes: int) -> None:
    """With four clients and two classes random orders correlate as well, so "nothing found" would say nothing."""
    found = []
    for _ in range(20):
        counts = counts_of(4, classes)
        with suppress(fl.UserError):
            found.append(verdict(counts, counts)[0])
    assert set(found) <= {"everything"}
    assert classes != 2 or not found
    with pytest.raises(fl.UserError, match="4 are too few"):
        label_numbers(np.array([[1], [2], [5], [7]]), np.array([[1, 9], [2, 8], [5, 5], [7, 3]]))


def test_nothing_to_compare_is_said() -> None:
    for numbers, counts in ((np.ones((5, 3)), counts_of(5)), (rng.normal(size=(5, 3)), np.ones((5, 4)))):
        with pytest.raises(fl.UserError, match="nothing to compare"):
            label_numbers(numbers, counts)


# -- in a system of one's own ------------------------------------------------------------------------------------------

Extra = Literal["counts", "shares", "hidden", "shuffled", "noise", "long"]


@dataclass(frozen=True)
class Config(fl.Averaging):
    """extra: what the clients send beside their models."""

    extra: Extra = "counts"


@fl.message(src="client", dst="server")
class Told(fl.Signed, frozen=True, kw_only=True):
    spec: bytes
    weights: fl.Floats
    samples: int
    extra: fl.Doubles
    note: bytes
    same: bytes = b"of all"


@fl.local("test: what else a client tells")
def extra_of(own: fl.OwnData, extra: str, seed: int) -> Any:
    counts, noise = np.bincount(own.y, minlength=10).astype(float), np.random.default_rng(seed)
    others = 50 * noise.normal(size=40)
    return {
        "counts": counts,
        "shares": counts / counts.sum(),
        "hidden": np.concatenate([others[:17], counts, others[17:]]),
        "shuffled": counts[[3, 1, 4, 0, 5, 9, 2, 6, 8, 7]],
        "noise": others[:10],
        "long": np.concatenate([counts, np.zeros(MOST_NUMBERS)]),
    }[extra]


class Telling(fl.AveragingClient, role="client"):
    @fl.on(fl.Train, fl.training, answers=Told)
    def train(self, msg: fl.Train, src: str) -> fl.Work[Told]:
        fitted: fl.Fitted = yield fl.Fit(msg.weights, self.config.solver(), self.epochs, fl.batch_seed(self, msg.round))
        seed = int(self.rng("extra", msg.round).integers(1 << 62))
        extra = yield fl.Local(extra_of, (self.config.extra, seed))
        note = self.name.encode()
        own = {"weights": fitted.weights, "samples": fitted.samples, "extra": extra, "note": note}
        return Told(round=msg.round, spec=self.spec.digest, **own)


class Listening(fl.Server, role="server"):
    def round(self, r: int) -> fl.Steps[Any]:
        notes, _ = yield from self.average(r, fl.asked_in(self.clients, self.config, self.randomness.seed, r), Told)
        return notes


TELLING = replace(
    fedavg.SYSTEM,
    name="telling",
    title="Telling",
    config=Config,
    parties=lambda config: {"server": Listening, "client": Telling},
    learns={"server": "everything", "client": "the model"},
    releases=None,
)
SYSTEM = "tests.privacy.test_audits_fields:TELLING"


@cache
def recorded(extra: Extra) -> Recorded:
    return other(extra)


def other(extra: Extra, **options: Any) -> Recorded:
    return record(RunConfig(SYSTEM, record=True, **{**OPTIONS, "settings": {"extra": extra}, **options}))


@pytest.mark.parametrize(
    "extra", ["hidden", *(pytest.param(extra, marks=pytest.mark.long) for extra in ("counts", "shares", "shuffled"))]
)
def test_a_histogram_in_a_message_is_found_under_any_name(extra: Extra) -> None:
    found = {one.name: one for one in attacked(recorded(extra)).found}
    assert found[BY_FIELD].verdict == "everything"
    assert found[BY_FIELD].leak == pytest.approx(1)
    assert len(found[BY_FIELD].results) == 2
    assert found["server: label shares"].leak < 0.95  # the model alone tells less


def test_random_numbers_are_compared_and_nothing_is_found() -> None:
    of = attacked(recorded("noise"))
    (found,) = [one for one in of.found if one.name == BY_FIELD]
    assert found.verdict == "nothing found"
    assert of.not_judged == [
        NotJudged("server", "Told", "samples", "a number"),
        NotJudged("server", "Told", "note", "bytes"),
    ]  # not the model, nor what is the same for all, nor the signature


@pytest.mark.parametrize(("extra", "options"), [("long", {}), ("counts", {"clients": 3})])
def test_what_cannot_be_compared_is_not_judged(extra: Extra, options: dict[str, Any]) -> None:
    of = attacked(other(extra, **options))
    assert BY_FIELD not in {one.name for one in of.found}
    assert ("Told", "extra") in {one[1:3] for one in of.not_judged}
    said = "more than 1,024 numbers" if extra == "long" else "compares clients, and Told came from fewer than 4"
    assert said in of.not_applicable["short-arrays"]


def test_clients_that_are_asked_one_by_one_are_compared_all_the_same() -> None:
    settings = {"extra": "counts", "participation": 0.25}
    (found,) = [one for one in attacked(other("counts", rounds=12, settings=settings)).found if one.name == BY_FIELD]
    assert len(found.results) == 1
    assert found.results[0].n >= 6
    assert found.verdict == "everything"


def test_what_the_systems_own_audit_reads_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads notes and isn't told that it is watched."""

    def passive(run: Recorded) -> list[Finding]:
        kinds = {type(message) is Told for _, message in run.views["server"].messages(Told)}
        assert all(message.note.startswith(b"client/") for _, message in run.views["server"].messages(Told))
        assert kinds == {False}  # a subclass
        return []

    noticing = recorded("noise")
    monkeypatch.setattr("coterie.runs.attacked.audit_of", lambda system: Audit(passive))
    assert [one.field for one in attacked(noticing).not_judged] == ["samples"]


def test_the_record_itself_stays_as_it_is() -> None:
    run_ = recorded("noise")
    seen, read = watched(run_)
    before = [one.message for one in run_.views["server"].seen]
    ((_, first), *_) = seen.views["server"].messages(Told)
    assert not read
    assert first.samples > 0
    assert read == {("Told", "samples")}
    assert [one.message for one in run_.views["server"].seen] == before
    assert isinstance(first, Told)
    assert type(before[0]) is Told


def test_table_json_and_report_name_what_was_not_judged(here: Path) -> None:
    for seed in (0, 1):
        run(RunConfig(SYSTEM, record=True, out=f"race/{seed}", seed=seed, **OPTIONS))
    ended = CliRunner().invoke(app, ["audit", "race/0"], env={"COLUMNS": "160"})
    said = "Not judged, since no attack reads it, at server: Told.samples (a number), Told.note (bytes)."
    assert ended.exit_code == 0
    assert said in ended.stdout
    assert BY_FIELD in ended.stdout
    result = json.loads((here / "race" / "0" / "result.json").read_text())["audit"]
    assert result["not_judged"][0] == {"role": "server", "message": "Told", "field": "samples", "why": "a number"}
    assert said in render([here / "race" / "0"], here / "report.html").read_text()
    coterie.audit("race/1")
    both = coterie.audit("race")
    assert [one["field"] for one in both["methods"][0]["not_judged"]] == ["samples", "note"]
    assert said in CliRunner().invoke(app, ["audit", "race"], env={"COLUMNS": "160"}).stdout


def test_an_audit_of_before_has_no_such_list(here: Path) -> None:
    run(RunConfig(SYSTEM, record=True, out="old", **OPTIONS))
    content = coterie.audit("old")
    del content["not_judged"]
    assert together({Path("old"): content})["methods"][0]["not_judged"] == []


def test_single_numbers_together_are_a_histogram_too() -> None:
    """Of two classes one number tells the shares."""
    run_ = recorded("noise")
    two = replace(run_, label_counts=np.stack([run_.label_counts[:, 0], run_.label_counts[:, 1:].sum(axis=1)], axis=1))
    found, _, left = field_findings(two, set())
    assert "server: label shares, by Told.samples" in {one.name for one in found}
    assert ("Told", "samples") not in {one[1:3] for one in left}
