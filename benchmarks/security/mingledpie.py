"""How far the attacks on MingledPie get, each beside its closed form: what ``docs/security/mingledpie.json`` holds.

What the server sees in the clear follows from the clients' true clusters alone, so most of it is measured on scripted
federations; what takes training, on runs with digits. Ciphers are emulated but where a key opens
them: the server's attacks use none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, log10
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.security.compared import compared
from benchmarks.security.played import Played, federation
from coterie.devices.links import FleetLinks
from coterie.devices.profiles import fleet
from coterie.privacy.audits import Finding, mingledpie
from coterie.runs import RunConfig
from coterie.runs.attacked import attacked
from coterie.runs.recorded import recorded_run
from coterie.systems.mingledpie import SYSTEM
from coterie.systems.mingledpie.config import MingledPieConfig
from coterie.systems.mingledpie.messages import HUB

Row = dict[str, Any]

EQUAL = (24,) * 5
UNEQUAL = (10, 10, 10, 20, 70)
GRID = (
    *((5, 0.5, T, "identities") for T in (2, 3, 4)),
    *((5, 0.25, T, "identities") for T in (2, 3)),
    (5, 0.125, 2, "identities"),
    *((10, p, T, "identities") for p in (0.5, 0.25) for T in (2, 3)),
    *((k, p, 2, "false_positives") for k in (5, 10) for p in (0.5, 0.25)),
)
"""(k, p, T, what T counts) of cluster-identity inference."""
SEVERAL = ((5, 0.5, False), (10, 0.25, False), (5, 0.5, True))
"""(k, p, whether every second keys have p / 2) of intersections."""
KEYS = 5
FORMS: Mapping[str, Row] = {
    "paper": {},
    "hardened, products": {"mode": "hardened"},
    "hardened, uploads": {"mode": "hardened", "hardening": "uploads"},
}
"""What an update and a sum can look like: arguments of ``play``."""


def study(*, seeds: int = 3, clients: int = 60, rounds: int = 6, partition: str = "labelsets:5") -> Row:
    """All measurements. clients, rounds, partition: of the runs with digits; scripted federations have 120 clients.

    What wants many runs has 3 times the seeds; what is exact in every run has one.
    """
    sections = {
        "one set": one_set(seeds),
        "one set, with a prior": with_prior(3 * seeds),
        "sets of several keys": several_keys(seeds),
        "a change of cluster": change(3 * seeds),
        "hardened": hardened(),
        "what a client's key opens": opened(),
        "what a client's sums tell": coefficients(),
        "trained on digits": trained(3 * seeds, clients=clients, rounds=rounds, partition=partition),
    }
    compared_rows = [row for section in sections.values() for row in section if "agrees" in row]
    return {
        "data": "digits, and scripted federations of 120 clients",
        "clients": clients,
        "rounds": rounds,
        "partition": partition,
        "seeds": seeds,
        "closed_forms": {"compared": len(compared_rows), "off": [row for row in compared_rows if not row["agrees"]]},
        **sections,
    }


def one_set(seeds: int) -> list[Row]:
    """Cluster-identity inference by a uniform guess within the set, which theorem 2 is about."""
    rows = []
    for cell, (k, p, threshold, counts) in enumerate(GRID):
        settings: Row = {"clusters": k, "p": p, "threshold": threshold, "threshold_counts": counts}
        found = [_one_round(_even(k), seed, **settings)[0] for seed in _seeds(seeds, cell)]
        rows.append({**settings, **_beside(found), **_theorem_2(settings, found)})
    full = [_one_round(_sized(EQUAL), seed, mode="literal")[0] for seed in range(seeds)]
    rows.append({"mode": "literal", **_beside(full)})
    return rows


def with_prior(seeds: int) -> list[Row]:
    """The same with clusters of equal and unequal sizes that the server knows, or estimates from the sets."""
    rows = []
    for sizes in (UNEQUAL, EQUAL):
        found = [_one_round(_sized(sizes), seed) for seed in range(seeds)]
        for findings in zip(*found, strict=True):
            row = {"sizes": list(sizes), "who": findings[0].name, **_beside(findings)}
            rows.append({**row, **_theorem_2({}, findings)})
    return rows


def several_keys(seeds: int) -> list[Row]:
    """Intersection: nobody changes its cluster, but the server publishes new keys, as "at any time" it may."""
    rows = []
    for cell, (k, p, halved) in enumerate(SEVERAL):
        rates = [p / 2 if halved and r % 2 else p for r in range(KEYS)]
        settings: Row = {
            "clusters": k,
            "p": p,
            "p_changes": ",".join(f"{r}:{rates[r - 1]}" for r in range(2, KEYS + 1)),
        }
        script = [_even(k)] * KEYS
        runs = [_read(play(script, seed=seed, **settings)) for seed in _seeds(seeds, 50 + cell)]
        first = [mingledpie.by_one_set(rounds[:1])[0] for rounds in runs]
        later = [mingledpie.by_all_keys(rounds)[0] for rounds in runs]
        rows.append({**settings, "sets": 1, **_beside(first)})
        for n in range(KEYS - 1):
            row = compared([one.results[n] for one in later], [one.expected[n] for one in later])
            rows.append({**settings, "sets": n + 2, **row})
        if not halved:
            settings["keep_sets"] = True
            runs = [_read(play(script, seed=seed, **settings)) for seed in _seeds(seeds, 60 + cell)]
            last = [mingledpie.by_one_set(rounds[-1:])[0] for rounds in runs]
            same = all(np.array_equal(one.sets, rounds[0].sets) for rounds in runs for one in rounds)
            rows.append({**settings, "sets": KEYS, "all_the_same": same, **_beside(last)})
    return rows


def change(seeds: int) -> list[Row]:
    """A client that changes its cluster once and comes back, under the same keys."""
    rows: list[Row] = []
    for cell, (k, p) in enumerate(((5, 0.5), (10, 0.25))):
        alone, both, again = [], [], []
        for seed in _seeds(seeds, 70 + cell):
            first = _even(k)
            second = (first + np.random.default_rng(seed).integers(1, k, len(first))) % k
            rounds = _read(play([first, second, first], seed=seed, clusters=k, p=p))
            by_one, by_both = mingledpie.by_changes(rounds[:2])
            alone.append(by_one)
            both.append(by_both)
            again.append(float((rounds[2].sets == rounds[0].sets).all(axis=1).mean()))
        settings: Row = {"clusters": k, "p": p}
        rows.append({**settings, "by": "the set of now alone", **_measured(alone)})
        rows.append({**settings, "by": "both sets", **_beside(both)})
        rows.append({**settings, "by": "coming back", "first_set_again": fmean(again), "runs": seeds})
    return rows


def hardened() -> list[Row]:
    """Without identities: what the server is sent does not depend on the clusters; its prior is all it has.

    kinds_of_update: how many different (identities, bytes) there are among the updates.
    """
    rows = []
    for name in ("hardened, products", "hardened, uploads"):
        played = play([_sized(UNEQUAL)], **FORMS[name])
        rounds = _read(played)
        guess, by_size = *mingledpie.by_one_set(rounds), *mingledpie.by_sizes(rounds)
        sent = [seen for seen in played.views[HUB].seen if seen.kind == "Update"]
        kinds = {(getattr(seen.message, "identities", np.zeros(1)).tobytes(), seen.size) for seen in sent}
        row: Row = {"mode": name, "sizes": list(UNEQUAL), "kinds_of_update": len(kinds)}
        rows.append({**row, "who": "server", **_measured([guess])})
        rows.append({**row, "who": "server knowing the sizes from elsewhere", **_measured([by_size])})
    return rows


def opened() -> list[Row]:
    """One key for all clients: with any client's help the server opens every update, in every mode, in real CKKS.

    true_clusters: share of the clients whose cluster is read off the ciphertext.  error_below: a power of ten above the
    largest difference of an opened model from the one that was sent, which is the cipher's rounding.
    """
    rows: list[Row] = []
    truth = _sized((1, 2, 3, 4, 10))
    for name, settings in FORMS.items():
        played = play([truth], emulated=False, **settings)
        ((one, models),) = _opened(played)
        right = float((one.truth == truth[one.who]).mean())
        error = float(np.abs(models - played.starts[truth[one.who]]).max())
        bound = 10.0 ** ceil(log10(error)) if error else 0.0
        rows.append({"mode": name, "clients": len(one.who), "true_clusters": right, "error_below": bound})
    return rows


def coefficients() -> list[Row]:
    """What any one client learns of all others: sizes of the true clusters, and the model of who is alone in one."""
    rows = []
    sizes = (1, 2, 17, 30, 70)
    for name, settings in FORMS.items():
        played = play([_sized(sizes)], **settings)
        rounds = _read(played)
        for finding in mingledpie.by_coefficients(played.views, rounds, _opener(played)):
            rows.append({"mode": name, "sizes": list(sizes), "who": finding.name, **_measured([finding])})
    return rows


def trained(seeds: int, **options: Any) -> list[Row]:
    """Runs with digits from a random start: preference profiling by local models, where they are in the clear and where
    not, and what training leaves of cluster-identity inference.

    local_accuracy: which the system reached.  options: of ``RunConfig``.
    """
    rows = []
    for system in ("fedavg", "ifca", "mingledpie"):
        settings = {} if system == "fedavg" else {"clusters": 5}
        fixed: Row = {"crypto": "emulated", "record": True, "settings": settings, **options}
        audited = [_audited(RunConfig(system, seed=seed, **fixed)) for seed in range(seeds)]
        runs, accuracies = zip(*audited, strict=True)
        head: Row = {"system": system, "local_accuracy": fmean(accuracies)}
        for name in dict.fromkeys(finding.name for run in runs for finding in run):
            found = [finding for run in runs for finding in run if finding.name == name]
            closed = all(finding.expected for finding in found)
            rows.append({**head, "who": name, **(_beside(found) if closed else _measured(found))})
    return rows


def _audited(config: RunConfig) -> tuple[list[Finding], float]:
    """The findings on a new run, and the local accuracy that it reached."""
    run, experiment = recorded_run(config)
    accuracy = experiment.observer.scores(experiment.models()).means()["local_accuracy"]
    experiment.close()
    return attacked(run)[0], accuracy


def _sized(sizes: Sequence[int]) -> NDArray[np.int64]:
    """True clusters of clients, so many of each."""
    return np.repeat(np.arange(len(sizes)), sizes)


def _even(clusters: int) -> NDArray[np.int64]:
    """120 clients, as many of each cluster."""
    return _sized([120 // clusters] * clusters)


def _seeds(count: int, cell: int) -> range:
    """Other seeds for every cell, so that no two share their coins."""
    return range(1000 * cell, 1000 * cell + count)


def _opener(played: Played) -> mingledpie.Opener:
    return mingledpie.opener(played.federation, played.views)


def _read(played: Played) -> list[mingledpie.IdentityRound]:
    """What the server saw of a script."""
    return [one for one, _ in _opened(played)]


def _opened(played: Played) -> Iterator[tuple[mingledpie.IdentityRound, NDArray[np.float64]]]:
    """The same, with the models (n, d) that the clients' key opens."""
    return mingledpie.recorded_rounds(played.views, played.clients, played.config, played.mode, _opener(played))


