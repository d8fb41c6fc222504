"""A run that was interrupted, and its checkpoint taken apart and put together again, with digests that are right."""

from __future__ import annotations

import stat
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import toy_federation
from ended import interrupt
from hypothesis import strategies as st
from kept_parties import kept, log_of

from coterie.protocol import state
from coterie.protocol.party import Nothing
from coterie.record.files import digest
from coterie.runs import RunConfig
from coterie.runs.checkpoint import CHECKPOINT

TOY = RunConfig(
    "toy_federation:SYSTEM", clients=6, rounds=4, devices="mobile", model="linear", checkpoint_every=1, record=True
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def half_of(out: Path, at: int = 2) -> Path:
    """The folder of a run that ended after round ``at`` of 4, with messages under way."""
    interrupt(replace(TOY, out=str(out)), at)
    return out


def parts(out: Path) -> tuple[bytes, bytes]:
    """Head and frames."""
    body = (out / CHECKPOINT).read_bytes()[:-32]
    (length,) = struct.unpack_from("<Q", body)
    return body[8 : 8 + length], body[8 + length :]


def head_of(out: Path) -> dict[str, Any]:
    """The fields of the head, as msgpack has them."""
    fields: dict[str, Any] = msgspec.msgpack.decode(parts(out)[0])
    return fields


def sealed(body: bytes) -> bytes:
    """A file of this body whose digest is right."""
    return body + digest(body)


def joined(head: bytes, frames: bytes) -> bytes:
    return struct.pack("<Q", len(head)) + head + frames


def state_of(out: Path, name: str) -> Any:
    """The state of a party."""
    kind = getattr(toy_federation, name.split("/")[0].capitalize())
    kinds = {"state": kind.State, "secret": getattr(kind, "Secret", Nothing)}
    return state.load(kept(out, name).kept, kinds)["state"]


def with_party(out: Path, name: str, **fields: Any) -> None:
    """Puts something else in a party's place, with every digest put right."""
    body = msgspec.msgpack.encode(msgspec.structs.replace(kept(out, name), **fields))
    with log_of(out).open("ab") as log:
        at = log.tell()
        log.write(body)
    (out / CHECKPOINT).write_bytes(rewritten(out, put([at, len(body), digest(body)], "parties", name)))


def rewritten(half: Path, change: Callable[[dict[str, Any]], None]) -> bytes:
    """The checkpoint with another head, and a right digest."""
    fields = head_of(half)
    change(fields)
    return sealed(joined(msgspec.msgpack.encode(fields), parts(half)[1]))


def put(value: Any, *keys: Any) -> Callable[[dict[str, Any]], None]:
    """Puts a value in a place of the head; ``...`` stands for the first key there is."""

    def change(fields: Any) -> None:
        for key in keys[:-1]:
            fields = fields[next(iter(fields))] if key is ... else fields[key]
        fields[next(iter(fields)) if keys[-1] is ... else keys[-1]] = value

    return change


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
