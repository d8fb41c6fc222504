"""The operator: certificates that fit nobody else, members that join again or never more, and how it all begins."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deployments import CLIENTS, FACTS, NOW_S, Study, asked, everything, members, refused, samples

from coterie.crypto import certificates
from coterie.crypto.roster import entry
from coterie.crypto.signing import SigningKey
from coterie.deploy.home import hub_home, plan_of, take_plan
from coterie.deploy.plan import fingerprint
from coterie.deploy.plan_file import PlanFile
from coterie.operate import authority, founding, joining, runs, tokens
from coterie.operate.folder import Folder, current_plan, read_joined
from coterie.operate.members import PlannedMember
from coterie.operate.server import access_of
from coterie.protocol.errors import PeerError, UserError
from coterie.runs.config import RunConfig

change = msgspec.structs.replace


# -- certificates -----------------------------------------------------------------------------------------------------


def test_a_certificate_of_somebody_else(study: Study, shared_study: Study) -> None:
    home, request = study.join(study.invite())
    other = study.enrol("hospital-b", "other")
    theirs = study.folder.certificate_file("hospital-b").read_text()
    before = everything(home.path)
    with pytest.raises(UserError, match="it is the certificate of 'hospital-b'"):
        joining.accept(home, theirs, NOW_S)
    good = tokens.read_certificate(study.approve(request).certificate.read_text(), home.operator)
    operator = SigningKey((study.folder.authority / "signing").read_bytes())
    wrong = {
        "another key": change(good, tls=read_joined(study.folder, "hospital-b").certificate),
        "not signed by this": change(good, authority=shared_study.folder.ca.read_bytes()),
        "does not have the keys": change(good, plan=other.plan.read_bytes()),
        "are no plan": change(good, plan=b"x"),
    }
    wrong["of 'CN=hospital-b'"] = wrong.pop("another key")
    for says, forged in wrong.items():
        with pytest.raises(UserError, match=says):
            joining.accept(home, tokens.approved(forged, operator), NOW_S)
    with pytest.raises(UserError, match="signature is not one of"):
        joining.accept(home, tokens.approved(good, SigningKey(bytes(32))), NOW_S)
    with pytest.raises(UserError, match="valid from"):
        joining.accept(home, tokens.approved(good, operator), NOW_S + 400 * 86400)
    assert everything(home.path) == before
    joining.accept(home, tokens.approved(good, operator), NOW_S)
    assert plan_of(home).version == 3


def test_a_certificate_from_before_a_newer_plan(study: Study) -> None:
    home = study.enrol()
    old = study.folder.certificate_file("hospital-a").read_text()
    study.enrol("hospital-b", "other")
    take_plan(home, study.folder.plan.read_bytes())
    before = everything(home.path)
    with pytest.raises(UserError, match="version 3 was seen before"):
        joining.accept(home, old, NOW_S)
    assert everything(home.path) == before


# -- again, and never more --------------------------------------------------------------------------------------------


def test_a_party_that_lost_its_disk_joins_again(study: Study) -> None:
    lost = study.enrol()
    first = study.folder.requests / "hospital-a.request"
    former = first.read_text()
    text = study.invite(again=True)
    home, request = study.join(text, "new")
    refused(study, asked(text, lost.identity), "is, or was, the key of hospital-a")
    approval = study.approve(request)
    assert (approval.plan.version, approval.plan.enrolled) == (3, {"hospital-a": 2})
    joining.accept(home, approval.certificate.read_text(), NOW_S)
    refused(study, former, "no open invitation")
    with pytest.raises(PeerError, match="does not have the keys"):
        take_plan(lost, study.folder.plan.read_bytes())
    pins = (study.folder.nats_conf).read_text()
    import hashlib

    for place, there in ((lost, False), (home, True)):
        der = certificates.public_of(place.tls_key.read_bytes())
        assert (hashlib.sha256(der).hexdigest() in pins) == there
    refused(study, asked(study.invite(again=True), lost.identity), "is, or was, the key of hospital-a")


def test_a_party_that_is_revoked(study: Study) -> None:
    home = study.enrol()
    study.enrol("hospital-b", "other")
    with pytest.raises(UserError, match="is the hub"):
        authority.revoke(study.path, "server")
    with pytest.raises(UserError, match="has not joined"):
        authority.revoke(study.path, "client/3")
    request = (study.folder.requests / "hospital-a.request").read_text()
    plan = authority.revoke(study.path, "hospital-a")
    told = study.folder.nats_conf.read_text()
    assert (plan.version, plan.revoked, len(plan.roster.entries)) == (4, ("hospital-a",), 3)
    assert '"CN=hospital-b"' in told
    assert '"CN=hospital-a"' not in told
    assert authority.revoke(study.path, "hospital-a").version == 4  # once more, if the server was not reached
    refused(study, request, "was revoked")
    assert take_plan(home, study.folder.plan.read_bytes()).revoked == ("hospital-a",)
    again, request = study.join(study.invite(again=True), "new")
    approval = study.approve(request)
    assert approval.plan.revoked == ()
    assert joining.accept(again, approval.certificate.read_text(), NOW_S).enrolled == {"hospital-a": 2}


def test_revoking_withdraws_an_invitation(study: Study) -> None:
    _, request = study.join(study.invite())
    with pytest.raises(UserError, match="is withdrawn"):
        authority.revoke(study.path, "hospital-a")
    refused(study, request, "no open invitation")


def test_who_joins_when_a_run_has_begun_takes_part_in_the_next(study: Study) -> None:
    """Also a member that is new to members.toml. A party with new keys goes on at once, and a revoked one never."""
    home = study.enrol()
    _, request = study.join(study.invite("hospital-b"), "other")
    (study.folder.hub / "state.bin").write_bytes(b"")
    with pytest.raises(UserError, match=r"no member.* is named in .*members\.toml first"):
        study.invite("hospital-f")
    with study.folder.members.open("a") as file:
        file.write('\n[[member]]\nname = "hospital-f"\nrole = "client"\n')
    _, new = study.join(study.invite("hospital-f"), "new")
    before = current_plan(study.folder)
    assert not study.approve(request).now
    assert not study.approve(new).now
    assert current_plan(study.folder) == before
    assert set(access_of(study.folder).parties) == {"server", home.name}
    study.approve(study.join(study.invite(again=True), "again")[1])
    assert current_plan(study.folder).enrolled == {home.name: 2}
    with pytest.raises(UserError, match="run 1 goes on: wait until it has ended, or run coterie deploy abort"):
        runs.start(study.path, now_s=NOW_S)
    authority.revoke(study.path, "hospital-b", now_s=NOW_S)
    runs.abort(study.path, now_s=NOW_S)
    with pytest.raises(UserError, match=r"run 1 of .* has ended already"):
        runs.abort(study.path, now_s=NOW_S)
    plan = runs.start(study.path, rounds=5, now_s=NOW_S)
    assert [name for name, _ in plan.members] == ["server", home.name, "hospital-f"]
    assert (plan.run, plan.resolved.rounds, plan.aborted, plan.session == before.session) == (2, 5, False, False)
    assert set(access_of(study.folder).parties) == {"server", home.name, "hospital-f"}
    assert study.folder.certificate_file("hospital-f").exists()
    assert [name for name, _ in runs.start(study.path, now_s=NOW_S).members] == ["server", home.name, "hospital-f"]


def test_a_run_that_waits_is_over_by_a_newer_one_which_aborts_nothing(study: Study) -> None:
    study.enrol()
    plans = PlanFile(study.folder.plan, hub_home(study.path), lambda here, away: None)
    assert not plans.over()
    runs.start(study.path, now_s=NOW_S)
    assert plans.over()
    assert (plans.present().run, plans.present().aborted) == (1, False)


# -- founding ---------------------------------------------------------------------------------------------------------


def test_a_folder_or_home_that_is_there(study: Study) -> None:
    before = everything(study.path)
    with pytest.raises(UserError, match="is there already"):
        study.found()
    text = study.invite()
    (study.at / "full").mkdir()
    (study.at / "full" / "x").write_text("")
    with pytest.raises(UserError, match="is there already"):
        study.join(text, "full")
    home, _ = study.join(text)
    with pytest.raises(UserError, match="is there already"):
        study.join(text)
    with pytest.raises(UserError, match="lies in the home"):
        study.join(text, "home/inner")
    assert {name for name in everything(study.path) if name not in before} == {".lock", "invitations/hospital-a.json"}
    assert sorted(one.name for one in home.path.iterdir()) == ["data.npz", "home.json", "keys", "request", "tls"]


def test_what_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Study(tmp_path)
    monkeypatch.setattr(founding, "admit", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        made.found()
    assert list(tmp_path.iterdir()) == []


def test_the_operators_keys_may_be_elsewhere(study: Study, shared_study: Study) -> None:
    text = study.invite()
    home, request = study.join(text)
    study.folder.authority.rename(study.at / "stick")
    for command in (lambda: study.invite("hospital-b"), lambda: study.approve(request)):
        with pytest.raises(UserError, match="operator's keys are not here"):
            command()
    assert hub_home(study.folder.path).name == "server"
    os.symlink(shared_study.folder.authority, study.folder.authority)
    with pytest.raises(UserError, match="another deployment's operator"):
        study.approve(request)
    study.folder.authority.unlink()
    (study.at / "stick").rename(study.folder.authority)
    assert fingerprint(study.approve(request).plan.roster.by_name[home.name]) == fingerprint(
        entry(home.name, home.role, home.identity)
    )


def test_a_folder_that_holds_no_deployment(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no deployment"):
        authority.invite(tmp_path, "hospital-a")


CIPHERING = [
    *(PlannedMember(role, role, f"{role}.org") for role in ("business_server", "csp", "key_centre")),
    PlannedMember("a", "participant"),
]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"settings": {"quorum": 4}}, "quorum of 4 is more than the 3 clients"),
        ({"public": "own.npz"}, "uses no public samples"),
        (
            {"settings": {"packet_gib": 8e-6}},
            r"has 2,410 parameters: a packet with it has 8\.98e-06 GiB or more, and 8e-06 GiB are allowed\. "
            r"Give deploy init a larger --packet-gib \(at most 3\)",
        ),
        (
            {"config": RunConfig("fedcaprivacy"), "named": CIPHERING, "settings": {"packet_gib": 1.5e-5}},
            r"a packet with it has 1\.8e-05 GiB or more",
        ),
        (
            {"config": RunConfig("ifca"), "settings": {"packet_gib": 2.5e-5}},
            r"a packet with 3 such models has 2\.69e-05 GiB or more",
        ),
        (
            {"settings": {"store_gib": 2e-5}},
            r"what waits at the server for 3 clients has 2\.69e-05 GiB or more.* Give deploy init a larger --store-gib",
        ),
        (
            {"config": RunConfig("ofl", settings={"leader_s": 301.0})},
            "leader_s=301 is more than half of the patience, 600",
        ),
        ({"named": members(())}, "no member has the role client"),
    ],
)
def test_what_cannot_be_founded(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    if "public" in options:
        options = {"public": samples(tmp_path / options["public"])}
    with pytest.raises(UserError, match=says):
        Study(tmp_path).found(**options)
    assert not (tmp_path / "study").exists()


def test_a_hub_with_public_samples(tmp_path: Path) -> None:
    from coterie.data.form import read_data
    from coterie.runs import registry

    study = Study(tmp_path)
    roles = tuple(registry.get("clsm_fl").parties(registry.get("clsm_fl").config()))
    named = [*(PlannedMember(role, role, f"{role}.org") for role in roles[:-1]), PlannedMember("a", roles[-1])]
    with pytest.raises(UserError, match="needs public samples"):
        study.found(RunConfig("clsm_fl"), named)
    plan = study.found(RunConfig("clsm_fl"), named, public=samples(tmp_path / "public.npz", 20))
    assert plan.settings.public == 20
    assert len(read_data(study.folder.hub / "data.npz", FACTS, tests=False).x) == 20


def test_two_operators_at_a_time_do_not_lose_a_member(study: Study) -> None:
    from concurrent.futures import ThreadPoolExecutor

    requests = [study.join(study.invite(name), f"home{i}")[1] for i, name in enumerate(CLIENTS)]
    with ThreadPoolExecutor(3) as pool:
        versions = sorted(approval.plan.version for approval in pool.map(study.approve, requests))
    assert versions == [2, 3, 4]
    assert not current_plan(Folder(study.path)).missing


# -- too few --


SERVERS = ("hub", "key_centre", "helper")


def of_coterie(clients: str) -> list[PlannedMember]:
    servers = [PlannedMember(role, role, f"{role}.example.org") for role in SERVERS]
    return [*servers, *(PlannedMember(name, "client") for name in clients)]


@pytest.fixture
def with_keys(tmp_path: Path) -> Study:
    """Coterie's key centre, helper and three clients, who have joined. Nobody has begun."""
    study = Study(tmp_path)
    study.found(RunConfig("coterie", settings={"clusters": 1}), of_coterie("abc"))
    for name in (*SERVERS[1:], *"abc"):
        study.approve(study.join(study.invite(name), name, data=name not in SERVERS)[1])
    return study


