"""What one malicious client does to Coterie's groups on handwritten digits, with and without ``check=norm``.

24 clients in four groups (labels permuted); one attacks, drawn by the seed; 10 rounds; clip .5. An attacker that clips
follows the client's program but for its training (``--attack``). One that does not sends its change as it is.

    python -m benchmarks.hidden_poisoning docs/poisoning/hidden.json [--seeds 3]

For each attack and variant: local accuracy of the honest clients of the attacked group and of all others, the same of
backdoor success, the longest upload of the attacker that was counted, over the longest that an honest one can be, in
how many rounds its uploads were counted, and for how many of the other groups' clients the last model is that of the
run without an attack, bit for bit.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.markdown import grid
from coterie.crypto.shared_rows import Grid
from coterie.record.provenance import write_record
from coterie.runs import Experiment, RunConfig, build
from coterie.runs.intervals import spread

CLIENTS, ROUNDS = 24, 10
FAR = 1 << 10
"""How many clips an attacker's upload may be long that does not clip; words of 32 bits have room for it."""
ATTACKS = ("label_flip", "scale:10", "noise:1", "sign_flip", "sign_flip:5", "backdoor", "backdoor:5", "adaptive")
VARIANTS: Mapping[str, tuple[str, float]] = {
    "clips": ("tag", 1),
    "tag": ("tag", FAR),
    "norm": ("norm", FAR),
    "norm, 1.4 clips": ("norm", 1.4),
}
"""By name: the check, and how many clips long the attacker's uploads may be."""
SETTINGS = {"lr": 0.1, "clip": 0.5}
MEASURES = ("group", "others", "group_backdoor", "others_backdoor", "longest", "counted", "same")


class Lengthened(Grid):
    """A grid of the same steps that clips later, and notes how long its last words were."""

    last = 0.0

    def words(self, change: Any, weight: float, rng: np.random.Generator, apart: Any = None) -> Any:
        x = super().words(change, weight, rng, apart)
        type(self).last = float(np.linalg.norm(x.astype(np.uint32).view(np.int32).astype(np.float64)))
        return x


def lengthen(experiment: Experiment, name: str, times: float) -> None:
    """From now on the client clips at so many times the clip. Its proofs stay the program's own."""

    def grid(party: Any) -> Grid:
        honest = party.config.grid(len(party.clients), party.spec)
        return Lengthened(honest.clip * times, round(honest.steps * times), honest.length, honest.parts)

    party = experiment.federation.alter(name)
    party.__class__ = type("Unclipped", (type(party),), {"grid": property(grid)})


def one(seed: int, check: str, attack: str | None, times: float) -> dict[str, Any]:
    """One run. models: the last, by client."""
    config = RunConfig(
        "coterie",
        data="digits",
        clients=CLIENTS,
        rounds=ROUNDS,
        partition="permute:4",
        seed=seed,
        crypto="emulated",
        attack=attack,
        attackers=None if attack is None else 1 / CLIENTS,
        eval_every=ROUNDS,
        settings={**SETTINGS, "check": check},
    )
    experiment = build(config)
    experiment.set_up()
    names, longest, counted = experiment.attackers.names, 0.0, 0
    for name in names:
        lengthen(experiment, name, times)
    longest_honest = experiment.settings.grid(CLIENTS, experiment.common.spec).longest
    for r in range(1, ROUNDS + 1):
        added = experiment.round(r)["notes"]["added"]
        if names and added == CLIENTS:
            longest, counted = max(longest, Lengthened.last / longest_honest), counted + 1
    models = experiment.models()
    found: dict[str, Any] = {"longest": longest, "counted": counted / ROUNDS}
    assert experiment.split.groups is not None
    groups = dict(zip(experiment.common.clients, experiment.split.groups, strict=True))
    if names and experiment.observer.scored is not None:
        honest = [name for name in experiment.shown if name not in names]
        own = np.array([groups[name] == groups[names[0]] for name in honest])
        accuracies = experiment.observer.scored.values["local_accuracy"]
        trigger = experiment.attackers.trigger
        for side, here in (("group", own), ("others", ~own)):
            found[side] = float(accuracies[here].mean())
            some = {name: models[name] for name, chosen in zip(honest, here, strict=True) if chosen}
            success = None if trigger is None else experiment.observer.backdoor_success(some, trigger)
            found[f"{side}_backdoor"] = success
        found["other_names"] = [name for name, chosen in zip(honest, own, strict=True) if not chosen]
    elif experiment.observer.scored is not None:
        found["accuracies"] = dict(
            zip(experiment.shown, experiment.observer.scored.values["local_accuracy"].tolist(), strict=True)
        )
    experiment.close()
    return {**found, "models": {name: np.asarray(model) for name, model in models.items()}, "groups": groups}


def attacked(seed: int, variant: str, attack: str, calm: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of one attack, without models."""
    check, times = VARIANTS[variant]
    run = one(seed, check, attack, times)
    others = run["other_names"]
    run["same"] = float(np.mean([np.array_equal(run["models"][name], calm["models"][name]) for name in others]))
    return {measure: run[measure] for measure in MEASURES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    began, found = time.monotonic(), dict[tuple[str, str], list[dict[str, Any]]]()
    quiet = list[float]()
    for seed in range(given.seeds):
        calm = one(seed, "tag", None, 1)
        quiet.append(float(np.mean(list(calm["accuracies"].values()))))
        for variant in VARIANTS:
            for attack in ATTACKS:
                found.setdefault((attack, variant), []).append(attacked(seed, variant, attack, calm))
                sys.stderr.write(f"{time.monotonic() - began:.0f} s: {seed} {variant} {attack}\n")
    rows = [
        {"attack": attack, "variant": variant, **{of: spread([run[of] for run in runs]) for of in MEASURES}}
        for (attack, variant), runs in found.items()
    ]
    command = f"python -m benchmarks.hidden_poisoning {given.out.as_posix()} --seeds {given.seeds}"
    write_record(given.out, command, {"seeds": given.seeds, "without an attack": spread(quiet), "rows": rows})


WORDS = {
    "clips": "attacker clips",
    "tag": "does not clip",
    "norm": "does not clip, `check=norm`",
    "norm, 1.4 clips": "1.4 clips, `check=norm`",
}


def table(record: Mapping[str, Any]) -> str:
    """Local accuracy, and success of backdoors, in percent: of the attacked group / of the others, by attack."""
    rows = {(row["attack"], row["variant"]): row for row in record["rows"]}
    lines = []
    for attack in ATTACKS:
        lines.append([f"`{attack}`", *(_pair(rows[attack, one], "") for one in WORDS)])
        if rows[attack, "tag"]["group_backdoor"]:
            lines.append([f"{attack}, success", *(_pair(rows[attack, one], "_backdoor") for one in WORDS)])
    return grid(["attack", *WORDS.values()], lines)


def _pair(row: Mapping[str, Any], of: str) -> str:
    return " / ".join(f"{100 * row[f'{side}{of}']['mean']:.0f}" for side in ("group", "others"))


if __name__ == "__main__":
    main()
