"""The layout of MingledPie's ciphertexts, of three kinds.

``mingled``   theta_i || sigma_i (eq. 4), which the server sums for every j over those whose CI_i names j: the models'
              sum of eq. (5) and row j of H of eq. (6); clients solve eq. (8)
``uploads``   k blocks theta_i || 1, all zero but the client's own, summed over everybody: exact sums and counts of the
              true clusters, additions only, k times the upload
``products``  theta_i and k scalars sigma_ib; the server computes sum_i HE(sigma_ib) HE(theta_i): the same exact sums,
              one multiplication deep

Layers that all clients share (section III-A) are one more vector, summed over all. In the kind ``mingled`` buffers
(running statistics) stay with their clients. A *slot* is one sum of the server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

import coterie.method as fl
from coterie.aggregation import mingled
from coterie.aggregation.buffers import ckks_units, not_below_zero
from coterie.aggregation.mingled import Rebuilt
from coterie.crypto.ckks import PublicKey
from coterie.crypto.ckks_parameters import ParameterSet, named

Kind = Literal["mingled", "uploads", "products"]
Solving = Literal["counts", "ideal", "none", "literal"]

_CKKS = {"mingled": "ckks-4096-add", "uploads": "ckks-4096-add", "products": "ckks-8192-mul"}
JOINT = "threshold-8192-sum"
"""Of a key in shares: for sums only."""


@dataclass(frozen=True)
class Layout:
    """clusters: k.  shared: names (or beginnings of names) of shared parts of the model.  joint: whether the key is
    in shares.
    """

    kind: Kind
    clusters: int
    spec: fl.ModelSpec
    shared: tuple[str, ...] = ()
    joint: bool = False

    def __post_init__(self) -> None:
        names = [part.name for part in self.spec.parts]
        for prefix in self.shared:
            if not any(name.startswith(prefix) for name in names):
                raise fl.UserError(f"shared_layers: no part of this model begins with {prefix!r}; there are {names}")
        if not self.of_clusters.any():
            raise fl.UserError("shared_layers names every layer: nothing is left for the clusters; use fedavg instead")

    @cached_property
    def common(self) -> fl.Flags:
        mask = np.zeros(self.spec.size, np.bool_)
        for part in self.spec.parts:
            if any(part.name.startswith(prefix) for prefix in self.shared):
                mask[part.offset : part.offset + part.size] = True
        return mask

    @cached_property
    def local(self) -> fl.Flags:
        kept = self.spec.buffers & ~self.common
        return kept if self.kind == "mingled" else np.zeros_like(kept)

    @cached_property
    def of_clusters(self) -> fl.Flags:
        return ~(self.common | self.local)

    @cached_property
    def own(self) -> int:
        return int(self.of_clusters.sum())

    @property
    def parameters(self) -> ParameterSet:
        """With a level for a product if the kind needs one."""
        return named(JOINT if self.joint else _CKKS[self.kind])

    @property
    def scalars(self) -> int:
        """After the first vector of an update."""
        return self.clusters if self.kind == "products" else 0

    @property
    def lengths(self) -> tuple[int, ...]:
        """Of the vectors and scalars of an update, in order."""
        k, own = self.clusters, self.own
        first = {"mingled": own + k, "uploads": k * (own + 1), "products": own}[self.kind]
        return (first, *(1,) * self.scalars, *((int(self.common.sum()),) if self.shared else ()))

    @property
    def widths(self) -> tuple[int, ...]:
        first, *rest = self.lengths
        sums = {"mingled": (first,) * self.clusters, "uploads": (first,), "products": (first,) * self.clusters}
        return (*sums[self.kind], *rest)

    @property
    def slots(self) -> int:
        return len(self.widths)

    def vectors(self, theta: fl.Vector, cluster: int) -> list[fl.Array]:
        """What a client of this true cluster encrypts, (length,) each, in units of ``ckks_units``."""
        theta = theta / ckks_units(self.spec)  # buffers may be much larger than weights
        own = theta[self.of_clusters]
        sigma = self.indicator(cluster)
        if self.kind == "mingled":
            first = np.concatenate([own, sigma])  # eq. (4)
        elif self.kind == "uploads":
            blocks = np.zeros((self.clusters, self.own + 1), np.float32)
            blocks[cluster] = np.append(own, np.float32(1))
            first = blocks.reshape(-1)
        else:
            first = own
        return [first, theta[self.common]] if self.shared else [first]

    def indicator(self, cluster: int) -> fl.Vector:
        """sigma_i, (k,) one-hot."""
        sigma = np.zeros(self.clusters, np.float32)
        sigma[cluster] = 1
        return sigma

    def sum_seconds(self, key: PublicKey, updates: int) -> float:
        """Nominal seconds of the server's products; additions are negligible."""
        if self.kind != "products":
            return 0.0
        return self.clusters * (updates * key.nominal_seconds_times(self.own) + key.nominal_seconds_rescale(self.own))

    def check(self, ciphers: Sequence[Any]) -> None:
        for i, cipher in enumerate(ciphers):
            expected = self.parameters.fresh._replace(scalar=1 <= i <= self.scalars)
            if cipher.tally.form != expected:
                raise fl.PeerError(f"ciphertext {i} is a {cipher.tally.form}, not a {expected}")

    def parts(self, rows: Sequence[fl.Doubles]) -> tuple[fl.Doubles, fl.Doubles]:
        """The opened sums of models (k, own), and H (k, k) or counts of clients (k,)."""
        k, own = self.clusters, self.own
        if self.kind == "products":
            return np.stack(rows[:k]), np.concatenate(rows[k : 2 * k])
        if self.kind == "uploads":
            blocks = rows[0].reshape(k, own + 1)
            return blocks[:, :own], blocks[:, own]
        sums = np.stack(rows[:k])
        return sums[:, :own], sums[:, own:]

    def contributions(self, ciphers: Sequence[Any], identities: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """(slot, ciphertext vector) of each summand."""
        first, scalars, shared = ciphers[0], ciphers[1 : 1 + self.scalars], ciphers[1 + self.scalars :]
        if self.kind == "mingled":
            for j in identities:
                yield j, first  # eq. (5), (6)
        elif self.kind == "uploads":
            yield 0, first
        else:
            for b, scalar in enumerate(scalars):
                yield b, first.times(scalar)
                yield self.clusters + b, scalar
        for cipher in shared:
            yield self.slots - 1, cipher


@dataclass(frozen=True)
class Rebuilding:
    """How clients compute models from the opened sums.

    solving: "counts", eq. (7) and (8) with sums; "literal", algorithm 2 as printed; "ideal", with the matrix of eq.
    (11) at this p; "none", the mingled means themselves.  max_condition: of H, as for ``mingled.rebuild``.
    threshold: the least identities of a client.
    """

    layout: Layout
    solving: Solving
    p: float
    max_condition: float
    threshold: int

    def __call__(
        self, opened: Sequence[fl.Doubles | None], previous: fl.Vector, sizes: Any, participants: int
    ) -> Rebuilt:
        """(k, d) from the opened slots (None for a sum of no updates).

        previous: (k, d), kept where there are no new ones.  sizes: (k,) |G_j| or (0,). Raises PeerError.
        """
        layout = self.layout
        rows = [np.zeros(n) if row is None else row for row, n in zip(opened, layout.widths, strict=True)]
        if [len(row) for row in rows] != list(layout.widths):
            raise fl.PeerError(f"sums of {[len(row) for row in rows]} numbers; expected {layout.widths}")
        before, units = previous[:, layout.of_clusters], ckks_units(layout.spec)
        sums, counts = layout.parts(rows)
        if layout.kind == "mingled":
            rebuilt = self._solved(sums, counts, before, np.asarray(sizes), participants)
        else:
            rebuilt = mingled.exact_means(sums * units[layout.of_clusters], counts, before, participants)
        models = previous.copy()
        models[:, layout.of_clusters] = rebuilt.models
        if layout.shared and not rebuilt.refused:
            mean = rows[-1] * units[layout.common] / participants  # FedAvg, section III-A
            models[:, layout.common] = mean.astype(np.float32)
        models = not_below_zero(layout.spec, models)  # the cipher may have rounded variances
        models.setflags(write=False)
        return replace(rebuilt, models=models)

    def _solved(
        self, sums: fl.Doubles, x: fl.Doubles, before: fl.Vector, sizes: fl.Array, participants: int
    ) -> Rebuilt:
        if self.solving == "none":
            return mingled.mingled_means(sums, sizes, before)
        if why := mingled.implausible(x, sizes, participants, self.threshold):
            return mingled.kept_all(before, f"{why}, so all models were kept")
        H: fl.Array = mingled.round_counts(x)
        if self.solving == "literal":
            return mingled.rebuild_literal(sums, H, before, sizes, max_condition=self.max_condition)
        if self.solving == "ideal":
            H = mingled.ideal_coefficients(np.diag(H), self.p)  # eq. (11)
        return mingled.rebuild(sums, H, before, max_condition=self.max_condition)  # eq. (7), (8)
