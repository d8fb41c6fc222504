"""Parties that are resumed from their own bytes alone, and runs with real keys that go on."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ended import kill_after
from kept_parties import head, kept, log_of, plain
from matrix import few

from coterie.crypto.roster import entry, signing_key, verify_key
from coterie.protocol.setup_info import Common, Own
from coterie.record.folder import read_lines
from coterie.runs import Experiment, Interrupted, RunConfig, build, checkpoint, resolve, run
from coterie.runs.checkpoint import Saver
from coterie.runs.parties import restore

SYSTEMS = {
    "fedcaprivacy": {"clusters": 2, "max_epochs": 1},
    "mingledpie": {"clusters": 3, "threshold": 1, "max_epochs": 1},
    "pafed": {"participation": 1.0, "max_epochs": 1},
    "pafed hardened": {"participation": 1.0, "max_epochs": 1},
}
"""By system, and mode if it is another than ``paper``."""


def real(system: str, **options: Any) -> RunConfig:
    """A small run with real keys, half of whose updates come a round late where the system takes such."""
    given: dict[str, Any] = {"clients": 4, "rounds": 4, "partition": "permute:2", "seed": 1, "checkpoint_every": 1}
    name, _, mode = system.partition(" ")
    late = {"delta": 0.5} if name == "pafed" else {}
    options = {"data": "digits", "model": "linear", "crypto": "real", **given, **late, **options}
    return resolve(RunConfig(name, mode=mode or "paper", settings=SYSTEMS[system], **options))


@pytest.fixture(scope="module", params=few(SYSTEMS, {"mingledpie"}))
def after_two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two rounds of a system with real keys, and the folder with its checkpoint."""
    made, out = build(real(request.param)), tmp_path_factory.mktemp(request.param)
    made.set_up()
    for r in (1, 2):
        made.round(r)
    Saver(out, made).save(2, 0, 0, {})
    yield made, out
    made.close()


def alone(made: Experiment, out: Path, name: str) -> Any:
    """A party as another machine would make it: from the roster, its own bytes, and what its own device knows."""
    told = made.owns[name]
    common = Common(
        made.common.roster, made.common.clients, made.model.spec, made.common.starts, made.config.mode, emulated=False
    )
    file = kept(out, name)
    own = Own(name, told.randomness, file.identity, told.samples, told.epochs)
    party = made.system.make(own, common, made.settings)
    restore(party, file.kept)
    return party


def test_every_party_is_resumed_from_its_own_bytes_alone(after_two: tuple[Experiment, Path], tmp_path: Path) -> None:
    """No other party's bytes are there. The party is the one of the run, and signs with the key of the roster."""
    made, out = after_two
    for name in made.parties:
        place, own = tmp_path / name.replace("/", "-"), head(out).parties[name]
        shutil.copytree(out / "checkpoint", place / "checkpoint")
        whole = log_of(out).read_bytes()
        log_of(place).write_bytes(bytes(own.at) + whole[own.at : own.at + own.size])
        party, original = alone(made, place, name), made.parties.look(name)
        assert party is not original
        assert plain((party.state, party.secret)) == plain((original.state, original.secret))
        assert entry(name, party.role, party.own.identity) == made.common.roster.by_name[name]
        verify_key(made.common, name).verify(signing_key(party.own).sign("words", 3), "words", 3)


def test_the_run_goes_on_with_parties_that_were_resumed_alone(after_two: tuple[Experiment, Path]) -> None:
    """All but the hub are replaced; what is under way to them and from them is taken."""
    made, out = after_two
    under_way = {parcel.envelope.kind for parcel in made.transport.snapshot().parcels}
    assert under_way or made.system.name != "pafed"
    for name in made.parties:
        if name != made.federation.hub:
            made.parties.replace(alone(made, out, name))
    line = made.round(3)
    assert not line["refused"]
    assert "skipped" not in line["notes"]


def numbers(out: Path, system: str) -> list[dict[str, Any]]:
    """What does not depend on real randomness, as the length of MingledPie's messages does (by what a client draws)."""
    same = ["round", "refused", "lost", "late"]
    if system != "mingledpie":
        same += ["bytes_up", "bytes_down", "message_bytes", "virtual_seconds"]
    return [{key: line[key] for key in same} for line in read_lines(out / "metrics.jsonl")]


@pytest.mark.long
@pytest.mark.parametrize("system", few(SYSTEMS, {"pafed"}))
def test_a_run_with_real_keys_that_is_stopped_twice_in_the_middle_goes_on(
    system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that a party signed or sealed before is refused after; models are equal but for the ciphers' noise."""
    from coterie.runs.interpreter import LocalEffects

    config = real(system)
    one = run(replace(config, out=str(tmp_path / "a")))
    run_effects, rounds = LocalEffects.run, []

    def once_a_round(self: LocalEffects, wanted: Any) -> Any:
        done = len(read_lines(tmp_path / "b" / "metrics.jsonl"))
        if done in (2, 3) and done not in rounds:
            rounds.append(done)
            raise KeyboardInterrupt
        return run_effects(self, wanted)

    monkeypatch.setattr(LocalEffects, "run", once_a_round)
    for resume in (False, True):
        with pytest.raises(Interrupted):
            run(replace(config, out=str(tmp_path / "b")), resume=resume)
    assert rounds == [2, 3]
    two = run(replace(config, out=str(tmp_path / "b")), resume=True)
    assert numbers(tmp_path / "a", system) == numbers(tmp_path / "b", system)
    assert one.summary["refused"] == two.summary["refused"] == 0
    assert not one.summary["skipped"]
    losses = [[line["global_loss"] for line in result.rounds] for result in (one, two)]
    if system == "mingledpie":  # models follow from the true clusters that clients draw, which is real randomness
        assert all(loss[0] > loss[-1] for loss in losses)
    else:
        np.testing.assert_allclose(*losses, rtol=0.01)
    if system == "fedcaprivacy":  # the integers in a Paillier ciphertext are exact
        assert [line["models_sha256"] for line in one.rounds] == [line["models_sha256"] for line in two.rounds]
    if system.startswith("pafed"):
        assert any(max(line["notes"]["staleness"], default=0) for line in two.rounds[2:]), "nothing was under way"


@pytest.mark.long
def test_a_run_with_real_keys_that_was_killed_goes_on(tmp_path: Path) -> None:
    """By SIGKILL, somewhere in a round after the second; signed updates of delayed clients are under way."""
    out = tmp_path / "run"
    config = real("pafed", out=str(out), rounds=40)
    code = (
        "from tests.runs.test_resume_alone import real; from coterie.runs import run; "
        f"run(real('pafed', out={str(out)!r}, rounds=40))"
    )
    kill_after(2, out, code)
    found = checkpoint.read(out, config)
    assert found is not None
    assert {parcel.envelope.kind for parcel in found.snapshot.parcels} == {"Update"}
    result = run(replace(config, rounds=found.round + 2), resume=True)
    assert result.summary["rounds"] == found.round + 2
    assert result.summary["refused"] == 0
    assert max(result.rounds[found.round]["notes"]["staleness"]) >= 1
