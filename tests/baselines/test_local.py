"""Local training alone: each client's model is that of a plain loop over its own data, and no model travels."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.baselines.local import Train
from coterie.protocol.errors import PeerError
from coterie.protocol.randomness import rng
from coterie.runs import RunConfig, build
from coterie.training.engine import fit_many
from coterie.training.jobs import Job


def test_local_training_is_a_loop_of_each_client_on_its_own() -> None:
    one = build(RunConfig("local", clients=4, rounds=3, samples=400, model="linear"))
    one.set_up()
    for r in (1, 2, 3):
        one.round(r)
    for name, found in one.models().items():
        own, weights = one.effects.data[name], one.common.initial
        for r in (1, 2, 3):
            seed = int(rng(0, name, "batches", r).integers(1 << 62))
            (fitted,) = fit_many(
                one.model, [Job(weights, one.settings.solver(), one.owns[name].epochs, seed, own.x, own.y)]
            )
            weights = fitted.weights
        np.testing.assert_allclose(found, weights, rtol=0, atol=2e-6)


def test_it_sends_no_model_and_its_server_sees_none() -> None:
    one = build(RunConfig("local", clients=4, rounds=1, record=True))
    one.set_up()
    line = one.round(1)
    assert sum(line["bytes_up"].values()) + sum(line["bytes_down"].values()) < 1000
    (seen,) = {item.kind for item in one.transport.transcript.views["server"].seen}  # type: ignore[union-attr]
    assert seen == "Done"


def test_the_batches_are_those_of_fedavg() -> None:
    """Both begin alike: after round 1 FedAvg's server holds the weighted mean of exactly these models."""
    alone, fedavg = (build(RunConfig(name, clients=4, rounds=1, model="linear")) for name in ("local", "fedavg"))
    for one in (alone, fedavg):
        one.set_up()
        one.round(1)
    sizes = np.array([alone.owns[name].samples for name in alone.common.clients], dtype=np.float64)
    mean = (sizes[:, None] * np.stack(list(alone.models().values()))).sum(axis=0) / sizes.sum()
    np.testing.assert_allclose(fedavg.models()["client/0"], mean, rtol=0, atol=1e-6)


def test_a_round_is_trained_once() -> None:
    one = build(RunConfig("local", clients=2, rounds=1, model="linear"))
    one.set_up()
    one.round(1)
    client = one.federation.parties["client/0"]
    with pytest.raises(PeerError, match="round 1"):
        next(client.train(Train(1), "server"))
