"""What a checkpoint's files are: private, and refused with a clear error where they were damaged, cut or made up."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import struct
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coterie.protocol import state
from coterie.protocol.errors import UserError
from coterie.runs import Interrupted, RunConfig, checkpoint, folder, run
from coterie.runs.checkpoint import CHECKPOINT
from coterie.runs.experiment import Experiment, build

TESTS = Path(__file__).parent
TOY = RunConfig(
    "toy_federation:SYSTEM", clients=6, rounds=4, devices="mobile", model="linear", checkpoint_every=1, record=True
)
MAGIC = b"coterie checkpoint 3\n"
SLACK = 4 << 20  # bytes that reading may take beyond a few times the file


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def stopping(at: int) -> Callable[[dict[str, Any]], None]:
    def on_round(line: dict[str, Any]) -> None:
        if line["round"] == at:
            raise KeyboardInterrupt

    return on_round


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted after round 2 of 4, with messages under way."""
    sys.path.insert(0, str(TESTS))
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("half") / "run"
    with pytest.raises(Interrupted):
        run(replace(TOY, out=str(out)), stopping(2))
    return out


@pytest.fixture(scope="module")
def fresh(half: Path) -> Iterator[Experiment]:
    """The same work before its first round; reading a checkpoint changes nothing of it."""
    made = build(replace(TOY, out=str(half)))
    yield made
    made.close()


@pytest.fixture
def copy(half: Path, tmp_path: Path) -> Path:
    shutil.copytree(half, tmp_path / "run")
    return tmp_path / "run"


# -- private -----------------------------------------------------------------------------------------------------------


def test_every_file_of_a_checkpoint_is_this_users_alone(half: Path) -> None:
    for name in ("checkpoint", "secrets"):
        assert mode(half / name) == 0o700
        assert {mode(path) for path in (half / name).iterdir()} == {0o600}
    assert mode(half / "views.bin") == 0o600


