"""What a device tells a system that chooses devices (FedEPC eq. (9); Oort; FedCS; OFL)."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.devices.profiles import Profile
from coterie.protocol.effects import OwnData, local
from coterie.protocol.errors import PeerError


@local("device resources")
def resources(own: OwnData) -> tuple[float, float]:
    """``(cpu_ghz, memory_gib)`` of the party's own profile. PeerError if it has none.

    Use ``Local(resources)`` in a handler. A device may lie.
    """
    if not isinstance(own.device, Profile):
        raise PeerError("its device is not known, so neither are its processor and memory")
    return own.device.cpu_ghz, own.device.memory_gib


@dataclass(frozen=True)
class Status:
    """Of a device for a time step.  share: of the step's computing and transfer time that it gives, in (0, 1].
    present_s: its expected presence.
    """

    compute_flops_per_s: float
    cpu_ghz: float
    memory_gib: float
    up_bytes_per_s: float
    down_bytes_per_s: float
    share: float
    present_s: float


@local("device status")
def status(own: OwnData, now_s: float, step_s: float) -> Status:
    """For the time step of ``step_s`` seconds from now, OFL section 3.5. Presence follows from ``OwnData.presence``,
    else from the profile's probabilities. PeerError without a profile.
    """
    profile = own.device
    if not isinstance(profile, Profile):
        raise PeerError("its device is not known, so neither is its status")
    usual_s = step_s * profile.availability * (1 - profile.dropout)
    present_s = usual_s if own.presence is None else usual_s / step_s * own.presence(now_s, now_s + step_s)
    return Status(
        profile.compute_flops_per_s,
        profile.cpu_ghz,
        profile.memory_gib,
        profile.up_bytes_per_s,
        profile.down_bytes_per_s,
        profile.budget,
        present_s,
    )
