"""Pictures of studies show what their records have; legends lie within them, and rounds are whole numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import pictures

SVG = "{http://www.w3.org/2000/svg}"
DRAWN = dict(pictures.of_records())
EVERY = sorted(pictures.DOCS.rglob("*.svg"))
WIDTH = 0.6
"""Of a letter, over its size, on average."""


def name(path: Path) -> str:
    return path.relative_to(pictures.DOCS).as_posix()


def parts(text: str) -> list[str]:
    """Words and numbers, without the library's name, embedded fields of colour and names within the file."""
    text = re.sub(r"<dc:title>.*?</dc:title>|data:image/png;base64,[^\"]*", "", text)
    return re.findall(r"-?\d+\.\d+|[^\s\d]+|\d+", re.sub(r"(?<=[#\"])[a-z][0-9a-f]{10}(?=[)\"])", "", text))


@pytest.mark.parametrize("picture", DRAWN, ids=name)
def test_a_picture_is_that_of_its_record(picture: Path, tmp_path: Path) -> None:
    pictures.draw(DRAWN[picture], tmp_path / "again.svg")
    committed, again = parts(picture.read_text()), parts((tmp_path / "again.svg").read_text())
    assert len(committed) == len(again), "python -m benchmarks.pages draws it"
    for one, other in zip(committed, again, strict=True):  # another processor may round otherwise
        assert one == other or abs(float(one) - float(other)) < 0.01, "python -m benchmarks.pages draws it"


def test_a_changed_record_changes_its_picture(tmp_path: Path) -> None:
    picture, record = next((path, one) for path, one in DRAWN.items() if "curves" in one and "ofl" in path.parts)
    cell, (first, *others) = next(iter(record["curves"].items()))
    other: dict[str, Any] = {**first, "global_accuracy": [0.5 for _ in first["global_accuracy"]]}
    pictures.draw({**record, "curves": {**record["curves"], cell: [other, *others]}}, tmp_path / "other.svg")
    assert parts((tmp_path / "other.svg").read_text()) != parts(picture.read_text())


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text)]


def ends(of: ElementTree.Element) -> Iterator[float]:
    """Left and right ends of the marks and of the words of a legend; NaN for a mark that was not drawn."""
    for group in of.findall(f"{SVG}g"):
        kind = group.get("id", "")
        if kind.startswith("line2d"):
            for path in group.findall(f"{SVG}path"):
                yield from numbers(path.get("d", ""))[::2] or [float("nan")]
        if kind.startswith("text"):
            for text in group.findall(f"{SVG}text"):
                left, size = float(text.get("x", "")), numbers(text.get("style", ""))[0]
                yield from (left, left + WIDTH * size * len(text.text or ""))
            for drawn in group.findall(f"{SVG}g"):  # as glyphs
                left, _, scale = numbers(drawn.get("transform", ""))[:3]
                steps = [numbers(glyph.get("transform", "0"))[0] for glyph in drawn.findall(f"{SVG}use")]
                yield from (left, left + scale * (max(steps) + 100 * WIDTH))


@pytest.mark.parametrize("picture", EVERY, ids=name)
def test_a_legend_lies_within_its_picture(picture: Path) -> None:
    root = ElementTree.parse(picture).getroot()
    left, _, width, _ = numbers(root.get("viewBox", ""))
    legends = [one for one in root.iter(f"{SVG}g") if one.get("id", "").startswith("legend_")]
    found = [x for legend in legends for x in ends(legend)]
    assert found or "mingledpie/fig3" in name(picture)  # heat maps
    assert [x for x in found if not left <= x <= left + width] == []


@pytest.mark.parametrize("picture", EVERY, ids=name)
def test_rounds_are_whole_numbers(picture: Path) -> None:
    for axis in re.split(r'id="matplotlib\.axis_', picture.read_text())[1:]:
        of_axis = re.split(r'id="(?:patch|legend|line2d_\d+_?text)_', axis)[0]
        shown = re.findall(r"<!-- (.*?) -->|<text[^>]*>(.*?)</text>", of_axis)
        words = [one or other for one, other in shown]
        if "round" in words:
            assert [one for one in words if one != "round" and not one.isdigit()] == []
