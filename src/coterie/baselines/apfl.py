"""APFL: Deng, Kamani and Mahdavi, "Adaptive personalized federated learning", 2020.

    v~ = alpha v_i + (1 - alpha) w_i,    w_i as in FedAvg                                              (eq. 2)
    v_i <- v_i - eta alpha grad f_i(v~)                                                                (eq. 4)
    alpha <- alpha - eta <v_i - w_i, grad f_i(v~)>                                                     (eq. 10)

Each client predicts with v~. Decided here: v_i is trained after w_i, which stays meanwhile, so v~ itself descends, by
eta alpha^2. alpha moves once a round, by the mean gradient on the way of v~ (with momentum weighted by how far it has
moved v~), within [0.01, 1]. Running statistics of v~ are v_i's own.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import numpy as np

import coterie.method as fl
from coterie.training.solvers import pushed

LEAST = 0.01


@fl.settings
class ApflConfig(fl.Averaging):
    """alpha: in [0.01, 1], each client's first share of its own model.  adaptive: whether it moves."""

    alpha: Annotated[float, fl.Meta(ge=LEAST, le=1)] = 0.5
    adaptive: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight_decay:
            raise fl.UserError("apfl has no weight_decay: it would act on alpha's gradient, too; leave it out")

    def beyond_budget(self) -> Mapping[str, str]:
        return {"alpha": "its clients train a second model in every round"}


class Client(fl.Client):
    class State(fl.Client.State):
        """own: v_i.  mixed: v~, (d,) both.  alpha: the share of v_i."""

        own: fl.Vector = fl.initial
        mixed: fl.Vector = fl.initial
        alpha: float = fl.from_party(lambda client: client.config.alpha)

    state: State
    config: ApflConfig

    @fl.on(fl.Train, fl.trained_for(lambda client: 2 * client.epochs), answers=fl.Update)
    def train(self, msg: fl.Train, src: str) -> fl.Work[fl.Update]:
        fitted: fl.Fitted = yield self.fit(self.model(msg), msg.round)
        w, v, alpha = fitted.weights, self.state.own, self.state.alpha
        mixed = mix(self.spec, alpha, v, w)
        solver = replace(self.config.solver(), lr=self.config.lr * alpha**2)  # of v~, since v~ moves by alpha times v
        moved: fl.Fitted = yield fl.fit(self, mixed, msg.round, solver)
        step = moved.weights - mixed
        if self.config.adaptive:
            gradient = fl.with_buffers(self.spec, step / -(solver.lr * pushed(moved.steps, solver.momentum)), step * 0)
            turned = alpha - self.config.lr * float((v - w).astype(np.float64) @ gradient)
            self.state.alpha = min(max(turned, LEAST), 1.0)
        self.state.own = fl.with_buffers(self.spec, v + step / np.float32(alpha), moved.weights)
        self.state.mixed = mix(self.spec, self.state.alpha, self.state.own, w)
        return fl.Update(msg.round, msg.spec, w, fitted.samples)

    def last_starts(self) -> fl.Vector:
        return np.asarray(self.state.own[None])


def mix(spec: fl.ModelSpec, alpha: float, v: fl.Vector, w: fl.Vector) -> fl.Vector:
    """(d,) v~, with the running statistics of v."""
    return fl.with_buffers(spec, np.float32(alpha) * v + np.float32(1 - alpha) * w, v).astype(np.float32)


SYSTEM = fl.system("apfl", ApflConfig, fl.Server, Client, model=lambda client: client.state.mixed)
