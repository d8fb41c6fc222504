"""What a run writes in its folder at the start, and at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.record import folder
from coterie.record.files import atomic_write, writing
from coterie.record.summary import Line
from coterie.runs import benefit
from coterie.runs.advice import advise, no_better_than_chance, nothing_added
from coterie.runs.client_files import write_partition, write_scored
from coterie.runs.config_file import to_toml
from coterie.runs.experiment import Experiment
from coterie.runs.explained import calibration
from coterie.runs.opened import write_openings_of
from coterie.runs.outcome import summary
from coterie.runs.priors import write_priors


def write_start(out: Path, experiment: Experiment) -> None:
    """Also removes an earlier result. Raises RunError."""
    with writing(out / folder.RESULT):
        (out / folder.RESULT).unlink(missing_ok=True)
    atomic_write(out / folder.CONFIG, to_toml(experiment.config).encode())
    write_partition(out, experiment)


def write_end(
    out: Path,
    e: Experiment,
    set_up: Line,
    rounds: Sequence[Line],
    finish: Line | None,
    best: tuple[Mapping[str, Any], int] | None,
) -> dict[str, Any]:
    """Write all that is known at the end. Returns ``result.json``.  best: the models that early stopping keeps, and
    their round.
    """
    done = rounds[-1]["round"]
    models, r = best or (e.models(done), done)
    if r != done:
        e.observer.scored = e.observer.scores(e.attackers.left_out(models))
    scored = e.observer.scored or e.observer.score_again(done)  # a resumed run may have no scores of its last round
    write_scored(out, e, models, r, scored)
    trained = e.observer.trained(models)
    write_priors(out, e, models, r, trained)
    write_openings_of(out, e)
    result = {**summary(e, set_up, rounds, finish, models, trained), "calibration": _calibration(out, e)}
    if e.config.early_stop is not None:
        result |= {**scored.line(), "best_round": r}
    folder.write_json(out / folder.RESULT, result)
    advise(no_better_than_chance(e.config, result, e.label_counts))
    observed = e.system.observe(e.seen)
    advise(nothing_added(e.config, observed.get("kept_by", 0), observed.get("why_kept", ())))
    return result


def _calibration(out: Path, e: Experiment) -> dict[str, Any] | None:
    if e.config.task != "classes" or e.model.outputs != 2 or len(e.tasks) > 1:
        return None
    names = e.tasks[0].dataset.targets.names or ("0", "1")
    return calibration(benefit.read(out, e.config.task).values(), names[1])
