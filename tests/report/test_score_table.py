"""A comparison's scores in Markdown, LaTeX and CSV are those of ``compare.json``."""

from __future__ import annotations

import csv
import io
from typing import Any

from coterie.report import score_table

ACCURACY = {"name": "accuracy", "label": "accuracy", "share": True, "higher": True}


def spread(*values: float, interval: float | None = None) -> dict[str, Any]:
    return {"mean": sum(values) / len(values), "values": list(values), "interval": interval}


CONTENT = {
    "seeds": [0, 1],
    "measures": [ACCURACY],
    "rows": [
        {"method": "own_method@paper|a", "local_accuracy": spread(0.9, 0.92, interval=0.127), "ari": spread(1.0, 1.0)},
        {"method": "fedavg", "local_accuracy": spread(0.5, 0.7, interval=1.27)},
    ],
}


def test_markdown_has_means_with_intervals_and_no_column_that_nobody_has() -> None:
    head, _, first, second, _, note = score_table.markdown(CONTENT).splitlines()
    assert (
        note == "±: half of the 95 % interval of the mean over 2 seeds. Two seeds give a very wide one: use at least 3."
    )
    assert head == "| method | local % | groups found |"
    assert first == r"| own_method@paper\|a | 91.0 ± 12.7 | 1.00 |"
    assert second == "| fedavg | 60.0 ± 127.0 | – |"


def test_latex_escapes_names_and_closes_its_rows() -> None:
    lines = score_table.latex(CONTENT).splitlines()
    assert lines[0] == r"\begin{tabular}{lrr}"
    assert lines[2] == r"method & local \% & groups found \\"
    assert lines[4] == r"own\_method@paper|a & 91.0 $\pm$ 12.7 & 1.00 \\"
    assert lines[-2].startswith(r"\multicolumn{3}{l}{\footnotesize $\pm$: half of the 95 \% interval")
    assert lines[-1] == r"\end{tabular}"


def test_one_seed_has_no_interval_to_explain() -> None:
    one = {**CONTENT, "seeds": [0]}
    assert score_table.markdown(one).splitlines()[-1].startswith("| fedavg |")
    assert score_table.latex(one).splitlines()[-2] == r"\bottomrule"
    assert score_table.interval_note(5) == "±: half of the 95 % interval of the mean over 5 seeds."


def test_csv_has_every_seed_as_it_was_measured() -> None:
    rows = list(csv.DictReader(io.StringIO(score_table.as_csv(CONTENT))))
    assert rows[0] == {"method": "own_method@paper|a", "measure": "local", "seed": "0", "value": "0.9"}
    assert [(row["seed"], float(row["value"])) for row in rows if row["method"] == "fedavg"] == [("0", 0.5), ("1", 0.7)]
