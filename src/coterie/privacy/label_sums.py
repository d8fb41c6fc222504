"""Attacks on label counts that clients are told in sums, for every system (``padded_counts``, ``hidden_counts``).

The server knows the sum of each list, but of hidden groups none. Clients take their own counts off what they are told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import coterie.method as fl
from coterie.privacy.attacks.labels import total_variation
from coterie.privacy.attacks.result import AttackResult
from coterie.privacy.audits import Attack, Finding, Measured, Recorded, applied, attack
from coterie.privacy.measures import check_classes
from coterie.protocols.hidden_counts import GroupCounts
from coterie.protocols.local_training import counts_labels
from coterie.protocols.padded_counts import AskForPadded, ModelCounts, PaddedCounts

Counts = NDArray[np.int64]

NONE_OPENED = "no sum of label counts was opened under pads of a list"
SUMS_OF = "by sums of label counts"


@dataclass(frozen=True, eq=False)
class OpenedSums:
    """Of one model.  lists: client numbers on each opened list.  sums: (lists, labels) as the server knows them; None
    of a hidden group.  total: (labels,) as these clients were told it.
    """

    lists: Sequence[Sequence[int]]
    sums: Counts | None
    total: Counts

    @property
    def clients(self) -> list[int]:
        return [client for one in self.lists for client in one]


def opened_sums(run: Recorded) -> list[OpenedSums]:
    """All models with label counts."""
    return _of_lists(run) or _of_hidden_groups(run)


def _of_lists(run: Recorded) -> list[OpenedSums]:
    hub = run.federation.hub
    terms = {seen.src: one for seen, one in run.views[hub].messages(PaddedCounts)} if hub in run.views else {}
    of_total = dict[bytes, list[tuple[list[int], Counts]]]()
    for names in dict.fromkeys(one for name in run.clients if (one := _list_of(run, name))):
        told = _told(run, names[0])
        if told is None or not terms.keys() >= {*names}:
            continue
        words = [np.frombuffer(terms[name].words, "<u8") for name in names]
        total = np.asarray(np.sum(words, axis=0, dtype=np.uint64)).view(np.int64)
        of_total.setdefault(told.tobytes(), []).append((run.numbers(names), total))
    return [
        OpenedSums([names for names, _ in some], np.stack([one for _, one in some]), np.frombuffer(told, np.int64))
        for told, some in of_total.items()
    ]


def _of_hidden_groups(run: Recorded) -> list[OpenedSums]:
    """Clients whose counts are in one sum have opened the same numbers."""
    of_total, counts = dict[bytes, list[str]](), run.system.counts
    for name in run.clients:
        sent = name in run.views and any(one.counted for _, one in run.views[name].messages(GroupCounts))
        told = counts(run.federation.look(name)) if sent and counts is not None else None
        if told is not None:
            of_total.setdefault(np.asarray(told, np.int64).tobytes(), []).append(name)
    return [OpenedSums([run.numbers(names)], None, np.frombuffer(told, np.int64)) for told, names in of_total.items()]


def _list_of(run: Recorded, name: str) -> tuple[str, ...]:
    asked = [one.names for _, one in run.views[name].messages(AskForPadded)] if name in run.views else []
    return tuple(asked[-1].split("\n")) if asked else ()


def _told(run: Recorded, name: str) -> Counts | None:
    told = [one.counts for _, one in run.views[name].messages(ModelCounts)]
    return np.asarray(told[-1], np.int64) if told else None


@attack("counts-by-list", "server", "labels")
def _by_list(run: Recorded, opened: Sequence[OpenedSums]) -> Iterator[Measured]:
    """Takes each list's label shares for those of every client on it."""
    known = [(model, model.sums) for model in opened if model.sums is not None]
    if not known:
        raise fl.UserError("no server opens a sum of hidden groups' label counts")
    clients = [client for model, _ in known for client in model.clients]
    guess = [one for model, sums in known for names, one in zip(model.lists, sums, strict=True) for _ in names]
    role = str(run.federation.common.roster.by_name[run.federation.hub].role)
    yield Measured(role, f"label shares, {SUMS_OF}", _scored(run, clients, guess, []))


@attack("counts-by-member", "client", "labels")
def _by_member(run: Recorded, opened: Sequence[OpenedSums]) -> Iterator[Measured]:
    """Takes its own label counts off the sum, and the rest for each other's."""
    role = run.federation.common.roster.client_role
    for model in opened:
        for client in model.clients:
            own, others = run.label_counts[client], [one for one in model.clients if one != client]
            found = _scored(run, others, [model.total - own] * len(others), [own])
            yield Measured(role, f"label shares of others, {SUMS_OF}", found)


@attack("counts-by-all-but-one", "clients", "labels")
def _by_all_but_one(run: Recorded, opened: Sequence[OpenedSums]) -> Iterator[Measured]:
    """All but one of a model take their label counts off the sum."""
    for model in opened:
        own = run.label_counts[model.clients].sum(axis=0)
        for client in model.clients:
            rest = own - run.label_counts[client]
            found = _scored(run, [client], [model.total - rest], [rest])
            yield Measured("clients, all but one", f"label shares of the other, {SUMS_OF}", found)


def _scored(run: Recorded, clients: Sequence[int], guess: Sequence[Counts], known: Sequence[Counts]) -> AttackResult:
    """known: the attacker's own counts. Chance guesses their shares for everybody, or equal ones if nearer."""
    truth = check_classes(run.label_counts[list(clients)])
    counts = np.maximum(np.stack(guess), 0)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    results = [total_variation(shares, truth, prior) for prior in (np.ones(truth.shape[1]), *known)]
    return min(results, key=lambda one: one.chance)


ATTACKS: tuple[Attack, ...] = (_by_list, _by_member, _by_all_but_one)
"""They run on every system with ``label_counts``."""


def label_sum_findings(run: Recorded) -> tuple[list[Finding], dict[str, str]]:
    """These attacks' findings, and why some do not apply; nothing without the setting."""
    if not counts_labels(run.settings, run.mode):
        return [], {}
    return applied(ATTACKS, run, [opened] if (opened := opened_sums(run)) else [], NONE_OPENED)
