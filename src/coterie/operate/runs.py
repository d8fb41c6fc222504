"""Further runs of a deployment, each a signed plan with its own config, roster and session."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path

import msgspec

from coterie.crypto.roster import sign_roster
from coterie.deploy.home import Home, agree, has_agreed, plan_of, read_home
from coterie.deploy.plan import Plan
from coterie.operate.authority import certify, changing, publish
from coterie.operate.deployable import SENSELESS, check_works, read_config, scores_of
from coterie.operate.folder import current_members, joined_members
from coterie.operate.founding import SESSION_BYTES, checked
from coterie.operate.server import admit
from coterie.operate.watching import has_ended, read_status
from coterie.protocol.errors import UserError
from coterie.record.files import atomic_write
from coterie.runs import Resolved, RunConfig, to_toml

FEWEST_DIGITS = 32
"""Of a plan's hash, so that its operator finds no two that share them."""


def start(
    path: Path,
    config: Path | None = None,
    *,
    rounds: int | None = None,
    warm: bool = False,
    session: bytes | None = None,
    now_s: float | None = None,
) -> Plan:
    """Sign the plan of another run of all joined, unrevoked members; new ones get their certificates now.

    config: by default the last run's.  rounds: instead of its own.  warm: parties begin with the last run's models.
    session: 16 bytes, drawn by default. Raises UserError while a run goes on.
    """
    with changing(path, now_s) as (folder, authority, plan, now_s):
        begun = folder.begun and plan_of(read_home(folder.hub)).run == plan.run
        if begun and not (plan.aborted or has_ended(folder.run)):
            raise UserError(f"run {plan.run} goes on: wait until it has ended, or run coterie deploy abort {path}")
        joined, named = joined_members(folder), current_members(folder, plan)
        members = [one for name, one in named.items() if name in joined and name not in plan.revoked]
        old = plan.resolved
        given = _again(old, plan.settings.rehearsal) if config is None else _read(config, plan)
        given = given if rounds is None else replace(given, rounds=rounds)
        clients = [one for one in members if one.role == plan.client_role]
        before = sum(role == plan.client_role for _, role in plan.members)
        most = len(clients) if plan.settings.quorum == before else min(plan.settings.quorum, len(clients))
        scores = tuple(name for name in plan.settings.scores if name in scores_of(given))
        settings = msgspec.structs.replace(plan.settings, quorum=most, scores=scores)
        resolved, ordered = checked(given, members, settings, plan.facts)
        if resolved.public and not settings.public:
            raise UserError(f"the hub has no public samples, which {resolved.system} needs: found another deployment")
        if warm:
            _check_warm(old, resolved)
            if not folder.begun and read_home(folder.hub).former is None:
                raise UserError("no run has begun yet, with whose models another one could begin")
        roles = tuple((one.name, one.role) for one in ordered)
        check_works(resolved, plan.facts, roles, settings, warm)
        entries = tuple(joined[one.name].entry for one in ordered)
        new = publish(
            folder,
            authority,
            plan,
            now_s,
            run=plan.run + 1,
            aborted=False,
            warm=warm,
            config=to_toml(resolved),
            settings=settings,
            members=roles,
            roster=sign_roster(entries, authority.signing, session or os.urandom(SESSION_BYTES)),
        )
        atomic_write(folder.config, new.config.encode())
        admit(folder)
        for name in dict(new.members).keys() - dict(plan.members).keys():
            certify(folder, authority, joined[name])
    return new


def abort(path: Path, *, now_s: float | None = None) -> Plan:
    """End the present run before its next round. Raises UserError if it has ended."""
    with changing(path, now_s) as (folder, authority, plan, now_s):
        if plan.aborted or (has_ended(folder.run) and read_status(folder.run).run == plan.run):
            raise UserError(f"run {plan.run} of {path} has ended already")
        return publish(folder, authority, plan, now_s, aborted=True)


def offered(home: Home) -> Plan:
    """A plan to which this home has not agreed. Raises UserError without one."""
    plan = plan_of(home)
    if has_agreed(home, plan):
        raise UserError(
            f"{home.path} has no plan of a further run: {home.name} has agreed to run {plan.run}. The hub brings the "
            "next plan to coterie deploy party --stay"
        )
    return plan


def agree_to(home: Home, digits: str = "") -> Plan:
    """Agree to the run of the home's newest plan. digits: that its hash begins with. Raises UserError if they differ or
    are too few, and without a new run.
    """
    plan = offered(home)
    wanted = "".join(digits.split()).lower()
    if 0 < len(wanted) < FEWEST_DIGITS:
        raise UserError(f"{digits!r} is too short: give {FEWEST_DIGITS} digits or more, as the operator shows them")
    if not plan.sha256.startswith(wanted):
        raise UserError(f"the plan of run {plan.run} has another hash than {digits!r}: ask the operator why")
    agree(home, plan)
    return plan


def _check_warm(old: Resolved, new: Resolved) -> None:
    new.definition.check_warm(new.own, new.mode)
    for name, one, other in (
        ("system", old.system, new.system),
        ("model", old.model, new.model),
        ("number of models", old.own.models, new.own.models),
    ):
        if one != other:
            raise UserError(f"the {name} was {one} and is {other}, so no party could begin with its models")


def _again(old: Resolved, rehearsal: bool) -> RunConfig:
    left_out = () if rehearsal else SENSELESS
    return RunConfig(**{one.name: getattr(old, one.name) for one in fields(RunConfig) if one.name not in left_out})


def _read(config: Path, plan: Plan) -> RunConfig:
    stated = plan.facts
    if stated.schema is None:
        given, facts = read_config(config, "x".join(map(str, stated.input_shape)), stated.outputs)
    else:
        given, facts = read_config(config, None, None, stated.schema)
    if facts != stated:
        raise UserError(f"{config} is for samples of another task than those of the parties: found another deployment")
    return given
