"""The hub's run folder and status: what parties report, no more, and all of it after a kill."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from command import Command
from deployments import everything

from coterie.crypto.roster import entry, new_identity, sign_roster
from coterie.crypto.signing import SigningKey
from coterie.data.form import SampleForm
from coterie.deploy.hub import EXCLUDED, RoundOutcome
from coterie.deploy.packets import Report, Traffic
from coterie.deploy.plan import Plan, Settings, fingerprint
from coterie.deploy.recorder import OpenRounds, Recorder
from coterie.deploy.reported import Check
from coterie.deploy.status import RunStatus
from coterie.operate.watching import is_alive, read_status
from coterie.protocol.errors import UserError
from coterie.protocol.randomness import Randomness
from coterie.record.folder import read_lines
from coterie.record.load import load
from coterie.report import render
from coterie.runs import registry
from coterie.runs.config import RunConfig, resolve
from coterie.runs.config_file import to_toml

CLIENTS = tuple(f"client/{i}" for i in range(4))


def plan(
    system: str = "fedcaprivacy", *, joined: int = 4, version: int = 1, session: bytes = b"s" * 16, **config: Any
) -> Plan:
    options = resolve(RunConfig(system, clients=4, **{"rounds": 3, "crypto": "emulated", **config}))
    roles = registry.get(system).roles(resolve(options).own, CLIENTS, options.mode)
    there = [name for name in roles if name not in CLIENTS[joined:]]
    randomness = Randomness(7, emulated=True)
    entries = tuple(entry(name, roles[name], new_identity(name, randomness)) for name in there)
    return Plan(
        version=version,
        config=to_toml(options),
        facts=SampleForm((64,), 10),
        settings=Settings(server="nats://somewhere", scores=("local_accuracy", "local_loss")),
        members=tuple(roles.items()),
        roster=sign_roster(entries, SigningKey.generate(lambda n: b"k" * n), session),
    )


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    made = Recorder(tmp_path / "run", plan(), parameters=10)
    yield made
    made.close()


def told(at: int | tuple[int, int], **more: Any) -> Report:
    """A report that nothing is wrong with."""
    era = at if isinstance(at, tuple) else (at, 0)
    return Report(era, **{"commit": 3, "busy_s": 0.5, "bytes_up": 100, "bytes_down": 10, "closed": True, **more})


def scores(accuracy: float, loss: float = 1.0) -> dict[str, float]:
    return {"local_accuracy": accuracy, "local_loss": loss}


def rounds(recorder: Recorder, last: int, first: int = 1, reporting: int = 4) -> None:
    """Rounds in which the first so many clients report their scores."""
    for r in range(first, last + 1):
        recorder.began((r, 0))
        for i, name in enumerate(CLIENTS):
            if r > 1:
                recorder.heard(name, told(r - 1, scores=scores(0.1 * r + 0.01 * i) if i < reporting else {}))
        recorder.closed(RoundOutcome(r, {"participants": 4}, seconds=2.0, traffic=Traffic(bytes_up=7)))


def wait_for(true: Callable[[], bool]) -> None:
    """Until it is true, for a few seconds."""
    for _ in range(100):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("it has not come true")


# -- the folder --------------------------------------------------------------------------------------------------------


def test_the_folder_holds_what_was_reported_and_draws_a_report(recorder: Recorder) -> None:
    recorder.began((0, 0))
    recorder.closed(RoundOutcome(0, seconds=1.0))
    rounds(recorder, 3, reporting=3)
    for i, name in enumerate(CLIENTS[:2]):
        recorder.heard(name, told(3, scores=scores(0.5 + 0.2 * i, 2.0)))
    recorder.ended()
    run = load(recorder.folder)
    _one, two, three = run.rounds
    assert two.local_accuracy == pytest.approx((0.3 + 0.31 + 0.32) / 3)
    assert two.reported == {"local_accuracy": 3, "local_loss": 3}
    assert two.bands["local_accuracy"][0] == pytest.approx(0.3)
    assert two.bands["local_accuracy"][4] == pytest.approx(0.32)
    assert three.local_accuracy == pytest.approx(0.6)
    assert three.reported["local_accuracy"] == 2
    assert two.bytes_up == {"participant": 400, "business_server": 7}
    assert two.phase_seconds["participant/work"] == 2.0
    assert run.result.local_accuracy == three.local_accuracy
    assert run.result.done == 3
    assert recorder.status.seconds == json.loads((recorder.folder / "result.json").read_text())["seconds"] == 7.0
    assert run.result.deployment is not None
    assert not run.result.deployment.running
    assert run.result.deployment.reporting == (2, 3)
    page = render([recorder.folder]).read_text()
    assert "What nobody knows of this run" in page
    assert "2 to 3 of 4" in page
    assert "between machines" in page


def test_nothing_is_invented(recorder: Recorder) -> None:
    """No client reports a score: there is none anywhere, and what nobody can know is said."""
    rounds(recorder, 3, reporting=0)
    recorder.ended()
    result = json.loads((recorder.folder / "result.json").read_text())
    for key in ("global_accuracy", "local_accuracy", "virtual_seconds"):
        assert result[key] is None
    assert all(
        "local_accuracy" not in line and line["reported"] == {}
        for line in read_lines(recorder.folder / "metrics.jsonl")
    )
    assert any("common test set" in words for words in result["deployment"]["unknown"])
    assert result["deployment"]["reporting"] == [0, 0]
    assert result["assumes"].startswith("business_server and csp do not collude")
    assert "What nobody knows" in render([recorder.folder]).read_text()


def test_a_report_can_be_drawn_while_the_run_goes_on(recorder: Recorder) -> None:
    rounds(recorder, 3)
    assert "1 of 3" in render([recorder.folder]).read_text()
    deployment = load(recorder.folder).result.deployment
    assert deployment is not None
    assert deployment.running


def test_reports_of_all_attempts_count_and_the_newest_of_an_attempt_replaces(recorder: Recorder) -> None:
    recorder.began((1, 0))
    recorder.heard("csp", told((1, 0), bytes_up=50))
    recorder.began((1, 1))
    recorder.heard("csp", told((1, 0), bytes_up=60))
    recorder.heard("csp", told((1, 1), bytes_up=1000))
    recorder.closed(RoundOutcome(1, attempts=["csp was killed"], gone={"client/2": "gone"}))
    recorder.ended()
    (line,) = read_lines(recorder.folder / "metrics.jsonl")
    assert line["bytes_up"]["csp"] == 1060
    assert line["attempt"] == 1
    assert line["notes"]["attempts"] == ["csp was killed"]
    assert line["lost"] == {"client/2 of round 1": "gone"}
    assert recorder.status.repeated == 1
    csp = next(one for one in recorder.status.parties if one.name == "csp")
    assert csp.bytes_up == 1060
    assert (csp.round, csp.attempt) == (1, 1)


def test_a_hub_that_was_killed_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    """Reports that came before the kill count."""

    def begin(recorder: Recorder) -> None:
        rounds(recorder, 2)
        recorder.began((3, 0))
        recorder.heard("csp", told(2, bytes_up=33))

    def end(recorder: Recorder) -> list[dict[str, Any]]:
        recorder.began((3, 1))
        for i, name in enumerate(CLIENTS):
            recorder.heard(name, told(2, scores=scores(0.3 + 0.01 * i)))
        recorder.closed(RoundOutcome(3, {"participants": 4}, seconds=2.0, traffic=Traffic(bytes_up=7)))
        recorder.ended()
        recorder.close()
        return read_lines(recorder.folder / "metrics.jsonl")

    through, killed = (Recorder(tmp_path / name, plan()) for name in ("one", "two"))
    begin(through)
    begin(killed)
    path = tmp_path / "two" / "open.bin"
    wait_for(lambda: (2, 0) in msgspec.msgpack.decode(path.read_bytes(), type=OpenRounds).reports.get("csp", {}))
    left = shutil.ignore_patterns(".*")  # files that are being written
    shutil.copytree(tmp_path / "two", tmp_path / "three", ignore=left)  # as the disk is after kill -9
    again = Recorder(tmp_path / "three", plan(), done=2)
    lines = end(through)
    assert lines == end(again)
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert lines[1]["bytes_up"]["csp"] == 33
    killed.close()


def test_a_round_that_was_closed_and_not_committed_is_forgotten(tmp_path: Path) -> None:
    one = Recorder(tmp_path, plan())
    rounds(one, 3)
    one.close()
    again = Recorder(tmp_path, plan(), done=1)
    assert again.status.done == 1
    rounds(again, 3, first=2)
    again.ended()
    again.close()
    assert [line["round"] for line in read_lines(tmp_path / "metrics.jsonl")] == [1, 2, 3]


def test_a_round_that_was_committed_and_not_closed_has_a_line_without_notes(tmp_path: Path) -> None:
    one = Recorder(tmp_path, plan())
    rounds(one, 1)
    one.close()
    again = Recorder(tmp_path, plan(), done=2)
    rounds(again, 3, first=3)
    again.ended()
    again.close()
    lines = read_lines(tmp_path / "metrics.jsonl")
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert lines[1]["notes"] == {"unrecorded": True}
    assert load(tmp_path).result.done == 3


def test_a_folder_of_another_federation_or_process_is_refused(tmp_path: Path) -> None:
    one = Recorder(tmp_path, plan())
    with pytest.raises(UserError, match="another run is at work"):
        Recorder(tmp_path, plan())
    one.close()
    with pytest.raises(UserError, match="another federation"):
        Recorder(tmp_path, plan(session=b"t" * 16))
    Recorder(tmp_path, plan()).close()  # neither error keeps the lock


def test_a_simulations_folder_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"round": 1}\n')
    with pytest.raises(UserError, match="no deployment's"):
        Recorder(tmp_path, plan())
    assert (tmp_path / "metrics.jsonl").read_text() == '{"round": 1}\n'


# -- reports are hostile -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"scores": scores(1.5)},
        {"scores": scores(math.nan)},
        {"scores": scores(0.5, math.nan)},
        {"busy_s": math.nan},
        {"busy_s": -1.0},
        {"busy_s": math.inf},
        {"bytes_up": 1 << 62},
        {"commit": 1 << 62},
        {"refused": {"Train": 1 << 62}},
    ],
    ids=str,
)
def test_a_report_that_says_what_cannot_be_is_dropped_and_counted(recorder: Recorder, wrong: dict[str, Any]) -> None:
    recorder.began((1, 0))
    recorder.heard("client/0", told(1, **wrong))
    recorder.closed(RoundOutcome(1))
    recorder.ended()
    one = next(one for one in recorder.status.parties if one.name == "client/0")
    assert one.implausible == 1
    assert one.bytes_up == 0
    assert one.commit == 0
    (line,) = read_lines(recorder.folder / "metrics.jsonl")
    assert "local_accuracy" not in line
    assert "participant" not in line["bytes_up"]


@pytest.mark.parametrize("era", [(2, 0), (1, 1), (9, 0), (1 << 61, 0)])
def test_a_report_of_what_has_not_begun_is_dropped(recorder: Recorder, era: tuple[int, int]) -> None:
    recorder.began((1, 0))
    recorder.heard("client/0", told(era))
    assert next(one for one in recorder.status.parties if one.name == "client/0").implausible == 1


def test_reports_of_a_round_come_for_two_more_rounds_and_then_no_more(recorder: Recorder) -> None:
    """A hub that ends a round without waiting for anybody hears of it later."""
    for r in (1, 2, 3):
        recorder.began((r, 0))
        recorder.closed(RoundOutcome(r))
        if r == 2:
            recorder.heard("client/0", told(1, scores=scores(0.5)))
    recorder.heard("client/1", told(1, scores=scores(0.9)))
    recorder.heard("client/1", told(2, scores=scores(0.25)))
    recorder.heard("client/1", told(3, scores=scores(0.75)))
    recorder.ended()
    lines = read_lines(recorder.folder / "metrics.jsonl")
    assert [line["local_accuracy"] for line in lines] == [0.5, 0.25, 0.75]
    assert all(one.implausible == 0 for one in recorder.status.parties)


def test_a_line_is_written_when_all_have_reported(recorder: Recorder) -> None:
    recorder.began((1, 0))
    recorder.closed(RoundOutcome(1))
    recorder.began((2, 0))
    others = [one.name for one in recorder.status.parties][1:]
    for name in others:
        assert recorder.status.scores == {}
        recorder.heard(name, told(1, closed=False))
    for name in others:
        assert read_lines(recorder.folder / "metrics.jsonl") == []
        recorder.heard(name, told(1, scores=scores(0.5)))
    assert [line["round"] for line in read_lines(recorder.folder / "metrics.jsonl")] == [1]
    assert recorder.status.scores["local_accuracy"] == 0.5
    assert load(recorder.folder).result.done == 1


def test_a_model_that_comes_with_the_next_round_is_scored_in_the_next_report(tmp_path: Path) -> None:
    """And its line waits for that report, also of a round's last attempt."""
    made = Recorder(tmp_path / "run", plan("fedavg"))

    def known() -> list[float]:
        return [line["local_accuracy"] for line in read_lines(tmp_path / "run" / "metrics.jsonl")]

    def report(r: int, *attempts: int) -> None:
        for attempt in attempts:
            for name in CLIENTS:
                made.heard(name, told((r, attempt), scores=scores(0.1 * r + 0.01 * attempt)))

    made.began((1, 0))
    made.closed(RoundOutcome(1))
    made.began((2, 0))
    report(1, 0)
    made.began((2, 1))
    report(2, 0)
    assert known() == []
    made.closed(RoundOutcome(2, attempts=["lost"]))
    made.began((3, 0))
    report(2, 1)
    assert known() == pytest.approx([0.21])
    made.closed(RoundOutcome(3))
    made.began((4, 0))
    made.closed(RoundOutcome(4))  # which waits for nobody
    report(3, 0)
    assert known() == pytest.approx([0.21, 0.3])
    report(4, 0)
    made.ended()
    assert known() == pytest.approx([0.21, 0.3, 0.4])
    assert made.status.scores["local_accuracy"] == pytest.approx(0.4)
    made.close()
    assert load(tmp_path / "run").result.local_accuracy == pytest.approx(0.4)


