"""A simulation's effects: clients train together, and ciphertexts are opened once."""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.devices.traces import Traces
from coterie.protocol.effects import Compute, Encrypt, Evaluate, Fit, Fitted, Local, Losses, Open, OwnData
from coterie.protocol.errors import CryptoError, RunError
from coterie.protocol.interpreters import Interpreter, each, interpret, locally
from coterie.protocols.averaging import OUTLYING
from coterie.runs.metrics import ClassWeights
from coterie.runs.on_data import ClientData, Here, OnData, diverged
from coterie.training.jobs import FP32, DivergedError, How
from coterie.training.model import Model
from coterie.training.solvers import largest

MEMORY_BYTES = 1 << 30
OPENED_BYTES = 256 << 20
_VECTORS_A_JOB = 8  # (d,) float32 each: weights, state, result, answer and what training needs (ciphers: the transport)
_MOST_JOBS = 1024
# an update whose weights are larger by this factor than any result of its sender's training is made up; a model whose
# weights are larger by this factor than those of the smallest start model is another model
_APART = 10.0


class OpenedCache:
    """Opened ciphertexts' values, read-only and shared; drops the least recently used."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._held: OrderedDict[tuple[Any, bytes], NDArray[Any]] = OrderedDict()
        self._bytes = 0

    def get(self, key: Any, data: bytes, compute: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        name = (key, _digest(data))
        if name in self._held:
            self._held.move_to_end(name)
            return self._held[name]
        value = compute()
        value.setflags(write=False)
        self._held[name] = value
        self._bytes += value.nbytes
        while self._bytes > self.limit_bytes and len(self._held) > 1:
            self._bytes -= self._held.popitem(last=False)[1].nbytes
        return value


@lru_cache(maxsize=16)
def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


class Computed:
    def __init__(self, most: int = 4) -> None:
        self._held: deque[tuple[Compute, Any]] = deque(maxlen=most)

    def get(self, wanted: Compute) -> Any:
        for known, result in self._held:
            if known.function == wanted.function and _same(known.arguments, wanted.arguments):
                return result
        result = wanted.function(*wanted.arguments)
        self._held.append((wanted, result))
        return result


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return type(a) is type(b) and a.dtype == b.dtype and np.array_equal(a, b)
    return bool(a == b)


def _most(part: Fit | Fitted) -> float:
    return max(map(largest, (part.weights, *part.state.values())))


@dataclass(frozen=True)
class Diverged:
    """start: the largest number that the training began with.  lr: of its solver, if any."""

    party: str
    start: float
    lr: float | None
    error: DivergedError


def _encrypted(wanted: Sequence[tuple[str, Encrypt]]) -> Sequence[Any]:
    from coterie.crypto.pool import encrypt_many  # loads SEAL

    return encrypt_many([(effect.key, effect.values) for _, effect in wanted])


class LocalEffects:
    """``coterie.transport.queues.Effects`` for a simulation.

    data: of every party that trains.  chunk: messages whose vectors stay within memory_bytes.  emulated: keys must be;
    None for all.  traces: of presence; None for always.  workers: None for this process.
    """

    def __init__(
        self,
        model: Model,
        data: Mapping[str, ClientData],
        how: How = FP32,
        *,
        memory_bytes: int = MEMORY_BYTES,
        emulated: bool | None = None,
        devices: Mapping[str, Any] = MappingProxyType({}),
        traces: Traces | None = None,
        class_weights: ClassWeights | None = None,
        workers: OnData | None = None,
    ) -> None:
        self.model, self.data = model, data
        self.chunk = max(1, min(_MOST_JOBS, memory_bytes // (_VECTORS_A_JOB * 4 * model.spec.size)))
        self.emulated, self.devices, self.traces = emulated, devices, traces
        self.how = how
        self._here = Here(model, data, how, class_weights)
        self.workers: OnData = workers or self._here
        self.table: dict[type, Interpreter] = {
            Fit: self._fit,
            Evaluate: self.workers.run,
            Losses: self._losses,
            Local: locally(self._own),
            Encrypt: _encrypted,
            Open: each(self._open),
            Compute: each(lambda party, effect: self._computed.get(effect)),
        }
        self._opened = OpenedCache(OPENED_BYTES)
        self._computed = Computed()
        self._trained = 0
        self._diverged: list[Diverged] = []
        self._ended: dict[str, float] = {}
        self._poisoned: dict[str, str] = {}
        self._least_start = math.inf

    def run(self, wanted: Sequence[tuple[str, Any]]) -> list[Any]:
        """In order; PeerError or CryptoError for failed effects and diverged trainings."""
        errors = [self._wrong_key(party, getattr(effect, "key", None)) for party, effect in wanted]
        right = [one for one, error in zip(wanted, errors, strict=True) if error is None]
        results = iter(interpret(self.table, right))
        return [next(results) if error is None else error for error in errors]

    def _wrong_key(self, party: str, key: Any) -> CryptoError | None:
        if key is None or self.emulated is None or key.emulated == self.emulated:
            return None
        is_, runs = ("an emulated", "real") if key.emulated else ("a real", "emulated")
        return CryptoError(f"{party} has {is_} key in a run with {runs} encryption")

    def _fit(self, wanted: Sequence[tuple[str, Fit]]) -> Sequence[Any]:
        self._trained += len(wanted)
        starts = [_most(fit) for _, fit in wanted]
        self._least_start = min([self._least_start, *starts])
        results = self.workers.run(wanted)
        for (party, fit), start, result in zip(wanted, starts, results, strict=True):
            if isinstance(result, DivergedError):
                self._diverged.append(Diverged(party, start, fit.solver.lr, result))
            elif isinstance(result, Fitted):
                self._ended[party] = max(self._ended.get(party, 0.0), _most(result))
        return [diverged() if isinstance(result, DivergedError) else result for result in results]

    def took(self, r: int, notes: Mapping[str, Any]) -> None:
        """Remember round r's outliers, by which models may diverge later."""
        outliers = notes.get("outliers", {})
        few = 2 * len(outliers) <= notes.get("participants", 0)
        for name, most in outliers.items():
            if most > _APART * self._ended[name] if name in self._ended else few:
                self._poisoned[name] = f"{name}'s update of round {r} (a weight of {most:.2g})"

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Raises RunError if more than half of its trainings diverged."""
        self._trained, self._diverged = 0, []
        failed = None
        try:
            yield
        except RunError as error:
            failed = error
        if 2 * len(self._diverged) > self._trained:
            raise self._why_diverged() from self._diverged[0].error
        if failed is not None:  # a divergence says more
            raise failed

    def _why_diverged(self) -> RunError:
        first = self._diverged[0]
        others = f" and {len(self._diverged) - 1} others" if len(self._diverged) > 1 else ""
        what = f"the training of {first.party}{others} diverged (loss or weights are no longer finite)"
        if self._poisoned and first.start > min(OUTLYING, _APART * self._least_start):
            return RunError(
                f"{what}: the model that these clients were sent is poisoned, with a weight of {first.start:.2g}, by "
                f"{', '.join(self._poisoned.values())}; leave such a client out"
            )
        now = "" if first.lr is None else f" (now lr={first.lr:g}, for example --set lr={first.lr / 10:g})"
        return RunError(f"{what}: lower the learning rate{now} or look at the data")

    def _losses(self, wanted: Sequence[tuple[str, Losses]]) -> Sequence[Any]:
        results = self.workers.run(wanted)
        for (party, effect), losses in zip(wanted, results, strict=True):
            if not np.isfinite(losses).all():  # nothing that starts there can be trained
                self._trained += 1
                self._diverged.append(Diverged(party, largest(effect.weights), None, DivergedError(0, "a loss")))
        return results

    def _open(self, party: str, effect: Open) -> Any:
        key, data = effect.key, effect.data
        if effect.blinded:  # masks are fresh: nothing to remember
            return key.open_blinded(key.public.from_bytes(data))
        return self._opened.get(key, data, lambda: key.decrypt(key.public.from_bytes(data)))

    def _own(self, party: str) -> OwnData:
        """The arrays are read-only views."""
        own = self._here.of(party)
        x, y = own.x.numpy(), own.y.numpy()
        for view in (x, y):
            view.setflags(write=False)
        known = self.traces if self.traces is not None and party in self.traces else None
        presence = None if known is None else partial(known.present, party)
        return OwnData(x, y, self.model, self.devices.get(party), self.how["device"], presence)
