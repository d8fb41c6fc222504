"""A small deployment in a folder, for tests: FedAvg, or a system with servers, and members that join one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from coterie.crypto import certificates
from coterie.crypto.roster import new_identity
from coterie.crypto.signing import SigningKey
from coterie.data.form import SampleForm
from coterie.deploy.home import Home
from coterie.deploy.plan import Plan, Settings
from coterie.operate import authority, founding, joining, tokens
from coterie.operate.folder import Folder
from coterie.operate.members import PlannedMember
from coterie.protocol.errors import UserError
from coterie.protocol.randomness import Randomness
from coterie.protocol.setup_info import Identity
from coterie.runs.config import RunConfig

FACTS = SampleForm((1, 8, 8), 10)
SERVER = "nats://hub.example.org:4222"
CLIENTS = ("hospital-a", "hospital-b", "client/3")
NOW_S = 1_800_000_000.0
EMULATED = Randomness(3, emulated=True)


def samples(path: Path, n: int = 12, **arrays: Any) -> Path:
    """An npz file of n samples of FACTS. arrays: others, or None for one that is left out."""
    rng = np.random.default_rng(7)
    found = {"x": rng.random((n, 1, 8, 8), np.float32), "y": np.arange(n) % 10, **arrays}
    np.savez(path, **{name: value for name, value in found.items() if value is not None})
    return path


def members(clients: Sequence[str] = CLIENTS) -> tuple[PlannedMember, ...]:
    """Of FedAvg."""
    return (PlannedMember("server", "server", "hub.example.org"), *(PlannedMember(name, "client") for name in clients))


@dataclass(frozen=True)
class Study:
    """A deployment in ``at/study``, whose operator and parties share the time NOW_S."""

    at: Path

    @property
    def path(self) -> Path:
        return self.at / "study"

    @property
    def folder(self) -> Folder:
        return Folder(self.path)

    def found(
        self, config: RunConfig | None = None, named: Sequence[PlannedMember] | None = None, **options: Any
    ) -> Plan:
        server = options.pop("server", SERVER)
        settings = Settings(server, scores=("local_accuracy",), **options.pop("settings", {}))
        config = config or RunConfig("fedavg", rounds=2)
        return founding.init(self.path, config, named or members(), settings, FACTS, **{"now_s": NOW_S, **options})

    def invite(self, name: str = "hospital-a", **options: Any) -> str:
        return authority.invite(self.path, name, **{"now_s": NOW_S, **options})

    def join(self, text: str, home: str = "home", data: bool = True, **options: Any) -> tuple[Home, str]:
        """The new home, and the text of its request."""
        own = samples(self.at / "own.npz") if data else None
        made, request = joining.join(text, self.at / home, own, out=self.at, **{"now_s": NOW_S, **options})
        return made, request.read_text()

    def approve(self, text: str, **options: Any) -> authority.Approval:
        return authority.approve(self.path, text, **{"now_s": NOW_S, **options})

    def enrol(self, name: str = "hospital-a", home: str = "home", **options: Any) -> Home:
        """A member that has joined, and has its certificate."""
        made, request = self.join(self.invite(name, **options), home)
        joining.accept(made, self.approve(request).certificate.read_text(), NOW_S)
        return made


def everything(folder: Path) -> dict[str, bytes]:
    """All files in a folder: that nothing has changed."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(study: Study, request: str, says: str, **options: Any) -> None:
    """A request is refused, and nothing is changed by it."""
    before = everything(study.path)
    with pytest.raises(UserError, match=says):
        study.approve(request, **options)
    assert everything(study.path) == before


def asked(
    text: str,
    identity: Identity | None = None,
    tls: bytes | None = None,
    forge: Callable[[tokens.KeyRequest], tokens.KeyRequest] = lambda keys: keys,
    secret: bytes | None = None,
    possession: bytes | None = None,
    signing: bytes | None = None,
) -> str:
    """A request by hand. forge: changes what is asked for, before it is proved with the keys that are given."""
    identity = identity or new_identity("thief", EMULATED)
    invitation, token = tokens.read_invitation(text, NOW_S)
    keys, _ = tokens.read_request(tokens.ask(invitation, token, identity, tls or certificates.new_key()))
    body = msgspec.msgpack.encode(forge(keys))
    shared = tokens._agreed(possession or identity.opening, invitation.possession)
    own = SigningKey.load(signing or identity.signing)
    request = tokens.Request(
        body,
        tokens._mac(secret or token.secret, "request", body),
        tokens._possession(shared, body),
        own.sign("request", body),
    )
    return tokens.armoured(tokens.REQUEST, request)
