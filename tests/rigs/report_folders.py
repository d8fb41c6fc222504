"""Synthetic run folders of realistic shape for the report's tests: planted groups, drifting accuracies, honest gaps.

As a script it writes a gallery to look at: ``python tests/rigs/report_folders.py FOLDER``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from coterie.clustering.agreement import grouping

SEES = {
    "client": "Receives the models of its own clusters, encrypted under the clients' key; learns those models.",
    "aggregator": "Receives every client's model under the helper's key, by name; learns who took part, when, and who "
    "shares a cluster with whom (the label matrix), but no model.",
    "helper": "Receives blinded and shuffled models; learns their pairwise distances, and so can re-link a client "
    "from round to round (93 to 100 % in the paper's mode), but no name and no model.",
    "authority": "Hands out keys before round 1; receives nothing afterwards.",
}
SET_UP = {
    "bytes_up": {"authority": 40_960, "client": 2_000},
    "bytes_down": {"authority": 2_000, "client": 40_960},
    "message_bytes": {"authority > client Keys": 40_960, "client > authority Hello": 2_000},
    "phase_seconds": {"authority/coordinate": 1.7},
    "phase_virtual_seconds": {"client/Keys": 0.2},
    "virtual_seconds": 3.5,
}
CIPHER = {"real": 1.0, "emulated": 1.0, "none": 0.35}


def write_run(
    folder: Path,
    *,
    system: str = "fedcaprivacy",
    title: str = "FedCAPrivacy",
    clients: int = 20,
    rounds: int = 30,
    seed: int = 0,
    crypto: str = "emulated",
    ceiling: tuple[float, float] = (0.86, 0.95),
    clustered: bool = True,
    fine_tuned: int = 0,
    eval_every: int = 1,
    flawed: bool = True,
    settings: dict[str, Any] | None = None,
    **result: Any,
) -> Path:
    """One run folder. ceiling: where global and local accuracy end.  fine_tuned: every so many rounds; 0 never."""
    rng = np.random.default_rng((seed, clients, sum(map(ord, system))))
    folder.mkdir(parents=True)
    groups = rng.integers(0, 4, clients)
    counts = np.array([rng.multinomial(rng.integers(30, 160), _mixture(g, rng)) for g in groups])
    skill = rng.normal(0, 0.05, clients)
    lines, clock, membership, events = [], SET_UP["virtual_seconds"], None, 0
    for r in range(1, rounds + 1):
        line: dict[str, Any] = {"round": r}
        level = [c - (c - 0.12) * np.exp(-r / (0.22 * rounds)) + rng.normal(0, 0.006) for c in ceiling]
        evaluated = r % eval_every == 0 or r == rounds
        for name, mean, spread in zip(("global", "local"), level, (0.6, 1.3), strict=True):
            each = np.clip(mean + spread * skill * (0.4 + mean), 0, 1)
            line[f"{name}_accuracy"] = float(each.mean()) if evaluated else None
            line[f"{name}_loss"] = float(-np.log(np.clip(each.mean(), 0.01, 0.99))) if evaluated else None
            if evaluated:
                bands = line.setdefault("bands", {})
                low = float(line[f"{name}_loss"])
                bands[f"{name}_loss"] = [low * f for f in (0.4, 0.8, 1.0, 1.25, 2.5)]
                bands[f"{name}_accuracy"] = np.quantile(each, [0, 0.25, 0.5, 0.75, 1]).tolist()
            if fine_tuned and (r % fine_tuned == 0 or r == rounds):
                line[f"fine_tuned_{name}_accuracy"] = float(min(each.mean() + (0.03 if name == "local" else -0.02), 1))
        clusters = clustered and (r == 1 or rng.random() < 1 / (1 + 0.3 * r))
        factor = CIPHER[crypto]
        size = int(1.42e6 * factor)
        kinds = {
            "aggregator > client Train": 712_000 * clients,
            "client > aggregator Update": size * clients,
            "aggregator > helper Blinded": size * clients * (crypto != "none"),
            "helper > aggregator Clustered": 4 * size * (crypto != "none") if clusters else 90_000 * (crypto != "none"),
            "aggregator > client Personal": size * clients * (crypto != "none"),
        }
        kinds = {k: int(v) for k, v in kinds.items() if v}
        line["message_bytes"] = kinds
        for way, end in (("bytes_up", 0), ("bytes_down", 2)):
            line[way] = {}
            for kind, value in kinds.items():
                role = kind.split(" ")[end]
                line[way][role] = line[way].get(role, 0) + value
        phases: dict[str, float] = {"client/Fit": 0.8, "client/Encrypt": 3.7 * factor, "helper/Open": 2.4 * factor}
        phases |= {
            "aggregator/Blind": 0.4,
            "helper/Cluster": 0.3 * clusters,
            "client/Open": 1.1,
            "client/Evaluate": 0.09,
        }
        line["phase_seconds"] = {k: v * rng.uniform(0.85, 1.2) for k, v in phases.items() if v}
        line["phase_virtual_seconds"] = {
            f"client/{kind}": clients * rng.uniform(4, 6) * s for kind, s in (("Train", 1.0), ("Personal", 0.2))
        }
        line["seconds"] = sum(line["phase_seconds"].values())
        clock += rng.uniform(40, 70) * (1 + 0.8 * clusters)
        line["virtual_seconds"] = clock
        late = [f"client/{i}" for i in rng.permutation(clients)[: rng.poisson(0.4)]] if flawed else []
        line["late"] = late
        line["lost"] = {
            f"client/{i} Update of round {r}": "too late" for i in range(2) if flawed and rng.random() < 0.1
        }
        line["refused"] = {"aggregator/Update: bad signature": 1} if flawed and rng.random() < 0.1 else {}
        line["notes"] = {"participants": clients - len(late)}
        if clustered:
            if clusters:
                events += 1
                names = rng.permutation(4)  # spectral clustering names its clusters anew each time
                wrong = rng.random(clients) < 0.35 / events
                own = np.where(wrong, rng.integers(0, 4, clients), groups)
                second = rng.random(clients) < 0.12
                membership = [
                    sorted({int(names[g]), int(names[(g + 1) % 4])} if two else {int(names[g])})
                    for g, two in zip(own, second, strict=True)
                ]
            flat = [k for sets in membership or [] for k in sets]
            line["notes"] |= {
                "clustered": bool(clusters),
                "clusters": {"sizes": [flat.count(k) for k in range(4)]},
                "membership": membership,
            }
            if evaluated:
                line["grouping"] = asdict(grouping(membership or [], groups.tolist()))
        lines.append(line)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = {
        "system": system,
        "title": title,
        "mode": "paper",
        "crypto": crypto,
        "seed": seed,
        "rounds": rounds,
        "clients": clients,
        "data": "digits",
        "partition": "dirichlet:0.3",
        "model": "mlp",
        "global_accuracy": lines[-1]["global_accuracy"],
        "local_accuracy": lines[-1]["local_accuracy"],
        "bytes_up": sum(sum(line["bytes_up"].values()) for line in [SET_UP, *lines]),
        "bytes_down": sum(sum(line["bytes_down"].values()) for line in [SET_UP, *lines]),
        "set_up": SET_UP,
        "seconds": sum(line["seconds"] for line in lines),
        "virtual_seconds": clock,
        "version": "0.1.0",
        "sees": {role: SEES[role] for role in ("client", "aggregator", "helper", "authority")[: 4 if clustered else 2]},
    }
    for key in ("fine_tuned_global_accuracy", "fine_tuned_local_accuracy"):
        if key in lines[-1]:
            told[key] = lines[-1][key]
    if clustered:
        told["grouping"] = lines[-1]["grouping"]
    told |= result
    (folder / "result.json").write_text(json.dumps(told, indent=2))
    (folder / "config.toml").write_text(_toml(told, settings or {"lr": 0.1, "alpha": 0.3}))
    partition = {
        "label_counts": counts.tolist(),
        "samples": counts.sum(axis=1).tolist(),
        "epochs": rng.integers(1, 6, clients).tolist(),
        "groups": groups.tolist() if clustered else None,
    }
    (folder / "partition.json").write_text(json.dumps(partition))
    same = groups[:, None] == groups[None]
    affinity = np.clip(np.where(same, 0.66, 0.48) + rng.normal(0, 0.03, (clients, clients)), 0, 1)
    observed = {"affinity": ((affinity + affinity.T) / 2).tolist(), "membership": membership} if clustered else {}
    (folder / "observed.json").write_text(json.dumps(observed))
    return folder


def write_comparison(folder: Path, clients: int = 20, seeds: int = 3, rounds: int = 30, **common: Any) -> Path:
    """A comparison: FedCAPrivacy, FedAvg with fine-tuning, and IFCA, each with every seed."""
    for seed in range(seeds):
        spread = np.random.default_rng(seed).normal(0, 0.012, 6)
        where = {"clients": clients, "rounds": rounds, "seed": seed, **common}
        ours = (0.86 + spread[0], 0.95 + spread[1] / 2)
        write_run(folder / f"fedcaprivacy-{seed}", ceiling=ours, **where)
        write_run(
            folder / f"fedavg-{seed}",
            system="fedavg",
            title="FedAvg",
            crypto="none",
            clustered=False,
            fine_tuned=5,
            ceiling=(0.88 + spread[2], 0.88 + spread[3]),
            **where,
        )
        write_run(
            folder / f"ifca-{seed}",
            system="ifca",
            title="IFCA",
            crypto="none",
            ceiling=(0.80 + spread[4], 0.91 + spread[5]),
            **where,
        )
    return folder


def _mixture(group: int, rng: np.random.Generator) -> np.ndarray:
    weights = np.full(10, 0.15)
    weights[[group * 2, group * 2 + 1, (group * 2 + 2) % 10]] = 4
    return rng.dirichlet(weights)


def _toml(told: dict[str, Any], settings: dict[str, Any]) -> str:
    keys = ("system", "data", "clients", "rounds", "partition", "model", "mode", "seed")
    head = [f"{key} = {json.dumps(told[key])}" for key in keys]
    return "\n".join([*head, "", "[settings]", *(f"{key} = {json.dumps(v)}" for key, v in settings.items()), ""])


def without_heads(page: str) -> str:
    """A page whose cells do not bear the heads of their columns, which a telephone shows."""
    return re.sub(r' data-head="[^"]*"', "", page)


def edit(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None removes one."""
    value = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in value.items() if v is not None}))


def edit_rounds(folder: Path, change: Callable[[int, dict[str, Any]], None]) -> None:
    """Change the lines of a run's rounds, each with its place."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for place, line in enumerate(lines):
        change(place, line)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    gallery = Path(sys.argv[1])
    write_run(gallery / "run20")
    write_run(gallery / "run100", clients=100, rounds=200, eval_every=5, crypto="real")
    write_run(gallery / "fedavg20", system="fedavg", title="FedAvg", crypto="none", clustered=False, fine_tuned=30)
    write_run(gallery / "short", rounds=1, clients=3)
    write_comparison(gallery / "compare20")
    write_comparison(gallery / "compare100", clients=100, rounds=100)
