"""The engine's server: its files, and how changes of members reach it."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.crypto import certificates
from coterie.deploy.engine import STREAM, SUBJECT, Access, EngineError, Tls, mark
from coterie.deploy.engines import check_installed
from coterie.deploy.home import read_private, write_private
from coterie.deploy.names import ENGINE, OPERATOR, addresses, bracketed, hosts_of, is_loopback, safe, urls
from coterie.deploy.plan import GIB, Plan
from coterie.operate.folder import Authority, Folder, current_plan, joined_members, settle
from coterie.operate.nats_server import Listen, NatsServer, ServerCluster, binary, configuration
from coterie.protocol.errors import RunError, UserError
from coterie.record.files import atomic_write

if TYPE_CHECKING:
    from coterie.deploy.nats_link import Link

ROUTES = 2000
"""A server's port for its cluster, beyond that for parties."""


def make_server_key(folder: Folder, authority: Authority, server: str, now_s: float, days: float) -> None:
    hosts = hosts_of(server)
    key, ca = certificates.new_key(), read_private(folder.ca)
    write_private(folder.nats / "key.pem", key)
    own = certificates.sign(ca, authority.ca, ENGINE, certificates.public_of(key), now_s, days, hosts)
    atomic_write(folder.nats / "certificate.pem", own)
    atomic_write(folder.nats / "authority.pem", ca)


def access_of(folder: Folder) -> Access:
    """Those that the plan believes, each by its newest TLS key alone, and the operator."""
    plan, joined = current_plan(folder), joined_members(folder)
    believed = plan.believed.by_name
    pins = {name: _pin(one.tls) for name, one in joined.items()}
    parties = {name: pin for name, pin in pins.items() if believed.get(name) == joined[name].entry}
    operator = _pin(certificates.certified(read_private(folder.tls / "operator.pem")))
    refused = [pin for name, pin in pins.items() if name in plan.revoked]  # a newer plan may have the others
    acting = plan.resolved.definition.acting
    leaders = frozenset(name for name, e in believed.items() if name == plan.roster.hub or len(acting(e.role)) > 1)
    return Access(parties, leaders, operator, [name for name, _ in plan.members], refused)


def admit(folder: Folder, at: Path | None = None) -> None:
    """Write each server's configuration for the newest plan: ``nats.conf``, ``nats-2.conf``. at: the folder's later
    place.
    """
    place = Folder(at or folder.path).nats.absolute()
    for number in range(len(addresses(current_plan(folder).settings.server))):
        path = folder.nats_conf if number == 0 else folder.nats / f"nats-{number + 1}.conf"
        written = ""
        while (newest := configuration_of(folder, place, current_plan(folder), number)) != written:
            atomic_write(path, newest.encode())  # another command may have approved a party meanwhile
            written = newest


def configuration_of(folder: Folder, place: Path, plan: Plan, number: int = 0) -> str:
    """``nats.conf`` for a server with its files here. number: of its address, from 0."""
    listen = listen_of(folder, place, plan, number)
    return configuration(access_of(folder), listen) + f"pid_file: {json.dumps(str(place / 'nats.pid'))}\n"


def listen_of(folder: Folder, place: Path, plan: Plan, number: int = 0) -> Listen:
    """Several addresses form a cluster, connected at other ports (``ROUTES``)."""
    servers = addresses(plan.settings.server)
    host, port = servers[number]
    own = _pin(certificates.certified(read_private(folder.nats / "certificate.pem")))  # all servers share one
    others = [f"{bracketed(host)}:{port + ROUTES}" for host, port in (*servers[:number], *servers[number + 1 :])]
    return Listen(
        store=place / "store",
        certificate=place / "certificate.pem",
        key=place / "key.pem",
        authority=place / "authority.pem",
        port=port,
        host=listening(host),
        name=f"coterie-{number + 1}",
        cluster=ServerCluster(port + ROUTES, others, [own]) if others else None,
        largest_store=int(1.25 * GIB * plan.settings.store_gib),
    )


def listening(host: str) -> str:
    """All addresses of a host, or the loopback one."""
    return host if is_loopback(host) else "0.0.0.0"


def _pin(public: bytes) -> str:
    return hashlib.sha256(public).hexdigest()


def local_server(folder: Folder) -> NatsServer:
    place = folder.nats.absolute()  # it runs there
    return NatsServer(place, access_of(folder), listen_of(folder, place, current_plan(folder)))


@contextlib.contextmanager
def serving(server: NatsServer, folder: Folder) -> Iterator[None]:
    """Raises RunError with the server's own words."""
    from coterie.deploy.nats_stream import provision

    try:
        server.start()
        provision([server.url], folder.operator_tls, server.access, **_room(current_plan(folder)))
        yield
    except EngineError as error:
        raise RunError(str(error)) from None
    finally:
        server.stop()


def _room(plan: Plan) -> dict[str, int]:
    from coterie.deploy.nats_stream import room

    settings = plan.settings
    return {"largest_store": int(GIB * settings.store_gib), "waiting": room(int(GIB * settings.packet_gib))}


CONNECT_S = 5.0
_AGAIN_S = 0.2


def read_anew(folder: Folder, reloads: int = 1) -> None:
    """Write the configuration, and make a server on this machine read it."""
    admit(folder)
    if (pid := running(folder)) is not None:
        for more in range(reloads):
            time.sleep(_AGAIN_S * bool(more))
            with contextlib.suppress(PermissionError):  # then it does not go by it
                os.kill(pid, signal.SIGHUP)


