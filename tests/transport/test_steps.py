"""Steps, transactions, effects and fates on the local transport."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from transport_toys import RANDOMNESS, Client, Doubling, Go, Server, Table, Up, wired

import coterie.method as fl
from coterie.transport.local import LocalTransport

W = np.zeros(1, np.float32)


def run(parties: list[Any], steps: Any, r: int = 1, **options: Any) -> tuple[Any, LocalTransport]:
    transport = wired(*parties, **options)
    return transport.drive(steps, r), transport


# -- transactions ------------------------------------------------------------------------------------------------------


class Careless(Client, role="client"):
    """Changes everything it has, in all the ways that there are, and then refuses odd rounds."""

    class State(msgspec.Struct):
        n: int = 0
        rounds: list[int] = msgspec.field(default_factory=list)
        table: dict[str, dict[str, list[int]]] = msgspec.field(default_factory=lambda: {"a": {"b": [1]}})
        names: set[str] = msgspec.field(default_factory=set)

    class Secret(msgspec.Struct):
        key: bytes = b"old"

    def __init__(self, name: str, error: type[Exception]) -> None:
        super().__init__(name)
        self.secret, self.error = self.Secret(), error

    @fl.on(Go)
    def go(self, msg: Go, src: str) -> fl.Work[Up]:
        self.state.n += 1
        self.state.rounds.append(msg.round)
        self.state.table["a"]["b"].append(msg.round)
        self.state.names.add(src)
        self.secret.key = b"new"
        yield 1
        if msg.round % 2:
            raise self.error("no odd rounds")
        return Up(msg.round, msg.w)


@pytest.mark.parametrize("error", [fl.PeerError, fl.CryptoError])
def test_a_handler_that_refuses_midway_changes_nothing_and_the_round_goes_on(error: type[Exception]) -> None:
    server, careless, good = Server(("x", "y")), Careless("x", error), Client("y")
    answers, transport = run([server, careless, good], server.round(1))
    assert answers.got == ("y",)
    assert answers.missing == {"x": fl.REFUSED}
    assert transport.meter.refused == {"client/Go: no odd rounds": 1}
    assert careless.state == Careless.State()
    assert careless.secret.key == b"old"
    assert transport.drive(server.round(2), 2).got == ("x", "y")
    assert careless.state == Careless.State(1, [2], {"a": {"b": [1, 2]}}, {"server"})
    assert careless.secret.key == b"new"


def test_another_error_of_a_handler_ends_the_run_and_takes_back_all_that_run_beside_it() -> None:
    server, broken, good = Server(("x", "y")), Careless("x", ZeroDivisionError), Careless("y", fl.PeerError)
    with pytest.raises(ZeroDivisionError) as caught:  # and not only when the traceback is forgotten
        run([server, broken, good], server.round(1))
    assert caught.value is not None
    assert broken.state == good.state == Careless.State()
    assert server.state.notes == []


def test_an_error_of_the_coordinator_takes_back_the_hub() -> None:
    server = Server(("x",))
    closed: list[bool] = []

    def round_() -> fl.Steps[None]:
        try:
            yield from server.round(1)
            server.state.w = W + 1
            assert len(server.state.notes) == 1
            raise fl.RunError("too few")
        finally:
            closed.append(True)

    with pytest.raises(fl.RunError, match="too few"):
        run([server, Client("x")], round_())
    assert closed == [True]
    assert server.state.notes == []
    assert (server.state.w == 0).all()


def test_what_a_handler_cannot_send_is_refused_before_it_commits() -> None:
    """A model that diverged: NaN never travels, and the client's count of rounds stays what it was."""
    server, client = Server(("x", "y")), Client("x", float("nan"))
    answers, transport = run([server, client, Client("y")], server.round(1))
    assert answers.got == ("y",)
    assert answers.missing["x"] == fl.REFUSED
    assert client.state.n == 0
    assert list(transport.meter.refused) == ["client/Go: Up.w: NaN or infinite values"]


