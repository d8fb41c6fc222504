"""Active attacks on a recorded run: the same run once more, with one client that deviates.

Who it is follows from the record: the client that was asked most often. Everything else is as it was, by the same seed:
data, sampling, delays; keys and the ciphers' noise are fresh, as they are in every real run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from coterie.attacks import Result, key_agreement
from coterie.attacks.key_in_sum import KeyThief, key_coefficients
from coterie.attacks.wrapping import LateParty, wrap
from coterie.audit.findings import Finding
from coterie.audit.pafed import HELPER, HUB, held_key
from coterie.protocol.errors import UserError
from coterie.reproduce.security.recorded import Recorded, recorded_run
from coterie.runs.config import RunConfig
from coterie.runs.experiment import Experiment

Row = dict[str, Any]

LATE = 1
"""By how many rounds a thief is late. A late update enters by the weight of its class, however long it is. One in time,
if it is as long as a forged one, makes |m|^2 implausible to PAFed's helper where others are late: the round is skipped.
"""


@dataclass(frozen=True, eq=False)
class Theft:
    """What a run was with a thief in it. client: its name.  run: the record."""

    thief: KeyThief
    client: str
    run: Recorded


def stolen_key(run: Recorded) -> list[Finding]:
    """The helper's key, read by one client off the models that it is handed, and what it opens of the others' updates.

    The second finding is only there once the key is known. Raises UserError where the attack does not apply: for
    emulated keys, for models that fill no ciphertext, and where no client was asked twice.
    """
    if run.config.crypto != "real":
        raise UserError(
            "an emulated key has no secret to be stolen: repeat the run with\n"
            "  coterie run --config DIR/config.toml --crypto real --record --out ANOTHER_FOLDER"
        )
    return findings(theft(run.config, asked_most(run)))


def asked_most(run: Recorded) -> str:
    """The client that was asked in the most rounds; of several, the one that was asked first."""
    asked = {
        name: [seen.round for seen in run.views[name].seen if seen.kind == "Train"]
        for name in run.clients
        if name in run.views
    }
    name = max(asked, key=lambda name: (len(asked[name]), -min(asked[name], default=0)))
    if len(asked[name]) < 2:
        raise UserError("nobody was asked in two rounds, and a client reads the key off the next model: more rounds")
    return name


def theft(config: RunConfig, client: str) -> Theft:
    """Run it with this client as a thief."""
    thieves: list[KeyThief] = []

    def meddle(experiment: Experiment) -> None:
        party: Any = experiment.federation.parties[client]
        thieves.append(KeyThief(party.spec, late=LATE))
        wrap(party, thieves[0].between)
        experiment.transport.links = LateParty(experiment.transport.links, client, LATE)

    run, experiment = recorded_run(replace(config, record=True), meddle)
    experiment.close()
    return Theft(thieves[0], client, run)


def findings(theft: Theft) -> list[Finding]:
    """How much of the key is right in the last reading; once all of it is, how far off others' updates open with it."""
    thief, truth = theft.thief, held_key(theft.run.views[HELPER])
    if thief.guess is None:
        raise UserError(f"{theft.client} was handed no model after its forged update: more rounds")
    agreement = key_agreement(thief.guess, key_coefficients(truth))
    found = [Finding(f"{theft.client}, deviating: the helper's key", (agreement,), round=thief.round)]
    if thief.key is not None:
        opened = _opened(theft, truth)
        found.append(Finding(f"the hub with the key of {theft.client}: the others' updates", (opened,)))
    return found


def _opened(theft: Theft, truth: Any) -> Result:
    """All updates of the others by the stolen key, beside what the true one opens. Chance: to guess zero."""
    key, errors, others = theft.thief.key, [], set()
    assert key is not None
    for seen in theft.run.views[HUB].seen:
        if seen.kind == "Update" and seen.src != theft.client and seen.message:
            vector = truth.public.from_bytes(getattr(seen.message, "cipher", b""))
            update = truth.decrypt(vector)
            errors.append(float(np.linalg.norm(key.decrypt(vector) - update) / np.linalg.norm(update)))
            others.add(seen.src)
    return Result("relative error of updates", fmean(errors), 1.0, 0.0, len(others))


def thieves(seeds: int, sizes: Sequence[int] = (12, 20, 31), each: int = 2, **options: Any) -> list[Row]:
    """Runs with digits and an MLP, default settings and real keys, each with another client as a thief.

    sizes: of federations.  each: how many of a federation's clients are thieves, one a run.  "accuracy without" is of
    the same run without a thief, with emulated keys.
    """
    rows = []
    for clients in sizes:
        given: Row = {"rounds": 10, "model": "mlp", **options}
        configs = [RunConfig("pafed", clients=clients, seed=seed, **given) for seed in range(seeds)]
        played = [_played(config, f"client/{i}") for config in configs for i in range(each)]
        errors = [error for run in played if (error := run.pop("error")) is not None]
        rows.append(
            {
                "clients": clients,
                **given,
                "thieves": len(played),
                "with the key": len(errors),
                "error of the others' updates": max(errors, default=None),
                **{name: [run[name] for run in played] for name in played[0]},
                "accuracy without": [_accuracy(replace(config, crypto="emulated")) for config in configs],
            }
        )
    return rows


def _played(config: RunConfig, client: str) -> Row:
    """One thief's run in numbers, so that its record is not kept. error: of the others' updates, if it has the key."""
    stolen = theft(config, client)
    key, *opened = findings(stolen)
    return {
        "error": opened[0].results[0].value if opened else None,
        "forged": len(stolen.thief.forged_in),
        "in round": key.round,
        "agreement": key.results[0].value,
        "chance": key.results[0].chance,
        "accuracy": stolen.run.lines[-1]["global_accuracy"],
        "rounds skipped": sum("skipped" in line["notes"] for line in stolen.run.lines),
    }


def _accuracy(config: RunConfig) -> float:
    run, experiment = recorded_run(replace(config, record=True))
    experiment.close()
    return float(run.lines[-1]["global_accuracy"])
