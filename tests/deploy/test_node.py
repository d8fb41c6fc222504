"""Every party as a node, over an engine in memory: models are those of one process, bit for bit, also where everything
may die, at any point, and goes on from its last commit.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pytest
from every_system import Case, own_messages
from federation import Rig, Steady, planted, rig
from matrix import few
from nodes import Doom, Nodes, digest, nodes

from coterie.deploy.hub import EXCLUDED
from coterie.runs import registry
from tests.transport.test_processes import CASES

ROUNDS, SIZE = 2, 16
TARGETS = planted([0, 0, 1, 1], SIZE)
OF_ALL = {"fedcaprivacy", "ofl"}  # servers, keys and leaders


def made(name: str, delta: float = 0.0, late: int = 1, slow: Mapping[str, float] | None = None, **settings: Any) -> Rig:
    links = Steady(slow=dict(slow or {}))
    return rig(registry.get(name), TARGETS, delta=delta, delay=f"uniform:1-{late}", links=links, **settings)


def killed(name: str, dooms: Mapping[str, set[int]], delta: float = 0.0, **settings: Any) -> Nodes:
    """A run in which parties are killed at some of their points."""
    apart = nodes(made(name, delta, **settings), name, TARGETS, rehearsed=True)
    apart.dooms |= {party: Doom(set(points)) for party, points in dooms.items()}
    apart.run(ROUNDS)
    return apart


def quick(case: Case) -> bool:
    """All types of messages, and proofs of lengths, which go between nodes in no other quick test."""
    return own_messages(case, CASES) or "check" in case[2]


@pytest.mark.parametrize("delta", [pytest.param(0.0, marks=pytest.mark.long), 0.5])
@pytest.mark.parametrize(
    ("name", "mode", "settings"),
    [pytest.param(*case, marks=() if quick(case) else pytest.mark.long) for case in CASES],
    ids=["-".join(map(str, case[:2])) for case in CASES],
)
def test_a_rehearsal_gives_the_models_of_one_process(
    name: str, mode: str, settings: dict[str, Any], delta: float
) -> None:
    slow = {f"client/{i}": 1.0 + 0.7 * (3 * i % 4) for i in range(4)}
    together, fresh = (made(name, delta, late=2, slow=slow, mode=mode, **settings) for _ in range(2))
    notes = together.rounds(3)
    together.finish(3)
    before, models = fresh.models(), together.models()
    apart = nodes(fresh, name, TARGETS, rehearsed=True)
    apart.run(3)
    assert [one.notes for one in apart.rounds[1:4]] == notes
    assert (apart.models() != before).any() or not (models != before).any()
    assert digest(apart.models()) == digest(models)


@pytest.mark.parametrize(
    ("party", "step"),
    few([("server", 40), ("client/1", 15), ("client/1", 1), ("server", 1)], [("server", 40), ("client/1", 15)]),
)
def test_a_party_is_killed_at_every_point_of_a_run(party: str, step: int) -> None:
    """Before and after every commit, push and acknowledgement."""
    together = made("fedavg")
    together.rounds(ROUNDS)
    at = 0
    while True:
        apart = killed("fedavg", {party: {at}})
        doom = apart.dooms[party]
        assert digest(apart.models()) == digest(together.models()), (at, doom.said)
        assert not any(one.skipped for one in apart.rounds)
        if not doom.died:
            break
        at += step
    assert at > 20


@pytest.mark.parametrize("delta", [0.5, pytest.param(0.0, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("number", "name", "mode", "settings"),
    [
        pytest.param(number, *case, marks=() if case[0] in OF_ALL and case[1] == "paper" else pytest.mark.long)
        for number, case in enumerate(CASES)
    ],
    ids=["-".join(map(str, case[:2])) for case in CASES],
)
def test_any_parties_are_killed_anywhere(
    number: int, name: str, mode: str, settings: dict[str, Any], delta: float
) -> None:
    """Up to three of them, some twice, at points drawn from a seed. delta: the share of answers that are delayed.

    The hub does without a leader that is killed at work twice in one round, so that round is another one.
    """
    draws = random.Random(f"{number} {delta}")
    together = made(name, delta, mode=mode, **settings)
    together.rounds(ROUNDS)
    together.finish(ROUNDS)
    for _ in range(3):
        some = draws.sample(list(together.federation.parties), draws.choice([1, 1, 2, 3]))
        dooms = {party: {draws.randrange(60) for _ in range(draws.choice([1, 1, 2]))} for party in some}
        apart = killed(name, dooms, delta, mode=mode, **settings)
        assert not any(one.skipped for one in apart.rounds)
        without = {party: why for one in apart.rounds for party, why in one.gone.items()}
        assert all(apart.dooms[party].died == 2 and why == EXCLUDED["stopped"] for party, why in without.items())
        same = digest(apart.models()) == digest(together.models())
        assert same or without, [(p, d.said) for p, d in apart.dooms.items()]


SERVERS: dict[str, Any] = {"clusters": 2, "min_cluster": 2, "fewest": 1, "noise": 0.0}


POINTS = ("after a commit", "before a push to", "after a push to", "before it is done")


@pytest.mark.parametrize(
    ("server", "check", "points"),
    [
        ("hub", "norm", POINTS[:2]),
        ("helper", "tag", POINTS[2:]),
        *(pytest.param(*one, POINTS, marks=pytest.mark.long) for one in product(("hub", "helper"), ("norm", "tag"))),
    ],
)
def test_either_of_two_servers_is_killed_in_mid_round(server: str, check: str, points: Sequence[str]) -> None:
    """At work on the second round: before and after it has committed, answered and acknowledged what it was asked."""
    together = made("coterie", check=check, **SERVERS)
    together.rounds(ROUNDS)
    other = {"hub": "helper", "helper": "hub"}[server]
    for what in (f"{point} {other}" if point.endswith("to") else point for point in points):
        apart = nodes(made("coterie", check=check, **SERVERS), "coterie", TARGETS, rehearsed=True)
        apart.dooms[server] = Doom(when=lambda node, said: node.member.numbers.round == 2 and said.startswith(what))  # noqa: B023
        apart.run(ROUNDS)
        assert apart.dooms[server].died == 1, what
        assert not any(one.skipped for one in apart.rounds)
        assert digest(apart.models()) == digest(together.models()), what


def test_a_leader_that_is_killed_at_work_asks_for_another_attempt() -> None:
    settings: dict[str, Any] = {"clusters": 2, "recluster_every": 2}
    together = made("ofl", **settings)
    together.rounds(ROUNDS)
    for what in ("before a push", "after a push", "after it is done"):
        apart = nodes(made("ofl", **settings), "ofl", TARGETS, rehearsed=True)
        leads = [Doom(when=lambda node, said: node.lead is not None and said.startswith(what)) for _ in range(4)]  # noqa: B023
        apart.dooms |= {f"client/{i}": doom for i, doom in enumerate(leads)}
        apart.run(ROUNDS)
        assert sum(doom.died for doom in leads) >= 2
        assert digest(apart.models()) == digest(together.models()), what
        why = {reason.split(" ", 1)[1] for one in apart.rounds for reason in one.attempts}
        assert why == {"was stopped while it coordinated"}
