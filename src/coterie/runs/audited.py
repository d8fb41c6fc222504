"""Audits of recorded runs: what every party received, what attacks learn from it, and the same over several seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, cast

import msgspec

from coterie.privacy.attacks.result import CANNOT_TELL, VERDICTS, verdict
from coterie.privacy.audits import Finding, Recorded
from coterie.privacy.fields import NotJudged, field_findings, watched
from coterie.privacy.over_rounds import sums_findings
from coterie.privacy.plain import plain_findings
from coterie.privacy.views import received
from coterie.protocol.errors import CoterieError, UserError
from coterie.protocol.system import BROKER, BROKER_LEARNS
from coterie.protocols import openings
from coterie.record.files import locked, opened, reading
from coterie.record.folder import COMPARE, CONFIG, OPENINGS, jsonable, write_json
from coterie.record.load import compared, read_summary
from coterie.record.summary import write_result
from coterie.runs.config import SIDES, read_toml
from coterie.runs.intervals import mean_and_interval
from coterie.runs.recorded import read_recorded
from coterie.runs.registry import SYSTEMS, audit_of

Content = dict[str, Any]
Row = Mapping[str, Any]


class Attacked(NamedTuple):
    """found: with results.  not_applicable: by attack, why not.  not_judged: fields that no attack has read."""

    found: list[Finding]
    not_applicable: dict[str, str]
    not_judged: list[NotJudged]


def attacked(run: Recorded, *, active: bool = False) -> Attacked:
    """What the system's own attacks find, and those on plain updates, sums and short arrays of any
    system.

    active: also repeat the run with a deviating client. Raises UserError if the system has no such attack.
    """
    own = audit_of(run.system)
    if active and not (own and own.active):
        some = [name for name, one in SYSTEMS.items() if (its := audit_of(one)) and its.active]
        raise UserError(f"there are no active attacks on {run.system.name}, only on {', '.join(some)}")
    plain, not_applicable = plain_findings(run)
    sums, no_sums = sums_findings(run)
    found: list[Finding] = []
    seen, read = watched(run)
    if own:
        try:
            found = own.passive(seen)
        except UserError as error:
            not_applicable = {f"attacks on {run.system.name} alone": str(error), **not_applicable}
    short, no_arrays, not_judged = field_findings(run, read)
    found = [*found, *plain, *sums, *short, *(own.active(run) if active and own and own.active else [])]
    refused = {one.name: one.why for one in found if not one.results}
    reasons = {**refused, **not_applicable, **no_sums, **no_arrays}
    return Attacked([one for one in found if one.results], reasons, not_judged)


def audit_content(run: Recorded, attacks: Attacked) -> Content:
    """What ``coterie audit --json`` prints of one run.

    attacks: rows of findings, the worst first; topic: what one server alone learns by it, None for coalitions and
    clients.  not_applicable: by attack on plain updates, why not.
    not_judged: role, message, field and content of what clients sent that no attack has read.
    """
    options, system, views = run.options, run.system, list(run.views.values())
    rows = received(views)
    role_of = {name: one.role for name, one in run.federation.common.roster.by_name.items()}
    servers = {*role_of.values()} - {role_of[name] for name in run.clients}
    learns, heard = system.views(run.mode, run.settings), [row.role for row in rows]
    roles = [
        {
            "role": role,
            "parties": sum(view.role == role for view in views),
            "received": [{**asdict(row), "relayed": row.relayed} for row in rows if row.role == role],
            "learns": learns[role].learns if role in learns else "nothing",
        }
        for role in dict.fromkeys([*(role for role in learns if role in heard), *heard])
    ]
    roles.append({"role": BROKER, "parties": 0, "received": [], "learns": BROKER_LEARNS})
    content: Content = {
        "system": system.name,
        "title": system.title,
        "mode": run.mode,
        "crypto": options["crypto"] if system.encrypts(options["mode"]) else "none",
        **{key: options[key] for key in ("seed", "rounds", "clients")},
        "stopped": run.stopped,
        "drifted": run.drifted,
        "roles": roles,
        "attacks": worst_first(
            {**finding.row(), "topic": finding.topic if finding.who.replace(" ", "_") in servers else None}
            for finding in attacks.found
        ),
        "not_applicable": attacks.not_applicable,
        "not_judged": [one._asdict() for one in attacks.not_judged],
    }
    return cast(Content, jsonable(content))


def worst_first(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (-VERDICTS.index(row["verdict"]), -row["leak"]))


def audited(folder: str | Path, data_dir: str | None = None, *, active: bool = False) -> Content:
    """The audit of the run in a folder (``audit_content``). Writes nothing. Raises UserError."""
    run = read_recorded(folder, data_dir)
    stated = Path(folder) / OPENINGS
    found = audited_openings([stated]) if stated.exists() else None
    return {**audit_content(run, attacked(run, active=active)), "openings": found}


def audited_openings(files: Sequence[Path], fewest: int = 0, share: float = openings.MOST_SHARE) -> Content:
    """What holders of key shares state in these files, verified (``protocols.openings.Checked``). Raises UserError.

    fewest, share: as of ``protocols.openings.check``.
    """
    found = []
    for path in files:
        with reading(path, "give openings.json of a run, or what coterie export has written"), opened(path) as file:
            found.append(openings.read(file.read(), path))
    return cast(Content, msgspec.to_builtins(openings.check(found, fewest, share)))


def keep(folder: str | Path, content: Content) -> None:
    """Raises UserError or RunError if that fails."""
    folder = Path(folder)
    with locked(folder):
        write_result(folder, {**read_summary(folder), "audit": content})


def audit_runs(folders: Sequence[Path], data_dir: str | None = None, *, active: bool = False) -> Content:
    """The audits of run folders, each kept in its ``result.json``: of one run, or of several together (``together``).

    A single run's content also has ``not_kept``, the reason or None; of several, ``left_out`` names those that can't be
    audited, with the reason. Raises UserError if no run can.
    """
    done: dict[Path, Content] = {}
    left_out: dict[Path, str] = {}
    for folder in folders:
        try:
            content = audited(folder, data_dir, active=active)
        except UserError as error:
            if len(folders) == 1:
                raise
            left_out[folder] = str(error)
            continue
        done[folder] = {**content, "not_kept": None}
        try:
            keep(folder, content)
        except CoterieError as error:
            done[folder]["not_kept"] = str(error)
    if not done:
        reasons = (f"  {line}" for line in in_lines({str(folder): why for folder, why in left_out.items()}))
        raise UserError("\n".join([f"none of these {len(folders)} runs can be audited:", *reasons]))
    if len(folders) == 1:
        return done[folders[0]]
    return together(done, left_out)


def in_lines(left_out: Mapping[str, str]) -> Iterator[str]:
    """Each reason once: the first folder that it has left out, and how many more. left_out: reasons, by folder."""
    alike: dict[str, list[str]] = {}
    for folder, why in left_out.items():
        alike.setdefault(why.replace(folder, ""), []).append(why if why.startswith(folder) else f"{folder}: {why}")
    for first, *more in alike.values():
        yield first + (f"\n  and {len(more)} more likewise" if more else "")


def together(contents: Mapping[Path, Content], left_out: Mapping[Path, str] | None = None) -> Content:
    """Several runs' audits as one: ``methods``, each with its runs and their merged rows, ``runs`` and ``left_out``.

    Runs are of one method if their options and settings differ only in the seed.
    """
    by_work: dict[str, list[Path]] = {}
    for folder, content in contents.items():
        given = read_toml(folder / CONFIG)
        given["settings"] = sorted(given.get("settings", {}).items())
        work = sorted((key, str(value)) for key, value in given.items() if key not in SIDES | {"seed"})
        by_work.setdefault(repr((content["system"], work)), []).append(folder)
    methods = []
    for members in by_work.values():
        runs = [contents[folder] for folder in members]
        name, mode = runs[0]["system"], runs[0]["mode"]
        methods.append(
            {
                "method": name if mode == "paper" else f"{name}@{mode}",
                **{key: runs[0][key] for key in ("title", "mode", "crypto", "rounds", "clients")},
                "seeds": [run["seed"] for run in runs],
                "runs": [str(folder) for folder in members],
                "attacks": merged([run["attacks"] for run in runs]),
                "not_applicable": {key: why for run in runs for key, why in run["not_applicable"].items()},
                "not_judged": _each_once(one for run in runs for one in run.get("not_judged", ())),
            }
        )
    return {
        "methods": methods,
        "runs": {str(folder): content for folder, content in contents.items()},
        "left_out": {str(folder): why for folder, why in (left_out or {}).items()},
    }


def _each_once(not_judged: Iterable[Mapping[str, str]]) -> list[Mapping[str, str]]:
    return list({(one["role"], one["message"], one["field"]): one for one in not_judged}.values())


def merged(runs: Sequence[Sequence[Row]]) -> list[Row]:
    """Rows of several runs' findings as one row an attack: means over the runs that have it, the worst first.

    leaks: of every run.  interval: half of Student's 95 % interval of the mean leak, None for one run.  error: the
    mean's standard error by chance. Noise is the larger of ``interval`` and twice the error.
    """
    by_name: dict[str, list[Row]] = {}
    for rows in runs:
        for row in rows:
            by_name.setdefault(row["name"], []).append(row)
    return worst_first(found[0] if len(runs) == 1 else _mean(found) for found in by_name.values())


def noise(row: Row) -> float:
    """What a row's leak must exceed: half of its 95 % interval, over rounds and seeds."""
    return float(max(row.get("interval") or 0.0, 2 * row["error"]))


