"""One generator of steps: the hub's round, or a leader's handler."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from types import MappingProxyType
from typing import Any

import coterie.protocol.core as fl
from coterie.protocol import steps
from coterie.protocol.messages import about_of, check_about
from coterie.transport.envelope import USED, Envelope, EnvelopeError, Sent, Waiting
from coterie.transport.member import Member

Coming = tuple[int, str, float]
"""A known event: the request's number, the kind of message ("" for no answer), the second."""


@dataclass
class _Asked:
    key: Any
    dst: str
    about: Mapping[str, Any]
    outcome: str | None = None
    failed: str = ""


class Coordination:
    """An error in sending ends the hub's run, but only a leader's work.

    send: takes each message as it is made.  role: that the party acts in.  request: the message whose handler this is,
        or the round and attempt of the hub.  patience_s: the deadline of a step that states none.
    """

    def __init__(
        self,
        member: Member,
        work: steps.Steps[Any],
        send: Callable[[Sent], None],
        role: str,
        request: Envelope | tuple[int, int],
        patience_s: float = steps.PATIENCE_S,
    ) -> None:
        self._error: type[fl.CoterieError] = fl.RunError
        if isinstance(request, Envelope):
            if member.before is not None:
                asked = f"{member.name} yields steps in answer to {request.kind}"
                raise fl.RunError(f"{asked}: only its rounds may coordinate")
            self._error, request = fl.PeerError, (request.round, request.attempt)
        self.round, self.attempt = request
        self.member, self.role = member, role
        self.effect: Any = None
        self.wake_s = inf
        self.patient = False  # whether nothing but the default deadline would wake it
        self.done = False
        self.result: Any = None
        self.asked: set[int] = set()  # numbers of all its requests
        self._work, self._send, self._patience_s = work, send, patience_s
        self._step: steps.Step | None = None
        self._open: dict[int, _Asked] = {}
        self._unanswered: set[int] = set()  # those without an outcome, failed ones too
        self._awaited: dict[int, str] = {}  # by number, the recipients of those that have not failed
        self._got: list[Any] = []
        self._asked_s = 0.0  # when the open step began
        self._after_s: dict[Any, float] = {}
        self._missing: dict[Any, str] = {}

    def start(self, now_s: float, step: Any = None) -> None:
        """Run to the first wait.  step: one that was yielded already."""
        self._resume(None, now_s, step)

    def deliver(self, envelope: Envelope, frame: bytes, now_s: float) -> bool:
        """A message has come. An answer is folded, others wait to be taken.

        Returns whether it is genuine and new; others change nothing.
        """
        member, step = self.member, self._step
        try:
            member.verify(envelope, frame)
            if member.numbers.is_old(envelope):
                raise EnvelopeError(USED)
        except EnvelopeError as error:
            member.observer.refused(envelope, self.role, str(error))
            return False
        member.numbers.take(envelope)
        if self.lacks(envelope.answers, envelope.src):
            request = self._open[envelope.answers]
            folded = self._fold(envelope, frame, request.key, now_s, request.about)
            request.outcome = "" if folded else steps.UNACCEPTABLE
            self._unanswered.discard(envelope.answers)
            self._awaited.pop(envelope.answers, None)
        elif isinstance(step, steps.Take) and envelope.kind == step.kind.__name__:
            self._fold(envelope, frame, envelope.src, now_s)
        else:
            member.inbox.append(Waiting(envelope, member.spool.put(frame), now_s))
        self._may_end(now_s)
        return True

    def refuse(self, number: int, reason: str, now_s: float) -> None:
        request = self._open.get(number)
        if request is not None and request.outcome is None:
            request.failed = request.failed or reason
            self._awaited.pop(number, None)
            self._may_end(now_s)

    def computed(self, value: Any, now_s: float) -> None:
        """The ``effect`` has this result. A CoterieError is raised where the effect was yielded."""
        self.effect = None
        self._resume(value, now_s)

    def spent(self, seconds: float, now_s: float) -> None:
        self.effect, self.wake_s = None, now_s + seconds

    def expire(self, now_s: float) -> None:
        """``wake_s`` has come, or nothing more will: the step ends with what it has.

        Raises NoAnswerError in a ``take`` that waits for more messages and states no time.
        """
        step = self._step
        value: steps.Answers | steps.NoAnswerError | None = None
        if isinstance(step, steps.Take) and step.until_s is None and len(self._got) < step.at_least:
            waits = f"{self.member.name} waits for {step.at_least} {step.kind.__name__}"
            value = steps.NoAnswerError(f"{waits}, has {len(self._got)}, and no more will come")
        elif isinstance(step, steps.Ask | steps.Take):
            value = self._answers()
        self.wake_s, self.patient, self._step = inf, False, None
        self._opened({})
        self._resume(value, now_s)

    def stop(self) -> None:
        self.done = True
        self._work.close()

    @property
    def awaited(self) -> dict[int, str]:
        return dict(self._awaited)

    def lacks(self, number: int, src: str) -> bool:
        request = self._open.get(number)
        return request is not None and request.dst == src and request.outcome is None

    def has_all(self, coming: Sequence[Coming]) -> bool:
        if isinstance(self._step, steps.Ask):
            return self._awaited.keys() <= {number for number, _, _ in coming}
        if isinstance(self._step, steps.Take):
            kind = self._step.kind.__name__
            return len(self._got) + sum(kind == of for _, of, _ in coming) >= self._step.at_least
        return True

    def ends_s(self, coming: Sequence[Coming]) -> float:
        """The latest second at which the open step ends. coming: known events."""
        step, ends_s = self._step, inf
        if isinstance(step, steps.Ask):
            waits = self._waits(step)
            counts = {n: at_s for n, kind, at_s in coming if n in waits and (kind or step.deadline_s is None)}
            if len(counts) == len(waits):
                ends_s = max(counts.values(), default=inf)
        elif isinstance(step, steps.Take) and (left := step.at_least - len(self._got)) > 0:
            arrivals = sorted(at_s for _, kind, at_s in coming if kind == step.kind.__name__)
            ends_s = arrivals[left - 1] if left <= len(arrivals) else inf
        return min(self.wake_s, ends_s)

    def _resume(self, value: Any, now_s: float, step: Any = None) -> None:
        while True:
            self.member.party.now_s = now_s
            try:
                if step is None:
                    step = self._work.throw(value) if isinstance(value, fl.CoterieError) else self._work.send(value)
            except StopIteration as stop:
                self.done, self.result = True, stop.value
                return
            try:
                if self._begin(step, now_s):
                    return
                value = None
            except (fl.RunError, fl.PeerError) as error:
                value = error
            step = None

    def _begin(self, step: Any, now_s: float) -> bool:
        if isinstance(step, steps.Post):
            self._send_all(step.messages)
            return False
        if isinstance(step, steps.Nominal):
            step = self.member.party.nominal(step.effect)
        if isinstance(step, fl.Cost) or not isinstance(step, steps.Step):
            self.effect = step
            return True
        self._step, self._got, self._missing, self._asked_s, self._after_s = step, [], {}, now_s, {}
        if isinstance(step, steps.Wake):
            self.wake_s = max(now_s, self._finite(step.at_s))
            return True
        if isinstance(step, steps.Ask):
            self._send_all(step.requests, step.replies)
            limit_s = step.deadline_s
        else:
            assert isinstance(step, steps.Take)
            limit_s = 0.0 if step.at_least == 0 and step.until_s is None else step.until_s
            self._take_waiting(step)
        self.patient = limit_s is None
        self.wake_s = now_s + (self._patience_s if limit_s is None else self._finite(limit_s))
        self._may_end(now_s)
        return True

    def _finite(self, seconds: float) -> float:
        if not isfinite(seconds):
            raise self._error(f"{self.member.name} would wait for {seconds} seconds: no step waits for ever")
        return seconds

    def _send_all(self, messages: Mapping[Any, fl.Message | fl.To], replies: tuple[type[fl.Message], ...] = ()) -> None:
        member = self.member
        last: fl.Message | None = None
        about: Mapping[str, Any] = {}
        asked: dict[int, _Asked] = {}

        def addressed() -> Iterator[fl.To]:
            nonlocal last, about
            for key, message in messages.items():
                to = message if isinstance(message, fl.To) else fl.To(key, message)
                if to.message is not last:
                    last, about = to.message, about_of(to.message, replies)
                if replies and to.dst == member.name:
                    raise fl.PeerError(f"{member.name} asks itself for {replies[0].__name__}; nobody would ever answer")
                yield to

        if replies:
            self._opened(asked)  # from here on: a request may fail as it is sent
        try:
            made = member.send(addressed(), self.role, round=self.round, attempt=self.attempt)
            for key, sent in zip(messages, made, strict=True):
                if replies:
                    asked[sent.envelope.number] = _Asked(key, sent.envelope.dst, about)
                    self.asked.add(sent.envelope.number)
                    self._unanswered.add(sent.envelope.number)
                    self._awaited[sent.envelope.number] = sent.envelope.dst
                self._send(sent)
        except fl.PeerError as error:
            self._opened({})
            if self._error is fl.PeerError:
                raise
            raise fl.RunError(f"{member.name} can't send {type(last).__name__}: {error}") from error

    def _opened(self, asked: dict[int, _Asked]) -> None:
        self._open, self._unanswered, self._awaited = asked, set(), {}

    def _waits(self, step: steps.Ask) -> Collection[int]:
        # Failed ones keep the step waiting only until a stated deadline.
        return self._awaited if step.deadline_s is None else self._unanswered

    def _may_end(self, now_s: float) -> None:
        step = self._step
        if isinstance(step, steps.Ask):
            enough = not self._waits(step)
        else:
            enough = isinstance(step, steps.Take) and 0 < step.at_least <= len(self._got)
        if enough:
            self.wake_s, self.patient = min(self.wake_s, now_s), False

    def _answers(self) -> steps.Answers:
        declined = []
        for one in self._open.values():
            if one.outcome == "":
                continue
            outcome = self._missing[one.key] = one.outcome or one.failed or steps.LATE
            if outcome == steps.LATE:
                self.member.observer.late(one.dst)
            elif outcome == steps.REFUSED:
                declined.append(one.key)
        return steps.Answers(tuple(self._got), self._missing, tuple(declined), self._after_s)

    def _take_waiting(self, step: steps.Take) -> None:
        waiting, self.member.inbox = self.member.inbox, []
        for one in waiting:
            if one.envelope.kind == step.kind.__name__:
                self._fold(one.envelope, self.member.spool.take(one.ticket), one.envelope.src, one.at_s)
            else:
                self.member.inbox.append(one)

    def _fold(
        self, envelope: Envelope, frame: bytes, key: Any, at_s: float, about: Mapping[str, Any] = MappingProxyType({})
    ) -> bool:
        member, party, step = self.member, self.member.party, self._step
        assert isinstance(step, steps.Ask | steps.Take)
        before, party.now_s = party.now_s, at_s
        try:
            kinds = step.replies if isinstance(step, steps.Ask) else (step.kind,)
            opened = member.read(envelope, frame, kinds, at_s)
            member.observer.read(opened)
            check_about(envelope.src, opened.message, about)
            step.fold(key, opened.message)
        except (fl.PeerError, fl.CryptoError) as error:
            member.observer.refused(envelope, self.role, str(error))
            if isinstance(step, steps.Take):
                self._missing[key] = steps.UNACCEPTABLE
            return False
        finally:
            party.now_s = before
        self._got.append(key)
        if isinstance(step, steps.Ask):
            self._after_s[key] = at_s - self._asked_s
        return True
