"""A comparison: runs by method, results and costs, also in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from coterie.record.comparison import ACCURACY, NO_SETTING, Measure
from coterie.record.load import Run
from coterie.record.schema import EMULATED
from coterie.report.words import CANNOT_TELL, MISSING, metric, percent, plural
from coterie.runs.budget import LOCAL
from coterie.runs.config import OPTIONS, SIDES
from coterie.runs.intervals import mean_and_interval, spread
from coterie.runs.metrics import score


class Topic(NamedTuple):
    """head: of a column.  told: for all, part and next to nothing."""

    head: str
    words: str
    short: str
    told: tuple[str, str, str]


TOPICS = {
    "models": Topic(
        "models",
        "clients' models",
        "models",
        ("read every client's model", "read part of the models", "read next to nothing of the models"),
    ),
    "identity": Topic(
        "links",
        "whose model is whose from round to round",
        "whose model is whose",
        (
            "follow every client's model from round to round",
            "follow part of the models from round to round",
            "hardly follow a model from round to round",
        ),
    ),
    "labels": Topic(
        "labels",
        "label shares",
        "label shares",
        ("know the label shares", "know part of the label shares", "know next to nothing of label shares"),
    ),
    "groups": Topic(
        "alike",
        "which clients are alike",
        "which clients are alike",
        (
            "know which clients are alike",
            "know in part which clients are alike",
            "hardly know which clients are alike",
        ),
    ),
    "samples": Topic(
        "samples",
        "training samples",
        "samples",
        (
            "know the training samples",
            "know something of the training samples",
            "know next to nothing of training samples",
        ),
    ),
    "other": Topic(
        "other",
        "the system's other secrets",
        "other secrets",
        ("know the system's other secrets", "know part of its other secrets", "hardly know its other secrets"),
    ),
}
_ACCURACY = msgspec.structs.asdict(ACCURACY)
Content = Mapping[str, Any]
"""``compare.json``."""
_METHOD = {"system", "mode", "crypto"}  # options that name a method beside its settings
_NOT_THE_METHOD = SIDES | {"seed"}
_SIDES = ("global", "local")


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ in their seed at most."""

    label: str
    runs: tuple[Run, ...]

    @property
    def legend(self) -> str:
        return self.label + (EMULATED if self.runs[0].result.crypto == "emulated" else "")

    def curve(self, field: str) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64] | None]:
        """Rounds that all runs evaluated, mean and standard deviation (None of one)."""
        runs = [dict(zip(*run.points(field), strict=True)) for run in self.runs]
        shared = sorted(set(runs[0]).intersection(*runs[1:]))
        values = np.array([[one[r] for r in shared] for one in runs])
        std = values.std(axis=0, ddof=1) if len(runs) > 1 else None
        return np.array(shared, dtype=np.int64), values.mean(axis=0), std

    def value(self, of: Callable[[Run], float | None]) -> tuple[float, float | None] | None:
        """Mean and half of its 95 % interval (None of one run); None if one lacks it."""
        found = spread([of(run) for run in self.runs])
        return None if found is None else (found["mean"], found["interval"])

    def cost(self, rounds: NDArray[np.int64], until: Callable[[Run], list[float] | None]) -> NDArray[np.float64]:
        """Means over the runs, by each round's end (``CostMeasure.until``)."""
        costs = [dict(zip([line.round for line in run.rounds], until(run) or (), strict=True)) for run in self.runs]
        return np.array([np.mean([one[int(r)] for one in costs]) for r in rounds])

    def rounds_to(self, field: str, target: float, *, higher: bool = True) -> int | None:
        """First evaluated round whose mean reaches the target."""
        rounds, mean, _ = self.curve(field)
        reached = np.flatnonzero(mean >= target if higher else mean <= target)
        return int(rounds[reached[0]]) if len(reached) else None

    def seconds_to(self, field: str, target: float, *, higher: bool = True) -> float | None:
        """Virtual seconds until that round's end, mean over the runs; or None."""
        reached = self.rounds_to(field, target, higher=higher)
        clocks = [dict(zip(*run.points("virtual_seconds"), strict=True)).get(reached or -1) for run in self.runs]
        known = [clock for clock in clocks if clock is not None]
        return sum(known) / len(known) if len(known) == len(clocks) else None


