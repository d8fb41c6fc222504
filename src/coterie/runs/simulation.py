"""A federation in one process: its roster, every party's own part, and the parties made from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.crypto.roster import check_roster, simulated
from coterie.protocol.errors import UserError
from coterie.protocol.model_spec import ModelSpec
from coterie.protocol.randomness import Randomness
from coterie.protocol.roster import Identity, Roster
from coterie.protocol.system import Federation, System
from coterie.protocol.told import Common, Own
from coterie.runs.parties import AWAKE_BYTES, Parties


def simulate(
    system: System,
    config: Any,
    clients: Sequence[str],
    spec: ModelSpec,
    starts: NDArray[np.float32],
    mode: str,
    randomness: Randomness,
    samples: Mapping[str, int],
    epochs: Mapping[str, int],
    *,
    founded: tuple[Roster, Mapping[str, Identity]] | None = None,
    awake_bytes: int = AWAKE_BYTES,
) -> tuple[Federation, dict[str, Own]]:
    """The federation of these clients, and what each party alone knows. Raises UserError for impossible settings.

    starts: (k, d) float32, the weights that models start with.  samples, epochs: by client.  awake_bytes: how much
    parties that stay awake between rounds may hold (``runs/parties.py``).  founded: the roster and identities of a
    resumed federation, instead of new ones.
    """
    roles = system.roles(config, clients)
    roster, identities = founded or simulated(roles, randomness)
    if [(one.name, one.role) for one in roster.entries] != list(roles.items()):
        raise UserError("the roster is of another federation: go on with the settings that it was made with")
    common = Common(roster, tuple(clients), spec, starts, mode, randomness.emulated)
    owns = {
        name: Own(name, randomness, identity, samples.get(name, 0), epochs.get(name, 1))
        for name, identity in identities.items()
    }
    check_roster(roster, roster.operator)
    system.check(config, common)
    parties = Parties(tuple(owns), lambda name: system.make(owns[name], common, config), awake_bytes=awake_bytes)
    hub = next(iter(owns))
    parties.pin(hub)
    return Federation(parties, hub, common, parties.look, parties.pin), owns
