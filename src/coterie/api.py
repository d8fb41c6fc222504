"""The functions of ``import coterie``: run, compare, audit, reproduce and load, with options as keyword arguments."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from coterie import reproductions
from coterie.data import own
from coterie.protocol.errors import UserError, suggest
from coterie.protocol.import_path import name_of
from coterie.record.files import atomic_write, writing
from coterie.record.folder import COMPARE
from coterie.report import score_table
from coterie.report.comparison import RunGroup, group
from coterie.report.notebook import AGAINST, Findings, curves, frame, leaks, shown_comparison, table
from coterie.report.progress import Pace, Tell, name_run, rounds_of_runs, show_progress, tell_attacks, write_outlook
from coterie.report.summary import lasted, results
from coterie.reproductions import study
from coterie.runs import budget as budgets
from coterie.runs import choosing, comparison, registry, runner
from coterie.runs.advice import advise, past_its_best, without_effect
from coterie.runs.config import OPTIONS, Resolved, RunConfig, resolve
from coterie.runs.findings import learned
from coterie.runs.finished import FinishedRun, load_result
from coterie.runs.logs import numbers
from coterie.runs.metrics import leading
from coterie.runs.scores import Learned
from coterie.runs.settings import NONE, convert, field_types

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from coterie.runs.trained import OwnModel

__all__ = ["Comparison", "Result", "RunConfig", "UserError", "audit", "compare", "load", "reproduce", "run"]

OnRound = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Result(FinishedRun):
    """A finished run. folder: where it lies.  summary: its ``result.json``.  rounds: the lines of ``metrics.jsonl``.

    >>> result = coterie.run("fedavg", data="digits")
    >>> result.summary["local_accuracy"], result.model("client/3"), result.frame()
    """

    def frame(self) -> Any:
        """The numbers of every round as a pandas ``DataFrame``, one row a round. Needs pandas (``coterie[tables]``)."""
        return frame([numbers(line) for line in self.rounds]).set_index("round")

    def plot(self) -> Figure:
        """``figure()``."""
        return self.figure()

    def figure(self, against: str = "rounds") -> Figure:
        """The run's scores over ``rounds``, ``bytes`` (sent by a client) or ``time`` (simulated), by matplotlib.

        Its ``savefig`` writes SVG and PDF, by the ending of the file. Raises UserError.
        """
        return curves(_groups([self.folder]), against)

    def cite(self) -> str:
        """BibTeX of the system and of this run, below a sentence of methods."""
        from coterie.report.citing import cite

        return cite([self.folder])

    def report(self) -> Path:
        """The path of this run's HTML report, made now."""
        from coterie.report import render

        return render([self.folder], self.folder / "report.html")

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
class Comparison(comparison.FinishedComparison):
    """A finished comparison. folder: where it lies.  content: of its ``compare.json``.

    architecture: of the models, if it was given as a Python object.

    >>> race = coterie.compare(["fedcaprivacy", "fedavg"], data="digits", seeds=3)
    >>> race.frame()
    """

    architecture: OwnModel | None = None

    @cached_property
    def results(self) -> dict[str, list[Result]]:
        """The runs of every method, one for each seed."""
        return {
            row["method"]: [_loaded(self.folder / name, self.architecture) for name in row["runs"]]
            for row in self.content["rows"]
        }

    @property
    def benefits(self) -> Sequence[Mapping[str, Any]]:
        """Of each method, also fine-tuned: what every client gains over training alone (``record/comparison.py``)."""
        found: Sequence[Mapping[str, Any]] = self.content["benefits"]
        return found

    def frame(self) -> Any:
        """One row a method and seed, as a pandas ``DataFrame``. Needs pandas (``coterie[tables]``)."""
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

    def plot(self) -> Figure:
        """``figure()``."""
        return self.figure()

    def figure(self, against: str = "rounds") -> Figure:
        """Scores over ``rounds``, ``bytes`` or ``time`` as in :meth:`Result.figure`, or against ``leaks``.

        Each method has its mean over the seeds, in a band of one standard deviation. leaks: what servers learn, of a
        comparison with ``audit=True``. Raises UserError.
        """
        if against == "leaks":
            return leaks(self.content)
        groups = _groups([self.folder / name for row in self.content["rows"] for name in row["runs"]])
        return curves(groups, against, (*AGAINST, "leaks"))

    def cite(self) -> str:
        """BibTeX of the systems and of the comparison, below a sentence of methods."""
        from coterie.report.citing import cite

        return cite([self.folder])

    def report(self) -> Path:
        """The path of all runs' HTML report, made now."""
        from coterie.report import render

        return render([self.folder], self.folder / "report.html")

    def audit(self) -> Findings:
        """What attacks learn from the views of every run: :func:`audit`."""
        return audit(self.folder)

    def __repr__(self) -> str:
        methods = ", ".join(row["method"] for row in self.content["rows"])
        return f"<Comparison of {methods}, {len(self.content['seeds'])} seeds each, in {self.folder}>"

    def _repr_html_(self) -> str:
        return shown_comparison(self.content, str(self.folder))


