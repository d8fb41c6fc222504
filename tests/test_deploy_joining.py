"""Joining: an invitation is used once, by the party that holds its keys, and every other way in is refused."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deployments import CLIENTS, FACTS, NOW_S, Study, everything, members, samples
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.crypto.roster import new_identity
from coterie.crypto.signing import SigningKey
from coterie.deploy import authority, certificates, founding, joining, tokens
from coterie.deploy.folder import Folder, current_plan, hub_home, read_joined
from coterie.deploy.home import Home, plan_of, read_home, take_plan
from coterie.deploy.plan import fingerprint
from coterie.protocol.errors import PeerError, UserError
from coterie.protocol.randomness import Randomness
from coterie.protocol.told import Identity
from coterie.runs.config import RunConfig

change = msgspec.structs.replace
EMULATED = Randomness(3, emulated=True)


@pytest.fixture
def study(tmp_path: Path) -> Study:
    made = Study(tmp_path)
    made.found()
    return made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """One that no test changes."""
    made = Study(tmp_path_factory.mktemp("shared"))
    made.found()
    return made


# -- the whole way ----------------------------------------------------------------------------------------------------


def test_the_whole_way(study: Study) -> None:
    homes = [study.enrol(name, f"home{i}", again=False) for i, name in enumerate(CLIENTS)]
    plan = current_plan(study.folder)
    assert (plan.version, plan.complete, plan.settings.quorum) == (4, True, 3)
    assert [one.name for one in plan.roster.entries] == ["server", *CLIENTS]
    for home in homes:
        take_plan(home, study.folder.plan.read_bytes())
        assert plan_of(home) == plan
        assert home.identity != homes[0].identity or home is homes[0]
        public = certificates.public_of(home.tls_key.read_bytes())
        certificates.check(home.certificate.read_bytes(), home.ca.read_bytes(), home.name, public, NOW_S)
    assert plan_of(hub_home(study.folder)) == plan
    assert len({home.seed() for home in homes}) == 3
    assert (homes[0].server, homes[0].about.facts) == ("nats://hub.example.org:4222", FACTS)


def test_members_may_join_in_any_order(study: Study) -> None:
    for i, name in enumerate(reversed(CLIENTS)):
        study.enrol(name, f"home{i}")
    assert [one.name for one in current_plan(study.folder).roster.entries] == ["server", *CLIENTS]


def test_servers_join_without_data(tmp_path: Path) -> None:
    from coterie.deploy.members import Member

    study = Study(tmp_path)
    named = [Member(role, role, f"{role}.example.org") for role in ("business_server", "key_centre", "csp")]
    study.found(RunConfig("fedcaprivacy"), [*reversed(named), Member("client/0", "participant")])
    text = study.invite("csp")
    with pytest.raises(UserError, match="has no samples"):
        study.join(text)
    home, request = study.join(text, data=False)
    assert not home.data.exists()
    assert study.approve(request).plan.roster.by_name["csp"].role == "csp"


def test_everything_is_private(study: Study) -> None:
    home = study.enrol()
    for place in (
        home.path,
        *(study.path / name for name in ("authority", "invitations", "members", "requests", "hub")),
    ):
        for path in (place, *place.rglob("*")):
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode == (0o700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE((study.folder.nats / "key.pem").stat().st_mode) == 0o600


def test_no_paper_holds_a_secret(study: Study) -> None:
    from coterie.deploy.doctor import doctor

    text = study.invite()
    home, request = study.join(text)
    certificate = study.approve(request).certificate.read_text()
    (study.at / "papers").mkdir()
    inner = study.path / "papers"
    inner.mkdir()
    for name, paper in {"token": text, "request": request, "certificate": certificate}.items():
        _, _, armoured = paper.strip().partition(":")
        (inner / name).write_bytes(tokens.base64.urlsafe_b64decode(armoured))
    found = [one for one in doctor([study.path, home.path], NOW_S) if one.level == "problem"]
    assert found == []


def test_an_interrupted_approval_goes_on(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    _, request = study.join(study.invite())
    for part in ("_publish", "admit"):
        with monkeypatch.context() as broken:
            broken.setattr(authority, part, lambda *args, **kwargs: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                study.approve(request)
        _, other = another(study)
        with pytest.raises(UserError, match=r"used before|no open invitation"):
            study.approve(other)
    assert study.approve(request).plan.version == 2
    assert study.approve(request).plan.version == 2
    assert study.folder.certificate_file("hospital-a").exists()


def test_the_same_request_again_gives_the_certificate_with_the_newest_plan(study: Study) -> None:
    home, request = study.join(study.invite())
    study.approve(request)
    study.enrol("hospital-b", "other")
    again = study.approve(request, now_s=NOW_S + 9e6)
    assert (again.plan.version, again.again) == (3, 1)
    assert joining.accept(home, again.certificate.read_text(), NOW_S).version == 3


# -- invitations ------------------------------------------------------------------------------------------------------


def another(study: Study, text: str | None = None, home: str = "thief") -> tuple[Home, str]:
    """A request of somebody else, by default made with the invitation that hospital-a's home was made with."""
    import shutil

    shutil.rmtree(study.at / home, ignore_errors=True)
    return study.join(text or another.text, home)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _remember(monkeypatch: pytest.MonkeyPatch) -> None:
    """``another`` knows the invitation that was given last."""
    given = authority.invite

    def invite(*args: Any, **kwargs: Any) -> str:
        another.text = given(*args, **kwargs)  # type: ignore[attr-defined]
        return another.text  # type: ignore[attr-defined,no-any-return]

    monkeypatch.setattr(authority, "invite", invite)


