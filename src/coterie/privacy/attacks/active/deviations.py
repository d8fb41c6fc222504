"""What attackers do in place of effects, by kind of attack. Buffers stay as trained; a solver's vectors move with the
weights, except under noise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

import coterie.method as fl
from coterie.aggregation.contribution import contribution
from coterie.privacy.attacks.active.samples import Poison, poisoned_fit
from coterie.privacy.attacks.wrapping import Instead

Doubles = NDArray[np.float64]
Replaced = Callable[[fl.Party, fl.Message, fl.Fit, str], fl.Work[fl.Fitted] | None]
"""(the attacker, the message that it handles, its training, which of its trainings that is) -> the result; None if
honest.
"""


@dataclass
class Deeds:
    """What a run's attackers did in this process.  replaced: results, by attacker.  honest: trainings.  computed: by
    function, computations from their data.
    """

    replaced: Counter[str] = field(default_factory=Counter)
    honest: int = 0
    computed: Counter[str] = field(default_factory=Counter)


def instead_of(deviation: Replaced, deeds: Deeds | None = None) -> Instead:
    """The deviation for trainings, and for a leader's contributed model as if trained from the start of
    ``contributed``.

    deeds: counts both.
    """
    done = deeds or Deeds()

    def train(party: fl.Party, message: fl.Message, effect: fl.Fit) -> fl.Work[Any]:
        return (yield from counted(party, effect, deviation(party, message, effect, "training")))

    def lead(party: fl.Party, message: fl.Message, effect: fl.Compute) -> fl.Work[Any]:
        if effect.function is not contribution:
            return (yield effect)
        start, weights = effect.arguments
        honest = fl.Fitted(weights, party.samples, 1, 0.0)
        work = deviation(party, message, _as_fit(party, start), "leading")
        found = yield from counted(party, effect, None if work is None else _answered(work, honest))
        return weights if work is None else found.weights

    def compute(party: fl.Party, message: fl.Message, effect: fl.Local) -> fl.Work[Any]:
        done.computed[effect.name] += 1
        return (yield effect)

    def counted(party: fl.Party, effect: Any, work: fl.Work[fl.Fitted] | None) -> fl.Work[Any]:
        if work is None:
            done.honest += 1
            return (yield effect)
        found = yield from work
        done.replaced[party.name] += 1
        return found

    return {fl.Fit: train, fl.Compute: lead, fl.Local: compute}


def _as_fit(party: fl.Party, start: fl.Vector) -> fl.Fit:
    return fl.fit(party, start, 0, seed=int(party.rng("leading").integers(1 << 62)))


def _answered(work: fl.Work[fl.Fitted], honest: fl.Fitted) -> fl.Work[fl.Fitted]:
    try:
        effect: Any = next(work)
        while True:
            if isinstance(effect, fl.Fit):
                effect = work.send(honest)
                continue
            if isinstance(effect, fl.Local) and effect.name == poisoned_fit.name:
                poison, fit = effect.arguments
                effect = fl.Local(poisoned_fit, (poison, replace(fit, weights=honest.weights)))
            effect = work.send((yield effect))
    except StopIteration as done:
        result: fl.Fitted = done.value
        return result
    finally:
        work.close()


def on_samples(poison: Callable[[fl.Party], Poison], factor: float = 1.0) -> Replaced:
    """Trains on poisoned samples, and makes the step ``factor`` times as long."""

    def deviation(party: fl.Party, message: fl.Message, fit: fl.Fit, what: str) -> fl.Work[fl.Fitted]:
        fitted: fl.Fitted = yield fl.Local(poisoned_fit, (poison(party), fit))
        return fitted if factor == 1 else _moved(party, fit, fitted, factor)

    return deviation


def scaled(factor: float) -> Replaced:
    def deviation(party: fl.Party, message: fl.Message, fit: fl.Fit, what: str) -> fl.Work[fl.Fitted]:
        return _moved(party, fit, (yield fit), factor)

    return deviation


def with_noise(deviation_of_noise: float) -> Replaced:
    def deviation(party: fl.Party, message: fl.Message, fit: fl.Fit, what: str) -> fl.Work[fl.Fitted]:
        fitted: fl.Fitted = yield fit
        rng = party.rng(f"noise {what}", getattr(message, "round", 0))
        return _with(party, fitted, noisy(fitted.weights, deviation_of_noise, rng))

    return deviation


def adaptive(poison: Callable[[fl.Party], Poison], factor: float) -> Replaced:
    """Goes from its honest step towards one on wrong labels, as far as its estimate of the bounds allows.

    The result is ``factor`` times as long as the honest step u, and its cosine with the model's last move g is at least
    max(0, cos(u, g)). Without a g it is honest.
    """

    def deviation(party: fl.Party, message: fl.Message, fit: fl.Fit, what: str) -> fl.Work[fl.Fitted] | None:
        before = _before(party, message, fit.weights, what)
        return None if before is None else adapted(party, fit, before)

    def adapted(party: fl.Party, fit: fl.Fit, before: fl.Vector) -> fl.Work[fl.Fitted]:
        honest: fl.Fitted = yield fit
        wrong: fl.Fitted = yield fl.Local(poisoned_fit, (poison(party), fit))
        u, v, g = (
            _parameters(party, one)
            for one in (honest.weights - fit.weights, wrong.weights - fit.weights, fit.weights - before)
        )
        step = within(v - u, g, max(0.0, cosine(u, g)), factor * float(np.linalg.norm(u)))
        return _with(party, honest, (fit.weights + step).astype(np.float32))

    return deviation


class ReceivedModels(msgspec.Struct):
    """The attacker's starts, (d,): ``now`` of round ``round``, and ``before`` of the one before."""

    round: int = 0
    now: list[fl.Vector] = msgspec.field(default_factory=list)
    before: list[fl.Vector] = msgspec.field(default_factory=list)


