"""A party is its state: each is thrown away and made again, from bytes, before any message, and nothing changes.

A coordinator is made again between two rounds; everybody else, before every message that it handles.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any
from unittest.mock import patch

import pytest
from every_system import model_for

from coterie.protocol.party import Party
from coterie.protocol.system import System
from coterie.runs import SYSTEMS, Experiment, RunConfig, build, registry
from coterie.runs.digests import models_digest
from coterie.runs.parties import dumped, restore
from coterie.transport.local import LocalTransport

ROUNDS = 3
VARIANTS: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("fedcaprivacy", "paper"): [{"clusters": 2}, {"clusters": "auto"}],
    ("fedcaprivacy", "literal"): [{"clusters": 2}],
    ("fedcaprivacy", "hardened"): [
        {"clusters": 2, "descriptor": "model"},
        {"clusters": 2, "descriptor": "model", "hardening": "rotation"},
        {"clusters": "auto", "descriptor": "signature", "founders": 3, "newcomers": 1, "join_every": 1},
    ],
    ("mingledpie", "paper"): [
        {"clusters": 4, "threshold": 1},
        {"clusters": 4, "threshold": 1, "p_changes": "2:0.25"},
        {"clusters": 2, "threshold": 2, "keys": "threshold", "rebuild": "none"},
    ],
    ("mingledpie", "literal"): [{"clusters": 4, "threshold": 1}],
    ("mingledpie", "hardened"): [{"clusters": 3}, {"clusters": 3, "hardening": "uploads"}],
    ("pafed", "paper"): [{}, {"signs": "hidden"}, {"keys": "threshold"}],
    ("fedepc", "paper"): [{}, {"send": "noise", "distribute": "round", "describe_every": 1}],
    ("fedepc", "hardened"): [
        {"participation": 0.6},
        {"participation": 0.75, "send": "noise", "founders": 4, "newcomers": 1, "join_every": 1},
    ],
    ("ofl", "paper"): [{"clusters": 2, "recluster_every": 2}],
    ("ofl", "literal"): [{"clusters": 2, "recluster_every": 2}],
    ("ofl", "hardened"): [
        {"clusters": 2, "recluster_every": 2},
        {"clusters": 2, "recluster_every": 2, "mechanism": "distributed", "noise": 0.05},
        {"clusters": 2, "mechanism": "distributed", "noise": 0.2, "noise_by": "members"},
    ],
    ("ifca", "paper"): [{"clusters": 2}, {"clusters": 2, "start": "pretrained"}],
}
STILL = {("mingledpie", "literal")}
"""As printed all clients join all clusters, H is singular, and no model changes."""
CASES = [
    pytest.param(
        name,
        mode,
        settings,
        id="-".join([name, mode, *map(str, settings.values())]),
        marks=() if mode == system.modes[-1] and not at else pytest.mark.long,
    )
    for name, system in SYSTEMS.items()
    for mode in system.modes
    for at, settings in enumerate(VARIANTS.get((name, mode), [{}]))
]


def made(system: str, mode: str, settings: dict[str, Any], crypto: str = "emulated") -> Experiment:
    data: dict[str, Any] = {"data": "digits", "samples": 200} if system == "fedbn" else {"data": "synthetic:8x4"}
    if "max_epochs" in {field.name for field in fields(registry.get(system).config)}:
        settings = {"max_epochs": 1, **settings}
    options = {"clients": 5, "rounds": ROUNDS, "partition": "permute:2", "mode": mode, "crypto": crypto, "seed": 1}
    return build(RunConfig(system, model=model_for(system), settings=settings, **data, **options))


def again(experiment: Experiment, party: Party) -> Party:
    """Another object that is the same party: made from what it was told, and its bytes."""
    own, common = experiment.owns[party.name], experiment.common
    twin = experiment.system.make(own, common, experiment.settings)
    restore(twin, dumped(party))
    return twin


def models_of(experiment: Experiment, restarting: bool) -> list[str]:
    hub = experiment.federation.hub
    handle, count = LocalTransport._handle, 0

    def handled(self: LocalTransport, jobs: Any) -> None:
        nonlocal count
        for job in jobs:
            experiment.parties.restart(job.parcel.envelope.dst)
            count += 1
        handle(self, jobs)

    with patch.object(LocalTransport, "_handle", handled if restarting else handle):
        experiment.set_up()
        digests = []
        for r in range(1, ROUNDS + 1):
            if restarting:
                experiment.parties.replace(again(experiment, experiment.federation.parties[hub]))
            digests.append(experiment.round(r)["models_sha256"])
        experiment.finish(ROUNDS)
        digests.append(models_digest(experiment.models(ROUNDS)))
    assert count > ROUNDS or not restarting
    experiment.close()
    return digests


@pytest.mark.parametrize(("system", "mode", "settings"), CASES)
def test_every_party_is_made_again_from_its_bytes_before_any_message(
    system: str, mode: str, settings: dict[str, Any]
) -> None:
    plain = models_of(made(system, mode, settings), restarting=False)
    assert models_of(made(system, mode, settings), restarting=True) == plain
    assert (len(set(plain)) == 1) == ((system, mode) in STILL)


@pytest.mark.long
def test_with_real_paillier_too() -> None:
    settings = {"clusters": 2}
    plain = models_of(made("fedcaprivacy", "paper", settings), restarting=False)
    assert models_of(made("fedcaprivacy", "paper", settings, "real"), restarting=True) == plain


@pytest.mark.parametrize("pads", [True, pytest.param(False, marks=pytest.mark.long)], ids=["pads", "no pads"])
def test_with_joint_keys_too(pads: bool) -> None:
    settings = {"keys": "threshold", "pads": pads}
    plain = models_of(made("own_page:SYSTEM", "paper", settings), restarting=False)
    assert models_of(made("own_page:SYSTEM", "paper", settings), restarting=True) == plain
    assert len(set(plain)) > 1


def test_every_registered_system_is_tested() -> None:
    tested = {(case.values[0], case.values[1]) for case in CASES}
    built_in = [name for name in SYSTEMS if name not in SYSTEMS.registered]
    assert tested == {(name, mode) for name in built_in for mode in registry.get(name).modes}


def test_a_state_holds_nothing_but_values() -> None:
    """No field of a state or secret is of an unnamed type: what a party keeps is said by its class."""

    def untyped(kind: Any) -> list[str]:
        shapeless = re.compile(r"ndarray\[(typing\.Any|tuple\[typing\.Any, \.\.\.\]), ")  # as numpy's version says it
        hints = {name: shapeless.sub("ndarray[", str(hint)) for name, hint in kind.__annotations__.items()}
        hints = {name: hint.replace("numpy.dtype[typing.Any]", "numpy.dtype") for name, hint in hints.items()}
        return [f"{kind.__qualname__}.{name}" for name, hint in hints.items() if "Any" in hint]

    found: list[str] = []
    for name in SYSTEMS:
        system: System = SYSTEMS[name]
        for make in (make for mode in system.modes for make in system.factories(system.config(), mode).values()):
            for part in ("State", "Secret"):
                found += untyped(getattr(make, part)) if hasattr(make, part) else []
    assert not found
