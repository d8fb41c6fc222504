"""One party on any wire, without clock, queue or network."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

import coterie.protocol.core as fl
from coterie.protocol.party import unchanged
from coterie.transport.envelope import USED, Envelope, EnvelopeError, Handled, Keyring, Numbers, Opened, Sent, Waiting

Roles = Callable[[str], tuple[str, ...]]
"""A party's roles by its name, the main one first; none for a stranger. All parties know them."""


def roles_of(parties: Mapping[str, fl.Party]) -> Roles:
    """The roles of parties, looked up when first asked for."""
    known: dict[str, tuple[str, ...]] = {}

    def roles(name: str) -> tuple[str, ...]:
        if name not in known and name in parties:
            party = parties[name]
            known[name] = (party.role, *sorted(party.roles - {party.role}))
        return known.get(name, ())

    return roles


class Observer:
    def read(self, opened: Opened) -> None: ...

    def refused(self, envelope: Envelope, role: str, reason: str) -> None: ...

    def late(self, party: str) -> None: ...


class Reader:
    """Decodes a broadcast once."""

    def __init__(self) -> None:
        self._last: tuple[bytes, fl.Message] | None = None

    def decode(self, frame: bytes, kinds: tuple[type[fl.M], ...]) -> fl.M:
        if self._last is not None and self._last[0] is frame and type(self._last[1]) in kinds:
            return self._last[1]  # type: ignore[return-value]
        message = fl.codec.decode(frame, *kinds)
        self._last = frame, message
        return message

    def clear(self) -> None:
        self._last = None


