"""Opening sums under a joint key: the hub's side of ``threshold_keys``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np

from coterie.crypto import threshold
from coterie.crypto.arrays import CiphertextError
from coterie.crypto.ckks import CipherVector
from coterie.protocol.errors import DecodeError
from coterie.protocol.messages import bundle, unbundle
from coterie.protocol.party import Cost
from coterie.protocol.steps import NoAnswerError, Steps, spend
from coterie.protocols.threshold_holder import group_of, joint_of, named, terms_of
from coterie.protocols.threshold_hub import UNREADABLE, Floats, JointHub, Lost, Of, Opened, gather, reasons
from coterie.protocols.threshold_parts import Announce, Decrypt, Partials, Present, text


def open_sum(
    hub: JointHub,
    name: str,
    cipher: CipherVector,
    r: int,
    *,
    number: int = 0,
    deadline_s: float | None = None,
    present: Sequence[str] | None = None,
) -> Steps[Opened]:
    """One sum under this key, opened; as ``open_sums``."""
    opened = yield from open_sums(hub, name, {number: cipher}, r, deadline_s=deadline_s, present=present)
    return opened[number]


def open_sums(
    hub: JointHub,
    name: str,
    ciphers: Mapping[int, CipherVector],
    r: int,
    *,
    deviation: Mapping[int, float] = MappingProxyType({}),
    partly: bool = False,
    deadline_s: float | None = None,
    present: Sequence[str] | None = None,
) -> Steps[dict[int, Opened]]:
    """Sums under this key, opened together. ciphers: by a number of at least 0 that occurs once a round.

    deviation: by number, of a sum's error where it is not that of its form (``threshold.server_dec``).
    partly: leave out those that open to nonsense while others do not, so that their ciphertexts are at fault.
    deadline_s: of each step.  present: whom to ask, if not all holders.
    Raises NoAnswerError (a RunError), with the reasons, if they cannot be opened.
    """
    joint, one = joint_of(hub, name), group_of(hub, name)
    sums = {}
    for number, cipher in ciphers.items():
        senders = cipher.tally.vectors
        if not joint.opens(number, senders, cipher.length):
            raise NoAnswerError(f"sum {number} has {senders} senders: of fewer than {joint.fewest} none is opened")
        if joint.pads and not joint.single(senders, cipher.length):
            raise NoAnswerError(f"sum {number} under {name!r}, a key for padded vectors: open it by open_weighted")
        make = partial(threshold.server_dec, one, cipher, deviation=deviation.get(number))
        sums[number] = Closed(senders, cipher.length, make)
    return (yield from open_closed(hub, name, sums, r, partly=partly, deadline_s=deadline_s, present=present))


@dataclass(frozen=True, eq=False)
class Closed:
    """What is to be opened. senders: of how many vectors it is the sum.

    prepare: makes it ready, anew each time, from random bytes for an emulated one.
    """

    senders: int
    length: int
    prepare: Callable[..., threshold.Prepared]


def open_closed(
    hub: JointHub,
    name: str,
    sums: Mapping[int, Closed],
    r: int,
    *,
    partly: bool = False,
    control: int | None = None,
    deadline_s: float | None = None,
    present: Sequence[str] | None = None,
) -> Steps[dict[int, Opened]]:
    """As ``open_sums``, of whatever can be prepared. control: where this one opens to nonsense, all of them do."""
    terms, one = terms_of(hub, name), group_of(hub, name)
    of = r, name, terms.number
    rows = [(number, closed.senders, closed.length) for number, closed in sums.items()]
    announce = Announce(*of, np.array(rows, np.int64).ravel())
    asked = dict.fromkeys(terms.holders if present is None else present, announce)
    there, gone = yield from gather(of, asked, Present, lambda *_: None, deadline_s)
    left, done = dict(sums), dict[int, Opened]()
    order = [holder for holder in terms.holders if holder in there]  # who answers first must not choose the holders
    following, suspect, tries = None, "", 0
    while True:
        among = tuple(holder for holder in order if holder not in gone and holder != suspect)[: one.needed]
        if len(among) < one.needed:
            if partly and done:
                return done
            raise NoAnswerError(_closed(name, one.needed, len(terms.holders), gone, suspect))
        tries += 1
        values, lost = yield from _answered(hub, one, of, left, among, tries, deadline_s)
        gone |= lost
        if lost:
            continue
        spoilt = control in values and values[control] is None
        for number, opened in values.items():
            if opened is not None and not spoilt:
                done[number] = Opened(opened, among, (suspect,) if suspect else (), tries)
                del left[number]
        if not left:
            return done
        if following is None:  # leave out each of the first set in turn
            following, order = iter(among), [*among, *(holder for holder in order if holder not in among)]
        suspect = next(following, "")
        if not suspect:
            if partly and done:
                return done
            raise NoAnswerError(f"a sum under key {name!r} opens to nonsense whichever one holder is left out")


def _closed(name: str, needed: int, holders: int, gone: Lost, suspect: str) -> str:
    if suspect:
        return (
            f"a sum under key {name!r} opens to nonsense: a holder gave a false share, and as {needed} of {holders} "
            "holders are needed, no other takes its place; or a ciphertext in it is forged"
        )
    return f"a sum under key {name!r} is opened by {needed} of {holders} holders: {reasons(gone)}"


def _answered(
    hub: JointHub,
    one: threshold.Group,
    of: Of,
    sums: Mapping[int, Closed],
    among: tuple[str, ...],
    tries: int,
    deadline_s: float | None,
) -> Steps[tuple[dict[int, Floats | None], Lost]]:
    """What these holders open the sums to, None for nonsense; and by name who did not answer."""
    prepared = {}
    for number, closed in sums.items():
        draw = hub.secrets(f"opening {tries} of sum {number} under {of[1]} {of[2]}", of[0]).bytes
        prepared[number] = closed.prepare(random_bytes=draw)
    requests = bundle([ready.request.to_bytes() for ready in prepared.values()])
    decrypt = Decrypt(*of, text(among), np.array([*prepared], np.int64), requests)
    lengths = [closed.length for closed in sums.values()]
    yield from spend(Cost(crypto_s=sum(one.seconds("server_dec", length) for length in lengths)))

    def read(name: str, msg: Partials) -> None:
        unbundle(msg.parts, len(prepared))

    got, lost = yield from gather(of, dict.fromkeys(among, decrypt), Partials, read, deadline_s)
    if lost:
        return {}, lost
    yield from spend(Cost(crypto_s=sum(one.seconds("opened", length, holders=len(among)) for length in lengths)))
    parts = {name: unbundle(got[name].parts, len(prepared)) for name in among}
    values: dict[int, Floats | None] = {}
    for i, (number, ready) in enumerate(prepared.items()):
        try:
            values[number] = threshold.opened(one, ready, {name: parts[name][i] for name in among})
        except CiphertextError:
            values[number] = None
        except DecodeError as error:
            return {}, {named(among, error): UNREADABLE}
    return values, {}
