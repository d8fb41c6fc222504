"""The members of a federation: the names, roles and public keys of all parties, and a party's own secret halves.

The operator signs the roster (``crypto/roster.py``). So a party that knows the operator's key knows which to trust.
"""

from __future__ import annotations

from functools import cached_property

import msgspec


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One party. verify_key: Ed25519, 32 bytes.  sealing_key: X25519, 32 bytes."""

    name: str
    role: str
    verify_key: bytes
    sealing_key: bytes


class Roster(msgspec.Struct, frozen=True, dict=True):
    """All parties of a federation in a fixed order, the hub first. session: 16 bytes, different in every federation.

    operator: the Ed25519 key of the federation's operator, 32 bytes.  signature: the operator's, over all the rest.
    """

    session: bytes
    entries: tuple[Entry, ...]
    operator: bytes
    signature: bytes = b""

    @cached_property
    def by_name(self) -> dict[str, Entry]:
        """Entries by name."""
        return {entry.name: entry for entry in self.entries}

    @property
    def hub(self) -> str:
        """The name of the hub."""
        return self.entries[0].name

    def of_role(self, role: str) -> tuple[str, ...]:
        """The names of all parties of a role, in order."""
        return tuple(entry.name for entry in self.entries if entry.role == role)


class Identity(msgspec.Struct, frozen=True):
    """SECRET: a party's Ed25519 seed for signing and X25519 key for opening what is sealed for it, 32 bytes each."""

    signing: bytes
    opening: bytes

    def __repr__(self) -> str:
        return "<Identity>"
