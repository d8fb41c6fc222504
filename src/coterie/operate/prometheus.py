"""The numbers of a deployment for Prometheus, over HTTP on the loopback interface alone.

The text format has one line for each number, so this needs no client library: such libraries bring registries of
counters in the process, and here the status has the numbers already. One thread answers one request at a time. So local
users who connect slowly delay others by seconds, and take neither memory nor threads.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from coterie.deploy.status import PartyStatus, Status
from coterie.protocol.errors import UserError

LOOPBACK = "127.0.0.1"
CONTENT = "text/plain; version=0.0.4; charset=utf-8"
_SLOW_S = 2.0

Labels = Mapping[str, str]
Samples = Sequence[tuple[Labels, float]]
Family = tuple[str, str, str, Samples]


def text(status: Status) -> str:
    """All numbers of a status in the exposition format. Labels are names of parties, roles, kinds and settings."""
    return "".join(_family(*family) for family in _families(status))


def _families(status: Status) -> Iterator[Family]:
    """Name, type, help and samples of each family."""
    about = {key: str(getattr(status, key)) for key in ("system", "mode", "crypto", "engine", "session", "plan_sha256")}
    yield "coterie_deployment_info", "gauge", "What is deployed.", [({**about, "plan": str(status.plan)}, 1)]
    yield "coterie_phase", "gauge", "1 for the phase that the run is in.", [({"phase": status.phase}, 1)]
    for name, kind, words, value in (
        ("round", "gauge", "Round that is under way; 0 is the set-up.", status.round),
        ("round_attempt", "gauge", "Attempt of this round; 1 is the first.", status.attempt + 1),
        ("rounds", "gauge", "Rounds that were asked for.", status.rounds),
        ("rounds_done_total", "counter", "Rounds that are committed.", status.done),
        ("rounds_skipped_total", "counter", "Rounds that were given up.", status.skipped),
        ("attempts_repeated_total", "counter", "Attempts beyond the first of a round.", status.repeated),
        ("phase_start_timestamp_seconds", "gauge", "When this phase began.", status.since),
    ):
        yield f"coterie_{name}", kind, words, [({}, value)]
    scores = [({"score": name}, value) for name, value in status.scores.items() if value is not None]
    yield "coterie_score", "gauge", "Mean over the clients that report it, of the last round.", scores
    reported = [({"score": name}, float(count)) for name, count in status.reported.items()]
    yield "coterie_score_clients", "gauge", "Clients that report it.", reported
    yield from _of_parties(status)


def _of_parties(status: Status) -> Iterator[Family]:
    def each(value: Callable[[PartyStatus], float | None]) -> Samples:
        found = ((one, value(one)) for one in status.parties)
        return [({"party": one.name, "role": one.role}, number) for one, number in found if number is not None]

    def by(label: str, counts: Callable[[PartyStatus], Mapping[str, int]]) -> Samples:
        return [
            ({"party": one.name, "role": one.role, label: key}, count)
            for one in status.parties
            for key, count in sorted(counts(one).items())
        ]

    name = "coterie_party_"
    yield f"{name}connected", "gauge", "Whether the engine says that it is connected.", each(lambda p: p.connected)
    yield (
        f"{name}last_seen_timestamp_seconds",
        "gauge",
        "When its last packet came.",
        each(lambda p: p.last_seen),
    )
    yield f"{name}round", "gauge", "Round of its last report.", each(lambda p: p.round)
    yield f"{name}commits_total", "counter", "How often it has stored its state.", each(lambda p: p.commit)
    yield f"{name}sent_bytes_total", "counter", "Bytes of packets.", each(lambda p: p.bytes_up)
    yield f"{name}received_bytes_total", "counter", "Bytes of packets.", each(lambda p: p.bytes_down)
    yield f"{name}busy_seconds_total", "counter", "Seconds of work.", each(lambda p: p.busy_s)
    yield f"{name}refused_total", "counter", "What it refused, by kind.", by("kind", lambda p: p.refused)
    yield f"{name}missed_total", "counter", "How often the hub did without it.", by("why", lambda p: p.missed)
    yield f"{name}implausible_total", "counter", "Reports of it that were dropped.", each(lambda p: p.implausible)


def _family(name: str, kind: str, words: str, samples: Samples) -> str:
    if not samples:
        return ""
    lines = [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
    lines += [f"{name}{_labels(labels)} {_number(value)}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _labels(labels: Labels) -> str:
    inside = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items())
    return f"{{{inside}}}" if inside else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


@contextlib.contextmanager
def serving(port: int, read: Callable[[], Status]) -> Iterator[int]:
    """Answer ``GET /metrics`` on 127.0.0.1 while the block runs; gives the port (0 chooses a free one).

    read: the present status; called in another thread. Raises UserError if the port is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = _SLOW_S

        def handle(self) -> None:
            """A byte now and then keeps no request alive: each has so long as a whole."""
            cut = threading.Timer(_SLOW_S, self._cut)
            cut.start()
            try:
                super().handle()
            finally:
                cut.cancel()
                cut.join()

        def _cut(self) -> None:
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

        def do_GET(self) -> None:
            host = self.headers.get("Host", "").rsplit(":", 1)[0]
            if host not in (LOOPBACK, "localhost"):  # a page in a browser may lead another name to this address
                self._answer(403, b"")
            elif self.path.partition("?")[0] != "/metrics":
                self._answer(404, b"the numbers are at /metrics\n")
            else:
                self._answer(200, text(read()).encode())

        def _answer(self, code: int, body: bytes) -> None:
            self.send_response_only(code)
            self.send_header("Content-Type", CONTENT)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: requests are of no interest."""

    class Server(HTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Nothing: a client that went away, or sent no HTTP."""

    try:
        server = Server((LOOPBACK, port), Handler)
    except OSError as error:
        raise UserError(
            f"cannot serve metrics on {LOOPBACK}:{port} ({error.strerror or error}): name another port with --metrics"
        ) from None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
