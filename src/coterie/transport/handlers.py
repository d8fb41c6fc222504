"""Running handlers and their effects, many at a time. Knows nothing of time, queues or links."""

from __future__ import annotations

import time
from collections.abc import Container, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.protocol import codec
from coterie.protocol.errors import CoterieError, CryptoError, PeerError, RunError
from coterie.protocol.messages import Message
from coterie.protocol.party import Party, To, Transaction, Work
from coterie.transport.envelope import Effects
from coterie.transport.meter import Meter


@dataclass(frozen=True)
class Call:
    """One message for one party; ``names`` are the parties that may be written to."""

    party: Party
    message: Message
    src: str
    names: Container[str]


@dataclass(frozen=True)
class Letter:
    """One encoded message to be sent."""

    dst: str
    kind: str
    frame: bytes


@dataclass(frozen=True)
class Refused:
    """Why a handler did not accept its message."""

    reason: str


Result = tuple[Letter, ...] | Refused


def handle(call: Call) -> Work[Result]:
    """One handler as one transaction, whether it is a plain function or a generator of effects.

    Its letters are encoded before the party's changes commit, so a message that cannot travel changes nothing.
    """
    party = call.party
    try:
        with Transaction(party):
            outcome = party.handlers[type(call.message)].run(party, call.message, call.src)
            if isinstance(outcome, Generator):
                outcome = yield from outcome
            return _letters(call, outcome)
    except (PeerError, CryptoError) as error:
        return Refused(str(error))


def _letters(call: Call, outcome: Any) -> tuple[Letter, ...]:
    if isinstance(outcome, Message):
        outcome = To(call.src, outcome)
    messages = (outcome,) if isinstance(outcome, To) else outcome or ()
    if not isinstance(messages, tuple) or not all(isinstance(to, To) for to in messages):
        raise RunError(
            f"{call.party.name} ends {type(call.message).__name__} with {outcome!r:.80}: a handler returns a message "
            "to its sender, To(name, message), several of those in a tuple, or nothing"
        )
    frames: dict[int, bytes] = {}  # a message object that goes to many is encoded once
    for to in messages:
        if to.dst not in call.names:
            name = type(to.message).__name__
            raise RunError(f"{call.party.name} sends {name} to {to.dst!r}, which is not a party of this federation")
        if id(to.message) not in frames:
            frames[id(to.message)] = codec.encode(to.message)
    return tuple(Letter(to.dst, type(to.message).__name__, frames[id(to.message)]) for to in messages)


def run_handlers(calls: Sequence[Call], effects: Effects, meter: Meter) -> list[Result]:
    """Run handlers of different parties side by side, their effects together; results in order.

    Raises what a handler raises, other than PeerError and CryptoError; then all that were not done are taken back.
    """
    results: list[Any] = [None] * len(calls)
    works = [handle(call) for call in calls]
    values: dict[int, Any] = dict.fromkeys(range(len(calls)))
    try:
        while values:
            wants: dict[int, Any] = {}
            for i, value in values.items():
                started = time.perf_counter()
                try:
                    wants[i] = works[i].throw(value) if isinstance(value, CoterieError) else works[i].send(value)
                except StopIteration as stop:
                    results[i] = stop.value
                finally:
                    kind = type(calls[i].message).__name__
                    meter.spent(calls[i].party.role, kind, time.perf_counter() - started)
            got = compute([(calls[i].party, effect) for i, effect in wants.items()], effects, meter)
            values = dict(zip(wants, got, strict=True))
    finally:
        for work in works:
            work.close()
    return results


def compute(wanted: Sequence[tuple[Party, Any]], effects: Effects, meter: Meter) -> list[Any]:
    """Run effects, those of a role and kind together, and count their time; results in order."""
    results: list[Any] = [None] * len(wanted)
    groups: dict[tuple[str, str], list[int]] = {}
    for index, (party, effect) in enumerate(wanted):
        groups.setdefault((party.role, type(effect).__name__), []).append(index)
    for (role, name), indices in groups.items():
        started = time.perf_counter()
        group = effects.run([(wanted[i][0].name, wanted[i][1]) for i in indices])
        for index, result in zip(indices, group, strict=True):
            results[index] = result
        meter.spent(role, name, time.perf_counter() - started)
    return results
