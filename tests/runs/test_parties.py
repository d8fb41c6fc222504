"""Parties that sleep as bytes: the same parties, in the memory of those that are awake."""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

import msgspec
import numpy as np
import pytest
from kept_parties import head
from numpy.typing import NDArray

import coterie.method as fl
from coterie.runs import Experiment, RunConfig, build, founding
from coterie.runs.checkpoint import Saver
from coterie.runs.parties import Parties, dumped, restore, simulate

NAMES = ("hub", "a", "b", "c", "d")
RANDOMNESS = fl.Randomness(0, emulated=True)


class Keeper(fl.Party, role="keeper"):
    class State(msgspec.Struct):
        model: NDArray[Any] | None = None
        heard: dict[str, list[int]] = msgspec.field(default_factory=dict)
        odd: object = None

    class Secret(msgspec.Struct):
        salt: bytes = b""

    def __init__(self, own: fl.Own) -> None:
        super().__init__(own)
        self.state, self.secret = self.State(), self.Secret()


class Made:
    """Parties, and how often each was made."""

    def __init__(self, awake_bytes: int = 1 << 30, names: tuple[str, ...] = NAMES) -> None:
        self.count: Counter[str] = Counter()
        self.parties = Parties(names, self.make, awake_bytes=awake_bytes)

    def make(self, name: str) -> Keeper:
        self.count[name] += 1
        return Keeper(fl.Own(name, RANDOMNESS))


def awake(parties: Parties) -> tuple[str, ...]:
    """The parties that are objects now, the least recently asked first."""
    return tuple(parties._awake)


def test_a_party_is_made_when_it_is_first_asked_for() -> None:
    made = Made()
    parties = made.parties
    assert list(parties) == list(NAMES)
    assert len(parties) == 5
    assert "a" in parties
    assert "z" not in parties
    assert not made.count
    assert parties["a"] is parties["a"]
    assert made.count == {"a": 1}
    assert [name for name in NAMES if parties.touched(name)] == ["a"]
    for ask in (parties.__getitem__, parties.look, parties.dumped, parties.pin):
        with pytest.raises(KeyError):
            ask("z")


def test_a_party_that_slept_is_the_same_party() -> None:
    parties = Made(0).parties
    one = parties["a"]
    one.state = Keeper.State(np.arange(3.0), {"x": [1, 2]})
    one.secret.salt = b"salt"
    before = dumped(one)
    parties.rest()
    assert awake(parties) == ()
    assert parties.dumped("a") == before
    again = parties["a"]
    assert again is not one
    assert dumped(again) == before
    np.testing.assert_array_equal(again.state.model, np.arange(3.0))
    again.state.heard["x"].append(3)  # of its own, not of what lies on disk
    parties.rest()
    assert parties["a"].state.heard == {"x": [1, 2, 3]}
    assert parties["a"].secret.salt == b"salt"


def test_a_look_wakes_nobody() -> None:
    made = Made(0)
    parties = made.parties
    parties["a"].secret.salt = b"salt"
    assert parties.look("a") is parties["a"]
    parties.rest()
    assert parties.look("a").secret.salt == b"salt"
    assert parties.look("b").secret.salt == b""
    assert awake(parties) == ()
    assert not parties.touched("b")
    parties.look("a").secret.salt = b"changed by an observer"
    assert parties["a"].secret.salt == b"salt"


def test_a_pinned_party_never_sleeps() -> None:
    parties = Made(0).parties
    hub = parties.pin("hub")
    parties["a"].state.model = np.ones(10)
    parties.rest()
    parties.restart("hub")
    assert awake(parties) == ("hub",)
    assert parties["hub"] is hub
    other = Keeper(fl.Own("hub", RANDOMNESS))
    other.secret.salt = b"kept"
    parties.put("hub", dumped(other))
    assert parties["hub"] is hub
    assert hub.secret.salt == b"kept"


def test_those_asked_longest_ago_sleep_first_until_the_others_fit() -> None:
    parties = Made(3 * 8000).parties
    for name in ("a", "b", "c", "d"):
        parties[name].state.model = np.full(500, ord(name), np.float64)
    parties["a"], parties.look("b")
    parties.rest()
    assert awake(parties) == ("b", "c", "d", "a")  # 16 kB and what little is around them
    for name in ("a", "b", "c", "d"):
        parties[name].state.model = np.full(1000, ord(name), np.float64)
    parties["b"], parties["a"]
    parties.rest()
    assert awake(parties) == ("b", "a")
    assert parties.look("c").state.model[0] == ord("c")


