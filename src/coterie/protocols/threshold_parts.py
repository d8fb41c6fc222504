"""Joint keys: how they are declared, what their parties say to each other, and what each party keeps.

``threshold_keys`` has the protocol itself, ``threshold_holder`` the parties' side of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from coterie.crypto.signing import Field, digest
from coterie.crypto.threshold import Answered, Group
from coterie.crypto.threshold_group import MOST_HOLDERS
from coterie.protocol.errors import PeerError, UserError
from coterie.protocol.messages import ANY, Bundle, Integers, Message, OfRound, message
from coterie.protocol.told import Common, Roster

SEED_BYTES, DIGEST_BYTES, SIGNATURE_BYTES = 32, 32, 64
TRIAL = -1
"""The number of the sum that is opened to try a new key: encryptions of zero."""
CHECKS = -2
"""Numbers from here down are of what is opened to check a sender (``threshold_pads``), not of sums."""

KEPT_ACCOUNTS = 256
"""Keys of which a party knows what it has opened: more than are made in one round."""


@dataclass(frozen=True)
class Joint:
    """One joint key, as all parties declare it alike. So a hub cannot have a weaker one made.

    name: without blanks or line breaks.  parameters: a named set of ``crypto.threshold``.
    roles: only parties of these roles may hold a share.
    threshold: t, so many holders open a sum; 0 for all of them.  least: the fewest holders.
    fewest: the fewest terms of a sum that a holder helps to open.
    dealer: whether the key centre deals the key; else its holders make it themselves.
    products: whether ciphertexts can be multiplied, and turned as the parameters' evaluation keys allow.
    scalars: whether scalars are opened whatever they are of, such as one sender's distance from the mean.
    openings: Q_D, the ciphertexts that are opened under one key. The flooding noise is sized for so many.
    """

    name: str
    parameters: str
    roles: tuple[str, ...]
    threshold: int = 0
    least: int = 2
    fewest: int = 3
    dealer: bool = False
    products: bool = False
    scalars: bool = False
    openings: int = 65536

    def __post_init__(self) -> None:
        if self.threshold == 1 or self.threshold < 0:
            raise UserError(
                f"{self.name}: a threshold of {self.threshold} would let one holder open all: 0 or at least 2"
            )
        if self.least < max(2, self.threshold):
            raise UserError(
                f"{self.name}: {self.least} holders are too few: at least 2, and as many as the threshold of "
                f"{self.threshold}"
            )
        if self.fewest < 1 or self.openings < 1:
            raise UserError(f"{self.name}: a sum has at least 1 term, and a key at least 1 opening")

    def needed(self, holders: int) -> int:
        """t, of so many holders."""
        return self.threshold or holders

    def tries(self, holders: int) -> int:
        """How often one sum may be opened: once, and once without each of those who opened it first."""
        return self.needed(holders) + 1

    def opens(self, number: int, terms: int, length: int) -> bool:
        """Whether a holder helps to open this: a sum of enough terms, a scalar where they are opened, or a check."""
        return terms >= self.fewest or (self.scalars and length == 1) or number <= CHECKS

    def checked(self, holders: Sequence[str], roster: Roster) -> None:
        """Raises PeerError unless these parties may hold the key together."""
        if len(set(holders)) < len(holders) or not self.least <= len(holders) <= MOST_HOLDERS:
            limits = f"at least {self.least} holders and at most {MOST_HOLDERS}"
            raise PeerError(f"key {self.name!r} is for {limits}, each once, not {len(holders)}")
        for name in holders:
            entry = roster.by_name.get(name)
            if entry is None or entry.role not in self.roles:
                raise PeerError(f"{name!r:.40} may not hold key {self.name!r}: it is for a {' or a '.join(self.roles)}")


# ---- messages: all between the hub and another party, but for ``Piece``


class OfKey(OfRound, frozen=True):
    """Base of messages about one making of one key. number: of the making, which only grows."""

    key: str
    number: int


@message(src=ANY, dst=ANY)
class Begin(OfKey, frozen=True):
    """Make a key with these holders (names, one a line). sources: those who hand it over, if it is an old one."""

    holders: str
    sources: str


@message(src=ANY, dst=ANY)
class Committed(OfKey, frozen=True):
    """A holder's commitment to its public part, before it has seen another's. Nothing where a key is handed over."""

    digest: bytes


@message(src=ANY, dst=ANY)
class Reveal(OfKey, frozen=True):
    """All commitments, 32 bytes each, by the order of the holders. Show your part."""

    digests: bytes


@message(src=ANY, dst=ANY)
class Revealed(OfKey, frozen=True):
    """A holder's public part, that for products (nothing where there are none), and what opens its commitment."""

    part: Bundle


@message(src=ANY, dst=ANY)
class Exchange(OfKey, frozen=True):
    """All that was revealed, by the order of the holders; nothing where a key is handed over. Send your pieces."""

    parts: Bundle


@message(src=ANY, dst=ANY)
class Pass(OfKey, frozen=True):
    """Hand your share over: send these new holders their pieces. sources: all that do."""

    holders: str
    sources: str


@message(src=ANY, dst=ANY)
class Passed(OfKey, frozen=True):
    """The pieces are under way."""