def _groups(folders: Sequence[Path]) -> list[RunGroup]:
    from coterie.record.load import load as checked

    return group([checked(folder) for folder in folders])


def run(
    system: Any = "fedavg",
    data: Any = "digits",
    *,
    by: str | None = None,
    model: Any = None,
    settings: Mapping[str, Any] | None = None,
    progress: bool = True,
    on_round: OnRound | None = None,
    resume: bool = False,
    **options: Any,
) -> Result:
    """Train one system once, and write a run folder.

    system: a name that ``coterie list systems`` shows, ``module:ATTRIBUTE``, or a ``System``.
    data: the name of a data set, or the path of one's own: a folder of one file a client, or a file. Or objects: a
        mapping client -> ``(x, y)``, ``(x_train, y_train, x_test, y_test)`` or a torch ``Dataset``; a table (a dict of
        columns, a pandas ``DataFrame``, a Hugging Face dataset); a torch ``Dataset``; ``(x, y)``. They are written once
        to a file beside the run folder, to resume and audit the run.
    by: the column of the data that names the client of every sample, for ``partition="by:COLUMN"``.
    model: a name, a function ``(input_shape, classes) -> nn.Module``, or an ``nn.Module``, whose weights are
        drawn again by the seed.
    task: ``classes``, ``multilabel`` or ``regression``, for own data.  metrics: names such as ``["auroc", "f1"]``,
        or functions of labels and scores.  loss: a name, or a function of outputs and labels.  class_weights:
        ``"balanced"`` or a number for each class (docs/tasks.md).
    options: of the run (``clients``, ``rounds``, ``seed``, ...: :class:`RunConfig`) and settings of the system (``lr``,
        ``clusters``, ...: ``coterie list systems SYSTEM``).  settings: the latter, where a name is both.
    log: ``"csv"``, ``"tensorboard"``, ``"mlflow"``, ``"wandb"``, or a list: tools that are told every round's numbers.
    progress: whether to show a bar (on a terminal, in a notebook) or a line a round on stderr.
    on_round: called with each round's line.  resume: go on in the folder ``out``.

    >>> import coterie
    >>> result = coterie.run("fedavg", data="digits", lr=0.1, rounds=5)
    >>> result.summary["global_accuracy"]

    Raises UserError before the run folder is made, RunError if the run cannot go on.
    """
    kept, table = _split([_system(system)], {**options, "model": model}, settings)
    kept, content = _with_data(kept, data, by)
    config = resolve(RunConfig(**{**kept, "system": _system(system)}, settings=table))
    _keep(config.data, content)
    return train(config, kept, model=_object(model), progress=progress, on_round=on_round, resume=resume)


def train(
    config: Resolved,
    given: Collection[str] = (),
    *,
    model: OwnModel | None = None,
    progress: bool = True,
    on_round: OnRound | None = None,
    resume: bool = False,
) -> Result:
    """:func:`run` of a resolved config. given: the named options, to warn of those without effect."""
    for text in without_effect(given, [config]):
        advise(text)
    first = leading(config.metrics, config.task)
    with show_progress(not progress, {config.system: config.rounds}, leading=first) as tell:

        def told(line: Mapping[str, Any]) -> None:
            tell(config.system, line)
            if on_round is not None:
                on_round(line)

        done = runner.run(config, told, resume=resume)
    advise(past_its_best(config, done.rounds))
    return _of(done, model)


