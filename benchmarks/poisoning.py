"""What clients that misbehave do to FedAvg, to robust baselines and to clustered systems on handwritten digits.

20 clients, of which a fifth attack, drawn by the seed; 20 rounds; E_i up to 5 epochs; the server holds 5 % of the
training data as public, which FLTrust uses, in all runs. Every method sees the same data, start weights, batches and
attackers under a seed, so differences are paired. FedCAPrivacy's cipher is emulated, which changes no model.

    python -m benchmarks.poisoning docs/poisoning/digits.json [--seeds 5] [--rounds 20]

writes every run's accuracies (means over the honest clients), backdoor success and detection, and their means over the
seeds with Student's 95 % intervals. A run whose trainings diverge has no model, and counts as an accuracy of 0. A run
that is in the file already is not repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.markdown import grid
from coterie.protocol.errors import RunError
from coterie.record.provenance import write_record
from coterie.runs import RunConfig, build
from coterie.runs.intervals import spread

PARTITIONS = ("iid", "dirichlet:0.3")
ATTACKS = (None, "label_flip", "scale:10", "noise:1", "sign_flip", "sign_flip:5", "backdoor", "backdoor:5", "adaptive")
METHODS: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {},
    "krum": {},
    "multi_krum": {},
    "trimmed_mean": {},
    "median": {},
    "fltrust": {},
    "ifca": {"clusters": 3},
    "fedcaprivacy": {"clusters": 3},
}
"""Systems and their settings beside the common ones."""

Case = tuple[str, str, str, int]
MEASURES = ("global_accuracy", "local_accuracy", "backdoor_success", "rate", "false_alarms")


def one(method: str, partition: str, attack: str | None, seed: int, rounds: int) -> dict[str, Any]:
    """The numbers of one run after its last round."""
    config = RunConfig(
        method,
        data="digits",
        clients=20,
        rounds=rounds,
        partition=partition,
        public=0.05,
        seed=seed,
        crypto="emulated",
        attack=attack,
        attackers=None if attack is None else 0.2,
        eval_every=rounds,
        settings={"max_epochs": 5, **METHODS[method]},
    )
    experiment, lines, ended = build(config), [], None
    try:
        experiment.set_up()
        for r in range(1, rounds + 1):
            lines.append(experiment.round(r))
        experiment.finish(rounds)
    except RunError as error:
        ended = str(error)
    facts = experiment.attackers.facts(experiment.config, lines)
    experiment.close()
    last = lines[-1] if ended is None else {"global_accuracy": 0.0, "local_accuracy": 0.0}
    found = {key: last.get(key) for key in ("global_accuracy", "local_accuracy", "backdoor_success")}
    judged = facts["detection"] or {}
    return {**found, "rate": judged.get("rate"), "false_alarms": judged.get("false_alarms"), "ended": ended}


def summed(runs: Mapping[str, Mapping[str, Any]], seeds: range) -> list[dict[str, Any]]:
    """A row for each partition, attack and method. lost: accuracy without the attack less that with it, paired."""
    rows = []
    for partition in PARTITIONS:
        for attack in ATTACKS:
            for method in METHODS:
                some = [runs[key_of(method, partition, attack, seed)] for seed in seeds]
                calm = [runs[key_of(method, partition, None, seed)] for seed in seeds]
                row: dict[str, Any] = {"partition": partition, "attack": attack, "method": method}
                row |= {measure: spread([run[measure] for run in some]) for measure in MEASURES}
                pairs = zip(calm, some, strict=True)
                row["lost"] = spread([a["local_accuracy"] - b["local_accuracy"] for a, b in pairs])
                rows.append({**row, "ended": sum(run["ended"] is not None for run in some)})
    return rows


def accuracies(rows: Sequence[Mapping[str, Any]], partition: str) -> str:
    """A table in Markdown: local accuracy in percent, a row for each attack. Bold: less than without the attack."""

    def cell(row: Mapping[str, Any]) -> str:
        text, lost = _percent(row["local_accuracy"]), row["lost"]
        return f"**{text}**" if lost["mean"] > (lost["interval"] or 0) and row["attack"] else text

    return _table(rows, partition, cell)


def backdoors(rows: Sequence[Mapping[str, Any]], partition: str) -> str:
    """The same of the success of backdoors, in percent."""
    return _table(
        [row for row in rows if row["backdoor_success"]], partition, lambda row: _percent(row["backdoor_success"])
    )


def detections(rows: Sequence[Mapping[str, Any]], partition: str) -> str:
    """The same of detection rate / false alarms, in percent, for methods that judge updates."""

    def cell(row: Mapping[str, Any]) -> str:
        return " / ".join("–" if row[of] is None else f"{100 * row[of]['mean']:.0f}" for of in ("rate", "false_alarms"))

    return _table([row for row in rows if row["false_alarms"]], partition, cell)


def _percent(spread: Mapping[str, Any]) -> str:
    return f"{100 * spread['mean']:.0f} ± {100 * spread['interval']:.0f}"


def _table(rows: Sequence[Mapping[str, Any]], partition: str, cell: Callable[[Mapping[str, Any]], str]) -> str:
    here = [row for row in rows if row["partition"] == partition]
    methods, attacks = (list(dict.fromkeys(row[of] for row in here)) for of in ("method", "attack"))
    found = {(row["attack"], row["method"]): cell(row) for row in here}
    lines = [[f"`{attack}`" if attack else "none", *(found[attack, one] for one in methods)] for attack in attacks]
    return grid(["attack", *(f"`{method}`" for method in methods)], lines)


def key_of(method: str, partition: str, attack: str | None, seed: int) -> str:
    return f"{partition} {attack} {method} {seed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    known = json.loads(given.out.read_text()) if given.out.exists() else {}
    runs = dict(known.get("runs", {})) if known.get("rounds") == given.rounds else {}
    wanted = [(m, p, a, s) for s in range(given.seeds) for p in PARTITIONS for a in ATTACKS for m in METHODS]
    command = f"python -m benchmarks.poisoning {given.out.as_posix()} --seeds {given.seeds} --rounds {given.rounds}"
    began = time.monotonic()
    for number, case in enumerate(wanted, 1):
        if (key := key_of(*case)) not in runs:
            runs[key] = one(*case, given.rounds)
            sys.stderr.write(f"{number} of {len(wanted)} runs, {time.monotonic() - began:.0f} s: {key}\n")
        if number % 50 == 0 or number == len(wanted):
            write_record(given.out, command, {"rounds": given.rounds, "seeds": given.seeds, "runs": runs})
    rows = summed(runs, range(given.seeds))
    write_record(given.out, command, {"rounds": given.rounds, "seeds": given.seeds, "rows": rows, "runs": runs})


if __name__ == "__main__":
    main()
