"""The README's table and picture say what the record of the demo has."""

from __future__ import annotations

import io
import json

from benchmarks import demo

RECORD = json.loads(demo.RECORD.read_text())


def test_the_table_has_every_method_with_its_scores_and_leaks() -> None:
    head, _, *lines = demo.table(RECORD).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (head, *lines)]
    assert cells[0][:6] == ["method", "local %", "tuned", "prior", "global %", "groups found"]
    assert len(cells) == 1 + len(RECORD["rows"])
    for row, shown in zip(RECORD["rows"], cells[1:], strict=True):
        assert f"`{row['method']}`" in shown[0]
        assert shown[1].strip("*") == f"{100 * row['local_accuracy']['mean']:.1f}"
        models = (row["learned"] or {}).get("models")
        assert shown[cells[0].index("models")] == ("–" if models is None else f"{100 * models['mean']:.0f}")
    for column in range(1, 5):
        bold = [line[column] for line in cells[1:] if line[column].startswith("**")]
        assert len(bold) == 1
        assert float(bold[0].strip("*")) == max(float(line[column].strip("*")) for line in cells[1:])


def test_the_picture_names_every_method_and_begins_with_the_verdict() -> None:
    figure = demo.picture(RECORD)
    words = " ".join(text.get_text() for axis in figure.axes for text in axis.texts)
    for row in RECORD["rows"]:
        assert f"{row['method']}, " in words
    assert "One seed shows nothing" in " ".join(words.split())
    file = io.BytesIO()
    figure.savefig(file, format="png")
    assert file.getvalue().startswith(b"\x89PNG")
