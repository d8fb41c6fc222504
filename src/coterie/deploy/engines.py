"""Which engine a party uses: its home says where the server is, and the address says what kind of server that is."""

from __future__ import annotations

from coterie.deploy.addresses import uses_flower
from coterie.deploy.engine import Engine
from coterie.deploy.home import Home, keyring_of, plan_of
from coterie.deploy.names import safe
from coterie.deploy.nats_names import Tls
from coterie.deploy.plan import Plan
from coterie.protocol.errors import RunError, UserError
from coterie.protocol.extras import to_install

EXTRA = f"nats-py is not installed: {to_install('deploy')}"


def servers(address: str) -> list[str]:
    """The servers of an address such as ``nats://a:4222,nats://b:4222``. Raises UserError."""
    found = [one.strip() for one in address.split(",")]
    wrong = [one for one in found if not one.startswith(("nats://", "tls://"))]
    if wrong:
        raise UserError(f"{wrong[0]!r} is no address of a NATS server, such as nats://hub.example:4222")
    return found


def tls_of(home: Home) -> Tls:
    """The files with which this party shows that it is itself."""
    return Tls(home.certificate, home.tls_key, home.ca)


def connect(home: Home, plan: Plan, *, connect_s: float = 20.0) -> Engine:
    """The engine of this party, connected. Raises UserError without the extra, EngineError if no server is reached.

    Over Flower, the connection is made by the SuperNode and the SuperLink, and this is the end of the pipe to it.
    """
    names = [name for name, _ in plan.members]
    if uses_flower(home.server):
        from coterie.deploy.flower import FlowerEngine

        return FlowerEngine(home.name, plan.roster.hub, home.path, names, lambda: keyring_of(home, plan_of(home)))
    try:
        from coterie.deploy.nats import NatsEngine
    except ImportError:
        raise UserError(EXTRA) from None
    return NatsEngine(home.name, servers(home.server), tls_of(home), names, spool=home.path, connect_s=connect_s)


def check_apart(home: Home, *, connect_s: float = 20.0) -> None:
    """Raises RunError if the NATS server has members in one account, and EngineError if no server is reached.

    It asks for the rights of this party, and changes nothing. Over Flower there is nothing to ask.
    """
    if uses_flower(home.server):
        return
    try:
        from coterie.deploy.nats_link import Link
        from coterie.deploy.nats_presence import kept_apart
    except ImportError:
        raise UserError(EXTRA) from None
    link = Link(safe(home.name), servers(home.server), tls_of(home), connect_s)
    try:
        if not kept_apart(link):
            raise RunError(
                f"{link.place()} has the configuration of an earlier version, with which any member can delete what "
                "waits there. Run coterie deploy server DIR in the operator's folder; if the server runs on another "
                "machine, first copy DIR/nats/nats.conf there and start the server again"
            )
    finally:
        link.close()
