"""Grants of a key centre: who gets which keys, once a dealing, signed and sealed; dealt again when members change."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import msgspec
import numpy as np
import pytest
from federation import Rig, misbehaving, rig, to
from hypothesis import given
from hypothesis import strategies as st
from tampering import flipped

import coterie.method as fl
from coterie.crypto.ckks import keygen as ckks_keygen
from coterie.crypto.keys import evaluation_key
from coterie.crypto.roster import signing_key
from coterie.protocol.codec import content
from coterie.protocols import key_centre

CLIENTS = tuple(f"client/{i}" for i in range(4))
EVERYBODY = ("hub", "helper", *CLIENTS)
change = msgspec.structs.replace


class Hub(fl.Party, role="hub"):
    keys = key_centre.Keys(object, object)


class Helper(fl.Party, role="helper"):
    keys = key_centre.HeldKeys(object, object)


class Client(fl.Party, role="client"):
    keys = key_centre.HeldKeys(object, object)


def xor(parts: Sequence[bytes]) -> bytes:
    return reduce(lambda a, b: bytes(x ^ y for x, y in zip(a, b, strict=True)), parts)


@dataclass(frozen=True)
class Shares(key_centre.Grant):
    """32 secret bytes as the exclusive or of three clients' shares; their hash stands for a public key."""

    def holders(self, roster: Any) -> tuple[str, ...]:
        return CLIENTS[:3]

    def deal(self, holders: Sequence[str], draw: key_centre.Draw, *, emulated: bool) -> key_centre.DealtKeys:
        if len(holders) < 2:
            raise fl.PeerError(f"{self.name} is shared by at least 2 parties, not by {len(holders)}")
        *some, key = (draw(f"{self.name} {holder}").bytes(32) for holder in holders)
        shares = [*some, xor([key, *some])]
        return key_centre.DealtKeys(dict(zip(holders, shares, strict=True)), {"": hashlib.sha256(key).digest()})


ONE = key_centre.Pair("one", "client", partial(ckks_keygen, "ckks-4096-add"))
OWN = key_centre.Pair("own", "client", partial(ckks_keygen, "ckks-4096-add"), each=True)
WORK = key_centre.Pair("work", "helper", partial(ckks_keygen, "ckks-8192-deep"), works="hub")
SEED = key_centre.Seed("seed", "client")
SHARES = Shares("shares", "client")
GRANTS = (ONE, OWN, WORK, SEED, SHARES)


def system(grants: Sequence[key_centre.Grant]) -> fl.System:
    def centre(own: Any, common: Any, config: Any) -> fl.Party:
        return key_centre.KeyCentre(own, common, grants)

    return fl.System(
        name="granted",
        title="Granted",
        citation="none",
        config=fl.LocalTraining,
        parties=lambda config: {"hub": Hub, key_centre.KEY_CENTRE: centre, "helper": Helper, "client": Client},
        models=lambda federation: {},
        encrypted=True,
    )


def granted(*grants: key_centre.Grant, **options: Any) -> Rig:
    return rig(system(grants or GRANTS), np.zeros((len(CLIENTS), 6)), fresh_keys=True, **options)


def held(run: Rig, name: str) -> dict[str, bytes]:
    """SECRET: all that a party has been granted, as ``secret NAME`` and ``public NAME``."""
    keys = run.party(name).secret.keys
    secret = {f"secret {one}": data for one, data in keys.secret.items()}
    return {**secret, **{f"public {one}": data for one, data in keys.public.items()}}


def shares(run: Rig, *names: str) -> list[bytes]:
    return [run.party(name).keys.own_bytes("shares") for name in names]


def again(run: Rig, r: int, grant: str, *holders: str) -> None:
    run.transport.drive(key_centre.deal_again(run.hub, grant, holders), r)


def given_to(run: Rig, name: str, number: int = 1) -> key_centre.Granted:
    """The genuine message of one dealing, from its recipient's view."""
    return next(m for _, m in run.view(name).messages(key_centre.Granted) if m.number == number)


# -- who gets what -----------------------------------------------------------------------------------------------------


