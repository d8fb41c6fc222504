"""Device profiles as a transport wants them: seconds for bytes and work, and who is there in a round."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

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
    """``coterie.transport.links.Links`` over a fleet. profiles: by client's name; everybody else is a SERVER.

    A client's fate is drawn once a round, from the seed, its name and the round alone: it is there for the whole round,
    or never receives anything of it, or fails on whatever it is asked. In the set-up, round 0, everybody is there.
    """

    def __init__(self, profiles: Mapping[str, Profile], seed: int) -> None:
        self.profiles = dict(profiles)
        self.seed = seed
        self._fates = lru_cache(maxsize=1 << 16)(self._fate)

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

    def fate(self, party: str, round: int, request: int) -> str:
        """``"ok"``, ``"offline"`` or ``"dropped"``: the same for every request of a round."""
        return "ok" if round == 0 or party not in self.profiles else self._fates(party, round)

    def _fate(self, party: str, round: int) -> str:
        draws = rng(self.seed, party, "fate", round)
        there, lost = is_available(self.profiles[party], draws), drops_out(self.profiles[party], draws)
        return "offline" if not there else "dropped" if lost else "ok"
