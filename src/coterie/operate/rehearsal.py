"""A rehearsal (``coterie deploy try``): a whole deployment on this machine, for a first look and for tests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np

from coterie.data.form import SampleForm
from coterie.deploy import kills as killing
from coterie.deploy.built_party import stored_party
from coterie.deploy.engines import check_installed
from coterie.deploy.home import Home, hub_home
from coterie.deploy.hub_process import as_hub
from coterie.deploy.kills import Kill
from coterie.deploy.names import safe
from coterie.deploy.party_process import as_party
from coterie.deploy.plan import Settings
from coterie.deploy.reported import with_facts
from coterie.operate.authority import approve, invite
from coterie.operate.deployable import deployable, scores_of
from coterie.operate.folder import Folder
from coterie.operate.founding import init
from coterie.operate.joining import accept, join
from coterie.operate.members import PlannedMember
from coterie.operate.nats_server import NatsServer, binary, free_port
from coterie.operate.server import local_server, serving
from coterie.operate.supervision import Life, Supervision, warm
from coterie.protocol.errors import UserError
from coterie.record.files import atomic_write, locked
from coterie.record.folder import CLIENTS, METRICS, OBSERVED, RESULT, encode_line, jsonable, read_lines, write_json
from coterie.record.load import read_summary
from coterie.runs import benefit
from coterie.runs.advice import advise
from coterie.runs.config import RunConfig
from coterie.runs.digests import models_digest
from coterie.runs.ending import write_partition
from coterie.runs.experiment import Experiment, build
from coterie.runs.finished import FinishedRun, load_result
from coterie.runs.models import write_models
from coterie.runs.on_data import ClientData
from coterie.runs.opened import write_openings

HOMES = "homes"
GRACE_S = 5.0
_AWAY_S = 3.0  # beyond the grace, so that the others notice

Tell = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class LocalDeployment:
    """homes: by party, the hub's first.  server: not started yet."""

    folder: Folder
    homes: Mapping[str, Home]
    server: NatsServer

    @property
    def hub(self) -> str:
        return next(iter(self.homes))

    def serving(self) -> AbstractContextManager[None]:
        return serving(self.server, self.folder)


def found_here(
    path: Path,
    config: RunConfig,
    members: Sequence[PlannedMember],
    settings: Settings,
    facts: SampleForm,
    data: Mapping[str, Path],
    *,
    out: Path,
    report: Sequence[str] = (),
    accelerator: Literal["cpu", "cuda"] = "cpu",
    absent: Collection[str] = (),
    session: bytes | None = None,
) -> LocalDeployment:
    """Found a deployment, the hub first among its members, and let all but the absent join.

    data: by party, an ``.npz`` file.  out: folder for requests.  report: scores that those with data report.
    """
    hub, *others = members
    init(path, config, members, settings, facts, public=data.get(hub.name), session=session)
    homes = {hub.name: hub_home(path)}
    for name in (one.name for one in others if one.name not in absent):
        own, place = data.get(name), path / HOMES / safe(name)
        told = report if own is not None else ()
        home, request = join(invite(path, name), place, own, report=told, accelerator=accelerator, out=out)
        accept(home, approve(path, request.read_text()).certificate.read_text())
        homes[name] = home
    folder = Folder(path)
    return LocalDeployment(folder, homes, local_server(folder))


def rehearse(
    path: Path,
    config: RunConfig,
    kills: Sequence[str] = (),
    tell: Tell = lambda line: None,
    *,
    scores: Sequence[str] | None = None,
) -> FinishedRun:
    """Run a deployment in a new folder, every party in a process of its own.

    kills: see ``kills.parse``.  tell: is given each finished round's line.  scores: that each party reports; None for
    all.
    Raises UserError for what cannot be rehearsed, and RunError if a party fails. Logs stay.
    """
    if config.out is not None:
        raise UserError(f"the run folder of a rehearsal is {Folder(path).run}: leave out away")
    check_installed()
    binary()
    warm()
    config = deployable(config, rehearsal=True)
    with ExitStack() as held:
        experiment = build(config)
        held.callback(experiment.close)
        names = list(experiment.common.roster.by_name)
        wanted = [killing.parse(text, names, experiment.config.rounds) for text in kills]
        ready = _set_up(path, experiment, scores_of(config) if scores is None else scores)
        held.enter_context(ready.serving())
        _run_parties(ready, wanted, tell)
        return _collect(ready, experiment)


