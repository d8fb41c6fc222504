"""What one party remembers of its links, so that no message is handled twice, out of order or in another attempt.

It is kept with the party. A party that is made again from its bytes continues with it.
"""

from __future__ import annotations

import msgspec

from coterie.transport.envelope import Count, Envelope, EnvelopeError

USED = "its number was used before"


class StoredAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of a request: its digest, and the answer as it was sent, or the refusal."""

    digest: bytes
    envelope: Envelope | None = None
    frame: bytes = b""
    to_role: str = ""
    refusal: str = ""


class Numbers(msgspec.Struct):
    """sent: the last number that the party used.  taken: by sender, the last number that it took.

    round: the newest round of any message.  attempts: by round, its attempt, for rounds that were tried again.
    kept: by sender and number, the outcomes of this round's requests.
    """

    sent: Count = 0
    taken: dict[str, Count] = msgspec.field(default_factory=dict)
    round: Count = 0
    attempts: dict[Count, Count] = msgspec.field(default_factory=dict)
    kept: dict[str, dict[Count, StoredAnswer]] = msgspec.field(default_factory=dict)

    def next(self) -> int:
        """A new number."""
        self.sent += 1
        return self.sent

    def is_old(self, envelope: Envelope) -> bool:
        """Whether its number was taken before. Numbers grow along each link."""
        return envelope.number <= self.taken.get(envelope.src, 0)

    def take(self, envelope: Envelope) -> None:
        """Take its number."""
        self.taken[envelope.src] = envelope.number

    def attempt(self, round: int) -> int:
        """The current attempt of this round."""
        return self.attempts.get(round, 0)

    def check_attempt(self, envelope: Envelope) -> None:
        """Raises EnvelopeError for a message of an earlier attempt."""
        if envelope.attempt < (now := self.attempt(envelope.round)):
            raise EnvelopeError(
                f"it is of attempt {envelope.attempt} of round {envelope.round}, which is at attempt {now}"
            )

    def keep(self, request: Envelope, kept: StoredAnswer) -> None:
        """Remember the outcome of a request."""
        self.kept.setdefault(request.src, {})[request.number] = kept

    def again(self, request: Envelope) -> StoredAnswer | None:
        """The outcome of this request, if the very same request was handled before."""
        kept = self.kept.get(request.src, {}).get(request.number)
        return kept if kept is not None and kept.digest == request.digest else None

    def forget(self) -> None:
        """Drop the outcomes of requests. Their numbers stay taken."""
        self.kept.clear()
