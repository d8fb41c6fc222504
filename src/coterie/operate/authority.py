"""The operator's acts: invite, approve, renew, revoke. Every change of the roster is a new version of the plan."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from coterie.crypto import certificates
from coterie.crypto.roster import sign_roster
from coterie.crypto.signing import OpeningKey
from coterie.deploy import plan as plans
from coterie.deploy.home import PLAN, read_json, read_private, write_private
from coterie.deploy.names import check_name, common, safe
from coterie.deploy.plan import Plan
from coterie.operate import tokens
from coterie.operate.folder import (
    DAYS,
    Authority,
    Folder,
    Joined,
    authority_of,
    current_members,
    current_plan,
    joined_members,
    open_folder,
    put_plan,
    read_joined,
    settle,
    write_joined,
)
from coterie.operate.server import admit
from coterie.operate.tokens import Invitation, KeyRequest
from coterie.protocol.errors import PeerError, UserError, suggest
from coterie.record.files import atomic_write, locked

HOURS = 24.0


@dataclass(frozen=True)
class Approval:
    """now: the member is on the roster; else with the next run."""

    certificate: Path
    plan: Plan
    now: bool = True


# -- inviting -------------------------------------------------------------------------------------------------------


def invite(path: Path, name: str, *, again: bool = False, hours: float = HOURS, now_s: float | None = None) -> str:
    """SECRET: an invitation, which replaces the member's earlier one.  again: for new keys, after a lost home. Raises
    UserError.
    """
    with changing(path, now_s) as (folder, authority, plan, now_s):
        role = _role(folder, plan, name)
        times = _times(folder, plan, name)
        if times and not again:
            raise UserError(
                f"{name} has joined already: if its home is lost, give --again for an invitation to join with new keys"
            )
        if again and not times:
            raise UserError(f"{name} has never joined: leave --again out")
        if not 0 < hours <= 24 * 31:
            raise UserError(f"an invitation is valid for more than 0 hours and at most a month, not {hours:g} hours")
        invitation = Invitation(
            id=os.urandom(tokens.ID_BYTES),
            name=name,
            role=role,
            server=plan.settings.server,
            operator=authority.public,
            possession=OpeningKey.load(authority.possession).public.to_bytes(),
            session=plan.roster.session,
            facts=plan.facts,
            data=role == plan.client_role,
            scores=plan.settings.scores,
            max_epochs=int(getattr(plan.resolved.own, "max_epochs", 1)),
            not_after_s=now_s + hours * 3600,
            again=times + 1,
        )
        write_private(folder.invitation_file(name), msgspec.json.encode(invitation))
        return tokens.issue(invitation, authority.signing, authority.token)


# -- approving ------------------------------------------------------------------------------------------------------


def examine(path: Path, text: str) -> tuple[KeyRequest, Invitation | None]:
    """The verified request, and its invitation, None if this very request is approved. Raises UserError."""
    folder = open_folder(path)
    keys, _, invitation = _examined(folder, authority_of(folder), current_plan(folder), text, time.time())
    return keys, invitation


def approve(path: Path, text: str, *, now_s: float | None = None) -> Approval:
    """Put the sender of a request on the roster, and write its certificate (``NAME.cert``), which uses the invitation
    up. If a run without it has begun, the next one brings the certificate (``runs.start``). Raises UserError.
    """
    with changing(path, now_s) as (folder, authority, plan, now_s):
        keys, tls, invitation = _examined(folder, authority, plan, text, now_s)
        if invitation is not None:
            ca, days = read_private(folder.ca), (plan.settings.not_after_s - now_s) / certificates.DAY_S
            before = read_joined(folder, keys.name) if folder.joined_file(keys.name).exists() else None
            joined = Joined(
                entry=keys.entry,
                tls=tls,
                certificate=certificates.sign(ca, authority.ca, common(keys.name), tls, now_s, days),
                joined_s=now_s,
                invitation=invitation.id,
                request=_digest(text),
                times=invitation.again,
                former=() if before is None else (*before.former, *before.keys),
            )
            write_joined(folder, joined)  # from here on the invitation is used up
            write_private(folder.requests / f"{safe(keys.name)}.request", text.strip().encode() + b"\n")
        joined = read_joined(folder, keys.name)
        path = folder.invitation_file(keys.name)
        if path.exists() and read_json(path, Invitation).id == joined.invitation:
            path.unlink()
        now = keys.name in plan.roster.by_name or (keys.name in dict(plan.members) and not folder.begun)
        if now and plan.roster.by_name.get(keys.name) != joined.entry:
            plan = _enrolled(folder, authority, plan, joined, now_s)
        elif keys.name in plan.revoked:
            revoked = tuple(one for one in plan.revoked if one != keys.name)
            plan = publish(folder, authority, plan, now_s, revoked=revoked)
        if now:
            admit(folder)
            certify(folder, authority, joined)
    return Approval(folder.certificate_file(keys.name), plan, now)


def certify(folder: Folder, authority: Authority, joined: Joined) -> None:
    name = joined.entry.name
    found = tokens.Certificate(name, joined.certificate, read_private(folder.ca), read_private(folder.plan))
    atomic_write(folder.certificate_file(name), tokens.approved(found, authority.signing).encode())


def _examined(
    folder: Folder, authority: Authority, plan: Plan, text: str, now_s: float
) -> tuple[KeyRequest, bytes, Invitation | None]:
    try:
        keys, request = tokens.read_request(text)
        _role(folder, plan, keys.name)
        joined = read_joined(folder, keys.name) if folder.joined_file(keys.name).exists() else None
        if joined is not None and joined.request == _digest(text):
            if keys.name in plan.revoked:
                raise PeerError(f"{keys.name} was revoked: it needs another invitation (--again)")
            return keys, joined.tls, None
        if joined is not None and joined.invitation == keys.invitation:
            raise PeerError("its invitation was used before, by another request")
        invitation = _invitation(folder, plan, keys, now_s)
        secret = tokens.token_secret(authority.token, msgspec.msgpack.encode(invitation))
        tls = tokens.check_request(keys, request, invitation, secret, authority.possession)
        _check_new_keys(folder, authority, keys, tls)
        return keys, tls, invitation
    except PeerError as error:
        raise UserError(f"the request is refused: {error}") from None


def _invitation(folder: Folder, plan: Plan, keys: KeyRequest, now_s: float) -> Invitation:
    path = folder.invitation_file(keys.name)
    if not path.exists():
        raise PeerError(f"{keys.name} has no open invitation: it was used, replaced or withdrawn, or never given")
    invitation = read_json(path, Invitation)
    if invitation.id != keys.invitation:
        raise PeerError(f"its invitation is not the newest one of {keys.name}")
    if now_s > invitation.not_after_s:
        raise PeerError(f"its invitation has expired: give {keys.name} another")
    if invitation.again != _times(folder, plan, keys.name) + 1:
        raise PeerError(f"{keys.name} has joined since the invitation was given")
    return invitation


def _check_new_keys(folder: Folder, authority: Authority, keys: KeyRequest, tls: bytes) -> None:
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
    renewed = {member: found for member, found in plan.certificates.items() if member != name}
    return publish(
        folder,
        authority,
        plan,
        now_s,
        roster=sign_roster(ordered, authority.signing, plan.roster.session),
        revoked=tuple(one for one in plan.revoked if one != name),
        enrolled=enrolled,
        certificates=renewed,
    )


# -- renewing -------------------------------------------------------------------------------------------------------


def renew(
    path: Path, names: Sequence[str] = (), *, everyone: bool = False, days: float = DAYS, now_s: float | None = None
) -> tuple[str, ...]:
    """Sign new certificates for the same keys; returns their holders. Raises UserError.

    By default of all whose certificate ends within 30 days, also operator and server. The hub brings parties theirs in
    a new version of the plan, which is valid as long; ``NAME.cert`` is for those whose own has ended.
    """
    with changing(path, now_s) as (folder, authority, plan, now_s):
        ca = read_private(folder.ca)
        if certificates.validity(ca)[1] < now_s + certificates.SOON_S:
            raise UserError("the authority's own certificate ends, which cannot be renewed: found a new deployment")
        for name in names:
            _role(folder, plan, name)
            if name not in plan.believed.by_name:
                raise UserError(f"{name} has not joined, or was revoked: it has no certificate to renew")

        def renewed(name: str, old: bytes) -> bytes | None:
            soon = certificates.validity(old)[1] < now_s + certificates.SOON_S
            if not (name in names if names else everyone or soon):
                return None
            public, hosts = certificates.certified(old), certificates.hosts(old)
            return certificates.sign(ca, authority.ca, common(name), public, now_s, days, hosts)

        members = {name: one for name, one in joined_members(folder).items() if name in plan.believed.by_name}
        theirs = {name: new for name, one in members.items() if (new := renewed(name, one.certificate))}
        ours = {name: new for name, at in folder.own_certificates.items() if (new := renewed(name, read_private(at)))}
        if theirs or ours:  # the plan first: what follows may be done again
            until_s = max(plan.settings.not_after_s, now_s + days * certificates.DAY_S)
            settings = msgspec.structs.replace(plan.settings, not_after_s=until_s)
            held = {**plan.certificates, **theirs}
            plan = publish(folder, authority, plan, now_s, settings=settings, certificates=held)
        for name, new in ours.items():
            atomic_write(folder.own_certificates[name], new)
        for name, new in theirs.items():
            joined = msgspec.structs.replace(members[name], certificate=new)
            write_joined(folder, joined)
            if name != plan.roster.hub:
                certify(folder, authority, joined)
        admit(folder)
    return (*theirs, *ours)


# -- revoking -------------------------------------------------------------------------------------------------------


def revoke(path: Path, name: str, *, now_s: float | None = None) -> Plan:
    """Believe nothing of this member any more, and admit it to no server. Raises UserError."""
    with changing(path, now_s) as (folder, authority, plan, now_s):
        _role(folder, plan, name)
        if name == plan.roster.hub:
            raise UserError(f"{name} is the hub, and nothing goes on without it: stop it, and found a new deployment")
        folder.invitation_file(name).unlink(missing_ok=True)
        if not folder.joined_file(name).exists():
            raise UserError(f"{name} has not joined; its invitation, if it had one, is withdrawn")
        if name not in plan.revoked:
            plan = publish(folder, authority, plan, now_s, revoked=(*plan.revoked, name))
        folder.certificate_file(name).unlink(missing_ok=True)
        admit(folder)
    return plan


# -- shared ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def changing(path: Path, now_s: float | None) -> Iterator[tuple[Folder, Authority, Plan, float]]:
    """An operator's folder, locked against other commands, and the time."""
    folder = open_folder(path)
    with locked(path, wait=True):
        authority = authority_of(folder)
        if not settle(folder):
            hub = f"Start the hub first: coterie deploy hub {path} asks all for it. If too few are there, remove"
            raise UserError(
                f"{path} was restored from a backup, and a party may hold a newer plan. "
                f"{'Too few have joined for the hub to ask them: remove' if current_plan(folder).lacking else hub} "
                f"{folder.restored}, and then approve and revoke again whom you did since the backup"
            )
        yield folder, authority, current_plan(folder), time.time() if now_s is None else now_s


def publish(folder: Folder, authority: Authority, plan: Plan, now_s: float, **changes: Any) -> Plan:
    """The next version of the plan, signed and stored. Its number is the Unix time if none lies beside the operator's
    keys, as after a restore: no number may be used twice.
    """
    known = (folder.authority / PLAN).exists()
    version = plan.version + 1 if known else max(plan.version + 1, int(now_s))
    new = msgspec.structs.replace(plan, version=version, signed_s=now_s, **changes)
    put_plan(folder, plans.sign(new, authority.signing))
    return new


def _role(folder: Folder, plan: Plan, name: str) -> str:
    members = current_members(folder, plan)
    if name not in members:
        raise UserError(
            f"{name[:60]!r} is no member{suggest(name, members)} Members: {', '.join(members)}. A further client is "
            f"named in {folder.members} first, and takes part from the next run on"
        )
    check_name(name)
    return members[name].role


def _times(folder: Folder, plan: Plan, name: str) -> int:
    if name == plan.roster.hub:
        raise UserError(f"{name} is the hub, whose home was made with the deployment: it needs no invitation")
    return read_joined(folder, name).times if folder.joined_file(name).exists() else 0


def _digest(text: str) -> str:
    return hashlib.sha256(text.strip().encode()).hexdigest()
