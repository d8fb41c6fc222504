"""``coterie audit``: what was received and found out is what the views have, and every mistake gives one message."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from command import Ended
from typer.testing import CliRunner

from coterie.cli.app import app
from coterie.clustering.identity_law import IdentityLaw
from coterie.privacy.attacks.identity import expected_accuracy
from coterie.privacy.plain import ATTACKS
from coterie.privacy.views import ReceivedKind, received
from coterie.protocol.system import BROKER_LEARNS
from coterie.record.folder import read_lines
from coterie.runs import SYSTEMS
from coterie.runs.recorded import read_recorded
from coterie.runs.registry import audit_of
from coterie.transport.transcript import Seen, View

QUICK = ["--samples=500", "--clients=6", "--rounds=2", "--crypto=emulated", "--set=max_epochs=1", "--quiet"]
RUNS = {
    "mingledpie": ["--partition", "labelsets:3", "--set", "clusters=3", "--set", "start=pretrained"],
    "fedcaprivacy": ["--set", "clusters=2"],
    "ofl": ["--set", "mechanism=distributed"],
    "fedavg": [],
}


def call(*words: str) -> Ended:
    ended = CliRunner().invoke(app, [*words], env={"COLUMNS": "120", "COTERIE_DEBUG": "0"})
    return Ended(ended.exit_code, ended.stdout, ended.stderr)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a recorded run of a system."""
    home, made = tmp_path_factory.mktemp("runs"), dict[str, Path]()

    def of(system: str) -> Path:
        if system not in made:
            assert call("run", system, *QUICK, *RUNS[system], "--record", "--out", str(home / system)).code == 0
            made[system] = home / system
        return made[system]

    return of


@cache
def table(folder: Path) -> str:
    """What it prints."""
    ended = call("audit", str(folder))
    assert (ended.code, ended.err) == (0, "")
    return ended.out


@cache
def shown(folder: Path) -> dict[str, Any]:
    """What --json says."""
    ended = call("audit", str(folder), "--json")
    assert (ended.code, ended.err) == (0, "")
    content: dict[str, Any] = json.loads(ended.out)
    return content


# -- what it shows -----------------------------------------------------------------------------------------------------


def test_mingledpie(recorded: Callable[[str], Path]) -> None:
    folder = recorded("mingledpie")
    head = "MingledPie, mode paper, emulated ciphers, 2 rounds of 6 clients"
    assert all(words in table(folder) for words in (head, "Mingled", "server learns", "0.444"))
    content = shown(folder)
    attacks = {row["name"]: row for row in content["attacks"]}
    guess = attacks["server: true cluster"]
    assert guess["closed_form"] == pytest.approx(expected_accuracy(IdentityLaw(3, 0.5, 2)).accuracy)
    assert (guess["chance"], guess["rounds"], guess["clients"]) == (pytest.approx(1 / 3), 2, 6)
    assert attacks["server with any client's key: true cluster"]["value"] == 1
    assert attacks["client: sizes of the true clusters"]["value"] == 1
    assert not [name for name in attacks if name.startswith("server:") and "label" in name]
    truth = json.loads((folder / "observed.json").read_text())["membership"]
    sets = [line["notes"]["membership"] for line in read_lines(folder / "metrics.jsonl")]
    by_hand = [[(own[0] in joined) / len(joined) for own, joined in zip(truth, sets[-1], strict=True)]]
    assert guess["last"] == pytest.approx(sum(by_hand[0]) / 6)


def test_every_number_says_how_many_clients_it_is_of(recorded: Callable[[str], Path]) -> None:
    folder = recorded("mingledpie")
    lines = table(folder).splitlines()
    head = next(line for line in lines if "theory" in line)
    assert head.split()[-1] == "clients"
    for row in shown(folder)["attacks"]:
        line = next(line for line in lines if line.strip().startswith(row["name"]))
        assert line.split()[-1] == str(row["clients"])


