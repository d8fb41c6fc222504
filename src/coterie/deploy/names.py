"""Names of parties and addresses of servers, also in subjects, files and certificates."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from coterie.protocol.errors import UserError

MAX_NAME = 40
OPERATOR, ENGINE = "operator", "engine"
RESERVED = frozenset({OPERATOR, ENGINE, "authority", "nats"})
"""Of certificates and services, never of parties."""
HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:-]{0,252}[A-Za-z0-9])?")
"""A DNS name or an address, which hides no path."""
PORT = 4222
_NAME = re.compile(r"[a-z][a-z0-9_]*(?:[-/][a-z0-9_]+)*")
_STEP = re.compile(r"([-/])([a-z0-9_]+)")


def check_name(name: object) -> str:
    """Small letters, digits and ``_``, with single ``-`` or ``/``; else raises UserError."""
    if not isinstance(name, str) or len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise UserError(
            f"{str(name)[:MAX_NAME]!r} is no name of a party: it begins with a small letter and has small letters, "
            f"digits and _, with single - or / between them, at most {MAX_NAME} characters, such as hospital-a"
        )
    if name in RESERVED:
        raise UserError(f"{name!r} is no name of a party, since it means something else here: choose another")
    return name


def safe(name: str) -> str:
    """A name as one token of ``[a-z0-9_-]``, injectively: ``client/3`` is ``client-3``, ``hospital-a`` stays.

    ``-`` stands for ``/`` before a number and for itself before a word; ``--`` is the other of the two. Raises
    UserError.
    """
    return _STEP.sub(lambda step: ("-" if (step[1] == "/") == step[2].isdigit() else "--") + step[2], check_name(name))


def common(name: str) -> str:
    return name if name in RESERVED else safe(name)


def addresses(server: str) -> tuple[tuple[str, int], ...]:
    """Hosts and ports in ``nats://host:port``, or several with commas. Raises UserError."""
    found = []
    for url in server.split(","):
        try:
            parts = urlsplit(url.strip())
            host, port = parts.hostname, parts.port or PORT
        except ValueError:
            host, port, parts = None, 0, urlsplit("")
        known = parts.scheme in ("nats", "tls") and HOST.fullmatch(host or "")
        if not known or parts.path.strip("/") or parts.query:
            raise UserError(
                f"{url[:80]!r} is no address of a server: write nats://host:port, such as nats://hub:4222, or "
                "nats://hub:443 to be reached through proxies"
            )
        if parts.username or parts.password:
            raise UserError("a server's address has no user and no password: parties show their certificates")
        found.append((str(host), port))
    return tuple(found)


def urls(server: str) -> list[str]:
    """For the client library. Raises UserError."""
    return [f"nats://{bracketed(host)}:{port}" for host, port in addresses(server)]


def hosts_of(server: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(host for host, _ in addresses(server)))


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, out of others' reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
