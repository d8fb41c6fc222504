"""Devices, links, presence and late answers, of which no party knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import coterie.method as fl
from coterie.devices.links import Delays, FleetLinks
from coterie.devices.profiles import Profile, fleet
from coterie.devices.traces import Traces, parse, traces
from coterie.protocol.names import each
from coterie.protocols.local_training import local_epochs, sample_clients
from coterie.runs.config import Resolved


class Surroundings:
    """devices: by client.  traces: of presence; None for always.  pace_s: between rounds.  delays: of answers.  links:
    with all of these.  known_as: the clients' names in the data. Raises UserError.
    """

    def __init__(self, config: Resolved, names: Sequence[str], known_as: Sequence[str] | None = None) -> None:
        self.devices: Mapping[str, Profile] = fl.listed(names, fleet(config.devices, len(names), config.seed))
        self.traces: Traces | None = None
        self.pace_s = 0.0
        if config.availability is not None:
            availability = parse(config.availability)
            self.traces, self.pace_s = traces(availability, names, config.seed, known_as), availability.pace_s
        self.delays = delays_of(config, names, config.own)
        self.links = FleetLinks(self.devices, config.seed, self.delays, self.traces)


def delays_of(config: Resolved, clients: Sequence[str], settings: Any) -> Delays:
    """For the share of clients that a round may ask."""

    def asked(r: int) -> Sequence[str]:
        here = fl.joined(clients, settings, r) if hasattr(settings, "founders") else clients
        share = 1.0 if getattr(settings, "selects", False) else getattr(settings, "participation", 1.0)
        return sample_clients(here, share, config.seed, r)

    return Delays(asked, config.delta, config.delay, config.seed)


def epochs_of(devices: Mapping[str, Profile], settings: Any, seed: int) -> Mapping[str, int]:
    """E_i = d_i E_m. d_i is drawn unless the fleet's devices differ in it."""
    names = devices.names if isinstance(devices, fl.LazyMapping) else tuple(devices)
    if len({profile.budget for profile in devices.values()}) > 1:
        return each(names, lambda name: max(1, round(devices[name].budget * settings.max_epochs)))
    return local_epochs(names, settings, seed)
