"""Federations of any system with a tiny model and a made-up training, for tests: a round takes milliseconds.

Client i is pulled towards ``targets[i]``; everything else (parties, messages, ciphers, transport) is the real thing.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import cycle
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import torch

import coterie.method as fl
from coterie.crypto import paillier
from coterie.devices.links import Delays
from coterie.devices.profiles import fleet
from coterie.protocol.codec import message_weight
from coterie.protocol.errors import CoterieError
from coterie.protocol.interpreters import PLAIN, Interpreter, each, interpret, locally
from coterie.protocols.sparsity import Halves, Public
from coterie.runs import parties
from coterie.runs.keyring import PartyKeys
from coterie.runs.parties import simulate
from coterie.training.solvers import descend
from coterie.transport.envelope import Envelope
from coterie.transport.local import LocalTransport
from coterie.transport.transcript import Transcript, View
from coterie.transport.wire import Links


def spec_of(size: int) -> fl.ModelSpec:
    """A model of one matrix and a bias of 3."""
    parts = fl.Part("weight", (size - 3,), "float32", "parameter", "shared", 0)
    return fl.ModelSpec(
        (parts, fl.Part("bias", (3,), "float32", "parameter", "shared", size - 3)), 6.0 * size, outputs=3
    )


def normed_spec(size: int) -> fl.ModelSpec:
    """The same with batch normalisation, of two scales and two running means."""
    scale = fl.Part("norm.weight", (2,), "float32", "parameter", "shared", size - 7)
    mean = fl.Part("norm.running_mean", (2,), "float32", "buffer", "shared", size - 5)
    weight, bias = spec_of(size).parts
    return fl.ModelSpec((replace(weight, shape=(size - 7,)), scale, mean, bias), 6.0 * size, outputs=3)


class Pulled:
    """Effects of a made-up training: gradient steps on |w - target|^2 / 2 through the solver, and a little noise.

    ``Evaluate`` and ``Losses`` give |w - target|^2 / 2 as the loss. Encryption and opening are the keys' own, ``Local``
    functions see the target as their only sample.
    """

    chunk = 64

    def __init__(self, targets: Mapping[str, np.ndarray], *, steps: int = 1, noise: float = 0.0) -> None:
        self.targets, self.steps, self.noise = targets, steps, noise
        self.table: dict[type, Interpreter] = {
            **PLAIN,
            fl.Fit: each(self.fit),
            fl.Evaluate: each(self.evaluate),
            fl.Losses: each(self.losses),
            fl.Local: self.local,
        }

    def gradient(self, party: str, weights: torch.Tensor) -> torch.Tensor:
        return weights - torch.from_numpy(self.targets[party].astype(np.float32))

    def run(self, wanted: Sequence[tuple[str, Any]]) -> list[Any]:
        return interpret(self.table, wanted)

    def own(self, party: str) -> fl.OwnData:
        """One sample, which is the client's target, on an ordinary device."""
        x, y = self.targets[party].astype(np.float32)[None], np.zeros(1, np.int64)
        fl.freeze([x, y])
        return fl.OwnData(x, y, device=fleet("uniform", 1, 0)[0])

    def local(self, wanted: Sequence[tuple[str, Any]]) -> list[Any]:
        """Functions of the own data. There is no network, so sparsity vectors are made up (``features``)."""
        made_up = {"sparsity": self.halves, "public sparsity": self.public, "training on poisoned samples": self.wrong}
        known = locally(self.own)
        return [
            made_up[effect.name](p, effect) if effect.name in made_up else known([(p, effect)])[0]
            for p, effect in wanted
        ]

    def wrong(self, party: str, effect: fl.Local) -> fl.Fitted:
        """A training towards the opposite of the target."""
        other = Pulled({party: -self.targets[party]}, steps=self.steps, noise=self.noise)
        return other.fit(party, effect.arguments[1])

    def features(self, party: str) -> np.ndarray:
        """(size,) in (0, 1): devices with like targets have like features."""
        return 1 / (1 + np.exp(-self.targets[party]))

    def halves(self, party: str, effect: fl.Local) -> Halves:
        """Of five samples each, whose features scatter a little."""
        scatter = np.random.default_rng(effect.arguments[2]).normal(0, 0.02, (2, len(self.targets[party])))
        return Halves(np.clip(self.features(party) + scatter, 0, 1), (5, 5))

    def public(self, party: str, effect: fl.Local) -> Public:
        """Of the hub's own samples. Their classes differ in every direction."""
        mean, norms = self.features(party).astype(np.float32), np.ones(10, np.float32)
        return Public(mean, norms, np.eye(len(mean), dtype=np.float32), norms)

    def evaluate(self, party: str, effect: fl.Evaluate) -> fl.Evaluated:
        return fl.Evaluated(float(np.square(effect.weights - self.targets[party]).sum() / 2), 0.0, 1)

    def losses(self, party: str, effect: fl.Losses) -> np.ndarray:
        return (np.square(effect.weights - self.targets[party]).sum(axis=1, keepdims=True) / 2).astype(np.float32)

    def fit(self, party: str, effect: fl.Fit) -> fl.Fitted:
        start = torch.from_numpy(np.array(effect.weights))
        state = {name: torch.from_numpy(np.array(vector)) for name, vector in effect.state.items()}
        pull, end = effect.solver.pull(start, state), start.clone()
        steps = self.steps * effect.epochs
        still = torch.from_numpy(~spec_of(len(end)).of(effect.only)) if effect.only else None
        for _ in range(steps):
            descend(end, self.gradient(party, end), None, pull, effect.solver)
            if still is not None:
                end[still] = start[still]
        kept = effect.solver.keep(start, end, steps, state)
        noise = self.noise * np.random.default_rng(effect.seed).normal(size=len(end)).astype(np.float32)
        return fl.Fitted(end.numpy() + noise, 1, steps, 0.0, {name: tensor.numpy() for name, tensor in kept.items()})


