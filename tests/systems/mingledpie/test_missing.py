"""Who is away, late, new or behind: rounds complete with who is there, and nobody trains models that others left."""

from __future__ import annotations

from typing import Any

import mingledpie_parts as parts
import numpy as np
import pytest
from federation import Pulled, Rig, Steady, misbehaving, on_the_wire

from coterie.protocol.messages import Done, Message
from coterie.protocol.party import Cost
from coterie.systems.mingledpie.messages import Mingled, Parameters, Received, Train, Update

N = len(parts.GROUPS)
FEW = slice(0, 12, 2)
SIX = parts.EVERYBODY[:6]


def six(**options: Any) -> Rig:
    """Two clients a group, in exact mode where nothing else is said: every round gives new models."""
    given = {"mode": "hardened", "hardening": "uploads", "effects": lambda t: Pulled(t, noise=0.02), **options}
    return parts.pies(parts.TARGETS[FEW], starts=parts.near(), **given)


def alike(run: Rig, *but: str) -> bool:
    """Whether all clients (but some) hold the same models."""
    return len({parts.held(run, name).tobytes() for name in run.common.clients if name not in but}) == 1


# -- lost messages -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["paper", pytest.param("hardened", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("kind", "there", "next_round"),
    [
        (Train, False, True),  # not asked
        (Update, False, True),  # its work is lost
        (Mingled, True, True),  # it gets the sums in the next round, before it trains
        (Received, True, True),  # it has them, and says so again
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value),
)
def test_a_lost_message_leaves_one_out_of_one_round_at_most(
    kind: type[Message], there: bool, next_round: bool, mode: str
) -> None:
    run = six(mode=mode, max_condition=1e6)
    run.round(1)
    end = {"dst": "client/1"} if kind in (Train, Mingled) else {"src": "client/1"}
    on_the_wire(run.transport, kind, lambda m: None, rounds=[2], **end)
    note = run.round(2)
    assert run.transport.meter.lost
    assert note["participants"] == (6 if there else 5)
    assert alike(run, *(["client/1"] if kind is Mingled else []))
    run.transport.intercept = None
    note = run.round(3)
    assert note["behind"] == []
    assert (note["participants"] == 6) == next_round
    assert dict(run.refused) == {}
    assert alike(run)


@pytest.mark.parametrize("kind", [Parameters, Done])
def test_lost_parameters_are_sent_again(kind: type[Message]) -> None:
    """Without them it isn't asked; a lost answer means that it gets them twice."""
    run = six(mode="paper", p_changes="2:0.25", max_condition=1e6)
    run.round(1)
    on_the_wire(run.transport, kind, lambda m: None, rounds=[2], **{"dst" if kind is Parameters else "src": "client/1"})
    note = run.round(2)
    assert (note["participants"], note["behind"]) == (5, ["client/1"])
    run.transport.intercept = None
    note = run.round(3)
    assert (note["participants"], note["behind"]) == (6, [])
    assert dict(run.refused) == {}
    assert run.party("client/1").secret.drawn == 2


# -- who is away -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "hardening"), parts.EACH_FORM)
def test_who_was_away_catches_up_with_the_last_sums_before_it_trains(mode: str, hardening: str) -> None:
    """It misses two rounds; in the third it is sent what everybody has, and trains from there."""
    away = {("client/0", 2): "offline", ("client/0", 3): "dropped"}
    run = six(mode=mode, hardening=hardening, links=Steady(away=away), max_condition=1e6, seed=2)
    run.round(1)
    old = parts.held(run)
    for r in (2, 3):
        note = run.round(r)
        assert note["participants"] == 5
        assert note["membership"][0] == []
        assert parts.held(run, "client/0").tobytes() == old.tobytes()
    others = parts.held(run, "client/3")
    trained_from: list[np.ndarray] = []
    misbehaving(run.party("client/0"), Train, lambda p, r, u: trained_from.append(np.array(p.models())) or u)
    note = run.round(4)
    assert (note["participants"], note["behind"]) == (6, [])
    assert trained_from[0].tobytes() == others.tobytes()
    assert alike(run)
    sums = [m.round for seen, m in run.view("client/0").messages(Mingled) if seen.round == 4]
    assert sums == [3, 4]


