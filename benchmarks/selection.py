"""The regret of selections on a synthetic problem whose best set of devices is known in every round.

A cluster has 10 devices with these properties, drawn once a seed (z: standard normal, a new one each time):

    CPU f_i from 1, 1.5, 2 and 3 GHz, memory from 2, 4 and 8 GiB, each with equal probability;
    samples n_i = 20 + the whole part of 200 exp(.6 z);
    bases of the gradient norm, a_i = exp(.4 z), and of the loss reduction, b_i = .1 exp(.4 z).

In round t the gradient norm is g_i(t) = a_i exp(c u_i(t)) and the loss reduction b_i exp(c w_i(t)), where u_i and w_i
are autoregressive: u(1) = z, u(t) = .9 u(t - 1) + sqrt(1 - .81) z. With c = .3 contexts and the best set change
("moving"); with c = 0 they do not ("fixed"). A device is worth v_i(t) = sqrt(n_i) g_i(t): more data help with
diminishing returns, and a large gradient says that the device has something to teach. A set A is worth the concave

    f_t(A) = 1 - exp(-sum_{i in A} v_i(t) / V),    V = half of the sum of all v_i(1),

and its reward is f_t(A) plus Gaussian noise of standard deviation .05. The time budget is 40 % of what everybody costs,
sum_i n_i / f_i. CPU, memory and loss reduction say nothing about the worth; no selection is told what does. The
best set is found by comparing all sets. Regret is the sum over rounds of f_t(best set) - f_t(chosen set). All
selections see the same contexts and the same noise, and the oracle, which knows v, has no regret.

A liar is one device more, worth nothing, that claims 10^6 in some columns of its context in every round.

    python -m benchmarks.selection docs/selection [--seeds 20] [--liar-seeds 20] [--rounds 120]

writes regret.json and regret.png into that folder. The settings of CICS were chosen on the seeds 1000 to 1007; the
tables use the seeds from 0 on.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.errors import UserError
from coterie.protocol.randomness import rng
from coterie.record.provenance import write_record
from coterie.runs.intervals import mean_and_interval, spread
from coterie.selection.bandit import Bandit, Cics, choose, learned
from coterie.selection.contexts import COLUMNS, affordable, as_budget, as_costs, time_costs

DEVICES, NOISE, SHARE = 10, 0.05, 0.4
PROBLEMS: Mapping[str, float] = {"moving": 0.3, "fixed": 0.0}
LIES: Mapping[str, tuple[int, ...]] = {
    "CPU": (0,),
    "memory": (1,),
    "samples and CPU": (0, 2),
    "gradient norm and loss reduction": (3, 4),
    "everything": (0, 1, 2, 3, 4),
}
"""The columns of the context that a liar claims 10^6 in."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Round:
    """A round: contexts (n, 5), costs (n,), what each device is worth (n,), V, the noise of the reward."""

    contexts: Floats
    costs: Floats
    budget: float
    worth: Floats
    scale: float
    noise: float

    def value(self, members: Sequence[int]) -> float:
        """f_t of the devices with these numbers."""
        return float(1 - np.exp(-self.worth[list(members)].sum() / self.scale))

    def best(self) -> float:
        """f_t of the best set that keeps the budget: of all sets, since f_t grows with the sum of worths."""
        n = len(self.costs)
        sets = (np.arange(1 << n)[:, None] >> np.arange(n)) & 1
        worth = np.where(sets @ self.costs <= self.budget * (1 + 1e-9), sets @ self.worth, 0.0)
        return float(1 - np.exp(-worth.max() / self.scale))


