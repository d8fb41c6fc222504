"""The ledger in a report: its numbers are those of ``dp/ledger.py``, and what has no proof is said to have none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from report_folders import edit, without_heads, write_run

from coterie.dp.gaussian import noise_multiplier
from coterie.dp.ledger import Release, statements
from coterie.protocol.errors import UserError
from coterie.record import load
from coterie.record.schema import NoiseRecord
from coterie.report import ledger, render
from coterie.report.ledger import released
from coterie.report.statement import statement
from coterie.report.summary import clusters, results
from coterie.report.words import number

pytestmark = pytest.mark.usefixtures("no_figures")

DELTA = 1e-5
NOISY = Release("vector", "gaussian", noise_multiplier(4.0, DELTA), 0.1)
MODEL = Release("model", round=2)
HEADING = "<h2>What clients have released</h2>"


def folder(tmp_path: Path, **releases: list[Release]) -> Path:
    out = write_run(tmp_path / "run", clients=6, rounds=4)
    edit(out / "result.json", ledger=statements(releases, DELTA) if releases else None)
    return out


def test_a_row_has_the_least_and_the_most_of_the_clients(tmp_path: Path) -> None:
    found = ledger.ledger_table(load.load(folder(tmp_path, a=[NOISY], b=[NOISY, NOISY])).result.ledger)
    assert found is not None
    assert found["rows"] == [
        {
            "what": "vector",
            "mechanism": "gaussian",
            "neighbours": "replace one sample",
            "against": "",
            "clients": 2,
            "count": "1 to 2",
            "epsilon": "4 to 5.992",
            "more": "5.992 to 7.631",
            "claimed": "–",
        }
    ]
    assert (found["together"], found["open"], found["delta"]) == ("4 to 5.992", [], "1e-05")
    assert (found["further"], found["of"]) == ("5.992 to 9.085", "one of its samples")


def test_without_a_proof_there_is_no_epsilon_of_everything(tmp_path: Path) -> None:
    out = folder(tmp_path, a=[NOISY, MODEL], b=[NOISY])
    found = ledger.ledger_table(load.load(out).result.ledger)
    assert found is not None
    assert [(row["what"], row["epsilon"], row["clients"]) for row in found["rows"]] == [
        ("vector", "4", 2),
        ("model", "no proof", 1),
    ]
    assert found["together"] == "4, or no proof"
    both = folder(tmp_path / "both", a=[NOISY, MODEL], b=[MODEL])
    page = render([both]).read_text()
    assert HEADING in page
    assert "there is no epsilon, because there is no proof of privacy for: model" in page
    assert page.count("no proof</td>") == 2


def test_epsilon_stands_beside_those_who_see_so_much(tmp_path: Path) -> None:
    seen = [replace(NOISY, against=("server", "public")), replace(MODEL, against=("own leader",))]
    out = folder(tmp_path, a=seen, b=seen)
    found = ledger.ledger_table(load.load(out).result.ledger)
    assert found is not None
    assert found["against"] == {"4": "server or public, each of them alone", "no proof": "own leader alone"}
    page = render([out]).read_text()
    assert "Against server or public, each of them alone: 4." in page
    assert "Against own leader alone: no proof." in page
    assert '<td class="words">server, public</td>' in without_heads(page)
    told = ledger.released(statements({"a": seen}, DELTA))
    assert "all together, against server or public, each of them alone: epsilon 4" in told
    assert "all together, against own leader alone: no proof" in told


def test_a_run_without_a_ledger_has_no_table(tmp_path: Path) -> None:
    assert HEADING not in render([folder(tmp_path)]).read_text()
    assert ledger.ledger_table({}) is None
    assert HEADING not in render([folder(tmp_path / "nothing", a=[])]).read_text()


@pytest.mark.parametrize(
    "wrong", [{"epsilon": -1.0}, {"epsilon": "large"}, {"count": 0}, {"epsilon_after_one_more": None}]
)
def test_a_damaged_ledger_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    out = folder(tmp_path, a=[NOISY])
    content = json.loads((out / "result.json").read_text())
    content["ledger"]["a"]["releases"][0] |= wrong
    (out / "result.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"result\.json: .*ledger"):
        render([out])


def test_hostile_words_in_a_ledger_stay_words(tmp_path: Path) -> None:
    page = render([folder(tmp_path, a=[Release("<script>alert(1)</script>")])]).read_text()
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;alert(1)") == 2


def test_the_command_line_says_what_has_an_epsilon_and_what_has_none() -> None:
    both, noisy, model = (statements({"a": kinds}, DELTA) for kinds in ([NOISY, MODEL], [NOISY], [MODEL]))
    assert released(both) == "vector: epsilon 4 for one sample (delta 1e-05); no proof for: model"
    listed = statements({"a": [NOISY, MODEL, replace(MODEL, what="counts, by label")]}, DELTA)
    assert released(listed).endswith("no proof for: model; counts, by label")
    once = "vector: epsilon 4 for one sample (delta 1e-05); together 4, after one more round 5.992"
    assert released(noisy) == once
    assert released(model) == "no proof for: model"
    assert released(None) == released(statements({"a": []}, DELTA)) == ""


def test_a_ledger_that_protects_whole_clients_is_told_for_whole_clients(tmp_path: Path) -> None:
    """A heuristic's claim stands beside, summed over a client's uploads; it is not counted."""
    upload = Release("upload", "gaussian", noise_multiplier(4.0, DELTA), 2.0, "replace one client", 1)
    guess = Release("values", "heuristic", neighbours="replace one client", claimed_epsilon=150.0)
    out = folder(tmp_path / "standard", a=[upload])
    page = render([out]).read_text()
    assert "has an epsilon of 4 together, at delta 1e-05, for a client as a whole" in page
    assert "After one more round like its last it would be 5.992." in page
    assert '<th class="n">claimed</th>' not in page
    assert released(statements({"a": [upload]}, DELTA)).startswith("upload: epsilon 4 for a whole client (delta 1e-05)")
    three = [guess, guess, replace(guess, claimed_epsilon=100.0)]
    page = render([folder(tmp_path / "paper", a=three)]).read_text()
    assert "there is no proof of privacy for: values" in page
    assert '<th class="n">claimed</th>' in page
    vain = "400 (proves nothing)"
    assert without_heads(page).count(f'<td class="n">{vain}</td>') == 1
    assert released(statements({"a": three}, DELTA)) == f"no proof for: values; its paper claims epsilon {vain}"


def test_an_epsilon_that_bounds_nothing_says_so_wherever_it_stands(tmp_path: Path) -> None:
    """e to the 100 times as likely is no bound. An audit's lower bound is no promise, and stands as it is."""
    vain = "(proves nothing)"
    assert ledger.in_words([100.0]) == "100"
    assert ledger.in_words([345_678.0]) == f"345,678 {vain}"
    assert ledger.in_words([4.0, 345_678.0, "infinite"]) == "4 to 345,678 (above 100 it proves nothing), or no proof"
    weak = replace(NOISY, noise_multiplier=0.01, against=("server",))
    out = folder(tmp_path, a=[weak], b=[weak])
    page, told = render([out]).read_text(), released(statements({"a": [weak]}, DELTA))
    assert without_heads(page).count(f"{vain}</td>") == 2  # of it alone, and after one more
    for words in (f"has an epsilon of 5,426 {vain} together", f"server alone: 5,426 {vain}."):
        assert words in page
    for words in (f"vector: epsilon 5,426 {vain} for one sample", f"server alone: epsilon 5,426 {vain}"):
        assert words in told
    assert f"5,426 {vain}" in statement(out)
    (row,) = ledger.noise_table([msgspec.convert({**ROW, "lower_bound": 345.0, "claimed_epsilon": 500.0}, NoiseRecord)])
    assert (row["claimed"], row["proved"]) == (f"500 {vain}", "345")


