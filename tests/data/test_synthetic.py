"""Made-up data: a client's samples follow from the seed and its number alone, by the law of the partition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.data import load
from coterie.data.synthetic import Drawn, deal_synthetic
from coterie.protocol.errors import UserError
from coterie.runs import RunConfig
from coterie.runs.config import resolve
from coterie.runs.inputs import inputs_of

NAME = "synthetic:6x5"
DATA = load(NAME)


def dealt(spec: str, clients: int = 1000, seed: int = 3, **options: int) -> Drawn:
    split, _ = deal_synthetic(spec, DATA, clients, seed, **options)
    return split


def counts(split: Drawn, most: int = 600) -> np.ndarray:
    return np.stack([split.counts(i) for i in range(min(most, split.clients))])


SPECS = ("iid", "hsu:0.5", "dirichlet:0.3", "labels:2", "labels:1-3", "shards:2", "labelsets:2", "permute:3+hsu:0.5")


@pytest.mark.parametrize("spec", SPECS)
def test_a_client_follows_from_the_seed_and_its_number_alone(spec: str) -> None:
    few, many = dealt(spec, 10), dealt(spec, 100_000)
    others = dealt(spec, 10, seed=4)
    if few.groups is None:  # groups are dealt among all clients
        np.testing.assert_array_equal(few.train_samples(7)[0], many.train_samples(7)[0])
        np.testing.assert_array_equal(few.test_samples(7), many.test_samples(7))
    again = dealt(spec, 10)
    for split in (few, again):
        split.train_samples(3)  # another client's, asked before
    for a, b in zip(few.train_samples(7), again.train_samples(7), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(few.train_samples(7)[0][:1], few.train_samples(6)[0][:1])
    assert not np.array_equal(few.train_samples(7)[0][:1], others.train_samples(7)[0][:1])


def test_what_a_client_has_is_drawn_once() -> None:
    split, drawn = dealt("dirichlet:0.3"), []
    law = split.law
    assert law is not None
    split = replace(split, law=lambda source, client: drawn.append(client) or law(source, client))
    assert split.size(7) == len(split.train_samples(7)[1])
    split.test_samples(7)
    assert drawn == [7]


@pytest.mark.parametrize("spec", SPECS)
def test_samples_have_the_counts_and_tests_their_shares(spec: str) -> None:
    split = dealt(spec, 40)
    for client in range(5):
        x, y = split.train_samples(client)
        names = split.task(client).names
        own = split.counts(client)
        assert x.shape == (own.sum(), 6)
        assert x.dtype == np.float32
        called = np.arange(5) if names is None else names
        np.testing.assert_array_equal(np.bincount(y, minlength=5)[called], own)
        there = DATA.y_test[split.test_samples(client)]
        assert 0 < len(there) <= 200
        np.testing.assert_allclose(
            np.bincount(there, minlength=5) / len(there), own / own.sum(), atol=1.01 / len(there)
        )


def test_the_laws_are_those_that_the_page_states() -> None:
    """Means and variances against their closed forms, over 600 clients of m = 100 samples and K = 5 classes."""
    assert (counts(dealt("iid")).sum(1) == 100).all()
    assert (counts(dealt("hsu:0.5")).sum(1) == 100).all()
    # Dirichlet(a = alpha/K each): a share has variance (1/K)(1 - 1/K) / (alpha + 1)
    shares = counts(dealt("hsu:0.5")) / 100
    assert shares.var() == pytest.approx(0.2 * 0.8 / 1.5, rel=0.1)
    # Gamma(beta) over its mean: a class has mean m/K and standard deviation m/K / sqrt(beta); no floor
    free = counts(dealt("dirichlet:0.5", min_samples=1))
    assert free.mean() == pytest.approx(20, rel=0.06)
    assert free.std() == pytest.approx(20 / np.sqrt(0.5), rel=0.12)
    assert counts(dealt("dirichlet:0.05")).sum(1).min() >= 10
    held = (counts(dealt("labels:1-3")) > 0).sum(1)
    assert set(held) == {1, 2, 3}
    assert ((counts(dealt("shards:2")) > 0).sum(1) <= 2).all()
    sets = dealt("labelsets:2")
    assert sets.groups is not None
    assert sets.group_labels is not None
    for client, own in enumerate(counts(sets, 50)):
        assert set(np.flatnonzero(own)) <= set(sets.group_labels[sets.groups[client]])
    assert counts(dealt("iid", samples=7000)).sum(1).tolist() == [7] * 600


@given(st.floats(1e-6, 1e6), st.integers(0, 2**31), st.integers(0, 10**6))
def test_any_skew_gives_whole_counts(beta: float, seed: int, client: int) -> None:
    for kind in ("dirichlet", "hsu"):
        own = dealt(f"{kind}:{beta}", 10**6 + 1, seed).counts(client)
        assert own.dtype == np.int64
        assert (own >= 0).all()
        assert own.sum() >= 10


def test_classes_can_be_told_apart_but_not_perfectly() -> None:
    """A sample's nearest centre is of its class mostly: by the law, not always."""
    from coterie.data.synthetic import _centres, drawn
    from coterie.protocol.randomness import rng

    name = "synthetic:64x10"
    labels = np.arange(2000) % 10
    x = drawn(name, labels, rng(0, "test", "samples"))
    centres = _centres(name).reshape(20, 64)
    nearest = ((x[:, None] - centres) ** 2).sum(2).argmin(1) // 2
    assert 0.8 < (nearest == labels).mean() < 0.99


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("synthetic:", "synthetic:64x10"),
        ("synthetic:64", "synthetic:64x10"),
        ("synthetic:0x3", "features"),
        ("synthetic:4x1", "2 to"),
        ("synthetic:9999999x2", "features"),
    ],
)
def test_other_names_are_refused(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load(name)


@pytest.mark.parametrize("spec", ["rotate:4", "domains:mnist", "labelsets:9", "labelsets:2,iid=0.5", "labels:9"])
def test_partitions_that_these_data_cannot_have_are_refused(spec: str) -> None:
    with pytest.raises(UserError):
        dealt(spec)


def test_fewer_samples_than_clients_are_refused() -> None:
    with pytest.raises(UserError, match="fewer than one for each"):
        dealt("iid", samples=999)


def test_held_out_and_public_samples() -> None:
    config = RunConfig("fedavg", data=NAME, clients=30, rounds=1, public=0.02, fine_tune="held_out")
    data = inputs_of(resolve(config), "server").data
    own = data["client/4"]
    assert own.held_out is not None
    assert len(own.held_out.y) == max(1, round(0.2 * (len(own.y) + len(own.held_out.y))))
    assert data.samples("client/4") == len(own.y)
    assert len(data["server"].y) == 200
    assert data["client/4"] is own  # made once
    assert "client/30" not in data
    with pytest.raises(KeyError):
        data["client/30"]
