"""``coterie export`` and ``coterie predict``."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from coterie.cli.guard import guarded, loading, say
from coterie.protocol.errors import UserError, printable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coterie.runs.trained import TrainedModel

_HOME = "the home of a party that `coterie deploy join` has made"
_CLIENT = "Whose model: client/3, or the client's own name."


@guarded
def export(
    source: Annotated[Path, typer.Argument(metavar="RUN", help=f"Folder of a run, or {_HOME}.")],
    out: Annotated[Path, typer.Option("--out", help="File to write, FILE.safetensors.")],
    client: Annotated[str | None, typer.Option("--client", help=_CLIENT)] = None,
    coefficients: Annotated[
        Path | None,
        typer.Option("--coefficients", help="FILE.csv for the coefficients and odds ratios of a linear classifier."),
    ] = None,
) -> None:
    """Write a client's trained model as one file, with its classes and the scaling of its inputs.

    Between machines every party exports its own model, from its home, also while its process runs.

    A home whose party has helped to open sums also gives its signed statements of these, in FILE.openings.json.

    --coefficients writes what a unit of each column adds to the log odds of each class against the first, and the odds
    ratio. A category has one for each of its values: divide two odds ratios to compare them. They describe this model:
    they have no confidence intervals, and show no cause.

    Anything that reads .safetensors reads it; `coterie predict` and `coterie.runs.load_exported` predict with it.

    Examples:

      coterie export runs/fedavg-digits-0-1 --client client/3 --out client_3.safetensors

      coterie export /srv/coterie/hospital-a --out ours.safetensors
    """
    with loading():
        from coterie.record.files import atomic_write
        from coterie.runs.explained import coefficients as explained
        from coterie.runs.models import check_new, export_model

    model, after = _of_folder(source, client)
    rows = None if coefficients is None else explained(model)
    if rows is not None and check_new(coefficients or out).suffix != ".csv":
        raise UserError(f"{coefficients}: coefficients become a csv file: name it FILE.csv")
    export_model(model, out)
    say(f"Model of {model.facts.name or model.facts.client} after round {after}: {out}")
    if coefficients is not None and rows is not None:
        text = io.StringIO()
        writer = csv.DictWriter(text, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        atomic_write(coefficients, text.getvalue().encode())
        say(f"Coefficients and odds ratios: {coefficients}")
    if _is_home(source):
        from coterie.operate.own_model import own_account, own_openings

        say(f"Released of its data so far: {own_account(source)}.")
        if (stated := own_openings(source)) is not None:
            place = out.with_suffix(".openings.json")
            atomic_write(place, msgspec.json.encode(stated))
            say(f"Signed statements of {len(stated.openings)} openings, for coterie audit: {place}")


@guarded
def predict(
    source: Annotated[Path, typer.Argument(metavar="RUN", help=f"Folder of a run, {_HOME}, or an exported model.")],
    samples: Annotated[Path, typer.Argument(metavar="FILE", help="New samples: csv, parquet or npz.")],
    client: Annotated[str | None, typer.Option("--client", help=_CLIENT)] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="FILE.csv, or FILE.npz with the scores of all classes. [standard output]"),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="module:FACTORY, for an exported model of your own code.")
    ] = None,
    prior: Annotated[
        bool,
        typer.Option(
            "--prior",
            help="With the client's own label shares, for the folder of a run, or the home of a party in a run with "
            "--set label_counts=true. They are left out where 30 samples or more do not look like them.",
        ),
    ] = False,
) -> None:
    """The classes of new samples, and how probable they are, as a client's trained model predicts them.

    Samples are as the data set stores them, before any scaling: a csv or parquet file whose columns are found by name,
    or an npz file with an array x. A party's home, and what it exports, know no scale but a schema's: their arrays are
    scaled as those that the party joined with, and bytes are divided by 255.

    With labels (the column that --target or a schema named in training, or an array y) the metrics of the model's run
    are told, too, and the accuracy.
    Columns that a schema calls ids are kept. There is a column of probabilities for each named class, or for each of
    several labels at once, and for regression one of each number.

    Examples:

      coterie predict runs/hospitals patients.csv --client north

      coterie predict runs/fedavg-digits-0-1 new.npz --client client/3

      coterie predict client_3.safetensors new.npz --out labels.csv
    """
    with loading():
        from coterie.record.files import atomic_write
        from coterie.runs.models import check_new
        from coterie.runs.priors import with_prior

    if out is not None and check_new(out).suffix not in (".csv", ".npz"):
        raise UserError(f"{out}: predictions become a csv or npz file: name it FILE.csv or FILE.npz")
    trained = _source(source, client)
    _check_rehearsed(source, samples, trained, "--prior" if prior else "")
    x, y, ids = _samples(samples, trained)
    own = _prior(source, trained) if prior else None
    found = trained.predict(x, proba=True, model=model, where=f"{samples}: x")
    if own is not None:
        found, said = with_prior(found, own)
        say(f"Predicted {said}" if said.startswith("with") else said.capitalize(), err=True)
    labels = trained.labels(found)
    known = None if y is None else trained.checked_labels(y, len(labels), f"{samples}: y")
    if out is None:
        say(_csv(trained, found, ids, printable), nl=False)
    else:
        names = trained.facts.class_names or range(found.shape[1])
        kept = [*zip(*ids.values(), strict=True)]
        npz = _npz(label=labels, scores=found, names=names, ids=kept) if out.suffix == ".npz" else None
        atomic_write(out, npz or _csv(trained, found, ids, str).encode())
        say(f"Predictions of {len(labels):,} samples: {out}")
    if known is not None:
        say(_scored(trained, known, found), err=True)


def _scored(trained: TrainedModel, known: NDArray[Any], scores: NDArray[Any]) -> str:
    """By the run's metrics. known: of ``checked_labels``."""
    told = []
    for metric, value in trained.measured(known, scores):
        shown = "not defined" if isnan(value) else f"{value:.1%}" if metric.share else f"{value:.3g}"
        told.append((metric.facts["label"], shown))
    (first, leading), *others = told
    more = "".join(f", {label} {value}" for label, value in others)
    return f"{first[0].upper()}{first[1:]} on {len(known):,} samples (may contain training samples): {leading}{more}"


