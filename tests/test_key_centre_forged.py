"""A hub relays what the key centre grants, and can hand out keys of its own instead: nobody takes them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from coterie.crypto.roster import signing_key
from coterie.protocol import codec
from coterie.protocol.bundle import bundle, unbundle
from coterie.protocol.errors import RunError
from coterie.protocols.key_centre import KEY_CENTRE, Granted, Pair
from coterie.runs import RunConfig, registry
from coterie.runs.experiment import Experiment, build

SETTINGS: dict[str, dict[str, Any]] = {"mingledpie": {"clusters": 3}}
SYSTEMS = ["fedcaprivacy", "mingledpie", "pafed"]


def made(name: str) -> Experiment:
    assert registry.get(name).encrypted
    settings = SETTINGS.get(name, {})
    return build(RunConfig(name, clients=4, rounds=1, partition="iid", crypto="emulated", settings=settings))


def holds(experiment: Experiment, name: str, key: bytes) -> bool:
    keys = experiment.federation.parties[name].secret.keys
    return key in keys.secret.values() or key in keys.public.values()


def clients_pair(experiment: Experiment) -> Pair:
    """The grant of which every client has a secret key."""
    (role,) = {experiment.common.roster.by_name[name].role for name in experiment.common.clients}
    grants = experiment.federation.parties[KEY_CENTRE].grants.values()
    (pair,) = (grant for grant in grants if isinstance(grant, Pair) and grant.role == role)
    return pair


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("signer", ["nobody", "the hub"])
def test_a_client_refuses_keys_that_the_key_centre_did_not_sign(name: str, signer: str) -> None:
    """The hub knows every party's sealing key, draws a pair and seals it to each client under the key centre's name."""
    experiment = made(name)
    pair, hub = clients_pair(experiment), experiment.federation.parties[experiment.federation.hub]
    forged = pair.keygen(emulated=True, random_bytes=os.urandom)
    secret, public = forged.to_bytes(), forged.public.to_bytes()
    replaced: list[str] = []

    def relay(envelope: Any, frame: bytes) -> Sequence[bytes]:
        if envelope.kind != Granted.__name__ or envelope.dst not in experiment.common.clients:
            return [frame]
        genuine = codec.decode(experiment.keyring.open(envelope.src, envelope.dst, frame, envelope.header()), Granted)
        names = genuine.names.split("\n")  # the attack keeps all that it does not replace
        items = dict(zip(names, unbundle(genuine.keys, len(names)), strict=True))
        assert f"secret {pair.name}" in items
        for item in items:
            if item.split(" ")[1] == pair.name:
                items[item] = secret if item.startswith("secret ") else public
        keys, signature = bundle(list(items.values())), genuine.signature
        if signer == "the hub":
            session = experiment.common.roster.session
            fields = (session, envelope.dst, genuine.number, genuine.grant, genuine.names, keys)
            signature = signing_key(hub.own).sign("granted", *fields)
        changed = msgspec.structs.replace(genuine, keys=keys, signature=signature)
        replaced.append(envelope.dst)
        return [experiment.keyring.seal(KEY_CENTRE, envelope.dst, codec.encode(changed), envelope.header())]

    experiment.transport.intercept = relay
    with pytest.raises(RunError, match=r"waits for \d Ready, has \d"):  # clients that refuse are not ready
        experiment.set_up()
    experiment.close()
    assert sorted(replaced) == sorted(experiment.common.clients), "the attack did take place"
    assert not [client for client in replaced if holds(experiment, client, secret) or holds(experiment, client, public)]
    refused = {reason: n for reason, n in experiment.transport.meter.refused.items() if "/Granted: " in reason}
    assert list(refused.values()) == [4]
    assert "its payload is not the one that was sent" in next(iter(refused))  # its envelope was signed, too


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_hub_that_hands_one_client_what_another_was_granted_is_refused(name: str) -> None:
    """Genuine, and sealed anew: the key centre's signatures name their recipient."""
    experiment = made(name)
    first, second = experiment.common.clients[:2]
    kept: list[bytes] = []

    def relay(envelope: Any, frame: bytes) -> Sequence[bytes]:
        if envelope.kind != Granted.__name__ or envelope.dst not in (first, second):
            return [frame]
        kept.append(experiment.keyring.open(envelope.src, envelope.dst, frame, envelope.header()))
        if envelope.dst == first:
            return [frame]
        return [experiment.keyring.seal(KEY_CENTRE, second, kept[0], envelope.header())]

    experiment.transport.intercept = relay
    with pytest.raises(RunError, match=r"waits for \d Ready, has \d"):
        experiment.set_up()
    experiment.close()
    assert len(kept) == 2
    assert experiment.federation.parties[first].secret.keys.secret
    assert not experiment.federation.parties[second].secret.keys.secret
