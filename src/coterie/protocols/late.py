"""Averaging with late updates: updates that come rounds late are used or dropped, depending on the method.

    server --Train (w, r)--> client --Update (r)--> server      at once, or rounds later

Each round the server asks a share of the clients, waits for those in time, and takes late updates, each once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, Protocol

import numpy as np

import coterie.protocol.core as fl
from coterie.aggregation.buffers import stepped
from coterie.aggregation.sums import Sum
from coterie.protocols import averaging
from coterie.protocols.averaging import Sends, Train, Update
from coterie.protocols.local_training import SteppedTraining, asked_in, sample_size

DELTA = 0.3
"""The share of clients that an experiment delays by default (PAFed, table III: 0; table V: up to 0.7)."""


@dataclass(frozen=True)
class LateTraining(SteppedTraining):
    """max_staleness: an update that is more rounds late than this is not used; 0 uses no late update."""

    max_staleness: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_staleness < 0:
            raise fl.UserError(f"max_staleness is a number of rounds and must be at least 0, not {self.max_staleness}")


class Aggregate(Protocol):
    """The updates of one round, folded in time first, then late."""

    def take(self, values: fl.Vector, staleness: int, samples: int, name: str) -> None:
        """A client's update (d,), ``staleness`` rounds late."""

    def result(self) -> fl.Doubles:
        """The next model, (d,) float64. Requires at least one update."""


@dataclass(eq=False)
class Mean:
    """w + step (m - w) for models, w + step m for changes, with m the weighted mean of the updates.

    over: the mean's divisor, by default the sum of the weights. Buffers get their own mean
    (``aggregation/buffers.py``).
    """

    spec: fl.ModelSpec
    weights: fl.Vector
    step: float
    _: KW_ONLY
    of: Sends
    weight: Callable[[int, int], float]
    over: float | None = None

    def __post_init__(self) -> None:
        self._sum, self._total = Sum(len(self.weights)), 0.0

    def take(self, values: fl.Vector, staleness: int, samples: int, name: str = "") -> None:
        weight = self.weight(staleness, samples)
        self._sum.take(values, weight)
        self._total += weight

    def result(self) -> fl.Doubles:
        total, over = self._sum.value(), self.over or self._total
        w = self.weights.astype(np.float64)
        change = total / over - w if self.of == "model" else total / over
        return stepped(self.spec, w, change, total / self._total, self.step, self._total / over)


class Gathering:
    """One round of a server: the clients that it asks, and the updates that it takes.

    owed: by client, the rounds not answered yet; changed.  oldest: how many rounds late an update may be.  used:
    updates of each lateness, which the server counts.
    """

    def __init__(self, server: fl.Party, r: int, owed: dict[str, tuple[int, ...]], oldest: int) -> None:
        self.config, self.r, self.owed, self.oldest = server.config, r, owed, oldest
        self._chosen = asked_in(server.clients, server.config, server.randomness.seed, r)
        self.asked = self._able(self._chosen)
        self.used: Counter[int] = Counter()
        self._notes = {"asked": 0, "busy": 0, "too_old": 0}  # before anybody was asked

    def _able(self, chosen: Sequence[str]) -> tuple[str, ...]:
        if self.config.deadline_s is None:
            return tuple(chosen)
        # A slow client is asked again when it has answered, or when its answer would be too old.
        patience = max(1, self.oldest)
        return tuple(name for name in chosen if all(self.r - q > patience for q in self.owed.get(name, ())))

    def settle(self, name: str, round: int) -> int | None:
        """How many rounds late this answer is, or None if too old. Raises PeerError if that round did not ask for
        it, or has it.
        """
        rounds = self.owed.get(name, ())
        if round not in rounds:
            raise fl.PeerError(f"{name}: an update for round {round}, which did not ask for it or has had it already")
        self.owed[name] = tuple(other for other in rounds if other != round)
        if self.r - round <= self.oldest:
            return self.r - round
        self._notes["too_old"] += 1
        return None

    def gather(
        self, requests: Mapping[str, fl.Message], reply: type[fl.M], fold: fl.Fold[fl.M]
    ) -> fl.Steps[fl.Answers]:
        """Ask, wait for the answers in time, then take late ones that have arrived; with nobody to ask, wait for one
        of these.
        """
        deadline_s, owed = self.config.deadline_s, self.owed
        self._notes |= {"asked": len(requests), "busy": len(self._chosen) - len(self.asked)}
        for name in requests:
            owed[name] = (*owed.get(name, ()), self.r)
        answers = yield from fl.for_each(requests, reply, fold, deadline_s=deadline_s)
        # Later rounds do not wait for a client that is known not to answer.
        if deadline_s is not None:
            for name in (name for name, why in answers.missing.items() if why != fl.LATE):
                owed[name] = tuple(q for q in owed[name] if q != self.r)
        yield from fl.take(reply, fold) if requests else fl.take(reply, fold, at_least=1, until_s=deadline_s)
        return answers

    def notes(self) -> dict[str, Any]:
        """staleness: used updates that are 0, 1, ... rounds late."""
        staleness = [self.used[age] for age in range(max(self.used, default=-1) + 1)]
        return {"participants": self.used.total(), "staleness": staleness, **self._notes}