@dataclass
class Steady(Links):
    """Links: a leg takes ``leg_s``, a job ``job_s`` (or what ``slow`` says of its party). away: fates by round.

    delays: which clients an experiment delays, and by how many rounds.
    """

    leg_s: float = 0.01
    job_s: float = 1.0
    slow: dict[str, float] = field(default_factory=dict)
    away: dict[tuple[str, int], str] = field(default_factory=dict)
    delays: Delays | None = None

    def down_s(self, party: str, size: int) -> float:
        return self.leg_s

    def up_s(self, party: str, size: int) -> float:
        return self.leg_s

    def work_s(self, party: str, cost: fl.Cost) -> float:
        return self.slow.get(party, self.job_s)

    def rounds(self, party: str, round: int) -> int:
        return self.delays.rounds(party, round) if self.delays else 0

    def fate(self, party: str, round: int, request: int) -> str:
        return self.away.get((party, round), "ok")


class Repeatable(fl.Randomness):
    """Secrets follow the seed under real ciphers, too, so that a test sees the same run every time.

    What SEAL and Paillier draw for keys and noise still comes from the operating system.
    """

    def secrets(self, party: str, purpose: str, round: int = 0, attempt: int = 0) -> fl.Secrets:
        return fl.Secrets(fl.rng(self.seed, party, f"secret {purpose}", round, attempt))


@dataclass
class Rig:
    """A federation under test, after its set-up."""

    system: fl.System
    config: Any
    federation: fl.Federation
    owns: Mapping[str, fl.Own]
    transport: LocalTransport
    links: Steady

    @property
    def common(self) -> fl.Common:
        return self.federation.common

    @property
    def hub(self) -> Any:
        return self.federation.parties[self.federation.hub]

    @property
    def refused(self) -> Counter[str]:
        """What was refused in the last round: ``role/Message: reason``."""
        return self.transport.meter.refused

    def party(self, name: str) -> Any:
        return self.federation.parties[name]

    def round(self, r: int) -> dict[str, Any]:
        return dict(self.transport.drive(self.hub.round(r), r))

    def rounds(self, last: int) -> list[dict[str, Any]]:
        return [self.round(r) for r in range(1, last + 1)]

    def finish(self, last: int) -> dict[str, Any]:
        """What follows the last round."""
        return dict(self.transport.drive(self.hub.finish(), last + 1, settle=True) or {})

    def models(self) -> np.ndarray:
        """(clients, d), by the order of the clients."""
        models = self.system.models(self.federation)
        return np.stack([models[name] for name in self.common.clients])

    def view(self, name: str) -> View:
        assert self.transport.transcript is not None
        return self.transport.transcript.views[name]

    def refusals(self, role: str, kind: str) -> int:
        return sum(n for key, n in self.refused.items() if key.startswith(f"{role}/{kind}:"))


