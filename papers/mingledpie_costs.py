"""Tables 4 and 9 of "MingledPie": CPU seconds with real CKKS, where this runs.

The paper's are of a server with a Xeon Gold 6430 and (table 4) of a model for Texas100 whose size it doesn't print;
here it is the FCNN of 159,010 parameters. So what compares is how the times grow, and the time a model and cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, TypeVar

import numpy as np

from benchmarks.identity_coins import coin_sets
from coterie.aggregation.mingled import rebuild, round_counts
from coterie.clustering.identities import ClusterKeys, identity_set
from coterie.clustering.identity_law import IdentityLaw
from coterie.crypto import ckks
from coterie.protocol.randomness import rng
from coterie.reproductions.study import Row
from papers import tables

FCNN = 159_010
"""Parameters of 784-200-10."""
_DISTINCT = 3  # clients whose ciphertexts stand for those of all: an addition takes the same time whatever is added

T = TypeVar("T")


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """CPU seconds of this process, and the result."""
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def round_costs(p: float, threshold: int, k: int, clients: int, seed: int, parameters: int = FCNN) -> Row:
    """CPU seconds of one round's parts, and how many models were added to a cluster's sum."""
    law = IdentityLaw(k, p, threshold)
    draw = rng(seed, "table 4", f"{p} {threshold} {k} {clients}")
    keys = ClusterKeys.generate(k, round(-np.log2(p)), draw.bytes)
    truth = np.arange(clients) % k
    identity_set(keys, 0, threshold, draw.bytes)  # parses the keys
    identity_s, _ = timed(lambda: [identity_set(keys, j, threshold, draw.bytes) for j in range(k)])
    sets, _ = coin_sets(law, truth, draw.bytes)

    secret = ckks.keygen("ckks-4096-add")
    models = draw.normal(0, 0.05, (k, parameters)).astype(np.float32)
    vectors = [np.concatenate([models[j], np.eye(k, dtype=np.float32)[j]]) for j in range(min(k, _DISTINCT))]
    encrypt_s, fresh = timed(lambda: [secret.encrypt(vector) for vector in vectors])
    uploads = [cipher.to_bytes() for cipher in fresh]
    read_s = add_s = 0.0
    totals: list[ckks.CipherVector | None] = [None] * k
    for i, own in enumerate(sets):
        seconds, cipher = timed(lambda: secret.public.from_bytes(uploads[i % len(uploads)], parameters + k, terms=1))  # noqa: B023
        read_s += seconds
        for j in np.flatnonzero(own):
            seconds, totals[j] = timed(lambda: cipher if totals[j] is None else totals[j] + cipher)  # type: ignore[operator]  # noqa: B023
            add_s += seconds
    decrypt_s, opened = timed(lambda: [secret.decrypt(total) for total in totals if total is not None])
    H = np.array([[(sets[:, a] & (truth == b)).sum() for b in range(k)] for a in range(k)])  # what real indicators give
    sums = np.stack(opened)[:, :parameters]
    solve_s, _ = timed(lambda: rebuild(sums, round_counts(H.astype(float)), models, max_condition=1e6))
    return {
        "identity": identity_s / k,
        "encrypt": encrypt_s / len(vectors),
        "read": read_s,
        "add": add_s,
        "additions": int(sets.sum()),
        "expected": clients * law.expected_size,
        "decrypt": decrypt_s,
        "solve": solve_s,
    }


def vector_costs(parameters: int, name: str, seed: int) -> Row:
    """CPU seconds to encrypt and to open a model of this many parameters under a CKKS parameter set."""
    values = rng(seed, "table 9", name).normal(0, 0.05, parameters).astype(np.float32)
    secret = ckks.keygen(name)
    secret.public.encrypt(values[:1])  # builds what is built once
    secret.encrypt(values[:1])
    public_s, cipher = timed(lambda: secret.public.encrypt(values))
    secret_s, cipher = timed(lambda: secret.encrypt(values))
    decrypt_s, opened = timed(lambda: secret.decrypt(cipher))
    return {
        "public": public_s,
        "secret": secret_s,
        "decrypt": decrypt_s,
        "MB": secret.public.wire_bytes(parameters) / 1e6,
        "error": float(np.abs(opened - values).max()),
    }


def addition_ms(found: Sequence[Row], cell: tables.Entry) -> float:
    """Milliseconds of adding one model to a cluster's sum."""
    return 1000 * fmean(one["add"] for one in found) / fmean(one["additions"] for one in found)


def options(words: Mapping[str, Any], found: dict[str, Any]) -> None:
    """A setting of table 4 changes one number of the default."""
    key, _, value = words.get("setting", "").partition("=")
    if value:
        found[key] = float(value) if key == "p" else int(value)


ITEMS = tables.items("mingledpie_costs", globals())
