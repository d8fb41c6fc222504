"""Files with an entry for every client."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from coterie.protocol.system import ClientModel
from coterie.record import folder
from coterie.runs import benefit
from coterie.runs.evaluation import Scores
from coterie.runs.experiment import Experiment
from coterie.runs.models import write_models


def write_partition(out: Path, experiment: Experiment) -> None:
    e, names = experiment, experiment.shown
    own_names, of_all, drift = e.split.names, e.common.clients, e.dealt.drift
    targets = e.tasks[0].dataset.targets
    dealt = {
        "clients": names,
        "names": [own_names[of_all.index(name)] for name in names] if own_names else [],
        "samples": [len(e.dealt.data[name].y) for name in names],
        "epochs": [e.owns[name].epochs for name in names],
        "label_counts": e.dealt_counts,
        "class_names": () if targets.task == "regression" else targets.names or (),
        "groups": e.dealt.groups(names),
        "tasks": [task.words for task in e.tasks],
        "public": e.common.public,
        "drift": None if drift is None or e.config.evaluated else {"round": drift.round, "data_of": e.dealt.givers},
    }
    folder.write_json(out / folder.PARTITION, dealt)


def write_scored(out: Path, e: Experiment, models: Mapping[str, ClientModel], r: int, scores: Scores) -> None:
    """Models of round r, the honest clients' scores and predictions, and ``observed.json``."""
    write_models(out, e, models, r)
    honest = e.attackers.left_out(models)
    folder.write_json(out / folder.CLIENTS, {"clients": list(honest), **scores.values})
    benefit.write(out, e, honest)
    folder.write_json(out / folder.OBSERVED, e.observer.observed())
