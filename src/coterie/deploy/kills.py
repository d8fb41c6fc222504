"""Kills for a rehearsal."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.deploy.logs import NodeObserver
from coterie.deploy.names import safe
from coterie.deploy.packets import Era
from coterie.protocol.errors import UserError
from coterie.transport.envelope import Opened
from coterie.transport.queues import Effects

SETUP = "setup"
_FORM = re.compile(r"(?P<party>[^@:]+)@(?P<round>[0-9]{1,9}|setup)(?P<mid>:mid)?")


@dataclass(frozen=True)
class Kill:
    """round: 0 is the set-up.

    mid: it dies at work on a message of that round, and stays away until others notice. Else it dies when the round
    begins for it, and restarts at once.
    """

    party: str
    round: int
    mid: bool = False

    def __str__(self) -> str:
        return f"{self.party}@{self.round or SETUP}{':mid' * self.mid}"


def parse(text: str, parties: Sequence[str], rounds: int, own_names: Mapping[str, str]) -> Kill:
    """``hub@2``, ``client/1@2:mid`` or ``key_centre@setup``. ``hub`` is the first party. Raises UserError.

    A party is also named as its home's folder (``client-1``), or as its data (own_names: by party).
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise UserError(f"--kill {text!r}: write PARTY@ROUND, PARTY@ROUND:mid or PARTY@setup, such as client/1@2")
    party = _named(text, found["party"], parties, own_names)
    at = 0 if found["round"] == SETUP else int(found["round"])
    if found["round"] != SETUP and not 1 <= at <= rounds:
        raise UserError(f"--kill {text!r}: the rounds are 1 to {rounds}, and {SETUP} comes before them")
    return Kill(party, at, bool(found["mid"]))


def _named(text: str, name: str, parties: Sequence[str], own_names: Mapping[str, str]) -> str:
    """Raises UserError for a name of no party, or of several."""
    names_of = {one: {one, safe(one), own_names.get(one)} for one in parties}
    names_of[parties[0]] |= {"hub"}
    meant = [one for one, names in names_of.items() if name in names]
    if not meant:
        there = (f"{one} ({own_names[one]})" if one in own_names else one for one in ("hub", *parties[1:]))
        raise UserError(f"--kill {text!r}: there is no party {name!r}. There are: {', '.join(there)}")
    if len(meant) > 1:
        raise UserError(
            f"--kill {text!r}: {name!r} means {' and '.join(meant)}, by its own name, its home or its data. Write "
            "another name of the one that you mean"
        )
    return meant[0]


class Doomed(NodeObserver):
    def __init__(self, kill: Kill, observer: NodeObserver) -> None:
        self._kill, self._observer, self._works = kill, observer, False
        for name in {name for name in dir(NodeObserver) if not name.startswith("_")} - vars(Doomed).keys():
            setattr(self, name, getattr(observer, name))

    def read(self, opened: Opened) -> None:
        self._works = self._works or opened.envelope.round == self._kill.round
        self._observer.read(opened)

    def began(self, era: Era) -> None:
        self._observer.began(era)
        if not self._kill.mid and era[0] == self._kill.round:
            _die()

    def committed(self, commit: int, size: int) -> None:
        self._observer.committed(commit, size)
        self.interrupt()

    def interrupt(self) -> None:
        if self._kill.mid and self._works:
            _die()


def doomed(kill: Kill | None, effects: Effects, observer: NodeObserver) -> tuple[Effects, NodeObserver]:
    if kill is None:
        return effects, observer
    watched = Doomed(kill, observer)
    return DoomedEffects(effects, watched), watched


class DoomedEffects:
    def __init__(self, effects: Effects, doomed: Doomed) -> None:
        self._effects, self._doomed, self.chunk = effects, doomed, effects.chunk

    def run(self, wanted: Sequence[tuple[str, Any]]) -> list[Any]:
        self._doomed.interrupt()
        return self._effects.run(wanted)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
