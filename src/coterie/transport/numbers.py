"""What one party remembers of its links, so that no message is handled twice, out of order or in another attempt.

It is kept with the party. A party that is made again from its bytes continues with it.
"""

from __future__ import annotations

import msgspec

from coterie.transport.envelope import Count, Envelope, EnvelopeError, Sent

USED = "its number was used before"


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """What became of a request: its digest and round, and the answer as it was sent or the refusal."""

    digest: bytes
    round: Count
    answer: Sent | None = None
    refusal: str = ""


class Numbers(msgspec.Struct):
    """sent: the last number that the party used.  taken: by sender, the last number that it took.

    round: the newest that it has heard of from the hub.  attempts: by round, its attempt, where it was tried again.
    kept: by sender and number, what became of the requests of the sender's newest round.
    """

    sent: Count = 0
    taken: dict[str, Count] = msgspec.field(default_factory=dict)
    round: Count = 0
    attempts: dict[Count, Count] = msgspec.field(default_factory=dict)
    kept: dict[str, dict[Count, Outcome]] = msgspec.field(default_factory=dict)

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

    def check_attempt(self, envelope: Envelope, *, announces: bool) -> None:
        """Raises EnvelopeError for a message of an attempt that was given up, or of one that nobody has announced.

        announces: whether its sender may: only the hub tries a round again.
        """
        now = self.attempts.get(envelope.round, 0)
        if envelope.attempt < now or (envelope.attempt > now and not announces):
            raise EnvelopeError(
                f"it is of attempt {envelope.attempt} of round {envelope.round}, which is at attempt {now}"
            )

    def keep(self, request: Envelope, answer: Sent | None = None, refusal: str = "") -> None:
        """Remember what became of a request. A sender that goes on to another round will not repeat earlier ones."""
        of_sender = self.kept.setdefault(request.src, {})
        if of_sender and next(reversed(of_sender.values())).round < request.round:
            of_sender.clear()
        of_sender[request.number] = Outcome(request.digest, request.round, answer, refusal)

    def again(self, request: Envelope) -> Outcome | None:
        """The outcome of this request, if the very same request was handled before."""
        kept = self.kept.get(request.src, {}).get(request.number)
        return kept if kept is not None and kept.digest == request.digest else None
