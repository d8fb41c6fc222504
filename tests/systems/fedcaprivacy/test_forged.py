"""Servers and key centre that send what they shouldn't: participants and servers refuse it, and the round goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from fedcaprivacy_parts import by_models
from federation import Pulled, Rig, misbehaving, on_the_wire, planted, rig, to
from tampering import flipped

from coterie.crypto.roster import signed, signing_key
from coterie.protocol.errors import PeerError, RunError
from coterie.protocols.anonymous import SERVICE, Relayed
from coterie.protocols.cluster_sums import USER, ClusterModel, ClusterSum, Convert
from coterie.protocols.key_centre import KEY_CENTRE, Deal, Granted, Ready
from coterie.systems.fedcaprivacy import SYSTEM
from coterie.systems.fedcaprivacy.messages import Aggregate, Clustered, Train

TARGETS = planted([0, 0, 0, 1, 1, 1], 40)
change = msgspec.structs.replace


def two_groups(**settings: object) -> Rig:
    options = {"clusters": 2, "effects": lambda targets: Pulled(targets, noise=0.02), "alpha": 1e9, **settings}
    return rig(SYSTEM, TARGETS, **by_models(**options))


def at_own_model(run: Rig) -> list[bool]:
    own = np.stack([run.party(name).state.weights for name in run.common.clients])
    return (run.models() == own).all(axis=1).tolist()


def count_signature(csp: Any, m: ClusterSum | ClusterModel) -> bytes:
    return signing_key(csp.own).sign("cluster count", m.round, m.cluster, m.count)


# -- phi ---------------------------------------------------------------------------------------------------------------


def phi_of(message: Clustered) -> np.ndarray:
    assert message.membership is not None
    return message.membership


FORGED_PHI: list[tuple[str, Callable[[Clustered], Clustered]]] = [
    ("another round", lambda m: change(m, round=7)),
    ("no positions", lambda m: change(m, positions=m.positions[:0], membership=None)),
    ("no positions, empty phi", lambda m: change(m, positions=m.positions[:0], membership=phi_of(m)[:0])),
    ("a position twice", lambda m: change(m, positions=np.zeros(6, np.int64))),
    ("a position too many", lambda m: change(m, positions=np.array([0, 1, 2, 3, 4, 6]))),
    ("a negative position", lambda m: change(m, positions=np.array([0, 1, 2, 3, 4, -1]))),
    ("too few rows", lambda m: change(m, membership=phi_of(m)[:5])),
    ("too many rows", lambda m: change(m, membership=np.vstack([phi_of(m), phi_of(m)[:1]]))),
    ("too many clusters", lambda m: change(m, membership=np.hstack([phi_of(m)] * 2))),
    ("no clusters", lambda m: change(m, membership=phi_of(m)[:, :0])),
    ("a row without a cluster", lambda m: change(m, membership=phi_of(m) & (np.arange(6) > 0)[:, None])),
    ("no phi where it was asked for", lambda m: change(m, membership=None)),
]


@pytest.mark.parametrize(("name", "forge"), FORGED_PHI, ids=[name for name, _ in FORGED_PHI])
@pytest.mark.parametrize("mode", SYSTEM.modes)
def test_a_forged_phi_is_refused_and_the_round_skipped(name: str, forge: Callable, mode: str) -> None:
    run = two_groups(mode=mode)
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
    ("signature flipped", lambda csp, m: change(m, signature=flipped(m.signature))),
    ("count signature flipped", lambda csp, m: change(m, count_signature=flipped(m.count_signature))),
    ("ciphertext flipped", lambda csp, m: change(m, cipher=flipped(m.cipher, 60))),
    ("wrong count", lambda csp, m: resigned(csp, change(m, count=2))),
    ("wrong round", lambda csp, m: resigned(csp, change(m, round=2))),
    ("wrong cluster", lambda csp, m: resigned(csp, change(m, cluster=1))),
    ("a sum of two", lambda csp, m: resigned(csp, change(m, cipher=of_terms(csp, m, 2)))),
    ("without masks", lambda csp, m: resigned(csp, change(m, cipher=fresh(csp, m)))),
    ("truncated", lambda csp, m: resigned(csp, change(m, cipher=m.cipher[:-1]))),
    ("empty", lambda csp, m: resigned(csp, change(m, cipher=b""))),
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


def test_a_conversion_of_another_number_of_models_than_announced_is_refused() -> None:
    run = two_groups(mode="hardened", sketch_dim=16)
    on_the_wire(run.transport, Convert, lambda m: change(m, count=m.count + 1))
    note = run.round(1)
    assert run.refusals("csp", "Convert") == 2
    assert set(note["clusters"]["unreleased"]) == {"0", "1"}


def test_a_blinded_vector_of_another_length_is_refused() -> None:
    run = two_groups()
    key = run.hub.keys.public("service")
    short = key.encrypt(np.zeros(39)).blind(key.mask(39, np.random.default_rng(0).bytes)).to_bytes()
    on_the_wire(run.transport, Relayed, lambda m: change(m, cipher=short) if m.position == 0 else m)
    assert len(run.round(1)["left_out"]) == 1
    assert run.refusals("csp", "Relayed") == 1


def test_a_vector_counts_once_in_a_sum_however_often_it_is_named() -> None:
    """Else the service would sign for three participants a sum that has one model in it."""
    run = two_groups()
    lies = on_the_wire(run.transport, Aggregate, lambda m: change(m, positions=np.repeat(m.positions[:1], 3)))
    assert set(run.round(1)["clusters"]["unreleased"]) == {"0", "1"}
    assert run.refusals("csp", "Aggregate") == len(lies) == 2


@pytest.mark.parametrize("positions", [[], [99], [-1]])
def test_a_sum_over_positions_that_are_not_there_is_refused(positions: list[int]) -> None:
    run = two_groups()
    on_the_wire(run.transport, Aggregate, lambda m: change(m, positions=np.array(positions, np.int64)))
    assert set(run.round(1)["clusters"]["unreleased"]) == {"0", "1"}
    assert run.refusals("csp", "Aggregate") == 2


# -- cluster models ----------------------------------------------------------------------------------------------------

FORGED_MODEL: list[tuple[str, Callable[[Rig, ClusterModel], ClusterModel]]] = [
    ("the business server's signature", lambda run, m: change(m, signature=flipped(m.signature))),
    (
        "the service's signature",
        lambda run, m: signed(run.hub.own, change(m, count_signature=flipped(m.count_signature))),
    ),
    ("both swapped", lambda run, m: change(m, signature=m.count_signature, count_signature=m.signature)),
    ("the ciphertext", lambda run, m: change(m, cipher=flipped(m.cipher, 60))),
    ("the count", lambda run, m: change(m, count=m.count + 1)),
    ("no count", lambda run, m: change(m, count=0)),
    ("the round", lambda run, m: change(m, round=m.round + 1)),
    ("the cluster", lambda run, m: change(m, cluster=m.cluster + 1)),
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


# -- enrolment ---------------------------------------------------------------------------------------------------------


def test_only_the_key_centre_grants_keys() -> None:
    """A participant that hands the service what it was granted itself is refused, and no key changes."""
    run = two_groups()
    keys = run.party("csp").keys.own_bytes(SERVICE)
    mine = next(m for _, m in run.view("client/2").messages(Granted))
    misbehaving(run.party("client/2"), Train, lambda p, r, upload: to("business_server", upload) + to("csp", mine))
    note = run.rounds(2)[-1]
    assert note["participants"] == 6
    assert run.party("csp").keys.own_bytes(SERVICE) == keys
    assert run.refusals("csp", "Granted") == 1


@pytest.mark.parametrize("deal", [Deal(1, "", ""), Deal(2, "", ""), Deal(2, USER, "client/2"), Deal(2, SERVICE, "")])
def test_a_participant_that_asks_for_keys_is_refused_and_nobody_gets_new_ones(deal: Deal) -> None:
    run = two_groups()
    issued = run.party("client/0").keys.own_bytes(USER), run.party("csp").keys.own_bytes(SERVICE)
    misbehaving(run.party("client/2"), Train, lambda p, r, upload: to("business_server", upload) + to(KEY_CENTRE, deal))
    assert run.rounds(2)[-1]["participants"] == 6
    assert dict(run.refused) == {"key_centre/Deal: a Deal from client/2; only the hub may send one": 1}
    assert (run.party("client/0").keys.own_bytes(USER), run.party("csp").keys.own_bytes(SERVICE)) == issued


def test_a_set_up_in_which_a_participant_refuses_its_keys_says_how_many_are_missing() -> None:
    def refuse(party: Any, message: Granted, ready: Any) -> None:
        raise PeerError("no keys for me")

    with pytest.raises(RunError, match="business_server waits for 7 Ready, has 6"):
        bad_set_up(Granted, refuse)


def test_saying_ready_twice_stands_for_nobody_else() -> None:
    """client/0 says so twice, and once for a dealing that never was."""
    run = bad_set_up(Granted, lambda p, m, answer: to("business_server", Ready(2, ""), Ready(1, ""), Ready(1, "")))
    assert run.refusals("business_server", "Ready") == 2
    assert run.round(1)["participants"] == 6


def bad_set_up(kind: type, answer: Callable) -> Rig:
    """A set-up in which client/0 misbehaves from the start."""
    return rig(SYSTEM, TARGETS, clusters=2, wrap=lambda made: misbehaving(made.parties["client/0"], kind, answer))


# -- the wrong way round -----------------------------------------------------------------------------------------------
