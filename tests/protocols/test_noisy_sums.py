"""Noise on the sums of docs/own_system.md: exact sums, enough shares, no sub-sums, and an account of them."""

from __future__ import annotations

import copy
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from federation import Rig, Steady, misbehaving, planted, rig
from own_system import page_module

from coterie.deploy.account import account_of
from coterie.dp.distributed import Distributed
from coterie.protocol.errors import PeerError, UserError
from coterie.protocols import sums as module
from coterie.protocols.sums import SumKeys
from coterie.protocols.threshold.opening import check_sum

SIZE = 24
TARGETS = planted([0, 0, 1, 1, 2], SIZE)
NOISE = {"noise": 0.02, "clip": 50.0, "missing": 1}
OBSERVERS = "server", "public", "other clients"
KEYS = pytest.mark.parametrize("keys", ["threshold", "centre"])


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return page_module(tmp_path, monkeypatch)


def watched(monkeypatch: pytest.MonkeyPatch) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Clients' numbers without noise, their shares, and opened sums in steps, as they come."""
    numbers: list[np.ndarray] = []
    shares: list[np.ndarray] = []
    opened: list[np.ndarray] = []
    on_grid, share, moved = Distributed.on_grid, Distributed.share, module.SumNoise.moved

    def gridded(self: Any, *args: Any) -> np.ndarray:
        numbers.append(on_grid(self, *args))
        return numbers[-1]

    def shared(self: Any, parties: int, secrets: Any) -> np.ndarray:
        shares.append(share(self, parties, secrets))
        return shares[-1]

    def seen(self: Any, values: Any, terms: int, r: int) -> Any:
        opened.append(np.asarray(values) * self.unit)
        return moved(self, values, terms, r)

    monkeypatch.setattr(Distributed, "on_grid", gridded)
    monkeypatch.setattr(Distributed, "share", shared)
    monkeypatch.setattr(module.SumNoise, "moved", seen)
    return numbers, shares, opened


