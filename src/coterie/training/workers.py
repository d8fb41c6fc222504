"""Shares of work on threads of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TypeVar

import torch

T = TypeVar("T")

_WORKERS = 16  # more would wait for each other at Python's interpreter lock
_IMBALANCE = 1.25  # largest share over the mean from which one share with torch's own threads is the better choice


def longest_first(costs: Sequence[float], bins: int) -> list[list[int]]:
    """Longest first to the emptiest bin (Graham's LPT rule); the fullest bin first."""
    queues: list[list[int]] = [[] for _ in range(min(bins, len(costs)))]
    totals = [0.0] * len(queues)
    for index in sorted(range(len(costs)), key=lambda i: -costs[i]):
        at = totals.index(min(totals))
        queues[at].append(index)
        totals[at] += costs[index]
    return sorted(queues, key=lambda queue: -sum(costs[i] for i in queue))


def shares(costs: Sequence[float], workers: int) -> list[list[int]]:
    """Indices of tasks, for at most ``workers``; one share where no even split exists."""
    split = longest_first(costs, max(1, min(workers, torch.get_num_threads(), _WORKERS)))
    if sum(costs[i] for i in split[0]) * len(split) > _IMBALANCE * sum(costs):
        return [list(range(len(costs)))]
    return split


def run_all(tasks: Sequence[Callable[[], Iterable[T]]], threads: int = 1) -> list[list[T]]:
    """Run tasks side by side, each with ``threads`` torch threads; items in order. The first runs on the calling
    thread, whose number of torch threads is restored.
    """
    before = torch.get_num_threads()
    stop = Event()

    def run(task: Callable[[], Iterable[T]]) -> list[T]:
        torch.set_num_threads(threads)  # of this thread, and the default of threads yet to come
        items = []
        for item in task():
            items.append(item)
            if stop.is_set():
                break
        return items

    with ThreadPoolExecutor(max(1, len(tasks) - 1)) as pool:
        try:
            others = [pool.submit(run, task) for task in tasks[1:]]
            return [run(task) for task in tasks[:1]] + [future.result() for future in others]
        finally:
            stop.set()
            torch.set_num_threads(before)