def test_who_is_not_asked_gets_the_sums_all_the_same() -> None:
    """With a sample of the clients a round, everybody follows; nobody has to catch up."""
    run = parts.pies(participation=0.5, max_condition=1e6, effects=lambda t: Pulled(t, noise=0.02))
    asked = []
    for r in range(1, 7):
        note = run.round(r)
        assert (note["asked"], note["participants"], note["behind"]) == (6, 6, [])
        assert sum(note["rebuilt"].values()) == N
        assert alike(run)
        asked.append(frozenset(seen.src for seen, _ in run.view("server").messages(Update, r)))
    assert len(set(asked)) > 1
    assert frozenset().union(*asked) == set(parts.EVERYBODY)


class SlowToOpen(Steady):
    """client/0 trains in time and needs long to open what it gets."""

    def work_s(self, party: str, cost: Cost) -> float:
        return 12.0 if party == "client/0" and not cost.samples and cost.crypto_s else 1.0


def test_an_answer_that_comes_too_late_is_asked_for_again() -> None:
    """It has the sums and the server doesn't know: it is sent them once more and says at once that it has them."""
    run = six(links=SlowToOpen(), deadline_s=10.0)
    for r in range(1, 5):
        note = run.round(r)
        assert (note["participants"], note["behind"]) == (6, [])
        assert sum(note["rebuilt"].values()) == 5
        assert "client/0" in run.transport.meter.late
        assert run.party("client/0").state.round == r - 1


@pytest.mark.parametrize(("there", "least"), [(0, 1), (3, 4)])
def test_too_few_participants_skip_the_round(there: int, least: int) -> None:
    links = Steady(away={(name, 1): "offline" for name in SIX[there:]})
    run = six(links=links, min_participants=least)
    note = run.round(1)
    assert note["skipped"] == f"{there} updates, at least {least} are needed"
    assert not note["clustered"]
    assert not list(run.view("client/0").messages(Mingled))
    assert parts.held(run).tobytes() == parts.near().tobytes()
    note = run.round(2)
    assert (note["participants"], note["rebuilt"]["by"]) == (6, 6)
    ((_, train),) = run.view("client/0").messages(Train, 2)
    assert train.basis == 0


# -- who joins ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "hardening"), parts.EACH_FORM)
def test_newcomers_join_every_few_rounds_with_everybodys_models(mode: str, hardening: str) -> None:
    """6 founders, three more every second round: 6, 6, 9, 9, 12, 12."""
    order = [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]
    run = parts.pies(
        parts.TARGETS[order],
        starts=parts.near(),
        mode=mode,
        hardening=hardening,
        founders=6,
        newcomers=3,
        join_every=2,
        max_condition=1e6,
        seed=2,
        effects=lambda t: Pulled(t, noise=0.02),
    )
    assert [run.party(name).state.models is None for name in parts.EVERYBODY] == [False] * 6 + [True] * 6
    for r, here in enumerate([6, 6, 9, 9, 12, 12], 1):
        note = run.round(r)
        assert (note["asked"], note["participants"], note["behind"]) == (here, here, [])
        assert alike(run, *parts.EVERYBODY[here:])
        assert dict(run.refused) == {}
        assert len(note["membership"]) == N
        assert note["membership"][here:] == [[]] * (N - here)
    assert run.models().shape == (N, 20)
    assert parts.chosen(run) == [parts.GROUPS[i] for i in order]


def test_who_has_not_joined_yet_sees_nothing_but_its_keys() -> None:
    run = six(founders=4, newcomers=1, join_every=2)
    run.rounds(2)
    assert run.view("client/5").kinds() == {"Granted"}
    assert (run.models()[5] == parts.near()[0]).all()  # for whoever evaluates
    run.rounds(3)


# -- stale models ------------------------------------------------------------------------------------------------------


