"""What a party and the server of NATS agree on: subjects, TLS files, and access."""

from __future__ import annotations

import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from coterie.deploy.engine import EngineError
from coterie.deploy.names import safe

STREAM = "COT"


SUBJECT = "cot"


PRESENCE = "$SYS.REQ.SERVER.PING.CONNZ"


OWN_RIGHTS = "$SYS.REQ.USER.INFO"
"""A user is told its account and its permissions there."""


@dataclass(frozen=True)
class Tls:
    """PEM files: a party's certificate and key, and the authority's certificate."""

    certificate: Path
    key: Path
    authority: Path

    def context(self) -> ssl.SSLContext:
        """For a client that shows its certificate and knows no other authority. Raises EngineError."""
        try:
            context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(self.authority))
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.load_cert_chain(str(self.certificate), str(self.key))
        except OSError as error:
            files = f"{self.certificate}, {self.key} and {self.authority}"
            raise EngineError(f"TLS cannot be set up with {files}: {error}") from None
        return context


@dataclass(frozen=True)
class Access:
    """Who may use the server.

    parties: by name, the SHA-256 (hex) of the public key (DER) in its newest certificate, so that an older key of a
    party that was enrolled again is refused; None admits any certificate of the party, and then of all parties.
    watchers: those that may ask who is connected, and from which address: the hub, and other parties that lead.
    operator: the same of the operator's own certificate, whose common name is ``operator``.
    members: all that may be admitted later. They have their accounts from the start, since a server (nats-server
    2.15.1) connects a new account only after it has read the configuration once more.
    """

    parties: Mapping[str, str | None]
    watchers: frozenset[str] = frozenset()
    operator: str | None = None
    members: Collection[str] = ()

    def pinned(self) -> tuple[str, ...]:
        """The keys that are admitted; empty if those of a party are not known."""
        keys = [*self.parties.values(), self.operator]
        return tuple(sorted({key for key in keys if key is not None})) if None not in keys else ()


def subject(dst: str, src: str) -> str:
    """Where the packets from ``src`` to ``dst`` travel: ``cot.client-3.hub``."""
    return f"{SUBJECT}.{safe(dst)}.{safe(src)}"
