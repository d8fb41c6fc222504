"""An audit's attacks as generators: each yields one result after the other, and what it yields becomes findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import NamedTuple, ParamSpec

from coterie.privacy.attacks.result import Expected, Result
from coterie.privacy.audits import Finding
from coterie.protocol.errors import UserError

P = ParamSpec("P")


class Measured(NamedTuple):
    """The result of one attack in one round, under the name of its finding, and its closed form if it has one.

    result: None where the attack does not apply.  why: the reason then.
    """

    name: str
    result: Result | None
    expected: Expected | None = None
    why: str = ""


def tried(name: str, score: Callable[[], Result]) -> Measured:
    """The result of an attack, or why it does not apply (its UserError)."""
    try:
        return Measured(name, score())
    except UserError as error:
        return Measured(name, None, why=str(error))


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
    results = tuple(one.result for one in measured if one.result is not None)
    forms = tuple(one.expected for one in measured if one.expected is not None)
    return Finding(
        name,
        results,
        forms if len(forms) == len(results) else (),
        why=next((one.why for one in measured if one.why), ""),
    )