def problem(seed: int, rounds: int, drift: float, lie: Sequence[int] = ()) -> Iterator[Round]:
    """The rounds of one seed. drift: c.  lie: columns in which one more device, the last, claims 10^6."""
    draw = rng(seed, "selection study", "problem")
    z = draw.standard_normal
    cpu, memory = draw.choice([1.0, 1.5, 2.0, 3.0], DEVICES), draw.choice([2.0, 4.0, 8.0], DEVICES)
    samples = 20 + np.floor(200 * np.exp(0.6 * z(DEVICES)))
    bases = np.exp(0.4 * z((2, DEVICES))) * np.array([[1.0], [0.1]])
    moving, scale = z((2, DEVICES)), 0.0
    for _ in range(rounds):
        gradient, reduction = bases * np.exp(drift * moving)
        contexts = np.stack([cpu, memory, samples, gradient, reduction], axis=1)
        worth = np.sqrt(samples) * gradient
        scale = scale or float(worth.sum() / 2)
        budget = SHARE * float(time_costs(contexts).sum())
        if lie:
            liar = np.median(contexts, axis=0)
            liar[list(lie)] = 1e6
            contexts, worth = np.vstack([contexts, liar]), np.append(worth, 0.0)
        yield Round(contexts, time_costs(contexts), budget, worth, scale, NOISE * float(z()))
        moving = 0.9 * moving + np.sqrt(1 - 0.81) * z((2, DEVICES))


Selection = Callable[[Round], tuple[int, ...]]


def cics(settings: Cics, seed: int) -> Selection:
    """CICS as a selection that learns from the rewards of its own sets."""
    bandit, draw = Bandit(), rng(seed, "selection study", "cics")

    def select(r: Round) -> tuple[int, ...]:
        nonlocal bandit
        choice = choose(bandit, r.contexts, r.costs, r.budget, settings, draw)
        if choice.chosen:
            bandit = learned(bandit, r.contexts, choice.chosen, r.value(choice.chosen) + r.noise, settings)
        return choice.chosen

    return select


def at_random_of(seed: int) -> Selection:
    """Random devices under the budget."""
    draw = rng(seed, "selection study", "random")
    return lambda r: at_random(r.costs, r.budget, draw)


METHODS: Mapping[str, Callable[[int], Selection]] = {
    "CICS": lambda seed: cics(Cics(), seed),
    "CICS without theta": lambda seed: cics(Cics(slope=0.0), seed),
    "CICS, literal": lambda seed: cics(Cics(literal=True), seed),
    "random": at_random_of,
    "largest data first": lambda _: lambda r: by_data_size(r.contexts[:, 2], r.costs, r.budget),
}


def regrets(method: str, seeds: Sequence[int], rounds: int, drift: float) -> Floats:
    """The regret of every round, (seeds, rounds)."""
    selections = {seed: METHODS[method](seed) for seed in seeds}
    rows = [[r.best() - r.value(selections[seed](r)) for r in problem(seed, rounds, drift)] for seed in seeds]
    return np.array(rows)


