"""FedEPC's edge server, the hub: algorithms 2 and 3, and the averages of algorithm 4."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from math import ceil, inf, nan
from typing import Any, ClassVar

import msgspec
import numpy as np

import coterie.method as fl
from coterie.clustering.isomorphic import Aidc, Event, Groups
from coterie.protocols import averaging
from coterie.protocols.sparsity import pretraining, public
from coterie.selection.bandit import Choice, Cics, choose, infeasible
from coterie.selection.contexts import affordable, believed
from coterie.selection.places import dues, places, still_owed
from coterie.systems.fedepc import contexts, messages
from coterie.systems.fedepc.clusters import Cluster, Pick, Trained, successor
from coterie.systems.fedepc.config import FedEPCConfig
from coterie.systems.fedepc.messages import HUB, Describe, Train


class Server(fl.Party, role=HUB):
    class State(fl.State):
        """extractor: (d,) W_ext.  centre: (C,) the mean of the public samples' vectors; empty without these.
        basis: (B, C) the public directions of noise along classes.  clip: of descriptions with noise.
        cluster_of: by name, of devices in a cluster.  former: of those that have left.
        settled: no round has noted this clustering yet.  events: of it.
        calm: rounds in a row in which the clusters' losses have moved little (stop=together).
        """

        extractor: fl.Vector | None = None
        centre: fl.Vector = fl.field(default_factory=lambda: np.zeros(0, np.float32))
        basis: fl.Vector | None = None
        clip: float = 0.0
        devices: dict[str, contexts.Known] = fl.field(default_factory=dict)
        groups: Groups | None = None
        cluster_of: dict[str, int] = fl.field(default_factory=dict)
        former: dict[str, int] = fl.field(default_factory=dict)
        clusters: dict[int, Cluster] = fl.field(default_factory=dict)
        settled: bool = False
        calm: int = 0
        events: list[Event] = fl.field(default_factory=list)

    state: State
    config: FedEPCConfig
    describes: ClassVar[type[fl.Message]] = messages.Described

    @property
    def least(self) -> int:
        return 1

    @cached_property
    def aidc(self) -> Aidc:
        return self.config.clustering(self.common.mode)

    @cached_property
    def cics(self) -> Cics:
        return self.config.selection(self.common.mode)

    @property
    def believing(self) -> float:
        return 0.0 if self.cics.literal else self.cics.cheapest

    # -- before round 1 ------------------------------------------------------------------------------------------------

    def setup(self) -> fl.Steps[None]:
        """Algorithm 4, l. 1."""
        self.state.extractor = self.common.initial
        if self.config.extractor == "pretrained":
            seed = int(self.rng("extractor").integers(1 << 62))
            effect = pretraining(self.common.initial, self.samples, seed, self.config.extractor_steps)
            fitted: fl.Fitted = yield from fl.compute(effect)
            self.state.extractor = fitted.weights
        if self.common.public:
            try:
                seen = yield from fl.compute(
                    fl.Local(public, (self.state.extractor, self.config.layer)), self.forward()
                )
            except fl.PeerError as error:  # it is the hub's own effect
                raise fl.UserError(f"FedEPC's features: {error}") from error
            self.state.centre = seen.mean
            norms = seen.norms
            if self.config.send == "noise" and self.config.noise_along == "classes":
                if not len(seen.basis):
                    raise fl.UserError(
                        "noise_along=classes needs public samples of two classes or more, whose sparsities differ: "
                        "choose noise_along=all, or give the hub more samples (--public)"
                    )
                self.state.basis, norms = seen.basis, seen.lengths
            self.state.clip = self.config.clip or max(float(np.median(norms)), 1e-6)
        yield from self.regroup(0)

    def forward(self) -> fl.Cost:
        return fl.Cost(self.samples / 3, self.spec.flops_per_sample)

    # -- a round -------------------------------------------------------------------------------------------------------

    def round(self, r: int) -> fl.Steps[Mapping[str, Any]]:
        """Algorithm 4, one iteration."""
        yield from self.regroup(r)
        events, self.state.events = self.state.events, []
        settled, self.state.settled = self.state.settled, False
        picks = self.picks(r)
        selected = {name: k for k, pick in picks.items() for name in pick.chosen}
        trained = yield from self.train(r, selected, self.panels(picks))
        moved = self.learn(picks, trained)
        notes = {
            "participants": len(trained.names),
            "asked": len(selected),
            "clustered": settled,
            "membership": self.membership(),
            "clusters": {"sizes": [len(names) for names in self.members().values()]},
            "selected": selected,
            "choices": {str(k): pick.note() for k, pick in picks.items()},
            "time_budget": {str(k): cluster.budget for k, cluster in self.state.clusters.items()},
            "events": [msgspec.to_builtins(event) for event in events],
            "loss": {str(k): cluster.loss for k, cluster in self.state.clusters.items()},
            **trained.notes,
        }
        if slow := self.too_slow():
            notes["too_slow"] = slow
        if not trained.names:
            notes["skipped"] = "none of the chosen devices has answered" if selected else why_nobody(picks)
        if stopped := self.converged(r, picks, moved):
            notes["stopped"] = stopped
        if self.config.distribute == "round":
            yield from self.distribute(r, {selected[name] for name in trained.names})
        return notes

    def finish(self) -> fl.Steps[Mapping[str, Any]]:
        """Algorithm 4, l. 18 to 20: send every device its cluster's model, unless it has it; with distribute=round
        only if it alone can use its model (``Common.deployed``).
        """
        slow = {"too_slow": found} if (found := self.too_slow()) else {}
        if self.config.distribute == "round" and not (self.common.deployed and self.common.mode != "hardened"):
            return {"distributed": 0, "missing": 0, **slow}
        answers = yield from self.distribute(0, self.state.clusters)
        return {"distributed": len(answers.got), "missing": len(answers.missing), **slow}

    # -- algorithms 1 and 2: descriptions and clusters -----------------------------------------------------------------

    def regroup(self, r: int) -> fl.Steps[None]:
        """Describes devices that are new, were away or may have changed, and clusters what has moved."""
        state, every = self.state, self.config.describe_every
        here = fl.joined(self.clients, self.config, max(r, 1))
        silent = [name for name in state.cluster_of if state.devices[name].missed >= self.config.leave_after]
        again = every > 0 and r > 1 and (r - 1) % every == 0
        due = [name for name in here if again or name not in state.cluster_of or name in silent]
        moved = {**self.unsent(), **((yield from self.describe(r, due)) if due else {})}
        left = [name for name in silent if state.devices[name].missed >= self.config.leave_after]
        moved = {name: one for name, one in moved.items() if name not in left}
        if not moved and len(left) == len(state.cluster_of):
            left = []  # nobody would be there: the clusters wait for those that come back
        if moved or left:
            yield from self.cluster(r, moved, left)

    def unsent(self) -> Mapping[str, Any]:
        return {}

    def describe(self, r: int, names: Sequence[str]) -> fl.Steps[dict[str, Any]]:
        found: dict[str, Any] = {}

        def fold(name: str, msg: Any) -> None:
            contexts.check_device(name, msg.samples, msg.cpu_ghz, msg.memory_gib)
            new = self.description(name, msg)
            if new is not None:
                found[name] = new
            elif name not in self.state.cluster_of:
                raise fl.PeerError(f"{name}: its data are as described before, but it was not described before")
            self.know(name, msg.samples, msg.cpu_ghz, msg.memory_gib)

        yield from self.ask({name: self.describe_request(r, name) for name in names}, self.describes, fold)
        return {name: found[name] for name in names if name in found}

    def description(self, name: str, msg: messages.Described) -> Any:
        if msg.vector is None:
            return None
        return contexts.check_vector(name, msg.vector, msg.floor, self.config.gamma, self.channels()), msg.floor

    def describe_request(self, r: int, name: str) -> Describe:
        extractor = None if name in self.state.cluster_of else self.state.extractor
        centre = self.state.centre if self.config.send == "noise" else None
        clip = 0.0 if centre is None else self.state.clip
        return Describe(r, self.spec.digest, extractor, self.config.layer, centre, self.state.basis, clip)

    def channels(self) -> int | None:
        if self.state.groups is not None:
            return int(self.state.groups.features.shape[1])
        return len(self.state.centre) or None

    def know(self, name: str, samples: int, cpu_ghz: float, memory_gib: float) -> None:
        known = self.state.devices.get(name)
        if known is None:
            self.state.devices[name] = contexts.Known(samples, cpu_ghz, memory_gib)
        else:
            known.samples, known.cpu_ghz, known.memory_gib, known.missed = samples, cpu_ghz, memory_gib, 0

    def cluster(self, r: int, moved: Mapping[str, Any], left: Sequence[str]) -> fl.Steps[None]:
        """Algorithm 2."""
        yield from ()
        self.state.groups, events = contexts.regrouped(self.state.groups, moved, left, self.aidc)
        groups = self.state.groups
        self.settle(r, dict(zip(groups.names, groups.labels.tolist(), strict=True)), events)

    def settle(self, r: int, labels: Mapping[str, int], events: Sequence[Event]) -> None:
        """A cluster keeps model and bandit while it keeps its number. A new one begins with the model that most of
        its devices had, or W^0.
        """
        state, before = self.state, {**self.state.former, **self.state.cluster_of}
        old, known = self.members(), state.clusters
        state.cluster_of = {name: labels[name] for name in self.clients if name in labels}
        state.former = {name: k for name, k in before.items() if name not in labels}
        members = self.members()
        state.clusters = {k: known.get(k) or successor(names, before, known) for k, names in members.items()}
        for k, names in members.items():
            if names != old.get(k):
                state.clusters[k].stopped = False
                state.clusters[k].drawn(names, self.config.panel, self.rng(f"panel of cluster {k}", r))
        self.allow(members)
        state.events, state.settled = [*state.events, *events], True

    def allow(self, members: Mapping[int, Sequence[str]]) -> None:
        fixed, p = self.config.time_budget, self.config.participation
        costs = {k: self.costs(names) for k, names in members.items()}
        longest = self.config.straggler * float(np.median(np.concatenate(list(costs.values())))) if costs else 0.0
        for k, own in costs.items():
            self.state.clusters[k].budget = (
                contexts.time_budget(own, longest, p, self.least) if fixed == "auto" else fixed
            )

    def costs(self, names: Iterable[str]) -> fl.Doubles:
        """(n,) |D_i| / f_i."""
        return np.array([self.state.devices[name].cost for name in names])

    def too_slow(self) -> list[str]:
        budgets = {k: cluster.budget for k, cluster in self.state.clusters.items()}
        of = self.state.cluster_of
        return [name for name, k in of.items() if not affordable(self.state.devices[name].cost, budgets[k])]

    def members(self) -> dict[int, list[str]]:
        return averaging.members(self.clients, self.state.cluster_of)

    def membership(self) -> list[list[int]]:
        return averaging.membership(self.clients, self.state.cluster_of)

    # -- algorithm 3: selection ----------------------------------------------------------------------------------------

    def picks(self, r: int) -> dict[int, Pick]:
        """A_t of every cluster that has not converged, as the round has places."""
        members = {k: names for k, names in self.members().items() if not self.state.clusters[k].stopped}
        costs = {k: self.costs(names) for k, names in members.items()}
        rooms = {k: contexts.room(own, self.state.clusters[k].budget, self.believing) for k, own in costs.items()}
        given, found = self.places(r, members, rooms), {}
        for k, names in members.items():
            cluster = self.state.clusters[k]
            x = np.array([self.state.devices[name].context() for name in names])  # eq. (9)
            can_train, waits = rooms[k] >= self.least, not given.get(k)
            if not can_train:
                own = believed(costs[k], self.believing)
                choice = Choice((), skipped=infeasible(own, cluster.budget, self.least, len(names)))
            elif waits:
                choice = Choice((), skipped="it has no place in this round, and takes its turn in a later one")
            else:
                least = max(self.least, ceil(self.config.fill * given[k]))
                source = self.rng(f"selection in cluster {k}", r)
                choice = choose(cluster.bandit, x, costs[k], cluster.budget, self.cics, source, least, given[k])
            found[k] = Pick(choice, names, x, can_train and waits, can_train)
        return found

    def places(self, r: int, members: Mapping[int, Sequence[str]], rooms: Mapping[int, int]) -> dict[int, int]:
        """How many devices of each cluster may train in round r (``selection/places.py``)."""
        sizes = {k: len(names) for k, names in members.items() if rooms[k] >= self.least}
        number = self.config.most(len(fl.joined(self.clients, self.config, r)))
        if number is None:
            return {k: rooms[k] for k in sizes}
        clusters = self.state.clusters
        owed = dues({k: clusters[k].owed for k in sizes}, sizes, number)
        given = places(owed, rooms, number, self.least)
        for k, left in still_owed(owed, given, sizes, self.least).items():
            clusters[k].owed = left
        return given

    def panels(self, picks: Mapping[int, Pick]) -> dict[str, int]:
        clusters = self.state.clusters
        return {
            name: k
            for k, pick in picks.items()
            if not (pick.waits and clusters[k].is_measured)
            for name in clusters[k].panel
        }

    def learn(self, picks: Mapping[int, Pick], trained: Trained) -> dict[int, float | None]:
        """Returns the change of L_k where W_k was trained."""
        moved = {}
        for k, pick in picks.items():
            cluster = self.state.clusters[k]
            pending = cluster.chosen is not None
            change = cluster.measured(trained.losses, self.cics)
            if pending:
                moved[k] = change
            pick.trained(cluster, trained.names, self.cics)
        return moved

    # -- algorithm 4: training -----------------------------------------------------------------------------------------

    def train(self, r: int, selected: Mapping[str, int], panel: Mapping[str, int]) -> fl.Steps[Trained]:
        """L. 5 to 10."""
        trained, of = Trained(), {**panel, **selected}
        starts = {k: self.weights(k) for k in sorted(set(of.values()))}
        means = {k: fl.Mean(self.spec.size) for k in starts}
        updates = {k: averaging.Gather(self.spec, start) for k, start in starts.items()}

        def fold(name: str, update: messages.Update) -> None:
            k, known = of[name], self.state.devices[name]
            if (update.weights is None) == (name in selected):
                raise fl.PeerError(
                    f"{name}: {'no model' if name in selected else 'a model'} from a device that was asked otherwise"
                )
            norm = nan
            if update.weights is not None:
                values = updates[k].checked(name, update.spec, update.weights, update.samples)
                norm = contexts.gradient_norm(self.spec, starts[k], values, self.config.lr)
            contexts.check_training(name, update.samples, update.loss)
            if update.weights is not None:
                means[k].take(values)
                updates[k].took(name, values)
                trained.names.add(name)
            trained.losses[name] = update.loss
            known.answered(update.samples, update.loss, norm, self.config.history)

        requests = {name: Train(r, self.spec.digest, starts[k], name in selected) for name, k in of.items()}
        yield from self.ask(requests, messages.Update, fold)
        for k, mean in means.items():
            if mean.count:
                self.state.clusters[k].weights = updates[k].model(mean.mean())  # eq. (15)
        outliers = {name: size for one in updates.values() for name, size in one.outliers().items()}
        trained.notes = {"outliers": outliers} if outliers else {}
        return trained

    def weights(self, k: int | None) -> fl.Vector:
        """W_k, (d,); W^0 before its first round, and for no cluster."""
        cluster = None if k is None else self.state.clusters.get(k)
        return self.common.initial if cluster is None or cluster.weights is None else cluster.weights

    def ask(
        self, requests: Mapping[str, fl.Message], reply: type[fl.M], fold: fl.Fold[fl.M] = fl.ignored
    ) -> fl.Steps[fl.Answers]:
        answers = yield from fl.ask_all(self, requests, reply, fold)
        self.heard(answers.got, answers.missing)
        return answers

    def heard(self, got: Iterable[str], missing: Iterable[str]) -> None:
        for name in got:
            self.state.devices[name].missed = 0
        for name in missing:
            if name in self.state.devices:
                self.state.devices[name].missed += 1

    def converged(self, r: int, picks: Mapping[int, Pick], moved: Mapping[int, float | None]) -> str | None:
        """L. 12 to 16: why the run ends, or None. moved: the change of L_k of each cluster that had trained."""
        # Changes of several clusters do not cancel. A cluster that waits counts with its last change, and one that
        # cannot train has not moved. No run ends while a loss is unknown, or devices are still to come.
        state, least, settle = self.state, self.config.converged, self.config.settle
        for k, value in moved.items():
            cluster = state.clusters[k]
            cluster.moved = inf if value is None else abs(value)
            cluster.calm = cluster.calm + 1 if cluster.moved < least else 0
            cluster.stopped = self.config.stop == "cluster" and cluster.calm >= settle
        if not moved or fl.joined(self.clients, self.config, r) != self.clients:
            return None
        if self.config.stop == "cluster":
            done = all(cluster.stopped for cluster in state.clusters.values())
            return f"the loss of every cluster has moved by less than {least:g} {_in_a_row(settle)}" if done else None
        able = {k: len(pick.names) for k, pick in picks.items() if pick.can_train}
        change = sum(size * state.clusters[k].moved for k, size in able.items()) / len(state.cluster_of)
        state.calm = state.calm + 1 if change < least else 0  # l. 13
        done = state.calm >= settle
        return f"the clusters' losses have moved by less than {least:g} {_in_a_row(settle)}" if done else None

    def distribute(self, r: int, clusters: Collection[int]) -> fl.Steps[fl.Answers]:
        models = {k: messages.Model(r, self.spec.digest, self.weights(k)) for k in clusters}
        to_all = {name: models[k] for name, k in self.state.cluster_of.items() if k in models}
        return (yield from self.ask(to_all, fl.Done))


def _in_a_row(rounds: int) -> str:
    return "once" if rounds == 1 else f"{rounds} times in a row"


def why_nobody(picks: Mapping[int, Pick]) -> str:
    reasons = sorted({pick.choice.skipped for pick in picks.values() if pick.choice.skipped})
    return f"no device was chosen: {'; '.join(reasons) or 'none is in a cluster that still trains'}"
