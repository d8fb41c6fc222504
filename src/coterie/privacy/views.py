"""What parties received in a recorded run, for any system."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coterie.method as fl
from coterie.crypto.keys import secret_key
from coterie.privacy.audits import Recorded
from coterie.transport.transcript import View


def by_round(view: View, kind: type[fl.M]) -> dict[int, dict[str, fl.M]]:
    """By round, in order, and sender, the last message of this type."""
    found: dict[int, dict[str, fl.M]] = {}
    for seen, message in view.messages(kind):
        found.setdefault(seen.round, {})[seen.src] = message
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class ReceivedKind:
    """Messages of one kind between two roles, as one role received them.

    src, dst: roles of their ends; dst differs from ``role`` where it only relayed them.  rounds: that had any, with the
    set-up.
    """

    role: str
    kind: str
    src: str
    dst: str
    count: int
    bytes: int
    rounds: int

    @property
    def relayed(self) -> bool:
        return self.role != self.dst


def received(views: Iterable[View]) -> list[ReceivedKind]:
    parties = list(views)
    role_of = {view.party: view.role for view in parties}
    found: dict[tuple[str, str, str, str], list[tuple[int, int]]] = {}
    for view in parties:
        for seen in view.seen:
            ends = role_of.get(seen.src, seen.src), role_of.get(seen.dst, seen.dst)
            dst = ends[1] if seen.message is None else view.role
            found.setdefault((view.role, seen.kind, ends[0], dst), []).append((seen.round, seen.size))
    rows = [
        ReceivedKind(*key, len(seen), sum(size for _, size in seen), len({r for r, _ in seen}))
        for key, seen in found.items()
    ]
    order = list(dict.fromkeys(view.role for view in parties))
    return sorted(rows, key=lambda row: order.index(row.role))


def granted(view: View) -> dict[str, bytes]:
    """The key centre's grant to a party, by name. Raises UserError where recording began too late."""
    for seen in view.seen:
        if seen.kind == "Granted" and seen.message is not None:
            message: Any = seen.message
            names = message.names.split("\n")
            return dict(zip(names, fl.unbundle(message.keys, len(names)), strict=True))
    raise fl.UserError(f"the view of {view.party} holds no keys: record from the set-up on")


def held_key(view: View, grant: str) -> Any:
    """A grant's key. Raises UserError where recording began too late."""
    return secret_key(granted(view)[f"secret {grant}"])


def check_real(run: Recorded) -> None:
    """Raises UserError for emulated keys, which cannot be stolen."""
    if run.options["crypto"] != "real":
        config = Path(run.options["out"] or "RUN") / "config.toml"
        again = f"coterie run --config {config} --crypto real --record --out ANOTHER_FOLDER"
        raise fl.UserError(f"an emulated key has no secret to be stolen: repeat the run with {again}")
