"""Rounds of PAFed against the paper's algorithms with plain numbers, emulated and real, within stated bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pafed_parts as parts
import pytest
from scipy import stats

from coterie.crypto import ckks_parameters
from coterie.crypto.ckks import keygen
from coterie.protocol.effects import Fit, Fitted
from coterie.systems.pafed import config
from coterie.systems.pafed.messages import HELPER, HUB, MODEL_TERMS, Converted, Refresh, Refreshed, Train

CASES: list[tuple[str, dict[str, Any]]] = [
    ("paper", {}),
    ("paper", {"clip": 30.0, "server_lr": 0.5, "agreeing": 0.5, "conflicting": 2.0, "server_decay": 0.0}),
    ("literal", {"iterations": 0}),
    ("hardened", {"signs": "hidden", "clip": 0.5}),
]
LONG: list[tuple[str, dict[str, Any]]] = [
    ("paper", {"project": "printed"}),
    ("paper", {"project": "none"}),
    ("paper", {"dummies": 0}),
    ("paper", {"local": "sgd"}),
    ("paper", {"max_staleness": 1}),
    ("paper", {"max_staleness": 0}),
    ("paper", {"delta": 0.0}),
    ("paper", {"delta": 1.0, "delay": "uniform:1"}),
    ("paper", {"participation": 0.6, "delay": "geometric:0.5"}),
    ("literal", {}),
    ("literal", {"delta": 0.0}),
    ("literal", {"participation": 0.6, "agreeing": 0.5, "mask_bound": 300.0}),
    ("hardened", {"dummies": 0}),
    ("hardened", {"max_staleness": 1}),
    ("hardened", {"delta": 1.0, "delay": "uniform:1"}),
    ("paper", {"signs": "hidden", "dummies": 0, "project": "printed"}),
    ("paper", {"signs": "hidden", "dummies": 12, "clip": 0.5, "conflicting": 2.0}),
]
REAL: list[tuple[str, dict[str, Any]]] = [
    ("hardened", {}),
    ("paper", {"project": "printed", "clip": 5.0}),
    ("paper", {"signs": "hidden"}),
    ("literal", {"iterations": 1}),
]


def long(cases: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    return [pytest.param(*case, marks=pytest.mark.long) for case in cases]


def table(run: Any) -> Any:
    """Who is late by how many rounds, as the experiment says."""
    return run.links.delays.of


def follow(run: Any, rounds: int, floods: int = 0) -> list[float]:
    """Each round from the model that the last one left: updates, dual variables, notes and steps as the twin has them.

    Gives the errors of those steps for which there is a stated bound. floods: how many more a model is opened with.
    """
    key, twin, errors = parts.service_key(run), parts.Twin(run, table(run)), []
    p, iterations = key.public.parameters, run.config.iterations if run.common.mode == "literal" else None
    for r in range(1, rounds + 1):
        before = twin.weights = parts.model(run)
        notes, handed = parts.taken(run, r)
        sent = {(name, update.round): update for name, update in handed}
        expected = twin.round(r)
        assert {name: notes[name] for name in expected} == expected
        assert not run.refused
        values = {who: parts.opened(run, sent[who]) for who in twin.used}
        for who, update in twin.used.items():  # trained on a model with a flooding's noise, more than 1 from its target
            assert np.abs(values[who] - update).max() < p.flooded(0) + p.added(p.levels) + parts.FLOAT32
        early = [values[who] for who in values if who[1] == r]
        stale = [values[who] for who in values if who[1] < r]
        if not values:
            assert notes["skipped"] == "no update came"
            assert np.abs(parts.model(run) - before).max() < 4 * p.added(0)
        elif parts.clear(early, stale, iterations=iterations):
            rates = run.config.rates(r).scaled(float(np.mean([sent[who].length for who in values])))
            error = np.abs(
                parts.model(run) - before - parts.step(early, stale, rates, run.config, run.common.mode)
            ).max()
            assert error <= parts.stated_bound(key, early, stale, rates) + floods * p.flooded(0)
            errors.append(error)
        for name in run.common.clients:
            dual = run.party(name).state.dual
            assert (
                np.abs((0 if dual is None else dual) - twin.duals[name]).max()
                <= r * 0.01 * p.flooded(0) + parts.FLOAT32
            )
    return errors


@pytest.mark.parametrize(("mode", "settings"), [*CASES, *long(LONG)], ids=str)
def test_a_round_is_the_papers(mode: str, settings: dict[str, Any]) -> None:
    errors = follow(parts.paf(mode=mode, seed=1, **settings), 8)
    assert len(errors) >= 4
    noise = 10 if settings.get("signs") == "hidden" else 1  # of masked sums: more of it makes decoys look alike
    assert np.median(errors) < noise * 2e-5  # far below the bound, which is for the worst masks


@pytest.mark.parametrize(("mode", "settings"), [REAL[0], *long(REAL[1:])], ids=str)
def test_a_round_with_real_ckks_is_the_papers(mode: str, settings: dict[str, Any]) -> None:
    """Keys, masks and shuffles are the system's: they move nothing."""
    errors = follow(parts.paf(parts.TARGETS[::2], mode=mode, emulated=False, seed=1, delay="uniform:1", **settings), 3)
    assert len(errors) >= 2
    assert 0 < np.median(errors) < (2e-4 if settings.get("signs") == "hidden" else 2e-5)


