"""Tables 4 and 9 of "MingledPie": CPU seconds with real CKKS, where this runs.

The paper's are of a server with a Xeon Gold 6430 and (table 4) of a model for Texas100 whose size it doesn't print;
here it is the FCNN of 159,010 parameters. So what compares is how the times grow, and the time a model and cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import TypeVar

import numpy as np

from coterie.aggregation.mingled import rebuild, round_counts
from coterie.clustering.identities import ClusterKeys, coin_sets, identity_set
from coterie.clustering.identity_law import IdentityLaw
from coterie.crypto import ckks
from coterie.protocol.randomness import rng
from coterie.reproductions.study import Calculation, Item, Row, by_cell, named

FCNN = 159_010
SIZES = {"FCNN": FCNN, "CNN": 62_006, "ResNet-18": 11_220_132}
"""Parameters: 784-200-10; LeNet-5 for 3x32x32; ResNet-18 for 3x32x32 and 100 classes."""
DEFAULT = {"p": 0.5, "T": 2, "k": 10, "N": 120}
GRID: Mapping[str, Sequence[float]] = {"p": (0.25, 0.125), "T": (3, 4), "k": (5, 8), "N": (60, 240)}
TABLE_4 = {  # seconds: identity generation, model aggregation, model rebuilding
    "default": (0.068, 18.014, 0.284),
    "p=0.25": (0.101, 11.763, 0.267),
    "p=0.125": (0.181, 8.211, 0.254),
    "T=3": (0.071, 23.047, 0.287),
    "T=4": (0.077, 29.523, 0.290),
    "k=5": (0.041, 10.137, 0.184),
    "k=8": (0.058, 14.521, 0.243),
    "N=60": (0.069, 9.154, 0.260),
    "N=240": (0.068, 39.138, 0.316),
}
TABLE_9 = {"FCNN": (3.32, 0.36), "CNN": (7.22, 0.73), "ResNet-18": (22.08, 2.78)}  # seconds: encryption, decryption
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


def mean(found: Sequence[Row]) -> dict[str, float]:
    """Of each number over the seeds."""
    return {key: fmean(one[key] for one in found) for key in found[0]}


@by_cell
def _table_4(name: str, seeds: Sequence[Row]) -> Row:
    s = mean(seeds)
    identity, aggregation, rebuilding = TABLE_4[name]
    return {
        "setting": name,
        "paper: identity s": identity,
        "ours: identity s (a client)": s["identity"],
        "paper: aggregation s": aggregation,
        "ours: additions s": s["add"],
        "reading bytes s": s["read"],
        "models x clusters": s["additions"],
        "expected": s["expected"],
        "ours: ms a model and cluster": 1000 * s["add"] / s["additions"],
        "paper: rebuilding s": rebuilding,
        "ours: solving s": s["solve"],
        "ours: decryption s": s["decrypt"],
        "encryption s (a client)": s["encrypt"],
    }


@by_cell
def _table_9(name: str, seeds: Sequence[Row]) -> Row:
    s, (model, _, parameters) = mean(seeds), name.partition("/")
    encryption, decryption = TABLE_9[model]
    return {
        "model": model,
        "parameters": SIZES[model],
        "CKKS set": parameters,
        "paper: encryption s": encryption,
        "ours: public key s": s["public"],
        "ours: secret key s": s["secret"],
        "paper: decryption s": decryption,
        "ours: decryption s": s["decrypt"],
        "MB": s["MB"],
        "largest error": s["error"],
    }


def _round_cell(name: str, setting: Mapping[str, float]) -> Calculation[Row]:
    p, threshold, k, clients = (setting[key] for key in DEFAULT)
    return Calculation(name, partial(round_costs, float(p), int(threshold), int(k), int(clients)), setting)


def _vector_cell(model: str, name: str) -> Calculation[Row]:
    return Calculation(f"{model}/{name}", partial(vector_costs, SIZES[model], name), {"parameters": SIZES[model]})


_table_4_cells = (
    _round_cell("default", DEFAULT),
    *(_round_cell(f"{key}={v:g}", {**DEFAULT, key: v}) for key, values in GRID.items() for v in values),
)
_table_9_cells = (
    *(_vector_cell(model, "ckks-4096-add") for model in SIZES),
    *(_vector_cell(model, "ckks-8192-mul") for model in ("FCNN", "CNN")),
)

ITEMS = named(
    Item("mingledpie/table4", "MingledPie, table IV: CPU seconds of a round's parts", _table_4_cells, _table_4),
    Item("mingledpie/table9", "MingledPie, table IX: CPU seconds of encryption", _table_9_cells, _table_9),
)
