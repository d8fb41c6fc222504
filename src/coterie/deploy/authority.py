"""What the operator does: found a deployment, invite its members, approve their requests, revoke them.

The operator's key is the root of trust. It signs the roster and the plan, and gives out TLS certificates. Every change
of the roster is a new version of the plan. A command that was interrupted is repeated: it goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from coterie.crypto.roster import entry, sign_roster
from coterie.crypto.signing import OpeningKey, SigningKey
from coterie.deploy import certificates, tokens
from coterie.deploy import plan as plans
from coterie.deploy.allowed import deployable
from coterie.deploy.engine_files import admit, found_engine, hosts_of
from coterie.deploy.folder import (
    Authority,
    Folder,
    Joined,
    authority_of,
    current_plan,
    joined_members,
    locked,
    open_folder,
    read_joined,
    write_public,
)
from coterie.deploy.home import About, Home, decode_json, make_home, read_private, write_private
from coterie.deploy.members import Member, check_members
from coterie.deploy.names import OPERATOR, safe
from coterie.deploy.own_data import read_data, write_data
from coterie.deploy.plan import Facts, Plan, Settings
from coterie.deploy.tokens import Invitation, Keys, Request
from coterie.protocol.errors import PeerError, UserError, suggest
from coterie.protocol.told import Entry
from coterie.runs import registry
from coterie.runs.config import RunConfig, from_text, system_config, to_toml
from coterie.runs.files import make_folder

HOURS = 24.0
DAYS = 365.0
Hook = Callable[[Folder], object]
"""Called when the server's configuration has changed: makes the server read it again."""


@dataclass(frozen=True)
class Approval:
    """A request that was approved. again: how often the member has joined by now."""

    entry: Entry
    again: int
    certificate: Path
    plan: Plan


# -- founding -------------------------------------------------------------------------------------------------------


