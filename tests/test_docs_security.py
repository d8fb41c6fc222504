"""The pages' tables of measured security are the records that their commands write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"


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
