"""Servers and key centre that send what they shouldn't: participants and servers refuse it, and the round goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
from fedcaprivacy_parts import at_own_model
from fedcaprivacy_parts import two_groups as _two_groups
from federation import Rig, misbehaving, on_the_wire
from tampering import flipped

from coterie.crypto.roster import signed, signing_key
from coterie.protocols.cluster_sums import ClusterModel, ClusterSum, Convert
from coterie.systems.fedcaprivacy.messages import Aggregate, Clustered

change = msgspec.structs.replace
two_groups = partial(_two_groups, alpha=1e9)


def count_signature(csp: Any, m: ClusterSum | ClusterModel) -> bytes:
    return signing_key(csp.own).sign("cluster count", m.round, m.cluster, m.count)


# -- phi ---------------------------------------------------------------------------------------------------------------


def phi_of(message: Clustered) -> np.ndarray:
    assert message.membership is not None
    return message.membership


FORGED_PHI: list[tuple[str, Callable[[Clustered], Clustered]]] = [
    ("no positions, empty phi", lambda m: change(m, positions=m.positions[:0], membership=phi_of(m)[:0])),
    ("a position twice", lambda m: change(m, positions=np.zeros(6, np.int64))),
    ("a position too many", lambda m: change(m, positions=np.array([0, 1, 2, 3, 4, 6]))),
    ("too few rows", lambda m: change(m, membership=phi_of(m)[:5])),
    ("too many rows", lambda m: change(m, membership=np.vstack([phi_of(m), phi_of(m)[:1]]))),
    ("too many clusters", lambda m: change(m, membership=np.hstack([phi_of(m)] * 2))),
    ("a row without a cluster", lambda m: change(m, membership=phi_of(m) & (np.arange(6) > 0)[:, None])),
    ("no phi where it was asked for", lambda m: change(m, membership=None)),
]


@pytest.mark.parametrize(("name", "forge"), FORGED_PHI, ids=[name for name, _ in FORGED_PHI])
def test_a_forged_phi_is_refused_and_the_round_skipped(name: str, forge: Callable) -> None:
    run = two_groups()
    on_the_wire(run.transport, Clustered, forge)
    note = run.round(1)
    assert note["skipped"] == "csp did not answer Cluster: its answer was refused"
    assert run.refusals("business_server", "Clustered") == 1
    assert note["membership"] == [[]] * 6
    assert run.hub.state.phi == {}
    assert at_own_model(run) == [True] * 6
    run.transport.intercept = None
    assert "skipped" not in run.round(2)


def test_a_service_that_puts_everybody_into_one_cluster_is_not_told_from_an_honest_one() -> None:
    """What phi says is the service's word: it may group as it likes, but learns and changes nothing else by it."""
    run = two_groups()
    on_the_wire(run.transport, Clustered, lambda m: change(m, membership=np.ones((6, 1), bool)))
    assert run.round(1)["clusters"]["sizes"] == [6, 0]


# -- sums --------------------------------------------------------------------------------------------------------------


def forged_sum(forge: Callable[[Any, ClusterSum], ClusterSum]) -> Callable[[Any, Any, ClusterSum], ClusterSum]:
    """A service that answers for cluster 0 with ``forge(csp, honest sum)``."""
    return lambda csp, request, reply: forge(csp, reply) if request.cluster == 0 else reply


def resigned(csp: Any, m: ClusterSum) -> ClusterSum:
    """With good signatures of the service over whatever it says."""
    return signed(csp.own, change(m, count_signature=count_signature(csp, m)))


def of_terms(csp: Any, m: ClusterSum, count: int) -> bytes:
    """A sum of another number of vectors than were asked for."""
    opened = sorted(csp.blinded(csp.state.opened).items())
    total = opened[0][1]
    for _, vector in opened[1:count]:
        total = total + vector
    return csp.keys.public("user").encrypt_blinded(total).to_bytes()


def fresh(csp: Any, m: ClusterSum) -> bytes:
    return csp.keys.public("user").encrypt(np.zeros(40)).to_bytes()


FORGED_SUM: list[tuple[str, Callable[[Any, ClusterSum], ClusterSum]]] = [
    ("count signature flipped", lambda csp, m: change(m, count_signature=flipped(m.count_signature))),
    ("wrong count", lambda csp, m: resigned(csp, change(m, count=2))),
    ("wrong cluster", lambda csp, m: resigned(csp, change(m, cluster=1))),
    ("a sum of two", lambda csp, m: resigned(csp, change(m, cipher=of_terms(csp, m, 2)))),
    ("without masks", lambda csp, m: resigned(csp, change(m, cipher=fresh(csp, m)))),
]


