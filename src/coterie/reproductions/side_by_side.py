"""Runs of a study side by side, each a process with one torch thread."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from math import inf
from pathlib import Path
from typing import TypeVar

import torch

from coterie.runs.outcome import peak_memory_bytes

T = TypeVar("T")

_FIRST = 2 << 30  # bytes that a run is taken to need until one has finished


def free_memory() -> float:
    """Bytes for another process, as Linux estimates them; elsewhere unlimited."""
    info = Path("/proc/meminfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), inf)


def side_by_side(work: Mapping[str, Callable[[], T]], jobs: int, tell: Callable[[str, T], None]) -> None:
    """As much work at once as ``jobs`` and memory allow. tell: called with each result, by name. More work begins only
    where as much memory is free as any finished work has taken. The first error is raised once what runs has ended.
    """
    waiting, running, most = list(work.items()), dict[Future[tuple[T, int]], str](), _FIRST
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        try:
            while waiting or running:
                while waiting and len(running) < jobs and (not running or free_memory() > most):
                    name, task = waiting.pop(0)
                    running[pool.submit(_measured, task)] = name
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    name = running.pop(done)
                    result, peak = done.result()
                    most = max(most, peak)
                    tell(name, result)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _measured(task: Callable[[], T]) -> tuple[T, int]:
    return task(), peak_memory_bytes() or _FIRST