def test_what_is_half_written_is_private_too_and_goes_with_the_next_checkpoint(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older checkpoint may be open to all, and a killed process leaves the file that it was at."""
    (copy / "checkpoint").chmod(0o755)
    (copy / CHECKPOINT).chmod(0o644)
    (copy / "checkpoint" / ".checkpoint.bin.x1").write_bytes(b"half")
    (copy / "secrets" / ".client-1.2.bin.x1").write_bytes(b"half")
    seen: set[int] = set()
    real = os.fsync

    def watched(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}")
        if path.exists() and "checkpoint.bin" in os.readlink(path):
            seen.add(stat.S_IMODE(os.fstat(descriptor).st_mode))
        real(descriptor)

    monkeypatch.setattr(folder.os, "fsync", watched)
    run(replace(TOY, out=str(copy)), resume=True)
    assert seen <= {0o600}
    assert [path.name for path in (copy / "checkpoint").iterdir()] == ["checkpoint.bin"]
    assert not [path for path in (copy / "secrets").iterdir() if path.name.startswith(".")]
    test_every_file_of_a_checkpoint_is_this_users_alone(copy)


def test_it_holds_models_in_the_plain(half: Path) -> None:
    """Why it is private: the weights that client/0 ended its training with lie in it as they are."""
    last = parts(half)[1]
    made = build(replace(TOY, out=str(half)))
    states = state.load(last, {name: type(party.state) for name, party in made.federation.parties.items()})
    made.close()
    model = next(s.last for name, s in sorted(states.items()) if name.startswith("client/") and s.last is not None)
    assert model.astype("<f4").tobytes() in (half / CHECKPOINT).read_bytes()


@pytest.mark.parametrize("name", ["checkpoint", "secrets"])
def test_a_folder_behind_a_symbolic_link_is_neither_read_nor_made_private_nor_emptied(copy: Path, name: str) -> None:
    """The crafted link leads to a folder with the very files that a resumed run would read there."""
    victim = copy.parent / "victim"
    (copy / name).rename(victim)
    (victim / "letters.txt").write_text("mine")
    (victim / "client-0.1.bin").write_bytes(b"mine")
    victim.chmod(0o755)
    (copy / name).symlink_to(victim)
    held = {path.name: path.read_bytes() for path in victim.iterdir()}
    with pytest.raises(UserError, match=rf"{name} is a symbolic link"):
        run(replace(TOY, out=str(copy)), resume=True)
    assert {path.name: path.read_bytes() for path in victim.iterdir()} == held
    assert mode(victim) == 0o755


@pytest.mark.parametrize("name", ["checkpoint", "secrets"])
def test_a_checkpoint_is_not_written_through_a_symbolic_link_either(copy: Path, name: str) -> None:
    """Without a checkpoint to read, the run starts anew; a link that leads nowhere yet is one, too."""
    victim = copy.parent / "victim"
    shutil.rmtree(copy / "checkpoint")
    shutil.rmtree(copy / "secrets")
    made = build(replace(TOY, out=str(copy)))
    saver = checkpoint.Saver(copy, made)
    (copy / name).symlink_to(victim)
    with pytest.raises(UserError, match=rf"{name} is a symbolic link"):
        saver.save(0, 0, 0, "{}")
    assert not victim.exists()
    made.close()


@pytest.mark.parametrize("name", ["checkpoint", "secrets"])
def test_another_users_folder_is_refused(copy: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.lstat

    def others(path: Path) -> os.stat_result:
        found = real(path)
        return os.stat_result((*found[:4], os.geteuid() + 1, *found[5:10])) if path == copy / name else found

    monkeypatch.setattr(Path, "lstat", others)
    with pytest.raises(UserError, match=rf"{name} belongs to another user"):
        run(replace(TOY, out=str(copy)), resume=True)


def test_no_secret_but_an_old_one_is_deleted(copy: Path) -> None:
    strangers = ["letters.txt", "client-0.bin", "nobody.1.bin", "client-0.1.bin.old", "sealing.x.bin"]
    for name in (*strangers, "client-0.977.bin", "sealing.977.bin"):
        (copy / "secrets" / name).write_bytes(b"here")
    run(replace(TOY, out=str(copy)), resume=True)
    left = {path.name for path in (copy / "secrets").iterdir()}
    assert left >= set(strangers)
    assert "sealing.977.bin" not in left


@pytest.mark.parametrize("name", ["metrics.jsonl", "views.bin"])
def test_a_growing_file_that_is_a_symbolic_link_is_refused_and_what_is_behind_it_kept(copy: Path, name: str) -> None:
    """A resumed run without a checkpoint would begin by cutting it to nothing."""
    victim = copy.parent / "letters.txt"
    victim.write_text("mine")
    shutil.rmtree(copy / "checkpoint")
    (copy / name).unlink()
    (copy / name).symlink_to(victim)
    with pytest.raises(UserError, match=rf"{name} is a symbolic link"):
        run(replace(TOY, out=str(copy)), resume=True)
    assert victim.read_text() == "mine"


# -- damaged, cut, made up ---------------------------------------------------------------------------------------------


def parts(out: Path) -> tuple[bytes, bytes, bytes]:
    """Head, states and frames."""
    body = (out / CHECKPOINT).read_bytes()[len(MAGIC) : -32]
    (length,) = struct.unpack_from("<Q", body)
    head, body = body[8 : 8 + length], body[8 + length :]
    (length,) = struct.unpack_from("<Q", body)
    return head, body[8 : 8 + length], body[8 + length :]


def sealed(body: bytes) -> bytes:
    """A file of this body whose digest is right."""
    return MAGIC + body + hashlib.blake2b(body, digest_size=32).digest()


def joined(head: bytes, states: bytes, frames: bytes) -> bytes:
    return struct.pack("<Q", len(head)) + head + struct.pack("<Q", len(states)) + states + frames


def content(read: checkpoint.Checkpoint | None) -> tuple[Any, ...]:
    """All that a run would go on with."""
    assert read is not None
    rest = (read.round, read.metrics_bytes, read.views_bytes, read.views_stopped, read.set_up, read.sealing)
    return state.dump(read.states), state.dump(read.secrets), msgspec.msgpack.encode(read.snapshot), *read.frames, *rest


@pytest.fixture(scope="module")
def place(half: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy whose checkpoint is replaced again and again."""
    out = tmp_path_factory.mktemp("mutated") / "run"
    shutil.copytree(half, out)
    return out


edits = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "drop", "insert", "length"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 255),
        st.integers(1, 64),
    ),
    min_size=1,
    max_size=3,
)


