"""Addresses of the engine's servers."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from coterie.protocol.errors import UserError

HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:-]{0,252}[A-Za-z0-9])?")
"""A DNS name or an address. No path can be hidden in one: folders are named by hosts."""
PORT = 4222


def addresses(server: str) -> tuple[tuple[str, int], ...]:
    """Host and port of each server in ``nats://host:port``, or several with commas between. Raises UserError."""
    found = []
    for url in server.split(","):
        try:
            parts = urlsplit(url.strip())
            host, port = parts.hostname, parts.port or PORT
        except ValueError:
            host, port, parts = None, 0, urlsplit("")
        known = parts.scheme in ("nats", "tls") and HOST.fullmatch(host or "")
        if not known or parts.path.strip("/") or parts.query:
            raise UserError(f"{url[:80]!r} is no address of a server: write nats://host:port, such as nats://hub:4222")
        if parts.username or parts.password:
            raise UserError("a server's address has no user and no password: parties show their certificates")
        found.append((str(host), port))
    return tuple(found)


def urls(server: str) -> list[str]:
    """The addresses as the client library takes them. Raises UserError."""
    return [f"nats://{bracketed(host)}:{port}" for host, port in addresses(server)]


def hosts_of(server: str) -> tuple[str, ...]:
    """The hosts of the servers, each once."""
    return tuple(dict.fromkeys(host for host, _ in addresses(server)))


def bracketed(host: str) -> str:
    """A host as it stands before a port."""
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Whether a host is this machine itself, so that no other reaches it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
