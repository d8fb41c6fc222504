"""Devices, links, presence and late answers, of which no party knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import coterie.method as fl
from coterie.devices.links import Delays, FleetLinks
from coterie.devices.profiles import Profile, fleet
from coterie.devices.traces import Traces, parse, traces
from coterie.protocol.names import each
from coterie.protocols.local_training import local_epochs, sample_clients
from coterie.runs.config import Resolved


@dataclass(frozen=True, eq=False)
class Surroundings:
    """devices: by client.  traces: of presence; None for always.  pace_s: between rounds.

    delays: of answers.  links: with all of these.
    """

    devices: Mapping[str, Profile]
    traces: Traces | None
    pace_s: float
    delays: Delays
    links: FleetLinks


def surroundings_of(config: Resolved, names: Sequence[str], known_as: Sequence[str] | None = None) -> Surroundings:
    """known_as: the clients' names in the data. Raises UserError."""
    devices = fl.listed(names, fleet(config.devices, len(names), config.seed))
    known, pace_s = traces_of(config, names, known_as)
    delays = delays_of(config, names, config.own)
    return Surroundings(devices, known, pace_s, delays, FleetLinks(devices, config.seed, delays, known))


def delays_of(config: Resolved, clients: Sequence[str], settings: Any) -> Delays:
    """For the share of clients that a round may ask."""

    def asked(r: int) -> Sequence[str]:
        here = fl.joined(clients, settings, r) if hasattr(settings, "founders") else clients
        share = 1.0 if getattr(settings, "selects", False) else getattr(settings, "participation", 1.0)
        return sample_clients(here, share, config.seed, r)

    return Delays(asked, config.delta, config.delay, config.seed)


def traces_of(config: Resolved, names: Sequence[str], known_as: Sequence[str] | None) -> tuple[Traces | None, float]:
    """None for always; and the pace of rounds in seconds."""
    if config.availability is None:
        return None, 0.0
    availability = parse(config.availability)
    return traces(availability, names, config.seed, known_as), availability.pace_s


def epochs_of(devices: Mapping[str, Profile], settings: Any, seed: int) -> Mapping[str, int]:
    """E_i = d_i E_m. d_i is drawn unless the fleet's devices differ in it."""
    names = devices.names if isinstance(devices, fl.LazyMapping) else tuple(devices)
    if len({profile.budget for profile in devices.values()}) > 1:
        return each(names, lambda name: max(1, round(devices[name].budget * settings.max_epochs)))
    return local_epochs(names, settings, seed)