def edited(data: bytes, changes: list[tuple[str, float, int, int]]) -> bytes:
    """Bytes changed, cut off, taken out or put in, somewhere; or eight of them made a length of their own."""
    made = bytearray(data)
    for what, where, value, count in changes:
        at = int(where * len(made))
        if what == "flip":
            made[at : at + 1] = bytes([value])
        elif what == "cut":
            del made[at:]
        elif what == "drop":
            del made[at : at + count]
        elif what == "insert":
            made[at:at] = bytes([value]) * count
        else:
            made[at : at + 8] = struct.pack("<Q", max(0, (1 << count % 64) - value % 3))
    return bytes(made)


def outcome(out: Path, fresh: Experiment, data: bytes) -> tuple[Any, ...] | None:
    """What is read of this file; None where it is refused as it should be, at a cost that the file's size bounds."""
    (out / CHECKPOINT).write_bytes(data)
    tracemalloc.start()
    try:
        return content(checkpoint.read(out, fresh))
    except UserError:
        return None
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 20 * len(data) + SLACK


@settings(max_examples=150)
@given(changes=edits)
@example(changes=[("cut", 0.0, 0, 1)])
@example(changes=[("cut", 0.999, 0, 1)])
def test_damage_is_refused_or_changes_nothing(half: Path, fresh: Experiment, place: Path, changes: Any) -> None:
    whole = (half / CHECKPOINT).read_bytes()
    damaged = edited(whole, changes)
    found = outcome(place, fresh, damaged)
    assert (found is None) == (damaged != whole)


@settings(max_examples=200)
@given(part=st.sampled_from(["body", "head", "states", "frames"]), changes=edits)
def test_damage_behind_a_right_digest_gives_an_error_or_a_checkpoint_that_fits(
    half: Path, fresh: Experiment, place: Path, part: str, changes: Any
) -> None:
    """The states are what they were: they have digests of their own. A frame or a number may be another."""
    head, states, frames = parts(half)
    if part == "body":
        body = edited(joined(head, states, frames), changes)
    else:
        pieces = {"head": head, "states": states, "frames": frames}
        body = joined(*({**pieces, part: edited(pieces[part], changes)}).values())
    found, usual = outcome(place, fresh, sealed(body)), outcome(place, fresh, (half / CHECKPOINT).read_bytes())
    if found is not None and usual is not None:
        assert found[0] == usual[0]
        assert found[1] == usual[1]
        assert sum(map(len, found[3:-6])) == len(frames)


def rewritten(half: Path, change: Callable[[dict[str, Any]], None]) -> bytes:
    """The checkpoint with another head, and a right digest."""
    head, states, frames = parts(half)
    fields = msgspec.msgpack.decode(head)
    change(fields)
    return sealed(joined(msgspec.msgpack.encode(fields), states, frames))


def put(value: Any, *keys: Any) -> Callable[[dict[str, Any]], None]:
    """Puts a value in a place of the head; ``...`` stands for the first key there is."""

    def change(fields: Any) -> None:
        for key in keys[:-1]:
            fields = fields[next(iter(fields))] if key is ... else fields[key]
        fields[next(iter(fields)) if keys[-1] is ... else keys[-1]] = value

    return change


