"""Device profiles: closed forms for time and energy, fleets as documented, files of one's own."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

import coterie.method as fl
from coterie.devices import FLEETS, SERVER, Profile, fleet
from coterie.devices.links import FleetLinks
from coterie.devices.profiles import BOARDS
from coterie.devices.resources import resources

PI = Profile("pi", 2e9, 1e6, 4e6, latency_s=0.1, crypto_speed=0.25, compute_watts=6.0, radio_watts=2.0)


def down_s(device: Profile, size: float) -> float:
    return FleetLinks({"it": device}, 0).down_s("it", int(size))


def up_s(device: Profile, size: float) -> float:
    return FleetLinks({"it": device}, 0).up_s("it", int(size))


def training_s(device: Profile, flops_per_sample: float, samples: float) -> float:
    return FleetLinks({"it": device}, 0).work_s("it", fl.Cost(samples=samples, flops_per_sample=flops_per_sample))


def crypto_s(device: Profile, nominal_s: float) -> float:
    return FleetLinks({"it": device}, 0).work_s("it", fl.Cost(crypto_s=nominal_s))


def test_times_and_energy_by_hand() -> None:
    assert up_s(PI, 3_000_000) == pytest.approx(0.1 + 3)
    assert down_s(PI, 2_000_000) == pytest.approx(0.1 + 0.5)
    assert up_s(PI, 0) == down_s(PI, 0) == 0.1
    assert training_s(PI, 1e6, 5 * 600) == pytest.approx(1.5)
    assert crypto_s(PI, 2.5) == pytest.approx(10)
    energy = PI.joules(compute_s=1.5, radio_s=3.1, there_s=10)
    assert energy == pytest.approx({"compute": 6 * 1.5, "radio": 2 * 3.1, "idle": 2.0 * 10})


@pytest.mark.parametrize("name", FLEETS)
def test_fleets_repeat_and_follow_the_seed(name: str) -> None:
    assert fleet(name, 25, 3) == fleet(name, 25, 3)
    assert all(isinstance(profile, Profile) for profile in fleet(name, 1, 0))
    if name != "uniform":
        assert fleet(name, 25, 3) != fleet(name, 25, 4)


def test_uniform_is_one_device_always_there() -> None:
    devices = fleet("uniform", 40, 0)
    assert len(devices) == 40
    assert len(set(devices)) == 1
    assert (devices[0].availability, devices[0].dropout, devices[0].budget) == (1, 0, 1)


def test_paper_fleet_is_uniform_between_a_fifth_and_one() -> None:
    """FedCAPrivacy: d ~ U[0.2, 1] scales compute, bandwidth and epochs alike, so all train for the same time."""
    devices, whole = fleet("paper", 4000, 1), fleet("uniform", 1, 0)[0]
    d = np.array([device.budget for device in devices])
    assert kstest(d, "uniform", args=(0.2, 0.8)).pvalue > 1e-3
    for field in ("compute_flops_per_s", "up_bytes_per_s", "down_bytes_per_s"):
        np.testing.assert_allclose([getattr(device, field) / getattr(whole, field) for device in devices], d)
    times = [training_s(device, 1e6, device.budget * 5 * 600) for device in devices]
    np.testing.assert_allclose(times, training_s(whole, 1e6, 5 * 600))


@pytest.mark.parametrize(
    ("name", "numbers", "there", "spread"),
    [
        ("mobile", {"A phone": 500, "B tablet": 200, "C laptop": 200, "D edge": 100}, (0.9, 0.02), 0.35),
        ("mixed", {"gateway": 200, "phone": 400, "laptop": 300, "edge box": 100}, (1, 0), 0.2),
    ],
)
def test_tiers_spread_around_their_middles(
    name: str, numbers: dict[str, int], there: tuple[float, float], spread: float
) -> None:
    """Compute, bandwidth and memory vary on their own; computing follows the processor."""
    devices = fleet(name, 1000, 2)
    assert Counter(device.name for device in devices) == numbers
    assert {(device.availability, device.dropout) for device in devices} == {there}
    tier = max(numbers, key=numbers.__getitem__)
    keys = ("compute_flops_per_s", "up_bytes_per_s", "memory_gib")
    middles = {"A phone": (5e9, 1e6, 3.0), "phone": (18e9, 1e6, 4.0)}[tier]
    drawn = np.log([[getattr(device, key) for key in keys] for device in devices if device.name == tier])
    np.testing.assert_allclose(drawn.mean(axis=0), np.log(middles), atol=5 * spread / np.sqrt(400))
    np.testing.assert_allclose(drawn.std(axis=0), spread, rtol=0.2)
    assert np.abs(np.corrcoef(drawn.T) - np.eye(3)).max() < 0.25
    assert [device.name for device in devices] != sorted(device.name for device in devices)


def test_slow_tail_has_a_tenth_ten_times_slower() -> None:
    devices = fleet("slow_tail", 50, 0)
    slow = [device for device in devices if device.name == "straggler"]
    quick = next(device for device in devices if device.name != "straggler")
    assert len(slow) == 5
    for device in slow:
        assert up_s(device, 1e7) == pytest.approx(10 * up_s(quick, 1e7))
        assert down_s(device, 1e7) == pytest.approx(10 * down_s(quick, 1e7))
        assert training_s(device, 1e6, 600) == pytest.approx(10 * training_s(quick, 1e6, 600))
        assert crypto_s(device, 1) == pytest.approx(10 * crypto_s(quick, 1))
    assert sum(device.name == "straggler" for device in fleet("slow_tail", 3, 0)) == 1  # never without one


def test_jetson_boards_are_those_of_table_2_in_equal_numbers() -> None:
    """The order of speeds, and of GPU use, is the paper's: A uses its GPU least, B uses it more than C (figure 11)."""
    for clients in (8, 12, 16):
        counts = Counter(device.name for device in fleet("jetson", clients, 0))
        assert counts == dict.fromkeys("ABCD", clients // 4)
    boards = {device.name: device for device in fleet("jetson", 4, 0)}
    for name, board in BOARDS.items():
        assert boards[name].idle_watts + boards[name].compute_watts == board.watts
        assert boards[name].cpu_ghz == board.cpu_ghz
        assert boards[name].memory_gib == 8
        one = 1 / board.cpu_flops_per_s + 1 / board.gpu_flops_per_s
        assert boards[name].compute_flops_per_s == pytest.approx(1 / one)
        assert board.gpu_share == pytest.approx(1 / board.gpu_flops_per_s / one)
    assert [(b.watts, b.cores) for b in BOARDS.values()] == [(10, 2), (10, 4), (15, 4), (20, 6)]
    assert BOARDS["A"].gpu_flops_per_s == pytest.approx(0.05 * 2 * 384 * 803.25e6)
    speeds = [boards[name].compute_flops_per_s for name in "ABCD"]
    assert speeds == sorted(speeds)
    used = {name: board.gpu_share for name, board in BOARDS.items()}
    assert min(used, key=used.__getitem__) == "A"
    assert used["B"] > used["C"]


def test_two_devices_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(table() + table(compute_watts=1))
    with pytest.raises(fl.UserError, match="two devices are called 'pi'"):
        fleet(str(path), 3, 0)


def test_processors_follow_the_computing_of_every_fleet() -> None:
    """Of two devices of a tier the one that computes twice as fast has twice the GHz."""
    for name in FLEETS:
        for tier in {device.name for device in fleet(name, 40, 3)}:
            members = [device for device in fleet(name, 40, 3) if device.name == tier]
            per_cycle = [device.compute_flops_per_s / device.cpu_ghz for device in members]
            np.testing.assert_allclose(per_cycle, per_cycle[0])


def test_the_draws_of_older_fleets_stay_as_they_are() -> None:
    """Memory is drawn after the speeds, so that no virtual second of an older run moves."""
    speeds = [(d.compute_flops_per_s, d.up_bytes_per_s, d.down_bytes_per_s) for d in fleet("mobile", 4, 7)]
    rng = np.random.default_rng([7, 0xDE71CE])
    tiers = rng.permutation(
        np.array([[5e9, 1e6, 4e6], [10e9, 2.5e6, 8e6], [40e9, 5e6, 12.5e6], [100e9, 12.5e6, 12.5e6]])
    )
    np.testing.assert_allclose(speeds, tiers * np.exp(0.35 * rng.standard_normal((4, 3))))


def test_a_device_tells_its_resources_and_nothing_where_it_knows_none() -> None:
    x, y = np.zeros((1, 2), np.float32), np.zeros(1, np.int64)
    own = fl.OwnData(x, y, device=replace(PI, cpu_ghz=1.5, memory_gib=0.5))
    assert resources(own) == (1.5, 0.5)
    assert fl.Local("device resources").registered is resources
    with pytest.raises(fl.PeerError, match="its device is not known"):
        resources(fl.OwnData(x, y))


@given(clients=st.integers(1, 200), shares=st.lists(st.integers(1, 50), min_size=1, max_size=6))
def test_numbers_of_a_tier_are_nearest_to_its_share(
    tmp_path_factory: pytest.TempPathFactory, clients: int, shares: list[int]
) -> None:
    path = tmp_path_factory.mktemp("fleet") / "own.toml"
    path.write_text("".join(table(name=f"'t{i}'", share=share) for i, share in enumerate(shares)))
    counts = Counter(device.name for device in fleet(str(path), clients, 0))
    assert counts.total() == clients
    if clients >= len(shares):
        assert len(counts) == len(shares)
        for i, share in enumerate(shares):
            quota = clients * share / sum(shares)
            assert counts[f"t{i}"] < max(quota, 1) + 1
            assert counts[f"t{i}"] > quota - len(shares)


def test_the_server_is_quick_and_always_there() -> None:
    assert SERVER.availability == 1
    assert SERVER.dropout == 0
    for device in (device for name in FLEETS for device in fleet(name, 30, 0)):
        assert down_s(SERVER, 1e6) <= down_s(device, 1e6)
        assert SERVER.compute_flops_per_s > device.compute_flops_per_s


# One's own devices


def table(**changes: object) -> str:
    fields = {"name": "'pi'", "compute_flops_per_s": 2e9, "up_bytes_per_s": 1_000_000, "down_bytes_per_s": 4e6}
    lines = [f"{key} = {value}" for key, value in {**fields, **changes}.items() if value is not None]
    return "\n".join(["[[device]]", *lines, ""])


def test_own_file(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        table(latency_s=0.1, crypto_speed=0.25, compute_watts=6, radio_watts=2.0, cpu_ghz=1.5, memory_gib=8)
        + table(name="'big'", share=3, spread=0.5)
    )
    devices = fleet(str(path), 8, 5)
    assert Counter(device.name for device in devices) == {"pi": 2, "big": 6}
    own = next(device for device in devices if device.name == "pi")
    assert own == replace(PI, cpu_ghz=1.5, memory_gib=8.0)
    assert len({device.up_bytes_per_s for device in devices if device.name == "big"}) == 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"must hold one or more tables \[\[device\]\]"),
        ("device = 3", r"must hold one or more tables \[\[device\]\]"),
        ("device = []", r"must hold one or more tables \[\[device\]\]"),
        ("device = [1]", "device 1: must be a table"),
        ("[device]\nname = 'x'", r"must hold one or more tables \[\[device\]\]"),
        ("colour = 'red'\n" + table(), "nothing else"),
        ("[[device]", "cannot be read"),
        (table(up_bytes_per_s=None), "device 1: missing up_bytes_per_s; the fields are name, compute_flops_per_s"),
        (table() + table(upload=3), "device 2: unknown upload; the fields are"),
        (table(name=3), "device 1: .*name is 3"),
        (table(name="''"), "name is '': Expected `str` of length >= 1"),
        (table(compute_flops_per_s="'fast'"), "compute_flops_per_s is 'fast'"),
        (table(compute_flops_per_s="true"), "compute_flops_per_s is True"),
        (table(compute_flops_per_s=0), "compute_flops_per_s is 0: Expected `float` > 0"),
        (table(up_bytes_per_s="inf"), "up_bytes_per_s is inf"),
        (table(down_bytes_per_s="nan"), "down_bytes_per_s is nan"),
        (table(latency_s=-1), "latency_s is -1"),
        (table(availability=0), "availability is 0: Expected `float` > 0"),
        (table(availability=1.5), "availability is 1.5: Expected `float` <= 1"),
        (table(dropout=1), "dropout is 1: Expected `float` < 1"),
        (table(budget=0), "budget is 0"),
        (table(cpu_ghz=0), "cpu_ghz is 0: Expected `float` > 0"),
        (table(cpu_ghz="nan"), "cpu_ghz is nan"),
        (table(memory_gib=-4), "memory_gib is -4"),
        (table(memory_gib="'much'"), "memory_gib is 'much'"),
        (table(crypto_speed=-2), "crypto_speed is -2"),
        (table(compute_watts=-1), "compute_watts is -1"),
        (table(share=-1), "share is -1"),
        (table(share=0), "share is 0"),
        (table(share="inf"), "share is inf"),
        (table(share="nan"), "share is nan"),
        (table(spread=9), "spread is 9: Expected `float` <= 3"),
    ],
)
def test_files_that_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(fl.UserError, match=message) as error:
        fleet(str(path), 3, 0)
    assert str(path) in str(error.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "folder.toml").mkdir()
    for name in ("none.toml", "bytes.toml", "folder.toml"):
        with pytest.raises(fl.UserError, match="cannot be read"):
            fleet(str(tmp_path / name), 3, 0)


def test_other_mistakes() -> None:
    with pytest.raises(
        fl.UserError,
        match=r"unknown devices 'fast'\. Known: uniform, paper, mobile, slow_tail, mixed, jetson, or the path",
    ):
        fleet("fast", 3, 0)
    for clients in (0, -1, 2.5, True):
        with pytest.raises(fl.UserError, match="clients is"):
            fleet("uniform", clients, 0)  # type: ignore[arg-type]
    with pytest.raises(fl.UserError, match="seed is -1"):
        fleet("uniform", 3, -1)
    with pytest.raises(fl.UserError, match="device profile 'x': up_bytes_per_s"):
        Profile("x", 1e9, -1.0, 1.0)
