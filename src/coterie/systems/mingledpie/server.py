"""MingledPie's server, the hub and coordinator: algorithm 3, lines 3 to 5 and 17 to 24."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np

from coterie.clustering.identities import ClusterKeys
from coterie.crypto.ckks import PublicKey, SecretKey
from coterie.crypto.roster import check_signed, signed
from coterie.protocol import codec
from coterie.protocol.errors import PeerError
from coterie.protocol.messages import Signed, bundle, unbundle
from coterie.protocol.party import Cost, Party
from coterie.protocol.setup_info import Common, Own
from coterie.protocol.steps import Answers, NoAnswerError, Steps, spend
from coterie.protocols.key_centre import Keys
from coterie.protocols.local_training import ask_each, joined, sample_clients
from coterie.protocols.threshold_keys import JointKeys
from coterie.protocols.threshold_making import make_keys
from coterie.protocols.threshold_opening import open_sums
from coterie.systems.mingledpie.config import MingledPieConfig, declared, layout_of
from coterie.systems.mingledpie.messages import (
    HUB,
    MODELS,
    USER,
    Mingled,
    Noted,
    OpenedSums,
    Parameters,
    Received,
    Train,
    Update,
)


class Server(Party, role=HUB):
    """Publishes parameters, adds up ciphertexts by their identities, and sends the sums to all."""

    keys = Keys(PublicKey, SecretKey)

    class State(msgspec.Struct):
        """last: the last ``Mingled``, encoded, of ``round``.  has: the round of each client's models, by name.

        noted: number of the keys that each client has.  keys, version: ``ClusterKeys`` of eq. (1) and their number.
        """

        keys: bytes = b""
        version: int = 0
        last: bytes = b""
        round: int = 0
        has: dict[str, int] = msgspec.field(default_factory=dict)
        noted: dict[str, int] = msgspec.field(default_factory=dict)

    state: State
    config: MingledPieConfig
    key_name: ClassVar[str] = USER
    sums: ClassVar[type[Any]] = Mingled  # the message with a round's sums

    def __init__(self, own: Own, common: Common, config: MingledPieConfig) -> None:
        super().__init__(own, common, config)
        self.layout = layout_of(config, common.spec, common.mode)

    def setup(self) -> Steps[None]:
        """Deal the keys; then publish cluster keys and initial models (lines 3 and 4) to the first clients."""
        yield from self._keys()
        self._renew_keys(0)
        yield from self._publish(0, joined(self.clients, self.config, 1))

    def _keys(self) -> Steps[None]:
        yield from super().setup()

    def round(self, r: int) -> Steps[Mapping[str, Any]]:
        """Algorithm 3, one iteration."""
        here = joined(self.clients, self.config, r)
        if r in self.config.rates():
            self._renew_keys(r)
        yield from self._publish(r, here)
        asked = sample_clients(here, self.config.participation, self.randomness.seed, r)
        noted, has = self.state.noted, self.state.has
        behind = [name for name in asked if name in noted and has[name] != self.state.round]  # away before, or new
        if behind and self.state.last:
            yield from self._send(codec.decode(self.state.last, self.sums), behind)
        newest = self.state.version, self.state.round
        able = [name for name in asked if (noted.get(name), has.get(name)) == newest]
        sets, totals, answers = yield from self._collect(r, able)
        notes: dict[str, Any] = {"asked": len(asked), "participants": len(answers.got), "clustered": True}
        notes["behind"] = [name for name in asked if name not in able]
        notes["membership"] = [sets.get(name, []) for name in self.clients]
        if len(answers.got) < self.config.min_participants:
            why = f"{len(answers.got)} updates, at least {self.config.min_participants} are needed"
            return {**notes, "clustered": False, "skipped": why}
        yield from spend(Cost(crypto_s=self.layout.sum_seconds(self.keys.public(self.key_name), len(answers.got))))
        named = range(self.layout.clusters if self.layout.kind == "mingled" else 0)  # else the server knows no clusters
        sizes = np.array([sum(j in own for own in sets.values()) for j in named], np.int64)
        try:
            mingled = signed(self.own, (yield from self._shown(r, sizes, len(answers.got), totals)))
        except NoAnswerError as error:
            return {**notes, "clustered": False, "skipped": str(error)}
        self.state.last, self.state.round = codec.encode(mingled), r
        rebuilt = yield from self._send(mingled, [name for name in here if name in self.state.noted])
        notes["clusters"] = {"sizes": sizes.tolist()}
        notes["rebuilt"] = {"by": sum(rebuilt.values()), "refused_by": sum(not ok for ok in rebuilt.values())}
        return {**notes, "p": self.config.rate(r)}

    def _shown(self, r: int, sizes: Any, participants: int, totals: Sequence[Any]) -> Steps[Signed]:
        """The unsigned message with these sums: ciphertexts, which all clients open."""
        ciphers = bundle([b"" if total is None else total.to_bytes() for total in totals])
        yield from ()
        return Mingled(r, self.spec.digest, sizes, participants, ciphers)

    def _renew_keys(self, r: int) -> None:
        """Eq. (1): keys of n bits for every cluster, if clients send identities."""
        if self.layout.kind == "mingled":
            bits = self.config.bits(r)
            keys = ClusterKeys.generate(self.layout.clusters, bits, self.secrets("cluster keys", r).bytes)
            self.state.keys = keys.data
        self.state.version += 1

    def _publish(self, r: int, here: Sequence[str]) -> Steps[None]:
        new = [name for name in here if self.state.noted.get(name) != self.state.version]
        if not new:
            return
        start = self.common.starts.reshape(-1)
        parameters = signed(self.own, Parameters(r, self.spec.digest, self.state.keys, start))

        def fold(name: str, noted: Noted) -> None:
            self.state.noted[name] = self.state.version
            self.state.has.setdefault(name, 0)

        yield from ask_each(self, r, new, parameters, Noted, fold)

    def _send(self, mingled: Any, names: list[str]) -> Steps[dict[str, bool]]:
        """Line 23: send the sums to these clients. Returns by name whether the client rebuilt its models."""
        rebuilt: dict[str, bool] = {}

        def fold(name: str, received: Received) -> None:
            self.state.has[name] = mingled.round
            rebuilt[name] = received.rebuilt

        yield from ask_each(self, mingled.round, names, mingled, Received, fold)
        return rebuilt

    def _collect(self, r: int, able: list[str]) -> Steps[tuple[dict[str, list[int]], list[Any], Answers]]:
        """Lines 17 to 22: verify and add the updates, one at a time. Returns CI_i by name, the sums, the answers."""
        public = self.keys.public(self.key_name)
        totals: list[Any] = [None] * self.layout.slots
        sets: dict[str, list[int]] = {}

        def fold(name: str, update: Update) -> None:
            check_signed(self.common, name, update)
            if update.basis != self.state.round:
                raise PeerError(
                    f"{name}: an update to the models of round {update.basis}; this is round {r} and trains those of "
                    f"{self.state.round}"
                )
            own = self._identities(name, update)
            parts = unbundle(update.ciphers, len(self.layout.lengths))
            ciphers = [public.from_bytes(p, n, terms=1) for p, n in zip(parts, self.layout.lengths, strict=True)]
            self.layout.check(ciphers)
            added = list(totals)  # stored when it is whole, so that an update that does not fit changes nothing
            for slot, cipher in self.layout.contributions(ciphers, own):
                added[slot] = cipher if totals[slot] is None else totals[slot] + cipher
            totals[:], sets[name] = added, own

        answers = yield from ask_each(self, r, able, Train(r, self.state.round), Update, fold)
        return sets, totals, answers

    def _identities(self, name: str, update: Update) -> list[int]:
        """CI_i. Raises PeerError if an honest client could not send it."""
        own: list[int] = update.identities.tolist()
        if self.layout.kind != "mingled":
            if own:
                raise PeerError(f"{name} names clusters {own} in a mode without identities")
            return []
        least = self.config.law(self.config.p).least
        if own != sorted(set(own)) or not set(own) <= set(range(self.layout.clusters)):
            raise PeerError(f"{name}: {own} is no ascending list of clusters 0 to {self.layout.clusters - 1}")
        if len(own) < least:
            raise PeerError(f"{name} names {len(own)} clusters; the threshold requires {least}")
        return own


class JointServer(Server, role=HUB):
    """The server with keys=threshold: some clients make a key of which each has a share, and open the sums."""

    joint = JointKeys(declared)
    key_name, sums = MODELS, OpenedSums

    def _keys(self) -> Steps[None]:
        yield from make_keys(self, MODELS, self.config.committee(self.clients), 0)

    def _shown(self, r: int, sizes: Any, participants: int, totals: Sequence[Any]) -> Steps[Signed]:
        """The message with these sums, opened by holders of the key. Raises NoAnswerError with the reason."""
        there = {slot: total for slot, total in enumerate(totals) if total is not None}
        opened = yield from open_sums(self, MODELS, there, r)
        values = np.concatenate([opened[slot].values for slot in there])
        return OpenedSums(r, self.spec.digest, sizes, participants, np.array([*there], np.int64), values)
