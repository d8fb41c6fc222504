"""FedEPC's edge server in mode hardened: it sees no vector and no model, and the helper clusters without names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from math import nan
from typing import Any, Literal

import numpy as np

import coterie.method as fl
from coterie.clustering.isomorphic import Event
from coterie.crypto.paillier import CipherVector, PublicKey, SecretKey
from coterie.protocols.anonymous import SERVICE, Relayed
from coterie.protocols.cluster_sums import ClusterModel, Masked, converted, distribute, masked_sum
from coterie.protocols.key_centre import Keys
from coterie.systems.fedepc import messages
from coterie.systems.fedepc.clusters import Trained
from coterie.systems.fedepc.contexts import check_training
from coterie.systems.fedepc.messages import HELPER, HUB, Train
from coterie.systems.fedepc.server import Server


class HardenedServer(Server, role=HUB):
    keys = Keys(PublicKey, SecretKey)
    helper = HELPER
    describes = messages.Concealed

    class State(Server.State):
        """places: the names by their places.  unsent: ciphertexts by name that the helper has not clustered.

        has: by name, the cluster and round of the last sum that the device has opened.
        """

        places: list[str] = fl.field(default_factory=list)
        unsent: dict[str, bytes] = fl.field(default_factory=dict)
        has: dict[str, tuple[int, int]] = fl.field(default_factory=dict)

    state: State

    @property
    def least(self) -> int:
        return self.config.min_cluster

    def setup(self) -> fl.Steps[None]:
        yield from self.keys.setup()
        order = self.secrets("places").permutation(len(self.clients))
        self.state.places = [self.clients[i] for i in order]
        yield from super().setup()

    # -- algorithms 1 and 2 --------------------------------------------------------------------------------------------

    def description(self, name: str, msg: Any) -> bytes | None:
        fl.check_signed(self.common, name, msg)
        if not msg.cipher:
            return None
        numbers = len(self.state.centre) + 1  # C, and the floor
        self.keys.public(SERVICE).from_bytes(msg.cipher, numbers, terms=1, blinded=0)
        return bytes(msg.cipher)

    def cluster(self, r: int, moved: Mapping[str, Any], left: Sequence[str]) -> fl.Steps[None]:
        places, at = self.state.places, {name: j for j, name in enumerate(self.state.places)}
        for j in sorted(at[name] for name in moved):  # in an order that says nothing of names
            yield from fl.post({self.helper: Relayed(r, j, moved[places[j]])})
        gone = np.array(sorted(at[name] for name in left), np.int64)
        allowed = {*self.state.cluster_of, *moved} - set(left)
        self.state.unsent = dict(moved)
        try:
            labels = yield from fl.ask(
                self.helper, messages.Cluster(r, gone), messages.Clustered, lambda answer: self.labels(answer, allowed)
            )
        except fl.NoAnswerError:
            if not self.state.cluster_of:
                raise
            return  # the clusters stay as they are, and the next round tries again
        self.state.unsent = {}
        self.settle(r, labels, changes(self.state.cluster_of, labels))

    def unsent(self) -> Mapping[str, Any]:
        return self.state.unsent

    def labels(self, answer: messages.Clustered, allowed: Collection[str]) -> dict[str, int]:
        """By name. Raises PeerError for anything but a cluster for places of these devices."""
        fl.check_signed(self.common, self.helper, answer)
        positions, labels = answer.positions.tolist(), answer.labels.tolist()
        places = self.state.places
        if len(positions) != len(labels) or len(set(positions)) < len(positions):
            raise fl.PeerError(f"{len(labels)} clusters of {len(positions)} places, or of one twice")
        names = [places[j] for j in positions if 0 <= j < len(places)]
        if len(names) < len(positions) or not set(names) <= set(allowed) or min(labels, default=0) < 0:
            raise fl.PeerError(f"clusters {labels} of places {positions}, some of which no device has")
        return dict(zip(names, labels, strict=True))

    # -- algorithm 4 ---------------------------------------------------------------------------------------------------

    def train(self, r: int, selected: Mapping[str, int], panel: Mapping[str, int]) -> fl.Steps[Trained]:
        of = {**panel, **selected}
        yield from self.catch_up(of)
        trained, service, size = Trained(), self.keys.public(SERVICE), self.spec.size
        fresh, again = self.common.initial, None
        requests = {
            name: Train(r, self.spec.digest, again if self.state.clusters[k].total else fresh, name in selected)
            for name, k in of.items()
            if self.is_up_to_date(name, k)
        }
        with closing(fl.Spool()) as spool:
            tickets: dict[str, int] = {}

            def fold(name: str, update: messages.Sealed) -> None:
                fl.check_signed(self.common, name, update)
                check_training(name, update.samples, update.loss, update.gradient_norm)
                if bool(update.cipher) != (name in selected):
                    raise fl.PeerError(f"{name}: a model, or none, from a device that was asked otherwise")
                norm = nan
                if update.cipher:
                    service.from_bytes(update.cipher, size, terms=1, blinded=0)
                    tickets[name], norm = spool.put(update.cipher), update.gradient_norm
                    trained.names.add(name)
                trained.losses[name] = update.loss
                self.state.devices[name].answered(update.samples, update.loss, norm, self.config.history)

            def cipher(name: str) -> CipherVector:
                return service.from_bytes(spool.peek(tickets[name]), size, terms=1, blinded=0)

            yield from self.ask(requests, messages.Sealed, fold)
            sums: dict[int, Masked] = {}
            unreleased: dict[str, str] = {}
            for k in sorted(set(selected.values())):
                names = [name for name in self.members()[k] if name in tickets]
                if len(names) >= self.least:
                    sums[k] = masked_sum(self, r, k, names, cipher, size, len(tickets))
                else:
                    unreleased[str(k)] = f"only {len(names)} models"
            done, failed = yield from converted(self, r, sums)
        for k, model in done.items():
            self.state.clusters[k].total = fl.codec.encode(model)  # eq. (15), with sums and counts
        unreleased |= {str(k): why for k, why in failed.items()}
        trained.names = {name for name in trained.names if selected[name] in done}
        behind = sorted(of.keys() - requests.keys())
        trained.notes = {"unreleased": unreleased} if unreleased else {}
        trained.notes |= {"behind": behind} if behind else {}
        return trained

    def distribute(self, r: int, clusters: Collection[int]) -> fl.Steps[fl.Answers]:
        members = self.members()
        return (yield from self.send({k: members[k] for k in clusters}))

    def catch_up(self, of: Mapping[str, int]) -> fl.Steps[None]:
        behind: dict[int, list[str]] = {}
        for name, k in of.items():
            if not self.is_up_to_date(name, k):
                behind.setdefault(k, []).append(name)
        if behind:
            yield from self.send(behind)

    def send(self, to: Mapping[int, Sequence[str]]) -> fl.Steps[fl.Answers]:
        last = {k: self.last(k) for k in to}
        models = {k: model for k, model in last.items() if model is not None}
        answers = yield from distribute(self, models, {k: to[k] for k in models})
        for k, name in answers.got:
            self.state.has[name] = k, models[k].round
        self.heard((name for _, name in answers.got), (name for _, name in answers.missing))
        return answers

    def last(self, k: int) -> ClusterModel | None:
        total = self.state.clusters[k].total
        return fl.codec.decode(total, ClusterModel) if total else None

    def is_up_to_date(self, name: str, k: int) -> bool:
        model = self.last(k)
        return model is None or self.state.has.get(name) == (model.cluster, model.round)


def changes(old: Mapping[str, int], new: Mapping[str, int]) -> tuple[Event, ...]:
    events = []
    for name in sorted({*old, *new}):
        if old.get(name) == new.get(name):
            continue
        kind: Literal["joined", "left", "moved"] = (
            "joined" if name not in old else "left" if name not in new else "moved"
        )
        clusters = tuple(k for k in (old.get(name), new.get(name)) if k is not None)
        events.append(Event(kind, clusters, (name,), 0.0))
    return tuple(events)
