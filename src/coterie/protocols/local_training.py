"""Local training in all systems: the solver's settings, a round's clients and their answers, their epochs and cost."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from math import inf
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

import coterie.protocol.core as fl
from coterie.dp.ledger import Release
from coterie.protocol.names import each
from coterie.training import solvers
from coterie.training.solvers import MOST_WEIGHT

Share = Annotated[float, fl.Meta(ge=0, le=1)]
_hints = cache(get_type_hints)

MOST_SAMPLES = 1 << 24
"""That a client may claim, and so its largest weight. (ImageNet-21k has 14.2 million.)"""


def positive(config: Any, *names: str) -> None:
    """Raises UserError unless these are positive and finite."""
    for name in names:
        if not 0 < getattr(config, name) < inf:
            raise fl.UserError(f"{name} must be positive and finite, not {getattr(config, name)}")


def check_choices(config: Any) -> None:
    """Raises UserError for a field with a word that its ``Literal`` lacks."""
    config_type: type = type(config)
    for name, kind in _hints(config_type).items():
        value, is_literal = getattr(config, name), get_origin(kind) is Literal
        words = get_args(kind) if is_literal else [w for part in get_args(kind) for w in get_args(part)]
        if words and value not in words and (is_literal or isinstance(value, str)):
            known = f"{'' if is_literal else 'a number or '}one of {', '.join(map(str, words))}"
            raise fl.UserError(f"{name} must be {known}, not {value!r}")


def refuse_unused(config: Any, condition: str, holds: bool, *names: str) -> None:
    """Raises UserError if one of these settings is set without effect. condition: such as ``"mode paper"``.  holds:
    whether it does.
    """
    for name in names if holds else ():
        if (value := getattr(config, name)) != getattr(type(config), name):
            raise fl.UserError(f"{name}={value} has no effect with {condition}: leave it out, or change that")


def insist(config: Any, fixed: Mapping[str, Any], where: str) -> None:
    """Raises UserError for the first setting that differs from what ``where`` (a mode) fixes."""
    for name, value in fixed.items():
        if getattr(config, name) != value:
            raise fl.UserError(f"{name}={getattr(config, name)} is not for {where}: there it is {value}; leave it out")


@dataclass(frozen=True)
class LocalTraining:
    """Settings of local training; every system's config has these fields.

    lr: learning rate.  batch_size: samples a step.  momentum, weight_decay: of local SGD; it starts anew each round.
    max_epochs: the local epochs of the fastest client.  slowest: the smallest share of them that a client trains; each
    draws its share once, uniform in [slowest, 1]. Its epochs are rounded (FedCAPrivacy, section VI-A: E_m and d_i).
    participation: fraction of the clients that is asked each round.  deadline_s: virtual seconds that a round waits
    for its clients, or None to wait for all.
    sample_noise: trains by DP-SGD, which hides each sample: standard deviation of the Gaussian noise on the sum of a
    batch's gradients, over sample_clip; None for plain SGD.  sample_clip: L2 norm to which each sample's gradient is
    clipped.
    founders: how many clients take part from the start; 0 for all.  newcomers: how many of the others join each time,
    in the order of their numbers.  join_every: rounds between two such times.
    label_counts: clients learn the label counts of the training data of the model that they hold, by a sum in which no
    server sees one client's, for the prior at prediction; systems that have no such sum refuse it.
    """

    lr: float = 0.01
    batch_size: int = 50
    momentum: float = 0.0
    weight_decay: float = 0.0
    sample_clip: float = 1.0
    sample_noise: float | None = None
    max_epochs: Annotated[int, fl.Meta(ge=1)] = 5
    slowest: Annotated[float, fl.Meta(gt=0, le=1)] = 0.2
    participation: Annotated[float, fl.Meta(gt=0, le=1)] = 1.0
    deadline_s: Annotated[float | None, fl.Meta(gt=0)] = None
    founders: Annotated[int, fl.Meta(ge=0)] = 0
    newcomers: Annotated[int, fl.Meta(ge=1)] = 10
    join_every: Annotated[int, fl.Meta(ge=1)] = 10
    label_counts: bool = False

    def __post_init__(self) -> None:
        check_choices(self)
        fl.check_bounds(self)
        refuse_unused(self, "founders=0", not self.founders, "newcomers", "join_every")
        refuse_unused(self, "sample_noise=None", self.sample_noise is None, "sample_clip")
        self.solver()
        if self.sample_noise is not None and self.pretraining() is not None:
            raise fl.UserError("a pre-training on the clients' data has no sample_noise: leave one of them out")

    def solver(self) -> solvers.Sgd:
        return self.solver_of(solvers.Sgd)

    def solver_of(self, local: type[solvers.Sgd] | solvers.OwnLoss) -> solvers.Sgd:
        """A local solver with these settings. Raises UserError if it refuses them.

        local: its class, whose other fields are settings, too; or a loss for SGD, its last argument these settings.
        """
        if isinstance(local, type):
            solver: solvers.Sgd = local(**{one.name: getattr(self, one.name) for one in fields(local)})
            if self.sample_noise is not None and not solvers.is_private(solver):
                raise fl.UserError(f"{local.__name__} has no field sample_noise: leave the setting out")
            return solver
        plain = {one.name: getattr(self, one.name) for one in fields(solvers.Sgd)}
        return solvers.Objective(**plain, loss=local, settings=self)

    @property
    def models(self) -> int:
        return 1

    @property
    def selects(self) -> bool:
        """Whether the system itself selects a round's clients, so that no table lists them in advance."""
        return False

    def server_step(self, r: int) -> float:
        """Towards the mean, in round r = 1, 2, ..."""
        return 1.0

    def pretraining(self) -> tuple[solvers.Sgd, int] | None:
        """Solver and epochs of a pre-training outside any budget; or None."""
        return None

    def own_budget(self) -> Mapping[str, str]:
        """Settings of a comparison's budget that this method keeps as its own, and why."""
        return {}

    def beyond_budget(self) -> Mapping[str, str]:
        """Settings that give work or knowledge beyond any budget, described."""
        return {}


