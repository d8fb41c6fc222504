"""Rosters and identities (``protocol/setup_info.py``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TypeVar

import msgspec
import numpy as np

import coterie.protocol.core as fl
from coterie.crypto.signing import Field, OpeningKey, SealingKey, SigningKey, VerifyKey

OPERATOR = "operator"
_SESSION_BYTES = 16
_PURPOSE = "roster"

S = TypeVar("S", bound=fl.Signed)


def new_identity(name: str, randomness: fl.Randomness) -> fl.Identity:
    signing = SigningKey.generate(randomness.secrets(name, "signing key").bytes)
    opening = OpeningKey.generate(randomness.secrets(name, "sealing").bytes)
    return fl.Identity(signing.to_bytes(), opening.to_bytes())


def entry(name: str, role: str, identity: fl.Identity) -> fl.Entry:
    signing, opening = SigningKey.load(identity.signing), OpeningKey.load(identity.opening)
    return fl.Entry(name, role, signing.public.to_bytes(), opening.public.to_bytes())


def sign_roster(entries: tuple[fl.Entry, ...], operator: SigningKey, session: bytes) -> fl.Roster:
    """Raises ValueError for a name that stands twice."""
    if len({one.name for one in entries}) < len(entries):
        raise ValueError("a roster names a party twice")
    roster = fl.Roster(session, entries, operator.public.to_bytes())
    return msgspec.structs.replace(roster, signature=operator.sign(_PURPOSE, _body(roster)))


def check_roster(roster: fl.Roster, operator: bytes) -> None:
    """Raises PeerError (a SignatureError) unless this operator has signed the roster, and DecodeError for bad keys."""
    if roster.operator != operator:
        raise fl.PeerError("the roster names another operator")
    VerifyKey.load(operator).verify(roster.signature, _PURPOSE, _body(roster))
    if len(roster.by_name) < len(roster.entries):
        raise fl.PeerError("the roster names a party twice")
    if not roster.entries or len(roster.session) != _SESSION_BYTES:
        raise fl.PeerError("the roster names no party, or no session")
    for one in roster.entries:
        VerifyKey.load(one.verify_key)
        SealingKey.load(one.sealing_key).seal(b"", one.name, one.name)


def _body(roster: fl.Roster) -> bytes:
    return msgspec.msgpack.encode(msgspec.structs.replace(roster, signature=b""))


def simulated(roles: Mapping[str, str], randomness: fl.Randomness) -> tuple[fl.Roster, dict[str, fl.Identity]]:
    """A simulation's roster, by an operator key that is forgotten, and all identities."""
    identities = {name: new_identity(name, randomness) for name in roles}
    operator = SigningKey.generate(randomness.secrets(OPERATOR, "signing key").bytes)
    session = randomness.secrets(OPERATOR, "session").bytes(_SESSION_BYTES)
    entries = tuple(entry(name, role, identities[name]) for name, role in roles.items())
    return sign_roster(entries, operator, session), identities


class DerivedRoster(fl.Roster, frozen=True, dict=True):
    """Of a simulation of very many clients: entries follow from the seed and are made when asked; nothing is signed.

    names: of all parties.  roles: by name.  randomness: emulated.
    """

    names: fl.Names = fl.Names(0)
    roles: Mapping[str, str] = msgspec.field(default_factory=dict)
    randomness: fl.Randomness = fl.Randomness(0, True)

    @cached_property
    def identities(self) -> Mapping[str, fl.Identity]:
        return fl.LazyMapping(self.names, lambda name: new_identity(name, self.randomness))

    @cached_property
    def by_name(self) -> Mapping[str, fl.Entry]:
        return fl.LazyMapping(self.names, lambda name: entry(name, self.roles[name], self.identities[name]))

    @property
    def hub(self) -> str:
        return self.names[0]

    @property
    def client_role(self) -> str:
        return self.roles[self.names[-1]]

    def of_role(self, role: str) -> Sequence[str]:
        if role == self.client_role:
            return self.names.numbered
        return tuple(name for name in self.names.first if self.roles[name] == role)


def derived(roles: Mapping[str, str], names: fl.Names, randomness: fl.Randomness) -> DerivedRoster:
    """As ``simulated``. Raises TypeError for keys from the operating system."""
    if not randomness.emulated:
        raise TypeError("real keys do not follow from the seed: they are made for all parties at once")
    session = randomness.secrets(OPERATOR, "session").bytes(_SESSION_BYTES)
    operator = SigningKey.generate(randomness.secrets(OPERATOR, "signing key").bytes)
    return DerivedRoster(session, (), operator.public.to_bytes(), b"", names, roles, randomness)


def signing_key(own: fl.Own) -> SigningKey:
    """SECRET. Raises CryptoError without an identity."""
    if own.identity is None:
        raise fl.CryptoError(f"{own.name} has no identity to sign with")
    return SigningKey.load(own.identity.signing)


def verify_key(common: fl.Common, name: str) -> VerifyKey:
    """Of a party. Raises PeerError for a stranger."""
    found = common.roster.by_name.get(name)
    if found is None:
        raise fl.PeerError(f"{name} is not on the roster")
    return VerifyKey(found.verify_key)


def signed(own: fl.Own, msg: S, *bound: Field) -> S:
    """With this party's signature. bound: what else is signed, such as the recipient."""
    return msgspec.structs.replace(msg, signature=signing_key(own).sign(*_signed(msg, bound)))


def check_signed(common: fl.Common, sender: str, msg: fl.Signed, *bound: Field) -> None:
    """Raises SignatureError unless ``sender`` has signed the message and ``bound``."""
    verify_key(common, sender).verify(msg.signature, *_signed(msg, bound))


def _signed(msg: fl.Signed, bound: tuple[Field, ...]) -> Iterator[Field]:
    yield from (type(msg).__name__.lower(), *bound)
    for name in msg.__struct_fields__:
        value = getattr(msg, name)
        if isinstance(value, np.ndarray):
            yield value.tobytes()
        elif name != "signature":
            yield repr(value) if value is None or isinstance(value, float) else value
