"""How to cite a run or a comparison."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.record.folder import CONFIG
from coterie.record.load import Run, compared, find, load
from coterie.report import comparison
from coterie.report.score_table import escaped
from coterie.report.words import plural
from coterie.runs.registry import SYSTEMS

AUTHORS, TITLE = "The Coterie authors", "Coterie: federated learning among unequal, privacy-aware clients"
"""Of CITATION.cff, which an installed package lacks."""
AUTHORS_OF: Mapping[str, str] = tomllib.loads((Path(__file__).parent / "authors.toml").read_text("utf-8"))
"""By title, all authors of papers cited by the first."""
_INITIALS = re.compile(r"\b(?:[A-Z]\.[- ]?)+")
_YEAR = re.compile(r"(?:(?P<venue>[^,]*\S)\s+)?(?P<year>(?:19|20)\d\d)\b.*")


def cite(folders: Sequence[Path]) -> str:
    """BibTeX of the systems and runs in these folders, below a sentence of methods as comments.

    Systems are cited by ``System.citation``. The runs' entry has the version, the seeds, and the SHA-256 of their
    ``config.toml``. Raises UserError.
    """
    runs = [load(folder) for folder in find(folders)]
    told = compared(folders[0]) if len(folders) == 1 else None
    systems = dict.fromkeys(run.result.system for run in runs)
    names = {run.result.system: run.result.name for run in runs}
    entries = [entry for system in systems if (entry := system_entry(system, names[system]))]
    said = " ".join(methods_text(runs, told).split()).replace("@", " ")  # which begins an entry, also behind a %
    return "\n".join([f"% {said}", "", *entries, runs_entry(runs)])


def system_entry(system: str, title: str) -> str:
    """Empty for a system without a paper."""
    known = SYSTEMS.get(system)  # no code is imported that a folder names
    found = None if known is None else parsed(known.citation)
    if found is None:
        return ""
    authors = AUTHORS_OF.get(found["title"], found["author"])
    return entry(system, {**found, "author": authors, "note": f"System {title}"})


def parsed(citation: str) -> dict[str, str] | None:
    """Authors, title, perhaps venue and year, of ``Li et al., A title, MLSys 2020``, whose title is the first part of
    several words that is no list of names.
    """
    parts = [part.strip() for part in citation.split(",")]
    start = next((k for k, part in enumerate(parts) if _is_title(part)), None)
    if not start:
        return None
    names = [name for part in parts[:start] for name in part.removesuffix(" et al.").split(" and ")]
    if parts[start - 1].endswith(" et al."):
        names.append("others")
    dated = next((k for k in range(start + 1, len(parts)) if _YEAR.fullmatch(parts[k])), len(parts))
    found = {"author": " and ".join(names), "title": ", ".join(parts[start:dated])}
    if match := _YEAR.fullmatch(parts[dated]) if dated < len(parts) else None:
        venue = match["venue"]
        if venue is None and dated - start > 1 and re.search(r"\d", parts[dated - 1]):  # CMC 85(2), 2025
            found["title"], venue = ", ".join(parts[start : dated - 1]), parts[dated - 1]
        found |= ({"howpublished": venue} if venue else {}) | {"year": match["year"]}
    return found


def _is_title(part: str) -> bool:
    words = _INITIALS.sub("", part.removesuffix(" et al.")).split(" and ")
    return any(" " in word for word in words)


def runs_entry(runs: Sequence[Run]) -> str:
    configs = sorted(runs, key=lambda run: run.folder.name)
    digest = hashlib.sha256("".join(run.config_text for run in configs).encode()).hexdigest()
    names = ", ".join(dict.fromkeys(run.result.name for run in runs))
    versions = ", ".join(dict.fromkeys(run.result.version for run in runs))
    note = f"{names} on {runs[0].result.data}; {_seeds(runs)}; SHA-256 of {CONFIG}: {digest}"
    return entry(
        f"coterie-{digest[:12]}", {"author": f"{{{AUTHORS}}}", "title": TITLE, "version": versions, "note": note}
    )


def entry(key: str, fields: Mapping[str, str]) -> str:
    """A ``@misc``, escaped but for an author's braces."""
    lines = [
        f"  {name} = {{{value if name == 'author' and value.startswith('{') else _kept(_inert(value), name)}}},"
        for name, value in fields.items()
    ]
    name = re.sub(r"[^\w.@-]+", "_", key)
    return "\n".join([f"@misc{{{name},", *lines, "}", ""])


def _inert(words: str) -> str:
    """As LaTeX sets them; BibTeX counts escaped braces, and takes any @ for an entry."""
    plain = " ".join(words.replace("@", " ").split())
    return escaped(plain).replace(r"\{", r"\textbraceleft{}").replace(r"\}", r"\textbraceright{}")


def _kept(value: str, name: str) -> str:
    """BibTeX would lower a title's capitals."""
    return f"{{{value}}}" if name == "title" else value


def methods_text(runs: Sequence[Run], told: Mapping[str, Any] | None) -> str:
    first = runs[0].result
    ciphers = {"real": "real ciphers", "emulated": "emulated ciphers", "none": "no cipher"}
    methods = dict.fromkeys(
        f"{run.result.name}{f' (mode {run.result.mode})' if run.result.mode is not None else ''}"
        f" with {ciphers[run.result.crypto]}"
        for run in runs
    )
    work = f"{plural(first.clients, 'client')}, {plural(first.rounds, 'round')}, partition {first.partition}"
    said = f"We ran {', '.join(methods)} on {first.data} ({work}) with {_seeds(runs)} in Coterie {first.version}."
    if told is not None:
        return " ".join([said, comparison.budget(told), *comparison.chosen(told), *comparison.not_shared(told)])
    settings = ", ".join(f"{key} {value}" for key, value in runs[0].config.get("settings", {}).items())
    return f"{said} Settings: {settings}." if len(runs) == 1 and settings else said


def _seeds(runs: Sequence[Run]) -> str:
    found = sorted({run.result.seed for run in runs})
    return f"seed{'s' if len(found) > 1 else ''} {', '.join(map(str, found))}"
