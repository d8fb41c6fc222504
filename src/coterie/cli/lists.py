"""The lists of ``coterie list``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence


def _systems() -> Iterator[tuple[str, ...]]:
    from coterie.runs.registry import SYSTEMS

    for name in SYSTEMS:
        system = SYSTEMS[name]
        modes = f", {len(system.modes)} modes" if len(system.modes) > 1 else ""
        cipher = "encrypted" if system.encrypted else "plain"
        yield name, _line(name, system.title, system.citation), cipher + modes
    yield "", "more of one: coterie list systems NAME", ""


def _line(name: str, title: str, citation: str) -> str:
    """A citation without authors, after a title that tells more than the name."""
    work = re.sub(r"^(?:(?:[A-Z]\.[- ]?)*[\w'.-]+(?: and [\w'.-]+| et al\.)?, )+", "", citation)
    return work if re.sub(r"\W", "_", title.lower()) == name else f"{title}: {work}"


def _datasets() -> Iterator[tuple[str, ...]]:
    from coterie.data.sources import NAMES
    from coterie.runs.defaults import defaults_for

    for name in NAMES:
        d = defaults_for(name)
        settings = ", ".join(f"{key}={value}" for key, value in d.settings.items())
        others = "".join(
            f"; for --model {model} {', '.join(f'{key}={value}' for key, value in own.items())}"
            for model, own in d.of_model.items()
        )
        own = "".join(f", {key} {value}" for key in ("model", "metrics", "folds") if (value := getattr(d, key)))
        yield name, f"by default {d.clients} clients, {d.rounds} rounds, {d.partition}{own}, {settings}{others}"
    d = defaults_for("synthetic:64x10")
    settings = ", ".join(f"{key}={value}" for key, value in d.settings.items())
    defaults = f"{d.clients} clients, {d.rounds} rounds, {d.partition}, {settings}"
    yield "synthetic:FxK", f"made up, F features and K classes, each client's when it is asked; by default {defaults}"
    yield "NAME", "your own: NAME.npz with x_train, y_train, x_test, y_test, or a graph, in --data-dir"


def _metrics() -> Iterator[tuple[str, ...]]:
    from coterie.runs.metrics import METRICS

    for name in dict.fromkeys(name for known in METRICS.values() for name in known):
        tasks = [task for task, known in METRICS.items() if name in known]
        better = "higher" if METRICS[tasks[0]][name].higher else "lower"
        yield name, f"for {' and '.join(tasks)}; {better} is better"
    yield "", "Or module:FUNCTION of your own: of true labels (n,) and scores (n, k)."


def _partitions() -> Iterator[tuple[str, ...]]:
    from coterie.data.schemes import FORMS, OWN_FORMS, TASK_FORMS

    yield from (FORMS | TASK_FORMS | OWN_FORMS).items()
    yield "", "[+SKEW]: a label skew (a form above, but not labelsets), for example rotate:4+dirichlet:0.3."


def _models() -> Iterator[tuple[str, ...]]:
    from coterie.training.names import MODELS

    yield from MODELS.items()


def _span(values: Sequence[float], unit: str) -> str:
    """``2.16 to 213 GFLOP/s``, or one number if all are alike."""
    ends = f"{min(values):.3g}", f"{max(values):.3g}"
    return f"{' to '.join(dict.fromkeys(ends))} {unit}"


def _devices() -> Iterator[tuple[str, ...]]:
    from coterie.devices.profiles import FLEETS, fleet

    for name in FLEETS:
        members = fleet(name, 100, 0)
        speeds = (
            _span([getattr(member, field) / scale for member in members], unit)
            for field, scale, unit in (
                ("compute_flops_per_s", 1e9, "GFLOP/s"),
                ("up_bytes_per_s", 1e6, "MB/s up"),
                ("down_bytes_per_s", 1e6, "MB/s down"),
                ("cpu_ghz", 1, "GHz"),
                ("memory_gib", 1, "GiB"),
            )
        )
        there = min(member.availability for member in members)
        yield name, ", ".join(speeds) + (f", there {100 * there:.0f} % of the time" if there < 1 else "")
    yield "FILE.toml", "your own profiles"


def _attacks() -> Iterator[tuple[str, ...]]:
    from coterie.runs.attacked import ON_EVERY_SYSTEM
    from coterie.runs.registry import SYSTEMS, audit_of

    own = ((name, audit.attacks) for name, system in SYSTEMS.items() if (audit := audit_of(system)) is not None)
    for system, attacks in (("every system", ON_EVERY_SYSTEM), *own):
        for attack in attacks:
            yield attack.name, system, f"{attack.adversary}: {attack.summary}"


def _poisoning() -> Iterator[tuple[str, ...]]:
    from coterie.privacy.attacks.active import ATTACKERS, KINDS

    for name, kind in KINDS.items():
        yield f"{name}[:STRENGTH]", f"an attacker {kind.words}; strength: {kind.means} [{kind.strength:g}]"
    yield "", f"--attackers SHARE of the clients do so [{ATTACKERS:g}]. Scores are means over the honest clients."


def _reproductions() -> Iterator[tuple[str, ...]]:
    from coterie.reproductions import items

    for name, item in items().items():
        yield name, item.title


LISTS: Mapping[str, tuple[str, Callable[[], Iterator[tuple[str, ...]]]]] = {
    "systems": ("methods, a line each; with a NAME, its settings and who sees what", _systems),
    "datasets": ("data sets known by name, with their default options", _datasets),
    "partitions": ("how samples are dealt to clients, as --partition takes it", _partitions),
    "metrics": ("what models are scored by, as --metrics takes it", _metrics),
    "models": ("what is trained, as --model takes it", _models),
    "devices": ("how fast the clients' devices are, as --devices takes it", _devices),
    "attacks": ("what coterie audit tries on the views of each system", _attacks),
    "poisoning": ("how clients misbehave, as --attack takes it", _poisoning),
    "reproductions": ("tables and figures of papers, as coterie reproduce takes them", _reproductions),
}
