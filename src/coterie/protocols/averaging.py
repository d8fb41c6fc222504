"""Federated averaging: a server sends its model to clients, the clients train it, and the server averages the results.

    server --Train--> client --Update--> server            (every round)
    server --Last---> client                               (after the last round, between machines only)

FedAvg is ``Server`` and ``Client``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any, ClassVar, Literal

import numpy as np

import coterie.protocol.core as fl
from coterie.aggregation.buffers import stepped, with_buffers
from coterie.aggregation.sums import WeightedMean
from coterie.protocols import local_training
from coterie.protocols.local_training import MOST_SAMPLES as MOST_SAMPLES
from coterie.protocols.local_training import counts_labels, fit
from coterie.protocols.padded_counts import CountsClient, CountsServer
from coterie.training.solvers import MOST_WEIGHT, largest

Sends = Literal["model", "change"]


@dataclass(frozen=True)
class Averaging(local_training.SteppedTraining):
    """Local training with FedAvg's usual defaults."""

    lr: float = 0.01
    momentum: float = 0.0
    max_epochs: int = 5
    slowest: float = 0.2
    participation: float = 1.0
    server_lr: float = 1.0
    server_decay: float = 0.0


class OfModel(fl.OfRound, frozen=True):
    """Base of messages with weights of the federation's model. spec: its digest."""

    spec: bytes
    weights: fl.Floats


@fl.message(src="server", dst="client")
class Train(OfModel, frozen=True):
    """Train on your data. weights: (d,) the global model, or (k d,) all models, concatenated."""


@fl.message(src="client", dst="server", tells=(fl.FromTraining("trained model and number of samples"),))
class Update(OfModel, frozen=True):
    """The result of one training. round: that asked for it.  samples: of the training data.

    weights: (d,), the model, its change, or what the method says. Buffers (running statistics) are always trained
    values.
    """

    samples: int


@fl.message(src=fl.HUB)
class Last(fl.Message, frozen=True):
    """Predict with this model from now on, (d,), or (k d,) as the method says."""

    spec: bytes
    weights: fl.Floats


OUTLYING = 100.0
"""An update stands out if its largest weight is so many times the model's (or 1), or its samples, or samples times
largest weight, so many times its round's median.
"""


class Gather:
    """Checks, means and outliers of a round's updates. weights: of the server's models before it.  models: in each
    update.
    """

    def __init__(self, spec: fl.ModelSpec, weights: fl.Array, means: int = 1, models: int = 1) -> None:
        self.spec, self.models = spec, models
        self.means = [WeightedMean(models * spec.size) for _ in range(means)]
        self._size = largest(weights)
        self._taken: list[tuple[str, float, int]] = []

    def take(self, name: str, update: Any, into: int = 0) -> fl.Vector:
        """Check an update and add it to a mean by its samples. Returns its weights (models d,). Raises PeerError out
        of bounds.
        """
        if not 0 <= into < len(self.means):
            raise fl.PeerError(f"{name}: an update for cluster {into} of {len(self.means)}")
        weights = self.checked(name, update.spec, update.weights, update.samples)
        self.add(name, weights, update.samples, into)
        return weights

    def note(self, name: str, update: Any) -> fl.Vector:
        """Check an update that the method itself combines, and return its weights."""
        weights = self.checked(name, update.spec, update.weights, update.samples)
        self.took(name, weights, samples=update.samples)
        return weights

    def add(self, name: str, weights: fl.Vector, samples: int, into: int = 0) -> None:
        self.means[into].take(weights, samples)
        self.took(name, weights, samples=samples)

    def checked(self, name: str, digest: bytes, values: fl.Vector, samples: int = 1) -> fl.Vector:
        """A client's values (models d,). Raises PeerError, with its name, if they or its samples are out of bounds."""
        # Bounds keep means finite, so that no message ends a run. An update within them may still spoil the mean.
        if not 1 <= samples <= MOST_SAMPLES:
            raise fl.PeerError(f"{name}: an update of {samples} samples; from 1 to {MOST_SAMPLES} are taken")
        try:
            return local_training.check_model(self.spec, digest, values, self.models)
        except fl.PeerError as error:
            raise fl.PeerError(f"{name}: {error}") from None

    def took(self, name: str, *values: fl.Vector, samples: int = 1) -> None:
        self._taken.append((name, max(map(largest, values)), samples))

    def moved(self, old: fl.Vector, into: int = 0, step: float = 1.0) -> fl.Vector:
        """The next model: a step from the old one, of any shape, towards a mean, if there are updates."""
        if not self.means[into].count:
            return old
        flat, new = old.reshape(-1), self.means[into].mean()  # FedCAPrivacy eq. (2)
        if step != 1:
            new = stepped(self.spec, flat, new - flat, new, step)
        return self.model(new).reshape(old.shape)

    def model(self, new: fl.Doubles) -> fl.Vector:
        """float32. Raises RunError if a client would refuse it."""
        if not (most := largest(new)) <= MOST_WEIGHT:
            named = ", ".join(f"{name} (a weight of {value:.2g})" for name, value in self.outliers().items())
            cause = f"updates that stand out: {named}" if named else "no update stands out: lower server_lr"
            raise fl.RunError(f"the server's model would get a weight of {most:.2g}; {cause}")
        return new.astype(np.float32)

    def outliers(self) -> dict[str, float]:
        """The largest weight of each outlying update, by name; largest part in a mean first."""
        if not self._taken:
            return {}
        parts = [samples * max(most, self._size) for _, most, samples in self._taken]  # small changes are all alike
        usual = OUTLYING * max(1.0, self._size)
        usual_samples = OUTLYING * median_low(samples for *_, samples in self._taken)
        usual_part = OUTLYING * median_low(parts)
        found: dict[str, float] = {}
        for part, (name, most, samples) in sorted(zip(parts, self._taken, strict=True), reverse=True):
            if most > usual or samples > usual_samples or part > usual_part > 0:
                found[name] = max(most, found.get(name, 0.0))
        return found

    def notes(self) -> Mapping[str, Any]:
        return {"outliers": found} if (found := self.outliers()) else {}


