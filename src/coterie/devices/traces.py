"""Clients' presence on the virtual clock, generated or from a file.

``docs/resources.md`` has the forms. All traces of a run have one period, after which they begin anew. A round begins
``pace_s`` after the last one ended, or later, when a client is there.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.errors import UserError, suggest
from coterie.protocol.randomness import rng

PACE_S = 3600.0
"""Seconds from the end of a round to the next, at least, by default."""
HOUR_S, DAY_S, DAYS = 3600.0, 86_400.0, 7
DIURNAL = "diurnal"
_COLUMNS = ("client", "start_s", "end_s")
_LATEST_START_S = DAYS * DAY_S  # of the first row of a file
_SHOWN = 3  # clients named in an error

Interval = tuple[float, float]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Availability:
    """source: ``diurnal`` or a CSV file's path.  pace_s: from the end of a round to the next."""

    source: str
    pace_s: float = PACE_S

    def __str__(self) -> str:
        return f"{self.source}@{self.pace_s:g}"

    @property
    def name(self) -> str:
        return f"{Path(self.source).name}@{self.pace_s:g}"

    def absolute(self) -> Availability:
        if self.source == DIURNAL:
            return self
        return replace(self, source=str(Path(self.source).expanduser().resolve()))


def parse(text: str) -> Availability:
    """``diurnal``, ``FILE.csv``, or either with ``@SECONDS``. Raises UserError for anything else."""
    source, at, words = text.rpartition("@")
    if not at or words.endswith(".csv"):
        source, words = text, str(PACE_S)
    try:
        pace_s = float(words)
    except ValueError:
        pace_s = -1.0
    if not (source == DIURNAL or source.endswith(".csv")) or not 0 <= pace_s <= 366 * DAY_S:
        hint = suggest(source, [DIURNAL])
        raise UserError(
            f"availability {text!r}{hint} Write {DIURNAL} or the path of a .csv file, and @SECONDS behind it for the "
            f"seconds from a round to the next, from 0 to a year [{PACE_S:g}]"
        )
    return Availability(source, pace_s)


class Traces:
    """intervals: by name, ``(start_s, end_s)`` with 0 <= start < end <= period_s.

    Ends don't belong to an interval; touching ones are one. Raises UserError for a client without an interval, and for
    overlapping or invalid ones.
    """

    def __init__(self, intervals: Mapping[str, Iterable[Interval]], period_s: float) -> None:
        self.period_s = float(period_s)
        self._edges: dict[str, tuple[Floats, Floats]] = {}
        for name, own in intervals.items():
            rows = np.array(sorted(own), np.float64).reshape(-1, 2)
            starts, ends = rows.T
            if not len(rows) or not (starts >= 0).all() or not (starts < ends).all() or not ends.max() <= period_s:
                raise UserError(f"{name} is never there, or at times outside 0 to {period_s:g} s: give it intervals")
            if (starts[1:] < ends[:-1]).any():
                i = int(np.flatnonzero(starts[1:] < ends[:-1])[0])
                raise UserError(
                    f"{name} is there twice at second {starts[i + 1]:g}: its intervals {starts[i]:g} to {ends[i]:g} "
                    f"and {starts[i + 1]:g} to {ends[i + 1]:g} overlap"
                )
            apart = starts[1:] > ends[:-1]
            self._edges[name] = starts[np.concatenate([[True], apart])], ends[np.concatenate([apart, [True]])]

    def __contains__(self, name: str) -> bool:
        return name in self._edges

    @property
    def digest(self) -> str:
        hashed = hashlib.sha256(repr((self.period_s, list(self._edges))).encode())
        for starts, ends in self._edges.values():
            hashed.update(starts.tobytes() + ends.tobytes())
        return hashed.hexdigest()

    def intervals(self, name: str) -> list[Interval]:
        """Of one period, in order."""
        starts, ends = self._edges[name]
        return list(zip(starts.tolist(), ends.tolist(), strict=True))

    def there(self, name: str, at_s: float) -> bool:
        starts, ends = self._edges[name]
        within = at_s % self.period_s
        i = int(np.searchsorted(starts, within, "right")) - 1
        return i >= 0 and bool(within < ends[i])

    def present(self, name: str, start_s: float, end_s: float) -> float:
        """Seconds from start_s to end_s."""
        return self._until(name, end_s) - self._until(name, start_s)

    def _until(self, name: str, at_s: float) -> float:
        starts, ends = self._edges[name]
        periods, within = divmod(at_s, self.period_s)
        return float(periods * (ends - starts).sum() + (np.clip(within, starts, ends) - starts).sum())

    def opens_s(self, at_s: float) -> float:
        """The first second from at_s on at which a client is there."""
        return min((self._opens_s(name, at_s) for name in self._edges), default=at_s)

    def _opens_s(self, name: str, at_s: float) -> float:
        if self.there(name, at_s):
            return at_s
        starts, _ = self._edges[name]
        begun_s, within = at_s - at_s % self.period_s, at_s % self.period_s
        later = starts[starts > within]
        opens_s = begun_s + float(later[0]) if len(later) else begun_s + self.period_s + float(starts[0])
        while not self.there(name, opens_s):  # rounding has put it just before
            opens_s = float(np.nextafter(opens_s, np.inf))
        return opens_s


