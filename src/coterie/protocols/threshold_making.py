"""Making joint keys and handing them over (``threshold_keys``): the hub's side of ``threshold_holder``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from coterie.crypto import threshold
from coterie.crypto.roster import verify_key
from coterie.crypto.vector import sum_ciphers
from coterie.protocol.errors import DecodeError, PeerError
from coterie.protocol.messages import Message, bundle, unbundle
from coterie.protocol.steps import NoAnswerError, Steps, take
from coterie.protocols.key_centre import EVALUATION, KEY_CENTRE, deal_again
from coterie.protocols.threshold_holder import (
    DIGEST_BYTES,
    Begin,
    Committed,
    Complete,
    Endorsed,
    Evaluate,
    Evaluated,
    Exchange,
    JointKey,
    Known,
    Lacking,
    Lacks,
    Pass,
    Passed,
    Piece,
    Reveal,
    Revealed,
    endorsement,
    shown_parts,
)
from coterie.protocols.threshold_keys import (
    TRIAL,
    UNREADABLE,
    Joint,
    Lost,
    Of,
    Terms,
    gather,
    group,
    lines,
    named,
    reasons,
    text,
)
from coterie.protocols.threshold_opening import Announce, Closed, Decrypt, Partials, Present, open_closed

HOLDER_MESSAGES: tuple[type[Message], ...] = (Begin, Reveal, Exchange, Piece, JointKey, Announce, Decrypt)
"""What a holder receives, if nothing goes wrong, of a key without products that is not handed over."""

HUB_MESSAGES: tuple[type[Message], ...] = (Committed, Revealed, Endorsed, Complete, Known, Present, Partials)
"""What the hub receives then."""


@dataclass(frozen=True)
class ReadyKey:
    """A key that is ready. missing: by name, why an intended holder lacks it.

    untold: parties that have not confirmed that they know it.
    """

    name: str
    number: int
    holders: tuple[str, ...]
    missing: Mapping[str, str] = field(default_factory=dict)
    untold: tuple[str, ...] = ()


def make_keys(
    hub: Any,
    name: str,
    holders: Sequence[str],
    r: int,
    *,
    tell: Sequence[str] | None = None,
    deadline_s: float | None = None,
) -> Steps[ReadyKey]:
    """A new key for these parties. All who are told erase an old one of this name.

    tell: whom to tell besides the new and the old holders; by default everybody.  deadline_s: of each step.
    Raises NoAnswerError (a RunError), with the reasons, if too few holders are left to make it.
    """
    joint = hub.joint.of(name)
    if joint.dealer:
        _enough(hub, joint, holders, {})
        yield from deal_again(hub, name, holders)
        return ReadyKey(name, hub.joint.terms(name).number, tuple(holders))
    missing: Lost = {}
    while True:
        left = tuple(one for one in dict.fromkeys(holders) if one not in missing)
        _enough(hub, joint, left, missing)
        outcome = yield from _made(hub, joint, left, r, tell, deadline_s)
        if isinstance(outcome, ReadyKey):
            return _with(outcome, missing)
        missing |= outcome


def hand_over(
    hub: Any,
    name: str,
    holders: Sequence[str],
    r: int,
    *,
    tell: Sequence[str] | None = None,
    deadline_s: float | None = None,
) -> Steps[ReadyKey]:
    """The same key for other holders, by pieces of the old shares. Parameters and errors: as ``make_keys``.

    New holders must have been told the key before.
    """
    joint, missing = hub.joint.of(name), Lost()
    old = hub.joint.terms(name).holders
    while True:
        left = tuple(one for one in dict.fromkeys(holders) if one not in missing)
        _enough(hub, joint, left, missing)
        sources = sorted((one for one in old if one not in missing), key=lambda one: one not in left)
        if len(sources) < (needed := joint.needed(len(old))):
            raise NoAnswerError(f"key {name!r} is handed over by {needed} of its holders: {reasons(missing)}")
        outcome = yield from _handed(hub, joint, left, tuple(sources[:needed]), r, tell, deadline_s)
        if isinstance(outcome, ReadyKey):
            return _with(outcome, missing)
        missing |= outcome


def _enough(hub: Any, joint: Joint, left: Sequence[str], missing: Lost) -> None:
    try:
        joint.checked(left, hub.common.roster)
    except PeerError as error:
        raise NoAnswerError(f"{error} ({reasons(missing)})" if missing else str(error)) from None


def _with(made: ReadyKey, missing: Lost) -> ReadyKey:
    return ReadyKey(made.name, made.number, made.holders, {**missing, **made.missing}, made.untold)


def _made(
    hub: Any, joint: Joint, holders: tuple[str, ...], r: int, tell: Sequence[str] | None, deadline_s: float | None
) -> Steps[ReadyKey | Lost]:
    """One attempt. Returns whom to leave out of the next, if it fails."""
    of = _number(hub, joint, r)
    begin = dict.fromkeys(holders, Begin(*of, text(holders), ""))
    begun, lost = yield from gather(of, begin, Committed, _committed, deadline_s)
    if lost:
        return lost
    digests = {name: begun[name].digest for name in holders}
    one = group(hub.common, joint, of[2], holders, len(holders))

    def shown(name: str, msg: Revealed) -> None:
        shown_parts(msg.part, (name,), digests[name])

    reveal = dict.fromkeys(holders, Reveal(*of, b"".join(digests.values())))
    revealed, lost = yield from gather(of, reveal, Revealed, shown, deadline_s)
    if lost:
        return lost
    flat = [part for name in holders for part in unbundle(revealed[name].part, 3)]
    parts = shown_parts(bundle(flat), holders, b"".join(digests.values()))
    try:
        public = threshold.joined(one, {name: part for name, (part, _) in parts.items()})
    except DecodeError as error:
        return {named(holders, error): UNREADABLE}
    terms = Terms(of[2], holders, public.to_bytes(), len(holders))
    ended = yield from _exchanged(hub, of, terms, bundle(flat), deadline_s)
    if isinstance(ended, dict):
        return ended
    seconds, signatures = ended
    key, evaluation = public, b""
    if joint.products:
        firsts = {name: first for name, (_, first) in parts.items()}
        asked = dict.fromkeys(holders, Evaluate(*of, np.array(one.space.elements, np.int64)))
        turned, lost = yield from gather(of, asked, Evaluated, lambda *_: None, deadline_s)
        if lost:
            return lost
        rows = {name: turned[name].part for name in holders}
        try:
            key = threshold.with_products(one, public, firsts, seconds)
            evaluation = threshold.evaluation(one, key, rows).to_bytes()
        except DecodeError as error:
            return {named(holders, error): UNREADABLE}
    keys = hub.keys.secret
    hub.joint.learn(joint.name, terms)
    keys.public[joint.name] = key.to_bytes()
    if evaluation:
        keys.public[f"{joint.name} {EVALUATION}"] = evaluation
    return (yield from _told(hub, joint, of, signatures, tell, deadline_s))


def _handed(
    hub: Any,
    joint: Joint,
    holders: tuple[str, ...],
    sources: tuple[str, ...],
    r: int,
    tell: Sequence[str] | None,
    deadline_s: float | None,
) -> Steps[ReadyKey | Lost]:
    """One attempt. Returns whom to leave out of the next, if it fails."""
    of, old = _number(hub, joint, r), hub.joint.terms(joint.name)
    begin = dict.fromkeys(holders, Begin(*of, text(holders), text(sources)))
    _, lost = yield from gather(of, begin, Committed, lambda *_: None, deadline_s)
    if lost:
        return lost
    handing = dict.fromkeys(sources, Pass(*of, text(holders), text(sources)))
    _, lost = yield from gather(of, handing, Passed, lambda *_: None, deadline_s)
    if lost:
        return lost
    terms = Terms(of[2], holders, old.public, old.summands)
    ended = yield from _exchanged(hub, of, terms, bundle([]), deadline_s)
    if isinstance(ended, dict):
        return ended
    hub.joint.secret.terms[joint.name] = terms
    return (yield from _told(hub, joint, of, ended[1], tell, deadline_s))


def _number(hub: Any, joint: Joint, r: int) -> Of:
    numbers = hub.joint.secret.numbers
    numbers[joint.name] = numbers.get(joint.name, 0) + 1
    return r, joint.name, numbers[joint.name]


def _committed(name: str, msg: Committed) -> None:
    if len(msg.digest) != DIGEST_BYTES:
        raise PeerError(f"{name}: a commitment of {len(msg.digest)} bytes")


def _exchanged(
    hub: Any, of: Of, terms: Terms, parts: bytes, deadline_s: float | None
) -> Steps[tuple[dict[str, bytes], bytes] | Lost]:
    """The second parts for products by name, and all signatures, once all have all pieces; or whom to leave out."""
    holders = terms.holders
    fields = endorsement(hub.common, of[1], of[2], holders, terms.summands, terms.public)

    def endorsed(name: str, msg: Endorsed) -> None:
        verify_key(hub.common, name).verify(msg.signature, *fields)

    exchange = dict.fromkeys(holders, Exchange(*of, parts))
    signed, lost = yield from gather(of, exchange, Endorsed, endorsed, deadline_s)
    if lost:
        return lost
    complete = set[str]()

    def ready(name: str, msg: Complete) -> None:
        if name not in holders or name in complete or (msg.round, msg.key, msg.number) != of:
            raise PeerError(f"{name} is complete, and was not asked or has said so before")
        complete.add(name)

    with suppress(NoAnswerError):  # nothing more will come
        yield from take(Complete, ready, at_least=len(holders), until_s=deadline_s)
    if left := [name for name in holders if name not in complete]:
        return (yield from _lacking(of, holders, left, deadline_s))
    seconds = {name: signed[name].second for name in holders}
    return seconds, b"".join(signed[name].signature for name in holders)


def _lacking(of: Of, holders: tuple[str, ...], left: Sequence[str], deadline_s: float | None) -> Steps[Lost]:
    """Whom to leave out: the holders whose pieces others lack, or one that lacks most others' pieces."""
    asked = dict.fromkeys(left, Lacking(*of))
    told, lost = yield from gather(of, asked, Lacks, lambda *_: None, deadline_s)
    for name, msg in told.items():
        lacks = set(lines(msg.names)) & set(holders)
        if not lacks or 2 * len(lacks) >= len(holders):
            lost[name] = f"it lacks the pieces of {len(lacks)} others"
        else:
            lost |= dict.fromkeys(lacks, f"{name} lacks its piece")
    return lost


