"""Groups with keys and shares, and whole openings, for tests of keys that several parties hold shares of."""

from __future__ import annotations

import secrets
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from coterie.crypto import ckks, threshold_opening
from coterie.crypto import threshold as th
from coterie.crypto import threshold_generation as tg

SUM, MUL = "insecure-1024-threshold-sum", "insecure-1024-threshold-mul"
N = 1024


class Shared(NamedTuple):
    group: th.Group
    key: ckks.PublicKey
    evaluation: ckks.EvaluationKey | None
    secrets: dict[str, tg.Secret]
    shares: dict[str, th.Share]
    zeros: dict[str, th.Zero]


def group(parameters: str = SUM, n: int = 3, threshold: int = 0, emulated: bool = False, **more: Any) -> th.Group:
    names = tuple(f"leader-{k}" for k in range(1, n + 1))
    return th.Group(parameters, names, threshold, emulated=emulated, **{"allow_insecure": True, **more})


def seeds(names: tuple[str, ...]) -> dict[str, th.Zero]:
    """Every two have 32 bytes in common."""
    held: dict[str, dict[str, bytes]] = {name: {} for name in names}
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            held[a][b] = held[b][a] = secrets.token_bytes(32)
    return {name: th.Zero(name, held[name]) for name in names}


@cache
def made(parameters: str = SUM, n: int = 3, threshold: int = 0, emulated: bool = False) -> Shared:
    """Made by all holders together; kept, as it takes a while."""
    g = group(parameters, n, threshold, emulated)
    own = {name: tg.secret(g) for name in g.holders}
    key, evaluation = tg.joined(g, {name: each.public() for name, each in own.items()}), None
    if g.space.multiplies:
        rounds = {name: each.first() for name, each in own.items()}
        firsts = {name: first for name, (first, _) in rounds.items()}
        seconds = {name: each.second(rounds[name][1], firsts) for name, each in own.items()}
        key = tg.with_products(g, key, firsts, seconds)
        parts = {name: each.galois(g.space.elements) for name, each in own.items()}
        evaluation = tg.evaluation(g, key, parts)
    if g.additive:
        shares = {name: each.share() for name, each in own.items()}
    else:
        parts_of = {name: each.dealt() for name, each in own.items()}
        shares = {name: th.gathered(g, name, {other: parts_of[other][name] for other in own}) for name in own}
    return Shared(g, key, evaluation, own, shares, seeds(g.holders))


def answers(shared: Shared, prepared: threshold_opening.Prepared, among: tuple[str, ...] = ()) -> dict[str, bytes]:
    """Of all that are asked, over the wire."""
    g, data = shared.group, prepared.request.to_bytes()
    names = among or g.holders
    request = threshold_opening.Request.load(g, data)
    return {
        name: threshold_opening.partial(
            g, shared.shares[name], request, name, names, shared.zeros[name], th.Answered()
        )[0]
        for name in names
    }


def opened(shared: Shared, cipher: ckks.CipherVector, among: tuple[str, ...] = (), **how: Any) -> np.ndarray:
    prepared = threshold_opening.server_dec(shared.group, cipher, **how)
    return threshold_opening.opened(shared.group, prepared, answers(shared, prepared, among))
