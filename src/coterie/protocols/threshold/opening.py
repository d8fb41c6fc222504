"""Opening sums under a joint key: the messages, what a holder helps to open, and the hub's side.

A holder computes c_1 of every sum of vectors itself (``pads``, ``halves``), and helps only as ``check_sum`` allows.
Under a key with ``Joint.given`` it takes all on the hub's word, as it does scalars.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

import coterie.protocol.core as fl
from coterie.aggregation.detection import effective
from coterie.crypto import threshold, threshold_opening, threshold_pads
from coterie.crypto.arrays import CiphertextError
from coterie.crypto.threshold_opening import Request
from coterie.crypto.threshold_pads import Addends, Weights
from coterie.protocols.openings import on_word, shows_few
from coterie.protocols.threshold import keys
from coterie.protocols.threshold.halves import Openable, SignedSum, signed_halves
from coterie.protocols.threshold.keys import AboutJoint, AskOfKey, Consent, Held, HubKey, Joint, OfKey, lines, text


class Announce(AskOfKey, frozen=True):
    """Will you help with these sums? sums: (number, senders, length) of each."""

    sums: fl.Integers


class Decrypt(AskOfKey, frozen=True):
    """Give partial decryptions of these announced sums. among: the holders that do, one a line.  halves: c_1 of the
    vectors in them, where senders sign it.
    """

    among: str
    numbers: fl.Integers
    ciphers: fl.Bundle
    halves: fl.Bundle


class Partials(OfKey, frozen=True):
    parts: fl.Bundle


class KeyOpening(AboutJoint):
    """How a holder helps to open sums, beside its ``keys`` and ``joint``."""

    def is_asked(self, kind: type[fl.Message], config: Any, mode: str) -> bool:
        joint = self.joint_of(config)
        if joint is None or (joint.dealer and joint.pads and not joint.completes):
            return False
        return super().is_asked(kind, config, mode)

    @fl.on(Announce, answers=Consent)
    def announce(self, msg: Announce, src: str) -> Consent:
        joint = self.party.joint
        announced(self.party, joint.of(msg.key), joint.current(msg), msg)
        return Consent(*msg.of)

    def decrypt_cost(self, msg: Decrypt) -> fl.Cost:
        joint, held = self.party.joint.of(msg.key), self.party.joint.secret.held.get(msg.key)
        one = self.party.joint.group(msg.key)
        sums = [held.sums.get(int(n), (0, 1)) for n in msg.numbers] if held else []
        spent = sum(one.seconds("partial", length, holders=one.needed) for _, length in sums)
        if not joint.given:
            spent += sum(one.seconds("c1", length, holders=senders) for senders, length in sums if senders > 1)
        return fl.Cost(crypto_s=spent)

    @fl.on(Decrypt, decrypt_cost, answers=Partials)
    def decrypt(self, msg: Decrypt, src: str) -> Partials:
        party, among = self.party, lines(msg.among)
        held, joint = party.joint.current(msg), party.joint.of(msg.key)
        one, numbers = party.joint.group(msg.key), [int(number) for number in msg.numbers]
        if msg.round != held.round or not numbers or len(set(numbers)) < len(numbers):
            raise fl.PeerError(f"{len(numbers)} sums of round {msg.round}; announced are those of round {held.round}")
        right = set(among) <= set(held.holders) and len(set(among)) == len(among) == one.needed
        if not right or party.name not in among:
            raise fl.PeerError(f"a sum is opened by {one.needed} holders, each once and this one among them")
        share, parts, answered = threshold.Share.load(one, held.share), [], party.joint.secret.answered(msg.key)
        lengths, unchecked = list[int](), list[bytes]()
        halves = None if joint.pads else signed_halves(party, joint, one, msg.halves, msg.round)
        for number, data in zip(numbers, fl.unbundle(msg.ciphers, len(numbers)), strict=True):
            request = asked(party, msg.key, number, data, halves)
            tries = held.tries.get(number, 0) + 1
            if tries > joint.tries(len(held.holders)):
                raise fl.PeerError(f"sum {number} of round {msg.round} was opened {tries - 1} times")
            held.tries[number] = tries
            zero = threshold.Zero(party.name, held.seeds)
            part, answered = threshold_opening.partial(one, share, request, party.name, among, zero, answered)
            party.joint.secret.account(msg.key, answered)
            parts.append(part)
            if not isinstance(request, threshold_pads.SumRequest):
                lengths, unchecked = [*lengths, request.length], [*unchecked, data]
            elif request.pads:  # else the trial of a new key, which opens zero
                party.joint.state(msg.key, msg.round, among, **opened_sum(one, request.pads, request.weights))
        for facts in on_word(lengths, unchecked):
            party.joint.state(msg.key, msg.round, among, **facts)
        return Partials(*msg.of, fl.bundle(parts))


def opened_sum(one: threshold.Group, pads: Addends, weights: Weights) -> dict[str, Any]:
    first = next(iter(pads.values()))
    name = threshold_pads.sum_name(one, pads, weights)
    return {"cipher": name, "length": first.length, "weights": weights, "part": first.part}


def helped_in(party: Any, name: str, r: int) -> keys.Helped:
    """By this party, under keys of this name. Raises PeerError for an earlier round."""
    helped: dict[str, keys.Helped] = party.joint.secret.helped
    last = helped.get(name)
    if last is not None and r < last.round:
        raise fl.PeerError(f"sums of round {r} after round {last.round}")
    if last is None or r > last.round:
        helped[name] = keys.Helped(r)
    return helped[name]


def announced(party: Any, joint: Joint, held: Held, msg: Announce) -> None:
    """Raises PeerError if some sums may not be opened."""
    sums = as_sums(msg.sums)
    if msg.round < held.round:
        raise fl.PeerError(f"sums of round {msg.round} are announced after round {held.round}")
    helped = helped_in(party, msg.key, msg.round)
    if msg.round > held.round:
        held.round, held.sums, held.tries = msg.round, {}, {}
    for number, (senders, length) in sums.items():
        if length < 1 or not joint.opens(number, senders, length):
            raise fl.PeerError(f"sum {number} of {senders} senders: of fewer than {joint.fewest} it shows too much")
        if number in held.sums:
            raise fl.PeerError(f"sum {number} of round {msg.round} was announced before")
    scalars = helped.scalars + sum(joint.single(senders, length) for senders, length in sums.values())
    if scalars > joint.scalars * len(held.holders):
        most = joint.scalars * len(held.holders)
        raise fl.PeerError(
            f"{scalars} scalars in round {msg.round}: {most} are opened, {joint.scalars} for each holder"
        )
    held.sums |= sums
    helped.scalars = scalars


def asked(
    party: Any, key: str, number: int, data: bytes, halves: Mapping[bytes, Any] | None
) -> threshold_opening.Request:
    """The announced sum, after all checks. Raises PeerError and DecodeError."""
    joint, one, held = party.joint.of(key), party.joint.group(key), party.joint.held(key)
    if number not in held.sums:
        raise fl.PeerError(f"sum {number} was not announced")
    senders, length = held.sums[number]
    request: Request
    if number == keys.TRIAL or not (joint.given or joint.single(senders, length)):
        context = keys.pad_context(held.round)
        request = threshold_pads.SumRequest.read(one, party.keys.public(joint.name), data, context, halves)
        if bool(request.pads) == (number == keys.TRIAL):
            raise fl.PeerError(f"sum {number} of {len(request.pads)} vectors: only a new key is tried without any")
        if request.pads:
            check_sum(party, key, held.round, request.pads, request.weights)
    else:
        request = Request.load(one, data)
        if not joint.given and not request.scalar:
            raise fl.PeerError(f"sum {number} is announced as a scalar, and is a vector")
    if (request.senders, request.length) != (senders, length):
        raise fl.PeerError(f"sum {number} of {request.senders} senders of {request.length} values was not announced")
    return request


def check_sum(party: Any, key: str, r: int, pads: Addends, weights: Weights) -> None:
    """Record this sum of vectors. Raises PeerError if it may not be opened."""
    joint, one, held = party.joint.of(key), party.joint.group(key), party.joint.held(key)
    if len(pads) < joint.fewest:
        raise fl.PeerError(f"a sum of {len(pads)} vectors: of fewer than {joint.fewest} it shows too much")
    if effective([*weights.values()]) < joint.balance:
        raise fl.PeerError(
            f"weights of {max(weights.values())} and less: one of {len(weights)} has nearly all of the sum"
        )
    if joint.missing is not None and (len(pads) < len(held.holders) - joint.missing or set(weights.values()) != {1}):
        raise fl.PeerError(f"a sum of {len(pads)} vectors of {len(held.holders)}, or by weights: it lacks noise")
    own = pads.get(party.name)
    if isinstance(own, threshold_pads.Pad) and own.nonce != held.nonces.get(r):
        raise fl.PeerError(f"a nonce of {party.name} that it has not drawn in round {r}")
    helped, name = helped_in(party, joint.name, r), threshold_pads.sum_name(one, pads, weights)
    sums = {**helped.sums, name: [pad.digest(one) for pad in pads.values()]}
    if len(sums) > joint.sums:
        most = "a second sum" if joint.sums == 1 else f"sum {joint.sums + 1}"
        raise fl.PeerError(f"{most} of the vectors of round {r}: together they would show single ones")
    if joint.sums > 1 and (max(weights.values()) > 1 or shows_few(sums.values(), joint.fewest)):
        raise fl.PeerError(f"{len(sums)} sums of round {r}: together they show fewer than {joint.fewest} vectors")
    helped.sums = sums
    if (noisy := party.joint.secret.noisy.get(joint.name)) is not None and noisy.round == r:
        senders = hashlib.sha256(text(sorted(pads)).encode()).digest()
        if noisy.opened not in (b"", senders):  # in an earlier attempt, whose vectors are these
            raise fl.PeerError(f"a noisy sum of round {r} was opened, and another would be a second release")
        noisy.opened = senders


def as_sums(sums: np.ndarray) -> dict[int, tuple[int, int]]:
    """(senders, length) by number. Raises PeerError for anything else."""
    if sums.size == 0 or sums.size % 3:
        raise fl.PeerError(f"{sums.size} numbers announce no sums: three each")
    rows = [tuple(map(int, row)) for row in sums.reshape(-1, 3)]
    if len({row[0] for row in rows}) < len(rows):
        raise fl.PeerError("a sum is announced twice")
    return {number: (senders, length) for number, senders, length in rows}


# ---- the hub's side


@dataclass(frozen=True, eq=False)
class OpenedSum:
    """values: (d,) float64.  among: the holders that opened it.  blamed: of false shares.  tries: how many."""

    values: fl.Doubles
    among: tuple[str, ...]
    blamed: tuple[str, ...] = ()
    tries: int = 1


def open_sums(
    key: HubKey,
    ciphers: Mapping[int, Openable],
    *,
    deviation: Mapping[int, float] = MappingProxyType({}),
    partly: bool = False,
    present: Sequence[str] | None = None,
) -> fl.Steps[dict[int, OpenedSum]]:
    """Sums under this key, opened together. ciphers: by a number of at least 0 that occurs once a round.

    Scalars, and all under a key with ``Joint.given``, are ciphertexts; other sums are of what was ``taken``
    (``halves``). deviation: by number, of a ciphertext's error where it differs from its form's (``server_dec``).
    partly: leave out those that open to nonsense while others do not. Raises NoAnswerError, with the reasons.
    """
    name, joint, one = key.name, key.joint, key.group
    sums, signed = dict[int, Closed](), list[list[bytes]]()
    for number, cipher in ciphers.items():
        make: Callable[..., threshold_opening.Prepared]
        if isinstance(cipher, SignedSum):
            halves, weights = cipher.terms()
            senders, signed = len(halves), [*signed, [half.name for half in halves.values()]]
            make = partial(threshold_pads.sum_dec, one, key.public, cipher.cipher, halves, weights)
        else:
            senders = cipher.tally.vectors
            make = partial(threshold_opening.server_dec, one, cipher, deviation=deviation.get(number))
        if not joint.opens(number, senders, cipher.length):
            raise fl.NoAnswerError(f"sum {number} has {senders} senders: of fewer than {joint.fewest} none is opened")
        if not (isinstance(cipher, SignedSum) or joint.given or joint.single(senders, cipher.length)):
            how = "open it by open_weighted" if joint.pads else "its senders sign their vectors (threshold_halves)"
            raise fl.NoAnswerError(f"sum {number} under {name!r} says nothing of what it sums up: {how}")
        sums[number] = Closed(senders, cipher.length, make)
    if len(signed) > 1 and shows_few(signed, joint.fewest):
        raise fl.NoAnswerError(f"{len(signed)} sums under {name!r} together show fewer than {joint.fewest} vectors")
    return (yield from open_closed(key, sums, partly=partly, present=present))


@dataclass(frozen=True, eq=False)
class Closed:
    """A sum to open. senders: of vectors in it.  prepare: makes it ready, anew each time, from random bytes if
    emulated.
    """

    senders: int
    length: int
    prepare: Callable[..., threshold_opening.Prepared]


def open_closed(
    key: HubKey, sums: Mapping[int, Closed], *, partly: bool = False, present: Sequence[str] | None = None
) -> fl.Steps[dict[int, OpenedSum]]:
    name, terms, one = key.name, key.terms, key.group
    rows = [(number, closed.senders, closed.length) for number, closed in sums.items()]
    announce = Announce(*key.of, np.array(rows, np.int64).ravel())
    asked = dict.fromkeys(terms.holders if present is None else present, announce)
    there, gone = yield from key.gather(asked, Consent)
    left, done = dict(sums), dict[int, OpenedSum]()
    order = [holder for holder in terms.holders if holder in there]  # who answers first must not choose the holders
    following, suspect, tries = None, "", 0
    while True:
        among = tuple(holder for holder in order if holder not in gone and holder != suspect)[: one.needed]
        if len(among) < one.needed:
            if partly and done:
                return done
            raise fl.NoAnswerError(_closed(name, one.needed, len(terms.holders), gone, suspect))
        tries += 1
        values, lost = yield from _answered(key, left, among, tries)
        gone |= lost
        if lost:
            continue
        for number, opened in values.items():
            if opened is not None:
                done[number] = OpenedSum(opened, among, (suspect,) if suspect else (), tries)
                del left[number]
        if not left:
            return done
        if following is None:  # leave out each of the first set in turn
            following, order = iter(among), [*among, *(holder for holder in order if holder not in among)]
        suspect = next(following, "")
        if not suspect:
            if partly and done:
                return done
            raise fl.NoAnswerError(f"a sum under key {name!r} opens to nonsense whichever one holder is left out")


def _closed(name: str, needed: int, holders: int, gone: keys.Lost, suspect: str) -> str:
    if suspect:
        return (
            f"a sum under key {name!r} opens to nonsense: a holder gave a false share, and as {needed} of {holders} "
            "holders are needed, no other takes its place; or a ciphertext in it is forged"
        )
    return f"a sum under key {name!r} is opened by {needed} of {holders} holders: {keys.reasons(gone)}"


def _answered(
    key: HubKey, sums: Mapping[int, Closed], among: tuple[str, ...], tries: int
) -> fl.Steps[tuple[dict[int, fl.Doubles | None], keys.Lost]]:
    one, prepared = key.group, {}
    for number, closed in sums.items():
        purpose = f"opening {tries} of sum {number} under {key.name} {key.terms.number}"
        draw = key.hub.secrets(purpose, key.round).bytes
        prepared[number] = closed.prepare(random_bytes=draw)
    requests = [ready.request for ready in prepared.values()]
    of_vectors = [request for request in requests if isinstance(request, threshold_pads.SumRequest)]
    halves = {name: half for request in of_vectors for name, half in request.halves.items()}
    ciphers = fl.bundle([request.to_bytes() for request in requests])
    signed = fl.bundle([half.to_bytes(one) for half in halves.values()])
    decrypt = Decrypt(*key.of, text(among), np.array([*prepared], np.int64), ciphers, signed)
    lengths = [closed.length for closed in sums.values()]
    yield from fl.spend(fl.Cost(crypto_s=sum(one.seconds("server_dec", length) for length in lengths)))

    def read(name: str, msg: Partials) -> None:
        fl.unbundle(msg.parts, len(prepared))

    got, lost = yield from key.gather(dict.fromkeys(among, decrypt), Partials, read)
    if lost:
        return {}, lost
    yield from fl.spend(fl.Cost(crypto_s=sum(one.seconds("opened", length, holders=len(among)) for length in lengths)))
    parts = {name: fl.unbundle(got[name].parts, len(prepared)) for name in among}
    values: dict[int, fl.Doubles | None] = {}
    for i, (number, ready) in enumerate(prepared.items()):
        try:
            values[number] = threshold_opening.opened(one, ready, {name: parts[name][i] for name in among})
        except CiphertextError:
            values[number] = None
        except fl.DecodeError as error:
            return {}, {keys.named(among, error): keys.UNREADABLE}
    return values, {}
