"""The updates of one round as a server that averages them takes them: what it refuses, and whose stand out.

The bounds keep one message from ending a run: the mean of what is taken is finite. They don't keep one client from it.
A client that lies within them spoils the mean, and the trainings that start there may diverge in the next round. Its
update is noted where it stands out, so that an error names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median_low
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.effects import Vector
from coterie.protocol.errors import PeerError, RunError
from coterie.protocol.model_spec import ModelSpec
from coterie.protocols.local_training import check_model
from coterie.training.bounds import MOST_WEIGHT, largest

MOST_SAMPLES = 1 << 24
"""Training samples that a client may have, and so its largest weight in a mean: 16.8 million; ImageNet-21k has 14.2."""

OUTLYING = 100.0
"""An update stands out if its largest weight is so many times that of the model (or 1, if that is more).

Also by its part in a mean: if its samples, or samples times largest weight, are so many times the median of its round.
"""


class Updates:
    """Those of one round. weights: the server's model, or models one after the other, before the round."""

    def __init__(self, spec: ModelSpec, weights: NDArray[Any], models: int = 1) -> None:
        self.spec, self.models = spec, models
        self._size = largest(weights)
        self._taken: list[tuple[str, float, int]] = []

    def checked(self, name: str, digest: bytes, values: Vector, samples: int = 1) -> Vector:
        """A client's values (models d,), if they and its samples are within bounds. Raises PeerError that names it."""
        if not 1 <= samples <= MOST_SAMPLES:
            raise PeerError(f"{name}: an update of {samples} samples; from 1 to {MOST_SAMPLES} are taken")
        try:
            return check_model(self.spec, digest, values, self.models)
        except PeerError as error:
            raise PeerError(f"{name}: {error}") from None

    def took(self, name: str, *values: Vector, samples: int = 1) -> None:
        """Note what is now in the sums."""
        self._taken.append((name, max(map(largest, values)), samples))

    def outliers(self) -> dict[str, float]:
        """The largest weight of each update that stands out, by name; the largest part in a mean comes first."""
        if not self._taken:
            return {}
        parts = [samples * max(most, self._size) for _, most, samples in self._taken]  # small changes are all alike
        usual = OUTLYING * max(1.0, self._size)
        usual_samples = OUTLYING * median_low(samples for *_, samples in self._taken)
        usual_part = OUTLYING * median_low(parts)
        found: dict[str, float] = {}
        for part, (name, most, samples) in sorted(zip(parts, self._taken, strict=True), reverse=True):
            if most > usual or samples > usual_samples or part > usual_part > 0:
                found[name] = max(most, found.get(name, 0.0))
        return found

    def model(self, new: NDArray[np.float64]) -> NDArray[np.float32]:
        """The server's next model, as float32. Raises RunError where it is not one that a client would take."""
        if not (most := largest(new)) <= MOST_WEIGHT:
            named = ", ".join(f"{name} (a weight of {value:.2g})" for name, value in self.outliers().items())
            cause = f"updates that stand out: {named}" if named else "no update stands out: lower server_lr"
            raise RunError(f"the server's model would get a weight of {most:.2g}; {cause}")
        return new.astype(np.float32)

    def notes(self) -> Mapping[str, Any]:
        """``{"outliers": outliers()}``; nothing where none stands out."""
        found = self.outliers()
        return {"outliers": found} if found else {}
