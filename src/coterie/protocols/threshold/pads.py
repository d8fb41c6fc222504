"""Joint pads: vectors under a joint key whose senders hold shares of it, and of which no sender chooses c_1.

    sender --its system's own message (``padding``)--> hub    y_j = m_j - a_j s_j + e
    hub --Contribute / Contributed--> other holders           -a_j s_k + e of each: together a ciphertext
    hub --Count / Consent, AnswerFor / Answer--> senders      or only what opens their weighted sum

c_1 = a_j follows from the group, the sender, the round and a fresh nonce (``crypto/threshold_pads.py``).
``complete_pads`` gives ciphertexts, which can be multiplied; ``open_padded`` opens a weighted sum without that, unless
a sender that was counted leaves before it answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np

import coterie.protocol.core as fl
from coterie.aggregation.detection import effective
from coterie.crypto import threshold, threshold_pads
from coterie.crypto.arrays import CiphertextError
from coterie.crypto.ckks import CipherVector
from coterie.crypto.threshold_pads import Pad, Padded, Weights
from coterie.protocol.messages import parts_of
from coterie.protocols.threshold import keys
from coterie.protocols.threshold.keys import AboutJoint, AskOfKey, Consent, HubKey, OfKey, lines, text
from coterie.protocols.threshold.opening import Closed, OpenedSum, check_sum, open_closed, opened_sum

NONCE_BYTES, KEPT_ROUNDS = 16, 8
MOST_VALUES = 1 << 28
"""Of a vector, which a hub may have a holder compute at once."""


class OfPads(AskOfKey, frozen=True):
    """senders: names of this round's, one a line.  nonces: 16 bytes of each."""

    senders: str
    nonces: bytes
    length: int


class Contribute(OfPads, frozen=True):
    among: str


class Contributed(OfKey, frozen=True):
    """A holder's contributions, in the order of the senders, without its own."""

    parts: fl.Bundle


class Count(AskOfKey, frozen=True):
    sum: int


class AnswerFor(OfPads, frozen=True):
    """weights: in the order of the senders."""

    weights: fl.Integers


class Answer(OfKey, frozen=True):
    part: bytes


class JointPads(AboutJoint):
    def is_asked(self, kind: type[fl.Message], config: Any, mode: str) -> bool:
        joint = self.joint_of(config)
        if joint is None or not joint.pads or joint.completes != (kind is Contribute):
            return False
        return super().is_asked(kind, config, mode)

    def cost(self, msg: OfPads) -> fl.Cost:
        one, senders = self.party.joint.group(msg.key), len(lines(msg.senders))
        if isinstance(msg, Contribute):
            return fl.Cost(crypto_s=one.seconds("contribution", max(msg.length, 1)) * senders)
        return fl.Cost(crypto_s=one.seconds("pad_partial", max(msg.length, 1), holders=senders))

    @fl.on(Contribute, cost, answers=Contributed)
    def contribute(self, msg: Contribute, src: str) -> Contributed:
        """The same ones for a repeated request."""
        joint, me = self.party.joint, self.party.name
        held, one = joint.current(msg), joint.group(msg.key)
        share = threshold.Share.load(one, held.share)
        pads = _pads(one, msg, lines(msg.among))
        if me not in lines(msg.among):
            raise fl.PeerError(f"{me} is not among those who contribute")
        parts = [threshold_pads.contribution(one, share, me, pad) for name, pad in pads.items() if name != me]
        return Contributed(*msg.of, fl.bundle(parts))

    @fl.on(Count, answers=Consent)
    def count_me(self, msg: Count, src: str) -> Consent:
        self.party.joint.current(msg)
        return Consent(*msg.of)

    @fl.on(AnswerFor, cost, answers=Answer)
    def answer_for(self, msg: AnswerFor, src: str) -> Answer:
        """Once, for a sum with its own vector."""
        joint, me = self.party.joint, self.party.name
        held, one = joint.current(msg), joint.group(msg.key)
        pads = _pads(one, msg, one.holders)
        if me not in pads or msg.weights.shape != (len(pads),) or (msg.weights < 1).any():
            raise fl.PeerError(f"a sum of {len(pads)} vectors, without that of {me} or without weights")
        weights = dict(zip(pads, map(int, msg.weights), strict=True))
        check_sum(self.party, msg.key, msg.round, pads, weights)
        share, zero = threshold.Share.load(one, held.share), threshold.Zero(me, held.seeds)
        answered = joint.secret.answered(msg.key)
        part, answered = threshold_pads.pad_partial(one, share, me, pads, weights, zero, answered)
        joint.secret.account(msg.key, answered)
        joint.state(msg.key, msg.round, tuple(pads), **opened_sum(one, pads, weights))
        return Answer(*msg.of, part)


