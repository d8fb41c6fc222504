"""Status reports: what a client signs, what hub and leader refuse, and what a liar gains within the format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import inf
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import coterie.method as fl
from coterie.clustering.kmeans import regrouped
from coterie.crypto.roster import signed, simulated
from coterie.crypto.signing import ReplayError, SignatureError
from coterie.devices.profiles import Profile, fleet
from coterie.devices.resources import resources, status
from coterie.protocol.codec import encode
from coterie.protocols.reports import (
    FIELDS,
    MOST_EPSILON,
    RANGES,
    SUMMARY,
    StatusReport,
    accepted,
    checked,
    costs,
    features,
    limits,
    opened,
    reported,
    summary,
)
from coterie.selection.resources import ratios, score

NAMES = tuple(f"client/{i}" for i in range(4))
ROLES = {"server": "server", **dict.fromkeys(NAMES, "client")}
ROSTER, IDENTITIES = simulated(ROLES, fl.Randomness(0, emulated=True))
OTHER, _ = simulated(ROLES, fl.Randomness(1, emulated=True))
SPEC = fl.ModelSpec((fl.Part("w", (10, 10), "float32", "parameter", "shared", 0),), flops_per_sample=600.0)
COMMON = fl.Common(ROSTER, NAMES, SPEC, np.zeros((1, 100), np.float32), "paper", True)
STEP_S = 20.0
change = msgspec.structs.replace


class Client(fl.Party, role="client"):
    """One that reports."""


def client(i: int, samples: int = 50, common: fl.Common = COMMON) -> Client:
    name = f"client/{i}"
    return Client(fl.Own(name, fl.Randomness(0, emulated=True), IDENTITIES[name], samples), common)


def told(party: Client, profile: Profile, round: int = 3, presence: Any = None, **arguments: Any) -> StatusReport:
    """The report of a party on this device, with its one effect computed."""
    work = reported(party, round, STEP_S, **arguments)
    effect = next(work)
    assert isinstance(effect, fl.Local)
    assert effect.function is status
    own = fl.OwnData(np.zeros((1, 1), np.float32), np.zeros(1, np.int64), device=profile, presence=presence)
    with pytest.raises(StopIteration) as done:
        work.send(status(own, *effect.arguments))
    report: StatusReport = done.value.value
    return report


DEVICE = Profile("x", 2e9, 1e6, 4e6, availability=0.9, dropout=0.5, budget=0.5, cpu_ghz=1.5, memory_gib=8.0)
HONEST = told(client(0), DEVICE, epsilon=2.0)


def test_a_report_says_what_the_device_can_do_and_what_the_step_leaves() -> None:
    """By hand: half of 20 s at 2 GFLOP/s; there .9 of the time, and lost in half of the rounds."""
    said = dict(zip(FIELDS, HONEST.values.tolist(), strict=True))
    assert said == pytest.approx(
        {
            "compute_flops_per_s": 2e9,
            "cpu_ghz": 1.5,
            "memory_gib": 8.0,
            "up_bytes_per_s": 1e6,
            "down_bytes_per_s": 4e6,
            "compute_flops": 2e10,
            "radio_s": 10.0,
            "samples": 50,
            "present_s": 9.0,
            "epsilon": 2.0,
        }
    )
    assert not HONEST.update.any()
    assert told(client(0), DEVICE, presence=lambda start, end: (end - start) / 4).values[8] == pytest.approx(9.0 / 4)
    assert told(client(0), DEVICE, epsilon=inf).values[9] == MOST_EPSILON
    assert resources(fl.OwnData(np.zeros((1, 1), np.float32), np.zeros(1, np.int64), device=DEVICE)) == (1.5, 8.0)


def test_a_device_without_a_profile_tells_nothing() -> None:
    with pytest.raises(fl.PeerError, match="its device is not known"):
        status(fl.OwnData(np.zeros((1, 1), np.float32), np.zeros(1, np.int64)), 0.0, 1.0)


def test_hub_and_leader_verify_the_same_bytes() -> None:
    assert checked(COMMON, HONEST, 3, STEP_S, sender="client/0") is HONEST
    again = opened(COMMON, encode(HONEST), 3, STEP_S)
    assert np.array_equal(again.values, HONEST.values)


def resigned(report: StatusReport, signer: int = 0, session: bytes = ROSTER.session) -> StatusReport:
    return signed(client(signer).own, change(report, signature=b""), session)


def with_value(field: str, value: float) -> StatusReport:
    values = HONEST.values.copy()
    values[FIELDS.index(field)] = value
    return resigned(change(HONEST, values=values))


FORGED: dict[str, tuple[Callable[[], StatusReport], type[fl.PeerError], str]] = {
    "another value": (lambda: change(HONEST, values=HONEST.values * 1.01), SignatureError, "not one of key"),
    "another summary": (lambda: change(HONEST, update=np.full(SUMMARY, 0.1, np.float32)), SignatureError, "not one of"),
    "another round": (lambda: change(HONEST, round=4), SignatureError, "not one of key"),
    "another client's name": (lambda: change(HONEST, client="client/1"), SignatureError, "not one of key"),
    "signed by another": (lambda: resigned(HONEST, signer=1), SignatureError, "not one of key"),
    "of another session": (lambda: resigned(HONEST, session=OTHER.session), SignatureError, "not one of key"),
    "unsigned": (lambda: change(HONEST, signature=b""), SignatureError, "not one of key"),
    "no client": (lambda: resigned(change(HONEST, client="server")), fl.PeerError, "a status report of 'server'"),
    "a stranger": (lambda: resigned(change(HONEST, client="x" * 999)), fl.PeerError, "a status report of 'x{40}'$"),
    "stale": (lambda: resigned(change(HONEST, round=2)), ReplayError, "of round 2 in round 3"),
    "of the future": (lambda: resigned(change(HONEST, round=4)), ReplayError, "of round 4 in round 3"),
    "too few values": (lambda: resigned(change(HONEST, values=HONEST.values[:9])), fl.PeerError, r"\(9,\) values"),
    "a long summary": (lambda: resigned(change(HONEST, update=np.ones(9, np.float32))), fl.PeerError, r"\(9,\) of a"),
    "a loud summary": (lambda: resigned(change(HONEST, update=np.ones(8, np.float32))), fl.PeerError, "length 2.828"),
    "no number": (lambda: with_value("samples", float("nan")), fl.PeerError, "samples is nan"),
    "more work than the step has": (lambda: with_value("compute_flops", 5e10), fl.PeerError, "compute_flops is 5e"),
    "more transfer than the step has": (lambda: with_value("radio_s", 21.0), fl.PeerError, "radio_s is 21"),
    "longer there than the step": (lambda: with_value("present_s", 20.1), fl.PeerError, "present_s is 20.1"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_report_that_is_not_the_client_s_for_this_round_is_refused(name: str) -> None:
    forge, error, words = FORGED[name]
    with pytest.raises(error, match=words):
        checked(COMMON, forge(), 3, STEP_S)


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_has_a_least_and_a_largest_value(field: str) -> None:
    low, high = RANGES[field]
    for value in (low - max(1e-3 * abs(low), 1e-3), high * 1.01):
        with pytest.raises(fl.PeerError, match=f"client/0: {field} is"):
            checked(COMMON, with_value(field, value), 3, 1e9)
    for value in (low, high):
        if field in ("compute_flops", "radio_s", "present_s", "compute_flops_per_s"):
            value = min(value, 1e9)
        if field != "compute_flops_per_s":
            checked(COMMON, with_value(field, value), 3, 1e9)


def test_a_report_that_another_sends_as_its_own_is_refused() -> None:
    with pytest.raises(fl.PeerError, match="a status report of 'client/0' from client/1"):
        checked(COMMON, HONEST, 3, STEP_S, sender="client/1")


def test_each_report_is_accepted_only_once_and_in_order() -> None:
    known: dict[str, StatusReport] = {}
    old = checked(COMMON, resigned(change(HONEST, round=2)), 2, STEP_S)
    accepted(known, old)
    with pytest.raises(ReplayError, match="of round 2 after one of round 2"):
        accepted(known, old)
    accepted(known, HONEST)
    with pytest.raises(ReplayError, match="of round 2 after one of round 3"):
        accepted(known, old)
    assert known == {"client/0": HONEST}


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 255))
def test_hostile_bytes_raise_peer_errors_only(noise: bytes, at: int, byte: int) -> None:
    data = bytearray(encode(HONEST))
    data[at % len(data)] = byte
    for wrong in (noise, bytes(data) + b"x"):
        with pytest.raises(fl.DecodeError):
            opened(COMMON, wrong, 3, STEP_S)
    if bytes(data) != encode(HONEST):
        with pytest.raises(fl.PeerError):
            opened(COMMON, bytes(data), 3, STEP_S)


# -- what follows from reports -----------------------------------------------------------------------------------------


def test_costs_are_those_of_the_stated_model_and_lead_to_the_shares() -> None:
    """By hand: 50 samples x 600 operations x 2 epochs = 600 a parameter; 8 bytes at 1 MB/s and 4 MB/s."""
    found = costs(HONEST, SPEC, 2, full_samples=100, epsilon_round=3.0)
    assert found.up == pytest.approx((600, 8e-6, 1.0, 600 / 2e9 + 8e-6, 0.03))
    assert found.down == pytest.approx((1.0, 2e-6, 0.0, 1 / 2e9 + 2e-6, 0.0))
    shares = ratios(limits(HONEST), found, SPEC.size)
    assert (shares.up, shares.down, shares.binding) == (0.5, 1.0, ("data",))
    assert limits(HONEST).values == pytest.approx((2e10, 10.0, 50.0, 9.0, 2.0))


def test_a_summary_keeps_directions_and_says_nothing_of_lengths() -> None:
    rng = np.random.default_rng(0)
    cosines = []
    for _ in range(200):
        a, b = rng.normal(size=(2, 100))
        b = a + b
        first, second = (summary(COMMON, np.arange(100), v) for v in (a, b))
        cosines.append(float(first @ second) - float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)))
        assert float(np.linalg.norm(first)) == pytest.approx(1.0, abs=1e-6)
    assert abs(np.mean(cosines)) < 0.05
    assert np.array_equal(summary(COMMON, [3], [5.0]), summary(COMMON, [3], [0.5]))
    assert not summary(COMMON, [], []).any()
    assert not np.array_equal(summary(COMMON, [3], [5.0]), summary(change_roster(), [3], [5.0]))


def change_roster() -> fl.Common:
    return fl.Common(OTHER, NAMES, SPEC, COMMON.starts, "paper", True)


def reports_of(fleet_name: str, clients: int) -> dict[str, StatusReport]:
    """Unsigned reports of a fleet, by client."""
    found = {}
    for i, profile in enumerate(fleet(fleet_name, clients, 0)):
        report = told(client(0), profile)
        found[f"client/{i}"] = change(report, client=f"client/{i}")
    return found


def test_clients_with_like_devices_are_clustered_together() -> None:
    """The four kinds of devices of ``mixed`` without their spread."""
    kinds = ["gateway", "phone", "laptop", "edge box"]
    profiles = {p.name: p for p in fleet("mixed", 20, 1)}
    reports = {f"client/{i}": told(client(0), profiles[kinds[i % 4]]) for i in range(16)}
    names, rows, groups = features(reports)
    assert rows.shape == (16, 18)
    found = regrouped(names, rows, 4, groups=groups).numbers
    assert len({(int(name.split("/")[1]) % 4, k) for name, k in found.items()}) == 4 == len(set(found.values()))


def test_no_reports_are_no_rows() -> None:
    names, rows, groups = features({})
    assert (names, rows.shape, groups) == ((), (0, 18), (5, 5, 8))


def test_one_absurd_claim_does_not_squeeze_the_others() -> None:
    """Without taming, one device of 10^15 operations a second is one cluster and all others are the other."""
    reports = reports_of("mixed", 20)
    liar = reports["client/3"].values.copy()
    liar[:5] = [RANGES[field][1] for field in FIELDS[:5]]
    reports["client/3"] = change(reports["client/3"], values=liar)
    names, rows, groups = features(reports)
    sizes = sorted(Counter(regrouped(names, rows[:, :5], 2).numbers.values()).values())
    assert sizes[0] > 1
    assert regrouped(names, rows, 2, groups=groups).numbers.keys() == set(names)


def test_a_liar_s_score_stays_below_one_and_others_keep_theirs() -> None:
    reports = reports_of("mixed", 8)
    honest = {n: score(limits(r), costs(r, SPEC, 1, full_samples=100), SPEC.size) for n, r in reports.items()}
    most = np.array([RANGES[field][1] for field in FIELDS])
    most[5:9] = [1e15 * STEP_S, STEP_S, RANGES["samples"][1], STEP_S]
    reports["client/0"] = resigned(change(reports["client/0"], values=most))
    checked(COMMON, reports["client/0"], 3, STEP_S)
    lied = {n: score(limits(r), costs(r, SPEC, 1, full_samples=100), SPEC.size) for n, r in reports.items()}
    assert honest["client/0"] < lied["client/0"] <= 1
    assert {n: lied[n] for n in NAMES[1:]} == {n: honest[n] for n in NAMES[1:]}
