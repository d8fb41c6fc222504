"""A party's file in a run folder: ``parties/<name>.<round>.bin``, with its identity, its state and its secret.

The file is the whole party, which can be resumed from it alone. The file is written again only when the party has
changed. It stays until a checkpoint needs a newer one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from coterie.protocol.errors import UserError
from coterie.protocol.roster import Identity
from coterie.protocol.told import Own
from coterie.runs.files import ADVICE, FILE_MODE, atomic_write, checked, decoded, digest, make_folder, writing
from coterie.runs.parties import Parties

PARTIES = "parties"

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class Written(msgspec.Struct, frozen=True, array_like=True):
    """One party's file. round: in which it was written.  digest: of its content, 32 bytes."""

    round: Count
    digest: bytes


class KeptParty(msgspec.Struct, frozen=True):
    """SECRET: the content of a party's file. kept: its state and secret, as ``runs.parties.dumped`` gives them."""

    name: str
    identity: Identity
    kept: bytes

    def __repr__(self) -> str:
        return f"<KeptParty {self.name}>"


def party_file(out: Path, party: str, round: int) -> Path:
    """The path of a party's file that was written in this round."""
    return out / PARTIES / f"{_stem(party)}.{round}.bin"


def _stem(party: str) -> str:
    """The beginning of a party's file name, which is different for every party."""
    return re.sub(r"[^\w./]", lambda odd: f"%{ord(odd[0]):x}.", party).replace("/", "-")


def read_party(out: Path, party: str, round: int, its_digest: bytes | None = None) -> KeptParty:
    """SECRET: one party as it was after a round, from its own file alone.

    ``runs.parties.restore`` puts a new party into this state. Raises UserError for a file that is damaged, of another
    party, or of another digest than this one, if a checkpoint gives one.
    """
    path = party_file(out, party, round)
    body = checked(path)
    found = decoded(path, body, KeptParty)
    if found.name != party:
        raise UserError(f"{path} is of {found.name}, not of {party}: {ADVICE}")
    if its_digest not in (None, digest(body)):
        raise UserError(f"{path} is not the file that the checkpoint was written with: {ADVICE}")
    return found


def save_parties(
    out: Path, parties: Parties, owns: Mapping[str, Own], round: int, before: Mapping[str, Written]
) -> dict[str, Written]:
    """Write the files of all parties that have changed. Returns every party's present file.

    before: their files before. No file of ``before`` is changed. Raises RunError if the disk is full.
    """
    make_folder(out / PARTIES)
    written = dict(before)
    for name, own in owns.items():
        if name in written and not parties.touched(name):
            continue  # it is as it was made, and so is what its file holds
        assert own.identity is not None
        data = msgspec.msgpack.encode(KeptParty(name, own.identity, parties.dumped(name)))
        its_digest = digest(data)
        if name not in written or written[name].digest != its_digest:
            atomic_write(party_file(out, name, round), its_digest + data, FILE_MODE)
            written[name] = Written(round, its_digest)
    return written


def drop_old_files(out: Path, written: Mapping[str, Written]) -> None:
    """Remove the files of other checkpoints, and those that a killed process left half written."""
    needed = {party_file(out, name, file.round) for name, file in written.items()}
    one = rf"({'|'.join(re.escape(_stem(name)) for name in written)})\.[0-9]+\.bin"
    ours = re.compile(rf"{one}|\.{one}\.[a-z0-9_]+")
    with writing(out / PARTIES):
        for path in (out / PARTIES).iterdir():
            if path not in needed and ours.fullmatch(path.name):
                path.unlink(missing_ok=True)