@message(src=ANY, dst=ANY)
class Piece(OfKey, frozen=True):
    """SECRET, from holder to holder, sealed: half of a common seed, and a piece of the sender's share, if any.

    opened: how many ciphertexts the sender has helped to open under a key that is handed over.
    """

    seed: bytes
    piece: bytes
    opened: int = 0

    def __repr__(self) -> str:
        return f"<Piece of {self.key} {self.number}>"


@message(src=ANY, dst=ANY)
class Endorsed(OfKey, frozen=True):
    """A holder's signature over the joint public key that follows from all parts, and over who holds it.

    second: its second part for products; nothing where there are none.
    """

    signature: bytes
    second: bytes


@message(src=ANY, dst=ANY)
class Evaluate(OfKey, frozen=True):
    """Give your part of the keys for these automorphisms X -> X^k."""

    elements: Integers


@message(src=ANY, dst=ANY)
class Evaluated(OfKey, frozen=True):
    """A holder's part of these keys."""

    part: bytes


@message(src=ANY, dst=ANY)
class Complete(OfKey, frozen=True):
    """This holder has all pieces."""


@message(src=ANY, dst=ANY)
class Lacking(OfKey, frozen=True):
    """Which pieces do you lack?"""


@message(src=ANY, dst=ANY)
class Lacks(OfKey, frozen=True):
    """The names of those whose pieces have not come, one a line."""

    names: str


@message(src=ANY, dst=ANY)
class JointKey(OfKey, frozen=True):
    """The joint public key and its holders, with all their signatures (64 bytes each). Older keys are erased.

    summands: how many contributions the key sums up; those who made it may have handed it over.
    """

    holders: str
    summands: int
    public: bytes
    signatures: bytes


@message(src=ANY, dst=ANY)
class Known(OfKey, frozen=True):
    """This party has the key, and has erased what it held of older ones."""


@message(src=ANY, dst=ANY)
class Announce(OfKey, frozen=True):
    """These sums are to be opened in this round. Who is there? sums: (number, terms, length) of each."""

    sums: Integers


@message(src=ANY, dst=ANY)
class Present(OfKey, frozen=True):
    """This holder is there, and would open them."""


@message(src=ANY, dst=ANY)
class Decrypt(OfKey, frozen=True):
    """Give your partial decryptions of these announced sums. among: who does, names, one a line."""

    among: str
    numbers: Integers
    ciphers: Bundle


@message(src=ANY, dst=ANY)
class Partials(OfKey, frozen=True):
    """A holder's partial decryptions, in the order that was asked."""

    parts: Bundle


HOLDER_MESSAGES: tuple[type[Message], ...] = (Begin, Reveal, Exchange, Piece, JointKey, Announce, Decrypt)
"""What a holder receives, if nothing goes wrong, of a key without products that is not handed over."""

HUB_MESSAGES: tuple[type[Message], ...] = (Committed, Revealed, Endorsed, Complete, Known, Present, Partials)
"""What the hub receives then."""


# ---- what parties keep


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

    round, sums: those announced, (terms, length) by number.  tries: how often it has answered for each.
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
    accounts: what this party has opened, by the digest of the public key, which stays when a key is handed over.
    """

    terms: dict[str, Terms] = msgspec.field(default_factory=dict)
    making: dict[str, Making] = msgspec.field(default_factory=dict)
    held: dict[str, Held] = msgspec.field(default_factory=dict)
    claims: dict[str, Claimed] = msgspec.field(default_factory=dict)
    numbers: dict[str, int] = msgspec.field(default_factory=dict)
    holding: dict[str, list[str]] = msgspec.field(default_factory=dict)
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


def lines(text: str) -> tuple[str, ...]:
    """The names in a message."""
    return tuple(text.split("\n")) if text else ()


def text(names: Iterable[str]) -> str:
    """The inverse of ``lines``."""
    return "\n".join(names)


def endorsement(
    common: Common, key: str, number: int, holders: Sequence[str], summands: int, public: bytes
) -> tuple[Field, ...]:
    """What each holder signs: the session, the key, and who holds it."""
    return "joint key", common.roster.session, key, number, text(holders), summands, hashlib.sha256(public).digest()


def group(
    common: Common, joint: Joint, number: int, holders: tuple[str, ...], summands: int, label: bytes = b""
) -> Group:
    """The public facts about one key of these holders. label: where a key centre has dealt it."""
    own = digest("joint key", common.roster.session, joint.name, number, text(holders))
    return _group(joint, holders, label or own, common.emulated, summands)


@lru_cache(64)
def _group(joint: Joint, holders: tuple[str, ...], label: bytes, emulated: bool, summands: int) -> Group:
    return Group(joint.parameters, holders, joint.threshold, joint.openings, label, emulated, summands=summands)


def common_seed(a: str, b: str, of_a: bytes, of_b: bytes) -> bytes:
    """The seed that two holders share, of which each has drawn a half."""
    (first, x), (second, y) = sorted(((a, of_a), (b, of_b)))
    return digest("common seed", first, second, x, y)


def as_sums(sums: np.ndarray) -> dict[int, tuple[int, int]]:
    """(terms, length) by number, of an announcement. Raises PeerError for anything else."""
    if sums.size == 0 or sums.size % 3:
        raise PeerError(f"{sums.size} numbers announce no sums: three each")
    rows = [tuple(map(int, row)) for row in sums.reshape(-1, 3)]
    if len({row[0] for row in rows}) < len(rows):
        raise PeerError("a sum is announced twice")
    return {number: (terms, length) for number, terms, length in rows}