def remember(party: fl.Party) -> None:
    """Adds room for received models to the party's state."""
    old = party.state
    received: Any = ("received", dict[str, ReceivedModels], msgspec.field(default_factory=dict))
    kind = msgspec.defstruct(f"{type(old).__name__}OfAttacker", [received], bases=(type(old),), module=__name__)
    party.state = kind(**{name: getattr(old, name) for name in old.__struct_fields__})


def _before(party: fl.Party, message: fl.Message, start: fl.Vector, what: str) -> fl.Vector | None:
    known: ReceivedModels = party.state.received.setdefault(what, ReceivedModels())
    if (r := getattr(message, "round", known.round + 1)) != known.round:
        known.round, known.before, known.now = r, known.now, []
    known.now.append(start)
    others = [one for one in known.before if not np.array_equal(one, start)]
    return min(others, key=lambda one: float(np.linalg.norm(start - one)), default=None)


def _parameters(party: fl.Party, step: fl.Vector) -> fl.Vector:
    return fl.with_buffers(party.spec, step, np.zeros_like(step))


def _with(party: fl.Party, fitted: fl.Fitted, weights: fl.Vector) -> fl.Fitted:
    return replace(fitted, weights=fl.with_buffers(party.spec, weights, fitted.weights))


def _moved(party: fl.Party, fit: fl.Fit, fitted: fl.Fitted, factor: float) -> fl.Fitted:
    state = {
        name: moved(fit.state[name], vector, factor) if name in fit.state else vector
        for name, vector in fitted.state.items()
    }
    return replace(_with(party, fitted, moved(fit.weights, fitted.weights, factor)), state=state)


# -- flat vectors, (d,) ------------------------------------------------------------------------------------------------


def moved(start: fl.Vector, weights: fl.Vector, factor: float) -> fl.Vector:
    """``start + factor (weights - start)``, (d,)."""
    step = weights.astype(np.float64) - start
    return (start + factor * step).astype(np.float32)


def noisy(weights: fl.Vector, deviation: float, rng: np.random.Generator) -> fl.Vector:
    """Independent normal noise of this standard deviation on each weight (d,)."""
    return (weights + deviation * rng.standard_normal(len(weights))).astype(np.float32)


def cosine(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Of vectors (d,), in float64; 0 if one is zero."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else 0.0


def within(towards: NDArray[Any], reference: NDArray[Any], least: float, length: float) -> Doubles:
    """The vector (d,) of this length nearest in direction to ``towards``, with cosine >= ``least`` to ``reference``,
    which bounds nothing if it is zero.
    """
    t, r = (_unit(v.astype(np.float64)) for v in (towards, reference))
    along = float(t @ r)
    if not r.any() or (t.any() and along >= least):
        return length * t
    aside = _unit(t - along * r)
    if t.any() and not aside.any():
        aside = _unit(_across(r))
    if not aside.any():
        return length * r
    return np.asarray(length * (least * r + np.sqrt(max(0.0, 1 - least**2)) * aside))


def _across(unit: Doubles) -> Doubles:
    """(d,) at a right angle to this unit vector; 0 where d = 1."""
    least = int(np.abs(unit).argmin())
    across: Doubles = -unit[least] * unit
    across[least] += 1
    return across


def _unit(vector: Doubles) -> Doubles:
    length = float(np.linalg.norm(vector))
    return vector / length if length > 1e-12 else np.zeros_like(vector)
