"""Parties: forks, transactions, tables of handlers, and where random numbers come from."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import coterie.method as fl
from coterie.protocol.party import fork


class Inner(msgspec.Struct):
    items: list[int]


class Fixed(msgspec.Struct, frozen=True):
    values: Any


class State(msgspec.Struct):
    n: int = 0
    table: dict[str, dict[str, list[int]]] = msgspec.field(default_factory=dict)
    inner: Inner = msgspec.field(default_factory=lambda: Inner([1]))
    names: set[str] = msgspec.field(default_factory=set)
    w: Any = None


@fl.message(src="server", dst="client")
class Hello(fl.Message, frozen=True):
    pass


@fl.message(src="server", dst="leader")
class Lead(fl.Message, frozen=True):
    pass


@fl.message(src=fl.ANY, dst=fl.ANY)
class Anyone(fl.Message, frozen=True):
    pass


def party(state: State) -> fl.Party:
    class Client(fl.Party, role="client"):
        pass

    made = Client(fl.Own("c", fl.Randomness(0, True)))
    made.state = state
    return made


def change(state: State) -> None:
    """In place, at every depth."""
    state.n += 1
    state.table["a"]["b"].append(1)
    state.table["a"]["c"] = []
    state.table["z"] = {}
    state.inner.items.append(2)
    state.inner = Inner([9])
    state.names.add("x")


def test_a_fork_shares_nothing_that_can_be_changed_in_place() -> None:
    original = State(table={"a": {"b": []}})
    twin = fork(original)
    assert twin == original
    change(twin)
    assert original == State(table={"a": {"b": []}})


def test_a_fork_keeps_types_and_shares_arrays() -> None:
    w = np.zeros(3)
    counted, grouped = Counter("aab"), defaultdict(list, {"a": [w]})
    state = State(table={"c": counted, "g": grouped}, w=(w, Fixed([w])))  # type: ignore[dict-item]
    twin = fork(state)
    assert type(twin.table["c"]) is Counter
    assert twin.table["g"]["new"] == []
    assert "new" not in grouped
    assert twin.table["g"]["a"][0] is w
    assert twin.w[0] is w


class Changing(msgspec.Struct):
    n: int = 0


@dataclass
class Data:
    n: int = 0


@dataclass(frozen=True)
class FrozenData:
    items: list[int]


class Frozen(msgspec.Struct, frozen=True):
    values: dict[str, int] | None = None


class Nested(msgspec.Struct):
    table: dict[str, list[Changing]] = {}
    again: Nested | None = None
    good: tuple[tuple[int, ...], frozenset[str], NDArray[np.float64]] | None = None
    told: Any = None


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (tuple[list[int], ...], r"x \(ListType\)"),
        (tuple[int, dict[str, int]], r"x \(DictType\)"),
        (tuple[set[int]], r"x \(SetType\)"),
        (dict[str, tuple[Changing, ...]], r"x \(Changing\)"),
        (list[Frozen], r"x\.values \(DictType\)"),
        (Data, r"x \(Data\)"),
        (FrozenData, r"x\.items \(ListType\)"),
        (Nested, ""),
    ],
)
def test_a_state_that_no_fork_would_copy_is_refused(kind: Any, says: str) -> None:
    state = msgspec.defstruct("Kept", [("x", kind | None, None)])
    made: Any = type("Client", (fl.Party,), {"State": state}, role="client")
    if not says:
        made(fl.Own("c", fl.Randomness(0, True)))
        return
    with pytest.raises(TypeError, match=rf"Kept\.{says} could change in a handler that raises"):
        made(fl.Own("c", fl.Randomness(0, True)))


def test_a_transaction_commits_or_takes_everything_back() -> None:
    made = party(State(table={"a": {"b": []}}, w=np.zeros(2)))
    before = fork(made.state)

    def fail() -> None:
        with fl.transaction(made):
            change(made.state)
            made.state.w = made.state.w + 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert made.state.w.tolist() == [0, 0]
    made.state.w = before.w = None
    assert made.state == before
    with fl.transaction(made):
        change(made.state)
    change(before)
    assert made.state == before


@pytest.mark.parametrize("wrap", [lambda w: w, lambda w: {"a": {"b": [w]}}, lambda w: (1, (w,)), lambda w: Fixed([w])])
def test_arrays_are_read_only_from_the_first_transaction_on(wrap: Any) -> None:
    first, second = np.zeros(2), np.zeros(2)
    made = party(State(w=wrap(first)))
    with fl.transaction(made):
        with pytest.raises(ValueError, match="read-only"):
            first += 1
        second += 1
        made.state.w = wrap(second)
        second += 1
    with pytest.raises(ValueError, match="read-only"):
        second += 1
    assert second.tolist() == [2, 2]


def test_a_party_handles_what_is_for_its_roles_only() -> None:
    with pytest.raises(TypeError, match=r"Wrong \(client\) handles Lead, which is for leader"):

        class Wrong(fl.Party, role="client"):
            @fl.on(Lead)
            def lead(self, msg: Lead, src: str) -> None: ...

    class Elected(fl.Party, role="client", also=("leader",)):
        @fl.on(Lead)
        def lead(self, msg: Lead, src: str) -> None: ...

        @fl.on(Hello)
        def hello(self, msg: Hello, src: str) -> None: ...

        @fl.on(Anyone)
        def anyone(self, msg: Anyone, src: str) -> None: ...

    assert set(Elected.handlers) == {Lead, Hello, Anyone}
    assert Elected.role == "client"


def test_handlers_are_inherited_and_overridden_without_touching_the_base() -> None:
    class Base(fl.Party, role="client"):
        @fl.on(Hello)
        def hello(self, msg: Hello, src: str) -> None: ...

    class Derived(Base):
        @fl.on(Hello)
        def other(self, msg: Hello, src: str) -> None: ...

    assert Base.handlers[Hello].run is Base.hello
    assert Derived.handlers[Hello].run is Derived.other
    assert Derived.role == "client"


# -- randomness --------------------------------------------------------------------------------------------------------

keys = st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.sampled_from("xy"), st.integers(0, 2), st.integers(0, 2))


def draw(key: tuple[int, str, str, int, int]) -> list[int]:
    seed, *rest = key
    return list(fl.Randomness(seed, True).rng(*rest).integers(1 << 60, size=3))


@given(keys, keys)
def test_randomness_is_a_function_of_seed_party_purpose_round_and_attempt(
    one: tuple[int, str, str, int, int], two: tuple[int, str, str, int, int]
) -> None:
    assert (draw(one) == draw(two)) == (one == two)


def test_no_draw_depends_on_another() -> None:
    """The same numbers whatever was drawn before, from whichever object."""
    expected = fl.rng(1, "a", "x", 2, 3).normal(size=5)
    randomness = fl.Randomness(1, emulated=False)
    for _ in range(3):
        randomness.rng("a", "x", 2, 3).normal(size=100)
        randomness.rng("b", "x", 2, 3)
    np.testing.assert_array_equal(randomness.rng("a", "x", 2, 3).normal(size=5), expected)


def test_known_numbers_so_that_old_seeds_stay_what_they_were() -> None:
    """blake2b of the key, then numpy's Philox: both are specified, so these never change."""
    digest = hashlib.blake2b(b"7\x1fclient/0\x1fbatches\x1f3\x1f0", digest_size=16).digest()
    philox = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
    assert fl.rng(7, "client/0", "batches", 3).integers(1 << 60) == philox.integers(1 << 60)


