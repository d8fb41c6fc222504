"""What every party of PAFed sees is what the system says, and it can open no more than that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from federation import Rig
from pafed_parts import REALLY, TARGETS, model, opened, paf, service_key, taken
from scipy import stats

from coterie.privacy.views import granted
from coterie.protocol.errors import CoterieError
from coterie.protocol.messages import unbundle
from coterie.protocols.key_centre import KEY_CENTRE
from coterie.systems.pafed import messages
from coterie.systems.pafed.classification import MOST_MASK

FEW = TARGETS[::2]


def recorded(mode: str = "paper", *, rounds: int = 3, **options: Any) -> Rig:
    """Rounds of which the later ones have late updates."""
    few = {"iterations": 1} if mode == "literal" else {}
    run = paf(FEW, mode=mode, seed=1, delay="uniform:1", **few, **options)
    run.rounds(rounds)
    return run


@pytest.fixture(scope="module")
def real() -> Rig:
    return recorded(emulated=False)


def test_where_nothing_is_turned_the_helper_compares_nothing() -> None:
    for settings in ({"project": "none"}, {"delta": 0.0}):
        assert recorded(**settings).view(messages.HELPER).kinds() == {"Granted", "Refresh", "Convert"}


def test_clients_hear_of_nobody_else(real: Rig) -> None:
    for name in real.common.clients:
        seen = real.view(name).seen
        assert {one.src for one in seen} == {messages.HUB, KEY_CENTRE}
        assert all(one.dst == name for one in seen)


# -- keys --------------------------------------------------------------------------------------------------------------


def test_nothing_that_the_aggregator_receives_opens_under_a_key_that_it_has(real: Rig) -> None:
    """It is handed public keys and the evaluation key; every ciphertext opens under its owner's and no other's."""
    assert all(name.startswith("public ") for name in granted(real.view(messages.HUB)))
    clients = {name: real.party(name).keys.own(messages.USER) for name in real.common.clients}
    opens = {"helper": service_key(real), **clients}
    found = 0
    for seen in real.view(messages.HUB).seen:
        for owner, cipher in ciphers(seen.message):
            key = opens.pop(owner)
            public = key.public
            vector = public.from_bytes(cipher)
            (key.open_blinded if vector.blinded else key.decrypt)(vector)
            for other in opens.values():
                with pytest.raises(CoterieError, match="key"):
                    other.decrypt(other.public.from_bytes(cipher))
            opens[owner] = key
            found += 1
    assert found > 30


def ciphers(message: Any) -> Iterator[tuple[str, bytes]]:
    """All ciphertexts in what the aggregator reads, with whom they are for."""
    if isinstance(message, messages.Update | messages.Refreshed):
        yield "helper", message.cipher
    elif isinstance(message, messages.Converted):
        yield message.client, message.cipher
    elif isinstance(message, messages.Compared | messages.Inverted):
        (count,) = np.frombuffer(message.ciphers[:4], "<u4")
        for part in unbundle(message.ciphers, int(count)):
            yield "helper", part


# -- numbers -----------------------------------------------------------------------------------------------------------


def residues(run: Rig, r: int) -> np.ndarray:
    """What the helper opens in round r, as numbers in [0, 1): every residue over its prime, or an emulated one."""
    ((_, refresh),) = run.view(messages.HELPER).messages(messages.Refresh, r)
    key = service_key(run)
    found = key.open_blinded(key.public.from_bytes(refresh.cipher)).array[0]
    if key.emulated:
        return (found.view(np.uint64) / 2.0**64).ravel()
    (prime,) = run.hub.keys.public("service").arrays.ring.moduli_at(0).ravel()
    return (found / float(prime)).ravel()


@pytest.mark.parametrize("emulated", REALLY)
def test_what_the_helper_opens_of_the_model_is_uniform(emulated: bool) -> None:
    """Residues of many rounds: Kolmogorov-Smirnov and chi-square, and no correlation with the model behind them."""
    targets = np.random.default_rng(0).normal(0, 3, (3, 900))
    run = paf(targets, emulated=emulated, seed=1, delta=0.0)
    run.round(1)
    rows, models = [], []
    for r in range(2, 8):
        models.append(model(run))
        run.round(r)
        rows.append(residues(run, r))
    numbers = np.concatenate(rows)
    assert len(numbers) >= 5000
    assert stats.kstest(numbers, "uniform").pvalue > 1e-7
    counts = np.bincount((numbers * 64).astype(int), minlength=64)
    assert stats.chisquare(counts).pvalue > 1e-7
    if emulated:
        r, _ = stats.pearsonr(np.concatenate([row[:900] for row in rows]), np.concatenate(models))
        assert abs(r) < 6 / np.sqrt(len(numbers))
    assert stats.pearsonr(rows[0], rows[1])[0] < 6 / np.sqrt(len(rows[0]))  # a fresh mask every round


@pytest.mark.parametrize("emulated", REALLY)
def test_two_different_models_look_the_same_to_the_helper(emulated: bool) -> None:
    """All zeros, and all near 3: a two-sample test sees no difference."""
    seen = []
    for value in (0.0, 3.0):
        run = paf(np.full((2, 900), value), emulated=emulated, seed=int(value), delta=0.0, local="sgd", server_lr=30.0)
        run.rounds(7)
        if value:
            assert np.abs(model(run)).mean() > 0.5
        seen.append(np.concatenate([residues(run, r) for r in range(2, 8)]))
    assert stats.ks_2samp(*seen).pvalue > 1e-7
    assert abs(seen[0].mean() - seen[1].mean()) < 6 / np.sqrt(6 * len(seen[0]))


def test_every_round_converts_for_those_who_are_asked_and_for_nobody_else() -> None:
    run = paf(participation=0.5, seed=2)
    run.rounds(4)
    for r in (2, 3, 4):
        asked = {seen.dst for name in run.common.clients for seen, _ in run.view(name).messages(messages.Train, r)}
        assert [m.client for _, m in run.view(messages.HELPER).messages(messages.Convert, r)] == sorted(asked)
        assert len(asked) == 4


def test_cosines_reach_the_helper_masked_shuffled_and_among_dummies() -> None:
    """As many scalars as late updates and dummies, up to 256 times the largest cosine; four sums, masked 8-fold."""
    run = paf(seed=1, delay="uniform:1", dummies=5)
    key, orders = service_key(run), []

    def scalars(data: bytes, count: int) -> list[float]:
        return [float(key.decrypt(key.public.from_bytes(part))[0]) for part in unbundle(data, count)]

    run.round(1)
    for r in range(2, 6):
        _, updates = taken(run, r)
        mean = np.mean([opened(run, u) for _, u in updates if u.round == r], axis=0)
        c = np.array([opened(run, u) for _, u in updates if u.round < r]) @ mean
        ((_, compare),) = run.view(messages.HELPER).messages(messages.Compare, r)
        assert compare.count == len(c) + 5
        shown = scalars(compare.ciphers, compare.count)
        assert max(map(abs, shown)) <= MOST_MASK * np.abs(c).max() + 1e-6
        assert (c < 0).sum() <= sum(x < 0 for x in shown) <= (c < 0).sum() + 5
        orders.append(tuple(np.argsort(shown)))
        ((_, invert),) = run.view(messages.HELPER).messages(messages.Invert, r)
        truth = c[c > 0].sum(), c[c < 0].sum(), mean @ mean, np.square(c[c < 0]).sum()
        for seen, true in zip(scalars(invert.ciphers, 4), truth, strict=True):
            assert abs(true) / 8 - 1e-4 <= abs(seen) <= abs(true) + 1e-4
            assert seen * true >= 0 or abs(seen) < 1e-4
    assert len(set(orders)) > 1
