"""A deployment on one machine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np

from coterie.data.form import SampleForm
from coterie.deploy.home import Home, hub_home
from coterie.deploy.names import safe
from coterie.deploy.plan import Settings
from coterie.operate.authority import approve, invite
from coterie.operate.folder import Folder
from coterie.operate.founding import init
from coterie.operate.joining import accept, join
from coterie.operate.members import PlannedMember
from coterie.operate.nats_server import NatsServer, free_port
from coterie.operate.server import local_server, serving
from coterie.runs import Experiment, RunConfig

HOMES = "homes"


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
    """Found a deployment, the hub first, and let all but the absent join.

    data: by party, an ``.npz`` file.  out: folder for requests.  report: scores of those with data.
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


def prepared(path: Path, experiment: Experiment, scores: Sequence[str], grace_s: float) -> LocalDeployment:
    """Of an experiment's parties and data.  scores: that each reports.  grace_s: for those missed."""
    config, model, roster = experiment.config, experiment.model, experiment.common.roster
    members = [PlannedMember(name, entry.role) for name, entry in roster.by_name.items()]
    server = f"nats://127.0.0.1:{free_port()}"
    settings = Settings(server, grace_s=grace_s, scores=tuple(scores), rehearsal=True)
    facts = SampleForm(tuple(model.input_shape), int(model.outputs or 0), config.task)
    with TemporaryDirectory(prefix="coterie-") as place:
        files: dict[str, Path] = {}
        for name, own in experiment.dealt.data.items():
            files[name] = Path(place) / f"{safe(name)}.npz"
            np.savez(files[name], **own.arrays())
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
