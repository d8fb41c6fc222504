"""PAFed's delayed-update classification and correction (algorithm 4) as the aggregator does it, on ciphertexts.

What has to be known of a late update v_j is one number, c_j = <m, v_j>, and of the mean m of those in time |m|^2; with
them the step is ``alpha_0 m + sum_j beta_j v_j + gamma m`` (``aggregation/correction.py``). All of it stays encrypted
under the helper's key:

1. c_j and |m|^2, dot products of encrypted vectors;
2. who conflicts: the helper opens rho_j c_j, each with a random positive rho_j of its own, shuffled among dummies, and
   returns max(rho_j c_j, 0) freshly encrypted: it learns about how many are negative, and sizes up to a factor of 256.
   Mode ``literal`` uses algorithm 1's Min() on the ciphertexts instead, and nobody learns a sign;
3. the weights of eq. (13) and their sums n_1, n_2;
4. what is divided by: the helper inverts rho_1 n_1 and rho_2 n_2 and gives back the ratio of eq. (12), masked as well;
5. beta_j and gamma, one product with every v_j and with m.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from itertools import chain
from typing import TYPE_CHECKING, Any

from coterie.aggregation.correction import Rates
from coterie.crypto.schemes import evaluation_key, public_key
from coterie.crypto.vector import sum_ciphers
from coterie.protocol.bundle import bundle, unbundle
from coterie.protocol.errors import PeerError
from coterie.protocol.messages import M, Message
from coterie.protocol.randomness import Secrets
from coterie.protocol.steps import NoAnswerError, Steps, for_each
from coterie.systems.pafed.layout import Layout
from coterie.systems.pafed.messages import HELPER, LARGEST, Compare, Compared, Invert, Inverted
from coterie.transport.spool import Spool

if TYPE_CHECKING:
    from coterie.systems.pafed.aggregator import Aggregator

MASK_BITS = 8
"""A mask of a cosine is 2^-u, u uniform in [0, MASK_BITS]: the helper sees a sign, and a magnitude blurred 256-fold."""
SUM_MASK_BITS = 3
STEP_SHARES = 4
"""The mean, the mean late agreeing and conflicting updates, and what turns these: each at most a share long."""


class Late:
    """The late updates of a round, on disk when there are many."""

    def __init__(self, spool: Spool, layout: Layout) -> None:
        self._spool, self._layout = spool, layout
        self._tickets: list[int] = []

    def put(self, cipher: Any) -> None:
        """One update's ciphertext vector."""
        self._tickets.append(self._spool.put(cipher.to_bytes()))

    def __len__(self) -> int:
        return len(self._tickets)

    def updates(self, key: Any) -> Iterator[Any]:
        """Their parameters, one at a time; as often as wanted."""
        return (parameters for parameters, _ in self._each(key))

    def buffers(self, key: Any) -> Iterator[Any]:
        """Their buffers."""
        return (buffers for _, buffers in self._each(key))

    def _each(self, key: Any) -> Iterator[tuple[Any, Any]]:
        for ticket in self._tickets:
            yield self._layout.split(key.from_bytes(self._spool.peek(ticket), self._layout.size, terms=1))


def averaged(service: Any, total: Any, late: Late, count: int) -> Any:
    """The mean of the buffers of all ``count`` updates, under the helper's key at level 0.

    total: the sum of those in time, or None. Every weight is 1 / count, so the mean lies among what clients measured.
    """
    parts = chain([] if total is None else [total], late.buffers(service))
    return _within((part.at_level(1).times_plain(1 / count, at_most=1) for part in parts), 1)


