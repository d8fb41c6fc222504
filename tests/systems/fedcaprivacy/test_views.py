"""What every party sees is what the system says it sees: message types exactly, and no bytes that it may not have."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from fedcaprivacy_parts import where_they_count
from federation import Pulled, Rig, Steady, planted, rig

from coterie.crypto.keys import secret_key
from coterie.privacy.audits.fedcaprivacy import recorded_rounds
from coterie.privacy.views import granted
from coterie.protocol import codec
from coterie.protocol.errors import CryptoError, PeerError
from coterie.protocols.anonymous import SERVICE, Relayed
from coterie.protocols.cluster_sums import USER, ClusterModel, ClusterSum, Convert
from coterie.protocols.key_centre import KEY_CENTRE
from coterie.systems.fedcaprivacy import SYSTEM
from coterie.systems.fedcaprivacy.messages import CSP, GROUP, HUB, Upload

TARGETS = planted([0, 0, 0, 1, 1, 1], 40)
EVERY_ROUND = [("paper", "sketch"), ("literal", "sketch"), ("hardened", "sketch"), ("hardened", "rotation")]
VARIANTS = [*EVERY_ROUND, ("hardened", "signature")]


def recorded(mode: str, hardening: str = "sketch", *, emulated: bool = True, rounds: int = 3) -> Rig:
    """Rounds with and without a clustering, somebody away, somebody coming back."""
    shown = {"descriptor": "signature"} if hardening == "signature" else {"hardening": hardening, "sketch_dim": 16}
    options = where_they_count(mode=mode, schedule="every:2", **shown)
    run = rig(
        SYSTEM,
        TARGETS,
        emulated=emulated,
        clusters=2,
        effects=lambda targets: Pulled(targets, noise=0.02),
        links=Steady(away={("client/5", 2): "offline"}),
        **options,
    )
    run.rounds(rounds)
    return run


def frames(run: Rig, role: str) -> Iterator[bytes]:
    """Everything that the parties of a role could read, as bytes."""
    for view in run.transport.transcript.of_role(role):
        for seen in view.seen:
            if seen.message is not None:
                yield codec.encode(seen.message)


# -- bytes -------------------------------------------------------------------------------------------------------------


def holds(data: bytes, parts: set[bytes]) -> bool:
    return any(part in data for part in parts)


@pytest.mark.parametrize(("mode", "hardening"), VARIANTS)
def test_the_service_sees_no_names(mode: str, hardening: str) -> None:
    run = recorded(mode, hardening)
    for name in run.common.clients:
        assert not any(name.encode() in frame for frame in frames(run, CSP))
    assert {seen.src for seen in run.view(CSP).seen} == {HUB, KEY_CENTRE}


def test_the_business_server_can_open_nothing() -> None:
    """It holds no secret key; with one of its own making every ciphertext in its view is refused."""
    run = recorded("paper", emulated=False, rounds=1)
    assert all(name.startswith("public ") for name in granted(run.view(HUB)))
    stranger = rig(SYSTEM, TARGETS[:2], emulated=False, fresh_keys=True).party(CSP).keys.own(SERVICE)
    ciphers = [m.cipher for kind in (Upload, ClusterSum) for _, m in run.view(HUB).messages(kind)]
    for data in ciphers:
        with pytest.raises((PeerError, CryptoError)):
            stranger.decrypt(stranger.public.from_bytes(data))


def test_who_holds_which_secret() -> None:
    """sk_s: the service.  sk_u and the common seed: the participants.  Nobody holds both, the centre holds neither."""
    run = recorded("paper", rounds=1)
    given = {name: granted(run.view(name)) for name in (HUB, CSP, *run.common.clients)}
    for name in given:
        assert [seen.kind for seen in run.view(name).seen if seen.dst == name].count("Granted") == 1
    service, first = given[CSP][f"secret {SERVICE}"], given["client/0"]
    users, seed = first[f"secret {USER}"], first[f"secret {GROUP}"]
    assert service != users
    for name, keys in given.items():
        expected = {HUB: {}, CSP: {SERVICE: service}}.get(name, {USER: users, GROUP: seed})
        assert {one.split()[1]: key for one, key in keys.items() if one.startswith("secret")} == expected
        assert run.party(name).secret.keys.secret == expected
    assert secret_key(service).public.to_bytes() == given[HUB][f"public {SERVICE}"]
    assert secret_key(users).public.to_bytes() == given[HUB][f"public {USER}"]
    centre = repr(run.party(KEY_CENTRE).state) + repr(run.party(KEY_CENTRE).secret)
    for secret in (service, users, seed):
        assert repr(secret)[2:40] not in centre


def test_a_participant_gets_the_models_of_its_own_clusters_only() -> None:
    run = recorded("paper")
    for i, name in enumerate(run.common.clients):
        for r in (1, 2, 3):
            got = [m.cluster for _, m in run.view(name).messages(ClusterModel, r)]
            assert got == ([] if (i, r) == (5, 2) else [0] if i < 3 else [1])


# -- masks -------------------------------------------------------------------------------------------------------------


def words(run: Rig, cipher: bytes) -> np.ndarray:
    """What the service opens: fixed-point numbers under a mask, (m,) uint32, in an emulated run."""
    key = run.party(CSP).keys.own("service")
    return key.open_blinded(key.public.from_bytes(cipher)).array[0]


def test_the_mask_is_one_random_vector_and_a_fresh_one_in_every_round() -> None:
    """Not a number (subtracting a mean would take it off), and not the same twice (which would show what changed)."""
    run = recorded("paper")
    rounds = recorded_rounds(run.transport.transcript.views, run.common.clients, lambda rows, *_: rows)
    masks = []
    for one in rounds:
        integers = np.rint(one.models * 2**16).astype(np.int64).astype(np.uint32)
        shown = [words(run, m.cipher) for _, m in sorted(by_position(run, one.number))]
        found = {(a - b).tobytes() for a, b in zip(shown, integers, strict=True)}
        assert len(found) == 1  # common to all, so that differences are exact
        masks.append(np.frombuffer(found.pop(), np.uint32))
    for mask in masks:
        assert len(set(mask.tolist())) == 40
        assert mask.min() < 2**29
        assert mask.max() > 2**32 - 2**29
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert not (masks[i] == masks[j]).any()


def by_position(run: Rig, r: int) -> list[tuple[int, Relayed]]:
    return [(m.position, m) for _, m in run.view(CSP).messages(Relayed, r)]


@pytest.mark.parametrize("emulated", [True, False])
def test_no_sum_is_longer_than_another_for_those_who_carry_it(emulated: bool) -> None:
    """Keys of pads are as many as clients, so that a broker does not learn the sizes of clusters."""
    uneven = planted([0, 0, 0, 0, 1, 1], 40)
    run = rig(SYSTEM, uneven, mode="hardened", emulated=emulated, clusters=2, min_cluster=2, descriptor="model")
    run.round(1)
    sums = [m for _, m in run.view(CSP).messages(Convert, 1)]
    assert sorted(m.count for m in sums) == [2, 4]
    assert {len(m.cipher) for m in sums} == {len(sums[0].cipher)}


def test_in_sketch_mode_every_clusters_sum_has_a_mask_of_its_own() -> None:
    """With a common one the service would see the differences of cluster models."""
    run = recorded("hardened", rounds=1)
    masks = []
    for _, m in run.view(CSP).messages(Convert, 1):
        members = [run.party(name).state.weights for name, row in run.hub.state.phi.items() if row[m.cluster]]
        assert len(members) == m.count == 3
        total = np.rint(np.stack(members) * 65536.0).astype(np.int64).sum(axis=0)
        masks.append(words(run, m.cipher) - total.astype(np.uint32))
    assert len(masks) == 2
    assert not (masks[0] == masks[1]).any()
    assert all(len(set(mask.tolist())) == 40 for mask in masks)
