"""Services: each server on its own host, each process as a user of its own with a folder of its own, and no rights."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from deployments import NOW_S, Study, members

from coterie.deploy.plan import Settings
from coterie.operate import authority, founding
from coterie.operate.members import PlannedMember
from coterie.operate.service_files import Service, service_files
from coterie.protocol.errors import UserError
from coterie.runs.config import RunConfig

ROLES = ("business_server", "key_centre", "csp")


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Study(tmp_path_factory.mktemp("founded"))
    hosts = ("hub.example.org", "keys.example.org", "csp.example.org")
    named = [PlannedMember(role, role, host) for role, host in zip(ROLES, hosts, strict=True)]
    made.found(
        RunConfig("fedcaprivacy"),
        [*named, PlannedMember("a", "participant", "x.org"), PlannedMember("client/1", "participant")],
    )
    return made.path


def test_systemd_units_by_host(study: Study) -> None:
    out = service_files(study.path, "systemd")
    found = {str(path.relative_to(out)) for path in out.rglob("*.*") if path.is_file()}
    assert found == {
        "hub.example.org/coterie-business_server.service",
        "hub.example.org/coterie-nats.service",
        "hub.example.org/nats.conf",
        "keys.example.org/coterie-key_centre.service",
        "csp.example.org/coterie-csp.service",
        "x.org/coterie-a.service",
        "client-1/coterie-client-1.service",
    }
    text = (out / "csp.example.org" / "coterie-csp.service").read_text()
    for line in (
        "User=coterie-csp",
        "ExecStart=/usr/bin/env coterie deploy party --stay --home /var/lib/coterie/csp/home",
        "ReadWritePaths=/var/lib/coterie/csp",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "CapabilityBoundingSet=",
        "UMask=0077",
        "Restart=on-failure",
    ):
        assert line in text.splitlines()
    hub = (out / "hub.example.org" / "coterie-business_server.service").read_text()
    assert "coterie deploy hub /var/lib/coterie/business_server/deployment" in hub
    assert "After=network-online.target coterie-nats.service" in hub
    assert "cert_file" in (out / "hub.example.org" / "nats.conf").read_text()
    assert "/var/lib/coterie/nats/" in (out / "hub.example.org" / "nats.conf").read_text()
    assert str(study.at) not in "".join(path.read_text() for path in out.rglob("*") if path.is_file())


def test_units_are_what_systemd_reads(study: Study, tmp_path: Path) -> None:
    out = service_files(study.path, "systemd")
    for path in out.rglob("*.service"):
        parser = configparser.ConfigParser(strict=False, interpolation=None)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read_string(path.read_text())
        assert parser.sections() == ["Unit", "Service", "Install"]
        shutil.copy(path, tmp_path)
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd here")
    units = sorted(map(str, tmp_path.glob("*.service")))
    checked = subprocess.run([program, "verify", *units], capture_output=True, text=True, timeout=60)
    assert "coterie" not in checked.stderr
    assert checked.returncode == 0
    rated = subprocess.run(
        [program, "security", "--offline=yes", "--threshold=30", units[0]], capture_output=True, text=True, timeout=60
    )
    assert rated.returncode == 0, rated.stdout[-400:]


def test_compose_files_by_host(study: Study) -> None:
    out = service_files(study.path, "compose")
    text = (out / "hub.example.org" / "compose.yaml").read_text()
    assert re.findall("^  ([a-z_-]+):$", text, re.MULTILINE) == ["nats", "business_server"]
    for part in text.split("\n\n")[1:]:
        assert "read_only: true" in part
        assert "cap_drop: [ALL]" in part
    (words,) = re.findall("command: (.*)", (out / "csp.example.org" / "compose.yaml").read_text())
    assert json.loads(words) == ["coterie", "deploy", "party", "--stay", "--home", "/var/lib/coterie/csp/home"]
    assert {path.name for path in out.iterdir()} == {
        "hub.example.org",
        "keys.example.org",
        "csp.example.org",
        "x.org",
        "client-1",
    }


def test_files_are_written_anew_without_the_revoked(tmp_path: Path) -> None:
    study = Study(tmp_path)
    study.found(named=members(("a", "b")))
    study.enrol("a")
    assert (service_files(study.path, "systemd") / "a").exists()
    authority.revoke(study.path, "a", now_s=NOW_S)
    out = service_files(study.path, "systemd")
    assert not (out / "a").exists()
    assert (out / "b").exists()
    assert [path.name for path in study.path.iterdir() if path.name.startswith(".systemd")] == []


@pytest.mark.parametrize("to", ["elsewhere", "nowhere", "file"])
def test_what_stands_in_their_place_is_left_alone(study: Study, to: str) -> None:
    (study.at / "elsewhere").mkdir()
    (study.at / "elsewhere" / "kept").touch()
    (study.at / "file").touch()
    (study.path / "systemd").symlink_to(study.at / to)
    with pytest.raises(UserError, match=r"systemd is no folder of this deployment: move it away"):
        service_files(study.path, "systemd")
    assert (study.path / "systemd").is_symlink()
    assert (study.at / "elsewhere" / "kept").exists()
    assert not (study.at / "nowhere").exists()
    assert [path.name for path in study.path.iterdir() if path.name.startswith(".systemd")] == []


def test_a_host_that_two_servers_share_is_refused(study: Study) -> None:
    text = study.folder.members.read_text()
    study.folder.members.write_text(text.replace("csp.example.org", "hub.example.org"))
    with pytest.raises(UserError, match=r"are both on hub\.example\.org"):
        service_files(study.path, "systemd")
    study.folder.members.write_text(text.replace('"csp"', '"participant"').replace("key_centre", "csp"))
    with pytest.raises(UserError, match=r"members\.toml lacks key_centre"):
        service_files(study.path, "systemd")


def test_a_server_that_others_do_not_reach(tmp_path: Path) -> None:
    from deployments import FACTS

    for at, says, settings in (
        ("a", "where other hosts do not reach it", Settings("nats://127.0.0.1:4222")),
        ("b", "this is a rehearsal", Settings("nats://127.0.0.1:4222", rehearsal=True)),
    ):
        founding.init(tmp_path / at, RunConfig("fedavg"), members(), settings, FACTS)
        with pytest.raises(UserError, match=says):
            service_files(tmp_path / at, "systemd")


def test_users_of_long_names_differ() -> None:
    one, other = (Service("x" * 39 + end, "h", "", (), ()) for end in "ab")
    assert len(one.user) <= 31
    assert one.user != other.user
    assert Service("csp", "h", "", (), ()).user == "coterie-csp"
