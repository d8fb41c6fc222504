"""What a comparison or a run comes to: sentences, and five numbers a method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from coterie.record.load import Run
from coterie.record.schema import AttackRecord
from coterie.report.comparison import (
    FEWEST_SEEDS,
    LITTLE,
    TOPICS,
    Content,
    OverAlone,
    graded,
    measures,
    over_alone,
    topics_of,
    unsure_of,
    with_interval,
)
from coterie.report.words import CANNOT_TELL, MISSING, metric, plural, scored, size
from coterie.runs.budget import LOCAL
from coterie.runs.metrics import score


class MethodStanding:
    """Of a row of a comparison.  own, tuned: ``Spread`` of the leading metric on each client's own kind of data.

    worst: the topic that servers learn most of, and how much, from 0 for chance to 1; None if unknown.  sent: bytes.
    unsure: topics of which attacks cannot tell.
    """

    def __init__(self, row: Mapping[str, Any], field: str) -> None:
        self.method: str = row["method"]
        self.emulated = row.get("crypto") == "emulated"
        self.own, self.tuned = score(row, field), score(row, f"fine_tuned_{field}")
        self.worst, self.unsure = worst(row), unsure_of(row)
        self.sent = (row.get("bytes_up") or {}).get("mean")

    @property
    def name(self) -> str:
        return f"{self.method} (emulated cipher)" if self.emulated else self.method

    @property
    def marked(self) -> str:
        """In a chart, where a 0 may be measured, leave topics out, or mean nothing to attack."""
        nothing = ", nothing to attack" if self.worst == _NOTHING else ""
        return f"{self.name}{' ' + CANNOT_TELL if self.unsure else ''}{nothing}"

    @property
    def note(self) -> str:
        return f"{CANNOT_TELL} {self.method}, could not tell: {heads(self.unsure)}" if self.unsure else ""

    @property
    def left_out(self) -> str:
        """Why a chart of leaks does not show it, or ""."""
        if self.worst is not None:
            return ""
        why = f"the attacks cannot tell: {heads(self.unsure)}" if self.unsure else "not attacked"
        return f"not shown: {self.name}, {why}"


def heads(topics: Sequence[str]) -> str:
    return ", ".join(TOPICS[topic].head for topic in topics)


_NOTHING = "", 0.0  # where nothing reaches a server that an attack could read


def standings(content: Content) -> list[MethodStanding]:
    field = f"local_{measures(content)[0]['name']}"
    return [MethodStanding(row, field) for row in content["rows"]]


def worst(row: Mapping[str, Any]) -> tuple[str, float] | None:
    """What servers learn most of, and how much; None if no attack could tell."""
    learned = row.get("learned")
    if learned is None:
        return None
    known = {topic: max(leak["mean"], 0.0) for topic in TOPICS if (leak := learned.get(topic)) is not None}
    if not learned:
        return _NOTHING
    return max(known.items(), key=lambda found: found[1]) if known else None


def verdict(content: Content) -> list[str]:
    return [*_helps(content), *_ahead(content), *_best(content), *_leaks(content)]


def _helps(content: Content) -> Iterator[str]:
    first, measure = content["rows"][0], measures(content)[0]
    name = f"`{first['method']}`"
    alone = next((row for row in content["rows"] if LOCAL in (row["method"], row.get("system"))), None)
    found = None if alone in (None, first) else over_alone(first, alone, measure)
    own = score(first, f"local_{measure['name']}")
    if found is None:
        if own is not None:
            reached = metric(own["mean"], measure["share"])
            yield f"{name} has {measure['label']} {reached} on each client's own kind of data."
            yield "Nothing here compares it with clients that train alone."
        return
    gain = _points(found.gain, found.interval, measure)
    tuned = ", both fine-tuned by the clients" if found.tuned else ""
    plain = over_alone(first, alone or {}, measure, tuned=False) if found.tuned else None
    if plain is not None and _differ(content, first["method"], found, plain):
        tuned += f"; without fine-tuning {_points(plain.gain, plain.interval, measure)}"
    lower = "" if measure["higher"] else " (above 0: lower, which is better)"
    shown = found.interval is not None and found.seeds >= FEWEST_SEEDS
    said = "against training alone"
    if shown and abs(found.gain) <= (found.interval or 0.0):
        said = "is not shown to be better or worse than training alone"
    elif shown:
        said = f"is {'better' if found.gain > 0 else 'worse'} than training alone"
    over = f" (95 % interval over {found.seeds} paired seeds)" if shown else ""
    yield f"{name} {said}: {gain}{lower} on average{tuned}{over}."
    yield from _client_by_client(content, first["method"], found.tuned, measure)
    if not shown:
        many = "One seed shows" if found.seeds == 1 else f"{found.seeds} seeds show"
        yield f"{many} nothing of the next one: repeat it with at least {FEWEST_SEEDS}."


def _points(mean: float, interval: float | None, measure: Mapping[str, Any]) -> str:
    """``+6.5 points of accuracy [+3.1, +9.9]``."""
    value, _, ends = with_interval({"mean": mean, "interval": interval}, measure["share"]).partition(" ")
    unit = f"points of {measure['label']}" if measure["share"] else f"in {measure['label']}"
    return f"{value} {unit} {ends}".strip()


def _client_by_client(content: Content, method: str, tuned: bool, measure: Mapping[str, Any]) -> Iterator[str]:
    clients, counts = _judged(content, method, tuned), _counts(content, method, tuned)
    if any(counts[:3]):
        seeds = len({one["seed"] for one in clients})
        many = f"{len(clients)} clients" + (
            f", {len(clients) // seeds} with each of {seeds} seeds" if seeds > 1 else ""
        )
        rest = f", no interval for {counts[3]}" if counts[3] else ""
        lost: dict[str, list[float]] = {}
        for one in clients:
            if one["verdict"] == "worse" and one["name"] and not one.get("instead"):
                lost.setdefault(one["name"], []).append(one["gain"])
        if lost:
            name, gains = max(lost.items(), key=lambda found: abs(fmean(found[1])))
            rest += f"; worst for {name}, {_points(fmean(gains), None, measure)}"
        plain = _counts(content, method, tuned=False)
        if any(plain[:3]) and plain != counts:
            rest += f"; without fine-tuning it is {_told_counts(plain)}"
        yield f"It is {_told_counts(counts)} of {many}{rest}."


def _judged(content: Content, method: str, tuned: bool) -> Sequence[Mapping[str, Any]]:
    of = [one["clients"] for one in content["benefits"] if one["method"] == method and one["tuned"] == tuned]
    return of[0] if of else ()


def _counts(content: Content, method: str, tuned: bool) -> tuple[int, ...]:
    """Clients for which it is better, worse, undecided, and without an interval."""
    every = [one["verdict"] for one in _judged(content, method, tuned)]
    return tuple(every.count(word) for word in ("better", "worse", "undecided", None))


def _told_counts(counts: Sequence[int]) -> str:
    better, less, unsure, _ = counts
    return f"better for {better}, worse for {less} and undecided for {unsure}"


def _differ(content: Content, method: str, tuned: OverAlone, plain: OverAlone) -> bool:
    """Untuned models tell another story, for some client or on average."""
    if (tuned.gain > 0) != (plain.gain > 0):
        return True
    one, other = (_counts(content, method, tuned=form) for form in (True, False))
    return any(one) and any(other) and one != other


def _ahead(content: Content) -> Iterator[str]:
    measure = measures(content)[0]
    field = f"local_{measure['name']}"
    for lead in content["leads"]:
        found = score(lead, f"fine_tuned_{field}") or score(lead, field)
        if not found or found["interval"] is None or len(found["values"]) < FEWEST_SEEDS:
            continue
        if found["mean"] + found["interval"] < 0:
            yield f"`{lead['over']}` is ahead of it: {_points(-found['mean'], found['interval'], measure)}."


def _best(content: Content) -> Iterator[str]:
    """Of the method with the best mean, if it is neither the first nor training alone; before fine-tuning, or else
    after it.
    """
    rows, measure = content["rows"], measures(content)[0]
    field, sign = f"local_{measure['name']}", 1 if measure["higher"] else -1
    is_tuned = all(score(row, f"fine_tuned_{field}") for row in rows)
    alone = next((row for row in rows if LOCAL in (row["method"], row.get("system"))), None)
    for tuned in (False, True)[: 1 + is_tuned]:
        form = f"fine_tuned_{field}" if tuned else field
        means = [(sign * found["mean"], row) for row in rows if (found := score(row, form))]
        mean, best = max(means, key=lambda of: of[0], default=(0.0, rows[0]))
        is_first = any(row is rows[0] and own == mean for own, row in means)
        if is_first or not means or LOCAL in (best["method"], best.get("system")):
            continue
        when = f" {'after' if tuned else 'before'} fine-tuning" if is_tuned else ""
        reached = f"{measure['label']} {metric(sign * mean, measure['share'])}"
        said = f"`{best['method']}` has the best mean{when}: {reached} on each client's own kind of data"
        found = None if alone is None else over_alone(best, alone, measure, tuned)
        if found is not None:
            said += f"; against training alone {_points(found.gain, found.interval, measure)}"
        yield f"{said}."
        return


def _leaks(content: Content) -> Iterator[str]:
    rows = content["rows"]
    if all(row.get("learned") is None for row in rows):
        yield "No server's view was attacked here, so nothing is said of what servers learn."
        return
    for place, row in enumerate(rows):
        if place and LOCAL in (row["method"], row.get("system")):
            continue  # nobody sends anything of its own
        yield f"{_told(row, topics_of(rows), whole=place == 0)}."


def _told(row: Mapping[str, Any], topics: Sequence[str], *, whole: bool) -> str:
    servers, learned, most = f"`{row['method']}`'s servers", row.get("learned"), worst(row)
    if learned is None:
        return f"`{row['method']}` was not attacked"
    if not learned:
        return f"{servers} receive nothing of models or data that an attack could read"
    if most is None:
        return f"Our attacks cannot tell what {servers} learn"
    found = {topic: max(leak["mean"], 0.0) for topic in TOPICS if (leak := learned.get(topic)) is not None}
    if most[1] >= LITTLE:
        told = [topic for topic in TOPICS if found.get(topic, 0) >= LITTLE] if whole else [most[0]]
        return f"{servers} {_listed([graded(topic, found[topic]).removesuffix(' (100 %)') for topic in told])}"
    tried, unsure = [TOPICS[topic].short for topic in found], [TOPICS[topic].short for topic in unsure_of(row)]
    what = "nothing beyond chance" if most[1] == 0 else f"next to nothing, at most {metric(most[1], True)},"
    said = f"In what {servers} receive our attacks found {what} of {_listed(tried)}"
    none = [TOPICS[topic].short for topic in topics if topic not in learned] if whole else []
    said += f"; they cannot tell for {_listed(unsure)}" if unsure else ""
    return said + (f"; none applies to {_listed(none)}" if none else "")


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def of_run(run: Run) -> list[str]:
    result, measure, own = run.result, run.leading, run.result.score(f"local_{run.leading.name}")
    said = []
    if own is not None:
        lower = "" if measure.higher else " (lower is better)"
        reached = f"{measure.label} {metric(own, measure.share)}{lower} on each client's own kind of data"
        said.append(f"{result.name} has {reached} after {plural(result.done, 'round')}.")
    if result.deployment is None or result.deployment.rehearsal:
        said.append("One run shows no difference to another method, nor to training alone: `coterie compare` does.")
    if result.audit is None or not result.audit.attacks:
        said.append("Nobody's view was attacked here, so nothing is said of what the parties learn.")
    else:
        said.append(_attacked(result.audit.attacks))
    return said


def _attacked(attacks: Sequence[AttackRecord]) -> str:
    """attacks: the worst first. Those by one server alone have a topic."""
    alone = [one for one in attacks if one.topic is not None]
    whose = " by one server alone" if alone else ""
    alone = alone or list(attacks)
    most = alone[0]
    if most.verdict in ("nothing found", "cannot tell"):
        unsure = ", but not all of them can tell" if most.verdict == "cannot tell" else ""
        said = f"None of our {plural(len(alone), 'attack')}{whose} found anything{unsure}."
    else:
        said = f"The attack{whose} that learned most, {most.name}, found {most.verdict}: leak {most.leak:.2f} of 1."
    others = any(one.verdict not in ("nothing found", "cannot tell") for one in attacks if one not in alone)
    return (
        said + " Attacks by clients, by parties together or on what did not happen found more: see the table." * others
    )


HEADS = ("method", "on own kind of data", "after tuning", "servers learn, worst", "sent by all")


def table(content: Content) -> list[list[str]]:
    """The standings in five columns, the heads first."""
    first, found = measures(content)[0], standings(content)
    attacked = any(row.get("learned") is not None for row in content["rows"])
    rows = []
    for one in found:
        own, tuned = (MISSING if of is None else scored(of, first["share"]) for of in (one.own, one.tuned))
        rows.append([one.name, own, tuned, _learned(one, attacked), size(one.sent)])
    return [[HEADS[0], f"{first['label']} {HEADS[1]}", *HEADS[2:]], *rows]


def _learned(one: MethodStanding, attacked: bool) -> str:
    if one.worst is None:
        return "cannot tell" if attacked else "not attacked"
    topic, share = one.worst
    if not topic:
        return "nothing to attack"
    told = f"{100 * share:.0f} ({TOPICS[topic].short})" if share > 0 else "0"
    return f"{told}; {CANNOT_TELL} {heads(one.unsure)}" if one.unsure else told
