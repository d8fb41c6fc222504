"""A recorded run as an audit takes it: what it did, and what every party saw, from memory or from its folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.effects import Vector
from coterie.protocol.errors import UserError
from coterie.protocol.model_spec import ModelSpec
from coterie.protocol.system import Federation, System
from coterie.runs.config import RunConfig, from_toml
from coterie.runs.experiment import Experiment, Line, build
from coterie.runs.folder import CONFIG
from coterie.runs.runner import load_result
from coterie.runs.views import VIEWS, message_kinds, read_views
from coterie.transport.transcript import View

Meddle = Callable[[Experiment], None]


@dataclass(frozen=True, eq=False)
class Recorded:
    """config, settings: of the run and of its system.  label_counts: (clients, classes) training samples.

    initial: (d,) the public initial weights.  federation: the parties as they were built; read from a folder, they
    hold nothing of the run.  views: of every party.  stopped: the round in which recording ended early, of which the
    views hold nothing, or None.  lines: of the rounds, as they stand in ``metrics.jsonl``.  groups: (clients,) the
    data's own, where there are some.
    """

    system: System
    config: RunConfig
    settings: Any
    clients: tuple[str, ...]
    label_counts: NDArray[np.int64]
    spec: ModelSpec
    initial: Vector
    federation: Federation
    views: Mapping[str, View]
    stopped: int | None = None
    lines: Sequence[Line] = ()
    groups: NDArray[np.int64] | None = None


def recorded_run(config: RunConfig, meddle: Meddle = lambda experiment: None) -> tuple[Recorded, Experiment]:
    """Run it to its last round with all views recorded, and write nothing; the caller closes the experiment.

    meddle: what is done to the parties, or their links, before they begin.
    """
    experiment = build(config)
    meddle(experiment)
    experiment.set_up()
    lines = [experiment.round(r) for r in range(1, int(experiment.config.rounds or 0) + 1)]
    transcript = experiment.transport.transcript
    if transcript is None or transcript.stopped_at is not None:
        raise UserError("the views of this run aren't recorded, or don't fit record_mib: take fewer clients or rounds")
    return _recorded(experiment, transcript.views, lines), experiment


def read_recorded(folder: str | Path, data_dir: str | None = None) -> Recorded:
    """The finished run of a folder; its data are loaded again. Raises UserError where it holds none, or no views."""
    folder = Path(folder)
    result = load_result(folder)
    if not (folder / VIEWS).exists():
        raise UserError(
            f"{folder} holds a run whose views were not kept: repeat it with\n"
            f"  coterie run --config {folder / CONFIG} --record --out ANOTHER_FOLDER"
        )
    options: dict[str, Any] = {"accelerator": "cpu", "record": False}
    if data_dir is not None:
        options["data_dir"] = data_dir
    config = from_toml(folder / CONFIG, **options)
    if "start" in config.settings:  # the views have the models that were sent, so none is trained again
        config = replace(config, settings={**config.settings, "start": "random"})
    experiment = build(config)
    try:
        views = read_views(folder / VIEWS, message_kinds(experiment.system)).views
        ended = re.match(r"stopped in round (\d+)", result.summary["recording"])
        if ended is None:
            return _recorded(experiment, views, result.rounds)
        stopped = int(ended[1])
        whole = {
            name: View(view.party, view.role, [seen for seen in view.seen if seen.round < stopped])
            for name, view in views.items()
        }
        return _recorded(experiment, whole, result.rounds, stopped)
    finally:
        experiment.close()


def _recorded(
    experiment: Experiment, views: Mapping[str, View], lines: Sequence[Line], stopped: int | None = None
) -> Recorded:
    return Recorded(
        system=experiment.system,
        config=experiment.config,
        settings=experiment.settings,
        clients=experiment.setting.clients,
        label_counts=experiment.label_counts,
        spec=experiment.setting.spec,
        initial=experiment.setting.initial,
        federation=experiment.federation,
        views=views,
        stopped=stopped,
        lines=lines,
        groups=experiment.split.groups,
    )
