"""Device profiles: speed of computing and transfer, presence, and energy.

Virtual time and energy follow from these numbers and nominal work (bytes, floating-point operations, reference seconds)
alone.

``devices/fleets.toml`` has the named fleets (see :func:`fleet`), in the form of a ``FILE.toml`` of one's own: tables
``[[device]]`` with the fields of Profile and, optionally, ``share`` (relative number of clients, default 1) and
``spread`` (sigma of the log-normal factor on each speed and on the memory, default 0). Two are not there:

``paper``      FedCAPrivacy, section VI: d uniform in [0.2, 1] a client is its share of compute and bandwidth, and of
               the local epochs E_i = d * E_m, so that all clients train for the same time
``jetson``     OFL's testbed (:class:`Board`)
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec
import numpy as np
from numpy.typing import NDArray

from coterie.protocol.errors import UserError, suggest
from coterie.protocol.options import NotNegative, Positive

Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


@dataclass(frozen=True)
class Profile:
    """Speeds are sustained ones while training small models, not peaks.

    up_bytes_per_s, down_bytes_per_s: from and to the device.  latency_s: of one message, either way.  availability:
    probability in (0, 1] of being there when a round begins.  dropout: probability in [0, 1) of vanishing within a
    round.  crypto_speed: relative to one core of a current x86 server.  budget: d of FedCAPrivacy, the share in (0, 1]
    of the largest number of local epochs.  compute_watts, radio_watts: power above idle while it computes, and while it
    sends or receives.  idle_watts: while it is there.  memory_gib: for training.
    """

    name: Annotated[str, msgspec.Meta(min_length=1)]
    compute_flops_per_s: Positive
    up_bytes_per_s: Positive
    down_bytes_per_s: Positive
    latency_s: NotNegative = 0.05
    availability: Share = 1.0
    dropout: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    crypto_speed: Positive = 1.0
    budget: Share = 1.0
    compute_watts: NotNegative = 10.0
    radio_watts: NotNegative = 1.0
    idle_watts: NotNegative = 2.0
    cpu_ghz: Positive = 2.0
    memory_gib: Positive = 4.0

    def __post_init__(self) -> None:
        for key, value in vars(self).items():
            try:
                msgspec.convert(value, _KINDS[key])
            except msgspec.ValidationError as error:
                raise UserError(f"device profile {self.name!r}: {key} is {value!r}: {error}") from None

    def joules(self, compute_s: float, radio_s: float, there_s: float = 0.0) -> dict[str, float]:
        """Nominal, of seconds of computing (training, cryptography), transfer and presence."""
        return {
            "compute": self.compute_watts * compute_s,
            "radio": self.radio_watts * radio_s,
            "idle": self.idle_watts * there_s,
        }


@dataclass(frozen=True)
class Tier(Profile):
    """A kind of device in a fleet.

    share: relative number.  spread: sigma of the log-normal factor on each speed and on the memory.
    """

    share: Positive = 1.0
    spread: Annotated[float, msgspec.Meta(ge=0, le=3)] = 0.0


_KINDS = get_type_hints(Tier, include_extras=True)

SERVER = Profile(
    "server",
    compute_flops_per_s=500e9,
    up_bytes_per_s=125e6,  # 1 Gbit/s
    down_bytes_per_s=125e6,
    latency_s=0.005,
    compute_watts=150.0,
    radio_watts=5.0,
    idle_watts=60.0,
    cpu_ghz=3.0,
    memory_gib=64.0,
)
"""Aggregators, helpers and key authorities: one core of the reference server for cryptography, never away."""


_CUDA_CORES, _GPU_SHARE_OF_PEAK = 384, 0.05  # two operations a cycle each, of which small models reach 5 %
_CPU_FLOPS_A_CYCLE = 10
_IDLE_WATTS = 3.5


@dataclass(frozen=True)
class Board:
    """A Jetson Xavier NX board in a working mode of OFL's testbed: a column of table 2 (section 6.1).
    ``docs/resources.md`` says which numbers are the paper's. watts: of the whole board.
    """

    watts: float
    cores: int
    cpu_ghz: float
    gpu_mhz: float

    @property
    def cpu_flops_per_s(self) -> float:
        return _CPU_FLOPS_A_CYCLE * self.cores * self.cpu_ghz * 1e9

    @property
    def gpu_flops_per_s(self) -> float:
        return _GPU_SHARE_OF_PEAK * 2 * _CUDA_CORES * self.gpu_mhz * 1e6

    @property
    def flops_per_s(self) -> float:
        """Nominal, in training: on the CPU, then on the GPU."""
        return 1 / (1 / self.cpu_flops_per_s + 1 / self.gpu_flops_per_s)

    @property
    def gpu_share(self) -> float:
        """The GPU's share of the training time."""
        return self.flops_per_s / self.gpu_flops_per_s

    def tier(self, name: str) -> Tier:
        return Tier(
            name,
            compute_flops_per_s=self.flops_per_s,
            up_bytes_per_s=125e6,
            down_bytes_per_s=125e6,
            latency_s=SERVER.latency_s,
            crypto_speed=self.cpu_ghz / 4.5,  # one core, beside one of a current x86 server
            compute_watts=self.watts - _IDLE_WATTS,
            radio_watts=0.5,
            idle_watts=_IDLE_WATTS,
            cpu_ghz=self.cpu_ghz,
            memory_gib=8.0,
        )


