"""Certificates end after a year, the authority's after ten; the same keys get new ones, and nobody has to stop."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deployments import CLIENTS, NOW_S, Study, everything
from typer.testing import CliRunner

from coterie.cli.app import app
from coterie.crypto import certificates
from coterie.crypto.certificates import DAY_S, validity
from coterie.crypto.signing import SigningKey
from coterie.deploy import home
from coterie.deploy import plan as plans
from coterie.deploy.home import Home, hub_home, plan_of, take_plan
from coterie.deploy.names import safe
from coterie.operate import server
from coterie.operate.authority import renew, revoke
from coterie.operate.doctor import doctor
from coterie.operate.folder import certificate_ends, current_plan
from coterie.operate.joining import accept
from coterie.operate.server import admit
from coterie.protocol.errors import PeerError, UserError

LATE_S = NOW_S + 340 * DAY_S
"""25 days before the first certificates end."""
change = msgspec.structs.replace


@pytest.fixture(scope="module")
def joined(founded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Study(tmp_path_factory.mktemp("joined"))
    shutil.copytree(founded, made.path)
    for name, place in zip(CLIENTS, "abc", strict=True):
        take_plan(made.enrol(name, place), made.folder.plan.read_bytes())
    return made.at


@pytest.fixture
def study(joined: Path, tmp_path: Path) -> Study:
    shutil.copytree(joined, tmp_path, dirs_exist_ok=True)
    admit(Study(tmp_path).folder)  # with the paths of the copy
    return Study(tmp_path)


def homes(study: Study) -> dict[str, Home]:
    return {name: home.read_home(study.at / place) for name, place in zip(CLIENTS, "abc", strict=True)}


def end(path: Path) -> float:
    return validity(path.read_bytes())[1]


def test_the_authority_is_valid_for_ten_years_and_all_others_for_one(study: Study) -> None:
    ends = certificate_ends(study.folder)
    assert ends.pop("authority") == NOW_S + 3650 * DAY_S
    assert ends == dict.fromkeys(("operator", "engine", "server", *CLIENTS), NOW_S + 365 * DAY_S)


def test_nothing_is_renewed_early(study: Study) -> None:
    before = everything(study.path)
    assert renew(study.path, now_s=NOW_S + 334 * DAY_S) == ()
    assert everything(study.path) == before


def test_all_are_renewed_with_the_same_keys_and_the_plan_brings_them(study: Study) -> None:
    before, pins = current_plan(study.folder), study.folder.nats_conf.read_text()
    keys = {name: one.tls_key.read_bytes() for name, one in homes(study).items()}
    assert renew(study.path, now_s=LATE_S) == ("server", *CLIENTS, "operator", "engine")
    plan = current_plan(study.folder)
    later_s = LATE_S + 365 * DAY_S
    assert change(plan, version=before.version, signed_s=before.signed_s, certificates={}) == change(
        before, settings=change(before.settings, not_after_s=later_s)
    )
    assert plan.version == before.version + 1
    assert study.folder.nats_conf.read_text() == pins  # the keys are the same
    assert {*certificate_ends(study.folder).values()} == {later_s, NOW_S + 3650 * DAY_S}
    for name, one in homes(study).items():
        take_plan(one, study.folder.plan.read_bytes())
        assert end(one.certificate) == later_s
        public = certificates.public_of(keys[name])
        certificates.check(one.certificate.read_bytes(), one.ca.read_bytes(), safe(name), public, later_s - 1)
        assert one.tls_key.read_bytes() == keys[name]
    assert end(hub_home(study.path).certificate) == later_s
    found = doctor([study.path, *(study.at / place for place in "abc")], later_s - 31 * DAY_S)
    assert not any("certificate" in one.text for one in found)
    assert renew(study.path, now_s=LATE_S) == ()


def test_a_certificate_that_has_ended_is_replaced_by_a_paper(study: Study) -> None:
    """As ``doctor`` advises. Neither an earlier paper nor an earlier plan brings the earlier certificate back."""
    first = (study.folder.certificate_file("hospital-a").read_text(), study.folder.plan.read_bytes())
    after_s, one = NOW_S + 400 * DAY_S, homes(study)["hospital-a"]
    renew(study.path, ["hospital-a"], now_s=after_s)
    accept(one, study.folder.certificate_file("hospital-a").read_text(), after_s)
    assert end(one.certificate) == plan_of(one).settings.not_after_s == after_s + 365 * DAY_S
    before = everything(one.path)
    with pytest.raises(UserError, match="was seen before"):
        accept(one, first[0], NOW_S)
    with pytest.raises(PeerError, match="was seen before"):
        take_plan(one, first[1])
    assert everything(one.path) == before
    assert end(homes(study)["hospital-b"].certificate) == NOW_S + 365 * DAY_S


def test_a_party_that_joins_again_has_no_renewed_certificate_of_its_former_keys(study: Study) -> None:
    renew(study.path, now_s=LATE_S)
    again, request = study.join(study.invite(again=True, now_s=LATE_S), "new", now_s=LATE_S)
    accept(again, study.approve(request, now_s=LATE_S).certificate.read_text(), LATE_S)
    plan = current_plan(study.folder)
    assert plan.certificates.keys() == {"server", "hospital-b", "client/3"}
    assert end(again.certificate) == plan.settings.not_after_s


def test_who_has_no_certificate_gets_none(study: Study) -> None:
    revoke(study.path, "hospital-b", now_s=NOW_S)
    before = everything(study.path)
    for name, says in (("hospital-b", "was revoked: it has no certificate"), ("hospital", "did you mean")):
        with pytest.raises(UserError, match=says):
            renew(study.path, ["hospital-a", name], now_s=LATE_S)
    assert everything(study.path) == before
    assert "hospital-b" not in renew(study.path, everyone=True, now_s=NOW_S)
    with pytest.raises(UserError, match="the authority's own certificate ends"):
        renew(study.path, now_s=NOW_S + 3640 * DAY_S)
    renew(study.path, everyone=True, now_s=NOW_S + 3600 * DAY_S)
    assert {*certificate_ends(study.folder).values()} == {NOW_S + 3650 * DAY_S}  # none outlives the authority


@pytest.mark.parametrize("what", ["another key", "another name", "another authority"])
def test_a_plan_with_a_wrong_certificate_is_refused(study: Study, what: str, tmp_path_factory: Any) -> None:
    one = homes(study)["hospital-a"]
    ca, key = study.folder.ca.read_bytes(), (study.folder.authority / "ca.pem").read_bytes()
    name, public = "hospital-a", certificates.public_of(one.tls_key.read_bytes())
    if what == "another key":
        public = certificates.public_of(certificates.new_key())
    elif what == "another name":
        name = "hospital-b"
    else:
        key = certificates.new_key()
        ca = certificates.new_authority(key, NOW_S, 3650)
    forged = certificates.sign(ca, key, safe(name), public, LATE_S, 365)
    plan = current_plan(study.folder)
    operator = SigningKey((study.folder.authority / "signing").read_bytes())
    data = plans.sign(change(plan, version=plan.version + 1, certificates={"hospital-a": forged}), operator)
    before = everything(one.path)
    with pytest.raises(PeerError, match=r"the certificate is (of|not signed)"):
        take_plan(one, data)
    assert everything(one.path) == before


def test_the_command(study: Study) -> None:
    """By the machine's clock, which is before NOW_S."""
    assert time.time() < NOW_S
    said = CliRunner().invoke(app, ["deploy", "renew", str(study.path), "--offline"])
    assert "nothing to renew" in said.output
    said = CliRunner().invoke(app, ["deploy", "renew", str(study.path), "--all", "--offline", "--days", "700"])
    assert said.exit_code == 0, said.output
    assert "Renewed: server, hospital-a, hospital-b, client/3, operator, the NATS server." in said.output
    assert "run coterie deploy server" in said.output


def test_a_slow_command_leaves_no_older_configuration_of_the_server(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read the plan before another command approves a party, and writes after that one."""
    newest, told = server.configuration_of, iter(["the one before"])
    monkeypatch.setattr(server, "configuration_of", lambda *args: next(told, None) or newest(*args))
    admit(study.folder)
    place = study.folder.nats.absolute()
    assert study.folder.nats_conf.read_text() == newest(study.folder, place, current_plan(study.folder))
