"""Active attacks: a party that deviates in what it makes of its effects, and is honest else.

It runs the honest party's own handlers. So its messages are well formed, signed and in order, and its state and its
keys are what they would be; only what it puts in tells it apart.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

from coterie.protocol.errors import CoterieError
from coterie.protocol.messages import Message
from coterie.protocol.party import Handler, Party, Work

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
