"""Table 3 and figures 5 to 11 of "OFL", section 6: accuracy, scales, terms of office, shares, and what devices spend.

What the paper leaves open is settled as follows; docs/reproduction/ofl.md says why. It prints no Dirichlet parameter,
no learning rate, no rounds, no epochs, no T_rc and no epsilon. Every method has the same clients, rounds, epochs and
batch size, and all clients in every round. On images all have one learning rate. On graphs each has the best of one
grid, on a seed that no table has (``benchmarks.rates``). Images are dealt by ``dirichlet:0.5``. The paper's CNN of "two
784-neuron convolutional layers" can't be built from its text, so ``lenet`` stands for it. In ``mnist-mlp`` and
``fashion_mnist-mlp`` the model is 784-200-100-10, so that a CPU suffices. Ciphers are emulated: models are those of
real ones within the bound that docs/systems/ofl.md states. Fig. 11 is read off the cost model of the fleet ``jetson``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log2
from statistics import fmean
from typing import Any

from coterie.devices.profiles import fleet
from coterie.reproductions.study import Cell, Curve, Row, percent
from coterie.runs.config import RunConfig
from papers import tables

MOST_SAMPLES = 60_000
"""Training images of MNIST and of Fashion-MNIST: more than 300 clients have fewer than 200 each."""


def leaders(clients: int) -> int:
    """k = log2 N, as in the paper's analysis (section 5.2)."""
    return round(log2(clients))


def options(words: Mapping[str, Any], found: dict[str, Any]) -> None:
    clients, settings = words["clients"], found["settings"]
    found["clients"] = clients
    if words["model"] == "gcn":
        settings["lr"] = words["on_graphs"]
    if words["model"] == "mlp":
        found["samples"] = min(max(200 * clients, 3_200), MOST_SAMPLES)
    if words["system"] == "ofl":
        settings["clusters"] = leaders(clients)
        if words["model"] != "gcn":
            settings["full_samples"] = 50  # of some 200 that a client has: as these cells were recorded
    for varied, other in (("most_up", "most_down"), ("most_down", "most_up")):
        if varied in words:
            settings |= {varied: words[varied], other: 0.1, "gamma_min": min(0.01, words[varied])}


def best(found: Sequence[Curve], cell: tables.Entry) -> str | None:
    return percent([max(v for v in curve.global_accuracy if v is not None) for curve in found])


def offices(found: Sequence[Curve], cell: tables.Entry) -> Row:
    """Figure 8: rounds in office by type of device, and the spread of clients' accuracies."""
    rounds: dict[str, list[float]] = {}
    for curve in found:
        profiles = fleet("jetson", len(curve.scores["global_accuracy"]), curve.seed)
        kinds = {f"client/{i}": profile.name for i, profile in enumerate(profiles)}
        served = Counter(leader for notes in curve.notes for leader in notes.get("leaders", {}).values())
        for kind in sorted(set(kinds.values())):
            of = [served[client] for client, own in kinds.items() if own == kind]
            rounds.setdefault(kind, []).append(fmean(of))
    spreads = [max(own) - min(own) for own in (curve.scores["global_accuracy"] for curve in found)]
    row: dict[str, Any] = {"case": cell.name, "spread of accuracy, points": percent(spreads)}
    return row | {f"rounds in office, {kind}": fmean(values) for kind, values in rounds.items()}


def spent(found: Sequence[Curve], cell: tables.Entry) -> Row:
    """Figure 11, by the cost model: what one device of each type spends in a run, mean over the seeds."""
    row: dict[str, Any] = {}
    for kind in sorted(found[0].summary["devices_used"]):
        of = [curve.summary["devices_used"][kind] for curve in found]
        row |= {
            f"{kind}: computing, s": fmean(one["compute_s"] / one["clients"] for one in of),
            f"{kind}: joules": fmean(sum(one["joules"].values()) / one["clients"] for one in of),
            f"{kind}: peak MiB": fmean(one["peak_memory_bytes"] / 2**20 for one in of),
        }
    return row


ITEMS = tables.items("ofl", globals())
GRAPHS = ("cora", "citeseer", "pubmed")
RATES = {name: method["on_graphs"] for name, method in tables.load("ofl")["axis"]["method"].items()}
"""Learning rates on graphs."""


def config(method: str, task: str, **settings: Any) -> RunConfig:
    """The run of a cell of table 3, with some other settings."""
    cells = {cell.name: cell for cell in ITEMS["ofl/table3"].cells if isinstance(cell, Cell)}
    run = cells[f"{task}/{method}"].config
    return replace(run, settings={**run.settings, **settings})
