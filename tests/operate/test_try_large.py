"""Large packets, and many parties: what a hub's process holds, between parties that are no rehearsal's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from live_deployment import live

from coterie.operate.watching import read_log
from coterie.runs.config import RunConfig
from coterie.runs.runner import load_result

pytest.importorskip("nats", reason="the engine is an extra, deploy")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

MB = 1_000_000


def peak(at: Path, clients: int, model: str, rounds: int) -> int:
    """The largest resident size of the hub's process, in bytes."""
    at.mkdir()
    config = RunConfig("fedavg", rounds=rounds, model=f"wide_models:{model}", settings={"lr": 0.1, "max_epochs": 1})
    found = [0]
    with live(at, config, [f"client/{i}" for i in range(clients)], patience_s=300.0) as deployed:
        home = deployed.homes["server"]

        def look() -> None:
            starts = (
                [line["pid"] for line in read_log(home.log) if line["event"] == "start"] if home.log.exists() else []
            )
            if starts and (status := Path(f"/proc/{starts[-1]}/status")).exists():
                lines = [line.split() for line in status.read_text().splitlines()]
                found[0] = max([found[0], *(int(words[1]) * 1024 for words in lines if words[0] == "VmHWM:")])

        deployed.run(look)
    result = load_result(deployed.folder.run)
    assert [line["notes"]["participants"] for line in result.rounds] == [clients] * rounds
    assert result.summary["parameters"] * 4 > 7 * MB
    return found[0]


def test_the_hub_holds_no_packet_for_each_party(tmp_path: Path) -> None:
    """20 parties take less than 3 packets more than 4 do."""
    few, many = (peak(tmp_path / str(clients), clients, "of_8_mb", 2) for clients in (4, 20))
    assert many - few < 3 * 8 * MB, f"{(many - few) / MB:.0f} MB more for 20 parties than for 4"


def test_a_packet_of_100_mb_passes(tmp_path: Path) -> None:
    assert peak(tmp_path / "one", 2, "of_100_mb", 1) > 100 * MB
