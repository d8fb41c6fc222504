"""Numbers in words. Every function takes None for "not measured"."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.record.comparison import Measure

MISSING = "–"
CIPHERS = {"real": "real ciphers", "emulated": "emulated ciphers", "none": "no encryption"}
CANNOT_TELL = "?"  # for a leak that attacks could not tell from luck; where none applies there is a dash


def percent(share: float | None, std: float | None = None) -> str:
    """``87.3 %``, or with a standard deviation ``87.3 ± 1.2 %``."""
    if share is None:
        return MISSING
    spread = "" if std is None else f" ± {100 * std:.1f}"
    return f"{100 * share:.1f}{spread} %"


def scored(of: Mapping[str, Any], share: bool) -> str:
    """With half of its 95 % interval: ``91.2 ± 0.4 %``, ``0.812 ± 0.01``."""
    if share:
        return percent(of["mean"], of["interval"])
    return number(of["mean"]) + ("" if of["interval"] is None else f" ± {number(of['interval'])}")


def leak_half(of: float, digits: int = 2) -> str:
    """Half of a leak's 95 % interval: ``0.04``; beyond the scale of leaks ``>1``."""
    return f"{of:.{digits}f}" if of <= 1 else ">1"


def leak_halves(shown: Sequence[float]) -> str:
    """What ± means beside these."""
    wide = "; >1: too few seeds or clients" if max(shown, default=0.0) > 1 else ""
    return f"±: half of its 95 % interval, a smaller leak counts as chance{wide}"


def metric(of: float | None, share: bool) -> str:
    return percent(of) if share else number(of)


def explained(measure: Measure) -> dict[str, tuple[str, str]]:
    return {
        f"global_{measure.name}": (f"Global {measure.label}", "on the whole test set"),
        f"local_{measure.name}": (f"Local {measure.label}", "on test data like the client's own"),
    }


_SIDES = {
    "global": "global",
    "local": "local",
    "fine_tuned_global": "global, fine-tuned,",
    "fine_tuned_local": "local, fine-tuned,",
    "prior_local": "local, with the prior,",
    "mixed_local": "local, mixed,",
}


def sides(measure: Measure) -> dict[str, str]:
    return {field: f"{where} {measure.label}" for field, where in places(measure).items()}


def places(measure: Measure) -> dict[str, str]:
    """By field: which test data, and form of a model."""
    return {f"{side}_{measure.name}": where for side, where in _SIDES.items()}


def capital(name: str) -> str:
    return name[:1].upper() + name[1:]


def divided(partition: str) -> str:
    from coterie.data.schemes import FORMS, TASK_FORMS

    task, _, skew = partition.partition("+")
    said = [text for part in (task, skew) if (text := _dealt(part, {**FORMS, **TASK_FORMS}))]
    if task.startswith("by:"):
        said = ["each client has data of its own"]
    return f"{'; within a group: '.join(said) or 'training data are dealt'} ({partition})"


def _dealt(part: str, forms: Mapping[str, str]) -> str:
    kind, _, argument = part.partition(":")
    known = {form: text for form, text in forms.items() if re.split(r"[:+\[]", form)[0] == kind}
    ranged = re.fullmatch(r"\d+-\d+", argument) is not None
    text = next((text for form, text in known.items() if ("LO-HI" in form.partition(":")[2][:5]) == ranged), "")
    if ranged:
        return text.replace("LO to HI", argument.replace("-", " to "))
    found = re.match(r"\d+", argument)
    return re.sub(r"\b[KMN]\b", found[0], text) if found else text


def size(count: float | None) -> str:
    """Bytes in powers of 1000, three digits: ``1.41 MB``."""
    return MISSING if count is None else _scaled(count, ("B", "kB", "MB", "GB", "TB"), whole=True)


def sized(count: float) -> str:
    """For a tick, perhaps below a byte: ``500 kB``, ``1.5 MB``, ``0.2 B``."""
    if count < 1:
        return f"{count:.3g} B"
    return re.sub(r"\.(\d*?)0+(?= )", lambda digits: f".{digits[1]}" if digits[1] else "", size(count))


def energy(joules: float | None) -> str:
    """Joules in powers of 1000, three digits: ``41 mJ``, ``1.41 kJ``."""
    return MISSING if joules is None else _scaled(1000 * joules, ("mJ", "J", "kJ", "MJ", "GJ"))


def duration(seconds: float | None, *, whole: bool = False) -> str:
    """``12 ms``, ``8.30 s``, ``2 min 5 s``, ``3 h 20 min``, ``2 d 4 h``.  whole: without fractions of a second."""
    if seconds is None:
        return MISSING
    seconds = round(seconds) if whole else seconds
    if seconds == 0:
        return "0 s"
    if seconds < 0.9995:
        return f"{_digits(1000 * seconds)} ms"
    if seconds < 99.95:
        return f"{_digits(seconds, whole)} s"
    if seconds < 3599.5:
        return _two(round(seconds), 60, "min", "s")
    if seconds < 86400 - 30:
        return _two(round(seconds / 60), 60, "h", "min")
    return _two(round(seconds / 3600), 24, "d", "h")


def number(value: float | None) -> str:
    """Whole ones whole, others to four digits: ``31,043``."""
    if value is None:
        return MISSING
    return f"{value:,.0f}" if abs(value) >= 999.95 or value == round(value) else f"{value:.4g}"


def spread(of: Mapping[str, Any] | None, scale: float, form: str) -> str:
    """A mean and half of its 95 % interval, scaled: ``91.2 ± 0.4``; ``91.2`` of one seed."""
    if of is None:
        return MISSING
    interval = "" if of.get("interval") is None else f" ± {scale * of['interval']:{form}}"
    return f"{scale * of['mean']:{form}}{interval}"


def plural(count: int, one: str, many: str | None = None) -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def listed(numbers: Sequence[int | str], limit: int = 24) -> str:
    """``1, 3, 8``; a long list without its middle, with its length."""
    if len(numbers) <= limit:
        return ", ".join(map(str, numbers))
    head, tail = numbers[: limit - 4], numbers[-3:]
    left = len(numbers) - len(head) - len(tail)
    return f"{', '.join(map(str, head))}, … ({left} more) …, {', '.join(map(str, tail))}"


def _scaled(value: float, units: Sequence[str], whole: bool = False) -> str:
    for unit in units[:-1]:
        if value < 999.5:
            return f"{_digits(value, whole and unit == units[0])} {unit}"
        value /= 1000
    return f"{_digits(value)} {units[-1]}"


def _digits(value: float, whole: bool = False) -> str:
    if whole or value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def _two(small: int, factor: int, large_unit: str, small_unit: str) -> str:
    large, rest = divmod(small, factor)
    return f"{large} {large_unit}" + (f" {rest} {small_unit}" if rest else "")
