"""Read a run's folder, checked once for everything that uses it.

``partition.json`` and ``observed.json`` may be missing.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from coterie.protocol.errors import UserError
from coterie.record.comparison import Compared, Measure
from coterie.record.files import opened
from coterie.record.folder import CLIENTS, COMPARE, CONFIG, METRICS, OBSERVED, PARTITION, RESULT, check_format, deployed
from coterie.record.schema import FORMAT, Band, CostsRecord, Observed, Partition, RoundRecord, RunRecord

_FIT = "/Fit"
_DEPTH = 3  # levels of folders below a comparison in which runs are looked for


@dataclass(frozen=True)
class Run:
    folder: Path
    result: RunRecord
    rounds: tuple[RoundRecord, ...]
    config: Mapping[str, Any]
    config_text: str
    partition: Partition
    observed: Observed
    each: Mapping[str, Sequence[float | str | None]]

    @property
    def costs(self) -> tuple[CostsRecord, ...]:
        after = () if self.result.finish is None else (self.result.finish,)
        return (self.result.set_up, *self.rounds, *after)

    @property
    def client_role(self) -> str:
        """As recorded, else the role that trains."""
        fitting = [key.removesuffix(_FIT) for key in self.total("phase_seconds") if key.endswith(_FIT)]
        return self.result.client_role or (fitting[0] if fitting else "client")

    def points(self, field: str) -> tuple[list[int], list[float]]:
        every = ((line.round, getattr(line, field, line.metrics.get(field))) for line in self.rounds)
        found = [(r, value) for r, value in every if value is not None]
        return [r for r, _ in found], [value for _, value in found]

    def bands(self, field: str) -> list[tuple[int, Band]]:
        """By evaluated round, the spread over clients."""
        return [(line.round, line.bands[field]) for line in self.rounds if field in line.bands]

    @property
    def leading(self) -> Measure:
        return self.result.leading

    @property
    def others(self) -> tuple[Measure, ...]:
        return self.result.measures[1:]

    def client_bytes(self, field: str) -> list[float] | None:
        """Each round's mean over the clients (``"bytes_up"``, ``"bytes_down"``); None where nothing was counted."""
        counted = [getattr(line, field).get(self.client_role) for line in self.rounds]
        return [(n or 0) / self.result.clients for n in counted] if any(n is not None for n in counted) else None

    def total(self, field: str) -> dict[str, float]:
        """Sums over set-up, rounds and finish (``"bytes_up"``, ``"phase_seconds"``), largest first."""
        totals: Counter[str] = Counter()
        for part in self.costs:
            totals.update(getattr(part, field))
        return dict(sorted(totals.items(), key=lambda item: (-item[1], item[0])))


def find(folders: Sequence[Path]) -> list[Path]:
    """Run folders among ``folders`` and below, in a stable order, once each. Raises UserError for a folder without a
    run.
    """
    if not folders:
        raise UserError("no folder to report on; name a run's folder or a comparison's")
    found: list[Path] = []
    for folder in folders:
        folder = Path(folder)
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder; name a folder that `coterie run` or `coterie compare` wrote")
        below = _below(folder, _DEPTH)
        if not below:
            raise UserError(
                f"{folder}: no run in it ({RESULT}, {METRICS} and {CONFIG} are missing); "
                "name a folder that `coterie run` or `coterie compare` wrote"
            )
        found += [run for run in below if run.resolve() not in {known.resolve() for known in found}]
    return found