def test_everybody_has_what_it_may_hold_and_nothing_else() -> None:
    run = granted()
    public = {"public one", "public work", "public shares"}
    others = {f"public own {name}" for name in CLIENTS}
    assert held(run, "hub").keys() == public | others | {"public work evaluation"}
    assert held(run, "helper").keys() == public | others | {"secret work"}
    for name in CLIENTS:
        secret = {"secret one", "secret own", "secret seed"} | ({"secret shares"} if name in CLIENTS[:3] else set())
        assert held(run, name).keys() == public | {f"public own {name}"} | secret


@pytest.mark.parametrize("emulated", [True, False], ids=["emulated", "real"])
def test_public_and_secret_halves_fit(emulated: bool) -> None:
    run = granted(ONE, OWN, emulated=emulated)
    clients = [run.party(name) for name in CLIENTS]
    assert len({client.keys.own_bytes("one") for client in clients}) == 1
    assert len({client.keys.own_bytes("own") for client in clients}) == len(CLIENTS)
    for who in (run.hub, run.party("helper"), *clients):
        assert who.keys.public("one").to_bytes() == clients[0].keys.own("one").public.to_bytes()
    for client in clients:
        mine = client.keys.own("own").public.to_bytes()
        for who in (run.hub, run.party("helper"), client):
            assert who.keys.public(f"own {client.name}").to_bytes() == mine
        cipher = run.hub.keys.public(f"own {client.name}").encrypt(np.arange(6.0))
        assert np.abs(client.keys.own("own").decrypt(cipher) - np.arange(6)).max() < 1e-3


def test_only_the_role_that_works_on_ciphertexts_gets_what_products_need() -> None:
    run = granted(WORK)
    assert run.hub.keys.public("work").products
    assert evaluation_key(run.hub.secret.keys.public["work evaluation"])
    for name in ("helper", *CLIENTS):
        assert not run.party(name).keys.public("work").products
    assert run.party("helper").keys.own("work").public.fingerprint == run.hub.keys.public("work").fingerprint


def test_a_seed_is_one_for_all_of_its_role() -> None:
    run = granted(SEED)
    (seed,) = {run.party(name).keys.own_bytes("seed") for name in CLIENTS}
    assert len(seed) == 32
    assert not held(run, "hub")
    assert not held(run, "helper")


def test_all_shares_make_the_key_and_fewer_do_not() -> None:
    run = granted(SHARES)
    public = run.hub.secret.keys.public["shares"]
    assert hashlib.sha256(xor(shares(run, *CLIENTS[:3]))).digest() == public
    assert hashlib.sha256(xor(shares(run, *CLIENTS[:2]))).digest() != public
    assert len(set(shares(run, *CLIENTS[:3]))) == 3


def test_a_party_without_a_key_says_so() -> None:
    run = granted(ONE)
    for read in (run.hub.keys.own, run.hub.keys.own_bytes):
        with pytest.raises(fl.PeerError, match="not provided with keys yet: hub has no one"):
            read("one")
    with pytest.raises(fl.PeerError, match="hub has no two"):
        run.hub.keys.public("two")


def test_the_key_centre_keeps_no_key() -> None:
    run = granted()
    centre = run.party(key_centre.KEY_CENTRE)
    assert type(centre.state).__struct_fields__ == ("dealt",)
    assert centre.state.dealt == {grant.name: 1 for grant in GRANTS}
    assert type(centre.secret).__struct_fields__ == ()
    secrets = {data for name in EVERYBODY for one, data in held(run, name).items() if one.startswith("secret")}
    kept = repr({name: value for name, value in vars(centre).items() if name not in ("own", "common")})
    assert len(secrets) == 1 + 4 + 1 + 1 + 3
    assert not any(repr(secret)[2:30] in kept for secret in secrets)


