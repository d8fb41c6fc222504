"""The options that ``run`` and ``compare`` share, and configs of them, of TOML files and of run folders."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_origin

import typer

from coterie.cli import completing
from coterie.cli.completing import choices
from coterie.protocol.errors import UserError
from coterie.protocol.options import Option, options_of
from coterie.runs.options import HOW, KEEP, OPTIONS, WORK, RunConfig
from coterie.runs.settings import assignments, documented

FAIR = "What is the same for all"
_PANELS = (WORK, FAIR, HOW, KEEP)

F = TypeVar("F", bound=Callable[..., None])


def _option(
    panel: str,
    name: str,
    kind: Any,
    words: str,
    *,
    flags: tuple[str, ...] = (),
    metavar: str | None = None,
    default: bool | None = None,
    words_of: Callable[..., completing.Words] | None = None,
) -> inspect.Parameter:
    """flags: where the name does not give them.  words_of: for the shell."""
    flags = flags or (f"--{name.replace('_', '-')}",)
    told = typer.Option(*flags, help=words, metavar=metavar, rich_help_panel=panel, autocompletion=words_of)
    annotation = Annotated[kind | None, told]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _of_field(name: str, words: str, told: Option) -> inspect.Parameter:
    alternatives = OPTIONS[name]
    single = next((one for one in alternatives if one in (int, float, bool)), str)
    values = any(get_origin(one) is Literal for one in alternatives)
    complete = getattr(completing, told.known) if told.known else choices(name) if values else None
    kind = list[str] if told.many else Path if told.path else bool if told.flags else single
    flags = () if told.flags is None else (told.flags,)
    return _option(told.panel, name, kind, words, flags=flags, metavar=told.metavar, words_of=complete)


_WORDS, _TOLD = documented(RunConfig), options_of(RunConfig)
_OPTIONS = (
    *(_of_field(name, _WORDS[name], _TOLD.get(name, Option())) for name in OPTIONS if name != "system"),
    _option(
        WORK,
        "set",
        list[str],
        "A setting of the system, e.g. lr=0.1; see `coterie list systems NAME`. Can be repeated.",
        metavar="KEY=VALUE",
        words_of=completing.settings,
    ),
    _option(HOW, "config", Path, "TOML file with any of these options."),
    _option(KEEP, "resume", bool, "Continue the run in --out.", default=False),
    _option(KEEP, "quiet", bool, "No progress, only warnings and the result.", flags=("--quiet", "-q"), default=False),
)


def shared(*first: str, without: Collection[str] = ()) -> Callable[[F], F]:
    """Put these options, by panels, in place of a command's ``**options``.

    first: in their panel.  without: what the command does not have.
    """
    shown = [p for p in _OPTIONS if p.name not in without]

    def with_options(command: F) -> F:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "options"]
        found = [p.replace(kind=p.KEYWORD_ONLY) for p in (*own, *sorted(shown, key=lambda p: p.name not in first))]
        found.sort(key=lambda p: (None, *_PANELS).index(p.annotation.__metadata__[0].rich_help_panel))
        command.__dict__["__signature__"] = inspect.Signature(found)
        return command

    return with_options


def positive(option: str, value: float) -> float:
    if not 0 < value < 1e9:
        raise UserError(f"{option} must be above 0, not {value:g}")
    return value


def listed(values: Sequence[str]) -> tuple[str, ...]:
    """Names in a repeatable option, perhaps several with commas."""
    return tuple(one.strip() for one in ",".join(values).split(",") if one.strip())


def tried_values(texts: Sequence[str]) -> dict[str, list[str]]:
    """``["lr=0.03,0.1", ...]`` as values by setting. Raises UserError."""
    found: dict[str, list[str]] = {}
    for text in texts:
        key, _, values = (part.strip() for part in text.partition("="))
        if not key or not values or key in found:
            raise UserError(
                f"--tune takes a setting once, with its values, for example --tune lr=0.03,0.1, not {text!r}"
            )
        found[key] = [value.strip() for value in values.split(",")]
    return found


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The given options of a run, in a config's form."""
    found = {name: options[name] for name in OPTIONS if options.get(name) is not None}
    if "fine_tune" in found:
        found["fine_tune"] = "held_out" if found["fine_tune"] else "no"
    words = {name: ",".join(value) for name, value in found.items() if isinstance(value, list)}
    return {**{name: str(v) if isinstance(v, Path) else v for name, v in found.items()}, **words}


def configured(given: dict[str, Any], texts: list[str], file: Path | None, resume: bool) -> Any:
    """From the command line, the TOML file and, on --resume, the run folder."""
    from coterie.record.folder import CONFIG, check_writable
    from coterie.runs.config import check_options, resolve
    from coterie.runs.config_file import from_toml
    from coterie.runs.folder import resumed
    from coterie.runs.own_code import check_code
    from coterie.runs.registry import typed_settings

    if file is None and resume and "system" not in given:
        if "out" not in given:
            raise UserError("--resume continues the run in a folder: say which with --out")
        check_writable(Path(given["out"]))
        resumed(Path(given["out"]))
        file = Path(given["out"]) / CONFIG
    given = check_options(given)
    texts_by_key = assignments(texts)
    if file is not None:
        check_code(file, given)
        whole = from_toml(file, **given)
        settings = {**whole.settings, **typed_settings(whole.system, texts_by_key)}
        return resolve(replace(whole, settings=settings))
    if "system" not in given:
        raise UserError("which system? For example: coterie run fedcaprivacy; see coterie list systems")
    return resolve(RunConfig(**given, settings=typed_settings(given["system"], texts_by_key)))


def shared_options(given: dict[str, Any], texts: list[str], file: Path | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Options and settings of all methods; the command line wins. Raises UserError."""
    from coterie.runs.config import check_options
    from coterie.runs.config_file import read_toml
    from coterie.runs.own_code import check_code

    given, settings = check_options(given), assignments(texts)
    if file is None:
        return given, settings
    of_file = read_toml(file)
    unused = [key for key in ("system", "settings") if of_file.pop(key, None)]
    if unused:
        raise UserError(f"{file}: {' and '.join(unused)} cannot stand in a comparison's file: use arguments and --set")
    check_code(file, given)
    return {**of_file, **given}, settings
