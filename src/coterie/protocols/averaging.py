"""Federated averaging: a server sends its model to clients, the clients train it, and the server averages the results.

    server --Train--> client --Update--> server            (every round)

FedAvg and FedProx use it. They differ in the local solver only. Baselines with late updates have another server
(``late.py``). ``SEES`` says what each party sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.buffers import stepped, with_buffers
from coterie.aggregation.sums import WeightedMean
from coterie.protocol.effects import Fit, Fitted, Vector
from coterie.protocol.errors import PeerError, RunError
from coterie.protocol.messages import Floats, Message, message
from coterie.protocol.model_spec import ModelSpec
from coterie.protocol.party import Work, initial, initials, on
from coterie.protocol.steps import Answers, Steps
from coterie.protocol.system import Federation, PartyFactory, Sees, telling
from coterie.protocol.told import Common, Own
from coterie.protocols.keeping import HandingOut, Keeper, keep
from coterie.protocols.local_training import SteppedTraining, ask_each, asked_in, batch_seed, check_model, training_cost
from coterie.training.solvers import MOST_WEIGHT, largest

Sends = Literal["model", "change"]


@dataclass(frozen=True)
class Averaging(SteppedTraining):
    """Local training with the usual defaults of FedAvg, where the mean itself is the next model."""

    lr: float = 0.01
    momentum: float = 0.0
    max_epochs: int = 5
    slowest: float = 0.2
    participation: float = 1.0
    server_lr: float = 1.0
    server_decay: float = 0.0


@message(src="server", dst="client")
class Train(Message, frozen=True):
    """Train on your data. weights: (d,) the global model, or (k d,) all models, one after the other."""

    round: int
    spec: bytes
    weights: Floats


@message(src="client", dst="server")
class Update(Message, frozen=True):
    """The result of one training. round: the round that asked for it.  samples: of this client's training data.

    weights: (d,), the model, its change, or what the method says; buffers (running statistics) are the trained values
    in each case. ``Updates`` says which updates a server takes.
    """

    round: int
    spec: bytes
    weights: Floats
    samples: int


MOST_SAMPLES = 1 << 24
"""The most training samples that a client may claim, and so its largest weight. (ImageNet-21k has 14.2 million.)"""

OUTLYING = 100.0
"""An update stands out if its largest weight is so many times that of the model (or 1, if that is more).

Also by its part in a mean: if its samples, or samples times largest weight, are so many times the median of its round.
"""


class Updates:
    """The updates of one round at a server of any baseline: which it refuses, and which stand out.

    The bounds keep the mean finite, so that no message ends a run. They do not keep a client from ending it: an update
    within the bounds may spoil the mean, and the trainings that start there may diverge. An update that stands out is
    noted, so that an error can name its client.  weights: of the server's models before the round, in a row.
    """

    def __init__(self, spec: ModelSpec, weights: NDArray[Any], models: int = 1) -> None:
        self.spec, self.models = spec, models
        self._size = largest(weights)
        self._taken: list[tuple[str, float, int]] = []

    def checked(self, name: str, digest: bytes, values: Vector, samples: int = 1) -> Vector:
        """A client's values (models d,). Raises PeerError, with its name, if they or its samples are out of bounds."""
        if not 1 <= samples <= MOST_SAMPLES:
            raise PeerError(f"{name}: an update of {samples} samples; from 1 to {MOST_SAMPLES} are taken")
        try:
            return check_model(self.spec, digest, values, self.models)
        except PeerError as error:
            raise PeerError(f"{name}: {error}") from None

    def took(self, name: str, *values: Vector, samples: int = 1) -> None:
        """Note an update that was added to the sums."""
        self._taken.append((name, max(map(largest, values)), samples))

    def outliers(self) -> dict[str, float]:
        """The largest weight of each update that stands out, by name. The largest part in a mean comes first."""
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

    def model(self, new: NDArray[np.float64]) -> NDArray[np.float32]:
        """The server's next model, as float32. Raises RunError if a client would not take it."""
        if not (most := largest(new)) <= MOST_WEIGHT:
            named = ", ".join(f"{name} (a weight of {value:.2g})" for name, value in self.outliers().items())
            cause = f"updates that stand out: {named}" if named else "no update stands out: lower server_lr"
            raise RunError(f"the server's model would get a weight of {most:.2g}; {cause}")
        return new.astype(np.float32)

    def notes(self) -> Mapping[str, Any]:
        """``{"outliers": outliers()}``, or nothing if no update stands out."""
        return {"outliers": found} if (found := self.outliers()) else {}


