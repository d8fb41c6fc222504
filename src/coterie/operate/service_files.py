"""``coterie deploy files``: systemd units or compose files, for each host the services that run on it.

A server has a host of its own, and so a folder of its own. Each service may write its own folder and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coterie.deploy.addresses import addresses, hosts_of, is_loopback
from coterie.deploy.names import safe
from coterie.deploy.plan import Plan
from coterie.operate.engine_files import configuration_of
from coterie.operate.folder import current_plan, open_folder
from coterie.operate.members import Member, check_hosts, read_members
from coterie.protocol.errors import UserError
from coterie.record.files import atomic_write, writing

Kind = Literal["systemd", "compose"]
STATE = Path("/var/lib/coterie")
NATS_IMAGE = "nats:2.15.1"
_MAX_USER = 31

_UNIT = """\
# {description}. Written by `coterie deploy files`.
[Unit]
Description={description}
After=network-online.target{after}
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
User={user}
Group={user}
ExecStart={command}
{extra}
RestartSec=2
TimeoutStopSec=60
UMask=0077
StateDirectory={state}
StateDirectoryMode=0700
WorkingDirectory={place}
Environment=HOME={place}

NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=yes
ReadWritePaths={place}
PrivateTmp=yes
{devices}
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
ProtectProc=invisible
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RemoveIPC=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged

[Install]
WantedBy=multi-user.target
"""
# No MemoryDenyWriteExecute: torch makes machine code while it runs.

_COMPOSE = """\
  {name}:
    image: {image}
    command: {command}
    user: "${{COTERIE_UID:?the number of the user who owns {folder}}}"
    volumes:
      - {folder}:{place}
    working_dir: {place}
    environment:
      HOME: {place}
    init: true
    read_only: true
    tmpfs:
      - /tmp:mode=1777
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    pids_limit: 512
    restart: {restart}
    stop_grace_period: 60s
"""
_IMAGE = '"${COTERIE_IMAGE:?an image of Coterie, which docs/deploy.md says how to build}"'


@dataclass(frozen=True)
class Service:
    """One process. host: the folder that its files are written to.  place: the folder that it may write, where it runs.

    first: what to do before it is started, in words and commands, a line each.
    """

    name: str
    host: str
    description: str
    command: tuple[str, ...]
    first: tuple[str, ...]
    server: bool = False
    trains: bool = False

    @property
    def place(self) -> Path:
        return STATE / self.name

    @property
    def user(self) -> str:
        """Its own user on its host; a long name is cut, with a digest of the whole."""
        whole = f"coterie-{self.name}"
        cut = hashlib.sha256(whole.encode()).hexdigest()[:8]
        return whole if len(whole) <= _MAX_USER else f"{whole[: _MAX_USER - 9]}-{cut}"


def service_files(path: Path, kind: Kind) -> Path:
    """Write the services of a deployment, a folder for each host; returns the folder. Raises UserError.

    What is there of an earlier call is replaced as a whole. A symbolic link in its place is refused.
    """
    folder = open_folder(path)
    plan = current_plan(folder)
    services = tuple(services_of(plan, read_members(folder.members)))
    out = path / kind
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise UserError(
            f"{out} is no folder of this deployment: move it away, and these files are written in its place"
        )
    with writing(out):
        begun = Path(tempfile.mkdtemp(prefix=f".{kind}.", dir=path))
    try:
        for host in dict.fromkeys(one.host for one in services):
            (begun / host).mkdir()
            of_host = [one for one in services if one.host == host]
            texts = _units(of_host) if kind == "systemd" else {"compose.yaml": _compose(of_host)}
            texts = {**texts, "README": _readme(of_host, kind)}
            for one in of_host:
                if one.server:
                    number = [each for each, _ in addresses(plan.settings.server)].index(host)
                    texts["nats.conf"] = configuration_of(folder, one.place, one.place / "store", plan, number)
            for name, text in texts.items():
                atomic_write(begun / host / name, text.encode())
        if out.exists():
            shutil.rmtree(out)
        begun.replace(out)
    except BaseException:
        shutil.rmtree(begun, ignore_errors=True)
        raise
    return out


def services_of(plan: Plan, members: Sequence[Member]) -> Iterator[Service]:
    """The services of all members that are not revoked, and the engine's servers. Raises UserError."""
    by_name = {one.name: one for one in members}
    if missing := [name for name, _ in plan.members if name not in by_name]:
        raise UserError(f"members.toml lacks {', '.join(missing)}: restore it, since files are made for its hosts")
    if plan.settings.rehearsal:
        raise UserError(
            "this is a rehearsal, which `coterie deploy try` runs on one machine: there are no files for it"
        )
    client = plan.members[-1][1]
    check_hosts([by_name[name] for name, role in plan.members if role != client])
    for host in hosts_of(plan.settings.server):
        if is_loopback(host):
            raise UserError(
                f"the server is at {plan.settings.server}, where other hosts do not reach it: found the deployment "
                "with --server nats://HOST:4222"
            )
        yield Service(
            "nats",
            host,
            "the NATS server of a Coterie deployment",
            ("nats-server", "-c", str(STATE / "nats" / "nats.conf")),
            (
                "copy nats.conf from here, and key.pem, certificate.pem and authority.pem from nats/ of the operator",
                "after each change of the members copy nats.conf anew, and reload the service",
            ),
            server=True,
        )
    for name, role in plan.members:
        if name in plan.revoked:
            continue
        token = safe(name)
        place = STATE / token
        if name == plan.roster.hub:
            words: tuple[str, ...] = ("coterie", "deploy", "hub", str(place / "deployment"))
            first: tuple[str, ...] = ("copy the operator's folder to deployment/, without authority/",)
        else:
            words = ("coterie", "deploy", "party", "--home", str(place / "home"))
            data = " --data own.npz" if role == client else ""
            first = (
                f"coterie deploy join {token}.token{data} --home {place / 'home'}",
                f"coterie deploy join {token}.cert --home {place / 'home'}     # when the operator has approved it",
            )
        host = by_name[name].host or token
        yield Service(token, host, f"{name}, {role} of a Coterie deployment", words, first, trains=role == client)