@dataclass(frozen=True)
class SteppedTraining(LocalTraining):
    """Local training and the server's step. Defaults are those of PAFed, table III, unless stated otherwise.

    A data set's own settings (``lr``, ``batch_size``: ``runs/defaults.py``) override these defaults in a run.
    PAFed's participation (sigma) is 0.1 of 100 clients; here 0.5, for small runs of 20 clients. Its step alpha is
    constant as printed.
    server_lr: the server's step in round 1.  server_decay: k >= 0; the server's step in round r is server_lr /
    (1 + k (r - 1)). With 0 it is constant.
    server_rounds: T > 0: the step falls linearly instead, server_lr (T - r + 1) / T in round r, and stays at the last
    one, server_lr / T, from round T on. Give it the run's rounds, and server_decay 0. 0: it does not.
    """

    lr: float = 0.1
    momentum: float = 0.5
    max_epochs: int = 10
    slowest: float = 1.0
    participation: float = 0.5
    server_lr: fl.Positive = 0.8
    server_decay: fl.NotNegative = 0.05
    server_rounds: fl.Count = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.server_rounds and self.server_decay:
            raise fl.UserError(
                f"server_rounds={self.server_rounds} and server_decay={self.server_decay} are two schedules of the "
                "server's step: set one of them to 0"
            )

    def server_step(self, r: int) -> float:
        """Of PAFed's eq. (17), alpha_0 in round r."""
        if self.server_rounds:
            return self.server_lr * max(1, self.server_rounds - r + 1) / self.server_rounds
        return self.server_lr / (1 + self.server_decay * (r - 1))


@dataclass(frozen=True)
class ProximalTraining(SteppedTraining):
    """mu: weight of the proximal term of FedProx; 0.01 in FedCAPrivacy's comparison (table I)."""

    mu: float = 0.01

    def solver(self) -> solvers.Sgd:
        return self.solver_of(solvers.Proximal)


