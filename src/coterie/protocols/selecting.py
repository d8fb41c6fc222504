"""Shared by systems whose server selects or groups clients by speed (HACCS, Oort, RFL-HA)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import coterie.protocol.core as fl
from coterie.protocols.averaging import Averaging, ModelClient, OfModel
from coterie.protocols.local_training import ask_each, joined, sample_size

MOST_LOSS = 2.0**40
"""The largest loss that a client may claim; a model with a larger one has blown up."""


@dataclass(frozen=True)
class Selecting(Averaging):
    """participation: the fraction of the clients that a round selects; .5 here. With 1 all clients are asked in every
    round, and nothing is selected.
    """

    participation: float = 0.5

    @property
    def selects(self) -> bool:
        return True

    def number(self, clients: Sequence[str], r: int) -> int:
        return sample_size(len(joined(clients, self, r)), self.participation)


SCORED = fl.FromTraining("trained model and number of samples"), "loss"


@fl.message(src="client", dst="server")
class Scored(OfModel, frozen=True):
    """As ``averaging.Update``. loss: of the client's samples with its trained model, at least 0."""

    samples: int
    loss: float


@fl.message(src="server", dst="client")
class Introduce(fl.OfRound, frozen=True):
    """Say how long a round takes you."""


@fl.message(src="client", dst="server", tells=())
class Introduced(fl.OfRound, frozen=True):
    """seconds: of a round, by the device's own profile; 0 if unknown."""

    seconds: float


@fl.local("seconds of a round")
def round_seconds(own: fl.OwnData, work_flops: float, model_bytes: int) -> float:
    """By this device's profile: model down, work, model up; 0 without one."""
    if own.device is None:
        return 0.0
    device = own.device
    transfer = model_bytes / device.down_bytes_per_s + model_bytes / device.up_bytes_per_s
    return float(2 * device.latency_s + transfer + work_flops / device.compute_flops_per_s)


class Introducing(ModelClient, role="client"):
    @fl.on(Introduce, answers=Introduced)
    def introduce(self, msg: Introduce, src: str) -> fl.Work[Introduced]:
        seconds: float = yield fl.Local(round_seconds, own_work(self))
        return Introduced(msg.round, seconds)


def meet(
    server: Any, r: int, request: type[Any] = Introduce, reply: type[Any] = Introduced, learn: fl.Fold[Any] = fl.ignored
) -> fl.Steps[list[str]]:
    """Ask new clients for their speed, into ``server.state.seconds``, by name. Returns those that answered.

    learn: may refuse an answer with a PeerError.
    """
    seconds: dict[str, float] = server.state.seconds
    met: list[str] = []

    def fold(name: str, answer: Any) -> None:
        learn(name, answer)
        seconds[name] = checked_seconds(name, answer.seconds)
        met.append(name)

    new = [name for name in joined(server.clients, server.config, max(r, 1)) if name not in seconds]
    if new:
        yield from ask_each(server, new, request(r), reply, fold)
    return met


def own_work(client: fl.Party) -> tuple[float, int]:
    return client.samples * client.epochs * client.spec.flops_per_sample, 4 * client.spec.size


def checked_seconds(name: str, seconds: float) -> float:
    """Raises PeerError unless the claimed seconds of a round are finite, from 0 to a week."""
    if not 0 <= seconds <= fl.PATIENCE_S:
        raise fl.PeerError(f"{name}: a round of {seconds} seconds; from 0 to {fl.PATIENCE_S:.0f} are taken")
    return float(seconds)


def checked_loss(name: str, loss: float) -> float:
    """Raises PeerError unless a claimed loss is finite, from 0 to ``MOST_LOSS``."""
    if not (isfinite(loss) and 0 <= loss <= MOST_LOSS):
        raise fl.PeerError(f"{name}: a loss of {loss}; from 0 to {MOST_LOSS:.2g} are taken")
    return float(loss)


def selected_round(
    server: Any, r: int, chosen: Sequence[str], learn: Callable[[str, Scored, float], None]
) -> fl.Steps[tuple[dict[str, Any], Mapping[str, float]]]:
    """Federated averaging among the chosen. ``learn(name, update, loss)`` gets each accepted answer. Returns the
    round's notes and, by client, the seconds until its answer.
    """

    def told(name: str, update: Scored) -> None:
        learn(name, update, checked_loss(name, update.loss))

    notes, answers = yield from server.average(r, chosen, Scored, told)
    return notes, answers.after_s
