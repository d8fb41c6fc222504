"""What a client predicts with, from its own state alone: that of a party which was made again from its bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from every_system import CASES, TARGETS, Case, made, one_mode, parameters
from federation import Rig, Steady, on_the_wire, rig

from coterie.protocol.errors import PeerError, UserError
from coterie.protocol.system import ClientModel, Mixture
from coterie.protocols.averaging import Last
from coterie.runs import SYSTEMS, registry
from coterie.runs.parties import dumped, restore

ROUNDS = 3
QUICK = ("fedavg", "ifca", "ofl")


def same(one: ClientModel, other: ClientModel) -> bool:
    if isinstance(one, Mixture) and isinstance(other, Mixture):
        return np.array_equal(one.weights, other.weights) and np.array_equal(one.models, other.models)
    return np.array_equal(np.asarray(one), np.asarray(other))


def alone(run: Rig, name: str) -> ClientModel:
    """By the party's bytes and what it alone was told."""
    twin = run.system.make(run.owns[name], run.common, run.config)
    restore(twin, dumped(run.party(name)))
    return run.system.predicts(twin)


@pytest.mark.parametrize("case", parameters(CASES, one_mode))
def test_a_client_knows_its_own_model(case: Case) -> None:
    """After the run it is the one that an observer reads of all parties. Before, it is at least a model."""
    run = made(case, deployed=True)
    clients = run.common.clients
    for _ in range(2):
        for name in clients:
            model: Any = alone(run, name)
            size = model.models.shape[1] if isinstance(model, Mixture) else len(model)
            assert size == TARGETS.shape[1]
        if run.transport.round == 0:
            run.rounds(ROUNDS)
    run.finish(ROUNDS)
    wanted = run.system.models(run.federation)
    for name in clients:
        found = alone(run, name)
        if run.system.name == "pafed":  # whose clients open a ciphertext of their own: within the error of CKKS
            np.testing.assert_allclose(np.asarray(found), np.asarray(wanted[name]), atol=5e-4)
        else:
            assert same(found, wanted[name])
    assert not all(same(wanted[name], run.common.initial) for name in clients)


@pytest.mark.parametrize(
    "case",
    parameters([case for case in CASES if case[1] == "paper"], lambda case: case[0] in ("fedavg", "ofl", "ifca")),
)
def test_keeping_models_changes_none(case: Case) -> None:
    runs = [made(case, deployed=deployed) for deployed in (False, True)]
    for run in runs:
        run.rounds(ROUNDS)
    plain, deployed = (run.system.models(run.federation) for run in runs)
    assert all(same(plain[name], deployed[name]) for name in runs[0].common.clients)


@pytest.mark.parametrize("name", ["fedavg", "pafed"])
def test_a_simulation_keeps_and_hands_out_nothing(name: str) -> None:
    case: Case = (name, "paper", {})
    runs = [made(case, deployed=deployed) for deployed in (False, True)]
    for run in runs:
        run.rounds(2)
    plain, deployed = (dumped(run.party("client/0")) for run in runs)
    assert len(plain) < len(deployed)
    sent = [on_the_wire(run.transport, kind, lambda msg: msg) for run in runs for kind in [Last]]
    for run in runs:
        run.finish(2)
    assert not runs[0].hub.finishes
    assert len(sent[0]) == 0
    assert len(sent[1]) == (0 if name == "pafed" else len(TARGETS))  # its clients get ciphertexts


def test_a_client_that_is_away_predicts_with_what_it_was_told() -> None:
    links = Steady(away={("client/0", r): "offline" for r in (2, 3, 4)})
    run = made(("fedavg", "paper", {}), deployed=True, links=links)
    run.round(1)
    run.round(2)
    early = np.array(alone(run, "client/1"))
    run.round(3)
    run.finish(3)
    assert same(alone(run, "client/0"), run.common.initial)
    assert same(alone(run, "client/1"), run.system.models(run.federation)["client/1"])
    assert not same(alone(run, "client/1"), early)


def test_nobody_but_the_hub_ends_a_run() -> None:
    run = made(("fedavg", "paper", {}), deployed=True)
    run.round(1)
    before = alone(run, "client/0")
    last = Last(run.common.spec.digest, np.ones(TARGETS.shape[1], np.float32))
    with pytest.raises(PeerError, match="only the hub"):
        run.party("client/0").take_last(last, "client/1")
    with pytest.raises(PeerError, match="another shape"):
        run.party("client/0").take_last(Last(last.spec, last.weights[:3]), "server")
    assert same(alone(run, "client/0"), before)


def test_what_cannot_be_deployed_is_refused() -> None:
    for name, system in SYSTEMS.items():
        system.check_deployed(system.config())
        assert system.own_model is not None, name
    ifca = registry.get("ifca")
    with pytest.raises(UserError, match="set start=random"):
        ifca.check_deployed(ifca.config(start="pretrained"))
    unsaid = replace(ifca, own_model=None)
    with pytest.raises(UserError, match="give its System an own_model"):
        unsaid.check_deployed(ifca.config())
    with pytest.raises(UserError, match="own_model"):
        unsaid.predicts(rig(ifca, TARGETS, clusters=2).party("client/0"))
