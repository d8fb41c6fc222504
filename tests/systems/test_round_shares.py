"""One budget is one: no system trains more clients in a round, or sends models to more, than its stated share.

Unless it says so: ``beyond_budget`` is what a comparison lists beside its table.
"""

from __future__ import annotations

from typing import Any

import pytest
from every_system import VARIANTS
from federation import Pulled, planted, rig

from coterie.protocol.effects import Fit, Fitted
from coterie.protocols.local_training import LocalTraining, sample_size
from coterie.runs import SYSTEMS
from coterie.runs.budget import plan

SIZE, ROUNDS = 600, 3
TARGETS = planted([0] * 6 + [1] * 4 + [2, 3], SIZE)
MODEL_BYTES = 2 * SIZE
"""Half of the least that a model takes: what is smaller is no model, sealed or not."""
TRAINS = {"participation", "time_budget"}
"""What says that more clients train."""
SENDS = {"participation", "panel", "distribute"}
"""What says that more clients get models."""


class Noted(Pulled):
    """Effects that note who trains."""

    def __init__(self, targets: Any) -> None:
        super().__init__(targets)
        self.trained: set[str] = set()

    def fit(self, party: str, effect: Fit) -> Fitted:
        self.trained.add(party)
        return super().fit(party, effect)


def counted(name: str, mode: str, share: float) -> tuple[LocalTraining, int, int]:
    """The settings, and of all rounds the most clients that trained in one, and that got a model in one."""
    others = {k: v for k, v in VARIANTS.get((name, mode), [{}])[0].items() if k != "participation"}
    run = rig(SYSTEMS[name], TARGETS, mode=mode, effects=Noted, delta=0.0, participation=share, **others)
    clients, trained, got = set(run.common.clients), 0, 0
    for r in range(1, ROUNDS + 1):
        run.transport.effects.trained.clear()
        views = run.transport.transcript.views
        before = {party: len(view.seen) for party, view in views.items()}
        run.round(r)
        new = {party: views[party].seen[before.get(party, 0) :] for party in clients & views.keys()}
        got = max(got, sum(any(seen.size >= MODEL_BYTES for seen in all_seen) for all_seen in new.values()))
        trained = max(trained, len(run.transport.effects.trained & clients))
    return run.config, trained, got


@pytest.mark.parametrize("share", [0.25, pytest.param(0.5, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param(name, mode, marks=() if mode == one.modes[0] else pytest.mark.long)
        for name, one in SYSTEMS.items()
        for mode in one.modes
    ],
)
def test_nobody_exceeds_the_stated_share_in_silence(name: str, mode: str, share: float) -> None:
    config, trained, got = counted(name, mode, share)
    beyond, most = config.beyond_budget().keys(), sample_size(len(TARGETS), share)
    assert trained <= most or beyond & TRAINS, f"{trained} train where a share of {share} is {most}"
    assert got <= most or beyond & SENDS, f"{got} get models where a share of {share} is {most}"
    assert trained >= most, "the share is used, so that the race is one"


def test_fedepc_trains_no_more_than_its_share_and_lists_what_else_it_sends() -> None:
    _, trained, got = counted("fedepc", "paper", 0.5)
    assert (trained, got) == (6, 12)
    planned = plan(["fedepc", "fedavg"], {"data": "digits", "clients": 12, "rounds": 2}, {})
    assert {found.setting for found in planned.differences if found.shared is None} == {"extractor", "panel"}
    timed = plan(["fedavg", "fedepc"], {"data": "digits", "clients": 12, "rounds": 2}, {"fedepc.time_budget": "9"})
    assert "time_budget" in {found.setting for found in timed.differences if found.shared is None}