def load(folder: Path) -> Run:
    """Raises UserError that says which file is missing or wrong, where, and the remedy."""
    result = _json(folder / RESULT, RunRecord)
    check_format(folder / RESULT, result.format)
    text = _text(folder / CONFIG)
    try:
        config = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{folder / CONFIG}: not valid TOML ({error}); restore the file or run again") from None
    check_format(folder / CONFIG, config.get("format", FORMAT))
    partition, observed = _if_there(folder / PARTITION, Partition), _if_there(folder / OBSERVED, Observed)
    each = _if_there(folder / CLIENTS, dict[str, tuple[float | str | None, ...]])
    rounds = _metrics(folder / METRICS)
    if result.evaluated is not None:  # what a hub notes of all clients has no partition beside it
        rounds = tuple(
            msgspec.structs.replace(one, notes=msgspec.structs.replace(one.notes, membership=None)) for one in rounds
        )
    run = Run(folder, result, rounds, config, text, partition, observed, each)
    _check_shapes(run)
    return replace(run, partition=partition.after(result.done))


def read_summary(folder: Path) -> dict[str, Any]:
    """``result.json`` as it stands there. Raises UserError."""
    path = folder / RESULT
    try:
        with opened(path) as file:
            summary = json.loads(file.read())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{folder} holds no finished run: {error}") from None
    if not isinstance(summary, dict):
        raise UserError(f"{path} holds no JSON object, so it is not a run's result: restore the file or run again")
    check_format(path, summary.get("format", FORMAT))
    return summary


def compared(folder: Path) -> dict[str, Any] | None:
    """``compare.json``, checked; None for a folder without one. Raises UserError."""
    path = folder / COMPARE
    if not path.is_file():
        return None
    content: dict[str, Any] = msgspec.to_builtins(_json(path, Compared))
    alone = len(content["rows"]) == 1 and content["rows"][0]["method"]  # one method has no lead
    return content if content["budget_from"] is not None or content["leads"] or alone else None


def whole_summary(folder: Path) -> dict[str, Any]:
    """``result.json`` in its checked form. Raises as ``load``."""
    filled: dict[str, Any] = _filled(read_summary(folder), msgspec.to_builtins(load(folder).result))
    return filled


def whole_comparison(folder: Path) -> dict[str, Any] | None:
    """``compare.json`` likewise; None without one. Raises UserError for another version."""
    path = folder / COMPARE
    if not path.exists():
        return None
    checked = compared(folder)
    if checked is None or not all(row["method"] and row["runs"] for row in checked["rows"]) or not checked["rows"]:
        raise UserError(f"{path} is not of this version: compare again")
    filled: dict[str, Any] = _filled(json.loads(path.read_bytes()), checked)
    return filled


def why_missing(path: Path) -> str:
    if path.name == RESULT and deployed(path.parent) is not None:
        return "no round of this deployment is over yet: wait for the first one"
    if (path.parent / "run" / path.name).is_file():
        return f"name the run folder, {path.parent / 'run'}"
    unfinished = "the run has not finished (continue it with --resume) or " if path.name == RESULT else ""
    return f"{unfinished}this is not a run's folder"


def _below(folder: Path, depth: int) -> list[Path]:
    if any((folder / name).is_file() for name in (RESULT, METRICS, CONFIG)):
        return [folder]
    if depth == 0:
        return []
    order = _told_order(folder / COMPARE)
    children = [child for child in folder.iterdir() if child.is_dir() and not child.name.startswith(".")]
    children.sort(key=lambda child: (order.get(child.name, len(order)), child.name))
    return [run for child in children for run in _below(child, depth - 1)]


def _told_order(path: Path) -> dict[str, int]:
    rows = _json(path, Compared).rows if path.is_file() else ()
    return {name: place for place, name in enumerate(dict.fromkeys(name for row in rows for name in row.runs))}


def _text(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():  # a pipe, say, which might be read for ever
            raise UserError(f"{path}: no regular file; remove it, and run again")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: missing; {why_missing(path)}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not text in UTF-8 ({error.reason}, byte {error.start}); run again") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); check the file and its permissions") from None


T = TypeVar("T")


