"""At most once: what was taken from each link, and what became of it, so that no message is handled twice."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from coterie.transport.envelope import Envelope
from coterie.transport.spool import Spool
from coterie.transport.wire import digest

USED = "its number was used before"


@dataclass(frozen=True)
class Outcome:
    """What became of a request: digest of its bytes, and the answer or the refusal."""

    digest: bytes
    answer: Envelope | None = None
    refusal: str | None = None


class AtMostOnce:
    """Numbers grow along each link (sender, recipient), and each is taken once: by the first frame that carries it.

    The same frame again gets the stored answer or refusal; anything else under an old number is refused. Outcomes are
    kept until ``forget``, the answers' bytes in the spool.
    """

    def __init__(self, spool: Spool) -> None:
        self.last: dict[tuple[str, str], int] = {}
        self._spool = spool
        self._outcomes: dict[tuple[str, str, int], Outcome] = {}

    def is_old(self, envelope: Envelope) -> bool:
        """Whether its number was used before."""
        return envelope.number <= self.last.get((envelope.src, envelope.dst), 0)

    def take(self, envelope: Envelope) -> None:
        """Use its number."""
        self.last[envelope.src, envelope.dst] = envelope.number

    def expect(self, envelope: Envelope, frame: bytes) -> None:
        """From now on, keep what becomes of this request."""
        self._outcomes[_key(envelope)] = Outcome(digest(frame))

    def answered(self, request: Envelope, answer: Envelope, frame: bytes) -> None:
        """Keep the answer, before it is sent."""
        if _key(request) in self._outcomes:
            stored = msgspec.structs.replace(answer, ticket=self._spool.put(frame))
            self._outcomes[_key(request)] = Outcome(self._outcomes[_key(request)].digest, answer=stored)

    def refused(self, request: Envelope, reason: str) -> None:
        """Keep the refusal."""
        if _key(request) in self._outcomes:
            self._outcomes[_key(request)] = Outcome(self._outcomes[_key(request)].digest, refusal=reason)

    def again(self, envelope: Envelope, frame: bytes) -> tuple[Envelope, bytes] | str:
        """For a message with an old number: the stored answer, or why there is none."""
        outcome = self._outcomes.get(_key(envelope))
        if outcome is None or outcome.digest != digest(frame) or outcome.answer is None:
            return outcome.refusal or USED if outcome else USED
        return outcome.answer, self._spool.peek(outcome.answer.ticket)

    def forget(self) -> None:
        """Drop all outcomes; the numbers stay used."""
        for outcome in self._outcomes.values():
            if outcome.answer is not None:
                self._spool.drop(outcome.answer.ticket)
        self._outcomes.clear()


def _key(envelope: Envelope) -> tuple[str, str, int]:
    return envelope.src, envelope.dst, envelope.number