def liar_share(settings: Cics, lie: Sequence[int], seeds: Sequence[int], rounds: int) -> dict[str, list[float]]:
    """How often the liar, and the mean honest device, is selected in the second half of the rounds: a share a seed."""
    found: dict[str, list[float]] = {"liar": [], "honest": []}
    for seed in seeds:
        select = cics(settings, seed)
        chosen = [select(r) for r in problem(seed, rounds, PROBLEMS["moving"], lie)][rounds // 2 :]
        counts = np.bincount(np.concatenate([np.array(c, int) for c in chosen]), minlength=DEVICES + 1) / len(chosen)
        found["liar"].append(float(counts[-1]))
        found["honest"].append(float(counts[:-1].mean()))
    return found


def tables(seeds: Sequence[int], liar_seeds: Sequence[int], rounds: int) -> dict[str, Any]:
    """All that the study finds, as it stands in regret.json."""
    found: dict[str, Any] = {"rounds": rounds, "seeds": list(seeds), "devices": DEVICES, "regret": {}, "liars": {}}
    for name, drift in PROBLEMS.items():
        of_all: dict[str, Any] = found["regret"].setdefault(name, {})
        for method in METHODS:
            started = time.process_time()
            rows = regrets(method, seeds, rounds, drift)
            cumulative = [mean_and_interval(column.tolist()) for column in np.cumsum(rows, axis=1).T]
            of_all[method] = {
                "cumulative": spread(rows.sum(axis=1).tolist()),
                "quarters": [spread(part.mean(axis=1).tolist()) for part in np.array_split(rows, 4, axis=1)],
                "curve": [round(mean, 4) for mean, _ in cumulative],
                "band": [round(half or 0.0, 4) for _, half in cumulative],
                "cpu_ms_a_choice": 1000 * (time.process_time() - started) / rows.size,
            }
        for method in METHODS:
            values, own = (of_all[m]["cumulative"]["values"] for m in (method, "CICS"))
            of_all[method]["more than CICS"] = spread([a - b for a, b in zip(values, own, strict=True)])
    for lie, columns in LIES.items():
        share = liar_share(Cics(), columns, liar_seeds, rounds)
        found["liars"][lie] = {"columns": [COLUMNS[c] for c in columns]}
        found["liars"][lie] |= {who: spread(values) for who, values in share.items()}
    return found


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Cumulative regret over the rounds, a panel a problem; the band is the 95 % interval of the mean over seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    colours = dict(zip(METHODS, ("#0072B2", "#56B4E9", "#D55E00", "#000000", "#009E73"), strict=True))
    for axis, (name, of_all) in zip(figure.subplots(1, len(PROBLEMS)), found["regret"].items(), strict=True):
        for method, colour in colours.items():
            curve, band = (np.array(of_all[method][key]) for key in ("curve", "band"))
            r = np.arange(1, len(curve) + 1)
            axis.plot(r, curve, color=colour, label=method, linewidth=1.5)
            axis.fill_between(r, curve - band, curve + band, color=colour, alpha=0.2, linewidth=0)
        axis.axhline(0, color="#888888", linestyle=":", label="oracle")
        top = 1.15 * max(of_all[m]["curve"][-1] + of_all[m]["band"][-1] for m in METHODS if "literal" not in m)
        axis.set(xlabel="round", ylabel="cumulative regret", title=f"{name} contexts", ylim=(-0.02 * top, top))
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=110)


def main(arguments: list[str] | None = None) -> None:
    """Write regret.json and regret.png."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.selection")
    parser.add_argument("out", type=Path, help="folder to write to")
    parser.add_argument("--seeds", type=int, default=20, help="how many, from 0 on")
    parser.add_argument("--liar-seeds", type=int, default=20, help="how many for each kind of liar")
    parser.add_argument("--rounds", type=int, default=120)
    given = parser.parse_args(arguments)
    found = tables(range(given.seeds), range(given.liar_seeds), given.rounds)
    options = f"--seeds {given.seeds} --liar-seeds {given.liar_seeds} --rounds {given.rounds}"
    command = f"python -m benchmarks.selection {given.out.as_posix()} {options}"
    write_record(given.out / "regret.json", command, found)
    draw(found, given.out / "regret.png")


def at_random(costs: Any, budget: float, rng: np.random.Generator) -> tuple[int, ...]:
    """Devices in random order, each taken if the budget has room for it. costs: (n,). Ascending numbers."""
    return _filled(rng.permutation(len(costs)), costs, budget)


def by_data_size(samples: Any, costs: Any, budget: float) -> tuple[int, ...]:
    """Devices by their number of samples, the largest first, each taken if the budget has room for it.

    samples, costs: (n,). Among equals the cheaper one is first, then the one with the lower number.
    """
    costs = as_costs(costs, len(costs))
    samples = np.asarray(samples, np.float64)
    if samples.shape != costs.shape or np.isnan(samples).any():
        raise UserError(f"samples must be {len(costs)} numbers, one a device, and not NaN")
    return _filled(np.lexsort((np.arange(len(costs)), costs, -samples)), costs, budget)


def _filled(order: Iterable[int], costs: Any, budget: float) -> tuple[int, ...]:
    """The devices of this order that fit beside those before them. One without a valid cost fits nowhere."""
    costs, budget = as_costs(costs, len(costs)), as_budget(budget)
    chosen, spent = list[int](), 0.0
    for i in order:
        if costs[i] >= 0 and np.isfinite(costs[i]) and affordable(spent + costs[i], budget):
            chosen.append(int(i))
            spent += costs[i]
    return tuple(sorted(chosen))


if __name__ == "__main__":
    main()