def test_secrets_follow_the_seed_only_when_emulated_and_never_what_experiments_draw() -> None:
    real, emulated = fl.Randomness(5, emulated=False), fl.Randomness(5, emulated=True)
    for kind in ("bytes", "permutation"):

        def take(randomness: fl.Randomness, kind: str = kind, **key: Any) -> bytes:
            secrets = randomness.secrets("p", "mask", **key)
            return secrets.bytes(32) if kind == "bytes" else secrets.permutation(64).tobytes()

        assert take(emulated) == take(fl.Randomness(5, emulated=True))
        assert take(emulated) != take(emulated, round=1)
        assert take(emulated) != take(emulated, attempt=1)
        assert take(real) != take(real) != take(fl.Randomness(5, emulated=False))
        assert take(real) != take(emulated)
    assert emulated.secrets("p", "mask").bytes(16) != emulated.rng("p", "mask").bytes(16)
    assert real.rng("p", "mask").bytes(16) == emulated.rng("p", "mask").bytes(16)


@pytest.mark.parametrize("emulated", [True, False])
def test_permutations_are_uniform(emulated: bool) -> None:
    """All 6 orders of 3, each 600 +- 6 sigma times of 3600."""
    secrets = fl.Randomness(0, emulated).secrets("p", "shuffle")
    seen = Counter(tuple(int(i) for i in secrets.permutation(3)) for _ in range(3600))
    assert set(seen) == set(itertools.permutations(range(3)))
    assert all(abs(count - 600) < 6 * np.sqrt(3600 * 5 / 36) for count in seen.values())
    assert secrets.permutation(3).dtype == np.int64


def test_a_party_makes_its_state_from_its_set_up_info() -> None:
    class Made(fl.Party, role="own"):
        class State(msgspec.Struct):
            name: str = fl.from_party(lambda party: party.name)
            seen: list[int] = msgspec.field(default_factory=list)

    one, other = Made(fl.Own("a", fl.Randomness(0, True))), Made(fl.Own("b", fl.Randomness(0, True)))
    assert (one.state, other.state) == (Made.State("a", []), Made.State("b", []))
    assert one.state.seen is not other.state.seen
    assert isinstance(one.secret, fl.Nothing)


class Held(msgspec.Struct):
    opened: int = 0
    others: int = 0


def test_what_outlasts_an_attempt_is_that_of_a_class_and_its_bases_and_is_never_overlooked() -> None:
    """A misspelt field would let a repeated round open a second sum."""

    class Base(fl.Component):
        LASTS = ("opened",)

    class Part(Base):
        Secret = Held
        LASTS = ("others",)

    class Misspelt(Base):
        Secret = Held
        LASTS = ("openned",)

    assert Part.LASTS == ("opened", "others")
    with pytest.raises(TypeError, match="'secret: Nowhere' names no type"):

        class Lost(fl.Component):
            secret: Nowhere  # type: ignore[name-defined]  # noqa: F821

    class Its(fl.Party, role="its"):
        part, wrong = Part(), Misspelt()

    party = object.__new__(Its)
    party.state, party.secret = msgspec.Struct(), Its.Secret()
    later = Its.Secret()
    later.part = Held(1, 2)
    party.part.lasts(later.part)
    assert party.secret.part == Held(1, 2)
    with pytest.raises(AttributeError, match="openned"):
        party.wrong.lasts(later.wrong)


def test_what_the_hub_alone_may_send_stays_so_however_it_is_declared() -> None:
    @fl.message(dst="client", tells=["a number"])
    class Asked(fl.FromHub, frozen=True):
        number: int

    assert Asked.SRC == fl.HUB
    assert Asked.DST == "client"
    with pytest.raises(TypeError, match="comes from the hub"):
        fl.message(src="client", dst="hub")(Asked)
