"""A deployment on this machine that is no rehearsal: parties with their own data, the machine's clock, real keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from coterie.deploy.engine import Tls
from coterie.deploy.home import Home, hub_home
from coterie.deploy.kills import Kill
from coterie.deploy.names import safe
from coterie.deploy.plan import SampleForm, Settings
from coterie.deploy.process import as_hub, as_party
from coterie.operate import authority, joining
from coterie.operate.deployable import scores_of
from coterie.operate.folder import Folder
from coterie.operate.founding import init
from coterie.operate.members import PlannedMember
from coterie.operate.nats_server import Listen, NatsServer, free_port
from coterie.operate.server import access_of
from coterie.operate.supervision import Life, Supervision, warm
from coterie.protocol.errors import RunError
from coterie.protocol.system import System
from coterie.runs import registry
from coterie.runs.config import RunConfig

FACTS = SampleForm((1, 8, 8), 10)


@dataclass(frozen=True)
class Live:
    """homes: by party.  hub: its name."""

    folder: Folder
    hub: str
    homes: dict[str, Home]
    server: NatsServer

    def run(
        self, tell: Callable[[], None] = lambda: None, kills: Sequence[Kill] = (), failing: Sequence[str] = ()
    ) -> Supervised:
        """All parties to their end. failing: those that may fail."""
        lives: dict[str, Life] = {name: _hub if name == self.hub else as_party for name in self.homes}
        folders = {name: home.path for name, home in self.homes.items()}
        with Supervised(self.hub, folders, lives, kills, absence_s=4.0) as processes:
            processes.failing = dict.fromkeys(failing, "")
            processes.start()
            processes.watch(tell)
        return processes


class Supervised(Supervision):
    """failing: parties that may fail, and what they have said then."""

    failing: dict[str, str]

    def _ended(self, name: str) -> None:
        try:
            super()._ended(name)
        except RunError as error:
            if name not in self.failing:
                raise
            self.failing[name] = str(error)


def _hub(home: Path, kill: Kill | None) -> None:
    as_hub(home.parent, kill)


@contextmanager
def live(
    at: Path,
    config: RunConfig,
    clients: Sequence[str],
    *,
    samples: Callable[[int], tuple[np.ndarray, np.ndarray]] | None = None,
    facts: SampleForm = FACTS,
    report: Sequence[str] | None = None,
    absent: Sequence[str] = (),
    **settings: Any,
) -> Iterator[Live]:
    """A deployment that nobody has run yet, with its server. absent: clients that never join."""
    system: System = registry.get(config.system)
    *servers, client = system.factories(system.config(**config.settings), config.mode)
    members = [PlannedMember(role, role, f"{safe(role)}.example.org") for role in servers]
    members += [PlannedMember(name, client) for name in clients]
    url = f"nats://127.0.0.1:{free_port()}"
    folder = Folder(at / "d")
    warm()
    report = scores_of(config) if report is None else report
    init(folder.path, config, members, Settings(url, scores=scores_of(config), grace_s=2.0, **settings), facts)
    homes = {}
    for i, one in enumerate(members[1:]):
        data = None
        if one.role == client:
            x, y = (samples or digits)(i)
            data = at / f"{safe(one.name)}.npz"
            np.savez(data, x=x, y=y)
        if one.name in absent:
            continue
        told = report if data is not None else ()
        home, request = joining.join(
            authority.invite(folder.path, one.name), at / "homes" / safe(one.name), data, report=told, out=at
        )
        joining.accept(home, authority.approve(folder.path, request.read_text()).certificate.read_text())
        homes[one.name] = home
    hub = members[0].name
    from coterie.deploy.nats_stream import provision

    homes[hub] = hub_home(folder.path)
    nats = folder.nats
    port = int(url.rpartition(":")[2])
    listen = Listen(nats / "store", nats / "certificate.pem", nats / "key.pem", nats / "authority.pem", port)
    server = NatsServer(nats, access_of(folder), listen)
    server.start()
    try:
        provision([url], Tls(folder.tls / "operator.pem", folder.authority / "tls.pem", folder.ca), server.access)
        yield Live(folder, hub, homes, server)
    finally:
        server.stop()


def digits(client: int) -> tuple[np.ndarray, np.ndarray]:
    """A part of the handwritten digits, 120 samples each."""
    found = load_digits()
    rows = np.random.default_rng(client).choice(len(found.target), 120, replace=False)
    return (found.images[rows, None] / 16).astype(np.float32), found.target[rows]
