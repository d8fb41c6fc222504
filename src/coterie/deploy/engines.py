"""A party's connection, by the server and the certificate in its home."""

from __future__ import annotations

from contextlib import closing
from importlib.util import find_spec

from coterie.deploy.engine import Engine
from coterie.deploy.home import Home
from coterie.deploy.names import safe, urls
from coterie.deploy.plan import Plan
from coterie.protocol.errors import RunError, UserError, to_install


def check_installed() -> None:
    """Raises UserError if this machine lacks the client library."""
    if find_spec("nats") is None:
        raise UserError(f"nats-py is not installed: {to_install('deploy')}")


def connect(home: Home, plan: Plan, *, connect_s: float = 20.0) -> Engine:
    """Raises UserError without the extra, EngineError if no server is reached."""
    check_installed()
    from coterie.deploy.nats import NatsEngine

    names = [name for name, _ in plan.members]
    return NatsEngine(
        home.name,
        urls(home.server),
        home.tls,
        names,
        spool=home.path,
        connect_s=connect_s,
        largest=plan.settings.packet_bytes,
    )


def check_apart(home: Home, *, connect_s: float = 20.0) -> None:
    """Raises RunError if the server has members in one account, and EngineError if no server is reached."""
    check_installed()
    from coterie.deploy.nats_link import Link, rights

    with closing(Link(safe(home.name), urls(home.server), home.tls, connect_s)) as link:
        if rights(link).get("account") != link.token:
            raise RunError(
                f"{link.place()} has the configuration of an earlier version, with which any member can delete what "
                "waits there. Run coterie deploy server DIR in the operator's folder; if the server runs on another "
                "machine, first copy DIR/nats/nats.conf there and start the server again"
            )
