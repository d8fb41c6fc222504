"""Kinds of tables that pages have, each a function of a record, and by name in ``TABLES``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import (
    demo,
    detection,
    detection_costs,
    evidence,
    features,
    hidden_poisoning,
    hospitals,
    poisoning,
    races,
    speed_tables,
    which,
)
from benchmarks.markdown import cell, error, grid, interval, median, of_seeds, without_interval

ROOT = Path(__file__).parents[1]

Record = Mapping[str, Any]
Table = Callable[..., str]


# -- any record of rows ------------------------------------------------------------------------------------------------


def chosen(record: Record, *arguments: str) -> tuple[list[Record], list[str]]:
    """The rows that ``column=value|value`` keeps, and the arguments that name columns."""
    found = list(record["rows"])
    for column, _, values in (word.partition("=") for word in arguments if "=" in word):
        found = [row for row in found if str(row[column]) in values.split("|")]
    return found, [word for word in arguments if "=" not in word]


def rows(record: Record, *arguments: str, digits: int = 4) -> str:
    """All rows, or those that ``column=value|value`` keeps; without names of columns all of them."""
    kept, columns = chosen(record, *arguments)
    shown = columns or tuple(kept[0])
    return grid(shown, [[cell(row[column], digits) for column in shown] for row in kept])


def pivot(record: Record, *arguments: str) -> str:
    """Rows by the first column, columns by the second, and in the cells the third; several each as ``one|another``."""
    kept, (down, across, value) = chosen(record, *arguments)
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for row in kept:
        line = found.setdefault(tuple(cell(row[column]) for column in down.split("|")), {})
        column = ", ".join(cell(row[one]) for one in across.split("|"))
        line[column] = " / ".join(cell(row.get(one)) for one in value.split("|"))
    head = list(dict.fromkeys(column for line in found.values() for column in line))
    lines = [[*names, *(line.get(column, "–") for column in head)] for names, line in found.items()]
    return grid([*down.split("|"), *head], lines)


# -- comparisons -------------------------------------------------------------------------------------------------------


def comparison(record: Record) -> str:
    """Accuracies in percent, and the lead of the first method once both are fine-tuned, in points."""
    first = record["rows"][0]["method"]
    grouped = any(row["ari"] for row in record["rows"])
    leads = {one["over"]: one["fine_tuned_local_accuracy"] for one in record["leads"]}
    head = ["method", "local %", "local %, tuned", "global %"]
    head += ["groups found"] * grouped + [f"lead of `{first}`, both tuned, points"]
    found = []
    for row in record["rows"]:
        measures = ("local_accuracy", "fine_tuned_local_accuracy", "global_accuracy")
        cells = [f"`{row['method']}`", *(interval(row[measure], factor=100) for measure in measures)]
        cells += [interval(row["ari"], 2)] * grouped
        found.append([*cells, interval(leads.get(row["method"]), factor=100, sign="+")])
    return grid(head, found)


def lead(record: Record) -> str:
    """Of the first method over each other one, as they are and tuned, paired by seed, in points."""
    found = []
    for one in record["leads"]:
        found.append([f"`{one['over']}`", *(interval(one[field], factor=100, sign="+") for field in MEASURES.values())])
    return grid(["over", *MEASURES], found)


MEASURES_OF_CELLS = "by seed", "worst decile, by seed"


def _by_seed(record: Record, form: str, measure: str) -> dict[str, dict[str, list[float]]]:
    """By data and partition, and by method, in percent; nothing of a training that diverged."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in record["rows"]:
        if row["form"] == form:
            found.setdefault(f"{row['data']}, {row['partition']}", {})[row["method"]] = row.get(measure, [])
    return found


def _others(values: Mapping[str, list[float]], method: str) -> dict[str, list[float]]:
    """Those that did not diverge and are no variants of this method."""
    own = method.partition("+")[0]
    return {one: by_seed for one, by_seed in values.items() if by_seed and one.partition("+")[0] != own}


def _level(values: Mapping[str, list[float]], method: str) -> bool:
    """Whether a method is first or level among those that are no variants of it."""
    best = max(map(fmean, _others(values, method).values()))
    return bool(values.get(method)) and fmean(values[method]) >= best - which.LEVEL


