"""The messages of FedEPC. Mode hardened also has those of ``protocols/cluster_sums.py``."""

from __future__ import annotations

import coterie.method as fl

HUB = "server"
DEVICE = "device"
HELPER = "helper"


@fl.message(src=HUB, dst=DEVICE)
class Describe(fl.OfRound, frozen=True):
    """Algorithm 1, l. 1. weights: (d,) W_ext, or None to use the one that you have.  layer: whose ReLU is read.
    centre: (C,) the public mean, with send=noise.  basis: (B, C) public directions of noise, with noise_along=classes.
    clip: as in the settings, resolved.
    """

    spec: bytes
    weights: fl.Floats | None
    layer: str
    centre: fl.Floats | None
    basis: fl.Floats2D | None
    clip: float


@fl.message(src=DEVICE, dst=HUB)
class Described(fl.OfRound, frozen=True):
    """Algorithm 1, l. 7, and claims (eq. 9). vector: (C,) s of eq. (2), or None if the data have not changed.
    floor: h_i, its noise floor.
    """

    samples: int
    cpu_ghz: float
    memory_gib: float
    vector: fl.Floats | None
    floor: float


@fl.message(src=DEVICE, dst=HUB)
class Concealed(fl.Signed, frozen=True):
    """Mode hardened: as ``Described``. cipher: (C + 1,) vector and floor under the helper's key; empty: unchanged."""

    samples: int
    cpu_ghz: float
    memory_gib: float
    cipher: bytes


@fl.message(src=HUB, dst=DEVICE)
class Train(fl.OfRound, frozen=True):
    """Algorithm 4, l. 5: measure the loss of this model, and train it if ``chosen``.

    weights: (d,) W_k; mode hardened: W^0, or None for the last model of your cluster.
    """

    spec: bytes
    weights: fl.Floats | None
    chosen: bool


@fl.message(src=DEVICE, dst=HUB)
class Update(fl.OfRound, frozen=True):
    """Algorithm 4, l. 8. weights: (d,) W_i, or None if not chosen.  loss: of the model before, on its training data."""

    spec: bytes
    weights: fl.Floats | None
    samples: int
    loss: float


@fl.message(src=DEVICE, dst=HUB)
class Sealed(fl.Signed, frozen=True):
    """Mode hardened: as ``Update``. cipher: W_i under the helper's key, or empty.  gradient_norm: eq. (9)."""

    cipher: bytes
    samples: int
    loss: float
    gradient_norm: float


@fl.message(src=HUB, dst=DEVICE)
class Model(fl.OfModel, frozen=True):
    """Algorithm 4, l. 19: the model of your cluster, (d,)."""


@fl.message(src=HUB, dst=HELPER)
class Cluster(fl.OfRound, frozen=True):
    """Mode hardened: all changed vectors were relayed. left: places that are gone."""

    left: fl.Integers


@fl.message(src=HELPER, dst=HUB)
class Clustered(fl.Signed, frozen=True):
    """labels: (m,) the clusters of all positions (m,) that are there."""

    positions: fl.Integers
    labels: fl.Integers