def _mean(rows: Sequence[Row]) -> Row:
    def mean(key: str) -> float | None:
        values = [row[key] for row in rows]
        return None if None in values else fmean(values)

    leaks = [row["leak"] for row in rows]
    leak, interval = mean_and_interval(leaks)
    error = sum(row["error"] ** 2 for row in rows) ** 0.5 / len(rows)
    keys = ("value", "first", "last", "chance", "closed_form")
    known = all(row.get("chance_known", True) for row in rows)
    said = verdict(leak, noise({"interval": interval, "error": error}), chance_known=known)
    same, exact = rows[0]["verdict"], all(row["closed_form"] is not None for row in rows)  # theory has no noise
    if exact and same != CANNOT_TELL and all(row["verdict"] == same for row in rows):
        said = max(said, same, key=VERDICTS.index)
    return {
        **rows[0],
        **{key: mean(key) for key in keys},
        "verdict": said,
        "leak": leak,
        "error": error,
        "interval": interval,
        "leaks": leaks,
        "chance_known": known,
    }


def kept(folder: str | Path) -> Content | None:
    """The audit in a run's ``result.json``, or None. Raises UserError for a folder without a result."""
    found: Content | None = read_summary(Path(folder)).get("audit")
    return found


# -- a few numbers for what servers learned on their own, with which methods are compared ------------------------------


