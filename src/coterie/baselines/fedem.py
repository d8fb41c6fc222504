"""FedEM: Marfoq et al., "Federated multi-task learning under a mixture of distributions", NeurIPS 2021.

    server --Train (M components)--> client --Update (M components)--> server

Every client's data are a mixture of M common distributions, in its own proportions pi_t, which stay with it. In a round
(algorithm 1) client t computes how likely each component made each of its samples (E-step), takes the means as its new
pi_t, and trains every component on its samples, weighted so (M-step). The server averages each component, weighted by
samples. A client predicts with the pi_t-weighted mean of the components' probabilities. pi_t starts uniform, the
components from different random weights.

Departure: the mean is over the clients that answered; the authors' code also counts the others' last components.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import coterie.method as fl


@fl.settings
class FedEmConfig(fl.LocalTraining):
    """components: M, the number of distributions in the clients' data; 3 in the authors' experiments."""

    components: fl.AtLeastOne = 3

    @property
    def models(self) -> int:
        return self.components

    def beyond_budget(self) -> Mapping[str, str]:
        return {"components": "it trains so many models in every epoch"} if self.components > 1 else {}


def responsibilities(mixture: fl.Doubles, losses: fl.Vector) -> fl.Doubles:
    """E-step: (M, n) q[m, i] ~ mixture[m] exp(-losses[m, i]), which sum to 1 over m.

    mixture: pi_t, (M,).  losses: (M, n), cross entropies. Raises PeerError where one is not finite.
    """
    if not np.isfinite(losses).all():
        broken = int(np.flatnonzero(~np.isfinite(losses).all(axis=1))[0])
        raise fl.PeerError(f"component {broken} has no finite loss on this client's data: its weights have blown up")
    with np.errstate(divide="ignore"):  # a component that this client has given up
        logs = np.log(mixture)[:, None] - losses
    q = np.exp(logs - logs.max(axis=0))
    return np.asarray(q / q.sum(axis=0))


class Client(fl.Client):
    class State(fl.Client.State):
        """mixture: pi_t, (M,)."""

        mixture: fl.Doubles = fl.from_party(
            lambda client: np.full(client.config.components, 1 / client.config.components)
        )

    state: State
    config: FedEmConfig

    def cost(self, msg: fl.Train) -> fl.Cost:
        samples = self.samples * self.config.components * (self.epochs + 1 / 3)
        return fl.Cost(samples=samples, flops_per_sample=self.spec.flops_per_sample)

    @fl.on(fl.Train, cost, answers=fl.Update)
    def train(self, msg: fl.Train, src: str) -> fl.Work[fl.Update]:
        theta = self.models(msg)
        losses: fl.Vector = yield fl.Losses(theta)
        q = responsibilities(self.state.mixture, losses)
        self.state.mixture = q.mean(axis=1)
        trained = []
        for start, of_samples in zip(theta, q.astype(np.float32), strict=True):
            fitted: fl.Fitted = yield self.fit(start, msg.round, sample_weights=of_samples)
            trained.append(fitted.weights)
        return fl.Update(msg.round, self.spec.digest, np.concatenate(trained), fitted.samples)


def models(federation: fl.Federation) -> Mapping[str, fl.Mixture]:
    theta = federation.look(federation.hub).state.weights
    return {client.name: fl.Mixture(client.state.mixture, theta) for client in federation.of_role("client")}


def own_model(client: Client) -> fl.Mixture:
    return fl.Mixture(client.state.mixture, client.last_models())


def observe(federation: fl.Federation) -> Mapping[str, Any]:
    mixtures = [client.state.mixture for client in federation.of_role("client")]
    return {
        "mixtures": [mixture.round(4).tolist() for mixture in mixtures],
        "membership": [[int(mixture.argmax())] if np.ptp(mixture) or len(mixture) == 1 else [] for mixture in mixtures],
    }


SYSTEM = fl.system(
    "fedem",
    FedEmConfig,
    fl.ServerOfSeveral,
    Client,
    learns={
        "server": "every client's plain components in every round, by name, and from how far each moved roughly how "
        "much the client uses it; not its mixture weights",
        "client": "all components",
    },
    models=models,
    own_model=own_model,
    observe=observe,
    pool=lambda federation: [federation.look(federation.hub).state.weights],
    releases=fl.telling({fl.Update: ("trained components and number of samples",)}),
    fine_tunes=False,
)
