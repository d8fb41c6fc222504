"""Parties with valid keys that lie about what no signature proves: attempts, rounds, kinds, names, addressees."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from leader_toys import CLUSTERS, Lead, Summed, Train, Trained, two_levels
from leader_toys import Client as Leader
from leader_toys import Server as Asker
from transport_toys import Go, Server, federation, wired

import coterie.method as fl
from coterie.protocol.errors import shown
from coterie.transport.envelope import Envelope, Handled
from coterie.transport.member import Member
from tests.transport.test_relay import KEYS, Ball, Player, captured, players


def signed(envelope: Envelope, frame: bytes, **changes: Any) -> tuple[Envelope, bytes]:
    """What its sender could have sent: a sealed payload sealed anew, with these fields changed, and signed."""
    plain = KEYS.open(envelope.src, envelope.dst, frame, envelope.header()) if envelope.sealed else frame
    bare = msgspec.structs.replace(envelope, **changes)
    again = KEYS.seal(bare.src, bare.dst, plain, bare.header()) if bare.sealed else plain
    digest = hashlib.sha256(again).digest()
    return msgspec.structs.replace(bare, digest=digest, signature=KEYS.sign(bare.src, bare.header(), digest)), again


def received(member: Member, envelope: Envelope, frame: bytes) -> Handled:
    """Of a handler without effects."""
    with pytest.raises(StopIteration) as done:
        member.receive(envelope, frame).send(None)
    handled: Handled = done.value.value
    return handled


# -- rounds and attempts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attempt", [1, 1 << 62])
def test_only_the_hub_tries_a_round_again(attempt: int) -> None:
    """A client that says so of a round takes nobody back, and shuts nobody out of that round or of a later one."""
    envelope, frame = captured("Ball")
    _, transport = players()
    y = transport.members["y"]
    y.begin(1)
    assert received(y, envelope, frame).answered
    for r in (1, 2):
        refused = received(y, *signed(envelope, frame, attempt=attempt, round=r, number=50 + r)).refused
        assert refused == f"it is of attempt {attempt} of round {r}, which is at attempt 0"
    assert y.party.state.balls == [1], "not taken back"
    assert y.numbers.attempts == {}
    for r in (1, 2):
        assert received(y, *signed(envelope, frame, round=r, number=100 + r)).answered


class Telling(Server, role="server"):
    """A hub that has a handler."""

    @fl.message(src="client", dst="server")
    class Question(fl.Message, frozen=True):
        n: int

    @fl.message(src="server", dst="client")
    class Reply(fl.Message, frozen=True):
        n: int

    @fl.on(Question)
    def question(self, msg: Question, src: str) -> Reply:
        return self.Reply(msg.n)


def test_nobody_takes_the_hub_back_in_the_midst_of_its_round() -> None:
    """z, asked by the hub, asks it something, in the name of an attempt that there is not."""

    class Curious(Player, role="client", also=("leader",)):
        @fl.on(Go)
        def go(self, msg: Go, src: str) -> tuple[fl.To, ...]:
            return fl.To(src, Player.go(self, msg, src)), fl.To(src, Telling.Question(msg.round))  # type: ignore[arg-type]

    def lie(envelope: Envelope, frame: bytes) -> list[Any]:
        return [signed(envelope, frame, attempt=7) if envelope.kind == "Question" else frame]

    server, clients = Telling(["y", "z"]), [Player("y"), Curious("z")]
    transport = wired(server, *clients, keyring=KEYS)
    transport.intercept = lie
    for r in (1, 2):
        assert set(transport.drive(server.round(r), r).got) == {"y", "z"}
        assert [reason.split(": ")[1] for reason in transport.meter.refused] == [
            f"it is of attempt 7 of round {r}, which is at attempt 0"
        ]
    assert [note[:2] for note in server.state.notes] == [("y", 1), ("z", 1), ("y", 2), ("z", 2)]


def test_what_a_party_keeps_to_answer_again_is_of_a_senders_newest_round_and_of_no_others() -> None:
    """A peer that is far ahead makes nobody forget what was answered to others, nor remember for ever."""
    envelope, frame = captured("Ball")
    _, transport = players()
    y = transport.members["y"]
    y.repeats = True
    hub = captured("Go")
    asked = signed(*hub, dst="y", number=1)
    first = received(y, *asked)
    for r in (1, 1 << 62):
        assert received(y, *signed(envelope, frame, round=r, number=r)).answered
    assert received(y, *asked).sent == first.sent, "the very bytes again"
    assert {src: len(kept) for src, kept in y.numbers.kept.items()} == {"server": 1, "x": 1}
    assert y.numbers.round == hub[0].round


# -- words that others choose ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["\x1b[2J\r\nGo", "G" * 10**6, "‮Go"])
def test_what_a_sender_calls_its_message_reaches_no_log_as_it_is(kind: str) -> None:
    def relay(envelope: Envelope, frame: bytes) -> list[Any]:
        return [signed(envelope, frame, kind=kind) if envelope.kind == "Ball" else frame]

    server, transport = players(relay)
    transport.drive(server.round(1), 1)
    (reason,) = transport.meter.refused
    assert reason.isprintable()
    assert len(reason) < 1000
    assert not transport.parties["y"].state.balls


def test_printable_words_stay_as_they_are() -> None:
    assert shown("client/Train: größer als 1.5 → refused") == "client/Train: größer als 1.5 → refused"
    assert shown("a\nb") == "a\\nb"


# -- leaders that are told to ask nobody, or themselves ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["nobody", "c1", "server", "", "x" * 10**6])
def test_a_hub_that_names_members_that_are_none_is_refused_and_ends_nothing(name: str) -> None:
    class Obedient(Leader, role="client", also=("leader",)):
        """Asks whoever it is told to ask."""

        @fl.on(Lead)
        def lead(self, msg: Lead, src: str) -> fl.Steps[Summed]:
            trained = yield from fl.ask(msg.members, Train(msg.round, msg.x), Trained)
            return Summed(msg.round, trained.x, 1)

    class Lying(Asker, role="server"):
        def round(self, r: int) -> fl.Steps[Any]:
            asks = {"c1": Lead(r, name, 0), "c2": Lead(r, "c0", 0)}
            answers = yield from fl.for_each(asks, Summed, lambda name, summed: None)
            return answers.got, dict(answers.missing)

    server, transport = two_levels([Obedient(i) for i in range(5)], server=Lying(CLUSTERS))
    assert transport.drive(server.round(1), 1) == (("c2",), {"c1": fl.REFUSED})
    (reason,) = (reason for reason in transport.meter.refused if reason.startswith("leader/Lead"))
    assert len(reason) < 1000


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), float("-inf")])
@pytest.mark.parametrize("step", ["wake", "ask", "take"])
def test_no_step_waits_for_a_time_that_is_none(step: str, seconds: float) -> None:
    """A leader that is told to is refused; a hub that does ends its run."""

    def waits() -> fl.Steps[Any]:
        if step == "wake":
            yield from fl.wake(seconds)
        elif step == "ask":
            yield from fl.for_each({"c0": Train(1, 0)}, Trained, lambda name, trained: None, deadline_s=seconds)
        else:
            yield from fl.take(Trained, lambda name, trained: None, until_s=seconds)

    class Waiting(Leader, role="client", also=("leader",)):
        @fl.on(Lead)
        def lead(self, msg: Lead, src: str) -> fl.Steps[Summed]:
            yield from waits()
            raise AssertionError

    server, transport = two_levels([Waiting(i) if i == 1 else Leader(i) for i in range(5)])
    assert transport.drive(server.round(1), 1) == (("c4",), {"c1": fl.REFUSED})
    assert [reason.split(" seconds")[1] for reason in transport.meter.refused] == [": no step waits for ever"]
    with pytest.raises(fl.RunError, match="server would wait for"):
        transport.drive(waits(), 2)


def test_a_handler_that_is_told_to_answer_a_stranger_refuses() -> None:
    class Told(Player, role="client", also=("leader",)):
        @fl.on(Go)
        def go(self, msg: Go, src: str) -> tuple[fl.To, ...]:
            return (fl.To("nobody", Ball(msg.round)),)

    server, transport = federation([Told("x"), Player("y")], keyring=KEYS)
    assert dict(transport.drive(server.round(1), 1).missing) == {"x": fl.REFUSED}
    assert dict(transport.meter.refused) == {
        "client/Go: x sends Ball to 'nobody', which is not a party of this federation": 1
    }


# -- answers to what others were asked ---------------------------------------------------------------------------------


def test_an_answer_counts_for_nobody_else_even_if_it_comes_first() -> None:
    """z answers x's request, and a member answers the request that a leader has sent to another."""

    def lie(envelope: Envelope, frame: bytes) -> list[Any]:
        if envelope.kind == "Up" and envelope.src == "z":
            return [signed(envelope, frame, answers=asked["x"])]
        if envelope.kind == "Go":
            asked[envelope.dst] = envelope.number
        return [frame]

    asked: dict[str, int] = {}
    server, transport = players(lie)
    answers = transport.drive(server.round(1), 1)
    assert set(answers.got) == {"x", "y"}
    assert set(answers.missing) == {"z"}
    assert sorted(note[0] for note in server.state.notes) == ["x", "y"]
