"""Joining: an invitation is used once, by the party that holds its keys, and every other way in is refused."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deployments import CLIENTS, EMULATED, FACTS, NOW_S, Study, asked, refused
from hypothesis import given
from hypothesis import strategies as st

from coterie.crypto import certificates
from coterie.crypto.roster import new_identity
from coterie.crypto.signing import SigningKey
from coterie.deploy.home import hub_home, plan_of, read_home, take_plan
from coterie.deploy.names import safe
from coterie.operate import authority, joining, tokens
from coterie.operate.folder import current_plan
from coterie.protocol.errors import PeerError, UserError
from coterie.protocol.setup_info import Identity
from coterie.runs.config import RunConfig

change = msgspec.structs.replace


# -- the whole way ----------------------------------------------------------------------------------------------------


def test_the_whole_way(study: Study) -> None:
    homes = [study.enrol(name, f"home{i}", again=False) for i, name in enumerate(CLIENTS)]
    plan = current_plan(study.folder)
    assert (plan.version, plan.missing, plan.settings.quorum) == (4, (), 3)
    assert [one.name for one in plan.roster.entries] == ["server", *CLIENTS]
    for home in homes:
        take_plan(home, study.folder.plan.read_bytes())
        assert plan_of(home) == plan
        assert home.identity != homes[0].identity or home is homes[0]
        public = certificates.public_of(home.tls_key.read_bytes())
        certificates.check(home.certificate.read_bytes(), home.ca.read_bytes(), safe(home.name), public, NOW_S)
    assert plan_of(hub_home(study.folder.path)) == plan
    assert len({home.seed() for home in homes}) == 3
    assert (homes[0].server, homes[0].about.facts) == ("nats://hub.example.org:4222", FACTS)


def test_members_may_join_in_any_order(study: Study) -> None:
    for i, name in enumerate(reversed(CLIENTS)):
        study.enrol(name, f"home{i}")
    assert [one.name for one in current_plan(study.folder).roster.entries] == ["server", *CLIENTS]


def test_servers_join_without_data(tmp_path: Path) -> None:
    from coterie.operate.members import PlannedMember

    study = Study(tmp_path)
    named = [PlannedMember(role, role, f"{role}.example.org") for role in ("business_server", "key_centre", "csp")]
    study.found(
        RunConfig("fedcaprivacy"), [*reversed(named), *(PlannedMember(f"client/{i}", "participant") for i in range(2))]
    )
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
    from coterie.operate.doctor import doctor

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
    text = study.invite()
    _, request = study.join(text)
    for i, part in enumerate(("publish", "admit")):
        with monkeypatch.context() as broken:
            broken.setattr(authority, part, lambda *args, **kwargs: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                study.approve(request)
        _, other = study.join(text, f"thief{i}")
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
    assert again.plan.version == 3
    assert joining.accept(home, again.certificate.read_text(), NOW_S).version == 3


# -- invitations ------------------------------------------------------------------------------------------------------


def test_an_invitation_is_used_once(study: Study) -> None:
    text = study.invite()
    home, request = study.join(text)
    _, stolen = study.join(text, "thief")
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


def test_an_invitation_that_was_changed(shared_study: Study) -> None:
    text = shared_study.invite()
    token = tokens.unarmoured(tokens.INVITATION, text, tokens.Token)
    invitation = tokens.decoded(token.body, tokens.Invitation)
    for field, value in {"name": "hospital-b", "role": "server", "not_after_s": 1e12, "operator": bytes(32)}.items():
        body = msgspec.msgpack.encode(change(invitation, **{field: value}))
        with pytest.raises(UserError, match="no invitation, or a damaged one"):
            shared_study.join(tokens.armoured(tokens.INVITATION, change(token, body=body)), f"changed {field}")
        assert not (shared_study.at / f"changed {field}").exists()


@given(st.text(max_size=80) | st.binary(max_size=80).map(lambda raw: tokens.INVITATION + ":" + raw.hex()))
def test_any_text_is_no_invitation_no_request_and_no_certificate(text: str) -> None:
    with pytest.raises(UserError, match="no invitation"):
        tokens.read_invitation(text, NOW_S)
    with pytest.raises(PeerError):
        tokens.read_request(text)
    with pytest.raises(PeerError):
        tokens.read_certificate(text, bytes(32))


@given(st.data())
def test_a_damaged_paper_is_refused(shared_study: Study, data: st.DataObject) -> None:
    text = shared_study.invite()
    at = data.draw(st.integers(len(tokens.INVITATION) + 1, len(text.strip()) - 5))
    letter = data.draw(st.sampled_from("AbZ09-_=\0é"))
    damaged = text[:at] + letter + text[at + 1 :]
    if damaged != text:
        with pytest.raises(UserError, match="no invitation"):
            tokens.read_invitation(damaged, NOW_S)
        with pytest.raises(UserError, match="no invitation"):
            tokens.read_invitation(text[:at], NOW_S)


# -- requests ---------------------------------------------------------------------------------------------------------


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
def test_a_request_that_proves_too_little(shared_study: Study, options: dict[str, Any], says: str) -> None:
    refused(shared_study, asked(shared_study.invite(), **options), says)


def test_a_request_by_hand_as_it_should_be(study: Study) -> None:
    assert study.approve(asked(study.invite())).plan.version == 2


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
        refused(study, asked(text, identity, key), "is, or was, the key of")
    assert study.approve(asked(text, mine)).plan.version == 3


def test_a_request_for_another_deployment(study: Study, shared_study: Study) -> None:
    study.invite()
    refused(study, asked(shared_study.invite()), "not the newest one")
