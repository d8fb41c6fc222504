"""A measured number in a sentence comes from its record, and one that follows from the code is what the code gives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import pages
from coterie.crypto import shared_rows
from coterie.dp import gaussian
from coterie.protocol.errors import CoterieError
from coterie.systems.pafed.classification import delta

ROOT = Path(__file__).parents[2]
MEASURED = re.compile(r"[.\d]* ± \.?\d[.\d]*|\d*\.\d+(?: to \d*\.\d+)? (?:%|points|s|seconds|ms|MB|GB|GiB)(?!\w)")
"""What only a measurement gives: a number with its interval, or a decimal one with a unit. Settings are seldom such."""
GIVEN = {
    "27.8 to 30.1 %": "MingledPie's paper",
    "2.25 GiB": "test_pages.py",
    ".7 MB": "the model that is sent",
    **dict.fromkeys(("6.13 MB", "3.06 MB", "2.16 MB"), "the set of parameters"),
}
"""Numbers of this form that are not measured, and where they come from."""
NO_SENTENCES = (pages.NUMBER, pages.MARK, re.compile(r"^```.*?^```|^(?: {4}|\|).*?$", re.DOTALL | re.MULTILINE))


def sentences(text: str) -> str:
    """Of a page: without tables, marks, code and the targets of links."""
    for form in NO_SENTENCES:
        text = form.sub("", text)
    return " ".join(re.sub(r"`[^`]*`|\]\([^)]*\)", "", text).split())


def by_hand(text: str) -> list[str]:
    """Measured numbers that no mark has written."""
    return [one for one in map(str.strip, MEASURED.findall(sentences(text))) if one not in GIVEN]


@pytest.mark.parametrize("path", pages.pages(), ids=lambda path: path.stem)
def test_no_measured_number_is_written_by_hand(path: Path) -> None:
    assert by_hand(path.read_text()) == []


def test_a_measured_number_without_a_mark_is_found() -> None:
    marked = "It takes <!-- number: docs/bench.json ciphers pafed, paper; ratio -->1.2 ± 0.1<!-- end --> s.\n"
    beside = "| 3.4 s |\n\n    wait 0.5 s\n\n`lr=0.1 s` and [a page](of_0.1 s), Dir(0.5) at lr 0.1\n"
    assert by_hand(marked + beside) == []
    assert by_hand("It leads by .5 ± .4 points,\nor takes 1.66\nGiB, 3 s") == [".5 ± .4", "1.66 GiB"]


def page(name: str) -> str:
    return " ".join((ROOT / "docs" / f"{name}.md").read_text().split())


def test_so_many_clients_fit_words_of_32_bits() -> None:
    weights = int(re.findall(r"for ([\d,]+) weights and a round", page("scale"))[0].replace(",", ""))
    (most,) = re.findall(r"have room for ([\d,]+) clients", page("scale"))
    assert shared_rows.Grid.of(1.0, int(most.replace(",", "")), weights).steps > 0
    with pytest.raises(CoterieError, match=f"at most {most.partition(',')[0]}\\d\\d\\d clients"):
        shared_rows.Grid.of(1.0, 10 * int(most.replace(",", "")), weights)


def test_epsilons_of_noise_on_uploads_are_those_of_the_formula() -> None:
    text, hide = page("systems/ofl"), 1e-5
    assert f"an epsilon of {gaussian.epsilon(0.01, hide, 6):,.0f} after six rounds" in text
    small, large = gaussian.epsilon(0.2, hide, 10), gaussian.epsilon(1.0, hide, 10)
    assert f"`noise=0.2` has an epsilon of {small:.0f}, and `noise=1` of {large:.1f}" in text


def test_what_decoys_hide_is_that_of_the_formula() -> None:
    few, many = (f"{delta(decoys, 1.0):.3f}".lstrip("0") for decoys in (4, 16))
    assert f"at ε = 1 four dummies have δ = {few}, and sixteen {many}" in page("systems/pafed")