def padding(party: Any, name: str, r: int, among: Sequence[str] = ()) -> threshold_pads.Padding:
    """What a sender gives to ``Encrypt`` in place of the public key. among: the contributing holders, of a t-of-n
    key. Raises PeerError without a share.
    """
    held = party.joint.secret.held.get(name)
    if held is None:
        raise fl.PeerError(f"{party.name} holds no share of key {name!r}, and pads need one")
    one, nonce = party.joint.group(name), party.secrets(f"pad under {name}", r).bytes(NONCE_BYTES)
    held.nonces = {known: each for known, each in held.nonces.items() if known > r - KEPT_ROUNDS} | {r: nonce}
    share = threshold.Share.load(one, held.share)
    return threshold_pads.Padding(
        one, party.keys.public(name), share, party.name, keys.pad_context(r), tuple(among), lambda count: nonce[:count]
    )


def loaded(key: HubKey, sender: str, data: bytes, length: int, among: Sequence[str] = ()) -> Padded:
    """A sender's checked upload. Raises DecodeError, and PeerError for a sender without a share."""
    if sender not in key.group.holders:
        raise fl.PeerError(f"{sender} holds no share of key {key.name!r}, and pads need one")
    return Padded.load(key.group, data, sender, keys.pad_context(key.round), length, tuple(among))


def complete_pads(key: HubKey, uploads: Mapping[str, Padded]) -> fl.Steps[dict[str, CipherVector]]:
    """By sender, the ciphertext under the joint key. uploads: of one round, ``loaded``.

    Raises NoAnswerError, with the reasons, unless all contributors answer.
    """
    one, among = key.group, next(iter(uploads.values())).pad.among
    ask = Contribute(*key.of, *_told(uploads), text(among))
    joining = {sender: threshold_pads.Joining(one, padded) for sender, padded in uploads.items()}

    def add(holder: str, msg: Contributed) -> None:
        others = [sender for sender in uploads if sender != holder]
        for sender, part in zip(others, parts_of(msg.parts, len(others)), strict=True):
            joining[sender].take(holder, part)

    lost = (yield from fl.for_each(dict.fromkeys(among, ask), Contributed, add, deadline_s=key.deadline_s)).missing
    if lost:
        raise fl.NoAnswerError(f"pads under key {key.name!r} need all of {len(among)} holders: {keys.reasons(lost)}")
    seconds = one.seconds("joint", next(iter(uploads.values())).pad.length)
    yield from fl.spend(fl.Cost(crypto_s=seconds * len(uploads)))
    return {sender: each.cipher(key.public) for sender, each in joining.items()}


