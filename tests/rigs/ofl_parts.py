"""Small OFL federations for tests: clients that upload whole models, links on which leaders die, and what counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from federation import Rig, Steady, rig

from coterie.systems.ofl import SYSTEM
from coterie.systems.ofl.messages import HUB, Led, Upload, named

WHOLE = {"mechanism": "standard", "noise": 1e-6, "clip": 100.0, "full_samples": 10, "detection": "none"}
"""Settings under which every client uploads the change of its whole model, as good as without noise."""


@dataclass
class Mortal(Steady):
    """dies: (party, round) pairs. Such a party gets what the hub sends, and nothing else, in that round."""

    dies: set[tuple[str, int]] = field(default_factory=set)
    parties: int = 0

    def fate(self, party: str, round: int, request: int) -> str:
        if (party, round) in self.dies and request % self.parties:
            return "dropped"
        return super().fate(party, round, request)


def ofl(targets: np.ndarray, *, links: Mortal | None = None, **settings: Any) -> Rig:
    """A federation with two clusters, if not said otherwise."""
    links = links or Mortal()
    emulated = settings.pop("emulated", True)
    mode = settings.pop("mode", "paper")

    def count(transport: Any) -> None:
        links.parties = len(transport.parties)

    return rig(SYSTEM, targets, links=links, mode=mode, emulated=emulated, wire=count, **{"clusters": 2, **settings})


def counted(made: Rig) -> Counter[tuple[str, int]]:
    """How often each upload, by its member and round, is in a leader model that the hub took."""
    found: Counter[tuple[str, int]] = Counter()
    for _, led in made.view(HUB).messages(Led):
        found.update(zip(named(led.members, len(led.rounds), once=False), led.rounds.tolist(), strict=True))
    return found


def uploads(made: Rig) -> dict[tuple[str, int], Upload]:
    """All uploads that leaders have read from others, by member and round."""
    assert made.transport.transcript is not None
    views = made.transport.transcript.of_role("leader")
    return {(seen.src, upload.round): upload for view in views for seen, upload in view.messages(Upload)}
