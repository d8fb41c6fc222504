"""The operator's folder of a deployment: its files, and the members that have joined.

Its part ``authority/`` holds the operator's secret keys. It may lie elsewhere (on a stick in a safe) while nobody joins
and nobody is revoked: the hub needs only the rest.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from coterie.crypto.signing import KEY_BYTES, SigningKey, VerifyKey
from coterie.deploy import plan as plans
from coterie.deploy.home import HUB, PLAN, RUN, STATE, decode_json, read_private, write_private
from coterie.deploy.names import safe
from coterie.deploy.nats_names import Tls
from coterie.deploy.plan import Plan
from coterie.operate.tokens import Id
from coterie.protocol.errors import PeerError, UserError
from coterie.protocol.setup_info import Entry
from coterie.record.files import FILE_MODE, open_own

_ADVICE = "name the folder that `coterie deploy init` has made"


@dataclass(frozen=True)
class Folder:
    """Where things are."""

    path: Path

    @property
    def config(self) -> Path:
        """What the parties run, as the operator gave it: for people; the plan is what counts."""
        return self.path / "config.toml"

    @property
    def members(self) -> Path:
        """Who is to join, in TOML: for people; the plan is what counts."""
        return self.path / "members.toml"

    @property
    def authority(self) -> Path:
        """SECRET: folder of the operator's keys."""
        return self.path / "authority"

    @property
    def invitations(self) -> Path:
        """Folder: the newest invitation of each member that has not used it."""
        return self.path / "invitations"

    @property
    def requests(self) -> Path:
        """Folder: the requests that were approved."""
        return self.path / "requests"

    @property
    def joined(self) -> Path:
        """Folder: what is known of the members that have joined."""
        return self.path / "members"

    @property
    def plan(self) -> Path:
        """The newest plan."""
        return self.path / PLAN

    @property
    def operator(self) -> Path:
        """The operator's public key, in hex."""
        return self.path / "operator.pub"

    @property
    def tls(self) -> Path:
        """Folder: the certificate of the authority, and the operator's."""
        return self.path / "tls"

    @property
    def ca(self) -> Path:
        """The certificate of the authority (PEM)."""
        return self.tls / "authority.pem"

    @property
    def operator_tls(self) -> Tls:
        """The files with which the operator shows the server that it is itself."""
        return Tls(self.tls / "operator.pem", self.authority / "tls.pem", self.ca)

    @property
    def nats(self) -> Path:
        """Folder: what the engine's server needs: its key, its certificate, the authority's, its configuration."""
        return self.path / "nats"

    @property
    def nats_conf(self) -> Path:
        """The configuration of the engine's server."""
        return self.nats / "nats.conf"

    @property
    def hub(self) -> Path:
        """The home of the hub."""
        return self.path / HUB

    @property
    def run(self) -> Path:
        """The run folder, which the hub writes."""
        return self.path / RUN

    @property
    def begun(self) -> bool:
        """Whether the hub has begun, so that nobody new can join."""
        return (self.hub / STATE).exists()

    def joined_file(self, name: str) -> Path:
        """What is known of a member that has joined."""
        return self.joined / f"{safe(name)}.json"

    def certificate_file(self, name: str) -> Path:
        """The certificate that a member is handed."""
        return self.path / f"{safe(name)}.cert"


class Joined(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A member that has joined. tls: its TLS key (DER).  certificate: PEM.  invitation: the one that it used.

    request: SHA-256 of the approved request, in hex.  times: how often it has joined.  former: its earlier keys, which
    nobody may have again.
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
        """The public keys that it has now."""
        return self.entry.verify_key, self.entry.sealing_key, self.tls


@dataclass(frozen=True, repr=False)
class Authority:
    """SECRET: the operator's keys. signing: signs roster, plan, invitations and certificates.

    possession: X25519, for proofs of possession.  token: for MACs of invitations.  ca: of TLS, PEM.
    """

    signing: SigningKey
    possession: bytes
    token: bytes
    ca: bytes

    @property
    def public(self) -> bytes:
        """The operator's public key, 32 bytes."""
        return self.signing.public.to_bytes()


def open_folder(path: Path) -> Folder:
    """The deployment in this folder. Raises UserError if there is none."""
    folder = Folder(path)
    if not folder.plan.is_file() or not folder.operator.is_file():
        raise UserError(f"{path} holds no deployment: {_ADVICE}")
    return folder


def operator_of(folder: Folder) -> bytes:
    """The operator's public key, 32 bytes."""
    try:
        return VerifyKey.load(bytes.fromhex(read_private(folder.operator).decode().strip())).to_bytes()
    except (ValueError, PeerError):
        raise UserError(f"{folder.operator} is damaged: {_ADVICE}") from None


def current_plan(folder: Folder) -> Plan:
    """The newest plan of the deployment. Raises UserError for a damaged or forged one."""
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


def joined_members(folder: Folder) -> dict[str, Joined]:
    """The members that have joined, by name, in the order of the plan, including revoked ones."""
    found = {}
    for name, _ in current_plan(folder).members:
        if folder.joined_file(name).exists():
            found[name] = read_joined(folder, name)
    return found


def read_joined(folder: Folder, name: str) -> Joined:
    """What is known of a member that has joined. Raises UserError."""
    path = folder.joined_file(name)
    return decode_json(path, read_private(path), Joined)


def write_joined(folder: Folder, joined: Joined) -> None:
    """Keep what is known of a member."""
    write_private(folder.joined_file(joined.entry.name), msgspec.json.format(msgspec.json.encode(joined), indent=2))


@contextlib.contextmanager
def locked(folder: Folder) -> Iterator[None]:
    """One command at a time changes the folder: the others wait."""
    descriptor = open_own(folder.path / ".lock", os.O_RDWR, FILE_MODE)
    try:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
