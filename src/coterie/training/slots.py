"""Many clients of unequal length through a batched kernel of fixed width, which trains one model in each *slot*.

Jobs go longest first to the emptiest slot. Slots are sorted by length: the busy ones are a prefix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.protocol.effects import Fitted
from coterie.training.jobs import DivergedError, Job, batch_order, fitted
from coterie.training.model import Model, tensor
from coterie.training.workers import longest_first


class Kernel(Protocol):
    """``slots`` models of one solver, on its device."""

    slots: int
    device: torch.device

    def load(self, slot: int, job: Job) -> None: ...

    def store(self, slot: int) -> Tensor:
        """A copy, (d,) float32."""
        ...

    def step(self, x: Tensor, y: Tensor, scale: Tensor, nll: Tensor) -> None:
        """One step of the first ``width`` slots.

        x: (width, batch, f).  y: (width, batch) int64.  scale: (width, batch), of samples' losses, 0 for padding.  nll:
        (width, batch), filled with losses before the step.
        """


class Segment(NamedTuple):
    slot: int
    job: int
    start: int
    stop: int


@dataclass(frozen=True)
class Timeline:
    """lengths: busy steps of each slot, longest first."""

    segments: tuple[Segment, ...]
    lengths: tuple[int, ...]

    def width(self, step: int) -> int:
        return sum(length > step for length in self.lengths)


def plan(steps: Sequence[int], slots: int) -> Timeline:
    """steps: >= 1, by job."""
    segments, lengths = [], []
    for slot, queue in enumerate(longest_first(steps, slots)):
        stops = np.cumsum([steps[job] for job in queue]).tolist()
        segments += [Segment(slot, job, stop - steps[job], stop) for job, stop in zip(queue, stops, strict=True)]
        lengths.append(stops[-1])
    return Timeline(tuple(segments), tuple(lengths))


Batches = tuple[Tensor, NDArray[np.int64]]
"""All batches of a job: sample indices (steps * batch,), 0 as padding, and (steps,) samples of each."""


def batches(job: Job, width: int) -> Batches:
    if job.private is not None:
        return job.private.padded(width)
    n, size = job.samples, job.batch
    per_epoch = -(-n // size)
    rows = np.zeros((job.epochs, per_epoch, width), np.int64)
    for epoch in range(job.epochs):
        padded = np.zeros(per_epoch * size, np.int64)
        padded[:n] = batch_order(job.seed, epoch, n)
        rows[epoch, :, :size] = padded.reshape(per_epoch, size)
    counts = np.full(per_epoch, size)
    counts[-1] = n - (per_epoch - 1) * size
    return torch.from_numpy(rows.reshape(-1)), np.tile(counts, job.epochs)


def run(
    model: Model, jobs: Mapping[int, Job], kernel: Kernel, block: int, batch: int
) -> Iterator[tuple[int, Fitted | DivergedError]]:
    """Jobs of one solver, each result as it is done.  block: steps whose samples are gathered at once.  batch: rows
    that batches are padded to.
    """
    names = list(jobs)
    timeline = plan([jobs[name].steps for name in names], kernel.slots)
    features = next(iter(jobs.values())).x[0].numel()
    slots, device = len(timeline.lengths), kernel.device
    x = torch.empty(slots, block, batch, features, device=device)
    y = torch.empty(slots, block, batch, dtype=torch.int64)
    weight = torch.empty(slots, block, batch)  # of each sample, 0 for padding
    scale = torch.empty_like(weight)  # the same over the number of samples in the batch
    nll = torch.empty(block, slots, batch, device=device)
    prepared: dict[int, tuple[Tensor, Batches]] = {}
    loss_sums = dict.fromkeys(names, 0.0)
    stored: dict[int, Tensor] = {}

    for first in range(0, timeline.lengths[0], block):
        last = min(first + block, timeline.lengths[0])
        present = [s for s in timeline.segments if s.start < last and s.stop > first]
        for segment in present:
            job = jobs[names[segment.job]]
            if segment.job not in prepared:
                samples = job.x.reshape(job.samples, features).to(device)
                prepared[segment.job] = samples, batches(job, batch)
            samples, (rows, counts) = prepared[segment.job]
            a, b = max(first, segment.start), min(last, segment.stop)
            chosen = rows[(a - segment.start) * batch : (b - segment.start) * batch]
            at = segment.slot, slice(a - first, b - first)
            torch.index_select(samples, 0, chosen.to(device), out=x[at].view(-1, features))
            y[at] = job.y[chosen].view(-1, batch)
            real = torch.from_numpy(counts[a - segment.start : b - segment.start]).unsqueeze(1)
            weight[at] = (torch.arange(batch) < real).float()
            if job.sample_weights is not None:
                weight[at] *= tensor(job.sample_weights)[chosen].view(-1, batch)
            scale[at] = weight[at] / (real if job.private is None else job.batch)
        labels, scales = y.to(device), scale.to(device)
        starting = {(s.start, s.slot): s for s in present}
        ending = {(s.stop, s.slot): s for s in present}
        for step in range(first, last):
            width = timeline.width(step)
            for slot in range(width):
                if (step, slot) in starting:
                    kernel.load(slot, jobs[names[starting[step, slot].job]])
            now = step - first
            kernel.step(x[:width, now], labels[:width, now], scales[:width, now], nll[now, :width])
            for slot in range(width):
                if (step + 1, slot) in ending:
                    stored[ending[step + 1, slot].job] = kernel.store(slot)
        losses = nll.cpu().transpose(0, 1) * weight
        for segment in present:
            a, b = max(first, segment.start) - first, min(last, segment.stop) - first
            loss_sums[names[segment.job]] += float(losses[segment.slot, a:b].sum(dtype=torch.float64))
            if segment.stop <= last:
                name = names[segment.job]
                del prepared[segment.job]
                yield name, fitted(name, jobs[name], model, stored.pop(segment.job), loss_sums[name])