@pytest.mark.parametrize(("name", "forge"), FORGED_SUM, ids=[name for name, _ in FORGED_SUM])
def test_a_forged_sum_is_refused_and_its_cluster_not_released(name: str, forge: Callable) -> None:
    run = two_groups()
    misbehaving(run.party("csp"), Aggregate, forged_sum(forge))
    note = run.round(1)
    assert note["clusters"]["unreleased"]["0"] == "csp: its answer was refused"
    assert list(note["clusters"]["unreleased"]) == ["0"]
    assert run.refusals("business_server", "ClusterSum") == 1
    assert sum(at_own_model(run)) == 3


def test_a_converted_sum_of_another_number_of_models_is_refused() -> None:
    """In sketch mode the service opens a sum of 3 under one mask, and hands it on as one of 2."""

    def of_two(csp: Any, request: Convert, reply: ClusterSum) -> ClusterSum:
        key = csp.keys.own("service")
        total = key.open_blinded(key.public.from_bytes(request.cipher))
        shrunk = replace(total, tally=replace(total.tally, terms=2))
        return resigned(csp, change(reply, cipher=csp.keys.public("user").encrypt_blinded(shrunk).to_bytes()))

    run = two_groups(mode="hardened", sketch_dim=16)
    misbehaving(run.party("csp"), Convert, of_two)
    note = run.round(1)
    assert set(note["clusters"]["unreleased"]) == {"0", "1"}
    assert run.refusals("business_server", "ClusterSum") == 2


def test_the_sum_of_another_round_is_refused() -> None:
    run = two_groups()
    kept: list[ClusterSum] = []

    def replay(csp: object, request: Aggregate, reply: ClusterSum) -> ClusterSum:
        kept.append(reply)
        return kept[request.cluster]

    misbehaving(run.party("csp"), Aggregate, replay)
    assert run.round(1)["clusters"]["unreleased"] == {}
    assert set(run.round(2)["clusters"]["unreleased"]) == {"0", "1"}


def test_a_vector_counts_once_in_a_sum_however_often_it_is_named() -> None:
    """Else the service would sign for three participants a sum that has one model in it."""
    run = two_groups()
    lies = on_the_wire(run.transport, Aggregate, lambda m: change(m, positions=np.repeat(m.positions[:1], 3)))
    assert set(run.round(1)["clusters"]["unreleased"]) == {"0", "1"}
    assert run.refusals("csp", "Aggregate") == len(lies) == 2


# -- cluster models ----------------------------------------------------------------------------------------------------

FORGED_MODEL: list[tuple[str, Callable[[Rig, ClusterModel], ClusterModel]]] = [
    (
        "the service's signature",
        lambda run, m: signed(run.hub.own, change(m, count_signature=flipped(m.count_signature))),
    ),
    ("both swapped", lambda run, m: change(m, signature=m.count_signature, count_signature=m.signature)),
    (
        "a count that only the business server signed",
        lambda run, m: signed(run.hub.own, change(m, count=2)),
    ),
    (
        "a model that only the service signed",
        lambda run, m: change(
            m,
            cipher=run.hub.keys.public("user").encrypt(np.zeros(40)).to_bytes(),
            count_signature=count_signature(run.party("csp"), m),
        ),
    ),
]


@pytest.mark.parametrize(("name", "forge"), FORGED_MODEL, ids=[name for name, _ in FORGED_MODEL])
def test_a_forged_cluster_model_is_refused_by_its_recipient(name: str, forge: Callable) -> None:
    run = two_groups()
    on_the_wire(run.transport, ClusterModel, lambda m: forge(run, m), dst="client/1")
    run.round(1)
    assert run.refusals("participant", "ClusterModel") == 1
    assert at_own_model(run) == [False, True, False, False, False, False]
    run.transport.intercept = None
    run.round(2)
    assert at_own_model(run) == [False] * 6


def test_a_genuine_cluster_model_of_an_earlier_round_does_not_come_back() -> None:
    """The business server itself sends it once more, as a new message: the participant has trained since."""
    run = two_groups()
    old = on_the_wire(run.transport, ClusterModel, lambda m: m, dst="client/1", rounds=[1])
    run.round(1)
    before = run.models()[1]
    on_the_wire(run.transport, ClusterModel, lambda m: old[0], dst="client/1")
    run.round(2)
    assert dict(run.refused) == {"participant/ClusterModel: a mean of 3 models of round 1 for round 2": 1}
    assert (run.models()[1] != before).any()
