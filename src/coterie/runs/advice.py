"""Warnings: options without effect, and scores no better than chance or an earlier round's."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from shlex import quote
from typing import Any

from numpy.typing import NDArray

from coterie.data.catalogue import BUILT_IN, is_synthetic
from coterie.data.own import is_path
from coterie.data.targets import is_number
from coterie.protocol.errors import CoterieWarning
from coterie.runs.config import Resolved
from coterie.runs.metrics import run_metrics, score


def advise(text: str | None) -> None:
    if text is not None:
        warnings.warn(text, CoterieWarning, stacklevel=2)


# when options have an effect, and why not
_EFFECTIVE: Mapping[str, tuple[Callable[[Resolved], bool], str]] = {
    "crypto": (lambda run: run.definition.encrypted, "nothing is encrypted"),
    "fine_tune": (lambda run: run.fine_tune == "no" or run.definition.fine_tunes, "no model can be tuned"),
    "attack": (lambda run: run.system != "local", "no model of an attacker reaches anybody"),
    "record_mib": (lambda run: run.record, "nothing is recorded without record (--record)"),
    "data_dir": (
        lambda run: run.data not in BUILT_IN and not is_path(run.data) and not is_synthetic(run.data),
        "the data are not looked for there",
    ),
}


def without_effect(given: Collection[str], runs: Sequence[Resolved]) -> list[str]:
    """A sentence for each given option without effect on any run."""
    systems = ", ".join(dict.fromkeys(run.system for run in runs))
    return [
        f"option {option} has no effect on {systems}: {why}"
        for option, (has_effect, why) in _EFFECTIVE.items()
        if option in given and not any(map(has_effect, runs))
    ]


def surplus_clusters(config: Resolved) -> str | None:
    clusters, clients = config.settings.get("clusters"), config.clients
    if not isinstance(clusters, int) or clients is None or clusters <= clients:
        return None
    return (
        f"{config.system} has more clusters ({clusters}) than clients ({clients}), and the surplus has no effect: set "
        f"clusters to {clients} or fewer, or take more clients"
    )


def nothing_added(config: Resolved, clients: int, reasons: Sequence[str]) -> str | None:
    """A sentence about clients that silently keep their model or add nothing."""
    if not clients:
        return None
    many = (
        "1 client has kept its model or added nothing in the last round that it"
        if clients == 1
        else (f"{clients} clients have kept their model or added nothing in the last round that each")
    )
    lr = config.settings.get("lr")
    advice = "" if lr is None else f". Where training goes too far, try a smaller lr (here {lr:g})"
    return f"{many} took part in: {'; '.join(reasons)}{advice}"


def numbers_of_patients(features: Sequence[str]) -> str | None:
    """A sentence about features that by name are numbers of patients or rows."""
    found = [name for name in features if re.fullmatch(r"id|.*_id|patient[^=]*", name.strip().lower())]
    if not found:
        return None
    return (
        f"{', '.join(map(repr, found))} {'is a feature' if len(found) == 1 else 'are features'} of the model: if it "
        'numbers patients, drop it, or state kind = "id" for it in a schema'
    )


def of_the_frequent_class(config: Resolved, names: Sequence[str] | None, label_counts: NDArray[Any]) -> str | None:
    """A sentence about an average precision of the more frequent of two classes, which the alphabet has put last. The
    order of numbers is their author's, and a schema states it.  names: of classes.
    """
    measured = "average_precision" in [metric.name for metric in run_metrics(config)]
    if not measured or config.task != "classes" or config.schema is not None or names is None or len(names) != 2:
        return None
    first, last = names
    share = label_counts.sum(axis=0)[1] / label_counts.sum()
    if is_number(last) or share <= 1 / 2:
        return None
    return (
        f"average precision is of {last!r}, the last of both classes by the alphabet, and {share:.0%} of the samples: "
        f"for that of {first!r}, write a schema (coterie prepare propose FILE ... --positive {quote(first)}), or "
        "0 and 1 as labels"
    )


def absent_to_the_end(config: Resolved) -> str | None:
    founders, newcomers, every = (config.settings.get(key, 0) for key in ("founders", "newcomers", "join_every"))
    clients = config.clients
    if not founders or clients is None:
        return None
    here = founders + newcomers * ((config.rounds - 1) // every)
    if here >= clients:
        return None
    return (
        f"{clients - here} of {clients} clients never join: {founders} take part from the start, and {newcomers} more "
        f"join after every {every} rounds, of {config.rounds}. Set join_every to fewer rounds, or newcomers to more"
    )


def no_better_than_chance(config: Resolved, summary: Mapping[str, Any], label_counts: NDArray[Any]) -> str | None:
    """A sentence about a leading metric that beats ``Metric.chance`` by at most .02, or a fifth of it, on all test data
    and on each client's, by training samples' label_counts (clients, classes).
    """
    if config.attack is not None or summary["task"] != "classes":  # an attack may be why
        return None
    first, *_ = run_metrics(config)
    found, local = (score(summary, f"{side}_{first.name}") for side in ("global", "local"))
    if first.chance is None or found is None or local is None:
        return None
    shares = label_counts / label_counts.sum(axis=1, keepdims=True)
    chance = first.chance(label_counts.sum(axis=0, keepdims=True) / label_counts.sum())
    own_chance = first.chance(shares)
    sign = 1 if first.higher else -1
    for got, same in ((found, chance), (local, own_chance)):
        if sign * (got - same) > min(0.02, same / 5 or 0.02):
            return None
    tries = {"another lr": "lr", "a larger participation": "participation"}
    own = {words: config.settings[key] for words, key in tries.items() if config.settings.get(key) not in (None, 1.0)}
    others = ", ".join(f"{words} (here {value:g})" for words, value in own.items())
    label = first.facts["label"]
    ours, constant = (f"{100 * value:.1f} %" if first.share else f"{value:.3g}" for value in (found, chance))
    told = f"{label} is {ours} on all test data, and a model that gives every sample the same answer has {constant}"
    if first.share and label_counts.shape[1] == 2 and chance > RARE:
        return f"{told}, so it cannot show what {config.system} has learnt: take --metrics auroc,average_precision"
    return f"{config.system} has learnt nothing: {told}. Try more rounds (here {config.rounds})" + (
        f", {others}" if others else ""
    )


RARE = 0.8
"""From this share of one of two labels on, accuracy is near it whatever was learnt."""
CLEARLY = 0.05
"""So much worse than the best round is the last one: a share's difference, else a part of the best."""


def past_its_best(config: Resolved, rounds: Sequence[Mapping[str, Any]]) -> str | None:
    """A sentence about a run on own data whose last line's local scores are clearly worse than its best."""
    if not is_path(config.data) or config.early_stop is not None or config.attack is not None:
        return None
    first, *_ = run_metrics(config)
    values = {line["round"]: value for line in rounds if (value := score(line, f"local_{first.name}")) is not None}
    if not values:
        return None
    sign = 1 if first.higher else -1
    best, last = max(values, key=lambda r: sign * values[r]), max(values)
    if sign * (values[best] - values[last]) < CLEARLY * (1 if first.share else abs(values[best])):
        return None
    then, now = (f"{100 * values[r]:.1f} %" if first.share else f"{values[r]:.3g}" for r in (best, last))
    stop = "--early-stop 3" if config.fine_tune == "no" else "--early-stop 3 --no-fine-tune"
    smaller = "" if config.model == "linear" else ", or a smaller model such as --model linear"
    return (
        f"{config.system} is past its best: {first.facts['label']} on each client's own kind of data is best in round "
        f"{best}: {then}, last {now}. Try {stop}{smaller}"
    )
