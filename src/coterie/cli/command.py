"""The typer commands, with plain words in their help and errors that suggest the meant option."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from coterie.cli.completing import WORDS, named
from coterie.cli.guard import MISTAKE, complain

_WORDS = {"bool": "", "str": "TEXT", "int": "NUMBER", "float": "NUMBER", "list[str]": "TEXT", "list[Path]": "PATH"}

_SWEEPS = "grid", "sweep", "search"
COMPARED = "seeds", "audit", "budget", "each_own", "local", "tune"
"""Options of `coterie compare` alone."""


def _plain(parameter: Any) -> Any:
    """Its help has a word for a type, and none for a flag."""

    def word(ctx: Any) -> str:
        shown = type(parameter).display_type_rich(parameter, ctx) or ""
        kind = shown.removeprefix("<").removesuffix(">")
        return shown if shown == kind else _WORDS.get(kind, kind.upper() if kind.isalpha() else kind)

    parameter.display_type_rich = word
    return parameter


class CommandGroup(TyperGroup):
    """``coterie`` itself."""

    def get_params(self, ctx: Any) -> list[Any]:
        return [_plain(one) for one in super().get_params(ctx)]


class Command(TyperCommand):
    """absent: why it lacks options of a similar command."""

    absent: Mapping[str, str] = MappingProxyType({})

    def get_params(self, ctx: Any) -> list[Any]:
        return [_plain(one) for one in super().get_params(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """An unknown option's error names the probable one."""
        ctx.meta[WORDS] = list(args)
        options = {word: one.name for one in self.get_params(ctx) for word in (*one.opts, *one.secondary_opts)}
        for place, word in enumerate(args[: args.index("--")] if "--" in args else args):
            option, equals, value = word.partition("=")
            if option.startswith("--") and option not in options and not ctx.resilient_parsing:
                following = args[place + 1] if place + 1 < len(args) else "--"
                value = value if equals else "VALUE" if following.startswith("--") else following
                why = self.absent.get(option.lstrip("-").replace("-", "_"))
                meant = _meant(option, value, args, options) if why is None else f": {why}."
                complain(f"no option {option}{meant} See {ctx.command_path} --help")
                raise typer.Exit(MISTAKE)
        return super().parse_args(ctx, args)


def _meant(option: str, value: str, args: Sequence[str], options: Mapping[str, str]) -> str:
    from coterie.protocol.errors import nearest
    from coterie.runs.settings import field_types

    word = option.lstrip("-").replace("-", "_")
    names = {name: flag for flag, name in options.items() if flag.startswith("--")}
    if word == "by" and "partition" in names:  # as Python and other commands call it
        return f"; did you mean --partition by:{'COLUMN' if value == 'VALUE' else value}?"
    if word in _SWEEPS and "set" in names:
        before = "" if "tune" in names else "coterie compare METHOD "
        return f"; did you mean {before}--tune {'KEY=A,B' if value == 'VALUE' else value}?"
    if word.removeprefix("no_") in COMPARED and "set" in names and "tune" not in names:
        hint = "; did you mean --seed?" if word == "seeds" else "."
        return f": it is an option of coterie compare{hint}"
    systems = named(args) if "set" in names else []
    settings = {key: system.name for system in reversed(systems) for key in field_types(system.config)}
    meant = nearest(word, [*settings, *names])
    if meant is None:
        return "."
    if meant in names:
        return f"; did you mean {names[meant]}?"
    is_one = f"{meant} is a setting of {settings[meant]}, so write" if meant == word else "did you mean"
    return f"; {is_one} --set {meant}={value}{'.' if meant == word else '?'}"
