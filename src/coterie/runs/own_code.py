"""One's own code that a config names; digests of sources detect edits."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sysconfig
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import coterie
from coterie.data.schemes import is_own as is_own_scheme
from coterie.privacy.attacks.active import KINDS
from coterie.protocol.errors import UserError
from coterie.protocol.import_path import check_elsewhere, import_object
from coterie.record.files import reading
from coterie.record.folder import COMPARE
from coterie.runs.config import Resolved
from coterie.runs.config_file import read_toml
from coterie.runs.metrics import named

_OURS = Path(coterie.__file__).resolve().parent
_INSTALLED = {"site-packages", "dist-packages"}
_STANDARD = tuple({Path(sysconfig.get_paths()[key]).resolve() for key in ("stdlib", "platstdlib")})


def own_code(config: Resolved) -> dict[str, str]:
    """By module, the hexadecimal SHA-256 of its file: of those named as ``module:NAME``, and one's own that they
    import; not of Python objects. Raises UserError for an unreadable one.
    """
    found: dict[str, str] = {}
    waiting = list(_modules(config))
    while waiting:
        module = waiting.pop()
        path = _own_file(module)
        if module.name in found or path is None:
            continue
        with reading(path, "restore the file"):
            source = path.read_bytes()
        found[module.name] = hashlib.sha256(source).hexdigest()
        if path.suffix == ".py":
            waiting += _imported(source, module)
    return dict(sorted(found.items()))


def check_same_code(then: Mapping[str, str], now: Mapping[str, str], where: str) -> None:
    """Raises UserError if ``own_code`` has changed.  where: its folder."""
    changed = [repr(name) for name in sorted({*then, *now}) if then.get(name) != now.get(name)]
    if changed:
        modules = f"module{'s' * (len(changed) > 1)} {', '.join(changed)}"
        raise UserError(
            f"{where}: your own code has changed since this run was begun, in {modules}, and it would go on with other "
            "numbers than it began with: restore what has changed, or start the run anew with another --out"
        )


def with_code(inputs: str, code: Mapping[str, str]) -> str:
    """What all workers must share: inputs (``inputs_digest``) and own code."""
    return " ".join([inputs, *(f"{name}={digest}" for name, digest in code.items())])


def named_in(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    attack = str(options.get("attack") or "")
    of: dict[str, Sequence[str]] = {name: [str(options.get(name) or "")] for name in ("system", "model", "loss")}
    of["metrics"] = named(options.get("metrics"))
    of["partition"] = [spec for spec in (options.get("partition") or "").split("+") if is_own_scheme(spec)]
    of["attack"] = [] if attack.partition(":")[0] in KINDS else [":".join(attack.split(":")[:2])]
    yield from ((option, path) for option, paths in of.items() for path in paths if ":" in path)


def _modules(config: Resolved) -> Iterator[ModuleSpec]:
    for option, path in named_in(vars(config)):
        module = path.partition(":")[0]
        if module != "given":
            import_object(path, "metric" if option == "metrics" else option)
            if (spec := _spec(module)) is not None:
                yield spec


def check_code(config: Path, said: Collection[str] | None = None) -> None:
    """Raises UserError if a config names code in its own folder.  said: options of the command line."""
    for option, path in named_in(read_toml(config)):
        if option not in (said or ()):
            word = path if option == "system" else f"--{option} {path}"
            advice = () if said is None else (f"name it on the command line: {word}",)
            check_elsewhere(path, option, came_in(config.parent), *advice)


def came_in(out: Path) -> Path:
    out = out.resolve()
    return out.parent if (out.parent / COMPARE).is_file() else out


def _imported(source: bytes, module: ModuleSpec) -> Iterator[ModuleSpec]:
    package = module.name if module.submodule_search_locations is not None else module.name.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            base = importlib.util.resolve_name(base, package) if node.level and package else base
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        for name in names:
            top = _spec(name.partition(".")[0])
            if top is not None and _own_file(top, packages=True) is not None and (spec := _spec(name)) is not None:
                yield spec


def _spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None


def _own_file(module: ModuleSpec, *, packages: bool = False) -> Path | None:
    places = [*(module.submodule_search_locations or ())] if packages and not module.has_location else []
    file = module.origin if module.has_location else next(iter(places), None)
    path = None if file is None else Path(file).resolve()
    return path if path is not None and is_own(path) else None


def is_own(path: Path) -> bool:
    """Whether a file (resolved) is neither installed, nor of Coterie or Python."""
    if not path.exists() or not _INSTALLED.isdisjoint(path.parts):
        return False
    return not any(path.is_relative_to(place) for place in (_OURS, *_STANDARD))


def own_line(error: BaseException) -> str | None:
    """``FILE, line N`` of one's own code that raised an exception, or None."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_own(Path(frame.filename).resolve())]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else None
