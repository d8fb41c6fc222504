"""MingledPie's server, the hub and coordinator: algorithm 3, lines 3 to 5 and 17 to 24."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

import coterie.method as fl
from coterie.clustering.identities import ClusterKeys
from coterie.crypto.ckks import PublicKey, SecretKey
from coterie.protocols.key_centre import Keys
from coterie.protocols.local_training import sample_clients
from coterie.protocols.threshold import HubKey, JointKeys, make_keys, open_sums, taken
from coterie.systems.mingledpie import messages
from coterie.systems.mingledpie.config import MingledPieConfig, declared, layout_of
from coterie.systems.mingledpie.layout import Layout
from coterie.systems.mingledpie.messages import HUB, MODELS, USER


class Server(fl.Party, role=HUB):
    keys, joint = Keys(PublicKey, SecretKey), JointKeys(declared)

    class State(fl.State):
        """last: the last ``Mingled``, encoded, of ``round``.  has: the round of each client's models, by name.
        noted: the version of each client's keys.  keys: ``ClusterKeys`` of eq. (1).
        """

        keys: bytes = b""
        version: int = 0
        last: bytes = b""
        round: int = 0
        has: dict[str, int] = fl.field(default_factory=dict)
        noted: dict[str, int] = fl.field(default_factory=dict)

    state: State
    config: MingledPieConfig

    @cached_property
    def layout(self) -> Layout:
        return layout_of(self.config, self.spec, self.common.mode)

    @property
    def key(self) -> PublicKey:
        return self.keys.public(MODELS if self.config.keys == "threshold" else USER)

    def setup(self) -> fl.Steps[None]:
        """Lines 3 and 4, to the first clients."""
        yield from super().setup()
        if self.config.keys == "threshold":
            yield from make_keys(HubKey(self, MODELS, 0), self.config.committee(self.clients))
        self._renew_keys(0)
        yield from self._publish(0, fl.joined(self.clients, self.config, 1))

    def round(self, r: int) -> fl.Steps[Mapping[str, Any]]:
        here = fl.joined(self.clients, self.config, r)
        if r in self.config.rates():
            self._renew_keys(r)
        yield from self._publish(r, here)
        asked = sample_clients(here, self.config.participation, self.randomness.seed, r)
        noted, has = self.state.noted, self.state.has
        behind = [name for name in asked if name in noted and has[name] != self.state.round]  # away before, or new
        if behind and self.state.last:
            yield from self._send(fl.codec.decode(self.state.last, self.sums), behind)
        newest = self.state.version, self.state.round
        able = [name for name in asked if (noted.get(name), has.get(name)) == newest]
        sets, totals, answers = yield from self._collect(r, able)
        notes: dict[str, Any] = {"asked": len(asked), "participants": len(answers.got), "clustered": True}
        notes["behind"] = [name for name in asked if name not in able]
        notes["membership"] = [sets.get(name, []) for name in self.clients]
        if len(answers.got) < self.config.min_participants:
            why = f"{len(answers.got)} updates, at least {self.config.min_participants} are needed"
            return {**notes, "clustered": False, "skipped": why}
        yield from fl.spend(fl.Cost(crypto_s=self.layout.sum_seconds(self.key, len(answers.got))))
        named = range(self.layout.clusters if self.layout.kind == "mingled" else 0)  # else the server knows no clusters
        sizes = np.array([sum(j in own for own in sets.values()) for j in named], np.int64)
        try:
            mingled = yield from self._message(r, sizes, len(answers.got), totals)
        except fl.NoAnswerError as error:
            return {**notes, "clustered": False, "skipped": str(error)}
        self.state.last, self.state.round = fl.codec.encode(mingled), r
        rebuilt = yield from self._send(mingled, [name for name in here if name in self.state.noted])
        notes["clusters"] = {"sizes": sizes.tolist()}
        notes["rebuilt"] = {"by": sum(rebuilt.values()), "refused_by": sum(not ok for ok in rebuilt.values())}
        return {**notes, "p": self.config.rate(r)}

    @property
    def sums(self) -> type[messages.Mingled | messages.OpenedSums]:
        return messages.OpenedSums if self.config.keys == "threshold" else messages.Mingled

    def _message(self, r: int, sizes: Any, participants: int, totals: Sequence[Any]) -> fl.Steps[fl.Signed]:
        if self.sums is messages.Mingled:
            ciphers = fl.bundle([b"" if total is None else total.to_bytes() for total in totals])
            return fl.signed(self.own, messages.Mingled(r, self.spec.digest, sizes, participants, ciphers))
        there = {slot: total for slot, total in enumerate(totals) if total is not None}
        opened = yield from open_sums(HubKey(self, MODELS, r), there)
        slots, values = np.array([*there], np.int64), np.concatenate([opened[slot].values for slot in there])
        return fl.signed(self.own, messages.OpenedSums(r, self.spec.digest, sizes, participants, slots, values))

    def _renew_keys(self, r: int) -> None:
        """Eq. (1)."""
        if self.layout.kind == "mingled":
            bits = self.config.bits(r)
            keys = ClusterKeys.generate(self.layout.clusters, bits, self.secrets("cluster keys", r).bytes)
            self.state.keys = keys.data
        self.state.version += 1

    def _publish(self, r: int, here: Sequence[str]) -> fl.Steps[None]:
        new = [name for name in here if self.state.noted.get(name) != self.state.version]
        if not new:
            return
        start = self.common.starts.reshape(-1)
        parameters = fl.signed(self.own, messages.Parameters(r, self.spec.digest, self.state.keys, start))

        def fold(name: str, noted: fl.Done) -> None:
            self.state.noted[name] = self.state.version
            self.state.has.setdefault(name, 0)

        yield from fl.ask_each(self, new, parameters, fl.Done, fold)

    def _send(self, mingled: Any, names: list[str]) -> fl.Steps[dict[str, bool]]:
        rebuilt: dict[str, bool] = {}

        def fold(name: str, received: messages.Received) -> None:
            self.state.has[name] = mingled.round
            rebuilt[name] = received.rebuilt

        yield from fl.ask_each(self, names, mingled, messages.Received, fold)
        return rebuilt

    def _collect(self, r: int, able: list[str]) -> fl.Steps[tuple[dict[str, list[int]], list[Any], fl.Answers]]:
        """Lines 17 to 22: CI_i by name, the sums, the answers."""
        totals: list[Any] = [None] * self.layout.slots
        sets: dict[str, list[int]] = {}

        def fold(name: str, update: messages.Update) -> None:
            fl.check_signed(self.common, name, update)
            if update.basis != self.state.round:
                raise fl.PeerError(
                    f"{name}: an update to the models of round {update.basis}; this is round {r} and trains those of "
                    f"{self.state.round}"
                )
            own = self._identities(name, update)
            parts = fl.unbundle(update.ciphers, len(self.layout.lengths))
            ciphers = self._ciphers(name, parts, r)
            added = list(totals)  # stored when it is whole, so that an update that does not fit changes nothing
            for slot, cipher in self.layout.contributions(ciphers, own):
                added[slot] = cipher if totals[slot] is None else totals[slot] + cipher
            totals[:], sets[name] = added, own

        answers = yield from fl.ask_each(self, able, messages.Train(r, self.state.round), messages.Update, fold)
        return sets, totals, answers

    def _ciphers(self, name: str, parts: list[bytes], r: int) -> list[Any]:
        every = enumerate(zip(parts, self.layout.lengths, strict=True))
        if self.config.keys == "threshold":
            key = HubKey(self, MODELS, r)
            return [taken(key, name, data, length, part=part) for part, (data, length) in every]
        ciphers = [self.key.from_bytes(data, length, terms=1) for _, (data, length) in every]
        self.layout.check(ciphers)
        return ciphers

    def _identities(self, name: str, update: messages.Update) -> list[int]:
        own: list[int] = update.identities.tolist()
        if self.layout.kind != "mingled":
            if own:
                raise fl.PeerError(f"{name} names clusters {own} in a mode without identities")
            return []
        least = self.config.law(self.config.p).least
        if own != sorted(set(own)) or not set(own) <= set(range(self.layout.clusters)):
            raise fl.PeerError(f"{name}: {own} is no ascending list of clusters 0 to {self.layout.clusters - 1}")
        if len(own) < least:
            raise fl.PeerError(f"{name} names {len(own)} clusters; the threshold requires {least}")
        return own
