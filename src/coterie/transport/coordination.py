"""The coordination of one generator of steps: the hub's round, or the handler of a leader.

A coordination knows no clock, no queue and no network. Its driver calls ``start`` once. Then it calls the other methods
as events happen, with the time of the event:

- ``deliver``: a message has come.
- ``refuse``: an answer will never come.
- ``computed``: the effect that was asked for has a result.
- ``spent``: the coordinator's own work takes this long.
- ``expire``: the time ``wake_s`` has come. Messages that arrive at that time are delivered first.

Each message to send is passed to ``send`` as soon as it is made. By default ``send`` appends it to ``letters``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from coterie.protocol.errors import CoterieError, CryptoError, PeerError, RunError
from coterie.protocol.messages import Message
from coterie.protocol.party import Cost, To
from coterie.protocol.steps import (
    LATE,
    PATIENCE_S,
    REFUSED,
    UNACCEPTABLE,
    Answers,
    Ask,
    NoAnswerError,
    Post,
    Spend,
    Step,
    Steps,
    Take,
    Wake,
)
from coterie.transport.envelope import Envelope, EnvelopeError, Sent
from coterie.transport.mail import Waiting
from coterie.transport.member import Member
from coterie.transport.numbers import USED


@dataclass
class _Asked:
    """One request of the open step. outcome: None while it is open, "" once its answer was accepted.

    failed: why no answer is expected any more. An answer that comes nevertheless still counts.
    """

    key: Any
    dst: str
    outcome: str | None = None
    failed: str = ""


class Coordination:
    """One generator of steps and effects, for one round and attempt.

    role: the role that the party acts in.  critical: whether a message that cannot be sent ends the run (for the hub),
    or only this work.
    """

    def __init__(
        self, member: Member, work: Steps[Any], *, round: int, attempt: int, role: str, critical: bool = False
    ) -> None:
        self.member, self.round, self.attempt, self.role = member, round, attempt, role
        self.letters: list[Sent] = []
        self.send: Callable[[Sent], None] = self.letters.append
        self.effect: Any = None
        self.cost: Cost | None = None
        self.wake_s = inf
        self.patient = False  # whether nothing but the default deadline would wake it
        self.done = False
        self.result: Any = None
        self.asked: set[int] = set()  # numbers of all its requests
        self._work, self._critical = work, critical
        self._step: Step | None = None
        self._open: dict[int, _Asked] = {}
        self._got: list[Any] = []
        self._missing: dict[Any, str] = {}

    # -- for the driver ------------------------------------------------------------------------------------------------

    def start(self, now_s: float) -> None:
        """Run to the first wait."""
        self._resume(None, now_s)

    def adopt(self, step: Any, now_s: float) -> None:
        """Continue a generator that has already yielded this step."""
        self._resume(None, now_s, step)

    def deliver(self, envelope: Envelope, frame: bytes, now_s: float) -> bool:
        """A message for the coordinator has come. An answer is folded, and any other message waits to be taken.

        Returns whether the message is genuine and new. A forged or repeated message changes nothing.
        """
        member = self.member
        try:
            member.verify(envelope, frame)
            if member.numbers.is_old(envelope):
                raise EnvelopeError(USED)
        except EnvelopeError as error:
            member.observer.refused(envelope, self.role, str(error))
            return False
        member.numbers.take(envelope)
        request = self._open.get(envelope.answers)
        wanted = request is not None and request.dst == envelope.src and request.outcome is None
        if isinstance(self._step, Ask) and request is not None and wanted:
            accepted = self._fold(envelope, frame, self._step.reply, request.key, now_s)
            request.outcome = "" if accepted else UNACCEPTABLE
        elif isinstance(self._step, Take) and envelope.kind == self._step.kind.__name__:
            self._take_one(envelope, frame, now_s)
        else:
            member.inbox.append(Waiting(envelope, member.spool.put(frame), now_s))
        self._may_end(now_s)
        return True

    def refuse(self, number: int, reason: str, now_s: float) -> None:
        """The answer to this request will never come. A step with a stated deadline waits for the deadline anyway.

        A real coordinator could not know, either.
        """
        request = self._open.get(number)
        if request is not None and request.outcome is None:
            request.failed = request.failed or reason
            self._may_end(now_s)

    def computed(self, value: Any, now_s: float) -> None:
        """The result of ``effect``. If it is a CoterieError, it is raised where the effect was yielded."""
        self.effect = None
        self._resume(value, now_s)

    def spent(self, seconds: float, now_s: float) -> None:
        """The work of ``cost`` takes so many seconds."""
        self.cost, self.wake_s = None, now_s + seconds

    def expire(self, now_s: float) -> None:
        """The time ``wake_s`` has come, so the step ends with what it has. A ``take`` that lacks messages starves."""
        step = self._step
        if isinstance(step, Take) and step.until_s is None and len(self._got) < step.at_least:
            self.starve(now_s)
            return
        self.wake_s, self.patient, self._step = inf, False, None
        value: Any = None
        if isinstance(step, Ask):
            value = self._answers()
        elif isinstance(step, Take):
            value = Answers(tuple(self._got), self._missing)
        self._open = {}
        self._resume(value, now_s)

    def starve(self, now_s: float) -> None:
        """No party will send anything more. Raises NoAnswerError in a ``take`` that waits for more messages."""
        step = self._step
        if not isinstance(step, Take):
            self.expire(now_s)
            return
        self.wake_s, self.patient, self._step = inf, False, None
        wanted, name = f"{step.at_least} {step.kind.__name__}", self.member.name
        why = f"{name} waits for {wanted}, has {len(self._got)}, and no more will come"
        self._resume(NoAnswerError(why), now_s)

    def stop(self) -> None:
        """Stop the work and undo its changes."""
        self.done = True
        self._work.close()

    def ends_s(self, coming: Iterable[tuple[int, str, float]]) -> float:
        """The latest second at which the open step ends.

        coming: known future events, each with the number of the request, the kind of message ("" for no answer), and
        the second.
        """
        step = self._step
        if isinstance(step, Ask):
            waits = {n for n, one in self._open.items() if one.outcome is None and not one.failed}
            stated = step.deadline_s is not None
            times = {n: at_s for n, kind, at_s in coming if n in waits and (kind or not stated)}
            known = len(times) == len(waits) and not (stated and any(one.failed for one in self._open.values()))
            return min(self.wake_s, max(times.values(), default=inf)) if known else self.wake_s
        if isinstance(step, Take) and (left := step.at_least - len(self._got)) > 0:
            arrivals = sorted(at_s for _, kind, at_s in coming if kind == step.kind.__name__)
            return min([self.wake_s, *arrivals[left - 1 : left]])
        return self.wake_s

    # -- inside --------------------------------------------------------------------------------------------------------

    def _resume(self, value: Any, now_s: float, step: Any = None) -> None:
        """Run the generator to its next wait. step: a step that it has yielded already."""
        while True:
            self.member.party.now_s = now_s
            try:
                if step is None:
                    step = self._work.throw(value) if isinstance(value, CoterieError) else self._work.send(value)
            except StopIteration as stop:
                self.done, self.result = True, stop.value
                return
            try:
                if self._begin(step, now_s):
                    return
                value, step = None, None
            except (RunError, PeerError) as error:
                value, step = error, None

    def _begin(self, step: Any, now_s: float) -> bool:
        """Begin a step or an effect. Returns whether there is something to wait for."""
        if isinstance(step, Post):
            self._send(step.messages)
            return False
        if not isinstance(step, Step):
            self.effect = step
            return True
        if isinstance(step, Spend):
            self.cost = step.cost
            return True
        self._step, self._got, self._missing = step, [], {}
        if isinstance(step, Wake):
            self.wake_s = max(now_s, self._finite(step.at_s))
            return True
        if isinstance(step, Ask):
            self._open = self._send(step.requests, step.reply)
            limit_s = step.deadline_s
        else:
            assert isinstance(step, Take)
            limit_s = 0.0 if step.at_least == 0 and step.until_s is None else step.until_s
            self._take_waiting(step)
        self.patient = limit_s is None
        self.wake_s = now_s + (PATIENCE_S if limit_s is None else self._finite(limit_s))
        self._may_end(now_s)
        return True

    def _finite(self, seconds: float) -> float:
        """A time to wait. Another party may have named it: so where it is none, only the work of a leader ends."""
        if not isfinite(seconds):
            error = RunError if self._critical else PeerError
            raise error(f"{self.member.name} would wait for {seconds} seconds: no step waits for ever")
        return seconds

    def _send(self, messages: Mapping[Any, Message | To], reply: type[Message] | None = None) -> dict[int, _Asked]:
        """Address and send messages. Returns those that await a ``reply``, by their numbers."""
        member, key, kind = self.member, None, ""
        open_: dict[int, _Asked] = {}

        def addressed() -> Iterator[To]:
            nonlocal key, kind
            for key, message in messages.items():
                to = message if isinstance(message, To) else To(key, message)
                kind = type(to.message).__name__
                if reply is not None and to.dst == member.name:
                    raise PeerError(f"{member.name} asks itself for {reply.__name__}; nobody would ever answer")
                yield to

        try:
            for letter in member.letters(addressed(), self.role):
                sent = member.address(letter, round=self.round, attempt=self.attempt)
                if reply is not None:
                    open_[sent.envelope.number] = _Asked(key, letter.dst)
                    self.asked.add(sent.envelope.number)
                self.send(sent)
        except PeerError as error:
            raise (RunError(f"{member.name} can't send {kind}: {error}") if self._critical else error) from error
        return open_

    def _may_end(self, now_s: float) -> None:
        """Let the step end now if it has everything that it waits for."""
        step = self._step
        if isinstance(step, Ask):
            missing = any(one.outcome is None and not one.failed for one in self._open.values())
            failed = any(one.outcome is None and one.failed for one in self._open.values())
            enough = not missing and not (failed and step.deadline_s is not None)
        else:
            enough = isinstance(step, Take) and 0 < step.at_least <= len(self._got)
        if enough:
            self.wake_s, self.patient = min(self.wake_s, now_s), False

    def _answers(self) -> Answers:
        """The outcome of every request of the step."""
        declined = []
        for one in self._open.values():
            if one.outcome == "":
                continue
            outcome = one.outcome or one.failed or LATE
            self._missing[one.key] = outcome
            if outcome == LATE:
                self.member.observer.late(one.dst)
            elif outcome == REFUSED:
                declined.append(one.key)
        return Answers(tuple(self._got), self._missing, tuple(declined))

    def _take_waiting(self, step: Take) -> None:
        """Take the messages that came before this step."""
        waiting, self.member.inbox = self.member.inbox, []
        for one in waiting:
            if one.envelope.kind == step.kind.__name__:
                self._take_one(one.envelope, self.member.spool.take(one.ticket), one.at_s)
            else:
                self.member.inbox.append(one)

    def _take_one(self, envelope: Envelope, frame: bytes, at_s: float) -> None:
        assert isinstance(self._step, Take)
        if not self._fold(envelope, frame, self._step.kind, envelope.src, at_s):
            self._missing[envelope.src] = UNACCEPTABLE

    def _fold(self, envelope: Envelope, frame: bytes, kind: type[Message], key: Any, at_s: float) -> bool:
        """Give a verified message to the coordinator's fold. Returns whether the fold accepts it."""
        member, party = self.member, self.member.party
        assert isinstance(self._step, Ask | Take)
        before, party.now_s = party.now_s, at_s
        try:
            opened = member.read(envelope, frame, (kind,), at_s)
            member.observer.read(opened)
            self._step.fold(key, opened.message)
        except (PeerError, CryptoError) as error:
            member.observer.refused(envelope, self.role, str(error))
            return False
        finally:
            party.now_s = before
        self._got.append(key)
        return True
