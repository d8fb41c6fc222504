"""Reading the parties' own files of a run folder, as a test wants them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from coterie.protocol import state
from coterie.protocol.party import Nothing
from coterie.runs.checkpoint import KeptParty, read_party


def file_of(out: Path, name: str) -> Path:
    """The one file of a party."""
    (file,) = (out / "parties").glob(f"{name.replace('/', '-')}.*.bin")
    return file


def kept(out: Path, name: str) -> KeptParty:
    """What is in it."""
    return read_party(out, name, int(file_of(out, name).name.split(".")[-2]))


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