def _set_up(path: Path, experiment: Experiment, scores: Sequence[str]) -> LocalDeployment:
    config, model, roster = experiment.config, experiment.model, experiment.common.roster
    members = [PlannedMember(name, entry.role) for name, entry in roster.by_name.items()]
    server = f"nats://127.0.0.1:{free_port()}"
    settings = Settings(server, grace_s=GRACE_S, scores=tuple(scores), rehearsal=True)
    facts = SampleForm(tuple(model.input_shape), int(model.outputs or 0), config.task)
    with TemporaryDirectory(prefix="coterie-") as place:
        files: dict[str, Path] = {}
        for name, own in experiment.dealt.data.items():
            files[name] = Path(place) / f"{safe(name)}.npz"
            np.savez(files[name], **_samples(own))
        return found_here(
            path,
            config,
            members,
            settings,
            facts,
            files,
            out=Path(place),
            report=scores,
            accelerator="cuda" if config.accelerator == "cuda" else "cpu",
            session=roster.session,
        )


def _run_parties(ready: LocalDeployment, kills: Sequence[Kill], tell: Tell) -> None:
    lives: dict[str, Life] = {name: _hub if name == ready.hub else as_party for name in ready.homes}
    folders = {name: home.path for name, home in ready.homes.items()}
    metrics, told, size = ready.folder.run / METRICS, 0, 0

    def tell_new() -> None:
        nonlocal told, size
        if (now := metrics.stat().st_size if metrics.exists() else 0) != size:
            new, size = read_lines(metrics)[told:], now
            told += len(new)
            for line in new:
                tell(line)

    with Supervision(ready.hub, folders, lives, kills, absence_s=GRACE_S + _AWAY_S) as processes:
        processes.start()
        processes.watch(tell_new)
    tell_new()
    for kill in processes.kills:
        advise(f"--kill {kill} did not happen: {kill.party} had nothing to do then")


def _hub(home: Path, kill: Kill | None) -> None:
    as_hub(home.parent, kill)


def _collect(ready: LocalDeployment, experiment: Experiment) -> FinishedRun:
    """Complete the run folder with the models from the homes, which only a rehearsal can read."""
    run, ledgers, parties = ready.folder.run, dict[str, Any](), list[Any]()
    for name, home in ready.homes.items():
        found, kept = stored_party(home)
        experiment.parties.replace(found.party)
        parties.append(found.party)
        if name in found.party.common.clients and found.account.kept:
            ledgers[name] = found.account.statement(kept.released)
    with locked(run):
        lines = read_lines(run / METRICS)
        done = int(lines[-1]["round"])
        models = experiment.models(done)
        honest = experiment.attackers.left_out(models)
        scores = experiment.observer.scores(honest)
        last = {**scores.line(), "bands": scores.bands(), "models_sha256": models_digest(models)}
        lines[-1] |= jsonable(last)
        atomic_write(run / METRICS, b"".join(map(encode_line, lines)))
        write_partition(run, experiment)
        write_models(run, experiment, models, done)
        write_json(run / CLIENTS, {"clients": list(honest), **scores.values})
        benefit.write(run, experiment, honest)
        write_json(run / OBSERVED, experiment.system.observe(experiment.federation))
        write_openings(run, parties[0].common.roster, parties)
        summary = read_summary(run)
        more = {"inputs_digest": experiment.inputs_digest, "ledger": ledgers or None}
        write_json(run / RESULT, with_facts(summary, {**last, **more}))
    return load_result(run)


def _samples(own: ClientData) -> dict[str, Any]:
    found = {"x": own.x.numpy(), "y": own.y.numpy()}
    if len(own.test):
        found |= {"x_test": own.test_set.x[own.test].numpy(), "y_test": own.test_set.y[own.test].numpy()}
    return found