def compare(
    methods: Sequence[str],
    data: Any = "digits",
    *,
    seeds: int = 3,
    by: str | None = None,
    model: Any = None,
    settings: Mapping[str, Any] | None = None,
    budget: str | None = None,
    each_own: bool = False,
    local: bool = True,
    tune: Mapping[str, Sequence[Any]] | None = None,
    audit: bool = False,
    progress: bool = True,
    resume: bool = False,
    **options: Any,
) -> Comparison:
    """Train several methods on the same data, partition, seeds and budget.

    methods: names of systems, or ``name@mode``.  data, by, model, options: as in :func:`run`; a setting goes to every
        method that has it, and ``settings={"pafed.rho": 0.1}`` to one.  seeds: how many, from ``seed`` (0) on.
    budget: the method whose budget all share, by default the first.  each_own: every method keeps its own.
    local: add the baseline of clients that train alone.  audit: attack the views of every run.
    tune: settings and the values of which each method gets its best by samples held out of training, with the first
        seed: ``{"lr": [.03, .1], "ifca.clusters": [2, 4]}``; every combination is tried (``content["chosen"]``).

    >>> race = coterie.compare(["fedcaprivacy", "ifca", "fedavg"], data="digits", partition="rotate:2", seeds=3)
    >>> race.frame().groupby("method")["local_accuracy"].mean()

    Raises UserError before the comparison's folder is made, RunError if a run cannot go on.
    """
    kept, table = _split([str(method).partition("@")[0] for method in methods], {**options, "model": model}, settings)
    kept, content = _with_data(kept, data, by)
    texts = {key: _text(value) for key, value in table.items()}
    done = race(
        methods,
        kept,
        texts,
        seeds=seeds,
        budget=budget,
        each_own=each_own,
        local=local,
        tune={key: [_text(value) for value in values] for key, values in (tune or {}).items()},
        audit=audit,
        content=content,
        progress=progress,
        resume=resume,
    )
    return replace(done, architecture=_object(model))


def race(
    methods: Sequence[str],
    options: Mapping[str, Any],
    settings: Mapping[str, str],
    *,
    seeds: int,
    budget: str | None = None,
    each_own: bool = False,
    local: bool = True,
    tune: Mapping[str, Sequence[str]] | None = None,
    audit: bool = False,
    content: bytes | None = None,
    progress: bool = True,
    resume: bool = False,
) -> Comparison:
    """:func:`compare` of options in a config's form, and of settings and values as ``--set`` takes them.

    content: of the data's file, written after all checks.
    """
    if not isinstance(seeds, int) or seeds < 1:
        raise UserError(f"seeds must be at least 1, not {seeds!r}: it says how many, and seed which is the first")
    wanted = {"fine_tune": "held_out", **options}
    first, out = int(wanted.pop("seed", 0)), wanted.pop("out", None)
    if audit:
        wanted["record"] = True
    how: dict[str, Any] = {"budget_from": budget, "each_own": each_own, "local": local}
    choice = choosing.choice(tune, methods, wanted, settings, **how) if tune else None
    planned = budgets.plan(methods, wanted, settings, **how) if choice is None else choice.first
    if audit:
        for config in planned.methods.values():
            registry.audit_of(registry.get(config.system))  # a wrong name of one shows before anything is run
    for text in without_effect(options, [*planned.methods.values()]):
        advise(text)
    one = next(iter(planned.methods.values()))
    _keep(one.data, content)
    of_all = [first + k for k in range(seeds)]
    tried = {} if choice is None else rounds_of_runs(choice.names, of_all[:1], one.rounds)
    work = {**tried, **rounds_of_runs(planned.methods, of_all, one.rounds, attacked=audit)}
    with show_progress(not progress, work, leading=leading(one.metrics, one.task)) as tell:

        def told(label: str, seed: int, line: Mapping[str, Any]) -> None:
            tell(name_run(label, seed), line)

        attacking = _attacking(tell) if audit else None
        choose = None if choice is None else choice.run
        done = comparison.compare(planned, of_all, out, told, resume=resume, learned=attacking, choose=choose)
    return Comparison(done.folder, done.content)


def _attacking(tell: Tell) -> Learned:
    from coterie.runs.audited import attack  # loads all attacks

    told = tell_attacks(tell, attack)
    return lambda folders: learned({folder: told(folder) for folder in folders})