def moved(fields: dict[str, Any]) -> None:
    """Cuts one frame short and makes another longer, so that their sum is right and one of them negative."""
    sizes = fields["snapshot"]["sizes"]
    sizes[0], sizes[1] = -1, sizes[0] + sizes[1] + 1


HEADS: list[tuple[str, Callable[[dict[str, Any]], None]]] = [
    ("a size beyond the file", put(1 << 60, "snapshot", "sizes", 0)),
    ("a size too small", put(0, "snapshot", "sizes", 0)),
    ("a negative size", moved),
    ("a ticket of no frame", put(1 << 40, "snapshot", "parcels", 0, 4)),
    ("a negative ticket", put(-1, "snapshot", "parcels", 0, 4)),
    ("a stranger's message", put("nobody", "snapshot", "parcels", 0, 0, 0)),
    ("a message to a stranger", put("nobody", "snapshot", "parcels", 0, 0, 1)),
    ("a message that arrives never", put(float("inf"), "snapshot", "parcels", 0, 2)),
    ("a negative number", put(-5, "snapshot", "parcels", 0, 0, 7)),
    ("no time", put(float("nan"), "snapshot", "clock_s")),
    ("a number that can't grow", put((1 << 64) - 1, "snapshot", "numbers", ..., "sent")),
    ("a stranger at work", put({"nobody": [0.0, 0]}, "snapshot", "busy")),
    ("a link from nowhere", put([["nobody", "hub", [0.0, 0]]], "snapshot", "links")),
    ("a message taken from nobody known", put({"nobody": 1}, "snapshot", "numbers", ..., "taken")),
    ("a round before the first", put(-1, "round")),
    ("another round", put(1, "round")),
    ("a round that the metrics lack", put(3, "round")),
    ("a negative length", put(-1, "metrics_bytes")),
    ("a length beyond the file", put(1 << 62, "metrics_bytes")),
    ("a length inside a line", put(50, "metrics_bytes")),
    ("negative views", put(-1, "views_bytes")),
    ("a set-up that is none", put("[]", "set_up")),
    ("a set-up that is no JSON", put("{", "set_up")),
    ("a secret of no round", put(-1, "secrets", ...)),
    ("a secret that is not there", put(99, "secrets", ...)),
    ("a config that is none", put("system = 3", "config")),
    ("envelopes that are none", put([1, 2], "snapshot", "parcels")),
]


@pytest.mark.parametrize(("name", "change"), HEADS, ids=[name for name, _ in HEADS])
def test_a_head_that_lies_is_refused(half: Path, copy: Path, name: str, change: Any) -> None:
    before = (copy / "metrics.jsonl").read_bytes()
    (copy / CHECKPOINT).write_bytes(rewritten(half, change))
    tracemalloc.start()
    with pytest.raises(UserError):
        run(replace(TOY, out=str(copy)), resume=True)
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()
    assert (copy / "metrics.jsonl").read_bytes() == before, "and nothing was cut off on its word"


def test_views_that_are_shorter_than_the_head_says_are_refused(half: Path, copy: Path) -> None:
    (copy / CHECKPOINT).write_bytes(rewritten(half, put(1 << 62, "views_bytes")))
    with pytest.raises(UserError, match=r"views\.bin is shorter"):
        run(replace(TOY, out=str(copy)), resume=True)