def open_weighted(
    key: HubKey, ciphers: Mapping[str, CipherVector], pads: Mapping[str, Pad], weights: Weights, *, number: int = 0
) -> fl.Steps[OpenedSum]:
    """The weighted sum of these completed vectors, of a key whose holders compute c_1 themselves.

    ciphers, pads: by sender, of ``complete_pads`` and ``loaded``.  weights: integers of at least 1; senders without one
    are left out. Raises NoAnswerError if holders do not open it.
    """
    joint = key.joint
    if len(weights) < joint.fewest or effective([*weights.values()]) < joint.balance:
        raise fl.NoAnswerError(
            f"a sum of {len(weights)} vectors by weights {[*weights.values()]} shows too much of one: holders open "
            f"those of {joint.fewest} or more, whose effective number is {joint.balance:g} or more"
        )
    total = reduce(add, (ciphers[sender].scale(weight) for sender, weight in weights.items()))
    of = {sender: pads[sender] for sender in weights}
    make = partial(threshold_pads.sum_dec, key.group, key.public, total, of, weights)
    closed = {number: Closed(len(weights), total.length, make)}
    opened = yield from open_closed(key, closed)
    return opened[number]


def open_padded(
    key: HubKey, uploads: Mapping[str, Padded], *, weights: Weights | None = None, number: int = 0
) -> fl.Steps[OpenedSum]:
    """The weighted sum of these senders' uploads in this round (``loaded``). ``among`` says who is in it.

    weights: integers of at least 1, by sender; 1 each by default. Raises NoAnswerError if too few are there, or if one
    goes before it has answered.
    """
    joint, one = key.joint, key.group
    there, gone = yield from key.gather(dict.fromkeys(uploads, Count(*key.of, number)), Consent)
    counted = {sender: padded for sender, padded in uploads.items() if sender in there}
    if len(counted) < max(joint.fewest, 2):
        fewest = max(joint.fewest, 2)
        raise fl.NoAnswerError(f"{len(counted)} senders of a sum that needs {fewest}: {keys.reasons(gone)}")
    wanted = {sender: 1 if weights is None else weights[sender] for sender in counted}
    ask = AnswerFor(*key.of, *_told(counted), np.array([*wanted.values()], np.int64))
    got, lost = yield from key.gather(dict.fromkeys(counted, ask), Answer)
    yield from fl.spend(fl.Cost(crypto_s=one.seconds("padded_sum", next(iter(counted.values())).pad.length)))
    if lost:
        raise fl.NoAnswerError(
            # Opening the others' afterwards would show its vector to a hub that has its answer after all.
            f"a sum under pads stays closed, as a sender in it does not answer: {keys.reasons(lost)}"
        )
    answers = {sender: msg.part for sender, msg in got.items()}
    try:
        values = threshold_pads.padded_sum(one, key.public, counted, wanted, answers)
    except fl.DecodeError as error:
        raise fl.NoAnswerError(
            f"a sum under pads stays closed: {keys.named(tuple(counted), error)}: {keys.UNREADABLE}"
        ) from None
    except CiphertextError:
        raise fl.NoAnswerError("a sum under pads opens to nonsense: a sender lied, and nothing shows which") from None
    return OpenedSum(values, tuple(counted))


def _told(uploads: Mapping[str, Padded]) -> tuple[str, bytes, int]:
    pads = [padded.pad for padded in uploads.values()]
    return text(uploads), b"".join(pad.nonce for pad in pads), pads[0].length


def _pads(one: threshold.Group, msg: OfPads, among: tuple[str, ...]) -> dict[str, Pad]:
    senders = lines(msg.senders)
    fits = len(set(senders)) == len(senders) and set(senders) <= set(one.holders) and set(among) <= set(one.holders)
    if not 1 <= msg.length <= MOST_VALUES:
        raise fl.PeerError(f"pads for {msg.length} values: 1 to {MOST_VALUES} are possible")
    if not senders or not fits or len(msg.nonces) != NONCE_BYTES * len(senders):
        raise fl.PeerError(f"{len(senders)} pads with {len(msg.nonces)} bytes of nonces, of holders once each")
    if len(set(among)) < max(len(among), one.needed):
        raise fl.PeerError(f"pads among {len(among)} holders: {one.needed} are needed, each once")
    every = one.answering(among)
    return {
        name: Pad(name, keys.pad_context(msg.round), msg.length, msg.nonces[NONCE_BYTES * i :][:NONCE_BYTES], every)
        for i, name in enumerate(senders)
    }
