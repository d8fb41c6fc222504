"""Short comparisons on digits that pages about systems show: ``python -m benchmarks.races RACE FILE``.

A race has several cases, each one ``coterie compare``. The record has every seed's values.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import coterie
from benchmarks.markdown import grid
from coterie.privacy.attacks.result import verdict
from coterie.record.provenance import write_record
from coterie.runs.intervals import mean_and_interval

_SHORT = {"fine_tune": "no", "local": False}
_LATE = {
    **_SHORT,
    "methods": ["fedavg_drop", "fedavg_stale", "fedavg_late", "time_weighted", "fedasync", "fedadmm"],
    **{"partition": "shards:2", "rounds": 30},
}
_SELECTION = {
    "methods": ["haccs", "flacc", "clsm_fl", "oort", "fedavg", "ifca"],
    **{"devices": "mixed", "rounds": 20, "public": 0.05, "fine_tune": "no"},
    "settings": {"ifca.clusters": 5, "clsm_fl.clusters": 5},
}
_OFL = {**_SHORT, "clients": 16, "rounds": 10, "crypto": "emulated", "record": True}
_SIGNS = {
    **_SHORT,
    "methods": ["pafed"],
    **{"crypto": "emulated", "participation": 1.0, "delta": 0.5, "partition": "shards:2", "record": True},
}
_SCALED: Mapping[str, Any] = {"attack": "scale:10", "attackers": 0.25}
RACES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "late": {f"δ = {delta:g}": {**_LATE, "delta": delta} for delta in (0, 0.5, 0.7)},
    "steps": {
        f"`{method}`, {words}": {**_LATE, "methods": [method], "delta": 0.7, **more}
        for method, words, more in (
            ("fedadmm", "late updates dropped", {"settings": {"fedadmm.max_staleness": 0}}),
            ("fedavg_drop", "a constant step", {"server_decay": 0.0}),
            ("fedavg_late", "a constant step", {"server_decay": 0.0}),
        )
    },
    "selection": {form: {**_SELECTION, "partition": form} for form in ("labelsets:5", "dirichlet:0.1")},
    "hierarchical": {"": {"methods": ["fedavg", "cfl", "rfl_ha"], "rounds": 20, "partition": "permute:2"}},
    "classes": {
        f"{k} clusters": {**_SHORT, "methods": ["clsm_fl"], "rounds": 10, "partition": "labelsets:5", "clusters": k}
        for k in (2, 5)
    },
    "ofl": {
        "nothing (`paper`)": {**_OFL, "methods": ["ofl"]},
        "`--set epsilon2=1e9`": {**_OFL, "methods": ["ofl"], "epsilon2": 1e9},
        "`--mode literal`": {**_OFL, "methods": ["ofl@literal"]},
        "`--mode hardened`": {**_OFL, "methods": ["ofl@hardened"]},
        "`--mode hardened --set noise=1e-6`": {**_OFL, "methods": ["ofl@hardened"], "noise": 1e-6},
        "`--mode hardened --set noise=0.2`": {**_OFL, "methods": ["ofl@hardened"], "noise": 0.2},
        "`--mode hardened --set noise=1`": {**_OFL, "methods": ["ofl@hardened"], "noise": 1.0},
        "`--attack scale:10 --attackers 0.25`": {**_OFL, "methods": ["ofl"], **_SCALED},
        "`--mode hardened --attack scale:10 --attackers 0.25`": {**_OFL, "methods": ["ofl@hardened"], **_SCALED},
    },
    "signs": {
        "`shown`, 4 dummies (default)": {**_SIGNS, "signs": "shown"},
        "`hidden`, 4": {**_SIGNS, "signs": "hidden", "dummies": 4},
        "`hidden`, 16": {**_SIGNS, "signs": "hidden", "dummies": 16},
    },
    "secagg": {
        f"{clients} clients": {
            **_SHORT,
            **{"methods": ["fedavg", "secagg"], "model": "mlp", "crypto": "real"},
            **{"clients": clients, "rounds": 5, "partition": "dirichlet:0.5"},
        }
        for clients in (10, 30)
    },
    "audit": {"": {**_SHORT, "methods": ["fedavg", "scaffold", "fedcaprivacy"], "crypto": "emulated", "record": True}},
}
"""By name, the cases with the options of their comparison. Recorded ones are attacked."""


def held(case: Mapping[str, Any], seeds: int) -> Mapping[str, Any]:
    """Of each method the measures, a list over the seeds, and how much each attack found."""
    with tempfile.TemporaryDirectory() as place:
        done = coterie.compare(**case, seeds=seeds, out=place, progress=False)
        found = {
            row["method"]: {key: of["values"] for key, of in row.items() if isinstance(of, Mapping) and "values" in of}
            for row in done.content["rows"]
        }
        for audited in done.audit()["methods"] if case.get("record") else ():
            found[audited["method"]]["attacks"] = {one["name"]: one["leaks"] for one in audited["attacks"]}
        return found


def shown(values: Sequence[float | None], measure: str) -> str:
    """Mean and half of the 95 % interval; accuracies and shares in percent."""
    known = [float(value) for value in values if value is not None]
    if len(known) < len(values) or not known:
        return "–"
    factor = 100 if measure.endswith(("accuracy", "rate", "alarms")) else 1e-6 if measure.startswith("bytes") else 1
    digits = 1 if factor != 1 or measure == "virtual_seconds" else 2
    middle, half = mean_and_interval([factor * value for value in known])
    return f"{middle:.{digits}f} ± {half or 0.0:.{digits}f}"


WORDS = {
    "global_accuracy": "global %",
    "local_accuracy": "local %",
    "fine_tuned_local_accuracy": "local %, tuned",
    "ari": "groups found",
    "virtual_seconds": "virtual s",
    "bytes_up": "MB sent",
    "detection_rate": "detected %",
    "false_alarms": "false alarms %",
}


def table(record: Mapping[str, Any], *measures: str) -> str:
    """A case a row where each has one method, else a method a row and the cases across.

    measures: of these, or names of attacks, whose leaks are shown.
    """
    cases = record["cases"]
    words = [WORDS.get(measure, measure) for measure in measures]

    def cells(row: Mapping[str, Any]) -> list[str]:
        return [shown(row.get(one, row.get("attacks", {}).get(one, [None])), one) for one in measures]

    if all(len(methods) == 1 for methods in cases.values()):
        return grid(["options", *words], [[name, *cells(row)] for name, of in cases.items() for row in of.values()])
    head = ["method", *(f"{case}: {word}" if case else word for case in cases for word in words)]
    methods = dict.fromkeys(method for of in cases.values() for method in of)
    return grid(head, [[f"`{one}`", *(cell for of in cases.values() for cell in cells(of[one]))] for one in methods])


def leaks(record: Mapping[str, Any], *names: str) -> str:
    """What these attacks find of each method of the only case."""
    (methods,) = record["cases"].values()
    rows = []
    for method, row in methods.items():
        for name in names:
            if found := row["attacks"].get(name):
                middle, half = mean_and_interval(found)
                rows.append([f"`{method}`", name, shown(found, name), verdict(middle, half or 0.0)])
    return grid(["method", "attack", "leak", "verdict"], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.races", description=__doc__)
    parser.add_argument("race", choices=RACES)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0 on")
    given = parser.parse_args(arguments)
    cases = {name: held(case, given.seeds) for name, case in RACES[given.race].items()}
    command = f"python -m benchmarks.races {given.race} {given.out.as_posix()} --seeds {given.seeds}"
    write_record(given.out, command, {"seeds": list(range(given.seeds)), "cases": cases})


if __name__ == "__main__":
    main()
