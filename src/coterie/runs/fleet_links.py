"""The transport's links by device profiles: seconds for bytes and work, and which clients are there in a round."""

from __future__ import annotations

from collections.abc import Mapping

from coterie.devices.delays import Delays
from coterie.devices.profiles import (
    SERVER,
    Profile,
    drops_out,
    is_available,
    seconds_crypto,
    seconds_down,
    seconds_train,
    seconds_up,
)
from coterie.protocol.party import Cost
from coterie.protocol.randomness import rng


class FleetLinks:
    """``coterie.transport.wire.Links`` over a fleet. profiles: by client's name; all other parties are a SERVER.

    Whether a client is there is drawn once a round, from the seed, its name and the round. Whether it drops out is
    drawn for every request of the round, so a client may upload and then miss its model. In the set-up, round 0, all
    are there.  delays: by how many rounds the experiment holds back what clients send; None for nothing.
    """

    def __init__(self, profiles: Mapping[str, Profile], seed: int, delays: Delays | None = None) -> None:
        self.profiles = dict(profiles)
        self.seed = seed
        self.delays = delays

    def _of(self, party: str) -> Profile:
        return self.profiles.get(party, SERVER)

    def down_s(self, party: str, size: int) -> float:
        """Seconds until ``size`` bytes sent to this party have arrived."""
        return seconds_down(self._of(party), size)

    def up_s(self, party: str, size: int) -> float:
        """Seconds until ``size`` bytes sent by this party have arrived."""
        return seconds_up(self._of(party), size)

    def work_s(self, party: str, cost: Cost) -> float:
        """Seconds that this party's device needs: training, then cryptography."""
        profile = self._of(party)
        return seconds_train(profile, cost.flops_per_sample, cost.samples) + seconds_crypto(profile, cost.crypto_s)

    def rounds(self, party: str, round: int) -> int:
        """By how many rounds this party's answer to a request of this round is held back."""
        return 0 if self.delays is None else self.delays.rounds(party, round)

    def fate(self, party: str, round: int, request: int) -> str:
        """``"ok"``, ``"offline"`` (for the whole round) or ``"dropped"`` (while working on this request)."""
        if round == 0 or party not in self.profiles:
            return "ok"
        profile = self.profiles[party]
        if not is_available(profile, rng(self.seed, party, "there", round)):
            return "offline"
        return "dropped" if drops_out(profile, rng(self.seed, party, "drops out", round, request)) else "ok"
