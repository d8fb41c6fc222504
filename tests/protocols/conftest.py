"""Fixtures for tests of joint keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from joint_parts import small_keys


@pytest.fixture(scope="module")
def small_ring() -> Iterator[None]:
    """Keys of an eighth of the degree are taken."""
    with small_keys():
        yield
