"""Reading the parties in a run folder, as a test wants them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from coterie.protocol import state
from coterie.protocol.party import Nothing
from coterie.runs.checkpoint import CHECKPOINT, Checkpoint, KeptParty, log_file, read_parties


def head(out: Path) -> Checkpoint:
    """The head of the checkpoint, unchecked."""
    written = (out / CHECKPOINT).read_bytes()
    return msgspec.msgpack.decode(written[8 : 8 + int.from_bytes(written[:8], "little")], type=Checkpoint)


def log_of(out: Path) -> Path:
    """The file that the parties lie in."""
    return log_file(out, head(out).log)


def bytes_of(out: Path, name: str) -> bytes:
    """A party's own bytes."""
    place = head(out).parties[name]
    return log_of(out).read_bytes()[place.at : place.at + place.size]


def kept(out: Path, name: str) -> KeptParty:
    """What is in them."""
    (found,) = read_parties(out, head(out), [name])
    return found


def contents(out: Path, name: str, kind: Any) -> tuple[Any, Any]:
    """State and secret of a party of this class."""
    kinds = {"state": getattr(kind, "State", Nothing), "secret": getattr(kind, "Secret", Nothing)}
    found = state.load(kept(out, name).kept, kinds)
    return found["state"], found["secret"]


def key_bytes(out: Path, name: str, kind: Any = None) -> list[bytes]:
    """Its own keys, and, of a class that is granted keys, pieces of each of those."""
    identity = kept(out, name).identity
    granted = [] if kind is None else list(contents(out, name, kind)[1].keys.secret.values())
    assert kind is None or granted
    pieces = [key[at : at + 64] for key in granted for at in range(len(key) // 4, len(key) - 64, len(key) // 5 + 1)]
    return [identity.signing, identity.opening, *pieces]


def plain(value: Any) -> Any:
    """A state as what ``==`` can compare."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, msgspec.Struct):
        return type(value), {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