def _parse(text: str, kind: type[T], where: str) -> T:
    """A non-finite number (a diverged loss) counts as not measured."""
    try:
        return msgspec.convert(json.loads(text, parse_constant=lambda _: None, parse_float=_finite), kind)
    except json.JSONDecodeError as error:
        at = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}, column {error.colno}"
        raise UserError(f"{where}: not valid JSON ({error.msg}, {at}); restore the file or run again") from None
    except msgspec.ValidationError as error:
        raise UserError(f"{where}: {error}; was it written by another version? Run again") from None
    except (RecursionError, ValueError):
        raise UserError(f"{where}: not the JSON that a run writes; restore the file or run again") from None


def _finite(text: str) -> float | None:
    return value if math.isfinite(value := float(text)) else None


def _json(path: Path, kind: type[T]) -> T:
    return _parse(_text(path), kind, str(path))


def _if_there(path: Path, kind: type[T]) -> T:
    return _json(path, kind) if path.exists() else kind()


def _metrics(path: Path) -> tuple[RoundRecord, ...]:
    rounds: list[RoundRecord] = []
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        one = _parse(line, RoundRecord, f"{path}, line {number}")
        if rounds and one.round <= rounds[-1].round:
            raise UserError(
                f"{path}, line {number}: round {one.round} after round {rounds[-1].round}; "
                "the lines of two runs are mixed, run again into an empty folder"
            )
        rounds.append(one)
    if not rounds:
        raise UserError(f"{path}: no round in it; run at least one round")
    return tuple(rounds)


def _check_shapes(run: Run) -> None:
    clients = run.result.shown
    counts, affinity = run.partition.label_counts, run.observed.affinity
    rows: list[tuple[str, str, Sequence[object] | None]] = [
        (PARTITION, "label_counts", counts),
        (PARTITION, "samples", run.partition.samples),
        (PARTITION, "epochs", run.partition.epochs),
        (PARTITION, "groups", run.partition.groups),
        (PARTITION, "names", run.partition.names or None),
        (PARTITION, "drift", None if run.partition.drift is None else run.partition.drift.data_of),
        (OBSERVED, "affinity", affinity),
        (OBSERVED, "membership", run.observed.membership),
        (OBSERVED, "features", run.observed.features),
        *((METRICS, f"membership of round {one.round}", one.notes.membership) for one in run.rounds),
    ]
    for file, key, value in rows:
        if value is not None and len(value) != clients:
            raise UserError(
                f"{run.folder / file}: {key} has {len(value)} entries for {clients} clients; "
                "do its files come from one run? Run again"
            )
    of_features = [row for row in run.observed.features or () if row]
    for file, what, some in (
        (CLIENTS, "its lists", run.each.values()),
        (
            PARTITION,
            "class_names and the rows of label_counts",
            [*filter(None, [run.partition.class_names]), *(counts or ())],
        ),
        (OBSERVED, "the rows of features", of_features),
    ):
        if len({len(row) for row in some}) > 1:
            raise UserError(f"{run.folder / file}: {what} differ in length; run again")
    if run.rounds[-1].round != run.result.done:
        raise UserError(
            f"{run.folder / METRICS}: ends with round {run.rounds[-1].round}, but {RESULT} says {run.result.done} "
            "rounds; do its files come from one run? Run again"
        )
    if run.partition.drift is not None and sorted(run.partition.drift.data_of) != list(range(clients)):
        raise UserError(f"{run.folder / PARTITION}: drift is no exchange of data between {clients} clients; run again")
    if affinity is not None and any(len(row) != clients for row in affinity):
        raise UserError(f"{run.folder / OBSERVED}: affinity must be {clients} x {clients}; run again")


def _filled(content: Any, checked: Any) -> Any:
    if isinstance(content, Mapping) and isinstance(checked, Mapping):
        lacks = {key: value for key, value in checked.items() if key not in content and value is not None}
        return lacks | {key: _filled(value, checked.get(key)) for key, value in content.items()}
    if isinstance(content, list) and isinstance(checked, list | tuple):
        return [_filled(*both) for both in zip(content, checked, strict=True)]
    return content
