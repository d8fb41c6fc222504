"""A federation in one process, whose parties sleep as bytes on disk."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import msgspec
import numpy as np
from numpy.typing import NDArray

import coterie.method as fl
from coterie.crypto.roster import DerivedRoster, check_roster, derived, simulated
from coterie.protocol import state
from coterie.protocol.setup_info import Common, Own

AWAKE_BYTES = 1 << 30
"""Of parties that stay awake, by default."""


class Parties(Mapping[str, fl.Party]):
    """All parties by name, made when first asked for, and the same objects until the next ``rest``.

    make: makes one in its first state.  awake_bytes: that parties may hold after ``rest``.  pinned: always the same.
    changed: asked for or replaced since it was cleared.
    """

    def __init__(
        self, names: Sequence[str], make: Callable[[str], fl.Party], *, awake_bytes: int = AWAKE_BYTES
    ) -> None:
        self.everybody = names
        self.names = names if isinstance(names, fl.Names) else dict.fromkeys(names)
        self._make, self._awake_bytes = make, awake_bytes
        self._marked: dict[str, tuple[Any, Any]] | None = None  # state and secret of those asked since ``mark``
        self._awake: dict[str, fl.Party] = {}  # the least recently asked one first
        self._asleep: dict[str, int] = {}  # tickets of the spool
        self.pinned: set[str] = set()
        self.changed: dict[str, None] = {}
        self._spool = fl.Spool(0)
        self._arrays: WeakValueDictionary[bytes, Any] = WeakValueDictionary()

    def __getitem__(self, name: str) -> fl.Party:
        party = self.look(name)
        if self._marked is not None:
            self._marked.setdefault(name, (party.state, party.secret))
        self.replace(party)
        return party

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def look(self, name: str) -> fl.Party:
        """For an observer: a sleeping party is not kept awake."""
        if name in self._awake:
            return self._awake[name]
        if name not in self.names:
            raise KeyError(name)
        party = self._make(name)
        if name in self._asleep:
            restore(party, self._spool.peek(self._asleep[name]), self._arrays)
        return party

    def mark(self) -> None:
        self._marked = {}

    @property
    def asked(self) -> tuple[str, ...]:
        return tuple(self._marked or ())

    def look_back(self, name: str) -> fl.Party:
        """As it was at the mark, for an observer."""
        if self._marked is None or name not in self._marked:
            return self.look(name)
        party = copy.copy(self.look(name))
        party.state, party.secret = self._marked[name]
        return party

    def forget_mark(self) -> None:
        self._marked = None

    def pin(self, name: str) -> fl.Party:
        """Keep a party awake for ever, because bytes would not hold its object's changes."""
        self.pinned.add(name)
        return self[name]

    def rest(self) -> None:
        """Put parties to sleep, the least recently asked first, down to ``awake_bytes``.

        Raises TypeError for a state that cannot be encoded, and RunError if the disk is full; that party stays awake.
        """
        held = {name: _held(party) for name, party in self._awake.items()}
        uses = Counter(key for one in held.values() for key in one)
        total = sum({key: size for one in held.values() for key, size in one.items()}.values())
        for name, one in held.items():
            if total <= self._awake_bytes:
                return
            if name not in self.pinned:
                self.restart(name)
                uses.subtract(one.keys())
                total -= sum(size for key, size in one.items() if not uses[key])

    def restart(self, name: str) -> None:
        if name in self._awake and name not in self.pinned:
            self._asleep[name] = self._spool.put(dumped(self._awake[name]))
            del self._awake[name]

    def renew(self, name: str) -> None:
        """Rebuild a party with its state, but a pinned one's object, from what it is now told."""
        if name in self.pinned:
            told, party = self._make(name), self[name]
            party.own, party.samples, party.epochs = told.own, told.samples, told.epochs
        else:
            self.restart(name)

    def touched(self, name: str) -> bool:
        """Whether it was asked for or replaced."""
        return name in self._awake or name in self._asleep

    def dumped(self, name: str) -> bytes:
        """SECRET: a party as bytes."""
        if name in self._asleep:
            return self._spool.peek(self._asleep[name])
        return dumped(self.look(name))

    def put(self, name: str, data: bytes) -> None:
        """Replace a party by these bytes; it sleeps unless pinned. Raises UserError."""
        if name in self.pinned:
            restore(self[name], data, self._arrays)
            return
        restore(self._make(name), data)
        ticket = self._spool.put(data)
        self._forget(name)
        self._asleep[name] = ticket
        self.changed[name] = None

    def replace(self, party: fl.Party) -> None:
        self._forget(party.name)
        self._awake[party.name] = party
        self.changed[party.name] = None

    def close(self) -> None:
        self._spool.close()

    def _forget(self, name: str) -> None:
        self._awake.pop(name, None)
        if name in self._asleep:
            self._spool.drop(self._asleep.pop(name))