def refused(study: Study, request: str, says: str, **options: Any) -> None:
    """A request is refused, and nothing is changed by it."""
    before = everything(study.path)
    with pytest.raises(UserError, match=says):
        study.approve(request, **options)
    assert everything(study.path) == before


def test_an_invitation_is_used_once(study: Study) -> None:
    text = study.invite()
    home, request = study.join(text)
    _, stolen = another(study)
    study.approve(request)
    refused(study, stolen, "its invitation was used before, by another request")
    assert current_plan(study.folder).roster.by_name["hospital-a"].verify_key == (
        SigningKey.load(home.identity.signing).public.to_bytes()
    )


def test_an_invitation_of_yesterday(study: Study) -> None:
    text = study.invite()
    _, request = study.join(text)
    refused(study, request, "invitation has expired", now_s=NOW_S + 86401)
    with pytest.raises(UserError, match="has expired"):
        joining.join(text, study.at / "late", study.at / "own.npz", out=study.at, now_s=NOW_S + 86401)
    assert not (study.at / "late").exists()
    assert study.approve(request, now_s=NOW_S + 86399).plan.version == 2


def test_a_second_invitation_replaces_the_first(study: Study) -> None:
    _, request = study.join(study.invite())
    newer = study.invite()
    refused(study, request, "not the newest one of hospital-a")
    study.approve(study.join(newer, "newer")[1])
    refused(study, request, "no open invitation")


def test_who_cannot_be_invited(study: Study) -> None:
    with pytest.raises(UserError, match="did you mean 'hospital-"):
        study.invite("hospital-q")
    with pytest.raises(UserError, match="is the hub"):
        study.invite("server")
    with pytest.raises(UserError, match="never joined"):
        study.invite(again=True)
    for hours in (0.0, -1.0, 1e9, float("nan")):
        with pytest.raises(UserError, match="valid for more than"):
            study.invite(hours=hours)
    study.enrol()
    with pytest.raises(UserError, match="give --again"):
        study.invite()


def test_an_invitation_that_was_changed(shared: Study) -> None:
    text = shared.invite()
    token = tokens.unarmoured(tokens.INVITATION, text, tokens.Token)
    invitation = tokens.decoded(token.body, tokens.Invitation)
    for field, value in {"name": "hospital-b", "role": "server", "not_after_s": 1e12, "operator": bytes(32)}.items():
        body = msgspec.msgpack.encode(change(invitation, **{field: value}))
        with pytest.raises(UserError, match="no invitation, or a damaged one"):
            shared.join(tokens.armoured(tokens.INVITATION, change(token, body=body)), f"changed {field}")
        assert not (shared.at / f"changed {field}").exists()


@settings(max_examples=150)
@given(st.text(max_size=80) | st.binary(max_size=80).map(lambda raw: tokens.INVITATION + ":" + raw.hex()))
def test_any_text_is_no_invitation_no_request_and_no_certificate(text: str) -> None:
    with pytest.raises(UserError, match="no invitation"):
        tokens.read_invitation(text, NOW_S)
    with pytest.raises(PeerError):
        tokens.read_request(text)
    with pytest.raises(PeerError):
        tokens.read_certificate(text, bytes(32))


