"""Finished runs and comparisons as objects with tables, figures and reports; audits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie import report
from coterie.record.load import find, whole_comparison, whole_summary
from coterie.record.load import load as checked_run
from coterie.report import score_table
from coterie.report.comparison import RunGroup, group
from coterie.report.notebook import AGAINST, Findings, curves, frame, leaks, shown_comparison, table
from coterie.report.summary import lasted, results
from coterie.runs.comparison import FinishedComparison
from coterie.runs.finished import FinishedRun, load_result
from coterie.runs.logs import numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from coterie.runs.trained import OwnModel


class InFolder(ABC):
    """A run or a comparison.  folder: where it lies."""

    folder: Path

    def plot(self) -> Figure:
        """``figure()``."""
        return self.figure()

    @abstractmethod
    def figure(self, against: str = "rounds") -> Figure: ...

    def cite(self) -> str:
        """BibTeX of the systems and of what was run, below a sentence of methods."""
        return report.cite([self.folder])

    def report(self) -> Path:
        """The path of the HTML report, made now."""
        return report.render([self.folder], self.folder / "report.html")


@dataclass(frozen=True)
class Result(FinishedRun, InFolder):
    """A finished run. folder: where it lies.  summary: its ``result.json``.  rounds: the lines of ``metrics.jsonl``.

    >>> result = coterie.run("fedavg", data="digits")
    >>> result.summary["local_accuracy"], result.model("client/3"), result.frame()
    """

    def frame(self) -> Any:
        """Every round's numbers, one row a round, as a pandas ``DataFrame``. Needs ``coterie[tables]``."""
        return frame([numbers(line) for line in self.rounds]).set_index("round")

    def figure(self, against: str = "rounds") -> Figure:
        """Scores over ``rounds``, ``bytes`` (sent by a client) or simulated ``time``, by matplotlib, whose ``savefig``
        writes SVG and PDF. Raises UserError.
        """
        return curves(_groups([self.folder]), against)

    def audit(self, *, active: bool = False) -> Findings:
        """What attacks learn from this run's views: :func:`audit`."""
        return audit(self.folder, active=active)

    def __repr__(self) -> str:
        of = self.summary
        return f"<{of['title']} on {of['data']}, {lasted(of)} of {of['clients']} clients, in {self.folder}>"

    def _repr_html_(self) -> str:
        head = f"{self.summary.get('title')}, {lasted(self.summary)} of {self.summary['clients']} clients"
        return table(head, results(self.summary), str(self.folder))


@dataclass(frozen=True)
class Comparison(FinishedComparison, InFolder):
    """A finished comparison. folder: where it lies.  content: of its ``compare.json``.

    architecture: of the models, if it was given as a Python object.

    >>> race = coterie.compare(["fedcaprivacy", "fedavg"], data="digits", seeds=3)
    >>> race.frame()
    """

    architecture: OwnModel | None = None

    @cached_property
    def results(self) -> dict[str, list[Result]]:
        """Every method's runs, by seed."""
        return {
            row["method"]: [_loaded(self.folder / name, self.architecture) for name in row["runs"]]
            for row in self.content["rows"]
        }

    @property
    def benefits(self) -> Sequence[Mapping[str, Any]]:
        """Of each method, also fine-tuned: every client's gain over training alone (``record/comparison.py``)."""
        found: Sequence[Mapping[str, Any]] = self.content["benefits"]
        return found

    def frame(self) -> Any:
        """One row a method and seed, as a pandas ``DataFrame``. Needs ``coterie[tables]``."""
        return frame(
            [
                {"method": method, **numbers(result.summary)}
                for method, results in self.results.items()
                for result in results
            ]
        )

    def to_markdown(self) -> str:
        """The table of scores: means over the seeds and half of their 95 % intervals."""
        return score_table.markdown(self.content)

    def to_latex(self) -> str:
        """The same as a ``tabular`` for the package booktabs."""
        return score_table.latex(self.content)

    def to_csv(self) -> str:
        """A line a method, measure and seed."""
        return score_table.as_csv(self.content)

    def figure(self, against: str = "rounds") -> Figure:
        """Scores over ``rounds``, ``bytes`` or ``time``, or against ``leaks``: what servers learn, with ``audit=True``.

        Each method has its mean over the seeds, in a band of one standard deviation. Raises UserError.
        """
        if against == "leaks":
            return leaks(self.content)
        groups = _groups([self.folder / name for row in self.content["rows"] for name in row["runs"]])
        return curves(groups, against, (*AGAINST, "leaks"))

    def audit(self) -> Findings:
        """What attacks learn from the views of every run: :func:`audit`."""
        return audit(self.folder)

    def __repr__(self) -> str:
        methods = ", ".join(row["method"] for row in self.content["rows"])
        return f"<Comparison of {methods}, {len(self.content['seeds'])} seeds each, in {self.folder}>"

    def _repr_html_(self) -> str:
        return shown_comparison(self.content, str(self.folder))


def _groups(folders: Sequence[Path]) -> list[RunGroup]:
    return group([checked_run(folder) for folder in folders])


def audit(*folders: str | Path, active: bool = False, data_dir: str | None = None) -> Findings:
    """What every party of recorded runs (``record=True``) saw, and what attacks learn from it.

    folders: of one run, of several, or of a comparison.  active: also repeat each run with one client that deviates.
    Returns what ``coterie audit --json`` prints: of one run its ``roles``, ``attacks`` (the worst first; ``leak`` is 0
    for chance and 1 for everything), ``not_applicable`` and ``openings`` (what holders of key shares state, or None);
    of several their ``methods`` with means over the seeds, their ``runs``, and in ``left_out`` those that can't be
    audited. ``result.json`` keeps a run's audit, ``compare.json`` what servers learn, and ``report.html`` shows it. In
    a notebook it is a table.

    >>> result = coterie.run("fedcaprivacy", record=True, crypto="emulated")
    >>> [(row["name"], row["verdict"], row["leak"]) for row in coterie.audit(result.folder)["attacks"]]

    Raises UserError if no run has views.
    """
    from coterie.runs.audited import audit_runs, keep_learned

    paths = [Path(folder) for folder in folders]
    runs = find(paths)
    content = audit_runs(runs, data_dir, active=active)
    found = content.get("runs", {str(runs[0]): content})
    if not any(one["not_kept"] for one in found.values()):
        for path in paths:
            keep_learned(path, found)
            report.render([path], path / "report.html")
    return Findings(content)


def load(folder: str | Path, *, model: Any = None) -> Result | Comparison:
    """A finished run or comparison from its folder. Raises UserError for a folder of neither.

    model: the architecture that the run was given as a Python object.

    >>> coterie.load("runs/fedavg-digits-0-1").model("client/3")
    """
    folder = Path(folder)
    content = whole_comparison(folder)
    return _loaded(folder, model) if content is None else Comparison(folder, content, model)


def _loaded(folder: Path, model: Any = None) -> Result:
    done = load_result(folder, model)
    return as_result(replace(done, summary=whole_summary(folder)))


def as_result(done: FinishedRun, model: OwnModel | None = None) -> Result:
    known = {field.name: getattr(done, field.name) for field in fields(done)}
    return Result(**{**known, "architecture": known["architecture"] if model is None else model})
