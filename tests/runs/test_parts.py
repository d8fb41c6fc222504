"""Devices as links, sealing between parties, recorded views, checkpoint files, and who trains how long."""

from __future__ import annotations

import dataclasses
import tracemalloc
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import toy_federation

import coterie.method as fl
from coterie.crypto.roster import simulated
from coterie.devices.links import FleetLinks
from coterie.devices.profiles import SERVER, Profile, fleet
from coterie.protocols.local_training import local_epochs
from coterie.record.files import atomic_write, checked, sealed
from coterie.runs import RunConfig, build, checkpoint, registry
from coterie.runs.keyring import PartyKeys
from coterie.runs.surroundings import epochs_of
from coterie.runs.views import ViewLog, read_views
from coterie.transport.transcript import Transcript
from coterie.transport.wire import Snapshot

SLOW = Profile("slow", 2e9, 1e3, 4e3, latency_s=0.5, crypto_speed=0.25, availability=0.7, dropout=0.2)


def test_seconds_follow_from_the_profile() -> None:
    links = FleetLinks({"client/0": SLOW}, seed=0)
    assert links.down_s("client/0", 8000) == 0.5 + 2
    assert links.up_s("client/0", 8000) == 0.5 + 8
    assert links.work_s("client/0", fl.Cost(samples=100, flops_per_sample=4e7, crypto_s=3)) == pytest.approx(2 + 12)
    assert links.up_s("helper", 125_000_000) == pytest.approx(SERVER.latency_s + 1)
    assert links.work_s("helper", fl.Cost(crypto_s=3)) == 3


def test_fates_follow_the_profile_s_chances() -> None:
    links = FleetLinks({"client/0": SLOW}, seed=1)
    fates = [links.fate("client/0", r, request=1) for r in range(1, 4001)]
    later = [links.fate("client/0", r, request=77) for r in range(1, 4001)]
    offline = [[fate == "offline" for fate in draws] for draws in (fates, later)]
    assert offline[0] == offline[1]  # who is away is away for the whole round
    assert {("ok", "dropped"), ("dropped", "ok")} <= set(zip(fates, later, strict=True))  # but may drop out in between
    assert fates == [FleetLinks({"client/0": SLOW}, seed=1).fate("client/0", r, 1) for r in range(1, 4001)]
    assert fates != [FleetLinks({"client/0": SLOW}, seed=2).fate("client/0", r, 1) for r in range(1, 4001)]
    shares = {fate: fates.count(fate) / 4000 for fate in ("offline", "dropped", "ok")}
    assert shares["offline"] == pytest.approx(0.3, abs=0.03)  # 4 standard deviations
    assert shares["dropped"] == pytest.approx(0.7 * 0.2, abs=0.025)
    sure = FleetLinks({"client/0": dataclasses.replace(SLOW, availability=1, dropout=0)}, seed=1)
    assert {sure.fate("client/0", r, 1) for r in range(1, 1001)} == {"ok"}
    assert links.fate("client/0", 0, 1) == "ok"
    assert {links.fate("helper", r, 1) for r in range(100)} == {"ok"}


def keys_of(*names: str, seed: int = 0, emulated: bool) -> PartyKeys:
    return PartyKeys(*simulated(dict.fromkeys(names, "role"), fl.Randomness(seed, emulated)))


def test_only_the_two_ends_can_open_and_only_with_the_same_header() -> None:
    keys = keys_of("a", "b", "c", emulated=False)
    sealed = keys.seal("a", "b", b"hello", b"header")
    assert b"hello" not in sealed
    assert len(sealed) == len(b"hello") + keys.overhead
    assert keys.open("a", "b", sealed, b"header") == b"hello"
    wrong = [("a", "c", sealed), ("c", "b", sealed), ("a", "b", sealed[:-1]), ("a", "b", b"")]
    for src, dst, data, header in [*((*one, b"header") for one in wrong), ("a", "b", sealed, b"another")]:
        with pytest.raises(fl.PeerError):
            keys.open(src, dst, data, header)
    with pytest.raises(fl.PeerError, match="'x' has no sealing key"):
        keys.seal("a", "x", b"", b"")
    with pytest.raises(fl.PeerError, match="'x' has no opening key"):
        keys.open("a", "x", b"", b"")


def test_only_the_sender_can_sign() -> None:
    keys = keys_of("a", "b", emulated=False)
    signature = keys.sign("a", b"header", b"digest")
    keys.verify("a", signature, b"header", b"digest")
    for src, data, header, digest in (
        ("b", signature, b"header", b"digest"),
        ("a", signature[:-1], b"header", b"digest"),
        ("a", signature, b"headerd", b"igest"),
        ("a", signature, b"header", b"other"),
        ("x", signature, b"header", b"digest"),
    ):
        with pytest.raises(fl.PeerError):
            keys.verify(src, data, header, digest)


def test_the_keyring_of_one_party_has_no_other_s_secrets() -> None:
    roster, identities = simulated({"a": "role", "b": "role"}, fl.Randomness(0, emulated=False))
    everybody, own = PartyKeys(roster, identities), PartyKeys(roster, {"a": identities["a"]})
    assert own.session == everybody.session == roster.session.hex()
    own.verify("b", everybody.sign("b", b"h", b"d"), b"h", b"d")
    assert everybody.open("a", "b", own.seal("a", "b", b"x", b""), b"") == b"x"
    for call in (lambda: own.sign("b", b"", b""), lambda: own.open("a", "b", b"", b"")):
        with pytest.raises(fl.PeerError, match="'b' has no"):
            call()