def test_what_the_hub_cannot_send_ends_the_run() -> None:
    server = Server(("x",))
    server.state.w = W * np.nan
    with pytest.raises(fl.RunError, match=r"server can't send Go: Go\.w: NaN"):
        run([server, Client("x")], server.round(1))


def test_committed_arrays_are_read_only_and_the_first_ones_too() -> None:
    class InPlace(Client, role="client"):
        class State(msgspec.Struct):
            w: Any = None

        def __init__(self, name: str) -> None:
            super().__init__(name)
            self.state = self.State(np.ones(1, np.float32))

        @fl.on(Go)
        def go(self, msg: Go, src: str) -> Up:
            self.state.w += 1
            return Up(msg.round, self.state.w)

    server, client = Server(("x",)), InPlace("x")
    with pytest.raises(ValueError, match="read-only"):
        run([server, client], server.round(1))
    assert client.state.w[0] == 1


def test_received_arrays_are_read_only_and_shared_with_nobody() -> None:
    seen: list[Go] = []

    class Keeper(Client, role="client"):
        @fl.on(Go)
        def go(self, msg: Go, src: str) -> Up:
            seen.append(msg)
            return Up(msg.round, msg.w)

    server = Server(("x", "y"))
    run([server, Keeper("x"), Keeper("y")], server.round(1))
    for msg in seen:
        assert not np.shares_memory(msg.w, server.state.w)
        with pytest.raises(ValueError, match="read-only"):
            msg.w[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            msg.w.setflags(write=True)


# -- effects -----------------------------------------------------------------------------------------------------------


class Asking(Client, role="client"):
    """Yields effects, and notes what it got."""

    @fl.on(Go)
    def go(self, msg: Go, src: str) -> fl.Work[Up]:
        first = yield int(self.plus)
        try:
            yield f"error of {self.name}"
        except fl.PeerError as error:
            self.state.rounds.append(len(str(error)))
        second = yield first + 1
        return Up(msg.round, np.array([first, second], np.float32))


@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_effects_are_batched_and_their_results_and_errors_come_to_whoever_asked(chunk: int) -> None:
    clients = [Asking("p", 1), Asking("qq", 10), Asking("rrr", 100)]
    server, effects = Server([c.name for c in clients]), Doubling(chunk)
    heard: dict[str, list[float]] = {}
    server.note = lambda name, up: heard.__setitem__(name, up.w.tolist())  # type: ignore[method-assign]
    run([server, *clients], server.round(1), effects=effects)
    assert heard == {"p": [2, 6], "qq": [20, 42], "rrr": [200, 402]}
    assert [c.state.rounds for c in clients] == [[len("error of p")], [len("error of qq")], [len("error of rrr")]]
    assert max(len(call) for call in effects.calls) == chunk
    if chunk == 3:
        assert effects.calls[0] == [("p", 1), ("qq", 10), ("rrr", 100)]
        assert len(effects.calls) == 3


@pytest.mark.parametrize(("batch_bytes", "together"), [(0, 1), (7_000, 1), (9_000, 2), (100_000, 5)])
def test_no_more_is_handled_together_than_fits_the_memory(batch_bytes: int, together: int) -> None:
    """Messages of 1 kB, four times counted: what they say, and an answer as large. One at least is handled."""
    clients = [Asking(f"c{i}", i) for i in range(5)]
    server, effects = Server([c.name for c in clients]), Doubling(5)
    server.state.w = np.zeros(250, np.float32)
    run([server, *clients], server.round(1), effects=effects, batch_bytes=batch_bytes)
    assert [c.state.rounds for c in clients] == [[len(f"error of c{i}")] for i in range(5)]
    assert max(len(call) for call in effects.calls) == together


def test_an_effects_error_that_a_handler_does_not_catch_refuses_its_message() -> None:
    class Failing(Client, role="client"):
        @fl.on(Go)
        def go(self, msg: Go, src: str) -> fl.Work[Up]:
            yield "it does not open"
            return Up(1, W)

    server = Server(("x",))
    answers, transport = run([server, Failing("x")], server.round(1))
    assert answers.missing == {"x": fl.REFUSED}
    assert transport.meter.refused == {"client/Go: it does not open": 1}


def test_the_coordinator_too_yields_effects() -> None:
    def round_() -> fl.Steps[Any]:
        got = yield 4
        try:
            yield "wrong key"
        except fl.PeerError as error:
            return got, str(error)

    assert run([Server(())], round_())[0] == (8, "wrong key")


# -- asking, posting, taking -------------------------------------------------------------------------------------------


def test_ask_gives_the_answer_or_says_why_there_is_none() -> None:
    def round_(deadline_s: float | None) -> fl.Steps[Any]:
        up = yield from fl.ask("x", Go(1, W), Up, deadline_s=deadline_s)
        return up.w[0]

    parties = [Server(()), Client("x", 7, 2.0)]
    assert run(parties, round_(None), links=Table())[0] == 7
    assert run(parties, round_(2.0), links=Table())[0] == 7  # a deadline includes its instant
    with pytest.raises(fl.NoAnswerError, match=r"x did not answer Go: late"):
        run(parties, round_(1.9), links=Table())


def test_the_coordinator_can_go_on_without_an_answer() -> None:
    def round_() -> fl.Steps[str]:
        try:
            yield from fl.ask("x", Go(1, W), Up)
        except fl.NoAnswerError as error:
            return str(error)
        return "answered"

    assert "offline" in run([Server(()), Client("x")], round_(), links=Table(fates={("x", 1): "offline"}))[0]


def test_a_fold_that_refuses_is_counted_and_does_not_count_as_taken() -> None:
    """take(at_least=2) of three messages, the first of which is refused: it waits for the other two."""
    heard: list[tuple[str, float]] = []
    server, clients = Server(()), [Client(n, work_s=w) for n, w in (("x", 1.0), ("y", 2.0), ("z", 3.0))]

    def fold(name: str, up: Up) -> None:
        if name == "x":
            raise fl.PeerError("not from you")
        heard.append((name, server.now_s))

    def round_() -> fl.Steps[Any]:
        yield from fl.post({c.name: Go(1, W) for c in clients})
        return (yield from fl.take(Up, fold, at_least=2))

    answers, transport = run([server, *clients], round_(), links=Table())
    assert heard == [("y", 2.0), ("z", 3.0)]
    assert answers.got == ("y", "z")
    assert answers.missing == {"x": fl.UNACCEPTABLE}
    assert transport.meter.refused == {"server/Up: not from you": 1}
    assert transport.clock_s == 3.0


def test_a_request_has_one_answer_and_what_else_is_said_is_there_to_be_taken() -> None:
    class Talkative(Client, role="client"):
        @fl.on(Go)
        def go(self, msg: Go, src: str) -> tuple[fl.To, ...]:
            return fl.To(src, Up(1, msg.w + 1)), fl.To(src, Up(1, msg.w + 2))

    heard: list[float] = []

    def round_() -> fl.Steps[Any]:
        answers = yield from fl.for_each({"x": Go(1, W)}, Up, lambda _, up: heard.append(float(up.w[0])))
        more = yield from fl.take(Up, lambda _, up: heard.append(10 * float(up.w[0])))
        return answers.got, more.got

    assert run([Server(()), Talkative("x")], round_())[0] == (("x",), ("x",))
    assert heard == [1.0, 20.0]


@fl.message(src="server", dst="client")
class Count(fl.OfRound, frozen=True):
    """Count the things of this kind. least: from how many on it is worth an answer."""

    kind: str
    least: int


@fl.message(src="client", dst="server")
class Counted(fl.OfRound, frozen=True):
    """kind: as asked.  least: the fewest that it has counted, which is no business of the request."""

    ABOUT = ("round", "kind")
    kind: str
    least: int


@fl.message(src="client", dst="server")
class Uncounted(fl.Message, frozen=True):
    """Nothing is counted here; of no round."""

    why: str


class Counter(fl.Party, role="client"):
    """Answers with a round, a kind and a number of its own."""

    def __init__(self, name: str, answer: fl.Message) -> None:
        super().__init__(fl.Own(name, RANDOMNESS))
        self.answer = answer

    @fl.on(Count)
    def count(self, msg: Count, src: str) -> fl.Message:
        return self.answer


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Counted(3, "a", 0), ""),
        (Counted(2, "a", 0), "an answer of round 2 to a request of round 3"),
        (Counted(4, "a", 0), "an answer of round 4 to a request of round 3"),
        (Counted(3, "b", 0), "an answer of kind 'b' to a request of kind 'a'"),
        (Counted(3, "b" * 99, 7), f"an answer of kind '{'b' * 39} to a request of kind 'a'"),
        (Uncounted("none"), ""),  # it states nothing that could differ
    ],
)
def test_an_answer_is_about_what_was_asked(answer: fl.Message, why: str) -> None:
    """One step asks two clients for things of two kinds. Only the wrong answer is refused, before the fold."""
    heard: list[str] = []
    clients = [Counter("x", answer), Counter("y", Counted(3, "c", 0))]

    def round_() -> fl.Steps[Any]:
        requests = {"x": Count(3, "a", 5), "y": Count(3, "c", 5)}
        return (yield from fl.for_each(requests, (Counted, Uncounted), lambda name, _: heard.append(name)))

    answers, transport = run([Server(()), *clients], round_(), 3)
    assert heard == list(answers.got) == (["y"] if why else ["x", "y"])
    assert answers.missing == ({"x": fl.UNACCEPTABLE} if why else {})
    assert transport.meter.refused == ({f"server/{type(answer).__name__}: x: {why}": 1} if why else {})


