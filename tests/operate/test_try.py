"""A rehearsal, every party a process of its own over a real server, ends with the models of a run in one process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from every_system import model_for
from torch.nn.utils import parameters_to_vector

from coterie.deploy.kills import Kill, parse
from coterie.operate.local_deployment import HOMES
from coterie.operate.rehearsal import rehearse
from coterie.operate.watching import read_log
from coterie.protocol.errors import CoterieWarning, RunError, UserError
from coterie.runs import registry
from coterie.runs.config import RunConfig, resolve
from coterie.runs.digests import models_digest
from coterie.runs.experiment import build
from coterie.runs.finished import FinishedRun
from coterie.runs.opened import audited_openings
from coterie.runs.runner import run

pytest.importorskip("nats", reason="the engine is an extra, deploy")

PAPER: list[tuple[str, dict[str, Any]]] = [
    ("ofl", {"crypto": "emulated", "rounds": 2}),
    ("fedavg", {}),
    ("fedavg", {"data": "heart"}),  # four hospitals
    ("fedcaprivacy", {}),  # with real Paillier
    ("mingledpie", {"crypto": "emulated"}),
    ("pafed", {"crypto": "emulated"}),
    ("fedepc", {"rounds": 2}),
]
SUMS_OF_THREE = {"settings": {"participation": 0.75}}
"""FedEPC's mode hardened releases no sum of fewer models, and half of four clients are two."""
OTHERS = PAPER + [
    (
        name,
        {"mode": mode}
        | ({"crypto": "emulated"} if registry.get(name).encrypts(mode) else {})
        | ({"model": model_for(name)} if name == "fedbn" else {})
        | (SUMS_OF_THREE if (name, mode) == ("fedepc", "hardened") else {}),
    )
    for name in registry.SYSTEMS
    for mode in registry.get(name).modes
    if (name, mode) not in {(known, "paper") for known, _ in PAPER}
]
OTHERS += [
    ("own_page:SYSTEM", {"crypto": "emulated"}),  # that of docs/own_system.md
    ("fedavg", {"devices": "mobile", "rounds": 4}),  # whose clients are away, or drop out
    ("fedepc", {"mode": "hardened", **SUMS_OF_THREE}),  # with real Paillier
]


def options(**more: Any) -> dict[str, Any]:
    return {"clients": 4, "rounds": 3, "seed": 7, **more}


def simulated(name: str, **more: Any) -> str:
    """The digest of the models of the same run in one process."""
    experiment = build(resolve(RunConfig(name, **options(**more))))
    experiment.set_up()
    done = 0
    for done in range(1, int(experiment.config.rounds or 0) + 1):
        if "stopped" in experiment.round(done)["notes"]:
            break
    experiment.finish(done)
    found = models_digest(experiment.models(done))
    experiment.close()
    return found


def rehearsed(folder: Path, name: str, *kills: str, **more: Any) -> FinishedRun:
    return rehearse(folder, RunConfig(name, **options(**more)), kills)


def events(home: Path, name: str) -> list[dict[str, Any]]:
    """The events of this name in a party's log."""
    return [line for line in read_log(home / "log.jsonl") if line["event"] == name]


def homes(folder: Path) -> list[Path]:
    return [folder / "hub", *(folder / HOMES).iterdir()]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "more"), OTHERS, ids=["-".join([name, *map(str, more.values())]) for name, more in OTHERS]
)
def test_models_are_those_of_one_process(tmp_path: Path, name: str, more: dict[str, Any]) -> None:
    """Of FedAvg: ``test_try_command``. Nodes in one process have every system."""
    result = rehearsed(tmp_path / "d", name, **more)
    assert result.summary["models_sha256"] == simulated(name, **more)
    assert result.rounds[-1]["models_sha256"] == result.summary["models_sha256"]
    assert result.summary["rounds_done"] == options(**more)["rounds"]
    assert len(result.models.of("client/3").tensors) >= 1
    ledgers = result.summary["ledger"]
    assert set(ledgers) == {f"client/{i}" for i in range(4)}
    told = [{row["what"]: row["count"] for row in own["releases"]} for own in ledgers.values()]
    assert all(counts.pop("score local_loss") == counts.pop("score local_accuracy") > 0 for counts in told)
    assert any(told) or name == "local"  # late updates have not left all of PAFed's clients


@pytest.mark.long
@pytest.mark.parametrize("name", ["coterie", "ditto", "fedavg_late", "fedepc", "ifca", "pafed", "scaffold"])
def test_a_rounds_scores_are_those_of_one_process(tmp_path: Path, name: str) -> None:
    """Whether clients are sent its models at its end, or as the next one begins, and train own ones or not. PAFed's
    have the noise of CKKS.
    """
    known = registry.get(name).config.__dataclass_fields__
    more = {"settings": {"participation": 1.0} if "participation" in known else {}, "delta": 0.0}
    more |= {"crypto": "emulated"} if registry.get(name).encrypts("paper") else {}
    made = rehearsed(tmp_path / "d", name, **more)
    ran = run(RunConfig(name, **options(**more), out=str(tmp_path / "r")))
    ours, theirs = ([line["local_loss"] for line in one.rounds] for one in (made, ran))
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert len({*theirs}) == 3


@pytest.mark.long
def test_real_ckks_differs_by_its_noise(tmp_path: Path) -> None:
    """Of one round: in later ones training spreads the noise."""
    made = rehearsed(tmp_path / "d", "pafed", rounds=1)
    ran = run(RunConfig("pafed", **options(rounds=1), out=str(tmp_path / "r")))
    for client in ran.clients:
        ours, theirs = (parameters_to_vector(one.model(client).parameters()).detach() for one in (made, ran))
        assert 0 < (ours - theirs).abs().max() < 2e-6