def test_a_report_of_a_stranger_changes_nothing(recorder: Recorder) -> None:
    before = recorder.status
    recorder.heard("client/99", told(0))
    recorder.seen("client/99")
    recorder.missed("client/99", "gone")
    after = recorder.status
    assert msgspec.structs.replace(after, written=0.0) == msgspec.structs.replace(before, written=0.0)


def test_scores_count_only_if_the_plan_allows_them_and_a_client_sends_them(recorder: Recorder) -> None:
    recorder.began((1, 0))
    recorder.heard("client/0", told(1, scores={"local_accuracy": 0.5, "weight_0": 0.25}))
    recorder.heard("csp", told(1, scores={"local_accuracy": 1.0}))
    recorder.closed(RoundOutcome(1))
    recorder.ended()
    (line,) = read_lines(recorder.folder / "metrics.jsonl")
    assert line["local_accuracy"] == 0.5
    assert line["reported"] == {"local_accuracy": 1}
    assert "metrics" not in line
    assert "weight_0" not in (recorder.folder / "open.bin").read_bytes().decode(errors="replace")


def test_kinds_of_refusals_are_a_closed_set(recorder: Recorder) -> None:
    """A party cannot write words of its own into the operator's files, nor grow them."""
    recorder.began((1, 0))
    recorder.heard("client/0", told(1, refused={f"\x1b[2J{i}": 1 for i in range(1000)} | {"Train": 2, "packet": 3}))
    (one,) = (one for one in recorder.status.parties if one.name == "client/0")
    assert one.refused == {"other": 1000, "Train": 2, "packet": 3}
    assert {"Train", "Upload", "Granted"} <= {kind.__name__ for kind in registry.get("fedcaprivacy").kinds()}


