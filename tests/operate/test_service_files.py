"""Services: each server on its own host, each process as a user of its own with a folder of its own, and no rights."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deployments import NOW_S, Study, members

from coterie.cli.guard import MISTAKE
from coterie.deploy.plan import Settings
from coterie.deploy.status import PartyStatus
from coterie.operate import authority, founding, prometheus
from coterie.operate.members import PlannedMember
from coterie.operate.service_files import Service, service_files
from coterie.protocol.errors import UserError
from coterie.runs.config import RunConfig
from tests.operate.test_logs import STATUS

change = msgspec.structs.replace
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
        "hub.example.org/rules.yml",
        "hub.example.org/grafana.json",
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
        f"RestartPreventExitStatus={MISTAKE}",
    ):
        assert line in text.splitlines()
    broker = (out / "hub.example.org" / "coterie-nats.service").read_text()
    assert "AmbientCapabilities=CAP_NET_BIND_SERVICE" in broker.splitlines(), "it may listen at port 443"
    hub = (out / "hub.example.org" / "coterie-business_server.service").read_text()
    assert "coterie deploy hub /var/lib/coterie/business_server/deployment --stay --metrics 9464\n" in hub
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


# -- what is not systemd's --------------------------------------------------------------------------------------------


def parsed(path: Path) -> list[Any]:
    """The documents of a YAML file, by a Python that has PyYAML: this one, or the machine's own."""
    code = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(sys.stdin))))"
    for program in (sys.executable, "/usr/bin/python3"):
        with suppress(OSError):
            found = subprocess.run([program, "-c", code], input=path.read_text(), capture_output=True, text=True)
            if found.returncode == 0:
                return list(json.loads(found.stdout))
            assert "No module named" in found.stderr, found.stderr
    pytest.skip("no PyYAML here")


@pytest.mark.parametrize(("code", "left"), [(0, 0), (2, 0), (1, 1), (130, 130)])
def test_compose_starts_nothing_again_that_does_not_mend_itself(study: Study, code: int, left: int) -> None:
    (compose,) = parsed(service_files(study.path, "compose") / "csp.example.org" / "compose.yaml")
    own = compose["services"]["csp"]
    assert own["restart"] == "on-failure"
    words = [word.replace("$$", "$") for word in own["entrypoint"]]
    assert subprocess.run([*words, "sh", "-c", f"exit {code}"], timeout=100).returncode == left


