"""The plan: all that a deployment's parties share, signed by the operator.

A party refuses an older version than it has seen, so nobody can bring back a revoked party.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from coterie.crypto.roster import check_roster
from coterie.crypto.signing import SigningKey, VerifyKey
from coterie.data.form import SampleForm, Size
from coterie.protocol.errors import CoterieError, DecodeError, PeerError, UserError
from coterie.protocol.model_spec import ModelSpec
from coterie.protocol.setup_info import Common, Entry, Roster
from coterie.runs.config import Resolved
from coterie.runs.config_file import from_text

T = TypeVar("T")
MAX_BYTES = 1 << 24
_PURPOSE, _NONE = "plan", "are no plan"

Positive = Annotated[float, msgspec.Meta(gt=0)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
GIB = 1 << 30
MOST_GIB = 3.0
"""A packet is one byte string of msgpack, below 4 GiB."""


class NewPlanError(CoterieError):
    """This process begins anew with a newer plan.  plan: its signed bytes."""

    def __init__(self, plan: bytes) -> None:
        super().__init__("there is a newer plan")
        self.plan = plan


class OlderPlanError(PeerError):
    """held: the bytes of the newer plan."""

    def __init__(self, message: str, held: bytes) -> None:
        super().__init__(message)
        self.held = held


@dataclass(frozen=True)
class NodeLimits:
    """Equal for all parties.  patience_s: the machine's deadline of a step that states none.  grace_s: disconnected for
    longer, a party is gone.  retries: of a round.  most, most_bytes: of one sender's waiting packets.  poll_s: how
    often a node looks up while nothing comes.
    """

    patience_s: float = 3600.0
    grace_s: float = 60.0
    retries: int = 2
    most: int = 1000
    most_bytes: int = 1 << 31
    poll_s: float = 1.0


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """server: URL of the engine's.  patience_s: the deadline of a step that states none.  grace_s: away for longer, a
    party is gone.  quorum: the fewest clients for the set-up; 0, before the founding, for all.  retries: of a round's
    attempt.  scores: that parties may report if their owners allow it.  public: the hub's own samples.  rehearsal: on
    one machine, with a shared seed and a virtual clock.  begins_s, not_after_s: Unix times between which a plan is
    valid.  packet_gib: of one packet.  store_gib: of all that wait.
    """

    server: str
    patience_s: Positive = 600.0
    grace_s: Positive = 30.0
    quorum: Natural = 0
    retries: Natural = 2
    scores: tuple[str, ...] = ()
    public: Natural = 0
    rehearsal: bool = False
    begins_s: float = 0.0
    not_after_s: float = 0.0
    packet_gib: Annotated[float, msgspec.Meta(gt=0, le=MOST_GIB)] = 1.0
    store_gib: Positive = 8.0

    @property
    def packet_bytes(self) -> int:
        return int(GIB * self.packet_gib)

    @property
    def limits(self) -> NodeLimits:
        return NodeLimits(self.patience_s, self.grace_s, self.retries, most_bytes=2 * self.packet_bytes)


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """config: TOML text of a resolved ``RunConfig``.  roster: parties that have joined, also revoked ones, since
    numbers must not change.  members: all that are to join, with roles, in the roster's order.  signed_s: Unix time.
    revoked: parties of which nothing is believed.  enrolled: how often a party has joined, if not once.  certificates:
    renewed TLS certificates (PEM), by party.  run: its number, from 1; each has a session and a set-up.  aborted: it
    ends before its next round.  warm: parties begin with the former run's models.
    """

    version: Size
    config: str
    facts: SampleForm
    settings: Settings
    members: tuple[tuple[str, str], ...]
    roster: Roster
    signed_s: float = 0.0
    revoked: tuple[str, ...] = ()
    enrolled: dict[str, Size] = {}
    certificates: dict[str, bytes] = {}
    run: Size = 1
    warm: bool = False
    aborted: bool = False

    @property
    def session(self) -> str:
        return self.roster.session.hex()

    @property
    def sha256(self) -> str:
        """Of all that the operator signs, in hex."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).hexdigest()

    @property
    def shown(self) -> str:
        """For comparison by people (``shown``)."""
        return shown(self.version, self.sha256)

    @property
    def resolved(self) -> Resolved:
        """Raises UserError."""
        return from_text(self.config)

    @property
    def client_role(self) -> str:
        return self.members[-1][1]

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.members if name not in self.roster.by_name)

    @property
    def lacking(self) -> tuple[str, ...]:
        """Missing members without whom the hub cannot begin."""
        client, roles = self.client_role, dict(self.members)
        there = sum(one.role == client for one in self.roster.entries)
        servers = tuple(name for name in self.missing if roles[name] != client)
        return servers or (self.missing if there < self.settings.quorum else ())

    @property
    def terms(self) -> tuple[object, ...]:
        """What no later version of the same run changes."""
        settings = msgspec.structs.replace(self.settings, not_after_s=0.0)
        return self.config, self.facts, settings, self.members, self.session, self.warm

    @property
    def believed(self) -> Roster:
        """The roster without revoked parties, unsigned: for keys, never for numbers."""
        left = tuple(one for one in self.roster.entries if one.name not in self.revoked)
        return msgspec.structs.replace(self.roster, entries=left)


