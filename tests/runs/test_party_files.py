"""The parties' own files of a checkpoint: refused where they are damaged, swapped, made up, or not of its roster."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import toy_federation
from checkpoint_parts import (
    TOY,
    edited,
    edits,
    head_of,
    interrupted,
    put,
    rewritten,
    state_of,
    stopping,
    with_party,
)
from hypothesis import given

from coterie.crypto.roster import sign_roster
from coterie.crypto.signing import SigningKey
from coterie.protocol import state
from coterie.protocol.errors import UserError
from coterie.protocol.party import Nothing
from coterie.protocol.setup_info import Entry, Identity
from coterie.runs import Interrupted, RunConfig, checkpoint, run
from coterie.runs.checkpoint import CHECKPOINT, party_file, read_party
from coterie.runs.config import resolve
from coterie.runs.experiment import build


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted after round 2 of 4, with messages under way."""
    return interrupted(tmp_path_factory.mktemp("half") / "run")


@pytest.fixture(scope="module")
def resolved(half: Path) -> RunConfig:
    """The run's options as its checkpoint is compared with."""
    return resolve(TOY)


@pytest.fixture
def copy(half: Path, tmp_path: Path) -> Path:
    shutil.copytree(half, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="module")
def place(half: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy whose checkpoint is replaced again and again."""
    out = tmp_path_factory.mktemp("mutated") / "run"
    shutil.copytree(half, out)
    return out


@given(changes=edits)
def test_damage_in_a_partys_file_is_refused_or_changes_nothing(half: Path, place: Path, changes: Any) -> None:
    round = head_of(half)["parties"]["client/2"][0]
    path, whole = party_file(place, "client/2", round), party_file(half, "client/2", round).read_bytes()
    damaged = edited(whole, changes)
    path.write_bytes(damaged)
    with contextlib.nullcontext() if damaged == whole else pytest.raises(UserError, match=path.name):
        assert read_party(place, "client/2", round) == read_party(half, "client/2", round)
    path.write_bytes(whole)


def forge(out: Path, name: str, change: Callable[[dict[bytes, list[Any]]], None]) -> None:
    """Puts other arrays into a party's file, every digest but the arrays' own put right."""
    kept = read_party(out, name, head_of(out)["parties"][name][0]).kept
    fields = msgspec.msgpack.decode(kept[16:])
    change(fields["arrays"])
    body = msgspec.msgpack.encode(fields)
    with_party(out, name, kept=hashlib.blake2b(body, digest_size=16).digest() + body)


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
    with pytest.raises(UserError, match=words):
        run(replace(TOY, out=str(copy)), resume=True)


def test_a_well_made_state_with_a_model_of_another_shape_is_refused(copy: Path) -> None:
    made = {"state": toy_federation.Hub.State(np.zeros(7, np.float32)), "secret": Nothing()}
    with_party(copy, "hub", kept=state.dump(made))
    before = (copy / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match=r"a model of shape \(7,\)"):
        run(replace(TOY, out=str(copy)), resume=True)
    assert (copy / "metrics.jsonl").read_bytes() == before


# -- every party's own file --------------------------------------------------------------------------------------------


def test_a_key_that_is_none_is_refused(copy: Path) -> None:
    for bad in (Identity(b"short", bytes(32)), Identity(bytes(32), b"short"), Identity(bytes(32), bytes(32))):
        with_party(copy, "hub", identity=bad)
        with pytest.raises(UserError, match=r"hub\.2\.bin holds keys of hub that differ from the roster"):
            run(replace(TOY, out=str(copy)), resume=True)


def files_of(out: Path, *names: str) -> list[Path]:
    return [party_file(out, name, head_of(out)["parties"][name][0]) for name in names]


def test_two_files_that_were_swapped_are_refused(copy: Path) -> None:
    one, two = files_of(copy, "client/0", "client/1")
    held = one.read_bytes(), two.read_bytes()
    two.write_bytes(held[0])
    one.write_bytes(held[1])
    with pytest.raises(UserError, match=rf"{one.name} is of client/1, not of client/0"):
        run(replace(TOY, out=str(copy)), resume=True)


def test_a_party_in_anothers_name_is_refused_by_its_keys(copy: Path) -> None:
    """Names and digests are put right; that leaves the keys, which the roster names."""
    other = read_party(copy, "client/1", head_of(copy)["parties"]["client/1"][0])
    with_party(copy, "client/0", identity=other.identity, kept=other.kept)
    with pytest.raises(UserError, match=r"holds keys of client/0 that differ from the roster"):
        run(replace(TOY, out=str(copy)), resume=True)


def test_a_file_of_another_round_or_run_is_refused(half: Path, copy: Path, tmp_path: Path) -> None:
    """Each is a good file of this very party."""
    with pytest.raises(Interrupted):
        run(replace(TOY, out=str(tmp_path / "early")), stopping(1))
    (path,) = files_of(copy, "hub")
    path.write_bytes(files_of(tmp_path / "early", "hub")[0].read_bytes())
    with pytest.raises(UserError, match=r"hub\.2\.bin is not the file that the checkpoint was written with"):
        run(replace(TOY, out=str(copy)), resume=True)


def resigned(out: Path, change: Callable[[list[Any]], None]) -> None:
    """The checkpoint with other entries in its roster, signed by an operator of one's own."""
    head = head_of(out)
    entries = [Entry(*one) for one in head["roster"]["entries"]]
    change(entries)
    roster = sign_roster(tuple(entries), SigningKey.generate(), head["roster"]["session"])
    (out / CHECKPOINT).write_bytes(rewritten(out, put(msgspec.to_builtins(roster, builtin_types=[bytes]), "roster")))


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
        (list.pop, "client/5 is only in one of the roster and the list of files"),
    ):
        (copy / CHECKPOINT).write_bytes(whole)
        resigned(copy, change)
        with pytest.raises(UserError, match=words):
            run(replace(TOY, out=str(copy)), resume=True)


