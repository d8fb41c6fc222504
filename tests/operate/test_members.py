"""What an operator writes: members, the config of a deployment, the shape of samples, the server's address."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coterie.data.form import SampleForm
from coterie.deploy.names import addresses
from coterie.operate.deployable import deployable, facts_of
from coterie.operate.members import PlannedMember, check_members, read_members
from coterie.protocol.errors import UserError
from coterie.runs import registry
from coterie.runs.config import RunConfig, resolve
from coterie.runs.config_file import from_text, from_toml, to_toml

GOOD = """
[[member]]
name = "hospital-a"
role = "participant"

[[member]]
role = "csp"
host = "csp.example.org"

[[member]]
role = "business_server"
host = "hub.example.org"

[[member]]
name = "client/0"
role = "participant"
host = "10.0.0.7"

[[member]]
role = "key_centre"
host = "2001:db8::1"
"""


def ordered(text: str, rehearsal: bool = False) -> tuple[PlannedMember, ...]:
    Path("members.toml").write_text(text)
    system = registry.get("fedcaprivacy")
    named = read_members(Path("members.toml"))
    return check_members(named, system, system.config(), "paper", rehearsal=rehearsal)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_members_come_in_the_rosters_order() -> None:
    found = [one.name for one in ordered(GOOD)]
    assert found == ["business_server", "key_centre", "csp", "hospital-a", "client/0"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[[member]]", "[[members]]", "unknown field `members`"),
        (GOOD, "", "missing required field `member`"),
        (GOOD, "member = 3", "Expected `array`"),
        (GOOD, "member = [3]", "Expected `object`, got `int`"),
        (GOOD, "x = [", "Invalid value"),
        ('name = "hospital-a"', 'nmae = "hospital-a"', "unknown field `nmae`"),
        ('name = "hospital-a"', "name = 3", r"Expected `str`.*member\[0\]\.name"),
        ('role = "csp"', "", "missing required field `role`"),
        ('role = "csp"', 'role = "cps"', "did you mean 'csp'"),
        ('role = "csp"', 'role = "csp"\nname = "trusted"', "bears its name"),
        ('name = "hospital-a"', 'name = "Hospital A"', "no name of a party"),
        ('name = "hospital-a"', 'name = "operator"', "means something else"),
        ('name = "hospital-a"', 'name = "client/0"', "named twice"),
        ('name = "hospital-a"', 'name = "csp"', "named twice, or as a role"),
        ('role = "csp"', 'role = "key_centre"', "named twice"),
        ('role = "csp"\nhost = "csp.example.org"', 'role = "participant"\nname = "b"', "no member has the role csp"),
        ('host = "csp.example.org"', "", "csp has no host"),
        ('host = "csp.example.org"', 'host = "HUB.example.org"', "are both on HUB.example.org"),
        ('host = "csp.example.org"', 'host = "../etc"', "matching regex"),
        ('host = "csp.example.org"', 'host = "csp/x"', "matching regex"),
    ],
)
def test_members_that_are_refused(old: str, new: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        ordered(GOOD.replace(old, new, 1))


def test_two_names_of_one_machine() -> None:
    with pytest.raises(UserError, match="csp are both on 127"):
        ordered(GOOD.replace("hub.example.org", "localhost").replace("csp.example.org", "127.0.0.1"))


def test_a_rehearsal_needs_no_hosts() -> None:
    assert len(ordered(GOOD.replace('host = "csp.example.org"', ""), rehearsal=True)) == 5


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(UserError, match="cannot read the members"):
        read_members(Path("missing.toml"))


# -- the config -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("partition", "iid", "brings its own data"),
        ("clients", 3, "members.toml names them"),
        ("drift", "0.5@2", "its own, and go to nobody else"),
        ("attack", "noise", "these are real parties"),
        ("devices", "mobile", "their own devices"),
        ("availability", "diurnal", "their own devices"),
        ("delta", 0.5, "late when they are late"),
        ("crypto", "emulated", "keep nothing secret"),
        ("public", 0.1, "deploy init --public"),
        ("record", True, "nobody sees"),
        ("samples", 100, "brings its own data"),
        ("accelerator", "cuda", "join --accelerator"),
        ("fine_tune", "held_out", "nobody sees"),
        ("out", "x", "run folder is run/"),
        ("eval_every", 5, "after every round"),
        ("log", "csv", "Prometheus"),
    ],
)
def test_options_that_make_no_sense_are_named_with_the_reason(option: str, value: object, why: str) -> None:
    with pytest.raises(UserError, match=why) as caught:
        deployable(RunConfig("fedavg", **{option: value}))  # type: ignore[arg-type]
    assert f"{option} (" in str(caught.value)


def test_all_parties_train_alike_whatever_their_machines_have() -> None:
    assert [deployable(RunConfig("fedavg", precision=given)).precision for given in ("auto", "bf16")] == [
        "fp32",
        "bf16",
    ]


def test_all_of_them_are_named_at_once() -> None:
    with pytest.raises(UserError, match=r"partition \(.*; devices \("):
        deployable(RunConfig("fedavg", partition="iid", devices="mobile"))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (RunConfig("ifca", settings={"start": "pretrained"}), "set start=random"),
        (RunConfig("fedavg", data="./mine.csv"), "brings its own data"),
        (RunConfig("fedavgg"), "unknown system"),
    ],
)
def test_configs_that_are_refused(config: RunConfig, says: str) -> None:
    with pytest.raises(UserError, match=says):
        deployable(config)


@pytest.mark.parametrize(
    ("settings", "patience_s", "works"),
    [
        ({"leader_s": 301.0}, 600.0, False),
        ({"leader_s": 300.0}, 600.0, True),
        ({"leader_s": 301.0}, 602.0, True),
        ({"leader_s": 301.0, "deadline_s": 900.0}, 600.0, True),
        ({}, 1.0, True),
    ],
)
def test_a_leader_waits_less_long_than_the_hub_waits_for_it(
    settings: dict[str, float], patience_s: float, works: bool
) -> None:
    """Else the hub gives the leader up, and loses its cluster. A rehearsal's clock knows no patience."""
    config = RunConfig("ofl", settings=settings)
    deployable(replace(config, clients=4), rehearsal=True, patience_s=patience_s)
    if works:
        deployable(config, patience_s=patience_s)
        return
    says = (
        "leader_s=301 is more than half.*Set leader_s to 300 or less, or give --patience 602 or more, or set deadline_s"
    )
    with pytest.raises(UserError, match=says):
        deployable(config, patience_s=patience_s)


