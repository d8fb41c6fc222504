"""A recorded run for an audit (``audits.Recorded``), run anew or read from its folder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.privacy.audits import AuditSamples, Meddle, Recorded
from coterie.protocol.errors import UserError
from coterie.record.folder import CONFIG, deployed
from coterie.record.summary import Line
from coterie.runs.config import RunConfig
from coterie.runs.config_file import from_toml
from coterie.runs.experiment import Experiment, build
from coterie.runs.finished import check_inputs, load_result
from coterie.runs.on_data import ClientData
from coterie.runs.own_code import check_code
from coterie.runs.views import VIEWS, read_views
from coterie.transport.transcript import View


def recorded_run(config: RunConfig, meddle: Meddle = lambda *run: None) -> tuple[Recorded, Experiment]:
    """Run to the last round with all views recorded, and write nothing; the caller closes the experiment.

    meddle: changes parties, or delays, first.
    """
    experiment = build(config)
    meddle(experiment.federation, experiment.delays)
    experiment.set_up()
    lines: list[Line] = []
    while len(lines) < experiment.config.rounds and not (lines and "stopped" in lines[-1]["notes"]):
        lines.append(experiment.round(len(lines) + 1))
    experiment.finish(len(lines))
    transcript = experiment.transport.transcript
    if transcript is None or transcript.stopped_at is not None:
        raise UserError("the views of this run aren't recorded, or don't fit record_mib: take fewer clients or rounds")
    return _recorded(experiment, config, transcript.views, lines), experiment


def record(config: RunConfig, meddle: Meddle = lambda *run: None) -> Recorded:
    run, experiment = recorded_run(config, meddle)
    experiment.close()
    return run


def read_recorded(folder: str | Path, data_dir: str | None = None) -> Recorded:
    """A folder's run, with its data loaded again. Raises UserError without run or views."""
    folder = Path(folder)
    result = load_result(folder)
    if not (folder / VIEWS).exists() and deployed(folder) == "machines":
        raise UserError(
            f"{folder} holds the run of a deployment, of which nobody has all views: there is no audit of it"
        )
    if not (folder / VIEWS).exists():
        raise UserError(
            f"{folder} holds a run whose views were not kept: repeat it with\n"
            f"  coterie run --config {folder / CONFIG} --record --out ANOTHER_FOLDER"
        )
    check_code(folder / CONFIG)
    options: dict[str, Any] = {"accelerator": "cpu", "record": False, "out": str(folder)}
    if data_dir is not None:
        options["data_dir"] = data_dir
    config = from_toml(folder / CONFIG, **options)
    start = {"start": "random"} if "start" in config.settings else {}  # the views have the models that were sent, so
    experiment = build(replace(config, settings={**config.settings, **start}))  # none is trained again
    try:
        check_inputs(result, experiment.inputs_digest)
        kinds = experiment.system.kinds(experiment.settings)
        views: Mapping[str, View] = read_views(folder / VIEWS, kinds).views
        ended = re.match(r"stopped in round (\d+)", result.summary["recording"])
        stopped = int(ended[1]) if ended else None
        if stopped is not None:
            views = _before(stopped, views)
        return _recorded(experiment, config, views, result.rounds, stopped)
    finally:
        experiment.close()


def _before(round: int, views: Mapping[str, View]) -> dict[str, View]:
    return {
        name: replace(view, seen=[seen for seen in view.seen if seen.round < round]) for name, view in views.items()
    }


def _recorded(
    experiment: Experiment,
    config: RunConfig,
    views: Mapping[str, View],
    lines: Sequence[Line],
    stopped: int | None = None,
) -> Recorded:
    common = experiment.common
    if not views and stopped is None:
        raise UserError(f"the record of this run is empty: repeat it with --record ({config.out or 'in memory'})")
    drifted = None if experiment.dealt.drift is None else experiment.dealt.drift.round
    if drifted is not None:  # of what clients had then: one truth for all rounds
        views, lines = _before(drifted, views), [line for line in lines if line["round"] < drifted]
    return Recorded(
        system=experiment.system,
        options=vars(experiment.config),
        settings=experiment.settings,
        clients=tuple(common.clients),
        label_counts=experiment.dealt_counts,
        spec=common.spec,
        initial=common.initial,
        federation=experiment.federation,
        views=views,
        again=partial(record, replace(config, record=True)),
        model=experiment.model,
        samples=partial(_samples, experiment.dealt.data),
        stopped=stopped,
        lines=lines,
        groups=experiment.dealt.split.groups,
        drifted=drifted,
    )


_MOST_SAMPLES = 512  # of each kind, of a client


def _samples(data: Mapping[str, ClientData], client: str) -> AuditSamples:
    own = data[client]
    some, rest = _thinned(len(own.y)), own.held_out
    if rest is None or not len(rest.y):
        there = torch.from_numpy(own.test)[_thinned(len(own.test))]
        return AuditSamples(own.x[some], own.y[some], own.test_set.x[there], own.test_set.y[there], same_pool=False)
    there = _thinned(len(rest.y))
    return AuditSamples(own.x[some], own.y[some], rest.x[there], rest.y[there])


def _thinned(n: int) -> Tensor:
    return torch.arange(n)[:: -(-n // _MOST_SAMPLES) or 1]