def traces(
    availability: Availability, names: Sequence[str], seed: int, known_as: Sequence[str] | None = None
) -> Traces:
    """known_as: the clients' names in the data. Raises UserError."""
    if availability.source == DIURNAL:
        return diurnal(names, seed)
    return load_csv(availability.source, names, known_as)


def diurnal(names: Sequence[str], seed: int) -> Traces:
    """A week of clients that are there at night, and for short times by day. Each lives in one of four time zones, an
    hour apart. Its night begins at 22 h on average (deviation 2 h, and 0.75 h each day) and lasts about 8 h
    (deviation 1 h, between 4 and 12); one in ten is missing. By day it comes some five times (Poisson) for an hour
    on average (exponential, at least 5 minutes). So about four times as many are there at night (K. Bonawitz et al.,
    2019). The other numbers are ours.
    """
    period_s = DAYS * DAY_S
    return Traces({name: _merged(_week(rng(seed, name, "diurnal")), period_s) for name in names}, period_s)


def _week(source: np.random.Generator) -> list[Interval]:
    bedtime_h = 22 + source.integers(4) + 2 * source.standard_normal()
    found = []
    for day in range(DAYS):
        sleeps, hours = source.random() >= 0.1, float(np.clip(8 + source.standard_normal(), 4, 12))
        start_s = day * DAY_S + HOUR_S * float(bedtime_h + 0.75 * source.standard_normal())
        if sleeps or day == 0:  # nobody is away for the whole week
            found.append((start_s, start_s + hours * HOUR_S))
        for _ in range(int(source.poisson(5))):
            start_s = day * DAY_S + DAY_S * source.random()
            found.append((start_s, start_s + max(300.0, float(source.exponential(HOUR_S)))))
    return found


def _merged(intervals: Iterable[Interval], period_s: float) -> list[Interval]:
    cut: list[Interval] = []
    for start_s, end_s in intervals:
        first_s = start_s % period_s
        last_s = first_s + end_s - start_s
        cut += [(first_s, min(last_s, period_s))] + ([(0.0, last_s - period_s)] if last_s > period_s else [])
    found: list[Interval] = []
    for start_s, end_s in sorted(cut):
        if found and start_s <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end_s)
        else:
            found.append((start_s, end_s))
    return found


def load_csv(path: str | Path, names: Sequence[str], known_as: Sequence[str] | None = None) -> Traces:
    """Columns ``client``, ``start_s`` and ``end_s``, rows in any order. A client is named as ``client/3``, by its
    number 3, or as the data call it (known_as). Seconds count from the start of the run. Traces begin anew where the
    last row ends. Other clients' rows are ignored. Raises UserError, with the line, for an unreadable file, other
    columns, cells that are no times, overlapping rows, a client without rows, and a first row later than a week.
    """
    path = Path(path)
    of = {**{str(i): name for i, name in enumerate(names)}, **dict(zip(known_as or (), names, strict=False))}
    of |= {name: name for name in names}
    rows: dict[str, list[tuple[float, float, int]]] = {}
    first_s, period_s = np.inf, 0.0
    for line, cells in _lines(path):
        start_s, end_s = _times(f"{path}, line {line}", cells)
        first_s, period_s = min(first_s, start_s), max(period_s, end_s)
        if (name := of.get(cells["client"].strip())) is not None:
            rows.setdefault(name, []).append((start_s, end_s, line))
    if missing := [name for name in names if name not in rows]:
        shown = ", ".join(missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
        raise UserError(
            f"{path} has no row for {len(missing)} of {len(names)} clients ({shown}): add rows, or take fewer clients"
        )
    if first_s > _LATEST_START_S:
        raise UserError(
            f"{path}: the first row starts at second {first_s:g}, but seconds count from the start of the run: "
            "subtract the time at which yours starts"
        )
    for name, own in rows.items():
        own.sort()
        for before, after in pairwise(own):
            if after[0] < before[1]:
                raise UserError(
                    f"{path}: {name} is there twice at second {after[0]:g}, by lines {before[2]} and {after[2]}: make "
                    "one row of rows that overlap"
                )
    return Traces({name: [(start_s, end_s) for start_s, end_s, _ in rows[name]] for name in names}, period_s)


def _lines(path: Path) -> Iterable[tuple[int, dict[str, str]]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            header = tuple(cell.strip() for cell in reader.fieldnames or ())
            if sorted(header) != sorted(_COLUMNS):
                raise UserError(f"{path}: the first line must be {','.join(_COLUMNS)}, not {','.join(header)[:80]!r}")
            reader.fieldnames = header
            for cells in reader:
                if None in cells or None in cells.values():
                    raise UserError(f"{path}, line {reader.line_num}: a row has {len(_COLUMNS)} cells")
                yield reader.line_num, cells
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"the trace {path} cannot be read: {error}") from None


def _times(where: str, cells: Mapping[str, str]) -> Interval:
    try:
        start_s, end_s = float(cells["start_s"]), float(cells["end_s"])
    except ValueError:
        start_s = end_s = float("nan")
    if not (isfinite(start_s) and isfinite(end_s) and 0 <= start_s < end_s):
        raise UserError(
            f"{where}: from {cells['start_s'][:40]!r} to {cells['end_s'][:40]!r} is no time: write seconds of at least "
            "0, the end after the start"
        )
    return start_s, end_s
