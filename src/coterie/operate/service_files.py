"""``coterie deploy files``: systemd units, compose files or Kubernetes examples of each host's services, each of which
may write its own folder alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jinja2

from coterie.deploy.names import addresses, hosts_of, is_loopback, safe
from coterie.deploy.plan import Plan
from coterie.operate.folder import current_plan, open_folder
from coterie.operate.members import PlannedMember, check_hosts, read_members
from coterie.operate.server import configuration_of
from coterie.protocol.errors import UserError
from coterie.record.files import atomic_write, whole_folder

Kind = Literal["systemd", "compose", "kubernetes"]
METRICS = "9464"
"""The hub's numbers, on loopback."""
STATE = Path("/var/lib/coterie")
NATS_IMAGE = "nats:2.15.1"
_MAX_USER = 31

_PLACE = Path(__file__).parent / "templates"
_EACH = {"systemd": ("unit.service.j2", "coterie-{}.service"), "kubernetes": ("kubernetes.yaml.j2", "{}.yaml")}
_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_PLACE),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.filters["json"] = json.dumps


@dataclass(frozen=True)
class Service:
    """host: the folder for its files.  place: that it may write.  first: what to do before its start, a line each."""

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
        whole = f"coterie-{self.name}"
        cut = hashlib.sha256(whole.encode()).hexdigest()[:8]
        return whole if len(whole) <= _MAX_USER else f"{whole[: _MAX_USER - 9]}-{cut}"


def service_files(path: Path, kind: Kind) -> Path:
    """Write a folder for each host, anew; returns the one of all. Raises UserError, also for a symbolic link in its
    place.
    """
    folder = open_folder(path)
    plan = current_plan(folder)
    services = tuple(services_of(plan, read_members(folder.members)))
    out = path / kind
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise UserError(
            f"{out} is no folder of this deployment: move it away, and these files are written in its place"
        )
    with whole_folder(out) as begun:
        for host in dict.fromkeys(one.host for one in services):
            (begun / host).mkdir()
            of_host = [one for one in services if one.host == host]
            texts = dict(_texts(of_host, kind))
            for one in of_host:
                if one.server:
                    number = [each for each, _ in addresses(plan.settings.server)].index(host)
                    texts["nats.conf"] = configuration_of(folder, one.place, plan, number)
            for name, text in texts.items():
                atomic_write(begun / host / name, text.encode())
    return out


def services_of(plan: Plan, members: Sequence[PlannedMember]) -> Iterator[Service]:
    """Of all unrevoked members, and the engine's servers. Raises UserError."""
    by_name = {one.name: one for one in members}
    if missing := [name for name, _ in plan.members if name not in by_name]:
        raise UserError(f"members.toml lacks {', '.join(missing)}: restore it, since files are made for its hosts")
    if plan.settings.rehearsal:
        raise UserError(
            "this is a rehearsal, which `coterie deploy try` runs on one machine: there are no files for it"
        )
    client = plan.client_role
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
                "after approve, renew, revoke and start copy nats.conf and certificate.pem anew, and reload it "
                "(twice for new members)",
            ),
            server=True,
        )
    for name, role in plan.members:
        if name in plan.revoked:
            continue
        token = safe(name)
        place = STATE / token
        if name == plan.roster.hub:
            words: tuple[str, ...] = ("hub", str(place / "deployment"), "--stay", "--metrics", METRICS)
            first: tuple[str, ...] = (
                "copy the operator's folder to deployment/, without authority/",
                "after start elsewhere copy plan.bin to deployment/: this service begins the run by itself",
            )
        else:
            words = ("party", "--stay", "--home", str(place / "home"))
            data = " --data own.npz" if role == client else ""
            first = (
                f"coterie deploy join {token}.token{data} --home {place / 'home'}",
                f"coterie deploy join {token}.cert --home {place / 'home'}     # when the operator has approved it",
            )
        host = by_name[name].host or token
        command = ("coterie", "deploy", *words)
        yield Service(token, host, f"{name}, {role} of a Coterie deployment", command, first, trains=role == client)


def _texts(services: Sequence[Service], kind: Kind) -> Iterator[tuple[str, str]]:
    beside_server = any(one.server for one in services)
    if kind == "compose":
        compose = _TEMPLATES.get_template("compose.yaml.j2")
        yield "compose.yaml", compose.render(services=services, nats_image=NATS_IMAGE)
    else:
        template, name = _EACH[kind]
        for one in services:
            found = _TEMPLATES.get_template(template)
            yield name.format(one.name), found.render(service=one, beside_server=beside_server, nats_image=NATS_IMAGE)
    watched = any("--metrics" in one.command for one in services)
    for name in [*["Dockerfile"] * (kind != "systemd"), *["rules.yml", "grafana.json"] * watched]:
        yield name, (_PLACE / name).read_text()
    yield "README", _TEMPLATES.get_template("README.j2").render(services=services, kind=kind)
