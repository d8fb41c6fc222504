"""What emulation sends weighs what the real thing would, in bundles, messages, seals and envelopes, and can't lie."""

from __future__ import annotations

import struct
from contextlib import suppress

import msgspec
import numpy as np
import pytest
from federation import planted, rig
from hypothesis import given
from hypothesis import strategies as st
from transport_toys import KEYS, RANDOMNESS, resigned

import coterie.method as fl
from coterie.protocol.codec import content, field_weight, message_weight, weighs, weighted
from coterie.systems import pafed
from coterie.transport.envelope import Sent
from coterie.transport.member import Member
from coterie.transport.queues import Queues


@fl.message(src="a", dst="b")
class Package(fl.Message, frozen=True):
    """Byte strings, one of them optional, and a bundle of some."""

    number: int
    first: bytes
    second: bytes | None = None
    many: fl.Bundle = b""


class Twin:
    """A byte string beside the real one that it stands for; as all that travels, neither begins as such bytes do."""

    def __init__(self, held: bytes, lacks: int) -> None:
        self.real = b"." + held + bytes(lacks)
        self.data = weighted(len(self.real), b"." + held)


LACKS = [0, 0, 1, 15, 16, 17, 40, 100, 215, 216, 255, 300, 65_490, 65_530, 65_536, 99_999]
twins = st.builds(Twin, st.binary(max_size=40), st.sampled_from(LACKS))


@given(twins)
def test_it_weighs_what_it_stands_for(twin: Twin) -> None:
    assert weighs(twin.data) == weighs(twin.real) == len(twin.real)
    assert twin.real.startswith(bytes(content(twin.data)))
    assert len(twin.data) <= len(content(twin.data)) + 16


@given(twins, st.none() | twins, st.lists(twins, max_size=4))
def test_a_message_weighs_as_the_message_of_the_real_ones(first: Twin, second: Twin | None, many: list[Twin]) -> None:
    """To the byte, whatever msgpack writes for a length; a bundle as the bundle of the real parts."""
    twin = Package(7, first.data, second and second.data, fl.bundle([one.data for one in many]))
    real = Package(7, first.real, second and second.real, fl.bundle([one.real for one in many]))
    frame = fl.codec.encode(twin)
    assert message_weight(twin, len(frame)) == len(fl.codec.encode(real))
    assert field_weight(twin, "many") == len(real.many)
    back = fl.codec.decode(frame, Package)
    assert (back.first, back.second) == (twin.first, twin.second)
    assert fl.unbundle(back.many, len(many)) == [one.data for one in many]


@given(twins, st.binary(max_size=60))
def test_a_bundle_that_is_none_weighs_its_own_length(twin: Twin, noise: bytes) -> None:
    """Whatever it holds: whoever opens it refuses it. One weighted string in its place weighs what it stands for."""
    for data in (b"\xff" + noise, fl.bundle([twin.data])[:-1]):
        assert field_weight(Package(1, b"", None, data), "many") == len(data)
    assert field_weight(Package(1, b"", None, twin.data), "many") == len(twin.real)


def claiming(weight: int, data: bytes) -> bytes:
    return data[:8] + struct.pack("<Q", weight) + data[16:]


@pytest.mark.parametrize("weight", [6, 2**32, 2**64 - 1])
def test_a_weight_beyond_all_measure_or_of_what_is_there_anyway_is_refused(weight: int) -> None:
    """So there is one form of everything."""
    data = claiming(weight, weighted(100, b"held.."))
    assert weighs(data) <= len(data)
    with pytest.raises(fl.DecodeError, match="claim to weigh"):
        content(data)


def test_no_message_is_longer_than_msgpack_can_write() -> None:
    half = weighted(2**31, b"")
    assert message_weight(Package(1, half), 100) > 2**31
    with pytest.raises(fl.DecodeError, match="at most 4294967295"):
        message_weight(Package(1, half, half), 100)


@given(st.binary(max_size=60))
def test_any_bytes(noise: bytes) -> None:
    for data in (noise, weighted(100, b"")[:8] + noise):
        assert weighs(data) >= 0
        assert field_weight(Package(1, b"", None, data), "many") >= 0
        for read in (lambda d: fl.codec.decode(d, Package), lambda d: fl.unbundle(d, 2), content):
            with suppress(fl.DecodeError):
                read(data)


# -- on the wire -------------------------------------------------------------------------------------------------------


class Ends(fl.Party, role="a"):
    """The sender."""


class Taker(fl.Party, role="b"):
    """The recipient."""

    @fl.on(Package)
    def take(self, msg: Package, src: str) -> None:
        """Nothing to do."""


def members(hub: str) -> tuple[Member, Member]:
    spool = fl.Spool(0)

    def roles(name: str) -> tuple[str, ...]:
        return (name,) if name in "abc" else ()

    parties = {"a": Ends(fl.Own("a", RANDOMNESS)), "b": Taker(fl.Own("b", RANDOMNESS))}
    return Member("a", parties, hub, roles, KEYS, spool=spool), Member("b", parties, hub, roles, KEYS, spool=spool)


def sent(member: Member, package: Package) -> Sent:
    (one,) = member.send([fl.To("b", package)], "a", round=1, attempt=0)
    return one


@pytest.mark.parametrize("hub", ["a", "c"], ids=["open", "sealed"])
def test_an_envelope_states_the_weight_of_the_real_message_and_may_not_lie(hub: str) -> None:
    a, b = members(hub)
    part = weighted(1000, b"part")
    one = sent(a, Package(1, part, None, fl.bundle([part, b"x"])))
    real = fl.codec.encode(Package(1, bytes(1000), None, fl.bundle([bytes(1000), b"x"])))
    assert one.envelope.weight == len(real) + (0 if hub == "a" else KEYS.overhead)
    assert b.open(*one[:2]).message.number == 1
    for wrong in (-1000, -1, 1, 10**6):
        lie = msgspec.structs.replace(one.envelope, weight=one.envelope.weight + wrong)
        with pytest.raises(fl.PeerError, match="another signature"):
            b.open(lie, one.frame)
        if hub == "a":
            forged = resigned(lie, one.frame, weight=lie.weight)
            with pytest.raises(fl.PeerError, match="claims to weigh"):
                b.open(*forged)


def test_emulated_runs_count_the_bytes_of_real_ones_and_move_few(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: dict[bool, int] = {}
    counted = {}
    for emulated in (True, False):
        put = Queues.push

        def push(self: Queues, parcel, frame: bytes, emulated=emulated, put=put) -> None:
            moved[emulated] = moved.get(emulated, 0) + len(frame)
            put(self, parcel, frame)

        with monkeypatch.context() as patch:
            patch.setattr(Queues, "push", push)
            run = rig(pafed.SYSTEM, planted([0, 0, 1], 40), emulated=emulated, delta=0.0, participation=1.0, lr=0.1)
            run.rounds(2)
        counted[emulated] = run.transport.meter.message_bytes, [seen.size for seen in run.view("aggregator").seen]
    assert counted[True] == counted[False]
    assert moved[True] < moved[False] / 100
    assert np.sum(list(counted[True][0].values())) > 10_000