class Member:
    """A party with all parties' roles, its keys and its numbers.

    parties: asked for the party each time, since it may be made anew.  repeats: keep answers for repeated requests.
    """

    def __init__(
        self,
        name: str,
        parties: Mapping[str, fl.Party],
        hub: str,
        roles: Roles,
        keyring: Keyring,
        spool: fl.Spool,
        reader: Reader | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.name, self.hub, self.roles, self.keyring, self.spool = name, hub, roles, keyring, spool
        self.reader, self.repeats = reader or Reader(), True
        self.observer = observer or Observer()
        self.numbers = Numbers()
        self.inbox: list[Waiting] = []
        self.before: tuple[Any, Any] | None = None  # during the hub's own round: its state and secret before it
        self._parties = parties
        self.start: tuple[int, Any, Any, dict[str, int]] | None = None  # round, state, secret, numbers taken

    @property
    def party(self) -> fl.Party:
        return self._parties[self.name]

    def send(
        self, messages: Iterable[fl.To], acting: str, *, round: int, attempt: int, request: Envelope | None = None
    ) -> Iterator[Sent]:
        """Encode, number, seal and sign messages. An object to many in a row is encoded once.

        acting: its role.  request: the first message to its sender is the answer. Raises PeerError for a stranger,
            TypeError and DecodeError for what cannot travel.
        """
        last: fl.Message | None = None  # held, not its id: messages may be made as they are asked for
        encoded, weight = b"", 0
        for dst, message in ((to.dst, to.message) for to in messages):
            kind = type(message)
            if not self.roles(dst):  # its name may have come from another party
                sends = f"{self.name} sends {kind.__name__} to {dst!r:.40}"
                raise fl.PeerError(f"{sends}, which is not a party of this federation")
            if message is not last:
                last, encoded = message, fl.codec.encode(message)
                weight = fl.codec.message_weight(message, len(encoded))
            answers = 0
            if request is not None and request.src == dst:
                answers, request = request.number, None
            src, role = self.name, kind.SRC if kind.SRC in self.roles(self.name) else acting
            number, session, sealed = self.numbers.next(), self.keyring.session, self._sealed(dst)
            total = weight + self.keyring.overhead * sealed
            bare = Envelope(src, dst, role, kind.__name__, session, round, attempt, number, answers, sealed, total)
            header = bare.header()
            frame = self.keyring.seal(src, dst, encoded, header) if sealed else encoded
            digest = fl.codec.frame_digest(frame)
            signature = self.keyring.sign(src, header, digest)
            yield Sent(replace(bare, digest=digest, signature=signature), frame, self._role(kind, dst))

    def _sealed(self, other: str) -> bool:
        # The hub relays between two others, and must not read.
        return self.hub not in (self.name, other) and self.name != other

    def _role(self, kind: type[fl.Message], name: str) -> str:
        return self.roles(name)[0] if kind.DST == fl.ANY else kind.DST

    def verify(self, envelope: Envelope, frame: bytes) -> None:
        """Raises EnvelopeError unless the sender has sent exactly this to this party, in this session and attempt."""
        src = envelope.src
        if envelope.session != self.keyring.session or envelope.dst != self.name:
            raise EnvelopeError(f"it is for {envelope.dst!r} in session {envelope.session!r:.40}")
        if envelope.role not in self.roles(src):
            raise EnvelopeError(f"{src!r} is no {envelope.role!r:.40} of this federation")
        if envelope.digest != fl.codec.frame_digest(frame):
            raise EnvelopeError("its payload is not the one that was sent")
        try:
            self.keyring.verify(src, envelope.signature, envelope.header(), envelope.digest)
        except fl.PeerError as error:
            raise EnvelopeError(f"its envelope was not signed by {src}: {error}") from None
        if envelope.sealed != self._sealed(src):
            raise EnvelopeError(f"it is {'' if envelope.sealed else 'not '}sealed")
        self.numbers.check_attempt(envelope, announces=src == self.hub)

    def read(self, envelope: Envelope, frame: bytes, kinds: tuple[type[fl.Message], ...], at_s: float) -> Opened:
        """A verified message's content. Raises PeerError unless it is of ``kinds`` and its sender may send it."""
        if not kinds:
            raise fl.PeerError(f"{self.name} takes no messages")
        if envelope.sealed:
            frame = self.keyring.open(envelope.src, self.name, frame, envelope.header())
        message = self.reader.decode(frame, kinds)
        kind = type(message)
        if kind.__name__ != envelope.kind:
            raise fl.PeerError(f"a {kind.__name__} in the envelope of a {envelope.kind}")
        if kind.SRC not in (fl.ANY, fl.HUB, envelope.role):
            raise fl.PeerError(f"{kind.__name__} comes from a {envelope.role}, not from a {kind.SRC}")
        weight = fl.codec.message_weight(message, len(frame)) + self.keyring.overhead * envelope.sealed
        if weight != envelope.weight:
            raise fl.PeerError(f"a {kind.__name__} of {weight} bytes that claims to weigh {envelope.weight}")
        return Opened(envelope, message, self._role(kind, self.name), at_s, len(frame))

    def open(self, envelope: Envelope, frame: bytes, at_s: float = 0.0) -> Opened:
        """A message for one of the party's handlers. Changes nothing; raises PeerError."""
        self.verify(envelope, frame)
        return self.read(envelope, frame, tuple(self.party.handlers), at_s)

    def handles(self, envelope: Envelope) -> bool:
        return any(kind.__name__ == envelope.kind for kind in self.party.handlers)

    def cost(self, opened: Opened) -> fl.Cost:
        """By committed state. Raises PeerError."""
        party = self._committed()
        return party.handlers[type(opened.message)].cost(party, opened.message)

    def receive(
        self, envelope: Envelope, frame: bytes, at_s: float = 0.0, opened: Opened | None = None
    ) -> fl.Work[Handled]:
        """Handle one message, once. Yields effects, and steps if the handler coordinates. Returns what to send.

        opened: of ``open``. A forged message changes nothing. PeerError, CryptoError and NoAnswerError of the handler
        refuse the message; other errors are raised.
        """
        role, problem = self.roles(self.name)[0], ""
        try:
            opened = opened or self.open(envelope, frame, at_s)
        except EnvelopeError as error:
            return self._refuse(envelope, role, str(error))
        except fl.PeerError as error:
            problem = str(error)
        if envelope.src == self.hub:
            self.heard_of(envelope.round, envelope.attempt)
        if self.numbers.is_old(envelope):
            answer, refusal = self.numbers.again(envelope)
            return self._refuse(envelope, role, refusal or USED) if answer is None else Handled((answer,))
        self.numbers.take(envelope)
        if opened is not None:
            self.observer.read(opened)
            try:
                sent = yield from self._run(opened)
            except (fl.PeerError, fl.CryptoError, fl.NoAnswerError) as error:
                role, problem = opened.role, str(error)
            else:
                answer = next((one for one in sent if one.envelope.answers), None)
                if answer is not None and self.repeats:
                    self.numbers.keep(envelope, answer)
                return Handled(sent)
        if self.repeats:
            self.numbers.keep(envelope, refusal=problem)
        return self._refuse(envelope, role, problem)

    def _refuse(self, envelope: Envelope, role: str, reason: str) -> Handled:
        self.observer.refused(envelope, role, reason)
        return Handled(refused=reason)

    def _run(self, opened: Opened) -> fl.Work[tuple[Sent, ...]]:
        party, request = self._committed(), opened.envelope
        with fl.transaction(party) as saved:
            outcome = party.handlers[type(opened.message)].run(party, opened.message, request.src)
            if isinstance(outcome, Generator):
                outcome = yield from outcome
            if self.before is not None and not unchanged(saved, (party.state, party.secret)):
                changed = f"{self.name} changes its state in answer to {request.kind} during its own round"
                raise fl.RunError(f"{changed}: then a handler may only read")
            if isinstance(outcome, fl.Message):
                outcome = fl.To(request.src, outcome)
            messages = (outcome,) if isinstance(outcome, fl.To) else outcome or ()
            if not isinstance(messages, tuple) or not all(isinstance(to, fl.To) for to in messages):
                raise fl.RunError(
                    f"{self.name} ends {request.kind} with {outcome!r:.80}: a handler returns a message "
                    "to its sender, To(name, message), several of those in a tuple, or nothing"
                )
            sent = self.send(messages, opened.role, round=request.round, attempt=request.attempt, request=request)
            return tuple(sent)

    @contextmanager
    def leading(self) -> Iterator[None]:
        """A round of the hub as one transaction; its handlers answer by the state before."""
        with fl.transaction(self.party) as self.before:
            try:
                yield
            finally:
                self.before = None

    def _committed(self) -> fl.Party:
        if self.before is None:
            return self.party
        twin = copy.copy(self.party)
        twin.state, twin.secret = self.before
        return twin

    def drop(self) -> list[Envelope]:
        """Drop unasked messages that no later round may take (``Party.takes``). Returns their envelopes."""
        takes = {kind.__name__ for kind in self.party.takes}
        return self._drop(lambda envelope: envelope.kind not in takes)

    def _drop(self, unwanted: Callable[[Envelope], bool]) -> list[Envelope]:
        dropped = [one for one in self.inbox if unwanted(one.envelope)]
        self.inbox = [one for one in self.inbox if not unwanted(one.envelope)]
        for one in dropped:
            self.spool.drop(one.ticket)
        return [one.envelope for one in dropped]

    def heard_of(self, round: int, attempt: int) -> None:
        if round > self.numbers.round:
            self.numbers.round = round
            self.numbers.kept.clear()
        if attempt > self.numbers.attempts.get(round, 0):
            self.restart(round, attempt)

    def begin(self, round: int) -> None:
        """Remember the committed state, for another attempt of this round."""
        self.start = round, self.party.state, self.party.secret, dict(self.numbers.taken)

    def restart(self, round: int, attempt: int) -> None:
        """Go back to the beginning of a round, and refuse messages of its earlier attempts.

        Numbers that this party used stay used, and what ``Party.lasts`` keeps stays.
        """
        self.numbers.attempts[round] = attempt
        self.numbers.kept.clear()
        self._drop(lambda envelope: envelope.round == round and envelope.attempt < attempt)
        if self.start is not None and self.start[0] == round:
            gone = self.party.state, self.party.secret
            _, self.party.state, self.party.secret, taken = self.start
            with fl.transaction(self.party):
                self.party.lasts(*gone)
            self.numbers.taken = dict(taken)
