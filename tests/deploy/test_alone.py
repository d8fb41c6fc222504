"""Processes that do not begin: a second one of a home, which would use the same numbers and masks, and one too late."""

from __future__ import annotations

from pathlib import Path

import pytest
from deployments import NOW_S, Study

from coterie.deploy.engine import EngineError, NotAdmittedError
from coterie.deploy.process import as_hub, as_party
from coterie.protocol.errors import RunError, UserError
from coterie.record.files import locked


def test_a_second_process_of_a_home_does_not_begin(tmp_path: Path) -> None:
    study = Study(tmp_path)
    study.found()
    home = study.enrol()
    before = {path.name for path in home.path.iterdir()}
    with locked(home.path), pytest.raises(UserError, match=r"home is at work in another process already"):
        as_party(home.path)
    with locked(study.folder.hub), pytest.raises(UserError, match=r"hub is at work in another process"):
        as_hub(study.path)
    assert {path.name for path in home.path.iterdir()} == before | {".lock"}


def test_a_plan_that_has_ended_begins_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study(tmp_path)
    study.found(days=2.0)
    home = study.enrol()
    monkeypatch.setattr("coterie.deploy.process.time.time", lambda: NOW_S + 3 * 86400)
    with pytest.raises(UserError, match="has ended, by its plan and this clock"):
        as_party(home.path)
    with pytest.raises(UserError, match="has ended, by its plan and this clock"):
        as_hub(study.path)


def test_a_party_that_is_not_admitted_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was revoked while it was away: that is no fault of the program, which the command line would ask to report."""

    def refuses(*_: object) -> None:
        raise problem

    problem: EngineError = NotAdmittedError("nats://hub:4222 does not admit hospital-a")
    study = Study(tmp_path)
    study.found()
    home = study.enrol()
    monkeypatch.setattr("coterie.deploy.process.connect", refuses)
    with pytest.raises(RunError, match=r"does not admit hospital-a\. Ask the operator why"):
        as_party(home.path)
    problem = EngineError("no connection to nats://hub:4222: it does not answer")
    with pytest.raises(RunError, match=r"it does not answer\. Started again, it goes on where it was"):
        as_party(home.path)
