"""CA2FL: Wang et al., "Tackling the data heterogeneity in asynchronous federated learning with cached update
calibration", ICLR 2024.

    v = h + 1/K sum_{i in buffer} (change_i - h_i),    w <- w + step v                                  (algorithm 2)
    then h_i <- change_i for those in the buffer,    h <- 1/N sum_i h_i over all clients

FedBuff's buffer and clock. h_i is each client's last change, 0 before the first.

Decided here: h_i, which the paper keeps for ever, is 0 again when its client has sent nothing in (max_staleness + 1) /
participation rounds. Two changes of one client in a buffer both count against the h_i before it, and the younger is
kept. Running statistics (buffers of the model) get the plain mean of the received ones.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import coterie.method as fl
from coterie.protocols import late


@fl.settings
class Ca2flConfig(late.BufferedTraining):
    pass


class Server(late.BufferServer):
    class State(late.BufferServer.State):
        """cached: h_i by client, (d,).  heard: by client of ``cached``, the round of it.  mean: h, (d,) float64."""

        cached: dict[str, fl.Vector] = fl.field(default_factory=dict)
        heard: dict[str, int] = fl.field(default_factory=dict)
        mean: fl.Array = fl.from_party(lambda server: np.zeros(server.spec.size))

    state: State

    def round(self, r: int) -> fl.Steps[Mapping[str, Any]]:
        config, state = self.config, self.state
        oldest = r - (config.max_staleness + 1) / config.participation
        if gone := [name for name, q in state.heard.items() if q < oldest]:
            for name in gone:
                del state.heard[name], state.cached[name]
            total = fl.Sum(self.spec.size)  # anew: a huge change has rounded the others away
            for values in state.cached.values():
                total.take(values)
            state.mean = total.value() / len(self.clients)
        return (yield from super().round(r))

    def moved(self, w: fl.Array, changes: Sequence[late.Buffered], step: float) -> fl.Array:
        h, cached, zero = self.state.mean, self.state.cached, np.zeros(self.spec.size, np.float32)
        corrections, received = fl.Sum(self.spec.size), fl.Mean(self.spec.size)
        for change in changes:
            corrections.take(change.values)
            corrections.take(cached.get(change.name, zero), -1)
            received.take(change.values)
        v = h + corrections.value() / len(changes)
        for name, last in {change.name: change.values for change in changes}.items():
            new = fl.with_buffers(self.spec, last, zero)
            h = h + (new.astype(np.float64) - cached.get(name, zero)) / len(self.clients)
            cached[name], self.state.heard[name] = new, max(self.state.begun)
        self.state.mean = h
        return fl.stepped(self.spec, w, v, received.mean(), step)


SYSTEM = fl.system(
    "ca2fl",
    Ca2flConfig,
    Server,
    fl.ChangeClient,
    learns=late.learns("plain change of the model"),
    delta=late.DELTA,
    releases=fl.telling({fl.Update: (fl.FromTraining("change of the model and number of samples"),)}),
)
