"""Several requests to one party in one step, each with its own answer; and rounds that are tried again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
from transport_toys import KEYS, RANDOMNESS, Client, Go, Server, Table, Up, federation, resigned, wired

import coterie.method as fl
from coterie.transport.envelope import Envelope
from coterie.transport.local import LocalTransport

W = np.zeros(1, np.float32)


@fl.message(src="server", dst="helper")
class Convert(fl.Message, frozen=True):
    """Work on number n."""

    n: int


@fl.message(src="helper", dst="server")
class Converted(fl.Message, frozen=True):
    """Its square."""

    n: int
    square: int


class Helper(fl.Party, role="helper"):
    """Needs n seconds for number n, and refuses 13; says 0 of 7."""

    class State(msgspec.Struct):
        seen: list[int] = msgspec.field(default_factory=list)

    def __init__(self, name: str = "helper") -> None:
        super().__init__(fl.Own(name, RANDOMNESS))
        self.state = self.State()

    def cost(self, msg: Convert) -> fl.Cost:
        return fl.Cost(crypto_s=float(msg.n))

    @fl.on(Convert, cost)
    def convert(self, msg: Convert, src: str) -> Converted:
        if msg.n == 13:
            raise fl.PeerError("unlucky")
        self.state.seen.append(msg.n)
        return Converted(msg.n, 0 if msg.n == 7 else msg.n**2)


def run(steps: fl.Steps[Any], *parties: fl.Party) -> tuple[Any, LocalTransport]:
    transport = wired(Server(()), *parties, links=Table())
    return transport.drive(steps, 1), transport


def test_each_request_has_its_own_answer_and_outcome() -> None:
    """One step of 3 + 7 + 13 + 1 + 50 s at one helper, and a party that is asked under its own name beside it."""
    got: dict[Any, int] = {}

    def fold(key: Any, reply: Converted) -> None:
        if reply.square == 0:
            raise fl.PeerError("zero")
        got[key] = reply.square

    def steps() -> fl.Steps[Any]:
        requests: dict[Any, fl.Message | fl.To] = {("n", n): fl.To("helper", Convert(n)) for n in (3, 7, 13, 1, 50)}
        requests["other"] = Convert(2)
        return (yield from fl.for_each(requests, Converted, fold, deadline_s=30.0))

    helper, other = Helper(), Helper("other")
    answers, transport = run(steps(), helper, other)
    assert got == {("n", 3): 9, ("n", 1): 1, "other": 4}
    assert answers.got == ("other", ("n", 3), ("n", 1))
    assert answers.missing == {("n", 7): fl.UNACCEPTABLE, ("n", 13): fl.REFUSED, ("n", 50): fl.LATE}
    assert answers.declined == (("n", 13),)
    assert (helper.state.seen, other.state.seen) == ([3, 7, 1], [2])
    assert transport.meter.late == ["helper"]
    assert transport.clock_s == 30.0


def test_an_answer_counts_for_the_request_that_it_names_and_from_whoever_was_asked() -> None:
    """One helper answers what the other was asked: that answers nothing, and can be taken."""

    class Thief(Helper, role="helper"):
        @fl.on(Convert, Helper.cost)
        def convert(self, msg: Convert, src: str) -> Converted:
            return Converted(msg.n, 99)

    def steal(envelope: Envelope, frame: bytes) -> list[Any]:
        if envelope.src != "thief":
            return [frame]
        return [resigned(envelope, frame, answers=envelope.answers - 1, weight=envelope.weight)]

    heard: list[Any] = []

    def steps() -> fl.Steps[Any]:
        requests = {"helper": Convert(2), "thief": Convert(1)}
        answers = yield from fl.for_each(requests, Converted, lambda k, m: heard.append((k, m.square)), deadline_s=9.0)
        more = yield from fl.take(Converted, lambda k, m: heard.append((k, m.square)))
        return answers, more

    transport = wired(Server(()), Helper(), Thief("thief"), links=Table())
    transport.intercept = steal
    answers, more = transport.drive(steps(), 1)
    assert heard == [("helper", 4), ("thief", 99)]
    assert (answers.got, dict(answers.missing), more.got) == (("helper",), {"thief": fl.LATE}, ("thief",))


def test_posts_take_several_too_and_requests_are_made_as_they_are_sent() -> None:
    """Without a deadline the step ends with the last answer."""
    made: list[int] = []

    class Made(Mapping[int, fl.To]):
        def __getitem__(self, n: int) -> fl.To:
            made.append(n)
            return fl.To("helper", Convert(n))

        def __iter__(self) -> Iterator[int]:
            return iter(range(1, 4))

        def __len__(self) -> int:
            return 3

    def steps() -> fl.Steps[None]:
        yield from fl.post({n: fl.To("helper", Convert(n)) for n in (5, 6)})
        yield from fl.for_each(Made(), Converted, lambda *_: None)

    helper = Helper()
    _, transport = run(steps(), helper)
    assert (helper.state.seen, transport.clock_s) == ([5, 6, 1, 2, 3], 17.0)
    assert made == [1, 2, 3]


# -- a round that is tried again ---------------------------------------------------------------------------------------


class Moody(Server, role="server"):
    """Its round fails the first time, after everybody has trained; takes what came late."""

    def round(self, r: int, fails: bool = False) -> fl.Steps[Any]:
        got = yield from super().round(r)
        yield from fl.take(Up, self.note)
        if fails:
            yield from fl.post({"c0": Go(r, self.state.w + 5)})
            raise fl.RunError("no luck")
        return got


def moody(retries: bool = True) -> tuple[Moody, list[Client], LocalTransport]:
    clients = [Client("c0", 1, 1.0), Client("c1", 2)]
    server = Moody(["c0", "c1"], 2.0)
    return server, clients, wired(server, *clients, links=Table(up={"c1": 5.0}), retries=retries)


def test_a_round_that_is_tried_again_takes_everybody_back_to_its_start() -> None:
    """c1's answers need 5 s. Before round 3 fails, c0 has trained and c1's answer to round 1 was taken: both again."""
    server, clients, transport = moody()
    plain = moody()
    for r in (1, 2):
        assert transport.drive(server.round(r), r) == plain[2].drive(plain[0].round(r), r)
    with pytest.raises(fl.RunError, match="no luck"):
        transport.drive(server.round(3, fails=True), 3)
    assert clients[0].state.rounds == [1, 2, 3]
    failed_s = transport.clock_s
    again = transport.drive(server.round(3), 3, attempt=1)
    assert again == plain[2].drive(plain[0].round(3), 3)
    assert clients[0].state.rounds == [1, 2, 3]  # not twice
    assert transport.clock_s == failed_s + 2.0  # time doesn't go back, so that c1's next answer is there, too
    notes = [note[:2] for note in server.state.notes]
    assert notes == [("c0", 1), ("c0", 2), ("c0", 3), ("c1", 1), ("c1", 2)]
    assert notes[:-1] == [note[:2] for note in plain[0].state.notes]


def test_messages_of_an_attempt_that_was_given_up_are_refused() -> None:
    """What round 3 posted before it failed is still under way; and a relay repeats what it has captured of it."""
    server, clients, transport = moody()
    captured: list[Any] = []

    def relay(envelope: Envelope, frame: bytes) -> list[Any]:
        if envelope.round == 3 and envelope.attempt == 0:
            captured.append((envelope, frame))
            return [frame]
        return [*[one for one in captured if one[0].dst == envelope.dst], frame]

    transport.intercept = relay
    for r in (1, 2):
        transport.drive(server.round(r), r)
    with pytest.raises(fl.RunError, match="no luck"):
        transport.drive(server.round(3, fails=True), 3)
    assert transport.drive(server.round(3), 3, attempt=1).got == ("c0",)
    reasons = {reason.split(": ", 1)[1] for reason in transport.meter.refused}
    assert reasons == {"it is of attempt 0 of round 3, which is at attempt 1"}
    assert transport.meter.refused.total() >= 3
    assert clients[0].state.rounds == [1, 2, 3]
    assert transport.drive(server.round(4), 4).got == ("c0",)


def test_a_member_that_hears_of_a_new_attempt_goes_back_by_itself() -> None:
    """As on a wire, where nobody else can take it back."""
    sent = []
    for attempt in (0, 1):
        server, transport = federation([Client("x")])
        transport.members["server"].numbers.attempts[1] = attempt
        transport.intercept = lambda envelope, frame: sent.append((envelope, frame)) or [frame]
        transport.members["server"].numbers.sent = 10 * attempt
        transport.drive(server.round(1), 1)
    first = next(one for one in sent if one[0].kind == "Go")
    again = msgspec.structs.replace(first[0], attempt=1, number=99)
    again = msgspec.structs.replace(again, signature=KEYS.sign("server", again.header(), again.digest))
    _, transport = federation([Client("x")])
    member = transport.members["x"]
    member.begin(1)
    for envelope in (first[0], again):
        with pytest.raises(StopIteration) as done:
            member.receive(envelope, first[1]).send(None)
        assert done.value.value.answered
        assert member.party.state.rounds == [1]
    with pytest.raises(StopIteration) as done:
        member.receive(msgspec.structs.replace(first[0], number=100), first[1]).send(None)
    assert "signed" in done.value.value.refused
    with pytest.raises(StopIteration) as done:
        member.receive(*first).send(None)
    assert "attempt 0 of round 1" in done.value.value.refused


def test_only_a_transport_that_remembers_can_try_again() -> None:
    server, _, transport = moody(retries=False)
    with pytest.raises(fl.RunError, match="no luck"):
        transport.drive(server.round(1, fails=True), 1)
    with pytest.raises(fl.RunError, match="made without retries"):
        transport.drive(server.round(1), 1, attempt=1)
