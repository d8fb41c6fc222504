"""A group's view of samples: turned, by another sensor, blurred, or recoloured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import cos, pi, sin, sqrt

import numpy as np

from coterie.data.dataset import Dataset
from coterie.protocol.arrays import Floats
from coterie.protocol.errors import UserError

MOST_GAIN, MOST_OFFSET = 2.0, 1.0
"""Of ``shift``: gains from 1 / 2 to 2, offsets of normalised samples from -1 to 1."""
BLUR = 1 / 32
"""The deviation of the first blurred group's filter, by an image's shorter side."""


@dataclass(frozen=True)
class SampleChange:
    """key: equal for equal changes.  words: for people.  apply: from normalised samples (n, *input_shape) float32,
    which it may overwrite, and their data set.
    """

    key: str
    words: str
    apply: Callable[[Floats, Dataset], Floats]


def turned(turn: Fraction) -> SampleChange:
    """Counter-clockwise by a share of a full circle: right angles exactly, others bilinearly, with stored zeros in the
    corners.
    """

    def apply(x: Floats, dataset: Dataset) -> Floats:
        if turn % Fraction(1, 4) == 0:
            return np.ascontiguousarray(np.rot90(x, int(4 * turn), axes=(-2, -1)))
        from scipy import ndimage

        zero, unit = dataset.zero_and_unit
        stored_zero = -zero / unit
        x -= stored_zero  # so that corners are filled with what is stored as 0
        found: Floats = ndimage.rotate(x, float(360 * turn), axes=(-2, -1), reshape=False, order=1)
        found += stored_zero
        return found

    return SampleChange(str(turn), f"turned by {float(360 * turn):g} degrees", apply)


def shifted(gain: float, offset: float) -> SampleChange:
    def apply(x: Floats, dataset: Dataset) -> Floats:
        x *= np.float32(gain)
        x += np.float32(offset)
        return x

    return SampleChange(f"shift {gain!r} {offset!r}", f"times {gain:.2f}, plus {offset:+.2f} once normalised", apply)


def blurred(deviation: float) -> SampleChange:
    """By a Gaussian filter of this many pixels; borders repeat their last value."""

    def apply(x: Floats, dataset: Dataset) -> Floats:
        from scipy import ndimage

        found: Floats = ndimage.gaussian_filter(x, (0, 0, deviation, deviation), mode="nearest")
        return found

    return SampleChange(f"blur {deviation!r}", f"blurred by {deviation:.2f} pixels", apply)


def recoloured(turn: Fraction) -> SampleChange:
    """Hues turned by a share of a circle: by a third red becomes green, green blue."""
    angle = 2 * pi * float(turn)
    along, across = (1 - cos(angle)) / 3, sin(angle) / sqrt(3)
    row = np.array([cos(angle) + along, along - across, along + across])
    mixing = np.stack([np.roll(row, k) for k in range(3)])  # (to, from) channels, about the axis (1, 1, 1)

    def apply(x: Floats, dataset: Dataset) -> Floats:
        zero, unit = dataset.zero_and_unit  # of each channel, or one of all
        stored = x * unit + zero
        found = np.einsum("tf,nfhw->nthw", mixing, stored, dtype=np.float64)
        return np.ascontiguousarray((found - zero) / unit, np.float32)

    return SampleChange(f"colour {turn}", f"hues turned by {float(360 * turn):g} degrees", apply)


def changes_of(kind: str, dataset: Dataset, groups: int, draw: np.random.Generator) -> list[SampleChange | None]:
    """What each group sees; the first sees samples as they are.  draw: of gains and offsets. Raises UserError for
    samples that cannot be changed so.
    """
    _check(kind, dataset, groups)
    shares = [Fraction(g, groups) for g in range(1, groups)]
    if kind == "rotate":
        return [None, *map(turned, shares)]
    if kind == "colour":
        return [None, *map(recoloured, shares)]
    if kind == "blur":
        return [None, *(blurred(g * BLUR * min(dataset.input_shape[-2:])) for g in range(1, groups))]
    gains = MOST_GAIN ** draw.uniform(-1, 1, groups - 1)
    offsets = draw.uniform(-MOST_OFFSET, MOST_OFFSET, groups - 1)
    return [None, *map(shifted, gains.tolist(), offsets.tolist())]


def _check(kind: str, dataset: Dataset, groups: int) -> None:
    shape, image = dataset.input_shape, dataset.kind == "image"
    needs = {
        "rotate": (image and shape[-1] == shape[-2], "turns square images"),
        "blur": (image, "blurs images"),
        "colour": (image and shape[0] == 3, "turns the hues of images with three channels"),
        "shift": (dataset.kind != "graph", "has a gain and an offset for each group's samples"),
    }
    fits, does = needs[kind]
    if not fits:
        words = {"image": "an image", "tabular": "a row of a table", "graph": "a node of a graph"}
        words |= {"series": "a series", "volume": "a volume"}
        raise UserError(
            f"partition {kind}:{groups} {does}, and a sample of {dataset.name} is {words[dataset.kind]} {shape}: "
            f"permute:{groups} goes with any data"
        )
