"""What devices can do: compute, bandwidth, presence, energy."""

from coterie.devices.profiles import (
    FLEETS,
    SERVER,
    Profile,
    drops_out,
    fleet,
    is_available,
    joules,
    seconds_crypto,
    seconds_down,
    seconds_train,
    seconds_up,
)

__all__ = [
    "FLEETS",
    "SERVER",
    "Profile",
    "drops_out",
    "fleet",
    "is_available",
    "joules",
    "seconds_crypto",
    "seconds_down",
    "seconds_train",
    "seconds_up",
]
