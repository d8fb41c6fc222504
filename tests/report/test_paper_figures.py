"""Figures for papers: the curves of the runs over what they are asked for, in files that keep their text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from report_folders import write_comparison

from coterie.protocol.errors import UserError
from coterie.record.load import find, load
from coterie.report.comparison import RunGroup, group
from coterie.report.notebook import AGAINST, curves, leaks, shown_comparison
from coterie.runs.intervals import spread


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> list[RunGroup]:
    folder = write_comparison(tmp_path_factory.mktemp("c"), clients=4, seeds=3, rounds=5)
    return group([load(each) for each in find([folder])])


def test_curves_are_means_in_a_band_over_rounds_bytes_and_time(groups: list[RunGroup]) -> None:
    for against, name in (("rounds", "round"), ("bytes", "sent by a client"), ("time", "virtual seconds")):
        panel, _ = curves(groups, against).axes
        assert panel.get_xlabel().startswith(name)
        assert len({(line.get_color(), line.get_linestyle()) for line in panel.get_lines()}) == len(groups)
        for line, band, found in zip(panel.get_lines(), panel.collections, groups, strict=True):
            _, mean, std = found.curve("local_accuracy")
            assert std is not None
            np.testing.assert_array_equal(line.get_ydata(), mean)
            (path,) = band.get_paths()
            assert path.vertices[:, 1].max() == pytest.approx((mean + std).max())
        if against == "rounds":
            assert all(tick == int(tick) for tick in panel.get_xticks())
    with pytest.raises(UserError, match="over 'energy': take one of rounds, bytes, time, leaks"):
        curves(groups, "energy", (*AGAINST, "leaks"))
    with pytest.raises(UserError, match="no curves over 'energy'"):
        curves(groups, "energy")


def test_a_file_keeps_its_text_and_is_the_same_again(groups: list[RunGroup], tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg", "a.pdf", "b.pdf"):
        curves(groups).savefig(tmp_path / name)
    assert "FedAvg" in (tmp_path / "a.svg").read_text()
    for ending in ("svg", "pdf"):
        assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")


def content(learned: dict[str, object] | None) -> dict[str, object]:
    row = {"method": "ours", "local_accuracy": spread([0.9, 0.8]), "learned": learned, "bytes_up": spread([1e6, 1e6])}
    return {"rows": [row], "measures": [], "benefits": [], "leads": []}


def test_leaks_need_an_audit() -> None:
    (axis,) = leaks(content({"models": spread([0.5, 0.7])})).axes
    assert [text.get_text() for text in axis.texts] == ["ours, 1.00 MB"]
    assert [tuple(line.get_xydata()[0]) for line in axis.get_lines()] == [pytest.approx((60, 0.85))]
    with pytest.raises(UserError, match="--audit"):
        leaks(content(None))


def test_what_attacks_could_not_tell_and_what_there_was_not_to_attack_are_marked() -> None:
    """A 0 of the one topic that could tell is not that of a method which sends nothing. Intervals are drawn whole."""
    unsure = content({"samples": spread([0.0, 0.0]), "labels": None, "other": None})
    rows = [*unsure["rows"], *content({})["rows"], *content({"models": spread([0.0, 0.0])})["rows"]]  # type: ignore[misc]
    for place, name in enumerate(("unsure", "local", "known")):
        rows[place] = {**rows[place], "method": name}
    told = {**unsure, "rows": rows}
    (axis,) = leaks(told).axes
    words = [text.get_text() for text in axis.texts]
    assert words == ["unsure ?, 1.00 MB", "local, nothing to attack, 1.00 MB", "known, 1.00 MB"]
    assert axis.get_xlabel().endswith("\n? unsure, could not tell: labels, other")
    assert spread([0.9, 0.8])["interval"] > 0.15  # type: ignore[index]
    assert axis.get_ylim()[1] > 0.85 + spread([0.9, 0.8])["interval"]  # type: ignore[index]
    html = shown_comparison(told, "c")
    assert "unsure ?, 1.00 MB" in html
    assert "? unsure, could not tell: labels, other" in html
    assert "local, nothing to attack" in html


def test_a_notebook_shows_verdict_chart_and_table() -> None:
    html = shown_comparison(content({"models": spread([1.0, 1.0])}), "<folder>")
    assert "<code>ours</code>'s servers read every client's model" in html.replace("&#39;", "'")
    assert html.count("<svg") == html.count("<table>") == 1
    assert "&lt;folder&gt;" in html
    inks = {part.split(")")[0] for part in html.split("var(")[1:]}
    assert all(f"{ink}:" in html for ink in inks)
