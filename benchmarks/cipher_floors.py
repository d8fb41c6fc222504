"""What the operations on ciphertexts of a round take: the seconds of one of each, times how many there are.

Each mode is run twice in a process of its own, with real and with emulated ciphers. Every call of SEAL and gmpy2, and
every product and sum of ciphertexts in numpy, is counted where it happens, and timed by the processor seconds of its
thread. So single operations have the parameters that the round uses, at each of its levels.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing import get_context
from statistics import median
from typing import Any, Literal
from unittest.mock import patch

import gmpy2

from coterie.crypto import bigint, paillier_arrays, pool, residues
from coterie.crypto.seal import Ring
from coterie.runs import RunConfig, experiment

CASES = (
    "fedcaprivacy-paper",
    "fedcaprivacy-literal",
    "mingledpie-hardened",
    "ofl-paper",
    "ofl-literal",
    "pafed-paper",
    "pafed-literal",
    "pafed-hardened",
)
"""Those that take about three emulated rounds, or more."""
CLIENTS, ROUNDS = 20, 4
SEAL = {
    "apply_galois": "rotation",
    "apply_galois_inplace": "rotation",
    "relinearize_inplace": "relinearisation",
    "rescale_to_next_inplace": "rescaling",
    "multiply": "product of ciphertexts",
    "multiply_inplace": "product of ciphertexts",
    "transform_to_ntt_inplace": "number-theoretic transform",
    "transform_from_ntt_inplace": "number-theoretic transform",
}
NUMPY = {"product": "product of vectors", "multiple": "product with a number", "add": "sum of vectors"}
"""Of ``crypto/residues.py``, as in products with plain numbers, sums, encodings and openings."""
ENCRYPTIONS = {"encrypt_zero": "encryption", "encrypt_zero_symmetric": "encryption by the secret key"}
Operations = dict[str, dict[str, float]]
"""By name: how many a round, seconds of one (the median, at each size) and of all."""


class Counter:
    """Processor seconds of all calls, by operation and size, without those of calls within."""

    def __init__(self) -> None:
        self.calls: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        self._within = threading.local()

    def timed(self, name: str, work: Callable[..., Any], size: Callable[..., tuple[int, int]]) -> Callable[..., Any]:
        """size: of the arguments, how many operations a call is, and how large each."""

        def call(*arguments: Any, **options: Any) -> Any:
            many, large = size(*arguments, **options)
            outer, self._within.seconds = getattr(self._within, "seconds", 0.0), 0.0
            started = time.thread_time()
            try:
                return work(*arguments, **options)
            finally:
                spent = time.thread_time() - started
                self.calls[name, large] += [(spent - self._within.seconds) / max(1, many)] * many
                self._within.seconds = outer + spent

        return call

    def operations(self, rounds: int) -> Operations:
        found: Operations = {}
        for (name, _), spent in sorted(self.calls.items()):
            one = found.setdefault(name, {"count": 0.0, "seconds": 0.0})
            one["count"] += len(spent) / rounds
            one["seconds"] += len(spent) / rounds * median(spent)
        for one in found.values():
            one["seconds_of_one"] = one["seconds"] / one["count"]
        return dict(sorted(found.items(), key=lambda pair: -pair[1]["seconds"]))


class _Counted:
    """An object of SEAL's, some of whose methods are counted."""

    def __init__(self, inner: Any, methods: Mapping[str, Callable[..., Any]]) -> None:
        self.inner = inner
        vars(self).update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def counting(counter: Counter) -> ExitStack:
    """Counts what this process computes on ciphertexts, and keeps all of it in this process."""
    made, encryptor = Ring.__init__, Ring.encryptor

    def counted(inner: Any, names: Mapping[str, str], size: Callable[..., tuple[int, int]]) -> Any:
        return _Counted(inner, {one: counter.timed(words, getattr(inner, one), size) for one, words in names.items()})

    def counted_ring(ring: Ring, parameters: Any) -> None:
        made(ring, parameters)
        ring.evaluator = counted(
            ring.evaluator, SEAL, lambda cipher, *_: (1, cipher.size() * cipher.coeff_modulus_size())
        )

    def counted_encryptor(ring: Ring, *keys: Any) -> Any:
        levels = {tuple(place): level for level, place in ring.ids.items()}
        return counted(encryptor(ring, *keys), ENCRYPTIONS, lambda place, *_: (1, levels[tuple(place)]))

    powers = counter.timed("power of an opening", gmpy2.powmod_base_list, lambda bases, *_: (len(bases), 0))
    noise = counter.timed("power of an encryption", bigint.short_noise, lambda *_: (1, 0))
    patches: list[Any] = [
        patch.object(Ring, "__init__", counted_ring),
        patch.object(Ring, "encryptor", counted_encryptor),
        patch.object(gmpy2, "powmod_base_list", powers),
        patch.object(paillier_arrays, "short_noise", noise),
        patch.object(pool, "cores", lambda: 1),
    ]
    for name, words in NUMPY.items():
        work = counter.timed(words, getattr(residues, name), lambda a, *_: (1, a.size))
        patches.append(patch.object(residues, name, work))
    stack = ExitStack()
    for one in patches:
        stack.enter_context(one)
    return stack


def spent(system: str, mode: str, crypto: Literal["real", "emulated"], rounds: int) -> tuple[float, Operations]:
    """Processor seconds of a round, the mean of all but the first, and its operations. For a process of its own."""
    counter = Counter()
    config = RunConfig(system, data="digits", clients=CLIENTS, rounds=rounds, mode=mode, crypto=crypto)
    config = replace(config, eval_every=rounds)
    with counting(counter):
        made = experiment.build(config)
        try:
            made.set_up()
            made.round(1)
            counter.calls.clear()
            started = time.process_time()
            for r in range(2, rounds + 1):
                made.round(r)
            seconds = time.process_time() - started
        finally:
            made.close()
    return seconds / (rounds - 1), counter.operations(rounds - 1)


def floor(system: str, mode: str, rounds: int = ROUNDS) -> dict[str, Any]:
    """measured_s: processor seconds of a real round beyond its emulated twin's.  floor_s: of all its operations."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as fresh:
        twin, _ = fresh.submit(spent, system, mode, "emulated", rounds).result()
        real, operations = fresh.submit(spent, system, mode, "real", rounds).result()
    total = sum(one["seconds"] for one in operations.values())
    return {"emulated_s": twin, "measured_s": real - twin, "floor_s": total, "operations": operations}


def run(only: Collection[str] = CASES) -> dict[str, Any]:
    """Every mode above three emulated rounds. In processor seconds, so a busy machine changes little."""
    pairs = (name.split("-") for name in only)
    cases = {f"{system}-{mode}": floor(system, mode) for system, mode in pairs}
    return {"job": f"digits, {CLIENTS} clients, rounds 2 to {ROUNDS}", "cases": cases}
