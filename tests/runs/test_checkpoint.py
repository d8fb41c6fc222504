"""What a checkpoint's files are: private, and refused with a clear error where they were damaged, cut or made up."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import checkpoint_parts as rig
import msgspec
import numpy as np
import pytest
import toy_federation
from hypothesis import example, given
from hypothesis import strategies as st
from kept_parties import bytes_of, head, kept, log_of

import coterie.method as fl
from coterie.crypto.roster import sign_roster
from coterie.crypto.signing import SigningKey
from coterie.record import files
from coterie.runs import RunConfig, build, checkpoint, resolve, run
from coterie.runs.checkpoint import CHECKPOINT, read_parties

SLACK = 4 << 20  # bytes that reading may take beyond a few times the file


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted after round 2 of 4, with messages under way."""
    return rig.half_of(tmp_path_factory.mktemp("half") / "run")


@pytest.fixture(scope="module")
def resolved(half: Path) -> RunConfig:
    """The run's options as its checkpoint is compared with."""
    return resolve(rig.TOY)


@pytest.fixture
def copy(half: Path, tmp_path: Path) -> Path:
    shutil.copytree(half, tmp_path / "run")
    return tmp_path / "run"


# -- private -----------------------------------------------------------------------------------------------------------


def test_every_file_of_a_checkpoint_is_this_users_alone(half: Path) -> None:
    assert rig.mode(half / "checkpoint") == 0o700
    assert {path.name: rig.mode(path) for path in (half / "checkpoint").iterdir()} == {
        "checkpoint.bin": 0o600,
        log_of(half).name: 0o600,
    }
    assert rig.mode(half / "views.bin") == 0o600


