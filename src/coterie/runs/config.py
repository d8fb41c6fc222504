"""The options of a run, resolved against its data set's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coterie.protocol.core as fl
from coterie.data.drift import parse_drift
from coterie.data.own import CLIENT, is_path
from coterie.data.tasks import column_of
from coterie.devices.links import delay_law
from coterie.runs import registry
from coterie.runs.defaults import defaults_for, of_machine
from coterie.runs.options import OPTIONS as OPTIONS
from coterie.runs.options import RunConfig as RunConfig
from coterie.runs.registry import typed_settings
from coterie.runs.settings import convert, field_types, values_of

SIDES = frozenset(
    {"data_dir", "out", "accelerator", "checkpoint_every", "eval_every", "fine_tune_every", "record", "record_mib"}
    | {"log", "workers", "evaluate"}
)
"""Options that move no number of a round."""

_OF_SCHEMA = ("target", "gaps", "categories", "kind", "task", "scaling")

MOST_EVALUATED = 1000
"""Clients that are scored by default; in audits all."""


@dataclass(frozen=True, kw_only=True)
class Resolved(RunConfig):
    """A run whose every option has a value and has passed all checks without data.

    clients: None where the data decide.  settings: all of the system's.
    """

    rounds: int
    partition: str
    model: str
    delta: float
    public: float

    @property
    def definition(self) -> fl.System:
        return registry.get(self.system)

    @property
    def own(self) -> Any:
        return self.definition.config(**self.settings)

    @property
    def emulated(self) -> bool:
        """Also where nothing is encrypted."""
        return self.crypto == "emulated" or not self.definition.encrypted

    @property
    def holds_out(self) -> bool:
        """Whether a fifth of each client's training samples is held out."""
        return self.fine_tune == "held_out" or self.early_stop is not None

    @property
    def how(self) -> Any:
        return {"precision": self.precision, "device": self.accelerator}


def check_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Checks names and types, but of ``settings``; raises UserError."""
    for key in given:
        if key not in OPTIONS and key != "settings":
            hint = fl.suggest(key, [*OPTIONS, "settings"])
            raise fl.UserError(
                f"unknown option {key!r}{hint} Options: {', '.join(OPTIONS)}; the system's own go under [settings]"
            )
    if not isinstance(given.get("settings", {}), Mapping):
        raise fl.UserError(f"option 'settings' must be a table of settings, not {given['settings']!r}")
    return {
        key: convert(value, OPTIONS[key], f"option {key!r}", text=False) if key in OPTIONS else dict(value)
        for key, value in given.items()
    }


def resolve(config: RunConfig) -> Resolved:
    """Fill in defaults, and check all that needs no data. Raises UserError.

    Settings: the system's defaults, then those for the data set, the mode's, those given.
    """
    if isinstance(config, Resolved):
        return config
    given = check_options(values_of(config))
    system = registry.get(config.system)
    defaults = defaults_for(config.data)
    if given["partition"] is None and is_path(config.data) and Path(config.data).is_dir():
        given["partition"] = f"by:{CLIENT}"
    for key in ("partition", "clients", "rounds", "model"):
        if given[key] is None and not (key == "clients" and column_of(given["partition"])):
            given[key] = (key == "clients" and system.clients) or getattr(defaults, key)
    if (given["clients"] or 0) > MOST_EVALUATED and given["evaluate"] == "sample" and not given["record"]:
        given["evaluated"] = given["evaluated"] or MOST_EVALUATED
    given |= of_machine(given)
    if config.mode not in system.modes:
        hint = fl.suggest(config.mode, system.modes)
        raise fl.UserError(f"{system.name} has no mode {config.mode!r}{hint} It has: {', '.join(system.modes)}")
    fl.check_bounds(config, "option {!r}")
    if given["schema"] is not None:
        said = [key for key in _OF_SCHEMA if given[key] != getattr(RunConfig, key)]
        if said:
            raise fl.UserError(
                f"{said[0]}={given[said[0]]} has no effect beside a schema, which states it: leave it out"
            )
    if given["fine_tune_every"] and given["fine_tune"] == "no":
        raise fl.UserError("fine_tune_every has no effect without fine-tuning: give fine_tune (--fine-tune), too")
    if given["early_stop"] is not None and given["fine_tune"] != "no":
        raise fl.UserError(
            "early_stop and fine_tune hold out the same samples to choose rounds and epochs: leave early_stop out, or "
            "say fine_tune='no' (--no-fine-tune)"
        )
    given["metrics"] = given["metrics"] or defaults.metrics
    if given["folds"] is None and given["test_share"] is None:
        given["folds"] = defaults.folds
    for key in ("delta", "public"):
        given[key] = getattr(system, key) if given[key] is None else given[key]
    delay_law(given["delay"])
    if not given["delta"] and given["delay"] != RunConfig.delay:
        raise fl.UserError(f"delay={given['delay']} has no effect with delta=0: give delta (--delta), too")
    if given["drift"] is not None:
        parse_drift(given["drift"], given["rounds"])
    given |= _attack(config)
    known = field_types(system.config)
    of_data = {**defaults.settings, **defaults.of_model.get(given["model"], {})}
    layer = {key: value for key, value in of_data.items() if key in known}
    own = typed_settings(config.system, config.settings, text=False)
    settings = system.config(**{**layer, **system.defaults(config.mode), **own})
    system.check_counted(settings, config.task)
    given["settings"] = values_of(settings)
    return Resolved(**given)


def _attack(config: RunConfig) -> dict[str, Any]:
    if config.attack is None:
        if config.attackers is not None:
            raise fl.UserError(f"attackers={config.attackers:g} has no effect without an attack: give attack, too")
        return {}
    from coterie.privacy.attacks.active import ATTACKERS, kind_of, parse

    attack = parse(config.attack)
    if kind_of(attack.kind).needs_classes and config.task != "classes":
        raise fl.UserError(
            f"attack {attack.kind} needs classes as labels, and the task is {config.task}: leave one of the two out"
        )
    return {"attack": str(attack), "attackers": ATTACKERS if config.attackers is None else config.attackers}
