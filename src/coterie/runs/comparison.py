"""The same work through several systems: same data, partition, seeds and rounds; one folder, one table."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import coterie
from coterie.protocol.errors import UserError
from coterie.protocol.system import System
from coterie.runs import registry
from coterie.runs.config import RunConfig, differences, resolve
from coterie.runs.experiment import Line, build
from coterie.runs.folder import CONFIG, RESULT, resumed, write_json, writing
from coterie.runs.lock import locked
from coterie.runs.runner import Interrupted, Result, load_result, run
from coterie.runs.settings import field_types, typed, unknown

COMPARE = "compare.json"
MEASURES = (
    "global_accuracy",
    "local_accuracy",
    "global_loss",
    "local_loss",
    "bytes_up",
    "bytes_down",
    "seconds",
    "virtual_seconds",
)
OnRound = Callable[[str, int, Line], None]


@dataclass(frozen=True)
class Comparison:
    """A finished comparison. rows: one a system (and one for its fine-tuned models), as in ``compare.json``."""

    folder: Path
    rows: Sequence[Mapping[str, Any]]


def plan(systems: Sequence[str], options: Mapping[str, Any], settings: Mapping[str, str]) -> list[RunConfig]:
    """One config a system. settings: texts; ``key`` goes to every system that has it, ``system.key`` to that one.

    A mode counts where a system has it; the others run as ``paper``. Raises UserError where nobody has what is given.
    """
    if len(set(systems)) != len(systems) or len(systems) < 1:
        raise UserError(f"compare takes different systems, each once, not: {' '.join(systems) or 'none'}")
    found = [registry.get(name) for name in systems]
    mode = options.get("mode", "paper")
    if not any(mode in system.modes for system in found):
        raise unknown("mode", str(mode), {m for system in found for m in system.modes})
    shares = _share_out(found, settings)
    return [
        RunConfig(**{**options, "system": name, "mode": mode if mode in system.modes else "paper"}, settings=given)
        for name, system, given in zip(systems, found, shares, strict=True)
    ]


def _share_out(systems: Sequence[System], settings: Mapping[str, str]) -> list[dict[str, Any]]:
    known = {system.name: field_types(system.config) for system in systems}
    texts: dict[str, dict[str, str]] = {system.name: {} for system in systems}
    for key, value in settings.items():
        owner, dot, field = key.rpartition(".")
        if dot and owner not in known:
            raise unknown("system in --set", owner, known)
        takers = [owner] if dot else [name for name in known if key in known[name]]
        if not takers or (dot and field not in known[owner]):
            raise unknown("setting", key, {f for name in (takers or known) for f in known[name]})
        for name in takers:
            texts[name].setdefault(field, value) if not dot else texts[name].update({field: value})
    return [typed(s.config, texts[s.name], f"setting of {s.name}", text=True) for s in systems]


def compare(
    configs: Sequence[RunConfig],
    seeds: Sequence[int],
    out: str | Path | None = None,
    on_round: OnRound | None = None,
    *,
    resume: bool = False,
) -> Comparison:
    """Run every config with every seed, in subfolders of ``out``, and write ``compare.json``.

    on_round: called with system, seed and line.  resume: finished runs are read, unfinished ones continued.
    Everything is built once before the folder is created, so that mistakes show at once. The folder is locked, as every
    run folder in it is while it is written. Raises as ``run`` does.
    """
    resolved = [resolve(replace(config, seed=seed)) for seed in seeds for config in configs]
    for config in resolved[: len(configs)]:
        build(config).close()
    folder = _folder(out, resolved[0].data, resume)
    with locked(folder):
        return _compared(resolved, seeds, folder, on_round, resume)


def _compared(
    resolved: Sequence[RunConfig], seeds: Sequence[int], folder: Path, on_round: OnRound | None, resume: bool
) -> Comparison:
    results: dict[str, list[Result]] = {}
    for config in resolved:
        label = re.sub(r"[^\w.-]+", "_", config.system)
        place = folder / f"{label}-{config.seed}"
        results.setdefault(config.system, []).append(_one(replace(config, out=str(place)), on_round, resume))
    rows = [row for found in results.values() for row in _rows(found)]
    first = resolved[0]
    write_json(
        folder / COMPARE,
        {
            **{key: getattr(first, key) for key in ("data", "partition", "clients", "rounds", "model", "devices")},
            "seeds": list(seeds),
            "rows": rows,
            "version": coterie.__version__,
        },
    )
    return Comparison(folder, rows)


def _one(config: RunConfig, on_round: OnRound | None, resume: bool) -> Result:
    out = Path(str(config.out))
    started = resume and (out / CONFIG).exists()
    if started and (found := differences(resolve(resumed(out)), config)):
        raise UserError(
            f"{out} holds another run ({'; '.join(found)}): resume with the options it was started with, or choose "
            "another --out"
        )
    if started and (out / RESULT).exists() and load_result(out).summary["rounds"] == config.rounds:
        return load_result(out)

    def told(line: Line) -> None:
        if on_round is not None:
            on_round(config.system, config.seed, line)

    try:
        return run(config, told, resume=started)
    except Interrupted as interrupted:
        interrupted.advice = f"the same coterie compare, with --resume --out {out.parent}"
        raise


def _folder(out: str | Path | None, data: str, resume: bool) -> Path:
    if out is None:
        if resume:
            raise UserError("--resume continues the comparison in a folder: say which with --out")
        number = 1
        while True:
            folder = Path("runs") / f"compare-{data}-{number}"
            with writing(folder):
                folder.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileExistsError):
                    folder.mkdir()
                    return folder
            number += 1
    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not resume)):
        raise UserError(f"{folder} is not empty: choose another --out, or continue the comparison in it with --resume")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def _rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The system's row, and one for the models that each client tuned on its own data, where the system has them."""
    summaries = [result.summary for result in results]
    first = summaries[0]
    shared = {key: first[key] for key in ("system", "title", "mode", "crypto")}
    shared["runs"] = [result.folder.name for result in results]
    rows = [{**shared, "fine_tuned": False, **{key: _spread([s[key] for s in summaries]) for key in MEASURES}}]
    if "fine_tuned_global_accuracy" in first:
        tuned = {key: [s.get(f"fine_tuned_{key}", s[key]) for s in summaries] for key in MEASURES}
        title = f"{first['title']} + fine-tuning"
        rows.append({**shared, "title": title, "fine_tuned": True, **{k: _spread(v) for k, v in tuned.items()}})
    return rows


def _spread(values: Sequence[float | None]) -> dict[str, float | None] | None:
    """Mean and, over two or more seeds, standard deviation."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return {"mean": fmean(known), "std": stdev(known) if len(known) > 1 else None}
