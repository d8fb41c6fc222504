"""Keys without security for PAFed's federations, but where its settings are tested."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pafed_parts import small_keys


@pytest.fixture(autouse=True, scope="module")
def _small_keys(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.module.__name__.endswith("test_settings"):
        yield
        return
    with small_keys():
        yield
