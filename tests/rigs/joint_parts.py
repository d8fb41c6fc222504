"""Federations whose only purpose is a joint key: a hub, a helper and clients, all of whom may hold shares of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np
import pytest
from federation import Rig, rig
from prepared import begun

import coterie.method as fl
from coterie.crypto import ckks, threshold, wire
from coterie.crypto.threshold import Group
from coterie.crypto.threshold_halves import Half
from coterie.crypto.threshold_pads import SumRequest
from coterie.protocol.codec import content
from coterie.protocols.key_centre import KEY_CENTRE, HeldKeys, KeyCentre, Keys
from coterie.protocols.threshold import (
    Joint,
    JointGrant,
    JointKeys,
    JointPads,
    KeyMaking,
    KeyOpening,
    SignedSum,
    loaded,
    make_keys,
    open_sums,
    padding,
    taken,
    vouched,
)
from coterie.protocols.threshold import keys as threshold_keys
from coterie.protocols.threshold.halves import signed
from coterie.protocols.threshold.keys import Consent, HubKey, text
from coterie.protocols.threshold.opening import Announce, Decrypt, Partials

SMALL = "insecure-1024-threshold-sum"
PRODUCTS = "insecure-1024-threshold-mul"
CLIENTS = tuple(f"client/{i}" for i in range(5))
HOLDERS = CLIENTS[:4]
KEY = "sum"
VECTORS = np.random.default_rng(0).normal(size=(3, 700))
SIZE = 1500
MODELS = dict(zip(HOLDERS, np.random.default_rng(0).normal(size=(4, SIZE)), strict=True))
VALUES = np.random.default_rng(1).normal(size=(5, 1100))
ALL = dict.fromkeys(CLIENTS, 1)
BOTH = pytest.mark.parametrize("emulated", [True, False], ids=["emulated", "real"])


@contextmanager
def small_keys() -> Iterator[None]:
    """Keys of an eighth of the degree, without security, are taken."""
    split = wire.split_key
    small = partial(Group, allow_insecure=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threshold_keys, "Group", small)
        patch.setattr(wire, "split_key", lambda *given: split(*given[:-1], True))
        yield


@dataclass(frozen=True)
class Config(fl.LocalTraining):
    """threshold, dealer, products, scalars, pads, effective, fewest, least, sums, openings: of the joint key."""

    threshold: int = 0
    dealer: bool = False
    products: bool = False
    scalars: int = 0
    pads: bool = False
    effective: float = 0.0
    fewest: int = 2
    least: int = 2
    sums: int = 1
    openings: int = 4096


def declared(party: Any) -> tuple[Joint, ...]:
    c = party.config
    chosen = PRODUCTS if c.products else SMALL
    limits = {"threshold": c.threshold, "least": c.least, "fewest": c.fewest, "openings": c.openings}
    sums = {"scalars": c.scalars, "pads": c.pads, "effective": c.effective, "sums": c.sums}
    return (Joint(KEY, chosen, ("client", "helper"), dealer=c.dealer, products=c.products, **sums, **limits),)


class Hub(fl.Party, role="hub"):
    keys, joint = Keys(ckks.PublicKey, ckks.SecretKey), JointKeys(declared)


class Helper(fl.Party, role="helper"):
    keys, joint = HeldKeys(ckks.PublicKey, ckks.SecretKey), JointKeys(declared)
    making, opening, pads = KeyMaking(), KeyOpening(), JointPads()


class Client(fl.Party, role="client"):
    keys, joint = HeldKeys(ckks.PublicKey, ckks.SecretKey), JointKeys(declared)
    making, opening, pads = KeyMaking(), KeyOpening(), JointPads()


def parties(config: Config) -> dict[str, Any]:
    def centre(own: Any, common: Any, given: Config) -> KeyCentre:
        (joint,) = declared(type("Party", (), {"config": given}))
        return KeyCentre(own, common, [JointGrant(KEY, "client", joint, HOLDERS, "hub")])

    dealer = {KEY_CENTRE: centre} if config.dealer else {}
    return {"hub": Hub, **dealer, "helper": Helper, "client": Client}


SYSTEM = fl.System(
    name="joint",
    title="Joint",
    citation="none",
    config=Config,
    parties=parties,
    models=lambda federation: {},
    encrypted=True,
)


def joint(**options: Any) -> Rig:
    """Five clients and a helper, who have no joint key yet."""
    return rig(SYSTEM, np.zeros((len(CLIENTS), 6)), **options)


def drive(run: Rig, steps: Any, r: int = 1) -> Any:
    return run.transport.drive(steps, r)


def made(
    run: Rig, holders: Sequence[str] = HOLDERS, r: int = 0, deadline_s: float | None = None, **options: Any
) -> Any:
    return drive(run, make_keys(HubKey(run.hub, KEY, r, deadline_s), holders, **options), r)


def keyed(**options: Any) -> Rig:
    """A federation whose first four clients have made a key."""

    def make() -> Rig:
        run = joint(**options)
        made(run)
        return run

    if not all(isinstance(value, int | float | str) for value in options.values()):
        return make()  # somebody on the wire, say, who is there from the beginning
    return begun(f"joint key, {sorted(options.items())}, {threshold_keys.Group}", make)


def summed(run: Rig, *vectors: np.ndarray, r: int = 1) -> SignedSum:
    """The encrypted sum of round r: of each client one vector, which it has signed."""
    return reduce(add, (upload(run, name, vector, r) for name, vector in zip(CLIENTS, vectors, strict=False)))


def upload(run: Rig, name: str, vector: np.ndarray, r: int = 1, part: int = 0) -> SignedSum:
    """A client's signed vector, as the hub takes it."""
    cipher = run.hub.keys.public(KEY).encrypt(vector)
    return taken(
        HubKey(run.hub, KEY, r), name, vouched(run.party(name), KEY, cipher, r, part=part), len(vector), part=part
    )