def cells(record: Record, form: str, measure: str = "by seed") -> str:
    """One form of all methods, bold where first or level, and Coterie's lead over the best other, paired by seed.

    measure: the column of the means by seed, or ``worst decile, by seed``.
    """
    methods = list(dict.fromkeys(row["method"] for row in record["rows"]))
    found = []
    for place, values in _by_seed(record, form, measure).items():
        shown = {one: of_seeds(by_seed) if by_seed else "diverged" for one, by_seed in values.items()}
        shown = {one: f"**{text}**" if _level(values, one) else text for one, text in shown.items()}
        others = _others(values, "coterie")
        best = max(others, key=lambda one: fmean(others[one]))
        lead = _lead(values, "coterie", best)
        found.append([place, *(shown.get(one, "–") for one in methods), f"{lead} ({best})"])
    return grid(["data, partition", *methods, "lead of coterie"], found)


def leads(record: Record, form: str) -> str:
    """Of Coterie and its variants over each other method of a cell, paired by seed: by the mean / the worst decile."""
    ours = [one for one in dict.fromkeys(row["method"] for row in record["rows"]) if one.startswith("coterie")]
    both = [_by_seed(record, form, measure) for measure in MEASURES_OF_CELLS]
    found = []
    for place, values in both[0].items():
        for other in _others(values, "coterie"):
            pairs = [[_lead(by_place[place], one, other) for by_place in both] for one in ours]
            found.append([place, other, *(" / ".join(pair) for pair in pairs)])
    return grid(["data, partition", "over", *ours], found)


def _lead(values: Mapping[str, list[float]], method: str, other: str) -> str:
    if not values.get(method):
        return "–"
    return of_seeds([a - b for a, b in zip(values[method], values[other], strict=True)], "+")


def levels(record: Record) -> str:
    """In how many cells each method's form is first or level: by the mean / the worst decile."""
    forms, methods = (list(dict.fromkeys(row[word] for row in record["rows"])) for word in ("form", "method"))
    found = []
    for method in methods:
        counts = [
            [
                sum(_level(values, method) for values in _by_seed(record, form, measure).values())
                for measure in MEASURES_OF_CELLS
            ]
            for form in forms
        ]
        found.append([method, *("/".join(map(str, pair)) for pair in counts)])
    return grid(["method", *forms], found)


# -- paired differences of learning curves -----------------------------------------------------------------------------

MEASURES = {
    "global %": "global_accuracy",
    "local %": "local_accuracy",
    "local %, tuned": "fine_tuned_local_accuracy",
}


def last_rounds(curve: Record, measure: str, window: int = 5) -> float:
    """In percent: the mean of the last rounds, or the number after the last one."""
    value = curve[measure]
    return 100 * (fmean(value[-window:]) if isinstance(value, list) else value)


def differences(ours: Sequence[Record], theirs: Sequence[Record], window: int = 5) -> list[str]:
    """Over the same seeds, in points."""
    found = []
    for measure in MEASURES.values():
        pairs = zip(ours, theirs, strict=True)
        points = [last_rounds(a, measure, window) - last_rounds(b, measure, window) for a, b in pairs]
        found.append(of_seeds(points, "+"))
    return found


def paired(record: Record, base: str, window: str = "5") -> str:
    """Every other cell less this one. window: how many last rounds count."""
    theirs = record["curves"][base]
    others = {name: curves for name, curves in record["curves"].items() if name != base}
    found = [[name, *differences(curves, theirs, int(window))] for name, curves in others.items()]
    return grid([f"less {base}", *MEASURES], found)


def fedepc_paired(record: Record) -> str:
    """FedEPC less every other method, by alpha."""
    found = []
    for name, curves in record["curves"].items():
        place, _, method = name.rpartition("/")
        if method != "fedepc":
            ours = record["curves"][f"{place}/fedepc"]
            found.append([place.rpartition("/")[2], method, *differences(ours, curves)])
    return grid(["alpha, or groups", "less", *MEASURES], found)


def ofl_paired(record: Record) -> str:
    """OFL in both modes less every other method, by task."""
    found = []
    for name, ours in record["curves"].items():
        task, _, mode = name.rpartition("/")
        if not mode.startswith("ofl"):
            continue
        for other, curves in record["curves"].items():
            beside, _, method = other.rpartition("/")
            if beside == task and not method.startswith("ofl"):
                shown = "hardened" if "@" in mode else "paper"
                found.append([task, shown, method, *differences(ours, curves)])
    return grid(["task", "OFL's mode", "less", *MEASURES], found)


