"""Workers that compute on parties' data, bit for bit: ``--workers ray``, ``ray:COUNT`` or ``ray://HOST:PORT``."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any, Protocol

import torch

from coterie.protocol.effects import Fit, Losses
from coterie.protocol.errors import UserError, to_install
from coterie.runs.config import Resolved
from coterie.runs.config_file import from_text, to_toml
from coterie.runs.digests import inputs_digest
from coterie.runs.inputs import inputs_of
from coterie.runs.metrics import class_weights
from coterie.runs.on_data import Here, OnData, Wanted
from coterie.runs.own_code import own_code, with_code
from coterie.training.workers import longest_first

_FORM = re.compile(r"ray(?::([1-9][0-9]{0,4})|(://[^\s/]+:[0-9]{1,5}))?")


def check_workers(text: str | None) -> None:
    """Raises UserError for another form than these three, and if Ray is not installed."""
    if text is None:
        return
    if _FORM.fullmatch(text) is None:
        raise UserError(f"workers={text}: write ray, ray:COUNT (so many workers on this machine) or ray://HOST:PORT")
    if find_spec("ray") is None:
        raise UserError(f"workers={text} needs Ray, which is not installed: {to_install('ray')}")


def workers_of(config: Resolved, inputs: str, samples: Callable[[str], int]) -> OnData | None:
    """None without workers. inputs: of its data and code, which must be theirs. Raises UserError as ``check_workers``,
    for an unavailable cluster, and for what only this process knows.
    """
    check_workers(config.workers)
    if config.workers is None:
        return None
    for what in (config.model, config.loss, config.system):
        if what is not None and what.startswith("given:"):
            raise UserError(f"{what} is an object of this process, which workers do not have: give it as module:NAME")
    found = _FORM.fullmatch(config.workers)
    assert found is not None
    with _sigterm_kept():
        from coterie.runs.ray_workers import RayCluster

        cluster = RayCluster(
            address=None if found[2] is None else config.workers,
            count=None if found[1] is None else int(found[1]),
            gpu=config.accelerator.startswith("cuda"),
            make=partial(Worker, to_toml(config), inputs),
        )
    return WorkerPool(cluster.workers, samples, cluster.close)


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(before):
            signal.signal(signal.SIGTERM, before)


class RemoteWorker(Protocol):
    def ask(self, wanted: Wanted, drifted: bool) -> Callable[[], list[Any]]:
        """The returned function waits for results, and raises the worker's error."""


class WorkerPool:
    """Spreads work over equal workers. samples: of a party."""

    def __init__(
        self, workers: Sequence[RemoteWorker], samples: Callable[[str], int], close: Callable[[], None] = lambda: None
    ) -> None:
        self._workers, self._samples, self._close = workers, samples, close
        self._drifted = False

    def run(self, wanted: Wanted) -> list[Any]:
        """In order. Long work is sent first, and workers are balanced (Graham's rule)."""
        shares = longest_first([self._cost(party, effect) for party, effect in wanted], len(self._workers))
        sent = [
            (share, worker.ask([wanted[i] for i in share], self._drifted))
            for worker, share in zip(self._workers, map(sorted, shares), strict=False)
        ]
        results: list[Any] = [None] * len(wanted)
        for share, get in sent:
            for i, result in zip(share, get(), strict=True):
                results[i] = result
        return results

    def drift(self) -> None:
        self._drifted = True

    def close(self) -> None:
        self._close()

    def _cost(self, party: str, effect: Any) -> float:
        passes = 3 * effect.epochs if isinstance(effect, Fit) else 1
        return self._samples(party) * passes * (len(effect.weights) if isinstance(effect, Losses) else 1)


class Worker:
    """Its part elsewhere: the run's data and model, from its config alone.

    text: the config.  inputs: of its data and code (``own_code.with_code``). Raises UserError for others here.
    """

    def __init__(self, text: str, inputs: str) -> None:
        torch.set_num_threads(1)
        config = replace(from_text(text), workers=None)
        hub = next(iter(config.definition.roles(config.own, ())))
        found = inputs_of(config, hub)
        if with_code(inputs_digest(config, found.tasks, found.model), own_code(config)) != inputs:
            raise UserError("a worker has other data, or other code of your own, than the run: make them the same")
        targets = found.dataset.targets
        weights = class_weights(config.class_weights, targets, found.dataset.classes)
        self._givers, self._data = found.givers, found.data
        self._here = Here(found.model, found.data, config.how, weights)
        self._drifted = False

    def run(self, wanted: Wanted, drifted: bool) -> list[Any]:
        if drifted and not self._drifted:
            self._data.exchange(self._givers)
            self._drifted = True
        return self._here.run(wanted)