@dataclass(frozen=True)
class ClusterModels(LocalTraining):
    """Local training in clusters with one model each (IFCA, MingledPie). clusters: k, the number of models.

    start: "random", each model with weights of its own; or "pretrained", each also trained beforehand on all data of
    one of the data's own groups ("prior knowledge" of MingledPie's authors). The server must then hold the
    clients' data.  pretrain_epochs: passes over those data.
    pretrain_batch: samples a step in the pre-training; 0 for all at once, so that an epoch is one gradient step.
    """

    clusters: fl.AtLeastOne = 5
    start: Literal["random", "pretrained"] = "random"
    pretrain_epochs: fl.AtLeastOne = 1
    pretrain_batch: Annotated[int, fl.Meta(ge=0)] = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unused(self, "start=random", self.start == "random", "pretrain_epochs", "pretrain_batch")

    def beyond_budget(self) -> Mapping[str, str]:
        if self.start == "random":
            return {}
        return {"start": f"its models begin after {self.pretrain_epochs} epochs on all data of the true groups"}

    @property
    def models(self) -> int:
        return self.clusters

    def pretraining(self) -> tuple[solvers.Sgd, int] | None:
        if self.start == "random":
            return None
        return solvers.Sgd(self.lr, self.pretrain_batch or 1 << 40), self.pretrain_epochs


def local_epochs(clients: Sequence[str], config: LocalTraining, seed: int) -> Mapping[str, int]:
    """E_i = round(d_i E_m), at least 1, from the seed and the client's name."""

    def epochs(name: str) -> int:
        d = fl.rng(seed, name, "uplink time").uniform(config.slowest, 1.0)  # d_i
        return max(1, round(d * config.max_epochs))

    return each(clients, epochs)


