"""The operator founds a deployment: its own keys, the hub's home, the first plan, and the files of the server."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import tomli_w

from coterie.crypto.roster import entry, sign_roster
from coterie.crypto.signing import OpeningKey, SigningKey
from coterie.deploy import plan as plans
from coterie.deploy.addresses import hosts_of
from coterie.deploy.home import About, Home, make_home, read_private, write_private
from coterie.deploy.names import OPERATOR
from coterie.deploy.own_data import read_data, write_data
from coterie.deploy.plan import Facts, Plan, Settings
from coterie.operate import certificates, tokens
from coterie.operate.deployable import deployable, scores_of
from coterie.operate.folder import Authority, Folder, Joined, write_joined, write_public
from coterie.operate.members import Member, check_members
from coterie.operate.server import admit, found_engine
from coterie.protocol.errors import UserError, suggest
from coterie.record.files import make_folder
from coterie.runs.config import RunConfig, to_toml

DAYS = 365.0


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
    resolved = deployable(config, rehearsal=rehearsal, patience_s=settings.patience_s)
    system, own = resolved.definition, resolved.own
    ordered = check_members(members, system, own, resolved.mode, rehearsal=rehearsal)
    *_, client = system.factories(own, resolved.mode)
    clients = [one for one in ordered if one.role == client]
    resolved = deployable(config, rehearsal=rehearsal, clients=len(clients))
    if settings.quorum > len(clients):
        raise UserError(f"a quorum of {settings.quorum} is more than the {len(clients)} clients")
    for name in settings.scores:
        if name not in (known := scores_of(resolved)):
            hint = suggest(name, known)
            raise UserError(f"there is no score {name!r}{hint} Parties may report: {', '.join(known)}")
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
    write_joined(folder, joined)
    return joined


def _as_toml(members: Sequence[Member]) -> bytes:
    return tomli_w.dumps({"member": [msgspec.to_builtins(one) for one in members]}).encode()
