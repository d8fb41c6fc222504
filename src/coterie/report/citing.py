"""How to cite a run or a comparison."""

from __future__ import annotations

import hashlib
import re
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


AUTHORS_OF: Mapping[str, str] = {
    "Communication-efficient learning of deep networks from decentralized data": (
        "H. B. McMahan and E. Moore and D. Ramage and S. Hampson and Agüera y Arcas, B."
    ),
    "Practical secure aggregation for privacy-preserving machine learning": (
        "K. Bonawitz and V. Ivanov and B. Kreuter and A. Marcedone and H. B. McMahan "
        "and S. Patel and D. Ramage and A. Segal and K. Seth"
    ),
    "Federated optimization in heterogeneous networks": (
        "T. Li and A. K. Sahu and M. Zaheer and M. Sanjabi and A. Talwalkar and V. Smith"
    ),
    "Adaptive federated optimization": (
        "S. J. Reddi and Z. Charles and M. Zaheer and Z. Garrett "
        "and K. Rush and J. Konečný and S. Kumar and H. B. McMahan"
    ),
    "SCAFFOLD: stochastic controlled averaging for federated learning": (
        "S. P. Karimireddy and S. Kale and M. Mohri and S. J. Reddi and S. U. Stich and A. T. Suresh"
    ),
    "Tackling the objective inconsistency problem in heterogeneous federated optimization": (
        "J. Wang and Q. Liu and H. Liang and G. Joshi and H. V. Poor"
    ),
    "Federated learning based on dynamic regularization": (
        "D. A. E. Acar and Y. Zhao and R. Matas and M. Mattina and P. Whatmough and V. Saligrama"
    ),
    "An efficient framework for clustered federated learning": "A. Ghosh and J. Chung and D. Yin and K. Ramchandran",
    "Federated multi-task learning under a mixture of distributions": (
        "O. Marfoq and G. Neglia and A. Bellet and L. Kameni and R. Vidal"
    ),
    "Exploiting shared representations for personalized federated learning": (
        "L. Collins and H. Hassani and A. Mokhtari and S. Shakkottai"
    ),
    "Ditto: fair and robust federated learning through personalization": "T. Li and S. Hu and A. Beirami and V. Smith",
    "FedBN: federated learning on non-IID features via local batch normalization": (
        "X. Li and M. Jiang and X. Zhang and M. Kamp and Q. Dou"
    ),
    "Federated learning with label distribution skew via logits calibration": (
        "J. Zhang and Z. Li and B. Li and J. Xu and S. Wu and S. Ding and C. Wu"
    ),
    "Federated learning with buffered asynchronous aggregation": (
        "J. Nguyen and K. Malik and H. Zhan and A. Yousefpour and M. Rabbat and M. Malek and D. Huba"
    ),
    "Tackling the data heterogeneity in asynchronous federated learning with cached update calibration": (
        "Y. Wang and Y. Cao and J. Wu and R. Chen and J. Chen"
    ),
    "Learning differentially private recurrent language models": (
        "H. B. McMahan and D. Ramage and K. Talwar and L. Zhang"
    ),
    "Practical and private (deep) learning without sampling or shuffling": (
        "P. Kairouz and B. McMahan and S. Song and O. Thakkar and A. Thakurta and Z. Xu"
    ),
    "Machine learning with adversaries: Byzantine tolerant gradient descent": (
        "P. Blanchard and El Mhamdi, E. M. and R. Guerraoui and J. Stainer"
    ),
    "Byzantine-robust distributed learning: towards optimal statistical rates": (
        "D. Yin and Y. Chen and K. Ramchandran and P. Bartlett"
    ),
    "FLTrust: Byzantine-robust federated learning via trust bootstrapping": (
        "X. Cao and M. Fang and J. Liu and N. Z. Gong"
    ),
    "HACCS: Heterogeneity-aware clustered client selection for accelerated federated learning": (
        "J. Wolfrath and N. Sreekumar and D. Kumar and Y. Wang and A. Chandra"
    ),
    "Oort: Efficient federated learning via guided participant selection": (
        "F. Lai and X. Zhu and H. V. Madhyastha and M. Chowdhury"
    ),
    "Resource-efficient federated learning with hierarchical aggregation": (
        "Z. Wang and H. Xu and J. Liu and H. Huang and C. Qiao and Y. Zhao"
    ),
}
"""By title, all authors of papers cited by the first."""