@pytest.mark.long
def test_secure_keys_give_the_same_within_their_own_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The set that runs use, N = 8192: real and emulated, each against its plain steps, and against each other."""
    with monkeypatch.context() as patch:
        patch.setitem(config.PARAMETERS, "paper", "ckks-8192-deep")
        patch.setattr(config, "named", ckks_parameters.named)
        patch.setattr("coterie.systems.pafed.ckks_keygen", keygen)
        runs = [
            parts.paf(parts.TARGETS[::2], emulated=emulated, seed=1, delay="uniform:1") for emulated in (False, True)
        ]
    for run in runs:
        assert parts.service_key(run).size == "ckks-8192-deep"
        assert 0 < max(follow(run, 2)) < 1e-4
    assert (
        0 < np.abs(parts.model(runs[0]) - parts.model(runs[1])).max() < 1e-3
    )  # flooding moves what clients start from


@pytest.mark.long
def test_left_alone_for_many_rounds_the_twin_and_the_encrypted_model_stay_together() -> None:
    """Nothing adds up: no noise in the model, no drift of dual variables, no terms that would end a run one day."""
    run = parts.paf(seed=4, server_decay=0.2)
    twin = parts.Twin(run, table(run))
    for r in range(1, 16):
        notes = run.round(r)
        expected = twin.round(r)
        assert {name: notes[name] for name in expected} == expected
        held = run.hub.keys.public("service").from_bytes(run.hub.state.model)
        assert (held.terms, held.tally.form.level) == (MODEL_TERMS, 0)
    assert np.abs(parts.model(run) - twin.weights).max() < 1e-2
    for name in run.common.clients:
        assert np.abs(run.party(name).state.dual - twin.duals[name]).max() < 1e-3
    assert np.abs(twin.weights - parts.TARGETS.mean(axis=0)).max() < 1.5  # it does go somewhere


def test_a_client_asked_again_while_late_goes_on_from_its_last_training() -> None:
    run = parts.paf(seed=1, delay="uniform:3")
    twin, again = parts.Twin(run, table(run)), 0
    for r in range(1, 9):
        owed = {name for *_, name, _, _ in twin.waiting}
        twin.weights = parts.model(run)
        run.round(r)
        twin.round(r)
        again += len(owed & set(run.common.clients))
        for name in run.common.clients:
            assert run.party(name).state.round == r
            assert np.abs(run.party(name).state.dual - twin.duals[name]).max() < 1e-4
    assert again > 10


class Resting(parts.Pulled):
    """Some find nothing to change."""

    resting: frozenset[str] = frozenset()

    def fit(self, party: str, effect: Fit) -> Fitted:
        return Fitted(effect.weights, 1, 1, 0.0) if party in self.resting else super().fit(party, effect)


def test_a_zero_update_counts_among_those_in_time_and_moves_nothing() -> None:
    run = parts.paf(effects=Resting, seed=1, delta=0.0, local="sgd")
    run.transport.effects.resting = frozenset({"client/0", "client/5"})
    before = parts.model(run)
    _, handed = parts.taken(run, 1)
    rows = {name: parts.opened(run, update) for name, update in handed}
    assert [name for name, row in rows.items() if np.abs(row).max() < 1e-6] == ["client/0", "client/5"]
    others = sum(row for row in rows.values() if np.linalg.norm(row) > 0.5)
    assert np.abs(parts.model(run) - before - 0.8 * others / 8).max() < 1e-5


def test_where_all_in_time_say_nothing_late_updates_are_left_out_and_not_divided_by_noise() -> None:
    run = parts.paf(effects=Resting, seed=1, local="sgd", delay="uniform:1")
    run.round(1)
    late = set(table(run)(1))
    run.transport.effects.resting = frozenset(run.common.clients) - late
    run.transport.effects.resting |= frozenset(run.common.clients) - set(table(run)(2))
    before = parts.model(run)
    notes, handed = parts.taken(run, 2)
    assert notes["staleness"] == [4, 4]
    assert {np.linalg.norm(parts.opened(run, u)).round(3) for _, u in handed} == {0.0, 1.0}
    assert np.abs(parts.model(run) - before).max() < 1e-5


# -- algorithm 5 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("emulated", parts.REALLY)
def test_every_client_opens_the_helpers_model_with_one_and_the_same_flooding(emulated: bool) -> None:
    """Within the bound; and no number of clients can average the noise away that hides the error of sk_s."""
    run = parts.paf(seed=2, emulated=emulated, delta=0.0)
    run.round(1)
    before = parts.model(run)
    run.round(2)
    p = parts.service_key(run).public.parameters
    openings = []
    for name in run.common.clients:
        ((_, train),) = run.view(name).messages(Train, 2)
        own = run.party(name).keys.own("user")
        assert train.weights is None
        openings.append(own.decrypt(own.public.from_bytes(train.cipher)))
    errors = np.stack(openings) - before
    assert np.abs(errors).max() <= p.flooded(0) + 4 * p.added(0)
    assert np.abs(errors - errors.mean(axis=0)).max() <= 4 * p.added(0)
    assert errors.mean(axis=0).std() > 0.3 * p.flood_deviation(0) > 30 * p.added(0) / 32


@pytest.mark.parametrize("emulated", parts.REALLY)
def test_the_aggregators_own_copy_comes_back_unflooded_and_fresh(emulated: bool) -> None:
    """Nobody finds anything to change, so that what the model moves by is the transformation's error alone."""
    run = parts.paf(seed=2, emulated=emulated, delta=0.0, effects=Resting, local="sgd")
    run.round(1)
    before, cipher = parts.model(run), run.hub.state.model
    run.transport.effects.resting = frozenset(run.common.clients)
    assert "skipped" not in run.round(2)
    p = parts.service_key(run).public.parameters
    assert run.hub.state.model != cipher
    assert np.abs(parts.model(run) - before).max() <= 8 * p.added(0)
    ((_, refreshed),) = run.view(HUB).messages(Refreshed, 2)
    assert run.hub.keys.public("service").from_bytes(refreshed.cipher).blinded == 1