def group(runs: Sequence[Run]) -> list[RunGroup]:
    """Runs by system, mode, cipher and settings, in order."""
    methods: dict[str, list[Run]] = {}
    for run in runs:
        method = {key: value for key, value in _flat(run.config).items() if key not in _NOT_THE_METHOD}
        identity = (run.result.system, run.result.mode, run.result.crypto, sorted(map(str, method.items())))
        methods.setdefault(repr(identity), []).append(run)
    groups = [tuple(sorted(found, key=lambda run: run.result.seed)) for found in methods.values()]
    return [
        RunGroup(label, found) for label, found in zip(_labels([found[0] for found in groups]), groups, strict=True)
    ]


def differing_work(runs: Sequence[Run]) -> dict[str, list[str]]:
    """What a fair comparison shares and this does not: option -> values."""
    found: dict[str, list[str]] = {}
    for key in (option for option in OPTIONS if option not in _METHOD | _NOT_THE_METHOD):
        told = [None if key == "metrics" else getattr(run.result, key, None) for run in runs]  # those are results
        values = dict.fromkeys(str(of or run.config.get(key)) for of, run in zip(told, runs, strict=True))
        if len(values) > 1:
            found[key] = list(values)
    seeds = {found.label: sorted(run.result.seed for run in found.runs) for found in group(runs)}
    if len({tuple(each) for each in seeds.values()}) > 1:
        found["seeds"] = [f"{name}: {', '.join(map(str, each))}" for name, each in seeds.items()]
    return found


def leading(groups: Sequence[RunGroup]) -> Measure:
    return groups[0].runs[0].leading


def common_target(groups: Sequence[RunGroup], field: str, measure: Measure = ACCURACY) -> float | None:
    """The best value that every method's mean reaches, shares to the next whole percent, others to two digits; None if
    one was not evaluated.
    """
    curves = [mean[np.isfinite(mean)] for _, mean, _ in (found.curve(field) for found in groups)]
    if not all(map(len, curves)):
        return None
    reached = float(min(map(np.max, curves)) if measure.higher else max(map(np.min, curves)))
    unit = 0.01 if measure.share else 10.0 ** (math.floor(math.log10(abs(reached) or 1)) - 1)
    whole = math.floor(reached / unit + 1e-9) if measure.higher else math.ceil(reached / unit - 1e-9)
    return round(whole * unit, 12)


def _labels(runs: Sequence[Run]) -> list[str]:
    same = {run.result.system: [other for other in runs if other.result.system == run.result.system] for run in runs}
    labels = []
    for run in runs:
        rivals = same[run.result.system]
        mode = run.result.mode
        words = [run.result.name if mode in (None, "paper") else f"{run.result.name}@{mode}"]
        if len({other.result.crypto for other in rivals}) > 1:
            words.append(run.result.crypto)
        flat = [_flat(other.config) for other in rivals]
        mine = _flat(run.config)
        for key in sorted(set().union(*flat) - _NOT_THE_METHOD - _METHOD):
            if len({str(other.get(key)) for other in flat}) > 1:
                words.append(f"{key.rpartition('.')[2]}={mine.get(key)}")
        labels.append(", ".join(words))
    return labels


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def content_of(groups: Sequence[RunGroup]) -> Content:
    """For runs without a ``compare.json``: rows and measures alone."""
    measured = [msgspec.structs.asdict(one) for one in (leading(groups), *groups[0].runs[0].others)]
    fields = [f"{form}{side}_{one['name']}" for one in measured for form in ("", "fine_tuned_") for side in _SIDES]
    return {
        "rows": [_row(found, fields) for found in groups],
        "measures": measured,
        "benefits": [],
        "leads": [],
    }


def _row(found: RunGroup, fields: Sequence[str]) -> dict[str, Any]:
    of = [run.result for run in found.runs]
    return {
        "method": found.label,
        **{key: getattr(of[0], key) for key in ("system", "crypto")},
        "runs": [run.folder.name for run in found.runs],
        **{field: spread([result.score(field) for result in of]) for field in fields},
        "bytes_up": spread([result.bytes_up for result in of]),
    }


# -- in words ---------------------------------------------------------------------------------------------------------


def topics_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [topic for topic in TOPICS if any(topic in (row.get("learned") or {}) for row in rows)]


