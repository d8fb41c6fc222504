"""Options that are described by annotations: their words and bounds, also of a subclass that changes a default."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import pytest
from msgspec import Meta

from coterie.protocol.errors import UserError
from coterie.protocol.options import Option, check_bounds, options_of


@dataclass(frozen=True)
class Base:
    count: Annotated[int | None, Meta(ge=1), Option(metavar="MANY")] = None
    share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    wait: Annotated[float, Meta(gt=0)] = 1.0
    free: int = 0


@dataclass(frozen=True)
class Below(Base):
    share: float = 0.5


def test_the_words_are_those_of_the_field() -> None:
    assert options_of(Below) == {"count": Option(metavar="MANY")}


@pytest.mark.parametrize("config", [Base(), Below(), Base(count=1, share=1e-9, free=-5)])
def test_values_within_their_bounds_pass(config: Base) -> None:
    check_bounds(config)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"count": 0}, "option 'count' must be at least 1, not 0"),
        ({"share": 0.0}, r"option 'share' must lie in \(0, 1\], not 0.0"),
        ({"share": float("nan")}, r"option 'share' must lie in \(0, 1\], not nan"),
        ({"wait": 0.0}, "option 'wait' must be positive, not 0.0"),
    ],
)
def test_others_are_refused_with_option_bound_and_value(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_bounds(replace(Below(), **change), "option {!r}")
