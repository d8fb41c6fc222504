"""Coterie's client: it trains its group's model, and alone knows its group."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import coterie.method as fl
from coterie.aggregation.buffers import not_below_zero
from coterie.crypto import shared_rows
from coterie.protocols.hidden_counts import ClientCounts
from coterie.protocols.hidden_settings import UPDATE
from coterie.protocols.hidden_sums import ClientRow, GroupRow, HiddenUpdate, numbers_name
from coterie.protocols.key_centre import HeldKeys
from coterie.protocols.norm_check import ClientNorms
from coterie.protocols.sealed_groups import ClientGroups
from coterie.protocols.setup_sums import ClientSums
from coterie.systems.coterie.config import CoterieConfig
from coterie.systems.coterie.messages import CLIENT, HELPER, Train, TrainWhole

LOST = "its place or its group's sum is impossible"


class Client(fl.Party, role=CLIENT):
    helper = HELPER
    keys = HeldKeys(bytes, bytes)
    row = ClientRow()
    norms = ClientNorms()
    sums = ClientSums()
    groups = ClientGroups()
    counts = ClientCounts()

    class State(fl.State):
        """weights: (d,) its group's model, as sent last.  round: the last one that it has trained for.
        uploads: the rounds in which it has sent one.  wholes: those in which it was a whole model.
        made: of all uploads of its last round the round, that of their groups, and a name of their numbers and of all
        rows before them: after other rows all clients refuse.
        start: (d,) the model to which its group's sum is added.
        why: it keeps its model, or has uploaded zeros, and tells nobody: else a server that has spoilt one group would
        see by name who complains.
        control, drift: with control variates, how far this client and its group move in a round, by the last ones that
        were added up.  latest: the client's by its last training.
        """

        weights: fl.Vector = fl.initial
        round: int = 0
        uploads: tuple[int, ...] = ()
        wholes: tuple[int, ...] = ()
        made: tuple[tuple[int, int, bytes], ...] = ()
        start: fl.Vector = fl.initial
        why: str = ""
        control: fl.Vector | None = None
        latest: fl.Vector | None = None
        drift: fl.Vector | None = None

    state: State
    config: CoterieConfig
    LASTS = ("uploads", "wholes", "made")

    @property
    def grid(self) -> shared_rows.Grid:
        return self.config.grid(len(self.clients), self.spec)

    def releases(self) -> list[fl.Release]:
        # No clip bounds a whole model, and it may be of a former run. With DP-SGD all else has the training's proof.
        config, wholes, training = self.config, self.state.wholes, None
        if config.sample_noise is not None:
            (training,) = fl.told(config, self.samples, self.epochs, [fl.FromTraining(UPDATE)], 0)
        counts = [] if self.counts.secret.sent is None else [config.counts_release(self.grid)]
        return counts + [
            replace(config.release(self.grid, r, whole=r in wholes), sample=None if r in wholes else training)
            for r in self.state.uploads
        ]

    @fl.on(Train, fl.training, answers=HiddenUpdate)
    def train(self, msg: Train, src: str) -> fl.Work[HiddenUpdate]:
        """Once a round. An upload that is made again has the same numbers, in fresh shares."""
        if not self.row.secret.started:
            raise fl.PeerError("a change is wanted of a model whose group has not begun")
        return (yield from self._trained(msg))

    @fl.on(TrainWhole, fl.training, answers=HiddenUpdate, when=lambda config, mode: config.foundings > 1)
    def train_whole(self, msg: TrainWhole, src: str) -> fl.Work[HiddenUpdate]:
        """With its whole model on top, before its group's first row."""
        if self.row.secret.started:
            raise fl.PeerError("a whole model is wanted of new groups alone, before their first row")
        if self.common.warm and not self.row.secret.since and self.own.starts is None:
            raise fl.PeerError(f"{self.name} has no model of a former run, and waits for its group's")
        update = yield from self._trained(msg)
        self.state.wholes = (*self.state.wholes, msg.round)
        return update

    def _trained(self, msg: Train | TrainWhole) -> fl.Work[HiddenUpdate]:
        if msg.round <= self.state.round:
            raise fl.PeerError(f"asked to train for round {msg.round} after round {self.state.round}")
        uploads = self.state.uploads
        spent = len(uploads) + (self.counts.secret.sent is not None)
        if msg.round not in uploads and not self.config.affords(self.grid, spent):
            raise fl.PeerError(f"{self.name} has spent its privacy budget, and uploads nothing in round {msg.round}")
        start, self.state.why = self.state.weights, ""
        turn = self._turn()
        state = self.config.turned(turn, self.samples, self.epochs)
        try:
            fitted: fl.Fitted = yield fl.fit(self, start, msg.round, state=state)
            change = np.subtract(fitted.weights, start, dtype=np.float64)
        except fl.PeerError as error:
            self.state.why, change = str(error), np.full(len(start), np.nan)
        if not np.isfinite(change).all():
            self.state.why, change = self.state.why or "its training gave no numbers", np.zeros_like(change)
        weight = self.sums.secret.weight / shared_rows.PARTS
        step = self.config.server_step(msg.round)
        x = self.grid.words(change, weight * step, self.rng("rounding", msg.round), self.spec.buffers)
        if self.config.foundings > 1:
            x = np.append(x, np.uint32(0))
        if isinstance(msg, TrainWhole):
            whole, cut = self.grid.whole(start.astype(np.float64) - self.common.initial, weight, len(self.clients))
            x, self.state.why = x + whole, "its model is too far from the first to be sent" if cut else self.state.why
        if self.row.secret.lost:
            x, self.state.why = np.zeros_like(x), LOST
        if self.config.control_variates:
            length = shared_rows.squares(change[~self.spec.buffers]) ** 0.5
            self.state.latest = (turn - change * min(1.0, self.config.clip / max(length, 1e-300))).astype(np.float32)
        made = msg.round, self.row.secret.since, numbers_name(x, self.row.secret.opened)
        before = tuple(one for one in self.state.made if one[0] == msg.round and one != made)
        if made[:2] in (one[:2] for one in before):  # servers' noise is of clients and rounds
            raise fl.PeerError(f"another upload for round {msg.round}: the difference of both sums would have no noise")
        self.state.round, self.state.made = msg.round, (*before, made)
        self.state.uploads = tuple(dict.fromkeys((*uploads, msg.round)))
        update = self.row.upload(x, msg.round)
        if self.config.check == "norm":
            self.norms.keep(x, update, self.row.secret.groups)
        return update

    @fl.on(GroupRow, answers=fl.Done)
    def take(self, msg: GroupRow, src: str) -> fl.Done:
        row = self.row.secret
        if self.row.has(msg):  # its answer was late, so the hub sends it again
            return fl.Done(msg.round)
        begins, before, added = not row.started, row.round, row.rounds
        total = self.row.opened(msg)
        if shared_rows.may_wrap(total) or row.lost:  # a sum that has wrapped may come back into range
            row.lost, self.state.why = True, LOST
        else:
            change, d = self.grid.change(total, self.row.secret.total), self.spec.size
            if begins:
                self.state.start = (self.common.initial + self.grid.mean(change) - change[:d]).astype(np.float32)
            change[:d] += self.state.start
            model = not_below_zero(self.spec, change[:d]).astype(np.float32)
            if self.config.control_variates:
                steps = [self.config.server_step(r) for r in range(before + 1, msg.sealed_in + 1)]
                self.state.control = self.state.latest
                self.state.drift = self._drift(self.state.weights - model, msg.rounds - added, float(np.mean(steps)))
            self.state.weights = model
        return fl.Done(msg.round)

    @property
    def kept_back(self) -> str:
        return self.state.why

    def last_starts(self) -> fl.Vector:
        return np.asarray(self.state.weights[None])

    def _turn(self) -> fl.Vector:
        """(d,) how far the next training is turned, in all its steps."""
        control, drift = self.state.control, self.state.drift
        if control is None or drift is None:
            return np.zeros(self.spec.size, np.float32)
        return np.asarray(self.config.control_variates * (control - drift), np.float32)

    def _drift(self, moved: fl.Vector, rounds: int, step: float) -> fl.Vector:
        """(d,) how far the group moves in a round if all take part.

        moved: back, in so many rounds that were not skipped, of this ``server_step`` on average. With a share p of the
        clients asked, 1/p rounds count.
        """
        share, last = self.config.participation, self.state.drift
        now = moved / np.float32(share * step * rounds)
        kept = np.float32((1 - share) ** rounds)
        return now if last is None else kept * last + (1 - kept) * now
