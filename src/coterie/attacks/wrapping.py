"""Active attacks: a party that deviates in what it makes of its effects, or in when it answers, and is honest else.

It runs the honest party's own handlers. So its messages are well formed, signed and in order, and its state and its
keys are what they would be; only what it puts in tells it apart.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

from coterie.protocol.errors import CoterieError
from coterie.protocol.messages import Message
from coterie.protocol.party import Cost, Handler, Party, Work

Between = Callable[[Message, Any, Any], Any]
"""(the message that is being handled, an effect, its result) -> the result that the handler goes on with."""


def wrap(party: Party, between: Between, *, late: int = 0) -> None:
    """From now on each result of the party's effects passes through ``between``. It stays the same object.

    late: what a round asks it for it sends so many rounds later at least.
    """
    table = {
        kind: Handler(_tapped(handler.run, between), _delayed(handler.cost, late))
        for kind, handler in party.handlers.items()
    }
    party.__class__ = type(f"Deviating{type(party).__name__}", (type(party),), {"handlers": table})


def _tapped(run: Callable[..., Any], between: Between) -> Callable[..., Any]:
    def tapped(party: Party, message: Message, src: str) -> Any:
        outcome = run(party, message, src)
        return _passed(outcome, message, between) if isinstance(outcome, Generator) else outcome

    return tapped


def _delayed(cost: Callable[[Any, Any], Cost], late: int) -> Callable[[Any, Any], Cost]:
    def delayed(party: Party, message: Message) -> Cost:
        honest = cost(party, message)
        return replace(honest, rounds=max(honest.rounds, late)) if getattr(message, "round", 0) else honest

    return delayed


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
                effect = work.send(between(message, effect, result))
    except StopIteration as done:
        return done.value
    finally:
        work.close()