class ModelClient(fl.Party, role="client"):
    """A client that is sent models and trains.

    local: a solver's class, an ``objective``, a generator ``local(client, start, r)``, or None for the settings'
    solver.
    """

    class State(fl.State, kw_only=True):
        """last: (k d,) float32, sent last; None in a simulation and before the first."""

        last: fl.Vector | None = None

    state: Any
    local: ClassVar[Any] = None
    counts = CountsClient()

    @property
    def held_model(self) -> int:
        return 0

    def models(self, msg: Any) -> fl.Vector:
        """(k, d). Raises PeerError for another shape."""
        return self.keep(local_training.check_model(self.spec, msg.spec, msg.weights, self.config.models)).reshape(
            -1, self.spec.size
        )

    def model(self, msg: Any) -> fl.Vector:
        """Raises PeerError for another shape."""
        return self.keep(local_training.check_model(self.spec, msg.spec, msg.weights))

    def keep(self, weights: fl.Vector) -> fl.Vector:
        """Keep checked models, if parties are on separate machines."""
        if self.common.deployed:
            self.state.last = weights.reshape(-1)
        return weights

    def last_models(self) -> fl.Vector:
        """(k, d) sent last, or the initial ones."""
        if self.state.last is None:
            return self.starts[: self.config.models]
        return np.asarray(self.state.last.reshape(-1, self.spec.size))

    def last_starts(self) -> fl.Vector:
        return self.last_models()

    def fit(self, start: fl.Vector, r: int, **more: Any) -> fl.Fit:
        own = self.local is not None and not local_training.is_generator(self.local)
        return fit(self, start, r, self.config.solver_of(self.local) if own else None, **more)

    def trained(self, start: fl.Vector, r: int) -> fl.Work[fl.Fitted]:
        fitted: fl.Fitted
        if local_training.is_generator(self.local):
            fitted = yield from self.local(self, start, r)
        else:
            fitted = yield self.fit(start, r)
        return fitted

    @fl.on(Last, when=fl.never)
    def take_last(self, msg: Last, src: str) -> None:
        self.models(msg)


def own_model(client: ModelClient) -> fl.Vector:
    """(d,) float32, a client's one model, as far as it knows it."""
    return np.asarray(client.last_models()[0])


class Client(ModelClient, role="client"):
    config: local_training.SteppedTraining
    sends: ClassVar[Sends] = "model"

    @fl.on(Train, local_training.training_cost, answers=Update)
    def train(self, msg: Train, src: str) -> fl.Work[Update]:
        start = self.model(msg)
        fitted: fl.Fitted = yield from self.trained(start, msg.round)
        weights = fitted.weights
        if self.sends == "change":
            weights = with_buffers(self.spec, weights - start, weights)
        return Update(msg.round, msg.spec, weights, fitted.samples)


class ChangeClient(Client, role="client"):
    sends = "change"


