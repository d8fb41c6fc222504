"""Waits before a node starts: for the hub's first packet, or for the parties."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection, Sequence

from coterie.deploy import logs
from coterie.deploy.engine import Delivery, Engine, EngineError, NotAdmittedError
from coterie.deploy.home import Home, keyring_of, read_private, take_plan
from coterie.deploy.lead import wait_for
from coterie.deploy.logs import Say, event
from coterie.deploy.packets import NewRun, PlanUpdate, unwrap, wrap
from coterie.deploy.plan import NewPlanError, Plan
from coterie.protocol.errors import PeerError, RunError

POLL_S = 0.5

Tell = Callable[..., None]
"""``tell(here, away)`` is told repeatedly who is here and awaited."""


def wait_for_begin(
    home: Home, plan: Plan, engine: Engine, stopped: threading.Event, say: Say = lambda words: None
) -> Delivery | None:
    """Wait until the hub has begun and the home has the newest plan. Returns the first packet, None if ``stopped``.

    say: is told once if the engine has nothing for this party, as before it knows the approvals. Raises
    NotAdmittedError, and NewPlanError for a later run's plan.
    """
    keyring, hub, told = keyring_of(home, plan), plan.roster.hub, False
    while not stopped.is_set():
        try:
            delivery = engine.pull(POLL_S)
        except NotAdmittedError:
            raise
        except EngineError as error:
            if not told:
                say(f"{error}. This party waits")
            told = True
            logs.refusal("engine", home.name, str(error))
            stopped.wait(POLL_S)
            continue
        if delivery is None:
            continue
        try:
            packet = unwrap(keyring, delivery.src, home.name, delivery.body)[1]
            if delivery.src != hub:
                raise PeerError("only the hub begins")
            if not isinstance(packet, PlanUpdate | NewRun):
                return delivery
            try:
                taken = take_plan(home, packet.plan)
            finally:
                if isinstance(packet, NewRun):  # a hub that was restored asks for the newest plan
                    answer = wrap(keyring, home.name, hub, 0, NewRun(read_private(home.plan)))
                    engine.push(hub, answer, secrets.token_hex(16))
            event("plan", plan=taken.version, plan_sha256=taken.sha256)
            if taken.run > plan.run:
                raise NewPlanError(packet.plan)  # it comes again, and is known then
        except PeerError as error:
            logs.refusal("packet", delivery.src, str(error))
        delivery.done()
    return None


def wait_for_parties(
    plan: Callable[[], Plan],
    engine: Engine,
    stopped: threading.Event,
    tell: Tell = lambda here, away: None,
    *,
    over: Callable[[], bool] = lambda: False,
    poll_s: float = POLL_S,
) -> None:
    """Wait for those whom ``awaited`` names, until ``stopped`` or the run is over. plan: as it is now. Raises RunError
    after its ``patience_s``.
    """
    patience_s = plan().settings.patience_s
    if away := wait_for(lambda: () if over() else awaited(plan(), tell, engine.nodes()), stopped, patience_s, poll_s):
        raise RunError(
            f"the first round has not begun: {', '.join(away)} did not connect within {patience_s:g} "
            "seconds; start their processes, and then the hub again"
        )


def awaited(plan: Plan, tell: Tell, here: Collection[str]) -> Sequence[str]:
    """Who is not here; nobody if all servers and a quorum of the clients are."""
    client, hub = plan.client_role, plan.believed.hub
    of_role = {one.name: one.role for one in plan.believed.entries if one.name != hub}
    quorum = min(plan.settings.quorum, sum(role == client for role in of_role.values()))
    away = [name for name in of_role if name not in here]
    tell(here, away)
    there = sum(role == client for name, role in of_role.items() if name not in away)
    return () if there >= quorum and all(of_role[name] == client for name in away) else away
