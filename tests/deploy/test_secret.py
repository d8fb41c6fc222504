"""Plans that the operator's key has signed, and by which a party would keep nothing secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from deployments import CLIENTS, Study
from msgspec.structs import replace

from coterie.crypto.signing import SigningKey
from coterie.deploy import plan as plans
from coterie.deploy.built_party import build_party
from coterie.deploy.home import Home, plan_of, take_plan
from coterie.protocol.errors import UserError


def joined(study: Study) -> Home:
    """A client of a deployment that all have joined, with the newest plan."""
    study.found()
    home, *_ = [study.enrol(name, f"home{number}") for number, name in enumerate(CLIENTS)]
    take_plan(home, study.folder.plan.read_bytes())
    return home


def test_a_party_does_not_follow_a_plan_that_keeps_nothing_secret(tmp_path: Path) -> None:
    study = Study(tmp_path)
    home = joined(study)
    assert build_party(home).party.name == "hospital-a"
    plan = plan_of(home)
    operator = SigningKey((study.folder.authority / "signing").read_bytes())
    shared = replace(plan.settings, rehearsal=True)
    emulated = plan.config.replace('crypto = "real"', 'crypto = "emulated"')
    assert emulated != plan.config
    for worse, why in (({"settings": shared}, "is a rehearsal"), ({"config": emulated}, "has emulated ciphers")):
        plan = replace(plan_of(home), version=plan.version + 1, settings=plan.settings, config=plan.config)
        take_plan(home, plans.sign(replace(plan, **worse), operator))
        with pytest.raises(UserError, match=why):
            build_party(home)
