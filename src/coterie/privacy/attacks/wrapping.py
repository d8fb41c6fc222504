"""Active attacks: a party that deviates only in the results of its effects."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import coterie.method as fl

if TYPE_CHECKING:
    from coterie.privacy.audits import Recorded

Instead = Mapping[type, Callable[[fl.Party, fl.Message, Any], fl.Work[Any]]]
"""By type of effect: (the party, the message that it handles, the effect) -> work that gives the result, and may yield
this or other effects.
"""

Between = Mapping[type, Callable[[fl.Message, Any, Any], Any]]
"""By type of effect: (the message, the effect, its result) -> what the handler goes on with."""


def deviate(party: fl.Party, instead: Instead) -> None:
    """From now on ``instead`` does the party's effects of these types."""
    table = {kind: fl.Handler(_tapped(handler.run, instead), handler.cost) for kind, handler in party.handlers.items()}
    party.__class__ = type(f"Deviating{type(party).__name__}", (type(party),), {"handlers": table})


def wrap(party: fl.Party, between: Between) -> None:
    """Results of the party's effects pass through ``between``."""
    deviate(party, {kind: partial(_changed, change) for kind, change in between.items()})


def repeated(run: Recorded, client: str, between: Between) -> Recorded:
    """The recorded run once more, with this client wrapped."""
    return run.again(lambda federation, delays: wrap(federation.alter(client), between))


def _changed(
    change: Callable[[fl.Message, Any, Any], Any], party: fl.Party, message: fl.Message, effect: Any
) -> fl.Work[Any]:
    return change(message, effect, (yield effect))


def _tapped(run: Callable[..., Any], instead: Instead) -> Callable[..., Any]:
    def tapped(party: fl.Party, message: fl.Message, src: str) -> Any:
        outcome = run(party, message, src)
        return _passed(party, outcome, message, instead) if isinstance(outcome, Generator) else outcome

    return tapped


def _passed(party: fl.Party, work: fl.Work[Any], message: fl.Message, instead: Instead) -> fl.Work[Any]:
    try:
        effect = next(work)
        while True:
            act = instead.get(type(effect))
            try:
                result = (yield effect) if act is None else (yield from act(party, message, effect))
            except fl.CoterieError as error:  # the effect was refused, which is the handler's own concern
                effect = work.throw(error)
            else:
                effect = work.send(result)
    except StopIteration as done:
        return done.value
    finally:
        work.close()
