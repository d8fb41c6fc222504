"""A deployment on this machine that is no rehearsal: parties with their own data, the machine's clock, real keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from coterie.data.form import SampleForm
from coterie.deploy.home import agree, read_home, take_plan
from coterie.deploy.kills import Kill
from coterie.deploy.names import safe
from coterie.deploy.plan import Settings
from coterie.operate import runs
from coterie.operate.deployable import scores_of
from coterie.operate.folder import Folder
from coterie.operate.local_deployment import HOMES, LocalDeployment, found_here
from coterie.operate.members import PlannedMember
from coterie.operate.nats_server import free_port
from coterie.operate.rehearsal import lives
from coterie.operate.server import local_server
from coterie.operate.supervision import Supervision, warm
from coterie.protocol.errors import RunError
from coterie.protocol.system import System
from coterie.runs import registry
from coterie.runs.config import RunConfig

FACTS = SampleForm((1, 8, 8), 10)


class Live(LocalDeployment):
    """A deployment whose parties can be run."""

    def run(
        self, tell: Callable[[], None] = lambda: None, kills: Sequence[Kill] = (), failing: Sequence[str] = ()
    ) -> Supervised:
        """All parties to their end. failing: those that may fail."""
        folders = {name: home.path for name, home in self.homes.items()}
        with Supervised(self.hub, folders, lives(self), kills, absence_s=4.0) as processes:
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
    warm()
    scores, data = scores_of(config), dict[str, Path]()
    for i, one in enumerate(members[1:]):
        if one.role == client:
            x, y = (samples or digits)(i)
            np.savez(data.setdefault(one.name, at / f"{safe(one.name)}.npz"), x=x, y=y)
    if system.public:
        x, y = digits(len(members))
        np.savez(data.setdefault(members[0].name, at / "public.npz"), x=x, y=y)
    limits = Settings(f"nats://127.0.0.1:{free_port()}", scores=scores, grace_s=2.0, **settings)
    told = scores if report is None else report
    made = found_here(at / "d", config, members, limits, facts, data, out=at, report=told, absent=absent)
    with made.serving():
        yield Live(made.folder, made.homes, made.server)


def digits(client: int) -> tuple[np.ndarray, np.ndarray]:
    """A part of the handwritten digits, 120 samples each."""
    found = load_digits()
    rows = np.random.default_rng(client).choice(len(found.target), 120, replace=False)
    return (found.images[rows, None] / 16).astype(np.float32), found.target[rows]


def another_run(at: Path, **options: Any) -> Live:
    """Another run of a rehearsal, to its end. All agree, since the plan goes to their homes before they start."""
    folder = Folder(at)
    plan = runs.start(at, **options)
    homes = {plan.roster.hub: read_home(folder.hub)}
    for place in sorted((at / HOMES).iterdir()):
        home = read_home(place)
        if home.name in dict(plan.members):
            homes[home.name] = home
            agree(home, take_plan(home, folder.plan.read_bytes()))
    made = Live(folder, homes, local_server(folder))
    with made.serving():
        made.run()
    return made