def _told(
    hub: Any,
    joint: Joint,
    of: Of,
    signatures: bytes,
    tell: Sequence[str] | None,
    deadline_s: float | None,
) -> Steps[ReadyKey | Lost]:
    """Tell everybody, and try the key.

    Former holders are told of each new key until they confirm that they have erased their shares.
    """
    terms, holding = hub.joint.terms(joint.name), hub.joint.secret.holding
    former = holding.get(joint.name, [])
    names = [name for name in hub.common.roster.by_name if name not in (hub.name, KEY_CENTRE)]
    wanted = set(names if tell is None else tell) | set(terms.holders) | set(former)
    known = JointKey(*of, text(terms.holders), terms.summands, terms.public, signatures)
    told = {name: known for name in names if name in wanted}
    holding[joint.name] = [*dict.fromkeys((*former, *terms.holders))]
    _, untold = yield from gather(of, told, Known, lambda *_: None, deadline_s)
    holding[joint.name] = [name for name in holding[joint.name] if name in terms.holders or name in untold]
    lost = {name: why for name, why in untold.items() if name in terms.holders}
    if len(terms.holders) - len(lost) < joint.needed(len(terms.holders)):
        return lost
    blamed = yield from _tried(hub, joint, of[0], deadline_s)
    if blamed:
        return dict.fromkeys(blamed, "with its share the key opens to nonsense")
    return ReadyKey(joint.name, of[2], terms.holders, lost, tuple(name for name in untold if name not in lost))


def _tried(hub: Any, joint: Joint, r: int, deadline_s: float | None) -> Steps[tuple[str, ...]]:
    """Open encryptions of zero. Returns the holders of false shares."""
    one, key = hub.joint.group(joint.name), hub.keys.public(joint.name)
    if joint.pads:
        closed = Closed(0, 1, partial(threshold.sum_dec, one, key, None, {}, {}))
    else:
        nothing = sum_ciphers(key.encrypt(np.zeros(1)) for _ in range(joint.fewest))
        closed = Closed(joint.fewest, 1, partial(threshold.server_dec, one, nothing))
    found = yield from open_closed(hub, joint.name, {TRIAL: closed}, r, deadline_s=deadline_s)
    opened = found[TRIAL]
    if np.abs(opened.values).max() > one.error(joint.fewest):
        raise NoAnswerError(f"encryptions of zero under key {joint.name!r} open to other numbers")
    return opened.blamed
