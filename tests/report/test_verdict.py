"""A verdict says what the record carries, in the words that its numbers allow, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from report_folders import edit, write_run

from coterie.record.comparison import ACCURACY
from coterie.record.load import load
from coterie.report import compared_plots, verdict
from coterie.report.figure import Labelled, Line
from coterie.report.gains import help_sentences
from coterie.runs.intervals import spread

MEASURE = msgspec.structs.asdict(ACCURACY)


def row(method: str, *values: float, **more: Any) -> dict[str, Any]:
    return {"method": method, "system": method, "local_accuracy": spread(values), **more}


def gains(*verdicts: str, seeds: int = 1) -> dict[str, Any]:
    clients = [
        {"client": f"client/{i}", "name": None, "seed": s, "verdict": word, "gain": 0.1 - 0.1 * i, "alone": 0.5}
        | {"together": 0.6 - 0.1 * i, "low": None, "high": None, "samples": 9}
        for s in range(seeds)
        for i, word in enumerate(verdicts)
    ]
    return {"method": "ours", "tuned": False, "clients": clients}


def content(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"rows": list(rows), "measures": [MEASURE], "benefits": [], "leads": [], **more}


def said(*rows: dict[str, Any], **more: Any) -> str:
    return " ".join(verdict.verdict(content(*rows, **more)))


def test_better_than_training_alone_needs_three_seeds_and_an_interval_beside_0() -> None:
    alone = row("local", 0.80, 0.82, 0.81)
    benefits = [gains("better", "better", "undecided", seeds=3)]
    words = said(row("ours", 0.90, 0.91, 0.92), alone, benefits=benefits)
    assert words.startswith(
        "`ours` is better than training alone: +10.0 points of accuracy [+7.5, +12.5] on average (95 % interval over 3 "
        "paired seeds). It is better for 6, worse for 0 and undecided for 3 of 9 clients, 3 with each "
        "of 3 seeds."
    )
    assert "`ours` is worse than training alone: -9.0 points" in said(row("ours", 0.71, 0.73, 0.72), alone)
    unsure = said(row("ours", 0.90, 0.70, 0.85), alone)
    assert "`ours` is not shown to be better or worse than training alone: " in unsure


def test_the_best_mean_is_named_unless_it_is_that_of_the_first_or_of_training_alone() -> None:
    ours, other, alone = row("ours", 0.8, 0.9), row("other", 0.92, 0.96), row("local", 0.7, 0.75)
    words = said(ours, other, row("third", 0.5, 0.6), alone)
    assert (
        "`other` has the best mean: accuracy 94.0 % on each client's own kind of data; against training alone " in words
    )
    assert words.count("best mean") == 1
    assert "`other` has the best mean: accuracy 94.0 % on each client's own kind of data." in said(ours, other)
    assert "best mean" not in said(other, ours, alone)
    assert "best mean" not in said(ours, row("other", 0.9, 0.8), alone)  # level with the first
    assert "best mean" not in said(alone | {"method": "local"}, row("local2", 0.99, 0.99, system="local"))


def test_a_best_mean_is_the_least_where_lower_is_better_and_says_whether_it_is_tuned() -> None:
    lower = {**MEASURE, "higher": False, "share": False}
    words = said(row("ours", 2.0), row("other", 1.0), measures=[lower])
    assert "`other` has the best mean: accuracy 1 on" in words
    tuned = [row("ours", 0.8, fine_tuned_local_accuracy=spread([0.95])), row("other", 0.9)]
    assert "`other` has the best mean: accuracy 90.0 %" in said(*tuned)
    tuned[1]["fine_tuned_local_accuracy"] = spread([0.94])
    assert "`other` has the best mean before fine-tuning: accuracy 90.0 %" in said(*tuned)
    tuned[1]["local_accuracy"] = spread([0.7])
    assert "best mean" not in said(*tuned)
    tuned[1]["fine_tuned_local_accuracy"] = spread([0.97])
    assert "`other` has the best mean after fine-tuning: accuracy 97.0 % on each client's own kind" in said(*tuned)


def test_one_seed_shows_nothing() -> None:
    words = said(row("ours", 0.9), row("local", 0.8), benefits=[gains("better", "worse")])
    assert "`ours` against training alone: +10.0 points of accuracy on average. " in words
    assert "It is better for 1, worse for 1 and undecided for 0 of 2 clients." in words
    assert "One seed shows nothing of the next one: repeat it with at least 3." in words
    assert "is better than" not in words
    assert "2 seeds show nothing" in said(row("ours", 0.9, 0.8), row("local", 0.8, 0.8))


def test_clients_are_counted_once_and_undecided_is_explained() -> None:
    benefit = gains("undecided", "undecided", "better")
    for one, half in zip(benefit["clients"], (0.04, 0.08, 0.02), strict=True):
        one |= {"low": one["gain"] - half, "high": one["gain"] + half}
    benefit["clients"].append({**benefit["clients"][0], "gain": None, "low": None, "high": None, "verdict": None})
    told = content(row("ours", 0.9), row("local", 0.8), benefits=[benefit])
    words = " ".join(verdict.verdict(told))
    assert "better for 1, worse for 0 and undecided for 2 of 4 clients, no interval for 1." in words
    (said,) = help_sentences(told)
    assert "of 4 clients: better for 1, worse for none, undecided for 2, no interval for 1." in said
    assert said.endswith("Undecided: with these test samples gains below about 4.0 points cannot be seen.")
    assert "Undecided:" not in next(iter(help_sentences(content(row("ours", 0.9), benefits=[gains("better")]))))


def test_the_client_that_loses_most_is_named() -> None:
    benefit = gains("better", "worse", "worse", "worse")
    for one, (name, gain) in zip(
        benefit["clients"], (("east", 0.3), ("west", -0.5), ("north", -0.1), ("west", -0.3)), strict=True
    ):
        one |= {"name": name, "gain": gain}
    words = " ".join(verdict.verdict(content(row("ours", 0.9), row("local", 0.8), benefits=[benefit])))
    assert "undecided for 0 of 4 clients; worst for west, -40.0 points of accuracy." in words


def test_both_are_taken_fine_tuned_or_neither() -> None:
    tuned = {"fine_tuned_local_accuracy": spread([0.95])}
    assert "+5.0 points of accuracy on average, both fine-tuned by the clients" in said(
        row("ours", 0.9, **tuned), row("local", 0.8, fine_tuned_local_accuracy=spread([0.9]))
    )
    assert "+10.0 points of accuracy on average." in said(row("ours", 0.9, **tuned), row("local", 0.8))


def test_models_that_are_worse_before_fine_tuning_are_told_of_as_well() -> None:
    tuned = {"fine_tuned_local_accuracy": spread([0.95])}
    rows = row("ours", 0.7, **tuned), row("local", 0.8, fine_tuned_local_accuracy=spread([0.9]))
    forms = [gains("worse", "worse", "undecided"), {**gains("better", "undecided", "undecided"), "tuned": True}]
    words = said(*rows, benefits=forms)
    assert words.startswith(
        "`ours` against training alone: +5.0 points of accuracy on average, both fine-tuned by the clients; without "
        "fine-tuning -10.0 points of accuracy. It is better for 1, worse for 0 and undecided for 2 of 3 clients; "
        "without fine-tuning it is better for 0, worse for 2 and undecided for 1."
    )
    alike = [gains("better"), {**gains("better"), "tuned": True}]
    assert "without" not in said(row("ours", 0.9, **tuned), rows[1], benefits=alike)
    differing = [gains("worse"), {**gains("better"), "tuned": True}]
    assert "without fine-tuning +10.0 points" in said(row("ours", 0.9, **tuned), rows[1], benefits=differing)


def test_lower_is_better_for_an_error() -> None:
    rmse = {"name": "rmse", "label": "RMSE", "share": False, "higher": False}
    rows = [{**row(name), "metrics": {"local_rmse": spread(v)}} for name, v in (("ours", [2.0]), ("local", [3.0]))]
    words = " ".join(verdict.verdict({**content(*rows), "measures": [rmse]}))
    assert "`ours` against training alone: +1 in RMSE (above 0: lower, which is better)" in words


def test_nothing_is_said_of_what_was_not_attacked() -> None:
    words = said(row("ours", 0.9), row("other", 0.8))
    assert "No server's view was attacked here, so nothing is said of what servers learn." in words
    assert "Nothing here compares it with clients that train alone." in words
    leak = {"models": spread([1.0]), "identity": spread([0.4])}
    words = said(row("ours", 0.9, learned=None), row("other", 0.8, learned=leak))
    assert "`ours` was not attacked." in words
    assert "`other`'s servers read every client's model." in words


def test_what_no_attack_applies_to_is_no_success() -> None:
    """A dash is not a 0: it is told as what it is."""
    learned = {"labels": spread([0.03]), "groups": None}
    words = said(row("ours", 0.9, learned=learned), row("other", 0.8, learned={"models": spread([1.0])}))
    assert (
        "found next to nothing, at most 3.0 %, of label shares; they cannot tell for which clients are alike; " in words
    )
    assert "none applies to models." in words
    assert "learns" not in words
    (cell,) = (line[3] for line in verdict.table(content(row("ours", 0.9, learned=learned)))[1:])
    assert cell == "3 (label shares); ? alike"
    half = said(row("ours", 0.9, learned={"labels": spread([0.5]), "groups": spread([0.0])}))
    assert "`ours`'s servers know part of the label shares (50 %)." in half
    assert "cannot tell what `ours`'s servers learn" in said(row("ours", 0.9, learned={"groups": None}))


def test_who_is_ahead_is_told() -> None:
    rows = [row("ours", 0.8, 0.8, 0.8), row("other", 0.9, 0.9, 0.9)]
    leads = [{"over": "other", "local_accuracy": {"mean": -0.1, "interval": 0.02, "values": [-0.1] * 3}, "metrics": {}}]
    assert "`other` is ahead of it: +10.0 points of accuracy [+8.0, +12.0]." in said(*rows, leads=leads)
    leads[0]["local_accuracy"] = {"mean": -0.1, "interval": 0.2, "values": [-0.1] * 3}
    assert "ahead" not in said(*rows, leads=leads)


def test_the_table_has_five_columns_and_tells_unknown_from_0() -> None:
    attacked = row("ours", 0.9, 0.92, learned={"labels": spread([-0.01, 0.01])}, bytes_up=spread([1e6, 2e6]))
    head, *rows = verdict.table(content(attacked, row("open", 0.8, 0.8, learned={}), row("x", 0.8, 0.8)))
    assert head == ["method", "accuracy on own kind of data", "after tuning", "servers learn, worst", "sent by all"]
    assert rows[0] == ["ours", "91.0 ± 12.7 %", "–", "0", "1.50 MB"]
    assert [line[3] for line in rows[1:]] == ["nothing to attack", "cannot tell"]
    assert verdict.table(content(row("x", 0.8)))[1][3] == "not attacked"


def test_a_run_alone_claims_nothing_of_others(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one", clients=4, rounds=2)
    words = verdict.of_run(load(folder))
    assert words[0].endswith("on each client's own kind of data after 2 rounds.")
    assert words[1:] == [
        "One run shows no difference to another method, nor to training alone: `coterie compare` does.",
        "Nobody's view was attacked here, so nothing is said of what the parties learn.",
    ]
    attack = {"name": "hub: label shares", "leak": 0.8, "error": 0.01, "metric": "m", "chance": 0, "perfect": 1}
    for found, last in (
        ("much", "The attack by one server alone that learned most, hub: label shares, found much: leak 0.80 of 1."),
        ("nothing found", "None of our 1 attack by one server alone found anything."),
        ("cannot tell", "None of our 1 attack by one server alone found anything, but not all of them can tell."),
    ):
        own = {**attack, "verdict": found, "clients": 4, "topic": "labels"}
        edit(folder / "result.json", audit={"attacks": [own]})
        assert verdict.of_run(load(folder))[-1] == last
        control = {**attack, "name": "hub, if it had keys: all", "verdict": "everything", "clients": 4}
        edit(folder / "result.json", audit={"attacks": [own, control]})
        more = " Attacks by clients, by parties together or on what did not happen found more: see the table."
        assert verdict.of_run(load(folder))[-1] == last + more


# -- the two charts ---------------------------------------------------------------------------------------------------


def test_a_mark_stands_at_its_leak_and_accuracy_and_is_named() -> None:
    found = verdict.standings(
        content(
            row("ours", 0.9, learned={"labels": spread([0.0])}, bytes_up=spread([1e7])),
            row("open", 0.5, learned={"models": spread([1.0])}, bytes_up=spread([1e4])),
            row("unknown", 0.7, learned=None),
            row("unsure", 0.7, learned={"groups": None}),
        )
    )
    figure, alt = compared_plots.trade(found, ACCURACY)
    ((panel,),) = figure.panels
    marks = [mark for mark in panel.marks if isinstance(mark, Line) and not mark.joined]
    assert [(mark.x, mark.y) for mark in marks] == [([0.0], [0.9]), ([100.0], [0.5])]
    assert marks[0].radius > marks[1].radius
    (labels,) = (mark for mark in panel.marks if isinstance(mark, Labelled))
    assert labels.words == ["ours", "open"]
    assert labels.more == [", 10.0 MB", ", 10.0 kB"]
    assert "ours: accuracy 90.0 %, worst leak 0.0 %" in alt
    missing = ["not shown: unknown, not attacked", "not shown: unsure, the attacks cannot tell: alike"]
    assert [key.words for key in figure.keys] == missing
    assert alt.endswith("; ".join(missing))


def test_words_keep_clear_of_other_marks_at_their_height() -> None:
    """At the right end a label stands left of the neighbour's mark, too; and one far above does not move it."""

    def starts(heights: list[float]) -> list[float]:
        labels = Labelled([99, 100], heights, ["aa", "bb"], [8, 6], 101)
        svg = labels.draw(lambda x: np.asarray(x, float) * 5, lambda y: np.asarray(y, float) * 10)
        return [float(part.split('"')[0]) for part in svg.split(' x="')[1:]]

    apart, beside = starts([1.0, 9.0]), starts([1.0, 1.5])
    assert apart[1] - beside[1] == pytest.approx(5 + 8 - 6)
    assert apart[0] == beside[0]


