"""Lists of clients whose rows are grouped together: that the rows are theirs, and which lists may be grouped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from coterie.crypto.marks import MARK_BYTES, add_up, mark
from coterie.crypto.signing import OpeningKey, SealingKey, digest
from coterie.protocol.errors import PeerError
from coterie.protocols.openings import shows_few

__all__ = ["MARK_BYTES", "add_up", "isolates", "mark_of"]


def mark_of(client: Any, epoch: int, told: str) -> bytes:
    """SECRET: a client's mark for the list that it is told, one name a line, and these groups.

    With one group of all, of which no steps say anything, it only tells the client's rows apart from those of others.
    Raises PeerError for a list with others than clients.
    """
    if client.config.clusters == 1:
        once: bytes = client.kept("mark of a row", told.encode(), epoch).bytes(MARK_BYTES)
        return once
    roster, others = client.common.roster, dict[str, SealingKey]()
    for name in {*told.split("\n")} - {client.name}:
        entry = roster.by_name.get(name)
        if entry is None or entry.role != client.role:
            raise PeerError(f"asked for a row beside that of {name!r}, who is no client of this federation")
        others[name] = SealingKey(entry.sealing_key)
    key = OpeningKey.load(client.own.identity.opening)
    return mark(key, client.name, others, digest("coterie/list/1", roster.session, epoch, told))


def isolates(names: frozenset[str], before: Sequence[frozenset[str]], fewest: int) -> bool:
    """Whether this list, beside earlier ones that do not, shows what fewer clients than this add. May err by True.

    As vectors of 0 and 1 they have sums and differences, with any factors. Each that has a part of this list and is not
    0 must be of ``fewest`` clients or more. Clients that are in the same earlier lists get one number from these, so
    those of them on this list remain, or those that are not; and clients that are in no earlier list remain. Where so
    counted too few remain, all sums are tried (``shows_few``), if these are not too many.
    """
    inside, outside = Counter[tuple[bool, ...]](), Counter[tuple[bool, ...]]()
    for name in names.union(*before):
        (inside if name in names else outside)[tuple(name in one for one in before)] += 1
    remain = sum(min(count, outside[of]) if any(of) else count for of, count in inside.items())
    return remain < fewest and names not in before and shows_few([*before, names], fewest)