def rig(
    system: fl.System,
    targets: np.ndarray,
    *,
    mode: str = "paper",
    emulated: bool = True,
    seed: int = 0,
    effects: Callable[[Mapping[str, np.ndarray]], Any] = Pulled,
    links: Steady | None = None,
    intercept: Any = None,
    wire: Callable[[LocalTransport], Any] | None = None,
    fresh_keys: bool = False,
    delta: float | None = None,
    delay: str = "uniform:1-5",
    spec: fl.ModelSpec | None = None,
    starts: np.ndarray | None = None,
    wrap: Callable[[fl.Federation], None] | None = None,
    deployed: bool = False,
    quorum: int = 0,
    seeds: Callable[[str], int] | None = None,
    **settings: Any,
) -> Rig:
    """A federation with one client for every row of ``targets`` (clients, d), set up.

    intercept: an attacker on the wire from the set-up on.  wire: is given the transport before the set-up.
    fresh_keys: real keys of its own, which take a second; otherwise all real federations have the same two.
    delta, delay: of the experiment, as in a run.  spec, starts: the model's, (k, d) float32, for made-up ones.
    wrap: may change the built federation before its set-up.
    deployed, quorum: as of ``Common``.  seeds: by party its own seed; by default all share ``seed``.
    """
    names = tuple(f"client/{i}" for i in range(len(targets)))
    spec = spec or (normed_spec if system.name == "fedbn" else spec_of)(targets.shape[1])
    config = system.config(**{"lr": 0.5, **system.defaults(mode), **settings})
    count = config.models
    if starts is None:
        drawn = [fl.rng(seed, "hub", "w", 0, i).normal(0, 0.01, spec.size) for i in range(count)]
        starts = np.stack(drawn).astype(np.float32)
    randomness = Repeatable(seed, emulated)
    ten, one = dict.fromkeys(names, 10), dict.fromkeys(names, 1)
    hub = next(iter(system.roles(config, names)))
    samples = {**ten, hub: 10} if system.public else ten
    with as_machines_are(deployed, quorum, seeds):
        federation, owns = simulate(system, config, names, spec, starts[:count], mode, randomness, samples, one)
    if wrap is not None:
        wrap(federation)
    identities = {name: own.identity for name, own in owns.items() if own.identity}
    links = links or Steady()
    share = system.delta if delta is None else delta
    links.delays = Delays(lambda r: fl.asked_in(names, config, seed, r), share, delay, seed)
    transport = LocalTransport(
        federation.parties,
        federation.hub,
        effects(dict(zip(names, targets, strict=True)) | ({hub: public_target(targets)} if system.public else {})),
        links=links,
        keyring=PartyKeys(federation.common.roster, identities),
        transcript=Transcript(1 << 30),
        counted=frozenset(kind.__name__ for kind in system.counted(config, mode)),
    )
    transport.intercept = intercept
    if wire is not None:
        wire(transport)
    made = Rig(system, config, federation, owns, transport, links)
    pair = cycle(real_keys()) if not (emulated or fresh_keys) else None
    known = patch.object(paillier, "keygen", lambda *_, **__: next(pair)) if pair else nullcontext()
    with known:
        transport.drive(made.hub.setup(), 0)
    return made


@contextmanager
def as_machines_are(deployed: bool, quorum: int, seeds: Callable[[str], int] | None) -> Iterator[None]:
    """Federations made meanwhile are told that they are deployed, and each party has a seed of its own."""

    def own(name: str, randomness: Repeatable, *rest: Any) -> fl.Own:
        return fl.Own(name, randomness if seeds is None else replace(randomness, seed=seeds(name)), *rest)

    with (
        patch.object(parties, "Common", partial(fl.Common, deployed=deployed, quorum=quorum)),
        patch.object(parties, "Own", own),
    ):
        yield


def public_target(targets: np.ndarray) -> np.ndarray:
    """What a hub is pulled towards that trains on its own data."""
    return np.asarray(targets.mean(axis=0))


