"""The operator founds a deployment."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import tomli_w

from coterie.crypto import certificates
from coterie.crypto.roster import sign_roster
from coterie.data.form import OwnSamples, SampleForm, read_data
from coterie.deploy import plan as plans
from coterie.deploy.home import About, Home, make_home, read_private, write_private
from coterie.deploy.plan import Plan, Settings
from coterie.operate.deployable import check_room, check_works, deployable, scores_of
from coterie.operate.folder import DAYS, Authority, Folder, Joined, new_authority, put_plan, write_joined
from coterie.operate.members import PlannedMember, check_members
from coterie.operate.server import admit, make_server_key
from coterie.protocol.errors import UserError, suggest
from coterie.record.files import atomic_write, check_new, make_folder, whole_folder
from coterie.runs import Resolved, RunConfig, to_toml

SESSION_BYTES = 16


def init(
    path: Path,
    config: RunConfig,
    members: Sequence[PlannedMember],
    settings: Settings,
    facts: SampleForm,
    *,
    public: Path | None = None,
    days: float = DAYS,
    members_text: str = "",
    session: bytes | None = None,
    now_s: float | None = None,
) -> Plan:
    """Found a deployment in a new folder: operator's keys, hub's home, first plan, server's files.

    settings: ``quorum``, ``public`` and the times are filled in.  public: ``.npz`` of the hub's public samples.  days:
    of the plan, and of all certificates but the authority's.  members_text: of members.toml.  session: 16 bytes, drawn
    by default. Raises UserError, and then leaves nothing behind.
    """
    now_s = time.time() if now_s is None else now_s
    check_new(path, "a deployment")
    resolved, ordered = checked(config, members, settings, facts)
    samples = _public_samples(resolved, public, facts, settings.rehearsal)
    settings = msgspec.structs.replace(
        settings,
        quorum=settings.quorum or _clients(ordered),
        public=settings.public if samples is None else len(samples.x),
        begins_s=now_s,
        not_after_s=now_s + days * certificates.DAY_S,
    )
    named = tuple((one.name, one.role) for one in ordered)
    check_works(resolved, facts, named, settings)
    with whole_folder(path) as begun:
        folder, hub = Folder(begun), ordered[0]
        for one in (folder.authority, folder.invitations, folder.requests, folder.joined, folder.tls, folder.nats):
            make_folder(one)
        authority = new_authority(folder, now_s, days)
        about = About(hub.name, hub.role, settings.server, authority.public.hex(), facts)
        home = make_home(folder.hub, about, certificates.new_key())
        if samples is not None:
            write_private(home.data, samples.to_bytes())
        joined = _enrol_hub(folder, authority, home, now_s, days)
        plan = Plan(
            version=1,
            config=to_toml(resolved),
            facts=facts,
            settings=settings,
            members=named,
            roster=sign_roster((joined.entry,), authority.signing, session or os.urandom(SESSION_BYTES)),
            signed_s=now_s,
        )
        atomic_write(folder.config, plan.config.encode())
        atomic_write(folder.members, members_text.encode() or _as_toml(ordered))
        put_plan(folder, plans.sign(plan, authority.signing))
        write_private(home.plan, read_private(folder.plan))
        make_server_key(folder, authority, settings.server, now_s, days)
        admit(folder, at=path)
    return plan


def checked(
    config: RunConfig, members: Sequence[PlannedMember], settings: Settings, facts: SampleForm
) -> tuple[Resolved, tuple[PlannedMember, ...]]:
    """The full config, and members in the roster's order. Raises UserError unless they and the model fit."""
    rehearsal = settings.rehearsal
    resolved = deployable(config, rehearsal=rehearsal, patience_s=settings.patience_s)
    ordered = check_members(members, resolved.definition, resolved.own, resolved.mode, rehearsal=rehearsal)
    clients = _clients(ordered)
    if settings.quorum > clients:
        raise UserError(f"a quorum of {settings.quorum} is more than the {clients} clients")
    resolved = deployable(config, rehearsal=rehearsal, clients=clients)
    known = scores_of(resolved)
    for name in settings.scores:
        if name not in known:
            hint = suggest(name, known)
            raise UserError(f"there is no score {name!r}{hint} Parties may report: {', '.join(known)}")
    check_room(resolved, facts, clients, settings)
    return resolved, ordered


def _clients(ordered: Sequence[PlannedMember]) -> int:
    return sum(one.role == ordered[-1].role for one in ordered)


def _public_samples(config: Resolved, public: Path | None, facts: SampleForm, rehearsal: bool) -> OwnSamples | None:
    """Raises UserError if the system needs what it lacks, or the reverse."""
    samples = None if public is None else read_data(public, facts, tests=False)
    if not rehearsal and samples is None and config.public:
        raise UserError(f"the hub of {config.system} needs public samples of its own: name them with --public FILE.npz")
    if not rehearsal and samples is not None and not config.public:
        raise UserError(f"the hub of {config.system} uses no public samples: leave --public out")
    return samples


def _enrol_hub(folder: Folder, authority: Authority, home: Home, now_s: float, days: float) -> Joined:
    ca, public = read_private(folder.ca), certificates.public_of(read_private(home.tls_key))
    tls = certificates.sign(ca, authority.ca, home.common_name, public, now_s, days)
    write_private(home.certificate, tls)
    write_private(home.ca, ca)
    joined = Joined(home.entry, public, tls, now_s)
    write_joined(folder, joined)
    return joined


def _as_toml(members: Sequence[PlannedMember]) -> bytes:
    return "\n".join(f"[[member]]\n{tomli_w.dumps(msgspec.to_builtins(one))}" for one in members).encode()