def unsure_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    learned = row.get("learned") or {}
    return tuple(topic for topic in TOPICS if topic in learned and learned[topic] is None)


def leak_cell(row: Mapping[str, Any], topic: str) -> str:
    leak = (row.get("learned") or {}).get(topic)
    if leak is None:
        return CANNOT_TELL if topic in unsure_of(row) else MISSING
    return f"{100 * max(leak['mean'], 0.0):.0f}"


def leak_rows(content: Content) -> list[tuple[str, list[str]]]:
    """By attacked method, a cell for each topic that is there."""
    rows, topics = content["rows"], topics_of(content["rows"])
    return [(row["method"], [leak_cell(row, topic) for topic in topics]) for row in rows if row["learned"] is not None]


def budget(content: Content) -> str:
    work = f"{content['rounds']} rounds, {content['clients']} clients on {content['devices']} devices"
    if content.get("availability"):
        work += f", there as {content['availability']} says"
    shared = content["budget"]
    if shared is None:
        return f"Each method has its own budget, so this is no fair race. The same for all: {work}."
    b = {key: _plain(value) for key, value in shared.items()}
    told = [work]
    if "participation" in b:
        everybody = shared["participation"] >= 1
        told.append("all asked in every round" if everybody else f"a share of {b['participation']} asked in a round")
    if "max_epochs" in b:
        told.append(f"up to {b['max_epochs']} epochs (slowest device: {b['slowest']} of that)")
        told.append(f"batches of {b['batch_size']}, lr {b['lr']}, momentum {b['momentum']}, decay {b['weight_decay']}")
    falls = f" / (1 + {b['server_decay']} (r - 1))" if shared["server_decay"] else ""
    if shared.get("server_rounds"):
        falls = f", falling linearly over {b['server_rounds']} rounds"
    told.append("server step " + b["server_lr"] + falls)
    told.append(f"a share of {b['delta']} of the updates late, {b['delay']}" if shared["delta"] else "no drawn delays")
    if shared.get("public"):
        told.append(f"a share of {b['public']} of the training data held by the server, as public data")
    if shared.get("deadline_s") is not None:
        told.append(f"deadline {b['deadline_s']} s")
    if shared.get("founders"):
        told.append(f"{b['founders']} clients at first, {b['newcomers']} more every {b['join_every']} rounds")
    if content["fine_tune"] == "held_out":
        told.append("a fifth of each client's training data held out to choose the epochs of fine-tuning")
    return f"One budget, that of {content['budget_from']}: {'; '.join(told)}."


