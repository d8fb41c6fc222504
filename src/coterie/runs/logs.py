"""Every round's numbers for other tools, named as in ``metrics.jsonl`` (``bytes_up.client``)."""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any

from coterie.protocol.errors import CoterieError, RunError, UserError, to_install
from coterie.record.files import atomic_write, writing
from coterie.runs.config import Resolved
from coterie.runs.settings import unknown

Line = Mapping[str, Any]
Tell = Callable[[Line], None]
CSV, TENSORBOARD, MLFLOW, WANDB = "rounds.csv", "tensorboard", "mlflow_run.txt", "wandb_run.txt"


def numbers(line: Line, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in line.items():
        if isinstance(value, Mapping):
            found |= numbers(value, "" if key == "metrics" else f"{prefix}{key}.")
        elif isinstance(value, int | float | str) or value is None:
            found[prefix + key] = value
    return found


def _scalars(line: Line) -> dict[str, float]:
    plain = {re.sub(r"[^\w./ -]+", "_", name): value for name, value in numbers(line).items() if name != "round"}
    return {name: value for name, value in plain.items() if isinstance(value, int | float)}


@contextlib.contextmanager
def _csv(out: Path, config: Resolved, before: Sequence[Line]) -> Iterator[Tell]:
    rows: list[dict[str, Any]] = []
    columns: dict[str, None] = {}

    def text(some: Sequence[Mapping[str, Any]], *, head: bool) -> str:
        found = io.StringIO()
        writer = csv.DictWriter(found, list(columns), lineterminator="\n")
        if head:
            writer.writeheader()
        writer.writerows(some)
        return found.getvalue()

    def tell(line: Line) -> None:
        row = numbers(line)
        rows.append(row)
        if set(row) <= set(columns):
            with writing(out / CSV), (out / CSV).open("a", encoding="utf-8", newline="") as file:
                file.write(text([row], head=False))
        else:
            columns.update(dict.fromkeys(row))
            atomic_write(out / CSV, text(rows, head=True).encode())

    rows += map(numbers, before)
    columns.update(dict.fromkeys(name for row in rows for name in row))
    atomic_write(out / CSV, text(rows, head=True).encode())
    yield tell


@contextlib.contextmanager
def _tensorboard(out: Path, config: Resolved, before: Sequence[Line]) -> Iterator[Tell]:
    from torch.utils.tensorboard import SummaryWriter

    writer: Any = SummaryWriter(str(out / TENSORBOARD), purge_step=len(before) + 1 if before else None)
    try:

        def tell(line: Line) -> None:
            for name, value in _scalars(line).items():
                writer.add_scalar(name.replace(".", "/"), value, line["round"])
            writer.flush()

        yield tell
    finally:
        writer.close()


@contextlib.contextmanager
def _mlflow(out: Path, config: Resolved, before: Sequence[Line]) -> Iterator[Tell]:
    import mlflow

    kept = out / MLFLOW
    known = kept.read_text().strip() if before and kept.exists() else None
    with mlflow.start_run(run_id=known, run_name=None if known else out.name, nested=True) as run:
        if known is None:
            atomic_write(kept, f"{run.info.run_id}\n".encode())
            options = {key: value for key, value in numbers(vars(config)).items() if value is not None}
            mlflow.log_params(options)
        yield lambda line: mlflow.log_metrics(_scalars(line), step=line["round"])


@contextlib.contextmanager
def _wandb(out: Path, config: Resolved, before: Sequence[Line]) -> Iterator[Tell]:
    """Mode, project and key are its own settings', such as WANDB_MODE=offline."""
    import wandb

    kept = out / WANDB
    known = kept.read_text().strip() if before and kept.exists() else None
    options = {key: value for key, value in numbers(vars(config)).items() if value is not None}
    named = {"name": out.name, "dir": str(out), "config": options, "reinit": "create_new"}
    with wandb.init(id=known, resume="allow" if known else None, **named) as run:
        atomic_write(kept, f"{run.id}\n".encode())
        yield lambda line: run.log(_scalars(line), step=line["round"])


TARGETS: Mapping[str, Callable[[Path, Resolved, Sequence[Line]], AbstractContextManager[Tell]]] = {
    "csv": _csv,
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
}
"""Each opens a log in a run folder, after the lines of earlier rounds."""


def targets(log: str | None) -> list[str]:
    """Raises UserError for an unknown name."""
    found = [word.strip() for word in (log or "").split(",") if word.strip()]
    for word in found:
        if word not in TARGETS:
            raise unknown("log", word, TARGETS)
    return list(dict.fromkeys(found))


def check_installed(log: str | None) -> None:
    """Raises UserError naming the extra if a log's package is missing."""
    for name in targets(log):
        try:
            import_module("torch.utils.tensorboard" if name == "tensorboard" else name)  # csv is Python's
        except ImportError as error:
            raise UserError(f"a log to {name} needs its package ({error}): {to_install(name)}") from None


@contextlib.contextmanager
def logged(out: Path, config: Resolved, before: Sequence[Line]) -> Iterator[Tell]:
    """before: lines of the rounds that are done. Raises RunError if a log fails."""
    with contextlib.ExitStack() as held:
        logs = {}
        for name in targets(config.log):
            with _of(name):
                logs[name] = held.enter_context(TARGETS[name](out, config, before))

        def tell(line: Line) -> None:
            for name, log in logs.items():
                with _of(name):
                    log(line)

        yield tell


@contextlib.contextmanager
def _of(name: str) -> Iterator[None]:
    try:
        yield
    except CoterieError:
        raise
    except Exception as error:
        raise RunError(f"the log to {name} fails: {error} (log=none, --log none, goes on without it)") from error
