"""CLSM-FL: Lee and Seo, "CLSM-FL: Clustering-based semantic federated learning in non-IID IoT environment", IEEE
Internet of Things Journal 2024.

    server --Train (the client's own mixture of cluster models)--> client --Update--> server            (every round)

The server clusters models softly by how well they know each class. A cluster's model is the weighted mean of all local
models, and a client's a mixture of them by its membership.

Decided here: docs/systems/selection_baselines.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np

import coterie.method as fl
from coterie.clustering.fuzzy import first_centres, fuzzy_c_means

_JUDGED = 32  # models at a time


@fl.settings
class ClsmConfig(fl.Averaging):
    """clusters: number of soft clusters.

    fuzzifier: above 1. Near 1 each model belongs to one cluster, and with a large one to all alike.
    """

    clusters: fl.AtLeastOne = 3
    fuzzifier: Annotated[float, fl.Meta(gt=1, le=fl.LARGEST)] = 2.0


@fl.local("capabilities")
def capabilities(own: fl.OwnData, losses: fl.Vector, classes: int) -> fl.Doubles:
    """(models, classes) mean over the party's samples of each class of exp(-loss).

    losses: (models, samples) cross entropies. A class without samples, and a model without a finite loss, have 0.
    """
    of_class = np.equal.outer(own.y, np.arange(classes)).astype(np.float64)
    right = np.exp(-np.where(np.isfinite(losses), np.maximum(losses, 0), np.inf).astype(np.float64))
    return np.asarray(right @ of_class / np.maximum(of_class.sum(axis=0), 1))


class Server(fl.ServerOfGroups):
    class State(fl.State):
        """models: (k, d) of the clusters.  centres: (k, classes), none before the first round.

        memberships: (k,) of each client that has trained, with sum 1.
        """

        models: fl.Vector = fl.from_party(lambda server: np.stack([server.common.initial] * server.config.clusters))
        centres: fl.Doubles = fl.from_party(lambda server: np.zeros((0, server.spec.outputs)))
        memberships: dict[str, fl.Doubles] = fl.field(default_factory=dict)

    state: State
    config: ClsmConfig

    def model_of(self, name: str) -> fl.Vector:
        """sum_k u_k W_k; the clusters' mean before its first training."""
        count = len(self.state.models)
        u = self.state.memberships.get(name, np.full(count, 1 / count))
        return np.asarray(u @ self.state.models.astype(np.float64), np.float32)

    def round(self, r: int) -> fl.Steps[Mapping[str, Any]]:
        gather, got = fl.Gather(self.spec, self.state.models, means=0), dict[str, fl.Update]()

        def fold(name: str, update: fl.Update) -> None:
            gather.note(name, update)
            got[name] = update

        notes = yield from self.ask_own(r, fold)
        ordered = {name: got[name] for name in self.clients if name in got}
        if ordered:
            rows = yield from self.judged([update.weights for update in ordered.values()])
            self.cluster(ordered, rows, r, gather)
        return {
            **notes,
            "clustered": bool(ordered),
            "clusters": {
                "sizes": np.bincount(list(map(int, self.strongest())), minlength=self.config.clusters).tolist()
            },
            "membership": membership(self.state, self.clients),
            **gather.notes(),
        }

    def strongest(self) -> Iterator[int]:
        return (int(u.argmax()) for u in self.state.memberships.values())

    def judged(self, models: list[fl.Vector]) -> fl.Steps[fl.Doubles]:
        """(n, classes) capabilities of local models on the server's own samples."""
        found = []
        for start in range(0, len(models), _JUDGED):
            losses = yield from fl.compute(fl.Losses(np.stack(models[start : start + _JUDGED])))
            found.append((yield from fl.compute(fl.Local(capabilities, (losses, self.spec.outputs)))))
        return np.concatenate(found)

    def cluster(self, got: Mapping[str, fl.Update], rows: fl.Doubles, r: int, gather: fl.Gather) -> None:
        state, m = self.state, self.config.fuzzifier
        start = state.centres if len(state.centres) else first_centres(rows, self.config.clusters)
        u, state.centres = fuzzy_c_means(rows, start, m)
        state.memberships |= dict(zip(got, u, strict=True))
        step, new = self.config.server_step(r), []
        for old, weights in zip(state.models, (u**m).T, strict=True):
            total, of_all = fl.Sum(self.spec.size), 0.0
            for weight, update in zip(weights, got.values(), strict=True):
                total.take(update.weights, weight * update.samples)
                of_all += weight * update.samples
            mean = total.value() / of_all if of_all > 0 else old.astype(np.float64)
            new.append(mean if step == 1 else fl.stepped(self.spec, old, mean - old, mean, step))
        state.models = gather.model(np.stack(new))


def membership(state: Server.State, clients: Sequence[str]) -> list[list[int]]:
    """Each client's strongest cluster; none if it has not trained, or belongs to all alike."""
    known = (state.memberships.get(name) for name in clients)
    return [[] if u is None or (len(u) > 1 and not np.ptp(u)) else [int(u.argmax())] for u in known]


def observe(federation: fl.Federation) -> Mapping[str, Any]:
    state, clients = federation.look(federation.hub).state, federation.common.clients
    none = np.full(len(state.models), 1 / len(state.models))
    return {
        "membership": membership(state, clients),
        "mixtures": [state.memberships.get(name, none).round(4).tolist() for name in clients],
        "capabilities": state.centres.round(4).tolist(),
    }


def check(config: ClsmConfig, common: fl.Common) -> None:
    if not common.public:
        raise fl.UserError("clsm_fl judges models on public samples of its server: give it some (public, --public .05)")


SYSTEM = fl.system(
    "clsm_fl",
    ClsmConfig,
    Server,
    fl.AveragingClient,
    cold="groups form anew from one common model, and it ends with one for each group",
    learns={
        "server": "every client's plain model and number of samples in every round, by name, and by its public samples "
        "how well the model knows each class",
        "client": "its own mixture of the clusters' models",
    },
    check=check,
    models=fl.own_models,
    observe=observe,
    public=0.05,
    needs_classes=True,
)
