"""What OFL's detection costs under encryption, in CPU-seconds, and how far its scalars are off. ``docs/detection.md``.

    python -m benchmarks.detection_costs docs/detection/costs.json        # some minutes and gigabytes, most for literal
    python -m benchmarks.detection_costs docs/detection/costs.json --show

``transform`` and ``lengths`` are of one leader's 178,110 parameters, under keys of one party and under shared ones.
``literal`` is of two leaders with 32,768 parameters, one ciphertext each, under the key with 21 levels.
"""

from __future__ import annotations

import argparse
import json
import resource
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from secrets import token_bytes
from typing import Any

import numpy as np

from benchmarks.markdown import grid
from coterie.aggregation.literal import magnitude, plus, product
from coterie.crypto import ckks, fourier, threshold, threshold_generation, threshold_opening
from coterie.protocol.errors import CapacityError, CoterieError, UserError
from coterie.record.provenance import write_record
from papers.mingledpie_costs import timed

SIZE, HOLDERS = 178_110, 4
SPREAD = 0.05  # standard deviation of parameters, as of a trained model


class Clock:
    """CPU-seconds of named steps."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, name: str, work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        seconds, result = timed(lambda: work(*arguments, **named))
        self.seconds[name] = round(seconds, 5)
        return result


def transform(repeats: int) -> dict[str, Any]:
    """The paper's scalars of one leader: high energy, energy, distance."""
    clock, offs = Clock(), []
    key = clock("key pair", ckks.keygen, "threshold-8192-high")
    keys = clock("evaluation keys", key.evaluation)
    for turn in range(repeats):
        rng = np.random.default_rng(turn)
        values, start = SPREAD * rng.normal(size=(2, SIZE))
        cipher = clock("encryption", key.public.encrypt, values)
        high = clock("high energy", fourier.high_energy, cipher, keys)
        total = clock("energy", fourier.energy, cipher, keys)
        far = clock("distance", fourier.energy, cipher.add_plain(-start), keys)
        wanted = *fourier.energies(values), float(((values - start) ** 2).sum())
        units = fourier.TAPS, 1, 1
        for x, y, unit in zip((high, total, far), wanted, units, strict=True):
            offs.append(abs(float(key.decrypt(x)[0]) / unit - y))
    stated = fourier.error(key.parameters, float(np.linalg.norm(values)) * 2, SIZE)
    return {"seconds": clock.seconds, "largest error": max(offs), "stated error": stated, "repeats": repeats}


def shared(parameters: str, spectrum: bool) -> dict[str, Any]:
    """A leader's scalar under a key that four leaders share: dealt, for 2^16 openings, with flooding of 40 bits."""
    clock = Clock()
    group = threshold.Group(parameters, tuple(f"leader/{i}" for i in range(HOLDERS)))
    key, keys, shares = threshold_generation.dealt(group, products=True)
    assert keys is not None  # products were asked for
    values = SPREAD * np.random.default_rng(0).normal(size=SIZE)
    cipher = key.encrypt(values)
    seeds = {(a, b): token_bytes(32) for a in group.holders for b in group.holders if a < b}
    zeros = {
        a: threshold.Zero(a, {b: seeds[min(a, b), max(a, b)] for b in group.holders if b != a}) for a in group.holders
    }

    def among(name: str) -> tuple[Any, ...]:
        return group.holders, zeros[name], threshold.Answered()

    make, unit = (fourier.high_energy, fourier.TAPS) if spectrum else (fourier.energy, 1)
    scalar = clock("high energy" if spectrum else "energy", make, cipher, keys)
    prepared = clock("server's part", threshold_opening.server_dec, group, scalar)
    request = threshold_opening.Request.load(group, prepared.request.to_bytes())
    answers = {
        name: clock("a holder's part", threshold_opening.partial, *(group, shares[name], request, name), *among(name))[
            0
        ]
        for name in group.holders
    }
    opened = float(clock("opening", threshold_opening.opened, group, prepared, answers)[0])
    high, total = fourier.energies(values)
    return {
        "seconds": clock.seconds,
        "error": abs(opened / unit - (high if spectrum else total)),
        "stated error": group.error(scalar.tally.terms, scalar.tally.form) / unit,
        "bytes to a holder": len(prepared.request.to_bytes()),
        "bytes back": len(answers[group.holders[0]]),
        "evaluation keys, MB": round(len(keys.to_bytes()) / 1e6, 1),
    }


