"""What groups see of a sample, against closed forms and slow twins."""

from __future__ import annotations

from fractions import Fraction
from math import exp

import numpy as np
import pytest

from coterie.data import Dataset, deal, from_arrays
from coterie.data.changes import BLUR, MOST_GAIN, MOST_OFFSET, blurred, recoloured
from coterie.protocol.errors import UserError


def images(channels: int, side: int = 8, samples: int = 60) -> Dataset:
    rng = np.random.default_rng(1)
    x = rng.integers(0, 256, (samples + 20, side, side, channels)).astype(np.uint8)
    y = np.arange(samples + 20) % 4
    return from_arrays("toy", x[:samples], y[:samples], x[samples:], y[samples:])


GREY, COLOUR = images(1), images(3)
_ROWS = np.random.default_rng(2).normal(size=(48, 5))
TABLE = from_arrays("table", _ROWS[:40], np.arange(40) % 4, _ROWS[40:], np.arange(8) % 4)


def stored(x: np.ndarray, data: Dataset) -> np.ndarray:
    zero, unit = data.zero_and_unit
    return x * unit + zero


@pytest.mark.parametrize("data", [GREY, COLOUR, TABLE])
def test_a_shift_is_a_gain_and_an_offset_of_the_group(data: Dataset) -> None:
    split, tasks = deal("shift:4+dirichlet:0.5", data, 8, 3, 1)
    assert split.groups is not None
    assert set(split.groups) == {0, 1, 2, 3}
    plain = data.inputs()
    np.testing.assert_array_equal(tasks[0].inputs(), plain)
    found = set()
    for task in tasks[1:]:
        for part in ("train", "test"):
            x, y = data.inputs(split=part).reshape(-1), task.inputs(split=part).reshape(-1)  # type: ignore[arg-type]
            gain, offset = np.polyfit(x, y, 1)
            assert np.allclose(y, gain * x + offset, atol=1e-4)
            assert 1 / MOST_GAIN <= gain <= MOST_GAIN
            assert abs(offset) <= MOST_OFFSET + 1e-6
        found.add(task.change.key)  # type: ignore[union-attr]
        np.testing.assert_array_equal(task.labels(), data.labels())
    assert len(found) == 3
    again, other = (deal("shift:4", data, 8, seed, 1)[1] for seed in (3, 4))
    assert [task.change and task.change.key for task in again] == [task.change and task.change.key for task in tasks]
    assert again[1].change != other[1].change


def slowly_blurred(image: np.ndarray, deviation: float) -> np.ndarray:
    """One channel, a pixel at a time; beyond a border its last pixel goes on."""
    reach, side = int(4 * deviation + 0.5), len(image)
    weights = np.array([exp(-(d**2) / (2 * deviation**2)) for d in range(-reach, reach + 1)])
    weights /= weights.sum()
    out = np.zeros_like(image, dtype=np.float64)
    for row in range(side):
        for column in range(side):
            for i, a in enumerate(weights):
                for j, b in enumerate(weights):
                    r, c = (min(max(at, 0), side - 1) for at in (row + i - reach, column + j - reach))
                    out[row, column] += a * b * image[r, c]
    return out


def test_a_blur_equals_the_slow_twin_and_grows_by_group() -> None:
    _, tasks = deal("blur:3", COLOUR, 6, 0)
    for g, task in enumerate(tasks[1:], 1):
        got = stored(task.inputs([4, 2], "test"), COLOUR)
        for i, sample in enumerate((4, 2)):
            slow = [slowly_blurred(channel, g * BLUR * 8) for channel in COLOUR.x_test[sample]]
            np.testing.assert_allclose(got[i], np.stack(slow), atol=2e-2)
    spread = [float(task.inputs().std()) for task in tasks]
    assert spread[0] > spread[1] > spread[2]
    flat = np.ones((2, 1, 8, 8), np.float32)
    np.testing.assert_allclose(blurred(1.5).apply(flat.copy(), GREY), flat, rtol=1e-6)


def test_by_a_third_red_becomes_green_and_grey_stays() -> None:
    _, tasks = deal("colour:3+iid", COLOUR, 6, 0)
    red, green, blue = (stored(tasks[1].inputs(), COLOUR)[:, k] for k in range(3))
    x = COLOUR.x_train
    for found, was in ((green, x[:, 0]), (blue, x[:, 1]), (red, x[:, 2])):
        np.testing.assert_allclose(found, was, atol=1e-2)
    grey = np.repeat(np.linspace(0, 255, 64).reshape(1, 1, 8, 8), 3, axis=1)
    zero, unit = COLOUR.zero_and_unit
    scaled = np.asarray((grey - zero) / unit, np.float32)
    np.testing.assert_allclose(stored(recoloured(Fraction(1, 7)).apply(scaled, COLOUR), COLOUR), grey, atol=1e-2)


def test_as_many_turns_of_hue_as_groups_are_none() -> None:
    x, turn = COLOUR.inputs(), recoloured(Fraction(1, 5))
    for _ in range(5):
        x = turn.apply(x, COLOUR)
    np.testing.assert_allclose(x, COLOUR.inputs(), atol=1e-4)


def test_words_and_what_cannot_be() -> None:
    assert deal("colour:4", COLOUR, 4, 0)[1][1].words == "toy, hues turned by 90 degrees"
    assert deal("blur:2", GREY, 4, 0)[1][1].words == "toy, blurred by 0.25 pixels"
    for spec, data, says in (
        ("colour:4", GREY, r"hues of images with three channels, and a sample of toy is an image \(1, 8, 8\)"),
        ("blur:2", TABLE, "blurs images, and a sample of table is a row of a table"),
        ("shift:0", GREY, "shift:K takes a number of groups"),
        ("shift:2+blur:2", GREY, "a group has one task"),
        ("blur:9", GREY, "makes 9 groups"),
    ):
        with pytest.raises(UserError, match=says):
            deal(spec, data, 8, 0)
