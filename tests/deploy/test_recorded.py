"""The recorder, logs and metrics beside a federation of real nodes: what they say is what the engine has carried."""

from __future__ import annotations

import json
import logging
import urllib.request
from collections import Counter
from typing import Any

import numpy as np
import pytest
from liars import HUB, OTHER, apart
from nodes import Nodes

from coterie.data.form import SampleForm
from coterie.deploy import logs
from coterie.deploy.plan import Plan, Settings
from coterie.deploy.recorder import Recorder
from coterie.operate.prometheus import serving
from coterie.record.load import Run, load
from coterie.runs.config import RunConfig, resolve
from coterie.runs.config_file import to_toml

ROUNDS = 3


def plan_of(one: Nodes) -> Plan:
    """A plan that has the rig's roster."""
    roster = one.made.common.roster
    config = resolve(RunConfig("fedcaprivacy", clients=4, rounds=ROUNDS, crypto="emulated"))
    return Plan(
        version=1,
        config=to_toml(config),
        facts=SampleForm((1,), 10),
        settings=Settings(server="nats://here", scores=("local_accuracy",)),
        members=tuple((entry.name, entry.role) for entry in roster.entries),
        roster=roster,
    )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Nodes, Run, list[str]]:
    """A federation after its rounds, its run folder as a report reads it, and the metrics after each round."""
    one, folder = apart(), tmp_path_factory.mktemp("deployed") / "run"
    logs.start(folder.parent / "log.jsonl", HUB)
    logs.LOGGER.setLevel(logging.DEBUG)
    recorder, scraped = Recorder(folder, plan_of(one), parameters=24), []

    def options(name: str) -> dict[str, Any]:
        if name == HUB:
            return {"observer": recorder}
        tells = name.startswith("client/") and name != OTHER
        return {"scores": lambda r: {"local_accuracy": 0.25 * r, "weights": 1.0} if tells else {}}

    def closed(round: Any) -> None:
        recorder.closed(round)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            scraped.append(answer.read().decode())

    one.options, one.closed = options, closed
    try:
        with serving(0, lambda: recorder.status) as port:
            one.run(ROUNDS)
        recorder.ended()
    finally:
        recorder.close()
        logs.stop()
    return one, load(folder), scraped


def test_bytes_are_those_that_the_engine_has_carried(recorded: tuple[Nodes, Run, list[str]]) -> None:
    """But for the reports themselves, which come after what they count."""
    one, run, _ = recorded
    roles = {entry.name: entry.role for entry in one.made.common.roster.entries}
    carried: Counter[str] = Counter()
    for (src, _), size in one.exchange.bytes.items():
        carried[roles[src]] += size
    told = run.total("bytes_up")
    assert set(told) == set(carried)
    for role, size in carried.items():
        assert 0.85 * size <= told[role] <= size, role


def test_scores_are_those_of_the_clients_that_tell_them(recorded: tuple[Nodes, Run, list[str]]) -> None:
    _, run, _ = recorded
    assert [line.round for line in run.rounds] == [1, 2, 3]
    assert [line.local_accuracy for line in run.rounds] == [0.25, 0.5, 0.75]
    assert all(line.reported == {"local_accuracy": 3} for line in run.rounds)
    assert "weights" not in (run.folder / "metrics.jsonl").read_text()


def test_metrics_follow_the_rounds(recorded: tuple[Nodes, Run, list[str]]) -> None:
    one, _, scraped = recorded
    lines = [line for text in scraped for line in text.splitlines()]
    done = [float(line.split()[1]) for line in lines if line.startswith("coterie_rounds_done")]
    assert done[:4] == [0, 1, 2, 3]
    assert 'coterie_party_connected{party="csp"' in scraped[-1]
    seen = [line for line in scraped[-1].splitlines() if line.startswith("coterie_party_last_seen")]
    assert len(seen) == len(one.made.common.roster.entries)


def test_no_secret_and_no_model_is_in_the_operators_files(recorded: tuple[Nodes, Run, list[str]]) -> None:
    one, run, scraped = recorded
    secrets = [
        half for own in one.made.owns.values() if own.identity for half in (own.identity.signing, own.identity.opening)
    ]
    models = [np.asarray(model, np.float32) for model in one.models()]
    texts = [path.read_bytes() for path in [*run.folder.iterdir(), run.folder.parent / "log.jsonl"]]
    texts += [text.encode() for text in scraped]
    assert len(texts) > 8
    for text in texts:
        assert not any(secret in text or secret.hex().encode() in text for secret in secrets)
        for model in models:
            assert model.tobytes()[:16] not in text
            assert repr(float(model[0])).encode() not in text


def test_the_hubs_log_tells_its_rounds(recorded: tuple[Nodes, Run, list[str]]) -> None:
    _, run, _ = recorded
    lines = [json.loads(line) for line in (run.folder.parent / "log.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines if line["event"] == "begin"] in ([0, 1, 2, 3], [0, 1, 2, 3, 4])
    assert all(line["party"] == HUB for line in lines)
