"""Tree aggregation: noise on running sums, whose variance grows with the logarithm of the number of summands.

The summands of rounds 1 to n are the leaves of binary trees of ``length`` rounds. Each complete node is released once
with Gaussian noise of its own (Kairouz et al., "Practical and private (deep) learning without sampling or shuffling",
ICML 2021, algorithm 1); a whole tree is one Gaussian release (``charges``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


def charges(rounds: Sequence[int], length: int) -> list[int]:
    """By round of a party's part, how much it adds to the squared sensitivity, in units of one summand's; exact at the
    end of a tree, and right before.

    rounds: all in which it takes part, from 1, ascending.
    """
    # A summand that moves by at most s in k of the rounds below a node moves that node by at most k s (triangle
    # inequality; their appendix D counts alike). So the tree is one Gaussian release of squared sensitivity s^2 sum
    # over nodes of k^2, also adaptively (Denisov et al., "Improved differential privacy for SGD via optimal private
    # linear operators on adaptive streams", 2022). A node counts from the first part below it, also if it is completed
    # later.
    parts, found = Counter[tuple[int, int, int]](), []
    for r in rounds:
        tree, leaf = divmod(r - 1, length)
        above = [(tree, j, leaf >> j) for j in range(length.bit_length()) if (leaf >> j) + 1 << j <= length]
        found.append(sum(2 * parts[node] + 1 for node in above))  # (k + 1)^2 - k^2
        parts.update(above)
    return found


def grown(estimates: Doubles, leaf: int, draw: Callable[[], Doubles]) -> Doubles:
    """The noise of the tree's running sum after the ``leaf``-th leaf: that of its complete subtrees, whose sum it is.

    estimates: (levels, d), by level the noise of the last complete subtree, 0 if it is part of a higher one; at first
    all 0.  draw: (d,) standard normal numbers, new ones for each node.
    """
    # A subtree of 2^j leaves has variance 1 / (2 - 2^-j).
    new, found, variance, level = estimates.copy(), draw(), 1.0, 0
    while not leaf >> level & 1:
        halves, own = new[level] + found, draw()
        new[level] = 0
        found = own + (halves - own) / (1 + 2 * variance)
        variance = 2 * variance / (1 + 2 * variance)
        level += 1
    new[level] = found
    return new