def attack(folder: Path) -> Content:
    """The audit of a run folder, which its ``result.json`` keeps. Raises UserError, also where recording stopped."""
    run = read_recorded(folder)
    if run.stopped is not None:
        raise UserError(_cut_short(folder, run.stopped))
    content = audit_content(run, attacked(run))
    keep(folder, content)
    return content


def learned(audits: Mapping[Path, Content]) -> Content:
    """Of a method's row in ``compare.json``: ``learned`` (``by_topic``), or why it is None. audits: of its runs."""
    for folder, content in audits.items():
        if content["stopped"] is not None:
            return {"learned": None, "not_attacked": _cut_short(folder, content["stopped"])}
    return {"learned": by_topic([content["attacks"] for content in audits.values()]), "not_attacked": None}


def keep_learned(folder: Path, audits: Mapping[str, Content]) -> None:
    """Tell the ``compare.json`` of a folder, if it has one, what these audits found. audits: by run folder.

    A method without an audit of every run keeps what it had. Raises UserError or RunError.
    """
    if compared(folder) is None:
        return
    with locked(folder):
        told = json.loads((folder / COMPARE).read_bytes())
        for row in told["rows"]:
            own = {run: audits.get(str(run)) for run in (folder / name for name in row["runs"])}
            known = {run: content for run, content in own.items() if content is not None}
            if len(known) == len(own):
                row |= learned(known)
        write_json(folder / COMPARE, told)


def _cut_short(folder: Path, stopped: int) -> str:
    return (
        f"{folder}: recording stopped in round {stopped}, and fewer rounds than the other methods' would be "
        "attacked: give a larger --record-mib than the config has"
    )


def by_topic(runs: Sequence[Sequence[Row]]) -> dict[str, Content | None]:
    """What one server alone learns of each topic, by the best attack on a method's runs, as their ``merged`` audit.

    mean: 0 for the verdict "nothing found", 1 for everything; a round without a result counts 0.  interval: the
    ``noise``.  values: of every run.  None: one attack cannot tell, and none found any. Empty if no server receives
    anything to attack.
    """
    rows = merged(runs)
    rounds = max((row["rounds"] for row in rows), default=0)
    best: dict[str, Content] = {}
    unsure: set[str] = set()
    for row in rows:
        topic = row["topic"]
        if topic is None:
            continue
        if row["verdict"] == CANNOT_TELL:
            unsure.add(topic)
        partly = row["rounds"] < rounds - 1 and topic != "samples"  # pairs of rounds are one fewer
        part = row["rounds"] / rounds if partly else 1.0
        found = {
            "mean": 0.0 if row["verdict"] in (VERDICTS[0], CANNOT_TELL) else part * row["leak"],
            "interval": part * noise(row),
            "values": [part * leak for leak in row.get("leaks", [row["leak"]])],
        }
        if topic not in best or found["mean"] > best[topic]["mean"]:
            best[topic] = found
    return {topic: None if topic in unsure and not found["mean"] > 0 else found for topic, found in best.items()}