def apply(folder: Folder, reloads: int = 1) -> None:
    """As ``read_anew``, and make what the newest plan's parties need.

    Raises RunError if a server cannot be reached, or goes by an earlier configuration or certificate, and UserError
    without the extra or the operator's keys. Repeating is safe.  reloads: 2 for new members, which nats-server 2.15.1
    connects the second time.
    """
    settle(folder)
    read_anew(folder, reloads)
    plan = current_plan(folder)
    own, access, servers = _operator_tls(folder), access_of(folder), urls(plan.settings.server)
    from coterie.deploy.nats_stream import provision

    behind = [url for url in servers if not _goes_by(folder, url, own, access)]
    try:
        provision(servers, own, access, connect_s=CONNECT_S, **_room(plan))
    except EngineError as error:
        raise RunError(
            f"the server does not know of it yet: {error}. Start it: coterie deploy server {folder.path} --start tells "
            f"it by itself. If you start one of your own with {folder.nats_conf}, then run coterie deploy server "
            f"{folder.path}"
        ) from None
    if behind:
        raise RunError(
            f"{', '.join(behind)} does not go by the newest nats.conf and certificate.pem of {folder.nats}: copy them "
            "there and have them read (nats-server --signal reload); if it refuses them, its log says why. Then run "
            f"coterie deploy server {folder.path}"
        )


def _goes_by(folder: Folder, url: str, own: Tls, access: Access) -> bool:
    """Whether a server soon names this access, and shows the newest certificate."""
    from coterie.deploy.nats_link import Link, rights

    newest, ((host, port),) = (folder.nats / "certificate.pem").read_text(), addresses(url)
    until_s = time.monotonic() + CONNECT_S
    while time.monotonic() < until_s:
        with contextlib.suppress(EngineError, OSError):
            with contextlib.closing(Link(OPERATOR, [url], own, CONNECT_S)) as link:
                knows = mark(access) in json.dumps(rights(link))
            with (
                socket.create_connection((host, port), CONNECT_S) as plain,
                own.context().wrap_socket(plain, server_hostname=host) as secure,
            ):
                if knows and secure.getpeercert(binary_form=True) == ssl.PEM_cert_to_DER_cert(newest):
                    return True
        time.sleep(_AGAIN_S)
    return False


def waiting(folder: Folder) -> list[tuple[str, str, int]]:
    """Sender, recipient, and parts that wait, the most first. Raises as ``clock_s``."""
    names = {safe(name): name for name, _ in current_plan(folder).members}
    with _linked(folder) as link:
        found = link.run(link.stream.stream_info(STREAM, subjects_filter=f"{SUBJECT}.>")).state.subjects or {}
    ends = ((subject.split(".")[1:], count) for subject, count in found.items())
    return sorted(((names.get(of, of), names.get(to, to), count) for (to, of), count in ends), key=lambda one: -one[2])


def clock_s(folder: Folder) -> float:
    """How far the server's clock is ahead of this machine's. Raises as ``apply``."""
    with _linked(folder) as link:
        before_s = time.time()
        reply = link.run(link.client.request(f"$JS.API.STREAM.INFO.{STREAM}", timeout=CONNECT_S))
        told = datetime.datetime.fromisoformat(str(json.loads(reply.data)["ts"])[:26].rstrip("Z") + "+00:00")
        return told.timestamp() - (before_s + time.time()) / 2


@contextlib.contextmanager
def _linked(folder: Folder) -> Iterator[Link]:
    own = _operator_tls(folder)
    import nats.errors

    from coterie.deploy.nats_link import Link

    try:
        with contextlib.closing(Link(OPERATOR, urls(current_plan(folder).settings.server), own, CONNECT_S)) as link:
            yield link
    except (EngineError, nats.errors.Error, TimeoutError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"the server does not answer the operator: {error}") from None


def check_engine() -> None:
    """Raises UserError unless the engine's client and server are installed."""
    check_installed()
    binary()


def _operator_tls(folder: Folder) -> Tls:
    check_installed()
    own = folder.operator_tls
    if not own.key.exists():
        raise UserError(f"the operator's keys are not here: bring {folder.authority} back, and repeat the command")
    return own


def running(folder: Folder) -> int | None:
    """The nats-server here with this folder's configuration, or None."""
    try:
        pid = int((folder.nats / "nats.pid").read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    ours = os.fsencode(folder.nats_conf.resolve())
    return pid if any(os.path.realpath(word) == ours for word in words if word) else None


def serve(folder: Folder, say: Callable[[str], None]) -> None:
    """Become a nats-server with this folder's configuration; a second process does ``apply``, if the operator's keys
    are here. Raises UserError without a nats-server, and RunError if one runs already, or the port is taken.
    """
    if (pid := running(folder)) is not None:
        raise RunError(f"a server with {folder.nats_conf} runs already, as process {pid}")
    settle(folder)
    admit(folder)
    program = binary()
    _check_port(current_plan(folder).settings.server)
    again = ["coterie", "deploy", "server", str(folder.path)]
    if folder.operator_tls.key.exists():
        subprocess.run(["sh", "-c", '"$@" &', "sh", sys.executable, "-m", *again], check=True)  # it is no child of ours
    else:
        say(f"The operator's keys are not here. Where they are, run: {' '.join(again)}")
    os.execv(program, [program, "-c", str(folder.nats_conf.resolve())])


def _check_port(server: str) -> None:
    host, port = addresses(server)[0]
    host = listening(host)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
        try:
            probe.bind((host, port))
        except OSError as error:
            raise RunError(
                f"the server cannot listen at {host}, port {port}: {error.strerror or error}. Stop what listens there, "
                "or found the deployment with another port: coterie deploy init --server nats://HOST:PORT"
            ) from None
