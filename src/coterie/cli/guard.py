"""The end of every command: an exit code, at most one message, and no traceback unless it is a bug."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable
from typing import TypeVar

import typer
from rich.console import Console
from rich.text import Text

from coterie.protocol.errors import CoterieError, UserError

FAILED, MISTAKE, INTERRUPTED = 1, 2, 130

F = TypeVar("F", bound=Callable[..., None])


def complain(message: str) -> None:
    """One message on stderr."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text("Error: ", "bold red") + Text(message))


def guarded(command: F) -> F:
    """A command whose exceptions become exit codes: 1 for a failure, 2 for a mistake of the caller, 130 for Ctrl-C."""

    @functools.wraps(command)
    def run(*args: object, **kwargs: object) -> None:
        try:
            command(*args, **kwargs)
        except CoterieError as error:
            complain(str(error))
            _details()
            raise typer.Exit(MISTAKE if isinstance(error, UserError) else FAILED) from None
        except KeyboardInterrupt as error:
            complain(_interrupted(error))
            raise typer.Exit(INTERRUPTED) from None
        except (typer.Exit, typer.Abort):
            raise
        except MemoryError:
            complain("not enough memory: use fewer clients, a smaller model or --set batch_size=...")
            _details()
            raise typer.Exit(FAILED) from None
        except PermissionError as error:
            what = "" if error.filename is None else f"{error.filename}: "
            complain(f"{what}{error.strerror or error}; see that you may read and write there, or name another folder")
            _details()
            raise typer.Exit(FAILED) from None
        except Exception as error:
            complain(
                f"unexpected {type(error).__name__}: {error}. This is a bug in Coterie: please report it with the "
                "command and what COTERIE_DEBUG=1 adds to it"
            )
            _details()
            raise typer.Exit(FAILED) from None

    return run  # type: ignore[return-value]


def _details() -> None:
    if os.environ.get("COTERIE_DEBUG") == "1":
        traceback.print_exc(file=sys.stderr)


def _interrupted(error: KeyboardInterrupt) -> str:
    folder = getattr(error, "folder", None)
    if folder is None:
        return "interrupted"
    done = getattr(error, "done", 0)
    kept = f"{done} round{'s' * (done != 1)} kept" if done else "no round finished"
    advice = getattr(error, "advice", f"coterie run --resume --out {folder}")
    return f"interrupted, {kept}: continue with  {advice}"
