"""What a run costs the clients' devices, by their type: time, energy and memory. All of it is nominal.

Time follows from nominal work and the device's profile, as virtual time does. Energy is power times time: of computing,
of the link, and of being there at all (``Profile.joules``). Memory is a formula. Nothing here is measured on a device.
Parties without a device of their own, such as servers, are not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from coterie.protocol.model_spec import ModelSpec
from coterie.record.schema import Joules, Used
from coterie.runs.experiment import Experiment

_FLOAT_BYTES = 4


def by_type(experiment: Experiment, lines: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """``Used`` by type of device, as ``result.json`` has it. lines: of the set-up, all rounds and the finish.

    Where only some clients are evaluated, presence is scaled up from these, and the peak memory is theirs.
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


def training_bytes(spec: ModelSpec, *, samples: int, numbers: int, batch: int, message: int) -> int:
    """What training needs on a device, without the code that runs it: a formula, not a measurement.

    Weights, gradients and one more vector of the solver or the answer; the activations of a batch with their gradients;
    the client's own samples of so many numbers each; and the largest message, as bytes and decoded. Numbers take four
    bytes. An optimiser with two moments, or keys and buffers of a cipher, need more.
    """
    vectors = 3 * spec.size + 2 * min(batch, samples) * spec.activations + samples * numbers
    return _FLOAT_BYTES * vectors + 2 * message
