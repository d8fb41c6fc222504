"""PAFed's delayed-update classification and correction (algorithm 4) as the aggregator does it, on ciphertexts.

The correction needs one number for each late update v_j, c_j = <m, v_j>, and |m|^2 for the mean m of the updates in
time. The step is then ``alpha_0 m + sum_j beta_j v_j + gamma m`` (``aggregation/correction.py``). All of it stays
encrypted under the helper's key:

1. c_j and |m|^2 are dot products of encrypted vectors.
2. The helper finds the conflicting updates. It opens rho_j c_j, each with a random positive rho_j, shuffled among
   dummies, and returns max(rho_j c_j, 0) freshly encrypted. It learns about how many are negative, and sizes up to a
   factor of 256. With ``signs=hidden`` it learns no sign, and sees the sums of step 4 among decoys (``hiding.py``).
   Mode ``literal`` uses algorithm 1's Min() on the ciphertexts instead, and no party learns a sign.
3. These give the weights of eq. (13) and their sums n_1, n_2.
4. The helper inverts the divisors rho_1 n_1 and rho_2 n_2, and returns the ratio of eq. (12), also masked.
5. beta_j and gamma each take one product, with v_j and with m.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from coterie.aggregation.correction import Rates
from coterie.crypto.ckks_masks import SANITISING_BITS
from coterie.crypto.keys import evaluation_key
from coterie.crypto.vector import sum_ciphers
from coterie.protocol.bundle import bundle
from coterie.protocol.randomness import Secrets
from coterie.protocol.spool import Spool
from coterie.protocol.steps import Steps
from coterie.protocols.key_centre import EVALUATION
from coterie.systems.pafed.hiding import among_decoys, by_coins
from coterie.systems.pafed.layout import Layout
from coterie.systems.pafed.messages import LARGEST, SERVICE, STEP_SHARES, Compare, Compared, Invert, Inverted
from coterie.systems.pafed.scalars import (
    MASK_BITS,
    SUM_MASK_BITS,
    Hub,
    from_helper,
    plus,
    product,
    random_mask,
    scalars_of,
    within,
)


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
        """Their parameters, one at a time. Can be called again."""
        return (parameters for parameters, _ in self._each(key))

    def buffers(self, key: Any) -> Iterator[Any]:
        """Their buffers."""
        return (buffers for _, buffers in self._each(key))

    def _each(self, key: Any) -> Iterator[tuple[Any, Any]]:
        for ticket in self._tickets:
            yield self._layout.split(key.from_bytes(self._spool.peek(ticket), self._layout.size, terms=1))


def averaged(service: Any, total: Any, late: Late, count: int) -> Any:
    """The mean of the buffers of all ``count`` updates, under the helper's key at level 0.

    total: the sum of those in time, or None. Every weight is 1 / count, so the mean lies among the clients' values.
    """
    parts = chain([] if total is None else [total], late.buffers(service))
    return within((part.at_level(1).times_plain(1 / count, at_most=1) for part in parts), 1)


def correct(hub: Hub, r: int, total: Any, in_time: int, late: Late, rates: Rates) -> Steps[Any]:
    """The step of eq. (17) under the helper's key, at level 0: of parameters.

    total: the sum of ``in_time`` updates, or None if there was none. Then late updates are averaged as they are, since
    there is no mean with which they could conflict. They are also averaged if the settings want no correction.
    """
    service = hub.public(SERVICE)
    if total is not None and len(late) and hub.config.project != "none":
        return (yield from _corrected(hub, r, service, total, in_time, late, rates))
    share = rates.agreeing / max(1, len(late))
    parts: Iterable[Any] = (v.at_level(1).times_plain(share) for v in late.updates(service))
    if total is not None:
        parts = chain([total.at_level(1).times_plain(rates.in_time / in_time)], parts)
    return within(parts, STEP_SHARES * hub.config.largest_share)


def _corrected(hub: Hub, r: int, service: Any, total: Any, n: int, late: Late, rates: Rates) -> Steps[Any]:
    """Algorithm 4. Everything is in units of the sum, n times the mean: c = <total, v_j> lies within +-n."""
    keys, config = evaluation_key(hub.secret.keys.public[f"{SERVICE} {EVALUATION}"]), hub.config
    source = hub.secrets("masks of the correction", r)
    prepared = total.conjugated(keys)
    dots = [v.dot(prepared, keys) for v in late.updates(service)]
    square = total.dot(prepared, keys)
    hidden = hub.common.mode == "paper" and config.signs == "hidden"
    sizes: list[Any] = []
    if hub.common.mode == "literal":
        agreeing, conflicting = by_minimum(dots, n, config.iterations)
    elif hidden:
        agreeing, conflicting, sizes = yield from by_coins(r, service, dots, n, source)
    else:
        agreeing, conflicting = yield from by_helper(r, service, dots, n, config.dummies, source)
    masks = [random_mask(source, SUM_MASK_BITS) for _ in range(4)]
    squared = n * n
    masked = [
        sum_ciphers(agreeing).times_plain(masks[0] / n, at_most=len(dots)),
        sum_ciphers(conflicting).times_plain(masks[1] / n, at_most=len(dots)),
        square.times_plain(masks[2] / squared, at_most=1),
        sum_ciphers(  # each is brought to +-1 before the sum, so that there is room for any number of late updates
            product(w, c, at_most=squared).times_plain(masks[3] / squared, at_most=1)
            for w, c in zip(conflicting, dots, strict=True)
        ),
    ]
    if config.project == "printed":
        masked[2] = service.encrypt_scalar(masks[2])  # eq. (14) as printed: |m|^2 = 1
    sets, place, noise_bits = [masked], 0, SANITISING_BITS
    if hidden:
        sets, place = among_decoys(service, masked, dots, sizes, n, config.dummies, source)
        noise_bits = service.parameters.flood()
    request = Invert(r, len(sets), bundle([x.sanitised(noise_bits).to_bytes() for one in sets for x in one]))
    count = 3 * len(sets)
    answers = yield from from_helper(request, Inverted, lambda reply: scalars_of(service, r, reply, count, LARGEST))
    one, two, turn = answers[3 * place : 3 * place + 3]
    rho1, rho2, rho3, rho4 = masks
    bound = hub.config.largest_share
    first = one.times_plain(rates.agreeing * rho1 / n)  # alpha_1 / n_1
    second = two.times_plain(rates.conflicting * rho2 / n)  # alpha_2 / n_2
    gamma = turn.times_plain(-rates.conflicting * rho2 * rho3 / (rho4 * n))  # eq. (12)
    betas = [
        product(w1, first, at_most=bound) + product(w2, second, at_most=bound)
        for w1, w2 in zip(agreeing, conflicting, strict=True)
    ]
    level = betas[0].tally.form.level
    products = (product(v.at_level(level), b, at_most=bound) for v, b in zip(late.updates(service), betas, strict=True))
    turned = product(total.at_level(level), gamma.add_plain([rates.in_time / n]), at_most=2 * bound)
    return within(chain([turned], products), STEP_SHARES * bound).at_level(0)


def by_helper(
    r: int, service: Any, dots: list[Any], n: int, dummies: int, source: Secrets
) -> Steps[tuple[list[Any], list[Any]]]:
    """[max(c_j, 0)] and [min(c_j, 0)], by the helper's comparison of masked and shuffled cosines.

    A dummy is another late update's cosine under a random sign and mask, so it looks like a real one.
    """
    masks = [random_mask(source, MASK_BITS) for _ in dots]
    masked = [dot.times_plain(mask / n, at_most=1) for dot, mask in zip(dots, masks, strict=True)]
    for _ in range(dummies):
        j, sign = source.bytes(2)
        mask = random_mask(source, MASK_BITS) * (1 if sign & 1 else -1)
        masked.append(dots[j % len(dots)].times_plain(mask / n, at_most=1))
    order = [int(i) for i in source.permutation(len(masked))]
    request = Compare(r, len(masked), bundle([masked[i].sanitised().to_bytes() for i in order]))
    answers = yield from from_helper(request, Compared, lambda reply: scalars_of(service, r, reply, len(masked), 1))
    found = dict(zip(order, answers, strict=True))
    agreeing = [found[j].times_plain(n / mask, at_most=n) for j, mask in enumerate(masks)]
    conflicting = [
        plus(dots[j], found[j].times_plain(-n / mask, at_most=n)) for j, mask in enumerate(masks)
    ]  # eq. (13): the part of c_j that is not in the one class is in the other
    return agreeing, conflicting


def by_minimum(dots: list[Any], n: int, iterations: int) -> tuple[list[Any], list[Any]]:
    """Twice n times the weights of eq. (13) by algorithm 1: c/2 + 2n m_d and c/2 - 2n m_d, with m_d about |c| / 4n."""
    agreeing, conflicting = [], []
    for dot in dots:
        y = dot.times_plain(1 / (4 * n), at_most=1)  # l. 1, for a = (c/n + 1) / 2 and b = 1/2
        m = product(y, y, at_most=1)  # l. 2
        q = m.add_plain([-1.0])
        for _ in range(iterations):
            m = product(m, q.times_plain(-0.5, at_most=1).add_plain([1.0]), at_most=1)  # l. 4
            q = product(product(q, q, at_most=1), q.add_plain([-3.0]).times_plain(0.25, at_most=1), at_most=1)  # l. 5
        half = dot.times_plain(0.5, at_most=n)
        agreeing.append(plus(half, m.times_plain(2.0 * n, at_most=n)))
        conflicting.append(plus(half, m.times_plain(-2.0 * n, at_most=n)))
    return agreeing, conflicting