def of_round(run: Rig, total: Any, r: int) -> Any:
    """The same sum, signed for this round; of a key whose holders are given c_1, the ciphertext alone."""
    if not isinstance(total, SignedSum) or run.hub.joint.of(KEY).given:
        return getattr(total, "cipher", total)
    halves, weights = total.terms()
    again = ((signed(run.party(name), KEY, half, r), weights[name]) for name, half in halves.items())
    return SignedSum(total.cipher, tuple(again))


def opened(run: Rig, cipher: Any, r: int = 1, number: int = 0, **options: Any) -> Any:
    return drive(run, open_sums(HubKey(run.hub, KEY, r), {number: of_round(run, cipher, r)}, **options), r)[number]


def uploads(run: Rig, r: int = 1) -> dict[str, SignedSum]:
    """Every client's signed vector."""
    return {name: upload(run, name, row, r) for name, row in zip(CLIENTS, VALUES, strict=True)}


def halves(sent: Mapping[str, SignedSum]) -> dict[str, Half]:
    return {name: one.terms()[0][name] for name, one in sent.items()}


def lying(
    run: Rig,
    sums: Sequence[Mapping[str, int]],
    of: Mapping[str, Half],
    senders: int = 0,
    r: int = 1,
    among: Sequence[str] = HOLDERS,
    first: int = 0,
) -> list[bool]:
    """A hub that has these weighted sums opened, numbered from ``first``. senders: that it states.

    Returns whether holders answered each.
    """
    group, key = run.hub.joint.group(KEY), run.hub.keys.public(KEY)
    answered: list[bool] = []

    def steps() -> Any:
        for number, weights in enumerate(sums, first):
            row = np.array([number, senders or max(3, len(weights)), len(VALUES[0])])
            yield from fl.for_each(dict.fromkeys(among, Announce(r, KEY, 1, row)), Consent, lambda *_: None)
            some = {name: of[name] for name in weights}
            request = SumRequest.of(group, key, some, weights, bytes([number] * 32))
            given = fl.bundle([half.to_bytes(group) for half in some.values()])
            ask = Decrypt(r, KEY, 1, text(among), np.array([number]), fl.bundle([request.to_bytes()]), given)
            got = yield from fl.for_each(dict.fromkeys(among, ask), Partials, lambda *_: None)
            answered.append(bool(got.got))

    drive(run, steps(), r)
    return answered


class Fresh(fl.Randomness):
    """Secrets from the operating system, as in a real run."""

    def secrets(self, party: str, purpose: str, round: int = 0, attempt: int = 0) -> fl.Secrets:
        return fl.Secrets(None)


def sent(run: Rig, r: int = 1, senders: tuple[str, ...] = HOLDERS, among: tuple[str, ...] = ()) -> dict[str, Any]:
    """The senders' padded models, as the hub reads them."""
    uploads = {}
    for name in senders:
        data = padding(run.party(name), KEY, r, among).encrypt(MODELS[name]).to_bytes()
        uploads[name] = loaded(HubKey(run.hub, KEY, r), name, data, SIZE, among)
    return uploads


def weighted_sum(weights: Mapping[str, int]) -> np.ndarray:
    return np.sum([weight * MODELS[name] for name, weight in weights.items()], axis=0)


def held(run: Rig, name: str) -> Any:
    """SECRET: what a holder has of the key."""
    return run.party(name).secret.joint.held[KEY]


def opened_by(run: Rig, name: str) -> int:
    """How many ciphertexts a party has helped to open under the key."""
    return int(run.party(name).secret.joint.answered(KEY).ciphertexts)


def shares_of(run: Rig) -> dict[str, bytes]:
    """SECRET: all shares, by holder."""
    names = (*CLIENTS, "helper")
    return {name: held(run, name).share for name in names if KEY in run.party(name).secret.joint.held}


def false_share(run: Rig, name: str) -> None:
    """Its share is another number, as if it had been damaged, or made up."""
    group = run.hub.joint.group(KEY)
    share = threshold.Share.load(group, held(run, name).share)
    other = threshold.Share(group, group.plus(share.numbers[None], share.numbers[None])[0])
    held(run, name).share = other.to_bytes()


def no_secret(run: Rig, says: str) -> None:
    """No number of a share, a seed or a making is in what is said."""
    for name in HOLDERS:
        secrets = [bytes(content(shares_of(run).get(name, bytes(80))))[40:60]]
        secrets += (
            list(run.party(name).secret.joint.held[KEY].seeds.values())
            if KEY in run.party(name).secret.joint.held
            else []
        )
        assert not any(secret.hex() in says or repr(secret)[2:-1] in says for secret in secrets)


def within(values: np.ndarray, run: Rig, total: np.ndarray | None = None) -> bool:
    """Whether these are the opened sum of ``VECTORS``, up to the stated error."""
    expected = VECTORS.sum(axis=0) if total is None else total
    return bool(np.abs(values - expected).max() <= run.hub.joint.group(KEY).error(3))