def test_one_acknowledgement_serves_every_request_of_its_round_alone() -> None:
    """Of another round, of another kind than was asked for, or for a second time it is refused."""

    class Twice(Counter, role="client"):
        @fl.on(Count)
        def count(self, msg: Count, src: str) -> tuple[fl.To, ...]:
            return fl.To(src, fl.Done(msg.round)), fl.To(src, fl.Done(msg.round))

    clients = [Counter("x", fl.Done(3)), Counter("old", fl.Done(2)), Counter("other", Counted(3, "a", 0))]
    twice = Twice("twice", fl.Done(3))

    def round_() -> fl.Steps[Any]:
        names = ("x", "old", "other", "twice")
        done = yield from fl.for_each(dict.fromkeys(names, Count(3, "a", 0)), fl.Done)
        counted = yield from fl.for_each({"x": Count(3, "a", 0)}, Counted)
        return done, counted

    (done, counted), transport = run([Server(()), *clients, twice], round_(), 3)
    assert set(done.got) == {"x", "twice"}
    assert dict(done.missing) == dict.fromkeys(("old", "other"), fl.UNACCEPTABLE)
    assert counted.got == ()
    reasons = transport.meter.refused
    assert reasons["server/Done: old: an answer of round 2 to a request of round 3"] == 1
    assert {reason.partition(":")[0] for reason in reasons} == {"server/Done", "server/Counted"}
    assert transport.meter.lost == {"twice Done of round 3": "too late"}


