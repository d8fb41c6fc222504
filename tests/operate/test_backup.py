"""The hub's disk is lost, and its backup put back: the run goes on after the rounds that the parties have done."""

from __future__ import annotations

import io
import os
import shutil
import signal
import tarfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deployments import NOW_S, Study, everything
from every_system import one_mode
from federation import planted
from live_deployment import Live, live
from nodes import Doom, Node, Nodes, steady
from typer.testing import CliRunner

from coterie.cli.app import app
from coterie.deploy.built_party import stored_party
from coterie.deploy.home import STATE, hub_home, plan_of, read_home, take_plan
from coterie.deploy.packet_queue import NodeLimits
from coterie.deploy.plan_file import adopt
from coterie.operate import joining
from coterie.operate.authority import approve, invite, renew, revoke
from coterie.operate.backup import back_up, restore
from coterie.operate.folder import Folder, authority_of, current_plan
from coterie.operate.runs import abort
from coterie.operate.server import access_of
from coterie.operate.watching import read_status
from coterie.protocol.errors import UserError
from coterie.record.files import locked
from coterie.runs.config import RunConfig
from coterie.runs.finished import load_result
from tests.deploy.test_runs import QUICK, ends, leads, processes, stays, until
from tests.transport.test_processes import CASES

TARGETS = planted([0, 0, 1, 1], 16)
ROUNDS, BACK, LOST = 9, 2, 6
OF_ALL = {"fedavg", "fedcaprivacy", "ofl", "coterie"}


# -- the file ---------------------------------------------------------------------------------------------------------


def used(study: Study) -> None:
    """What a run leaves, and what does not belong in a backup."""
    study.enrol("hospital-a", "study/homes/a")
    study.invite("hospital-b")
    hub_home(study.path)  # takes the newest plan
    (study.folder.hub / STATE).write_bytes(b"state")
    (study.folder.hub / "log.jsonl.1").write_bytes(b"log")
    study.folder.run.mkdir()
    (study.folder.run / "metrics.jsonl").write_bytes(b"{}\n")
    (study.folder.nats / "store").mkdir()
    (study.folder.nats / "store" / "packets").write_bytes(b"packets")


@pytest.mark.parametrize("authority", [False, True])
def test_all_that_counts_comes_back(study: Study, authority: bool) -> None:
    used(study)
    before, file = everything(study.path), study.at / "backup.tgz"
    assert back_up(study.path, file, authority=authority) == file.stat().st_size
    assert file.stat().st_mode & 0o777 == 0o600
    assert everything(study.path) == before
    new = study.at / "new"
    restore(file, new)
    found = everything(new)
    lost = {name for name in before if name not in found}
    aside = {name for name in before if name.startswith(("homes/", "nats/store", ".lock", "hub/log"))}
    kept = {"authority/plan.bin"} if authority else {name for name in before if name.startswith("authority/")}
    assert lost == aside | kept
    assert found.pop("restored") == b""
    (new / "restored").unlink()
    conf = found.pop("nats/nats.conf").decode()
    assert f"{new}/nats/certificate.pem" in conf
    assert found == {name: before[name] for name in found}
    for path in (new, *new.rglob("*")):
        mode = path.stat().st_mode & 0o777
        assert mode == (0o700 if path.is_dir() else (study.path / path.relative_to(new)).stat().st_mode & 0o777), path
    assert hub_home(new).identity == hub_home(study.path).identity
    if authority:
        assert authority_of(Folder(new)).public == authority_of(study.folder).public