def seconds_and_rounds(record: Record) -> str:
    """What decides the time to 80 % local: means over the seeds, by method."""
    found = []
    for name, curves in record["curves"].items():
        clocks = [one["virtual_seconds"] for one in curves]
        seconds = fmean((clock[-1] - clock[0]) / (len(clock) - 1) for clock in clocks)
        firsts = [next(r for r, x in enumerate(one["local_accuracy"], 1) if x >= 0.8) for one in curves]
        found.append([name.rpartition("/")[2], f"{seconds:.1f}", f"{fmean(firsts):.1f}"])
    return grid(["method", "seconds a round", "rounds to 80 %"], found)


# -- costs -------------------------------------------------------------------------------------------------------------


RECOVERIES = [
    (
        "next packet there and back, after a server that was killed is ready again",
        "after the server was killed, s",
        2,
    ),
    (
        "packet there and back while the leader of three servers is killed",
        "after the leader of three was killed, s",
        1,
    ),
    ("packet that was not done, after a killed party is connected again", "after a party was killed, s", 3),
    ("from `revoke`'s reload to the error at the party", "revoked, s", 2),
]


def nats(record: Record) -> str:
    hop = record["hop"]
    lines = [["one hop of a small packet", f"{hop['median_ms']:.1f} ms, 95 % within {hop['p95_ms']:.0f} ms"]]
    lines += [[f"{size} MB there and back", f"{s:.2f} s"] for size, s in record["there and back, s"].items()]
    lines.append(["server ready", f"{median(record['server ready, ms'], 0)} ms"])
    lines.append(["memory of the server after 1,000 small packets", f"{hop['server_mb']:.0f} MB"])
    for words, key, digits in RECOVERIES:
        lines.append([words, f"{median(record[key], digits)} s"])
    return grid(["", ""], lines)


CASES = {
    "fedavg-digits": "FedAvg, digits, linear model",
    "fedavg-digits-mlp": "FedAvg, digits, MLP",
    "fedavg-mnist-mlp": "FedAvg, MNIST, MLP",
    "fedepc-digits": "FedEPC, digits",
    "fedcaprivacy-digits": "FedCAPrivacy, digits, Paillier",
}


def loopback(record: Record) -> str:
    head = ["", "one process, one training at a time", "one process, all together", "processes on loopback", "ratio"]
    found = []
    for name, case in record["cases"].items():
        times = [
            f"{1000 * case['medians'][f'{side}_s']:.0f} ms"
            for side in ("in_process", "in_process_together", "loopback")
        ]
        found.append([CASES[name], *times, f"{case['ratio']:.2f}"])
    return grid(head, found)


def lines(record: Record) -> str:
    cases = {name: case for name, case in record.items() if isinstance(case, dict)}
    found = [[name, f"{case['seconds']:.1f} s", f"{case['line_s']:.1f} s"] for name, case in cases.items()]
    return grid(["", "took", "the line needs"], found)


def needs(record: Record) -> str:
    """Sizes in models."""
    found = []
    for need in record["needs"]:
        sizes = [f"{need[key]:.1f}" for key in ("sends", "receives", "on the line")]
        found.append([need["system"], *sizes, f"{need['seconds']:.0f} s"])
    return grid(["", "a client sends", "receives", "on the broker's line", "10 MB, 20 Mbit/s"], found)


# -- attacks and liars -------------------------------------------------------------------------------------------------


def described(record: Record) -> str:
    """What descriptions of devices tell."""
    found = [
        [
            f"`{row['partition']}`",
            str(row["samples a device"]),
            row["sent"],
            row["ARI"] or ("–" if row["sent"] == "clear" else row["same clusters as in the clear (ARI)"]),
            f"{row['by name: total variation']} ({without_interval(row['prior'])})",
            f"{row['by name: top label %']} ({without_interval(row['luck %'])})",
            f"{row['helper, no names: total variation']} ({without_interval(row['luck'])})",
            row["hub: pairs, by clusters"] or "–",
            row["vectors with clusters by name: total variation"],
        ]
        for row in record["rows"]
        if row["partition"] != "iid"
    ]
    head = ["partition", "samples", "sent", "ARI", "by name: total variation (prior)", "top label, % (luck)"]
    head += ["no names: total variation (luck)", "clusters", "vectors and clusters: total variation"]
    return grid(head, found)


