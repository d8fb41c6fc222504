"""What a comparison says in words: its one budget, what is not shared, and a sentence a method.

Everything is made from the content of ``compare.json``, so the command line and the report say the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from coterie.record.comparison import ACCURACY
from coterie.report.words import MISSING, metric, percent
from coterie.runs.intervals import mean_and_interval
from coterie.runs.metrics import score

LOCAL = "local"
TOPICS = {
    "models": "clients' models",
    "identity": "whose model is whose from round to round",
    "labels": "label shares",
    "groups": "which clients are alike",
    "samples": "training samples",
    "other": "the system's other secrets",
}
"""What servers may learn, by topic."""
_ACCURACY = msgspec.structs.asdict(ACCURACY)
Content = Mapping[str, Any]
"""``compare.json``."""


def topics_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The topics of which the servers of some method may learn."""
    return [topic for topic in TOPICS if any(topic in (row.get("learned") or {}) for row in rows)]


def budget(content: Content) -> str:
    """What all methods share, as one sentence; or that they do not."""
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
    told.append(
        "server step " + b["server_lr"] + (f" / (1 + {b['server_decay']} (r - 1))" * bool(shared["server_decay"]))
    )
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


def attack(content: Content) -> str:
    """Who misbehaves in all runs, as one sentence; "" if nobody does."""
    if content.get("attack") is None:
        return ""
    share = percent(content["attackers"])
    return f"{share} of the clients misbehave ({content['attack']}); all scores are means over the honest ones."


def not_shared(content: Content) -> Iterator[str]:
    """A sentence for everything that a method does not share."""
    for found in content["differences"]:
        if found["shared"] is None:
            beyond = f"{found['method']}, {found['setting']}={_plain(found['value'])}; {found['why']}"
            yield f"Beyond the budget: {beyond}."
            continue
        own = "none" if found["value"] is None else _plain(found["value"])
        shared = _plain(found["shared"])
        yield f"Not shared: {found['method']}, {found['setting']} {own} instead of {shared}; {found['why']}."


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def measures(content: Content) -> Sequence[Mapping[str, Any]]:
    """The metrics of a comparison, or of a result; the first leads. Accuracy where none is named, as once."""
    return content.get("measures") or (_ACCURACY,)


def sentences(content: Content) -> Iterator[str]:
    """One sentence a method, from the numbers: how good, against training alone, and what its servers learned."""
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
    """Of the table of leads: each column's field, head and metric. All of the leading metric, of others the local one.

    A field that no lead has is left out.
    """
    first, *others = measures(content)
    name, label = first["name"], first["label"]
    found = [(f"local_{name}", f"local {label}", first), (f"fine_tuned_local_{name}", "local, both tuned", first)]
    found += [(f"global_{name}", f"global {label}", first)]
    found += [(f"local_{one['name']}", f"local {one['label']}", one) for one in others]
    return [column for column in found if any(score(lead, column[0]) for lead in content["leads"])]


def lead_title(content: Content) -> str:
    """Of the table of leads."""
    points = ", in points," if all(one["share"] for one in measures(content)) else ""
    return f"Lead of {content['rows'][0]['method']}{points} with its 95 % interval over paired seeds"


def lead_note(content: Content) -> str:
    """What the numbers of the table of leads mean."""
    own = [one["label"] for one in measures(content) if not one["share"]]
    lower = [one["label"] for one in measures(content) if not one["higher"]]
    rest = ", all else in points" if len(own) < len(measures(content)) else ""
    units = f"{', '.join(own)}: in its own unit{rest}. " if own else ""
    less = f"{', '.join(lower)}: by how much it is lower, which is better. " if lower else ""
    return f"{units}{less}An interval that contains 0 shows no difference."


def with_interval(spread: Mapping[str, Any] | None, share: bool) -> str:
    """A difference of a metric and its interval; of shares in points."""
    if spread is None:
        return MISSING
    scale, form = (100, "+z.1f") if share else (1, "+.4g")
    mean, interval = scale * spread["mean"], spread["interval"]
    if interval is None:
        return f"{mean:{form}}"
    return f"{mean:{form}} [{mean - scale * interval:{form}}, {mean + scale * interval:{form}}]"


def _against(row: Mapping[str, Any], alone: Mapping[str, Any], measure: Mapping[str, Any]) -> str:
    field, share = f"local_{measure['name']}", measure["share"]
    ours, theirs = (score(one, f"fine_tuned_{field}") or score(one, field) for one in (row, alone))
    mean, interval = mean_and_interval([a - b for a, b in zip(ours["values"], theirs["values"], strict=True)])
    lower = "" if measure["higher"] else ", and lower is better"
    unit = " points" if share else ""

    def shown(difference: float, form: str = "") -> str:
        return f"{100 * difference:{form}.1f}" if share else f"{difference:{form}.3g}"

    signed = shown(mean, "+") if measure["higher"] else f"{'lower' if mean < 0 else 'higher'} by {shown(abs(mean))}"
    if interval is None:
        return f"{signed}{unit} against training alone{lower} (one seed, so this shows no difference)"
    if abs(mean) <= interval:
        return f"no difference to training alone is shown ({signed} ± {shown(interval)}{unit}{lower})"
    better = (mean > 0) == measure["higher"]
    return f"{shown(abs(mean))} ± {shown(interval)}{unit} {'better' if better else 'worse'} than training alone{lower}"


_LEARNED = {
    "models": ("read every client's model", "read part of the models", "read next to nothing of the models"),
    "identity": (
        "follow every client's model from round to round",
        "follow part of the models from round to round",
        "hardly follow a model from round to round",
    ),
    "labels": ("know the label shares", "know part of the label shares", "know next to nothing of label shares"),
    "groups": ("know which clients are alike", "know in part which clients are alike", "hardly know who is alike"),
    "samples": (
        "know the training samples",
        "know something of the training samples",
        "know next to nothing of training samples",
    ),
    "other": ("know the system's other secrets", "know part of its other secrets", "hardly know its other secrets"),
}
_ALL, _LITTLE = 0.995, 0.1


def _told(row: Mapping[str, Any]) -> str:
    """What the servers learned, as the end of a sentence; empty where nobody attacked."""
    learned = row.get("learned")
    if learned is None:
        why = row.get("not_attacked")
        return f"; it was not attacked: {why}" if why else ""
    if not learned:
        return "; its server learns nothing of models or data"
    parts = []
    for topic, words in _LEARNED.items():
        if (leak := learned.get(topic)) is not None:
            share = leak["mean"]
            grade = 0 if share >= _ALL else 1 if share >= _LITTLE else 2
            parts.append(f"{words[grade]} ({100 * max(share, 0.0):.0f} %)")
    return f"; its servers {', '.join(parts)}" if parts else ""
