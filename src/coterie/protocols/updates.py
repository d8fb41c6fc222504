"""The updates of one round as a server that averages them takes them: what it refuses, and whose stand out.

The bounds keep one client from ending a run: the mean of what is taken is finite. They are no defence against a client
that lies within them; such a client still spoils the mean. Its update is noted, so that an error names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.effects import Vector
from coterie.protocol.errors import PeerError, RunError
from coterie.protocol.model_spec import ModelSpec
from coterie.protocols.local_training import check_model
from coterie.training.jobs import MOST_WEIGHT, largest

MOST_SAMPLES = 1 << 24
"""Training samples that a client may have, and so its largest weight in a mean: 16.8 million; ImageNet-21k has 14.2."""

OUTLYING = 100.0
"""An update stands out if its largest weight is so many times that of the model (or 1, if that is more)."""


class Updates:
    """Those of one round. weights: the server's model, or models one after the other, before the round."""

    def __init__(self, spec: ModelSpec, weights: NDArray[Any], models: int = 1) -> None:
        self.spec, self.models = spec, models
        self._usual = OUTLYING * max(1.0, largest(weights))
        self._outliers: dict[str, float] = {}

    def checked(self, name: str, digest: bytes, values: Vector, samples: int = 1) -> Vector:
        """A client's values (models d,), if they and its samples are within bounds. Raises PeerError that names it."""
        if not 1 <= samples <= MOST_SAMPLES:
            raise PeerError(f"{name}: an update of {samples} samples; from 1 to {MOST_SAMPLES} are taken")
        try:
            return check_model(self.spec, digest, values, self.models)
        except PeerError as error:
            raise PeerError(f"{name}: {error}") from None

    def took(self, name: str, *values: Vector) -> None:
        """Note what is now in the sums."""
        most = max(map(largest, values))
        if most > self._usual:
            self._outliers[name] = most

    def model(self, new: NDArray[np.float64]) -> NDArray[np.float32]:
        """The server's next model, as float32. Raises RunError where it is not one that a client would take."""
        if not (most := largest(new)) <= MOST_WEIGHT:
            named = ", ".join(f"{name} (a weight of {value:.2g})" for name, value in self._outliers.items())
            cause = f"updates that stand out: {named}" if named else "no update stands out: lower server_lr"
            raise RunError(f"the server's model would get a weight of {most:.2g}; {cause}")
        return new.astype(np.float32)

    def notes(self) -> Mapping[str, Any]:
        """``outliers``: the largest weight of each update that stands out, by name; nothing where none does."""
        return {"outliers": dict(self._outliers)} if self._outliers else {}