@settings(max_examples=60)
@given(st.data())
def test_a_damaged_paper_is_refused(shared: Study, data: st.DataObject) -> None:
    text = shared.invite()
    at = data.draw(st.integers(len(tokens.INVITATION) + 1, len(text.strip()) - 5))
    letter = data.draw(st.sampled_from("AbZ09-_=\0é"))
    damaged = text[:at] + letter + text[at + 1 :]
    if damaged != text:
        with pytest.raises(UserError, match="no invitation"):
            tokens.read_invitation(damaged, NOW_S)
        with pytest.raises(UserError, match="no invitation"):
            tokens.read_invitation(text[:at], NOW_S)


# -- requests ---------------------------------------------------------------------------------------------------------


def asked(
    study: Study,
    text: str,
    identity: Identity | None = None,
    tls: bytes | None = None,
    forge: Callable[[tokens.Keys], tokens.Keys] = lambda keys: keys,
    secret: bytes | None = None,
    possession: bytes | None = None,
    signing: bytes | None = None,
) -> str:
    """A request by hand. forge: changes what is asked for, before it is proved with the keys that are given."""
    identity = identity or new_identity("thief", EMULATED)
    invitation, token = tokens.read_invitation(text, NOW_S)
    keys, _ = tokens.read_request(tokens.ask(invitation, token, identity, tls or certificates.new_key()))
    body = msgspec.msgpack.encode(forge(keys))
    shared = tokens._agreed(possession or identity.opening, invitation.possession)
    own = SigningKey.load(signing or identity.signing)
    request = tokens.Request(
        body,
        tokens._mac(secret or token.secret, "request", body),
        tokens._possession(shared, body),
        own.sign("request", body),
    )
    return tokens.armoured(tokens.REQUEST, request)


THIEF = new_identity("other", EMULATED)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"secret": bytes(32)}, "was not made with the invitation"),
        ({"signing": THIEF.signing}, "signature is not one of key"),
        ({"possession": THIEF.opening}, "does not hold the key for opening"),
        ({"forge": lambda keys: change(keys, role="server")}, "invitation is for hospital-a as client"),
        ({"forge": lambda keys: change(keys, name="hospital-b")}, "hospital-b has no open invitation"),
        ({"forge": lambda keys: change(keys, name="mallory")}, "'mallory' is no member"),
        ({"forge": lambda keys: change(keys, name="server")}, "no open invitation"),
        ({"forge": lambda keys: change(keys, invitation=bytes(16))}, "not the newest one"),
        ({"forge": lambda keys: change(keys, sealing_key=bytes(32))}, "no usable X25519 key"),
        ({"forge": lambda keys: change(keys, tls=b"x")}, "no request for a certificate"),
        (
            {"forge": lambda keys: change(keys, tls=certificates.request(certificates.new_key(), "server"))},
            "names 'CN=server'",
        ),
        ({"forge": lambda keys: change(keys, name="x" * 200)}, "is no member"),
    ],
)
def test_a_request_that_proves_too_little(shared: Study, options: dict[str, Any], says: str) -> None:
    refused(shared, asked(shared, shared.invite(), **options), says)


def test_a_request_by_hand_as_it_should_be(study: Study) -> None:
    assert study.approve(asked(study, study.invite())).plan.version == 2


def test_nobody_takes_the_keys_of_another(study: Study) -> None:
    home = study.enrol()
    theirs, tls = home.identity, home.tls_key.read_bytes()
    hub = read_home(study.folder.hub)
    text = study.invite("hospital-b")
    mine = new_identity("hospital-b", EMULATED)
    for identity, key in (
        (Identity(theirs.signing, mine.opening), None),
        (Identity(mine.signing, theirs.opening), None),
        (mine, tls),
        (hub.identity, None),
        (mine, hub.tls_key.read_bytes()),
        (Identity((study.folder.authority / "signing").read_bytes(), mine.opening), None),
        (mine, (study.folder.authority / "ca.pem").read_bytes()),
        (mine, (study.folder.authority / "tls.pem").read_bytes()),
        (mine, (study.folder.nats / "key.pem").read_bytes()),
    ):
        refused(study, asked(study, text, identity, key), "is, or was, the key of")
    assert study.approve(asked(study, text, mine)).plan.version == 3


