"""A party's device and clock: the machine's, or in a rehearsal a virtual one."""

from __future__ import annotations

import time

from coterie.deploy.home import Home
from coterie.deploy.plan import Plan
from coterie.devices.profiles import Profile, fleet
from coterie.runs.config import Resolved
from coterie.runs.surroundings import Surroundings, epochs_of
from coterie.transport.clock import Clock as Clock
from coterie.transport.clock import Instant, RehearsedClock

DEVICE = "device.toml"


class MachineClock(Clock):
    """Seconds since the plan was signed (origin_s, since 1970); within a process it never goes back."""

    def __init__(self, origin_s: float = 0.0) -> None:
        super().__init__()
        self._ahead_s = max(0.0, time.time() - origin_s) - time.monotonic()

    def now(self) -> Instant:
        return time.monotonic() + self._ahead_s, 0


def device_of(home: Home, plan: Plan, config: Resolved) -> tuple[Profile | None, Clock, int]:
    """A party's profile (None without), its clock, and the local epochs of a round."""
    names, settings = plan.roster.of_role(plan.client_role), config.own
    if plan.settings.rehearsal:
        around = Surroundings(config, names)
        virtual = RehearsedClock(home.name, list(plan.roster.by_name), around.links)
        epochs = epochs_of(around.devices, settings, config.seed)
        return around.devices.get(home.name), virtual, epochs.get(home.name, 1)
    own = MachineClock(plan.settings.begins_s)
    if home.name not in names:
        return None, own, 1
    file, most = home.path / DEVICE, int(getattr(settings, "max_epochs", 1))
    (device,) = fleet(str(file) if file.exists() else "uniform", 1, 0)
    return device, own, min(home.about.epochs or most, most)
