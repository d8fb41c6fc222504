"""A hub that relays credentials may put its own in their place: the key centre has not signed their envelope."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from coterie.protocol import codec
from coterie.protocol.errors import RunError
from coterie.protocols.key_centre import KEY_CENTRE, Credentials
from coterie.runs import RunConfig, registry
from coterie.runs.experiment import build

SETTINGS: dict[str, dict[str, Any]] = {"mingledpie": {"clusters": 3}}


class AcceptedError(Exception):
    """A client holds a key that the hub has drawn, and so opens."""


@pytest.mark.parametrize("name", ["fedcaprivacy", "mingledpie", "pafed"])
def test_a_client_refuses_credentials_that_the_key_centre_did_not_sign(name: str) -> None:
    """The hub knows every party's sealing key, draws a pair and seals it to each client under the key centre's name."""
    assert registry.get(name).encrypted
    made = build(
        RunConfig(name, clients=4, rounds=1, partition="iid", crypto="emulated", settings=SETTINGS.get(name, {}))
    )
    clients = made.setting.clients
    forged = made.federation.parties[KEY_CENTRE].pairs["user"].keygen(emulated=True, random_bytes=os.urandom)
    replaced: list[str] = []

    def relay(envelope: Any, frame: bytes) -> Sequence[bytes]:
        if envelope.kind != Credentials.__name__ or envelope.dst not in clients:
            return [frame]
        opened = made.keyring.open(envelope.src, envelope.dst, frame, envelope.header())
        genuine = codec.decode(opened, Credentials)  # for its other fields
        public = forged.public.to_bytes()
        changed = msgspec.structs.replace(
            genuine, secret_key=forged.to_bytes(), user_public=public, service_public=genuine.service_public and public
        )
        replaced.append(envelope.dst)
        return [made.keyring.seal(KEY_CENTRE, envelope.dst, codec.encode(changed), envelope.header())]

    made.transport.intercept = relay
    with contextlib.suppress(RunError):  # clients that refuse are not ready
        made.set_up()
    refused = [reason for reason in made.transport.meter.refused if "/Credentials:" in reason]
    holding = [n for n in clients if forged.to_bytes() in msgspec.structs.astuple(made.federation.parties[n].secret)]
    made.close()
    if sorted(replaced) != sorted(clients):
        pytest.fail("the attack itself did not take place")
    if holding:
        raise AcceptedError(f"{', '.join(holding)} took the hub's key for the key centre's")
    assert refused
