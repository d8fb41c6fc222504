"""A helper that opens only what a committee of clients has switched to its key (``crypto/split_key.py``).

    key_centre  - - Granted: s_h - ->  opener      shares of s_C - ->  members                      before round 1
    hub  --Stand / Done-->  member                 which members are there; the first t of the list answer
    hub  --Switch / Turned-->  member              one partial of each ciphertext
    hub  ... the same ciphertexts, under the opener's key, as it sent them before

A member can't see what a ciphertext holds: a hub that deviates has any vector switched, by calling it a scalar, and
opens it with the opener.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import coterie.protocol.core as fl
from coterie.crypto.ckks import SANITISING_BITS, CipherVector
from coterie.crypto.split_key import CommitteeShare, Partial, split_keygen, switched
from coterie.protocols.key_centre import EVALUATION, DealtKeys, Draw, Grant
from coterie.protocols.openings import Stated, on_word, state

OPENER = "opener"
"""Of the grant's public keys, the opener's own."""
MOST_CIPHERS = 1 << 16
"""In one request."""


class Stand(fl.FromHub, frozen=True):
    """Can you help in this round?"""


class Switch(fl.FromHub, frozen=True):
    """Switch these ciphertexts to the opener's key. number: of the request, growing within a round.  among: the
    places of the members that answer.
    """

    number: int
    among: fl.Integers
    count: int
    ciphers: fl.Bundle


class Turned(fl.OfRound, frozen=True):
    ABOUT = ("round", "number")
    number: int
    parts: fl.Bundle


@dataclass(frozen=True)
class Committee(Grant):
    """A key split among an opener and members of the role. members: in the order of their places.

    needed: t.  works: the hub's role, which computes.  parameters: of ``split_keygen``.
    """

    members: tuple[str, ...]
    opener: str
    needed: int
    works: str
    parameters: str

    def deal(self, holders: Sequence[str], draw: Draw, *, emulated: bool) -> DealtKeys:
        source, members = draw(f"{self.name} key").bytes, len(self.members)
        made = split_keygen(self.parameters, members, self.needed, emulated=emulated, random_bytes=source)
        shares = {name: share.to_bytes() for name, share in zip(self.members, made.shares, strict=True)}
        public, evaluation = made.whole.public, made.whole.evaluation().to_bytes()
        more = {"": public.to_bytes(), EVALUATION: evaluation, OPENER: made.opener.public.to_bytes()}
        secret = {self.opener: made.opener.to_bytes(), **shares}
        return DealtKeys(secret, {"": public.without_products().to_bytes()}, {self.works: more})


class SwitchedFor(Stated):
    round: int = 0  # the last one
    number: int = 0  # the last one in it
    vector: bool = False  # whether it switched one
    scalars: int = 0  # how many it switched


class Seat(fl.Component):
    """A client that may be on the committee. It has ``keys``.

    grant: its name.  limits(party): the members, how many answer, and the scalars of a member per round.
    """

    secret: SwitchedFor
    LASTS = ("openings",)

    def __init__(self, grant: str, limits: Callable[[Any], tuple[Sequence[str], int, int]], when: fl.When) -> None:
        super().__init__(when)
        self.grant, self.limits = grant, limits

    @fl.on(Stand, answers=fl.Done)
    def stand(self, msg: Stand, src: str) -> fl.Done:
        self.share()
        return fl.Done(msg.round)

    def switch_cost(self, msg: Switch) -> fl.Cost:
        return fl.Cost(crypto_s=len(msg.ciphers) / max(1, self.party.keys.public(self.grant).wire_bytes(1)) * 1e-3)

    @fl.on(Switch, switch_cost, answers=Turned)
    def switch(self, msg: Switch, src: str) -> Turned:
        """Scalars, or one masked vector a round."""
        (members, needed, most), share, helped = self.limits(self.party), self.share(), self.secret
        if (msg.round, msg.number) <= (helped.round, helped.number) or not 1 <= msg.count <= MOST_CIPHERS:
            raise fl.PeerError(
                f"request {msg.number} of round {msg.round} after {helped.number} of round {helped.round}"
            )
        among = [int(place) for place in msg.among]
        there = set(among) <= set(range(1, len(members) + 1)) and share.place in among
        if not there or not len(set(among)) == len(among) == needed:
            raise fl.PeerError(
                f"members {among} are not the {needed} that answer, or member {share.place} is not of them"
            )
        same = helped.round == msg.round
        before, scalars = helped.vector and same, helped.scalars if same else 0
        key, parts, lengths = self.party.keys.public(self.grant), list[bytes](), list[int]()
        for part in fl.unbundle(msg.ciphers, msg.count):
            cipher = key.from_bytes(part)
            form = cipher.tally.form
            masked = not form.scalar and cipher.blinded == 1
            if masked and before:
                raise fl.PeerError(f"a second masked vector in round {msg.round}")
            if not (masked or (form.scalar and not cipher.blinded)):
                raise fl.PeerError(f"asked to help to open a {form} with {cipher.blinded} masks, which would show it")
            before, scalars = before or masked, scalars + form.scalar
            if scalars > most:
                raise fl.PeerError(f"{scalars} scalars in round {msg.round}: it helps with {most} at most")
            bits = key.parameters.flood(None if masked else SANITISING_BITS)
            parts.append(share.partial(cipher, among, bits).to_bytes())
            lengths.append(cipher.length)
        by = [members[place - 1] for place in among]
        for facts in on_word(lengths, fl.unbundle(msg.ciphers, msg.count)):
            state(self.party, helped, by, key=self.grant, making=0, round=msg.round, fewest=0, **facts)
        helped.round, helped.number, helped.vector, helped.scalars = msg.round, msg.number, before, scalars
        return Turned(msg.round, msg.number, fl.bundle(parts))

    def share(self) -> CommitteeShare:
        return CommitteeShare.load(self.party.keys.own_bytes(self.grant))


def switch(hub: Any, name: str, r: int, number: int, ciphers: Sequence[CipherVector]) -> fl.Steps[list[CipherVector]]:
    """The same ciphertexts under the opener's key, by the first members that are there, of the committee in the hub's
    settings. Raises NoAnswerError if too few are, or one fails.
    """
    members, needed = hub.config.committee(hub.clients)
    there = (yield from fl.for_each(dict.fromkeys(members, Stand(r)), fl.Done)).got
    if len(there) < needed:
        raise fl.NoAnswerError(f"{len(there)} members of the committee are there, and {needed} have to help the helper")
    ready = [cipher.rescaled() for cipher in ciphers]
    helping = [member for member in members if member in there][:needed]
    places = {member: members.index(member) + 1 for member in helping}
    key, opener = hub.keys.public(name), hub.keys.public(f"{name} {OPENER}")
    parts: list[list[Partial]] = [[] for _ in ready]

    def turned(member: str, msg: Turned) -> None:
        found = [
            Partial.from_bytes(key, part, cipher)
            for part, cipher in zip(fl.unbundle(msg.parts, len(ready)), ready, strict=True)
        ]
        for own, one in zip(parts, found, strict=True):
            own.append(one)

    bundled = fl.bundle([cipher.to_bytes() for cipher in ready])
    request = Switch(r, number, np.array(sorted(places.values()), np.int64), len(ready), bundled)
    answers = yield from fl.for_each(dict.fromkeys(places, request), Turned, turned)
    for member, why in answers.missing.items():
        raise fl.NoAnswerError(f"{member} did not answer Switch: {why}")
    return [switched(cipher, own, opener) for cipher, own in zip(ready, parts, strict=True)]
