"""The parties of a simulation: those that were asked lately are objects, all others are bytes on disk.

So memory does not grow with the number of clients, only with the number that is asked between two rests. A party that
was put to sleep is made again from what it was told and the bytes of its state and secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import msgspec
import numpy as np

from coterie.protocol import state
from coterie.protocol.party import Party
from coterie.protocol.spool import Spool

AWAKE_BYTES = 1 << 30
"""What the parties that stay awake may hold, by default."""


class Parties(Mapping[str, Party]):
    """All parties by name, each made when it is first asked for.

    names: of all.  make: makes one, as it is in the beginning.  awake_bytes: how much those may hold that ``rest``
    leaves awake.  A party that is looked up stays the same object until the next ``rest``.
    """

    def __init__(self, names: Sequence[str], make: Callable[[str], Party], *, awake_bytes: int = AWAKE_BYTES) -> None:
        self._names, self._make, self._awake_bytes = dict.fromkeys(names), make, awake_bytes
        self._awake: dict[str, Party] = {}  # the least recently asked one first
        self._asleep: dict[str, int] = {}  # tickets of the spool
        self._pinned: set[str] = set()
        self._spool = Spool(0)
        self._arrays: WeakValueDictionary[bytes, Any] = WeakValueDictionary()

    def __getitem__(self, name: str) -> Party:
        party = self._awake.pop(name, None) or self._woken(name, self._spool.take)
        self._asleep.pop(name, None)
        self._awake[name] = party
        return party

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def look(self, name: str) -> Party:
        """The party as it is, for an observer: one that sleeps is not kept awake."""
        return self._awake.get(name) or self._woken(name, self._spool.peek)

    def pin(self, name: str) -> Party:
        """A party that never sleeps: its object was changed in a way that its bytes don't hold."""
        self._pinned.add(name)
        return self[name]

    def rest(self) -> None:
        """Put parties to sleep, the least recently asked first, until the others hold no more than they may."""
        held = {name: _bytes_held(party) for name, party in self._awake.items()}
        total = sum(held.values())
        for name, size in held.items():
            if total <= self._awake_bytes:
                return
            if name not in self._pinned:
                self._asleep[name] = self._spool.put(dumped(self._awake.pop(name)))
                total -= size

    def restart(self, name: str) -> None:
        """Throw a party away; when it is asked for again, it is made from its bytes."""
        if name in self._awake and name not in self._pinned:
            self._asleep[name] = self._spool.put(dumped(self._awake.pop(name)))

    def replace(self, party: Party) -> None:
        """Put another object in a party's place."""
        self._asleep.pop(party.name, None)
        self._awake[party.name] = party

    def close(self) -> None:
        """Remove what lies on disk."""
        self._spool.close()

    def _woken(self, name: str, read: Callable[[int], bytes]) -> Party:
        if name not in self._names:
            raise KeyError(name)
        party = self._make(name)
        if name in self._asleep:
            restore(party, read(self._asleep[name]), self._arrays)
        return party


def dumped(party: Party) -> bytes:
    """SECRET: all that a party keeps, as bytes. Raises TypeError for a state that has other things than bytes in it."""
    return state.dump({"state": party.state, "secret": party.secret})


def restore(party: Party, data: bytes, arrays: WeakValueDictionary[bytes, Any] | None = None) -> None:
    """Put a party that was just made where ``dumped`` left it. Raises UserError for what is none of its states.

    arrays: those that other parties hold, by digest: equal ones are one object.
    """
    found = state.load(data, {"state": type(party.state), "secret": type(party.secret)}, arrays)
    party.state, party.secret = found["state"], found["secret"]


def _bytes_held(party: Party) -> int:
    return _size(party.state) + _size(party.secret)


def _size(value: Any) -> int:
    """Bytes of the arrays and byte strings of a state, at any depth."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, bytes | str):
        return len(value)
    if isinstance(value, msgspec.Struct):
        return sum(_size(getattr(value, name)) for name in value.__struct_fields__)
    if isinstance(value, dict):
        return sum(_size(item) for item in value.values())
    return sum(_size(item) for item in value) if isinstance(value, list | tuple | set | frozenset) else 8
