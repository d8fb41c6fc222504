"""Tables of interpreters of effects."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from coterie.protocol.effects import Compute, Encrypt, LocalFunction, Open, OwnData
from coterie.protocol.errors import CryptoError, PeerError
from coterie.protocol.party import freeze

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

Interpreter = Callable[[Sequence[tuple[str, Any]]], Sequence[Any]]
"""Pairs of a party's name and an effect, all of one type -> results in order. A PeerError or CryptoError as a result is
raised in the handler.
"""
Interpreters = Mapping[type, Interpreter]


def by_group(items: Sequence[T], key: Callable[[T], K], run: Callable[[K, Sequence[T]], Sequence[Any]]) -> list[Any]:
    """For each item, in order; ``run(key, items)`` computes those of one key together."""
    results: list[Any] = [None] * len(items)
    groups: dict[K, list[int]] = {}
    for index, item in enumerate(items):
        groups.setdefault(key(item), []).append(index)
    for group, indices in groups.items():
        for index, result in zip(indices, run(group, [items[i] for i in indices]), strict=True):
            results[index] = result
    return results


def interpret(table: Interpreters, wanted: Sequence[tuple[str, Any]]) -> list[Any]:
    """Results of ``(party, effect)`` pairs in order. Raises TypeError for an effect that the table lacks."""
    for party, effect in wanted:
        if type(effect) not in table:
            known = ", ".join(kind.__name__ for kind in table)
            raise TypeError(f"{party} yields {type(effect).__name__}, which is no effect here: there are {known}")
    return by_group(wanted, lambda one: type(one[1]), lambda kind, group: table[kind](group))


def each(compute: Callable[[str, Any], Any]) -> Interpreter:
    """Computes effects one by one. A refused effect's error is its result."""
    return lambda wanted: [_or_error(compute, party, effect) for party, effect in wanted]


def _or_error(compute: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return compute(*arguments)
    except (PeerError, CryptoError) as error:
        return error


def locally(own: Callable[[str], OwnData]) -> Interpreter:
    """The interpreter of ``Local``, given each party's own data. If a function's batched form refuses, its calls are
    computed one by one, so the error reaches the right party.
    """

    def run(function: LocalFunction[Any], wanted: Sequence[tuple[str, Any]]) -> Sequence[Any]:
        data, arguments = [own(party) for party, _ in wanted], [effect.arguments for _, effect in wanted]
        if function.many is not None:
            together = _or_error(function.many, data, arguments)
            if not isinstance(together, PeerError | CryptoError):
                if len(together) != len(data):
                    raise TypeError(f"batched {function.name!r} gives {len(together)} results for {len(data)} parties")
                return list(together)
        return [_or_error(function.run, one, *given) for one, given in zip(data, arguments, strict=True)]

    def interpreter(wanted: Sequence[tuple[str, Any]]) -> list[Any]:
        results = by_group(wanted, lambda one: one[1].registered, run)
        freeze(results)
        return results

    return interpreter


def _opened(party: str, effect: Open) -> Any:
    cipher = effect.key.public.from_bytes(effect.data)
    return effect.key.open_blinded(cipher) if effect.blinded else effect.key.decrypt(cipher)


PLAIN: Interpreters = {
    Encrypt: each(lambda party, effect: effect.key.encrypt(effect.values)),
    Open: each(_opened),
    Compute: each(lambda party, effect: effect.function(*effect.arguments)),
}
"""Of the effects without own data."""