def sent_notes(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if any(row.get("system") == LOCAL for row in rows):
        yield f"sent by {LOCAL}: that rounds begin and end, which every method's messages say; no model"


def attack(content: Content) -> str:
    if content.get("attack") is None:
        return ""
    share = percent(content["attackers"])
    return f"{share} of the clients misbehave ({content['attack']}); all scores are means over the honest ones."


def not_shared(content: Content) -> Iterator[str]:
    for found in content["differences"]:
        if found["shared"] is None:
            beyond = f"{found['method']}, {found['setting']}={_plain(found['value'])}; {found['why']}"
            yield f"Beyond the budget: {beyond}."
            continue
        own = "none" if found["value"] is None else _plain(found["value"])
        shared = _plain(found["shared"])
        yield f"Not shared: {found['method']}, {found['setting']} {own} instead of {shared}; {found['why']}."


def chosen(content: Content) -> Iterator[str]:
    """What ``--tune`` chose, with every candidate's held-out loss."""
    found = content.get("chosen")
    if found is None:
        return
    runs = sum(len(one["candidates"]) for one in found["methods"])
    values = "; ".join(f"{key} of {', '.join(texts)}" for key, texts in found["tune"].items())
    yield (
        f"Tuned for each method: {values}, by the loss on a fifth of each client's training samples, which is held "
        f"out, with seed {found['seed']}: {plural(runs, 'run')} beside the budget."
    )
    for one in found["methods"]:
        tried = (f"{_settings(of['settings'])}: {_loss(of['held_out_loss'])}" for of in one["candidates"])
        if not one["settings"]:
            yield f"{one['method']} was not tuned: {' and '.join(starmap(_untuned, one['lacks'].items()))}."
            continue
        lacks = "".join(f"; not tuned: {key}, {why}" for key, why in one["lacks"].items())
        told = f"Chosen for {one['method']}: {_settings(one['settings'])}{_edge(one)}"
        yield f"{told} ({', '.join(tried)}{_level(one)}){lacks}."


def _untuned(key: str, why: str) -> str:
    return f"it has no setting {key}" if why == NO_SETTING else f"{key} is {why}"


def _level(one: Mapping[str, Any]) -> str:
    """The candidates whose loss is that of the chosen one, as far as it is shown."""
    shown = [(_settings(of["settings"]), _loss(of["held_out_loss"])) for of in one["candidates"]]
    best = dict(shown)[_settings(one["settings"])]
    level = [settings for settings, loss in shown if loss == best]
    return f"; {', '.join(level[:-1])} and {level[-1]} are level" if len(level) > 1 else ""


_FEWEST_INSIDE = 3  # values, of which one is at no edge


def _edge(one: Mapping[str, Any]) -> str:
    found = []
    for field, text in one["settings"].items():
        try:
            tried = {float(of["settings"][field]) for of in one["candidates"]}
            at_edge = len(tried) >= _FEWEST_INSIDE and float(text) in (min(tried), max(tried))
        except (KeyError, ValueError):  # words have no order
            continue
        found += [field] * at_edge
    return f", {' and '.join(found)} at the edge of the values tried" if found else ""


def _settings(own: Mapping[str, str]) -> str:
    return " ".join(f"{key}={text}" for key, text in own.items()) or "as it is"


def _loss(value: float | None) -> str:
    return "diverged" if value is None else f"{value:.4g}"


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def measures(content: Content) -> Sequence[Mapping[str, Any]]:
    """The metrics, the leading one first."""
    return content.get("measures") or (_ACCURACY,)


def sentences(content: Content) -> Iterator[str]:
    """By method: how good, against training alone, and what servers learned."""
    rows, measure = content["rows"], measures(content)[0]
    field = f"local_{measure['name']}"
    alone = next((row for row in rows if row["method"] == LOCAL and score(row, field)), None)
    for row in rows:
        found, tuned = score(row, field), score(row, f"fine_tuned_{field}")
        if found is None:
            continue
        is_accuracy, reached = measure["name"] == "accuracy", metric(found["mean"], measure["share"])
        said = f"right on {reached} of" if is_accuracy else f"{measure['label']} {reached} on"
        said = f"{row['method']}: {said} each client's own kind of data"
        if tuned is not None:
            said += f", {metric(tuned['mean'], measure['share'])} once its clients fine-tune"
        if alone is not None and row is not alone:
            said += f"; {_against(row, alone, measure)}"
        yield f"{said}{_told(row)}."


def lead_columns(content: Content) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Field, head and metric, where any lead has one."""
    first, *others = measures(content)
    name, label = first["name"], first["label"]
    found = [(f"local_{name}", f"local {label}", first), (f"fine_tuned_local_{name}", "local, both tuned", first)]
    found += [(f"global_{name}", f"global {label}", first)]
    found += [(f"local_{one['name']}", f"local {one['label']}", one) for one in others]
    return [column for column in found if any(score(lead, column[0]) for lead in content["leads"])]


def lead_rows(content: Content) -> list[tuple[str, list[str]]]:
    columns = lead_columns(content)
    return [
        (lead["over"], [with_interval(score(lead, field), measure["share"]) for field, _, measure in columns])
        for lead in content["leads"]
    ]


def lead_title(content: Content) -> str:
    points = ", in points," if all(one["share"] for one in measures(content)) else ""
    return f"Lead of {content['rows'][0]['method']}{points} with its 95 % interval over paired seeds"


def lead_note(content: Content) -> str:
    own = [one["label"] for one in measures(content) if not one["share"]]
    lower = [one["label"] for one in measures(content) if not one["higher"]]
    rest = ", all else in points" if len(own) < len(measures(content)) else ""
    units = f"{', '.join(own)}: in its own unit{rest}. " if own else ""
    less = f"{', '.join(lower)}: by how much it is lower, which is better. " if lower else ""
    return f"{units}{less}An interval that contains 0 shows no difference."


def with_interval(spread: Mapping[str, Any] | None, share: bool) -> str:
    """Of a metric's difference; of shares in points."""
    if spread is None:
        return MISSING
    scale, form = (100, "+z.1f") if share else (1, "+.4g")
    mean, interval = scale * spread["mean"], spread["interval"]
    if interval is None:
        return f"{mean:{form}}"
    return f"{mean:{form}} [{mean - scale * interval:{form}}, {mean + scale * interval:{form}}]"


FEWEST_SEEDS = 3  # for the words better and worse: an interval over two is of little worth


@dataclass(frozen=True)
class OverAlone:
    """A method's gain over training alone, above 0 if better, by seed.  interval: half of it, None for one seed.
    tuned: both are fine-tuned.
    """

    gain: float
    interval: float | None
    seeds: int
    tuned: bool


def over_alone(
    row: Mapping[str, Any], alone: Mapping[str, Any], measure: Mapping[str, Any], tuned: bool = True
) -> OverAlone | None:
    """On each client's own kind of data, fine-tuned if both rows are and ``tuned``; None if one lacks it."""
    field, sign = f"local_{measure['name']}", 1 if measure["higher"] else -1
    tuned = tuned and all(score(one, f"fine_tuned_{field}") for one in (row, alone))
    ours, theirs = (score(one, f"fine_tuned_{field}" if tuned else field) for one in (row, alone))
    if not ours or not theirs:
        return None
    gains = [sign * (a - b) for a, b in zip(ours["values"], theirs["values"], strict=True)]
    return OverAlone(*mean_and_interval(gains), len(gains), tuned)


def _against(row: Mapping[str, Any], alone: Mapping[str, Any], measure: Mapping[str, Any]) -> str:
    found, share = over_alone(row, alone, measure), measure["share"]
    if found is None:
        return "it is not compared with training alone"
    mean, interval = found.gain * (1 if measure["higher"] else -1), found.interval
    when = f"{'after fine-tuning, ' if found.tuned else ''}on average over the clients"
    lower = "" if measure["higher"] else ", and lower is better"
    unit = " points" if share else ""

    def shown(difference: float, form: str = "") -> str:
        return f"{100 * difference:{form}.1f}" if share else f"{difference:{form}.3g}"

    signed = shown(mean, "+") if measure["higher"] else f"{'lower' if mean < 0 else 'higher'} by {shown(abs(mean))}"
    if interval is None or found.seeds < FEWEST_SEEDS:
        few = plural(found.seeds, "seed")
        return f"{when}, {signed}{unit} against training alone{lower} ({few}, so this shows no difference)"
    if abs(mean) <= interval:
        return f"{when}, no difference to training alone is shown ({signed} ± {shown(interval)}{unit}{lower})"
    better = "better" if (mean > 0) == measure["higher"] else "worse"
    return f"{when}, {shown(abs(mean))} ± {shown(interval)}{unit} {better} than training alone{lower}"


_ALL, LITTLE = 0.995, 0.1
"""From where a leak is told as everything, below which as next to nothing."""


def graded(topic: str, leak: float) -> str:
    """What servers do that learn so much of a topic: ``read every client's model (100 %)``."""
    grade = 0 if leak >= _ALL else 1 if leak >= LITTLE else 2
    return f"{TOPICS[topic].told[grade]} ({100 * max(leak, 0.0):.0f} %)"


def _told(row: Mapping[str, Any]) -> str:
    learned = row.get("learned")
    if learned is None:
        why = row.get("not_attacked")
        return f"; it was not attacked: {why}" if why else ""
    if not learned:
        return "; its server learns nothing of models or data"
    known = {topic: leak["mean"] for topic in TOPICS if (leak := learned.get(topic)) is not None}
    told = "".join(f", {graded(topic, leak)}" for topic, leak in known.items() if leak > 0)
    none = ", ".join(TOPICS[topic].short for topic, leak in known.items() if not leak > 0)
    unsure = ", ".join(TOPICS[topic].short for topic in unsure_of(row))
    parts = [f"its servers {told.removeprefix(', ')}"] if told else []
    parts += [f"nothing found of {none}"] if none else []
    parts += [f"the attacks cannot tell of {unsure}"] if unsure else []
    return "".join(f"; {part}" for part in parts)