ROW = {
    "mechanism": "paper",
    "neighbours": "equal values",
    "claimed_epsilon": 2.0,
    "lower_bound": 6.1,
    "exact_epsilon": "infinite",
    "delta": DELTA,
    "trials": 4000,
    "holds": False,
}


CALM = {"refused": 0, "lost": 0, "late": 0, "refused_why": {}, "outliers": {}, "skipped": {}}


def test_an_audit_of_the_noise_stands_beside_the_ledger(tmp_path: Path) -> None:
    out = folder(tmp_path, a=[NOISY])
    assert "The noise, audited" not in render([out]).read_text()
    edit(out / "result.json", dp_audit=[ROW, {**ROW, "exact_epsilon": None, "holds": True, "lower_bound": 1.25}])
    page = render([out]).read_text()
    assert "The noise, audited" in page
    assert "the claim is false" in page
    assert "the claim is not contradicted" in page
    assert '<td class="n">infinite</td>' in without_heads(page)
    result = json.loads((out / "result.json").read_text())
    said = [words for label, words in results(CALM | result) if label == "privacy, audited"]
    assert said == [
        "paper: epsilon claimed 2, at least 6.1 by a test, infinite by a formula (equal values): the claim is false",
        "paper: epsilon claimed 2, at least 1.25 by a test (equal values): the claim is not contradicted",
    ]
    edit(out / "result.json", dp_audit=[{**ROW, "lower_bound": -1.0}])
    with pytest.raises(UserError, match=r"result\.json: .*dp_audit"):
        render([out])


@pytest.mark.parametrize(
    ("per_client", "words"), [(1.0, "2 (of 3, 1 clients)"), (1.5, "2 (of 3, 1 clients); a client")]
)
def test_only_clients_of_several_clusters_are_told_of(per_client: float, words: str) -> None:
    grouping = {"clusters": 2, "sizes": [3, 1], "per_client": per_client, "without": 0, "ari": None}
    ((_, found),) = clusters(grouping)
    assert found.startswith(words)
    assert ("on average" in found) == (per_client > 1)


def test_large_numbers_have_no_exponent_and_are_sorted_by_value(tmp_path: Path) -> None:
    """The epsilon of a noise that protects nothing is as large as it is, and reads as that."""
    one, two = (
        Release("values", "heuristic", neighbours="replace one client", claimed_epsilon=claim)
        for claim in (954_000.0, 1_446_000.5)
    )
    assert number(31_043.7) == "31,044"
    assert number(999.96) == "1,000"
    assert number(float("inf")) == "inf"  # of a folder that somebody else wrote
    assert released(statements({"a": [one], "b": [two]}, DELTA)).endswith(
        "its paper claims epsilon 954,000 to 1,446,000 (proves nothing)"
    )


def test_a_reason_with_many_names_is_one(tmp_path: Path) -> None:
    result = json.loads((folder(tmp_path, a=[NOISY]) / "result.json").read_text())
    spent = {f"client/Train: client/{i} has spent its budget": 1 for i in range(240)}
    found = dict(results(CALM | result | {"refused": 241, "refused_why": {**spent, "csp/Fold: bad": 1}}))
    assert found["refused"] == "240 × client/Train: client/0 has spent its budget; and for 1 other reason"
