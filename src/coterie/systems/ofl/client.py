"""OFL's client as a member of its cluster: algorithm 2, l. 4 to 16, and its downloads."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from math import inf
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

import coterie.method as fl
from coterie.crypto.ckks import PublicKey, SecretKey
from coterie.crypto.roster import check_signed, signed
from coterie.dp.distributed import Distributed
from coterie.dp.heuristic import perturbed
from coterie.dp.heuristic import release as heuristic_release
from coterie.dp.uploads import Standard, eligible, shared_set
from coterie.protocols.key_centre import HeldKeys
from coterie.protocols.local_training import told
from coterie.protocols.noise import affords, left, rotation
from coterie.protocols.reports import StatusReport, reported, summary
from coterie.protocols.threshold import JointKeys, JointPads, KeyMaking, KeyOpening
from coterie.selection.parameters import count, density, gumbel_top_k, max_min, o_factor, stalest_first
from coterie.selection.resources import Ratios
from coterie.systems.ofl import messages
from coterie.systems.ofl.config import OFLConfig, check_usual, joint_of, shares
from coterie.systems.ofl.messages import CLIENT, LEADER, Fresh, Kept, Mandate, Tell, Upload
from coterie.systems.ofl.sparse import Indices, bits, check_sparse, places_of

NOISE = "upload noise"
UPLOAD = "clipped change of the model"
OWN_LEADER, OTHERS = ("own leader",), ("server", "other leaders", "other clients", "public")
"""Who sees an upload for a sum, and who the sum, unless they know too much of its noise."""


class Released(msgspec.Struct, frozen=True):
    """One upload: its round, its number of values, and 16 bytes that name the models before and after its training.

    The same models give the same values and the same noise (``Party.kept``).
    """

    round: int
    count: int
    of: bytes


class MemberState(msgspec.Struct):
    """A client's state. Vectors are (d,) float32.

    weights: its model.  last, before: theta_0 and theta_1 of eq. (5), its model after the last two downloads, where
    the o-factor is used.  synced: (p,) by parameter the round of its last download.
    trained: the last round that it worked for.  heard: the last round of a download.  wants: how many parameters it
    last asked for.  report: its last status report.  summary: (8,) of its last upload.  released: its uploads.
    ratios: gamma_up and gamma_down of the last round, for the observer.  led: the last round that it led.
    """

    weights: fl.Vector | None = None
    last: fl.Vector | None = None
    before: fl.Vector | None = None
    synced: NDArray[np.int32] | None = None
    trained: int = 0
    heard: int = 0
    wants: int = 0
    report: bytes = b""
    told: int = 0
    summary: fl.Vector | None = None
    released: list[Released] = msgspec.field(default_factory=list)
    ratios: tuple[float, float] = (0.0, 0.0)
    led: int = 0


class Member(fl.Party, role=CLIENT, also=(LEADER,)):
    keys, joint = HeldKeys(PublicKey, SecretKey), JointKeys(lambda party: (joint_of(party.config),))
    making, opening, pads = KeyMaking(joint_of=joint_of), KeyOpening(joint_of=joint_of), JointPads(joint_of=joint_of)

    State = MemberState
    state: MemberState
    config: OFLConfig

    def __init__(self, own: fl.Own, common: fl.Common, config: OFLConfig) -> None:
        super().__init__(own, common, config)
        self.places = eligible(common.spec)

    @property
    def mechanism(self) -> Standard | Distributed | None:
        return None if self.config.mechanism == "paper" else self.config.uploads(len(self.places))

    def makers(self, r: int) -> int:
        return self.config.makers(len(fl.joined(self.common.clients, self.config, r)), 0)

    @property
    def model(self) -> fl.Vector:
        return self.common.initial if self.state.weights is None else self.state.weights

    @property
    def synced(self) -> NDArray[np.int32]:
        """(p,) by parameter the round of its last download; 0 for the initial model."""
        return np.zeros(len(self.places), np.int32) if self.state.synced is None else self.state.synced

    def lasts(self, state: Any, secret: Any) -> None:
        """What has been released, when a round is tried again: repeating an upload releases nothing more."""
        super().lasts(state, secret)
        self.state.released = state.released

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

    def check_leader(self, msg: messages.Work | Fresh, leader: str) -> None:
        """Raises PeerError unless the hub has named this party its leader in this round."""
        named = Mandate(msg.round, msg.cluster, leader, msg.usual, signature=msg.mandate)
        check_signed(self.common, self.common.roster.hub, named, self.name)

    def opportunity(self, r: int, usual: float) -> fl.Work[Upload]:
        """Train, select as much as eq. (4) allows, and add noise."""
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
        upload = self.upload(r, gamma, places, values)
        return signed(self.own, msgspec.structs.replace(upload, report=fl.codec.encode(report)))

    def upload(self, r: int, gamma: Ratios, places: Indices, values: fl.Vector) -> Upload:
        total = len(self.places)
        self.state.wants = count(gamma.down, total) if gamma.down > 0 else 0
        self.state.ratios = gamma.up, gamma.down
        wanted = (
            bits(stalest_first(self.synced, self.state.wants), total) if self.state.wants else bytes((total + 7) // 8)
        )
        sent = places.astype(np.int32) if self.mechanism is None else None
        return Upload(r, self.spec.digest, sent, values, wanted, b"")

    def selected(self, r: int, start: fl.Vector, trained: fl.Vector, k: int, asked: bytes) -> tuple[Indices, fl.Vector]:
        """The places of k parameters in the model, and the values sent. asked: names both models, for the noise.

        "paper": the exponential mechanism with the o-factor as utility (l. 11), and Laplace noise around density
        clusters (l. 12 and 13). "standard": the clipped change at public places with Gaussian noise. "distributed": of
        the clipped and rotated change the whole numbers at public places, with a share of noise if members add it.
        """
        config, mechanism, session = self.config, self.mechanism, self.common.roster.session
        if isinstance(mechanism, Standard):
            places = shared_set(self.places, k, session, self.name, r)
            return places, mechanism.noised((trained - start)[places], self.kept(NOISE, asked, r))
        if isinstance(mechanism, Distributed):
            change = (trained - start)[self.places]
            numbers = mechanism.on_grid(change, rotation(session, r), self.kept("rounding", asked, r))
            if config.noise_by == "members":
                numbers += mechanism.share(self.makers(r), self.kept(NOISE, asked, r))
            chosen = shared_set(np.arange(len(self.places)), k, session, self.name, r)
            return self.places[chosen], numbers[chosen].astype(np.float32)
        theta = trained[self.places]
        last = before = np.zeros_like(theta)
        if self.state.last is not None and self.state.before is not None:  # it has been synced twice
            last, before = self.state.last[self.places], self.state.before[self.places]
        dense = density(theta)
        utility = max_min(o_factor(theta, last, before, dense, literal=self.common.mode == "literal"))  # eq. (5)
        chosen = gumbel_top_k(utility, k, config.epsilon1, self.kept("selection", asked, r))
        return self.places[chosen], perturbed(theta[chosen], dense[chosen], config.epsilon2, self.kept(NOISE, asked, r))

    # -- downloads -----------------------------------------------------------------------------------------------------

    @fl.on(Fresh, answers=Kept)
    def fresh(self, msg: Fresh, src: str) -> Kept:
        self.check_leader(msg, src)
        if msg.round <= self.state.heard:
            raise fl.PeerError(f"parameters of round {msg.round} after those of round {self.state.heard}")
        self.download(msg.round, places_of(msg.places, len(self.places)), msg.values)
        return Kept(msg.round)

    def download(self, r: int, chosen: Indices, values: fl.Vector) -> None:
        """Put values at these parameters. Raises PeerError for more than it has asked for."""
        if len(chosen) > self.state.wants:
            raise fl.PeerError(f"{len(chosen)} parameters, where {self.state.wants} were asked for")
        places = check_sparse(self.places[chosen], values, ~self.spec.buffers)
        weights, synced = self.model.copy(), self.synced.copy()
        weights[places], synced[chosen] = values, r
        if self.config.mechanism == "paper":
            self.state.before, self.state.last = self.state.last, weights
        self.state.weights, self.state.synced, self.state.heard = weights, synced, r

    # -- privacy -------------------------------------------------------------------------------------------------------

    def releases(self) -> list[fl.Release]:
        config, mechanism, released = self.config, self.mechanism, self.state.released
        if isinstance(mechanism, Standard):
            return [self.of_training(mechanism.release(one.round)) for one in released]
        if isinstance(mechanism, Distributed):
            return [self.of_training(each) for one in released for each in self.seen_as(mechanism, one.round)]
        heuristic = [heuristic_release(one.count, config.epsilon1, config.epsilon2, one.round) for one in released]
        return [self.of_training(one) for one in heuristic]

    def of_training(self, upload: fl.Release) -> fl.Release:
        """The upload with the proof that DP-SGD gives it for a sample, too. Each observer's view counts for itself."""
        if self.config.sample_noise is None:
            return upload
        (training,) = told(self.config, self.samples, self.epochs, [fl.FromTraining(UPLOAD)], 0)
        if upload.mechanism == "heuristic":
            return replace(training, what=upload.what, round=upload.round)
        return replace(upload, sample=training)

    def seen_as(self, mechanism: Distributed, r: int) -> tuple[fl.Release, fl.Release]:
        """What its own leader sees of an upload for a sum, and what all see that know too little of the others' noise.

        A leader that adds noise knows a share, which is too much with ``missing=0``. Of members' noise a leader knows
        all that of its own members. Then no more is certain than the client's own share.
        """
        by_members, knows = self.config.noise_by == "members", set(OWN_LEADER)
        if by_members or not mechanism.missing:
            knows.add("other leaders")
        near, far = (tuple(o for o in OWN_LEADER + OTHERS if (o in knows) == known) for known in (True, False))
        if by_members:
            return mechanism.release_alone(UPLOAD, self.makers(r), r, near), mechanism.release(r, far)
        return fl.Release(UPLOAD, neighbours="replace one client", round=r, against=near), mechanism.release(r, far)