def dumped(party: fl.Party) -> bytes:
    """SECRET: a party's state and secret. Raises TypeError for one that cannot be encoded."""
    return state.dump({"state": party.state, "secret": party.secret})


def restore(party: fl.Party, data: bytes, arrays: WeakValueDictionary[bytes, Any] | None = None) -> None:
    """Put a new party into the state of ``dumped`` bytes. Raises UserError.  arrays: other parties', by digest, to be
    shared.
    """
    found = state.load(data, {"state": type(party.state), "secret": type(party.secret)}, arrays)
    party.state, party.secret = found["state"], found["secret"]


def _held(party: fl.Party) -> dict[int, int]:
    found = {}

    def noted(value: Any) -> None:
        if isinstance(value, np.ndarray):
            found[id(value)] = value.nbytes

    found[id(party)] = len(msgspec.msgpack.encode((party.state, party.secret), enc_hook=noted))
    return found


def simulate(
    system: fl.System,
    config: Any,
    clients: Sequence[str],
    spec: fl.ModelSpec,
    starts: NDArray[np.float32],
    mode: str,
    randomness: fl.Randomness,
    samples: Mapping[str, int] | Callable[[str], int],
    epochs: Mapping[str, int],
    founded: tuple[fl.Roster, Mapping[str, fl.Identity]] | None = None,
    *,
    awake_bytes: int = AWAKE_BYTES,
) -> tuple[fl.Federation, fl.LazyMapping[Own]]:
    """The federation, and what each party alone knows. Raises UserError for impossible settings.

    starts: (k, d) float32.  samples, epochs: by client; samples also of a hub with public ones.  founded: roster and
    identities of a resumed federation.
    """
    roles = system.roles(config, clients, mode)
    roster, identities = _founded(roles, randomness) if founded is None else founded
    if not isinstance(roster, DerivedRoster):
        check_roster(roster, roster.operator)
    if founded is not None and [(one.name, one.role) for one in roster.entries] != list(roles.items()):
        raise fl.UserError("the roster is of another federation: go on with the settings that it was made with")
    hub = roster.hub
    size = samples if callable(samples) else lambda name: samples.get(name, 0)
    common = Common(roster, clients, spec, starts, mode, randomness.emulated, size(hub))

    def own(name: str) -> Own:
        return Own(name, randomness, identities[name], size(name), epochs.get(name, 1))

    everybody = roles.names if isinstance(roles, fl.LazyMapping) else tuple(roles)
    owns = fl.LazyMapping(everybody, own)
    system.check(config, common)
    parties = Parties(everybody, lambda name: system.make(owns[name], common, config), awake_bytes=awake_bytes)
    parties.pin(hub)
    return fl.Federation(parties, hub, common, parties.look, parties.pin), owns


def _founded(roles: Mapping[str, str], randomness: fl.Randomness) -> tuple[fl.Roster, Mapping[str, fl.Identity]]:
    if isinstance(roles, fl.LazyMapping) and isinstance(roles.names, fl.Names) and randomness.emulated:
        found = derived(roles, roles.names, randomness)
        return found, found.identities
    return simulated(roles, randomness)
