"""The doctor finds a secret wherever it lies, and tells where, never what."""

from __future__ import annotations

import base64
import os
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from deployments import CLIENTS, NOW_S, Study, members
from hypothesis import assume, given
from hypothesis import strategies as st
from matrix import few
from tampering import flipped

from coterie.crypto.certificates import DAY_S, scalar
from coterie.crypto.signing import SigningKey
from coterie.deploy import plan as plans
from coterie.deploy.home import Home, read_home, read_private, write_private
from coterie.deploy.plan import sign
from coterie.operate.doctor import Diagnosis, doctor
from coterie.operate.folder import current_plan
from coterie.operate.joining import accept
from coterie.operate.members import PlannedMember
from coterie.protocol.errors import CoterieWarning, UserError
from coterie.record.leaks import _CHUNK, Patterns, forms
from coterie.runs.config import RunConfig

SECRET = bytes(range(200, 232))


@pytest.fixture(scope="module")
def joined(founded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deployment that all have joined, with their homes beside it."""
    made = Study(tmp_path_factory.mktemp("joined"))
    shutil.copytree(founded, made.path)
    for name, home in zip(CLIENTS, "abc", strict=True):
        made.enrol(name, home)
    return made.at


@pytest.fixture
def study(joined: Path, tmp_path: Path) -> Study:
    shutil.copytree(joined, tmp_path, dirs_exist_ok=True)
    return Study(tmp_path)


def homes(study: Study) -> list[Path]:
    return [study.at / home for home in "abc"]


def looked(study: Study, *more: Path, now_s: float = NOW_S) -> list[Diagnosis]:
    return doctor([study.path, *homes(study), *more], now_s)


def problems(study: Study, now_s: float = NOW_S) -> list[str]:
    return [f"{one.where}: {one.text}" for one in looked(study, now_s=now_s) if one.level == "problem"]


def test_a_deployment_in_order(study: Study) -> None:
    """But that all its homes lie on this machine."""
    found = looked(study)
    (warned,) = [one for one in found if one.level != "ok"]
    assert (warned.level, warned.where) == ("warning", "client/3, hospital-a, hospital-b")
    assert warned.text.startswith("on one machine with server: whoever owns it has the samples of a client")
    assert any(one.text == "no secret of one party lies in another's home" for one in found)
    newest = current_plan(study.folder)
    held = [one.text for one in found if one.text.startswith("holds the plan, ")]
    assert held[0] == f"holds the plan, {newest.shown}"
    assert [text.split(",")[1] for text in held] == [f" version {n}" for n in (4, 1, 2, 3, 4)]
    assert held[4] == held[0] != held[3]


def test_two_plans_of_one_version_are_noticed(study: Study) -> None:
    """The operator has told two parties different things."""
    home, signing = homes(study)[2], SigningKey.load(read_private(study.folder.authority / "signing"))
    plan = current_plan(study.folder)
    other = msgspec.structs.replace(plan, config=plan.config.replace("rounds = 2", "rounds = 9"))
    assert other != plan
    write_private(read_home(home).plan, sign(other, signing))
    (found,) = problems(study)
    assert "there is another plan of version 4 here" in found


# -- secrets ----------------------------------------------------------------------------------------------------------


def secrets_of(home: Home) -> dict[str, bytes]:
    identity = home.identity
    return {"signing": identity.signing, "opening": identity.opening, "TLS": scalar(home.tls_key.read_bytes())}


FORMS: dict[str, Callable[[bytes], bytes]] = {
    "raw": lambda secret: b"state" + secret + b"more",
    "hex": lambda secret: f'{{"k": "{secret.hex()}"}}'.encode(),
    "HEX": lambda secret: secret.hex().upper().encode(),
    "base64": lambda secret: b"x = " + base64.b64encode(secret),
    "base64 after one byte": lambda secret: base64.b64encode(b"1" + secret + b"..."),
    "base64 after two bytes": lambda secret: base64.urlsafe_b64encode(b"12" + secret),
}


@pytest.mark.parametrize("form", few(FORMS, ["raw", "base64 after one byte"]))
@pytest.mark.parametrize("which", ["signing", "opening", "TLS"])
def test_a_secret_in_another_home(study: Study, form: str, which: str) -> None:
    secret = secrets_of(read_home(study.at / "a"))[which]
    place = study.at / "b" / "state.bin"
    place.write_bytes(os.urandom(5000) + FORMS[form](secret) + os.urandom(50))
    place.chmod(0o600)
    (found,) = problems(study)
    assert str(place) in found
    assert f"the {which} key of hospital-a" in found
    assert not any(one.decode("latin-1") in found for one in forms(secret))
    place.rename(study.at / "a" / "state.bin")  # in its own home it may be
    assert problems(study) == []


def test_the_operators_keys_in_a_home_and_a_partys_in_the_folder(study: Study) -> None:
    shutil.copy(study.folder.authority / "signing", study.folder.hub / "keys" / "copy")
    study.folder.run.mkdir()
    (study.folder.run / "metrics.jsonl").write_text(read_home(study.at / "c").identity.opening.hex())
    found = "\n".join(problems(study))
    assert "hub/keys/copy: holds the signing key of the operator" in found
    assert "run/metrics.jsonl: holds the opening key of client/3" in found


def test_private_keys_and_invitations_that_lie_about(study: Study) -> None:
    shutil.copy(study.at / "a" / "keys" / "tls.pem", study.at / "a" / "tls" / "backup.pem")
    (study.path / "a.token").write_text(study.invite("hospital-a", again=True))
    assert any("holds a private key (PEM)" in one for one in problems(study))
    warned = [one for one in looked(study) if one.level == "warning"]
    assert any(one.where.endswith("a.token") and "holds an invitation" in one.text for one in warned)
    assert any("was not used yet" in one.text for one in warned)


def test_two_homes_with_one_key(study: Study) -> None:
    shutil.copy(study.at / "a" / "keys" / "signing", study.at / "b" / "keys" / "signing")
    found = "\n".join(problems(study))
    assert "is the same as" in found
    assert "the roster has other keys for hospital-b" in found


AROUND = st.text("{}: \n", max_size=40).map(str.encode)


@given(st.binary(min_size=32, max_size=32), AROUND, AROUND, st.sampled_from([*FORMS]))
def test_any_secret_is_found_and_nothing_else(secret: bytes, before: bytes, after: bytes, form: str) -> None:
    needles = Patterns({"it": secret}, {})
    assert set(needles._names(before + FORMS[form](secret) + after)) == {"it"}
    assume(len(set(secret)) > 8)
    changed = flipped(secret, 16, 16)
    assert set(needles._names(before + FORMS[form](changed) + after)) == set()


def test_a_secret_across_two_blocks_of_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.record.leaks._CHUNK", 1000)
    data = np.random.default_rng(0).bytes(5000)
    for at in (0, 970, 985, 999, 1000, 2990, 4968):
        (tmp_path / "large").write_bytes(data[:at] + SECRET + data[at + 32 :])
        assert Patterns({"it": SECRET}, {}).found_in(tmp_path / "large") == {"it"}
    (tmp_path / "large").write_bytes(data)
    assert Patterns({"it": SECRET}, {}).found_in(tmp_path / "large") == set()
    for small in range(8):
        (tmp_path / "large").write_bytes(data[:small])
        assert Patterns({"it": SECRET}, {}).found_in(tmp_path / "large") == set()


def test_a_large_file_is_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _CHUNK <= 16 << 20
    monkeypatch.setattr("coterie.record.leaks._CHUNK", 1 << 20)
    with (tmp_path / "large").open("wb") as file:
        file.truncate(20 << 20)
        file.seek(18 << 20)
        file.write(SECRET)
    many = {f"{i}": np.random.default_rng(i).bytes(32) for i in range(100)}
    tracemalloc.start()
    assert Patterns({**many, "it": SECRET}, {}).found_in(tmp_path / "large") == {"it"}
    assert tracemalloc.get_traced_memory()[1] < 14 << 20
    tracemalloc.stop()


# -- modes, hosts, plans ----------------------------------------------------------------------------------------------


def test_modes_and_links(study: Study) -> None:
    (study.at / "a" / "keys" / "signing").chmod(0o640)
    (study.at / "b").chmod(0o755)
    (study.folder.authority / "token").chmod(0o604)
    (study.at / "c" / "state.bin").symlink_to(study.at / "own.npz")
    found = "\n".join(problems(study))
    for says in ("chmod 600", "chmod 700", "authority/token", "is a symbolic link"):
        assert says in found
    assert len(problems(study)) == 4


def test_what_the_hub_writes_for_the_operator_alone(study: Study) -> None:
    run = study.folder.run
    run.mkdir()
    for name in ("status.json", "open.bin", "metrics.jsonl"):
        (run / name).touch(0o600)
    assert problems(study) == []
    for name in ("status.json", "open.bin", "metrics.jsonl"):  # anybody may read the last
        (run / name).chmod(0o644)
    said = problems(study)
    assert [f"chmod 600 {run / name}" in one for name, one in zip(("status.json", "open.bin"), said, strict=True)] == [
        True
    ] * 2
    (run / "open.bin").unlink()
    (run / "open.bin").symlink_to(study.at / "own.npz")
    assert "is a symbolic link" in "\n".join(problems(study))


SERVERS = ("business_server", "key_centre", "csp")


def with_servers(at: Path, rehearsal: bool = False) -> Study:
    """FedCAPrivacy's three servers and two participants."""
    study = Study(at)
    named = [PlannedMember(role, role, f"{role}.org") for role in SERVERS]
    named += [PlannedMember(name, "participant") for name in "ab"]
    study.found(RunConfig("fedcaprivacy"), named, settings={"rehearsal": rehearsal})
    return study


def together(*places: Path) -> list[str]:
    """Which servers' homes are said to be on one machine."""
    found = [one for one in doctor(places, NOW_S) if one.level == "problem"]
    assert all("on one machine" in one.text for one in found)
    return [one.where for one in found]


def test_servers_on_one_machine(tmp_path: Path) -> None:
    """Whichever of their homes are named, as soon as there are two."""
    study = with_servers(tmp_path)
    home, request = study.join(study.invite("csp"), "csp", data=False)
    hub, both = study.folder.hub, ["business_server, csp"]
    places = [study.path], [hub], [home.path], [study.path, home.path], [home.path, hub]
    assert [together(*some) for some in places] == [both] * 5
    certificate = study.approve(request).certificate.read_text()
    with pytest.warns(CoterieWarning, match="on one machine with the home of business_server: whoever owns it"):
        accept(home, certificate, NOW_S)
    assert [together(*some) for some in places] == [both] * 5
    study.join(study.invite("key_centre"), "homes/key_centre", data=False)
    assert together(study.path) == ["business_server, csp, key_centre"]


def test_a_client_on_the_machine_of_a_server(tmp_path: Path) -> None:
    """It is no problem, since its owner may run both, but others then count on one who is server and client."""
    study = with_servers(tmp_path)
    home, request = study.join(study.invite("a"), "a")
    far, _ = study.join(study.invite("b"), "x/y/z/b")

    def warned(*places: Path) -> list[tuple[str, str]]:
        found = [(one.level, one.where, one.text) for one in doctor(places, NOW_S) if "machine" in one.text]
        assert {level for level, _, _ in found} <= {"warning"}
        return [(where, text[: text.index(":")]) for _, where, text in found]

    beside = "on one machine with business_server"
    for places in ([home.path], [study.path, home.path]):
        assert warned(*places) == [("a", beside)]
    assert warned(study.path) == warned(far.path) == []
    assert warned(study.path, home.path, far.path) == [("a, b", beside)]
    certificate = study.approve(request).certificate.read_text()
    with pytest.warns(CoterieWarning, match="a is on one machine with the home of business_server: whoever owns"):
        accept(home, certificate, NOW_S)
    assert warned(home.path) == [("a", beside)]


@pytest.mark.filterwarnings("error")
def test_a_client_far_from_servers_or_in_a_rehearsal_is_not_warned_of(tmp_path: Path) -> None:
    study, rehearsed = with_servers(tmp_path / "one"), with_servers(tmp_path / "two", rehearsal=True)
    for of, place in ((study, "x/y/z/a"), (rehearsed, "a")):
        home, request = of.join(of.invite("a"), place)
        accept(home, of.approve(request).certificate.read_text(), NOW_S)
    assert not [one.text for one in doctor([rehearsed.path, rehearsed.at / "a"], NOW_S) if "on one machine" in one.text]


def test_homes_that_are_far_apart_are_found_on_one_machine_if_they_are_named(tmp_path: Path) -> None:
    study = with_servers(tmp_path)
    home, _ = study.join(study.invite("csp"), "a/b/c/csp", data=False)
    assert (together(study.path), together(home.path)) == ([], [])
    assert together(study.path, home.path) == ["business_server, csp"]


def test_what_is_beside_a_server_and_is_none_of_this_deployment(tmp_path: Path) -> None:
    """A client, and servers of others. A rehearsal excuses no other deployment, however new its plan is."""
    study, other = with_servers(tmp_path / "one"), with_servers(tmp_path / "two", rehearsal=True)
    study.approve(study.join(study.invite("a"), "a")[1])
    other.approve(other.join(other.invite("csp"), "csp", data=False)[1])
    assert current_plan(other.folder).version == current_plan(study.folder).version == 2
    other.approve(other.join(other.invite("a"), "a")[1])
    assert together(study.path, other.path, tmp_path / "one" / "a", tmp_path / "two" / "csp") == []
    study.join(study.invite("csp"), "csp", data=False)
    assert together(study.path, other.path) == ["business_server, csp"]


def test_a_rehearsal_is_on_one_machine(tmp_path: Path) -> None:
    study = with_servers(tmp_path, rehearsal=True)
    study.join(study.invite("csp"), "study/homes/csp", data=False)
    found = doctor([study.path], NOW_S)
    assert [one for one in found if one.level == "problem"] == []
    assert any(one.where.startswith("2 homes") for one in found)


def test_a_home_in_a_home(study: Study) -> None:
    shutil.move(study.at / "b", study.at / "a" / "b")
    found = [one.text for one in doctor([study.at / "a", study.at / "a" / "b"], NOW_S)]
    assert "lies in the home of hospital-a: move it out" in found


def test_clocks_and_certificates(study: Study) -> None:
    assert any("behind the operator's: set it" in one for one in problems(study, NOW_S - 3600))
    late = problems(study, NOW_S + 366 * 86400)
    assert any("valid no more" in one for one in late)
    renew, join = (
        "let the operator run coterie deploy renew DIR",
        f"coterie deploy join NAME.cert --home {study.at}/a",
    )
    assert any("certificate has ended: " in one and renew in one and join in one for one in late)
    assert any("certificate is not valid yet: look at this clock" in one for one in problems(study, NOW_S - 7200))
    assert not any("ends in" in one.text for one in looked(study, now_s=NOW_S + 334 * 86400))
    soon = [one.text for one in looked(study, now_s=NOW_S + 360 * 86400) if "ends in" in one.text]
    assert f"the certificate ends in 5 days: run coterie deploy renew {study.path}" in soon
    assert len(soon) == 6  # of the operator, the server, the hub and three clients: the authority's is valid for longer
    shutil.copy(study.at / "a" / "tls" / "certificate.pem", study.at / "b" / "tls" / "certificate.pem")
    assert any("certificate is of 'CN=hospital-a' and not of hospital-b" in one for one in problems(study))


def test_the_servers_clock(study: Study) -> None:
    for ahead_s, level, says in ((0.04, "ok", "0.0 s ahead of"), (-90.0, "problem", "90.0 s behind this one")):
        (found,) = [one for one in doctor([study.path], NOW_S, lambda _, s=ahead_s: s) if "server's clock" in one.text]
        assert (found.level, says in found.text) == (level, True)


def test_plans_that_are_old_forged_or_of_another_key(study: Study) -> None:
    plan = current_plan(study.folder)
    found = [one.text for one in looked(study)]
    assert "holds version 2 of the plan, and the hub brings it version 4" in found
    assert "holds version 1 of the plan, and takes version 4 from this folder" in found
    operator = SigningKey((study.folder.authority / "signing").read_bytes())
    revoked = msgspec.structs.replace(plan, version=5, revoked=("hospital-b",))
    study.folder.plan.write_bytes(plans.sign(revoked, operator))
    assert any((one.where.startswith("hospital-b"), one.text) == (True, "is revoked") for one in looked(study))
    (study.at / "a" / "plan.bin").write_bytes(plans.sign(plan, SigningKey(bytes(32))))
    assert any("ask the operator for the certificate again" in one for one in problems(study))


def test_a_lost_home_that_turns_up_again(study: Study) -> None:
    study.join(study.invite("hospital-a", again=True), "new")
    study.approve((study.at / "hospital-a.request").read_text())
    assert any("an old home, or a swapped one" in one for one in problems(study))


def test_members_that_have_not_joined(tmp_path: Path) -> None:
    study = Study(tmp_path)
    study.found(named=members(("x", "y")))
    home, _ = study.join(study.invite("x"))
    found = {one.text for one in doctor([study.path, home.path], NOW_S)}
    assert "have not joined yet: x, y" in found
    assert "has no certificate yet: the operator is to approve its request" in found


def test_one_is_one(tmp_path: Path) -> None:
    study = Study(tmp_path)
    study.found()
    where = [one.where for one in doctor([study.path], NOW_S)]
    assert "1 home" in where
    soon = [one.text for one in doctor([study.path], NOW_S + 364 * DAY_S)]
    assert any("ends in 1 day" in text and "days" not in text for text in soon)


def test_a_folder_that_is_neither(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no deployment"):
        doctor([tmp_path], NOW_S)
