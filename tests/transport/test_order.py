"""Batches give what handling the messages one by one, in order of arrival, gives: against a slow readable twin."""

from __future__ import annotations

import heapq
import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transport_toys import RANDOMNESS, Doubling, wired

import coterie.method as fl
from coterie.protocol.steps import Ask, Post, Take
from coterie.transport import wire
from coterie.transport.wire import Links


@fl.message(src=fl.ANY, dst=fl.ANY)
class Token(fl.Message, frozen=True):
    """Does something that follows from its number, who has it, and how many that party has had."""

    number: int
    hops: int


NAMES = ("a", "b", "c", "d")


@dataclass(frozen=True)
class World(Links):
    """costs: what handling may cost.  down, up: seconds of each node's links."""

    seed: int
    costs: tuple[float, ...]
    down: Mapping[str, float]
    up: Mapping[str, float]

    def down_s(self, party: str, size: int) -> float:
        """Small messages may be slow, so that a later one would overtake them."""
        return self.down[party] * (1 + size % 3)

    def up_s(self, party: str, size: int) -> float:
        return self.up[party] * (1 + size % 3)

    def work_s(self, party: str, cost: fl.Cost) -> float:
        return cost.crypto_s

    def draw(self, name: str, n: int, token: Token) -> random.Random:
        return random.Random(f"{self.seed} {name} {n} {token.number}")

    def cost(self, name: str, n: int, token: Token) -> float:
        """By the state: how many tokens the node has handled by then."""
        return self.draw(name, n, token).choice(self.costs)

    def sends(self, name: str, n: int, token: Token) -> list[tuple[str | None, Token]]:
        """(recipient, token); None is whoever asked."""
        draw = self.draw(name, n, token)
        draw.random()
        if token.hops == 0:
            return [(None, Token(draw.getrandbits(30), 0))] if draw.random() < 0.7 else []
        chosen = draw.sample([None, "server", *NAMES], draw.choice([0, 1, 1, 2, 3]))
        return [(dst, Token(draw.getrandbits(30), token.hops - 1)) for dst in chosen]


class Node(fl.Party, role="node"):
    class State(msgspec.Struct):
        n: int = 0
        log: list[tuple[str, int]] = msgspec.field(default_factory=list)

    def __init__(self, name: str, world: World) -> None:
        super().__init__(fl.Own(name, RANDOMNESS))
        self.state, self.world = self.State(), world

    def cost(self, msg: Token) -> fl.Cost:
        return fl.Cost(crypto_s=self.world.cost(self.name, self.state.n, msg))

    @fl.on(Token, cost)
    def handle(self, msg: Token, src: str) -> fl.Work[Any]:
        sends = self.world.sends(self.name, self.state.n, msg)
        self.state.n += 1
        self.state.log.append((src, msg.number))
        if sends:
            assert (yield 21) == 42
        return tuple(fl.To(src if dst is None else dst, token) for dst, token in sends)


class Hub(fl.Party, role="server"):
    takes = (Token,)


Step = tuple[
    str, Any, Any
]  # ("post", {node: token}, None), ("ask", {node: token}, deadline), ("take", at_least, until)


@dataclass
class Run:
    """What can be seen: every party's messages in the order they were handled in, and the clock after each step."""

    logs: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    hub: list[Any] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)


def under_test(world: World, script: list[Step], chunk: int) -> Run:
    hub = Hub(fl.Own("server", RANDOMNESS))
    nodes = [Node(name, world) for name in NAMES]
    transport = wired(hub, *nodes, effects=Doubling(chunk), links=world, spool_bytes=100)
    run = Run()

    def coordinator() -> fl.Steps[None]:
        for kind, one, two in script:
            if kind == "post":
                yield Post(one)
            elif kind == "ask":
                answers = yield Ask(one, Token, lambda name, t: run.hub.append((name, t.number)), two)
                run.hub.append((answers.got, dict(sorted(answers.missing.items()))))
            else:
                yield Take(Token, lambda name, t: run.hub.append((name, t.number)), one, two)
            run.clock.append(transport.clock_s)

    transport.drive(coordinator(), 1)
    transport.close()
    run.logs = {node.name: node.state.log for node in nodes}
    return run