def test_a_party_may_claim_what_it_wants_of_a_loss_that_has_blown_up(recorder: Recorder) -> None:
    """An infinite loss is a model that has blown up: it is counted, and stands as not measured."""
    check = Check(recorder.config, ["local_loss"])
    assert check(told(1, scores={"local_loss": math.inf}), "client", "client") is not None
    assert check(told(1, scores={"local_loss": 1e300}), "client", "client") is None  # no picture could show it


# -- status ------------------------------------------------------------------------------------------------------------


def test_the_status_file_says_what_the_operator_must_know(recorder: Recorder) -> None:
    recorder.began((1, 0))
    recorder.present(["csp", "client/0", "stranger"])
    recorder.missed("client/1", "late")
    recorder.heard("client/2", told(1, refused={"Train": 1}))
    recorder.heard("client/3", told(1, rolled_back=True))
    recorder.close()
    status = read_status(recorder.folder)
    assert status == read_status(recorder.folder.parent)
    assert (status.phase, status.round, status.rounds, status.clients) == ("round", 1, 3, 4)
    by_name = {one.name: one for one in status.parties}
    assert list(by_name) == ["business_server", "key_centre", "csp", *CLIENTS]
    assert by_name["csp"].connected
    assert not by_name["client/1"].connected
    assert by_name["client/1"].missed == {"late": 1}
    assert by_name["client/1"].last_seen is None
    assert by_name["client/2"].refused == {"Train": 1}
    assert by_name["client/2"].last_seen is not None
    assert by_name["client/3"].rolled_back
    roster = plan().roster
    assert all(by_name[one.name].fingerprint == fingerprint(one) for one in roster.entries)
    assert len({one.fingerprint for one in status.parties}) == len(status.parties)
    assert (recorder.folder / "status.json").stat().st_mode & 0o777 == 0o600