def packed(*members: tuple[str, bytes], link: bool = False, **fields: str) -> bytes:
    """fields: of each member's extended header."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = len(content), fields
            tar.addfile(info, io.BytesIO(content))
        if link:
            info = tarfile.TarInfo("hub")
            info.type, info.linkname = tarfile.SYMTYPE, "/tmp"
            tar.addfile(info)
    return data.getvalue()


def test_a_damaged_or_hostile_file_leaves_nothing(study: Study, tmp_path: Path) -> None:
    used(study)
    file, new = tmp_path / "backup.tgz", tmp_path / "into" / "new"
    back_up(study.path, file)
    data = file.read_bytes()
    for wrong in (
        data[: len(data) // 2],
        data[:-3],
        data[:-8] + bytes([data[-8] ^ 1]) + data[-7:],  # its checksum; some bits between blocks mean nothing
        b"no archive",
        b"",
        packed(("../out", b"x")),
        packed(("/tmp/out", b"x")),
        packed(("a/" * 5000 + "b", b"x")),
        packed(("a", b"x"), path="a\0b"),
        packed(("a", b"x"), ("a", b"x")),
        packed(("a", b""), **{"GNU.sparse.map": "0,0", "GNU.sparse.size": str(1 << 40)}),  # of zeros
        packed(link=True),
        packed(("config.toml", b"")),
    ):
        file.write_bytes(wrong)
        with pytest.raises(UserError, match=r"is damaged, or no backup|cannot read|holds no deployment"):
            restore(file, new)
        assert list((tmp_path / "into").iterdir()) == []
    file.write_bytes(data)
    with pytest.raises(UserError, match="is there already"):
        restore(file, study.path)


def test_the_commands(study: Study) -> None:
    file, new = study.at / "backup.tgz", study.at / "new"
    said = CliRunner().invoke(app, ["deploy", "backup", str(study.path), "--out", str(file), "--authority"])
    assert (said.exit_code, "with the operator's keys: a secret" in said.output) == (0, True)
    said = CliRunner().invoke(app, ["deploy", "restore", str(file), str(new)])
    assert (said.exit_code, f"coterie deploy hub {new}" in said.output.replace("\n", "")) == (0, True)
    assert not (new / "homes").exists()


# -- the run ----------------------------------------------------------------------------------------------------------


class Restored(Doom):
    """The hub dies when all are in a round after LOST, and goes on from its state after round BACK."""

    def __init__(self, apart: Nodes) -> None:
        super().__init__(when=self.is_time)
        self.apart, self.backup, self.nodes, self.round = apart, b"", dict[str, Node](), 0

    def is_time(self, hub: Node, what: str) -> bool:
        """Every party has begun the hub's attempt."""
        eras = {one.kept.era for one in (hub, *self.nodes.values())}
        self.round = (hub.kept.era or (0, 0))[0]
        return what == "before it is done" and self.round > LOST and len(eras) == 1

    def point(self, what: str) -> None:
        store = self.apart.stores[self.apart.hub]
        node: Any = self.node
        if not self.backup and node is not None and node.kept.done == BACK and what == "after a commit":
            self.backup = store.data or b""
        try:
            super().point(what)
        except BaseException:
            store.data = self.backup
            raise


@pytest.mark.parametrize(
    ("name", "mode", "settings"),
    [pytest.param(*one, marks=() if one[0] in OF_ALL and one_mode(one, CASES) else pytest.mark.long) for one in CASES],
    ids=["-".join(map(str, case[:2])) for case in CASES],
)
def test_a_hub_that_is_put_back_goes_on_in_the_parties_round(name: str, mode: str, settings: dict[str, Any]) -> None:
    """All rounds before theirs cost an attempt or two together, and all parties take part in the rest."""
    apart = steady(TARGETS, name, NodeLimits(patience_s=20.0, grace_s=2.0, poll_s=0.02), mode=mode, **settings)
    doom = apart.dooms[apart.hub] = Restored(apart)
    eras = dict[str, list[tuple[int, int]]]()

    def node(of: str, **options: Any) -> Node:
        made = make(of, **options)
        made.observer.began = eras.setdefault(of, []).append  # type: ignore[method-assign]
        if of != apart.hub:
            doom.nodes[of] = made
        return made

    make, apart.node = apart.node, node  # type: ignore[method-assign]
    apart.run(ROUNDS)
    assert doom.died == 1
    rounds = apart.rounds[max(i for i, one in enumerate(apart.rounds) if one.round == BACK + 1) :]
    lost = [one for one in rounds if one.skipped]
    assert 1 <= len(lost) <= 2, "two if reports of the round before were under way"
    known = doom.round - 1, doom.round  # the first, if no report of the last round had come
    assert lost[-1].skipped in [f"the hub's disk was put back: parties are in round {r}" for r in known]
    after = [
        one for one in rounds[rounds.index(lost[-1]) + 1 :] if one.round <= ROUNDS
    ]  # PAFed ends empty rounds at once
    assert after[0].round in known
    assert [one.round for one in after] == list(range(after[0].round, ROUNDS + 1))
    assert not any(one.gone for one in after if one.round >= doom.round)  # ahead in the round before, some sat it out
    for of, those in eras.items():
        if of != apart.hub:
            assert those == sorted(set(those)), "no attempt twice, and none that is over"
    assert np.isfinite(apart.models()).all()


