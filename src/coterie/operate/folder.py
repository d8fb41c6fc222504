"""The operator's folder of a deployment.

``authority/``, with the operator's secret keys, may lie elsewhere (on a stick in a safe) while nobody joins or is
revoked: the hub needs only the rest.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from coterie.crypto import certificates
from coterie.crypto.signing import KEY_BYTES, OpeningKey, SigningKey, VerifyKey
from coterie.deploy import plan as plans
from coterie.deploy.engine import Tls
from coterie.deploy.home import HUB, PLAN, RESTORED, RUN, STATE, read_json, read_private, write_private
from coterie.deploy.names import ENGINE, OPERATOR, safe
from coterie.deploy.plan import Plan
from coterie.operate.members import PlannedMember, read_members
from coterie.operate.tokens import Id
from coterie.protocol.errors import PeerError, UserError
from coterie.protocol.setup_info import Entry
from coterie.record.files import atomic_write

_ADVICE = "name the folder that `coterie deploy init` has made"
DAYS, AUTHORITY_DAYS = 365.0, 3650.0
"""Validity of certificates, and of their authority."""


class Folder:
    """config, members: of the operator, for people; the plan is what counts.  authority: SECRET, the operator's keys.
    invitations: unused ones.  requests: approved ones.  operator: the public key, in hex.  tls: certificates of
    authority (ca) and operator.  nats: for the engine's server.  own_certificates: of operator and server, by name.
    hub: its home.  run: the run folder.  restored: there after a backup was put back, until the plan is known to be the
    newest.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.members = path / "config.toml", path / "members.toml"
        self.authority, self.operator = path / "authority", path / "operator.pub"
        self.invitations, self.requests, self.joined = path / "invitations", path / "requests", path / "members"
        self.plan, self.hub, self.run = path / PLAN, path / HUB, path / RUN
        self.tls, self.restored = path / "tls", path / RESTORED
        self.ca = self.tls / "authority.pem"
        self.operator_tls = Tls(self.tls / "operator.pem", self.authority / "tls.pem", self.ca)
        self.nats = path / "nats"
        self.nats_conf = self.nats / "nats.conf"
        self.own_certificates = {OPERATOR: self.operator_tls.certificate, ENGINE: self.nats / "certificate.pem"}

    @property
    def begun(self) -> bool:
        return (self.hub / STATE).exists()

    def joined_file(self, name: str) -> Path:
        return self.joined / f"{safe(name)}.json"

    def invitation_file(self, name: str) -> Path:
        return self.invitations / f"{safe(name)}.json"

    def certificate_file(self, name: str) -> Path:
        return self.path / f"{safe(name)}.cert"


