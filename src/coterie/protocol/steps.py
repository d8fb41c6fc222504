"""Steps: what a coordinator yields to talk to the others. A round reads as one linear text.

``ask`` one party and get its answer; ask ``for_each`` of many and fold the answers one at a time; ``post`` without
waiting; ``take`` what has come unasked or late. Nothing here keeps the answers: the fold decides what remains of them.
A fold that raises ``PeerError`` refuses that one message; it is counted and the step goes on. So a fold checks before
it changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from coterie.protocol.errors import RunError
from coterie.protocol.messages import M, Message
from coterie.protocol.party import Cost

R = TypeVar("R")
Steps = Generator[Any, Any, R]
Fold = Callable[[str, Any], None]


@dataclass(frozen=True)
class Ask:
    """Send a request to each party and wait for their answers, or until ``deadline_s`` virtual seconds have passed."""

    requests: Mapping[str, Message]
    reply: type[Message]
    fold: Fold
    deadline_s: float | None = None


@dataclass(frozen=True)
class Post:
    """Send without waiting."""

    messages: Mapping[str, Message]


@dataclass(frozen=True)
class Take:
    """Consume messages of one type that answer no open request: unasked for, or late.

    Waits until ``at_least`` were taken or ``until_s`` virtual seconds have passed; then takes whatever else is there.
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
class Answers:
    """Who answered, in order of arrival, and what became of the others (``party -> outcome``).

    declined: those of the others who refused the request itself. An outcome says that a party refused and never why:
    its reason may hold numbers of its own. Reasons are the observer's.
    """

    got: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    declined: tuple[str, ...] = ()


class NoAnswerError(RunError):
    """A party that the round cannot do without gave no acceptable answer."""


def for_each(
    requests: Mapping[str, Message], reply: type[M], fold: Callable[[str, M], None], *, deadline_s: float | None = None
) -> Steps[Answers]:
    """Ask many at once; ``fold(name, message)`` consumes each answer as it arrives."""
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


def post(messages: Mapping[str, Message]) -> Steps[None]:
    """Send to each without waiting for an answer."""
    yield Post(messages)


def take(
    kind: type[M], fold: Callable[[str, M], None], *, at_least: int = 0, until_s: float | None = None
) -> Steps[Answers]:
    """Consume what came unasked for or late, in order of arrival."""
    answers: Answers = yield Take(kind, fold, at_least, until_s)
    return answers


def spend(cost: Cost) -> Steps[None]:
    """Let the hub's own work take its virtual time."""
    yield Spend(cost)