def correct(hub: Aggregator, r: int, total: Any, in_time: int, late: Late, rates: Rates) -> Steps[Any]:
    """The step of eq. (17) under the helper's key, at level 0: of parameters.

    total: the sum of ``in_time`` updates, or None where there was none: then late updates are averaged as they are, as
    there is nothing that they could conflict with (and so they are where the settings want no correction).
    """
    service = public_key(hub.state.service_public)
    if total is not None and len(late) and hub.config.project != "none":
        return (yield from _corrected(hub, r, service, total, in_time, late, rates))
    share = rates.agreeing / max(1, len(late))
    parts: Iterable[Any] = (v.at_level(1).times_plain(share) for v in late.updates(service))
    if total is not None:
        parts = chain([total.at_level(1).times_plain(rates.in_time / in_time)], parts)
    return _within(parts, STEP_SHARES * hub.config.largest_share)


def _corrected(hub: Aggregator, r: int, service: Any, total: Any, n: int, late: Late, rates: Rates) -> Steps[Any]:
    """Algorithm 4. Everything is in units of the sum, n times the mean: c = <total, v_j> lies within +-n."""
    keys = evaluation_key(hub.state.evaluation)
    source = hub.secrets("masks of the correction", r)
    prepared = total.conjugated(keys)
    dots = [v.dot(prepared, keys) for v in late.updates(service)]
    square = total.dot(prepared, keys)
    if hub.mode == "literal":
        agreeing, conflicting = by_minimum(dots, n, hub.config.iterations)
    else:
        agreeing, conflicting = yield from by_helper(r, service, dots, n, hub.config.dummies, source)
    masks = [_mask(source, SUM_MASK_BITS) for _ in range(4)]
    squared = n * n
    masked = [
        sum_ciphers(agreeing).times_plain(masks[0] / n, at_most=len(dots)),
        sum_ciphers(conflicting).times_plain(masks[1] / n, at_most=len(dots)),
        square.times_plain(masks[2] / squared, at_most=1),
        sum_ciphers(  # each brought to +-1 before they are summed: however many are late, there is room
            _product(w, c, at_most=squared).times_plain(masks[3] / squared, at_most=1)
            for w, c in zip(conflicting, dots, strict=True)
        ),
    ]
    if hub.mode == "literal" or hub.config.project == "printed":
        masked[2] = service.encrypt_scalar(masks[2])  # eq. (14) as printed: |m|^2 = 1
    request = Invert(r, bundle([x.sanitised().to_bytes() for x in masked]))
    one, two, turn = yield from from_helper(request, Inverted, lambda reply: _scalars(service, r, reply, 3, LARGEST))
    rho1, rho2, rho3, rho4 = masks
    bound = hub.config.largest_share
    first = one.times_plain(rates.agreeing * rho1 / n)  # alpha_1 / n_1
    second = two.times_plain(rates.conflicting * rho2 / n)  # alpha_2 / n_2
    gamma = turn.times_plain(-rates.conflicting * rho2 * rho3 / (rho4 * n))  # eq. (12)
    betas = [
        _product(w1, first, at_most=bound) + _product(w2, second, at_most=bound)
        for w1, w2 in zip(agreeing, conflicting, strict=True)
    ]
    level = betas[0].tally.form.level
    products = (
        _product(v.at_level(level), b, at_most=bound) for v, b in zip(late.updates(service), betas, strict=True)
    )
    turned = _product(total.at_level(level), gamma.add_plain([rates.in_time / n]), at_most=2 * bound)
    return _within(chain([turned], products), STEP_SHARES * bound).at_level(0)