def test_what_many_hold_is_counted_once() -> None:
    """Four parties with one model of 8 kB fit into 16 kB, and its last holder frees it."""
    parties = Made(16_000).parties
    model = np.ones(1000)
    for name in NAMES:
        parties[name].state.model = model
    parties.rest()
    assert awake(parties) == NAMES
    parties["a"].state.model = np.zeros(2000)
    parties.rest()
    assert awake(parties) == ()  # all holders of the model went before, and freed 8 kB of 24; then a
    parties = Made(20_000).parties
    for name in NAMES:
        parties[name].state.model = model
    parties["a"].state.model = np.zeros(2000)
    parties.rest()
    assert awake(parties) == ("a",)


@dataclass(frozen=True)
class Pair:
    values: NDArray[Any]


class Deep(msgspec.Struct):
    pairs: tuple[Pair, ...] = ()
    nested: dict[str, list[bytes]] = msgspec.field(default_factory=dict)


@pytest.mark.parametrize(
    "state", [Deep(pairs=(Pair(np.ones(1000)),)), Deep(nested={"x": [bytes(8000)]}), Deep(nested={"x": [b""] * 2})]
)
def test_what_a_state_holds_counts_at_any_depth(state: Deep) -> None:
    parties = Made(6000).parties
    parties["a"].state = state
    parties.rest()
    assert awake(parties) == (("a",) if b"" in state.nested.get("x", ()) else ())


def test_equal_arrays_are_one_object_again() -> None:
    parties = Made(0).parties
    for name in NAMES:
        parties[name].state.model = np.arange(1000.0)
    parties["d"].state.model = np.arange(1000.0) + 1
    parties.rest()
    arrays = {name: parties[name].state.model for name in NAMES}
    assert len({id(array) for array in arrays.values()}) == 2
    assert arrays["hub"] is arrays["c"]
    assert not arrays["c"].flags.writeable
    np.testing.assert_array_equal(arrays["d"], np.arange(1000.0) + 1)


def test_memory_is_flat_in_the_number_of_parties() -> None:
    """100 parties with 0.5 MB each, asked one after the other: never more than a few at once."""
    parties = Made(1 << 20, tuple(f"p{i}" for i in range(100))).parties
    tracemalloc.start()
    for i, name in enumerate(parties):
        parties[name].state.model = np.full(65_536, i, np.float64)
        parties.rest()
        assert len(awake(parties)) <= 2
    for i, name in enumerate(parties):
        assert parties.look(name).state.model[-1] == i
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20
    parties.close()


def test_what_sleeps_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file a sleeping party, for this user alone, that goes when the party wakes or is replaced."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    parties = Made(0).parties

    def files() -> int:
        return len([path for path in tmp_path.rglob("*") if path.is_file()])

    for name in NAMES:
        parties[name].secret.salt = name.encode()
    assert files() == 0
    parties.rest()
    assert files() == 5
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o700}
    data = parties.dumped("c")
    parties["a"], parties.look("b")
    parties.replace(Keeper(fl.Own("b", RANDOMNESS)))
    parties.put("c", data)
    assert files() == 3
    parties.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("put_to_sleep", [lambda p: p.rest(), lambda p: p.restart("a"), lambda p: p.dumped("a")])
def test_a_state_that_cannot_be_bytes_is_our_own_bug_and_nothing_is_lost(put_to_sleep: Any) -> None:
    parties = Made(0).parties
    parties["a"].state.odd = {1: object()}
    with pytest.raises(TypeError, match=r"state, Keeper\.State: object cannot be kept"):
        put_to_sleep(parties)
    assert awake(parties) == ("a",)
    assert parties["a"].state.odd is not None


def test_a_full_disk_loses_no_party(monkeypatch: pytest.MonkeyPatch) -> None:
    parties = Made(0).parties
    parties["a"].secret.salt = b"salt"

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(Exception, match="No space left"):
            parties.rest()
    assert parties["a"].secret.salt == b"salt"


class Stranger(fl.Party, role="stranger"):
    class State(msgspec.Struct):
        model: int = 3

    def __init__(self, own: fl.Own) -> None:
        super().__init__(own)
        self.state = self.State()


@pytest.mark.parametrize("damage", [lambda d: b"", lambda d: d[:-1], lambda d: d[:40] + b"x" + d[41:]])
def test_unreadable_bytes_are_a_user_error_and_change_nothing(damage: Any) -> None:
    parties = Made(0).parties
    parties.pin("hub").secret.salt = b"salt"
    parties["a"].secret.salt = b"salt"
    data = damage(parties.dumped("a"))
    for name in ("hub", "a"):
        with pytest.raises(fl.UserError, match="unreadable checkpoint"):
            parties.put(name, data)
        assert parties[name].secret.salt == b"salt"
    party = Keeper(fl.Own("a", RANDOMNESS))
    with pytest.raises(fl.UserError, match="unreadable checkpoint"):
        restore(party, dumped(Stranger(fl.Own("a", RANDOMNESS))))
    assert party.state == Keeper.State()


