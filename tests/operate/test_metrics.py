"""The hub's numbers and a party's own, which outlive the run, and the exit code of what does not mend itself."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("nats", reason="the engine is an extra, deploy")

from forked import command
from live_deployment import live

from benchmarks.engines import reload
from coterie.cli.guard import MISTAKE
from coterie.deploy import process
from coterie.deploy.engine import EngineError, NotAdmittedError
from coterie.deploy.node import RolledBackError
from coterie.operate.authority import revoke
from coterie.operate.nats_server import free_port
from coterie.operate.server import access_of
from coterie.protocol.errors import RunError, UserError
from coterie.runs.config import RunConfig
from coterie.runs.failures import AllSkippedError
from coterie.training.jobs import DivergedError


def scraped(port: int) -> dict[str, float]:
    """By name and labels; {} before it is served."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
    except urllib.error.URLError:
        return {}
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}


def test_metrics_outlive_the_run_and_a_party_has_its_own(tmp_path: Path) -> None:
    config = RunConfig("fedavg", rounds=3, settings={"lr": 0.3, "batch_size": 10, "max_epochs": 1})
    with live(tmp_path, config, ("hospital-a", "hospital-b")) as deployed:
        homes, ports = deployed.homes, (free_port(), free_port())
        own = ("deploy", "party", "--home", str(homes["hospital-a"].path))
        with (
            command(tmp_path / "a", *own, "--metrics", str(ports[0])) as party,
            command(tmp_path / "b", "deploy", "party", "--home", str(homes["hospital-b"].path)) as other,
            command(tmp_path / "hub", "deploy", "hub", str(deployed.folder.path), "--metrics", str(ports[1])) as hub,
        ):
            until = time.monotonic() + 120
            while 'coterie_phase{phase="ended"}' not in (of_hub := scraped(ports[1])):
                assert time.monotonic() < until, (tmp_path / "hub").read_text()
                time.sleep(0.2)
            other.join(60)
            assert other.exitcode == 0, "it serves nothing, and ends with the run"
            of_party = scraped(ports[0])
            assert of_hub["coterie_rounds_done_total"] == 3
            assert of_party['coterie_party_round{party="hospital-a",role="client"}'] >= 3
            mine = [key for key in of_hub if re.match(r'coterie_party_(sent|received|commits).*"hospital-a"', key)]
            assert len(mine) == 3
            assert {key: of_hub[key] for key in mine} == {key: of_party[key] for key in mine}
            assert not [key for key in of_party if "hospital-b" in key]
            ends = {key for key in of_hub if "certificate_end" in key}
            assert len(ends) == 6
            assert {key for key in of_party if "certificate_end" in key} < ends
            assert (party.exitcode, hub.exitcode) == (None, None)
            for one in (party, hub):
                one.terminate()
                one.join(30)
                assert one.exitcode == 0
        assert "Its numbers are served until it is stopped." in (tmp_path / "hub").read_text()
        revoke(deployed.folder.path, "hospital-a")
        reload(deployed.server, access_of(deployed.folder))
        with command(tmp_path / "a", *own) as party:
            party.join(60)
            assert party.exitcode == MISTAKE
        assert "Ask the operator why" in (tmp_path / "a").read_text().replace("\n", " ")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NotAdmittedError("no"), UserError),
        (RolledBackError("no"), UserError),
        (AllSkippedError("no"), UserError),
        (EngineError("no"), RunError),
        (RunError("no"), RunError),
    ],
)
def test_what_does_not_mend_itself_is_a_mistake(error: Exception, kind: type[Exception]) -> None:
    with pytest.raises(kind), process.mending():  # the end of every party's process
        raise error


def test_a_training_that_diverges_would_do_so_again() -> None:
    with pytest.raises(UserError), process.mending():
        raise RunError("the model diverged") from DivergedError(1, "a loss")
