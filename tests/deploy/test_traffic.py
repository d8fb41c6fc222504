"""What a broker learns from who sends to whom, how often and how much: the claims of the systems' pages."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from federation import planted, rig
from nodes import Nodes, nodes

from coterie.runs import registry

TARGETS = planted([0, 0, 1, 1, 1], 24)
Sizes = Mapping[tuple[str, str], Sequence[int]]


def traffic(name: str, mode: str, settings: dict[str, Any], rounds: int = 3) -> tuple[Nodes, Sizes]:
    """A federation after its rounds, and by sender and recipient the sizes of packets in the order of time."""
    one = nodes(rig(registry.get(name), TARGETS, mode=mode, delta=0.0, **settings), name, TARGETS)
    sizes: dict[tuple[str, str], list[int]] = defaultdict(list)

    def record(src: str, dst: str, body: bytes) -> Sequence[bytes]:
        sizes[src, dst].append(len(body))
        return [body]

    one.exchange.tamper = record
    one.run(rounds)
    return one, sizes


def of_clients(one: Nodes, sizes: Sizes) -> dict[str, Counter[tuple[str, str, int]]]:
    """By client: how often it has sent or received so many bytes, to or from whom."""
    clients = one.made.common.clients
    found: dict[str, Counter[tuple[str, str, int]]] = {name: Counter() for name in clients}
    for (src, dst), each in sizes.items():
        for size in each:
            if src in found:
                found[src]["to", dst, size] += 1
            if dst in found:
                found[dst]["from", src, size] += 1
    return found


ALIKE: list[tuple[str, str, dict[str, Any]]] = [
    ("fedavg", "paper", {}),
    ("ifca", "paper", {}),
    ("clsm_fl", "paper", {"clusters": 2}),
    ("fedcaprivacy", "paper", {"clusters": 2, "schedule": "always"}),
    ("fedcaprivacy", "hardened", {"clusters": 2, "min_cluster": 2, "descriptor": "model", "sketch_dim": 8}),
    ("mingledpie", "hardened", {"clusters": 2}),
]


@pytest.mark.parametrize(("name", "mode", "settings"), ALIKE, ids=[f"{name}-{mode}" for name, mode, _ in ALIKE])
def test_packets_of_all_clients_are_alike(name: str, mode: str, settings: dict[str, Any]) -> None:
    """Two groups of unequal size, and no packet tells who is in which: numbers and sizes are the same for all."""
    one, sizes = traffic(name, mode, settings)
    first, *others = of_clients(one, sizes).values()
    assert first
    for other in others:
        assert {key: abs(first[key] - other[key]) for key in first | other if first[key] != other[key]} == {}


@pytest.mark.parametrize("name", ["ofl", "rfl_ha"])
def test_who_exchanges_most_with_whom_is_in_its_cluster(name: str) -> None:
    """What the pages say of these systems: the broker knows the clusters by name."""
    one, sizes = traffic(name, "paper", {"clusters": 2})
    clients = one.made.common.clients
    nearest = {c: max(clients, key=lambda o: sum(sizes.get((c, o), ())) * (o != c)) for c in clients}
    groups = {frozenset({c, *(o for o in clients if nearest[o] == c), nearest[c]}) for c in clients}
    whole = {group for group in groups if not any(group < other for other in groups)}
    assert whole == {frozenset(clients[:3]), frozenset(clients[3:])}


def test_who_is_asked_shows() -> None:
    """PAFed asks a share of the clients: the broker sees which."""
    one, sizes = traffic("pafed", "paper", {"participation": 0.6})
    counts = {name: sum(found.values()) for name, found in of_clients(one, sizes).items()}
    assert len(set(counts.values())) > 1
