"""FedCAPrivacy's business server (BS), the hub and coordinator: steps II and VI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

import coterie.method as fl
from coterie.crypto.paillier import CipherVector, PublicKey, SecretKey
from coterie.crypto.signing import check_fresh
from coterie.crypto.sketch import SEED_BYTES
from coterie.crypto.vector import Mask
from coterie.protocols import signatures
from coterie.protocols.anonymous import SERVICE, forget, relay
from coterie.protocols.cluster_sums import Masked, converted, distribute, masked_sum
from coterie.protocols.key_centre import Keys
from coterie.protocols.signatures import Founded
from coterie.systems.fedcaprivacy import messages
from coterie.systems.fedcaprivacy.config import SUMS_ENCRYPTED, Protected
from coterie.systems.fedcaprivacy.messages import CSP, HUB


@dataclass(frozen=True)
class Made:
    """here: phi (c,) by name, of participants with a cluster.  order: names by position.  why_fewer: why there are
    fewer clusters than asked for, or "".
    """

    here: Mapping[str, fl.Flags]
    order: Sequence[str]
    anew: bool
    why_fewer: str


class BusinessServer(Protected, role=HUB):
    keys = Keys(PublicKey, SecretKey)
    helper = CSP

    class State(fl.State):
        """phi: (c,) bool by name.  phi_rows: (n, c) by position, literal mode.  accepted: last upload by name.

        clustered_order: names by row of the last phi, made in round ``clustered``.  unsettled: it changed a
        participant's clusters, or was never received.
        """

        phi: dict[str, fl.Flags] = fl.field(default_factory=dict)
        phi_rows: fl.Flags | None = None
        clustered_order: tuple[str, ...] = ()
        clustered: int = 0
        unsettled: bool = False
        accepted: dict[str, tuple[int, float]] = fl.field(default_factory=dict)
        started: frozenset[str] = frozenset()
        founded: Founded = fl.field(default_factory=Founded)

    class Secret(fl.State):
        """mask_seed: of the mask over all signatures. Other masks live for one round."""

        mask_seed: bytes = b""

    state: State
    secret: Secret

    @property
    def literal(self) -> bool:
        return self.common.mode == "literal"

    def setup(self) -> fl.Steps[None]:
        yield from super().setup()
        if self.protection == "signature":
            self.secret.mask_seed = self.secrets("mask of signatures").bytes(SEED_BYTES)
            present = fl.joined(self.clients, self.config, 1)
            self.state.founded = yield from signatures.found(self, present, self.secret.mask_seed)

    def round(self, r: int) -> fl.Steps[Mapping[str, Any]]:
        length = self.config.sketch_dim if self.protection == "sketch" else self.spec.size
        mask = self.keys.public(SERVICE).mask(length, self.secrets("mask", r).bytes)  # l. 14
        with closing(fl.Spool()) as spool:
            models, blinded, answers = yield from self.collect(r, spool, mask)
            asked, names = len(answers.got) + len(answers.missing), sorted(models or blinded, key=self.clients.index)
            notes: dict[str, Any] = {"asked": asked, "participants": len(answers.got), "clustered": False}
            if len(names) < self.config.min_participants:
                why = f"{len(names)} uploads, at least {self.config.min_participants} are needed"
                return {**notes, "skipped": why, "membership": self.membership()}
            if self.protection == "signature":
                made = yield from self.in_groups(r, names)
            else:
                made = yield from self.in_clusters(r, names, blinded, spool)
            if isinstance(made, str):
                notes["skipped"] = made
            else:
                sizes, unreleased = yield from self.release(r, made, models, spool, mask)
                notes |= {
                    "left_out": [name for name in names if name not in made.here],
                    "clustered": made.anew,
                    "clusters": {"sizes": sizes, "why_fewer": made.why_fewer, "unreleased": unreleased},
                    "clusters_per_client": float(np.mean([row.sum() for row in made.here.values()])),
                }
            if blinded:
                yield from forget(self, r)
            return {**notes, "membership": self.membership()}

    def in_clusters(self, r: int, names: list[str], blinded: dict[str, int], spool: fl.Spool) -> fl.Steps[Made | str]:
        order = yield from relay(self, r, names, lambda name: spool.take(blinded[name]))  # l. 15, 16
        request = messages.Cluster(r, self.must_cluster(names))
        try:
            here, clustered = yield from fl.ask(
                self.helper, request, messages.Clustered, lambda answer: (self.assigned(r, answer, order), answer)
            )
        except fl.NoAnswerError as error:
            self.state.unsettled = True
            return str(error)
        return Made(here, order, clustered.membership is not None, clustered.why_fewer)

    def in_groups(self, r: int, names: list[str]) -> fl.Steps[Made | str]:
        founded = self.state.founded
        if late := [name for name in names if name not in founded.groups]:
            with suppress(fl.NoAnswerError):  # they stay without a group, and are asked again
                founded = yield from signatures.grouped(self, r, founded, late, self.secret.mask_seed)
        anew = r == 1 or founded.groups.keys() != self.state.founded.groups.keys()
        self.state.founded = founded
        count = 1 + max(founded.groups.values())
        self.state.phi = {name: np.arange(count) == k for name, k in founded.groups.items()}
        here = {name: self.state.phi[name] for name in names if name in founded.groups}
        return Made(here, [], anew, founded.why) if here else "no participant has a group"

    def collect(
        self, r: int, spool: fl.Spool, mask: Mask
    ) -> fl.Steps[tuple[dict[str, int], dict[str, int], fl.Answers]]:
        models: dict[str, int] = {}
        blinded: dict[str, int] = {}

        def fold(name: str, upload: messages.Upload) -> None:
            cipher = self.verified(name, upload, r)
            if self.protection != "signature":
                blinded[name] = spool.put(cipher.blind(mask).to_bytes())  # eq. (6)
            if self.protection in SUMS_ENCRYPTED:
                models[name] = spool.put(upload.cipher)

        first, again = (messages.Train(r, self.spec.digest, start) for start in (self.common.initial, None))
        asked = fl.asked_in(self.clients, self.config, self.randomness.seed, r)
        requests = {name: again if name in self.state.started else first for name in asked}
        answers = yield from fl.for_each(requests, messages.Upload, fold, deadline_s=self.config.deadline_s)
        blinding_s = self.keys.public(SERVICE).nominal_seconds_encrypt(mask.length)
        yield from fl.spend(fl.Cost(crypto_s=len(blinded) * blinding_s))
        self.state.started |= frozenset(answers.got)
        return models, blinded, answers

    def verified(self, name: str, upload: messages.Upload, r: int) -> CipherVector:
        pid, service = self.clients.index(name), self.keys.public(SERVICE)
        if upload.pid != pid:
            raise fl.PeerError(f"{name} has PID {pid} and claims {upload.pid}")
        fl.check_signed(self.common, name, upload)
        sent, limits = (upload.round, upload.timestamp_s), (self.config.max_age_s, self.config.max_ahead_s)
        check_fresh(name, sent, self.state.accepted.get(name), r, self.now_s, *limits)
        cipher = service.from_bytes(upload.cipher, self.spec.size, terms=1, blinded=0)
        if upload.sketch and self.protection != "sketch":
            raise fl.PeerError(f"{name} sends a sketch in a mode without sketches")
        if self.protection == "sketch":
            cipher = service.from_bytes(upload.sketch, self.config.sketch_dim, terms=1, blinded=0)
        self.state.accepted[name] = sent
        return cipher

    def must_cluster(self, names: list[str]) -> bool:
        if self.literal:
            return self.state.phi_rows is None or len(self.state.phi_rows) != len(names)
        unsettled = self.config.clusters == "auto" and self.state.unsettled
        return unsettled or any(name not in self.state.phi for name in names)

    def assigned(self, r: int, clustered: messages.Clustered, shuffled: list[str]) -> dict[str, fl.Array]:
        where = clustered.positions.tolist()
        c = len(where) if self.config.clusters == "auto" else self.config.clusters
        distinct = 0 < len(set(where)) == len(where)
        if not distinct or not set(where) <= set(range(len(shuffled))):
            raise fl.PeerError(f"positions {where} of {len(shuffled)} in round {r}")
        names, new = [shuffled[j] for j in where], clustered.membership
        if new is not None:
            if len(new) != len(where) or new.shape[1] > c or not new.any(axis=1).all():
                raise fl.PeerError(f"phi {new.shape} for {len(where)} positions and {c} clusters, or a row without any")
            if not self.literal:
                new = self.renumbered(names, new)
            rows = dict(zip(names, new, strict=True))
            self.state.unsettled = any(self.clusters_of(name) != numbers(row) for name, row in rows.items())
            self.state.phi |= rows
            self.state.phi_rows = new
            self.state.clustered_order, self.state.clustered = tuple(names), r
        elif self.literal and self.state.phi_rows is not None:
            kept = self.state.phi_rows  # as printed: the old phi by position, under a new pi
            self.state.phi |= {shuffled[j]: kept[j] for j in where if j < len(kept)}
        if not self.state.phi.keys() >= set(names):
            raise fl.PeerError(f"no phi in round {r}, where it was asked for")
        return {name: self.state.phi[name] for name in names}

    def renumbered(self, names: list[str], new: fl.Array) -> fl.Array:
        if self.config.clusters == "auto":
            used = frozenset[int]().union(*(self.clusters_of(name) for name in self.clients))
            away = frozenset[int]().union(*(self.clusters_of(name) for name in self.clients if name not in names))
            free = np.array([k not in away for k in range(1 + max(used, default=-1) + new.shape[1])])
        else:
            free = np.zeros(self.config.clusters, bool)  # numbers up to c, each of which may be in use
        old = np.array([[k in self.clusters_of(name) for k in range(len(free))] for name in names])
        phi = numbered_like(old, new, free)
        return phi[:, : 1 + max(np.flatnonzero(phi.any(axis=0)))] if self.config.clusters == "auto" else phi

    def release(
        self, r: int, made: Made, models: dict[str, int], spool: fl.Spool, mask: Mask
    ) -> fl.Steps[tuple[list[int], dict[str, str]]]:
        """Steps V and VI: the sizes, and by cluster why its model was not released."""
        service, size = self.keys.public(SERVICE), self.spec.size
        width = max(len(row) for row in made.here.values())
        members = [[name for name, row in made.here.items() if k in numbers(row)] for k in range(width)]
        sizes = [len(names) for names in members]
        smallest = self.config.smallest(self.common.mode)
        unreleased = {str(k): f"only {count} members" for k, count in enumerate(sizes) if 0 < count < smallest}

        def model(name: str) -> CipherVector:
            return service.from_bytes(spool.peek(models[name]), size)

        sums = {}
        for k in (k for k, count in enumerate(sizes) if count >= smallest):
            if self.protection in SUMS_ENCRYPTED:
                sums[k] = masked_sum(self, r, k, members[k], model, size, len(models))
            else:
                places = np.array([made.order.index(name) for name in members[k]], np.int64)
                sums[k] = Masked(messages.Aggregate(r, k, places), sizes[k], mask, times=sizes[k], work=1)
        released, missing = yield from converted(self, r, sums)
        unreleased |= {str(k): why for k, why in missing.items()}
        yield from distribute(self, released, dict(enumerate(members)))  # by name: pi^-1
        return sizes, unreleased

    def membership(self) -> list[list[int]]:
        return [sorted(self.clusters_of(name)) for name in self.clients]

    def clusters_of(self, name: str) -> frozenset[int]:
        return numbers(self.state.phi[name]) if name in self.state.phi else frozenset()


def numbers(row: fl.Array) -> frozenset[int]:
    return frozenset(np.flatnonzero(row).tolist())


def numbered_like(old: fl.Array, new: fl.Array, free: fl.Array) -> fl.Array:
    """phi (n, <= c), numbered so that as many rows as possible keep their numbers in ``old``.

    old: (n, c).  free: (c,) bool; other clusters get the lowest free numbers.
    """
    from scipy.optimize import linear_sum_assignment

    c = old.shape[1]
    padded = np.zeros(old.shape, bool)
    padded[:, : new.shape[1]] = new
    bonus = np.outer(free * np.arange(c, 0, -1), padded.any(axis=0))  # its sum counts less than one row that is kept
    score = old.T.astype(int) @ padded * (1 + int(bonus.max(axis=1, initial=0).sum())) + bonus
    kept, number = linear_sum_assignment(score, maximize=True)
    padded[:, kept] = padded[:, number]
    return padded
