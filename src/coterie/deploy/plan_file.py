"""The plan in the operator's folder, where commands replace it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from coterie.deploy import plan as plans
from coterie.deploy.gathering import POLL_S, Tell, awaited
from coterie.deploy.home import PLAN, RESTORED, RUN, RUNS, Home, plan_of, read_json, read_private
from coterie.deploy.hub import Plans
from coterie.deploy.plan import NewPlanError, Plan
from coterie.deploy.status import STATUS, RunStatus
from coterie.protocol.errors import PeerError, UserError
from coterie.protocols.key_centre import KEY_CENTRE
from coterie.record.files import atomic_write, locked, make_folder, writing
from coterie.report.words import plural


def adopt(folder: Path, home: Home, data: bytes) -> None:
    """Put this plan into an operator's folder, unless it is no newer."""
    with locked(folder, wait=True):
        if _version(home, data) > _version(home, read_private(folder / PLAN)):
            atomic_write(folder / PLAN, data)


def _version(home: Home, data: bytes) -> int:
    return plans.check(data, home.operator).version


def check_enough(plan: Plan) -> None:
    """Raises UserError unless all servers and a quorum of the clients have joined."""
    if plan.lacking:
        needed = f"the servers and {plural(plan.settings.quorum, 'client')} must have joined"
        raise UserError(f"the hub cannot begin: {needed}, and there are not yet {', '.join(plan.lacking)}")


class PlanFile(Plans):
    """tell: is told who is here, and who is awaited."""

    def __init__(self, path: Path, hub: Home, tell: Tell) -> None:
        self._path, self._hub, self._plan, self._known = path, hub, plan_of(hub), b""
        self._tell, self._restored = tell, path.parent / RESTORED
        self.asks_all, self.invites = self._restored.exists(), self._plan.run > 1

    def newest(self) -> bytes | None:
        found = read_private(self._path)
        if self.over() or found == self._known:
            return None
        self._known = found
        return found

    def over(self) -> bool:
        plan = self._newest()
        return plan.run > self._plan.run or plan.aborted

    def present(self) -> Plan:
        """This run's plan, with whom the operator has revoked since."""
        return replace(self._plan, revoked=self._newest().revoked)

    def _newest(self) -> Plan:
        with contextlib.suppress(PeerError):  # the hub refuses it with the reason
            return plans.check(read_private(self._path), self._hub.operator)
        return self._plan

    def check_begins(self) -> None:
        plan, folder = plan_of(self._hub), self._path.parent
        listed = plan.roster.by_name
        gone = [name for name in plan.revoked if name in listed]
        begun = f"{', '.join(gone)} was revoked before run {plan.run} began"
        if servers := [name for name in gone if listed[name].role != plan.client_role]:
            raise UserError(
                f"{begun}, and a run has all its servers: let it join with new keys (coterie deploy invite {folder} "
                f"{servers[0]} --again), and start the hub again"
            )
        if gone and KEY_CENTRE in listed:
            raise UserError(
                f"{begun}, and its key centre deals keys to all members or none: for a run of those that are left run "
                f"coterie deploy abort {folder}, and then coterie deploy start"
            )

    def check_shown(self, data: bytes) -> None:
        if _version(self._hub, data) > _version(self._hub, read_private(self._path)):
            raise NewPlanError(data)

    def away(self, here: Collection[str]) -> Collection[str]:
        return awaited(plan_of(self._hub), self._tell, here)

    def unshown(self, shown: Collection[str]) -> Collection[str]:
        if not (away := awaited(plan_of(self._hub), partial(self._tell, to="show the newest plan"), shown)):
            self._restored.unlink(missing_ok=True)  # this is the newest plan
        return away


def wait_for_run(folder: Path, hub: Home, plan: Plan, stopped: threading.Event) -> None:
    """Until the folder has the plan of a later run."""
    run = plan.run
    while run <= plan.run and not stopped.wait(POLL_S):
        with contextlib.suppress(PeerError):  # while it is copied from elsewhere
            run = plans.check(read_private(folder / PLAN), hub.operator).run


def put_by(folder: Path, plan: Plan) -> None:
    """Before this plan's run, move a former run's folder away, by its number."""
    path = folder / RUN / STATUS
    if not path.exists():
        return
    former = read_json(path, RunStatus)
    if former.session != plan.session and former.run < plan.run:
        make_folder(folder / RUNS)
        with writing(folder / RUNS):
            os.replace(folder / RUN, folder / RUNS / str(former.run))