@pytest.mark.parametrize(("code", "left"), [(0, 0), (2, 0), (5, 5)])
def test_compose_stops_a_party_as_it_would_be_stopped_alone(study: Study, tmp_path: Path, code: int, left: int) -> None:
    """SIGTERM reaches it, and its own exit code counts."""
    (compose,) = parsed(service_files(study.path, "compose") / "csp.example.org" / "compose.yaml")
    words = [word.replace("$$", "$") for word in compose["services"]["csp"]["entrypoint"]]
    waits = "i=0; while [ $i -lt 100 ]; do sleep 0.1; i=$((i + 1)); done"
    party = f"trap 'echo stopped; exit {code}' TERM; echo began; {waits}"
    with subprocess.Popen([*words, "sh", "-c", party], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "began\n"
        process.terminate()
        assert process.stdout.readline() == "stopped\n"
        assert process.wait(20) == left


def test_kubernetes_examples(study: Study) -> None:
    out = service_files(study.path, "kubernetes")
    claim, job = parsed(out / "hub.example.org" / "business_server.yaml")
    assert claim["metadata"]["name"] == job["metadata"]["name"] == "coterie-business-server"
    pod = job["spec"]["template"]["spec"]
    assert (job["kind"], pod["restartPolicy"]) == ("Job", "Never")
    (rule,) = job["spec"]["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailJob", [MISTAKE])
    (container,) = pod["containers"]
    assert container["command"][-3:] == ["--stay", "--metrics", "9464"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {one["mountPath"] for one in container["volumeMounts"]} == {"/var/lib/coterie/business_server", "/tmp"}
    _, server = parsed(out / "hub.example.org" / "nats.yaml")
    assert server["spec"]["template"]["spec"]["containers"][0]["command"][0] == "nats-server"
    for path in out.rglob("*.yaml"):
        assert parsed(path)[0]["kind"] == "PersistentVolumeClaim"


def served() -> dict[str, set[str]]:
    """The metrics that a hub serves, and their labels."""
    party = PartyStatus(name="a", role="client", last_seen=1.0, refused={"Train": 1}, missed={"late": 1})
    status = change(STATUS, parties=(party,), scores={"local_accuracy": 0.5}, certificates={"a": 1.0})
    found = re.findall(r"^(coterie_\w+)(?:\{(.*)\})? ", prometheus.text(status), re.MULTILINE)
    return {name: set(re.findall(r'(\w+)="', labels)) for name, labels in found}


def test_rules_and_dashboard_name_what_is_served(study: Study) -> None:
    """Metrics, and the labels that they show."""
    out, there = service_files(study.path, "systemd") / "hub.example.org", served()
    (rules,) = parsed(out / "rules.yml")
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    panels = json.loads((out / "grafana.json").read_text())["panels"]
    shown = [(rule["expr"], json.dumps(rule["annotations"])) for rule in alerts]
    shown += [(each["expr"], each["legendFormat"]) for panel in panels for each in panel["targets"]]
    assert len(alerts) == 7
    assert len({panel["id"] for panel in panels}) == len(panels) == 8
    for expression, words in shown:
        names = re.findall(r"coterie_\w+", expression)
        assert names
        assert set(names) <= there.keys(), expression
        labels = set(re.findall(r"\{\{ ?(?:\$labels\.)?([a-z]\w*) ?\}\}", words))
        assert labels <= {label for name in names for label in there[name]} | {"why", "kind"}, expression
    assert "coterie_certificate_end_timestamp_seconds" in str(shown)


def test_no_rules_where_no_hub_is(study: Study) -> None:
    out = service_files(study.path, "compose")
    assert [path.parent.name for path in out.rglob("rules.yml")] == ["hub.example.org"]
    assert {path.parent.name for path in out.rglob("Dockerfile")} == {path.name for path in out.iterdir()}


def docker(*words: str, at: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", *words], cwd=at, env={**os.environ, **environment}, capture_output=True, text=True, timeout=900
    )


@pytest.mark.long
def test_the_image_is_built_and_the_services_start(study: Study, tmp_path: Path) -> None:
    if shutil.which("docker") is None or docker("info").returncode or docker("compose", "version").returncode:
        pytest.skip("no docker here")
    out = service_files(study.path, "compose") / "hub.example.org"
    root = Path(__file__).parents[2]
    shutil.copytree(root / "src", tmp_path / "src")
    for name in ("pyproject.toml", "README.md", "LICENSE", "requirements-deploy.txt"):
        shutil.copy(root / name, tmp_path)
    wheel = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist", "."]
    subprocess.run(wheel, cwd=tmp_path, check=True)
    built = docker("build", "--tag", "coterie-test", "--file", str(out / "Dockerfile"), ".", at=tmp_path)
    assert built.returncode == 0, built.stderr[-2000:]
    (out / "nats").mkdir(0o700)
    for path in (*study.folder.nats.glob("*.pem"), out / "nats.conf"):
        shutil.copy(path, out / "nats")
    shutil.copytree(study.path, out / "business_server" / "deployment", ignore=shutil.ignore_patterns("authority"))
    own = {"COTERIE_UID": str(os.getuid()), "COTERIE_IMAGE": "coterie-test"}
    try:
        assert docker("compose", "up", "-d", "nats", at=out, **own).returncode == 0
        until = time.monotonic() + 60
        while "Server is ready" not in (said := docker("compose", "logs", "nats", at=out, **own).stdout):
            assert time.monotonic() < until, said
            time.sleep(0.5)
        hub = docker("compose", "run", "--rm", "business_server", at=out, **own)
        assert "the hub cannot begin" in hub.stdout + hub.stderr  # nobody has joined: that does not mend itself
        assert hub.returncode == 0
    finally:
        docker("compose", "down", at=out, **own)