def test_a_few_that_lie_do_not_make_the_hub_leave_out_rounds() -> None:
    from tests.deploy.test_excluded import ONE, OTHER, Heard

    heard = Heard(steady(planted([0, 0, 1], 16)))
    heard.begin((1, 0))
    heard.report(ONE, (900, 0))
    assert not heard.broken()
    heard.report(OTHER, (3, 0))
    assert heard.hub._reached() == (3, 0)  # two of three: what the lower of them says
    heard.hub.close()


def test_a_deployment_whose_hub_lost_its_disk_goes_on(tmp_path: Path) -> None:
    """Over NATS: the backup is made while the hub runs, and the run folder tells what was lost."""
    config = RunConfig("fedavg", rounds=5000, settings=QUICK)
    file, new = tmp_path / "backup.tgz", tmp_path / "new"
    with live(tmp_path, config, ("hospital-a", "hospital-b")) as deployed:
        folder, done_at = deployed.folder, dict[str, int]()

        def tell() -> None:
            done = read_status(folder.run).done if (folder.run / "status.json").exists() else 0
            if done >= 2 and not file.exists():
                done_at["backup"] = done
                back_up(folder.path, file)
            elif file.exists() and not new.exists() and done >= done_at["backup"] + 8:
                done_at["kill"] = done
                pid = read_status(folder.run).pid
                os.kill(pid, signal.SIGKILL)
                with suppress(FileNotFoundError):  # once its parent knows
                    while Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                        time.sleep(0.01)
                restore(file, new)
                for name in ("hub", "run"):
                    shutil.rmtree(folder.path / name)
                    (new / name).rename(folder.path / name)
            elif "end" not in done_at and "kill" in done_at and done >= done_at["kill"] + 5:
                done_at["end"] = done
                abort(folder.path)

        deployed.run(tell)
    lines = load_result(folder.run).rounds
    lost = [line for line in lines if "skipped" in line["notes"]]
    first = lost[0]["round"]
    assert done_at["backup"] < first <= done_at["kill"]
    assert lost[-1]["notes"]["skipped"].startswith("the hub's disk was put back: parties are in round ")
    after = lines[lines.index(lost[-1]) + 1 :]
    assert after[0]["round"] >= done_at["kill"]
    assert [line["round"] for line in after] == list(range(after[0]["round"], after[-1]["round"] + 1))
    assert after[-1]["round"] >= done_at["end"]
    assert {line["notes"]["participants"] for line in after} == {2}
    assert [line["round"] for line in lines[: first - 1]] == list(range(1, first))


# -- a backup that is older than a revocation -------------------------------------------------------------------------


def put_back(file: Path, deployed: Live) -> None:
    """The operator's folder of a backup, in its former place, where the server goes on to run."""
    folder, new = deployed.folder, deployed.folder.path.with_name("new")
    restore(file, new)
    for name in ("hub", "run", "authority", "members"):
        shutil.rmtree(folder.path / name)
    for name in ("hub", "run", "authority", "members", "plan.bin", "restored"):
        (new / name).rename(folder.path / name)


def test_a_restored_hub_asks_nobody_who_was_revoked_since_and_no_version_comes_twice(tmp_path: Path) -> None:
    """The backup has the operator's keys, too, so nothing beside the parties knows the newest plan."""
    config, names = RunConfig("fedavg", rounds=400, settings=QUICK), ("hospital-a", "hospital-b", "hospital-c")
    file = tmp_path / "backup.tgz"
    with live(tmp_path, config, names, quorum=2) as deployed, processes() as made:
        folder, homes = deployed.folder, {name: deployed.homes[name] for name in names}
        for home in homes.values():
            made.start(stays, home.path)
        hub = made.start(leads, folder.path)
        until(lambda: (folder.run / "status.json").exists() and read_status(folder.run).done >= 2, "two rounds")
        back_up(folder.path, file, authority=True)
        old = current_plan(folder)
        revoked = revoke(folder.path, "hospital-c")
        until(lambda: plan_of(homes["hospital-a"]).version == revoked.version, "the plan without hospital-c")
        until(lambda: plan_of(homes["hospital-b"]).version == revoked.version, "the plan without hospital-c")
        hub.kill()
        hub.join()
        left = stored_party(homes["hospital-c"])[1].era
        put_back(file, deployed)
        assert current_plan(folder) == old
        with pytest.raises(UserError, match=r"was restored from a backup, .* coterie deploy hub .* asks all"):
            revoke(folder.path, "hospital-b")
        hub = made.start(leads, folder.path)
        until(lambda: not folder.restored.exists(), "the newest plan")
        assert current_plan(folder) == revoked
        before = read_status(folder.run).done
        until(lambda: read_status(folder.run).done > before + 3, "more rounds")
        assert stored_party(homes["hospital-c"])[1].era == left, "it was asked again"
        assert abort(folder.path).version > revoked.version + 1, "a party that is away may hold a newer one"
        ends(hub, "the run")


