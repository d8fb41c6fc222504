"""A server that has not read the newest files is never reported as up to date; renewed certificates reach a run."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

pytest.importorskip("nats", reason="the engine is an extra, deploy")

from deployments import Study
from live_deployment import live
from matrix import few
from nats_rig import Rig, drain

from benchmarks.engines import kill
from coterie.crypto import certificates
from coterie.crypto.certificates import validity
from coterie.deploy.engine import EngineError, NotAdmittedError
from coterie.operate import server
from coterie.operate.authority import invite, renew
from coterie.operate.nats_server import binary, free_port
from coterie.operate.runs import abort
from coterie.operate.server import apply
from coterie.operate.watching import read_status
from coterie.protocol.errors import RunError
from coterie.runs.config import RunConfig


@pytest.fixture
def study(tmp_path: Path) -> Study:
    made = Study(tmp_path)
    made.found(server=f"nats://127.0.0.1:{free_port()}", now_s=time.time())
    return made


@contextmanager
def running(study: Study) -> Iterator[subprocess.Popen[bytes]]:
    """A nats-server with the files of a deployment, as its operator starts one."""
    conf = study.folder.nats_conf.resolve()
    with (study.at / "nats.log").open("wb") as log, subprocess.Popen([binary(), "-c", str(conf)], stderr=log) as own:
        try:
            while b"Server is ready" not in (study.at / "nats.log").read_bytes():
                assert own.poll() is None
                time.sleep(0.05)
            yield own
        finally:
            own.terminate()


def enrol(study: Study, name: str) -> None:
    now_s = time.time()
    _, request = study.join(invite(study.path, name, now_s=now_s), name.replace("/", "-"), now_s=now_s)
    study.approve(request, now_s=now_s)


def test_a_reload_that_the_server_refuses_is_not_reported_as_done(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CONNECT_S", 1.0)
    key = study.folder.nats / "key.pem"
    good = key.read_bytes()
    with running(study):
        apply(study.folder)
        enrol(study, "hospital-a")
        key.write_bytes(b"damaged")
        with pytest.raises(RunError, match=r"does not go by the newest nats\.conf and certificate\.pem"):
            apply(study.folder)
        assert b"Failed to reload server configuration" in (study.at / "nats.log").read_bytes()
        key.write_bytes(good)
        apply(study.folder)


def test_a_server_elsewhere_that_was_not_told_is_noticed(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are not the operator's, so the operator cannot signal it: of its configuration, and its certificate."""
    monkeypatch.setattr(server, "CONNECT_S", 1.0)
    behind = pytest.raises(RunError, match=r"does not go by the newest nats\.conf and certificate\.pem")
    with running(study) as process:
        (study.folder.nats / "nats.pid").unlink()
        apply(study.folder)
        for change in (lambda: enrol(study, "hospital-b"), lambda: renew(study.path, everyone=True)):
            change()
            with behind:
                apply(study.folder)
            os.kill(process.pid, signal.SIGHUP)
            apply(study.folder)


def test_the_server_shows_its_renewed_certificate(study: Study) -> None:
    with running(study):
        apply(study.folder)
        renew(study.path, everyone=True, days=700.0)
        apply(study.folder)
        port = int(server.current_plan(study.folder).settings.server.rsplit(":", 1)[1])
        tls = study.folder.operator_tls.context()
        plain = socket.create_connection(("127.0.0.1", port))
        with tls.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
            shown = ssl.DER_cert_to_PEM_cert(secure.getpeercert(binary_form=True) or b"").encode()
    assert validity(shown)[1] > time.time() + 690 * certificates.DAY_S


@pytest.mark.parametrize("renewed", few([True, False], [True]))
def test_a_party_connects_again_with_its_renewed_certificate(tmp_path: Path, renewed: bool) -> None:
    """The one with which it has started has ended meanwhile. Its key is the same."""
    with Rig(tmp_path, ("hub", "client/1")) as made:
        tls, authority = made.tls["client/1"], made.authority
        public = certificates.public_of(tls.key.read_bytes())

        def sign(seconds: float) -> None:
            days = seconds / certificates.DAY_S
            own = certificates.sign(authority.certificate, authority.key, "client-1", public, time.time(), days)
            tls.certificate.write_bytes(own)

        one = None
        for seconds in (2.0, 15.0, 60.0):  # the first is enough where the machine is not busy
            sign(seconds)
            with suppress(EngineError):
                one = made.engine("client/1")
                break
        assert one is not None
        time.sleep(max(0.0, validity(tls.certificate.read_bytes())[1] - time.time()) + 1.0)
        if renewed:
            sign(3600.0)
        kill(made.server)
        made.server.start()
        made.engine("hub").push("client/1", b"news", "1")
        if renewed:
            assert [each.body for each in drain(one, 1)] == [b"news"]
        else:
            with pytest.raises(NotAdmittedError):
                drain(one, 1)


def test_the_hub_brings_renewed_certificates_during_a_run(tmp_path: Path) -> None:
    """And the run goes on with them until the operator ends it."""
    config = RunConfig("fedavg", rounds=5000, settings={"lr": 0.3, "batch_size": 10, "max_epochs": 1})
    asked, renewed, aborted = list[tuple[str, ...]](), list[int](), list[int]()
    with live(tmp_path, config, ("hospital-a", "hospital-b")) as deployed:

        def has_renewed() -> bool:
            ends = (validity(home.certificate.read_bytes())[1] for home in deployed.homes.values())
            return min(ends) > time.time() + 690 * certificates.DAY_S

        def tell() -> None:
            run = deployed.folder.run
            done = read_status(run).done if (run / "status.json").exists() else 0
            if not asked and done >= 1:
                asked.append(renew(deployed.folder.path, everyone=True, days=700.0))
            elif asked and not renewed and has_renewed():
                renewed.append(done)
            elif renewed and not aborted and done >= renewed[0] + 5:
                aborted.append(done)
                abort(deployed.folder.path)

        deployed.run(tell)
        assert asked == [("server", "hospital-a", "hospital-b", "operator", "engine")]
        assert renewed
        assert has_renewed()
    assert aborted[0] <= read_status(deployed.folder.run).done < 5000