def test_whatever_the_hub_relays_is_sealed_and_shows_no_secret() -> None:
    crossing: list[tuple[Any, bytes]] = []

    def tap(envelope: Any, frame: bytes) -> list[bytes]:
        crossing.append((envelope, bytes(content(frame))))
        return [frame]

    run = granted(OWN, SEED, SHARES, emulated=False, intercept=tap)
    again(run, 1, "shares", *CLIENTS[1:])
    secrets = {run.party(name).keys.own_bytes("own")[40:140] for name in CLIENTS}  # of the secret polynomial
    secrets |= {run.party("client/0").keys.own_bytes("seed"), *shares(run, *CLIENTS[1:])}
    assert len(secrets) == 4 + 1 + 3
    relayed = [(envelope, frame) for envelope, frame in crossing if "hub" not in (envelope.src, envelope.dst)]
    assert {envelope.kind for envelope, _ in relayed} == {"Granted"}
    assert len(relayed) == 2 * 5
    assert all(envelope.sealed for envelope, _ in relayed)
    assert not any(secret in frame for _, frame in crossing for secret in secrets)
    assert {seen.message for seen in run.view("hub").seen if seen.dst != "hub"} == {None}
    assert run.view(key_centre.KEY_CENTRE).kinds() == {"Deal"}


# -- dealt again -------------------------------------------------------------------------------------------------------


def test_dealt_again_among_others() -> None:
    """New shares of a new key; who isn't among the holders has none left, and nobody loses anything else."""
    run = granted()
    before, old = {name: held(run, name) for name in EVERYBODY}, shares(run, *CLIENTS[:3])
    again(run, 1, "shares", "client/3", "client/1")
    assert not run.refused
    new, public = shares(run, "client/3", "client/1"), run.hub.secret.keys.public["shares"]
    assert hashlib.sha256(xor(new)).digest() == public != before["hub"]["public shares"]
    assert not set(new) & set(old)
    for name in EVERYBODY:
        now = held(run, name)
        assert ("secret shares" in now) == (name in ("client/3", "client/1"))
        assert now.pop("public shares") == public
        now.pop("secret shares", None)
        assert now == {one: data for one, data in before[name].items() if not one.endswith(" shares")}


def test_every_grant_counts_its_own_dealings() -> None:
    run = granted()
    for r in (1, 2):
        again(run, r, "shares", *CLIENTS[:2])
    again(run, 3, "seed", *CLIENTS[:1])
    again(run, 4, "one")
    dealt = {"": 1, "shares": 3, "seed": 2, "one": 2}
    assert all(run.party(name).secret.keys.dealt == dealt for name in EVERYBODY)
    assert run.party(key_centre.KEY_CENTRE).state.dealt == {
        **dict.fromkeys(("one", "own", "work", "seed", "shares"), 1)
    } | {grant: number for grant, number in dealt.items() if grant}
    assert [name for name in CLIENTS if "secret seed" in held(run, name)] == ["client/0"]
    assert all("secret one" in held(run, name) for name in CLIENTS)  # nobody was named: those of the grant itself


def test_a_pair_of_ones_own_is_dealt_again_to_those_who_stay() -> None:
    run = granted(OWN)
    before = {name: held(run, name)["secret own"] for name in CLIENTS}
    again(run, 1, "own", *CLIENTS[:2])
    assert held(run, "hub").keys() == {"public own client/0", "public own client/1"}
    for name in CLIENTS[:2]:
        assert held(run, name)["secret own"] != before[name]
        assert run.hub.keys.public(f"own {name}").to_bytes() == run.party(name).keys.own("own").public.to_bytes()
    assert held(run, "client/3").keys() == held(run, "hub").keys()


# -- deals that are refused --------------------------------------------------------------------------------------------

