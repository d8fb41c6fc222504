"""Pages have the tables of their records and the commands that wrote them, and state the defaults of the code; links
lead somewhere, also where nobody builds the site.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks import pages, tables
from coterie.baselines.robust import SYSTEMS, RobustConfig
from coterie.clustering.isomorphic import Aidc
from coterie.crypto import threshold as th
from coterie.crypto import threshold_pads
from coterie.data.schemes import kinds
from coterie.data.synthetic import _LAWS  # the page lists the laws, which have no public list
from coterie.devices.profiles import BOARDS
from coterie.privacy.attacks.active import KINDS
from coterie.selection.bandit import MEMBERS, Cics

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TEXTS = [*sorted(ROOT.glob("*.md")), *pages.pages()]
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
MARKS = sorted({(path, mark[2]) for path in pages.pages() for mark in pages.MARK.finditer(path.read_text())})
COMPARISONS = dict(
    re.findall(
        r"^`(coterie compare [^`]+)`\n\(\[.*?\]\(comparisons/(.*?)\)\)", (DOCS / "comparisons.md").read_text(), re.M
    )
)
"""Command -> name of its record."""


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text()


def settings(text: str) -> dict[str, str]:
    """By name what the tables of settings say of each."""
    found: dict[str, str] = {}
    for names, values in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ([^|]+) \|", text, re.M):
        words, shown = re.findall(r"\w+", names), values.strip().split(", ")
        if len(words) == len(shown):
            found |= dict(zip(words, shown, strict=True))
    return found


# -- tables and their records ------------------------------------------------------------------------------------------


def test_no_page_differs_from_its_records(capsys: pytest.CaptureFixture[str]) -> None:
    assert pages.main(["--check"]) == 0, capsys.readouterr().out


def test_no_record_says_where_it_was_made() -> None:
    records = [*(pages.ROOT / "docs").rglob("*.json")]
    assert len(records) > 50
    assert not [path for path in records if re.search(r"[ \"](/|~/|[A-Z]:\\)\w+/", path.read_text())]


def test_a_changed_number_is_noticed_and_written_back() -> None:
    text = page("scale")
    changed = text.replace("| 100,000 |", "| 100,001 |")
    assert changed != text
    assert pages.generated(changed) == text


def test_a_number_in_a_sentence_is_that_of_its_record() -> None:
    text = page("systems/fedcaprivacy")
    changed = re.sub(r"(ciphers fedcaprivacy, paper; ratio -->)[\d.]+", r"\g<1>41", text)
    assert changed != text
    assert pages.generated(changed) == text


def test_a_number_is_found_by_its_row_and_column() -> None:
    table = "| way | % | lead |\n| --- | --- | --- |\n| [`a`](a.md) | **9.5 ± 0.2** | +1.5 / −2e-05 |\n"
    table += "| `--b 2` | – | 3 |\n"
    asked = ("a", "%"), ("a", "lead"), ("a", "lead /2"), ("b 2", "lead")
    assert [pages.number(table, *one) for one in asked] == ["9.5 ± 0.2", "1.5", "−2e-05", "3"]
    for row, column in (("c", "%"), ("a", "c"), ("a", "lead /3"), ("b 2", "%")):
        with pytest.raises(ValueError, match=f"{row}; {column}: "):
            pages.number(table, row, column)


def test_no_number_begins_a_line() -> None:
    """Markdown would take it for a block, and end the paragraph."""
    mark = "<!-- number: docs/bench.json ciphers fedcaprivacy, paper; ratio -->?<!-- end -->"
    assert "?" not in pages.generated(f"as {mark}\n")
    for before in ("\n", "  ", "- "):
        with pytest.raises(ValueError, match="begins a line"):
            pages.generated(f"as\n{before}{mark}\n")


def test_first_or_level_is_bold_and_a_variant_of_a_method_does_not_compete_with_it() -> None:
    of = {"coterie": [90.0, 90.0], "coterie+control": [91.0, 91.0], "other": [90.3, 90.5], "gone": None}
    place = {"data": "d", "partition": "p", "form": "mixed"}
    rows = [{**place, "method": name, **({"by seed": own} if own else {})} for name, own in of.items()]
    line = tables.cells({"rows": rows}, "mixed").splitlines()[2]
    half = 12.706 * 0.1  # Student's t of one degree of freedom, and the standard error of the two leads
    shown = ["**90.0 ± 0.0**", "**91.0 ± 0.0**", "90.4 ± 1.3", "diverged", f"−0.4 ± {half:.1f} (other)"]
    assert line == f"| d, p | {' | '.join(shown)} |"
    deciles = [{**row, "worst decile, by seed": row["by seed"]} if "by seed" in row else row for row in rows]
    counted = dict(row[2:-2].split(" | ") for row in tables.levels({"rows": deciles}).splitlines()[2:])
    assert "| d, p | other | −0.4 ± 1.3 / −0.4 ± 1.3 | +0.6 ± 1.3 / +0.6 ± 1.3 |" in tables.leads(
        {"rows": deciles}, "mixed"
    )
    assert counted == {"coterie": "1/1", "coterie+control": "1/1", "other": "0/0", "gone": "0/0"}


def test_a_table_without_a_row_that_its_page_names_is_refused() -> None:
    """Rows are named by text that has numbers in it: a new record would else drop them without a word."""
    table = "| attack | found |\n| --- | --- |\n| by steps (0.16) | 0.2 |\n"
    assert pages.narrowed(table, ["only by steps (0.16)"]).count("by steps") == 1
    for choice in ("only by steps (0.17)", "without lost"):
        with pytest.raises(ValueError, match="the table lacks"):
            pages.narrowed(table, [choice])


def test_a_cell_less_another_is_paired_by_seed_over_the_last_rounds() -> None:
    names = ("global_accuracy", "local_accuracy", "fine_tuned_local_accuracy")

    def curve(*last: float) -> dict[str, Any]:
        return dict(zip(names, ([1.0, last[0], last[0]], [0.0, last[1], last[1]], last[2]), strict=True))

    curves = {
        "base": [curve(0.5, 0.6, 0.7), curve(0.8, 0.6, 0.9)],
        "other": [curve(0.6, 0.6, 0.8), curve(0.9, 0.6, 0.9)],
    }
    half = 12.706 * 5  # Student's t of one degree of freedom, and the standard error of the differences 10 and 0
    assert tables.paired({"curves": curves}, "base", "2").splitlines()[0::2] == [
        "| less base | global % | local % | local %, tuned |",
        f"| other | +10.0 ± 0.0 | +0.0 ± 0.0 | +5.0 ± {half:.1f} |",
    ]


def test_leads_are_of_the_first_method_in_points() -> None:
    def spread(mean: float) -> dict[str, float]:
        return {"mean": mean, "interval": 0.02}

    fields = {"global_accuracy": 0.1, "local_accuracy": -0.05, "fine_tuned_local_accuracy": 0.0}
    record = {"leads": [{"over": "local", **{name: spread(mean) for name, mean in fields.items()}}]}
    assert tables.lead(record).splitlines()[2:] == ["| `local` | +10.0 ± 2.0 | −5.0 ± 2.0 | +0.0 ± 2.0 |"]


def test_a_liar_is_shown_with_its_worst_seed() -> None:
    record = {
        "liars": {
            "CPU": {"liar": {"mean": 0.2, "interval": 0.1, "values": [0, 0.4]}, "honest": {"mean": 0.5, "interval": 0}}
        }
    }
    assert tables.liars(record).splitlines()[2:] == ["| CPU | 0.20 ± 0.10 | 0.40 | 0.50 ± 0.00 |"]


def test_a_decisive_attack_has_the_numbers_of_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tables.DECISIVE, "toy", {"intersects": ("sets", {"sets": 2, "kept": None})})
    row = {"sets": 2, "measured": 0.5, "standard_error": 0.01, "chance": 0.2}
    record = {"sets": [{**row, "kept": True, "measured": 0.3}, {**row, "closed_form": 0.52}]}
    assert tables.decisive(record, "toy").splitlines()[2:] == ["| intersects | 0.500 ± 0.010 | 0.520 | 0.20 |"]
    with pytest.raises(ValueError, match="too many"):
        tables.decisive({"sets": [row, row]}, "toy")


@pytest.mark.parametrize(("path", "record"), MARKS, ids=[f"{path.stem}-{Path(record).stem}" for path, record in MARKS])
def test_a_record_is_linked_with_its_command_and_has_every_seed(path: Path, record: str) -> None:
    content, text = pages.read(record), path.read_text()
    if record != "docs/bench.json":  # of which several pages have a part
        assert re.sub(r" --only ('[^']*'|\S+)", "", content.get("command", "")) in text  # the record has the cells
    for cell, curves in content.get("curves", {}).items():
        seeds = [one["seed"] for one in curves]
        assert seeds == sorted(set(seeds)), cell
        assert set(seeds) <= set(content["seeds"])


@pytest.mark.parametrize(("command", "name"), COMPARISONS.items(), ids=COMPARISONS.values())
def test_a_comparison_has_the_options_of_its_command(command: str, name: str) -> None:
    record: Mapping[str, Any] = json.loads((DOCS / "comparisons" / name).read_text())
    _, _, *words = shlex.split(command)
    named = words[: next(i for i, word in enumerate(words) if word.startswith("--"))]
    assert [*named, *(["local"] if "local" not in named else [])] == [row["method"] for row in record["rows"]]
    given = list(zip(words[len(named) :: 2], words[len(named) + 1 :: 2], strict=True))
    first = int(dict(given).get("--seed", 0))
    for option, value in given:
        if option == "--set":
            key, _, setting = value.partition("=")
            if "." in key:
                own = {f"{one['method']}.{one['setting']}": one["value"] for one in record["differences"]}
                assert key not in own or str(own[key]) == setting
            elif key in record["budget"]:
                assert float(setting) == record["budget"][key]
        elif option == "--seeds":
            assert record["seeds"] == list(range(first, first + int(value)))
        elif option == "--crypto":
            assert {row["crypto"] for row in record["rows"]} <= {value, "none"}
        elif option not in ("--eval-every", "--seed"):
            key = option.removeprefix("--")
            assert str(record[key] if key in record else record["budget"][key]) == value
    assert record["fine_tune"] == "held_out"


# -- what the code states ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "kind"), [("clustering", Aidc), ("selection", Cics)])
def test_the_settings_on_a_page_are_all_and_the_defaults(name: str, kind: type[Any]) -> None:
    told = settings(page(name))
    for field in fields(kind):
        shown = told[field.name]
        assert field.default == (shown in ("on", "true") if isinstance(field.default, bool) else float(shown)), (
            field.name
        )


def test_the_memory_of_a_bandit_is_the_stated_one() -> None:
    assert f"{Cics().window * MEMBERS * 5 * 8 / 1000:.0f} kB" in page("selection")


def test_the_tables_of_attacks_and_of_robust_baselines_are_complete() -> None:
    text = page("poisoning")
    told = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|(]+ \((\S+)\) \|$", text, re.M))
    assert {name: float(strength) for name, strength in told.items()} == {
        name: kind.strength for name, kind in KINDS.items()
    }
    assert set(SYSTEMS) <= set(re.findall(r"^\| `(\w+)` \|", text, re.M))
    assert f"--set faulty={RobustConfig().faulty:g}" in text


def test_the_boards_are_those_of_the_fleet() -> None:
    text = page("resources")
    speeds = " | ".join(f"{board.flops_per_s / 1e9:.1f}" for board in BOARDS.values())
    shares = " | ".join(f"{board.gpu_share:.2f}".lstrip("0") for board in BOARDS.values())
    assert f"| *training, GFLOP/s (nominal)* | {speeds} |" in text
    assert f"| *GPU's share of the training time (nominal)* | {shares} |" in text


def test_every_law_of_made_up_data_is_on_the_page() -> None:
    section = page("scale").partition("## Made-up data")[2].partition("## Workers")[0]
    assert set(_LAWS) <= set(kinds(re.findall(r"^\| `([^`]+)`", section, re.M)))


def test_errors_under_a_shared_key_are_those_that_the_code_states() -> None:
    text, names = " ".join((page("threshold") + page("threshold_use")).split()), tuple("abcdefgh")
    group = th.Group("threshold-8192-sum", names)
    for terms in (8, 8 * 2048):
        assert f"{group.error(terms) / terms:.1e}" in text
        assert f"{threshold_pads.padded_error(group, dict.fromkeys(names, terms // 8)) / terms:.1e}" in text
    at = th.Group("threshold-8192-high", names[:4])  # what a scalar of a server's own shows
    flood = at.flood(at.fresh_deviation, scalar=True) * 2 * 10
    bits = sum(math.log2(int(prime)) for prime in at.moduli(at.opened_limbs)[:, 0]) - math.log2(flood)
    assert f"room for {bits:.0f} bits beside the noise, so for {bits / math.log2(9):.0f} of the key's 8,192" in text
    for name in ("threshold-8192-mul", "threshold-8192-high"):
        assert f"| {th.Group(name, names).error(8) / 8:.1e} |" in text


def test_the_sizes_of_parts_are_those_of_the_code() -> None:
    pytest.importorskip("nats", reason="the extra deploy is not installed")
    from coterie.deploy.nats_parts import MESSAGE, PART
    from coterie.deploy.nats_stream import room

    text, most = " ".join(page("engines").split()), room(1 << 30)
    assert f"parts of {(PART + 4096) >> 10} KiB less 4 KiB" in text
    assert f"at most {most:,} parts from one party to another" in text
    assert f"at most {most * MESSAGE / (1 << 30):.2f} GiB" in text


# -- commands and files of deployments ---------------------------------------------------------------------------------


def test_the_commands_of_deployments_exist() -> None:
    import typer

    from coterie.cli.deploying import app

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    text = "\n".join(page(name) for name in ("deploy", "deploy_runs", "deploy_care", "joining", "engines", "broker"))
    named = re.findall(r"coterie deploy ([a-z]+)((?:(?!coterie deploy)[^\n`|#])*)", text)
    assert {name for name, _ in named} == set(commands)
    for name, words in named:
        known = {flag for parameter in commands[name].params for flag in parameter.opts}
        assert set(re.findall(r"--[a-z]+", words)) <= known, name


def test_the_example_of_members_is_one(tmp_path: Path) -> None:
    from coterie.operate.members import check_members, read_members
    from coterie.runs import registry

    (text,) = re.findall(r"```toml\n(.*?)```", page("joining"), re.DOTALL)
    assert len(tomllib.loads(text)["member"]) == 2
    (tmp_path / "members.toml").write_text(text)
    system = registry.get("fedavg")
    check_members(read_members(tmp_path / "members.toml"), system, system.config(), "paper")


# -- links between pages, and from code to pages -----------------------------------------------------------------------


@cache
def anchors(path: Path) -> set[str]:
    """The headings of a page, as code hosts and the site name them."""
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text()), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head).replace("`", "").lower() for head in heads)
    return {re.sub(r"[^\w\- ]", "", head).replace(" ", "-") for head in plain}


def leads_nowhere(place: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    path = place.parent / name if name else place
    return not path.exists() or bool(anchor and path.suffix == ".md" and anchor not in anchors(path))


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_the_links_of_a_page_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\((?!\w+:)([^)\s]+)\)", FENCE.sub("", path.read_text()))
    assert [link for link in links if leads_nowhere(path, link)] == []


def test_the_pages_that_code_names_are_there() -> None:
    named = re.compile(r"\bdocs/[\w/]+\.md(?:#[\w-]+)?")
    folders = ("src", "tests", "papers", "benchmarks")
    every = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    files = [path for path in every if path.suffix in (".py", ".html", ".j2")]
    found = {(path, link) for path in files for link in named.findall(path.read_text())}
    assert len(found) > 50
    assert [(path.name, link) for path, link in found if leads_nowhere(ROOT / "README.md", link)] == []