@pytest.mark.parametrize("length", [0, 1, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("part", ["head", "states"])
def test_a_part_longer_than_the_file_is_refused(half: Path, copy: Path, part: str, length: int) -> None:
    head, states, frames = parts(half)
    size = struct.pack("<Q", length)
    whole = joined(head, states, frames)
    at = 0 if part == "head" else 8 + len(head)
    (copy / CHECKPOINT).write_bytes(sealed(whole[:at] + size + whole[at + 8 :]))
    with pytest.raises(UserError, match=r"checkpoint\.bin"):
        run(replace(TOY, out=str(copy)), resume=True)


@pytest.mark.parametrize("left", [0, 1, 7, 8, 9, 40, 60])
def test_a_file_that_ends_early_is_refused_even_with_a_right_digest(half: Path, copy: Path, left: int) -> None:
    """Up to the end of the frames: a cut frame would give other numbers without a word."""
    body = (half / CHECKPOINT).read_bytes()[len(MAGIC) : -32]
    for kept in (left, len(body) - 1 - left):
        (copy / CHECKPOINT).write_bytes(sealed(body[:kept]))
        with pytest.raises(UserError, match=r"checkpoint\.bin"):
            run(replace(TOY, out=str(copy)), resume=True)


def forged(half: Path, change: Callable[[dict[bytes, list[Any]]], None]) -> bytes:
    """States with other arrays, every digest but the arrays' own put right."""
    head, states, frames = parts(half)
    fields = msgspec.msgpack.decode(states[16:])
    change(fields["arrays"])
    body = msgspec.msgpack.encode(fields)
    return sealed(joined(head, hashlib.blake2b(body, digest_size=16).digest() + body, frames))


def of_first(**fields: Any) -> Callable[[dict[bytes, list[Any]]], None]:
    """Changes dtype, shape or data of the first array."""

    def change(arrays: dict[bytes, list[Any]]) -> None:
        name = next(iter(arrays))
        dtype, shape, data = arrays[name]
        arrays[name] = list({"dtype": dtype, "shape": shape, "data": data, **fields}.values())

    return change


ARRAYS: list[tuple[str, Callable[[dict[bytes, list[Any]]], None], str]] = [
    ("a shape beyond all memory", of_first(shape=[1 << 62]), "shape"),
    ("a shape whose size overflows", of_first(shape=[1 << 32, 1 << 32]), "shape"),
    ("a negative shape", of_first(shape=[-1]), "shape"),
    ("two negative sides", of_first(shape=[-1, -650]), "shape"),
    ("a shape of nothing", of_first(shape=[0, 1 << 62], data=b""), "not the one|shape"),
    ("another dtype", of_first(dtype="<f8"), "shape|not the one"),
    ("objects", of_first(dtype="|O"), "an array of"),
    ("other data", of_first(data=np.zeros(650, "<f4").tobytes(), shape=[650], dtype="<f4"), "not the one"),
]


@pytest.mark.parametrize(("name", "change", "words"), ARRAYS, ids=[name for name, *_ in ARRAYS])
def test_arrays_that_are_not_what_they_say_are_refused(
    half: Path, copy: Path, name: str, change: Any, words: str
) -> None:
    (copy / CHECKPOINT).write_bytes(forged(half, change))
    with pytest.raises(UserError, match=words):
        run(replace(TOY, out=str(copy)), resume=True)


def test_a_well_made_state_with_a_model_of_another_shape_is_refused(half: Path, copy: Path, fresh: Experiment) -> None:
    head, states, frames = parts(half)
    kinds = {name: type(party.state) for name, party in fresh.federation.parties.items()}
    loaded = state.load(states, kinds)
    loaded["hub"].weights = np.zeros(7, np.float32)
    (copy / CHECKPOINT).write_bytes(sealed(joined(head, state.dump(loaded), frames)))
    with pytest.raises(UserError, match=r"a model of shape \(7,\)"):
        run(replace(TOY, out=str(copy)), resume=True)


def test_a_sealing_key_that_is_none_is_refused(copy: Path) -> None:
    file = next((copy / "secrets").glob("sealing.*.bin"))
    keys = msgspec.msgpack.decode(file.read_bytes()[32:], type=dict[str, bytes])
    body = msgspec.msgpack.encode({**keys, "hub": b"short"})
    file.write_bytes(hashlib.blake2b(body, digest_size=32).digest() + body)
    with pytest.raises(UserError, match=r"sealing keys .* cannot be read"):
        run(replace(TOY, out=str(copy)), resume=True)
