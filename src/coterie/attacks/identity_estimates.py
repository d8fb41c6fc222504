"""The closed form of cluster-identity inference where the server estimates the clusters' sizes from the sets.

`expected_accuracy` takes sizes that do not depend on the sets. Estimates do: a false cluster that happens to be in many
sets looks larger, and so beats the true ones more often in just these sets. At equal sizes, where the ranks are all
noise, that costs the attacker 2.4 points of 34.7 (k = 5, p = 1/2, T = 2, 120 clients).
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.attacks.identity import Expected, estimated_sizes, expected_accuracy
from coterie.clustering.identity_law import IdentityLaw


def expected_by_estimates(law: IdentityLaw, sets: NDArray[Any], truth: NDArray[Any]) -> Expected:
    """What `identity_accuracy` with `estimated_sizes` gives on average, each client's set drawn anew in turn.

    sets (n, k) and truth (n,): of one round. Only the clusters of a client's own set compete for it, and it is a member
    of each of these; so what ranks them is everybody else's sets, and its own has its law still: as if it were in all.

    Exact on average over rounds. Scores of different clients hang together through the estimates, so the accuracy of
    one round may vary more than ``sd`` says (1.4 times at equal sizes): compare means of many by their own spread.
    """
    rows, k = np.asarray(sets).astype(bool), law.clusters

    @cache
    def expected(prior: tuple[float, ...], cluster: int) -> Expected:
        return expected_accuracy(law, np.array(prior), np.eye(k)[cluster])

    each = []
    for i, cluster in enumerate(np.asarray(truth).tolist()):
        joined = rows.copy()
        joined[i] = True
        each.append(expected(tuple(estimated_sizes(joined, law.p_correct()).tolist()), cluster))
    accuracy, variance, drawn = np.mean([(e.accuracy, e.sd**2, e.drawn_sd**2) for e in each], axis=0)
    return Expected(float(accuracy), math.sqrt(variance), math.sqrt(drawn))
