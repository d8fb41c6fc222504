"""What a run is cited by: every built-in system has authors and a title, and the run its version, seeds and digest."""

from __future__ import annotations

import hashlib
import itertools
import re
from pathlib import Path

import pytest
from report_folders import edit, write_comparison, write_run

from coterie.report import citing
from coterie.runs.registry import SYSTEMS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("citation", "found"),
    [
        (
            "Li et al., Federated optimization in heterogeneous networks, MLSys 2020",
            {"author": "Li and others", "title": "Federated optimization in heterogeneous networks"}
            | {"howpublished": "MLSys", "year": "2020"},
        ),
        (
            "Tang, Luo and Wang, FedEPC: an efficient method, CMC 85(2), 2025",
            {"author": "Tang and Luo and Wang", "title": "FedEPC: an efficient method"}
            | {"howpublished": "CMC 85(2)", "year": "2025"},
        ),
        (
            "Hsu, Qi and Brown, Measuring the effects of data, 2019",
            {"author": "Hsu and Qi and Brown", "title": "Measuring the effects of data", "year": "2019"},
        ),
        ("Mao, Niu, OFL: opportunistic learning", {"author": "Mao and Niu", "title": "OFL: opportunistic learning"}),
        (
            "Y. Miao, K.-K. R. Choo, R. H. Deng, Learning under non-IID settings, IEEE Transactions on Security 2024",
            {"author": "Y. Miao and K.-K. R. Choo and R. H. Deng", "title": "Learning under non-IID settings"}
            | {"howpublished": "IEEE Transactions on Security", "year": "2024"},
        ),
        ("no federation: each client trains on its own data", None),
        ("docs/systems/coterie.md", None),
    ],
)
def test_a_citation_has_its_parts(citation: str, found: dict[str, str] | None) -> None:
    assert citing.parsed(citation) == found


def test_every_system_but_ours_and_local_training_has_a_paper() -> None:
    without = [name for name in SYSTEMS if citing.parsed(SYSTEMS[name].citation) is None]
    assert without == ["coterie", "local"]
    for name in set(SYSTEMS) - {*without}:
        found = citing.parsed(SYSTEMS[name].citation)
        assert found is not None
        assert not re.search(r"et al|\d{4}", found["author"] + found["title"]), name
        assert len(found["title"].split()) > 1


@pytest.mark.parametrize(
    ("name", "authors", "venue"),
    [
        ("fedcaprivacy", 6, "arXiv:2503.23292"),
        ("fedepc", 9, "Computers Materials & Continua 85(2)"),
        ("mingledpie", 5, "NDSS"),
        ("ofl", 10, "arXiv:2503.15015"),
        ("pafed", 7, "IEEE Transactions on Information Forensics and Security"),
    ],
)
def test_the_five_papers_have_all_authors_their_venue_and_year(name: str, authors: int, venue: str) -> None:
    found = citing.parsed(SYSTEMS[name].citation)
    assert found is not None
    names = found["author"].split(" and ")
    assert len(names) == authors
    assert all(re.match(r"[A-Z]\. ?", one) or one.startswith("K.-K.") for one in names)
    assert (found["howpublished"], found["year"]) == (venue, "2024" if name == "pafed" else "2025")


def test_authors_are_whole_where_a_citation_names_the_first() -> None:
    """But of two papers, whose lists were not found to agree everywhere."""
    short, used = set(), set()
    for name in SYSTEMS:
        found = citing.parsed(SYSTEMS[name].citation)
        if found is None or not found["author"].endswith(" and others"):
            continue
        used.add(found["title"])
        entry = citing.system_entry(name, name)
        if " and others}" in entry:
            short.add(name)
        else:
            assert found["author"].split(" and ")[0] in citing.AUTHORS_OF[found["title"]].split(" and ")[0]
            assert citing.AUTHORS_OF[found["title"]] in entry
    assert short == {"flame", "fedavg_late"}
    assert citing.AUTHORS_OF.keys() <= used


def test_a_run_has_version_seeds_and_the_digest_of_its_config(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path / "c", clients=3, seeds=2, rounds=1)
    text = citing.cite([folder])
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    digest = hashlib.sha256(b"".join((folder / name / "config.toml").read_bytes() for name in names)).hexdigest()
    assert f"SHA-256 of config.toml: {digest}" in text
    assert "seeds 0, 1" in text
    assert "version = {0.1.0}" in text
    assert text.startswith(
        "% We ran FedAvg (mode paper) with no cipher, FedCAPrivacy (mode paper) with emulated ciphers, "
        "IFCA (mode paper) with no cipher on digits"
    )
    assert text.count("@misc{") == 4
    assert text.count("{") == text.count("}")


def test_the_settings_of_one_run_are_told_and_hostile_words_end_nothing(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one", clients=3, rounds=1, settings={"lr": 0.1})
    edit(folder / "result.json", title="A}\n@misc{x", data="100% & \\input{y}")
    text = citing.cite([folder])
    assert "Settings: lr 0.1." in text
    assert [line for line in text.splitlines() if line.startswith("@misc{")] == [
        "@misc{fedcaprivacy,",
        next(line for line in text.splitlines() if line.startswith("@misc{coterie-")),
    ]
    assert "@" not in text.partition("\n")[0]
    assert "\\input{" not in text.partition("\n")[2]


@pytest.mark.parametrize(
    "word", ["}", "{", "{}", "\\}", "\\{", "x} }, evil={y\n@misc{z,title={", "a\r\n\u2028@string{b}"]
)
@pytest.mark.parametrize("name", ["title", "note", "author"])
def test_the_words_of_a_field_leave_every_brace_in_balance(word: str, name: str) -> None:
    """BibTeX counts all braces, those behind a backslash included."""
    text = citing.entry("key", {name: f"x{word}", "year": "2020"})
    assert text.count("@") == 1
    first, field, year, end, empty = text.split("\n")
    assert (first, year, end, empty) == ("@misc{key,", "  year = {2020},", "}", "")
    depths = list(itertools.accumulate((c == "{") - (c == "}") for c in field))
    assert depths[-1] == 0
    assert min(depths[depths.index(1) : -2]) == 1


def test_the_software_is_cited_as_its_file_says() -> None:
    told = (ROOT / "CITATION.cff").read_text()
    assert f'title: "{citing.TITLE}"' in told
    assert f'name: "{citing.AUTHORS}"' in told