def test_an_experiment_with_another_roster_is_not_continued(half: Path, copy: Path, resolved: RunConfig) -> None:
    """One that was built without the checkpoint's roster has keys of its own, and nothing under way would open."""
    made, kept = build(resolved), checkpoint.read(copy, resolved)
    assert kept is not None
    with pytest.raises(UserError, match="another roster"):
        checkpoint.Saver(copy, made).restore(kept)
    made.close()


def test_parties_of_like_names_have_files_of_their_own() -> None:
    names = [
        "client/0",
        "client-0",
        "client 0",
        "client_0",
        "client.0",
        "client%0",
        "client%2d.0",
        "Ω/1",
        "Ω-1",
    ]
    files = {party_file(Path("run"), name, 1) for name in names}
    assert len(files) == len(names)
    assert {path.parent for path in files} == {Path("run/parties")}


def test_a_file_of_a_party_that_has_not_changed_is_not_written_again(resolved: RunConfig, tmp_path: Path) -> None:
    def written() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in (tmp_path / "parties").iterdir()}

    made = build(resolved)
    saver = checkpoint.Saver(tmp_path, made)
    made.set_up()
    made.parties["client/5"].state.rounds = ()  # asked for: until then, every object that is made of it has new secrets
    saver.save(0, 0, 0, "{}")
    first = written()
    assert set(first) == {"hub.0.bin", "helper.0.bin", *(f"client-{i}.0.bin" for i in range(6))}
    saver.save(1, 0, 0, "{}")
    assert written() == first
    made.parties["client/3"].state.rounds = (7,)
    made.parties["client/4"].secret.salt = b"another"
    for party in ("client/2", "client/3"):
        made.parties.restart(party)
    saver.save(2, 0, 0, "{}")
    last = written()
    assert set(last) - set(first) == {"client-3.2.bin", "client-4.2.bin"}
    assert set(first) - set(last) == {"client-3.0.bin", "client-4.0.bin"}
    assert all(last[name] == first[name] for name in set(first) & set(last))
    assert state_of(tmp_path, "client/3").rounds == (7,)
    made.close()
