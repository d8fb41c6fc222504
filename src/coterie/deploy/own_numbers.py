"""What a party that is not the hub can tell of itself while it runs, for its owner's Prometheus."""

from __future__ import annotations

import time

import msgspec

from coterie.crypto.certificates import validity
from coterie.deploy.home import Home, plan_of, read_private
from coterie.deploy.logs import Journal, Say
from coterie.deploy.packets import Era, Report
from coterie.deploy.status import PartyStatus, RunStatus, first_status


class OwnNumbers(Journal):
    """The ``NodeObserver`` of a party that is not the hub: writes its log, and sums up its reports as the hub does."""

    def __init__(self, home: Home, say: Say) -> None:
        super().__init__(say=say)
        own = PartyStatus(name=home.name, role=home.role, connected=True)
        self._home, self._since, self._told = home, time.time(), (own, Report((0, 0), 0))

    @property
    def status(self) -> RunStatus:
        """Of this party alone. Raises UserError if it is revoked."""
        plan, (sums, last) = plan_of(self._home), self._told
        own = msgspec.structs.replace(sums, round=last.era[0], attempt=last.era[1], commit=last.commit)
        own.add(last)
        ends = {own.name: validity(read_private(self._home.certificate))[1]}
        at = {"round": own.round, "attempt": own.attempt, "done": max(0, own.round - 1), "since": self._since}
        phase = "round" if own.round else "waiting"
        return msgspec.structs.replace(first_status(plan), phase=phase, parties=(own,), certificates=ends, **at)

    def began(self, era: Era) -> None:
        super().began(era)
        self._since = time.time()

    def seen(self, party: str) -> None:
        self._told[0].last_seen = time.time()

    def told(self, report: Report) -> None:
        sums, last = self._told
        if report.era != last.era:
            sums = msgspec.structs.replace(sums)
            sums.add(last)
        self._told = sums, report