def test_the_status_counts_skipped_rounds_and_shows_no_scores_of_theirs(recorder: Recorder, cli: Command) -> None:
    """Parties report scores there, too: of models that have not moved, and only of those that were there."""
    rounds(recorder, 2)
    recorder.closed(RoundOutcome(3, {"participants": 4, "skipped": "2 uploads are too few"}))
    for name in CLIENTS:
        recorder.heard(name, told(2, scores=scores(0.8)))
        recorder.heard(name, told(3, scores=scores(0.3) if name == CLIENTS[0] else {}))
    recorder.ended()
    line = read_lines(recorder.folder / "metrics.jsonl")[-1]
    assert (line["local_accuracy"], line["reported"]["local_accuracy"]) == (pytest.approx(0.3), 1)
    status = recorder.status
    assert (status.done, status.skipped) == (3, 1)
    assert (status.scores["local_accuracy"], status.reported["local_accuracy"]) == (pytest.approx(0.8), 4)
    recorder.close()
    shown = " ".join(cli("deploy", "status", str(recorder.folder)).out.split())
    assert "3 rounds done, 1 of them skipped" in shown
    assert "Scores of the last round that was not skipped: local accuracy 80.0 %" in shown


def test_members_that_have_not_joined_and_that_are_revoked_are_shown(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, plan(joined=3))
    assert [one.name for one in recorder.status.parties if not one.fingerprint] == ["client/3"]
    recorder.renewed(msgspec.structs.replace(plan(version=2), revoked=("client/0",)))
    parties = {one.name: one for one in recorder.status.parties}
    assert parties["client/3"].fingerprint
    assert parties["client/0"].revoked
    assert recorder.status.plan == 2
    recorder.close()


