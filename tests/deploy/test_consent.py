"""What an operator could do to let a party's data be used for something to which its owner has not agreed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deployments import Study, everything
from typer.testing import CliRunner

from coterie.cli import deploy_runs
from coterie.cli.app import app
from coterie.crypto.roster import sign_roster
from coterie.crypto.signing import SigningKey
from coterie.deploy.home import RUNS, STATE, Home, agree, has_agreed, plan_of, take_back, take_plan
from coterie.deploy.plan import Plan
from coterie.protocol.errors import PeerError
from tests.deploy.test_plan import change, signed_by


@pytest.fixture
def study(tmp_path: Path) -> Study:
    made = Study(tmp_path)
    made.found()
    return made


@pytest.fixture
def home(study: Study) -> Home:
    return study.enrol()


def renamed(study: Study, plan: Plan, session: bytes | None = None, **changes: Any) -> Plan:
    """The next version, with another roster of these entries, which the operator signs."""
    entries = changes.pop("entries", plan.roster.entries)
    key = SigningKey((study.folder.authority / "signing").read_bytes())
    roster = sign_roster(entries, key, session or plan.roster.session)
    return change(plan, version=plan.version + 1, roster=roster, **changes)


def another_run(study: Study, plan: Plan, **changes: Any) -> Plan:
    run = plan.run + 1
    return renamed(study, plan, bytes([run]) * 16, run=run, **changes)


def test_a_plan_that_is_refused_takes_no_state_away(study: Study, home: Home) -> None:
    """Else the party would go on in its run from nothing: with pads, numbers and an account that were used before."""
    home.state.write_bytes(b"what it has used")
    before = everything(home.path)
    plan = another_run(study, plan_of(home), certificates={"hospital-a": study.folder.ca.read_bytes()})
    with pytest.raises(PeerError, match="certificate"):
        take_plan(home, signed_by(study, plan))
    assert everything(home.path) == before


def test_a_party_that_is_killed_while_it_takes_a_plan_keeps_its_state(
    study: Study, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.state.write_bytes(b"what it has used")
    new, old = signed_by(study, another_run(study, plan_of(home))), home.plan.read_bytes()
    take_plan(home, new)
    assert not home.state.exists()
    home.plan.write_bytes(old)  # as if it had been killed before this one was written
    take_back(home, plan_of(home))
    assert home.state.read_bytes() == b"what it has used"
    take_plan(home, new)
    take_back(home, plan_of(home))
    assert not home.state.exists()
    assert (home.path / RUNS / "1" / STATE).read_bytes() == b"what it has used"


def test_nobody_joins_a_run_to_which_owners_have_agreed_without_them(study: Study, home: Home) -> None:
    plan = plan_of(home)
    more = renamed(study, plan, members=(*plan.members, ("nobody", plan.client_role)))
    with pytest.raises(PeerError, match="changes the terms of run 1"):
        take_plan(home, signed_by(study, more))


def test_a_client_does_not_become_a_server(study: Study, home: Home) -> None:
    plan = plan_of(home)
    ours = change(plan.roster.by_name[home.name], role="server")
    entries = (ours, *(one for one in plan.roster.entries if one.name != home.name))
    members = tuple((name, "server" if name == home.name else role) for name, role in plan.members)
    new = another_run(study, plan, entries=entries, members=members)
    assert new.roster.hub == home.name  # of whose owner no agreement would be asked
    with pytest.raises(PeerError, match="another role"):
        take_plan(home, signed_by(study, new))


def test_the_owner_is_shown_what_has_changed_since_the_run_to_which_she_agreed(study: Study, home: Home) -> None:
    """Of the runs between she was told nothing; and new keys are new parties."""
    plan = plan_of(home)
    second = another_run(study, plan, config=plan.config.replace("\nrounds = ", "\nrounds = 9"))
    hub = change(plan.roster.entries[0], verify_key=plan.roster.by_name[home.name].verify_key)
    third = another_run(study, second, entries=(hub, *plan.roster.entries[1:]))
    for new in (second, third):
        take_plan(home, signed_by(study, new))
    rounds = plan.resolved.rounds
    assert list(deploy_runs.changes(home)) == [
        f"rounds: {rounds}, now 9{rounds}",
        f"with other keys: {plan.roster.hub}",
    ]
    assert not has_agreed(home, plan_of(home))
    agree(home, plan_of(home))
    take_plan(home, signed_by(study, another_run(study, third)))
    assert list(deploy_runs.changes(home)) == [f"rounds: 9{rounds}, now 9{rounds}"]


def test_no_words_of_the_operator_write_over_what_the_owner_reads(study: Study, home: Home) -> None:
    plan = plan_of(home)
    scores = ("\x1b[2K\rnothing\nPlan: version 7",)
    take_plan(home, signed_by(study, another_run(study, plan, settings=change(plan.settings, scores=scores))))
    said = CliRunner().invoke(app, ["deploy", "agree", "--home", str(home.path), "--yes"])
    assert said.exit_code == 0, said.output
    assert "\x1b" not in said.output
    assert [line[:5] for line in said.output.splitlines()].count("Plan:") == 1


def test_what_is_agreed_to_is_what_was_shown(study: Study, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = another_run(study, plan_of(home))
    take_plan(home, signed_by(study, shown))
    read = deploy_runs.changes

    def changes(own: Home) -> Any:
        yield from read(own)
        take_plan(own, signed_by(study, another_run(study, shown)))

    monkeypatch.setattr(deploy_runs, "changes", changes)
    said = CliRunner().invoke(app, ["deploy", "agree", "--home", str(home.path), "--yes"])
    assert (said.exit_code, has_agreed(home, plan_of(home))) == (2, False)
    assert "another hash" in said.output
    assert plan_of(home).sha256 != shown.sha256


def test_settings_are_shown_in_words_with_what_was_released_so_far(study: Study, home: Home) -> None:
    plan = plan_of(home)
    settings = change(plan.settings, grace_s=7.0, not_after_s=2_000_000_000.0)
    take_plan(home, signed_by(study, another_run(study, plan, settings=settings)))
    said = CliRunner().invoke(app, ["deploy", "agree", "--home", str(home.path), "--yes"]).output
    assert f"seconds that a party may be away: {plan.settings.grace_s}, now 7.0" in said
    assert "now 2033-05-18" in said
    assert f"{home.name} has released of its data so far: nothing that this home knows of" in said
    assert "grace_s" not in said