@pytest.mark.long
def test_holders_state_what_they_have_opened_in_files_and_logs(tmp_path: Path) -> None:
    made = rehearsed(tmp_path / "d", "ofl", crypto="emulated", rounds=2, settings={"mechanism": "distributed"})
    found = audited_openings([made.folder / "openings.json"])
    assert (found["openings"], found["sums"]) == ({f"client/{i}": 2 for i in range(4)}, 2)
    assert (found["senders"], found["faults"], found["unstated"]) == (4, [], {})
    assert found["operator"] == (tmp_path / "d" / "operator.pub").read_text().strip()
    logs = [events(home, "openings") for home in (tmp_path / "d" / HOMES).iterdir()]
    assert [log[-1]["stated"] for log in logs] == [2] * 4


@pytest.mark.long
def test_killed_parties_go_on(tmp_path: Path) -> None:
    kills = ("hub@2", "client/1@2", "key_centre@setup")
    result = rehearsed(tmp_path / "d", "fedcaprivacy", *kills, crypto="emulated", rounds=2)
    assert result.summary["models_sha256"] == simulated("fedcaprivacy", crypto="emulated", rounds=2)
    starts = {home.name: len(events(home, "start")) for home in homes(tmp_path / "d")}
    assert starts == {"hub": 2, "client-1": 2, "key_centre": 2, "csp": 1, "client-0": 1, "client-2": 1, "client-3": 1}
    pids = {line["pid"] for home in homes(tmp_path / "d") for line in events(home, "start")}
    assert len(pids) == sum(starts.values())  # every life in a process of its own


@pytest.mark.long
def test_a_party_that_stays_away_for_a_while(tmp_path: Path) -> None:
    result = rehearsed(tmp_path / "d", "fedcaprivacy", "csp@2:mid", crypto="emulated", rounds=2)
    notes = result.rounds[1]["notes"]
    assert notes["gone"] == {"csp": "gone"}
    assert "skipped" not in result.rounds[0]["notes"]
    assert len(events(tmp_path / "d" / HOMES / "csp", "start")) == 2


@pytest.mark.parametrize(
    ("own", "name", "both", "clear"),
    [
        ({"client/0": "va", "client/1": "va"}, "va", "client/0 and client/1", {"client/0": 1, "client-1": 2}),
        ({"client/0": "client-1"}, "client-1", "client/0 and client/1", {"client-0": 1, "client/1": 2}),
        ({"client/0": "client/1"}, "client/1", "client/0 and client/1", {"client/0": 1, "client-1": 2}),
        ({"client/1": "hub"}, "hub", "server and client/1", {"server": 0, "client/1": 2}),
        ({"client/1": "server"}, "server", "server and client/1", {"hub": 0, "client-1": 2}),
    ],
)
def test_a_kill_refuses_a_name_that_means_two_parties(
    own: dict[str, str], name: str, both: str, clear: dict[str, int]
) -> None:
    """Both have another name."""
    parties = ["server", "client/0", "client/1"]
    with pytest.raises(UserError, match=f"'{name}' means {both}, "):
        parse(f"{name}@1", parties, 3, own)
    for other, place in clear.items():
        assert parse(f"{other}@1", parties, 3, own) == Kill(parties[place], 1)


def test_a_kill_takes_every_name_of_a_party(tmp_path: Path) -> None:
    parties, own = ["server", "client/0", "client/1"], {"client/0": "va", "client/1": "client-1"}
    names = {"hub": 0, "server": 0, "client/0": 1, "client-0": 1, "va": 1, "client/1": 2, "client-1": 2}
    for name, place in names.items():
        assert parse(f"{name}@2:mid", parties, 3, own) == Kill(parties[place], 2, mid=True)
    config = RunConfig("fedavg", "heart", rounds=2)
    there = re.escape("'cleve'. There are: hub, client/0 (cleveland), client/1 (hungarian), client/2 (switzerland), ")
    with pytest.raises(UserError, match=there + re.escape("client/3 (va)")):
        rehearse(tmp_path / "d", config, ["cleve@2"])
    with pytest.raises(UserError, match="rounds are 1 to 2"):  # of one that is known
        rehearse(tmp_path / "d", config, ["va@3"])
    assert not (tmp_path / "d").exists()


def test_more_clusters_than_clients_are_told_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.warns(CoterieWarning, match=r"more clusters \(5\) than clients \(4\)"), pytest.raises(UserError):
        rehearsed(tmp_path / "d", "ifca", "nobody@2", settings={"clusters": 5})
    assert not (tmp_path / "d").exists()


def test_what_cannot_be_rehearsed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no party 'nobody'"):
        rehearsed(tmp_path / "d", "fedavg", "nobody@2")
    with pytest.raises(UserError, match="rounds are 1 to 3"):
        rehearsed(tmp_path / "d", "fedavg", "hub@4")
    with pytest.raises(UserError, match="attack"):
        rehearsed(tmp_path / "d", "fedavg", attack="scale:10")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "mine").write_text("")
    with pytest.raises(UserError, match="is there already"):
        rehearsed(tmp_path / "d", "fedavg")
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["mine"]
    with pytest.raises(RunError):
        rehearsed(tmp_path / "e", "fedavg", settings={"lr": 1e30})
