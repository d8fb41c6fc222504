"""A hub relays what the key centre grants, and can hand out keys of its own instead: nobody takes them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import coterie.method as fl
from coterie.crypto import ckks, paillier
from coterie.crypto.ckks import keygen as ckks_keygen
from coterie.crypto.roster import signing_key
from coterie.protocols.key_centre import KEY_CENTRE, Granted, HeldKeys, Pair
from coterie.runs import Experiment, RunConfig, build, registry
from coterie.transport.envelope import Envelope
from tests.protocols.test_key_centre import SEED, given_to, granted, refuses, signed

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


def sent_again(experiment: Experiment, envelope: Envelope, frame: bytes, *, signed: bool) -> tuple[Envelope, bytes]:
    """Another frame in this envelope, sealed as anybody can. signed: as if the key centre had signed the envelope."""
    header = envelope.header()
    sealed = experiment.transport.hub.keyring.seal(envelope.src, envelope.dst, frame, header)
    if not signed:
        return envelope, sealed
    digest = hashlib.sha256(sealed).digest()
    signature = experiment.transport.hub.keyring.sign(envelope.src, header, digest)
    return msgspec.structs.replace(envelope, digest=digest, signature=signature), sealed


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("signer", ["a relay", "nobody", "the hub"])
def test_a_client_refuses_keys_that_the_key_centre_did_not_sign(name: str, signer: str) -> None:
    """The hub knows every party's sealing key, draws a pair and seals it to each client under the key centre's name.

    The envelope alone tells. Were it right, what is granted still has the key centre's own signature.
    """
    experiment = made(name)
    pair, hub = clients_pair(experiment), experiment.federation.parties[experiment.federation.hub]
    forged = pair.keygen(emulated=True, random_bytes=os.urandom)
    secret, public = forged.to_bytes(), forged.public.to_bytes()
    replaced: list[str] = []

    def relay(envelope: Any, frame: bytes) -> Sequence[Any]:
        if envelope.kind != Granted.__name__ or envelope.dst not in experiment.common.clients:
            return [frame]
        genuine = fl.codec.decode(
            experiment.transport.hub.keyring.open(envelope.src, envelope.dst, frame, envelope.header()), Granted
        )
        names = genuine.names.split("\n")  # the attack keeps all that it does not replace
        items = dict(zip(names, fl.unbundle(genuine.keys, len(names)), strict=True))
        assert f"secret {pair.name}" in items
        for item in items:
            if item.split(" ")[1] == pair.name:
                items[item] = secret if item.startswith("secret ") else public
        keys, signature = fl.bundle(list(items.values())), genuine.signature
        if signer == "the hub":
            session = experiment.common.roster.session
            fields = (session, envelope.dst, genuine.number, genuine.grant, genuine.names, keys)
            signature = signing_key(hub.own).sign("granted", *fields)
        changed = msgspec.structs.replace(genuine, keys=keys, signature=signature)
        replaced.append(envelope.dst)
        return [sent_again(experiment, envelope, fl.codec.encode(changed), signed=signer != "a relay")]

    experiment.transport.intercept = relay
    with pytest.raises(fl.RunError, match=r"waits for \d Ready, has \d"):  # clients that refuse are not ready
        experiment.set_up()
    experiment.close()
    assert sorted(replaced) == sorted(experiment.common.clients), "the attack did take place"
    assert not [client for client in replaced if holds(experiment, client, secret) or holds(experiment, client, public)]
    refused = {reason: n for reason, n in experiment.transport.meter.refused.items() if "/Granted: " in reason}
    assert list(refused.values()) == [4]
    why = "its payload is not the one that was sent" if signer == "a relay" else "the signature is not one of key"
    assert why in next(iter(refused))


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_hub_that_hands_one_client_what_another_was_granted_is_refused(name: str) -> None:
    """Genuine, and sealed anew in an envelope that the key centre has signed: a grant names its recipient itself."""
    experiment = made(name)
    first, second = experiment.common.clients[:2]
    kept: list[bytes] = []

    def relay(envelope: Any, frame: bytes) -> Sequence[Any]:
        if envelope.kind != Granted.__name__ or envelope.dst not in (first, second):
            return [frame]
        kept.append(experiment.transport.hub.keyring.open(envelope.src, envelope.dst, frame, envelope.header()))
        return [sent_again(experiment, envelope, kept[0], signed=True)]

    experiment.transport.intercept = relay
    with pytest.raises(fl.RunError, match=r"waits for \d Ready, has \d"):
        experiment.set_up()
    experiment.close()
    (refused,) = experiment.transport.meter.refused
    assert "/Granted: the signature is not one of key" in refused
    assert len(kept) == 2
    assert experiment.federation.parties[first].secret.keys.secret
    assert not experiment.federation.parties[second].secret.keys.secret


# -- a key centre that lies, or whose words come in another order ------------------------------------------------------


def test_the_first_dealing_of_all_does_not_undo_a_later_one() -> None:
    """A hub holds it back, and delivers it when a client has had a grant that was dealt again."""
    run = granted(SEED)
    party, session = run.party("client/1"), run.common.roster.session
    first = given_to(run, "client/1")
    party.secret.keys.dealt.clear()
    party.keys.store(signed(run, KEY_CENTRE, "client/1", session, {"secret seed": bytes(32)}))
    refuses(run, "client/1", first, "dealing 1 after 2: already provided with keys")
    assert party.keys.own_bytes("seed") == bytes(32)


class Scheming(fl.Party, role="client"):
    """Computes with CKKS."""

    keys = HeldKeys(ckks.PublicKey, ckks.SecretKey)


@pytest.mark.parametrize("emulated", [True, False], ids=["emulated", "real"])
def test_keys_of_no_use_here_are_refused_before_anything_is_done_with_them(emulated: bool) -> None:
    """Of another scheme, or emulated where all keys are real: what is encrypted under such a one is in the plain."""
    run = granted(SEED, emulated=emulated)
    wrong = [paillier.keygen(2048, emulated=emulated), ckks_keygen(emulated=not emulated)]
    for number, key in enumerate(wrong, 2):
        items = {"secret seed": key.to_bytes(), "public seed": key.public.to_bytes()}
        names, keys = "\n".join(items), fl.bundle(list(items.values()))
        fields = run.common.roster.session, "client/1", number, "seed", names, keys
        signature = signing_key(run.party(KEY_CENTRE).own).sign("granted", *fields)
        party = Scheming(run.owns["client/1"], run.common, None)
        party.keys.store(Granted(number, "seed", names, keys, signature))
        for use in (party.keys.own, party.keys.public):
            with pytest.raises(
                fl.PeerError, match=r"client/1 was granted .* as seed, which is no key for this federation"
            ):
                use("seed")


def test_what_was_granted_is_in_no_repr() -> None:
    run = granted(SEED)
    party, message = run.party("client/1"), given_to(run, "client/1")
    seed = party.keys.own_bytes("seed")
    dealt = SEED.deal(("client/1",), lambda purpose: SimpleNamespace(bytes=lambda n: seed), emulated=True)
    for shown in (repr(party.secret), repr(party.secret.keys), repr(message), repr(dealt), repr(run.view("client/1"))):
        assert repr(seed)[2:-1] not in shown
        assert seed.hex() not in shown
