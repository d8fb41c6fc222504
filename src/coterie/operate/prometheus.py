"""A deployment's numbers for Prometheus, over HTTP on the loopback interface alone, one request at a time, within two
seconds: slow local users take neither memory nor threads.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from coterie.deploy.status import PartyStatus, RunStatus
from coterie.protocol.errors import UserError, to_install

try:
    from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError:
    raise UserError(f"prometheus_client is not installed: {to_install('deploy')}") from None

LOOPBACK = "127.0.0.1"
_SLOW_S = 2.0
_DEPLOYED = ("system", "mode", "crypto", "engine", "session", "plan_sha256", "plan")
_PARTY = ("party", "role")

_RUN: Mapping[str, tuple[str, Callable[[RunStatus], float]]] = {
    "round": ("Round that is under way; 0 is the set-up.", lambda s: s.round),
    "round_attempt": ("Attempt of this round; 1 is the first.", lambda s: s.attempt + 1),
    "rounds": ("Rounds that were asked for.", lambda s: s.rounds),
    "rounds_done_total": ("Rounds that are committed.", lambda s: s.done),
    "rounds_skipped_total": ("Rounds, of those done, that moved no model or were given up.", lambda s: s.skipped),
    "attempts_repeated_total": ("Attempts beyond the first of a round.", lambda s: s.repeated),
    "phase_start_timestamp_seconds": ("When this phase began.", lambda s: s.since),
}
_BY: Mapping[str, tuple[str, str, Callable[[RunStatus], Mapping[str, float | None]]]] = {
    "certificate_end_timestamp_seconds": (
        "When the certificate of its holder ends.",
        "holder",
        lambda s: s.certificates,
    ),
    "score": ("Mean over the clients that report it, of the last round.", "score", lambda s: s.scores),
    "score_clients": ("Clients that report it.", "score", lambda s: s.reported),
}
_EACH: Mapping[str, tuple[str, Callable[[PartyStatus], float | None]]] = {
    "connected": ("Whether the engine says that it is connected.", lambda p: p.connected),
    "last_seen_timestamp_seconds": ("When its last packet came.", lambda p: p.last_seen),
    "round": ("Round of its last report.", lambda p: p.round),
    "commits_total": ("How often it has stored its state.", lambda p: p.commit),
    "sent_bytes_total": ("Bytes of packets.", lambda p: p.bytes_up),
    "received_bytes_total": ("Bytes of packets.", lambda p: p.bytes_down),
    "busy_seconds_total": ("Seconds of work.", lambda p: p.busy_s),
    "implausible_total": ("Reports of it that were dropped.", lambda p: p.implausible),
}
_COUNTS: Mapping[str, tuple[str, str, Callable[[PartyStatus], Mapping[str, int]]]] = {
    "refused_total": ("What it refused, by kind.", "kind", lambda p: p.refused),
    "missed_total": ("How often the hub did without it.", "why", lambda p: p.missed),
}


def text(status: RunStatus) -> str:
    """In the exposition format. Labels are parties, roles, kinds and settings."""

    class Numbers(Collector):
        def collect(self) -> Iterator[Metric]:
            yield from (family for family in _families(status) if family.samples)

    return generate_latest(Numbers()).decode()


def _families(status: RunStatus) -> Iterator[Metric]:
    facts = [str(getattr(status, key)) for key in _DEPLOYED]
    yield _family("deployment_info", "What is deployed.", _DEPLOYED, [(facts, 1)])
    yield _family("phase", "1 for the phase that the run is in.", ["phase"], [([status.phase], 1)])
    for name, (words, of_run) in _RUN.items():
        yield _family(name, words, [], [([], of_run(status))])
    for name, (words, label, of_each) in _BY.items():
        yield _family(name, words, [label], (([key], value) for key, value in of_each(status).items()))
    for name, (words, of_party) in _EACH.items():
        rows = (([one.name, one.role], of_party(one)) for one in status.parties)
        yield _family(f"party_{name}", words, _PARTY, rows)
    for name, (words, label, counts) in _COUNTS.items():
        every = ((one, key, count) for one in status.parties for key, count in sorted(counts(one).items()))
        counted = (([one.name, one.role, key], count) for one, key, count in every)
        yield _family(f"party_{name}", words, [*_PARTY, label], counted)


def _family(
    name: str, words: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], float | None]]
) -> CounterMetricFamily | GaugeMetricFamily:
    """rows: the labels' values, and the number; None for none."""
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family = kind(f"coterie_{name}", words, labels=labels)
    for of, value in rows:
        if value is not None:
            family.add_metric(of, value)
    return family


@contextlib.contextmanager
def serving(port: int, read: Callable[[], RunStatus]) -> Iterator[int]:
    """Answer ``GET /metrics`` on 127.0.0.1 meanwhile; gives the port (0 chooses a free one).  read: called in another
    thread. Raises UserError if the port is taken.
    """
    try:
        server = _Server((LOOPBACK, port), read)
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


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _SLOW_S

    def handle(self) -> None:
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
            self._answer(403, "")
        elif self.path.partition("?")[0] != "/metrics":
            self._answer(404, "the numbers are at /metrics\n")
        else:
            self._answer(200, text(self.server.read()))

    def _answer(self, code: int, body: str) -> None:
        self.send_response_only(code)
        self.send_header("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: Any) -> None: ...


class _Server(HTTPServer):
    def __init__(self, address: tuple[str, int], read: Callable[[], RunStatus]) -> None:
        super().__init__(address, _Handler)
        self.read = read

    def handle_error(self, request: Any, client_address: Any) -> None: ...