def test_a_rehearsal_may_deal_data_and_be_slow() -> None:
    found = deployable(RunConfig("fedavg", partition="iid", clients=3, delta=0.5, crypto="emulated"), rehearsal=True)
    assert (found.partition, found.clients, found.delta) == ("iid", 3, 0.5)
    with pytest.raises(UserError, match="attack"):
        deployable(RunConfig("fedavg", attack="noise"), rehearsal=True)


def test_every_party_reads_the_same_config(monkeypatch: pytest.MonkeyPatch) -> None:
    found = deployable(RunConfig("fedcaprivacy", rounds=4, data_dir="/tmp/mine"), clients=5)
    assert (found.clients, found.accelerator, found.data_dir) == (5, "cpu", None)
    text = to_toml(found)
    assert "/tmp" not in text
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert from_text(text) == found
    assert from_text(text).own == resolve(found).own


def test_the_config_of_a_run_tells_all_that_is_to_be_left_out() -> None:
    from coterie.runs.config import resolve

    Path("config.toml").write_text(to_toml(resolve(RunConfig("fedavg"))))
    with pytest.raises(UserError, match=r"partition \(.*clients \("):
        deployable(from_toml("config.toml"))


# -- samples and servers ----------------------------------------------------------------------------------------------


def test_what_samples_look_like() -> None:
    assert facts_of(RunConfig("fedavg")) == SampleForm((1, 8, 8), 10)
    assert facts_of(RunConfig("fedavg"), "30", 2) == SampleForm((30,), 2)
    assert facts_of(RunConfig("fedavg", model="cnn"), "3x32x32", 5) == SampleForm((3, 32, 32), 5)


@pytest.mark.parametrize(
    ("config", "shape", "outputs", "says"),
    [
        (RunConfig("fedavg"), "8,8", 2, "--shape is '8,8'"),
        (RunConfig("fedavg"), "0x8", 2, "--shape is"),
        (RunConfig("fedavg"), "8x8x8x8x8", 2, "--shape is"),
        (RunConfig("fedavg"), "8", 0, "--outputs is 0"),
        (RunConfig("fedavg", data="./mine.csv"), "8", None, "--shape 1x28x28 --outputs 10"),
        (RunConfig("fedavg", model="cnn"), "30", 2, "images"),
        (RunConfig("fedavg", model="cnnn"), "30", 2, "did you mean 'cnn'"),
    ],
)
def test_samples_that_no_model_takes(config: RunConfig, shape: str, outputs: int | None, says: str) -> None:
    with pytest.raises(UserError, match=says):
        facts_of(config, shape, outputs)


def test_addresses_of_servers() -> None:
    assert addresses("nats://hub:4333") == (("hub", 4333),)
    assert addresses("nats://a, tls://[2001:db8::1]:1") == (("a", 4222), ("2001:db8::1", 1))


@pytest.mark.parametrize(
    "server",
    [
        "",
        "hub:4222",
        "http://hub",
        "nats://",
        "nats://hub:99999",
        "nats://hub/x",
        "nats://..",
        "nats://a%2fb",
        "nats://[::1",
    ],
)
def test_what_is_no_address(server: str) -> None:
    with pytest.raises(UserError, match="no address of a server"):
        addresses(server)


def test_no_password_in_an_address() -> None:
    with pytest.raises(UserError, match="no user and no password") as caught:
        addresses("nats://me:secret@hub:4222")
    assert "secret" not in str(caught.value)
