"""Workers on a Ray cluster: one actor each, which holds the data."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import coterie
from coterie.protocol.errors import CoterieError, RunError, UserError
from coterie.runs.on_data import Wanted

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

_REPEATS = 3  # of a chunk whose worker has died; one that kills its worker so often has too little memory


class _Actor:
    def __init__(self, make: Callable[[], Any]) -> None:
        self._worker: Any = None
        self._why: CoterieError | None = None
        try:
            self._worker = make()
        except CoterieError as error:
            self._why = error

    def ready(self) -> dict[str, str]:
        self._made()
        return versions()

    def run(self, wanted: Wanted, drifted: bool) -> list[Any]:
        return list(self._made().run(wanted, drifted))

    def _made(self) -> Any:
        if self._why is not None:
            raise self._why
        return self._worker

    def process(self) -> int:
        return os.getpid()


def versions() -> dict[str, str]:
    return {"coterie": coterie.__version__, "torch": torch.__version__, "numpy": np.__version__}


class RayWorker:
    def __init__(self, make: Callable[[], Any], gpu: bool) -> None:
        options = {"num_cpus": 1, "num_gpus": int(gpu), "max_restarts": -1, "max_task_retries": _REPEATS}
        self.actor = ray.remote(_Actor).options(**options).remote(make)

    def ask(self, wanted: Wanted, drifted: bool) -> Callable[[], list[Any]]:
        coming = self.actor.run.remote(list(wanted), drifted)
        return lambda: list(got(coming))


def got(coming: Any) -> Any:
    """Raises a worker's own error, and RunError for one that died too often."""
    try:
        return ray.get(coming)
    except RayTaskError as error:
        if isinstance(error.cause, CoterieError | TypeError):
            raise error.cause from None
        raise RunError(f"a worker failed: {error}") from error
    except RayActorError as error:
        raise RunError(
            f"a worker has died {_REPEATS + 1} times with the same work: it has too little memory, or the cluster is "
            f"gone ({error})"
        ) from error
    except RayError as error:
        raise RunError(f"the Ray cluster fails: {error}") from error


class RayCluster:
    """address: of a cluster, or None for one on this machine.  gpu: each needs one.  count: None for one a core, or a
    GPU.  make: makes a worker, there. Raises UserError for a cluster that is unreachable or full, and for workers
    that differ from this process.
    """

    def __init__(self, address: str | None, count: int | None, gpu: bool, make: Callable[[], Any]) -> None:
        self._ours = not ray.is_initialized()
        if self._ours:
            self._begin(address, count)
        try:
            room = ray.cluster_resources()
            fit = int(room.get("GPU" if gpu else "CPU", 0))
            if not fit:
                raise UserError(f"the Ray cluster has no {'GPU' if gpu else 'CPU'} for a worker")
            self.workers = [RayWorker(make, gpu) for _ in range(min(count or fit, fit))]
            for worker in self.workers:
                if (there := got(worker.actor.ready.remote())) != versions():
                    raise UserError(f"workers run {there}, and this process {versions()}: install the same versions")
        except BaseException:
            self.close()
            raise

    def _begin(self, address: str | None, count: int | None) -> None:
        quiet = {"logging_level": "ERROR", "log_to_driver": False}
        try:
            if address is not None:
                ray.init(address, **quiet)
                return
            cores = count or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else count
            ray.init(num_cpus=cores, include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
        except Exception as error:  # Ray's own, gRPC's, or the system's
            where = "on this machine" if address is None else f"at {address}"
            raise UserError(f"there is no Ray cluster to be had {where}: {error}") from error

    def close(self) -> None:
        for worker in getattr(self, "workers", ()):
            ray.kill(worker.actor)
        self.workers = []
        if self._ours:
            ray.shutdown()
