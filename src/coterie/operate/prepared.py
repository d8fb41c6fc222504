"""A deployment on one machine with an experiment's parties and their data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from coterie.data.form import SampleForm
from coterie.deploy.names import safe
from coterie.deploy.plan import Settings
from coterie.operate.local_deployment import LocalDeployment, found_here
from coterie.operate.members import PlannedMember
from coterie.operate.nats_server import free_port
from coterie.runs.experiment import Experiment


def prepared(path: Path, experiment: Experiment, scores: Sequence[str], grace_s: float) -> LocalDeployment:
    """scores: that each party reports.  grace_s: for those that are missed in a round."""
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