DEALS = [
    (key_centre.Deal(1, "", ""), "dealing 1 of one after 1"),
    (key_centre.Deal(1, "shares", ""), "dealing 1 of shares after 1"),
    (key_centre.Deal(0, "shares", ""), "dealing 0 of shares after 1"),
    (key_centre.Deal(3, "shares", ""), "dealing 3 of shares after 1"),
    (key_centre.Deal(2, "other", ""), "there is no grant 'other'"),
    (key_centre.Deal(2, "shares", "client/0\nclient/9"), "'client/9' is not on the roster"),
    (key_centre.Deal(2, "shares", "client/0\n"), "'' is not on the roster"),
    (key_centre.Deal(2, "shares", "client/0\nclient/0"), "the holders of one grant, each once"),
    (key_centre.Deal(2, "", "client/0"), "the holders of one grant, each once"),
    (key_centre.Deal(2, "shares", "client/0"), "shares is shared by at least 2 parties, not by 1"),
    (key_centre.Deal(2, "shares", "hub\nclient/0"), "hub may not hold shares: it is for a client"),
    (key_centre.Deal(2, "one", "hub"), "hub may not hold one: it is for a client"),
    (key_centre.Deal(2, "seed", "client/0\nhelper"), "helper may not hold seed: it is for a client"),
    (key_centre.Deal(2, "work", key_centre.KEY_CENTRE), "key_centre may not hold work: it is for a helper"),
]


def asks_for(*deals: key_centre.Deal) -> fl.Steps[None]:
    """The hub's wishes, and time until all that is under way has arrived."""
    for deal in deals:
        yield from fl.post({key_centre.KEY_CENTRE: deal})
    yield from fl.take(key_centre.Ready, lambda name, ready: None, until_s=100)


def test_a_deal_that_may_not_be_is_refused_and_changes_nothing() -> None:
    run = granted()
    before, dealt = {name: held(run, name) for name in EVERYBODY}, dict(run.party(key_centre.KEY_CENTRE).state.dealt)
    for r, (deal, reason) in enumerate(DEALS, 1):
        run.refused.clear()
        run.transport.drive(asks_for(deal), r)
        (refused,) = run.refused
        assert refused.startswith(f"key_centre/Deal: {reason}")
        assert {name: held(run, name) for name in EVERYBODY} == before
        assert run.party(key_centre.KEY_CENTRE).state.dealt == dealt


def test_only_the_hub_may_ask_for_keys() -> None:
    run = granted()
    shares_of = shares(run, *CLIENTS[:3])
    ask = to(key_centre.KEY_CENTRE, key_centre.Deal(2, "shares", "client/1\nclient/2"))
    misbehaving(run.party("client/1"), key_centre.Granted, lambda party, message, ready: (ready, *ask))
    run.transport.drive(asks_for(key_centre.Deal(2, "seed", "")), 1)
    assert dict(run.refused) == {"key_centre/Deal: a Deal from client/1; only the hub may send one": 1}
    assert shares(run, *CLIENTS[:3]) == shares_of


@pytest.mark.parametrize(
    "ready",
    [(key_centre.Ready(1, ""),), (key_centre.Ready(3, ""),), ()],
    ids=["of another dealing", "of a later one", "none"],
)
def test_a_dealing_for_which_not_everybody_is_ready_ends_with_a_reason(ready: tuple[key_centre.Ready, ...]) -> None:
    run = granted()
    misbehaving(run.party("client/1"), key_centre.Granted, lambda party, message, honest: to("hub", *ready))
    with pytest.raises(fl.RunError, match="hub waits for 5 Ready, has 4"):
        again(run, 1, "shares", *CLIENTS[:2])


def test_a_pair_for_each_party_has_no_products() -> None:
    with pytest.raises(TypeError, match="products need one pair for a role"):
        key_centre.Pair("one", "client", lambda **_: None, each=True, works="hub")


# -- grants that are refused -------------------------------------------------------------------------------------------


def refuses(
    run: Rig, name: str, message: key_centre.Granted, reason: str, error: type[fl.PeerError] = fl.PeerError
) -> None:
    party = run.party(name)
    before = copy.deepcopy(party.secret)
    with pytest.raises(error, match=reason):
        party.keys.store(message)
    assert msgspec.to_builtins(party.secret) == msgspec.to_builtins(before)


FORGED: list[Callable[[key_centre.Granted], key_centre.Granted]] = [
    lambda m: change(m, number=m.number + 1),
    lambda m: change(m, grant="seed"),
    lambda m: change(m, names=m.names.replace("secret one", "public one x")),
    lambda m: change(m, names="", keys=fl.bundle([])),
    lambda m: change(m, keys=flipped(m.keys)),
    lambda m: change(m, signature=bytes([*m.signature[:-1], m.signature[-1] ^ 1])),
    lambda m: change(m, signature=b""),
]


