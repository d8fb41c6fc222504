"""Runs and comparisons, with options as keyword arguments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coterie.api.given import as_object, as_system, as_text, keep_data, split_given, with_data
from coterie.api.results import Comparison, Result, as_result
from coterie.protocol.errors import UserError
from coterie.report.progress import name_run, rounds_of_runs, show_progress, tell_attacks
from coterie.runs import choosing, comparison, runner
from coterie.runs.advice import advise, past_its_best, without_effect
from coterie.runs.config import Resolved, RunConfig, resolve
from coterie.runs.metrics import run_metrics

if TYPE_CHECKING:
    from coterie.runs.trained import OwnModel

OnRound = Callable[[Mapping[str, Any]], None]


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
    """Train one system once, and write a run folder with ``report.html``.

    system: a name that ``coterie list systems`` shows, ``module:ATTRIBUTE``, or a ``System``.
    data: the name of a data set, or the path of one's own: a folder of one file a client, or a file. Or objects: a
        mapping client -> ``(x, y)``, ``(x_train, y_train, x_test, y_test)`` or a torch ``Dataset``; a table (a dict of
        columns, a pandas ``DataFrame``, a Hugging Face dataset); a torch ``Dataset``; ``(x, y)``. They are written to a
        file beside the run folder, to resume and audit the run.
    by: the column that names the client of every sample, for ``partition="by:COLUMN"``.
    model: a name, a function ``(input_shape, classes) -> nn.Module``, or an ``nn.Module``, whose weights the seed
        draws again.
    metrics: names such as ``["auroc", "f1"]``, or functions of labels and scores.  loss: a name, or a function of
        outputs and labels (docs/tasks.md).
    options: of the run (``clients``, ``rounds``, ``seed``, ...: :class:`RunConfig`) and settings of the system (``lr``,
        ``clusters``, ...: ``coterie list systems SYSTEM``).  settings: the latter, where a name is both.
    log: a name, or a list of them.
    progress: show a bar (on a terminal, in a notebook) or lines on stderr.
    on_round: called with each round's line.  resume: go on in the folder ``out``.

    >>> import coterie
    >>> result = coterie.run("fedavg", data="digits", lr=0.1, rounds=5)
    >>> result.summary["global_accuracy"]

    Raises UserError before the run folder is made, RunError if the run cannot go on.
    """
    kept, table = split_given([as_system(system)], {**options, "model": model}, settings)
    kept, content = with_data(kept, data, by)
    config = resolve(RunConfig(**{**kept, "system": as_system(system)}, settings=table))
    keep_data(config.data, content)
    return train(config, kept, model=as_object(model), progress=progress, on_round=on_round, resume=resume)


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
    first = run_metrics(config)[0].facts
    with show_progress(not progress, {config.system: config.rounds}, leading=first) as tell:

        def told(line: Mapping[str, Any]) -> None:
            tell(config.system, line)
            if on_round is not None:
                on_round(line)

        done = runner.run(config, told, resume=resume)
    advise(past_its_best(config, done.rounds))
    finished = as_result(done, model)
    finished.report()
    return finished


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
    """Train several methods on the same data, partition, seeds and budget, and write a folder with ``report.html``.

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
    systems = [str(method).partition("@")[0] for method in methods]
    kept, table = split_given(systems, {**options, "model": model}, settings)
    kept, content = with_data(kept, data, by)
    texts = {key: as_text(value) for key, value in table.items()}
    tried = {key: [as_text(value) for value in values] for key, values in (tune or {}).items()}
    if not isinstance(seeds, int) or seeds < 1:
        raise UserError(f"seeds must be at least 1, not {seeds!r}: it says how many, and seed which is the first")
    wanted = {"fine_tune": "held_out", **kept}
    first, out = int(wanted.pop("seed", 0)), wanted.pop("out", None)
    if audit:
        wanted["record"] = True
    how: dict[str, Any] = {"budget_from": budget, "each_own": each_own, "local": local}
    choice = choosing.HeldOutChoice(tried, methods, wanted, texts, **how)
    planned = choice.first
    if audit:
        from coterie.runs import audited  # loads all attacks

        audited.check_audits(planned.methods.values())
    for text in without_effect(kept, [*planned.methods.values()]):
        advise(text)
    one = next(iter(planned.methods.values()))
    keep_data(one.data, content)
    of_all = [first + k for k in range(seeds)]
    work = rounds_of_runs(choice.names, of_all[:1], one.rounds) if tune else {}
    work |= rounds_of_runs(planned.methods, of_all, one.rounds, attacked=audit)
    with show_progress(not progress, work, leading=run_metrics(one)[0].facts) as tell:

        def told(label: str, seed: int, line: Mapping[str, Any]) -> None:
            tell(name_run(label, seed), line)

        attacking = audited.learning(tell_attacks(tell, audited.attack)) if audit else None
        choose = choice.run if tune else None
        done = comparison.compare(planned, of_all, out, told, resume=resume, learned=attacking, choose=choose)
    finished = Comparison(done.folder, done.content, as_object(model))
    finished.report()
    return finished