def audit(*folders: str | Path, active: bool = False, data_dir: str | None = None) -> Findings:
    """What every party of recorded runs (``record=True``) saw, and what attacks learn from it.

    folders: of one run, of several, or of a comparison.  active: also repeat each run with one client that deviates.
    Returns what ``coterie audit --json`` prints: of one run its ``roles``, ``attacks`` (the worst first; ``leak`` is 0
    for chance and 1 for everything), ``not_applicable`` and ``openings`` (what holders of key shares state, or None);
    of several their ``methods``, each with the means over its seeds, their ``runs``, and in ``left_out`` those that
    can't be audited. Each run's ``result.json`` keeps its audit, and ``compare.json`` what servers
    learn. In a notebook it is a table.

    >>> result = coterie.run("fedcaprivacy", record=True, crypto="emulated")
    >>> [(row["name"], row["verdict"], row["leak"]) for row in coterie.audit(result.folder)["attacks"]]

    Raises UserError if no run has views.
    """
    from coterie.record.load import find
    from coterie.runs.audited import audit_runs, keep_learned

    paths = [Path(folder) for folder in folders]
    runs = find(paths)
    content = audit_runs(runs, data_dir, active=active)
    found = content.get("runs", {str(runs[0]): content})
    if not any(one["not_kept"] for one in found.values()):
        for path in paths:
            keep_learned(path, found)
    return Findings(content)


def reproduce(
    item: str,
    *,
    only: Sequence[str] = (),
    seeds: int = 3,
    rounds: int | None = None,
    out: str | Path | None = None,
    data_dir: str | None = None,
    workers: str | None = None,
    jobs: int = 1,
    on_round: study.OnRound | None = None,
    progress: bool = True,
) -> Path:
    """Run a table or figure of a paper again; returns the page with its numbers beside ours.

    only: names of cells, or of all up to a slash (``mnist/0.3``).  seeds: how many, from 0 on.  rounds: of every run
    instead of the item's own.  out: the folder to write to (``reproduction/PAPER``).  workers: where trainings run.
    jobs: how many runs at once, each in a process with one thread.  on_round: called with cell, seed and line.
    progress: whether to show the estimated time, and a bar or a line a round, on stderr.

    >>> coterie.reproduce("fedcaprivacy/table2", only=["fashion_mnist/0.1"], seeds=1)

    Raises UserError for an unknown item or cell, and for jobs beside workers.
    """
    if jobs < 1:
        raise UserError(f"at least 1 job is needed, not {jobs}")
    if jobs > 1 and workers is not None:
        raise UserError("jobs are processes of this machine, and workers may be elsewhere: give one of the two")
    wanted, folder = reproductions.found(item), Path(out or Path("reproduction") / item.partition("/")[0])
    begun = study.standings(wanted, folder, only=only, seeds=range(seeds), rounds=rounds)
    work = {name_run(run.cell, run.seed): run.rounds for run in begun}
    spent = {name_run(run.cell, run.seed): (run.done, run.seconds) for run in begun if run.done}
    if progress and work:
        write_outlook(Pace(work, spent, jobs))
    with show_progress(not progress, work, spent, at_once=jobs) as tell:

        def told(cell: str, seed: int, line: Mapping[str, Any]) -> None:
            tell(name_run(cell, seed), line)
            if on_round is not None:
                on_round(cell, seed, line)

        return study.study(
            wanted,
            folder,
            only=only,
            seeds=range(seeds),
            rounds=rounds,
            data_dir=data_dir,
            workers=workers,
            jobs=jobs,
            on_round=told,
        )


def load(folder: str | Path, *, model: Any = None) -> Result | Comparison:
    """A finished run or comparison from its folder. Raises UserError for a folder that holds neither.

    model: the architecture of a run that was given it as a Python object, in another process.

    >>> coterie.load("runs/fedavg-digits-0-1").model("client/3")
    """
    from coterie.record.load import compared

    folder = Path(folder)
    if not (folder / COMPARE).exists():
        return _loaded(folder, model)
    checked = compared(folder)
    if checked is None or not all(row["method"] and row["runs"] for row in checked["rows"]) or not checked["rows"]:
        raise UserError(f"{folder / COMPARE} is not of this version: compare again")
    return Comparison(folder, _filled(json.loads((folder / COMPARE).read_bytes()), checked), model)


