"""What single fields of clients' messages reveal, and which of them no attack has read.

A label histogram may have any name, so all short arrays of numbers are compared with the label counts.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

import coterie.method as fl
from coterie.privacy.attacks.labels import label_numbers
from coterie.privacy.audits import Finding, Measured, Recorded, attack, gather
from coterie.privacy.measures import check_classes
from coterie.privacy.plain import model_field, some_rounds
from coterie.transport.transcript import Seen, View

MOST_NUMBERS = 1024  # among more, some follow a few clients' label counts by luck
_LEAST_CLIENTS = 4
Field = tuple[str, str]
"""A message's type and one of its fields."""


class NotJudged(NamedTuple):
    """A field that no attack has read.  role: its receiver.  why: what it holds."""

    role: str
    message: str
    field: str
    why: str


@dataclass
class SentField:
    """What clients sent to one role in one field, or in all single numbers of a message, by round and
    client's number.
    """

    role: str
    message: str
    fields: tuple[str, ...]
    by_round: dict[int, dict[int, Any]] = field(default_factory=dict)

    @property
    def differs(self) -> bool:
        every = [list(of.values()) for of in self.by_round.values()]
        alone = all(len(values) < 2 for values in every)
        return alone or any(not np.array_equal(one, values[0]) for values in every for one in values)

    @property
    def what(self) -> str:
        value = next(iter(next(iter(self.by_round.values())).values()))
        if isinstance(value, np.ndarray):
            return f"{value.size:,} numbers" if value.size != 1 else "a number"
        return {bytes: "bytes", str: "a text", bool: "yes or no"}.get(type(value), "a number")

    def rounds(self) -> Iterator[dict[int, Any]]:
        enough = [of for _, of in sorted(self.by_round.items()) if len(of) >= _LEAST_CLIENTS]
        if not enough:
            enough = [{i: value for _, of in sorted(self.by_round.items(), reverse=True) for i, value in of.items()}]
        yield from some_rounds(enough)


def field_findings(run: Recorded, read: Collection[Field]) -> tuple[list[Finding], dict[str, str], list[NotJudged]]:
    """What short arrays reveal, or why nothing could be compared; and the fields that no attack has read.

    read: by the system's own attacks (``watched``).
    """
    measured: list[Measured] = []
    why, known = "", {*read}
    every, models = _sent(run)
    known |= models
    for one in _numbers(every, models, run.label_counts.shape[1]):
        try:
            measured += short_arrays.measure(run, one)
        except fl.UserError as error:
            why = str(error)
        else:
            known |= {(one.message, name) for name in one.fields}
    left = [
        NotJudged(one.role, one.message, one.fields[0], one.what)
        for one in every
        if (one.message, one.fields[0]) not in known and one.differs
    ]
    return gather(measured, short_arrays.topic), {short_arrays.name: why} if why and not measured else {}, left


def _sent(run: Recorded) -> tuple[list[SentField], set[Field]]:
    found: dict[tuple[str, str, str], SentField] = {}
    models: set[Field] = set()
    size, several = int(run.shared.sum()), len(run.federation.common.starts)
    for view in run.views.values():
        for seen in _of_clients(run, view):
            message, kind = seen.message, seen.kind
            assert message is not None
            if (name := model_field(message, size, several)) is not None:
                models.add((kind, name))
            for name in message.__struct_fields__:
                value = getattr(message, name)
                if value is None or (name == "signature" and isinstance(message, fl.Signed)):
                    continue
                one = found.setdefault((view.role, kind, name), SentField(view.role, kind, (name,)))
                one.by_round.setdefault(seen.round, {}).setdefault(run.clients.index(seen.src), value)
    return list(found.values()), models


def _of_clients(run: Recorded, view: View) -> Iterator[Seen]:
    party, clients = view.party.partition(" as ")[0], frozenset(run.clients)
    return (seen for seen in view.seen if seen.message is not None and seen.src in clients and seen.src != party)


def _numbers(every: list[SentField], models: Collection[Field], classes: int) -> Iterator[SentField]:
    singles: dict[tuple[str, str], list[SentField]] = {}
    for one in every:
        value = next(iter(next(iter(one.by_round.values())).values()))
        if isinstance(value, np.ndarray):
            if (one.message, one.fields[0]) not in models and one.differs:
                yield one
        elif isinstance(value, int | float) and one.differs:
            singles.setdefault((one.role, one.message), []).append(one)
    for (role, message), some in singles.items():
        if len(some) < max(1, classes - 1):
            continue
        together = SentField(role, message, tuple(name for one in some for name in one.fields))
        for r, of in some[0].by_round.items():
            rows = {i: [one.by_round.get(r, {}).get(i) for one in some] for i in of}
            together.by_round[r] = {i: np.array(row, float) for i, row in rows.items() if None not in row}
        if any(together.by_round.values()):
            yield together


@attack("short-arrays", "party that receives clients' messages", "labels")
def short_arrays(run: Recorded, sent: SentField) -> list[Measured]:
    """Looks for label counts among the numbers of short arrays, whatever they are for.

    Raises UserError if there is nothing to compare.
    """
    what = f"label shares, by {sent.message}.{'/'.join(sent.fields)}"
    found, why = [], ""
    for of in sent.rounds():
        sizes = {value.size for value in of.values()}
        if len(of) < _LEAST_CLIENTS:
            why = f"it compares clients, and {sent.message} came from fewer than {_LEAST_CLIENTS}"
        elif len(sizes) > 1:
            why = f"{sent.message}.{sent.fields[0]} has another length at each client"
        elif not 0 < max(sizes) <= MOST_NUMBERS:
            why = f"{sent.message}.{sent.fields[0]} has more than {MOST_NUMBERS:,} numbers, or none"
        else:
            counts = check_classes(run.label_counts[list(of)])
            rows = np.stack([np.asarray(value).reshape(-1) for value in of.values()])
            try:
                found.append(Measured(sent.role, what, label_numbers(rows, counts)))
            except fl.UserError as error:
                why = str(error)
    if not found:
        raise fl.UserError(why)
    return found


def watched(run: Recorded) -> tuple[Recorded, set[Field]]:
    """The same run, and the growing set of fields read in it."""
    read: set[Field] = set()
    kinds: dict[type[fl.Message], type[fl.Message]] = {}
    clients = frozenset(run.clients)

    def spied(message: fl.Message) -> fl.Message:
        kind = type(message)
        if kind not in kinds:
            kinds[kind] = _spy(kind, read)
        return kinds[kind](**{name: getattr(message, name) for name in kind.__struct_fields__})

    def retold(seen: Seen) -> Seen:
        if seen.message is None or seen.src not in clients:
            return seen
        return replace(seen, message=spied(seen.message))

    views = {name: replace(view, seen=[*map(retold, view.seen)]) for name, view in run.views.items()}
    return replace(run, views=views), read


def _spy(kind: type[fl.Message], read: set[Field]) -> type[fl.Message]:
    fields = frozenset(kind.__struct_fields__)

    def noted(self: fl.Message, name: str) -> Any:
        if name in fields:
            read.add((kind.__name__, name))
        return object.__getattribute__(self, name)

    own = {"__getattribute__": noted, "__module__": kind.__module__}
    spy: type[fl.Message] = types.new_class(kind.__name__, (kind,), {"frozen": True}, lambda names: names.update(own))
    return spy
