"""Arithmetic on encrypted scalars and vectors, and requests to the helper, for ``correction`` and ``hiding``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial, reduce
from typing import Any

from coterie.crypto.ckks import PublicKey, SecretKey
from coterie.protocol.bundle import unbundle
from coterie.protocol.errors import PeerError
from coterie.protocol.messages import M, Message
from coterie.protocol.randomness import Secrets
from coterie.protocol.steps import NoAnswerError, Steps, for_each
from coterie.protocols.key_centre import Keyed
from coterie.systems.pafed.messages import HELPER, Compared, Inverted

Hub = Keyed[PublicKey, SecretKey]
"""The aggregator, whose steps these are."""

MASK_BITS = 8
"""A mask of a cosine is 2^-u, u uniform in [0, MASK_BITS]: its magnitude is blurred 256-fold."""
SUM_MASK_BITS = 3
"""The same for the sums of a class."""


def within(parts: Iterable[Any], terms: int) -> Any:
    """The sum of the parts. It and all partial sums lie within so many terms, however many parts there are."""
    return reduce(lambda x, y: (x + y).within(terms), parts)


def product(x: Any, y: Any, *, at_most: int) -> Any:
    """x times the scalar y, at the lower of their levels, rescaled."""
    level = min(x.tally.form.level, y.tally.form.level)
    return x.at_level(level).times(y.at_level(level), at_most=at_most).rescaled()


def plus(x: Any, y: Any) -> Any:
    """x + y at the lower of their levels."""
    level = min(x.tally.form.level, y.tally.form.level)
    return x.at_level(level) + y.at_level(level)


def random_mask(source: Secrets, bits: int) -> float:
    """2^-u, u uniform in [0, bits]."""
    u = int.from_bytes(source.bytes(7), "little") / 2.0**56
    return float(2.0 ** (-bits * u))


def from_helper(request: Message, reply: type[M], read: Callable[[M], Any]) -> Steps[Any]:
    """The helper's answer, read by ``read``. Raises NoAnswerError if there is none, or if ``read`` refuses it."""
    got: list[Any] = []
    answers = yield from for_each({HELPER: request}, reply, lambda _, message: got.append(read(message)))
    if not got:
        raise NoAnswerError(f"{HELPER} did not answer {type(request).__name__}: {answers.missing[HELPER]}")
    return got[0]


def scalars_of(service: Any, r: int, reply: Compared | Inverted, count: int, at_most: int) -> list[Any]:
    """The scalars of an answer to this round. Raises PeerError for any other answer."""
    if reply.round != r:
        raise PeerError(f"{HELPER} answers round {reply.round} in round {r}")
    read = partial(service.from_bytes, length=1, terms=at_most, blinded=0, form=service.fresh_scalar)
    return [read(part) for part in unbundle(reply.ciphers, count)]
