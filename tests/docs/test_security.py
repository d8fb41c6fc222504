"""The pages' tables of measured security are the records that their commands write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"


def record(system: str) -> tuple[str, Mapping[str, Any]]:
    """A system's page and its record, whose command stands on the page."""
    page = (DOCS / "systems" / f"{system}.md").read_text()
    content: Mapping[str, Any] = json.loads((DOCS / "security" / f"{system}.json").read_text())
    assert f"    {content['command']}\n" in page
    return page, content


def shown(attack: Mapping[str, float] | None) -> str:
    return "–" if attack is None else f"{attack['value']:.2f} ± {attack['standard_error']:.2f}"


def test_fedcaprivacy() -> None:
    page, content = record("fedcaprivacy")
    variants = content["variants"]
    assert f"| attack (chance) | {' | '.join(variants)} |" in page
    for name, attack in variants["paper"]["attacks"].items():
        values = [shown(variant["attacks"].get(name)) for variant in variants.values()]
        assert f"| {name} ({attack['chance']:.2f}) | {' | '.join(values)} |\n" in page
    for accuracy in ("global", "local"):
        values = [f"{variant[f'{accuracy}_accuracy']:.3f}" for variant in variants.values()]
        assert f"| *{accuracy} accuracy* | {' | '.join(values)} |\n" in page


def short(number: float) -> str:
    """Three decimals, without the zero before them."""
    return f"{number:.3f}".removeprefix("0")


def test_mingledpie() -> None:
    page, content = record("mingledpie")
    held = [row for section in content.values() if isinstance(section, list) for row in section if "errors_off" in row]
    assert f"All {len(held)} agree" in page
    assert max(abs(row["errors_off"]) for row in held) < 3
    plain = page.replace("**", "")
    for clusters, p, what in ((5, 0.5, "intersects 2, 3, 4, 5 sets, drawn"), (10, 0.25, "the same, k = 10, p = 1/4")):
        same = ",".join(f"{r}:{p}" for r in (2, 3, 4, 5))
        rows = [
            row
            for row in content["sets of several keys"]
            if (row["clusters"], row["p_changes"]) == (clusters, same) and row["sets"] > 1 and "keep_sets" not in row
        ]
        (line,) = [line for line in plain.splitlines() if line.startswith(f"| {what}")]
        assert [row["sets"] for row in rows] == [2, 3, 4, 5]
        assert f"| {', '.join(short(row['measured']) for row in rows)} |" in line
        assert f"| {', '.join(short(row['closed_form']) for row in rows)} |" in line


def two(number: float) -> str:
    return f"{number:.2f}".removeprefix("0")


def test_pafed() -> None:
    page, content = record("pafed")
    assert f"all {content['closed_forms']['compared']} comparisons agree" in page
    for row in content["how many updates conflict, trained on digits"]:
        some = row["with conflicts"]
        named = f"{two(row['measured'])} ± {two(row['standard_error'])}"
        told = f"| {named} | {two(some['measured'])} of {some['rounds']} rounds | {two(row['commonest'])} |"
        assert f"{told} {two(row['chance'])} |\n" in page
    lost = []
    for row in content["one client, deviating"]:
        rounds = ", ".join("–" if r is None else str(r) for r in row["in round"])
        means = " | ".join(two(fmean(row[key])) for key in ("accuracy", "accuracy without"))
        forged, error = ", ".join(map(str, row["forged"])), row["error of the others' updates"]
        told = f"| {row['clients']} | {row['with the key']} of {row['thieves']} | {rounds} | {forged} |"
        assert f"{told} {error:g} | {means} |\n" in page
        each = row["thieves"] // len(row["accuracy without"])
        lost += [row["accuracy without"][i // each] - accuracy for i, accuracy in enumerate(row["accuracy"])]
        assert row["rounds skipped"] == [0] * row["thieves"]
    assert max(lost) < 0.1
