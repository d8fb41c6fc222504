"""What a party keeps of joint keys, between messages and rounds: who holds them, its shares, and what it has opened."""

from __future__ import annotations

import hashlib

import msgspec
import numpy as np
from numpy.typing import NDArray

from coterie.crypto.threshold import Answered

KEPT_ACCOUNTS = 256
"""Keys of which a party knows what it has opened: more than are made in one round."""


class Terms(msgspec.Struct, frozen=True):
    """What anybody may know of a key: who holds it, and its public half.

    summands: how many contributions the key sums up.  label: what names only this key; nothing if that follows from the
    rest (``group``).
    """

    number: int
    holders: tuple[str, ...]
    public: bytes
    summands: int
    label: bytes = b""


class Making(msgspec.Struct):
    """SECRET: a key that a holder is about to hold, until all are told that it is complete.

    handed: whether it is an old key.  sources: whose pieces make up the share.  summands: of the key.
    secret, ephemeral: its own contribution.  shown: what it has committed to, and then shows.  digests: all
    commitments.  public: once all parts are joined.  own, seeds: halves of common seeds, by the other holder's name.
    pieces: of its share, by their source.  share: once it is whole.  turned: whether it gave its part of rotations.
    opened: how many ciphertexts were opened before, of a key that is handed over.
    """

    number: int
    holders: tuple[str, ...]
    sources: tuple[str, ...]
    summands: int
    handed: bool = False
    secret: bytes = b""
    ephemeral: bytes = b""
    shown: bytes = b""
    digests: bytes = b""
    public: bytes = b""
    own: dict[str, bytes] = msgspec.field(default_factory=dict)
    seeds: dict[str, bytes] = msgspec.field(default_factory=dict)
    pieces: dict[str, bytes] = msgspec.field(default_factory=dict)
    share: bytes = b""
    turned: bool = False
    opened: int = 0

    def __repr__(self) -> str:
        return f"<Making {self.number} of {len(self.holders)} holders>"

    def lacks(self, me: str) -> list[str]:
        """Whose pieces have not come yet."""
        lacking = {name for name in self.holders if name != me and name not in self.seeds}
        return sorted(lacking | {name for name in self.sources if name not in self.pieces})


class Held(msgspec.Struct):
    """SECRET: a holder's share of one key. seeds: one common with each other holder, by its name.

    round, sums: those announced, (senders, length) by number.  tries: how often it has answered for each.
    passed: the last making for which it handed the share over.  nonces: of its own pads, by round.
    """

    number: int
    holders: tuple[str, ...]
    share: bytes
    seeds: dict[str, bytes]
    passed: int = 0
    round: int = -1
    sums: dict[int, tuple[int, int]] = msgspec.field(default_factory=dict)
    tries: dict[int, int] = msgspec.field(default_factory=dict)
    nonces: dict[int, bytes] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Held {self.number} of {len(self.holders)} holders>"


class Helped(msgspec.Struct):
    """What a party has helped to open in a round, under the keys of one name. sum: the name of its one sum of pads."""

    round: int
    scalars: int = 0
    sum: bytes = b""


class Claimed(msgspec.Struct, frozen=True):
    """SECRET: what a sender has said that it knows in a round. values: (d,).  seed: of its random rho."""

    round: int
    values: NDArray[np.float64]
    seed: bytes

    def __repr__(self) -> str:
        return f"<Claimed in round {self.round}>"


class JointSecrets(msgspec.Struct):
    """SECRET: what a party knows and holds of joint keys, by name. numbers: the hub's, of the last making.

    holding: at the hub, who may hold a share of this key or of an earlier one: all but those that said it is erased.
    helped: with what in the last round, whatever keys were made in it.
    accounts: what this party has opened, by the digest of the public key, which stays when a key is handed over.
    """

    terms: dict[str, Terms] = msgspec.field(default_factory=dict)
    making: dict[str, Making] = msgspec.field(default_factory=dict)
    held: dict[str, Held] = msgspec.field(default_factory=dict)
    claims: dict[str, Claimed] = msgspec.field(default_factory=dict)
    numbers: dict[str, int] = msgspec.field(default_factory=dict)
    holding: dict[str, list[str]] = msgspec.field(default_factory=dict)
    helped: dict[str, Helped] = msgspec.field(default_factory=dict)
    accounts: dict[bytes, Answered] = msgspec.field(default_factory=dict)

    def answered(self, name: str) -> Answered:
        """What was opened under the key that has this name now, whoever held it then."""
        return self.accounts.get(key_digest(self.terms[name].public), Answered())

    def account(self, name: str, answered: Answered) -> None:
        """Keep this account, and those of the keys that were used last."""
        key = key_digest(self.terms[name].public)
        others = [(other, kept) for other, kept in self.accounts.items() if other != key]
        self.accounts = dict([*others, (key, answered)][-KEPT_ACCOUNTS:])

    def __repr__(self) -> str:
        return f"<JointSecrets of {', '.join(sorted(self.terms)) or 'no key'}>"


def key_digest(public: bytes) -> bytes:
    """16 bytes that name a key, by its public half."""
    return hashlib.sha256(public).digest()[:16]
