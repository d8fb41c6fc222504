"""Before a node starts its home must hold the newest plan, since a party is made from it.

Members join one after the other, so a party's plan may lack later ones. The hub begins when enough have joined, and
first sends the newest plan, for which a party that has never begun waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from coterie.deploy import logs
from coterie.deploy.engine import Delivery, Engine, EngineError, NotAdmittedError
from coterie.deploy.home import Home, keyring_of, read_private, take_plan
from coterie.deploy.packets import PlanUpdate, unwrap
from coterie.deploy.plan import Plan, plan_hash
from coterie.protocol.errors import PeerError, RunError, UserError
from coterie.report.words import plural
from coterie.runs.config import from_text

_POLL_S = 0.5


def wait_for_begin(
    home: Home, plan: Plan, engine: Engine, stopped: threading.Event, say: Callable[[str], None] = lambda words: None
) -> Delivery | None:
    """Wait until the hub has begun and the home holds the newest plan. Gives its first packet, or None if ``stopped``.

    say: is told once if the engine has nothing for this party, such as a broker that was not told of the approvals.
    Raises NotAdmittedError.
    """
    keyring, hub, told = keyring_of(home, plan), plan.roster.hub, False
    while not stopped.is_set():
        try:
            delivery = engine.pull(_POLL_S)
        except NotAdmittedError:
            raise
        except EngineError as error:
            if not told:
                say(f"{error}. This party waits until the operator has run coterie deploy server DIR")
            told = True
            logs.refusal("engine", home.name, str(error))
            stopped.wait(_POLL_S)
            continue
        if delivery is None:
            continue
        try:
            packet = unwrap(keyring, delivery.src, home.name, delivery.body)[1]
            if delivery.src != hub:
                raise PeerError("only the hub begins")
            if not isinstance(packet, PlanUpdate):
                return delivery
            taken = take_plan(home, packet.plan)
            logs.event("plan", plan=taken.version, plan_sha256=plan_hash(taken))
        except PeerError as error:
            logs.refusal("packet", delivery.src, str(error))
        delivery.done()
    return None


def check_enough(plan: Plan) -> None:
    """Raises UserError unless all servers and a quorum of the clients have joined."""
    client, roles = _client(plan), dict(plan.members)
    there = sum(one.role == client for one in plan.roster.entries)
    missing = [name for name in plan.missing if roles[name] != client]
    if missing or there < plan.settings.quorum:
        needed = f"the servers and {plural(plan.settings.quorum, 'client')} must have joined"
        raise UserError(f"the hub cannot begin: {needed}, and there are not yet {', '.join(missing or plan.missing)}")


def wait_for_parties(
    plan: Plan,
    engine: Engine,
    stopped: threading.Event,
    tell: Callable[[Collection[str], Sequence[str]], None] = lambda here, away: None,
    *,
    poll_s: float = _POLL_S,
) -> None:
    """Wait until all servers and a quorum of the clients are connected, or ``stopped``.

    tell: is told repeatedly of connected and missing parties. Raises RunError, naming the missing, after the plan's
    ``patience_s``.
    """
    client, hub = _client(plan), plan.believed.hub
    of_role = {one.name: one.role for one in plan.believed.entries if one.name != hub}
    quorum = min(plan.settings.quorum, sum(role == client for role in of_role.values()))
    ends, told = time.monotonic() + plan.settings.patience_s, False
    while not stopped.is_set():
        nodes = engine.nodes()
        away = [name for name in of_role if name not in nodes]
        tell(nodes, away)
        here = sum(role == client for name, role in of_role.items() if name not in away)
        if here >= quorum and all(of_role[name] == client for name in away):
            return
        if time.monotonic() >= ends:
            raise RunError(
                f"the first round has not begun: {', '.join(away)} did not connect within {plan.settings.patience_s:g} "
                "seconds; start their processes, and then the hub again"
            )
        if not told:
            logs.event("waiting", parties=", ".join(away)[:200])
            told = True
        stopped.wait(poll_s)


def _client(plan: Plan) -> str:
    config = from_text(plan.config)
    *_, client = config.definition.factories(config.own, config.mode)
    return client


def watch_plan(path: Path) -> Callable[[], bytes | None]:
    """A function that gives the plan in this file at its first call and after each change; else None."""
    known: list[bytes] = [b""]

    def changed() -> bytes | None:
        found = read_private(path)
        same, known[0] = found == known[0], found
        return None if same else found

    return changed