BOARDS: Mapping[str, Board] = {
    "A": Board(10, 2, 1.497, 803.25),
    "B": Board(10, 4, 1.190, 803.25),
    "C": Board(15, 4, 1.420, 1109.25),
    "D": Board(20, 6, 1.420, 1109.25),
}
"""Table 2, by type."""


@cache
def _named() -> Mapping[str, tuple[Tier, ...]]:
    tables = tomllib.loads(Path(__file__).with_name("fleets.toml").read_text(encoding="utf-8"))
    fleets = {name: tuple(Tier(**tier) for tier in tiers) for name, tiers in tables.items()}
    return {**fleets, "jetson": tuple(board.tier(name) for name, board in BOARDS.items())}


FLEETS: tuple[str, ...] = ("uniform", "paper", "mobile", "slow_tail", "mixed", "jetson")
"""Every named fleet; ``fleet`` also takes a ``.toml`` file."""


def fleet(name: str, clients: int, seed: int) -> tuple[Profile, ...]:
    for key, value, least in (("clients", clients, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise UserError(f"fleet {name!r}: {key} is {value!r}; it must be a whole number of at least {least}")
    rng = np.random.default_rng([seed, 0xDE71CE])
    if name == "paper":
        (ordinary,) = _named()["uniform"]
        return tuple(_scaled(ordinary, d, d, d, budget=d) for d in map(float, rng.uniform(0.2, 1.0, clients)))
    if name.endswith(".toml"):
        return _from_tiers(_read(Path(name)), clients, rng)
    if name not in _named():
        raise UserError(
            f"unknown devices {name!r}{suggest(name, FLEETS)} Known: {', '.join(FLEETS)}, or the path of a .toml file"
        )
    return _from_tiers(_named()[name], clients, rng)


def _from_tiers(tiers: tuple[Tier, ...], clients: int, rng: np.random.Generator) -> tuple[Profile, ...]:
    sizes = _sizes(np.array([float(tier.share) for tier in tiers]), clients)
    which = rng.permutation(np.repeat(np.arange(len(tiers)), sizes))
    plain = [_scaled(tier, 1.0, 1.0, 1.0) for tier in tiers]
    if not any(float(tier.spread) for tier in tiers):
        return tuple(plain[i] for i in which)  # one object for all devices of a tier
    normal = np.hstack([rng.standard_normal((clients, 3)), rng.standard_normal((clients, 1))])
    factors = np.exp(normal * [[float(tiers[i].spread)] for i in which])
    return tuple(_scaled(tiers[i], *map(float, row)) for i, row in zip(which, factors, strict=True))


def _scaled(tier: Tier, compute: float, up: float, down: float, memory: float = 1.0, **changes: float) -> Profile:
    own: dict[str, Any] = {field.name: getattr(tier, field.name) for field in fields(Profile)}
    factors = {"compute_flops_per_s": compute, "cpu_ghz": compute, "memory_gib": memory}
    for key, factor in {**factors, "up_bytes_per_s": up, "down_bytes_per_s": down}.items():
        own[key] *= factor
    return Profile(**own | changes)


def _sizes(shares: NDArray[np.float64], clients: int) -> NDArray[np.int64]:
    quota = clients * shares / shares.sum()
    sizes: NDArray[np.int64] = np.maximum(np.floor(quota), 1 if clients >= len(shares) else 0).astype(np.int64)
    while missing := clients - int(sizes.sum()):
        step = 1 if missing > 0 else -1
        error = np.where((step > 0) | (sizes > 1), step * (quota - sizes), -np.inf)
        sizes[error.argmax()] += step
    return sizes


def _read(path: Path) -> tuple[Tier, ...]:
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except (OSError, ValueError) as exc:  # ValueError: no TOML, or no UTF-8
        raise UserError(f"device file {path} cannot be read: {exc}") from exc
    devices = content.get("device")
    if set(content) != {"device"} or not isinstance(devices, list) or not devices:
        raise UserError(f"device file {path} must hold one or more tables [[device]] and nothing else")
    tiers = tuple(_tier(f"device file {path}, device {i}", table) for i, table in enumerate(devices, 1))
    names = [tier.name for tier in tiers]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"device file {path}: two devices are called {twice!r}; results are told by these names")
    return tiers


def _tier(where: str, table: Any) -> Tier:
    if not isinstance(table, dict):
        raise UserError(f"{where}: must be a table [[device]]")
    known = {field.name: field.default is MISSING for field in fields(Tier)}
    unknown, missing = set(table) - set(known), {key for key, required in known.items() if required} - set(table)
    if unknown or missing:
        problem = f"unknown {', '.join(sorted(unknown))}" if unknown else f"missing {', '.join(sorted(missing))}"
        raise UserError(f"{where}: {problem}; the fields are {', '.join(known)}")
    try:
        return Tier(**table)
    except UserError as exc:
        raise UserError(f"{where}: {exc}") from exc
