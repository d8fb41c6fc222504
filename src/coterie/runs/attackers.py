"""A run's misbehaving clients (``--attack``), and what is measured of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from coterie.aggregation.flagged import detection
from coterie.privacy.attacks.active import Poisoning, attacked, drawn, parse
from coterie.privacy.attacks.active.deviations import Deeds
from coterie.privacy.attacks.active.samples import TRIGGER
from coterie.protocol.system import System
from coterie.runs.config import Resolved
from coterie.runs.failures import NoAttackError

T = TypeVar("T")
_SHOWN = 5  # names in an error


@dataclass(frozen=True)
class Attackers:
    """attack: None without attackers.  names: in order.  deeds: in this process."""

    attack: Poisoning | None = None
    names: tuple[str, ...] = ()
    deeds: Deeds = field(default_factory=Deeds, compare=False)

    @classmethod
    def of(cls, config: Resolved, clients: Sequence[str]) -> Attackers:
        """Raises UserError if their share of the clients is none or all."""
        if config.attack is None or config.attackers is None:
            return cls()
        value = TRIGGER if config.scaling == "standard" else 1.0  # the brightest pixel there is
        return cls(replace(parse(config.attack), value=value), drawn(config.attackers, clients, config.seed))

    def among(self, system: System) -> System:
        return system if self.attack is None else attacked(system, self.attack, self.names, self.deeds)

    def costs(self) -> dict[str, Any]:
        """For a round's line: how often each one's work was replaced since."""
        if self.attack is None:
            return {}
        found = dict(self.deeds.replaced)
        self.deeds.replaced.clear()
        return {"poisoned": found}

    def check(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Raises NoAttackError if these lines, of the set-up and all rounds, have no replaced work."""
        if self.attack is None or any(line.get("poisoned") for line in lines):
            return
        more = f" and {len(self.names) - _SHOWN} more" if len(self.names) > _SHOWN else ""
        who = f"{', '.join(self.names[:_SHOWN])}{more}"
        raise NoAttackError(
            f"the attack {self.attack} replaced nothing, so the run is one without an attack, and has no result: "
            f"{who} {self._why(len(lines) - 1)}"
        )

    def _why(self, rounds: int) -> str:
        deeds, within = self.deeds, "the only round" if rounds == 1 else f"{rounds} rounds"
        if deeds.honest:
            return (
                f"trained in {within}, and {self.attack.kind if self.attack else ''} is honest until it has seen the "
                "model move: run more rounds, or ask more of the clients (participation)"
            )
        asked = "Run more rounds, ask more of the clients (participation), or let more of them attack (--attackers)"
        if not deeds.computed:
            return f"had no training to do (Fit) in {within}. {asked}"
        some = ", ".join(f"{name!r} ({count} times)" for name, count in deeds.computed.most_common(3))
        return (
            f"had no training to do (Fit) in {within}. They computed {some} from their data, and work of Local is "
            "never replaced. If that is a training, make it a Fit, with an Objective for a loss of your own "
            f"(docs/own_system.md). If not: {asked[0].lower()}{asked[1:]}"
        )

    def left_out(self, of_clients: Mapping[str, T]) -> dict[str, T]:
        out = frozenset(self.names)
        return {name: one for name, one in of_clients.items() if name not in out}

    @property
    def trigger(self) -> float | None:
        return self.attack.value if self.attack is not None and self.attack.kind == "backdoor" else None

    def facts(self, config: Resolved, lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """For ``result.json``, with how well the system distinguished them, and how often each one's
        work was replaced.
        """
        lines = list(lines)
        found = detection((line["notes"] for line in lines), self.names)
        poisoned: Counter[str] = sum((Counter(line.get("poisoned", {})) for line in lines), Counter())
        return {
            "attack": config.attack,
            "attackers": config.attackers,
            "attacker_names": list(self.names),
            "poisoned": {name: poisoned[name] for name in self.names},
            "detection": None if found is None else asdict(found),
        }
