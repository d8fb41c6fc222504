"""FedBuff and CA2FL against a slow twin that keeps everything, and what is known of them beforehand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from federation import Rig, Steady, misbehaving, rig
from msgspec.structs import replace

from coterie.baselines import ca2fl, fedbuff
from coterie.baselines.late import SYSTEMS as AVERAGING
from coterie.devices.links import Delays
from coterie.protocol.randomness import rng
from coterie.protocol.system import System
from coterie.protocols import late as protocol
from coterie.protocols.averaging import Train
from coterie.protocols.local_training import sample_clients

N, ROUNDS, LR, SHARE = 8, 14, 0.3, 0.75
TARGETS = np.random.default_rng(0).normal(size=(N, 10))
NAMES = tuple(f"client/{i}" for i in range(N))


def made(system: System, **settings: Any) -> Rig:
    given = {"lr": LR, "participation": SHARE, "delta": 0.5, "server_decay": 0.0, **settings}
    return rig(system, TARGETS, **given)


@dataclass
class Came:
    """A change as it arrives. tau: the server's steps since its client was sent the model."""

    client: int
    change: np.ndarray
    begun: int
    tau: int = 0


Step = Callable[[list[Came]], np.ndarray]


def drawn(r: int) -> list[int]:
    """By client, its place among those of its age that arrive in round r."""
    return rng(0, "hub", "buffer", r).permutation(N).tolist()


def twin(w: np.ndarray, size: int, step: Step, rate: float) -> list[np.ndarray]:
    """The server's model after each round; one step of each client from w towards its target."""
    delays = Delays(lambda r: sample_clients(NAMES, SHARE, 0, r), 0.5, "uniform:1-5", 0)
    under_way: list[tuple[int, int, int, Came]] = []
    buffer: list[Came] = []
    steps, models = 0, []
    for r in range(1, ROUNDS + 1):
        for name in sample_clients(NAMES, SHARE, 0, r):
            i = NAMES.index(name)
            under_way.append((r + delays.of(r).get(name, 0), r, i, Came(i, -LR * (w - TARGETS[i]), steps)))
        places = drawn(r)
        for due, _, _, came in sorted(under_way, key=lambda one: (one[1], places[one[2]])):
            if due == r:
                buffer.append(came)
                if len(buffer) == size:
                    for one in buffer:
                        one.tau = steps - one.begun
                    w, buffer, steps = w + rate * step(buffer), [], steps + 1
        models.append(w)
    return models


def weighted(buffer: list[Came]) -> np.ndarray:
    return sum(came.change / np.sqrt(1 + came.tau) for came in buffer) / len(buffer)


class Cached:
    """h_i of every client; equation by equation."""

    def __init__(self) -> None:
        self.h = np.zeros((N, 10))

    def __call__(self, buffer: list[Came]) -> np.ndarray:
        v = self.h.mean(axis=0) + sum(came.change - self.h[came.client] for came in buffer) / len(buffer)
        for came in buffer:
            self.h[came.client] = came.change
        return v


@pytest.mark.parametrize("size", [1, 4, 7])
@pytest.mark.parametrize(("system", "step"), [(fedbuff.SYSTEM, lambda: weighted), (ca2fl.SYSTEM, Cached)])
def test_each_is_its_twin(system: System, step: Callable[[], Step], size: int) -> None:
    federation = made(system, buffer=size, server_lr=0.6)
    expected = twin(federation.models()[0].astype(float), size, step(), 0.6)
    late = steps = 0
    for r, model in enumerate(expected, 1):
        notes = federation.round(r)
        late, steps = late + sum(notes["staleness"][1:]), steps + notes["steps"]
        np.testing.assert_allclose(federation.models(), np.tile(model, (N, 1)), atol=1e-5)
    assert late > 15
    assert steps == federation.hub.state.version > 5
    assert 0 <= notes["waiting"] < size


def test_a_buffer_of_all_answers_without_late_ones_is_averaging_of_changes() -> None:
    """Then nobody is stale, and CA2FL's h is the mean of the last round's changes, which its step takes off again."""
    options: dict[str, Any] = {"delta": 0.0, "participation": 1.0, "server_lr": 0.8}
    plain = made(AVERAGING["fedavg_late"], **options)
    others = [made(system, buffer=N, **options) for system in (fedbuff.SYSTEM, ca2fl.SYSTEM)]
    for r in range(1, 5):
        plain.round(r)
        for other in others:
            other.round(r)
            np.testing.assert_allclose(other.models(), plain.models(), atol=1e-6)


def test_without_discount_staleness_does_not_matter() -> None:
    first, second = (made(fedbuff.SYSTEM, buffer=4, exponent=exponent) for exponent in (0.0, 0.5))
    for r in range(1, 9):
        first.round(r)
        second.round(r)
    assert np.abs(first.models() - second.models()).max() > 1e-3
    sums = twin(
        made(fedbuff.SYSTEM).models()[0].astype(float), 4, lambda b: np.mean([c.change for c in b], axis=0), 0.8
    )
    np.testing.assert_allclose(first.models()[0], sums[7], atol=1e-5)