class Joined(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """tls: a member's TLS key (DER).  certificate: PEM.  invitation: the used one.  request: SHA-256 of the approved
    one, in hex.  times: how often it has joined.  former: earlier keys, never allowed again.
    """

    entry: Entry
    tls: bytes
    certificate: bytes
    joined_s: float
    invitation: Id | None = None
    request: str = ""
    times: Annotated[int, msgspec.Meta(ge=1)] = 1
    former: tuple[bytes, ...] = ()

    @property
    def keys(self) -> tuple[bytes, bytes, bytes]:
        return self.entry.verify_key, self.entry.sealing_key, self.tls


@dataclass(frozen=True, repr=False)
class Authority:
    """SECRET: the operator's keys. signing: of roster, plan, invitations and certificates.  possession: X25519, for
    proofs.  token: for invitations' MACs.  ca: of TLS, PEM.
    """

    signing: SigningKey
    possession: bytes
    token: bytes
    ca: bytes

    @property
    def public(self) -> bytes:
        return self.signing.public.to_bytes()


def new_authority(folder: Folder, now_s: float, days: float) -> Authority:
    """SECRET: fresh keys, written with certificates of authority and operator.  days: of the operator's."""
    found = Authority(SigningKey.generate(), OpeningKey.generate().to_bytes(), os.urandom(32), certificates.new_key())
    tls, ca = certificates.new_key(), certificates.new_authority(found.ca, now_s, AUTHORITY_DAYS)
    secrets = {"signing": found.signing.to_bytes(), "possession": found.possession, "token": found.token}
    for name, secret in {**secrets, "ca.pem": found.ca, "tls.pem": tls}.items():
        write_private(folder.authority / name, secret)
    atomic_write(folder.ca, ca)
    own = certificates.sign(ca, found.ca, OPERATOR, certificates.public_of(tls), now_s, days)
    atomic_write(folder.operator_tls.certificate, own)
    atomic_write(folder.operator, found.public.hex().encode() + b"\n")
    return found


def open_folder(path: Path) -> Folder:
    """Raises UserError for a folder without a deployment."""
    folder = Folder(path)
    if not folder.plan.is_file() or not folder.operator.is_file():
        raise UserError(f"{path} holds no deployment: {_ADVICE}")
    return folder


def operator_of(folder: Folder) -> bytes:
    try:
        return VerifyKey.load(bytes.fromhex(read_private(folder.operator).decode().strip())).to_bytes()
    except (ValueError, PeerError):
        raise UserError(f"{folder.operator} is damaged: {_ADVICE}") from None


def current_plan(folder: Folder) -> Plan:
    """Raises UserError for a damaged or forged plan."""
    try:
        return plans.check(read_private(folder.plan), operator_of(folder))
    except PeerError as error:
        raise UserError(f"{folder.plan}: {error}; restore the folder from a copy") from None


def authority_of(folder: Folder) -> Authority:
    """SECRET: the operator's keys. Raises UserError if they are elsewhere or of another deployment."""
    at = folder.authority
    if not at.is_dir():
        raise UserError(f"the operator's keys are not here: bring {at} back for as long as this command runs")
    found = Authority(
        SigningKey.load(read_private(at / "signing", KEY_BYTES)),
        read_private(at / "possession", KEY_BYTES),
        read_private(at / "token", KEY_BYTES),
        read_private(at / "ca.pem"),
    )
    if found.public != operator_of(folder):
        raise UserError(f"{at} holds the keys of another deployment's operator")
    return found


def put_plan(folder: Folder, data: bytes) -> None:
    """First beside the operator's keys, where the newest version is known."""
    write_private(folder.authority / PLAN, data)
    atomic_write(folder.plan, data)


def settle(folder: Folder) -> bool:
    """Take the newest plan from beside the operator's keys, if a backup has put an older one back. Returns whether the
    folder's is known to be the newest.
    """
    beside = folder.authority / PLAN
    if beside.exists():
        data, ours = read_private(beside), current_plan(folder)
        if plans.check(data, operator_of(folder)).version > ours.version:
            atomic_write(folder.plan, data)
        folder.restored.unlink(missing_ok=True)
    return not folder.restored.exists()


def joined_members(folder: Folder) -> dict[str, Joined]:
    """By name, in the order of ``current_members``, including revoked ones."""
    return {
        name: read_joined(folder, name)
        for name in current_members(folder, current_plan(folder))
        if folder.joined_file(name).exists()
    }


def current_members(folder: Folder, plan: Plan) -> dict[str, PlannedMember]:
    """The plan's members by name, in its order, then further clients of members.toml."""
    listed = {one.name: one for one in read_members(folder.members)}
    known = {name: listed.get(name) or PlannedMember(name, role) for name, role in plan.members}
    return known | {name: one for name, one in listed.items() if name not in known and one.role == plan.client_role}


def certificate_ends(folder: Folder) -> dict[str, float]:
    """Unix times, of believed members, operator, server and authority."""
    plan = current_plan(folder)
    files = {"authority": folder.ca, **folder.own_certificates}
    held = {name: read_private(path) for name, path in files.items() if path.exists()}
    for name, one in joined_members(folder).items():
        if name in plan.believed.by_name:  # an operator elsewhere may have renewed it
            held[name] = plan.certificates.get(name, one.certificate)
    return {name: certificates.validity(one)[1] for name, one in held.items()}


def read_joined(folder: Folder, name: str) -> Joined:
    return read_json(folder.joined_file(name), Joined)


def write_joined(folder: Folder, joined: Joined) -> None:
    write_private(folder.joined_file(joined.entry.name), msgspec.json.format(msgspec.json.encode(joined), indent=2))
