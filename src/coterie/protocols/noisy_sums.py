"""Noise on the sums of ``protocols/sums.py``: every client adds a share to the whole numbers that it seals.

A client seals its change from the last mean that it has read, on the grid of ``dp/distributed.py``. Without a mean that
is the initial model. Buffers stay with their client. A sum lacks the shares of at most ``missing`` of the clients that
are asked in a round, and of as many that collude as are not absent. Whoever reads the mean knows its own share, so one
share more does not count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

import coterie.protocol.core as fl
from coterie.crypto.ckks_parameters import named
from coterie.dp.distributed import Distributed
from coterie.dp.ledger import Release
from coterie.dp.uploads import eligible
from coterie.protocols.local_training import sample_size
from coterie.protocols.noise import affords, check_sums, error_of_sums, mean_change, rotation, warn_of_silence

OBSERVERS, COALITION = ("server", "public", "other clients"), ("server with a client",)
"""Who sees a sum; and who opens a single vector, if every client has the key."""
CENTRE_SET, SHARED_SET = "ckks-4096-add", "threshold-8192-sum"
"""Parameters of the keys of ``sums``, with keys=centre and keys=threshold."""
REACH = 64.0
"""Of a value in a vector, under the keys of ``sums``."""
VECTOR = "model, in sums"


def mechanism_of(config: Any, length: int) -> Distributed:
    """Of sums of so many coordinates. The share of a client that reads the mean does not count, beside the missing."""
    mechanism: Distributed = config.on_sums(length, read_by_makers=True)
    return mechanism


def makers(config: Any, clients: int) -> int:
    """How many of so many clients add noise to a round's sum."""
    return sample_size(clients, config.participation)


def check_noise(config: Any, common: fl.Common) -> None:
    """Raises UserError for noise that is not possible; warns of a budget for no round."""
    parties, mechanism = makers(config, len(common.clients)), mechanism_of(config, len(eligible(common.spec)))
    check_sums(mechanism, parties, "clients", 0.0)
    error = named(CENTRE_SET).error(parties) if config.keys == "centre" else error_of_sums(SHARED_SET, common.clients)
    check_sums(mechanism, parties, "clients", error * mechanism.largest_alone(parties) / REACH)
    warn_of_silence(config.budget(), mechanism.release())


class Sealed(msgspec.Struct, frozen=True):
    """A vector that was sealed. of: 16 bytes that name it, and what it is the change from."""

    round: int
    of: bytes


class Sealing(msgspec.Struct):
    """SECRET. weights: (d,) the last mean, with this party's own buffers; None for the initial model.

    sealed: the vectors that have left this client.
    """

    weights: fl.Vector | None = None
    sealed: list[Sealed] = msgspec.field(default_factory=list)

    def __repr__(self) -> str:
        return f"<Sealing of {len(self.sealed)} vectors>"


class SumNoise(fl.Component):
    """What a client and the server of ``Sums`` keep for noise on sums, and for the ledger."""

    Secret = Sealing
    secret: Sealing

    def lasts(self, secret: Sealing) -> None:
        """What was sealed, in any attempt of a round."""
        self.secret.sealed = secret.sealed

    @property
    def mechanism(self) -> Distributed:
        return mechanism_of(self.party.config, len(eligible(self.party.spec)))

    @property
    def makers(self) -> int:
        return makers(self.party.config, len(self.party.common.clients))

    @property
    def unit(self) -> float:
        """The divisor by which a client's numbers fit the cipher."""
        return self.mechanism.largest_alone(self.makers) / REACH

    @property
    def weights(self) -> fl.Vector:
        initial: fl.Vector = self.party.common.initial
        return initial if self.secret.weights is None else self.secret.weights

    def check_budget(self, r: int) -> None:
        """Raises PeerError if one more vector would take this client beyond its budget, and it has none of round r."""
        sealed = self.secret.sealed
        if not self._affords() and not (sealed and sealed[-1].round == r):
            raise fl.PeerError(f"{self.party.name} has spent its privacy budget, and seals nothing in round {r}")

    def _affords(self) -> bool:
        config = self.party.config
        return not config.noisy or affords(config.budget(), self.mechanism.release(), len(self.secret.sealed))

    def record(self, values: fl.Vector, r: int) -> bytes:
        """Count this vector, and return its name. Raises PeerError if it is beyond the budget."""
        one = Sealed(r, hashlib.blake2b(self.weights.tobytes() + np.asarray(values).tobytes(), digest_size=16).digest())
        if one not in self.secret.sealed:
            if not self._affords():
                raise fl.PeerError(f"{self.party.name} has spent its privacy budget: another vector of round {r}")
            self.secret.sealed = [*self.secret.sealed, one]
        return one.of

    def added(self, name: str, values: fl.Vector, r: int, of: bytes) -> NDArray[np.float64]:
        """(p,) the numbers of these (d,) values with this client's share of noise, in units of the cipher.

        of: names the values.  Raises PeerError if another sum of the round's vectors was opened.
        """
        party, mechanism, places = self.party, self.mechanism, eligible(self.party.spec)
        turned = rotation(party.common.roster.session, r)
        before, self.secret.weights = self.weights, np.where(party.spec.buffers, values, self.weights)
        numbers = mechanism.on_grid((values - before)[places], turned, party.kept("rounding", of, r))
        data = numbers.tobytes()
        secrets = party.joint.noise(name, r, data) if party.config.padded else party.kept("noise on a sum", data, r)
        return (numbers + mechanism.share(self.makers, secrets)) / self.unit

    def moved(self, opened: ArrayLike, terms: int, r: int) -> fl.Vector:
        """(d,) float32, the last mean moved by the mean change of so many clients. Raises PeerError as ``mean_change``.

        opened: (p,) their sum, in units of the cipher.
        """
        if terms < self.makers - self.party.config.missing:
            raise fl.PeerError(f"a sum of {terms} vectors: of {self.makers} shares of noise it lacks too many")
        weights, turned = self.weights.astype(np.float64), rotation(self.party.common.roster.session, r)
        change = mean_change(self.mechanism, np.asarray(opened) * self.unit, terms, turned)
        weights[eligible(self.party.spec)] += change
        return self.taken(weights)

    def taken(self, weights: ArrayLike) -> fl.Vector:
        """(d,) float32 this mean, which the next change starts from, with this party's own buffers."""
        self.secret.weights = np.where(self.party.spec.buffers, self.weights, weights).astype(np.float32)
        return self.secret.weights

    def releases(self) -> Sequence[Release]:
        """What has left this client, and who sees it how."""
        config, sealed = self.party.config, self.secret.sealed
        if not config.noisy:
            return [Release(VECTOR, round=one.round) for one in sealed]
        found = [self.mechanism.release(one.round, OBSERVERS) for one in sealed]
        if config.keys == "centre":
            found += [self.mechanism.release_alone(VECTOR, self.makers, one.round, COALITION) for one in sealed]
        return found
