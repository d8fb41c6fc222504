"""Enrolment with a key centre: a signing key for everybody, and one encryption key pair for each side.

    hub --Join--> everybody --Enrol--> key_centre --Credentials--> everybody --Ready--> hub

Everybody makes a signing key of its own and enrols its public half. When all are there, the key centre draws the
encryption key pairs (the users', and the service's where there is a second server that opens something), hands each
role what it may hold, and forgets the secret halves.
All of it but Join and Ready is sealed end to end: the hub relays and sees sizes only.

A hub that relays keys of its own in their place is refused: the envelope of credentials is signed by the key centre's
registered key (``tests/test_key_centre_forged.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np

from coterie.crypto.signing import SigningKey
from coterie.crypto.vector import RandomBytes
from coterie.protocol.bundle import bundle
from coterie.protocol.errors import PeerError
from coterie.protocol.messages import ANY, Bundle, Bytes2D, Message, message
from coterie.protocol.party import Party, To, on
from coterie.protocol.randomness import Randomness
from coterie.protocol.steps import Steps, post, take

KEY_CENTRE = "key_centre"


@message(src=ANY, dst=ANY)
class Join(Message, frozen=True):
    """Enrol now."""


@message(src=ANY, dst=KEY_CENTRE)
class Enrol(Message, frozen=True):
    """verify_key: 32 bytes, the public half of the sender's own Ed25519 key."""

    verify_key: bytes


@message(src=KEY_CENTRE, dst=ANY)
class Credentials(Message, frozen=True):
    """What one party may hold.

    secret_key: of its own side, or None.  service_public, user_public: the public keys; the service's is empty where
    there is none. Where every user has a pair of its own, user_public is the recipient's own, and for servers a bundle
    of all (``protocol/bundle.py``), in the order of the members.
    evaluation: what the hub of a service needs to work on its ciphertexts; empty for everybody else.
    group_seed: 32 bytes that the users share and no server has, or None.
    verify_keys: (parties, 32) uint8 of the parties whose signatures it must check, in the order given to the centre.
    """

    secret_key: bytes | None
    service_public: bytes
    user_public: Bundle
    evaluation: bytes
    group_seed: bytes | None
    verify_keys: Bytes2D


@message(src=ANY, dst=ANY)
class Ready(Message, frozen=True):
    """Enrolled and provided with keys."""


class Keygen(Protocol):
    """Draws an encryption key pair; what it gives has ``public`` and ``to_bytes`` (``crypto/schemes.py``)."""

    def __call__(self, *, emulated: bool, random_bytes: RandomBytes) -> Any: ...


@dataclass(frozen=True)
class Pair:
    """A key pair. role: who holds its secret half.  keygen: draws it.  each: one for every party of the role.

    evaluation_for: the role that gets its evaluation key, if any.
    """

    role: str
    keygen: Keygen
    each: bool = False
    evaluation_for: str = ""


class KeyCentre(Party, role=KEY_CENTRE):
    """Knows who belongs to the federation; keeps public keys only.

    members: role of every party by name.  checks: whose signatures each role must check, names in order.
    users, service: the key pairs.  shared_seed: whether the users also share a seed.
    """

    class State(msgspec.Struct):
        """verify_keys: enrolled so far, by name."""

        verify_keys: dict[str, bytes]

    state: State

    def __init__(
        self,
        randomness: Randomness,
        members: Mapping[str, str],
        checks: Mapping[str, tuple[str, ...]],
        *,
        users: Pair,
        service: Pair | None = None,
        shared_seed: bool = False,
    ) -> None:
        super().__init__(KEY_CENTRE, randomness)
        self.members, self.checks = members, checks
        self.pairs = {"user": users, **({"service": service} if service else {})}
        self.shared_seed = shared_seed
        self.state = self.State({})

    @on(Enrol)
    def enrol(self, msg: Enrol, src: str) -> tuple[To, ...]:
        """Note a public key; when all members have enrolled, hand everybody its credentials."""
        if src not in self.members:
            raise PeerError(f"{src} is not a member of this federation")
        if len(msg.verify_key) != 32:
            raise PeerError(f"{src}: a verify key has 32 bytes, not {len(msg.verify_key)}")
        if src in self.state.verify_keys:
            raise PeerError(f"{src} has enrolled before")
        self.state.verify_keys[src] = msg.verify_key
        if len(self.state.verify_keys) < len(self.members):
            return ()
        return tuple(To(name, credentials) for name, credentials in self._issue().items())

    def _issue(self) -> dict[str, Credentials]:
        holders = {side: self._holders(pair) for side, pair in self.pairs.items()}
        secret = {
            side: {name: self._draw(f"{side} {name}".strip(), pair) for name in holders[side]}
            for side, pair in self.pairs.items()
        }
        service = self.pairs.get("service")
        service_key = secret["service"][""] if service else None
        seed = self.secrets("group seed").bytes(32) if self.shared_seed else None
        issued = {}
        for name, role in self.members.items():
            keys = [self.state.verify_keys[other] for other in self.checks[role]]
            own = [secret[side][name if pair.each else ""] for side, pair in self.pairs.items() if pair.role == role]
            wants = service_key is not None and service is not None and service.evaluation_for == role
            issued[name] = Credentials(
                own[0].to_bytes() if own else None,
                self._service_public(service_key, role),
                self._user_public(name, secret["user"]),
                service_key.evaluation().to_bytes() if wants and service_key is not None else b"",
                seed if role == self.pairs["user"].role else None,
                np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), 32),
            )
        return issued

    def _holders(self, pair: Pair) -> list[str]:
        """For whom pairs are drawn: the members of the role, or "" for all of them together."""
        return [name for name, role in self.members.items() if role == pair.role] if pair.each else [""]

    def _service_public(self, key: Any, role: str) -> bytes:
        """The service's public key; only who works on its ciphertexts gets what products need."""
        if key is None:
            return b""
        public = key.public if self.pairs["service"].evaluation_for in ("", role) else key.public.without_products()
        data: bytes = public.to_bytes()
        return data

    def _user_public(self, name: str, users: Mapping[str, Any]) -> bytes:
        if not self.pairs["user"].each:
            key: bytes = users[""].public.to_bytes()
            return key
        if name in users:
            own: bytes = users[name].public.to_bytes()
            return own
        return bundle([key.public.to_bytes() for key in users.values()])

    def _draw(self, side: str, pair: Pair) -> Any:
        random_bytes = self.secrets(f"{side} key").bytes
        return pair.keygen(emulated=self.randomness.emulated, random_bytes=random_bytes)


def enrol(party: Party) -> tuple[SigningKey, tuple[To, ...]]:
    """A new signing key for this party, and the message that enrols it."""
    key = SigningKey.generate(party.secrets("signing key").bytes)
    return key, (To(KEY_CENTRE, Enrol(key.public.to_bytes())),)


def enrol_all(members: int, parties: tuple[str, ...]) -> Steps[None]:
    """The hub's part: invite everybody else and wait until all are ready. members: how many will say so."""
    ready: set[str] = set()

    def greet(name: str, _: Ready) -> None:
        if name in ready:
            raise PeerError(f"{name} has been ready before")
        ready.add(name)

    yield from post(dict.fromkeys(parties, Join()))
    yield from take(Ready, greet, at_least=members)