def whole_runs(record: Record) -> str:
    """What whole runs of FedEPC tell."""

    def beside(row: Record, key: str) -> str:
        return f"{row[key]} ({without_interval(row[f'{key}, by luck'])})"

    found = [
        [
            f"`{row['partition']}`",
            row["sent"],
            row["local accuracy %"],
            row["tuned %"],
            row["ARI"] or "–",
            row["clusters"],
            beside(row, "vectors by name: total variation"),
            row["pairs, by clusters"],
            row["label shares, by models"],
            beside(row, "samples, by selections"),
            beside(row, "variety, by selections"),
        ]
        for row in record["rows"]
    ]
    head = ["partition", "sent", "local accuracy, %", "tuned, %", "ARI", "clusters", "by name: total variation (prior)"]
    head += ["pairs, by clusters", "label shares, by models", "samples, by selections (luck)"]
    return grid([*head, "variety, by selections (luck)"], found)


def leading(record: Record) -> str:
    """How often a liar leads."""
    head = ["fleet", "rule", "honest", "twice the truth", "largest limits", "everything", "numbers of the strongest"]
    found = []
    for fleet, rules in record["led"].items():
        for rule, lies in rules.items():
            led = [interval(of["liar"], 2) for of in lies.values()]
            found.append([f"`{fleet}`", rule, *led, f"{lies['everything']['followers']['mean']:.1f}"])
    return grid([*head, "clients led"], found)


def security(record: Record) -> str:
    """Attacks by variant, with chance, and the accuracies where they are known."""
    variants = record["variants"]
    first = next(iter(variants.values()))
    found = []
    for name, attack in first["attacks"].items():
        values = [error(variant["attacks"].get(name)) for variant in variants.values()]
        found.append([f"{name} ({attack['chance']:.2f})", *values])
    for kind in ("global", "local"):
        if f"{kind}_accuracy" in first:
            found.append([f"*{kind} accuracy*", *(f"{one[f'{kind}_accuracy']:.3f}" for one in variants.values())])
    return grid(["attack (chance)", *variants], found)


KEYS = {"clusters": 5, "p_changes": "2:0.5,3:0.5,4:0.5,5:0.5"}
SIZES = {"sizes": [10, 10, 10, 20, 70]}
DECISIVE: dict[str, dict[str, tuple[str, Record]]] = {
    "mingledpie": {
        "guesses within CI_i: k = 5, p = 1/2, T = 2 (identities)": (
            "one set",
            {"clusters": 5, "p": 0.5, "threshold": 2, "threshold_counts": "identities"},
        ),
        "knows the cluster sizes 10/10/10/20/70": (
            "one set, with a prior",
            {**SIZES, "who": "server knowing the sizes: true cluster"},
        ),
        "estimates them from the sets themselves": (
            "one set, with a prior",
            {**SIZES, "who": "server estimating the sizes: true cluster"},
        ),
        "intersects 2 sets, drawn anew with new keys": ("sets of several keys", {**KEYS, "sets": 2}),
        "5 sets": ("sets of several keys", {**KEYS, "sets": 5, "keep_sets": None}),
        "5 sets, with `keep_sets`": ("sets of several keys", {**KEYS, "sets": 5, "keep_sets": True}),
        "`hardened`: no sets": ("hardened", {"mode": "hardened, products", "who": "server"}),
        "`hardened`, knows the sizes": (
            "hardened",
            {"mode": "hardened, products", "who": "server knowing the sizes from elsewhere"},
        ),
    },
    "pafed": {
        "helper, the paper's real-valued mask r in [−10, 10], 1,000 weights that differ by 0.1: which of two models?": (
            "a mask of real numbers",
            {"weights": 1000, "bound": 10.0},
        ),
        "helper, the ring mask: which of two models? (real CKKS)": ("the mask of the ring", {"crypto": "real"}),
        "helper, 3 late updates, no dummies: how many conflict?": (
            "how many updates conflict",
            {"late": 3, "dummies": 0, "by": "signs"},
        ),
        "the same with 4 dummies (default), by signs": (
            "how many updates conflict",
            {"late": 3, "dummies": 4, "by": "signs"},
        ),
        "by signs and masked sums": (
            "how many updates conflict",
            {"late": 3, "dummies": 4, "by": "signs and sums"},
        ),
    },
}
"""By system and by what an attacker does: the list of its record, and what says which row of this."""