def test_what_is_taken_answers_nothing_and_may_be_of_any_round() -> None:
    """A late answer, say, of a client that a step no longer waits for."""
    counter, heard = Counter("x", Counted(1, "b", 0)), list[str]()

    def round_() -> fl.Steps[Any]:
        yield from fl.post({"x": Count(3, "a", 5)})
        return (yield from fl.take(Counted, lambda name, _: heard.append(name), at_least=1))

    answers, transport = run([Server(()), counter], round_(), 3)
    assert (answers.got, heard, transport.meter.refused) == (("x",), ["x"], {})


def test_an_answer_without_a_fold_is_counted() -> None:
    def round_() -> fl.Steps[Any]:
        return (yield from fl.for_each({name: Go(1, W) for name in ("x", "y")}, Up))

    assert run([Server(()), Client("x"), Client("y")], round_())[0].got == ("x", "y")


def test_take_waits_for_enough_or_for_the_time_and_says_when_nobody_will_send_more() -> None:
    server, clients = Server(()), [Client(n, work_s=w) for n, w in (("x", 1.0), ("y", 2.0), ("z", 9.0))]
    times: list[float] = []

    def round_() -> fl.Steps[Any]:
        def none(*_: Any) -> None:
            times.append(server.now_s)

        assert (yield from fl.take(Up, none)).got == ()
        yield from fl.post({c.name: Go(1, W) for c in clients})
        yield from fl.take(Up, none, at_least=1)
        assert server.now_s == 1.0
        yield from fl.take(Up, none, at_least=2, until_s=5.0)
        assert server.now_s == 6.0
        yield from fl.take(Up, none, until_s=3.0)
        assert server.now_s == 9.0
        with pytest.raises(fl.NoAnswerError, match="server waits for 1 Up, has 0, and no more will come"):
            yield from fl.take(Up, none, at_least=1)
        return times

    assert run([server, *clients], round_(), links=Table())[0] == [1.0, 2.0, 9.0]


