"""The links of a simulation: seconds for bytes and work, presence, and late answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

import coterie.protocol.core as fl
from coterie.devices.profiles import SERVER, Profile
from coterie.devices.traces import Traces
from coterie.transport.wire import Links

Law = Callable[[np.random.Generator], int]
"""Draws by how many rounds an answer is late; at least 1."""

_MOST_ROUNDS = 100_000


def delay_law(text: str) -> Law:
    """``uniform:1-5``: 1 to 5 rounds, equally often.  ``geometric:0.5``: one more round with probability 1 - 0.5.

    Raises UserError for anything else.
    """
    name, _, numbers = text.partition(":")
    try:
        if name == "uniform":
            low, _, high = numbers.partition("-")
            least, most = int(low), int(high or low)
            if 1 <= least <= most <= _MOST_ROUNDS:
                return lambda source: int(source.integers(least, most, endpoint=True))
        if name == "geometric" and 1 / _MOST_ROUNDS <= (p := float(numbers)) <= 1:
            return lambda source: int(source.geometric(p))
    except ValueError:
        pass
    raise fl.UserError(
        f"delay {text!r}: write uniform:A-B for whole rounds 1 <= A <= B <= {_MOST_ROUNDS}, or geometric:P for a "
        f"probability in [{1 / _MOST_ROUNDS:g}, 1]"
    )


def check_share(share: float) -> None:
    if not 0 <= share <= 1:
        raise fl.UserError(f"delta is the share of the clients asked whose answers are late: from 0 to 1, not {share}")


class Delays:
    """By how many rounds answers are late, as a pure function. asked(r): the clients that round r asks.  share: delta,
    of those (rounded).  law: of ``delay_law``. Raises UserError for another law, or a share beyond 0 to 1.

    A client that still owes an answer counts towards the share: its new one arrives with the last.

    least: minimal delays, such as an attacker's, but not in the set-up.
    """

    def __init__(self, asked: Callable[[int], Sequence[str]], share: float, law: str, seed: int) -> None:
        check_share(share)
        self._asked, self._share, self._law, self._seed = asked, share, delay_law(law), seed
        self.least: dict[str, int] = {}
        self._due: dict[str, int] = {}
        self._rounds: list[Mapping[str, int]] = [{}]

    def of(self, r: int) -> Mapping[str, int]:
        """Delays by client; none in round 0, the set-up."""
        while len(self._rounds) <= r:
            self._rounds.append(self._draw(len(self._rounds)))
        return self._rounds[r]

    def rounds(self, client: str, r: int) -> int:
        """Of a client's answer to round r; 0 in the set-up."""
        return max(self.of(r).get(client, 0), self.least.get(client, 0)) if r >= 1 else 0

    def _draw(self, r: int) -> Mapping[str, int]:
        asked = self._asked(r)
        late = {name: self._due[name] - r for name in asked if self._due.get(name, 0) > r}
        free = [name for name in asked if name not in late]
        source = fl.rng(self._seed, "network", "delays", r)
        missing = max(0, round(self._share * len(asked)) - len(late))
        for place in source.choice(len(free), missing, replace=False):
            late[free[place]] = self._law(source)
        self._due |= {name: r + rounds for name, rounds in late.items()}
        return late


class FleetLinks(Links):
    """profiles: by client; all other parties are a SERVER. A client's presence is drawn once a round, dropping out for
    every request, so a client may upload and then miss its model. In the set-up, round 0, all are there.  traces: of
    presence on the virtual clock, from round 1 on, which must allow it as well; None for always.
    """

    def __init__(
        self, profiles: Mapping[str, Profile], seed: int, delays: Delays | None = None, traces: Traces | None = None
    ) -> None:
        self.profiles, self.seed, self.delays, self.traces = profiles, seed, delays, traces

    def _of(self, party: str) -> Profile:
        return self.profiles.get(party, SERVER)

    def down_s(self, party: str, size: int) -> float:
        profile = self._of(party)
        return profile.latency_s + size / profile.down_bytes_per_s

    def up_s(self, party: str, size: int) -> float:
        profile = self._of(party)
        return profile.latency_s + size / profile.up_bytes_per_s

    def work_s(self, party: str, cost: fl.Cost) -> float:
        profile = self._of(party)
        training = cost.flops_per_sample * cost.samples / profile.compute_flops_per_s
        return training + cost.crypto_s / profile.crypto_speed

    def rounds(self, party: str, round: int) -> int:
        return 0 if self.delays is None else self.delays.rounds(party, round)

    def device(self, party: str) -> str:
        return self.profiles[party].name if party in self.profiles else ""

    def there(self, party: str, round: int, at_s: float) -> bool:
        return round == 0 or self.traces is None or party not in self.traces or self.traces.there(party, at_s)

    def fate(self, party: str, round: int, request: int) -> str:
        if round == 0 or party not in self.profiles:
            return "ok"
        profile = self.profiles[party]
        if profile.availability < 1 and fl.rng(self.seed, party, "there", round).random() >= profile.availability:
            return "offline"
        if profile.dropout and fl.rng(self.seed, party, "drops out", round, request).random() < profile.dropout:
            return "dropped"
        return "ok"
