"""One's own code that a run's config names; digests of the modules' sources detect edits."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sysconfig
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path

import coterie
from coterie.data.schemes import is_own
from coterie.privacy.attacks.active import parse
from coterie.protocol.errors import UserError
from coterie.protocol.import_path import import_object
from coterie.record.files import reading
from coterie.runs.config import Resolved
from coterie.runs.metrics import named

_OURS = Path(coterie.__file__).resolve().parent
_INSTALLED = {"site-packages", "dist-packages"}
_STANDARD = tuple({Path(sysconfig.get_paths()[key]).resolve() for key in ("stdlib", "platstdlib")})


def own_code(config: Resolved) -> dict[str, str]:
    """By name of a module, the SHA-256 of its file, in hexadecimal. Raises UserError for an unreadable module.

    The modules are those of the system, model, loss, metrics, partition and attack that a resolved config names as
    ``module:NAME``, and one's own modules that these import. Objects given in Python are left out.
    """
    found: dict[str, str] = {}
    waiting = list(_named(config))
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
    """Raises UserError if a run's own code (``own_code``) has changed since its start. where: the run's folder or
    place.
    """
    changed = [repr(name) for name in sorted({*then, *now}) if then.get(name) != now.get(name)]
    if changed:
        modules = f"module{'s' * (len(changed) > 1)} {', '.join(changed)}"
        raise UserError(
            f"{where}: your own code has changed since this run was begun, in {modules}, and it would go on with other "
            "numbers than it began with: restore what has changed, or start the run anew with another --out"
        )


def with_code(inputs: str, code: Mapping[str, str]) -> str:
    """What must be the same at all workers: a run's inputs (``inputs_digest``) and its own code."""
    return " ".join([inputs, *(f"{name}={digest}" for name, digest in code.items())])


def _named(config: Resolved) -> Iterator[ModuleSpec]:
    of = {
        "system": (config.system,),
        "model": (config.model,),
        "loss": (config.loss,),
        "metric": named(config.metrics),
        "partition": [spec for spec in config.partition.split("+") if is_own(spec)],
        "attack": [] if config.attack is None else [parse(config.attack).kind],
    }
    for what, paths in of.items():
        for path in paths:
            module, colon, _ = (path or "").partition(":")
            if colon and module != "given":
                import_object(str(path), what)
                if (spec := _spec(module)) is not None:
                    yield spec


def _imported(source: bytes, module: ModuleSpec) -> Iterator[ModuleSpec]:
    """One's own modules that a source imports anywhere. Only one's own packages are imported here."""
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
    """The file of one's own module, else None. packages: take the folder of a package without a file, too."""
    places = [*(module.submodule_search_locations or ())] if packages and not module.has_location else []
    file = module.origin if module.has_location else next(iter(places), None)
    path = None if file is None else Path(file).resolve()
    if path is None or not path.exists() or not _INSTALLED.isdisjoint(path.parts):
        return None
    return None if any(path.is_relative_to(place) for place in (_OURS, *_STANDARD)) else path
