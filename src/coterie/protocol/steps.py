"""Steps: a coordinator yields them to talk to other parties.

A step's fold consumes each answer. If it raises ``PeerError``, that message is refused, and the step goes on: so it
must check before it changes anything.

The hub coordinates in ``setup`` and ``round``, any other party in a handler that yields steps; requests to it wait
meanwhile. A step without a deadline ends after ``PATIENCE_S``, or once nothing more can come.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from coterie.protocol.effects import Effect
from coterie.protocol.errors import RunError
from coterie.protocol.messages import M, Message
from coterie.protocol.party import Cost, To

R = TypeVar("R")
K = TypeVar("K", bound=Hashable)
Steps = Generator[Any, Any, R]
Fold = Callable[[Any, M], None]
"""Consumes an answer, by its request's key: mostly the name of its sender."""

LATE = "late"
REFUSED = "refused"  # a party's reason may hold its own numbers, so the coordinator is never told, only the observer
UNACCEPTABLE = "its answer was refused"
PATIENCE_S = 7 * 86_400.0
"""The deadline of a step that states none."""


@dataclass(frozen=True)
class Ask:
    requests: Mapping[Any, Message | To]
    reply: type[Message] | tuple[type[Message], ...]
    fold: Fold[Any]
    deadline_s: float | None = None

    @property
    def replies(self) -> tuple[type[Message], ...]:
        return self.reply if isinstance(self.reply, tuple) else (self.reply,)


@dataclass(frozen=True)
class Post:
    messages: Mapping[Any, Message | To]


@dataclass(frozen=True)
class Take:
    kind: type[Message]
    fold: Fold[Any]
    at_least: int = 0
    until_s: float | None = None


@dataclass(frozen=True)
class Wake:
    at_s: float


@dataclass(frozen=True)
class Nominal:
    effect: Effect


Step = Ask | Post | Take | Cost | Wake | Nominal


@dataclass(frozen=True)
class Answers:
    """The outcomes of a step's requests, by their keys (usually the parties' names).

    got: keys of the answered ones, in order of arrival.  after_s: by key of those, seconds from request to answer;
    empty for a ``take``.  missing: by key, why there is no answer.  declined: of these, which the party itself refused.
    """

    got: tuple[Any, ...] = ()
    missing: Mapping[Any, str] = field(default_factory=dict)
    declined: tuple[Any, ...] = ()
    after_s: Mapping[Any, float] = field(default_factory=dict)


def ignored(*answer: Any) -> None:
    """A fold of answers that say nothing but that they come."""


class NoAnswerError(RunError):
    """A party that the round needs gave no acceptable answer."""


def for_each(
    requests: Mapping[K, Message | To],
    reply: type[M] | tuple[type[M], ...],
    fold: Callable[[K, M], None] = ignored,
    *,
    deadline_s: float | None = None,
) -> Steps[Answers]:
    """Ask many at once, and wait for the answers or ``deadline_s`` seconds. ``fold(key, message)`` consumes each.

    An answer of another round, or that differs in what else it must repeat (``Message.ABOUT``), is refused before.

    requests: by the party's name, or by any key to ask one several things: ``{k: To("helper", Convert(k)) for k in
    ...}``, handled in order; the mapping may make each on look-up.  reply: the type of the answers, or several, which
    the fold tells apart.
    """
    answers: Answers = yield Ask(requests, reply, fold, deadline_s)
    return answers


def ask(
    dst: str,
    request: Message,
    reply: type[M],
    read: Callable[[M], Any] = lambda answer: answer,
    *,
    deadline_s: float | None = None,
) -> Steps[Any]:
    """Ask one party. Returns what ``read`` makes of its answer. Raises NoAnswerError without one, or if ``read``
    refuses it.
    """
    got: list[Any] = []
    answers: Answers = yield Ask({dst: request}, reply, lambda _, message: got.append(read(message)), deadline_s)
    if not got:
        outcome = answers.missing.get(dst, "no answer")
        raise NoAnswerError(f"{dst} did not answer {type(request).__name__}: {outcome}")
    return got[0]


def post(messages: Mapping[Any, Message | To]) -> Steps[None]:
    """Send without waiting.  messages: by name, or by any key with ``To(name, message)``."""
    yield Post(messages)


def take(kind: type[M], fold: Fold[M], *, at_least: int = 0, until_s: float | None = None) -> Steps[Answers]:
    """Consume messages that answer no open request, unasked or late, in order of arrival: ``fold(sender, message)``.

    Waits until ``at_least`` were taken or ``until_s`` seconds have passed, then takes all others that are there. Those
    left are dropped when the round ends, except types in the coordinator's ``takes``.
    """
    answers: Answers = yield Take(kind, fold, at_least, until_s)
    return answers


def spend(cost: Cost) -> Steps[None]:
    """Let the coordinator's own nominal work take its virtual time."""
    yield cost


def compute(effect: Effect, cost: Cost | None = None) -> Steps[Any]:
    """Run an effect of the coordinator, on its own data (a hub's: ``--public``). Returns its result, after its virtual
    time.

    cost: by default of ``Party.nominal``. Raises TypeError for no effect, and the effect's errors: a PeerError if
    refused.
    """
    if not isinstance(effect, Effect):
        raise TypeError(f"compute takes an effect, not {effect!r:.80}")
    yield Nominal(effect) if cost is None else cost
    return (yield effect)


def wake(at_s: float) -> Steps[None]:
    """Go on at this instant of the party's clock (``now_s``), or at once."""
    yield Wake(at_s)
