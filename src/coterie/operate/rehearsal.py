"""A rehearsal (``coterie deploy try``): a whole deployment on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from coterie.deploy import kills as killing
from coterie.operate.deployable import deployable, scores_of
from coterie.operate.local_processes import Tell, run_parties
from coterie.operate.prepared import prepared
from coterie.operate.server import check_engine
from coterie.operate.supervision import warm
from coterie.operate.whole_result import whole_result
from coterie.runs.config import RunConfig
from coterie.runs.experiment import build
from coterie.runs.finished import FinishedRun

GRACE_S = 5.0
_AWAY_S = 3.0  # beyond the grace, so that the others notice


def rehearse(
    path: Path,
    config: RunConfig,
    kills: Sequence[str] = (),
    tell: Tell = lambda line: None,
    *,
    scores: Sequence[str] | None = None,
) -> FinishedRun:
    """kills: see ``kills.parse``.  tell: is given each finished round's line.  scores: that each party reports; None
    for all. Raises UserError for what cannot be rehearsed, and RunError if a party fails.
    """
    config = deployable(config, rehearsal=True)
    check_engine()
    warm()
    with ExitStack() as held:
        experiment = build(config)
        held.callback(experiment.close)
        names = list(experiment.common.roster.by_name)
        wanted = [killing.parse(text, names, experiment.config.rounds) for text in kills]
        ready = prepared(path, experiment, scores_of(config) if scores is None else scores, GRACE_S)
        held.enter_context(ready.serving())
        run_parties(ready, wanted, tell, GRACE_S + _AWAY_S)
        return whole_result(ready, experiment)