def test_a_forged_grant_is_refused() -> None:
    run = granted(ONE, SEED, emulated=False)
    for forge in FORGED:
        refuses(run, "client/1", forge(given_to(run, "client/1")), "the signature is not one of key")


def test_a_grant_is_taken_once_and_none_that_is_older() -> None:
    run = granted()
    for r in (1, 2):
        again(run, r, "shares", *CLIENTS[:2])
    refuses(run, "client/1", given_to(run, "client/1"), "dealing 1 after 3: already provided with keys")
    refuses(run, "client/1", given_to(run, "client/1", 3), "dealing 3 after 3: already provided with keys")
    refuses(run, "client/1", given_to(run, "client/1", 2), "dealing 2 after 3: already provided with keys")


def test_a_grant_for_another_party_is_refused() -> None:
    run = granted()
    again(run, 1, "shares", *CLIENTS[:2])
    for number in (1, 2):
        refuses(run, "client/1", given_to(run, "client/0", number), "the signature is not one of key")


def signed(run: Rig, signer: str, recipient: str, session: bytes, items: Mapping[str, bytes]) -> key_centre.Granted:
    """What the key centre would sign as the second dealing of the seed."""
    names, keys = "\n".join(items), fl.bundle(list(items.values()))
    signature = signing_key(run.party(signer).own).sign("granted", session, recipient, 2, "seed", names, keys)
    return key_centre.Granted(2, "seed", names, keys, signature)


@pytest.mark.parametrize("signer", ["hub", "helper", "client/1", "client/2"])
def test_only_the_key_centres_signature_counts_and_only_in_its_session(signer: str) -> None:
    run = granted(SEED)
    session, items = run.common.roster.session, {"secret seed": bytes(32)}
    assert len(session) == 16
    refuses(run, "client/1", signed(run, signer, "client/1", session, items), "the signature is not one of key")
    elsewhere = signed(
        run, key_centre.KEY_CENTRE, "client/1", bytes(16), items
    )  # a federation with the same key centre
    refuses(run, "client/1", elsewhere, "the signature is not one of key")
    run.party("client/1").keys.store(signed(run, key_centre.KEY_CENTRE, "client/1", session, items))
    assert run.party("client/1").keys.own_bytes("seed") == bytes(32)


def test_what_is_malformed_under_a_good_signature_is_refused_too() -> None:
    run = granted(SEED)
    sign = partial(signed, run, key_centre.KEY_CENTRE, "client/1", run.common.roster.session)
    refuses(run, "client/1", sign({"private seed": b"x"}), "neither secret nor public")
    refuses(run, "client/1", sign({"secret seed": b"x", "": b"y"}), "neither secret nor public")
    refuses(run, "client/1", sign({"secret seed\nsecret x": b"x"}), "are no bundle of 2", fl.DecodeError)


def test_the_hub_refuses_what_others_give_out_as_grants() -> None:
    run = granted()
    mine = given_to(run, "client/1")
    misbehaving(run.party("client/1"), key_centre.Granted, lambda party, message, ready: (*to("hub", mine), ready))
    before = held(run, "hub")
    again(run, 1, "seed")
    run.transport.drive(fl.take(key_centre.Granted, lambda name, message: run.hub.keys.store(message), until_s=100), 2)
    assert dict(run.refused) == {"hub/Granted: Granted comes from a client, not from a key_centre": 1}
    assert held(run, "hub") == before


FLIPPED = granted(SEED)


@given(st.data())
def test_any_bit_of_a_grant_that_is_flipped_is_refused(data: st.DataObject) -> None:
    items, party = {"secret seed": bytes(range(32))}, FLIPPED.party("client/1")
    frame = bytearray(
        fl.codec.encode(signed(FLIPPED, key_centre.KEY_CENTRE, "client/1", FLIPPED.common.roster.session, items))
    )
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    before = copy.deepcopy(party.secret)
    with pytest.raises(fl.PeerError):
        party.keys.store(fl.codec.decode(bytes(frame), key_centre.Granted))
    assert party.secret == before
