"""What devices can do: compute, bandwidth, presence, energy."""

from coterie.devices.profiles import FLEETS, SERVER, Profile, fleet

__all__ = ["FLEETS", "SERVER", "Profile", "fleet"]