@cache
def real_keys() -> tuple[paillier.SecretKey, paillier.SecretKey]:
    """Two Paillier key pairs, drawn once."""
    return paillier.keygen(2048), paillier.keygen(2048)


def planted(groups: Sequence[int], size: int, *, seed: int = 0, apart: float = 1.0, within: float = 0.1) -> np.ndarray:
    """Targets (clients, size): one centre a group, and every client a little off its own."""
    source = np.random.default_rng(seed)
    centres = source.normal(0, apart, (max(groups) + 1, size))
    return centres[list(groups)] + source.normal(0, within, (len(groups), size))


# -- attackers -------------------------------------------------------------------------------------------------------

Change = Callable[[Any], fl.Message | bytes | None]


def on_the_wire(
    transport: LocalTransport,
    kind: type[fl.Message],
    change: Change,
    *,
    src: str = "",
    dst: str = "",
    rounds: Any = None,
    signed: bool = True,
) -> list[fl.Message]:
    """Let senders of one type of message lie: they send another message, or raw bytes, or None to send nothing.

    What they send they sign, so that the recipient has only its own checks. signed: False lets a relay change it, which
    can't sign. Returns the list of what they would have sent, which grows.
    """
    caught: list[fl.Message] = []

    def intercept(envelope: Any, frame: bytes) -> list[Any]:
        here = envelope.kind == kind.__name__ and (not src or envelope.src == src) and (not dst or envelope.dst == dst)
        if not here or (rounds is not None and envelope.round not in rounds):
            return [frame]
        message = fl.codec.decode(frame, kind)
        caught.append(message)
        changed = change(message)
        if changed is None:
            return []
        frame = changed if isinstance(changed, bytes) else fl.codec.encode(changed)
        other, _ = resigned(transport, envelope, frame, kind)
        return [(other if signed else msgspec.structs.replace(other, signature=envelope.signature), frame)]

    transport.intercept = intercept
    return caught


def resigned(
    transport: LocalTransport, envelope: Envelope, frame: bytes, kind: type[fl.Message]
) -> tuple[Envelope, bytes]:
    """What the sender of this envelope would have sent, had it sent this frame of some kind; not sealed."""
    weight = len(frame)
    with suppress(fl.DecodeError):
        weight = message_weight(fl.codec.decode(frame, kind), len(frame))
    bare = msgspec.structs.replace(envelope, weight=weight, digest=b"", signature=b"")
    digest = hashlib.sha256(frame).digest()
    signature = transport.hub.keyring.sign(bare.src, bare.header(), digest)
    return msgspec.structs.replace(bare, digest=digest, signature=signature), frame


def repeated(transport: LocalTransport, kind: type[fl.Message], *, src: str = "", dst: str = "") -> None:
    """Let a relay deliver the first message of one type from then on, in its own envelope, instead of all others."""
    first: list[Any] = []

    def intercept(envelope: Any, frame: bytes) -> list[Any]:
        if envelope.kind != kind.__name__ or (src and envelope.src != src) or (dst and envelope.dst != dst):
            return [frame]
        first.append((envelope, frame))
        return [first[0]]

    transport.intercept = intercept


def misbehaving(party: fl.Party, kind: type[fl.Message], change: Callable[[Any, Any, Any], Any]) -> None:
    """Make a party answer ``kind`` with ``change(party, request, its honest answer)``."""
    honest = party.handlers[kind]

    def run(self: Any, message: Any, src: str) -> Any:
        outcome = honest.run(self, message, src)
        if hasattr(outcome, "send"):
            outcome = yield from outcome
        return change(self, message, outcome)

    table = {**party.handlers, kind: fl.Handler(run, honest.cost)}
    party.__class__ = type(f"Bad{type(party).__name__}", (type(party),), {"handlers": table})
    party.__class__.handlers = table


def to(dst: str, *messages: fl.Message) -> tuple[fl.To, ...]:
    return tuple(fl.To(dst, message) for message in messages)


__all__ = [
    "CoterieError",
    "Pulled",
    "Rig",
    "Steady",
    "misbehaving",
    "on_the_wire",
    "planted",
    "rig",
    "spec_of",
    "to",
]
