"""The functions of ``import coterie``: run, compare, audit, reproduce and load, with options as keyword arguments."""

from coterie.api.reproducing import reproduce
from coterie.api.results import Comparison, Result, audit, load
from coterie.api.training import compare, race, run, train
from coterie.protocol.errors import UserError
from coterie.runs.config import RunConfig

__all__ = [
    "Comparison",
    "Result",
    "RunConfig",
    "UserError",
    "audit",
    "compare",
    "load",
    "race",
    "reproduce",
    "run",
    "train",
]