def _loaded(folder: Path, model: Any = None) -> Result:
    from coterie.record.load import load as checked

    done = load_result(folder, model)
    return _of(replace(done, summary=_filled(done.summary, to_builtins(checked(folder).result))))


def _filled(content: Any, checked: Any) -> Any:
    """JSON with what it lacks of its checked form."""
    if isinstance(content, Mapping) and isinstance(checked, Mapping):
        lacks = {key: value for key, value in checked.items() if key not in content and value is not None}
        return lacks | {key: _filled(value, checked.get(key)) for key, value in content.items()}
    if isinstance(content, list) and isinstance(checked, list | tuple):
        return [_filled(*both) for both in zip(content, checked, strict=True)]
    return content


def _of(done: FinishedRun, model: OwnModel | None = None) -> Result:
    known = {field.name: getattr(done, field.name) for field in fields(done)}
    return Result(**{**known, "architecture": known["architecture"] if model is None else model})


def _object(model: Any) -> OwnModel | None:
    return None if isinstance(model, str) else model


def _system(system: Any) -> str:
    if isinstance(system, str):
        return system
    registry.register(system)
    return str(system.name)


def _split(
    systems: Sequence[str], options: Mapping[str, Any], settings: Mapping[str, Any] | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keyword arguments as options of the run and as settings of the systems. Raises UserError for any other name."""
    known = {name for system in systems for name in field_types(registry.get(system).config)}
    kept: dict[str, Any] = {}
    table = dict(settings or {})
    for name, value in options.items():
        if name in OPTIONS and name in known:
            raise UserError(
                f"{name!r} is an option of the run and a setting of the system: give it in settings={{...}}"
            )
        if name in table:
            raise UserError(f"setting {name!r} is given twice: as an argument and in settings")
        if name in known:
            table[name] = value
        elif name not in OPTIONS:
            hint = suggest(name, [*OPTIONS, *known])
            raise UserError(
                f"{name!r} is neither an option of a run nor a setting of {', '.join(systems)}{hint} "
                f"Options: {', '.join(OPTIONS)}. Settings: {', '.join(sorted(known))}"
            )
        elif value is not None:
            kept[name] = _option(name, value)
    return kept, table


def _option(name: str, value: Any) -> Any:
    """An option in a config's form: objects by their names, lists with commas between. Raises UserError."""
    if name in ("metrics", "class_weights", "log", "target") and isinstance(value, list | tuple):
        value = ",".join(name_of(word, "metric") if callable(word) else str(word) for word in value)
    elif (name in ("partition", "attack") and callable(value)) or (
        name in ("model", "loss", "metrics") and not isinstance(value, str)
    ):
        value = name_of(value, "metric" if name == "metrics" else name)
    elif isinstance(value, Path):
        value = str(value)
    return convert(value, OPTIONS[name], f"option {name!r}", text=False)


def _with_data(options: dict[str, Any], data: Any, by: str | None) -> tuple[dict[str, Any], bytes | None]:
    """The options with the data as a name or a path, and what to :func:`_keep` there if they are objects.

    Their file lies beside the run folder. Raises UserError.
    """
    column, content = by, None
    if isinstance(data, str | Path):
        options = {**options, "data": str(data)}
    else:
        parts = own.from_python(data, by=by, target=options.pop("target", None))
        column = by or (own.CLIENT if parts[0].owner is not None else None)
        share, kind = options.pop("test_share", None), options.pop("kind", None)
        arrays = own.to_arrays(parts, column, share, kind, options.get("folds"))
        name, content = own.packed(arrays)
        options = {**options, "data": str(Path(options.get("out") or Path("runs") / "run").parent / "data" / name)}
    if column is None:
        return options, content
    dealt = f"by:{column}"
    if options.get("partition", dealt) != dealt:
        raise UserError(f"the data name their clients, so they are dealt {dealt}, not {options['partition']}")
    return {**options, "partition": dealt}, content


def _keep(data: str, content: bytes | None) -> None:
    """Write data that were given as objects, for this user alone, unless they are there whole. Raises RunError."""
    if content is None:
        return
    path = Path(data)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.read_bytes() == content:
            return
    atomic_write(path, content, 0o600)


def _text(value: Any) -> str:
    return NONE if value is None else str(value).lower() if isinstance(value, bool) else str(value)