@pytest.mark.parametrize("keys", ["kept", "restored"])
def test_the_operators_own_keys_know_the_newest_version(study: Study, keys: str) -> None:
    """Unless they are of the same backup."""
    study.enrol("hospital-a", "study/homes/a")
    file, new = study.at / "backup.tgz", study.at / "new"
    back_up(study.path, file, authority=keys == "restored")
    newest = renew(study.path, everyone=True) and current_plan(study.folder)
    restore(file, new)
    folder = Folder(new)
    assert current_plan(folder).version == newest.version - 1
    if keys == "restored":
        with pytest.raises(UserError, match="was restored from a backup"):
            renew(new, everyone=True)
        assert current_plan(folder).version == newest.version - 1
        return
    shutil.copytree(study.folder.authority, folder.authority)
    renew(new, everyone=True)
    assert current_plan(folder).version == newest.version + 1
    assert not folder.restored.exists()


def test_a_backup_from_before_enough_had_joined_is_put_back_and_no_version_comes_twice(study: Study) -> None:
    """The hub cannot begin, so it asks nobody: the operator approves the members once more."""
    homes, file, new = [study.enrol("hospital-a", "a")], study.at / "backup.tgz", study.at / "new"
    others = {name: study.join(study.invite(name), name[-1]) for name in ("hospital-b", "client/3")}
    back_up(study.path, file, authority=True)
    for home, request in others.values():
        joining.accept(home, study.approve(request).certificate.read_text(), NOW_S)
    lost = current_plan(study.folder)
    restore(file, new)
    folder = Folder(new)
    said = CliRunner().invoke(app, ["deploy", "hub", str(new)])
    assert (said.exit_code, "not yet hospital-b" in said.output.replace("\n", " ")) == (2, True)
    with pytest.raises(UserError, match=r"Too few have joined for the hub to ask them: remove .*restored") as error:
        invite(new, "hospital-b")
    assert "Start the hub" not in str(error.value)
    folder.restored.unlink()
    for home, request in others.values():
        joining.accept(home, approve(new, request, now_s=NOW_S).certificate.read_text(), NOW_S)
        homes.append(home)
    newest = current_plan(folder)
    assert newest.version > lost.version
    assert newest.lacking == ()
    for home in homes:
        assert take_plan(home, folder.plan.read_bytes()) == newest
    assert revoke(new, "hospital-a").version == newest.version + 1


def test_a_backup_does_not_end_whom_a_later_run_has(study: Study) -> None:
    """The broker is to refuse for good those that were revoked, and nobody whom the hub may soon know."""
    for name in ("hospital-a", "hospital-b", "client/3"):
        study.enrol(name, name[-1])
    hub_home(study.path)
    (study.folder.hub / STATE).write_bytes(b"begun")
    with study.folder.members.open("a") as file:
        file.write('[[member]]\nname = "hospital-d"\nrole = "client"\n')
    approval = study.approve(study.join(study.invite("hospital-d"), "d")[1])
    assert not approval.now
    back_up(study.path, study.at / "backup.tgz", authority=True)
    restore(study.at / "backup.tgz", study.at / "new")
    found = access_of(Folder(study.at / "new"))
    assert "hospital-d" not in found.parties
    assert found.refused == []
    revoked = found.parties["hospital-a"]
    revoke(study.path, "hospital-a")
    assert access_of(study.folder).refused == [revoked]


def test_a_plan_that_a_party_shows_replaces_none_that_is_signed_meanwhile(study: Study) -> None:
    study.enrol("hospital-a", "a")
    home, old = read_home(study.folder.hub), study.folder.plan.read_bytes()
    shown = renew(study.path, everyone=True) and study.folder.plan.read_bytes()
    newest = revoke(study.path, "hospital-a")
    data = study.folder.plan.read_bytes()
    study.folder.plan.write_bytes(old)
    with locked(study.path):  # the operator's command
        hub = threading.Thread(target=adopt, args=(study.path, home, shown))
        hub.start()
        hub.join(0.3)
        assert hub.is_alive(), "it takes no lock"
        study.folder.plan.write_bytes(data)
    hub.join(10)
    assert current_plan(study.folder) == newest
    study.folder.plan.write_bytes(old)
    adopt(study.path, home, data)
    assert current_plan(study.folder) == newest
