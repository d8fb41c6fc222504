"""Marks of a list add up to 0 for exactly its clients, and single ones say nothing."""

from __future__ import annotations

from collections import Counter

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.crypto.marks import MARK_BYTES, add_up, mark
from coterie.crypto.signing import OpeningKey, SealingKey, digest
from coterie.protocol.errors import DecodeError
from coterie.protocol.randomness import Derived

NAMES = [f"client/{k}" for k in range(6)]
KEYS = {name: OpeningKey.generate(Derived(name.encode()).bytes) for name in NAMES}
PUBLIC = {name: SealingKey.load(key.public.to_bytes()) for name, key in KEYS.items()}
LIST = bytes(range(32))


def made(name: str, among: list[str], of: bytes = LIST) -> bytes:
    return mark(KEYS[name], name, {other: PUBLIC[other] for other in among if other != name}, of)


def slow(name: str, among: list[str], of: bytes = LIST) -> int:
    """The same from the definition, with the terms of both ends of a pair from one function."""

    def term(first: str, second: str) -> int:
        both = X25519PrivateKey.from_private_bytes(KEYS[first].to_bytes()).exchange(
            X25519PublicKey.from_public_bytes(PUBLIC[second].to_bytes())
        )
        return int.from_bytes(digest("coterie/agreed/1", both, "mark", first, second, of)[:16], "little")

    after = sum(term(name, other) for other in among if other > name)
    return (after - sum(term(other, name) for other in among if other < name)) % 2**128


@given(among=st.sets(st.sampled_from(NAMES), min_size=1).map(sorted), of=st.binary(min_size=32, max_size=32))
@settings(max_examples=25, deadline=None)
def test_marks_are_those_of_the_definition_and_add_up_to_zero(among: list[str], of: bytes) -> None:
    marks = [made(name, among, of) for name in among]
    assert [int.from_bytes(one, "little") for one in marks] == [slow(name, among, of) for name in among]
    assert {len(one) for one in marks} == {MARK_BYTES}
    assert add_up(marks)


@given(times=st.lists(st.integers(0, 2), min_size=len(NAMES), max_size=len(NAMES)))
@settings(max_examples=60, deadline=None)
def test_no_other_choice_of_marks_adds_up(times: list[int]) -> None:
    """Not without some clients, and not with some twice. All of them equally often do, but then there are more."""
    marks = [one for name, count in zip(NAMES, times, strict=True) for one in [made(name, NAMES)] * count]
    assert add_up(marks) == (len(set(times)) == 1)


def test_who_knows_one_key_cannot_make_up_for_a_mark_that_is_missing() -> None:
    """The hub works with client/0, and leaves out client/5. All that it can compute is of pairs with client/0."""
    there = [made(name, NAMES) for name in NAMES[1:5]]
    known = [0, int.from_bytes(made("client/0", NAMES), "little")]
    known += [slow("client/0", ["client/0", other]) for other in NAMES[1:]]
    known += [-one for one in known]
    guesses = {(a + b) % 2**128 for a in known for b in known}
    assert not any(add_up([*there, guess.to_bytes(16, "little")]) for guess in guesses)
    assert add_up([*there, made("client/0", NAMES), made("client/5", NAMES)])


def test_marks_are_of_one_list_and_use_and_change_as_a_whole() -> None:
    other = made("client/1", NAMES, bytes(32))
    assert made("client/1", NAMES) == made("client/1", NAMES) != other
    assert not add_up([other, *(made(name, NAMES) for name in NAMES if name != "client/1")])
    bits = Counter[int]()
    for at in range(400):
        value = int.from_bytes(made("client/1", NAMES, at.to_bytes(32, "little")), "little")
        bits.update(k for k in range(128) if value >> k & 1)
    assert all(140 < bits[k] < 260 for k in range(128))  # six standard deviations about 200


def test_a_key_that_stands_in_two_names_cancels_no_pair() -> None:
    """client/2 has registered the public key of client/0. Between them by name, client/1 has both terms in its mark."""
    others = {"client/0": PUBLIC["client/0"], "client/2": PUBLIC["client/0"]}
    assert int.from_bytes(mark(KEYS["client/1"], "client/1", others, LIST), "little")


def test_a_key_that_keeps_no_secrets_is_refused() -> None:
    with pytest.raises(DecodeError, match="not a usable X25519 key"):
        mark(KEYS["client/1"], "client/1", {"client/9": SealingKey(bytes(32))}, LIST)