def test_what_the_last_sums_left_as_it_was_is_old_for_who_was_away_until_the_next_ones() -> None:
    """A limit. Round 2 moves cluster 2 while client/0 is away; in round 3 nobody is in it, so the sums that client/0
    catches up with say nothing of it. If its data are cluster 2's by then, it trains the model of round 1, once.
    """
    away = {("client/0", 2): "offline", ("client/0", 3): "offline"}
    away |= {(name, 3): "offline" for name in ("client/4", "client/5")}
    run = six(links=Steady(away=away), lr=0.5)
    run.round(1)
    old = parts.held(run)[2]
    for r in (2, 3):
        run.round(r)
    new = parts.held(run, "client/1")[2]
    assert run.party("client/1").state.kept == (2,)
    run.transport.effects.targets["client/0"] = parts.TARGETS[8]
    trained_from: list[np.ndarray] = []
    misbehaving(run.party("client/0"), Train, lambda p, r, u: trained_from.append(np.array(p.models())[2]) or u)
    note = run.round(4)
    assert note["participants"] == 6
    assert parts.chosen(run)[0] == 2
    assert trained_from[0].tobytes() == old.tobytes() != new.tobytes()
    assert alike(run)
    run.round(5)
    assert alike(run)


def half_an_indicator(run: Rig, *rounds: int) -> None:
    """What client/1 sends in these rounds, so that nobody can rebuild anything."""

    def make(party: Any, request: Train, update: Update) -> Update:
        return parts.with_indicator(party, update, (0.5, 0, 0)) if request.round in rounds else update

    misbehaving(run.party("client/1"), Train, make)


# -- rounds without models ---------------------------------------------------------------------------------------------


CIRCULAR = [
    [[g, (g + 1) % 3] for g in parts.GROUPS],
    [[g, (g + 1) % 3] if i % 4 == 0 else [0, 1, 2] for i, g in enumerate(parts.GROUPS)],
]
"""Everybody also joins the next cluster: H = 4 (1 + P), with condition number 2 / |1 + w| = 2, w a cube root of 1. And
with three of four in all clusters: H = 3 J + 1 + P, 11 / |1 + w| = 11.
"""


def test_an_ill_conditioned_round_is_solved_with_a_ridge_and_the_sets_stay_as_they_are() -> None:
    """As the normal equations have it. What H says too little about stays as it was: nobody draws a second set."""
    run, models = parts.pies(max_condition=5.0, lr=0.5), parts.near().astype(np.float64)
    parts.joining(run, CIRCULAR[1], CIRCULAR[1], CIRCULAR[0])
    for r in (1, 2):
        note = run.round(r)
        assert note["rebuilt"] == {"by": N, "refused_by": 0}
        state = run.party("client/3").state
        assert state.condition == pytest.approx(11)
        sums, h = parts.mingled_sums(
            parts.trained(models, parts.TARGETS, parts.GROUPS, lr=0.5), parts.GROUPS, parts.joined_sets(note)
        )
        held_back = state.ridge * np.diag((h**2).sum(axis=0))
        scaled = h / np.sqrt((h**2).sum(axis=0))
        assert np.linalg.cond(scaled.T @ scaled + state.ridge * np.eye(3)) == pytest.approx(5.0**2)
        models = np.linalg.solve(h.T @ h + held_back, h.T @ sums + held_back @ models)
        assert np.abs(parts.held(run) - models).max() < 1e-4
    seen = run.system.observe(run.federation)
    assert (seen["why_kept"], seen["kept_by"], seen["identity_sets_drawn"]) == ([], 0, [1] * N)
    assert seen["ridge"] == [state.ridge] * N

    note = run.round(3)
    sums, h = parts.mingled_sums(
        parts.trained(models, parts.TARGETS, parts.GROUPS, lr=0.5), parts.GROUPS, parts.joined_sets(note)
    )
    assert np.abs(parts.held(run) - parts.solved(sums, h, parts.near())).max() < 1e-4
    assert run.party("client/3").state.condition == pytest.approx(2)
    assert run.party("client/3").state.ridge == 0


def test_after_refused_rounds_training_goes_on_from_the_models_that_were_kept() -> None:
    """Rounds 1 and 2 give nothing; round 3 trains theta^0 on a basis of round 2."""
    run = six(mode="paper", max_condition=1e6)
    half_an_indicator(run, 1, 2)
    assert [note["rebuilt"]["by"] for note in run.rounds(3)] == [0, 0, 6]
    ((_, train),) = run.view("client/0").messages(Train, 3)
    assert train.basis == 2
    assert parts.choices(parts.near(), parts.TARGETS[FEW]) == parts.chosen(run)
