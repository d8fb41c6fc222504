"""Who is late in an experiment, and by how many rounds: a share of those asked, a law, and the seed decide it.

No party knows this table: a client's handler states it as a cost (``Cost.rounds``), the transport holds the answer
back, and the server sees an update come in a later round, as it would from a slow device. Between real machines costs
are not used, and late is who is late.

Without any such delays (share 0) clients may still be late: by their devices and a round's deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from coterie.protocol.errors import PeerError, UserError
from coterie.protocol.randomness import rng
from coterie.protocols.local_training import LocalTraining, joined, sample_clients

Law = Callable[[np.random.Generator], int]
"""Draws by how many rounds an answer is late; at least 1."""

_MOST_ROUNDS = 100_000  # the round comes from a message, and whoever sent it must not make a client count forever


def delay_law(text: str) -> Law:
    """``uniform:1-5``: 1 to 5 rounds, all equally often.  ``geometric:0.5``: one more round with probability 1 - 0.5.

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
    raise UserError(
        f"delay {text!r}: write uniform:A-B for whole rounds 1 <= A <= B <= {_MOST_ROUNDS}, or geometric:P for a "
        f"probability in [{1 / _MOST_ROUNDS:g}, 1]"
    )


class Delays:
    """By how many rounds the clients that a round asks are late: a pure function of its arguments and the round.

    asked(r): whom round r asks.  share: delta, of those (rounded).  law: as for ``delay_law``.

    Who has not yet delivered what an earlier round asked for counts towards the share, for its link keeps the order:
    the new answer arrives together with the last. The others of the share are drawn, with a delay each.
    """

    def __init__(self, asked: Callable[[int], Sequence[str]], share: float, law: str, seed: int) -> None:
        if not 0 <= share <= 1:
            raise UserError(f"the share of delayed clients must lie in [0, 1], not {share}")
        self._asked, self._share, self._law, self._seed = asked, share, delay_law(law), seed
        self._due: dict[str, int] = {}
        self._rounds: list[Mapping[str, int]] = [{}]

    def of(self, r: int) -> Mapping[str, int]:
        """The delayed clients of round r = 1, 2, ... and by how many rounds their answers are late."""
        while len(self._rounds) <= r:
            self._rounds.append(self._draw(len(self._rounds)))
        return self._rounds[r]

    def rounds(self, client: str, r: int) -> int:
        """By how many rounds a client's answer to round r is late, 0 for one in time. PeerError for no such round."""
        if not 1 <= r <= _MOST_ROUNDS:
            raise PeerError(f"a request of round {r}, which no run has")
        return self.of(r).get(client, 0)

    def _draw(self, r: int) -> Mapping[str, int]:
        asked = self._asked(r)
        late = {name: self._due[name] - r for name in asked if self._due.get(name, 0) > r}
        free = [name for name in asked if name not in late]
        source = rng(self._seed, "network", "delays", r)
        missing = max(0, round(self._share * len(asked)) - len(late))
        for place in source.choice(len(free), missing, replace=False):
            late[free[place]] = self._law(source)
        self._due |= {name: r + rounds for name, rounds in late.items()}
        return late


@dataclass(frozen=True)
class DelayedTraining(LocalTraining):
    """Local training, delays and the server's step; defaults of PAFed, table III, where nothing else is said.

    In a run a data set's own settings (``lr``, ``batch_size``: ``runs/defaults.py``) win over these defaults.
    Its participation (sigma) is 0.1 of 100 clients; here 0.5, so that the 20 clients of a small run are enough.
    delta: share of the clients asked in a round whose answer is late (table III: 0; 0.1 to 0.7 in table V).
    delay: by how many rounds: "uniform:A-B" or "geometric:P". With delta 0 devices and deadline_s decide who is late,
    and whoever is late is not asked again until its answer is there or would be too old (``protocols/late.py``).
    server_lr: the server's step in round 1 (alpha, 0.8).  server_decay: k >= 0; its step in round r is
    server_lr / (1 + k (r - 1)), 0 for the constant step of the paper.
    """

    lr: float = 0.1
    momentum: float = 0.5
    max_epochs: int = 10
    slowest: float = 1.0
    participation: float = 0.5
    delta: float = 0.3
    delay: str = "uniform:1-5"
    server_lr: float = 0.8
    server_decay: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        delay_law(self.delay)
        if not 0 <= self.delta <= 1:
            raise UserError(f"delta is a share of the clients and must lie in [0, 1], not {self.delta}")
        if not 0 < self.server_lr < np.inf:
            raise UserError(f"server_lr must be positive and finite, not {self.server_lr}")
        if not 0 <= self.server_decay < np.inf:
            raise UserError(f"server_decay must be at least 0 and finite, not {self.server_decay}")

    def server_step(self, r: int) -> float:
        """The server's step in round r = 1, 2, ..."""
        return self.server_lr / (1 + self.server_decay * (r - 1))

    def asked(self, clients: Sequence[str], seed: int, r: int) -> tuple[str, ...]:
        """Whom round r asks: a sample of those who have joined."""
        return sample_clients(joined(clients, self, r), self.participation, seed, r)


@lru_cache(maxsize=4)
def delays(config: DelayedTraining, clients: tuple[str, ...], seed: int) -> Delays:
    """Who is late in this federation."""
    return Delays(lambda r: config.asked(clients, seed, r), config.delta, config.delay, seed)