class Server(fl.Party, role="server"):
    """Holds the global model, which it sends out after a run between machines.

    rule: ``rule(state, change, config) -> (d,)``, the server's step by the mean change (d,) float64, 0 at buffers. It
    may change the state. None: the settings' step towards the mean.
    """

    class State(fl.State):
        """weights: float32, (d,) of the global model, or (k, d) of several."""

        weights: fl.Vector = fl.initial

    state: Any
    config: Any
    rule: ClassVar[Any] = None
    counts = CountsServer()

    def round(self, r: int) -> fl.Steps[Mapping[str, Any]]:
        notes, _ = yield from self.average(
            r, local_training.asked_in(self.clients, self.config, self.randomness.seed, r), Update
        )
        return notes

    def train(self, r: int) -> Train:
        return Train(r, self.spec.digest, self.state.weights.reshape(-1))

    def gather(self, means: int = 1) -> Gather:
        return Gather(self.spec, self.state.weights, means)

    def ask(self, r: int, request: fl.Message, reply: type[Any], fold: fl.Fold[Any]) -> fl.Steps[dict[str, Any]]:
        return (yield from local_training.ask_round(self, r, request, reply, fold))

    def average(
        self, r: int, names: Sequence[str], reply: type[Any], learn: fl.Fold[Any] = fl.ignored
    ) -> fl.Steps[tuple[dict[str, Any], fl.Answers]]:
        """Ask these clients to train the server's models, and move these by the mean of their answers.

        reply: with the fields of ``Update``.  ``learn(name, answer)`` may refuse one with a PeerError. Returns the
        round's notes and the requests' outcomes.
        """
        old, config = self.state.weights, self.config
        gather = Gather(self.spec, old, models=config.models)

        def fold(name: str, update: Any) -> None:
            weights = gather.checked(name, update.spec, update.weights, update.samples)
            learn(name, update)
            gather.add(name, weights, update.samples)

        answers = yield from local_training.ask_each(self, names, self.train(r), reply, fold)
        if self.rule is None:
            self.state.weights = gather.moved(old, step=config.server_step(r))
        elif gather.means[0].count:
            mean = gather.means[0].mean()
            change = with_buffers(self.spec, mean - old, np.zeros_like(mean))
            step = np.asarray(self.rule(self.state, change, config), np.float64)
            self.state.weights = gather.model(stepped(self.spec, old, step, mean, 1.0))
        return {"participants": len(answers.got), "asked": len(names), **gather.notes()}, answers

    def last_starts(self) -> fl.Vector:
        return np.asarray(self.state.weights).reshape(-1, self.spec.size)

    def last(self) -> Mapping[str, fl.Vector]:
        """By client, (d,), or (k, d) of which it chooses."""
        return dict.fromkeys(self.clients, self.state.weights)

    @property
    def finishes(self) -> bool:
        return self._hands_out or counts_labels(self.config, self.common.mode)

    @property
    def _hands_out(self) -> bool:
        return self.common.deployed or type(self).finish is not Server.finish

    def finish(self) -> fl.Steps[Mapping[str, Any] | None]:
        if self._hands_out:
            yield from self._hand_out()
        if counts_labels(self.config, self.common.mode):
            return (yield from self.counts.tell(self.last()))
        return None

    def _hand_out(self) -> fl.Steps[None]:
        made: dict[int, Last] = {}  # one message for all that get the same
        models = self.last()
        for weights in models.values():
            if id(weights) not in made:
                made[id(weights)] = Last(self.spec.digest, weights.reshape(-1))
        yield from fl.post({name: made[id(weights)] for name, weights in models.items()})


class ServerOfGroups(Server, role="server"):
    """Has its own model for each client, by groups that it forms."""

    def model_of(self, name: str) -> fl.Vector:
        raise NotImplementedError

    def last(self) -> Mapping[str, fl.Vector]:
        return {name: self.model_of(name) for name in self.clients}

    def ask_own(self, r: int, fold: fl.Fold[Any]) -> fl.Steps[dict[str, Any]]:
        asked = local_training.asked_in(self.clients, self.config, self.randomness.seed, r)
        own = fl.LazyMapping(asked, lambda name: Train(r, self.spec.digest, self.model_of(name)), held=1)
        answers = yield from local_training.ask_all(self, own, Update, fold)
        return {"participants": len(answers.got), "asked": len(asked)}


def membership(clients: Sequence[str], groups: Mapping[str, int]) -> list[list[int]]:
    return [[groups[name]] if name in groups else [] for name in clients]


def members(clients: Sequence[str], groups: Mapping[str, int]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {number: [] for number in sorted(set(groups.values()))}
    for name in clients:
        if name in groups:
            found[groups[name]].append(name)
    return found


def own_models(federation: fl.Federation) -> Mapping[str, fl.Vector]:
    return dict(federation.look(federation.hub).last())


class ServerOfSeveral(Server, role="server"):
    class State(fl.State):
        """weights: (k, d) of the models."""

        weights: fl.Vector = fl.initials
