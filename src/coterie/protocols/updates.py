"""The updates of one round at a server that averages them: which it refuses, and which stand out.

The bounds keep the mean finite, so that no message ends a run. They do not keep a client from ending it: one that lies
within the bounds spoils the mean, and the trainings that start there may diverge in the next round. An update that
stands out is noted, so that an error can name its client.
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
from coterie.training.solvers import MOST_WEIGHT, largest

MOST_SAMPLES = 1 << 24
"""The most training samples that a client may claim, and so its largest weight in a mean: 16.8 million.

(ImageNet-21k has 14.2 million.)"""

OUTLYING = 100.0
"""An update stands out if its largest weight is so many times that of the model (or 1, if that is more).

Also by its part in a mean: if its samples, or samples times largest weight, are so many times the median of its round.
"""


class Updates:
    """The updates of one round. weights: the server's model before the round, or its models one after the other."""

    def __init__(self, spec: ModelSpec, weights: NDArray[Any], models: int = 1) -> None:
        self.spec, self.models = spec, models
        self._size = largest(weights)
        self._taken: list[tuple[str, float, int]] = []

    def checked(self, name: str, digest: bytes, values: Vector, samples: int = 1) -> Vector:
        """A client's values (models d,). Raises PeerError, with its name, if they or its samples are out of bounds."""
        if not 1 <= samples <= MOST_SAMPLES:
            raise PeerError(f"{name}: an update of {samples} samples; from 1 to {MOST_SAMPLES} are taken")
        try:
            return check_model(self.spec, digest, values, self.models)
        except PeerError as error:
            raise PeerError(f"{name}: {error}") from None

    def took(self, name: str, *values: Vector, samples: int = 1) -> None:
        """Note an update that was added to the sums."""
        self._taken.append((name, max(map(largest, values)), samples))

    def outliers(self) -> dict[str, float]:
        """The largest weight of each update that stands out, by name. The largest part in a mean comes first."""
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
        """The server's next model, as float32. Raises RunError if a client would not take it."""
        if not (most := largest(new)) <= MOST_WEIGHT:
            named = ", ".join(f"{name} (a weight of {value:.2g})" for name, value in self.outliers().items())
            cause = f"updates that stand out: {named}" if named else "no update stands out: lower server_lr"
            raise RunError(f"the server's model would get a weight of {most:.2g}; {cause}")
        return new.astype(np.float32)

    def notes(self) -> Mapping[str, Any]:
        """``{"outliers": outliers()}``, or nothing if no update stands out."""
        found = self.outliers()
        return {"outliers": found} if found else {}