def test_no_plan_is_signed_of_a_run_that_cannot_be(tmp_path: Path, with_keys: Study) -> None:
    """By what the system itself says of its members: of those that are named, and later of those that are left."""
    few = Study(tmp_path / "few")
    with pytest.raises(UserError, match="at least 3 clients, not 2"):
        few.found(RunConfig("coterie", settings={"clusters": 1}), of_coterie("ab"))
    assert not few.path.exists()
    assert runs.start(with_keys.path, now_s=NOW_S).run == 2
    authority.revoke(with_keys.path, "c", now_s=NOW_S)
    before = everything(with_keys.path)
    with pytest.raises(UserError, match="at least 3 clients, not 2"):
        runs.start(with_keys.path, now_s=NOW_S)
    assert everything(with_keys.path) == before


def begins(folder: Folder) -> None:
    PlanFile(folder.plan, hub_home(folder.path), lambda here, away: None).check_begins()


def test_a_key_centre_deals_to_all_so_a_run_without_one_of_them_ends_before_it_begins(with_keys: Study) -> None:
    runs.start(with_keys.path, now_s=NOW_S)
    begins(with_keys.folder)
    authority.revoke(with_keys.path, "c", now_s=NOW_S)
    with pytest.raises(UserError, match=r"c was revoked before run 2 began, .* coterie deploy abort"):
        begins(with_keys.folder)


@pytest.mark.parametrize("name", SERVERS[1:])
def test_a_run_without_one_of_its_servers_does_not_begin_until_it_has_new_keys(with_keys: Study, name: str) -> None:
    authority.revoke(with_keys.path, name, now_s=NOW_S)
    with pytest.raises(UserError, match=rf"{name} was revoked before run 1 .* invite \S+ {name} --again"):
        begins(with_keys.folder)
    link = authority.invite(with_keys.path, name, again=True, now_s=NOW_S)
    with_keys.approve(with_keys.join(link, f"{name}-again", data=False)[1])
    begins(with_keys.folder)


def test_a_system_whose_members_make_their_keys_together_begins_without_one_of_them(tmp_path: Path) -> None:
    """tests/deploy/test_excluded.py runs such systems."""
    study = Study(tmp_path)
    settings = {"keys": "threshold", "clusters": 2, "rebuild": "none"}
    server = PlannedMember("server", "server", "server.example.org")
    study.found(RunConfig("mingledpie", settings=settings), [server, *of_coterie("abcd")[len(SERVERS) :]])
    for name in "abcd":
        study.approve(study.join(study.invite(name), name)[1])
    authority.revoke(study.path, "d", now_s=NOW_S)
    begins(study.folder)
