"""Comparisons: several methods on the same data, partition, seeds and budget."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coterie.protocol.errors import UserError
from coterie.record.files import locked
from coterie.record.folder import COMPARE, CONFIG, write_json
from coterie.runs.advice import advise, past_its_best
from coterie.runs.budget import ComparisonPlan, naming
from coterie.runs.config import Resolved
from coterie.runs.experiment import build
from coterie.runs.finished import FinishedRun, finished
from coterie.runs.folder import claim_comparison
from coterie.runs.runner import run
from coterie.runs.running import Interrupted
from coterie.runs.scores import Choose, Learned, compared_content

OnRound = Callable[[str, int, Mapping[str, Any]], None]


@dataclass(frozen=True)
class FinishedComparison:
    folder: Path
    content: Mapping[str, Any]


def compare(
    planned: ComparisonPlan,
    seeds: Sequence[int],
    out: str | Path | None = None,
    on_round: OnRound | None = None,
    *,
    resume: bool = False,
    learned: Learned | None = None,
    choose: Choose | None = None,
) -> FinishedComparison:
    """Run every method with every seed, in subfolders of ``out``, and write ``compare.json``.

    on_round: called with label, seed and line.  resume: also finished runs are kept.  learned: attacks the views of a
    method's run folders.  choose: chooses settings first. Raises the errors of ``run``.
    """
    places = {label: re.sub(r"[^\w.@-]+", "_", label) for label in planned.methods}
    if len({*places.values()}) < len(places):
        raise UserError(f"two of these methods would share a folder: {', '.join(places)}; rename one of your own")
    first = next(iter(planned.methods.values()))
    if choose is not None and first.folds is not None and len({*seeds}) > 1:
        raise UserError(
            f"--tune chooses with the first seed, and in folds ({first.folds}) the next ones test what it has trained "
            "on: compare one seed at a time (--seed 0 --seeds 1), or split the data once (--test-share 0.2)"
        )
    for label, config in planned.methods.items():
        with naming(label):
            built = build(replace(config, seed=seeds[0]))
            built.close()
    names = dict(zip(built.names, built.split.names or (), strict=False))
    digests = dict.fromkeys(seeds, built.inputs_digest)
    if resume and first.folds is not None:  # each seed splits the data in its own way
        digests = {seed: _digest(replace(first, seed=seed)) for seed in seeds}
    folder = claim_comparison(out, first.data, resume)
    results: dict[str, list[FinishedRun]] = {label: [] for label in planned.methods}
    chosen = None
    with locked(folder):
        if choose is not None:
            planned, chosen = choose(
                seeds[0], folder, lambda name, config: _one(name, config, on_round, resume, digests[seeds[0]])
            )
        for seed in seeds:
            for label, config in planned.methods.items():
                one = replace(config, seed=seed, out=str(folder / f"{places[label]}-{seed}"))
                results[label].append(_one(label, one, on_round, resume, digests[seed]))
        content = compared_content(planned, results, seeds, names, learned, chosen)
        write_json(folder / COMPARE, content)
    runs = [(planned.methods[label], one.rounds) for label, found in results.items() for one in found]
    if said := [text for config, rounds in runs if (text := past_its_best(config, rounds)) is not None]:
        advise(said[0] + (f" (and {len(said) - 1} more of {len(runs)} runs)" if said[1:] else ""))
    return FinishedComparison(folder, content)


def _digest(config: Resolved) -> str:
    experiment = build(config)
    experiment.close()
    return experiment.inputs_digest


def _one(label: str, config: Resolved, on_round: OnRound | None, resume: bool, inputs: str) -> FinishedRun:
    out = Path(str(config.out))
    started = resume and (out / CONFIG).exists()
    if started and (found := finished(config, inputs)) is not None:
        return found

    def told(line: Mapping[str, Any]) -> None:
        if on_round is not None:
            on_round(label, config.seed, line)

    try:
        with naming(f"{label}, seed {config.seed}, in {out}"):
            return run(config, told, resume=started)
    except Interrupted as interrupted:
        interrupted.advice = f"the same coterie compare, with --resume --out {out.parent}"
        raise
