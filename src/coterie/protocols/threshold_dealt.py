"""Joint keys that a key centre deals. It draws the key, and so it sees it; then it keeps nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import msgspec

from coterie.crypto import threshold
from coterie.protocol.codec import content, weighs, weighted
from coterie.protocol.errors import DecodeError, PeerError
from coterie.protocol.messages import bundle, unbundle
from coterie.protocol.told import Roster
from coterie.protocols.key_centre import EVALUATION, Dealt, Draw, Grant, Granted
from coterie.protocols.threshold_kept import Held, Terms
from coterie.protocols.threshold_parts import SEED_BYTES, Joint, text

TERMS = "terms"


@dataclass(frozen=True)
class JointGrant(Grant):
    """Shares of one key. first: its first holders.  works: the role that multiplies its ciphertexts.

    role: of those among whom it may be dealt again.
    """

    joint: Joint
    first: tuple[str, ...]
    works: str = ""

    def holders(self, roster: Roster) -> tuple[str, ...]:
        """The first ones."""
        return self.first

    def deal(self, holders: Sequence[str], draw: Draw, *, emulated: bool) -> Dealt:
        """Raises PeerError if they are too few."""
        joint = self.joint
        if len(holders) < joint.least:
            raise PeerError(f"key {joint.name!r} is for at least {joint.least} holders, not for {len(holders)}")
        label = draw(f"{self.name} label").bytes(SEED_BYTES)
        group = threshold.Group(joint.parameters, tuple(holders), joint.threshold, joint.openings, label, emulated)
        key, evaluation, shares = threshold.dealt(group, products=joint.products, random_bytes=draw(self.name).bytes)
        pairs = {
            frozenset(pair): draw(f"{self.name} seed of {text(pair)}").bytes(SEED_BYTES)
            for pair in combinations(holders, 2)
        }
        terms = msgspec.msgpack.encode((label, tuple(holders)))
        secret = {}
        for name in holders:
            seeds = [pairs[frozenset((name, other))] for other in holders if other != name]
            share = shares[name].to_bytes()
            blob = bundle([terms, share, *seeds])
            secret[name] = weighted(len(blob) + weighs(share) - len(share), blob)
        public = {"": key.without_products().to_bytes(), TERMS: terms}
        if not joint.products:
            return Dealt(secret, public)
        more = {"": key.to_bytes()} | ({EVALUATION: evaluation.to_bytes()} if evaluation is not None else {})
        return Dealt(secret, public, {self.works: {**public, **more}})


def terms_by_dealer(party: Any, joint: Joint, msg: Granted) -> Terms | None:
    """Who holds the key, by this dealing; None if it dealt other keys. Raises PeerError for terms that can't be."""
    keys = party.secret.keys
    if msg.grant not in ("", joint.name) or joint.name not in keys.public:
        return None
    data = keys.public.get(f"{joint.name} {TERMS}") or _parts(keys.secret[joint.name])[0]
    label, holders = _decoded(data)
    joint.checked(holders, party.common.roster)
    return Terms(msg.number, holders, keys.public[joint.name], len(holders), label)


def held_by_dealer(party: Any, joint: Joint, terms: Terms) -> Held | None:
    """The share that this party was dealt, if it is a holder. It stands in one place only."""
    if party.name not in terms.holders:
        return None
    _, share, *seeds = _parts(party.secret.keys.secret.pop(joint.name))
    others = [name for name in terms.holders if name != party.name]
    if len(seeds) != len(others):
        raise PeerError(f"{len(seeds)} seeds for {len(others)} other holders")
    return Held(terms.number, terms.holders, share, dict(zip(others, seeds, strict=True)))


def _parts(blob: bytes) -> list[bytes]:
    held = bytes(content(blob))
    return unbundle(held, int.from_bytes(held[:4], "little"))


def _decoded(data: bytes) -> tuple[bytes, tuple[str, ...]]:
    try:
        return msgspec.msgpack.decode(data, type=tuple[bytes, tuple[str, ...]])
    except msgspec.MsgspecError:
        raise DecodeError("the terms of a dealt key cannot be read") from None
