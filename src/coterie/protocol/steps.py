"""Steps: what a coordinator yields to talk to the others. A round reads as one linear text.

``ask`` one party and get its answer; ask ``for_each`` of many and fold the answers one at a time; ``post`` without
waiting; ``take`` what has come unasked or late; ``spend`` virtual time on own work; ``wake`` at an instant. Nothing
here keeps the answers: the fold decides what remains of them. A fold that raises ``PeerError`` refuses that one
message; it is counted and the step goes on. So a fold checks before it changes anything.

The hub coordinates everybody in its ``setup`` and its ``round``. Any other party coordinates where one of its handlers
yields steps: a client that leads its cluster, for instance. Requests to it wait meanwhile. No step waits for ever: one
without a deadline ends after ``PATIENCE_S``, and earlier where it is known that nothing more will come.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from coterie.protocol.errors import RunError
from coterie.protocol.messages import M, Message
from coterie.protocol.party import Cost, To

R = TypeVar("R")
K = TypeVar("K", bound=Hashable)
Steps = Generator[Any, Any, R]
Fold = Callable[[Any, Any], None]

LATE = "late"
REFUSED = "refused"  # a party's reason may hold its own numbers: the observer is told, the coordinator never
UNACCEPTABLE = "its answer was refused"
PATIENCE_S = 7 * 86_400.0
"""Of a step without a deadline of its own, in virtual or real seconds."""


@dataclass(frozen=True)
class Ask:
    """Send requests and wait for their answers, or until ``deadline_s`` seconds have passed.

    requests: by a key, which is the party's name, or any other where the request says ``To`` whom.
    """

    requests: Mapping[Any, Message | To]
    reply: type[Message]
    fold: Fold
    deadline_s: float | None = None


@dataclass(frozen=True)
class Post:
    """Send without waiting. messages: as for ``Ask``."""

    messages: Mapping[Any, Message | To]


@dataclass(frozen=True)
class Take:
    """Consume messages of one type that answer no open request: unasked for, or late.

    Waits until ``at_least`` were taken or ``until_s`` seconds have passed; then takes whatever else is there.
    What nobody has taken is dropped when the round ends, unless the coordinator's ``takes`` names its type.
    """

    kind: type[Message]
    fold: Fold
    at_least: int = 0
    until_s: float | None = None


@dataclass(frozen=True)
class Spend:
    """The coordinator's own nominal work: it takes virtual time. (What others do has its cost at their handlers.)"""

    cost: Cost


@dataclass(frozen=True)
class Wake:
    """Wait until this instant, in seconds of the party's clock (``now_s``); one that has passed is no wait."""

    at_s: float


Step = Ask | Post | Take | Spend | Wake


@dataclass(frozen=True)
class Answers:
    """Keys of the requests that were answered, in order of arrival, and what became of the others (``missing``).

    A key is a party's name, unless the requests were asked under other keys.
    declined: of those in ``missing``, the ones that the party itself refused. An outcome says that a party refused and
    never why: its reason may hold numbers of its own. Reasons are the observer's.
    """

    got: tuple[Any, ...] = ()
    missing: Mapping[Any, str] = field(default_factory=dict)
    declined: tuple[Any, ...] = ()


class NoAnswerError(RunError):
    """A party that the round cannot do without gave no acceptable answer."""


def for_each(
    requests: Mapping[K, Message | To], reply: type[M], fold: Callable[[K, M], None], *, deadline_s: float | None = None
) -> Steps[Answers]:
    """Ask many at once; ``fold(key, message)`` consumes each answer as it arrives.

    requests: by the name of the party that is asked. Where one party is asked several things in one step, by any other
    key: ``{k: To("helper", Convert(k)) for k in ...}``. Every request has its own answer and outcome. A mapping may
    make its messages as they are asked for, so that not all of them are held at once.
    """
    answers: Answers = yield Ask(requests, reply, fold, deadline_s)
    return answers


def ask(dst: str, request: Message, reply: type[M], *, deadline_s: float | None = None) -> Steps[M]:
    """Ask one party; raises NoAnswerError (a RunError), with the outcome, when there is no acceptable answer."""
    got: list[M] = []
    answers: Answers = yield Ask({dst: request}, reply, lambda _, message: got.append(message), deadline_s)
    if not got:
        outcome = answers.missing.get(dst, "no answer")
        raise NoAnswerError(f"{dst} did not answer {type(request).__name__}: {outcome}")
    return got[0]


def post(messages: Mapping[Any, Message | To]) -> Steps[None]:
    """Send to each without waiting for an answer. messages: by name, or by any key with ``To(name, message)``."""
    yield Post(messages)


def take(
    kind: type[M], fold: Callable[[str, M], None], *, at_least: int = 0, until_s: float | None = None
) -> Steps[Answers]:
    """Consume what came unasked for or late, in order of arrival; ``fold(sender, message)``."""
    answers: Answers = yield Take(kind, fold, at_least, until_s)
    return answers


def spend(cost: Cost) -> Steps[None]:
    """Let the coordinator's own work take its virtual time."""
    yield Spend(cost)


def wake(at_s: float) -> Steps[None]:
    """Go on at this instant of the party's own clock."""
    yield Wake(at_s)