def by_helper(
    r: int, service: Any, dots: list[Any], n: int, dummies: int, source: Secrets
) -> Steps[tuple[list[Any], list[Any]]]:
    """[max(c_j, 0)] and [min(c_j, 0)], by the helper's comparison of masked and shuffled cosines.

    A dummy is another late update's cosine under a random sign and mask, so that nothing tells it from a real one.
    """
    masks = [_mask(source, MASK_BITS) for _ in dots]
    masked = [dot.times_plain(mask / n, at_most=1) for dot, mask in zip(dots, masks, strict=True)]
    for _ in range(dummies):
        j, sign = source.bytes(2)
        mask = _mask(source, MASK_BITS) * (1 if sign & 1 else -1)
        masked.append(dots[j % len(dots)].times_plain(mask / n, at_most=1))
    order = [int(i) for i in source.permutation(len(masked))]
    request = Compare(r, len(masked), bundle([masked[i].sanitised().to_bytes() for i in order]))
    answers = yield from from_helper(request, Compared, lambda reply: _scalars(service, r, reply, len(masked), 1))
    found = dict(zip(order, answers, strict=True))
    agreeing = [found[j].times_plain(n / mask, at_most=n) for j, mask in enumerate(masks)]
    conflicting = [
        _sum(dots[j], found[j].times_plain(-n / mask, at_most=n)) for j, mask in enumerate(masks)
    ]  # eq. (13): what is not in the one class is in the other
    return agreeing, conflicting


def by_minimum(dots: list[Any], n: int, iterations: int) -> tuple[list[Any], list[Any]]:
    """Twice n times the weights of eq. (13) by algorithm 1: c/2 + 2n m_d and c/2 - 2n m_d, with m_d about |c| / 4n."""
    agreeing, conflicting = [], []
    for dot in dots:
        y = dot.times_plain(1 / (4 * n), at_most=1)  # l. 1, for a = (c/n + 1) / 2 and b = 1/2
        m = _product(y, y, at_most=1)  # l. 2
        q = m.add_plain([-1.0])
        for _ in range(iterations):
            m = _product(m, q.times_plain(-0.5, at_most=1).add_plain([1.0]), at_most=1)  # l. 4
            q = _product(_product(q, q, at_most=1), q.add_plain([-3.0]).times_plain(0.25, at_most=1), at_most=1)  # l. 5
        half = dot.times_plain(0.5, at_most=n)
        agreeing.append(_sum(half, m.times_plain(2.0 * n, at_most=n)))
        conflicting.append(_sum(half, m.times_plain(-2.0 * n, at_most=n)))
    return agreeing, conflicting


def _within(parts: Iterable[Any], terms: int) -> Any:
    """Their sum, which lies within so many terms however many they are, and so do all sums on the way."""
    return reduce(lambda x, y: (x + y).within(terms), parts)


def _product(x: Any, y: Any, *, at_most: int) -> Any:
    """x times the scalar y, at the lower of their levels, rescaled."""
    level = min(x.tally.form.level, y.tally.form.level)
    return x.at_level(level).times(y.at_level(level), at_most=at_most).rescaled()


def _sum(x: Any, y: Any) -> Any:
    """x + y at the lower of their levels."""
    level = min(x.tally.form.level, y.tally.form.level)
    return x.at_level(level) + y.at_level(level)


def from_helper(request: Message, reply: type[M], read: Callable[[M], Any]) -> Steps[Any]:
    """What ``read`` makes of the helper's answer; what it refuses is no answer. Raises NoAnswerError."""
    got: list[Any] = []
    answers = yield from for_each({HELPER: request}, reply, lambda _, message: got.append(read(message)))
    if not got:
        raise NoAnswerError(f"{HELPER} did not answer {type(request).__name__}: {answers.missing[HELPER]}")
    return got[0]


def _scalars(service: Any, r: int, reply: Compared | Inverted, count: int, at_most: int) -> list[Any]:
    """The scalars of an answer to this round. Raises PeerError for anything else."""
    if reply.round != r:
        raise PeerError(f"{HELPER} answers round {reply.round} in round {r}")
    read = partial(service.from_bytes, length=1, terms=at_most, blinded=0, form=service.fresh_scalar)
    return [read(part) for part in unbundle(reply.ciphers, count)]


def _mask(source: Secrets, bits: int) -> float:
    """2^-u, u uniform in [0, bits]."""
    u = int.from_bytes(source.bytes(7), "little") / 2.0**56
    return float(2.0 ** (-bits * u))
