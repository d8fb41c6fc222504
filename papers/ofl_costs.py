"""Figures 12 and 13 of "OFL": CPU seconds that privacy and threshold encryption add, by role, where this runs.

The paper's are of Jetson boards and a server with eight cores, for a model whose size it doesn't print. What compares
is how they grow: figure 13 says that a leader's costs hardly depend on the number of leaders, and that the server's
grow linearly with it, but for ServerDec.
"""

from __future__ import annotations

import hashlib
from itertools import combinations
from typing import Any

import numpy as np

from coterie.crypto import threshold, threshold_generation, threshold_opening
from coterie.dp.heuristic import perturbed
from coterie.dp.uploads import Standard
from coterie.protocol.randomness import Secrets, rng
from coterie.reproductions.study import Row
from coterie.selection.parameters import density, gumbel_top_k, max_min, o_factor
from papers import tables
from papers.mingledpie_costs import timed

MLP = 178_110
"""Parameters of 784-200-100-10."""


def upload_costs(parameters: int, share: float, seed: int) -> Row:
    """CPU seconds of what a member does to its trained model before it sends a share of it, by mechanism."""
    draw = rng(seed, "figure 12", f"{parameters} {share}")
    secrets = Secrets(draw)
    before, last = draw.normal(0, 0.05, (2, parameters)).astype(np.float32)
    local = last + draw.normal(0, 0.01, parameters).astype(np.float32)
    k = max(1, round(share * parameters))
    density_s, dense = timed(lambda: density(local))
    select_s, chosen = timed(lambda: gumbel_top_k(max_min(o_factor(local, last, before, dense)), k, 50.0, secrets))
    noise_s, _ = timed(lambda: perturbed(local[chosen], dense[chosen], 50.0, secrets))
    standard_s, _ = timed(lambda: Standard(1.0, 1.0).noised((local - last)[chosen], secrets))
    return {"density": density_s, "select": select_s, "laplace": noise_s, "standard": standard_s}


def round_costs(leaders: int, seed: int, parameters: int = MLP) -> Row:
    """CPU seconds of one aggregation with real threshold CKKS: of the server, and of one leader."""
    names = tuple(f"leader-{k}" for k in range(leaders))
    group = threshold.Group("threshold-8192-sum", names, label=b"figure 13")
    values = rng(seed, "figure 13", str(leaders)).normal(0, 0.05, (leaders, parameters)).astype(np.float32)
    own_s, secrets = timed(lambda: {name: threshold_generation.secret(group) for name in names})
    public_s, parts = timed(lambda: {name: each.public() for name, each in secrets.items()})
    keygen_s, key = timed(lambda: threshold_generation.joined(group, parts))
    key.encrypt(values[0, :1])  # builds what is built once
    encrypt_s, ciphers = timed(lambda: [key.encrypt(row) for row in values])

    def added() -> Any:
        total = ciphers[0]
        for cipher in ciphers[1:]:
            total = total + cipher
        return total

    add_s, total = timed(added)
    server_s, prepared = timed(lambda: threshold_opening.server_dec(group, total))
    request = threshold_opening.Request.load(group, prepared.request.to_bytes())
    seeds = {pair: hashlib.sha256(repr(pair).encode()).digest() for pair in combinations(names, 2)}
    zeros = {
        me: threshold.Zero(me, {(b if a == me else a): seed for (a, b), seed in seeds.items() if me in (a, b)})
        for me in names
    }
    partial_s, answers = timed(
        lambda: {
            me: threshold_opening.partial(
                group, secrets[me].share(), request, me, names, zeros[me], threshold.Answered()
            )[0]
            for me in names
        }
    )
    final_s, opened = timed(lambda: threshold_opening.opened(group, prepared, answers))
    return {
        "keygen": keygen_s,
        "add": add_s,
        "server_dec": server_s,
        "fin_dec": final_s,
        "own_key": (own_s + public_s) / leaders,
        "encrypt": encrypt_s / leaders,
        "partial": partial_s / leaders,
        "answer_mb": len(answers[names[0]]) / 1e6,
        "error": float(np.abs(opened - values.sum(0, dtype=np.float64)).max()),
    }


ITEMS = tables.items("ofl_costs", globals())
