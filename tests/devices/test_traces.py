"""Traces of presence: a slow twin, the diurnal week, files, and what they do to a run."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.devices.links import FleetLinks
from coterie.devices.profiles import fleet
from coterie.devices.traces import DAY_S, HOUR_S, PACE_S, Availability, Traces, diurnal, load_csv, parse, traces
from coterie.protocol.errors import UserError
from coterie.runs import RunConfig, resolve, run

NAMES = ("client/0", "client/1", "client/2")
HEAD = "client,start_s,end_s\n"


def file(folder: Path, *rows: str, head: str = HEAD) -> str:
    path = folder / "trace.csv"
    path.write_text(head + "\n".join(rows) + "\n")
    return str(path)


# -- the option --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "source", "pace_s"),
    [
        ("diurnal", "diurnal", PACE_S),
        ("diurnal@60", "diurnal", 60.0),
        ("a/b.csv", "a/b.csv", PACE_S),
        ("a@b.csv", "a@b.csv", PACE_S),
        ("a@b.csv@0", "a@b.csv", 0.0),
    ],
)
def test_an_availability_is_a_source_and_a_pace(text: str, source: str, pace_s: float) -> None:
    assert parse(text) == Availability(source, pace_s)
    assert parse(str(parse(text))) == parse(text)
    assert parse(str(parse(text).absolute())).pace_s == pace_s


@pytest.mark.parametrize(
    "text", ["", "nightly", "diurnl", "diurnal@", "diurnal@x", "diurnal@-1", "diurnal@nan", "a.txt"]
)
def test_another_availability_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"Write diurnal or the path of a \.csv file"):
        parse(text)


def test_a_config_names_the_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = resolve(RunConfig("fedavg", availability="my.csv@60"))
    assert found.availability == f"{tmp_path.resolve()}/my.csv@60"
    assert resolve(found) == found
    assert resolve(RunConfig("fedavg")).availability is None


# -- traces ------------------------------------------------------------------------------------------------------------

seconds = st.integers(0, 200)


@st.composite
def separate(draw: st.DrawFn) -> list[tuple[float, float]]:
    """Intervals within 100 s that do not overlap; some touch."""
    edges = sorted(draw(st.sets(st.integers(0, 100), min_size=2, max_size=9)))
    pairs = list(pairwise(edges))
    kept = [pair for pair in pairs if draw(st.booleans())] or [pairs[0]]
    return [(float(a), float(b)) for a, b in kept]


@given(separate(), separate(), st.integers(0, 350), st.integers(0, 350))
def test_traces_are_what_counting_seconds_says(one: list, two: list, at: int, later: int) -> None:
    """In every second from n to n + 1 a client with whole edges is there, or it is away."""
    found = Traces({"a": one, "b": two}, 100.0)
    own = {"a": one, "b": two}

    def there(name: str, second: int) -> bool:
        return any(start <= second % 100 < end for start, end in own[name])

    assert found.there("a", at) == there("a", at) == found.there("a", at + 0.999)
    start, end = min(at, later), max(at, later)
    assert found.present("a", start, end) == pytest.approx(sum(there("a", s) for s in range(start, end)))
    opens = next(s for s in range(at, at + 201) if there("a", s) or there("b", s))
    assert found.opens_s(at) == opens
    assert found.opens_s(at + 0.5) == (at + 0.5 if opens == at else opens)


def test_intervals_that_touch_are_one() -> None:
    assert Traces({"a": [(5.0, 8.0), (0.0, 3.0), (3.0, 5.0)]}, 10.0).intervals("a") == [(0.0, 8.0)]


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ([], "a is never there"),
        ([(1.0, 1.0)], "a is never there"),
        ([(-1.0, 1.0)], "outside 0 to 10"),
        ([(1.0, 11.0)], "outside 0 to 10"),
        ([(1.0, float("nan"))], "a is never there"),
        ([(1.0, 4.0), (3.0, 5.0)], "a is there twice at second 3: its intervals 1 to 4 and 3 to 5 overlap"),
    ],
)
def test_traces_that_are_none_are_refused(own: list, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Traces({"a": own}, 10.0)


def test_the_diurnal_week_has_four_times_as_many_clients_by_night() -> None:
    names = [f"client/{i}" for i in range(600)]
    week = diurnal(names, 0)
    hours = np.arange(0, 7 * 24, 0.5)
    there = np.array([np.mean([week.there(name, h * HOUR_S) for name in names]) for h in hours])
    by_hour = there.reshape(7, -1).mean(axis=0)
    assert 3 < by_hour.max() / by_hour.min() < 5
    assert hours[by_hour.argmax()] < 5
    assert 11 < hours[by_hour.argmin()] < 20
    whole = np.mean([week.present(name, 0, 7 * DAY_S) for name in names]) / (7 * DAY_S)
    assert whole == pytest.approx(there.mean(), abs=0.01)
    assert all(week.intervals(name) for name in names)


def test_the_diurnal_week_follows_the_seed_and_the_name_alone() -> None:
    few, many = diurnal(NAMES[:1], 3), diurnal(NAMES, 3)
    assert few.intervals("client/0") == many.intervals("client/0") != many.intervals("client/1")
    assert few.intervals("client/0") != diurnal(NAMES, 4).intervals("client/0")
    assert many.digest == diurnal(NAMES, 3).digest != diurnal(NAMES, 4).digest
    assert traces(parse("diurnal"), NAMES, 3).digest == many.digest
    assert "server" not in many


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_file_names_clients_in_three_ways_and_repeats_after_its_last_row(tmp_path: Path) -> None:
    path = file(tmp_path, "client/0, 0, 10", "1,5,10", "", "anna,0,5", "anna,20,40", "client/77,0,50", "1,30,31.5")
    found = load_csv(path, NAMES, ["x", "y", "anna"])
    assert found.period_s == 50.0
    assert found.intervals("client/0") == [(0.0, 10.0)]
    assert found.intervals("client/1") == [(5.0, 10.0), (30.0, 31.5)]
    assert found.intervals("client/2") == [(0.0, 5.0), (20.0, 40.0)]
    assert [found.there("client/2", s) for s in (4.9, 5, 19.9, 20, 40, 50, 71)] == [1, 0, 0, 1, 0, 1, 1]


def test_columns_may_stand_in_any_order_and_behind_a_byte_order_mark(tmp_path: Path) -> None:
    path = file(tmp_path, "10,client/0,0", head="\ufeffend_s,client,start_s\n")
    assert load_csv(path, NAMES[:1]).intervals("client/0") == [(0.0, 10.0)]


BAD: dict[str, tuple[list[str], str]] = {
    "too few cells": (["client/0,1"], "line 2: a row has 3 cells"),
    "too many cells": (["client/0,1,2,3"], "line 2: a row has 3 cells"),
    "a gap in a row": (["client/0,0,5", "client/0,,9"], "line 3: from '' to '9' is no time"),
    "no number": (["client/0,zero,9"], "line 2: from 'zero' to '9' is no time"),
    "not a number": (["client/0,0,nan"], "line 2: from '0' to 'nan' is no time"),
    "endless": (["client/0,0,inf"], "is no time"),
    "before the run": (["client/0,-1,9"], "is no time"),
    "back in time": (["client/0,9,3"], "line 2: from '9' to '3' is no time"),
    "no time at all": (["client/0,3,3"], "is no time"),
    "rows that overlap": (
        ["client/0,0,5", "1,0,9", "client/0,4,6"],
        "client/0 is there twice at second 4, by lines 2 and 4",
    ),
    "the same row twice": (["client/0,0,5", "client/0,0,5"], "client/0 is there twice at second 0, by lines 2 and 3"),
    "a client without rows": (["client/0,0,5"], r"no row for 2 of 3 clients \(client/1, client/2\)"),
    "no rows": ([], "no row for 3 of 3 clients"),
    "seconds since 1970": (["0,1700000000,1700000100"], "seconds count from the start of the run"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_cannot_be_meant_is_refused_with_the_line(tmp_path: Path, name: str) -> None:
    rows, words = BAD[name]
    with pytest.raises(UserError, match=words):
        load_csv(file(tmp_path, *rows), NAMES if "without" in name or "no rows" in name else NAMES[:1])


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        load_csv(tmp_path / "nowhere.csv", NAMES)
    with pytest.raises(UserError, match="the first line must be client,start_s,end_s, not 'name,from,to'"):
        load_csv(file(tmp_path, "client/0,0,1", head="name,from,to\n"), NAMES)
    with pytest.raises(UserError, match="the first line must be"):
        load_csv(file(tmp_path, head=""), NAMES)
    (tmp_path / "bytes.csv").write_bytes(b"client,start_s,end_s\n\xff\xfe,0,1\n")
    with pytest.raises(UserError, match="cannot be read"):
        load_csv(tmp_path / "bytes.csv", NAMES)


# -- runs --------------------------------------------------------------------------------------------------------------


def test_links_follow_the_trace_from_round_1_on(tmp_path: Path) -> None:
    profiles = dict(zip(NAMES, fleet("uniform", 3, 0), strict=True))
    found = load_csv(file(tmp_path, *(f"{i},0,{5 * i + 5}" for i in range(3))), NAMES)
    links = FleetLinks(profiles, 0, traces=found)
    assert [links.there(name, 1, 7.0) for name in NAMES] == [False, True, True]
    assert all(links.there(name, 0, 7.0) for name in NAMES)
    assert links.there("server", 1, 7.0)
    assert FleetLinks(profiles, 0).there("client/0", 1, 7.0)


def ran(folder: Path, rows: list[str], pace: str = "", **options: Any) -> Any:
    options = {"clients": 3, "rounds": 3, "samples": 120, "settings": {"max_epochs": 1}} | options
    config = RunConfig("fedavg", availability=file(folder, *rows) + pace, out=str(folder / "run"), **options)
    return run(config)


def test_a_run_asks_only_those_that_are_there_and_keeps_the_pace(tmp_path: Path) -> None:
    """Rounds begin at 0, 3600 and 7200 s; client/1 is there in the second alone."""
    found = ran(tmp_path, ["0,0,9000", "1,3000,5000", "2,0,9000"])
    assert found.summary["availability"] == "trace.csv@3600"
    assert [line["notes"]["participants"] for line in found.rounds] == [2, 3, 2]
    assert [line["virtual_seconds"] // 3600 for line in found.rounds] == [0, 1, 2]
    assert found.rounds[0]["lost"] == {"client/1 Train of round 1": "offline"}


def test_a_round_waits_until_a_client_is_there(tmp_path: Path) -> None:
    """Everybody is there for the first minute of every thousand seconds."""
    found = ran(tmp_path, ["0,0,60", "1,0,60", "2,0,60", "9,0,1000"], "@100")
    assert [line["notes"]["participants"] for line in found.rounds] == [3, 3, 3]
    assert [line["virtual_seconds"] // 1000 for line in found.rounds] == [0, 1, 2]


def test_a_client_that_leaves_during_its_work_does_not_answer(tmp_path: Path) -> None:
    """The request is there after a tenth of a second, and the work takes longer than another second."""
    (tmp_path / "slow.toml").write_text(
        '[[device]]\nname = "slow"\ncompute_flops_per_s = 1e5\nup_bytes_per_s = 1e6\ndown_bytes_per_s = 1e6\n'
    )
    devices = str(tmp_path / "slow.toml")
    found = ran(tmp_path, ["0,0,1000", "1,0,1.0", "2,0,1000"], "@10000", rounds=1, devices=devices)
    assert found.rounds[0]["notes"]["participants"] == 2
    assert found.rounds[0]["lost"] == {"client/1 Update of round 1": "gone before it could send"}


def test_a_run_is_the_same_after_a_resumption_and_a_changed_file_is_noticed(tmp_path: Path) -> None:
    rows = ["0,0,9000", "1,3000,5000", "2,0,4000"]
    whole = ran(tmp_path, rows, checkpoint_every=1)
    (other := tmp_path / "other").mkdir()
    ran(other, rows, checkpoint_every=1, rounds=2)
    config = RunConfig(
        "fedavg",
        availability=str(other / "trace.csv"),
        out=str(other / "run"),
        clients=3,
        rounds=3,
        samples=120,
        checkpoint_every=1,
        settings={"max_epochs": 1},
    )
    file(other, "0,0,9000", "1,3000,5000", "2,0,9000")
    with pytest.raises(UserError, match="data"):
        run(config, resume=True)
    file(other, *rows)
    again = run(config, resume=True)
    for one, two in zip(whole.rounds, again.rounds, strict=True):
        assert one["models_sha256"] == two["models_sha256"]
        assert one["virtual_seconds"] == two["virtual_seconds"]
