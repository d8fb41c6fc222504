"""A comparison's scores as a table: terminal, Markdown, LaTeX (booktabs), CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.record.comparison import FORMS, PRIOR
from coterie.report.comparison import FEWEST_SEEDS, measures
from coterie.report.words import number, spread
from coterie.runs.metrics import score

Row = Mapping[str, Any]
_TUNED = "tuned: after each client's own fine-tuning"
_OWN_SHARES = (
    "prior: with each client's own label shares and the mixture's label counts, which the simulation supplies (with "
    "label_counts=true messages do)"
)
_PRIOR = f"{_OWN_SHARES}, unless the batch looks like other labels"
_MIXED = "mixed: the model with the prior and the tuned one, by the likelihood of held-out samples"
_FLAGGED = "flagged, false alarms: poisoned and other contributions that the method takes for poisoned"
_GROUPS = "groups found: adjusted Rand index, 1 for the data's own groups, 0 for chance"
_LATEX = str.maketrans(
    {char: f"\\{char}" for char in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--"}
)


@dataclass(frozen=True)
class ScoreColumn:
    """wrapped: its head, with a break.  values: ``Spread`` by method, or None.  explained: a word of
    the head, or "".
    """

    wrapped: str
    values: Sequence[Row | None]
    scale: float
    form: str
    explained: str = ""

    @property
    def head(self) -> str:
        return self.wrapped.replace("\n", " ")

    def texts(self) -> list[str]:
        return [spread(value, self.scale, self.form) for value in self.values]


def score_columns(rows: Sequence[Row], measured: Sequence[Row] = ()) -> list[ScoreColumn]:
    """That any method has.  measured: metrics, the leading first."""
    first, *others = measures({"measures": measured})
    name, is_share = first["name"], first["share"]
    head = "%" if not others and name == "accuracy" else _head(first)
    wanted = [
        (f"local\n{head}", f"local_{name}", is_share, None, ""),
        (f"local {head},\ntuned", f"fine_tuned_local_{name}", is_share, None, _TUNED),
        (f"local {head},\nprior", f"prior_local_{name}", is_share, None, _PRIOR),
        (f"local {head},\nmixed", f"mixed_local_{name}", is_share, None, _MIXED),
        (f"global\n{head}", f"global_{name}", is_share, None, ""),
        *(
            (f"{side}\n{_head(one)}", f"{side}_{one['name']}", one["share"], None, "")
            for one in others
            for side in ("local", "global")
        ),
        ("backdoor\nworks %", "backdoor_success", True, None, ""),
        ("flagged\n%", "detection_rate", True, None, _FLAGGED),
        ("false\nalarms %", "false_alarms", True, None, _FLAGGED),
        ("groups\nfound", "ari", False, ".2f", _GROUPS),
    ]
    found = []
    for wrapped, field, share, form, explained in wanted:
        values = [score(row, field) for row in rows]
        if any(values):
            form = form or (".1f" if share else ".4g")
            found.append(ScoreColumn(wrapped, values, 100 if share else 1, form, explained))
    return found


def interval_note(seeds: int) -> str:
    """What ± means; "" for one seed."""
    if seeds < 2:
        return ""
    wide = f" Two seeds give a very wide one: use at least {FEWEST_SEEDS}." if seeds < FEWEST_SEEDS else ""
    return f"±: half of the 95 % interval of the mean over {seeds} seeds.{wide}"


def markdown(content: Row) -> str:
    head, *rows = _cells(content)
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    table = "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
    note = interval_note(len(content["seeds"]))
    return f"{table}\n{note}\n" if note else table


def escaped(words: str) -> str:
    return words.translate(_LATEX)


def latex(content: Row) -> str:
    head, *rows = ([escaped(cell) for cell in line] for line in _cells(content))
    body = [f"{' & '.join(row)} \\\\" for row in rows]
    top = [rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", r"\toprule", f"{' & '.join(head)} \\\\", r"\midrule"]
    note = interval_note(len(content["seeds"])).translate(_LATEX)
    below = [rf"\multicolumn{{{len(head)}}}{{l}}{{\footnotesize {note}}} \\"] if note else []
    return "\n".join([*top, *body, r"\bottomrule", *below, r"\end{tabular}", ""])


def as_csv(content: Row) -> str:
    """``method, measure, seed, value``. Shares stay shares."""
    rows, written = content["rows"], io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(["method", "measure", "seed", "value"])
    for one in score_columns(rows, content["measures"]):
        for row, value in zip(rows, one.values, strict=True):
            for seed, of_seed in zip(content["seeds"], value["values"] if value else (), strict=False):
                writer.writerow([row["method"], one.head.replace(" %", ""), seed, of_seed])
    for method, form, measured in form_values(content):
        for head, value in list(measured.items())[1:]:  # the first stands above
            for seed, of_seed in zip(content["seeds"], value["values"], strict=False):
                writer.writerow([method, f"{head}, {form}", seed, of_seed])
    return written.getvalue()


def _cells(content: Row) -> Iterator[list[str]]:
    rows = content["rows"]
    found = score_columns(rows, content["measures"])
    yield ["method", *(one.head for one in found)]
    for row, *texts in zip(rows, *(one.texts() for one in found), strict=True):
        yield [row["method"], *texts]


def _head(measure: Row) -> str:
    return f"{measure['label']} %" if measure["share"] else str(measure["label"])


# -- what clients can make of their models -----------------------------------------------------------------------------


FORMS_TITLE = "What each client can make of its model, and on other test labels"


def form_values(content: Row) -> Iterator[tuple[str, str, dict[str, Mapping[str, Any]]]]:
    """By method and form, and head, spreads over seeds."""
    first, *_ = measures(content)
    name = first["name"]
    for row in content["rows"]:
        over = row.get("clients") or {}
        for form, words in FORMS.items():
            own = over.get(f"{form}local_{name}") or {}
            wanted = {
                first["label"]: score(row, f"{form}local_{name}"),
                "worst decile": own.get("worst_decile"),
                "balanced": score(row, f"{form}local_balanced_accuracy"),
                "own classes": score(row, f"{form}own_classes_accuracy"),
                "all classes": score(row, f"{form}all_classes_accuracy"),
                "prior left out": score(row, "prior_local_dropped") if form == "prior_" else None,
            }
            if own and wanted[first["label"]]:
                if own.get("interval") is not None:
                    wanted["± clients"] = {"mean": own["interval"], "interval": None, "values": ()}
                yield row["method"], words, {head: of for head, of in wanted.items() if of}


def form_table(content: Row) -> tuple[list[str], list[list[str]]]:
    """Heads and rows; none without these numbers."""
    first, *_ = measures(content)
    of_metric, found = (first["label"], "worst decile", "± clients"), list(form_values(content))
    order = (first["label"], "± clients", "worst decile", "balanced", "own classes", "all classes", "prior left out")
    heads = [head for head in order if any(head in values for *_, values in found)]
    shares = {head for head in heads if first["share"] or head not in of_metric}

    def cell(of: Mapping[str, Any] | None, share: bool) -> str:
        return spread(of, 100, ".1f") if share else number(None if of is None else of["mean"])

    rows = []
    for method, form, values in found:
        rows.append([method, form, *(cell(values.get(head), head in shares) for head in heads)])
    return ["method", "models", *(f"{head}, %" if head in shares else head for head in heads)], rows


def form_note(content: Row) -> str:
    several = any(len(row["runs"]) > 1 for row in content["rows"])
    only_classes = content.get("task", "classes") == "classes"
    priors = [values for _, form, values in form_values(content) if form == FORMS[PRIOR]]
    dropped = ["prior left out" in values for values in priors]
    gains = "loss and accuracy gain" if only_classes else "loss gains"
    unchecked = " (prior left out is –: no batch is that large, so none was checked)"
    shown = {word for _, form, values in form_values(content) for word in (form, *values)}
    notes = {
        "tuned": f"tuned: where held-out {gains} by a standard error",
        "prior": f"{_OWN_SHARES}; left out for a batch of 30 or more samples whose labels seem to have other shares"
        + (unchecked if not all(dropped) else ""),
        "mixed": _MIXED,
        "± clients": "± clients: half of the 95 % interval of the mean over the clients of one seed",
        "worst decile": "worst decile: a tenth of the clients are "
        + ("below" if measures(content)[0]["higher"] else "above"),
        "all classes": "own classes, all classes: accuracy on test labels that are uniform over these",
    }
    found = [note for word, note in notes.items() if word in shown]
    found += ["±: the same over the seeds"] if several else []
    found += [] if only_classes else ["prior and other label mixes are not offered beyond classes"]
    return ". ".join(note[0].upper() + note[1:] for note in found) + "."