# -- mode literal ------------------------------------------------------------------------------------------------------


def test_a_printed_model_ages_and_its_mask_comes_off() -> None:
    """Nothing comes back to the aggregator; every client's copy is made, whoever is asked."""
    run = parts.paf(seed=2, mode="literal", iterations=0, participation=0.5)
    for r in range(1, 5):
        before = parts.model(run)
        run.round(r)
        assert [m.cipher for _, m in run.view(HUB).messages(Refreshed, r)] == [b""] * (r > 1)
        if r > 1:
            assert [m.client for _, m in run.view(HUB).messages(Converted, r)] == list(run.common.clients)
        for name in run.common.clients:
            for _, train in run.view(name).messages(Train, r) if r > 1 else ():
                own = run.party(name).keys.own("user")
                assert np.abs(own.decrypt(own.public.from_bytes(train.cipher)) - before).max() < 1e-4
    assert np.abs(parts.model(run)).max() > 0.1


def test_a_printed_mask_is_drawn_as_wide_as_it_says_and_anew_in_every_round() -> None:
    targets = np.random.default_rng(0).normal(0, 3, (3, 900))
    for bound in (10.0, 300.0):
        run = parts.paf(targets, seed=1, mode="literal", iterations=0, delta=0.0, mask_bound=bound)
        key, masks = parts.service_key(run), []
        for r in range(1, 5):
            before = parts.model(run)
            run.round(r)
            for _, refresh in run.view(HELPER).messages(Refresh, r):
                masks.append(key.decrypt(key.public.from_bytes(refresh.cipher)) - before)
        numbers = np.concatenate(masks)
        assert stats.kstest(numbers, "uniform", (-bound, 2 * bound)).pvalue > 1e-7
        assert abs(np.corrcoef(masks[0], masks[1])[0, 1]) < 6 / 30
