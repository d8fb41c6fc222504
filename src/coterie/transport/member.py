"""One party on any wire: it handles the messages that come, and addresses those that it sends.

A member knows no clock, no queue, no network and no other party's object. Its driver passes in each message with the
party's time, runs the effects that the member yields, and sends the messages that it returns.
"""

from __future__ import annotations

from collections.abc import Container, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from msgspec.structs import replace

from coterie.protocol import codec
from coterie.protocol.errors import CoterieError, CryptoError, PeerError, RunError
from coterie.protocol.messages import ANY, Message
from coterie.protocol.party import Cost, Party, To, Transaction, Work, fork, unchanged
from coterie.protocol.spool import Spool
from coterie.protocol.steps import NoAnswerError, Step
from coterie.protocol.weight import message_weight
from coterie.transport.envelope import Envelope, EnvelopeError, Keyring, Sent
from coterie.transport.mail import Handled, Letter, Observer, Opened, Reader, Roles, Unobserved, Waiting
from coterie.transport.numbers import USED, Numbers


class Member:
    """A party with what it needs to talk: the roles of all parties, its keys, its numbers.

    parties: finds the party by its name. It is looked up each time, since it may have been made again.
    hub: the party that relays messages between two others, which are sealed.  numbers: those to continue with.
    spool: holds messages that no step of a coordinator has asked for.  repeats: whether answers are kept for requests
    that come again.
    """

    def __init__(
        self,
        name: str,
        parties: Mapping[str, Party],
        hub: str,
        roles: Roles,
        keyring: Keyring,
        *,
        spool: Spool,
        numbers: Numbers | None = None,
        reader: Reader | None = None,
        observer: Observer | None = None,
        repeats: bool = True,
    ) -> None:
        self.name, self.hub, self.roles, self.keyring, self.spool = name, hub, roles, keyring, spool
        self._parties = parties
        self.numbers = numbers or Numbers()
        self.reader = reader or Reader()
        self.observer: Observer = observer or Unobserved()
        self.repeats = repeats
        self.inbox: list[Waiting] = []
        self._leading: Transaction | None = None
        self._start: tuple[int, Any, Any, dict[str, int]] | None = None

    @property
    def party(self) -> Party:
        """The party itself."""
        return self._parties[self.name]

    # -- sending -------------------------------------------------------------------------------------------------------

    def letters(self, messages: Iterator[To], acting: str) -> Iterator[Letter]:
        """Messages, encoded. A message object that goes to many in a row is encoded once.

        acting: the role that the party acts in. Raises PeerError for a stranger, TypeError and DecodeError for what
        cannot travel.
        """
        last: Message | None = None  # held, not its id: messages may be made as they are asked for
        frame, weight = b"", 0
        for to in messages:
            kind = type(to.message)
            if to.dst not in self.roles:
                raise PeerError(  # its name may have come from another party
                    f"{self.name} sends {kind.__name__} to {to.dst!r:.40}, which is not a party of this federation"
                )
            role = kind.SRC if kind.SRC in self.roles[self.name] else acting
            if to.message is not last:
                last, frame = to.message, codec.encode(to.message)
                weight = message_weight(last, len(frame))
            yield Letter(to.dst, kind.__name__, role, self._role(kind, to.dst), frame, weight)

    def address(self, letter: Letter, *, round: int, attempt: int, answers: int = 0) -> Sent:
        """Number a letter, seal it if the hub would read it, and sign it."""
        src, dst, frame, weight = self.name, letter.dst, letter.frame, letter.weight
        sealed = self._sealed(src, dst)
        bare = Envelope(
            src,
            dst,
            letter.role,
            letter.kind,
            self.keyring.session,
            round,
            attempt,
            self.numbers.next(),
            answers,
            sealed,
            weight + self.keyring.overhead * sealed,
        )
        header = bare.header()
        if sealed:
            frame = self.keyring.seal(src, dst, frame, header)
        digest = self.reader.digests.of(frame)
        signature = self.keyring.sign(src, header, digest)
        return Sent(replace(bare, digest=digest, signature=signature), frame, letter.to_role)

    def _sealed(self, src: str, dst: str) -> bool:
        return self.hub not in (src, dst) and src != dst

    def _role(self, kind: type[Message], name: str) -> str:
        """The role that a party acts in when it receives such a message."""
        return self.roles[name][0] if kind.DST == ANY else kind.DST

    # -- receiving -----------------------------------------------------------------------------------------------------

    def verify(self, envelope: Envelope, frame: bytes) -> None:
        """Raises EnvelopeError unless its sender has sent exactly this to this party, in this session and attempt."""
        src = envelope.src
        if envelope.session != self.keyring.session or envelope.dst != self.name:
            raise EnvelopeError(f"it is for {envelope.dst!r} in session {envelope.session!r:.40}")
        if envelope.role not in self.roles.get(src, ()):
            raise EnvelopeError(f"{src!r} is no {envelope.role!r:.40} of this federation")
        if envelope.digest != self.reader.digests.of(frame):
            raise EnvelopeError("its payload is not the one that was sent")
        try:
            self.keyring.verify(src, envelope.signature, envelope.header(), envelope.digest)
        except PeerError as error:
            raise EnvelopeError(f"its envelope was not signed by {src}: {error}") from None
        if envelope.sealed != self._sealed(src, self.name):
            raise EnvelopeError(f"it is {'' if envelope.sealed else 'not '}sealed")
        self.numbers.check_attempt(envelope, announces=src == self.hub)

    def read(self, envelope: Envelope, frame: bytes, kinds: tuple[type[Message], ...], at_s: float) -> Opened:
        """The content of a verified message. Raises PeerError unless it is of ``kinds`` and its sender may send it."""
        if not kinds:
            raise PeerError(f"{self.name} takes no messages")
        if envelope.sealed:
            frame = self.keyring.open(envelope.src, self.name, frame, envelope.header())
        message = self.reader.decode(frame, kinds)
        kind = type(message)
        if kind.__name__ != envelope.kind:
            raise PeerError(f"a {kind.__name__} in the envelope of a {envelope.kind}")
        if kind.SRC not in (ANY, envelope.role):
            raise PeerError(f"{kind.__name__} comes from a {envelope.role}, not from a {kind.SRC}")
        weight = message_weight(message, len(frame)) + self.keyring.overhead * envelope.sealed
        if weight != envelope.weight:
            raise PeerError(f"a {kind.__name__} of {weight} bytes that claims to weigh {envelope.weight}")
        return Opened(envelope, message, self._role(kind, self.name), at_s, len(frame))

    def open(self, envelope: Envelope, frame: bytes, at_s: float = 0.0) -> Opened:
        """A message for one of the party's handlers. Changes nothing; raises PeerError."""
        self.verify(envelope, frame)
        return self.read(envelope, frame, tuple(self.party.handlers), at_s)

    def cost(self, opened: Opened) -> Cost:
        """The nominal work of a message, by committed state; raises PeerError."""
        with self._committed():
            return self.party.handlers[type(opened.message)].cost(self.party, opened.message)

    def receive(
        self, envelope: Envelope, frame: bytes, at_s: float = 0.0, *, opened: Opened | None = None
    ) -> Work[Handled]:
        """Handle one message, once. Yields effects, and steps if the handler coordinates. Returns what to send.

        opened: the message, if ``open`` has been called before. A forged message changes nothing. PeerError,
        CryptoError and NoAnswerError of the handler refuse the message. Its other errors are raised.
        """
        problem = ""
        try:
            opened = opened or self.open(envelope, frame, at_s)
        except EnvelopeError as error:
            self.observer.refused(envelope, self.roles[self.name][0], str(error))
            return Handled(refused=str(error))
        except PeerError as error:
            problem = str(error)
        if envelope.src == self.hub:
            self.heard_of(envelope.round, envelope.attempt)
        if self.numbers.is_old(envelope):
            return self._again(envelope)
        self.numbers.take(envelope)
        if self.repeats:
            self.numbers.keep(envelope)
        if opened is None:
            return self._refuse(envelope, self.roles[self.name][0], problem)
        self.observer.read(opened)
        try:
            letters = yield from self._run(opened)
        except (PeerError, CryptoError, NoAnswerError) as error:
            return self._refuse(envelope, opened.role, str(error))
        return self._send(envelope, letters)

    def _run(self, opened: Opened) -> Work[tuple[Letter, ...]]:
        """Run the handler as one transaction.

        Its letters are encoded before it commits, so a handler whose message cannot be encoded changes nothing.
        """
        party = self.party
        run = party.handlers[type(opened.message)].run
        if self._leading is not None:
            return (yield from self._beside(run, opened))
        with Transaction(party):
            outcome = run(party, opened.message, opened.envelope.src)
            if isinstance(outcome, Generator):
                outcome = yield from outcome
            return self._outcome(opened, outcome)

    def _outcome(self, opened: Opened, outcome: Any) -> tuple[Letter, ...]:
        if isinstance(outcome, Message):
            outcome = To(opened.envelope.src, outcome)
        messages = (outcome,) if isinstance(outcome, To) else outcome or ()
        if not isinstance(messages, tuple) or not all(isinstance(to, To) for to in messages):
            raise RunError(
                f"{self.name} ends {opened.envelope.kind} with {outcome!r:.80}: a handler returns a message "
                "to its sender, To(name, message), several of those in a tuple, or nothing"
            )
        return tuple(self.letters(iter(messages), opened.role))

    def _send(self, request: Envelope, letters: tuple[Letter, ...]) -> Handled:
        """Address a handler's letters. The first one to the sender of the request is the answer."""
        sent: list[Sent] = []
        answered = False
        for letter in letters:
            answers = letter.dst == request.src and not answered
            number = request.number if answers else 0
            sent.append(self.address(letter, round=request.round, attempt=request.attempt, answers=number))
            if answers:
                answered = True
                if self.repeats:
                    self.numbers.keep(request, sent[-1])
        return Handled(tuple(sent), answered=answered)

    def _refuse(self, envelope: Envelope, role: str, reason: str) -> Handled:
        if self.repeats:
            self.numbers.keep(envelope, refusal=reason)
        self.observer.refused(envelope, role, reason)
        return Handled(refused=reason)

    def _again(self, envelope: Envelope) -> Handled:
        """For a message with an old number: the stored answer, or a refusal."""
        kept = self.numbers.again(envelope)
        if kept is not None and kept.envelope is not None:
            return Handled((Sent(kept.envelope, kept.frame, kept.to_role),), again=True, answered=True)
        reason = kept.refusal if kept is not None and kept.refusal else USED
        self.observer.refused(envelope, self.roles[self.name][0], reason)
        return Handled(refused=reason, again=True)

    # -- coordinating, and what is committed meanwhile -----------------------------------------------------------------

    @contextmanager
    def leading(self) -> Iterator[None]:
        """A round of the hub as one transaction. Meanwhile its handlers answer by what was committed before."""
        with Transaction(self.party) as transaction:
            self._leading = transaction
            try:
                yield
            finally:
                self._leading = None

    @contextmanager
    def _committed(self) -> Iterator[None]:
        """The party as it was last committed, also during its own round."""
        if self._leading is None:
            yield
            return
        party = self.party
        own = party.state, party.secret
        party.state, party.secret = self._leading.saved
        try:
            yield
        finally:
            party.state, party.secret = own

    def _beside(self, run: Any, opened: Opened) -> Work[tuple[Letter, ...]]:
        """Run a handler of the hub during its own round. It reads what is committed, and may change nothing."""
        party = self.party
        assert self._leading is not None
        saved = self._leading.saved
        twin = fork(saved[0]), fork(saved[1])

        def swapped(step: Any) -> Any:
            own = party.state, party.secret
            party.state, party.secret = twin
            try:
                return step()
            finally:
                party.state, party.secret = own

        outcome = swapped(lambda: run(party, opened.message, opened.envelope.src))
        if isinstance(outcome, Generator):
            work, send = outcome, partial(outcome.send, None)
            try:
                while True:
                    effect = swapped(send)
                    if isinstance(effect, Step):
                        kind = opened.envelope.kind
                        raise RunError(f"{self.name} yields steps in answer to {kind}: only its rounds may coordinate")
                    try:
                        send = partial(work.send, (yield effect))
                    except CoterieError as error:
                        send = partial(work.throw, error)
            except StopIteration as stop:
                outcome = stop.value
            finally:
                work.close()
        if not unchanged(saved, twin):
            raise RunError(
                f"{self.name} changes its state in answer to {opened.envelope.kind} during its own round: "
                "then a handler may only read"
            )
        return self._outcome(opened, outcome)

    # -- rounds and attempts -------------------------------------------------------------------------------------------

    def heard_of(self, round: int, attempt: int) -> None:
        """The hub says that it is this round: what became of the requests of earlier ones is forgotten."""
        if round > self.numbers.round:
            self.numbers.round = round
            self.numbers.forget()
        if attempt > self.numbers.attempt(round):
            self.restart(round, attempt)

    def begin(self, round: int) -> None:
        """Remember the committed state at the beginning of a round, so that the round can be tried again."""
        party = self.party
        self._start = round, party.state, party.secret, dict(self.numbers.taken)

    def restart(self, round: int, attempt: int) -> None:
        """Go back to the beginning of a round. From now on, messages of its earlier attempts are refused.

        Messages of other rounds that were taken since then may come again. Numbers that this party used stay used.
        """
        self.numbers.attempts[round] = attempt
        self.numbers.forget()
        for one in [one for one in self.inbox if (one.envelope.round, one.envelope.attempt) < (round, attempt)]:
            if one.envelope.round == round:
                self.inbox.remove(one)
                self.spool.drop(one.ticket)
        if self._start is not None and self._start[0] == round:
            _, self.party.state, self.party.secret, taken = self._start
            self.numbers.taken = dict(taken)

    def drop(self, keep: Container[str]) -> list[Envelope]:
        """Drop the unasked messages that no later round may take. Returns their envelopes."""
        waiting, self.inbox = self.inbox, []
        dropped: list[Envelope] = []
        for one in waiting:
            if one.envelope.kind in keep:
                self.inbox.append(one)
            else:
                self.spool.drop(one.ticket)
                dropped.append(one.envelope)
        return dropped