def test_what_was_received_is_what_the_views_have(recorded: Callable[[str], Path]) -> None:
    folder = recorded("mingledpie")
    roles = {role["role"]: role for role in shown(folder)["roles"]}
    assert list(roles) == ["key_centre", "server", "client", "broker"]
    assert [role["parties"] for role in roles.values()] == [1, 1, 6, 0]
    assert roles.pop("broker") == {"role": "broker", "parties": 0, "received": [], "learns": BROKER_LEARNS}
    views = read_recorded(folder).views
    for role in roles.values():
        seen = [s for view in views.values() if view.role == role["role"] for s in view.seen]
        assert sum(row["count"] for row in role["received"]) == len(seen)
        assert sum(row["bytes"] for row in role["received"]) == sum(s.size for s in seen)
        assert role["learns"] == SYSTEMS["mingledpie"].views("paper")[role["role"]].learns
    kinds = Counter({(row["kind"], row["relayed"]): row["count"] for row in roles["server"]["received"]})
    assert kinds[("Update", False)] == 12
    assert kinds[("Granted", True)] == 6  # sealed for the clients
    assert kinds[("Granted", False)] == 1  # its own


def test_messages_are_counted_by_role_kind_and_ends() -> None:
    def seen(r: int, src: str, dst: str, kind: str, size: int, read: bool = True) -> Seen:
        return Seen(0.0, r, src, dst, kind, size, object() if read else None)  # type: ignore[arg-type]

    hub = View(
        "hub", "hub", [seen(1, "a", "hub", "Up", 5), seen(2, "b", "hub", "Up", 7), seen(2, "a", "b", "X", 1, False)]
    )
    one, two = View("a", "client", [seen(1, "hub", "a", "Down", 3)]), View("b", "client", [seen(2, "a", "b", "X", 2)])
    assert received([hub, one, two]) == [
        ReceivedKind("hub", "Up", "client", "hub", 2, 12, 2),
        ReceivedKind("hub", "X", "client", "client", 1, 1, 1),
        ReceivedKind("client", "Down", "hub", "client", 1, 3, 1),
        ReceivedKind("client", "X", "client", "client", 1, 2, 1),
    ]
    assert [row.relayed for row in received([hub, one, two])] == [False, True, False, False]
    assert received([View("c", "c", [seen(1, "gone", "c", "Up", 1)])])[0].src == "gone"


def test_fedcaprivacy_and_plain_averaging(recorded: Callable[[str], Path]) -> None:
    names = [row["name"] for row in shown(recorded("fedcaprivacy"))["attacks"]]
    assert "csp: re-linked, by vectors" in names
    assert "csp with a participant: models" in names
    content = shown(recorded("fedavg"))
    assert content["crypto"] == "none"
    found = {row["name"]: row for row in content["attacks"]}
    assert set(found) == {
        "server: label shares",
        "server: top label",
        "server: models, as they are sent",
        "server: label shares, by row lengths",
        "server: top label, by row lengths",
        "server: re-linked, by name",
        "server: which pairs have similar labels, by updates",
        "server: samples that were trained on, by loss",
        "server: samples that were trained on, by likelihood ratio",
        "client: samples of others that were trained on, by the model that it is sent",
        "server: samples read off the first layer's step",
    }
    shares = found["server: label shares"]
    assert shares["first"] > 0.8
    assert shares["closed_form"] is None


def test_a_system_without_plain_updates_says_why_nothing_is_attacked(recorded: Callable[[str], Path]) -> None:
    attacks = "; ".join(attack.name for attack in ATTACKS)
    said = f"Not applicable: {attacks}: no party receives a single client's model or update in the clear."
    assert said in table(recorded("fedcaprivacy"))


def test_the_systems_with_an_audit_of_their_own() -> None:
    audits = {name: audit for name, system in SYSTEMS.items() if (audit := audit_of(system))}
    assert set(audits) == {"coterie", "fedcaprivacy", "fedepc", "mingledpie", "ofl", "pafed", "scaffold"}
    assert [name for name, audit in audits.items() if audit.active] == ["coterie", "fedepc", "ofl", "pafed"]


def test_rounds_that_recording_did_not_finish_are_left_out(tmp_path: Path) -> None:
    out = tmp_path / "cut"
    words = ["run", "fedavg", "--clients", "20", "--rounds", "4", "--set", "max_epochs=1", "--quiet", "--record"]
    assert call(*words, "--record-mib", "1", "--out", str(out)).code == 0  # 40 models of 10 kB a round
    ended = call("audit", str(out))
    assert ended.code == 0
    assert "Recording stopped in round 3" in ended.out
    content = shown(out)
    assert content["stopped"] == 3
    assert content["attacks"][0]["rounds"] == 2
    assert {row["rounds"] for role in content["roles"] for row in role["received"]} == {2}


