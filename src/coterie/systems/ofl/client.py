"""OFL's client as a member of its cluster: algorithm 2, l. 4 to 16, and its downloads."""

from __future__ import annotations

import hashlib
from math import inf

import numpy as np

import coterie.method as fl
from coterie.crypto.ckks import PublicKey, SecretKey
from coterie.protocols.key_centre import HeldKeys
from coterie.protocols.noise import affords, left
from coterie.protocols.reports import StatusReport, reported, summary
from coterie.protocols.threshold import JointKeys, JointPads, KeyMaking, KeyOpening
from coterie.selection.parameters import count, stalest_first
from coterie.systems.ofl import messages
from coterie.systems.ofl.config import check_usual, joint_of, shares
from coterie.systems.ofl.messages import CLIENT, LEADER, Fresh, Kept, Mandate, Places, Tell, Upload
from coterie.systems.ofl.sparse import bits, check_sparse, places_of
from coterie.systems.ofl.uploads import MemberState, Released, Uploading


class Member(Uploading, role=CLIENT, also=(LEADER,)):
    keys, joint = HeldKeys(PublicKey, SecretKey), JointKeys(lambda party: (joint_of(party.config),))
    making, opening, pads = KeyMaking(joint_of=joint_of), KeyOpening(joint_of=joint_of), JointPads(joint_of=joint_of)

    State = MemberState
    LASTS = ("released",)  # a repeated round repeats an upload, which releases nothing more

    @property
    def model(self) -> fl.Vector:
        return self.common.initial if self.state.weights is None else self.state.weights

    @property
    def synced(self) -> Places:
        """(p,) the round of each parameter's last download; 0 for the initial model."""
        return np.zeros(len(self.places), np.int32) if self.state.synced is None else self.state.synced

    # -- its status ----------------------------------------------------------------------------------------------------

    @fl.on(Tell, answers=StatusReport)
    def tell(self, msg: Tell, src: str) -> fl.Work[StatusReport]:
        if msg.round < self.state.told:
            raise fl.PeerError(f"asked for a report of round {msg.round} after round {self.state.told}")
        return (yield from self.status(msg.round))

    def status(self, r: int) -> fl.Work[StatusReport]:
        if self.state.told == r and self.state.report:
            return fl.codec.decode(self.state.report, StatusReport)
        spent = len(self.state.released)
        epsilon = inf if self.mechanism is None else left(self.config.budget(), self.mechanism.release(), spent)
        report = yield from reported(self, r, self.config.step_s, epsilon, self.state.summary)
        self.state.told, self.state.report = r, fl.codec.encode(report)
        return report

    # -- uploads -------------------------------------------------------------------------------------------------------

    @fl.on(messages.Work, fl.training, answers=Upload)
    def work(self, msg: messages.Work, src: str) -> fl.Work[Upload]:
        """Algorithm 2, l. 6 to 14."""
        self.check_leader(msg, src)
        return (yield from self.opportunity(msg.round, msg.usual))

    def check_leader(self, msg: messages.ToMember, leader: str) -> None:
        """Raises PeerError unless the hub has named this leader for the round."""
        named = Mandate(msg.round, msg.cluster, leader, msg.usual, signature=msg.mandate)
        fl.check_signed(self.common, self.common.roster.hub, named, self.name)

    def opportunity(self, r: int, usual: float) -> fl.Work[Upload]:
        """Trains, selects as much as eq. (4) allows, and adds noise."""
        if r <= self.state.trained:
            raise fl.PeerError(f"asked to work for round {r} after round {self.state.trained}")
        report = yield from self.status(r)
        gamma = shares(report, self.spec, self.config, check_usual(self.config, usual))
        places, values = np.zeros(0, np.int64), np.zeros(0, np.float32)
        released = self.state.released
        affordable = self.mechanism is None or affords(self.config.budget(), self.mechanism.release(), len(released))
        again = bool(released) and released[-1].round == r
        if gamma.up > 0 and (affordable or again):
            start, k = self.model, count(gamma.up, len(self.places))
            fitted: fl.Fitted = yield fl.fit(self, start, r)
            self.state.weights = fitted.weights
            asked = hashlib.blake2b(r.to_bytes(8, "little") + start.tobytes() + fitted.weights.tobytes()).digest()
            one = Released(r, k, asked[:16])
            if affordable or one in released:
                places, values = self.selected(r, start, fitted.weights, k, asked)
                if self.config.mechanism != "distributed":  # its uploads are for the leader alone
                    self.state.summary = summary(self.common, places, values)
                self.state.released = released if one in released else [*released, one]
        self.state.trained = r
        upload = self.upload(r, (gamma.up, gamma.down), places, values)
        return fl.signed(self.own, fl.changed(upload, report=fl.codec.encode(report)))

    def upload(self, r: int, gamma: tuple[float, float], places: fl.Integers, values: fl.Vector) -> Upload:
        total = len(self.places)
        self.state.wants = count(gamma[1], total) if gamma[1] > 0 else 0
        self.state.ratios = gamma
        wanted = (
            bits(stalest_first(self.synced, self.state.wants), total) if self.state.wants else bytes((total + 7) // 8)
        )
        sent = places.astype(np.int32) if self.mechanism is None else None
        return Upload(r, self.spec.digest, sent, values, wanted, b"")

    # -- downloads -----------------------------------------------------------------------------------------------------

    @fl.on(Fresh, answers=Kept)
    def fresh(self, msg: Fresh, src: str) -> Kept:
        self.check_leader(msg, src)
        if msg.round <= self.state.heard:
            raise fl.PeerError(f"parameters of round {msg.round} after those of round {self.state.heard}")
        self.download(msg.round, places_of(msg.places, len(self.places)), msg.values)
        return Kept(msg.round)

    def download(self, r: int, chosen: fl.Integers, values: fl.Vector) -> None:
        """Raises PeerError for more parameters than it has asked for."""
        if len(chosen) > self.state.wants:
            raise fl.PeerError(f"{len(chosen)} parameters, where {self.state.wants} were asked for")
        places = check_sparse(self.places[chosen], values, ~self.spec.buffers)
        weights, synced = self.model.copy(), self.synced.copy()
        weights[places], synced[chosen] = values, r
        if self.config.mechanism == "paper":
            self.state.before, self.state.last = self.state.last, weights
        self.state.weights, self.state.synced, self.state.heard = weights, synced, r
