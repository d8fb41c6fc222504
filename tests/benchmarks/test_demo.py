"""The README's table and picture say what the record of the demo has."""

from __future__ import annotations

import io
import json
import re
from functools import cache

import pytest

from benchmarks import demo

RECORD = json.loads(demo.RECORD.read_text())
drawn = cache(lambda: dict(demo.pictures(RECORD)))


def cells(table: str) -> list[list[str]]:
    head, _, *lines = table.splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in (head, *lines)]


def test_the_tables_have_every_method_with_its_scores_and_leaks() -> None:
    head, *shown = cells(demo.scores(RECORD))
    assert head == ["method", "local %", "tuned", "prior", "global %", "groups found", "sent by all"]
    (_, *topics), *leaks = cells(demo.leaks(RECORD))
    assert len(shown) == len(leaks) == len(RECORD["rows"])
    for row, scores, learned in zip(RECORD["rows"], shown, leaks, strict=True):
        assert f"`{row['method']}`" in scores[0] == learned[0]
        assert scores[1].strip("*") == f"{100 * row['local_accuracy']['mean']:.1f}"
        models = (row["learned"] or {}).get("models")
        assert learned[1 + topics.index("models")] == ("–" if models is None else f"{100 * models['mean']:.0f}")
    for column in range(1, 5):
        bold = [line[column] for line in shown if line[column].startswith("**")]
        assert len(bold) == 1
        assert float(bold[0].strip("*")) == max(float(line[column].strip("*")) for line in shown)


def test_the_page_opens_with_what_its_tables_say() -> None:
    best = next(line for line in cells(demo.scores(RECORD))[1:] if line[1].startswith("**"))
    assert all(cell.startswith("**") for cell in best[1:5])
    learned = next(line for line in cells(demo.leaks(RECORD))[1:] if line[0] == best[0])
    assert set(learned[1:]) <= {"–", "0", "?"}, "no attack finds anything; some may not be able to tell"
    assert "0" in learned


def test_the_first_table_has_five_columns() -> None:
    head, *shown = cells(demo.table(RECORD))
    assert len(head) == 5
    assert [line[1] for line in shown] == [f"{100 * row['local_accuracy']['mean']:.1f} %" for row in RECORD["rows"]]


@pytest.mark.parametrize("end", demo.PICTURES)
def test_a_picture_names_every_method_and_begins_with_the_verdict(end: str) -> None:
    figure = drawn()[end]
    words = " ".join(text.get_text() for axis in figure.axes for text in axis.texts)
    assert "One seed shows nothing" in " ".join(words.split())
    assert all(row["method"] in words for row in RECORD["rows"])
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    picture = file.getvalue()
    assert picture.startswith(b"\x89PNG")
    width = int.from_bytes(picture[16:20], "big")
    assert width == (390 if "narrow" in end else 960)
    table = [cell.get_text() for axis in figure.axes for one in axis.tables for cell in one.get_celld().values()]
    assert min(text.get_fontsize() for text in table) * 100 / 72 >= 10  # pixels of a letter, as a phone shows it
    boxes = [text.get_window_extent() for axis in figure.axes for text in (*axis.texts, *table) if text.get_text()]
    assert 0 <= min(one.x0 for one in boxes) <= max(one.x1 for one in boxes) <= figure.bbox.width
    assert (sum(figure.get_facecolor()[:3]) < 1) == end.endswith("dark")
    assert (demo.RECORD.parent / f"report{end}.png").exists()


def test_readme_and_front_page_show_a_picture_for_every_screen() -> None:
    for page, folder in (("README.md", "docs/"), ("docs/index.md", "")):
        shown = re.findall(r'(?:srcset|src)="([^"]+)"', (demo.ROOT / page).read_text())
        assert sorted(shown) == sorted(f"{folder}report{end}.png" for end in demo.PICTURES)
