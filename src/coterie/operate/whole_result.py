"""A rehearsal's result, which knows every party's model."""

from __future__ import annotations

from typing import Any

from coterie.deploy.built_party import stored_party
from coterie.operate.local_deployment import LocalDeployment
from coterie.record.files import atomic_write, locked
from coterie.record.folder import METRICS, RESULT, encode_line, jsonable, read_lines, write_json
from coterie.record.load import read_summary
from coterie.record.summary import with_facts
from coterie.runs.client_files import write_partition, write_scored
from coterie.runs.digests import models_digest
from coterie.runs.experiment import Experiment
from coterie.runs.finished import FinishedRun, load_result
from coterie.runs.opened import write_openings
from coterie.runs.priors import write_priors


def whole_result(ready: LocalDeployment, experiment: Experiment) -> FinishedRun:
    """experiment: of the same config; its parties are replaced."""
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
        scores = experiment.observer.scores(experiment.attackers.left_out(models))
        last = {**scores.line(), "bands": scores.bands(), "models_sha256": models_digest(models)}
        lines[-1] |= jsonable(last)
        atomic_write(run / METRICS, b"".join(map(encode_line, lines)))
        write_partition(run, experiment)
        write_scored(run, experiment, models, done, scores)
        if experiment.observer.told_counts() is not None:  # else a deployment has no priors, either
            write_priors(run, experiment, models, done, experiment.observer.trained(models))
        write_openings(run, parties[0].common.roster, parties)
        summary = read_summary(run)
        more = {"inputs_digest": experiment.inputs_digest, "ledger": ledgers or None}
        write_json(run / RESULT, with_facts(summary, {**last, **more}))
    return load_result(run)