def test_a_party_without_state_is_bytes_too() -> None:
    party = fl.Party(fl.Own("x", RANDOMNESS))
    other = fl.Party(fl.Own("x", RANDOMNESS))
    restore(other, dumped(party))
    assert (other.state, other.secret) == (fl.Nothing(), fl.Nothing())


# -- whole federations -------------------------------------------------------------------------------------------------


def built(awake_bytes: int | None, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Experiment:
    if awake_bytes is not None:
        monkeypatch.setattr(founding, "simulate", partial(simulate, awake_bytes=awake_bytes))
    return build(RunConfig(**{"data": "digits", "model": "linear", "partition": "iid", "seed": 2, **options}))


@pytest.mark.parametrize(
    ("system", "settings", "crypto"),
    [
        ("scaffold", {}, "real"),
        ("fedcaprivacy", {"clusters": 2}, "emulated"),
        pytest.param("fedavg", {}, "real", marks=pytest.mark.long),
        pytest.param("fedem", {}, "real", marks=pytest.mark.long),
        pytest.param("fedcaprivacy", {"clusters": 2}, "real", marks=pytest.mark.long),
        pytest.param("mingledpie", {"clusters": 4, "threshold": 1}, "emulated", marks=pytest.mark.long),
        pytest.param("pafed", {}, "emulated", marks=pytest.mark.long),
    ],
)
def test_with_all_asleep_between_rounds_the_models_are_the_same(
    system: str, settings: dict[str, Any], crypto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def models(awake_bytes: int | None) -> list[str]:
        made = built(
            awake_bytes,
            monkeypatch,
            system=system,
            settings=settings,
            clients=4,
            rounds=3,
            crypto=crypto,
            partition="permute:2",
        )
        made.set_up()
        found = []
        for r in (1, 2, 3):
            found.append(made.round(r)["models_sha256"])
            assert (awake(made.parties) == (made.federation.hub,)) == (awake_bytes == 0)
        made.close()
        return found

    usual = models(None)
    assert models(0) == usual
    assert len(set(usual)) == 3


@pytest.fixture
def living(monkeypatch: pytest.MonkeyPatch) -> tuple[Counter[str], WeakSet[fl.Party]]:
    """How often each party of a federation is made, and those that have not been thrown away."""
    count: Counter[str] = Counter()
    objects: WeakSet[fl.Party] = WeakSet()
    real = fl.System.make

    def counted(self: fl.System, own: fl.Own, common: Any, config: Any) -> fl.Party:
        count[own.name] += 1
        party = real(self, own, common, config)
        objects.add(party)
        return party

    monkeypatch.setattr(fl.System, "make", counted)
    return count, objects


def test_a_large_federation_builds_those_that_are_asked_and_no_others(
    living: tuple[Counter[str], WeakSet[fl.Party]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """300 clients of which three are asked a round; a checkpoint writes those, without keeping them."""
    count, objects = living
    made = built(0, monkeypatch, system="fedavg", clients=300, rounds=3, settings={"participation": 0.01})
    asked = {c for r in (1, 2, 3) for c in fl.asked_in(made.common.clients, made.settings, 2, r)}
    made.set_up()
    for r in (1, 2, 3):
        made.round(r)
    assert 5 <= len(asked) <= 9
    assert set(count) == asked | {"server"}
    saver = Saver(tmp_path, made)
    saver.save(3, 0, 0, {})
    assert set(head(tmp_path).parties) == set(count) == asked | {"server"}
    before = count.copy()
    saver.save(4, 0, 0, {})
    assert count == before
    gc.collect()
    assert {party.name for party in objects} == {"server"}
    made.close()


@pytest.mark.parametrize("clients", [10, 40])
def test_memory_of_a_federation_does_not_grow_with_its_clients(
    clients: int, living: tuple[Counter[str], WeakSet[fl.Party]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each client has trained and keeps a variate; after the round the hub alone is an object."""
    made = built(0, monkeypatch, system="scaffold", clients=clients, rounds=1, settings={"max_epochs": 1})
    made.set_up()
    made.round(1)
    gc.collect()
    assert all(made.parties.touched(name) for name in made.parties)
    assert {party.name for party in living[1]} == {made.federation.hub}
    made.close()
