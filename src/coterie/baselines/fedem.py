"""FedEM: Marfoq et al., "Federated multi-task learning under a mixture of distributions", NeurIPS 2021.

    server --Train (M components)--> client --Update (M components)--> server

Every client's data are taken for a mixture of M distributions that all clients share, in proportions pi_t of its own.
In a round (their algorithm 1) client t computes how likely each component made each of its samples (E-step), takes the
means of that as its new pi_t, and trains every component on its samples, weighted so (M-step); the server averages
each component, weighted by samples. A client predicts with the pi_t-weighted mean of the components' probabilities.
pi_t is uniform at first and stays with the client; the components start from different random weights.

MingledPie's comparison cites another paper of the same name, which trains no neural classifier: Dieuleveut et al.,
"Federated-EM with heterogeneity mitigation and variance reduction", NeurIPS 2021. Here is what the name denotes for
neural networks.

Sees. server: every client's plain components, by name; not pi_t, but how far a component moved tells how much the
client uses it.  client: all M components.
Departures: the mean is over the clients that answered, where the authors' code also counts those that were not asked,
with the components of the round before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.effects import Fit, Fitted, Losses
from coterie.protocol.errors import PeerError, UserError
from coterie.protocol.party import Cost, Work, from_party, on
from coterie.protocol.system import Federation, Mixture, Sees, System, telling
from coterie.protocols import averaging
from coterie.protocols.averaging import Train, Update
from coterie.protocols.keeping import Keeper, Kept, keep, told
from coterie.protocols.local_training import LocalTraining, batch_seed, check_model

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class FedEmConfig(LocalTraining):
    """components: M, the number of distributions that the clients' data are mixed of; 3 in the authors' experiments."""

    components: int = 3

    @property
    def models(self) -> int:
        return self.components

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.components < 1:
            raise UserError(f"components must be at least 1, not {self.components}")

    def beyond_budget(self) -> Mapping[str, str]:
        return {"components": "it trains so many models in every epoch"} if self.components > 1 else {}


def responsibilities(mixture: Doubles, losses: NDArray[np.float32]) -> Doubles:
    """E-step: (M, n) q[m, i] ~ mixture[m] exp(-losses[m, i]), which sum to 1 over m.

    mixture: pi_t, (M,).  losses: (M, n), cross entropies, which are negative log-likelihoods.
    Raises PeerError where a loss is not finite.
    """
    if not np.isfinite(losses).all():
        broken = int(np.flatnonzero(~np.isfinite(losses).all(axis=1))[0])
        raise PeerError(f"component {broken} has no finite loss on this client's data: its weights have blown up")
    with np.errstate(divide="ignore"):  # a component that this client has given up
        logs = np.log(mixture)[:, None] - losses
    q = np.exp(logs - logs.max(axis=0))
    return np.asarray(q / q.sum(axis=0))


class Client(Keeper, role="client"):
    """Keeps its mixture weights across rounds."""

    class State(Kept):
        """mixture: pi_t, (M,)."""

        mixture: Doubles = from_party(lambda client: np.full(client.config.components, 1 / client.config.components))

    state: State
    config: FedEmConfig

    def cost(self, msg: Train) -> Cost:
        """M forward passes, a third of a training step each, and its epochs for each component."""
        samples = self.samples * self.config.components * (self.epochs + 1 / 3)
        return Cost(samples=samples, flops_per_sample=self.spec.flops_per_sample)

    @on(Train, cost)
    def train(self, msg: Train, src: str) -> Work[Update]:
        """Algorithm 1, what client t does in a round."""
        m = self.config.components
        theta = check_model(self.spec, msg.spec, msg.weights, m).reshape(m, -1)
        keep(self, theta)
        losses: NDArray[np.float32] = yield Losses(theta)
        q = responsibilities(self.state.mixture, losses)
        self.state.mixture = q.mean(axis=1)
        seed, trained = batch_seed(self, msg.round), []
        for start, of_samples in zip(theta, q.astype(np.float32), strict=True):
            fitted: Fitted = yield Fit(start, self.config.solver(), self.epochs, seed, sample_weights=of_samples)
            trained.append(fitted.weights)
        return Update(msg.round, self.spec.digest, np.concatenate(trained), fitted.samples)


def models(federation: Federation) -> Mapping[str, Mixture]:
    """Everybody mixes the server's components with weights of its own."""
    theta = federation.look(federation.hub).state.weights
    return {client.name: Mixture(client.state.mixture, theta) for client in federation.of_role("client")}


def own_model(client: Client) -> Mixture:
    """A client's mixture of the components that it knows."""
    return Mixture(client.state.mixture, told(client))


def observe(federation: Federation) -> Mapping[str, Any]:
    """Every client's mixture weights, and the largest as its cluster; equal ones, as before its first round, have none.

    The observer sees them; the server does not.
    """
    mixtures = [client.state.mixture for client in federation.of_role("client")]
    return {
        "mixtures": [mixture.round(4).tolist() for mixture in mixtures],
        "membership": [[int(mixture.argmax())] if np.ptp(mixture) or len(mixture) == 1 else [] for mixture in mixtures],
    }


SYSTEM = System(
    name="fedem",
    title="FedEM",
    citation="Marfoq et al., Federated multi-task learning under a mixture of distributions, NeurIPS 2021",
    config=FedEmConfig,
    parties=lambda config: {"server": averaging.ServerOfSeveral, "client": Client},
    models=models,
    own_model=own_model,
    sees={
        "server": Sees(
            (Update,),
            "every client's plain components in every round, by name, and from how far each moved roughly how much "
            "the client uses it; not its mixture weights",
        ),
        "client": Sees((Train,), "all components"),
    },
    observe=observe,
    pool=lambda federation: [federation.look(federation.hub).state.weights],
    releases=telling({Update: ("trained components and number of samples",)}),
    baseline=True,
    fine_tunes=False,
)
