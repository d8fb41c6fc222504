"""How often a client leads its cluster that lies in its signed status reports (OFL, section 7).

32 clients on the devices of a fleet, with 20 + 200 exp(.6 z) training samples each (z: standard normal), are there as
their diurnal traces say. Every hour those that are there report, are clustered into 4 (dynamic K-means), and each
cluster elects a leader: 3 days, 72 elections. The model has 178,110 parameters, a step has 60 s, and a client with
200 samples may upload everything. One client, drawn by the seed, lies in each of its reports, within what a hub
accepts:

    nothing             it is honest
    double              twice its true numbers, up to what the format and its own claims allow
    limits              the largest limits that its true device and samples allow, and the largest epsilon
    everything          the largest value of every field
    the best's          the numbers of the best provided of the others that are there, and a tenth more in every limit

    python -m benchmarks.leading docs/resources/leading.json [--seeds 20]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.clustering.kmeans import Clusters, regrouped
from coterie.clustering.labels import members_of
from coterie.devices.profiles import Profile, fleet
from coterie.devices.traces import Traces, diurnal
from coterie.protocol.model_spec import ModelSpec, Part
from coterie.protocol.randomness import rng
from coterie.protocols.reports import FIELDS, MOST_EPSILON, RANGES, SUMMARY, StatusReport, costs, features, limits
from coterie.record.provenance import write_record
from coterie.runs.intervals import spread
from coterie.selection.resources import elected, score

CLIENTS, CLUSTERS, HOURS, STEP_S = 32, 4, 72, 60.0
SPEC = ModelSpec((Part("w", (178_110,), "float32", "parameter", "shared", 0),), flops_per_sample=6.0 * 178_110)
LIES = ("nothing", "double", "limits", "everything", "the best's")
RULES: Mapping[str, tuple[float, int]] = {
    "penalty 0": (0.0, 1),
    "penalty 1": (1.0, 1),
    "penalty 0, 3 in a cluster": (0.0, 3),
    "penalty 1, 3 in a cluster": (1.0, 3),
}
"""By name: the penalty for long service, and the fewest members of a cluster."""

Values = NDArray[np.float64]


def honest(profile: Profile, samples: int, present_s: float) -> Values:
    """The numbers of a true report, in the order of ``FIELDS``."""
    device = (profile.compute_flops_per_s, profile.cpu_ghz, profile.memory_gib)
    links = (profile.up_bytes_per_s, profile.down_bytes_per_s)
    given_s = profile.budget * STEP_S
    return np.array([*device, *links, given_s * device[0], given_s, samples, present_s, 8.0])


def lied(values: Values, lie: str, best: Values) -> Values:
    """What a liar reports instead, which ``reports.checked`` accepts. best: the numbers of the best of the others."""
    most = np.array([RANGES[field][1] for field in FIELDS])
    above = best * np.where(np.arange(len(FIELDS)) < 5, 1.0, 1.1)
    whole = {"nothing": values, "double": 2 * values, "limits": values, "everything": most, "the best's": above}
    claimed = whole[lie].copy()
    if lie == "limits":
        claimed[[5, 6, 8, 9]] = most[[5, 6, 8, 9]]  # more samples would also cost more training
    claimed = np.minimum(claimed, most)
    claimed[5] = min(claimed[5], claimed[0] * STEP_S)
    claimed[[6, 8]] = np.minimum(claimed[[6, 8]], STEP_S)
    claimed[9] = min(claimed[9], MOST_EPSILON)
    return np.asarray(claimed)


def led(fleet_name: str, rule: str, lie: str, seed: int) -> dict[str, float]:
    """Of the hours in which they are there: the share that the liar and the others (on average) lead.

    followers: how many other clients the liar leads, on average over the hours in which it is there.
    """
    penalty, least = RULES[rule]
    names = [f"client/{i}" for i in range(CLIENTS)]
    profiles, traces = dict(zip(names, fleet(fleet_name, CLIENTS, seed), strict=True)), diurnal(names, seed)
    source = rng(seed, "hub", "samples")
    samples = {name: 20 + int(200 * np.exp(0.6 * source.standard_normal())) for name in names}
    liar = names[int(rng(seed, "hub", "liar").integers(CLIENTS))]
    clusters, served = Clusters(), dict[str, float]()
    there, terms, followers = dict.fromkeys(names, 0), dict.fromkeys(names, 0), 0
    for hour in range(HOURS):
        here = [name for name in names if traces.there(name, 3600.0 * hour)]
        said = {name: _values(name, profiles, samples, traces, hour) for name in here}
        if liar in said:
            best = max((said[name] for name in here if name != liar), key=_score)
            said[liar] = lied(said[liar], lie, best)
        _, rows, groups = features({name: _report(name, values) for name, values in said.items()})
        clusters = regrouped(here, rows, CLUSTERS, clusters, groups=groups, least=least)
        scores = {name: _score(values) for name, values in said.items()}
        members = members_of(tuple(clusters.numbers), np.array(tuple(clusters.numbers.values()))).values()
        led_by = {elected({n: scores[n] for n in own}, served, penalty): own for own in members}
        served |= {leader: served.get(leader, 0.0) + 1 for leader in led_by}
        followers += len(led_by.get(liar, [liar])) - 1
        for name in here:
            there[name] += 1
            terms[name] += name in led_by
    shares = {name: terms[name] / there[name] for name in names}
    others = float(np.mean([shares[name] for name in names if name != liar]))
    return {"liar": shares[liar], "others": others, "followers": followers / there[liar]}


def _values(
    name: str, profiles: Mapping[str, Profile], samples: Mapping[str, int], traces: Traces, hour: int
) -> Values:
    present_s = traces.present(name, 3600.0 * hour, 3600.0 * hour + STEP_S)
    return honest(profiles[name], samples[name], present_s)


def _score(values: Values) -> float:
    one = _report("", values)
    return score(limits(one), costs(one, SPEC, 1, full_samples=200, epsilon_round=1.0), SPEC.size)


def _report(name: str, values: Values) -> StatusReport:
    return StatusReport(1, name, values, np.zeros(SUMMARY, np.float32))


def table(seeds: range) -> dict[str, Any]:
    """Means over the seeds with their 95 % intervals, by fleet, rule and lie."""
    found: dict[str, Any] = {}
    for fleet_name in ("mixed", "jetson"):
        for rule in RULES:
            for lie in LIES:
                runs = [led(fleet_name, rule, lie, seed) for seed in seeds]
                cell = {who: spread([run[who] for run in runs]) for who in runs[0]}
                found.setdefault(fleet_name, {}).setdefault(rule, {})[lie] = cell
    return {"seeds": len(seeds), "hours": HOURS, "clients": CLIENTS, "clusters": CLUSTERS, "led": found}


def main(arguments: list[str] | None = None) -> None:
    """Write the JSON file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leading")
    parser.add_argument("out", type=Path, help="file to write to")
    parser.add_argument("--seeds", type=int, default=20, help="how many, from 0 on")
    given = parser.parse_args(arguments)
    command = f"python -m benchmarks.leading {given.out.as_posix()} --seeds {given.seeds}"
    write_record(given.out, command, table(range(given.seeds)))


if __name__ == "__main__":
    main()