@KEYS
@pytest.mark.parametrize("emulated", [True, False])
def test_the_opened_sum_is_exact(page: ModuleType, keys: str, emulated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers, shares, opened = watched(monkeypatch)
    made = rig(page.SYSTEM, TARGETS, emulated=emulated, keys=keys, **NOISE)
    before = made.models()[0]
    assert made.round(1) == {"participants": 5, "asked": 5}
    assert len(numbers) == len(shares) == 5
    np.testing.assert_allclose(opened[0], sum(numbers) + sum(shares), rtol=0, atol=0.01)
    models = made.models()
    assert (models == models[0]).all()
    spread = 0.02 * 2 * 50.0 * np.sqrt(5 / 3) / 5
    assert np.abs(models[0] - (before + 0.5 * (TARGETS - before)).mean(axis=0)).max() < 5 * spread
    assert not made.refused


def absent(page: ModuleType, made: Rig, *numbers: int) -> None:
    for i in numbers:
        misbehaving(made.party(f"client/{i}"), page.Train, lambda party, request, answer: None)


@KEYS
def test_the_shares_that_are_left_suffice_and_fewer_are_no_sum(page: ModuleType, keys: str) -> None:
    made = rig(page.SYSTEM, TARGETS, keys=keys, **NOISE)
    mechanism = made.hub.noise.mechanism
    shares = 5 - 1 - 1  # without the absent one's, and that of a client who reads the mean
    assert shares * mechanism.variance(made.hub.noise.makers) == pytest.approx((0.02 * mechanism.sensitivity) ** 2)
    absent(page, made, 4)
    assert made.round(1)["participants"] == 4
    moved = made.models()
    absent(page, made, 3)
    assert made.round(2)["skipped"] == "3 models, and a sum is of 4 or more"
    assert (made.models() == moved).all()


def test_holders_refuse_a_sum_that_lacks_noise(page: ModuleType) -> None:
    """Whatever the server says: four of five vectors are enough, three are not, and none counts twice."""
    made = rig(page.SYSTEM, TARGETS, keys="threshold", **NOISE)
    client = made.party("client/0")
    pads: dict[str, Any] = dict.fromkeys(made.common.clients[:3])
    with pytest.raises(PeerError, match="a sum of 3 vectors"):
        check_sum(client, "mean", 1, pads, dict.fromkeys(pads, 1))
    pads = dict.fromkeys(made.common.clients)
    with pytest.raises(PeerError, match="it lacks noise"):
        check_sum(client, "mean", 1, pads, dict(zip(pads, (1, 1, 1, 1, 2), strict=True)))


def test_another_attempt_opens_no_other_senders(page: ModuleType) -> None:
    """The same vectors without one client: the difference of both sums would be that client's."""
    made = rig(page.SYSTEM, TARGETS, keys="threshold", **NOISE)
    marks = {name: (made.party(name).state, made.party(name).secret) for name in made.federation.parties}
    kept = copy.deepcopy(marks)
    made.round(1)
    for name, (state, secret) in kept.items():
        party = made.party(name)
        was = party.state, party.secret
        party.state, party.secret = state, secret
        party.lasts(*was)
    absent(page, made, 4)
    assert "skipped" in made.round(1)
    assert any("would be a second release" in reason for reason in made.refused), made.refused
    assert {len(made.party(name).noise.secret.sealed) for name in made.common.clients} == {1}


@KEYS
def test_the_ledger_says_against_whom_and_is_each_clients_own(page: ModuleType, keys: str) -> None:
    made = rig(page.SYSTEM, TARGETS, keys=keys, **{**NOISE, "noise": 2.0})
    made.rounds(2)
    mechanism = made.hub.noise.mechanism
    for name, own in page.SYSTEM.ledger(made.federation).items():
        assert own[0] == mechanism.release(1, ("server", "public", "other clients"))
        assert [one.against for one in own[2:]] == [("server with a client",)] * (2 if keys == "centre" else 0)
        assert list(account_of(page.SYSTEM, made.party(name), made.config).own()) == list(own)
    if keys == "centre":
        assert own[2].noise_multiplier == pytest.approx(2.0 / np.sqrt(3))


@KEYS
@pytest.mark.parametrize("missing", [0, 1])
def test_the_epsilon_holds_against_a_reader_where_as_many_are_absent_as_may_be(
    page: ModuleType, keys: str, missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader knows its share; those that are left have at least the variance that the ledger states."""
    _, shares, _ = watched(monkeypatch)
    made = rig(page.SYSTEM, TARGETS, keys=keys, **{**NOISE, "noise": 2.0, "missing": missing})
    absent(page, made, *range(5 - missing, 5))
    assert made.round(1)["participants"] == 5 - missing
    (stated, *_) = page.SYSTEM.ledger(made.federation)["client/0"]
    assert set(stated.against) == set(OBSERVERS)
    unknown = 5 - missing - 1
    variance = unknown * made.hub.noise.mechanism.variance(made.hub.noise.makers)
    assert np.sqrt(variance) / stated.sensitivity_l2 == pytest.approx(stated.noise_multiplier)
    drawn = np.mean(np.square(np.stack(shares).astype(float)))
    assert unknown * drawn == pytest.approx(variance, rel=0.6)


def test_a_spent_budget_ends_training(page: ModuleType) -> None:
    made = rig(page.SYSTEM, TARGETS, keys="threshold", epsilon=4.0, private_rounds=2)
    notes = made.rounds(3)
    assert ["skipped" in one for one in notes] == [False, False, True]
    assert {len(made.party(name).noise.secret.sealed) for name in made.common.clients} == {2}


def test_a_client_that_missed_a_mean_has_the_next_one(page: ModuleType) -> None:
    made = rig(page.SYSTEM, TARGETS, keys="threshold", links=Steady(away={("client/4", 1): "offline"}), **NOISE)
    made.round(1)
    assert not (made.models()[4] == made.models()[0]).all()
    assert "skipped" not in made.round(2)
    assert (made.models() == made.hub.noise.weights).all()


def test_a_forged_sum_is_skipped(page: ModuleType) -> None:
    made = rig(page.SYSTEM, TARGETS, keys="threshold", **NOISE)
    with pytest.raises(PeerError, match="not of whole numbers"):
        made.hub.noise.moved(np.full(SIZE, 0.4 / made.hub.noise.unit), 5, 1)
    with pytest.raises(UserError, match="is read by"):
        list(made.party("client/0").sums.read(made.party("client/0"), np.zeros(SIZE), None, 5))
    with pytest.raises(PeerError, match="lacks too many"):
        made.hub.noise.moved(np.zeros(SIZE), 3, 1)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"clip": 2.0}, "no effect with sums without noise"),
        ({"noise": 1.0, "keys": "threshold", "pads": False}, "needs pads"),
        ({"noise": 1.0, "founders": 3}, "from the start"),
        ({"epsilon": -1.0}, "budget"),
    ],
    ids=str,
)
def test_settings_without_sense_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        SumKeys(**settings)


@pytest.mark.parametrize(
    ("settings", "why"),
    [({"noise": 1.0, "missing": 5}, "lower missing"), ({"noise": 1e9}, "noise of variance|too large")],
    ids=str,
)
def test_noise_that_is_not_possible_is_refused(page: ModuleType, settings: dict[str, Any], why: str) -> None:
    made = rig(page.SYSTEM, TARGETS)
    with pytest.raises(UserError, match=why):
        page.SYSTEM.check(SumKeys(**settings), made.common)