def test_words_that_would_cover_each_other_move_down() -> None:
    labels = Labelled([0, 0, 100], [1.0, 1.0, 1.0], ["one", "two", "three"], [5, 5, 5], 110)
    svg = labels.draw(lambda x: np.asarray(x, float) * 5, lambda y: np.asarray(y, float) * 10)
    heights = [float(part.split('"')[0]) for part in svg.split(' y="')[1:]]
    assert heights == [pytest.approx(14), pytest.approx(30.8), pytest.approx(14)]


def test_gains_are_sorted_with_their_intervals() -> None:
    benefit = gains("undecided", "worse", "better")
    for one, gain in zip(benefit["clients"], (0.0, -0.2, 0.3), strict=True):
        one |= {"gain": gain, "together": 0.5 + gain, "low": gain - 0.1, "high": gain + 0.1}
    benefit["clients"].append({**benefit["clients"][0], "gain": None})
    figure, alt = compared_plots.gains.__wrapped__(benefit, ACCURACY)  # type: ignore[attr-defined]
    ((panel,),) = figure.panels
    marks = [mark for mark in panel.lines() if not mark.joined and mark.filled]
    assert [mark.x for mark in marks] == [[0.8], [0.5], [0.3]]
    assert len({mark.shape for mark in marks}) == 3
    bars = [mark.x for mark in panel.lines() if mark.joined and mark.width < 2]
    assert bars == [pytest.approx([0.7, 0.9]), pytest.approx([0.4, 0.6]), pytest.approx([0.2, 0.4])]
    assert "3 clients" in alt
    assert alt.endswith("client/2, seed 0 +30.0 points to client/1, seed 0 -20.0 points")
