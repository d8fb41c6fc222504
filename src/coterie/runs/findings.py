"""Rows of attacks: the worst first, means over seeds, and what servers learn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any

from coterie.privacy.attacks.result import CANNOT_TELL, MUCH, VERDICTS, verdict
from coterie.record.folder import CONFIG
from coterie.runs.config import SIDES
from coterie.runs.config_file import read_toml
from coterie.runs.intervals import mean_and_interval

Content = dict[str, Any]
Row = Mapping[str, Any]
OF_ROUNDS = ("models", "identity")
"""Topics with something new in every round."""


def is_control(name: str) -> bool:
    """Whether an attack is on what did not happen ("helper, if groups were made twice")."""
    return ", if " in name.partition(":")[0]


def worst_first(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (is_control(row["name"]), -VERDICTS.index(row["verdict"]), -row["leak"]))


def in_lines(left_out: Mapping[str, str]) -> Iterator[str]:
    """Each reason once: the first folder left out, and how many more.  left_out: reasons."""
    alike: dict[str, list[str]] = {}
    for folder, why in left_out.items():
        alike.setdefault(why.replace(folder, ""), []).append(why if why.startswith(folder) else f"{folder}: {why}")
    for first, *more in alike.values():
        yield first + (f"\n  and {len(more)} more likewise" if more else "")


def together(contents: Mapping[Path, Content], left_out: Mapping[Path, str] | None = None) -> Content:
    """``methods``, each with its runs and merged rows, ``runs`` and ``left_out``. Runs of one method differ in the
    seed.
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
    """One row an attack: means over the runs that have it, the worst first.

    interval: half of Student's 95 % interval of the mean leak, None for one run.  error: its standard error by chance.
    """
    by_name: dict[str, list[Row]] = {}
    for rows in runs:
        for row in rows:
            by_name.setdefault(row["name"], []).append(row)
    return worst_first(found[0] if len(runs) == 1 else _mean(found) for found in by_name.values())


def noise(row: Row) -> float:
    """Half of a leak's 95 % interval, over rounds and seeds, which it must exceed."""
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
    least = min((row["verdict"] for row in rows), key=VERDICTS.index)
    each = VERDICTS.index(least) > VERDICTS.index(CANNOT_TELL)  # seed shows it alone, however they differ
    if each:
        said = max(said, least, key=VERDICTS.index)
    return {
        **rows[0],
        **{key: mean(key) for key in keys},
        "verdict": said,
        "leak": leak,
        "error": error,
        "interval": interval,
        "leaks": leaks,
        "each": each,
        "chance_known": known,
    }


def widened(attacks: int) -> float:
    """By how much wider than one attack's 95 % interval is that which the best of so many exceeds as rarely:
    Bonferroni's bound, for leaks normal by chance.
    """
    normal = NormalDist()
    return normal.inv_cdf(1 - 0.025 / max(attacks, 1)) / normal.inv_cdf(1 - 0.025)


def learned(audits: Mapping[Path, Content]) -> Content:
    """For ``compare.json``: ``learned`` (``by_topic``), or why it is None."""
    for folder, content in audits.items():
        if content["stopped"] is not None:
            return {"learned": None, "not_attacked": cut_short(folder, content["stopped"])}
    return {"learned": by_topic([content["attacks"] for content in audits.values()]), "not_attacked": None}


def cut_short(folder: Path, stopped: int) -> str:
    return (
        f"{folder}: recording stopped in round {stopped}, and fewer rounds than the other methods' would be "
        "attacked: give a larger --record-mib than the config has"
    )


def by_topic(runs: Sequence[Sequence[Row]]) -> dict[str, Content | None]:
    """What one server alone learns of each topic, by the best attack in the ``merged`` rows.

    mean: 0 for "nothing found", 1 for everything; of ``OF_ROUNDS`` a round without a result counts 0.  interval: the
    ``noise``, ``widened``, within which the best may be luck, and counts 0. None: one attack cannot tell, and none
    found much.
    """
    rows = [row for row in merged(runs) if row["topic"] is not None]
    wider = widened(len(rows))
    rounds = max((row["rounds"] for row in rows), default=0)
    best: dict[str, Content] = {}
    unsure: set[str] = set()
    for row in rows:
        topic, within = row["topic"], wider * noise(row)
        if row["verdict"] == CANNOT_TELL:
            unsure.add(topic)
        partly = row["rounds"] < rounds - 1 and topic in OF_ROUNDS  # pairs of rounds are one fewer
        part = row["rounds"] / rounds if partly else 1.0
        luck = row["verdict"] in (VERDICTS[0], CANNOT_TELL) or not (row.get("each") or row["leak"] > within)
        found = {
            "mean": 0.0 if luck else part * row["leak"],
            "interval": part * within,
            "values": [part * leak for leak in row.get("leaks", [row["leak"]])],
        }
        if topic not in best or found["mean"] > best[topic]["mean"]:
            best[topic] = found
    return {topic: None if topic in unsure and found["mean"] < MUCH else found for topic, found in best.items()}