def joined(clients: Sequence[str], config: LocalTraining, r: int) -> Sequence[str]:
    """The clients that have joined by round r (MingledPie, appendix C.3: ten more every ten rounds)."""
    if not config.founders:
        return clients
    return tuple(clients[: config.founders + config.newcomers * ((r - 1) // config.join_every)])


def sample_size(clients: int, participation: float) -> int:
    return max(1, round(participation * clients))


def sample_clients(clients: Sequence[str], participation: float, seed: int, r: int) -> Sequence[str]:
    """A uniform sample, at least one, in order."""
    if participation >= 1.0:
        return clients
    count = sample_size(len(clients), participation)
    chosen = fl.rng(seed, "hub", "participants", r).choice(len(clients), count, replace=False)
    return tuple(clients[i] for i in sorted(chosen))


def asked_in(clients: Sequence[str], config: LocalTraining, seed: int, r: int) -> Sequence[str]:
    """A sample of the clients that have joined by round r; all of them if the system selects."""
    if config.selects:
        return joined(clients, config, r)
    return sample_clients(joined(clients, config, r), config.participation, seed, r)


def ask_each(
    server: fl.Party, names: Iterable[str], request: fl.Message, reply: type[fl.M], fold: fl.Fold[fl.M] = fl.ignored
) -> fl.Steps[fl.Answers]:
    """Ask these clients within the settings' deadline, and fold their answers to this round (``Message.ABOUT``), unless
    ``fold`` refuses one with a PeerError.
    """
    return (yield from ask_all(server, dict.fromkeys(names, request), reply, fold))


def ask_all(
    server: fl.Party, requests: Mapping[str, fl.Message], reply: type[fl.M], fold: fl.Fold[fl.M] = fl.ignored
) -> fl.Steps[fl.Answers]:
    """As ``ask_each``, with one request per client."""
    return (yield from fl.for_each(requests, reply, fold, deadline_s=server.config.deadline_s))


def ask_round(
    server: fl.Party, r: int, request: fl.Message, reply: type[fl.M], fold: fl.Fold[fl.M] = fl.ignored
) -> fl.Steps[dict[str, Any]]:
    """Ask the clients of round r and fold their answers. Returns the round's first notes."""
    asked = asked_in(server.clients, server.config, server.randomness.seed, r)
    answers = yield from ask_each(server, asked, request, reply, fold)
    return {"participants": len(answers.got), "asked": len(asked)}


def is_generator(local: Any) -> bool:
    """Whether this is ``local(client, start, r)``, no solver or loss."""
    return inspect.isgeneratorfunction(local)


def batch_seed(party: fl.Party, r: int) -> int:
    return int(party.rng("batches", r).integers(1 << 62))


def fit(client: fl.Party, start: fl.Vector, r: int, solver: solvers.Sgd | None = None, **more: Any) -> fl.Fit:
    """The effect of a client's training in round r. more: fields of ``Fit``."""
    given = {"solver": solver or client.config.solver(), "epochs": client.epochs, "seed": batch_seed(client, r), **more}
    if solvers.is_private(given["solver"]):
        given["secret"] = client.kept("training", b"", r).bytes(
            solvers.LEAST_SECRET
        )  # the engine mixes in what is trained on
    return fl.Fit(start, **given)


def told(config: Any, samples: int, epochs: int, words: Sequence[str], r: int) -> list[Release]:
    """What a message of round r that says ``words`` (``Message.TELLS``) releases of a client's data: with DP-SGD, a
    Gaussian sum over a secret batch in every step.
    """
    if getattr(config, "sample_noise", None) is None:
        return [Release(str(what), round=r) for what in words]
    trained = [what for what in words if isinstance(what, fl.FromTraining)][:1]
    batches = solvers.sampling(samples, config.batch_size, epochs)
    others = [Release(what, round=r) for what in words if not isinstance(what, fl.FromTraining)]
    sensitivity = 2 * config.sample_clip / batches.size  # of a step's mean gradient
    return others + [
        Release(
            str(what),
            "gaussian",
            config.sample_noise / 2,  # over the sensitivity of a replacement, 2 C
            sensitivity,
            round=r,
            draws=batches.steps,
            sampled=batches.probability,
            hidden=True,
        )
        for what in trained
    ]


def trained_for(epochs: Callable[[Any], float]) -> Callable[[Any, fl.Message], fl.Cost]:
    """The cost of training the whole model on the client's samples, ``epochs(client)`` times."""
    return lambda client, msg: fl.Cost(client.samples * epochs(client), client.spec.flops_per_sample)


def training_cost(client: fl.Party, msg: fl.Message) -> fl.Cost:
    """Of training the whole model on the client's samples, once per epoch."""
    return trained_for(lambda client: client.epochs)(client, msg)


def check_model(spec: fl.ModelSpec, digest: bytes, weights: fl.Vector, models: int = 1) -> fl.Vector:
    """These weights (models d,) of another party.

    Raises PeerError for another shape, a weight above ``MOST_WEIGHT``, or a running variance below 0.
    """
    if digest != spec.digest or len(weights) != models * spec.size:
        raise fl.PeerError(
            f"a model of {len(weights)} numbers or of another shape; expected {models * spec.size} of ours"
        )
    if not (beyond := solvers.largest(weights)) <= MOST_WEIGHT:
        raise fl.PeerError(f"a model with a weight of {beyond:.2g}; the largest that is taken is {MOST_WEIGHT:.2g}")
    variances = weights.reshape(models, spec.size)[:, spec.variances]
    if variances.size and (least := float(variances.min())) < 0:
        raise fl.PeerError(f"a model with a running variance of {least:.2g}; variances are at least 0")
    return weights


def best_model(models: Iterable[fl.Vector]) -> fl.Work[int]:
    """The model with the lowest loss on the party's training data (MingledPie eq. 2), the first on ties. NaN is the
    worst.
    """
    losses = []
    for weights in models:
        seen: fl.Evaluated = yield fl.Evaluate(weights, "train")
        losses.append(seen.loss)
    return int(np.argmin([np.inf if np.isnan(loss) else loss for loss in losses]))


@fl.local("label histogram")
def label_counts(own: fl.OwnData, classes: int) -> fl.Integers:
    """(classes,) of the party's samples."""
    return np.bincount(own.y, minlength=classes).astype(np.int64)


def counts_labels(config: Any, mode: str) -> bool:
    return bool(getattr(config, "label_counts", False))