def test_a_hub_that_writes_no_more_shows(recorder: Recorder) -> None:
    status = recorder.status
    assert is_alive(status, status.written + 1)
    assert not is_alive(status, status.written + 60)
    recorder.fail("the set-up failed: nobody came")
    assert recorder.status.phase == "failed"
    assert not is_alive(recorder.status, time.time())


def test_the_heartbeat_and_changes_are_written(recorder: Recorder) -> None:
    path = recorder.folder / "status.json"
    recorder.began((1, 0))
    wait_for(lambda: path.exists() and read_status(recorder.folder).round == 1)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"system": 3}', b"\xff\xfe"])
def test_a_damaged_status_is_a_clear_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "status.json").write_bytes(content)
    with pytest.raises(UserError, match=r"status\.json"):
        read_status(tmp_path)
    with pytest.raises(UserError, match="no hub has begun"):
        read_status(tmp_path / "elsewhere")


def test_every_reason_of_the_hub_has_a_name(recorder: Recorder) -> None:
    names = [one.name for one in recorder.status.parties][1 : 1 + len(EXCLUDED)]
    recorder.began((1, 0))
    recorder.closed(RoundOutcome(1, gone=dict(zip(names, EXCLUDED.values(), strict=True))))
    missed = {one.name: [*one.missed] for one in recorder.status.parties if one.name in names}
    assert missed == {name: [why] for name, why in zip(names, EXCLUDED, strict=True)}


def test_what_the_hubs_node_tells_shows_in_the_status(recorder: Recorder) -> None:
    recorder.began((2, 1))
    recorder.late("client/3")
    recorder.present(["csp"])
    recorder.seen("client/2")
    status: RunStatus = recorder.status
    assert (status.round, status.attempt, status.phase) == (2, 1, "round")
    parties = {one.name: one for one in status.parties}
    assert parties["client/3"].missed == {"late": 1}
    assert parties["csp"].connected
    assert parties["client/2"].last_seen is not None


