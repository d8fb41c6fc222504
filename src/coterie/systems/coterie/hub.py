"""Coterie's hub: it asks clients, collects their shares, and has both servers seal the rows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import coterie.method as fl
from coterie.protocols.hidden_counts import HubCounts
from coterie.protocols.hidden_servers import HubRows, Taken
from coterie.protocols.hidden_sums import HiddenUpdate, upload_name
from coterie.protocols.key_centre import Keys
from coterie.protocols.late import Gathering
from coterie.protocols.norm_check import HubNorms
from coterie.protocols.sealed_founding import Grouping, HubGroups
from coterie.selection.turns import left_out
from coterie.systems.coterie.config import CoterieConfig
from coterie.systems.coterie.messages import HELPER, HUB, Train, TrainWhole


class Hub(fl.Party, role=HUB):
    helper = HELPER
    keys = Keys(bytes, bytes)
    groups = HubGroups()
    rows = HubRows()
    norms = HubNorms()
    counts = HubCounts()
    takes = (HiddenUpdate,)

    class State(fl.State):
        """founded: what groups were made of.  owed: by client, the rounds not answered yet.
        behind: clients that have not opened the last rows.  started: that have opened the first, of groups made anew.
        silent: by client, since which round it has been asked in vain.  paces: with ``budget_s``, by client the round
        that asked it last, and its seconds.
        """

        founded: Grouping = fl.field(default_factory=Grouping)
        owed: dict[str, tuple[int, ...]] = fl.field(default_factory=dict)
        behind: frozenset[str] = frozenset()
        started: frozenset[str] = frozenset()
        silent: dict[str, int] = fl.field(default_factory=dict)
        paces: dict[str, tuple[int, float]] = fl.field(default_factory=dict)

    state: State
    config: CoterieConfig

    def setup(self) -> fl.Steps[None]:
        yield from super().setup()
        names = fl.joined(self.clients, self.config, 1)
        yield from self.groups.found(names)
        yield from self.counts.gather(0, [name for name in names if name in self.state.founded.joined])

    def round(self, r: int) -> fl.Steps[Mapping[str, Any]]:
        """A round whose sums would show too little of a crowd is skipped."""
        gathering = Gathering(self, r, self.state.owed, self.config.max_staleness)
        if self.config.budget_s is not None:
            there = frozenset(gathering.asked) & self.state.founded.joined - self.state.silent.keys()
            away = self.rows.secret.members - len(there)
            most = self.config.may_leave_out(self.rows.secret.members, self.rows.groups) - away
            out = left_out(self.state.paces, self.config.budget_s, r, max(most, 0))
            gathering.asked = tuple(name for name in gathering.asked if name not in out)
        renewed = yield from self._renew(r, gathering)
        if not self.rows.begins:  # else newcomers, who have no model yet, would add theirs
            yield from self._place(r, gathering)
        joined = self.state.founded.joined
        present = [name for name in gathering.asked if name in joined]
        yield from self.counts.gather(r, present)
        if behind := [name for name in gathering.asked if name in self.state.behind]:
            yield from self._give(r, behind)
        skipped: dict[str, Any] = {"renewed": True} if renewed else {}
        with closing(fl.Spool()) as spool:
            tickets: list[tuple[str, HiddenUpdate, int]] = []
            names: dict[tuple[str, int], bytes] = {}

            def fold(name: str, upload: HiddenUpdate) -> None:
                self.state.silent.pop(name, None)
                if not self.rows.may_add(upload.round, r):
                    gathering.settle(name, upload.round)
                    skipped["of_older_groups"] = skipped.get("of_older_groups", 0) + 1
                    return
                upload.fits(name, self.rows.length, self.rows.groups)
                if (age := gathering.settle(name, upload.round)) is not None:
                    tickets.append((name, fl.changed(upload, word=b""), spool.put(upload.word)))
                    if self.config.check == "norm":
                        names[name, upload.round] = upload_name(name, upload)
                    gathering.used[age] += 1

            def load(ticket: tuple[str, HiddenUpdate, int]) -> Taken:
                name, upload, place = ticket
                return Taken(name, upload.round, fl.changed(upload, word=spool.take(place)))

            request = TrainWhole(r) if self.rows.begins else Train(r)
            requests = {name: request for name in gathering.asked if name in joined}
            answers = yield from gathering.gather(requests, HiddenUpdate, fold)
            if self.config.budget_s is not None:
                self.state.paces |= {name: (r, seconds) for name, seconds in answers.after_s.items()}
            try:
                tossing = None
                if names:
                    tossing = yield from self.norms.proved(r, names)
                    tickets = [one for one in tickets if (one[0], one[1].round) in tossing.proofs]
                    skipped["unproved"] = len(names) - len(tickets)
                on_time = sum(upload.round == r for _, upload, _ in tickets)
                added = yield from self.rows.add(r, on_time, tickets, load, tossing)
            except (fl.NoAnswerError, fl.PeerError) as error:
                added, skipped = 0, {**skipped, "skipped": str(error)}
        if added:
            self.state.behind = joined
            yield from self._give(r, tuple(requests))
        founded = self.state.founded
        found = {"groups": founded.groups, "without_group": len(self.clients) - len(joined)}
        if false := self.secret.groups.false:
            found["false_marks"] = len(false)  # lists of the run
        return {**gathering.notes(), "added": added, **found, **skipped}

    def _renew(self, r: int, gathering: Gathering) -> fl.Steps[bool]:
        silent, patience = self.state.silent, max(1, self.config.max_staleness)
        left = {name for name, since in silent.items() if r - since > patience}
        for name in gathering.asked:
            silent.setdefault(name, r)
        renewed = yield from self.groups.renew(r, left)
        if renewed:
            self.state.behind = self.state.started = frozenset()
        else:
            before = self.state.founded.joined
            yield from self.groups.hand_out(r, gathering.asked)
            self.state.behind |= self.state.founded.joined - before
        return renewed

    def _place(self, r: int, gathering: Gathering) -> fl.Steps[None]:
        waiting = [name for name in gathering.asked if name not in self.state.founded.members]
        if waiting:
            yield from self.groups.place(r, waiting)
            self.state.behind |= self.state.founded.joined & frozenset(waiting)

    def _give(self, r: int, names: Any) -> fl.Steps[None]:
        """Send the last rows, and before them the first ones of these clients' groups."""
        sealed, first = self.rows.secret.sealed, self.rows.secret.first
        if sealed is None:
            return
        if first is not None and first.round < sealed.round:
            late = [name for name in names if name not in self.state.started]
            if late:
                answers = yield from self.rows.give(r, late, first=True)
                self.state.started |= frozenset(answers.got)
            names = [name for name in names if name in self.state.started]
        answers = yield from self.rows.give(r, names)
        self.state.behind -= frozenset(answers.got)
        if first is not None:
            self.state.started |= frozenset(answers.got)
        for name in answers.got:
            self.state.silent.pop(name, None)
