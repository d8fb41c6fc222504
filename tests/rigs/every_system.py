"""Every system in every mode, with the settings that change who talks to whom, for tests that go through all of them.

The federations are those of ``federation.rig``: six clients in two groups, and a model of 24 numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pkgutil import iter_modules
from typing import Any

import pytest
from federation import Rig, planted, rig
from prepared import begun

from coterie import systems
from coterie.runs import SYSTEMS, registry

SIZE = 24
TARGETS = planted([0, 0, 0, 1, 1, 1], SIZE, seed=3)

BASELINES = [name for name in SYSTEMS if name not in {module.name for module in iter_modules(systems.__path__)}]

Case = tuple[str, str, dict[str, Any]]

VARIANTS: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("haccs", "paper"): [{"participation": 1.0}],
    ("flacc", "paper"): [{"settle": 1}],
    ("oort", "paper"): [{"participation": 1.0}],
    ("fedbuff", "paper"): [{"participation": 1.0, "buffer": 3}],
    ("ca2fl", "paper"): [{"participation": 1.0, "buffer": 3}],
    ("clsm_fl", "paper"): [{"clusters": 2}],
    ("ifca", "paper"): [{"clusters": 2}],
    ("rfl_ha", "paper"): [{"clusters": 2}],
    ("krum", "paper"): [{"faulty": 0.17}],
    ("multi_krum", "paper"): [{"faulty": 0.17}],
    ("fedcaprivacy", "paper"): [{"clusters": 2, "schedule": "always"}, {"clusters": "auto"}],
    ("fedcaprivacy", "literal"): [{"clusters": 2, "schedule": "always"}],
    ("fedcaprivacy", "hardened"): [
        {"clusters": 2, "min_cluster": 2, "descriptor": "model", "sketch_dim": 8},
        {"clusters": 2, "min_cluster": 2, "descriptor": "model", "hardening": "rotation"},
        {"clusters": 2, "min_cluster": 2, "descriptor": "signature"},
    ],
    ("coterie", "paper"): [{"clusters": 2, "min_cluster": 2, "fewest": 1}, {"clusters": 1, "check": "norm"}],
    ("mingledpie", "paper"): [{"clusters": 3}, {"clusters": 2, "threshold": 2, "keys": "threshold", "rebuild": "none"}],
    ("mingledpie", "literal"): [{"clusters": 3}],
    ("mingledpie", "hardened"): [
        {"clusters": 3},
        {"clusters": 2, "hardening": "uploads"},
        {"clusters": 2, "hardening": "uploads", "keys": "threshold"},
    ],
    ("fedepc", "paper"): [{}, {"send": "noise", "distribute": "round", "describe_every": 1}],
    ("fedepc", "hardened"): [{"min_cluster": 2}, {"cipher": "paillier"}],
    **{("ofl", mode): [{"clusters": 2, "recluster_every": 2}] for mode in ("paper", "literal", "hardened")},
    ("pafed", "paper"): [
        {"participation": 1.0},
        {"participation": 1.0, "signs": "hidden"},
        {"participation": 1.0, "keys": "threshold"},
    ],
    ("pafed", "literal"): [{"participation": 1.0}],
    ("pafed", "hardened"): [{"participation": 1.0}],
}
"""By system and mode, settings; none where there is no entry."""

MODELS = {"fedepc": "mlp_small", "fedrep": "mlp_small", "fedbn": "batch_norm_models:small"}
"""By system, a model that it takes, where logistic regression is none: FedEPC needs a ReLU, FedRep a body."""


def model_for(name: str, usual: Any = "linear") -> Any:
    """A model for this system in a test where the others have the usual one (None: that of the data)."""
    return MODELS.get(name, usual) if usual == "linear" or name == "fedbn" else usual


CASES: list[Case] = [
    (name, mode, settings)
    for name, system in SYSTEMS.items()
    for mode in system.modes
    for settings in VARIANTS.get((name, mode), [{}])
]


def made(case: Case, **options: Any) -> Rig:
    """This federation, set up. options: of ``federation.rig``."""
    name, mode, settings = case
    return rig(registry.get(name), TARGETS, mode=mode, **{"delta": 0.0, **options, **settings})


def after(case: Case, rounds: int = 0) -> Rig:
    """This federation after its set-up and so many rounds of honest parties that are all there."""
    return begun(str(case), lambda: made(case), rounds)


def first(case: Case) -> bool:
    """Whether no other case of the same system and mode, with or without joint keys, stands before it."""

    def kind(one: Case) -> tuple[str, str, bool]:
        return one[0], one[1], one[2].get("keys") == "threshold"

    return case is next(one for one in CASES if kind(one) == kind(case))


def one_mode(case: Case, cases: Sequence[Case] = CASES) -> bool:
    """Whether no other case of the same system stands before it, in any mode."""
    return case is next(one for one in cases if one[0] == case[0])


def own_messages(case: Case, cases: Sequence[Case] = CASES) -> bool:
    """Whether no other case before it has the same types of messages: most baselines send what FedAvg does."""
    return case is next(one for one in cases if _messages(one[0]) == _messages(case[0]))


_messages = cache(lambda name: frozenset(registry.get(name).kinds()))


def parameters(cases: list[Case], short: Any = lambda case: True) -> list[Any]:
    """For ``pytest.mark.parametrize``; those that are not ``short`` are long tests."""
    return [
        pytest.param(
            case, marks=() if short(case) else pytest.mark.long, id="-".join([*case[:2], *map(str, case[2].values())])
        )
        for case in cases
    ]
