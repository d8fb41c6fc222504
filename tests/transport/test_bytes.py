"""Counting, recording and holding bytes: meters, transcripts, the spool, and what a round keeps in memory."""

from __future__ import annotations

import errno
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transport_toys import KEYS, Client, Doubling, Go, Keys, Table, Up, federation

import coterie.method as fl
from coterie.transport.local import LocalTransport
from coterie.transport.transcript import Transcript

W = np.zeros(1, np.float32)


@fl.message(src="client", dst="client")
class Note(fl.Message, frozen=True):
    """Between clients."""

    text: str


class Writer(Client, role="client"):
    @fl.on(Go)
    def go(self, msg: Go, src: str) -> tuple[fl.To, ...]:
        return fl.To("y", Note("from x")), fl.To("server", Up(1, msg.w)), fl.To(self.name, Note("to myself"))

    @fl.on(Note)
    def note(self, msg: Note, src: str) -> None:
        self.state.n += 1


# -- byte counts -------------------------------------------------------------------------------------------------------


def test_bytes_are_those_of_the_codec_on_every_leg() -> None:
    """Go to x, Up back; Note from x over the hub to y, sealed (32 bytes more here), counted on both legs."""
    x, y = Writer("x"), Writer("y")
    server, transport = federation([x, y], keyring=KEYS)
    server.clients = ["x"]
    transport.drive(server.round(1), 1)
    go, up = len(fl.codec.encode(Go(1, server.state.w))), len(fl.codec.encode(Up(1, server.state.w)))
    note = len(fl.codec.encode(Note("from x"))) + 32
    meter = transport.meter
    assert meter.message_bytes == {
        "server > client Go": go,
        "client > server Up": up,
        "client > server Note": note,
        "server > client Note": note,
    }
    assert meter.bytes_up == {"server": go + note, "client": up + note}
    assert meter.bytes_down == {"client": go + note, "server": up + note}
    assert (x.state.n, y.state.n) == (1, 1)
    transport.drive(fl.post({}), 2)
    assert not transport.meter.bytes_up


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the codec encodes and decodes from now on."""
    made: list[str] = []
    encode, decode = fl.codec.encode, fl.codec.decode

    def counting_encode(msg: fl.Message) -> bytes:
        made.append(f"encode {type(msg).__name__}")
        return encode(msg)

    def counting_decode(data: bytes, *kinds: Any) -> Any:
        msg = decode(data, *kinds)
        made.append(f"decode {type(msg).__name__}")
        return msg

    monkeypatch.setattr(fl.codec, "encode", counting_encode)
    monkeypatch.setattr(fl.codec, "decode", counting_decode)
    return made


def test_a_broadcast_is_encoded_once_and_decoded_once(calls: list[str]) -> None:
    class Teller(Writer, role="client"):
        @fl.on(Go)
        def go(self, msg: Go, src: str) -> tuple[fl.To, ...]:
            note = Note("the same to all")
            return fl.To("server", Up(1, msg.w)), *(fl.To(f"c{i}", note) for i in range(1, 6))

    server, transport = federation([Teller(f"c{i}") for i in range(6)], keyring=KEYS)
    message_ = Go(1, W)

    def round_() -> fl.Steps[None]:
        yield from fl.for_each({"c0": message_}, Up, lambda *_: None)
        yield from fl.post(dict.fromkeys([f"c{i}" for i in range(1, 6)], Go(2, W)))

    transport.drive(round_(), 1)
    assert calls.count("encode Note") == 1 + 5  # one object each time: c0 tells five, and then each of the five does
    calls.clear()
    transport.drive(server.round(2), 2)
    assert calls.count("encode Go") == 6  # six objects, equal or not
    calls.clear()
    transport.drive(fl.post(dict.fromkeys(server.clients, message_)), 3)
    assert calls.count("encode Go") == 1
    assert calls.count("decode Go") == 1


# -- transcripts -------------------------------------------------------------------------------------------------------


def test_views_hold_what_was_received_and_the_hub_sees_only_the_envelope_of_what_it_relays() -> None:
    transcript = Transcript(1 << 20)
    links = Table(down={"x": 1.0, "y": 2.0}, up={"x": 4.0})
    server, transport = federation([Writer("x"), Writer("y")], keyring=KEYS, transcript=transcript, links=links)
    server.clients = ["x"]
    transport.drive(server.round(1), 1)
    transport.drive(fl.take(Up, server.note, until_s=5.0), 2)
    x, y, hub = (transcript.views[name] for name in ("x", "y", "server"))
    assert [(s.kind, s.src, s.time_s, s.round) for s in x.seen] == [("Go", "server", 1.0, 1), ("Note", "x", 1.0, 1)]
    assert [(s.kind, s.src, s.time_s, s.round) for s in y.seen] == [("Note", "x", 7.0, 1)]
    assert y.seen[0].message.text == "from x"  # type: ignore[union-attr]
    assert sorted((s.kind, s.src, s.dst, s.time_s) for s in hub.seen) == [
        ("Note", "x", "y", 5.0),
        ("Up", "x", "server", 5.0),
    ]
    relayed = next(s for s in hub.seen if s.kind == "Note")
    assert relayed.message is None
    assert relayed.size == len(fl.codec.encode(Note("from x"))) + 32
    assert hub.kinds() == {"Up"}
    assert [m.round for _, m in hub.messages(Up, 1)] == [1]
    assert list(hub.messages(Up, 2)) == []
    assert {view.party for view in transcript.of_role("client")} == {"x", "y"}


def test_a_late_message_belongs_to_the_round_it_was_asked_in() -> None:
    transcript = Transcript(1 << 20)
    server, transport = federation([Client("x", work_s=3.0)], 1.0, links=Table(), transcript=transcript)
    transport.drive(server.round(1), 1)
    transport.drive(fl.take(Up, server.note, until_s=5.0), 2)
    assert [(s.round, s.time_s) for s in transcript.views["server"].seen] == [(1, 3.0)]
    assert [(s.round, s.time_s) for s in transcript.views["x"].seen] == [(1, 0.0)]


def test_recording_stops_at_the_limit_and_says_when() -> None:
    """Each round records Go and Up of the same size; the limit has room for five of them."""
    size = len(fl.codec.encode(Go(1, np.zeros(2, np.float32))))
    transcript = Transcript(5 * size)
    server, transport = federation([Client("x")], transcript=transcript)
    for r in (1, 2, 3, 4):
        transport.drive(server.round(r), r)
        assert transcript.stopped_at == (None if r < 3 else 3)
    assert transcript.held_bytes == 5 * size
    assert [s.round for s in transcript.views["x"].seen] == [1, 2, 3]
    assert [s.round for s in transcript.views["server"].seen] == [1, 2]


# -- the spool ---------------------------------------------------------------------------------------------------------


def test_the_spool_spills_to_disk_beyond_its_limit_and_cleans_up(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    spool = fl.Spool(100)
    small, large = b"s" * 60, b"l" * 60
    tickets = [spool.put(small), spool.put(large), spool.put(b"x" * 40)]
    assert spool.held_bytes == 100
    files = list(tmp_path.rglob("*.bin"))
    assert [f.stat().st_size for f in files] == [60]
    assert files[0].parent.stat().st_mode & 0o077 == 0
    assert spool.peek(tickets[1]) == large
    assert [spool.take(t) for t in tickets] == [small, large, b"x" * 40]
    assert spool.held_bytes == 0
    assert list(tmp_path.rglob("*.bin")) == []
    spool.put(b"y" * 200)
    spool.close()
    assert list(tmp_path.iterdir()) == []


def test_a_forgotten_spool_leaves_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    spool = fl.Spool(0)
    spool.put(b"y" * 200)
    assert list(tmp_path.iterdir()) != []
    with pytest.warns(ResourceWarning):
        del spool
    assert list(tmp_path.iterdir()) == []


def test_a_broadcast_is_held_once_and_written_once(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    frame = bytes(1000)
    for limit, held, files in ((1000, 1000, 0), (999, 0, 1)):
        spool = fl.Spool(limit)
        tickets = [spool.put(frame) for _ in range(50)]
        assert spool.held_bytes == held
        assert len(list(tmp_path.rglob("*.bin"))) == files
        for ticket in tickets[:-1]:
            spool.drop(ticket)
        assert spool.take(tickets[-1]) == frame
        assert spool.held_bytes == 0
        assert list(tmp_path.rglob("*.bin")) == []
        again = spool.put(frame)
        assert spool.take(again) == frame
        spool.close()


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=40), st.integers(0, 60))
def test_the_spool_gives_back_what_was_put_whatever_the_order(work: list[tuple[int, bool]], limit: int) -> None:
    """Against a dict. Six objects of different sizes, put again and again and taken in any order."""
    objects = [bytes([i]) * (7 * i) for i in range(6)]
    spool, twin = fl.Spool(limit), {}
    for index, takes in work:
        if takes and twin:
            ticket = sorted(twin)[index % len(twin)]
            assert spool.take(ticket) == twin.pop(ticket)
        else:
            twin[spool.put(objects[index])] = objects[index]
        assert spool.held_bytes <= limit
    assert {ticket: spool.peek(ticket) for ticket in twin} == twin
    assert {ticket: spool.size(ticket) for ticket in twin} == {ticket: len(data) for ticket, data in twin.items()}
    spool.close()


def test_a_full_disk_is_a_run_error_that_says_what_to_do(monkeypatch: Any) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(fl.RunError, match=r"10 bytes .* No space left on device; make room"):
        fl.Spool(0).put(bytes(10))


# -- nobody holds everybody --------------------------------------------------------------------------------------------


def peak(transport: LocalTransport, steps: fl.Steps[Any]) -> int:
    """Bytes of memory that a round takes at most."""
    tracemalloc.start()
    try:
        transport.drive(steps, 1)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        transport.close()


def test_folding_many_answers_holds_few() -> None:
    """60 clients send 1 MB each; the spool may hold 4 MB, and a chunk of 4 is worked on at a time."""
    size, clients = 250_000, 60

    class Big(Client, role="client"):
        @fl.on(Go)
        def go(self, msg: Go, src: str) -> Up:
            return Up(1, np.full(size, self.plus, np.float32))

    total = np.zeros(size, np.float32)
    server, transport = federation(
        [Big(f"c{i}", i) for i in range(clients)], effects=Doubling(4), links=Table(), spool_bytes=4 << 20
    )

    def fold(name: str, up: Up) -> None:
        np.add(total, up.w, out=total)

    server.note = fold  # type: ignore[method-assign]
    assert peak(transport, server.round(1)) < 28 << 20
    assert total[0] == sum(range(clients))


def test_a_broadcast_of_a_large_model_costs_one() -> None:
    """4 MB to each of 30 clients: the model, its frame and what encoding and decoding need, not 120 MB."""

    class Silent(Client, role="client"):
        @fl.on(Go)
        def go(self, msg: Go, src: str) -> None:
            self.state.n += 1

    clients = [Silent(f"c{i}") for i in range(30)]
    server, transport = federation(clients, effects=Doubling(4), spool_bytes=8 << 20)
    go = Go(1, np.zeros(1_000_000, np.float32))
    assert peak(transport, fl.post(dict.fromkeys(server.clients, go))) < 24 << 20
    assert sum(c.state.n for c in clients) == 30


def test_each_message_is_verified_and_decoded_once_though_its_cost_is_asked_before(calls: list[str]) -> None:
    """Five clients with work of different lengths, and six requests each: their turn is looked for again and again."""

    class Counting(Keys):
        verified = 0

        def verify(self, *args: Any) -> None:
            self.verified += 1
            super().verify(*args)

    keys = Counting()
    clients = [Client(f"c{i}", i, 1.0 + i) for i in range(5)]
    server, transport = federation(clients, links=Table(), keyring=keys)

    def steps() -> fl.Steps[None]:
        yield from fl.post({(c.name, n): fl.To(c.name, Go(n, W + n)) for c in clients for n in range(6)})
        yield from fl.take(Up, server.note, until_s=100.0)

    transport.drive(steps(), 1)
    assert len(server.state.notes) == 30
    assert (calls.count("decode Go"), calls.count("decode Up")) == (30, 30)
    assert keys.verified == 60
    transport.close()


def test_envelopes_are_metered_on_their_own_and_take_no_time() -> None:
    """Two requests and two answers: what they weigh is the payloads', and the envelopes' bytes come on top."""
    server, transport = federation([Client("x"), Client("y")])
    sizes: list[int] = []

    def tap(envelope: Any, frame: bytes) -> list[bytes]:
        assert envelope.weight == len(frame)
        sizes.append(len(msgspec.msgpack.encode(envelope)))
        return [frame]

    transport.intercept = tap
    transport.drive(server.round(1), 1)
    assert transport.meter.envelope_bytes.total() == sum(sizes)
    assert set(transport.meter.envelope_bytes) == {"server", "client"}
    assert transport.meter.message_bytes["server > client Go"] == 2 * len(
        fl.codec.encode(Go(1, np.zeros(2, np.float32)))
    )
    assert transport.clock_s == 0.0