def test_the_cache_finds_the_optimum_that_few_clients_a_step_pull_away_from() -> None:
    """Once all have been heard, CA2FL's step is the mean of what all would send, also if only one of them sends."""
    optimum = TARGETS.mean(axis=0)

    def distance(system: System) -> float:
        federation = made(system, buffer=1, participation=0.125, delta=0.0, server_lr=0.5)
        federation.rounds(150)
        return float(np.abs(federation.models()[0] - optimum).max())

    assert distance(ca2fl.SYSTEM) < 0.05 < distance(fedbuff.SYSTEM)


def test_what_waits_in_the_buffer_is_part_of_the_servers_state() -> None:
    """Round 1 brings six changes, of which four make a step; the other two wait for the next ones."""
    federation = made(fedbuff.SYSTEM, buffer=4, delta=0.0)
    notes = federation.round(1)
    assert (notes["participants"], notes["steps"], notes["waiting"]) == (6, 1, 2)
    waiting = federation.hub.state.waiting
    asked = sorted(sample_clients(NAMES, SHARE, 0, 1), key=lambda name: drawn(1)[NAMES.index(name)])
    assert [change.name for change in waiting] == asked[4:]
    assert federation.round(2)["steps"] == 2


def test_no_client_is_staler_than_others_for_its_number() -> None:
    """With nobody late and two steps a round, each client is in the first one in half of the rounds."""
    federation = made(fedbuff.SYSTEM, buffer=N // 2, delta=0.0, participation=1.0)
    server, rounds = federation.hub, 60
    fresh = dict.fromkeys(NAMES, 0)

    def moved(w: np.ndarray, changes: Any, step: float) -> np.ndarray:
        for change in changes:
            fresh[change.name] += server.staleness(change) == 0
        return w

    server.moved = moved
    federation.rounds(rounds)
    assert sum(fresh.values()) == rounds * N // 2
    spread = 4 * np.sqrt(rounds / 4)  # standard deviations of a fair coin
    assert max(abs(count - rounds / 2) for count in fresh.values()) < spread


def test_the_order_within_a_round_does_not_follow_the_order_of_arrival() -> None:
    found = []
    for names in (NAMES, NAMES[::-1]):
        server = made(fedbuff.SYSTEM, buffer=N + 1).hub
        server.state.begun = {2: 0, 3: 0}
        filling = protocol.Filling(server, 3, 1.0)
        for name in names:
            filling.take(np.zeros(10, np.float32), NAMES.index(name) % 2, 1, name)
        filling.result()
        found.append([change.name for change in server.state.waiting])
    assert found[0] == found[1] != list(NAMES)
    assert {NAMES.index(name) % 2 for name in found[0][:4]} == {1}, "late ones first"
    assert found[0][:4] != sorted(found[0][:4]) or found[0][4:] != sorted(found[0][4:])


@pytest.mark.parametrize("system", [fedbuff.SYSTEM, ca2fl.SYSTEM])
def test_a_comparison_is_told_of_the_steps(system: System) -> None:
    """With K by default a round makes more than one step."""
    federation = made(system, delta=0.0, server_lr=0.8)
    assert "steps a round" in federation.config.beyond_budget()["buffer"]
    assert sum(federation.round(r)["steps"] for r in range(1, 5)) == 8


@pytest.mark.parametrize("late", [0, 2])
def test_a_huge_change_leaves_the_cache_when_its_client_is_not_heard_any_more(late: int) -> None:
    """All want the same. The first change of one is huge; then the client is gone, and later steps do not have it."""
    liar, left = NAMES[0], {(NAMES[0], r): "vanished" for r in range(2, 40)}
    options: dict[str, Any] = {"delta": 0.0, "participation": 1.0, "buffer": N - 1, "server_lr": 1.0}
    run = rig(
        ca2fl.SYSTEM,
        np.zeros((N, 10)),
        wrap=lambda federation: misbehaving(
            federation.alter(liar), Train, lambda party, msg, honest: replace(honest, weights=honest.weights + 2.0**30)
        ),
        links=Steady(away=left),
        lr=LR,
        server_decay=0.0,
        max_staleness=late,
        **options,
    )
    run.round(1)
    assert run.hub.state.heard[liar] == 1
    assert np.abs(run.hub.state.mean).min() > 2.0**30 / N / 2
    for r in range(2, late + 3):
        run.round(r)
    assert liar in run.hub.state.cached
    for r in range(late + 3, late + 6):
        run.round(r)
    assert set(run.hub.state.cached) == set(run.hub.state.heard) == {*NAMES[1:]}
    cached = np.stack([*run.hub.state.cached.values()]).astype(float)
    np.testing.assert_allclose(run.hub.state.mean, cached.sum(axis=0) / N, rtol=1e-9)