def _one_round(truth: NDArray[np.int64], seed: int, **settings: Any) -> list[Finding]:
    rounds = _read(play([truth], seed=seed, **settings))
    return mingledpie.by_one_set(rounds) + mingledpie.by_sizes(rounds)


def _beside(findings: Sequence[Finding]) -> Row:
    """One finding of several runs, in their last rounds, beside its closed form."""
    last = [finding.results[-1] for finding in findings], [finding.expected[-1] for finding in findings]
    return compared(*last, spread="estimating" in findings[0].name)


def _measured(findings: Sequence[Finding]) -> Row:
    """One finding of several runs, without a closed form: means over rounds, then over runs. first: round alone."""
    rows = [finding.row() for finding in findings]
    values = [row["value"] for row in rows]
    error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    means = {"first": fmean(row["first"] for row in rows), "chance": fmean(row["chance"] for row in rows)}
    return {"measured": fmean(values), "standard_error": error, **means, "runs": len(rows)}


def _theorem_2(settings: Row, findings: Sequence[Finding]) -> Row:
    """The bounds 1/k and 1/T of theorem 2, and whether the measured accuracy lies between them."""
    config = MingledPieConfig(**settings)
    low, high = config.law(config.p).bounds
    value = _beside(findings)["measured"]
    return {"theorem_2": [low, high], "within_theorem_2": low <= value <= high}


