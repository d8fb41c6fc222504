"""Joint keys: how they are declared, and what their parties say to each other. ``threshold_kept`` has what they keep.

``threshold_keys`` has the protocol itself, ``threshold_holder`` the parties' side of it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from coterie.crypto.signing import Field, digest
from coterie.crypto.threshold import Group
from coterie.crypto.threshold_group import MOST_HOLDERS
from coterie.protocol.errors import PeerError, UserError
from coterie.protocol.messages import ANY, Bundle, Integers, Message, OfRound, message
from coterie.protocol.told import Common, Roster

SEED_BYTES, DIGEST_BYTES, SIGNATURE_BYTES = 32, 32, 64
TRIAL = -1
"""The number of the sum that is opened to try a new key: encryptions of zero."""
CHECKS = -2
"""Numbers from here down are of what is opened to check a sender (``threshold_pads``), not of sums."""


@dataclass(frozen=True)
class Joint:
    """One joint key, as all parties declare it alike. So a hub cannot have a weaker one made.

    name: without blanks or line breaks.  parameters: a named set of ``crypto.threshold``.
    roles: only parties of these roles may hold a share.
    threshold: t, so many holders open a sum; 0 for all of them.  least: the fewest holders.
    fewest: the fewest senders of a sum that a holder helps to open.
    dealer: whether the key centre deals the key; else its holders make it themselves.
    products: whether ciphertexts can be multiplied, and turned as the parameters' evaluation keys allow.
    pads: whether all vectors come under joint pads (``threshold_pads``): then holders compute c_1 of sums themselves.
    effective: with pads, the least effective number of senders by their weights, (sum w)^2 / sum w^2; 0: ``fewest``.
    scalars: how many scalars are opened in a round for each holder, of whatever they are, such as one sender's distance
    from the mean.
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
    scalars: int = 0
    pads: bool = False
    effective: float = 0.0
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
        if self.fewest < 1 or self.openings < 1 or self.scalars < 0 or not 0 <= self.effective <= self.fewest:
            raise UserError(
                f"{self.name}: a sum has at least 1 sender, a key at least 1 opening, a round at least 0 scalars, and "
                f"the effective number of senders is 0 to fewest ({self.fewest})"
            )

    def needed(self, holders: int) -> int:
        """t, of so many holders."""
        return self.threshold or holders

    def tries(self, holders: int) -> int:
        """How often one sum may be opened: once, and where others can answer once without each of the first ones."""
        return self.threshold + 1

    @property
    def balance(self) -> float:
        """The least effective number of senders by their weights."""
        return self.effective or float(self.fewest)

    def single(self, senders: int, length: int) -> bool:
        """Whether this is a scalar that counts as one."""
        return self.scalars > 0 and length == 1 and 1 <= senders < self.fewest

    def opens(self, number: int, senders: int, length: int) -> bool:
        """Whether a holder helps to open this: a sum of enough senders, a scalar, a check, or a trial of the key."""
        if self.pads and number < 0:
            return (number, senders, length) == (TRIAL, 0, 1)
        return senders >= self.fewest or self.single(senders, length) or number <= CHECKS

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
    """These sums are to be opened in this round. Who is there? sums: (number, senders, length) of each."""

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


def pad_context(r: int) -> bytes:
    """What the pads of a round are for."""
    return struct.pack("<q", r)


def as_sums(sums: np.ndarray) -> dict[int, tuple[int, int]]:
    """(senders, length) by number, of an announcement. Raises PeerError for anything else."""
    if sums.size == 0 or sums.size % 3:
        raise PeerError(f"{sums.size} numbers announce no sums: three each")
    rows = [tuple(map(int, row)) for row in sums.reshape(-1, 3)]
    if len({row[0] for row in rows}) < len(rows):
        raise PeerError("a sum is announced twice")
    return {number: (senders, length) for number, senders, length in rows}