def _source(source: Path, client: str | None) -> TrainedModel:
    from coterie.operate.own_model import homes_in
    from coterie.runs.models import load_exported

    if not source.exists() and (homes := homes_in(source.parent)):
        raise UserError(f"{source} is not there. {source.parent} has the homes {', '.join(homes)}")
    return _of_folder(source, client)[0] if source.is_dir() else _of(client, load_exported(source), source)


def _of(client: str | None, model: TrainedModel, source: Path) -> TrainedModel:
    if client not in (None, model.facts.client, model.facts.name):
        raise UserError(f"{source} holds the model of {model.facts.client!r}, not of {client!r}: leave out --client")
    return model


def _check_rehearsed(source: Path, samples: Path, trained: TrainedModel, option: str) -> None:
    """Raises UserError at a rehearsal's home, which was dealt scaled arrays."""
    from coterie.operate.own_model import rehearsed

    facts = trained.facts
    run = rehearsed(source) if _is_home(source) else None
    if run is None or facts.columns or facts.features:
        return
    command = f"coterie predict {run} {samples} --client {facts.client} {option}".strip()
    raise UserError(
        f"{source} was dealt scaled arrays, for a rehearsal: name its run folder, which knows columns and scale: "
        f"{command}"
    )


def _is_home(source: Path) -> bool:
    from coterie.deploy.home import INFO

    return (source / INFO).exists()


def _prior(source: Path, trained: TrainedModel) -> Any:
    from coterie.operate.own_model import own_prior
    from coterie.runs.priors import prior_of

    return own_prior(source) if _is_home(source) else prior_of(source, trained)


def _of_folder(source: Path, client: str | None) -> tuple[TrainedModel, int]:
    from coterie.operate.own_model import own_model
    from coterie.runs.models import load_models

    if _is_home(source):
        model, after = own_model(source)
        return _of(client, model, source), after
    models = load_models(source)
    if client is None:
        named = [models.index.clients[client].name or client for client in models.clients]
        some = ", ".join(named[:6]) + (", ..." if len(named) > 6 else "")
        raise UserError(f"{source} holds the models of {len(named)} clients ({some}): say --client")
    return models.of(client), models.index.round


def _samples(path: Path, trained: TrainedModel) -> tuple[NDArray[Any], NDArray[Any] | None, dict[str, list[str]]]:
    from coterie.data.columns import Column
    from coterie.data.formats import Arrays, read_npz
    from coterie.data.preparing import new_samples

    def check(found: Arrays) -> None:
        if "x" not in found or set(found) - {"x", "y"}:
            held = ", ".join(sorted(found)) or "nothing"
            raise UserError(f"{path} holds {held}: it needs samples x, may have their labels y, and nothing else")
        trained.shaped(found["x"], f"{path}: x")

    if not path.is_file():
        raise UserError(f"{path} is not a file: give new samples as a csv, parquet or npz file (numpy.savez with x)")
    if path.suffix.lower() in (".csv", ".parquet"):
        facts = trained.facts
        return new_samples(path, facts.columns or [*map(Column, facts.features)], facts.label_columns, facts.task)
    if path.suffix.lower() not in (".npz", ""):
        raise UserError(f"{path} is no csv, parquet or npz file: write a spreadsheet's table as csv, and arrays as npz")
    arrays = read_npz(path, check)
    return arrays["x"], arrays.get("y"), {}


def _csv(
    trained: TrainedModel, scores: NDArray[Any], ids: Mapping[str, Sequence[str]], shown: Callable[[str], str]
) -> str:
    facts = trained.facts
    heads: list[object] = list(facts.class_names or ([] if facts.task == "classes" else range(scores.shape[1])))
    columns: list[Iterable[object]] = [[f"{score:.6g}" for score in scores[:, i]] for i in range(len(heads))]
    if facts.task == "classes":
        heads = ["label", "probability", *(f"P({name})" for name in heads)]
        columns = [trained.labels(scores), [f"{p:.6g}" for p in scores.max(axis=1)], *columns]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([shown(str(head)) for head in (*ids, *heads)])
    writer.writerows([shown(str(cell)) for cell in row] for row in zip(*ids.values(), *columns, strict=True))
    return text.getvalue()


def _npz(**arrays: Any) -> bytes:
    import numpy as np

    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()
