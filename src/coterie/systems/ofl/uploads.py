"""What an OFL client uploads of what it has trained (algorithm 2, l. 11 to 13), and what that releases of its data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import coterie.method as fl
from coterie.dp.distributed import Distributed
from coterie.dp.heuristic import perturbed
from coterie.dp.heuristic import release as heuristic_release
from coterie.dp.uploads import Standard, eligible, shared_set
from coterie.protocols.noise import rotation
from coterie.selection.parameters import density, gumbel_top_k, max_min, o_factor
from coterie.systems.ofl.config import OFLConfig
from coterie.systems.ofl.messages import Places

NOISE = "upload noise"
UPLOAD = "clipped change of the model"
OWN_LEADER, OTHERS = ("own leader",), ("server", "other leaders", "other clients", "public")
"""Who sees an upload for a sum, and who the sum, unless they know too much of its noise."""


class Released(fl.State, frozen=True):
    """of: 16 bytes that name the models before and after its training, on which values and noise depend
    (``Party.kept``).
    """

    round: int
    count: int
    of: bytes


class MemberState(fl.State):
    """Vectors are (d,) float32.

    weights: its model.  last, before: theta_0 and theta_1 of eq. (5), its model after the last two downloads, where the
    o-factor is used.  synced: (p,) by parameter the round of its last download.
    trained: the last round that it worked for.  heard: of a download.  led: that it led.  wants: how many parameters it
    last asked for.  report: its last status report.  summary: (8,) of its last upload.
    ratios: gamma_up and gamma_down of the last round, for the observer.
    """

    weights: fl.Vector | None = None
    last: fl.Vector | None = None
    before: fl.Vector | None = None
    synced: Places | None = None
    trained: int = 0
    heard: int = 0
    wants: int = 0
    report: bytes = b""
    told: int = 0
    summary: fl.Vector | None = None
    released: list[Released] = fl.field(default_factory=list)
    ratios: tuple[float, float] = (0.0, 0.0)
    led: int = 0


class Uploading(fl.Party):
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

    def selected(
        self, r: int, start: fl.Vector, trained: fl.Vector, k: int, asked: bytes
    ) -> tuple[fl.Integers, fl.Vector]:
        """The places of k parameters, and the values sent. asked: names both models, for the noise.

        "paper": the exponential mechanism with the o-factor as utility (l. 11), Laplace noise around density clusters
        (l. 12, 13). "standard": the clipped change at public places with Gaussian noise. "distributed": whole numbers
        of the clipped and rotated change, with a share of noise if members add it.
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

    def releases(self) -> list[fl.Release]:
        config, mechanism, released = self.config, self.mechanism, self.state.released
        if isinstance(mechanism, Standard):
            return [self.of_training(mechanism.release(one.round)) for one in released]
        if isinstance(mechanism, Distributed):
            return [self.of_training(each) for one in released for each in self.seen_as(mechanism, one.round)]
        heuristic = [heuristic_release(one.count, config.epsilon1, config.epsilon2, one.round) for one in released]
        return [self.of_training(one) for one in heuristic]

    def of_training(self, upload: fl.Release) -> fl.Release:
        """With the proof of DP-SGD for a sample."""
        # each observer's view counts for itself
        if self.config.sample_noise is None:
            return upload
        (training,) = fl.told(self.config, self.samples, self.epochs, [fl.FromTraining(UPLOAD)], 0)
        if upload.mechanism == "heuristic":
            return replace(training, what=upload.what, round=upload.round)
        return replace(upload, sample=training)

    def seen_as(self, mechanism: Distributed, r: int) -> tuple[fl.Release, fl.Release]:
        """What its own leader sees of an upload for a sum, and what all others see."""
        # A leader that adds noise knows a share, which is too much with missing=0. Of members' noise it knows that of
        # its own members, so no more is certain than the client's own share.
        by_members, knows = self.config.noise_by == "members", set(OWN_LEADER)
        if by_members or not mechanism.missing:
            knows.add("other leaders")
        near, far = (tuple(o for o in OWN_LEADER + OTHERS if (o in knows) == known) for known in (True, False))
        if by_members:
            return mechanism.release_alone(UPLOAD, self.makers(r), r, near), mechanism.release(r, far)
        return fl.Release(UPLOAD, neighbours="replace one client", round=r, against=near), mechanism.release(r, far)
