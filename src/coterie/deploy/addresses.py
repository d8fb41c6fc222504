"""Addresses of the engine's servers."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from coterie.protocol.errors import UserError

FLOWER = "flower://"


def uses_flower(address: str) -> bool:
    """Whether an address is that of a SuperLink, such as ``flower://hub.example:9092``."""
    return address.startswith(FLOWER)


HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:-]{0,252}[A-Za-z0-9])?")
"""A DNS name or an address. No path can be hidden in one: folders are named by hosts."""
PORT, FLOWER_PORT = 4222, 8000


def addresses(server: str) -> tuple[tuple[str, int], ...]:
    """Host and port of each server in ``nats://host:port``, or several with commas between. Raises UserError.

    Of a SuperLink, ``flower://host:port``, there is one.
    """
    found = []
    if uses_flower(server) and "," in server:
        raise UserError(f"{server[:80]!r} has several addresses, and a federation over Flower has one SuperLink")
    for url in server.split(","):
        try:
            parts = urlsplit(url.strip())
            host, port = parts.hostname, parts.port or (FLOWER_PORT if uses_flower(server) else PORT)
        except ValueError:
            host, port, parts = None, 0, urlsplit("")
        if (
            parts.scheme not in ("nats", "tls", "flower")
            or not HOST.fullmatch(host or "")
            or parts.path.strip("/")
            or parts.query
        ):
            raise UserError(f"{url[:80]!r} is no address of a server: write nats://host:port, such as nats://hub:4222")
        if parts.username or parts.password:
            raise UserError("a server's address has no user and no password: parties show their certificates")
        found.append((str(host), port))
    return tuple(found)


def hosts_of(server: str) -> tuple[str, ...]:
    """The hosts of the servers, each once, for the servers' certificate. A SuperLink's own apps ask at the loopback."""
    own = ("127.0.0.1",) if uses_flower(server) else ()
    return tuple(dict.fromkeys((*(host for host, _ in addresses(server)), *own)))


def is_loopback(host: str) -> bool:
    """Whether a host is this machine itself, so that no other reaches it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
