"""Runs handlers and their effects, many at a time. It knows no time, no queues and no links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from coterie.protocol.errors import CoterieError
from coterie.protocol.interpreters import by_group
from coterie.protocol.party import Work
from coterie.protocol.steps import Step
from coterie.transport.envelope import Handled
from coterie.transport.transcript import Meter


class Effects(Protocol):
    """Runs effects for parties. If a result is a CoterieError, it is raised in the handler."""

    chunk: int

    def run(self, wanted: Sequence[tuple[str, Any]]) -> list[Any]:
        """The results of ``(party, effect)`` pairs, in their order."""


@dataclass(frozen=True)
class Call:
    """A message that one party handles, in a role. work: ``Member.receive``."""

    party: str
    role: str
    kind: str
    work: Work[Handled]


def run_handlers(calls: Sequence[Call], effects: Effects, meter: Meter) -> list[Handled | Step]:
    """Run handlers of different parties side by side and their effects together. Returns results in order.

    A handler that coordinates is left at its first step, which is its result. If a handler raises an error that does
    not refuse its message, the error is raised, and the changes of all unfinished handlers are undone.
    """
    results: list[Any] = [None] * len(calls)
    values: dict[int, Any] = dict.fromkeys(range(len(calls)))
    try:
        while values:
            wants: dict[int, Any] = {}
            for i, value in values.items():
                call = calls[i]
                with meter.timed(call.role, call.kind):
                    try:
                        wanted = call.work.throw(value) if isinstance(value, CoterieError) else call.work.send(value)
                    except StopIteration as stop:
                        results[i] = stop.value
                        continue
                if isinstance(wanted, Step):
                    results[i] = wanted
                else:
                    wants[i] = wanted
            got = compute([(calls[i].party, calls[i].role, effect) for i, effect in wants.items()], effects, meter)
            values = dict(zip(wants, got, strict=True))
    except BaseException:
        for call in calls:
            call.work.close()
        raise
    return results


def compute(wanted: Sequence[tuple[str, str, Any]], effects: Effects, meter: Meter) -> list[Any]:
    """Run effects (party, role, effect), those of one role and kind together, and count their time."""

    def run(group: tuple[str, str], of: Sequence[tuple[str, str, Any]]) -> Sequence[Any]:
        with meter.timed(*group):
            return effects.run([(party, effect) for party, _, effect in of])

    return by_group(wanted, lambda one: (one[1], type(one[2]).__name__), run)
