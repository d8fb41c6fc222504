"""The local transport's counts and recorded views, beside the protocol."""

from __future__ import annotations

from coterie.transport.envelope import Envelope
from coterie.transport.mail import Opened, Roles
from coterie.transport.meter import Meter
from coterie.transport.transcript import Seen, Transcript

_MOST = 300


def shown(text: str) -> str:
    """Words of which another party may have chosen some, for logs and consoles: one line, printable, and not long."""
    short = text if len(text) <= _MOST else f"{text[: _MOST - 3]}..."
    return short if short.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in short)


class Recorder:
    """``coterie.transport.mail.Observer``. meter: of this round."""

    def __init__(self, roles: Roles, transcript: Transcript | None) -> None:
        self.roles, self.transcript = roles, transcript
        self.meter = Meter()

    def read(self, opened: Opened) -> None:
        """Add a message to its recipient's view, in the role that it acts in."""
        if self.transcript is not None:
            e, role = opened.envelope, self.roles[opened.envelope.dst][0]
            seen = Seen(opened.at_s, e.round, e.src, e.dst, e.kind, e.weight, opened.message)
            name = e.dst if opened.role == role else f"{e.dst} as {opened.role}"
            self.transcript.record(name, opened.role, seen, opened.size)

    def refused(self, envelope: Envelope, role: str, reason: str) -> None:
        """Count a message that was not accepted."""
        self.meter.refused[shown(f"{role}/{envelope.kind:.40}: {reason}")] += 1

    def late(self, party: str) -> None:
        """Count a party that a step did not wait for."""
        self.meter.late.append(party)

    def lost(self, envelope: Envelope, reason: str) -> None:
        """Count a message that did not reach anybody."""
        self.meter.lost[shown(f"{envelope.dst} {envelope.kind:.40} of round {envelope.round}")] = reason

    def too_late(self, envelope: Envelope) -> None:
        """Count a message that nobody takes any more."""
        self.meter.lost[shown(f"{envelope.src} {envelope.kind:.40} of round {envelope.round}")] = "too late"
