"""Coterie's client: it trains its group's model, and alone knows its group."""

from __future__ import annotations

from typing import Any

import numpy as np

import coterie.method as fl
from coterie.aggregation.buffers import not_below_zero
from coterie.crypto import shared_rows
from coterie.dp.ledger import Release
from coterie.protocols.hidden_sums import ClientRow, GroupRow, HiddenUpdate, RowOpened
from coterie.protocols.key_centre import HeldKeys
from coterie.protocols.noise import affords
from coterie.protocols.norm_check import ClientNorms
from coterie.protocols.sealed_groups import ClientGroups
from coterie.protocols.setup_sums import ClientSums
from coterie.systems.coterie.config import CoterieConfig
from coterie.systems.coterie.messages import CLIENT, HELPER, Train, TrainWhole


class Client(fl.Party, role=CLIENT):
    """It trains, and uploads its clipped change in shares."""

    keys = HeldKeys(bytes, bytes)
    row = ClientRow()
    norms = ClientNorms(HELPER)
    sums = ClientSums(HELPER)
    groups = ClientGroups(HELPER)

    class State(fl.State):
        """weights: (d,) its group's model, as it was sent last.  round: the last one that it has trained for.

        uploads: the rounds in which it has sent one.  wholes: those in which it was a whole model.
        start: (d,) the model to which its group's sum is added.
        alarmed: the group's sum left the range in which it cannot have wrapped, so the model stayed as it was. Or
            training gave no numbers, so zeros were uploaded.
        """

        weights: fl.Vector = fl.initial
        round: int = 0
        uploads: tuple[int, ...] = ()
        wholes: tuple[int, ...] = ()
        start: fl.Vector = fl.initial
        alarmed: bool = False

    state: State
    config: CoterieConfig

    @property
    def grid(self) -> shared_rows.Grid:
        return self.config.grid(len(self.clients), self.spec)

    def lasts(self, state: Any, secret: Any) -> None:
        """Uploads count in any attempt of a round."""
        super().lasts(state, secret)
        self.state.uploads, self.state.wholes = state.uploads, state.wholes

    def releases(self) -> list[Release]:
        """What has left this client in the rounds. No clip bounds a whole model."""
        state = self.state
        return [self.config.release(self.grid, r, whole=r in state.wholes) for r in state.uploads]

    @fl.on(Train, fl.training, answers=HiddenUpdate)
    def train(self, msg: Train, src: str) -> fl.Work[HiddenUpdate]:
        """Train for a round, once. An upload that is made again has the same numbers, in fresh shares."""
        return (yield from self._trained(msg))

    @fl.on(TrainWhole, fl.training, answers=HiddenUpdate, when=lambda config, mode: config.foundings > 1)
    def train_whole(self, msg: TrainWhole, src: str) -> fl.Work[HiddenUpdate]:
        """The same, with its whole model on top."""
        update = yield from self._trained(msg)
        self.state.wholes = (*self.state.wholes, msg.round)
        return update

    def _trained(self, msg: Train | TrainWhole) -> fl.Work[HiddenUpdate]:
        if msg.round <= self.state.round:
            raise fl.PeerError(f"asked to train for round {msg.round} after round {self.state.round}")
        uploads = self.state.uploads
        if msg.round not in uploads and not affords(self.config.budget(), self.config.release(self.grid), len(uploads)):
            raise fl.PeerError(f"{self.name} has spent its privacy budget, and uploads nothing in round {msg.round}")
        start = self.state.weights
        fitted: fl.Fitted = yield fl.fit(self, start, msg.round)
        change = fitted.weights.astype(np.float64) - start
        if not np.isfinite(change).all():  # unsaid, too: a server can have spoilt one group's row to see who is in it
            self.state.alarmed, change = True, np.zeros_like(change)
        weight = self.sums.secret.weight / shared_rows.PARTS
        step = self.config.server_step(msg.round)
        x = self.grid.words(change, weight * step, self.rng("rounding", msg.round), self.spec.buffers)
        if self.config.foundings > 1:
            x = np.append(x, np.uint32(0))
        if isinstance(msg, TrainWhole):
            x = x + self.grid.whole(start.astype(np.float64) - self.common.initial, weight, len(self.clients))
        self.state.round = msg.round
        self.state.uploads = tuple(dict.fromkeys((*uploads, msg.round)))
        update = self.row.upload(x, msg.round, HELPER)
        if self.config.check == "norm":
            self.norms.keep(x, update, self.row.secret.groups)
        return update

    @fl.on(GroupRow, answers=RowOpened)
    def take(self, msg: GroupRow, src: str) -> RowOpened:
        """Open its group's sum, which says the model."""
        begins = not self.row.secret.started
        total = self.row.opened(msg, src, HELPER)
        if shared_rows.may_wrap(total):
            self.state.alarmed = True  # unsaid: whose sum it is would show who is in its group
        else:
            change, d = self.grid.change(total, self.row.secret.total), self.spec.size
            if begins:
                self.state.start = (self.common.initial + self.grid.mean(change) - change[:d]).astype(np.float32)
            model = not_below_zero(self.spec, self.state.start + change[:d])
            self.state.weights = model.astype(np.float32)
        return RowOpened(msg.round)