def test_keys_follow_the_seed_in_emulated_runs_only() -> None:
    emulated = [simulated({"a": "x", "b": "x"}, fl.Randomness(seed, emulated=True)) for seed in (0, 0, 1)]
    assert emulated[0] == emulated[1]
    assert emulated[0][0].session != emulated[2][0].session
    assert emulated[0][1]["a"] != emulated[0][1]["b"]
    first, second = (keys_of("a", "b", emulated=False) for _ in range(2))
    with pytest.raises(fl.PeerError):
        second.open("a", "b", first.seal("a", "b", b"x", b""), b"")
    with pytest.raises(fl.PeerError):
        second.verify("a", first.sign("a", b"", b""), b"", b"")


def test_epochs_are_the_fleet_s_where_it_has_budgets() -> None:
    names = [f"client/{i}" for i in range(30)]
    config = fl.LocalTraining(max_epochs=10)
    plain = dict(zip(names, fleet("uniform", 30, 0), strict=True))
    assert epochs_of(plain, config, 4) == local_epochs(names, config, 4)
    paper = dict(zip(names, fleet("paper", 30, 0), strict=True))
    epochs = epochs_of(paper, config, 4)
    assert epochs == {name: max(1, round(10 * profile.budget)) for name, profile in paper.items()}
    assert 2 <= min(epochs.values()) < max(epochs.values()) <= 10


def test_a_build_is_a_pure_function_of_its_config() -> None:
    config = RunConfig("fedavg", clients=5)
    a, b = build(config), build(config)
    assert a.fingerprint == b.fingerprint
    assert build(dataclasses.replace(config, seed=1)).fingerprint != a.fingerprint
    assert a.label_counts.shape == (5, 10)
    assert a.label_counts.sum(axis=1).tolist() == [a.owns[name].samples for name in a.common.clients]
    starts = build(RunConfig("ifca", clients=5, settings={"clusters": 2})).common.starts
    np.testing.assert_array_equal(starts[0], a.common.initial)
    assert not np.array_equal(starts[0], starts[1])
    assert a.crypto == "none"


def test_views_come_back_from_disk(tmp_path: Path) -> None:
    registry.register(toy_federation.SYSTEM)
    experiment = build(RunConfig("toy", clients=4, rounds=2, record=True))
    transcript = experiment.transport.transcript
    assert transcript is not None
    log = ViewLog(tmp_path / "views.bin", transcript)
    for r in (1, 2):
        experiment.round(r)
        log.append()
    kinds = experiment.system.kinds()
    assert set(kinds) == {toy_federation.Train, toy_federation.Update, toy_federation.Hint}
    back = read_views(tmp_path / "views.bin", kinds)
    assert set(back.views) == set(transcript.views)
    for party, view in transcript.views.items():
        other = back.views[party]
        assert (other.role, len(other.seen)) == (view.role, len(view.seen))
        for a, b in zip(view.seen, other.seen, strict=True):
            assert dataclasses.replace(a, message=None) == dataclasses.replace(b, message=None)
            assert (a.message is None) == (b.message is None)
            if isinstance(a.message, toy_federation.Update):
                assert isinstance(b.message, toy_federation.Update)
                np.testing.assert_array_equal(a.message.weights, b.message.weights)
    relayed = [s for s in back.views["hub"].seen if s.kind == "Hint"]
    assert relayed
    assert all(seen.message is None for seen in relayed)


def test_views_that_are_damaged_or_of_another_system(tmp_path: Path) -> None:
    registry.register(toy_federation.SYSTEM)
    experiment = build(RunConfig("toy", clients=3, rounds=1, record=True))
    assert experiment.transport.transcript is not None
    log = ViewLog(tmp_path / "views.bin", experiment.transport.transcript)
    experiment.round(1)
    log.append()
    data = (tmp_path / "views.bin").read_bytes()
    kinds = experiment.system.kinds()
    bad = tmp_path / "bad.bin"
    for other in (data[:3], b"coterie views 1\n" + data[16:]):
        bad.write_bytes(other)
        with pytest.raises(fl.UserError, match=r"bad\.bin was not recorded by this version of coterie: repeat the run"):
            read_views(bad, kinds)
    for cut in (17, 19, 66, len(data) - 1):
        bad.write_bytes(data[:cut])
        with pytest.raises(fl.UserError, match=r"bad\.bin is damaged"):
            read_views(bad, kinds)
    with pytest.raises(fl.UserError, match="of another system"):
        read_views(tmp_path / "views.bin", kinds[:0])
    with pytest.raises(fl.UserError, match="--record"):
        read_views(tmp_path / "none.bin", kinds)
    assert isinstance(read_views(tmp_path / "views.bin", kinds, Transcript(1 << 30)), Transcript)


def test_what_is_under_way_is_written_and_read_one_frame_at_a_time(tmp_path: Path) -> None:
    """40 MB of frames in a few; nothing of a file that was cut or changed is taken."""
    path, count, size = tmp_path / checkpoint.CHECKPOINT, 40, 1 << 20
    path.parent.mkdir()
    tracemalloc.start()
    try:
        atomic_write(path, sealed(chain((b"head",), (bytes([i]) * size for i in range(count)))))
        with checked(path) as (file, length):
            assert file.read(4) == b"head"
        for i, frame in enumerate(checkpoint.frames(tmp_path, Snapshot(0.0, {}, [], [size] * count, {}, []))):
            assert frame == bytes([i]) * size
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (i, length) == (count - 1, 4 + count * size)
    assert peak < 8 * size
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:100], b"", whole[:500] + b"x" + whole[501:], whole + b"x"):
        path.write_bytes(damaged)
        with pytest.raises(fl.UserError, match="damaged, or of another version"), checked(path):
            pass