class Client(Keeper, role="client"):
    """Trains when asked, and keeps nothing of it. sends: its trained model, or the change of the model."""

    config: SteppedTraining

    def __init__(self, own: Own, common: Common, config: SteppedTraining, sends: Sends = "model") -> None:
        super().__init__(own, common, config)
        self.sends = sends

    @on(Train, training_cost)
    def train(self, msg: Train, src: str) -> Work[Update]:
        """E_i epochs from the global model."""
        start = check_model(self.spec, msg.spec, msg.weights)
        keep(self, start)
        fitted: Fitted = yield Fit(start, self.config.solver(), self.epochs, batch_seed(self, msg.round))
        weights = fitted.weights
        if self.sends == "change":
            weights = with_buffers(self.spec, weights - start, weights)
        return Update(msg.round, self.spec.digest, weights, fitted.samples)


class Server(HandingOut, role="server"):
    """Holds the global model."""

    class State(msgspec.Struct):
        """weights: float32, (d,) of the global model, or (k, d) of several."""

        weights: Vector = initial

    state: Any
    config: Averaging

    def round(self, r: int) -> Steps[Mapping[str, Any]]:
        """One round. The mean of the answers, weighted by samples, is the new global model."""
        asked = asked_in(self.clients, self.config, self.randomness.seed, r)
        notes, _ = yield from averaged(self, r, asked, Update)
        return notes


def averaged(
    server: Any, r: int, names: Sequence[str], reply: type[Any], learn: Callable[[str, Any], None] = lambda *_: None
) -> Steps[tuple[dict[str, Any], Answers]]:
    """Ask these clients to train the server's model(s), and take the step towards the mean of their answers.

    server: with ``state.weights`` and settings of averaging.  reply: a message with the fields of ``Update``.
    ``learn(name, answer)`` is told of each answer that fits before it counts, and may refuse it with a PeerError.
    Returns the round's notes and the outcomes of the requests.
    """
    old, config = server.state.weights, server.config
    mean, updates = WeightedMean(old.size), Updates(server.spec, old, config.models)

    def fold(name: str, update: Any) -> None:
        weights = updates.checked(name, update.spec, update.weights, update.samples)
        learn(name, update)
        mean.take(weights, update.samples)
        updates.took(name, weights, samples=update.samples)

    answers = yield from ask_each(server, r, names, Train(r, server.spec.digest, old.reshape(-1)), reply, fold)
    if mean.count:
        step, new = config.server_step(r), mean.mean()  # FedCAPrivacy eq. (2)
        if step != 1:
            new = stepped(server.spec, old, new - old, new, step)
        server.state.weights = updates.model(new).reshape(old.shape)
    return {"participants": len(answers.got), "asked": len(names), **updates.notes()}, answers


class ServerOfSeveral(Server, role="server"):
    """Holds k models, (k, d), and takes the mean of each."""

    class State(msgspec.Struct):
        """weights: (k, d) of the models."""

        weights: Vector = initials


def parties(config: Averaging) -> Mapping[str, PartyFactory]:
    """A server and its clients, which all train with the config's solver."""
    return {"server": Server, "client": Client}


def models(federation: Federation) -> Mapping[str, Vector]:
    """All clients use the global model."""
    weights = federation.look(federation.hub).state.weights
    return dict.fromkeys(federation.common.clients, weights)


RELEASES = telling({Update: ("trained model and number of samples",)})
SEES = {
    "server": Sees((Update,), "every client's plain model and number of samples in every round, by name"),
    "client": Sees((Train,), "the global model of every round that it takes part in"),
}
