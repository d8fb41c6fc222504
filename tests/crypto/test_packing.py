"""Fixed point and packing against hand-checked numbers and a slow twin in Python integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.crypto import Lanes, Layout
from coterie.protocol.errors import CapacityError, CryptoError, UserError


def test_lanes_of_the_named_parameters():
    assert Layout(Lanes(), 2048).lanes_per_plaintext == 62  # (2048 - 2 - 40 - 8) // 32
    assert Layout(Lanes(), 3072).lanes_per_plaintext == 94
    assert Layout(Lanes(), 2048).plaintexts(178_110) == 2_873


def test_quantise_by_hand():
    lanes = Lanes(fraction_bits=2, value_bits=5, guard_bits=3)  # steps of 1/4 in [-4, 4)
    assert lanes.quantise([-4.0, -0.3, 0.125, 0.375, 3.75]).tolist() == [-16, -1, 0, 2, 15]  # ties to even
    assert lanes.dequantise(np.array([-16, -1, 0, 15])).tolist() == [-4.0, -0.25, 0.0, 3.75]


@pytest.mark.parametrize("bad", [4.0, 3.9, -4.13, np.inf, -np.inf, np.nan, 1e300, -1e308])
def test_what_does_not_fit_is_named_and_never_clipped(bad):
    lanes = Lanes(fraction_bits=2, value_bits=5, guard_bits=3)
    with pytest.raises(CapacityError, match=r"at index 2 ") as error:
        lanes.quantise(np.array([0.0, 1.0, bad, 9.0]))
    assert str(bad) in str(error.value)


@pytest.mark.parametrize("bad", [[], [[1.0]], 1.0, ["a"], [1j]])
def test_not_a_vector(bad):
    with pytest.raises(CryptoError):
        Lanes().quantise(bad)


@pytest.mark.parametrize(
    "fields",
    [
        {"fraction_bits": -1},
        {"fraction_bits": 53},
        {"value_bits": 1},
        {"guard_bits": -1},
        {"value_bits": 60},
        {"value_bits": 4, "guard_bits": 3},
        {"kappa": 39},
    ],
)
def test_impossible_lanes(fields):
    with pytest.raises(UserError):
        Lanes(**fields)


@pytest.mark.parametrize("bits", [0, 248, 264, 2047])
def test_impossible_key_sizes(bits):
    with pytest.raises(UserError):
        Layout(Lanes(), bits)


def test_a_key_too_small_for_one_lane():
    with pytest.raises(UserError, match="no lane"):
        Layout(Lanes(kappa=256), 256)


layouts = st.builds(
    lambda value, guard, kappa, bits: Layout(Lanes(0, value, guard, kappa), bits),
    st.integers(8, 50),
    st.integers(0, 12),
    st.integers(40, 90),
    st.sampled_from([256, 272, 512, 1008]),
)


@given(layouts, st.data())
def test_pack_equals_a_slow_twin_and_unpack_undoes_it(layout, data):
    lanes, per = layout.lanes, layout.lanes_per_plaintext
    low, high = -lanes.offset, lanes.offset - 1
    values = data.draw(st.lists(st.integers(low, high) | st.sampled_from([low, high]), min_size=1, max_size=3 * per))
    packed = layout.pack(np.array(values))
    expected = []
    for start in range(0, len(values), per):
        number = 0
        for lane in range(per):
            value = values[start + lane] if start + lane < len(values) else 0
            number += (value + 2 ** (lanes.value_bits - 1)) << (lane * (lanes.value_bits + lanes.guard_bits))
        expected.append(number)
    assert packed == expected
    unpacked = layout.unpack(packed, lanes.offset)
    assert unpacked.tolist() == values + [0] * (len(packed) * per - len(values))


@given(layouts)
def test_there_is_room_for_every_masked_sum_and_not_for_one_more_lane(layout):
    lanes = layout.lanes

    def largest(packed_bits):
        return lanes.max_terms * (2 ** (packed_bits + lanes.kappa) - 1) + 2**packed_bits - 1

    assert largest(layout.packed_bits) < 2 ** (layout.key_bits - 1)
    assert largest(layout.packed_bits + lanes.width) >= 2 ** (layout.key_bits - 2)


@given(layouts)
def test_a_full_lane_holds_all_its_terms(layout):
    lanes = layout.lanes
    assert lanes.max_terms * (2**lanes.value_bits - 1) < 2**lanes.width


def test_within_is_tight():
    lanes = Lanes(value_bits=8, guard_bits=4)
    for terms, minus in ((1, 0), (3, 0), (2, 2), (1, 3)):
        low, high = -128 * terms - 127 * minus, 127 * terms + 128 * minus
        assert lanes.within(np.array([low, high]), terms, minus)
        assert not lanes.within(np.array([low - 1]), terms, minus)
        assert not lanes.within(np.array([high + 1]), terms, minus)