def decisive(record: Record, system: str) -> str:
    """A system's decisive attacks beside their closed forms."""
    found = []
    for words, (name, where) in DECISIVE[system].items():
        (row,) = (row for row in record[name] if all(row.get(key) == value for key, value in where.items()))
        measured = f"{row['measured']:.3f} ± {row['standard_error']:.3f}"
        closed = f"{row['closed_form']:.3f}" if "closed_form" in row else "–"
        found.append([words, measured, closed, f"{row['chance']:.2f}"])
    return grid(["what the attacker does", "measured, ± standard error", "closed form", "chance"], found)


# -- selection ---------------------------------------------------------------------------------------------------------


def regret(record: Record) -> str:
    found = []
    for method in record["regret"]["moving"]:
        cells = [method]
        for problem in ("moving", "fixed"):
            row = record["regret"][problem][method]
            quarters = ", ".join(f"{quarter['mean']:.3f}" for quarter in row["quarters"])
            cells += [interval(row["cumulative"]), quarters]
        found.append(cells)
    head = ["selection", "moving: regret", "mean of each quarter", "fixed: regret", "mean of each quarter"]
    return grid(head, found)


def liars(record: Record) -> str:
    """How often a device that lies is selected in the second half of the rounds, and the mean honest one."""
    found = []
    for lie, shares in record["liars"].items():
        cells = [interval(shares["liar"], 2), f"{max(shares['liar']['values']):.2f}", interval(shares["honest"], 2)]
        found.append([lie, *cells])
    return grid(["it lies about", "liar", "liar, most in a seed", "an honest device"], found)


# -- studies that bring their own tables -------------------------------------------------------------------------------


def poisoned(record: Record, kind: str, partition: str) -> str:
    makers = {"accuracies": poisoning.accuracies, "backdoors": poisoning.backdoors, "detections": poisoning.detections}
    return makers[kind](record["rows"], partition)


def part(text: str, number: str, *kept: str) -> str:
    """One of the tables in a text. kept: only rows that have one of these cells."""
    tables: list[str] = re.findall(r"(?:^\|.*\n)+", text + "\n", re.MULTILINE)
    head, line, *found = tables[int(number)].splitlines(keepends=True)
    shown = [row for row in found if not kept or set(kept) & set(row.strip("|\n ").split(" | "))]
    return "".join([head, line, *shown])


TABLES: dict[str, Table] = {
    "rows": rows,
    "rows-in-full": partial(rows, digits=6),
    "pivot": pivot,
    "comparison": comparison,
    "cells": cells,
    "lead": lead,
    "levels": levels,
    "leads": leads,
    "hospitals": hospitals.table,
    "leaks": races.leaks,
    "race": races.table,
    "which": lambda record, *of: grid(*which.level(record, *of)),
    "forms": lambda record: grid(*which.forms(record)),
    "costs": lambda record, shown: grid(*which.costs(record, json.loads((ROOT / shown).read_text()))),
    "paired": paired,
    "fedepc-paired": lambda record, *kept: part(fedepc_paired(record), "0", *kept),
    "ofl-paired": lambda record, *kept: part(ofl_paired(record), "0", *kept),
    "seconds-and-rounds": seconds_and_rounds,
    "nats": lambda record, *kept: part(nats(record), "0", *kept),
    "loopback": loopback,
    "lines": lines,
    "needs": needs,
    "clients": speed_tables.clients,
    "threshold-rounds": speed_tables.threshold_rounds,
    "jobs": speed_tables.jobs,
    "machines": speed_tables.machines,
    "ciphers": speed_tables.ciphers,
    "floors": speed_tables.floors,
    "training": speed_tables.training,
    "stamps": speed_tables.stamps,
    "described": described,
    "whole-runs": whole_runs,
    "leading": leading,
    "security": security,
    "decisive": decisive,
    "regret": regret,
    "liars": liars,
    "poisoned": poisoned,
    "demo": demo.table,
    "demo-scores": demo.scores,
    "demo-leaks": demo.leaks,
    "hidden-poisoned": hidden_poisoning.table,
    "detection": lambda record, *of: part(detection.tables(record), *of),
    "detection-costs": lambda record, *of: part(detection_costs.tables(record), *of),
    "features": lambda record, *of: part(features.tables(record), *of),
    "evidence": evidence.table,
    "verdicts": evidence.summary,
}
