"""Audits of noise on uploads: what neighbouring data prove of its epsilon, beside what is claimed.

Who: a leader that receives a client's noisy upload, by name, and knows all but which of two data sets it came from. On:
outputs of the real mechanism on both, each reduced to its log likelihood ratio. ``neighbours.lower_bound`` gives what
they prove. For a mechanism with a proof the bound stays under the claim. For the heuristic of OFL's paper it does not.

``System.dp_audit`` puts such rows into a run's result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.dp import heuristic
from coterie.dp.uploads import Standard
from coterie.privacy.attacks.neighbours import lower_bound
from coterie.protocol.errors import UserError
from coterie.protocol.randomness import Secrets, rng

Doubles = NDArray[np.float64]

SPREAD = 3.0
"""How many times wider the values of the heuristic's neighbour are spread."""
VALUES = 8
"""At the centroid of the cluster in the heuristic's audit."""
TRIALS = 4000


@dataclass(frozen=True)
class Audited:
    """An audit. claimed: the epsilon that is claimed at ``delta``.  lower_bound: what ``trials`` outputs on each of two
    neighbouring data sets prove, wrong with a probability of at most 5 %.  exact: the least epsilon that is true of
    what was looked at, where there is a formula; infinite where a release hides nothing.
    """

    mechanism: str
    neighbours: str
    claimed: float
    lower_bound: float
    delta: float
    trials: int
    exact: float | None = None

    @property
    def holds(self) -> bool:
        """Whether nothing that was found contradicts the claim."""
        return max(self.lower_bound, self.exact or 0.0) <= self.claimed

    def row(self) -> dict[str, Any]:
        """For ``result.json``, where an infinite epsilon is the word "infinite"."""
        return {
            "mechanism": self.mechanism,
            "neighbours": self.neighbours,
            "claimed_epsilon": _stated(self.claimed),
            "lower_bound": _stated(self.lower_bound),
            "exact_epsilon": None if self.exact is None else _stated(self.exact),
            "delta": self.delta,
            "trials": self.trials,
            "holds": self.holds,
        }


def audit_standard(
    mechanism: Standard, size: int, delta: float, uploads: int = 1, trials: int = TRIALS, seed: int = 0
) -> Audited:
    """The standard mechanism on changes of ``size`` parameters that are as far apart as clipping allows: C and -C.

    uploads: how many of one client are looked at together. The claim is that of the ledger. The likelihood ratio of
    Gaussians with these means grows with the sum of each output along the direction. Raises UserError unless size,
    uploads and trials / 2 are at least 1.
    """
    if min(size, uploads) < 1 or trials < 2:
        raise UserError(f"an audit needs a parameter, an upload and two trials, not {size}, {uploads}, {trials}")
    draw = Secrets(rng(seed, "audit", "standard"))
    direction = np.full(size, 1 / math.sqrt(size))
    scores = []
    for sign in (1, -1):
        far = sign * 10 * mechanism.clip * direction  # clipped to C
        scores.append(
            np.array(
                [sum(float(mechanism.noised(far, draw) @ direction) for _ in range(uploads)) for _ in range(trials)]
            )
        )
    claimed = mechanism.epsilon(delta, uploads)
    words = f"all data replaced, by opposite changes; uploads: {uploads}"
    return Audited("standard", words, claimed, lower_bound(scores[0], scores[1], delta), delta, trials)


def audit_heuristic(
    claimed: float = 2.0, delta: float = 1e-5, spread: float = SPREAD, trials: int = TRIALS, seed: int = 0
) -> Audited:
    """The paper's mechanism on a density cluster whose two outermost values are ``spread`` times wider in a neighbour.

    Looked at are the ``VALUES`` values at the centroid, which are the same in both data sets; only their noise differs.
    claimed: in all, by section 5.1.1, so epsilon_2 = claimed / VALUES.  exact: of these values (``true_epsilon``).
    With ``spread`` infinite all values are equal in one of the data sets. They are sent as they are, so that one output
    tells the data sets apart. Raises UserError unless spread > 1 and claimed is positive.
    """
    if not spread > 1 or trials < 2:
        raise UserError(f"a spread exceeds 1 and an audit needs two trials, not {spread} and {trials}")
    draw, flat = Secrets(rng(seed, "audit", "heuristic")), np.ones(VALUES + 2)  # one cluster
    centre = slice(1, -1)

    def values(width: float) -> Doubles:
        return np.concatenate([[-width], np.zeros(VALUES), [width]])

    both = [values(0.0), values(1.0)] if math.isinf(spread) else [values(1.0), values(spread)]
    narrow, wide = (float(heuristic.scales(one, flat, claimed / VALUES)[1]) for one in both)
    scores = []
    for one in both[::-1]:
        seen = [heuristic.perturbed(one, flat, claimed / VALUES, draw)[centre] for _ in range(trials)]
        scores.append(_wider(np.array(seen, np.float64), narrow, wide))
    words = "equal values" if math.isinf(spread) else f"outermost values {spread:g} times wider"
    bound, exact = lower_bound(scores[0], scores[1], delta), heuristic.true_epsilon(spread, delta, VALUES)
    return Audited(f"paper ({heuristic.HEURISTIC})", words, claimed, bound, delta, trials, exact)


def _wider(seen: Doubles, narrow: float, wide: float) -> Doubles:
    """(n,) log likelihood ratios of Lap(wide) to Lap(narrow) of (n, m) values around 0; for narrow 0 if any differs."""
    if narrow == 0:
        return np.asarray((seen != 0).any(axis=1), np.float64)
    ratios: Doubles = (np.abs(seen) * (1 / narrow - 1 / wide) + math.log(narrow / wide)).sum(axis=1)
    return ratios


def _stated(epsilon: float) -> float | str:
    return epsilon if math.isfinite(epsilon) else "infinite"
