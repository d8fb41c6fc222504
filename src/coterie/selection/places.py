"""How the places of a round are shared out among clusters: by their sizes, and in turns where there are too few."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from coterie.protocol.errors import UserError


def dues(before: Mapping[int, float], sizes: Mapping[int, int], number: int) -> dict[int, float]:
    """What each of these clusters is owed: what it was owed ``before``, and its part of a round of ``number`` places.

    sizes: devices of each cluster, at least one.
    """
    everybody = sum(sizes.values())
    return {k: before.get(k, 0.0) + number * size / everybody for k, size in sizes.items()}


def places(owed: Mapping[int, float], room: Mapping[int, int], number: int, least: int = 1) -> dict[int, int]:
    """How many devices of each cluster may train in a round in which ``number`` may.

    Each place goes to the cluster that is owed most (of several, to the one with the lowest number), as far as it has
    room for it. Its first ones are ``least`` together. So no cluster waits for ever, and over many rounds a cluster has
    places in proportion to its size. room: the most devices of each cluster that can train.
    Raises UserError for a negative number, and for a least number below 1.
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


def still_owed(owed: Mapping[int, float], given: Mapping[int, int], least: int = 1) -> dict[int, float]:
    """What is left of dues after these places were given, within ``least`` of 0.

    So a cluster that had no room for its places has no claim on those of many later rounds, and one that has taken the
    places of such a cluster need not give them back.
    """
    return {k: min(max(due - given[k], -float(least)), float(least)) for k, due in owed.items()}
