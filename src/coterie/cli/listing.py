"""``coterie list``."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coterie.cli.guard import guarded

What = Literal["systems", "datasets", "models", "devices", "attacks", "reproductions"]


@guarded
def show(
    what: Annotated[What | None, typer.Argument(help="What to list; everything without it.")] = None,
) -> None:
    """What there is: systems, datasets, models, devices, attacks, reproductions."""
    console = Console(highlight=False)
    for name, rows in _LISTS.items():
        if what in (None, name):
            table = Table(title=name, title_justify="left", title_style="bold", box=None, show_header=False)
            table.add_column(no_wrap=True)
            for row in rows():
                table.add_row(*(escape(cell) for cell in row))
            console.print(table)


def _systems() -> Iterator[tuple[str, ...]]:
    from coterie.runs.registry import SYSTEMS

    for name in SYSTEMS:
        system = SYSTEMS[name]
        cipher = "encrypted" if system.encrypted else "no encryption"
        yield name, f"{system.citation}. Modes: {', '.join(system.modes)}; {cipher}."
        settings = (f"{f.name}={'none' if f.default is None else f.default}" for f in dataclasses.fields(system.config))
        yield "", f"Settings: {', '.join(settings)}"


def _datasets() -> Iterator[tuple[str, ...]]:
    from coterie.data.sources import NAMES
    from coterie.runs.defaults import defaults_for

    for name in NAMES:
        d = defaults_for(name)
        settings = ", ".join(f"{key}={value}" for key, value in d.settings.items())
        yield name, f"by default {d.clients} clients, {d.rounds} rounds, {d.partition}, {settings}"
    yield "NAME", "your own: NAME.npz with x_train, y_train, x_test, y_test in --data-dir"


def _models() -> Iterator[tuple[str, ...]]:
    from coterie.training import models

    for name in models.NAMES:
        text = (getattr(models, name, None).__doc__ or "").strip().split("\n")[0]
        yield name, text


def _devices() -> Iterator[tuple[str, ...]]:
    from coterie.devices.profiles import FLEETS, fleet

    for name in FLEETS:
        members = fleet(name, 100, 0)
        flops, up = (sorted(getattr(m, f) for m in members) for f in ("compute_flops_per_s", "up_bytes_per_s"))
        yield name, f"{flops[0]:.3g} to {flops[-1]:.3g} FLOP/s, {up[0]:.3g} to {up[-1]:.3g} bytes/s up"
    yield "FILE.toml", "your own profiles"


def _attacks() -> Iterator[tuple[str, ...]]:
    from coterie.attacks import ATTACKS

    for attack in ATTACKS.values():
        yield attack.name, f"{attack.adversary}: {attack.summary}"


def _reproductions() -> Iterator[tuple[str, ...]]:
    for name, item in importlib.import_module("coterie.reproduce").ITEMS.items():
        yield name, str(getattr(item, "title", item))


_LISTS = {
    "systems": _systems,
    "datasets": _datasets,
    "models": _models,
    "devices": _devices,
    "attacks": _attacks,
    "reproductions": _reproductions,
}
