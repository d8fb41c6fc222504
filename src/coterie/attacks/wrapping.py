"""Active attacks: a party that deviates in what it makes of its effects, or in when it answers, and is honest else.

It runs the honest party's own handlers. So its messages are well formed, signed and in order, and its state and its
keys are what they would be; only what it puts in tells it apart.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

from coterie.protocol.errors import CoterieError
from coterie.protocol.messages import Message
from coterie.protocol.party import Cost, Handler, Party, Work
from coterie.transport.wire import Links

Between = Mapping[type, Callable[[Message, Any, Any], Any]]
"""By type of effect: (the message that is being handled, the effect, its result) -> what the handler goes on with."""


def wrap(party: Party, between: Between) -> None:
    """From now on results of the party's effects pass through ``between``. It stays the same object."""
    table = {kind: Handler(_tapped(handler.run, between), handler.cost) for kind, handler in party.handlers.items()}
    party.__class__ = type(f"Deviating{type(party).__name__}", (type(party),), {"handlers": table})


def _tapped(run: Callable[..., Any], between: Between) -> Callable[..., Any]:
    def tapped(party: Party, message: Message, src: str) -> Any:
        outcome = run(party, message, src)
        return _passed(outcome, message, between) if isinstance(outcome, Generator) else outcome

    return tapped


def _passed(work: Work[Any], message: Message, between: Between) -> Work[Any]:
    """The same work, on other results."""
    try:
        effect = next(work)
        while True:
            try:
                result = yield effect
            except CoterieError as error:  # the effect was refused, which is the handler's own concern
                effect = work.throw(error)
            else:
                change = between.get(type(effect))
                effect = work.send(change(message, effect, result) if change else result)
    except StopIteration as done:
        return done.value
    finally:
        work.close()


class LateParty:
    """The links of a federation in which one party sends what a round asks it for ``late`` rounds later at least.

    That is but in the set-up, round 0. All else is as without it.
    """

    def __init__(self, links: Links, party: str, late: int) -> None:
        self._links, self._party, self._late = links, party, late

    def rounds(self, party: str, round: int) -> int:
        own = self._late if party == self._party and round else 0
        return max(own, self._links.rounds(party, round))

    def down_s(self, party: str, size: int) -> float:
        return self._links.down_s(party, size)

    def up_s(self, party: str, size: int) -> float:
        return self._links.up_s(party, size)

    def work_s(self, party: str, cost: Cost) -> float:
        return self._links.work_s(party, cost)

    def fate(self, party: str, round: int, request: int) -> str:
        return self._links.fate(party, round, request)