CLASSES = 3
"""A model of three numbers: big enough to be told from others."""


def play(
    script: Sequence[Sequence[int]] | Sequence[NDArray[np.int64]],
    *,
    mode: str = "paper",
    seed: int = 0,
    emulated: bool = True,
    **settings: Any,
) -> Played:
    """Play a script (rounds, clients) of true clusters. settings: of ``MingledPieConfig``.

    Clients find the start model of their cluster the best, and send it as it is.
    """
    config, rows = MingledPieConfig(**settings), np.asarray(script)
    order = np.random.default_rng(seed).permutation(config.clusters)
    starts = np.repeat(order[:, None], CLASSES, axis=1).astype(np.float32)

    def links(names: Sequence[str]) -> FleetLinks:
        return FleetLinks(dict(zip(names, fleet("uniform", len(names), seed), strict=True)), seed)

    how: dict[str, Any] = {"mode": mode, "seed": seed, "emulated": emulated, "links": links}
    with federation(SYSTEM, config, rows.shape[1], starts, **how) as run:
        for r, row in enumerate(rows, 1):
            clusters = dict(zip(run.clients, row.tolist(), strict=True))

            def loss(client: str, weights: Any, clusters: dict[str, int] = clusters) -> float:
                return float(np.square(starts - weights).sum(axis=1).argmin() != clusters[client])

            run.effects.loss = loss
            run.round(r)
    return run
