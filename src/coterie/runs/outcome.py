"""The content of ``result.json``. Devices' spending is nominal (``Profile.joules``, ``training_bytes``)."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

import coterie.method as fl
from coterie.data.own import name_of
from coterie.devices.traces import parse
from coterie.dp.ledger import DELTA, statements
from coterie.protocol.names import each
from coterie.record.schema import Joules, Used
from coterie.record.summary import Line, last_line, stretches, totals
from coterie.runs.digests import models_digest
from coterie.runs.evaluation import Trained, train_accuracies
from coterie.runs.experiment import Experiment
from coterie.runs.registry import audit_of

_OPTIONS = ("mode", "seed", "rounds", "clients", "data", "partition", "model", "devices")  # that a result repeats


def summary(
    experiment: Experiment,
    set_up: Line,
    rounds: Sequence[Line],
    finish: Line | None,
    models: Mapping[str, fl.ClientModel],
    trained: Mapping[str, Trained],
) -> dict[str, Any]:
    """Bytes, seconds and refusals are sums over the set-up, all rounds and the finish.

    Scores are means over the honest clients after the last round, or after the finish if it changed models.  models:
    that are kept.  trained: their outputs on training samples.
    """
    config, everything, last = experiment.config, stretches(set_up, rounds, finish), last_line(rounds, finish)
    accuracies = train_accuracies(experiment.attackers.left_out(trained))
    emulated = experiment.crypto == "emulated"
    wanted = "fine_tuned_", "prior_", "mixed_", "grouping"
    measured = {key: value for key, value in last.items() if key.startswith(wanted)}
    if epochs := measured.get("fine_tuned_epochs"):
        measured["fine_tuned_epochs"] = sum(epochs) / len(epochs)
    transcript = experiment.transport.transcript
    recording = "off" if transcript is None else "complete"
    if transcript is not None and transcript.stopped_at is not None:
        recording = f"stopped in round {transcript.stopped_at}: more than {config.record_mib} MiB"
    return {
        "system": experiment.system.name,
        "title": experiment.system.title + (" (emulated cipher)" if emulated else ""),
        "crypto": experiment.crypto,
        "emulated": emulated,
        **{key: getattr(config, key) for key in _OPTIONS},
        "evaluated": config.evaluated,
        "test_sample": last.get("test_sample"),
        "data": name_of(config.data),
        "availability": None if config.availability is None else parse(config.availability).name,
        "public_samples": experiment.common.public,
        "inputs_digest": experiment.inputs_digest,
        "own_code": experiment.own_code,
        "parameters": experiment.model.spec.size,
        "task": config.task,
        "measures": [metric.facts for metric in experiment.observer.metrics],
        **totals(set_up, rounds, finish),
        **experiment.attackers.facts(config, rounds),
        "backdoor_success": last.get("backdoor_success"),
        "models_sha256": models_digest(models),
        "train_accuracy": accuracies and accuracies.means()["train_accuracy"],
        "train_sample": accuracies and accuracies.sampled and msgspec.structs.asdict(accuracies.sampled),
        **measured,
        "observing_seconds": sum(line.get("observing_seconds", 0.0) for line in everything),
        "outliers": dict(Counter(name for line in rounds for name in line["notes"].get("outliers", ()))),
        "client_role": experiment.common.roster.client_role,
        "sees": experiment.system.seen_by(config.mode, experiment.settings),
        "assumes": experiment.system.assumed(config.mode, experiment.settings),
        "ledger": _ledger(experiment, everything),
        "dp_audit": _audited_noise(experiment),
        "devices_used": by_type(experiment, everything),
        "recording": recording,
        "peak_memory_bytes": peak_memory_bytes(),
    }


def _ledger(experiment: Experiment, lines: Sequence[Line]) -> dict[str, dict[str, Any]] | None:
    system, settings = experiment.system, experiment.settings
    if system.ledger is None and system.releases is None:
        return None
    rounds = [line.get("round", 0 if i == 0 else len(lines) - 1) for i, line in enumerate(lines)]
    sent = [(r, line.get("released", {})) for r, line in zip(rounds, lines, strict=True)]
    found = {name: list[fl.Release]() for name in experiment.shown}
    owns = each(experiment.data.clients, lambda name: experiment.owns[name])
    found |= releases(system, settings, experiment.config.mode, experiment.seen, owns, sent)
    return statements(found, getattr(settings, "dp_delta", DELTA))


def releases(
    system: fl.System,
    settings: Any,
    mode: str,
    federation: fl.Federation,
    owns: Mapping[str, fl.Own],
    sent: Iterable[tuple[int, Mapping[str, Sequence[str]]]],
) -> dict[str, list[fl.Release]]:
    """By client, all that it has released, by its state and counted messages.  sent: by round and kind of message, the
    senders.
    """
    own = {} if system.ledger is None else system.ledger(federation)
    found = {name: list(releases) for name, releases in own.items()}
    words = {kind.__name__: what for kind, what in system.counted(settings, mode).items()}
    for r, kinds in sent:
        for kind, senders in kinds.items():
            for name in senders:
                if party := owns.get(name):
                    more = fl.told(settings, party.samples, party.epochs, words.get(kind, ()), r)
                    found.setdefault(name, []).extend(more)
    return found


def _audited_noise(experiment: Experiment) -> list[Mapping[str, Any]] | None:
    if experiment.system.ledger is None:
        return None
    audit = audit_of(experiment.system)
    return list(audit.noise(experiment.federation)) if audit and audit.noise else None


def peak_memory_bytes() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


_FLOAT_BYTES = 4


def by_type(experiment: Experiment, lines: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """``Used`` by type of device. lines: of the set-up, all rounds and the finish.

    If only some clients are evaluated, presence is scaled up, and peak memory is theirs.
    """
    lines = list(lines)
    spans = [(line.get("began_virtual_seconds", 0.0), line["virtual_seconds"]) for line in lines]
    seconds: dict[str, float] = {}
    largest: dict[str, int] = {}
    for line in lines:
        for key, value in line["device_seconds"].items():
            seconds[key] = seconds.get(key, 0.0) + value
        for key, value in line["device_messages"].items():
            largest[key] = max(largest.get(key, 0), value)
    found = {}
    of_kind = Counter(profile.name for profile in experiment.devices.values())
    looked_at = {name: experiment.devices[name] for name in experiment.shown}
    for kind in sorted({profile.name for profile in looked_at.values()}):
        members = {name: profile for name, profile in looked_at.items() if profile.name == kind}
        profile = next(iter(members.values()))
        there_s = sum(_there_s(experiment, name, *span) for span in spans for name in members)
        there_s *= of_kind[kind] / len(members)
        compute_s, radio_s = (seconds.get(f"{kind}/{what}", 0.0) for what in ("compute", "radio"))
        peak = max(
            training_bytes(
                experiment.model.spec,
                samples=experiment.owns[name].samples,
                numbers=experiment.sample_numbers,
                batch=int(getattr(experiment.settings, "batch_size", experiment.owns[name].samples)),
                message=largest.get(kind, 0),
            )
            for name in members
        )
        joules = Joules(**profile.joules(compute_s, radio_s, there_s))
        memory_gib = min(one.memory_gib for one in members.values())
        found[kind] = msgspec.to_builtins(Used(of_kind[kind], compute_s, radio_s, there_s, joules, peak, memory_gib))
    return found


def _there_s(experiment: Experiment, name: str, from_s: float, until_s: float) -> float:
    return until_s - from_s if experiment.traces is None else experiment.traces.present(name, from_s, until_s)


def training_bytes(spec: fl.ModelSpec, *, samples: int, numbers: int, batch: int, message: int) -> int:
    """Without code: weights, gradients and one more vector; a batch's activations with gradients; the client's samples;
    the largest message, as bytes and decoded. Numbers take four bytes.
    """
    vectors = 3 * spec.size + 2 * min(batch, samples) * spec.activations + samples * numbers
    return _FLOAT_BYTES * vectors + 2 * message
