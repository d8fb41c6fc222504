"""Algorithm 4, delayed-update classification and correction, on ciphertexts under the helper's key.

With the mean m of the updates in time, the late updates v_j and c_j = <m, v_j>, the step is alpha_0 m + sum_j beta_j
v_j + gamma m, where beta_j and gamma follow from the weights of eq. (13) and their sums n_1, n_2, of which the helper
returns masked inverses.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from itertools import chain
from typing import Any

import coterie.method as fl
from coterie.aggregation.literal import product
from coterie.crypto.ckks import SANITISING_BITS
from coterie.crypto.vector import sum_ciphers
from coterie.systems.pafed import classification
from coterie.systems.pafed.config import Rates, corrects
from coterie.systems.pafed.inbox import Late
from coterie.systems.pafed.messages import LARGEST, SERVICE, STEP_SHARES, Invert


def within(parts: Iterable[Any], terms: int) -> Any:
    """The sum, of which all partial sums, too, lie within so many terms."""
    return reduce(lambda x, y: (x + y).within(terms), parts)


def averaged(total: Any, late: Late, count: int) -> Any:
    """Of the buffers of all ``count`` updates, under the helper's key at level 0. total: the sum of those in time,
    or None.
    """
    parts = chain([] if total is None else [total], (buffers for _, buffers in late))
    return within((part.at_level(1).times_plain(1 / count, at_most=1) for part in parts), 1)


def correct(hub: Any, r: int, total: Any, in_time: int, late: Late, rates: Rates) -> fl.Steps[Any]:
    """The step of eq. (17) under the helper's key, at level 0: of parameters.

    total: the sum of ``in_time`` updates, or None. Late updates are averaged as they are without a mean to conflict
    with, or a correction in the settings. With rule=averaged the step is that of eq. (11), alpha_0 times the mean of
    all updates.
    """
    if total is not None and len(late) and corrects(hub.config, hub.common.mode):
        return (yield from _corrected(hub, r, total, in_time, late, rates))
    first, share = rates.in_time / max(1, in_time), rates.agreeing / max(1, len(late))
    if hub.config.rule == "averaged":
        first = share = rates.in_time / (in_time + len(late))  # eq. (11)
    parts: Iterable[Any] = (v.at_level(1).times_plain(share) for v, _ in late)
    if total is not None:
        parts = chain([total.at_level(1).times_plain(first)], parts)
    return within(parts, STEP_SHARES * hub.config.largest_share)


def _corrected(hub: Any, r: int, total: Any, n: int, late: Late, rates: Rates) -> fl.Steps[Any]:
    service: Any = hub.keys.public(SERVICE)
    keys, config = hub.keys.evaluation(SERVICE), hub.config
    source = hub.secrets("masks of the correction", r)
    prepared = total.conjugated(keys)
    dots = [v.dot(prepared, keys) for v, _ in late]
    hidden = hub.common.mode != "literal" and config.signs == "hidden"
    sizes: list[Any] = []
    if hub.common.mode == "literal":
        agreeing, conflicting = classification.by_minimum(dots, n, config.iterations)
    else:
        agreeing, conflicting, sizes = yield from classification.by_helper(hub, r, dots, n, source, coins=hidden)
    rho1, rho2, rho3, rho4 = (classification.random_mask(source, classification.SUM_MASK_BITS) for _ in range(4))
    masked = [
        sum_ciphers(agreeing).times_plain(rho1 / n, at_most=len(dots)),
        sum_ciphers(conflicting).times_plain(rho2 / n, at_most=len(dots)),
        service.encrypt_scalar(rho3)  # eq. (14) as printed: |m|^2 = 1
        if config.project == "printed"
        else total.dot(prepared, keys).times_plain(rho3 / n**2, at_most=1),
        sum_ciphers(  # each is brought to +-1 before the sum, so that there is room for any number of late updates
            product(w, c, at_most=n**2).times_plain(rho4 / n**2, at_most=1)
            for w, c in zip(conflicting, dots, strict=True)
        ),
    ]
    sets, place, noise_bits = [masked], 0, SANITISING_BITS
    if hidden:
        sets, place = classification.among_decoys(service, masked, dots, sizes, n, config.dummies, source)
        noise_bits = service.parameters.flood()
    sealed, count = [x.sanitised(noise_bits) for one in sets for x in one], len(sets)
    answers = yield from classification.helped(hub, r, Invert, count, sealed, 3 * count, LARGEST)
    one, two, turn = answers[3 * place : 3 * place + 3]
    bound = config.largest_share
    first = one.times_plain(rates.agreeing * rho1 / n)  # alpha_1 / n_1
    second = two.times_plain(rates.conflicting * rho2 / n)  # alpha_2 / n_2
    gamma = turn.times_plain(-rates.conflicting * rho2 * rho3 / (rho4 * n))  # eq. (12)
    betas = [
        product(w1, first, at_most=bound) + product(w2, second, at_most=bound)
        for w1, w2 in zip(agreeing, conflicting, strict=True)
    ]
    level = betas[0].tally.form.level
    products = (product(v.at_level(level), b, at_most=bound) for (v, _), b in zip(late, betas, strict=True))
    turned = product(total.at_level(level), gamma.add_plain([rates.in_time / n]), at_most=2 * bound)
    return within(chain([turned], products), STEP_SHARES * bound).at_level(0)