def twin(world: World, script: list[Step]) -> Run:
    """One message at a time, always the one that arrived first. No look-ahead, no batches, no effects."""
    run = Run(logs={name: [] for name in NAMES})
    events: list[Any] = []
    inbox: list[Any] = []  # (arrives_s, src, token, number of the request it answers)
    busy: dict[str, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    last: dict[tuple[str, str], tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    numbers: Counter[str] = Counter()
    silent: dict[int, float] = {}  # the hub's requests that got no direct answer, and since when that is certain
    clock = 0.0

    def send(src: str, dst: str, token: Token, answers: int, at: tuple[float, int]) -> int:
        numbers[src] += 1
        size = len(fl.codec.encode(token)) + (0 if "server" in (src, dst) else 32)  # sealed
        up = 0.0 if src in ("server", dst) else world.up_s(src, size)
        delay = up + (0.0 if dst in ("server", src) else world.down_s(dst, size))
        arrives = (at[0] + delay, 0) if delay > 0 else (at[0], at[1] + 1)
        last[src, dst] = max(arrives, last[src, dst])
        heapq.heappush(events, (last[src, dst], src, numbers[src], dst, token, answers))
        return numbers[src]

    def one() -> None:
        arrives, src, number, name, token, answers = heapq.heappop(events)
        if name == "server":
            inbox.append((arrives[0], src, token, answers))
            return
        n = len(run.logs[name])
        start, cost = max(arrives, busy[name]), world.cost(name, n, token)
        busy[name] = done = (start[0] + cost, 0) if cost > 0 else start
        run.logs[name].append((src, token.number))
        answered = False
        for dst, new in world.sends(name, n, token):
            direct = dst in (None, src) and not answered
            answered |= direct
            send(name, src if dst is None else dst, new, number if direct else 0, done)
        if src == "server" and not answered:
            silent[number] = done[0]

    def until(end_s: float) -> None:
        while events and events[0][0][0] <= end_s:
            one()

    def fold(wanted: Any) -> list[str]:
        chosen = [entry for entry in inbox if wanted(entry)]
        inbox[:] = [entry for entry in inbox if not wanted(entry)]
        run.hub.extend((src, token.number) for _, src, token, _ in chosen)
        return [src for _, src, _, _ in chosen]

    for kind, first, second in script:
        if kind == "post":
            for dst, token in first.items():
                send("server", dst, token, 0, (clock, 0))
        elif kind == "ask":
            asked = {send("server", dst, token, 0, (clock, 0)): dst for dst, token in first.items()}
            deadline = float("inf") if second is None else clock + second
            while events and events[0][0][0] <= deadline:
                heard = {answers for _, _, _, answers in inbox}
                if all(n in heard or n in silent for n in asked):
                    break
                one()
            heard_s = {answers: at for at, _, _, answers in inbox if answers in asked}
            times = [heard_s.get(n, silent.get(n)) for n in asked]
            if None in times or (second is not None and len(heard_s) < len(asked)):
                end = deadline
            else:
                end = min(deadline, max(t for t in times if t is not None))
            until(end)
            clock = max(clock, end)
            got = fold(lambda entry, asked=asked, end=end: entry[3] in asked and entry[0] <= end)
            missing = {
                name: "gave no direct answer" if number in silent and silent[number] <= end else "late"
                for number, name in asked.items()
                if name not in got
            }
            run.hub.append((tuple(got), dict(sorted(missing.items()))))
        else:
            end = clock + second
            if first:
                while events and events[0][0][0] <= end and len(inbox) < first:
                    one()
                if len(inbox) >= first:
                    end = max(clock, sorted(inbox, key=lambda entry: entry[0])[first - 1][0])
            until(end)
            clock = end
            fold(lambda entry, end=end: entry[0] <= end)
        run.clock.append(clock)
    until(clock)
    return run


def tokens(limit: int) -> st.SearchStrategy[dict[str, Token]]:
    token = st.builds(Token, st.integers(0, 1 << 30), st.integers(0, limit))
    return st.dictionaries(st.sampled_from(NAMES), token, min_size=1)


def table(values: st.SearchStrategy[float]) -> st.SearchStrategy[dict[str, float]]:
    return st.fixed_dictionaries(dict.fromkeys(NAMES, values))


def worlds(delays: st.SearchStrategy[float], costs: st.SearchStrategy[float]) -> st.SearchStrategy[World]:
    seeds = st.integers(0, 1 << 30)
    return st.builds(World, seeds, st.lists(costs, min_size=1, max_size=4).map(tuple), table(delays), table(delays))


SETTINGS = settings(suppress_health_check=[HealthCheck.too_slow])

with_ties = st.sampled_from([0.0, 1.0, 2.0])
once = st.lists(tokens(4).map(lambda t: ("post", t, None)), min_size=1, max_size=3).map(
    lambda posts: [*posts, ("take", 0, 1e6)]
)
steps = st.one_of(
    st.tuples(st.just("post"), tokens(3), st.none()),
    st.tuples(st.just("ask"), tokens(2), st.none() | st.sampled_from([3.0, 7.0, 20.0])),
    st.tuples(st.just("take"), st.integers(0, 3), st.sampled_from([1.0, 10.0])),
)
scripts = st.lists(steps, min_size=1, max_size=6).map(lambda script: [*script, ("take", 0, 1e6)])
positive = st.sampled_from([1.0, 2.0, 5.0]) | st.floats(0.01, 10.0)


def same(world: World, script: list[Step], chunk: int) -> None:
    expected, got = twin(world, script), under_test(world, script, chunk)
    assert got.logs == expected.logs
    assert got.hub == expected.hub
    assert got.clock == expected.clock


@SETTINGS
@given(worlds(with_ties, with_ties), once, st.sampled_from([1, 2, 10]))
def test_ties_where_things_take_no_time(world: World, script: list[Step], chunk: int) -> None:
    same(world, script, chunk)


@SETTINGS
@given(worlds(positive, positive | st.just(0.0)), scripts, st.sampled_from([1, 2, 10]))
def test_rounds_of_many_steps(world: World, script: list[Step], chunk: int) -> None:
    same(world, script, chunk)


def test_messages_that_chase_each_other_without_time_are_noticed() -> None:
    """A node that wakes itself up for nothing, for ever."""

    class Restless(fl.Party, role="node"):
        @fl.on(Token)
        def handle(self, msg: Token, src: str) -> tuple[fl.To, ...]:
            return (fl.To(self.name, msg),)

    def coordinator() -> fl.Steps[None]:
        yield Post({"a": Token(1, 0)})

    hub = Hub(fl.Own("server", RANDOMNESS))
    transport = wired(hub, Restless(fl.Own("a", RANDOMNESS)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "_MAX_STEPS", 100)
        with pytest.raises(fl.RunError, match="without end"):
            transport.drive(coordinator(), 1)
