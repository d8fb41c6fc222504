"""An audit's attacks as generators: each yields one result after the other, and what it yields becomes findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import NamedTuple, ParamSpec

from coterie.attacks.result import Expected, Result
from coterie.audits import Finding

P = ParamSpec("P")


class Measured(NamedTuple):
    """The result of one attack in one round, under the name of its finding, and its closed form if it has one."""

    name: str
    result: Result
    expected: Expected | None = None


def gathered(measured: Iterable[Measured]) -> list[Finding]:
    """Findings, in the order in which each first has a result. A finding has closed forms if each result has one."""
    found: dict[str, list[Measured]] = {}
    for one in measured:
        found.setdefault(one.name, []).append(one)
    return [_finding(name, results) for name, results in found.items()]


def findings(attacks: Callable[P, Iterable[Measured]]) -> Callable[P, list[Finding]]:
    """Decorates a generator of results, so that it returns findings (``gathered``)."""

    @wraps(attacks)
    def collect(*args: P.args, **kwargs: P.kwargs) -> list[Finding]:
        return gathered(attacks(*args, **kwargs))

    return collect


def _finding(name: str, measured: list[Measured]) -> Finding:
    forms = tuple(one.expected for one in measured if one.expected is not None)
    return Finding(name, tuple(one.result for one in measured), forms if len(forms) == len(measured) else ())
