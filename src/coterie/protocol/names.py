"""Names of very many parties, and mappings over them, made lazily."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

T = TypeVar("T")
_HELD = 4096


class Names(Sequence[str]):
    """Some names, and then ``count`` more, ``prefix0``, ``prefix1``, in O(1) memory. A slice is a tuple."""

    def __init__(self, count: int, first: Iterable[str] = (), prefix: str = "client/") -> None:
        self._first, self._count, self._prefix = tuple(first), count, prefix
        self._numbered = re.compile(rf"{re.escape(prefix)}(0|[1-9][0-9]{{0,17}})")
        self._places: dict[str, int] = {}  # of names that were looked up

    @property
    def first(self) -> tuple[str, ...]:
        return self._first

    @property
    def numbered(self) -> Names:
        return Names(self._count, (), self._prefix)

    def __len__(self) -> int:
        return len(self._first) + self._count

    @overload
    def __getitem__(self, at: int) -> str: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[str, ...]: ...

    def __getitem__(self, at: int | slice) -> str | tuple[str, ...]:
        if isinstance(at, slice):
            return tuple(self[i] for i in range(*at.indices(len(self))))
        place = range(len(self))[at]
        head = len(self._first)
        return self._first[place] if place < head else f"{self._prefix}{place - head}"

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def __contains__(self, name: object) -> bool:
        return self.place(name) is not None

    def place(self, name: object) -> int | None:
        """A name's index, or None."""
        if not isinstance(name, str):
            return None
        if (known := self._places.get(name)) is not None:
            return known
        found = self._numbered.fullmatch(name)
        if name in self._first:
            place = self._first.index(name)
        elif found is not None and int(found[1]) < self._count:
            place = len(self._first) + int(found[1])
        else:
            return None
        if len(self._places) >= _HELD:
            self._places.clear()
        self._places[name] = place
        return place

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        place = self.place(value)
        if place is None or place not in range(len(self))[start:stop]:
            raise ValueError(f"{value!r} is not among these names")
        return place

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Names):
            return (self._first, self._count, self._prefix) == (other._first, other._count, other._prefix)
        return isinstance(other, tuple) and len(self) == len(other) and all(map(str.__eq__, self, other))

    def __hash__(self) -> int:
        return hash((self._first, self._count, self._prefix))


class LazyMapping(Mapping[str, T]):
    """A pure function's value for each name, made on access. The last ``held`` are kept."""

    def __init__(self, names: Sequence[str], make: Callable[[str], T], held: int = _HELD) -> None:
        self.names, self._make, self._most = names, make, held
        self._held: OrderedDict[str, T] = OrderedDict()

    def __getitem__(self, name: str) -> T:
        if name in self._held:
            self._held.move_to_end(name)
            return self._held[name]
        if name not in self.names:
            raise KeyError(name)
        value = self._held[name] = self._make(name)
        if len(self._held) > self._most:
            self._held.popitem(last=False)
        return value

    def forget(self) -> None:
        self._held.clear()

    def __contains__(self, name: object) -> bool:
        return name in self._held or name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def listed(names: Sequence[str], values: Sequence[T]) -> Mapping[str, T]:
    """By name: a dict, or for ``Names`` a mapping without one."""
    if isinstance(names, Names):
        return LazyMapping(names, lambda name: values[names.index(name)], held=0)
    return dict(zip(names, values, strict=True))


def each(names: Sequence[str], make: Callable[[str], T]) -> Mapping[str, T]:
    """A pure function's results by name: a dict, or for ``Names`` a lazy mapping."""
    return LazyMapping(names, make) if isinstance(names, Names) else {name: make(name) for name in names}
