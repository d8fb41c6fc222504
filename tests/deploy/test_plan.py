"""Plans: only the operator's, only newer ones, and no party twice."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest
from deployments import NOW_S, Study, everything
from hypothesis import given
from hypothesis import strategies as st
from tampering import flipped

from coterie.crypto.roster import entry, new_identity, sign_roster
from coterie.crypto.signing import SigningKey
from coterie.data.form import SampleForm
from coterie.deploy import plan as plans
from coterie.deploy.home import keyring_of, plan_of, read_home, take_plan, write_private
from coterie.deploy.plan import OperatorSigned, Plan, Settings
from coterie.protocol.errors import PeerError, UserError
from coterie.protocol.randomness import Randomness

OPERATOR = SigningKey(bytes(range(32)))
PUBLIC = OPERATOR.public.to_bytes()
MEMBERS = (("server", "server"), ("hospital-a", "client"), ("client/3", "client"))
ENTRIES = tuple(entry(n, r, new_identity(n, Randomness(1, emulated=True))) for n, r in MEMBERS)
ROSTER = sign_roster(ENTRIES, OPERATOR, bytes(16))
PLAN = Plan(3, 'system = "fedavg"\n', SampleForm((4,), 2), Settings("nats://h:1"), MEMBERS, ROSTER)
DATA = plans.sign(PLAN, OPERATOR)
change = msgspec.structs.replace


def test_what_is_signed_is_read() -> None:
    assert plans.check(DATA, PUBLIC) == PLAN
    assert not PLAN.missing
    assert PLAN.missing == ()


def test_the_hash_is_of_all_that_the_operator_signs() -> None:
    """Two parties that compare it run the same thing, whatever of the plan differs."""
    one = PLAN.sha256
    assert one == hashlib.sha256(msgspec.msgpack.decode(DATA, type=OperatorSigned).body).hexdigest()
    assert one == plans.check(DATA, PUBLIC).sha256
    others = {
        "version": 4,
        "config": 'system = "fedavg"\nmode = "paper"\n',
        "facts": SampleForm((5,), 2),
        "settings": Settings("nats://h:1", patience_s=1.0),
        "members": (*MEMBERS, ("b", "client")),
        "roster": sign_roster(ENTRIES[:2], OPERATOR, bytes(16)),
        "signed_s": 1.0,
        "revoked": ("hospital-a",),
        "enrolled": {"hospital-a": 2},
        "certificates": {"hospital-a": b"PEM"},
        "run": 2,
        "aborted": True,
        "warm": True,
    }
    assert set(others) == set(Plan.__struct_fields__)
    hashes = {change(PLAN, **{name: value}).sha256 for name, value in others.items()}
    assert len(hashes | {one}) == len(others) + 1
    assert plans.shown(3, one) == f"version 3, {plans.grouped(one)[:49]}"


@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_no_byte_of_a_plan_can_be_changed(at: int, by: int) -> None:
    with pytest.raises(PeerError):
        plans.check(flipped(DATA, at, by), PUBLIC)


@given(st.binary(max_size=60) | st.integers(0, len(DATA) - 1).map(lambda cut: DATA[:cut]))
def test_any_bytes_are_no_plan(data: bytes) -> None:
    with pytest.raises(PeerError):
        plans.check(data, PUBLIC)


def test_another_operators_plan() -> None:
    other = SigningKey(bytes(32))
    with pytest.raises(PeerError):
        plans.check(plans.sign(PLAN, other), PUBLIC)
    with pytest.raises(PeerError, match="another operator"):  # our signature on another's roster
        plans.check(plans.sign(change(PLAN, roster=sign_roster(ENTRIES, other, bytes(16))), OPERATOR), PUBLIC)


def test_a_signature_of_the_operator_for_something_else() -> None:
    body = msgspec.msgpack.encode(PLAN)
    with pytest.raises(PeerError):
        plans.check(msgspec.msgpack.encode(OperatorSigned(body, OPERATOR.sign("certificate", body))), PUBLIC)


def test_a_roster_that_does_not_fit_the_members() -> None:
    for members in (MEMBERS[:2], (*MEMBERS[:2], ("client/3", "server"))):
        with pytest.raises(PeerError, match="members have not"):
            plans.check(plans.sign(change(PLAN, members=members), OPERATOR), PUBLIC)


def test_the_revoked_keep_their_number_and_lose_their_keys() -> None:
    revoked = change(PLAN, revoked=("hospital-a",))
    assert [one.name for one in revoked.believed.entries] == ["server", "client/3"]
    assert revoked.roster.of_role("client") == ("hospital-a", "client/3")


# -- in a home ---------------------------------------------------------------------------------------------------------


def signed_by(study: Study, plan: Plan) -> bytes:
    return plans.sign(plan, SigningKey((study.folder.authority / "signing").read_bytes()))


def test_a_home_takes_newer_plans_only(tmp_path: Path) -> None:
    study = Study(tmp_path)
    study.found()
    home = study.enrol()
    old = home.plan.read_bytes()
    study.enrol("hospital-b", "other")
    new = study.folder.plan.read_bytes()
    assert take_plan(home, new).version == 3
    assert plan_of(home).roster.of_role("client") == ("hospital-a", "hospital-b")
    before = everything(home.path)
    assert take_plan(home, new).version == 3
    with pytest.raises(PeerError, match="version 3 was seen before"):
        take_plan(home, old)
    assert everything(home.path) == before


def test_two_plans_of_one_version_and_plans_that_do_not_know_us(tmp_path: Path) -> None:
    study = Study(tmp_path)
    study.found()
    home = study.enrol()
    plan, before = plan_of(home), everything(home.path)
    bad = {
        "two plans of version 2": change(plan, signed_s=NOW_S + 1),
        "another federation": change(
            plan,
            version=9,
            roster=sign_roster(
                plan.roster.entries, SigningKey((study.folder.authority / "signing").read_bytes()), bytes(16)
            ),
        ),
        "does not have the keys of hospital-a": change(
            plan,
            version=9,
            roster=sign_roster(
                plan.roster.entries[:1],
                SigningKey((study.folder.authority / "signing").read_bytes()),
                plan.roster.session,
            ),
        ),
    }
    for says, forged in bad.items():
        with pytest.raises(PeerError, match=says):
            take_plan(home, signed_by(study, forged))
    with pytest.raises(PeerError):
        take_plan(home, plans.sign(change(plan, version=9), SigningKey(bytes(32))))
    assert everything(home.path) == before


def test_a_hub_that_has_begun_takes_no_new_parties(tmp_path: Path) -> None:
    study = Study(tmp_path)
    study.found()
    study.enrol()
    hub = read_home(study.folder.hub)
    take_plan(hub, study.folder.plan.read_bytes())
    study.enrol("hospital-b", "other")  # on a copy of the folder, which does not know that the hub has begun
    hub.state.write_bytes(b"")
    before = hub.plan.read_bytes()
    with pytest.raises(PeerError, match="hospital-b, and the run has begun without"):
        take_plan(hub, study.folder.plan.read_bytes())
    assert hub.plan.read_bytes() == before
    newer = signed_by(study, change(plan_of(hub), version=9, revoked=("hospital-a",)))
    assert take_plan(hub, newer).version == 9


def test_a_revoked_party_and_a_damaged_plan(tmp_path: Path) -> None:
    study = Study(tmp_path)
    study.found()
    home = study.enrol()
    plan = plan_of(home)
    take_plan(home, signed_by(study, change(plan, version=9, revoked=("hospital-a",))))
    with pytest.raises(UserError, match="revoked hospital-a"):
        plan_of(home)
    write_private(home.plan, b"x" * 40)
    with pytest.raises(UserError, match="ask the operator"):
        plan_of(home)
    home.plan.unlink()
    with pytest.raises(UserError, match="has no plan yet"):
        plan_of(home)


def test_a_keyring_has_no_key_of_the_revoked(tmp_path: Path) -> None:
    study = Study(tmp_path)
    study.found()
    home, other = study.enrol(), study.enrol("hospital-b", "other")
    theirs = keyring_of(other, plan_of(other)).sign("hospital-b", b"h", b"d")
    plan = plans.check(study.folder.plan.read_bytes(), home.operator)
    keyring_of(home, plan).verify("hospital-b", theirs, b"h", b"d")
    with pytest.raises(PeerError, match="no verification key"):
        keyring_of(home, change(plan, revoked=("hospital-b",))).verify("hospital-b", theirs, b"h", b"d")
    with pytest.raises(PeerError, match="no signing key"):
        keyring_of(home, plan).sign("hospital-b", b"h", b"d")


# -- homes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: (path / "home.json").write_text("{}"), "damaged"),
        (lambda path: (path / "home.json").write_text("x" * 10), "damaged"),
        (lambda path: (path / "home.json").unlink(), "cannot read"),
    ],
)
def test_a_folder_that_is_no_home(tmp_path: Path, damage: object, says: str) -> None:
    study = Study(tmp_path)
    study.found()
    home, _ = study.join(study.invite())
    assert callable(damage)
    damage(home.path)
    with pytest.raises(UserError, match=says):
        read_home(home.path)


def test_a_key_that_is_cut_or_a_link_is_refused(tmp_path: Path) -> None:
    study = Study(tmp_path)
    study.found()
    home, _ = study.join(study.invite())
    assert 0 <= home.seed() < 1 << 32
    key = home.keys / "signing"
    whole = key.read_bytes()
    key.write_bytes(whole[:31])
    with pytest.raises(UserError, match="damaged") as caught:
        _ = home.identity
    assert whole.hex()[:8] not in str(caught.value)
    key.unlink()
    (tmp_path / "elsewhere").write_bytes(whole)
    key.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="symbolic link"):
        _ = home.identity