class OperatorSigned(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A plan, or a party's certificate. body: in msgpack.  signature: the operator's."""

    body: bytes
    signature: bytes

    @classmethod
    def of(cls, value: msgspec.Struct, purpose: str, operator: SigningKey) -> OperatorSigned:
        body = msgspec.msgpack.encode(value)
        return cls(body, operator.sign(purpose, body))

    def read(self, kind: type[T], purpose: str, operator: bytes, problem: str) -> T:
        """Raises PeerError unless this operator has signed it."""
        VerifyKey.load(operator).verify(self.signature, purpose, self.body)
        return decode(self.body, kind, problem)


def sign(plan: Plan, operator: SigningKey) -> bytes:
    return msgspec.msgpack.encode(OperatorSigned.of(plan, _PURPOSE, operator))


def check(data: bytes, operator: bytes) -> Plan:
    """operator: the public key, 32 bytes. Raises PeerError unless it has signed, DecodeError for what is no plan."""
    if len(data) > MAX_BYTES:
        raise DecodeError(f"{len(data)} bytes are too many for a plan")
    plan = decode(data, OperatorSigned, _NONE).read(Plan, _PURPOSE, operator, _NONE)
    check_roster(plan.roster, operator)
    roles = dict(plan.members)
    for one in plan.roster.entries:
        if roles.get(one.name) != one.role:
            raise PeerError(f"the roster has {one.name} as {one.role}, and the plan's members have not")
    return plan


def check_parties(plan: Plan, config: Resolved) -> None:
    """Raises UserError unless the roster has the parties of the config's system, in order."""
    system, client_role = config.definition, plan.client_role
    wanted = system.roles(config.own, plan.roster.of_role(client_role), config.mode)
    found = {one.name: one.role for one in plan.roster.entries}
    if list(wanted.items()) != list(found.items()):
        servers = ", ".join(name for name, role in wanted.items() if role != client_role)
        raise UserError(
            f"{system.name} in mode {config.mode} has the parties {servers}, in this order, and then any number of "
            f"role {client_role}; the roster has {', '.join(f'{name} ({role})' for name, role in found.items())}"
        )


def common_of(
    config: Resolved, roster: Roster, spec: ModelSpec, starts: NDArray[np.float32], public: int, warm: bool
) -> Common:
    """What all parties know.  roster: its last entry is a client.  public: the hub's samples."""
    clients = roster.of_role(roster.entries[-1].role)
    return Common(roster, clients, spec, starts, config.mode, config.emulated, public, deployed=True, warm=warm)


def decode(data: bytes, kind: type[T], problem: str) -> T:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DecodeError(f"{len(data)} bytes {problem}: {error}") from None


def shown(version: int, plan_sha256: str) -> str:
    """For comparison by people: the version, and 160 bits of the hash."""
    return f"version {version}, {grouped(plan_sha256[:40])}"


def fingerprint(entry: Entry) -> str:
    """128 bits of SHA-256 of a party's keys, which owner and operator compare."""
    return grouped(hashlib.sha256(entry.verify_key + entry.sealing_key).hexdigest()[:32])


def grouped(text: str) -> str:
    return " ".join(text[i : i + 4] for i in range(0, len(text), 4))
