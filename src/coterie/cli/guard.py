"""The end of every command: an exit code, at most one message, and no traceback unless it is a bug."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from coterie.protocol.errors import CoterieError, CoterieWarning, UserError, printable
from coterie.protocol.import_path import uncollected

FAILED, MISTAKE, INTERRUPTED = 1, 2, 130
_AGAIN_S = 0.05

F = TypeVar("F", bound=Callable[..., None])


class SafeConsole(Console):
    """Prints no control characters but line ends and its own: another party's name commands no terminal."""

    def render(self, *args: Any, **kwargs: Any) -> Iterable[Segment]:
        for one in super().render(*args, **kwargs):
            yield one if one.control else Segment(printable(one.text, but="\n"), one.style)


def say(words: str, *, err: bool = False, nl: bool = True) -> None:
    """Never wrapped, but as ``SafeConsole`` without control characters."""
    typer.echo(printable(words, but="\n"), err=err, nl=nl)


def complain(message: str, head: str = "Error", style: str = "bold red") -> None:
    SafeConsole(stderr=True, highlight=False, soft_wrap=True).print(Text(f"{head}: ", style) + Text(message))


def console(least: int = 0, *, soft_wrap: bool = True) -> Console:
    """Off a terminal it has a least width, for whole tables."""
    usual = SafeConsole(highlight=False, soft_wrap=soft_wrap)
    if usual.is_terminal:
        return usual
    return SafeConsole(highlight=False, soft_wrap=soft_wrap, width=max(usual.width, least))


def new_table(*columns: Column | str, **look: Any) -> Table:
    """A rule below the head; title and caption on the left."""
    return Table(*columns, box=SIMPLE, pad_edge=False, title_justify="left", caption_justify="left", **look)


def fits(table: Table, shell: Console) -> bool:
    return Measurement.get(shell, shell.options.update(width=10_000), table).maximum <= shell.width


Cells = Mapping[str, Sequence[str]]
"""Columns by their heads, which may have lines."""


def in_parts(words: Cells, numbers: Cells, shell: Console, title: str = "", caption: str = "") -> list[Table]:
    """One table, or as many as have room, each with the columns of words and some of numbers."""

    def made(some: Cells) -> Table:
        heads = [Column(head, no_wrap=True) for head in words]
        heads += [Column(head, justify="right", no_wrap=True) for head in some]
        table = new_table(*heads, collapse_padding=True)
        for row in zip(*words.values(), *some.values(), strict=True):
            table.add_row(*row)
        return table

    parts: list[dict[str, Sequence[str]]] = [{}]
    for head, cells in numbers.items():
        if parts[-1] and not fits(made({**parts[-1], head: cells}), shell):
            parts.append({})
        parts[-1][head] = cells
    tables = [made(part) for part in parts]
    tables[0].title, tables[-1].caption = title or None, caption or None
    return tables


_loaded = False


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """A command's imports, which the garbage collector never goes through. For the first command of a process alone."""
    global _loaded
    if _loaded:
        yield
        return
    _loaded = True  # not gc.get_freeze_count(), which goes through all of them
    with uncollected():
        yield
        gc.freeze()


@contextlib.contextmanager
def _warnings_shown() -> Iterator[None]:
    shown: set[str] = set()  # Python's own memory of them ends wherever code catches warnings
    with warnings.catch_warnings():
        warnings.simplefilter("always", CoterieWarning)
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, CoterieWarning):
                if str(message) not in shown:
                    complain(str(message), "Warning", "bold yellow")
                shown.add(str(message))
            else:
                usual(message, category, *where, **more)

        warnings.showwarning = show
        yield


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM interrupts as Ctrl-C does, unless the process ignores it.

    Python drops what is raised while an object is deleted. An interruption that comes there is sent once more.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def dropped(what: Any) -> None:
        if issubclass(what.exc_type, KeyboardInterrupt):
            threading.Timer(_AGAIN_S, again).start()
        else:
            usual(what)

    def again() -> None:
        if sys.unraisablehook is dropped:  # else the command has ended
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    usual, sys.unraisablehook = sys.unraisablehook, dropped
    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        sys.unraisablehook = usual
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def guarded(command: F) -> F:
    """Exceptions become exit codes: 1 for a failure, 2 for the caller's mistake, 130 for Ctrl-C or SIGTERM."""

    @functools.wraps(command)
    def run(*args: object, **kwargs: object) -> None:
        try:
            with _terminable(), _warnings_shown():
                command(*args, **kwargs)
        except (typer.Exit, typer.Abort):
            raise
        except BrokenPipeError:
            # the reader of stdout is gone (coterie ... | head): nobody wants the rest, also not at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(FAILED) from None
        except (Exception, KeyboardInterrupt) as error:
            code, message = _verdict(error)
            complain(message)
            if code != INTERRUPTED and os.environ.get("COTERIE_DEBUG") == "1":
                traceback.print_exc(file=sys.stderr)
            raise typer.Exit(code) from None

    return run  # type: ignore[return-value]


def _verdict(error: BaseException) -> tuple[int, str]:
    if isinstance(error, CoterieError):
        return (MISTAKE if isinstance(error, UserError) else FAILED), str(error)
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, _interrupted(error)
    if isinstance(error, MemoryError):
        return FAILED, "not enough memory: use fewer clients, a smaller model or --set batch_size=..."
    if isinstance(error, PermissionError):
        place = "" if error.filename is None else f"{error.filename}: "
        why = error.strerror or error
        return FAILED, f"{place}{why}; see that you may read and write there, or name another folder"
    from coterie.runs.own_code import own_line  # only here: it imports much

    if (line := own_line(error)) is not None:
        return FAILED, (
            f"your own code fails with {type(error).__name__}: {error} ({line}). COTERIE_DEBUG=1 adds how it came there"
        )
    return FAILED, (
        f"unexpected {type(error).__name__}: {error}. This is a bug in Coterie: please report it with the command and "
        "what COTERIE_DEBUG=1 adds to it"
    )


def _interrupted(error: KeyboardInterrupt) -> str:
    advice = getattr(error, "advice", None)
    return "interrupted" if advice is None else f"interrupted, {getattr(error, 'kept', '')}: continue with  {advice}"
