"""A rehearsal (``coterie deploy try``): a deployment on this machine, each party a process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from coterie.deploy.hub_process import as_hub
from coterie.deploy.kills import Kill, parse
from coterie.deploy.party_process import as_party
from coterie.operate.deployable import deployable, scores_of
from coterie.operate.local_deployment import LocalDeployment, prepared
from coterie.operate.server import check_engine
from coterie.operate.supervision import Life, Supervision, warm
from coterie.operate.whole_result import whole_result
from coterie.record.folder import METRICS, read_lines
from coterie.runs import FinishedRun, RunConfig, build
from coterie.runs.advice import advise, surplus_clusters

GRACE_S = 5.0
_AWAY_S = 3.0  # beyond the grace, so that the others notice

Tell = Callable[[Mapping[str, Any]], None]


def run_parties(
    ready: LocalDeployment, kills: Sequence[Kill], tell: Tell, say: Callable[[str], None] = lambda text: None
) -> None:
    """Raises RunError if a party fails."""
    metrics, told, size = ready.folder.run / METRICS, 0, 0

    def tell_new() -> None:
        nonlocal told, size
        if (now := metrics.stat().st_size if metrics.exists() else 0) != size:
            new, size = read_lines(metrics)[told:], now
            told += len(new)
            for line in new:
                tell(line)

    def back(kill: Kill) -> None:
        later = f"{away_s:.0f} s later" if kill.mid else "at once"
        say(f"--kill {kill}: {kill.party} was killed, and was started again {later}")

    folders, away_s = {name: home.path for name, home in ready.homes.items()}, GRACE_S + _AWAY_S
    with Supervision(ready.hub, folders, lives(ready), kills, absence_s=away_s, back=back) as processes:
        processes.start()
        processes.watch(tell_new)
    tell_new()
    for kill in processes.kills:
        advise(f"--kill {kill} did not happen: {kill.party} had nothing to do then")


def lives(ready: LocalDeployment) -> dict[str, Life]:
    return {name: _hub if name == ready.hub else as_party for name in ready.homes}


def _hub(home: Path, kill: Kill | None) -> None:
    as_hub(home.parent, kill)


def rehearse(
    path: Path,
    config: RunConfig,
    kills: Sequence[str] = (),
    tell: Tell = lambda line: None,
    *,
    scores: Sequence[str] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> FinishedRun:
    """kills: see ``kills.parse``.  scores: that each party reports; None for all.  say: is told of kills. Raises
    UserError for what cannot be rehearsed, and RunError if a party fails.
    """
    config = deployable(config, rehearsal=True)
    check_engine()
    warm()
    with ExitStack() as held:
        experiment = build(config)
        held.callback(experiment.close)
        advise(surplus_clusters(experiment.config))
        names = list(experiment.common.roster.by_name)
        own = dict(zip(experiment.names, experiment.split.names, strict=False))  # only one's own data have names
        wanted = [parse(text, names, experiment.config.rounds, own) for text in kills]
        ready = prepared(path, experiment, scores_of(config) if scores is None else scores, GRACE_S)
        held.enter_context(ready.serving())
        run_parties(ready, wanted, tell, say)
        return whole_result(ready, experiment)
