"""The parties of a deployment on one machine, each a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.deploy.hub_process import as_hub
from coterie.deploy.kills import Kill
from coterie.deploy.party_process import as_party
from coterie.operate.local_deployment import LocalDeployment
from coterie.operate.supervision import Life, Supervision
from coterie.record.folder import METRICS, read_lines
from coterie.runs.advice import advise

Tell = Callable[[Mapping[str, Any]], None]


def run_parties(ready: LocalDeployment, kills: Sequence[Kill], tell: Tell, away_s: float) -> None:
    """Raises RunError if a party fails. tell: is given each finished round's line.  away_s: how long a party stays away
    that was killed in mid-work.
    """
    metrics, told, size = ready.folder.run / METRICS, 0, 0

    def tell_new() -> None:
        nonlocal told, size
        if (now := metrics.stat().st_size if metrics.exists() else 0) != size:
            new, size = read_lines(metrics)[told:], now
            told += len(new)
            for line in new:
                tell(line)

    folders = {name: home.path for name, home in ready.homes.items()}
    with Supervision(ready.hub, folders, lives(ready), kills, absence_s=away_s) as processes:
        processes.start()
        processes.watch(tell_new)
    tell_new()
    for kill in processes.kills:
        advise(f"--kill {kill} did not happen: {kill.party} had nothing to do then")


def lives(ready: LocalDeployment) -> dict[str, Life]:
    return {name: _hub if name == ready.hub else as_party for name in ready.homes}


def _hub(home: Path, kill: Kill | None) -> None:
    as_hub(home.parent, kill)
