"""A recorded run as an audit takes it (``audit.Recorded``), made anew or read from its folder.

And a few numbers for what its servers learned on their own, with which methods are compared.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from coterie.audits import Audit, Finding, Meddle, Recorded
from coterie.protocol.errors import UserError
from coterie.runs.config import RunConfig, from_toml
from coterie.runs.experiment import Experiment, Line, build
from coterie.runs.folder import CONFIG
from coterie.runs.registry import audit_of, get
from coterie.runs.runner import load_result
from coterie.runs.views import VIEWS, message_kinds, read_views
from coterie.transport.transcript import View


def recorded_run(config: RunConfig, meddle: Meddle = lambda *run: None) -> tuple[Recorded, Experiment]:
    """Run it to its last round with all views recorded, and write nothing; the caller closes the experiment.

    meddle: changes parties, or their delays, before the run begins.
    """
    experiment = build(config)
    meddle(experiment.federation, experiment.delays)
    experiment.set_up()
    lines = [experiment.round(r) for r in range(1, int(experiment.config.rounds or 0) + 1)]
    transcript = experiment.transport.transcript
    if transcript is None or transcript.stopped_at is not None:
        raise UserError("the views of this run aren't recorded, or don't fit record_mib: take fewer clients or rounds")
    return _recorded(experiment, config, transcript.views, lines), experiment


def record(config: RunConfig, meddle: Meddle = lambda *run: None) -> Recorded:
    """The same, with the experiment closed."""
    run, experiment = recorded_run(config, meddle)
    experiment.close()
    return run


def read_recorded(folder: str | Path, data_dir: str | None = None) -> Recorded:
    """The finished run of a folder, with its data loaded again. Raises UserError if it or its views are missing."""
    folder = Path(folder)
    result = load_result(folder)
    if not (folder / VIEWS).exists():
        raise UserError(
            f"{folder} holds a run whose views were not kept: repeat it with\n"
            f"  coterie run --config {folder / CONFIG} --record --out ANOTHER_FOLDER"
        )
    options: dict[str, Any] = {"accelerator": "cpu", "record": False, "out": str(folder)}
    if data_dir is not None:
        options["data_dir"] = data_dir
    config = from_toml(folder / CONFIG, **options)
    start = {"start": "random"} if "start" in config.settings else {}  # the views have the models that were sent, so
    experiment = build(replace(config, settings={**config.settings, **start}))  # none is trained again
    try:
        views: Mapping[str, View] = read_views(folder / VIEWS, message_kinds(experiment.system)).views
        ended = re.match(r"stopped in round (\d+)", result.summary["recording"])
        stopped = int(ended[1]) if ended else None
        if stopped is not None:
            views = {
                name: View(view.party, view.role, [seen for seen in view.seen if seen.round < stopped])
                for name, view in views.items()
            }
        return _recorded(experiment, config, views, result.rounds, stopped)
    finally:
        experiment.close()


def _recorded(
    experiment: Experiment,
    config: RunConfig,
    views: Mapping[str, View],
    lines: Sequence[Line],
    stopped: int | None = None,
) -> Recorded:
    common = experiment.common
    return Recorded(
        system=experiment.system,
        options=vars(experiment.config),
        settings=experiment.settings,
        clients=common.clients,
        label_counts=experiment.label_counts,
        spec=common.spec,
        initial=common.initial,
        federation=experiment.federation,
        views=views,
        again=partial(record, replace(config, record=True)),
        stopped=stopped,
        lines=lines,
        groups=experiment.split.groups,
    )


TOPICS = {
    "models": ("models",),
    "identity": ("re-linked",),
    "labels": ("label shares", "top label"),
    "groups": ("which pairs", "true cluster"),
}
"""By topic, how the findings begin that belong to it: ``"who: what"``. The others' topic is ``"other"``."""

_KNOWN = ", knowing the start"
"""What may stand behind a server's role: the start weights are public. All else takes more than the server has."""


def attackable(system: str) -> Audit:
    """The audit of a system; raises UserError for one without attacks."""
    found = audit_of(get(system))
    if found is None:
        raise UserError(f"there are no attacks for {system}: leave it out, or compare without --audit")
    return found


def learned(folder: Path, data_dir: str | None = None) -> dict[str, float]:
    """How much a server alone learned, by topic: 0 for chance, 1 for everything, negative below chance.

    The best attack of each topic counts, by its mean over the rounds. A round without a result counts 0. As the best of
    several, it is a little above 0 by chance alone. Curious clients are left out, since this is about servers. Empty if
    no server receives anything to attack. Raises UserError for a folder without views, or a system without an audit.
    """
    run = read_recorded(folder, data_dir)
    audit = attackable(run.options["system"])
    if run.stopped is not None:
        raise UserError(
            f"{folder}: recording stopped in round {run.stopped}, and fewer rounds than the other methods' would be "
            "attacked: give a larger --record-mib than the config has"
        )
    role_of = {one.name: one.role for one in run.federation.common.roster.entries}
    roles = set(role_of.values())
    clients = {role_of[name] for name in run.clients}
    return best_by_topic(audit.passive(run), roles - clients)


def best_by_topic(findings: Iterable[Finding], servers: Collection[str]) -> dict[str, float]:
    """The largest mean leak of each topic among the findings of one server. servers: their roles."""
    found: dict[str, float] = {}
    findings = list(findings)
    rounds = max((len(finding.results) for finding in findings), default=0)
    for finding in findings:
        who, _, what = finding.name.partition(": ")
        if who.removesuffix(_KNOWN).replace(" ", "_") not in servers:
            continue
        topic = next((topic for topic, begins in TOPICS.items() if what.startswith(begins)), "other")
        missed = rounds if len(finding.results) < rounds - 1 else len(finding.results)  # pairs of rounds are one fewer
        leak = sum(result.leak for result in finding.results) / missed
        found[topic] = max(leak, found.get(topic, leak))
    return found
