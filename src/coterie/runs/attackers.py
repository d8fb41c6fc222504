"""The clients of a run that misbehave (``--attack``), and what is measured of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from coterie.aggregation.flagged import detection
from coterie.attacks.active import Poisoning, attacked, drawn, parse
from coterie.attacks.active.samples import TRIGGER
from coterie.protocol.system import System
from coterie.runs.config import RunConfig

T = TypeVar("T")


@dataclass(frozen=True)
class Attackers:
    """attack: what they do, or None in a run without attackers.  names: of the clients that do it, in their order."""

    attack: Poisoning | None = None
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: RunConfig, clients: Sequence[str]) -> Attackers:
        """Those of a resolved run. Raises UserError if their share of the clients is nobody or everybody."""
        if config.attack is None or config.attackers is None:
            return cls()
        value = TRIGGER if config.scaling == "standard" else 1.0  # the brightest pixel there is
        return cls(replace(parse(config.attack), value=value), drawn(config.attackers, clients, config.seed))

    def among(self, system: System) -> System:
        """The system with these attackers in it."""
        return system if self.attack is None else attacked(system, self.attack, self.names)

    def left_out(self, of_clients: Mapping[str, T]) -> dict[str, T]:
        """The entries of the honest clients."""
        out = frozenset(self.names)
        return {name: one for name, one in of_clients.items() if name not in out}

    @property
    def trigger(self) -> float | None:
        """The value of a backdoor's trigger, or None if there is no backdoor."""
        return self.attack.value if self.attack is not None and self.attack.kind == "backdoor" else None

    def facts(self, config: RunConfig, lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """What ``result.json`` says of them, and of how well the system told them from others. lines: of the rounds."""
        found = detection((line["notes"] for line in lines), self.names)
        return {
            "attack": config.attack,
            "attackers": config.attackers,
            "attacker_names": list(self.names),
            "detection": None if found is None else asdict(found),
        }
