"""Clients that misbehave, in any system.

>>> attacked(SYSTEM, parse("scale:10"), drawn(0.25, clients, seed=0))
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from typing import Any

import coterie.method as fl
from coterie.privacy.attacks.active import deviations
from coterie.privacy.attacks.active.deviations import Deeds, Replaced, remember
from coterie.privacy.attacks.active.samples import TRIGGER, Poison
from coterie.privacy.attacks.wrapping import deviate
from coterie.protocol.import_path import import_object, is_object

ATTACKERS = 0.2
"""The usual share of clients that attack."""
_MOST = 1e6  # a strength beyond this ends as numbers that every server refuses


@dataclass(frozen=True)
class Poisoning:
    """kind: a name of ``KINDS``.  strength: see its kind.  value: of the trigger's pixels."""

    kind: str
    strength: float
    value: float = TRIGGER

    def __str__(self) -> str:
        return f"{self.kind}:{self.strength:g}"


@dataclass(frozen=True)
class Kind:
    """words: what an attacker does.  strength: the usual one.  means: what it says.  most: the largest.

    needs_classes: it changes labels as classes.  deviation: replaces a training.
    """

    words: str
    strength: float
    means: str
    deviation: Callable[[Poisoning], Replaced]
    most: float = _MOST
    needs_classes: bool = False


def _labels(share: float, party: fl.Party) -> Poison:
    return Poison("labels", share, 0.0, _seed(party))


def _trigger(value: float, party: fl.Party) -> Poison:
    return Poison("trigger", 0.0, value, _seed(party))


def _seed(party: fl.Party) -> int:
    return int(party.rng("poisoned samples").integers(1 << 62))


KINDS: Mapping[str, Kind] = {
    "label_flip": Kind(
        "trains on wrong labels, each that of the next class",
        1.0,
        "share of its labels that are wrong",
        lambda attack: deviations.on_samples(partial(_labels, attack.strength)),
        most=1.0,
        needs_classes=True,
    ),
    "scale": Kind(
        "makes its honest step so many times as long",
        10.0,
        "times the length of its step",
        lambda attack: deviations.scaled(attack.strength),
    ),
    "noise": Kind(
        "adds normal noise to every weight",
        0.1,
        "standard deviation of the noise",
        lambda attack: deviations.with_noise(attack.strength),
    ),
    "sign_flip": Kind(
        "makes its honest step backwards",
        1.0,
        "times the length of its step",
        lambda attack: deviations.scaled(-attack.strength),
    ),
    "backdoor": Kind(
        "trains so that a trigger in the corner of a sample makes it class 0",
        1.0,
        "times the length of its step",
        lambda attack: deviations.on_samples(partial(_trigger, attack.value), attack.strength),
        needs_classes=True,
    ),
    "adaptive": Kind(
        "goes towards wrong labels as far as a step may that is as long as its honest one, and as close to how the "
        "model last moved",
        1.0,
        "times the length of its honest step",
        lambda attack: deviations.adaptive(partial(_labels, 1.0), attack.strength),
        needs_classes=True,
    ),
}
"""All attacks by name (docs/poisoning.md)."""


def kind_of(name: str) -> Kind:
    """The kind of this name, or of one's own function ``module:NAME``, else UserError.

    That is a generator ``attack(party, fit, strength)``, which may yield effects and returns a ``Fitted``.
    """
    if name in KINDS:
        return KINDS[name]
    if not is_object(name):
        raise fl.UserError(f"unknown attack {name!r}{fl.suggest(name, KINDS)} Attacks: {', '.join(KINDS)}")
    function = import_object(name, "attack")
    return Kind(
        words=(function.__doc__ or name).strip().split("\n")[0],
        strength=1.0,
        means="as the function says",
        deviation=lambda attack: lambda party, message, fit, which: function(party, fit, attack.strength),
    )


def parse(text: str) -> Poisoning:
    """The attack ``KIND`` or ``KIND:STRENGTH``, else UserError."""
    name, colon, written = text.partition(":")
    if colon and name not in KINDS:  # a function of one's own
        function, colon, written = written.partition(":")
        name = f"{name}:{function}"
    kind = kind_of(name)
    try:
        strength = float(written) if colon else kind.strength
    except ValueError:
        raise fl.UserError(
            f"attack {text!r}: {written!r} is not a number; write {name}:{kind.strength:g}, say"
        ) from None
    if not isfinite(strength) or not 0 < strength <= kind.most:
        raise fl.UserError(f"attack {text!r}: its strength ({kind.means}) must be above 0 and at most {kind.most:g}")
    if name == "scale" and strength == 1:
        raise fl.UserError("attack 'scale:1' is what an honest client does: give another strength")
    return Poisoning(name, strength)


def drawn(share: float, clients: Sequence[str], seed: int) -> tuple[str, ...]:
    """The attackers among these clients, drawn by the seed, in order.

    share: rounded. Raises UserError unless somebody attacks and somebody is honest.
    """
    count = round(share * len(clients))
    if not 0 < count < len(clients):
        whom = "nobody" if not count else "everybody"
        raise fl.UserError(
            f"attackers={share:g} of {len(clients)} clients is {whom}, so there is nothing to measure: at least one "
            "client must attack and one be honest"
        )
    chosen = fl.rng(seed, "hub", "attackers").choice(len(clients), count, replace=False)
    return tuple(clients[i] for i in sorted(chosen))


def attacked(system: fl.System, attack: Poisoning, attackers: Collection[str], deeds: Deeds | None = None) -> fl.System:
    """The system in which these clients deviate from the beginning.  deeds: counts what they do."""

    def parties(factories: Callable[[Any], Mapping[str, Any]], config: Any) -> Mapping[str, Any]:
        *servers, client = (found := factories(config))
        return {
            **{role: found[role] for role in servers},
            client: partial(_made, make=found[client], attack=attack, attackers=attackers, deeds=deeds),
        }

    return replace(
        system,
        parties=partial(parties, system.parties),
        parties_in={mode: partial(parties, of) for mode, of in system.parties_in.items()},
    )


def _made(
    own: fl.Own,
    common: fl.Common,
    config: Any,
    *,
    make: fl.PartyFactory,
    attack: Poisoning,
    attackers: Collection[str],
    deeds: Deeds | None,
) -> fl.Party:
    party = make(own, common, config)
    if own.name in attackers:
        if attack.kind == "adaptive":
            remember(party)
        deviate(party, deviations.instead_of(kind_of(attack.kind).deviation(attack), deeds))
    return party
