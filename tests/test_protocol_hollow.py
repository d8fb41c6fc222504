"""Hollow bytes weigh what the real thing would, through bundles, messages, seals and the wire, and can't lie."""

from __future__ import annotations

import struct
from contextlib import suppress

import numpy as np
import pytest
from federation import planted, rig
from hypothesis import given
from hypothesis import strategies as st

from coterie.crypto.roster import new_identity
from coterie.protocol import codec
from coterie.protocol.bundle import bundle, unbundle
from coterie.protocol.errors import DecodeError, PeerError
from coterie.protocol.hollow import content, hollow, weighs
from coterie.protocol.messages import Message, message
from coterie.protocol.randomness import Randomness
from coterie.runs.sealer import PartySealer
from coterie.systems import pafed
from coterie.transport.local import LocalTransport


@message(src="a", dst="b")
class Parcel(Message, frozen=True):
    """Two byte strings, one of them optional."""

    number: int
    first: bytes
    second: bytes | None = None


SEALER = PartySealer({name: new_identity(name, Randomness(0, emulated=False)) for name in ("a", "b")})


class Twin:
    """A byte string beside the real one that it stands for; as all that travels, neither begins as hollow bytes do."""

    def __init__(self, held: bytes, lacks: int) -> None:
        self.real = b"." + held + bytes(lacks)
        self.data = hollow(len(self.real), b"." + held)


LACKS = [0, 0, 1, 15, 16, 17, 40, 100, 215, 216, 255, 300, 65_490, 65_530, 65_536, 99_999]
twins = st.builds(Twin, st.binary(max_size=40), st.sampled_from(LACKS))


@given(twins)
def test_it_weighs_what_it_stands_for(twin: Twin) -> None:
    assert weighs(twin.data) == weighs(twin.real) == len(twin.real)
    assert twin.real.startswith(bytes(content(twin.data)))
    assert len(twin.data) <= len(content(twin.data)) + 16


@given(st.lists(twins, max_size=4))
def test_a_bundle_weighs_as_the_bundle_of_the_real_ones(parts: list[Twin]) -> None:
    data = bundle([twin.data for twin in parts])
    assert weighs(data) == len(bundle([twin.real for twin in parts]))
    assert unbundle(data, len(parts)) == [twin.data for twin in parts]


@given(twins, st.none() | twins)
def test_a_message_weighs_as_the_message_of_the_real_ones_sealed_too(first: Twin, second: Twin | None) -> None:
    """To the byte, whatever msgpack writes for a length."""
    twin = Parcel(7, first.data, second and second.data)
    frame, real = codec.encode(twin), codec.encode(Parcel(7, first.real, second and second.real))
    assert weighs(frame) == len(real)
    back = codec.decode(frame, Parcel)
    assert (back.number, back.first, back.second) == (7, twin.first, twin.second)
    sealed = SEALER.seal("a", "b", frame)
    assert weighs(sealed) == len(SEALER.seal("a", "b", real))
    assert SEALER.open("a", "b", sealed) == frame


def claiming(weight: int, data: bytes) -> bytes:
    return data[:8] + struct.pack("<Q", weight) + data[16:]


@pytest.mark.parametrize("weight", [6, 2**32, 2**64 - 1])
def test_a_weight_beyond_all_measure_or_of_what_is_there_anyway_is_refused(weight: int) -> None:
    """So there is one form of everything."""
    data = claiming(weight, hollow(100, b"held.."))
    assert weighs(data) <= len(data)
    for read in (content, lambda d: unbundle(d, 1), lambda d: codec.decode(d, Parcel)):
        with pytest.raises(DecodeError, match="claim to weigh"):
            read(data)


def test_no_message_is_longer_than_msgpack_can_write() -> None:
    half = hollow(2**31, b"")
    assert weighs(codec.encode(Parcel(1, half))) > 2**31
    with pytest.raises(DecodeError, match="at most 4294967295"):
        codec.encode(Parcel(1, half, half))


@pytest.mark.parametrize("part", [b"plain", hollow(1000, b"hollow")])
def test_sealed_bytes_that_are_changed_outside_the_seal_do_not_open(part: bytes) -> None:
    """Otherwise a captured frame could come a second time as another one."""
    frame = codec.encode(Parcel(1, part))
    sealed = SEALER.seal("a", "b", frame)
    inside = content(sealed)
    assert SEALER.open("a", "b", sealed) == frame
    for claim in (0, 1, len(inside) - 1, len(inside), len(inside) + 1, weighs(sealed) - 1, weighs(sealed) + 1, 2**32):
        if claim != weighs(sealed) or part == b"plain":
            with pytest.raises(PeerError):
                SEALER.open("a", "b", struct.pack("<8sQ", hollow(1000, b"")[:8], claim) + bytes(inside))


def test_a_bundle_or_message_weighs_what_its_parts_do() -> None:
    part = hollow(1000, b"part")
    for wrong in (-1000, -1, 1, 10**6):
        data, frame = bundle([part, b"x"]), codec.encode(Parcel(1, part))
        with pytest.raises(DecodeError, match="its parts don't"):
            unbundle(claiming(weighs(data) + wrong, data), 2)
        with pytest.raises(DecodeError, match="its fields don't"):
            codec.decode(claiming(weighs(frame) + wrong, frame), Parcel)
    bare = content(codec.encode(Parcel(1, part))).tobytes()  # nothing says outside what it weighs
    with pytest.raises(DecodeError, match="its fields don't"):
        codec.decode(bare, Parcel)


@given(st.binary(max_size=60))
def test_any_bytes(noise: bytes) -> None:
    for data in (noise, hollow(100, b"")[:8] + noise):
        assert weighs(data) >= 0
        for read in (lambda d: codec.decode(d, Parcel), lambda d: unbundle(d, 2), content):
            with suppress(DecodeError):
                read(data)


def test_emulated_runs_count_the_bytes_of_real_ones_and_move_few(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: dict[bool, int] = {}
    counted = {}
    for emulated in (True, False):
        put = LocalTransport._enqueue

        def enqueue(self: LocalTransport, envelope, frame: bytes, emulated=emulated, put=put) -> None:
            moved[emulated] = moved.get(emulated, 0) + len(frame)
            put(self, envelope, frame)

        with monkeypatch.context() as patch:
            patch.setattr(LocalTransport, "_enqueue", enqueue)
            run = rig(pafed.SYSTEM, planted([0, 0, 1], 40), emulated=emulated, delta=0.0, participation=1.0, lr=0.1)
            run.rounds(2)
        counted[emulated] = run.transport.meter.message_bytes, [seen.size for seen in run.view("aggregator").seen]
    assert counted[True] == counted[False]
    assert moved[True] < moved[False] / 100
    assert np.sum(list(counted[True][0].values())) > 10_000