def init(
    path: Path,
    config: RunConfig,
    members: Sequence[Member],
    settings: Settings,
    facts: Facts,
    *,
    public: Path | None = None,
    days: float = DAYS,
    members_text: str = "",
    session: bytes | None = None,
    now_s: float | None = None,
) -> Plan:
    """Found a deployment in a new folder: the operator's keys, the hub's home, the first plan, the server's files.

    config: as the operator gives it, unresolved.  members: in any order.  settings: ``quorum``, ``public`` and the
    times are filled in.  facts: of all parties' samples.  public: ``.npz`` of the hub's public samples.
    days: for which certificates and plan are valid.  members_text: of members.toml.  session: 16 bytes; drawn unless a
    rehearsal gives those of the run that it repeats. Raises UserError, and then leaves nothing behind.
    """
    now_s = time.time() if now_s is None else now_s
    if path.is_symlink() or (path.exists() and (not path.is_dir() or any(path.iterdir()))):
        raise UserError(f"{path} is there already, and a deployment begins in a new folder: choose another")
    rehearsal = settings.rehearsal
    resolved = deployable(config, rehearsal=rehearsal, clients=None)
    system, own = registry.get(resolved.system), system_config(resolved)
    ordered = check_members(members, system, own, resolved.mode, rehearsal=rehearsal)
    *_, client = system.factories(own, resolved.mode)
    clients = [one for one in ordered if one.role == client]
    resolved = deployable(config, rehearsal=rehearsal, clients=len(clients))
    if settings.quorum > len(clients):
        raise UserError(f"a quorum of {settings.quorum} is more than the {len(clients)} clients")
    if any(name not in plans.SCORES for name in settings.scores):
        raise UserError(f"scores that parties may report are: {', '.join(plans.SCORES)}")
    samples = None if public is None else read_data(public, facts, tests=False)
    if not rehearsal and (samples is None) != (not resolved.public):
        raise UserError(
            f"the hub of {system.name} needs public samples of its own: name them with --public FILE.npz"
            if samples is None
            else f"the hub of {system.name} uses no public samples: leave --public out"
        )
    hosts = hosts_of(settings.server)
    settings = msgspec.structs.replace(
        settings,
        quorum=settings.quorum or len(clients),
        public=settings.public if samples is None else len(samples.x),
        begins_s=now_s,
        not_after_s=now_s + days * certificates.DAY_S,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    begun = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        folder = Folder(begun)
        for one in (folder.authority, folder.invitations, folder.requests, folder.joined, folder.tls, folder.nats):
            make_folder(one)
        authority = _new_authority(folder, now_s, days)
        hub = ordered[0]
        about = About(hub.name, hub.role, settings.server, authority.public.hex(), facts)
        home = make_home(
            folder.hub,
            about,
            certificates.new_key(),
            lambda home: None if samples is None else write_data(home.data, samples),
        )
        joined = _of_hub(folder, authority, home, now_s, days)
        plan = Plan(
            version=1,
            config=to_toml(resolved),
            facts=facts,
            settings=settings,
            members=tuple((one.name, one.role) for one in ordered),
            roster=sign_roster((joined.entry,), authority.signing, session or os.urandom(tokens.ID_BYTES)),
            signed_s=now_s,
        )
        write_public(folder.config, plan.config.encode())
        write_public(folder.members, members_text.encode() or _as_toml(ordered))
        write_public(folder.plan, plans.sign(plan, authority.signing))
        write_private(home.plan, read_private(folder.plan))
        found_engine(folder, authority, hosts, now_s, days)
        admit(Folder(begun), at=path)
        os.replace(begun, path)
    except BaseException:
        shutil.rmtree(begun, ignore_errors=True)
        raise
    return plan


def _new_authority(folder: Folder, now_s: float, days: float) -> Authority:
    """The operator's keys, written, with the certificates of the authority and of the operator."""
    found = Authority(SigningKey.generate(), OpeningKey.generate().to_bytes(), os.urandom(32), certificates.new_key())
    at = folder.authority
    write_private(at / "signing", found.signing.to_bytes())
    write_private(at / "possession", found.possession)
    write_private(at / "token", found.token)
    write_private(at / "ca.pem", found.ca)
    tls = certificates.new_key()
    write_private(at / "tls.pem", tls)
    ca = certificates.new_authority(found.ca, now_s, days)
    write_public(folder.ca, ca)
    own = certificates.sign(ca, found.ca, OPERATOR, certificates.public_of(tls), now_s, days)
    write_public(folder.tls / "operator.pem", own)
    write_public(folder.operator, found.public.hex().encode() + b"\n")
    return found


def _of_hub(folder: Folder, authority: Authority, home: Home, now_s: float, days: float) -> Joined:
    ca, public = read_private(folder.ca), certificates.public_of(read_private(home.tls_key))
    tls = certificates.sign(ca, authority.ca, home.name, public, now_s, days)
    write_private(home.certificate, tls)
    write_private(home.ca, ca)
    joined = Joined(entry(home.name, home.role, home.identity), public, tls, now_s)
    _write_joined(folder, joined)
    return joined


# -- inviting -------------------------------------------------------------------------------------------------------


def invite(path: Path, name: str, *, again: bool = False, hours: float = HOURS, now_s: float | None = None) -> str:
    """SECRET: the text of an invitation, which replaces an earlier one of the same member.

    again: for a member that has joined before and has lost its home: it comes with new keys. Raises UserError.
    """
    now_s = time.time() if now_s is None else now_s
    folder = open_folder(path)
    with locked(folder):
        authority, plan = authority_of(folder), current_plan(folder)
        role = _role(plan, name)
        times = _times(folder, plan, name)
        if times and not again:
            raise UserError(
                f"{name} has joined already: if its home is lost, give --again for an invitation to join with new keys"
            )
        if again and not times:
            raise UserError(f"{name} has never joined: leave --again out")
        if not times:
            _check_open(folder, name)
        if not 0 < hours <= 24 * 31:
            raise UserError(f"an invitation is valid for more than 0 hours and at most a month, not {hours:g} hours")
        resolved = from_text(plan.config)
        own = system_config(resolved)
        *_, client = registry.get(resolved.system).factories(own, resolved.mode)
        invitation = Invitation(
            id=os.urandom(tokens.ID_BYTES),
            name=name,
            role=role,
            server=plan.settings.server,
            operator=authority.public,
            possession=OpeningKey.load(authority.possession).public.to_bytes(),
            session=plan.roster.session,
            facts=plan.facts,
            data=role == client,
            scores=plan.settings.scores,
            max_epochs=int(getattr(own, "max_epochs", 1)),
            not_after_s=now_s + hours * 3600,
            again=times + 1,
        )
        write_private(_invitation_file(folder, name), msgspec.json.encode(invitation))
        return tokens.issue(invitation, authority.signing, authority.token)


# -- approving ------------------------------------------------------------------------------------------------------


def examine(path: Path, text: str, now_s: float | None = None) -> tuple[Keys, Invitation | None]:
    """What a request asks for, all of it verified, and its invitation; None if this very request is approved already.

    Raises UserError for a request that cannot be approved, with the reason.
    """
    now_s = time.time() if now_s is None else now_s
    folder = open_folder(path)
    keys, _, invitation = _examined(folder, authority_of(folder), current_plan(folder), text, now_s)
    return keys, invitation


def approve(path: Path, text: str, *, hook: Hook | None = None, now_s: float | None = None) -> Approval:
    """Put the sender of a request on the roster, and write its certificate (``NAME.cert``). Raises UserError.

    The invitation is used up by this, whatever happens next. The same request again writes the same certificate again.
    """
    now_s = time.time() if now_s is None else now_s
    folder = open_folder(path)
    with locked(folder):
        authority, plan = authority_of(folder), current_plan(folder)
        keys, tls, invitation = _examined(folder, authority, plan, text, now_s)
        if invitation is not None:
            ca, left_s = read_private(folder.ca), plan.settings.not_after_s - now_s
            before = read_joined(folder, keys.name) if folder.joined_file(keys.name).exists() else None
            joined = Joined(
                entry=keys.entry,
                tls=tls,
                certificate=certificates.sign(ca, authority.ca, keys.name, tls, now_s, left_s / certificates.DAY_S),
                joined_s=now_s,
                invitation=invitation.id,
                request=_digest(text),
                times=invitation.again,
                former=() if before is None else (*before.former, *before.keys),
            )
            _write_joined(folder, joined)  # from here on the invitation is used up
            write_private(folder.requests / f"{safe(keys.name)}.request", text.strip().encode() + b"\n")
        joined = read_joined(folder, keys.name)
        _withdraw(folder, keys.name, joined.invitation)
        if plan.roster.by_name.get(keys.name) != joined.entry:
            plan = _enrolled(folder, authority, plan, joined, now_s)
        admit(folder)
        certificate = tokens.Certificate(
            keys.name, joined.certificate, read_private(folder.ca), read_private(folder.plan)
        )
        write_public(folder.certificate_file(keys.name), tokens.approved(certificate, authority.signing).encode())
    if hook is not None:
        hook(folder)
    return Approval(joined.entry, joined.times, folder.certificate_file(keys.name), plan)


def _examined(
    folder: Folder, authority: Authority, plan: Plan, text: str, now_s: float
) -> tuple[Keys, bytes, Invitation | None]:
    """The keys, the TLS key (DER) and the invitation of a request that may be approved; see ``examine``."""
    try:
        keys, request = tokens.read_request(text)
        _role(plan, keys.name)
        joined = read_joined(folder, keys.name) if folder.joined_file(keys.name).exists() else None
        if joined is not None and joined.request == _digest(text):
            if keys.name in plan.revoked:
                raise PeerError(f"{keys.name} was revoked: it needs another invitation (--again)")
            return keys, joined.tls, None
        if joined is not None and joined.invitation == keys.invitation:
            raise PeerError("its invitation was used before, by another request")
        invitation = _invitation(folder, authority, plan, keys, request, now_s)
        tls = tokens.check_request(keys, request, invitation, _secret(authority, invitation), authority.possession)
        _check_new_keys(folder, authority, keys, tls)
        if joined is None:
            _check_open(folder, keys.name)
        return keys, tls, invitation
    except PeerError as error:
        raise UserError(f"the request is refused: {error}") from None


def _invitation(
    folder: Folder, authority: Authority, plan: Plan, keys: Keys, request: Request, now_s: float
) -> Invitation:
    path = _invitation_file(folder, keys.name)
    if not path.exists():
        raise PeerError(f"{keys.name} has no open invitation: it was used, replaced or withdrawn, or never given")
    invitation = decode_json(path, read_private(path), Invitation)
    if invitation.id != keys.invitation:
        raise PeerError(f"its invitation is not the newest one of {keys.name}")
    if now_s > invitation.not_after_s:
        raise PeerError(f"its invitation has expired: give {keys.name} another")
    if invitation.again != _times(folder, plan, keys.name) + 1:
        raise PeerError(f"{keys.name} has joined since the invitation was given")
    return invitation


def _check_new_keys(folder: Folder, authority: Authority, keys: Keys, tls: bytes) -> None:
    """Raises PeerError for a key that somebody has, or has had."""
    known: dict[bytes, str] = {
        authority.public: "the operator",
        OpeningKey.load(authority.possession).public.to_bytes(): "the operator",
        certificates.public_of(authority.ca): "the authority",
        certificates.certified(read_private(folder.tls / "operator.pem")): "the operator",
        certificates.certified(read_private(folder.nats / "certificate.pem")): "the server",
    }
    for name, one in joined_members(folder).items():
        known |= dict.fromkeys((*one.former, *one.keys), name)
    for key in (keys.verify_key, keys.sealing_key, tls):
        if key in known:
            raise PeerError(f"a key that it names is, or was, the key of {known[key]}: every party makes its own")
    if keys.verify_key == keys.sealing_key:
        raise PeerError("it names one key for two purposes")


def _enrolled(folder: Folder, authority: Authority, plan: Plan, joined: Joined, now_s: float) -> Plan:
    name = joined.entry.name
    entries = {**plan.roster.by_name, name: joined.entry}
    ordered = tuple(entries[member] for member, _ in plan.members if member in entries)
    enrolled = {**plan.enrolled, name: joined.times} if joined.times > 1 else plan.enrolled
    return _publish(
        folder,
        authority,
        plan,
        now_s,
        roster=sign_roster(ordered, authority.signing, plan.roster.session),
        revoked=tuple(one for one in plan.revoked if one != name),
        enrolled=enrolled,
    )


# -- revoking -------------------------------------------------------------------------------------------------------


def revoke(path: Path, name: str, *, hook: Hook | None = None, now_s: float | None = None) -> Plan:
    """Believe nothing of this member any more: a new plan, and a server that does not admit it. Raises UserError.

    hook: makes the server read its configuration again. A member that is revoked already is cut off once more.
    """
    now_s = time.time() if now_s is None else now_s
    folder = open_folder(path)
    with locked(folder):
        authority, plan = authority_of(folder), current_plan(folder)
        _role(plan, name)
        if name == plan.roster.hub:
            raise UserError(f"{name} is the hub, and nothing goes on without it: stop it, and found a new deployment")
        _invitation_file(folder, name).unlink(missing_ok=True)
        if name not in plan.roster.by_name:
            raise UserError(f"{name} has not joined; its invitation, if it had one, is withdrawn")
        if name not in plan.revoked:
            plan = _publish(folder, authority, plan, now_s, revoked=(*plan.revoked, name))
        folder.certificate_file(name).unlink(missing_ok=True)
        admit(folder)
    if hook is not None:
        hook(folder)
    return plan


# -- shared ---------------------------------------------------------------------------------------------------------


def _publish(folder: Folder, authority: Authority, plan: Plan, now_s: float, **changes: Any) -> Plan:
    """The next version of the plan, signed and written."""
    new = msgspec.structs.replace(plan, version=plan.version + 1, signed_s=now_s, **changes)
    write_public(folder.plan, plans.sign(new, authority.signing))
    return new


def _role(plan: Plan, name: str) -> str:
    roles: Mapping[str, str] = dict(plan.members)
    if name not in roles:
        raise UserError(f"{name[:60]!r} is no member{suggest(name, roles)} Members: {', '.join(roles)}")
    return roles[name]


def _times(folder: Folder, plan: Plan, name: str) -> int:
    """How often a member has joined. The hub has once: its home was made with the deployment."""
    if name == plan.roster.hub:
        raise UserError(f"{name} is the hub, whose home was made with the deployment: it needs no invitation")
    return read_joined(folder, name).times if folder.joined_file(name).exists() else 0


def _check_open(folder: Folder, name: str) -> None:
    if folder.begun:
        raise UserError(
            f"{name} cannot join any more: the run has begun, and its clients are numbered. Found a new deployment"
        )


def _secret(authority: Authority, invitation: Invitation) -> bytes:
    return tokens.token_secret(authority.token, msgspec.msgpack.encode(invitation))


def _digest(text: str) -> str:
    return hashlib.sha256(text.strip().encode()).hexdigest()


def _invitation_file(folder: Folder, name: str) -> Path:
    return folder.invitations / f"{safe(name)}.json"


def _withdraw(folder: Folder, name: str, invitation: bytes | None) -> None:
    """Remove a member's open invitation, if it is this one."""
    path = _invitation_file(folder, name)
    if path.exists() and decode_json(path, read_private(path), Invitation).id == invitation:
        path.unlink()


def _write_joined(folder: Folder, joined: Joined) -> None:
    write_private(folder.joined_file(joined.entry.name), msgspec.json.format(msgspec.json.encode(joined), indent=2))


def _as_toml(members: Sequence[Member]) -> bytes:
    return tomli_w.dumps({"member": [msgspec.to_builtins(one) for one in members]}).encode()