# -- mistakes ----------------------------------------------------------------------------------------------------------


def refused(*words: str) -> str:
    ended = call("audit", *words)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("Error: ")
    assert "Traceback" not in ended.err
    return ended.err


def test_a_run_without_views_says_how_to_get_them(tmp_path: Path) -> None:
    assert call("run", "fedavg", *QUICK, "--out", str(tmp_path / "a")).code == 0
    said = refused(str(tmp_path / "a"))
    assert "views were not kept" in said
    assert f"coterie run --config {tmp_path / 'a' / 'config.toml'} --record" in said.replace("\n", " ")


def test_what_is_no_finished_run_is_refused(tmp_path: Path, recorded: Callable[[str], Path]) -> None:
    assert "no such folder" in refused(str(tmp_path / "none"))
    assert "no run in it" in refused(str(tmp_path))
    (tmp_path / "begun").mkdir()
    shutil.copy(recorded("fedavg") / "config.toml", tmp_path / "begun")
    assert "holds no finished run" in refused(str(tmp_path / "begun"))
    copy = tmp_path / "copy"
    shutil.copytree(recorded("fedavg"), copy)
    (copy / "views.bin").write_bytes((copy / "views.bin").read_bytes()[:-3])
    assert "is damaged" in refused(str(copy))
    (copy / "views.bin").unlink()
    assert "views were not kept" in refused(str(copy))
    (copy / "views.bin").write_bytes(b"")
    assert "the record of this run is empty" in refused(str(copy))


def test_data_that_are_gone_are_asked_for(tmp_path: Path, recorded: Callable[[str], Path]) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(recorded("fedavg"), copy)
    config = (copy / "config.toml").read_text().replace('data = "digits"', 'data = "mine"')
    (copy / "config.toml").write_text(config)
    (tmp_path / "empty").mkdir()
    assert "mine" in refused(str(copy), "--data-dir", str(tmp_path / "empty"))


def test_holders_statements_of_openings_are_verified(recorded: Callable[[str], Path], tmp_path: Path) -> None:
    run = recorded("ofl")
    statements = run / "openings.json"
    ended = call("audit", str(statements))
    assert (ended.code, ended.err) == (0, "")
    assert "2 sums, which holders have added up themselves, of 4 vectors or more" in ended.out
    assert "client/3 (2, the last in round 2)" in ended.out
    assert "Nothing in these statements is wrong." in ended.out
    found = json.loads(call("audit", str(statements), "--json").out)
    assert json.loads(call("audit", str(run), "--json").out)["openings"] == found
    stricter = call("audit", str(statements), "--fewest", "5")
    assert stricter.code == 1
    assert "a sum of 4 vectors, of fewer than 5" in stricter.out
    assert "of a sum's weights, more than 10 %" in call("audit", str(statements), "--share", ".1").out
    assert call("audit", str(run), "--share", ".1").code == 2
    forged = tmp_path / "forged.json"
    forged.write_text(statements.read_text().replace('"round":2', '"round":1'))
    assert call("audit", str(forged)).code == 1
    forged.write_text(statements.read_text().replace('"client/0"', '"\\u001b[2J"'))
    hidden = call("audit", str(forged))
    assert (hidden.code, "\x1b" in hidden.out + hidden.err) == (2, False)
    forged.write_text("{}")
    assert call("audit", str(forged)).code == 2
    assert call("audit", str(run), "--fewest", "5").code == 2


def test_its_table_fits_eighty_columns(recorded: Callable[[str], Path]) -> None:
    from rich.console import Console

    from coterie.cli.auditing import tables

    content = {**shown(recorded("mingledpie")), "seeds": [0]}
    for width, head in ((80, "attack verdict leak ±"), (200, "attack verdict measure leak ±")):
        shell = Console(width=width, record=True, force_terminal=False)
        with shell.capture() as said:
            for part in tables([content], shell):
                shell.print(part)
        lines = said.get().splitlines()
        assert max(map(len, lines)) <= width
        assert any(" ".join(line.split()).startswith(head) for line in lines)
        for row in content["attacks"]:
            assert any(row["name"][:20] in line and row["verdict"] in line for line in lines), row["name"]