def test_what_is_half_written_is_private_too_and_goes_with_the_next_checkpoint(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older checkpoint may be open to all, and a killed process leaves the file that it was at."""
    (copy / "checkpoint").chmod(0o755)
    (copy / CHECKPOINT).chmod(0o644)
    (copy / "checkpoint" / ".checkpoint.bin.x1").write_bytes(b"half")
    (copy / "checkpoint" / "parties.977.bin").write_bytes(b"half")
    with log_of(copy).open("ab") as log:
        log.write(b"half")
    seen: set[int] = set()
    real = os.fsync

    def watched(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}")
        if path.exists() and "checkpoint.bin" in os.readlink(path):
            seen.add(stat.S_IMODE(os.fstat(descriptor).st_mode))
        real(descriptor)

    monkeypatch.setattr(files.os, "fsync", watched)
    run(replace(rig.TOY, out=str(copy)), resume=True)
    assert seen <= {0o600}
    test_every_file_of_a_checkpoint_is_this_users_alone(copy)


def test_a_party_is_digested_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With real ciphers its state has megabytes."""
    made: list[bytes] = []
    usual = files.digest
    monkeypatch.setattr(files, "digest", lambda data: made.append(data) or usual(data))
    config = RunConfig("fedavg", clients=3, rounds=1, settings={"max_epochs": 1}, out=str(tmp_path / "run"))
    run(config)
    assert len(made) == len(head(tmp_path / "run").parties) == 4


def test_it_holds_models_in_the_plain(half: Path) -> None:
    """Why it is private: the weights that a client ended its training with lie there as they are."""
    models = {}
    for name in (f"client/{i}" for i in range(rig.TOY.clients or 0)):
        models[name] = rig.state_of(half, name).last
        if models[name] is not None:
            assert models[name].astype("<f4").tobytes() in bytes_of(half, name)
    assert any(model is not None for model in models.values())


def test_a_folder_behind_a_symbolic_link_is_neither_read_nor_made_private_nor_emptied(copy: Path) -> None:
    """The crafted link leads to a folder with the very files that a resumed run would read there."""
    victim = copy.parent / "victim"
    (copy / "checkpoint").rename(victim)
    (victim / "letters.txt").write_text("mine")
    (victim / "parties.977.bin").write_bytes(b"mine")
    victim.chmod(0o755)
    (copy / "checkpoint").symlink_to(victim)
    held = {path.name: path.read_bytes() for path in victim.iterdir()}
    with pytest.raises(fl.UserError, match=r"checkpoint is a symbolic link"):
        run(replace(rig.TOY, out=str(copy)), resume=True)
    assert {path.name: path.read_bytes() for path in victim.iterdir()} == held
    assert rig.mode(victim) == 0o755


def test_a_checkpoint_is_not_written_through_a_symbolic_link_either(copy: Path) -> None:
    """Without a checkpoint to read, the run starts anew; a link that leads nowhere yet is one, too."""
    victim = copy.parent / "victim"
    shutil.rmtree(copy / "checkpoint")
    made = build(replace(rig.TOY, out=str(copy)))
    saver = checkpoint.Saver(copy, made)
    (copy / "checkpoint").symlink_to(victim)
    with pytest.raises(fl.UserError, match=r"checkpoint is a symbolic link"):
        saver.save(0, 0, 0, {})
    assert not victim.exists()
    made.close()


@pytest.mark.parametrize("made", ["a pipe", "a link to endless bytes", "a link to the very file"])
@pytest.mark.parametrize("name", ["checkpoint/checkpoint.bin", "checkpoint/parties.*.bin", "metrics.jsonl"])
def test_what_is_no_file_of_the_folder_is_not_read(copy: Path, name: str, made: str) -> None:
    """It would be waited for, or read, for ever; or be another file of this user's."""
    (path,) = copy.glob(name)
    moved = path.rename(copy.parent / "elsewhere")
    if made == "a pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if "endless" in made else moved)
    with pytest.raises(fl.UserError, match="no regular file" if made == "a pipe" else "symbolic link"):
        run(replace(rig.TOY, out=str(copy)), resume=True)


def test_another_users_folder_is_refused(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.lstat

    def others(path: Path) -> os.stat_result:
        found = real(path)
        return os.stat_result((*found[:4], os.geteuid() + 1, *found[5:10])) if path == copy / "checkpoint" else found

    monkeypatch.setattr(Path, "lstat", others)
    with pytest.raises(fl.UserError, match="checkpoint belongs to another user"):
        run(replace(rig.TOY, out=str(copy)), resume=True)


def test_no_file_but_an_old_log_is_deleted(copy: Path) -> None:
    strangers = ["letters.txt", "parties.bin", "parties.1.bin.old", "parties.x.bin", "other.1.bin"]
    for name in (*strangers, "parties.977.bin"):
        (copy / "checkpoint" / name).write_bytes(b"here")
    run(replace(rig.TOY, out=str(copy)), resume=True)
    left = {path.name for path in (copy / "checkpoint").iterdir()}
    assert left == {*strangers, "checkpoint.bin", log_of(copy).name}


@pytest.mark.parametrize("name", ["metrics.jsonl", "views.bin"])
def test_a_growing_file_that_is_a_symbolic_link_is_refused_and_what_is_behind_it_kept(copy: Path, name: str) -> None:
    """A resumed run without a checkpoint would begin by cutting it to nothing."""
    victim = copy.parent / "letters.txt"
    victim.write_text("mine")
    shutil.rmtree(copy / "checkpoint")
    (copy / name).unlink()
    (copy / name).symlink_to(victim)
    with pytest.raises(fl.UserError, match=rf"{name} is a symbolic link"):
        run(replace(rig.TOY, out=str(copy)), resume=True)
    assert victim.read_text() == "mine"


# -- damaged, cut, made up ---------------------------------------------------------------------------------------------


def content(out: Path, read: checkpoint.Checkpoint | None) -> dict[str, Any]:
    """All that a run would go on with."""
    assert read is not None
    return {
        "rest": (read.round, read.metrics_bytes, read.views_bytes, read.views_stopped, read.set_up),
        "roster": msgspec.msgpack.encode(read.roster),
        "parties": list(read_parties(out, read, read.parties)),
        "frames": list(checkpoint.frames(out, read.snapshot)),
    }


@pytest.fixture(scope="module")
def place(half: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy whose checkpoint is replaced again and again."""
    out = tmp_path_factory.mktemp("mutated") / "run"
    shutil.copytree(half, out)
    return out


def outcome(out: Path, resolved: RunConfig, data: bytes) -> dict[str, Any] | None:
    """What is read of this file; None where it is refused as it should be, at a cost that the file's size bounds."""
    (out / CHECKPOINT).write_bytes(data)
    tracemalloc.start()
    try:
        return content(out, checkpoint.read(out, resolved))
    except fl.UserError:
        return None
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 20 * len(data) + SLACK


@given(changes=rig.edits)
@example(changes=[("cut", 0.0, 0, 1)])
@example(changes=[("cut", 0.999, 0, 1)])
def test_damage_is_refused_or_changes_nothing(half: Path, resolved: RunConfig, place: Path, changes: Any) -> None:
    whole = (half / CHECKPOINT).read_bytes()
    damaged = rig.edited(whole, changes)
    found = outcome(place, resolved, damaged)
    assert (found is None) == (damaged != whole)


@given(part=st.sampled_from(["body", "head", "frames"]), changes=rig.edits)
def test_damage_behind_a_right_digest_gives_an_error_or_a_checkpoint_that_fits(
    half: Path, resolved: RunConfig, place: Path, part: str, changes: Any
) -> None:
    """Parties are what they were, since they have digests of their own, and so is the roster, which is signed.

    A frame or a number may be another.
    """
    head, frames = rig.parts(half)
    if part == "body":
        body = rig.edited(rig.joined(head, frames), changes)
    else:
        pieces = {"head": head, "frames": frames}
        body = rig.joined(*({**pieces, part: rig.edited(pieces[part], changes)}).values())
    usual = outcome(place, resolved, (half / CHECKPOINT).read_bytes())
    found = outcome(place, resolved, rig.sealed(body))
    assert usual is not None
    if found is not None:
        assert found["parties"] == usual["parties"]
        assert found["roster"] == usual["roster"]
        assert sum(map(len, found["frames"])) == len(frames)


def moved(fields: dict[str, Any]) -> None:
    """Cuts one frame short and makes another longer, so that their sum is right and one of them negative."""
    sizes = fields["snapshot"]["sizes"]
    sizes[0], sizes[1] = -1, sizes[0] + sizes[1] + 1


def turned(fields: dict[str, Any]) -> None:
    """Two parties change places in the roster."""
    entries = fields["roster"]["entries"]
    entries[2], entries[3] = entries[3], entries[2]


def lost(fields: dict[str, Any]) -> None:
    """One party has no place."""
    del fields["parties"]["client/2"]


def stranger(fields: dict[str, Any]) -> None:
    """There is a place of nobody's."""
    fields["parties"]["nobody"] = fields["parties"]["client/2"]


HEADS: list[tuple[str, Callable[[dict[str, Any]], None]]] = [
    ("a size beyond the file", rig.put(1 << 60, "snapshot", "sizes", 0)),
    ("a size too small", rig.put(0, "snapshot", "sizes", 0)),
    ("a negative size", moved),
    ("a ticket of no frame", rig.put(1 << 40, "snapshot", "parcels", 0, 4)),
    ("a negative ticket", rig.put(-1, "snapshot", "parcels", 0, 4)),
    ("a stranger's message", rig.put("nobody", "snapshot", "parcels", 0, 0, 0)),
    ("a message to a stranger", rig.put("nobody", "snapshot", "parcels", 0, 0, 1)),
    ("a message that arrives never", rig.put(float("inf"), "snapshot", "parcels", 0, 2)),
    ("a negative number", rig.put(-5, "snapshot", "parcels", 0, 0, 7)),
    ("no time", rig.put(float("nan"), "snapshot", "clock_s")),
    ("a number that can't grow", rig.put((1 << 64) - 1, "snapshot", "numbers", ..., "sent")),
    ("a number that can grow no more", rig.put(1 << 62, "snapshot", "numbers", ..., "sent")),
    ("a stranger at work", rig.put({"nobody": [0.0, 0]}, "snapshot", "busy")),
    ("a link from nowhere", rig.put([["nobody", "hub", [0.0, 0]]], "snapshot", "links")),
    ("a message taken from nobody known", rig.put({"nobody": 1}, "snapshot", "numbers", ..., "taken")),
    ("a round before the first", rig.put(-1, "round")),
    ("another round", rig.put(1, "round")),
    ("a round that the metrics lack", rig.put(3, "round")),
    ("a negative length", rig.put(-1, "metrics_bytes")),
    ("a length beyond the file", rig.put(1 << 62, "metrics_bytes")),
    ("a length inside a line", rig.put(50, "metrics_bytes")),
    ("negative views", rig.put(-1, "views_bytes")),
    ("a set-up that is none", rig.put([], "set_up")),
    ("a set-up without its costs", rig.put({}, "set_up")),
    ("a log that is not there", rig.put(99, "log")),
    ("a log of no number", rig.put(-1, "log")),
    ("a log that is longer than the file", rig.put(1 << 62, "log_bytes")),
    ("a party before the beginning", rig.put(-1, "parties", ..., 0)),
    ("a party beyond the end", rig.put(1 << 62, "parties", ..., 0)),
    ("a party larger than all memory", rig.put(1 << 62, "parties", ..., 1)),
    ("a party of no bytes", rig.put(0, "parties", ..., 1)),
    ("a party with another digest", rig.put(bytes(32), "parties", ..., 2)),
    ("a party with no digest", rig.put(b"", "parties", ..., 2)),
    ("a party without a place", lost),
    ("a place without a party", stranger),
    ("a roster with another name", rig.put("client/9", "roster", "entries", 3, 0)),
    ("a roster with another role", rig.put("hub", "roster", "entries", 3, 1)),
    ("a roster with another key", rig.put(bytes(32), "roster", "entries", 3, 2)),
    ("a roster in another order", turned),
    ("a roster without parties", rig.put([], "roster", "entries")),
    ("a roster of another session", rig.put(bytes(16), "roster", "session")),
    ("a roster of another operator", rig.put(bytes(32), "roster", "operator")),
    ("a roster of an operator without a key", rig.put(b"", "roster", "operator")),
    ("a roster that nobody signed", rig.put(b"", "roster", "signature")),
    ("a config that is none", rig.put("system = 3", "config")),
    ("envelopes that are none", rig.put([1, 2], "snapshot", "parcels")),
]


@pytest.mark.parametrize(("name", "change"), HEADS, ids=[name for name, _ in HEADS])
def test_a_head_that_lies_is_refused(half: Path, copy: Path, name: str, change: Any) -> None:
    before = (copy / "metrics.jsonl").read_bytes()
    (copy / CHECKPOINT).write_bytes(rig.rewritten(half, change))
    tracemalloc.start()
    with pytest.raises(fl.UserError):
        run(replace(rig.TOY, out=str(copy)), resume=True)
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()
    assert (copy / "metrics.jsonl").read_bytes() == before, "and nothing was cut off on its word"


def test_views_that_are_shorter_than_the_head_says_are_refused(half: Path, copy: Path) -> None:
    (copy / CHECKPOINT).write_bytes(rig.rewritten(half, rig.put(1 << 62, "views_bytes")))
    with pytest.raises(fl.UserError, match=r"views\.bin is shorter"):
        run(replace(rig.TOY, out=str(copy)), resume=True)


@pytest.mark.parametrize("length", [0, 1, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_a_head_longer_than_the_file_is_refused(half: Path, copy: Path, length: int) -> None:
    whole = rig.joined(*rig.parts(half))
    (copy / CHECKPOINT).write_bytes(rig.sealed(struct.pack("<Q", length) + whole[8:]))
    with pytest.raises(fl.UserError, match=r"checkpoint\.bin"):
        run(replace(rig.TOY, out=str(copy)), resume=True)


@pytest.mark.parametrize("left", [0, 1, 7, 8, 9, 40, 60])
def test_a_file_that_ends_early_is_refused_even_with_a_right_digest(half: Path, copy: Path, left: int) -> None:
    """Up to the end of the frames: a cut frame would give other numbers without a word."""
    body = (half / CHECKPOINT).read_bytes()[:-32]
    for end in (left, len(body) - 1 - left):
        (copy / CHECKPOINT).write_bytes(rig.sealed(body[:end]))
        with pytest.raises(fl.UserError, match=r"checkpoint\.bin"):
            run(replace(rig.TOY, out=str(copy)), resume=True)


# -- every party's own bytes -------------------------------------------------------------------------------------------


@given(changes=rig.edits)
def test_damage_in_a_partys_bytes_is_refused_and_no_others(half: Path, place: Path, changes: Any) -> None:
    (place / CHECKPOINT).write_bytes((half / CHECKPOINT).read_bytes())
    own, whole = head(half).parties["client/2"], log_of(half).read_bytes()
    damaged = rig.edited(whole, changes)
    log_of(place).write_bytes(damaged)
    same = damaged[own.at : own.at + own.size] == bytes_of(half, "client/2")
    with contextlib.nullcontext() if same else pytest.raises(fl.UserError, match=r"parties\..*where client/2 lies"):
        assert kept(place, "client/2") == kept(half, "client/2")
    log_of(place).write_bytes(whole)


def forge(out: Path, name: str, change: Callable[[dict[bytes, list[Any]]], None]) -> None:
    """Gives a party other arrays, every digest but the arrays' own put right."""
    fields = msgspec.msgpack.decode(kept(out, name).kept[16:])
    change(fields["arrays"])
    body = msgspec.msgpack.encode(fields)
    rig.with_party(out, name, kept=hashlib.blake2b(body, digest_size=16).digest() + body)


def of_first(**fields: Any) -> Callable[[dict[bytes, list[Any]]], None]:
    """Changes dtype, shape or data of the first array."""

    def change(arrays: dict[bytes, list[Any]]) -> None:
        name = next(iter(arrays))
        dtype, shape, data = arrays[name]
        arrays[name] = list({"dtype": dtype, "shape": shape, "data": data, **fields}.values())

    return change


ARRAYS: list[tuple[str, Callable[[dict[bytes, list[Any]]], None], str]] = [
    ("a shape beyond all memory", of_first(shape=[1 << 62]), "shape|not the one"),
    ("a shape whose size overflows", of_first(shape=[1 << 32, 1 << 32]), "shape|not the one"),
    ("a negative shape", of_first(shape=[-1]), "shape|not the one"),
    ("two negative sides", of_first(shape=[-1, -650]), "shape|not the one"),
    ("a shape of nothing", of_first(shape=[0, 1 << 62], data=b""), "not the one|shape"),
    ("a million sides", of_first(shape=[(1 << 63) - 1] * 10**6), "1000000 dimensions"),
    ("another dtype", of_first(dtype="<f8"), "shape|not the one"),
    ("objects", of_first(dtype="|O"), "an array of"),
    ("other data", of_first(data=np.zeros(650, "<f4").tobytes(), shape=[650], dtype="<f4"), "not the one"),
]


@pytest.mark.parametrize(("name", "change", "words"), ARRAYS, ids=[name for name, *_ in ARRAYS])
@pytest.mark.parametrize("party", ["hub", "client/2"])
def test_arrays_that_are_not_what_they_say_are_refused(
    copy: Path, party: str, name: str, change: Any, words: str
) -> None:
    forge(copy, party, change)
    with pytest.raises(fl.UserError, match=words):
        run(replace(rig.TOY, out=str(copy)), resume=True)


def test_a_well_made_state_with_a_model_of_another_shape_is_refused(copy: Path) -> None:
    made = {"state": toy_federation.Hub.State(np.zeros(7, np.float32)), "secret": fl.Nothing()}
    rig.with_party(copy, "hub", kept=fl.state.dump(made))
    before = (copy / "metrics.jsonl").read_bytes()
    with pytest.raises(fl.UserError, match=r"a model of shape \(7,\)"):
        run(replace(rig.TOY, out=str(copy)), resume=True)
    assert (copy / "metrics.jsonl").read_bytes() == before


def test_a_key_that_is_none_is_refused(copy: Path) -> None:
    for bad in (fl.Identity(b"short", bytes(32)), fl.Identity(bytes(32), b"short"), fl.Identity(bytes(32), bytes(32))):
        rig.with_party(copy, "hub", identity=bad)
        with pytest.raises(fl.UserError, match=r"parties\..* holds keys of hub that differ from the roster"):
            run(replace(rig.TOY, out=str(copy)), resume=True)


def test_two_parties_that_were_swapped_are_refused(half: Path, copy: Path) -> None:
    def swap(fields: dict[str, Any]) -> None:
        of = fields["parties"]
        of["client/0"], of["client/1"] = of["client/1"], of["client/0"]

    (copy / CHECKPOINT).write_bytes(rig.rewritten(half, swap))
    with pytest.raises(fl.UserError, match=r"parties\..* holds client/1 where client/0 lies"):
        run(replace(rig.TOY, out=str(copy)), resume=True)


def test_a_party_in_anothers_name_is_refused_by_its_keys(copy: Path) -> None:
    """Names and digests are put right; that leaves the keys, which the roster names."""
    other = kept(copy, "client/1")
    rig.with_party(copy, "client/0", identity=other.identity, kept=other.kept)
    with pytest.raises(fl.UserError, match=r"holds keys of client/0 that differ from the roster"):
        run(replace(rig.TOY, out=str(copy)), resume=True)


def test_a_log_of_another_run_is_refused(copy: Path, tmp_path: Path) -> None:
    """It is a good file of these very parties."""
    rig.half_of(tmp_path / "other")
    log_of(copy).write_bytes(log_of(tmp_path / "other").read_bytes())
    with pytest.raises(fl.UserError, match=r"or not the file that the checkpoint was written with"):
        run(replace(rig.TOY, out=str(copy)), resume=True)


def resigned(out: Path, change: Callable[[list[Any]], None]) -> None:
    """The checkpoint with other entries in its roster, signed by an operator of one's own."""
    head = rig.head_of(out)
    entries = [fl.Entry(*one) for one in head["roster"]["entries"]]
    change(entries)
    roster = sign_roster(tuple(entries), SigningKey.generate(), head["roster"]["session"])
    (out / CHECKPOINT).write_bytes(
        rig.rewritten(out, rig.put(msgspec.to_builtins(roster, builtin_types=[bytes]), "roster"))
    )


def test_a_roster_that_was_changed_is_refused_whoever_signed_it(copy: Path) -> None:
    def other_key(entries: list[Any]) -> None:
        entries[3] = msgspec.structs.replace(entries[3], verify_key=SigningKey.generate().public.to_bytes())

    def other_order(entries: list[Any]) -> None:
        entries[2], entries[3] = entries[3], entries[2]

    def other_role(entries: list[Any]) -> None:
        entries[3] = msgspec.structs.replace(entries[3], role="helper")

    whole = (copy / CHECKPOINT).read_bytes()
    for change, words in (
        (other_key, "keys of client/1 that differ from the roster"),
        (other_order, "the roster is of another federation"),
        (other_role, "the roster is of another federation|that differ from the roster"),
        (list.pop, "client/5 is only in one of the roster and the list of parties"),
    ):
        (copy / CHECKPOINT).write_bytes(whole)
        resigned(copy, change)
        with pytest.raises(fl.UserError, match=words):
            run(replace(rig.TOY, out=str(copy)), resume=True)


def test_an_experiment_with_another_roster_is_not_continued(half: Path, copy: Path, resolved: RunConfig) -> None:
    """One that was built without the checkpoint's roster has keys of its own, and nothing under way would open."""
    made, kept = build(resolved), checkpoint.read(copy, resolved)
    assert kept is not None
    with pytest.raises(fl.UserError, match="another roster"):
        checkpoint.Saver(copy, made).restore(kept)
    made.close()


def test_only_parties_that_have_changed_are_written(resolved: RunConfig, tmp_path: Path) -> None:
    made = build(resolved)
    saver = checkpoint.Saver(tmp_path, made)
    made.set_up()
    made.parties["client/5"].state.rounds = ()  # asked for: until then, every object that is made of it has new secrets
    saver.save(0, 0, 0, {})
    first = head(tmp_path)
    assert set(first.parties) == {"hub", "helper", *(f"client/{i}" for i in range(6))}
    saver.save(1, 0, 0, {})
    assert (head(tmp_path).parties, head(tmp_path).log_bytes) == (first.parties, first.log_bytes)
    made.parties["client/3"].state.rounds = (7,)
    made.parties["client/4"].secret.salt = b"another"
    for party in ("client/2", "client/3"):
        made.parties.restart(party)
    saver.save(2, 0, 0, {})
    last = head(tmp_path)
    changed = {name for name, place in last.parties.items() if place != first.parties[name]}
    assert changed == {"client/3", "client/4"}
    assert last.log_bytes == first.log_bytes + sum(last.parties[name].size for name in changed)
    assert rig.state_of(tmp_path, "client/3").rounds == (7,)
    saver.close()
    made.close()


def test_a_log_of_which_half_counts_no_more_gives_way_to_another(resolved: RunConfig, tmp_path: Path) -> None:
    """The new one has the same parties. The last one is there until the checkpoint names the new one."""
    made = build(resolved)
    saver = checkpoint.Saver(tmp_path, made)
    made.set_up()
    saver.save(0, 0, 0, {})
    seen, others = [], kept(tmp_path, "client/0")
    for r in range(40):
        made.parties["client/3"].state.rounds = tuple(range(r))
        saver.save(r, 0, 0, {})
        now = head(tmp_path)
        assert log_of(tmp_path).stat().st_size == now.log_bytes
        live = sum(place.size for place in now.parties.values())
        assert live <= now.log_bytes <= 2 * live + now.parties["client/3"].size
        assert [path.name for path in (tmp_path / "checkpoint").glob("parties.*")] == [log_of(tmp_path).name]
        assert rig.state_of(tmp_path, "client/3").rounds == tuple(range(r))
        assert kept(tmp_path, "client/0") == others
        seen.append(now.log)
    assert 1 < seen[-1] < 40
    saver.close()
    made.close()
