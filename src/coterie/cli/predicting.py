"""``coterie export`` and ``coterie predict``."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.guard import guarded
from coterie.protocol.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coterie.runs.models import Models
    from coterie.runs.trained import TrainedModel

_CLIENT = "Whose model: client/3, or the client's own name."


@guarded
def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, or a client's home in a deployment.")],
    out: Annotated[Path, typer.Option("--out", help="File to write, FILE.safetensors.")],
    client: Annotated[str | None, typer.Option("--client", help=f"{_CLIENT} A home has one model.")] = None,
) -> None:
    """Write a client's trained model as one file, with its classes and the scaling of its inputs.

    Anything that reads .safetensors reads it; `coterie predict` and `coterie.runs.load_exported` predict with it. The
    model of a deployment's client is in its home, on its machine. It takes samples as they were given to `deploy join`,
    and bytes after a division by 255.

    Examples:

      coterie export runs/fedavg-digits-0-1 --client client/3 --out client_3.safetensors

      coterie export /srv/coterie/a --out hospital-a.safetensors
    """
    from coterie.deploy.home import INFO
    from coterie.runs.models import export_model, load_models

    if (folder / INFO).is_file():
        _export_home(folder, client, out)
        return
    models = load_models(folder)
    if client is None:
        raise UserError(f"{_which(folder, models)}: say --client")
    export_model(models.of(client), out)
    typer.echo(f"Model of {client} after round {models.index.round}: {out}")


def _export_home(home: Path, client: str | None, out: Path) -> None:
    from coterie.deploy.own_model import own_model
    from coterie.runs.models import export_model

    model, ended = own_model(home)
    name = model.facts.name
    if client not in (None, name):
        raise UserError(f"{home} is the home of {name!r}, not of {client!r}: leave out --client")
    export_model(model, out)
    typer.echo(f"Model of {name} {'at the end of the run' if ended else 'as it is now, for the run goes on'}: {out}")


@guarded
def predict(
    source: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, or an exported model.")],
    samples: Annotated[Path, typer.Argument(metavar="FILE.npz", help="New samples x, and labels y if they are known.")],
    client: Annotated[str | None, typer.Option("--client", help=_CLIENT)] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="FILE.csv, or FILE.npz with the scores of all classes. [standard output]"),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="module:FACTORY, for an exported model of your own code.")
    ] = None,
) -> None:
    """The classes of new samples, and how probable they are, as a client's trained model predicts them.

    Samples are as the data set stores them, before any scaling: a csv or parquet file whose columns are found by name,
    or an npz file with an array x. With labels (a column label, or an array y) the accuracy is told, too. For several
    labels at once there is a column of probabilities for each, and for regression one of each number.

    Examples:

      coterie predict runs/hospitals patients.csv --client north

      coterie predict runs/fedavg-digits-0-1 new.npz --client client/3

      coterie predict client_3.safetensors new.npz --out labels.csv
    """
    from coterie.runs.files import atomic_write
    from coterie.runs.models import check_new

    if out is not None and check_new(out).suffix not in (".csv", ".npz"):
        raise UserError(f"{out}: predictions are written as FILE.csv or FILE.npz")
    trained = _source(source, client)
    x, y = _samples(samples, trained.facts.features)
    found = trained.predict(x, proba=True, model=model, where=f"{samples}: x")
    labels = trained.labels(found)
    right = None if y is None else labels == trained.checked_labels(y, len(labels), f"{samples}: y")
    if out is None:
        typer.echo(_csv(trained, found, _shown), nl=False)
    else:
        names = trained.facts.class_names or range(found.shape[1])
        npz = out.suffix == ".npz"
        atomic_write(out, _npz(label=labels, scores=found, names=names) if npz else _csv(trained, found, str).encode())
        typer.echo(f"Predictions of {len(labels):,} samples: {out}")
    if right is not None:
        typer.echo(f"Accuracy on {len(labels):,} samples: {right.mean():.1%}", err=True)


def _source(source: Path, client: str | None) -> TrainedModel:
    """The model of a client in a run's folder, or of an exported file."""
    from coterie.runs.models import load_exported, load_models

    if not source.is_dir():
        model = load_exported(source)
        if client not in (None, model.facts.client, model.facts.name):
            raise UserError(
                f"{source} holds the model of {model.facts.client!r}, not of {client!r}: leave out --client"
            )
        return model
    models = load_models(source)
    if client is None:
        raise UserError(f"{_which(source, models)}: say --client")
    return models.of(client)


def _which(source: Path, models: Models) -> str:
    """The clients whose models are there, in words."""
    named = [models.index.clients[client].name or client for client in models.clients]
    some = ", ".join(named[:6]) + (", ..." if len(named) > 6 else "")
    return f"{source} holds the models of {len(named)} clients ({some})"


def _samples(path: Path, features: Sequence[str]) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Samples and labels of a file, columns of a table by name. Raises UserError, also for what has no use."""
    from coterie.data.formats import read_npz
    from coterie.data.samples import new_samples

    if not path.is_file():
        raise UserError(f"{path} is no file: give new samples as a csv, parquet or npz file (numpy.savez with x)")
    if path.suffix in (".csv", ".parquet"):
        return new_samples(path, features)
    arrays = read_npz(path)
    if "x" not in arrays or set(arrays) - {"x", "y"}:
        held = ", ".join(sorted(arrays)) or "nothing"
        raise UserError(f"{path} holds {held}: it needs samples x, may have their labels y, and nothing else")
    return arrays["x"], arrays.get("y")


def _shown(label: object) -> str:
    """A label for a terminal. Its name may come from elsewhere, and hold control characters."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(label))


def _csv(trained: TrainedModel, scores: NDArray[Any], shown: Callable[[object], str]) -> str:
    """A row for each sample: its class and how probable it is, or for other tasks the score of each label or number."""
    names: Iterable[object] = trained.facts.class_names or range(scores.shape[1])
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if trained.facts.task == "classes":
        writer.writerow(["label", "probability"])
        found = zip(trained.labels(scores), scores.max(axis=1), strict=True)
        writer.writerows((shown(label), f"{p:.6g}") for label, p in found)
    else:
        writer.writerow([shown(name) for name in names])
        writer.writerows([f"{score:.6g}" for score in row] for row in scores)
    return text.getvalue()


def _npz(**arrays: Any) -> bytes:
    import numpy as np

    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()