def _units(services: Sequence[Service]) -> Mapping[str, str]:
    with_server = any(one.server for one in services)
    found = {}
    for one in services:
        # a mistake (exit code 2: revoked, or no plan yet) does not mend itself
        extra = "Restart=on-failure\nRestartPreventExitStatus=2"
        gpu = "# PrivateDevices=no for a GPU (coterie deploy join --accelerator cuda)\n" if one.trains else ""
        found[f"coterie-{one.name}.service"] = _UNIT.format(
            description=one.description,
            after=" coterie-nats.service" if with_server and not one.server else "",
            user=one.user,
            command=" ".join(("/usr/bin/env", *one.command)),
            extra="ExecReload=/bin/kill -HUP $MAINPID\nRestart=always" if one.server else extra,
            state=f"coterie/{one.name}",
            place=one.place,
            devices=f"{gpu}PrivateDevices=yes",
        )
    return found


def _compose(services: Sequence[Service]) -> str:
    return "# Written by `coterie deploy files`.\nservices:\n" + "\n".join(
        _COMPOSE.format(
            name=one.name,
            image=NATS_IMAGE if one.server else _IMAGE,
            command=json.dumps(one.command),
            folder=f"./{one.name}",
            place=one.place,
            restart="always" if one.server else "on-failure",
        )
        + ("    network_mode: host\n" if one.server else "")
        for one in services
    )


def _readme(services: Sequence[Service], kind: Kind) -> str:
    """What to do on this host, in order."""
    lines = []
    for one in services:
        lines += [f"{one.description}", ""]
        if kind == "systemd":
            lines += [
                "As root:",
                f"  useradd --system --no-create-home {one.user}",
                f"  install -d -m 700 -o {one.user} -g {one.user} {one.place}",
                f"As user {one.user}, in {one.place}:",
                *(f"  {line}" for line in one.first),
                "As root:",
                f"  cp coterie-{one.name}.service /etc/systemd/system/ && systemctl daemon-reload",
                f"  systemctl enable --now coterie-{one.name}",
                "",
            ]
        else:
            lines += [
                f"Make the folder {one.name}/ beside compose.yaml (mode 700), which the service sees as {one.place}.",
                "export COTERIE_UID=$(id -u), and COTERIE_IMAGE for an image of coterie.",
                f"In the folder (commands of coterie: docker compose run --rm {one.name} COMMAND):",
                *(f"  {line}" for line in one.first),
                f"  docker compose up -d {one.name}",
                "",
            ]
    return "\n".join(lines)
