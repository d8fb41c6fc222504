"""Making joint keys and handing them over (``keys``): the hub's side of ``holder``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

import coterie.protocol.core as fl
from coterie.crypto import threshold_generation, threshold_pads
from coterie.crypto.roster import verify_key
from coterie.protocols.key_centre import EVALUATION, KEY_CENTRE, deal_again
from coterie.protocols.threshold import holder, keys
from coterie.protocols.threshold.keys import Consent, HubKey, Lost, Of, Terms, group, lines, named, text
from coterie.protocols.threshold.opening import Closed, open_closed


@dataclass(frozen=True)
class ReadyKey:
    """missing: by name, why an intended holder lacks the key.  untold: parties that have not confirmed it."""

    name: str
    number: int
    holders: tuple[str, ...]
    missing: Mapping[str, str] = field(default_factory=dict)
    untold: tuple[str, ...] = ()


def make_keys(key: HubKey, holders: Sequence[str], *, tell: Sequence[str] | None = None) -> fl.Steps[ReadyKey]:
    """A new key for these parties. All who are told erase an old one of this name.

    tell: besides the new and the old holders; by default everybody. Raises NoAnswerError, with the reasons, if too few
    holders are left.
    """
    if key.joint.dealer:
        _enough(key, holders, {})
        yield from deal_again(key.hub, key.name, holders)
        return ReadyKey(key.name, key.terms.number, tuple(holders))
    return (yield from _attempts(_made, key, holders, tell))


def hand_over(key: HubKey, holders: Sequence[str], *, tell: Sequence[str] | None = None) -> fl.Steps[ReadyKey]:
    """The same key for other holders, who must have been told it before. Parameters and errors: as ``make_keys``."""
    return (yield from _attempts(partial(_handed, key.terms), key, holders, tell))


class LostError(Exception):
    """lost: whom the next attempt leaves out, and why."""

    def __init__(self, lost: Lost) -> None:
        self.lost = lost


@dataclass(frozen=True)
class Attempt:
    """missing: whom earlier attempts have lost."""

    key: HubKey
    of: Of
    holders: tuple[str, ...]
    missing: Lost
    tell: Sequence[str] | None

    def ask(
        self, names: Sequence[str], request: fl.Message, reply: type[fl.M], check: fl.Fold[fl.M] = fl.ignored
    ) -> fl.Steps[dict[str, fl.M]]:
        """By name. Raises LostError if an answer is missing."""
        got, lost = yield from self.key.gather(dict.fromkeys(names, request), reply, check)
        if lost:
            raise LostError(lost)
        return got


def _attempts(
    make: Callable[[Attempt], fl.Steps[ReadyKey]], key: HubKey, holders: Sequence[str], tell: Sequence[str] | None
) -> fl.Steps[ReadyKey]:
    missing, name, numbers = Lost(), key.name, key.hub.joint.secret.numbers
    while True:
        left = tuple(one for one in dict.fromkeys(holders) if one not in missing)
        _enough(key, left, missing)
        numbers[name] = numbers.get(name, 0) + 1
        try:
            made = yield from make(Attempt(key, (key.round, name, numbers[name]), left, missing, tell))
        except LostError as error:
            missing |= error.lost
        else:
            return replace(made, missing={**missing, **made.missing})


def _enough(key: HubKey, left: Sequence[str], missing: Lost) -> None:
    try:
        key.joint.checked(left, key.hub.common.roster)
    except fl.PeerError as error:
        raise fl.NoAnswerError(f"{error} ({keys.reasons(missing)})" if missing else str(error)) from None


def _made(attempt: Attempt) -> fl.Steps[ReadyKey]:
    hub, joint, of, holders = attempt.key.hub, attempt.key.joint, attempt.of, attempt.holders
    begun = yield from attempt.ask(holders, holder.Begin(*of, text(holders), ""), holder.Committed, _committed)
    digests = {name: begun[name].digest for name in holders}
    one = group(hub.common, joint, of[2], holders, len(holders))

    def shown(name: str, msg: holder.Revealed) -> None:
        holder.shown_parts(msg.part, (name,), digests[name])

    revealed = yield from attempt.ask(holders, holder.Reveal(*of, b"".join(digests.values())), holder.Revealed, shown)
    flat = [part for name in holders for part in fl.unbundle(revealed[name].part, 3)]
    parts = holder.shown_parts(fl.bundle(flat), holders, b"".join(digests.values()))
    firsts = {name: first for name, (_, first) in parts.items()}
    with _readable(holders):
        public = threshold_generation.joined(one, {name: part for name, (part, _) in parts.items()})
    terms = Terms(of[2], holders, public.to_bytes(), len(holders))
    seconds, signatures = yield from _exchanged(attempt, terms, fl.bundle(flat))
    key, evaluation = public, b""
    if joint.products:
        turned = yield from attempt.ask(
            holders, holder.AskTurns(*of, np.array(one.space.elements, np.int64)), holder.TurnParts
        )
        with _readable(holders):
            key = threshold_generation.with_products(one, public, firsts, seconds)
            evaluation = threshold_generation.evaluation(
                one, key, {name: turned[name].part for name in holders}
            ).to_bytes()
    hub.joint.learn(joint.name, terms)
    hub.keys.secret.public[joint.name] = key.to_bytes()
    if evaluation:
        hub.keys.secret.public[f"{joint.name} {EVALUATION}"] = evaluation
    return (yield from _told(attempt, signatures))


def _handed(old: Terms, attempt: Attempt) -> fl.Steps[ReadyKey]:
    key, holders = attempt.key, attempt.holders
    sources = sorted((one for one in old.holders if one not in attempt.missing), key=lambda one: one not in holders)
    if len(sources) < (needed := key.joint.needed(len(old.holders))):
        raise fl.NoAnswerError(
            f"key {key.name!r} is handed over by {needed} of its holders: {keys.reasons(attempt.missing)}"
        )
    names = text(holders), text(sources[:needed])
    yield from attempt.ask(holders, holder.Begin(*attempt.of, *names), holder.Committed)
    yield from attempt.ask(sources[:needed], holder.Pass(*attempt.of, *names), Consent)
    terms = Terms(attempt.of[2], holders, old.public, old.summands)
    _, signatures = yield from _exchanged(attempt, terms, fl.bundle([]))
    key.hub.joint.secret.terms[key.name] = terms
    return (yield from _told(attempt, signatures))


@contextmanager
def _readable(holders: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except fl.DecodeError as error:
        raise LostError({named(holders, error): keys.UNREADABLE}) from None


def _committed(name: str, msg: holder.Committed) -> None:
    if len(msg.digest) != holder.DIGEST_BYTES:
        raise fl.PeerError(f"{name}: a commitment of {len(msg.digest)} bytes")


def _exchanged(attempt: Attempt, terms: Terms, parts: bytes) -> fl.Steps[tuple[dict[str, bytes], bytes]]:
    holders, common = terms.holders, attempt.key.hub.common
    fields = holder.endorsement(common, attempt.key.name, terms)

    def endorsed(name: str, msg: holder.Endorsed) -> None:
        verify_key(common, name).verify(msg.signature, *fields)

    signed = yield from attempt.ask(holders, holder.Exchange(*attempt.of, parts), holder.Endorsed, endorsed)
    complete = set[str]()

    def ready(name: str, msg: holder.Complete) -> None:
        if name not in holders or name in complete or msg.of != attempt.of:
            raise fl.PeerError(f"{name} is complete, and was not asked or has said so before")
        complete.add(name)

    with suppress(fl.NoAnswerError):  # nothing more will come
        yield from fl.take(holder.Complete, ready, at_least=len(holders), until_s=attempt.key.deadline_s)
    if left := [name for name in holders if name not in complete]:
        raise LostError((yield from _lacking(attempt, left)))
    seconds = {name: signed[name].second for name in holders}
    return seconds, b"".join(signed[name].signature for name in holders)


def _lacking(attempt: Attempt, left: Sequence[str]) -> fl.Steps[Lost]:
    asked = dict.fromkeys(left, holder.Lacking(*attempt.of))
    # To leave out: the holders whose pieces others lack, or one that lacks most others' pieces.
    told, lost = yield from attempt.key.gather(asked, holder.Lacks)
    for name, msg in told.items():
        lacks = set(lines(msg.names)) & set(attempt.holders)
        if not lacks or 2 * len(lacks) >= len(attempt.holders):
            lost[name] = f"it lacks the pieces of {len(lacks)} others"
        else:
            lost |= dict.fromkeys(lacks, f"{name} lacks its piece")
    return lost


def _told(attempt: Attempt, signatures: bytes) -> fl.Steps[ReadyKey]:
    hub, joint, of = attempt.key.hub, attempt.key.joint, attempt.of
    terms, holding = hub.joint.terms(joint.name), hub.joint.secret.holding
    # Former holders are told of each new key until they confirm that they have erased their shares.
    former = holding.get(joint.name, [])
    names = [name for name in hub.common.roster.by_name if name not in (hub.name, KEY_CENTRE)]
    wanted = set(names if attempt.tell is None else attempt.tell) | set(terms.holders) | set(former)
    known = holder.JointKey(*of, text(terms.holders), terms.summands, terms.public, signatures)
    holding[joint.name] = [*dict.fromkeys((*former, *terms.holders))]
    told = {name: known for name in names if name in wanted}
    _, untold = yield from attempt.key.gather(told, holder.Known)
    holding[joint.name] = [name for name in holding[joint.name] if name in terms.holders or name in untold]
    lost = {name: why for name, why in untold.items() if name in terms.holders}
    if len(terms.holders) - len(lost) < joint.needed(len(terms.holders)):
        raise LostError(lost)
    if blamed := (yield from _tried(attempt.key)):
        raise LostError(dict.fromkeys(blamed, "with its share the key opens to nonsense"))
    return ReadyKey(joint.name, of[2], terms.holders, lost, tuple(name for name in untold if name not in lost))


def _tried(key: HubKey) -> fl.Steps[tuple[str, ...]]:
    one = key.group
    sums = {keys.TRIAL: Closed(0, 1, partial(threshold_pads.sum_dec, one, key.public, None, {}, {}))}
    opened = (yield from open_closed(key, sums))[keys.TRIAL]
    if np.abs(opened.values).max() > one.error(key.joint.fewest):
        raise fl.NoAnswerError(f"an encryption of zero under key {key.name!r} opens to another number")
    return opened.blamed