def test_the_largest_numbers_that_are_believed_can_be_stored_after_many_rounds(recorder: Recorder) -> None:
    """Else a party that reports them in each round would end the hub where it writes their sum."""
    most = {"bytes_up": 1 << 50, "bytes_down": 1 << 50, "refused": dict.fromkeys(map(str, range(256)), 1 << 40)}
    checked = recorder._check(told(0, **most), "client", "client")
    assert checked is not None
    sums = Traffic(refused=dict.fromkeys(map(str, range(256)), (1 << 62) - 1))
    for _ in range(1 << 11):
        sums.add(checked)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sums), type=Traffic) == sums
    assert sums.bytes_up >= 1 << 60


# -- the run folder of a deployment, and the commands for run folders: each works, or refuses and changes nothing --


FOLDER = Path("d/run")
CONFIG = str(FOLDER / "config.toml")


def made(state: str) -> dict[str, bytes]:
    """A run folder, and all its files. state: ``ended``, ``begun`` before its first round is over, or ``copied``
    without the private files.
    """
    recorder = Recorder(FOLDER, plan())
    if state != "begun":
        rounds(recorder, 3)
        recorder.ended()
    recorder.close()
    if state == "copied":
        for name in ("status.json", "open.bin", ".lock"):
            (FOLDER / name).unlink()
    return everything(FOLDER)


@pytest.mark.parametrize(
    "words",
    [
        "run --resume --out d/run",
        "run --resume --rounds 9 --out d/run",
        f"run --config {CONFIG} --resume --out d/run",
        "run fedavg --out d/run",
        "compare fedavg local --rounds 1 --out d/run",
        "compare fedavg local --rounds 1 --resume --out d/run",
        "reproduce pafed/parts --only fashion_mnist-mlp/0/decaying/fedadmm_drop --rounds 1 --seeds 1 --out d/run",
    ],
)
def test_nothing_but_its_hub_writes_in_it(cli: Command, words: str) -> None:
    nobody_writes(cli, words, "ended")


@pytest.mark.parametrize("state", ["begun", "copied"])
def test_nothing_but_its_hub_writes_in_it_at_any_time(cli: Command, state: str) -> None:
    nobody_writes(cli, "run --resume --out d/run", state)


def nobody_writes(cli: Command, words: str, state: str) -> None:
    before = made(state)
    ended = cli(*words.split())
    assert ended.code == 2
    assert "holds the run of a deployment, which only its hub continues" in ended.err
    assert ended.err.count("Error:") == 1
    assert everything(FOLDER) == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("export d/run --client client/0 --out m.safetensors", "whose models are with its parties alone"),
        ("predict d/run new.npz --client client/0", "whose models are with its parties alone"),
        ("audit d/run", "of which nobody has all views"),
        ("audit d/run --active", "of which nobody has all views"),
        ("report d", "name the run folder, d/run"),
    ],
)
def test_what_nobody_has_is_refused_in_words(cli: Command, words: str, says: str) -> None:
    before = made("ended")
    Path("d/config.toml").touch()  # of the operator's folder
    ended = cli(*words.split())
    assert ended.code == 2
    assert says in ended.err
    assert "--config" not in ended.err
    assert everything(FOLDER) == before


def test_a_report_needs_a_round(cli: Command) -> None:
    made("begun")
    ended = cli("report", "d/run")
    assert (ended.code, "no round of this deployment is over yet" in ended.err) == (2, True)
    assert "--resume" not in ended.err


def test_a_rehearsal_may_be_repeated_with_its_views(cli: Command) -> None:
    made("ended")
    result = json.loads((FOLDER / "result.json").read_text())
    result["deployment"]["rehearsal"] = True
    (FOLDER / "result.json").write_text(json.dumps(result))
    assert f"coterie run --config {CONFIG} --record" in cli("audit", "d/run").err
    exported = cli("export", "d/run", "--client", "client/0", "--out", "m.safetensors")
    assert f"coterie run --config {CONFIG} --out" in exported.err
    assert "which only its hub continues" in cli("run", "--resume", "--out", "d/run").err