def test_a_request_for_another_deployment(study: Study, shared: Study) -> None:
    study.invite()
    refused(study, asked(shared, shared.invite()), "not the newest one")


# -- certificates -----------------------------------------------------------------------------------------------------


def test_a_certificate_of_somebody_else(study: Study, shared: Study) -> None:
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
        "not signed by this": change(good, authority=shared.folder.ca.read_bytes()),
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
    home, request = study.join(study.invite(again=True), "new")
    with pytest.raises(UserError, match="is, or was"):
        study.approve(asked(study, another.text, lost.identity))  # type: ignore[attr-defined]
    approval = study.approve(request)
    assert (approval.again, approval.plan.version, approval.plan.enrolled) == (2, 3, {"hospital-a": 2})
    joining.accept(home, approval.certificate.read_text(), NOW_S)
    refused(study, former, "no open invitation")
    with pytest.raises(PeerError, match="does not have the keys"):
        take_plan(lost, study.folder.plan.read_bytes())
    pins = (study.folder.nats_conf).read_text()
    import hashlib

    for place, there in ((lost, False), (home, True)):
        der = certificates.public_of(place.tls_key.read_bytes())
        assert (hashlib.sha256(der).hexdigest() in pins) == there
    study.invite(again=True)
    refused(study, asked(study, another.text, lost.identity), "is, or was, the key of hospital-a")  # type: ignore[attr-defined]


def test_a_party_that_is_revoked(study: Study) -> None:
    home, told = study.enrol(), []
    study.enrol("hospital-b", "other")
    with pytest.raises(UserError, match="is the hub"):
        authority.revoke(study.path, "server")
    with pytest.raises(UserError, match="has not joined"):
        authority.revoke(study.path, "client/3")
    request = (study.folder.requests / "hospital-a.request").read_text()
    plan = authority.revoke(study.path, "hospital-a", hook=lambda folder: told.append(folder.nats_conf.read_text()))
    assert (plan.version, plan.revoked, len(plan.roster.entries)) == (4, ("hospital-a",), 3)
    assert '"CN=hospital-b"' in told[0]
    assert '"CN=hospital-a"' not in told[0]
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


def test_nobody_new_joins_a_run_that_has_begun(study: Study) -> None:
    home = study.enrol()
    _, request = study.join(study.invite("hospital-b"), "other")
    (study.folder.hub / "state.bin").write_bytes(b"")
    refused(study, request, "the run has begun")
    with pytest.raises(UserError, match="the run has begun"):
        study.invite("client/3")
    study.approve(study.join(study.invite(again=True), "new")[1])
    assert current_plan(study.folder).enrolled == {home.name: 2}


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


def test_the_operators_keys_may_be_elsewhere(study: Study, shared: Study) -> None:
    text = study.invite()
    home, request = study.join(text)
    study.folder.authority.rename(study.at / "stick")
    for command in (lambda: study.invite("hospital-b"), lambda: study.approve(request)):
        with pytest.raises(UserError, match="operator's keys are not here"):
            command()
    assert hub_home(study.folder).name == "server"
    os.symlink(shared.folder.authority, study.folder.authority)
    with pytest.raises(UserError, match="another deployment's operator"):
        study.approve(request)
    study.folder.authority.unlink()
    (study.at / "stick").rename(study.folder.authority)
    assert fingerprint(study.approve(request).entry) == fingerprint(joining.entry(home.name, home.role, home.identity))


def test_a_folder_that_holds_no_deployment(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no deployment"):
        authority.invite(tmp_path, "hospital-a")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"settings": {"quorum": 4}}, "quorum of 4 is more than the 3 clients"),
        ({"public": "own.npz"}, "uses no public samples"),
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
    from coterie.deploy.members import Member
    from coterie.deploy.own_data import read_data
    from coterie.runs import registry

    study = Study(tmp_path)
    roles = tuple(registry.get("clsm_fl").parties(registry.get("clsm_fl").config()))
    named = [*(Member(role, role, f"{role}.org") for role in roles[:-1]), Member("a", roles[-1])]
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
    assert current_plan(Folder(study.path)).complete
