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
from coterie.systems.coterie.messages import CLIENT, HELPER, Train


class Client(fl.Party, role=CLIENT):
    """It trains, and uploads its clipped change in shares."""

    keys = HeldKeys(bytes, bytes)
    row = ClientRow()
    norms = ClientNorms(HELPER)
    sums = ClientSums(HELPER)
    groups = ClientGroups(HELPER)

    class State(fl.State):
        """weights: (d,) its group's model, as it was sent last.  round: the last one that it has trained for.

        uploads: the rounds in which it has sent one.
        alarmed: the group's sum left the range in which it cannot have wrapped, so the model stayed as it was. Or
            training gave no numbers, so zeros were uploaded.
        """

        weights: fl.Vector = fl.initial
        round: int = 0
        uploads: tuple[int, ...] = ()
        alarmed: bool = False

    state: State
    config: CoterieConfig

    @property
    def grid(self) -> shared_rows.Grid:
        return self.config.grid(len(self.clients), self.spec)

    def lasts(self, state: Any, secret: Any) -> None:
        """Uploads count in any attempt of a round."""
        super().lasts(state, secret)
        self.state.uploads = state.uploads

    def releases(self) -> list[Release]:
        """What has left this client in the rounds."""
        return [self.config.release(self.grid, r) for r in self.state.uploads]

    @fl.on(Train, fl.training, answers=HiddenUpdate)
    def train(self, msg: Train, src: str) -> fl.Work[HiddenUpdate]:
        """Train for a round, once. An upload that is made again has the same numbers, in fresh shares."""
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
        weight = self.sums.secret.weight / shared_rows.PARTS * self.config.server_step(msg.round)
        x = self.grid.words(change, weight, self.rng("rounding", msg.round), self.spec.buffers)
        self.state.round = msg.round
        self.state.uploads = tuple(dict.fromkeys((*uploads, msg.round)))
        update = self.row.upload(x, msg.round, HELPER)
        if self.config.check == "norm":
            self.norms.keep(x, update, self.row.secret.groups)
        return update

    @fl.on(GroupRow, answers=RowOpened)
    def take(self, msg: GroupRow, src: str) -> RowOpened:
        """Open its group's sum, which says the model."""
        total = self.row.opened(msg, src, HELPER)
        if shared_rows.may_wrap(total):
            self.state.alarmed = True  # unsaid: whose sum it is would show who is in its group
        else:
            change = self.grid.change(total, self.row.secret.total)
            model = not_below_zero(self.spec, self.common.initial + change)
            self.state.weights = model.astype(np.float32)
        return RowOpened(msg.round)
