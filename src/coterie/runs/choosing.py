"""Settings chosen for each method of a comparison, by samples held out of clients' training, never by test data.

A candidate is a run with the first seed, without fine-tuning. The lowest mean loss on a fifth of each client's training
samples wins.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from math import inf, isfinite
from pathlib import Path
from typing import Any

from msgspec import structs

from coterie.protocol.errors import CoterieWarning, RunError, UserError
from coterie.record.comparison import NO_SETTING, Candidate, Chosen, ChosenSettings
from coterie.runs.budget import ComparisonPlan, plan
from coterie.runs.config import Resolved
from coterie.runs.failures import is_divergence
from coterie.runs.finished import FinishedRun

TUNING = ".tuning"
"""The candidates' folder, in the comparison's."""
WHY = "chosen by --tune"

Texts = Mapping[str, str]
RunOne = Callable[[str, Resolved], FinishedRun]
"""A run in ``config.out``, by its name."""


class HeldOutChoice:
    """What ``tune`` chooses, of nothing the one comparison. Raises UserError for values that are missing, repeated, or
    invalid.

    tune: by setting (``key`` or ``method.key``), the values to try.  how: of ``budget.plan``.  plans: each combination,
    and the comparison with it.  candidates: by label, combinations in which its settings differ.
    """

    def __init__(
        self,
        tune: Mapping[str, Sequence[str]],
        methods: Sequence[str],
        options: Mapping[str, Any],
        settings: Texts,
        **how: Any,
    ) -> None:
        for key, values in tune.items():
            if key in settings:
                raise UserError(f"{key} is both set and tuned: leave one of the two out")
            if len({*values}) < max(2, len(values)):
                raise UserError(f"--tune {key} takes two different values or more, such as {key}=0.03,0.1")
        self.tune = tune
        self._plan: Callable[[Texts], ComparisonPlan] = lambda more: plan(methods, options, {**settings, **more}, **how)
        combinations = [dict(zip(tune, texts, strict=True)) for texts in product(*tune.values())]
        self.plans: list[tuple[Texts, ComparisonPlan]] = [(texts, self._plan(texts)) for texts in combinations]
        self.candidates: dict[str, list[int]] = {}
        for label in self.first.methods:
            distinct: dict[str, int] = {}
            for place, (_, planned) in enumerate(self.plans):
                distinct.setdefault(repr(sorted(planned.methods[label].settings.items())), place)
            self.candidates[label] = [*distinct.values()]

    @property
    def first(self) -> ComparisonPlan:
        return self.plans[0][1]

    @property
    def names(self) -> list[str]:
        return [self._name(label, place) for label, places in self.candidates.items() for place in places]

    def run(self, seed: int, folder: Path, one: RunOne) -> tuple[ComparisonPlan, ChosenSettings]:
        """Run all candidates, and plan the comparison with the best. Raises RunError if all of a method's diverge."""
        methods = []
        for number, (label, places) in enumerate(self.candidates.items()):
            found = [self._tried(label, place, seed, folder / TUNING / f"{number}-{place}", one) for place in places]
            losses = [inf if each.held_out_loss is None else each.held_out_loss for each in found]
            if min(losses) == inf:
                raise RunError(f"{label}: its training diverges with all values of --tune: give others")
            methods.append(Chosen(label, tuple(found), found[losses.index(min(losses))].settings, self._lacks(label)))
        values = {key: tuple(texts) for key, texts in self.tune.items()}
        return self._planned({one.method: one.settings for one in methods}), ChosenSettings(
            values, seed, tuple(methods)
        )

    def _tried(self, label: str, place: int, seed: int, out: Path, one: RunOne) -> Candidate:
        config = self.plans[place][1].methods[label]
        apart: dict[str, Any] = {"fine_tune": "no", "fine_tune_every": 0, "record": False, "log": None}
        if config.early_stop is None:  # holds samples out; with one evaluation nothing stops
            apart |= {"early_stop": config.rounds, "eval_every": config.rounds}
        try:
            with _trying(_words(self._own(label, place))):
                done = one(self._name(label, place), replace(config, **apart, seed=seed, out=str(out)))
        except RunError as error:
            if not is_divergence(error):
                raise
            return Candidate(self._own(label, place), None)
        losses = [loss for line in done.rounds if (loss := line.get("held_out_loss")) is not None and isfinite(loss)]
        return Candidate(self._own(label, place), min(losses, default=None))

    def _own(self, label: str, place: int) -> dict[str, str]:
        lacks = self._lacks(label)
        return {_field(key): text for key, text in self.plans[place][0].items() if key not in lacks}

    def _lacks(self, label: str) -> dict[str, str]:
        found = {}
        for key, values in self.tune.items():
            settings = [planned.methods[label].settings for _, planned in self.plans]
            if _field(key) not in settings[0]:
                found[key] = NO_SETTING
            elif len({repr(own[_field(key)]) for own in settings}) < len(values):
                found[key] = "set for it alone, or refused"
        return found

    def _name(self, label: str, place: int) -> str:
        return f"{label} {_words(self._own(label, place))}".rstrip()

    def _planned(self, taken: Mapping[str, Texts]) -> ComparisonPlan:
        source, settings = self.first.budget_from, dict[str, str]()
        for label, own in taken.items():
            config = self.first.methods[label]
            for field, text in own.items():
                shared = label == source and field in self.tune
                settings[field if shared else f"{config.system}@{config.mode}.{field}"] = text
        found = self._plan(settings)
        told = [
            structs.replace(one, why=WHY) if one.setting in taken[one.method] and one.shared is not None else one
            for one in found.differences
        ]
        return replace(found, differences=told)


def _words(own: Texts) -> str:
    return " ".join(f"{field}={text}" for field, text in own.items())


@contextmanager
def _trying(words: str) -> Iterator[None]:
    heard: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always", CoterieWarning)
            yield
    finally:
        for one in heard:
            own = issubclass(one.category, CoterieWarning)
            warnings.warn(
                f"trying {words}: {one.message}" if own and words else one.message, one.category, stacklevel=2
            )


def _field(key: str) -> str:
    return key.rpartition(".")[2]
