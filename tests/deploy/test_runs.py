"""Further runs of a deployment: real processes on this machine, whose owners agree, and members that come and go."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_deployment import Live, digits, live

from benchmarks.engines import reload
from coterie.cli.deploy_runs import changes
from coterie.deploy.built_party import build_party, stored_party
from coterie.deploy.home import agree, has_agreed, plan_of, read_home, take_plan
from coterie.deploy.hub_process import as_hub
from coterie.deploy.party_process import as_party
from coterie.operate import runs
from coterie.operate.authority import approve, invite, revoke
from coterie.operate.doctor import doctor
from coterie.operate.joining import accept, join
from coterie.operate.own_model import own_model
from coterie.operate.server import access_of
from coterie.operate.watching import all_statuses, read_status
from coterie.protocol.errors import UserError
from coterie.runs.config import RunConfig

pytest.importorskip("nats", reason="the engine is an extra, deploy")

QUICK = {"lr": 0.3, "batch_size": 10, "max_epochs": 1}
NAMES = ("hospital-a", "hospital-b", "hospital-c")
WAIT_S = 120.0


def stays(home: Path) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    as_party(home, stay=True)


def leads(folder: Path) -> None:
    as_hub(folder)


class Processes:
    """Processes of parties, and of hubs."""

    def __init__(self) -> None:
        self.running: list[Any] = []

    def start(self, life: Callable[[Path], None], place: Path) -> Any:
        one = multiprocessing.get_context("forkserver").Process(target=life, args=(place,), daemon=True)
        one.start()
        self.running.append(one)
        return one

    def stop(self) -> None:
        for one in self.running:
            one.terminate()
        for one in self.running:
            one.join(20)
            if one.is_alive():
                one.kill()


@contextmanager
def processes() -> Iterator[Processes]:
    made = Processes()
    try:
        yield made
    finally:
        made.stop()


def until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.1)


def ends(hub: Any, what: str) -> None:
    hub.join(WAIT_S)
    assert hub.exitcode == 0, what


def released(home: Path) -> int:
    """How many releases a party's account has."""
    return sum(len(one.rounds) for one in stored_party(read_home(home))[1].released)


def admit(deployed: Live) -> None:
    """What `coterie deploy start` does to a server that runs."""
    from coterie.deploy.nats_stream import provision

    access = access_of(deployed.folder)
    for _ in range(2):  # as ``server.apply`` does
        reload(deployed.server, access)
        time.sleep(0.2)  # a server reads its configuration in its own time
    provision([deployed.server.url], deployed.folder.operator_tls, access)


def sixth(deployed: Live, at: Path, name: str, role: str = "client") -> Path:
    """A client that is invited in the middle, and joins with the certificate that the next run brings."""
    folder = deployed.folder
    with folder.members.open("a") as file:
        file.write(f'\n[[member]]\nname = "{name}"\nrole = "{role}"\n')
    x, y = digits(9)
    np.savez(at / "late.npz", x=x, y=y)
    home, request = join(invite(folder.path, name), at / "d" / "homes" / name, at / "late.npz", out=at)
    assert not approve(folder.path, request.read_text()).now
    assert not folder.certificate_file(name).exists()
    return home.path


def test_a_second_run_of_those_who_agree(tmp_path: Path) -> None:
    """One is invited in the first run and takes part in the second, one is revoked, and one never agrees. The hub is
    killed between the two runs, and in the second.
    """
    config = RunConfig("fedavg", rounds=2, settings=QUICK)
    with live(tmp_path, config, NAMES, quorum=2) as deployed, processes() as made:
        folder, homes = deployed.folder, {name: deployed.homes[name].path for name in NAMES}
        for place in homes.values():
            made.start(stays, place)
        ends(made.start(leads, folder.path), "the first run")
        before = released(homes["hospital-a"])
        homes["hospital-f"] = sixth(deployed, tmp_path, "hospital-f")
        revoke(folder.path, "hospital-c")
        plan = runs.start(folder.path, rounds=3, session=bytes(range(16)))
        assert [name for name, _ in plan.members] == ["server", "hospital-a", "hospital-b", "hospital-f"]
        assert (plan.run, plan.settings.quorum) == (2, 2)
        admit(deployed)
        joined = read_home(homes["hospital-f"])
        accept(joined, folder.certificate_file("hospital-f").read_text())
        assert has_agreed(joined, plan)  # by joining
        made.start(stays, joined.path)

        hub = made.start(leads, folder.path)
        until(lambda: plan_of(read_home(homes["hospital-a"])).run == 2, "the plan of the second run")
        with pytest.raises(UserError, match="another hash"):
            runs.agree_to(read_home(homes["hospital-a"]), "0000 0000" * 5)
        with pytest.raises(UserError, match="too short: give 32 digits"):
            runs.agree_to(read_home(homes["hospital-a"]), "4c31 d8fa")
        assert list(changes(read_home(homes["hospital-a"]))) == [
            "rounds: 2, now 3",
            "without hospital-c",
            "with hospital-f",
        ]
        hub.kill()
        hub.join()
        assert read_status(folder.run).run == 2
        assert read_status(folder.run).phase == "waiting"
        assert (folder.path / "runs" / "1" / "result.json").exists()
        hub = made.start(leads, folder.path)
        time.sleep(2.0)
        assert read_status(folder.run).phase == "waiting"  # for the quorum
        runs.agree_to(read_home(homes["hospital-a"]))
        ends(hub, "the second run")

        status = read_status(folder.run)
        assert (status.phase, status.done, status.run) == ("ended", 3, 2)
        parties = {one.name: one for one in status.parties}
        assert parties["hospital-b"].last_seen is None  # it has never agreed
        assert parties["hospital-b"].missed == {"not agreed": 3}
        assert parties["hospital-f"].round == parties["hospital-a"].round == 4  # the finish
        for name in ("hospital-a", "hospital-f"):
            until(lambda name=name: own_model(homes[name])[1] == 3, f"the model of {name}")
        assert own_model(homes["hospital-b"])[1] == 2  # of the first run
        assert released(homes["hospital-a"]) > before > 0  # of one account, since the data are the same
        with pytest.raises(UserError, match=r"hospital-b has not agreed to run 2 .*deploy agree --home"):
            build_party(read_home(homes["hospital-b"]))
        (told,) = [one.text for one in doctor([homes["hospital-b"]]) if "agreed" in one.text]
        assert told.startswith("the owner of hospital-b has not agreed to run 2 (plan: version 6, ")
        assert [one.run for one in all_statuses(folder)] == [1, 2]


