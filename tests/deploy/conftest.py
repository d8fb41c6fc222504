"""Servers for the tests of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server for the tests of a file, with the parties that it names (``PARTIES``)."""
    from nats_rig import PARTIES, Rig

    with Rig(tmp_path_factory.mktemp("nats"), getattr(request.module, "PARTIES", PARTIES)) as made:
        yield made
