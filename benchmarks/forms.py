"""MingledPie's exact sums beside the rebuild: CPU seconds and bytes with real CKKS, where this runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any, get_args

import numpy as np

from benchmarks.identity_coins import coin_sets
from benchmarks.items import main
from coterie.clustering.identity_law import IdentityLaw
from coterie.crypto import ckks
from coterie.protocol.randomness import rng
from coterie.reproductions.study import Calculation, Item, Row, by_cell
from coterie.systems.mingledpie.layout import Kind, Layout, Rebuilding
from coterie.training.models import build
from papers.mingledpie_costs import timed


def form_costs(kind: Kind, seed: int, clients: int = 12, model: str = "fcnn") -> Row:
    """CPU seconds and bytes of a client's round, k = 5, in one of the three forms of what is added up."""
    spec = build(model, (1, 28, 28), 10).spec
    layout = Layout(kind, k := 5, spec)
    draw = rng(seed, "forms", kind)
    secret = ckks.keygen(layout.parameters.name)
    public = secret.public
    models = draw.normal(0, 0.05, (k, spec.size)).astype(np.float32)
    sets, _ = coin_sets(IdentityLaw(k, 0.5, 2), np.arange(clients) % k, draw.bytes)

    def upload(cluster: int) -> list[bytes]:
        first, *rest = (secret.encrypt(vector).to_bytes() for vector in layout.vectors(models[cluster], cluster))
        scalars = [secret.encrypt_scalar(float(x)).to_bytes() for x in layout.indicator(cluster)[: layout.scalars]]
        return [first, *scalars, *rest]

    upload(0)  # builds what is built once
    encrypt_s, uploads = timed(lambda: [upload(j) for j in range(k)])
    totals: list[Any] = [None] * layout.slots

    def add_all() -> None:
        for i, own in enumerate(sets):
            parts = zip(uploads[i % k], layout.lengths, strict=True)
            ciphers = [public.from_bytes(data, length, terms=1) for data, length in parts]
            for slot, cipher in layout.contributions(ciphers, np.flatnonzero(own).tolist()):
                totals[slot] = cipher if totals[slot] is None else totals[slot] + cipher

    add_s, _ = timed(add_all)
    close_s, sums = timed(lambda: [b"" if total is None else total.to_bytes() for total in totals])

    def opened() -> tuple[Any, ...]:
        parts = zip(sums, layout.widths, strict=True)
        return tuple(secret.decrypt(public.from_bytes(data, length)) if data else None for data, length in parts)

    open_s, values = timed(opened)
    sizes = sets.sum(axis=0) if kind == "mingled" else np.zeros(0, np.int64)
    rebuilding = Rebuilding(layout, "counts", 0.5, 1e6, 2)
    solve_s, rebuilt = timed(lambda: rebuilding(values, models, sizes.tolist(), clients))
    return {
        "encrypt": encrypt_s / k,
        "up": sum(map(len, uploads[0])) / 1e6,
        "add": add_s / clients,
        "close": close_s,
        "down": sum(map(len, sums)) / 1e6,
        "open": open_s,
        "solve": solve_s,
        "error": float(np.abs(rebuilt.models - models).max()),
    }


@by_cell
def _table(name: str, seeds: Sequence[Row]) -> Row:
    s = {key: fmean(one[key] for one in seeds) for key in seeds[0]}
    row: dict[str, Any] = {"form": name, "client: encryption s": s["encrypt"], "MB up": s["up"]}
    row |= {"server: s a client": s["add"], "server: rescaling s a round": s["close"], "MB down": s["down"]}
    row |= {"client: decryption s": s["open"], "client: solving s": s["solve"], "largest error": s["error"]}
    return row


ITEM = Item(
    "mingledpie/forms",
    "MingledPie: CPU seconds and bytes of exact sums and the rebuild",
    tuple(Calculation(kind, partial(form_costs, kind)) for kind in get_args(Kind)),
    _table,
    command="python -m benchmarks.forms",
)
ITEMS: Mapping[str, Item[Row]] = {ITEM.name: ITEM}

if __name__ == "__main__":
    main(ITEMS)
