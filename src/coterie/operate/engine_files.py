"""The files of the engine's server: its key and certificate, and a configuration that admits the plan's parties."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from coterie.deploy.addresses import addresses, bracketed, is_loopback
from coterie.deploy.home import read_private, write_private
from coterie.deploy.names import ENGINE
from coterie.deploy.nats_names import Access
from coterie.deploy.plan import Plan
from coterie.operate import certificates
from coterie.operate.folder import Authority, Folder, current_plan, joined_members, write_public
from coterie.operate.nats_server import Cluster, Listen, configuration
from coterie.runs import registry
from coterie.runs.config import from_text, system_config

ROUTES = 2000
"""A server's port for the others of its cluster is its port for parties plus this."""


def found_engine(folder: Folder, authority: Authority, hosts: Sequence[str], now_s: float, days: float) -> None:
    """Write the server's key and certificate, which is good for these hosts, and the authority's certificate."""
    key, ca = certificates.new_key(), read_private(folder.ca)
    write_private(folder.nats / "key.pem", key)
    own = certificates.sign(ca, authority.ca, ENGINE, certificates.public_of(key), now_s, days, hosts)
    write_public(folder.nats / "certificate.pem", own)
    write_public(folder.nats / "authority.pem", ca)


def access_of(folder: Folder) -> Access:
    """Who may use the server: those that the plan believes, each with its newest TLS key alone, and the operator."""
    plan = current_plan(folder)
    believed = plan.believed.by_name
    parties = {name: _pin(one.tls) for name, one in joined_members(folder).items() if name in believed}
    operator = _pin(certificates.certified(read_private(folder.tls / "operator.pem")))
    return Access(parties, leaders(plan), operator, [name for name, _ in plan.members])


def leaders(plan: Plan) -> frozenset[str]:
    """The parties that coordinate others and so want to know who is connected: the hub, and clients that may lead."""
    config = from_text(plan.config)
    factories = registry.get(config.system).factories(system_config(config), config.mode)
    leading = {role for role, factory in factories.items() if len(getattr(factory, "roles", ())) > 1}
    return frozenset(e.name for e in plan.believed.entries if e.name == plan.roster.hub or e.role in leading)


def admit(folder: Folder, at: Path | None = None) -> None:
    """Write the configuration of each server for the newest plan: ``nats.conf``, and ``nats-2.conf`` of the second.

    at: where the folder will lie, if not where it is.
    """
    place = Folder(at or folder.path).nats.absolute()
    plan = current_plan(folder)
    for number in range(len(addresses(plan.settings.server))):
        path = folder.nats_conf if number == 0 else folder.nats / f"nats-{number + 1}.conf"
        write_public(path, configuration_of(folder, place, place / "store", plan, number).encode())


def configuration_of(folder: Folder, place: Path, store: Path, plan: Plan, number: int = 0) -> str:
    """The text of ``nats.conf`` for a server whose files lie in this place. number: of its address, from 0 on.

    Servers with several addresses form a cluster; they connect to each other at other ports (``ROUTES``).
    """
    servers = addresses(plan.settings.server)
    host, port = servers[number]
    own = _pin(certificates.certified(read_private(folder.nats / "certificate.pem")))  # all servers share one
    others = [f"{bracketed(host)}:{port + ROUTES}" for host, port in (*servers[:number], *servers[number + 1 :])]
    listen = Listen(
        store=store,
        certificate=place / "certificate.pem",
        key=place / "key.pem",
        authority=place / "authority.pem",
        port=port,
        host=listening(host),
        name=f"coterie-{number + 1}",
        cluster=Cluster(port + ROUTES, others, [own]) if others else None,
    )
    return configuration(access_of(folder), listen) + f"pid_file: {json.dumps(str(place / 'nats.pid'))}\n"


def listening(host: str) -> str:
    """Where a server listens that parties call by this name: on all its addresses, or on the loopback one alone."""
    return host if is_loopback(host) else "0.0.0.0"


def _pin(public: bytes) -> str:
    return hashlib.sha256(public).hexdigest()