class LateServer(averaging.Server, role="server"):
    takes = (Update,)

    class State(averaging.Server.State):
        """owed: by client, the rounds not answered yet."""

        owed: dict[str, tuple[int, ...]] = fl.field(default_factory=dict)

    state: State
    config: SteppedTraining

    def aggregate(self, step: float) -> Aggregate:
        raise NotImplementedError

    def round(self, r: int) -> fl.Steps[Mapping[str, Any]]:
        step, weights = self.config.server_step(r), self.state.weights
        aggregate, gather = self.aggregate(step), self.gather(means=0)
        oldest = self.config.max_staleness if isinstance(self.config, LateTraining) else 0
        gathering = Gathering(self, r, self.state.owed, oldest)

        def fold(name: str, update: Update) -> None:
            values = gather.checked(name, update.spec, update.weights, update.samples)
            staleness = gathering.settle(name, update.round)
            if staleness is not None:
                aggregate.take(values, staleness, update.samples, name)
                gather.took(name, values, samples=update.samples)
                gathering.used[staleness] += 1

        train = Train(r, self.spec.digest, weights)
        yield from gathering.gather(dict.fromkeys(gathering.asked, train), Update, fold)
        if gathering.used:
            self.state.weights = gather.model(aggregate.result())
        return {**gathering.notes(), "server_step": step, **gather.notes()}


def learns(what: str) -> Mapping[str, str]:
    return {
        "server": f"every client's {what} and number of samples, by name, and by how many rounds it is late",
        "client": "the global model of every round that asks it",
    }


@dataclass(frozen=True)
class BufferedTraining(LateTraining):
    """buffer: K, how many changes make a step of the server; None for 10, as in FedBuff's experiments, or half of the
    clients that a round asks, if these are fewer.
    """

    buffer: Annotated[int | None, fl.Meta(ge=1)] = None

    def beyond_budget(self) -> Mapping[str, str]:
        return {"buffer": "its server makes as many steps a round as fill its buffer, each with the whole server_lr"}


class Buffered(fl.State, frozen=True):
    """A client's change (d,). version: how many steps the server had made before the client began."""

    name: str
    version: int
    values: fl.Vector


@dataclass(eq=False)
class Filling:
    """The changes of round r, which fill the server's buffer by age, then as drawn, whatever came first."""

    server: Any
    r: int
    step: float

    def __post_init__(self) -> None:
        self._came: list[tuple[int, int, Buffered]] = []
        clients = self.server.clients
        places = fl.rng(self.server.randomness.seed, "hub", "buffer", self.r).permutation(len(clients))
        self._place = dict(zip(clients, places.tolist(), strict=True))

    def take(self, values: fl.Vector, staleness: int, samples: int, name: str) -> None:
        asked = self.r - staleness
        change = Buffered(name, self.server.state.begun[asked], values)
        self._came.append((asked, self._place[name], change))

    def result(self) -> fl.Doubles:
        state = self.server.state
        w: fl.Doubles = state.weights.astype(np.float64)
        held = [*state.waiting, *(change for *_, change in sorted(self._came, key=lambda one: one[:2]))]
        size = self.server.size
        while len(held) >= size:
            full, held = held[:size], held[size:]
            w = self.server.moved(w, full, self.step)
            state.version += 1
        state.waiting = held
        return w


class BufferServer(LateServer, role="server"):
    """Makes a step whenever its buffer is full; the rest waits for the next round."""

    class State(LateServer.State):
        """version: steps made so far.  begun: by round, those before it.  waiting: the buffer."""

        version: int = 0
        begun: dict[int, int] = fl.field(default_factory=dict)
        waiting: list[Buffered] = fl.field(default_factory=list)

    state: Any
    config: BufferedTraining

    @property
    def size(self) -> int:
        asked = sample_size(len(self.clients), self.config.participation)
        return self.config.buffer or max(1, min(10, asked // 2))

    def moved(self, w: fl.Doubles, changes: Sequence[Buffered], step: float) -> fl.Doubles:
        raise NotImplementedError

    def staleness(self, change: Buffered) -> int:
        return int(self.state.version - change.version)

    def aggregate(self, step: float) -> Aggregate:
        return Filling(self, max(self.state.begun), step)

    def round(self, r: int) -> fl.Steps[Mapping[str, Any]]:
        before, oldest = self.state.version, r - self.config.max_staleness
        kept = {q: version for q, version in self.state.begun.items() if q >= oldest}
        self.state.begun = {**kept, r: before}
        notes = yield from super().round(r)
        return {**notes, "steps": self.state.version - before, "waiting": len(self.state.waiting)}