def test_what_arrives_during_another_step_can_still_be_taken_in_this_round() -> None:
    """Up is not in ``takes`` here: it waits until the end of the round, and no longer."""

    class Strict(Server, role="server"):
        takes = ()

    heard: list[str] = []
    server = Strict(())

    def round_(r: int) -> fl.Steps[None]:
        yield from fl.post({"x": Go(r, W)})
        yield from fl.ask("y", Go(r, W), Up)
        if r == 1:
            yield from fl.take(Up, lambda name, _: heard.append(name))

    parties = [server, Client("x", work_s=1.0), Client("y", work_s=2.0)]
    _, transport = run(parties, round_(1), links=Table())
    assert heard == ["x"]
    transport.drive(round_(2), 2)
    assert transport.meter.lost == {"x Up of round 2": "too late"}
    assert transport.snapshot().parcels == []
    assert transport.spool.held_bytes == 0


def test_when_a_round_ends_all_that_takes_no_more_time_has_happened_and_nothing_else() -> None:
    """A posted message arrives though nobody waits for it; a client that is still working has not changed."""
    server, quick, slow = Server(()), Client("quick"), Client("slow", work_s=5.0)

    def round_() -> fl.Steps[None]:
        yield from fl.for_each({"slow": Go(1, W)}, Up, server.note, deadline_s=2.0)
        yield from fl.post({"quick": Go(1, W)})

    _, transport = run([server, quick, slow], round_(), links=Table())
    assert (quick.state.n, slow.state.n, transport.clock_s) == (1, 0, 2.0)


def test_a_message_to_nobody_or_to_oneself() -> None:
    with pytest.raises(fl.RunError, match="server sends Go to 'nobody', which is not a party"):
        run([Server(())], fl.post({"nobody": Go(1, W)}))
    with pytest.raises(fl.RunError, match="asks itself"):
        run([Server(())], fl.for_each({"server": Go(1, W)}, Up, lambda *_: None))


def test_the_hubs_own_work_takes_virtual_time() -> None:
    def steps() -> fl.Steps[None]:
        yield from fl.spend(fl.Cost(crypto_s=2.5))

    _, transport = run([Server(())], steps(), links=Table())
    assert transport.clock_s == 2.5
    assert transport.meter.virtual_seconds == {"server/coordinate": 2.5}


# -- when answers arrive, and a coordinator's own effects --------------------------------------------------------------


def test_a_step_tells_when_each_answer_arrived() -> None:
    """Seconds after asking: the way down, the work, the way up. Late and refused answers have none."""
    links = Table(down={"slow": 1.0, "late": 9.0}, up={"slow": 0.25, "quick": 0.5})
    clients = [Client("quick", work_s=2.0), Client("slow", work_s=3.0), Client("late"), Careless("odd", fl.PeerError)]
    server = Server([client.name for client in clients], deadline_s=8.0)

    def twice() -> fl.Steps[Any]:
        yield from fl.spend(fl.Cost(crypto_s=10.0))
        first = yield from server.round(1)
        assert server.now_s == 18.0
        second = yield from server.round(2)
        return first, second

    (first, second), _ = run([server, *clients], twice(), links=links)
    assert first.got == ("quick", "slow")
    assert first.after_s == {"quick": 2.5, "slow": 4.25}
    assert second.after_s == {"odd": 0.0, "quick": 2.5, "slow": 4.25}


