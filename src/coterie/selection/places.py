"""How a round's places are shared out among clusters: by size, and in turns where there are too few."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from coterie.protocol.errors import UserError


def dues(before: Mapping[int, float], sizes: Mapping[int, int], number: int) -> dict[int, float]:
    """``before``, plus each cluster's part of ``number`` places. sizes: of clusters, at least one."""
    everybody = sum(sizes.values())
    return {k: before.get(k, 0.0) + number * size / everybody for k, size in sizes.items()}


def places(owed: Mapping[int, float], room: Mapping[int, int], number: int, least: int = 1) -> dict[int, int]:
    """How many devices of each cluster may train, ``number`` in all.

    Each place goes to the cluster that is owed most and has room, its first ``least`` together. Raises UserError for
    impossible numbers.
    """
    if number < 0 or least < 1:
        raise UserError(f"{number} places of a round, of which a cluster takes at least {least}")
    given, left = dict.fromkeys(owed, 0), number
    waiting = [(-due, k) for k, due in owed.items()]
    heapify(waiting)
    while waiting and left:
        due, k = heappop(waiting)
        taken = 1 if given[k] else least
        if taken <= left and given[k] + taken <= room[k]:
            given[k], left = given[k] + taken, left - taken
            heappush(waiting, (due + taken, k))
    return given


def still_owed(
    owed: Mapping[int, float], given: Mapping[int, int], sizes: Mapping[int, int], least: int = 1
) -> dict[int, float]:
    """Of dues, after these places were given: at most about ``least``, and 0 in sum."""
    # A cluster without room for its places keeps a claim on least of them; what it loses goes to the others, by sizes.
    # Places that nobody got are owed to nobody: else all dues of like clusters would grow to one bound, and the first
    # ones would get every place.
    left = {k: min(due - given[k], float(least)) for k, due in owed.items()}
    bearing = {k: sizes[k] for k, due in left.items() if due < least} or sizes
    part = sum(left.values()) / max(sum(bearing.values()), 1)
    return {k: due - part * bearing.get(k, 0) for k, due in left.items()}