def whole(parameters: str = "ckks-32768-deep", size: int = 32_768) -> dict[str, Any]:
    """The all-ciphertext form of two leaders, from models to the weighted sum."""
    clock = Clock()
    small = parameters.startswith("insecure")
    key = clock("key pair", ckks.keygen, parameters, allow_insecure=small)
    keys = clock("evaluation keys", key.evaluation)
    rng = np.random.default_rng(0)
    start = SPREAD / 4 * rng.normal(size=size)
    models = [start + length * rng.normal(size=size) for length in (0.002, 0.02)]
    bounds = 1.5 * fourier.energies(models[1], key.parameters.degree)[0], 1.5 * float(((models[1] - start) ** 2).sum())

    def squared(x: ckks.CipherVector) -> ckks.CipherVector:
        return x.dot(x.conjugated(keys), keys, at_most=64)

    def tapped(x: ckks.CipherVector) -> ckks.CipherVector:
        by = fourier.taps(key.parameters.degree)
        return x.dot(x.conjugated(keys), keys, at_most=64 * fourier.TAPS, taps=by).times_plain(1 / fourier.TAPS)

    ciphers = [key.public.encrypt(model) for model in models]
    high, far = [], []
    for cipher in ciphers:
        high.append(clock("high energy", tapped, cipher))
        far.append(clock("distance", squared, cipher.at_level(levels(2) + 1).add_plain(-start)))
    by = clock("s-factors of both", factors, high, far, bounds)
    total, share = clock("weighted sum", weighted, ciphers, by)
    found = [float(key.decrypt(s)[0]) for s in by]
    mean = key.decrypt(total) / float(key.decrypt(share)[0])
    return {
        "seconds": clock.seconds,
        "s-factors": [round(s, 3) for s in found],
        "in the clear": [1.0, 0.0],
        "error of the mean": float(np.abs(mean - models[0]).max()),
        "evaluation keys, MB": round(len(keys.to_bytes()) / 1e6),
        "peak memory, MB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def iterated() -> list[dict[str, Any]]:
    """Encrypted s-factors of two leaders by how far their scalars differ, in shares of the bound (emulated)."""
    key, rows = ckks.keygen("ckks-32768-deep", emulated=True), []
    for spread in (0.8, 0.4, 0.2, 0.1, 0.05, 0.02):
        for iterations in (1, 2, 3):
            have = levels(2, iterations)
            pair = [key.encrypt_scalar(x, level=have) for x in (spread + 0.1, 0.1)]
            try:
                found = [float(key.decrypt(s)[0]) for s in factors(pair, pair, (1.0, 1.0), iterations)]
            except CoterieError as error:
                raise SystemExit(f"spread {spread}, {iterations} iterations: {error}") from error
            rows.append({"difference": spread, "iterations": iterations, "s-factors": [round(s, 2) for s in found]})
    return rows


def tables(content: Mapping[str, Any]) -> str:
    """The tables of docs/detection.md, as Markdown."""
    names = "transform", "shared transform", "shared lengths", "literal"
    columns = [content[name]["seconds"] for name in names]
    steps = [
        [step, *(f"{column[step]:.3g}" if step in column else "" for column in columns)]
        for step in dict.fromkeys(step for column in columns for step in column)
    ]
    steps.append(["evaluation keys, MB", *(str(content[name].get("evaluation keys, MB", "")) for name in names)])
    head = ["step", "one key, CPU-s", "shared by four", "shared, without filter", "literal, two leaders"]
    rows: dict[float, list[str]] = {}
    for row in content["iterations"]:
        rows.setdefault(row["difference"], []).append(", ".join(f"{s + 0.0:.2f}" for s in row["s-factors"]))
    iterated = grid(["difference / bound", "1 iteration", "2", "3"], [[f"{d:g}", *cells] for d, cells in rows.items()])
    return f"{grid(head, steps)}\n{iterated}"


def main(arguments: list[str] | None = None) -> None:
    """Measure, write the JSON and show the tables; or show those of a JSON that is there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.detection_costs", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--show", action="store_true", help="measure nothing, and show the tables of the file")
    given = parser.parse_args(arguments)
    if not given.show:
        content = {
            "transform": transform(3),
            "shared transform": shared("threshold-8192-high", True),
            "shared lengths": shared("threshold-8192-mul", False),
            "iterations": iterated(),
            "literal": whole(),
        }
        command = shlex.join(["python", "-m", "benchmarks.detection_costs", given.out.as_posix()])
        write_record(given.out, command, content, indent=None)
    sys.stdout.write(tables(json.loads(given.out.read_text())))


ITERATIONS, STEPS = 3, 5
"""Of the magnitude of a difference, and factors of an inverse."""


def levels(leaders: int, iterations: int = ITERATIONS, steps: int = STEPS) -> int:
    rounds = (leaders - 1).bit_length()
    return 1 + rounds * (1 + 2 * iterations) + (rounds - 1) + (steps + 1) + 3


def factors(
    magnitudes: Sequence[Any],
    distances: Sequence[Any],
    bounds: tuple[float, float],
    iterations: int = ITERATIONS,
    steps: int = STEPS,
) -> list[Any]:
    """The encrypted s-factors of eq. (6), within [0, 1] up to the polynomials' errors.

    magnitudes, distances: encrypted scalars of each leader, at least 0.  bounds: public bounds on both for honest
        leaders. Raises UserError for fewer than two leaders, and CapacityError without ``levels``.
    """
    k, have = len(magnitudes), min(x.tally.form.level for x in (*magnitudes, *distances))
    if k < 2 or k != len(distances) or not min(bounds) > 0:
        raise UserError("s-factors compare two leaders at least, each with a magnitude and a distance within a bound")
    if have < (needed := levels(k, iterations, steps)):
        raise CapacityError(
            f"s-factors of {k} leaders under encryption take {needed} levels, {have} are left: take fewer leaders or "
            "iterations, or open the scalars"
        )
    against = _normalised(magnitudes, bounds[0], iterations, steps, sign=-1)
    far = _normalised(distances, bounds[1], iterations, steps, sign=1)
    return [product(m, d, at_most=1).add_plain([1.0]) for m, d in zip(against, far, strict=True)]  # eq. (6)


def weighted(models: Sequence[Any], by: Sequence[Any]) -> tuple[Any, Any]:
    """The encrypted sum of models times s-factors, and its divisor, the sum of s-factors."""
    total = sum_of([product(model, s, at_most=model.terms) for model, s in zip(models, by, strict=True)])
    return total, sum_of(by).at_level(total.tally.form.level)


def sum_of(values: Sequence[Any]) -> Any:
    total = values[0]
    for value in values[1:]:
        total = plus(total, value)
    return total


def _normalised(values: Sequence[Any], bound: float, iterations: int, steps: int, *, sign: int) -> list[Any]:
    halves = [x.times_plain(0.5 / bound, at_most=1) for x in values]
    minus = [x.times_plain(-0.5 / bound, at_most=1) for x in values]
    largest, less = _extremes(halves, minus, iterations)  # and minus the least
    inverse = _inverse(plus(largest, less).within(1), steps)
    if sign > 0:
        parts = [plus(half.scale(2), less).within(1) for half in halves]
    else:
        least = less.times_plain(-1.0, at_most=1)
        parts = [plus(half.scale(2), least).within(1) for half in minus]
    return [product(part, inverse, at_most=1) for part in parts]


def _extremes(halves: Sequence[Any], minus: Sequence[Any], iterations: int) -> tuple[Any, Any]:
    high, low = list(zip(halves, minus, strict=True)), list(zip(minus, halves, strict=True))
    while len(high) > 1 or len(low) > 1:
        high, low = (_round(of, iterations, last=len(of) <= 2) for of in (high, low))
    return high[0][0], low[0][0]


def _round(pairs: list[tuple[Any, Any]], iterations: int, *, last: bool) -> list[tuple[Any, Any]]:
    found = []
    for at in range(0, len(pairs) - 1, 2):
        (x, _), (y, minus) = pairs[at], pairs[at + 1]
        half = plus(x, minus).within(1)
        larger = plus(plus(x, y), magnitude(half.scale(2).within(1), iterations, half)).within(1)
        if last:
            found.append((larger, larger))
        else:
            found.append((larger.times_plain(0.5, at_most=1), larger.times_plain(-0.5, at_most=1)))
    return found + (pairs[-1:] if len(pairs) % 2 else [])


def _inverse(x: Any, steps: int) -> Any:
    z = x.times_plain(-1.0, at_most=1).add_plain([1.0]).within(1)
    total = z.add_plain([1.0])
    for i in range(1, steps):
        z = product(z, z, at_most=1)
        total = product(total, z.add_plain([1.0]), at_most=1 << (i + 1))
    return total


if __name__ == "__main__":
    main()