def test_a_hub_that_waits_goes_on_without_one_that_is_revoked(tmp_path: Path) -> None:
    """As it would after a restart: the quorum is of all three, and one owner does not agree."""
    with live(tmp_path, RunConfig("fedavg", rounds=1, settings=QUICK), NAMES) as deployed, processes() as made:
        folder, homes = deployed.folder, [deployed.homes[name] for name in NAMES]
        runs.start(folder.path)
        for home in homes[:2]:
            agree(home, take_plan(home, folder.plan.read_bytes()))
            made.start(stays, home.path)
        hub = made.start(leads, folder.path)
        until(lambda: (folder.run / "status.json").exists(), "the hub")
        until(lambda: [one.connected for one in read_status(folder.run).parties] == [True] * 3 + [False], "two parties")
        assert read_status(folder.run).phase == "waiting"
        revoke(folder.path, "hospital-c")
        ends(hub, "the run without the third")
        status = read_status(folder.run)
        assert (status.phase, status.done, status.run) == ("ended", 1, 2)
        assert [one.name for one in status.parties if one.revoked] == ["hospital-c"]
        assert {one.name: one.missed for one in status.parties if one.missed} == {"hospital-c": {"revoked": 1}}


JOINTLY: list[tuple[str, str, dict[str, Any]]] = [
    ("fedavg", "paper", {}),
    ("coterie", "paper", {"clusters": 2, "min_cluster": 2, "fewest": 1}),
    ("fedcaprivacy", "hardened", {"clusters": 2, "min_cluster": 2}),
    ("fedepc", "hardened", {"min_cluster": 2}),
    ("mingledpie", "hardened", {"clusters": 2, "hardening": "uploads", "keys": "threshold"}),
    ("ofl", "hardened", {"clusters": 2, "recluster_every": 2}),
    ("pafed", "paper", {"participation": 1.0, "keys": "threshold"}),
]
"""Methods with groups or joint keys, and settings for five clients."""


@pytest.mark.long
@pytest.mark.parametrize(("system", "mode", "settings"), [pytest.param(*one, id=one[0]) for one in JOINTLY])
def test_a_set_up_anew_has_the_members_of_its_run(
    tmp_path: Path, system: str, mode: str, settings: dict[str, Any]
) -> None:
    """Groups are founded and joint keys are made of those of the second run: one came, and one is revoked."""
    config = RunConfig(system, rounds=1, mode=mode, settings={**settings, "max_epochs": 1})
    with live(tmp_path, config, [f"client/{i}" for i in range(5)]) as deployed:
        deployed.run()
        folder, role = deployed.folder, deployed.homes["client/0"].role
        new = sixth(deployed, tmp_path, "client/5", role)
        revoke(folder.path, "client/4")
        runs.start(folder.path)
        accept(read_home(new), folder.certificate_file("client/5").read_text())
        homes = {name: home for name, home in deployed.homes.items() if name != "client/4"}
        homes["client/5"] = read_home(new)
        for home in homes.values():
            agree(home, take_plan(home, folder.plan.read_bytes()))
        second = Live(folder, homes, deployed.server)
        admit(second)
        second.run()
        status = read_status(folder.run)
        assert (status.run, status.done, status.skipped) == (2, 1, 0)
        assert {one.name for one in status.parties if one.missed} == set()
        for name, home in homes.items():
            if home.role == role:
                found = stored_party(home)[0]
                assert found.party.clients == ("client/0", "client/1", "client/2", "client/3", "client/5")
                assert (found.own_model() is not None, name) == (True, name)