def test_a_coordinator_computes_effects_of_its_own() -> None:
    """After their nominal time, which may be stated. The effects run as those of handlers do, and may be refused."""
    server = Server(())
    effects, w = [], np.zeros((3, 5), np.float32)

    class Noting:
        chunk = 10

        def run(self, wanted: Any) -> list[Any]:
            effects.extend(wanted)
            return [fl.PeerError("no") if isinstance(one, fl.Losses) else "done" for _, one in wanted]

    class Slow(Table):
        def work_s(self, party: str, cost: fl.Cost) -> float:
            return cost.samples * cost.flops_per_sample + cost.crypto_s

    def steps() -> fl.Steps[Any]:
        fit = fl.Fit(w[0], None, epochs=2, seed=0)
        found = [(yield from fl.compute(fit)), server.now_s]
        found += [(yield from fl.compute(fl.Evaluate(w[0]))), server.now_s]
        found += [(yield from fl.compute(fit, fl.Cost(crypto_s=100.0))), server.now_s]
        with pytest.raises(fl.PeerError, match="no"):
            yield from fl.compute(fl.Losses(w))
        return [*found, server.now_s]

    server.samples, server.spec = 6, SimpleNamespace(flops_per_sample=0.5)  # type: ignore[assignment]
    result, transport = run([server], steps(), links=Slow(), effects=Noting())
    assert result == ["done", 6.0, "done", 7.0, "done", 107.0, 110.0]
    assert [party for party, _ in effects] == ["server"] * 4
    assert transport.meter.virtual_seconds == {"server/coordinate": 110.0}


def test_a_drive_that_settles_waits_for_all_that_was_posted() -> None:
    """The clock ends when the last message of this round was handled. Older ones are handled, and do not count."""
    links = Table(down={"x": 2.0, "y": 50.0})
    parties = [Server(("x", "y")), Client("x", work_s=3.0), Client("y")]
    _, transport = run(parties, fl.post({"y": Go(1, W)}), links=links)
    assert (transport.clock_s, [p.state.n for p in parties[1:]]) == (0.0, [0, 0])
    transport.drive(fl.post({"x": Go(2, W)}), 2, settle=True)
    assert (transport.clock_s, [p.state.n for p in parties[1:]]) == (5.0, [1, 1])
    transport.drive(fl.post({"x": Go(3, W)}), 3)
    assert (transport.clock_s, [p.state.n for p in parties[1:]]) == (5.0, [1, 1])
    transport.drive(fl.post({}), 4, settle=True)  # of this round there is nothing
    assert (transport.clock_s, [p.state.n for p in parties[1:]]) == (5.0, [2, 1])


def test_a_busy_client_answers_in_order_each_time_from_committed_state() -> None:
    """One slow client asked three times with a deadline that it always misses: 0, 1, 2 -> done at 5, 10, 15."""
    client, server = Client("c", 1, 5.0), Server(("c",))
    heard: list[Any] = []

    def round_(r: int) -> fl.Steps[None]:
        yield from fl.for_each({"c": Go(r, np.array([r], np.float32))}, Up, lambda *_: None, deadline_s=1.0)
        if r == 3:
            yield from fl.take(Up, lambda name, up: heard.append((up.round, float(up.w[0]), server.now_s)), at_least=3)

    transport = wired(server, client, links=Table())
    for r in (1, 2, 3):
        transport.drive(round_(r), r)
    assert heard == [(1, 2.0, 5.0), (2, 3.0, 10.0), (3, 4.0, 15.0)]
    assert (transport.clock_s, client.state.n) == (15.0, 3)
