"""Whether training together helps each client, as rows and in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from coterie.report.comparison import Content, measures
from coterie.report.words import MISSING, metric

MOST_ROWS = 48  # of the table; for more clients there are counts, and ``compare.json``
HELP_HEADS = ("client", "method", "gain [95 %]", "verdict", "alone", "together", "tested")
HELP_WORDS = ("client", "method", "verdict")
_MOST_NAMES = 6


def help_title(content: Content) -> str:
    first = measures(content)[0]
    return f"Does it help? {first['label']} on each client's own test samples, together against alone"


def help_sentences(content: Content) -> Iterator[str]:
    """By method and form, for how many clients it is better or worse than alone."""
    for benefit in content["benefits"]:
        clients = benefit["clients"]
        same = len(_unmoved(content, benefit["method"])) == len(clients)
        if same and benefit["tuned"]:
            continue
        parts = []
        for verdict, words in (("better", "better for"), ("worse", "worse for"), ("undecided", "undecided for")):
            found = [one for one in clients if one["verdict"] == verdict]
            named = [one["name"] for one in found if one["name"] and verdict != "undecided"][:_MOST_NAMES]
            named += ["..."] if _MOST_NAMES == len(named) < len(found) else []
            parts.append(f"{words} {len(found) or 'none'}" + (f" ({', '.join(named)})" if named else ""))
        if missing := sum(one["verdict"] is None for one in clients):
            parts.append(f"no interval for {missing}")
        seeds = len({one["seed"] for one in clients})
        every = f", {len(clients) // seeds} with each of {seeds} seeds" if seeds > 1 else ""
        said = f"{_helper(benefit, same)}, of {len(clients)} clients{every}: {', '.join(parts)}."
        unsure = undecided(benefit, measures(content)[0])
        yield f"{said} {unsure}" if unsure else said


def client_sentences(benefit: Mapping[str, Any], measure: Mapping[str, Any]) -> Iterator[str]:
    """By client, whether training together is better, and how much."""
    tuned = ", both tuned" if benefit["tuned"] else ""
    for one in benefit["clients"]:
        what, share = f"{helped(one)}: training together", measure["share"] or one.get("instead") is not None
        unit = f"points of {one.get('instead') or measure['label']}" if share else f"in {measure['label']}"
        if one["gain"] is None:
            yield f"{what} could not be compared with training alone."
        elif one["verdict"] in ("better", "worse"):
            yield f"{what} is {one['verdict']} than training alone: {_gain(one, share)} {unit}{tuned}."
        elif one["verdict"]:
            yield f"{what} is not shown to be better or worse than training alone: {_gain(one, share)} {unit}{tuned}."
        else:
            yield f"{what} against training alone: {_gain(one, share)} {unit}{tuned}, without an interval."


def undecided(benefit: Mapping[str, Any], measure: Mapping[str, Any]) -> str:
    """Gains that test samples cannot show."""
    judged = (one for one in benefit["clients"] if not one.get("instead"))
    known = [one for one in judged if None not in (one["low"], one["high"])]
    if not any(one["verdict"] == "undecided" for one in known):
        return ""
    half = float(np.median([(one["high"] - one["low"]) / 2 for one in known]))
    size = f"about {100 * half:.1f} points" if measure["share"] else f"about {half:.3g}"
    return f"Undecided: with these test samples gains below {size} cannot be seen."


def help_note(content: Content) -> str:
    first = measures(content)[0]
    unit = "in points" if first["share"] else "in the metric's own unit"
    lower = "" if first["higher"] else ", above 0 where the metric is lower"
    every = [one for benefit in content["benefits"] for one in benefit["clients"]]
    instead = f" One label: {first['label']} is not defined on the client's test samples, so accuracy judges it."
    return (
        f"Gain: {unit}{lower}. Its interval is a paired bootstrap over the client's test samples, and over seeds "
        "that test the same samples. Better and worse: it leaves out 0. One in twenty intervals does so by chance."
    ) + (instead if any(one.get("instead") for one in every) else "")


def help_rows(content: Content) -> list[tuple[str, ...]]:
    """By client, method and form, under ``HELP_HEADS``; none if there are too many. One row where fine-tuning changes
    no number.
    """
    benefits, first = content["benefits"], measures(content)[0]
    if sum(len(benefit["clients"]) for benefit in benefits) > MOST_ROWS:
        return []
    unmoved = {benefit["method"]: _unmoved(content, benefit["method"]) for benefit in benefits}
    found = []
    for place in range(max((len(benefit["clients"]) for benefit in benefits), default=0)):
        for benefit in benefits:
            same = place in unmoved[benefit["method"]]
            if place < len(benefit["clients"]) and not (same and benefit["tuned"]):
                one = benefit["clients"][place]
                instead = one.get("instead")
                share = first["share"] or instead is not None
                values = (metric(one.get(key), share) for key in ("alone", "together"))
                why = f"one label: {instead} instead" if instead else ""
                verdict = f"{one['verdict']} ({why})" if one["verdict"] and why else one["verdict"] or why
                told = helped(one), _helper(benefit, same), _gain(one, share), verdict
                found.append((*told, *values, str(one["samples"])))
    return found


def _unmoved(content: Content, method: str) -> frozenset[int]:
    """Clients whose gain fine-tuning changes in no number."""
    forms = [one["clients"] for one in content["benefits"] if one["method"] == method]
    pairs = zip(*forms, strict=True) if len(forms) > 1 else ()
    return frozenset(place for place, (plain, tuned) in enumerate(pairs) if plain == tuned)


def _helper(benefit: Mapping[str, Any], unmoved: bool) -> str:
    form = ", tuned or not" if unmoved else ", both tuned" if benefit["tuned"] else ""
    return f"{benefit['method']}{form}"


def helped(one: Mapping[str, Any]) -> str:
    name = one["name"] or one["client"]
    return str(name) if one["seed"] is None else f"{name}, seed {one['seed']}"


def _gain(one: Mapping[str, Any], share: bool) -> str:
    if one["gain"] is None:
        return MISSING
    scale, form = (100, "+z.1f") if share else (1, "+.4g")
    interval = (
        "" if None in (one["low"], one["high"]) else f" [{scale * one['low']:{form}}, {scale * one['high']:{form}}]"
    )
    return f"{scale * one['gain']:{form}}{interval}"
