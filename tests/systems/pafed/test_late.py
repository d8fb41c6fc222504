"""PAFed never waits: late updates are used once, in order, not too old, and a run that was interrupted goes on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import Rig, Steady, on_the_wire
from kept_parties import key_bytes
from pafed_parts import change, model, opened, paf, taken
from tampering import flipped

from coterie.protocols.local_training import sample_clients
from coterie.runs import Interrupted, RunConfig, run
from coterie.systems.pafed.client import Client
from coterie.systems.pafed.helper import Helper
from coterie.systems.pafed.messages import HUB, Train, Update


def delays(run: Rig) -> Any:
    return run.links.delays


def played(rounds: int, **options: Any) -> tuple[Rig, list[tuple[int, str, int]], list[dict[str, Any]]]:
    """Rounds, who handed over an update when (round, who, of which round), and the notes."""
    run, arrivals, notes = paf(**options), [], []
    for r in range(1, rounds + 1):
        note, updates = taken(run, r)
        notes.append(note)
        arrivals += [(r, name, update.round) for name, update in updates]
        assert not run.refused
    return run, arrivals, notes


def test_updates_come_when_the_delays_say_each_once_and_a_clients_late_ones_in_order() -> None:
    run, arrivals, notes = played(12, participation=0.75, delta=0.4, delay="uniform:1-4", seed=3)
    table, names = delays(run), run.common.clients
    expected = [(q + table.of(q).get(c, 0), c, q) for q in range(1, 13) for c in sample_clients(names, 0.75, 3, q)]
    assert sorted(arrivals) == sorted(entry for entry in expected if entry[0] <= 12)
    assert max(when - of for when, _, of in arrivals) == 4
    for name in names:
        late = [of for when, who, of in arrivals if who == name and when > of]
        assert late == sorted(late)
    for r, note in enumerate(notes, 1):
        ages = Counter(when - of for when, _, of in arrivals if when == r)
        assert note["staleness"] == [ages[age] for age in range(max(ages) + 1)]
        assert (note["participants"], note["asked"], note["too_old"]) == (ages.total(), 6, 0)
        assert note["server_step"] == pytest.approx(0.8 / (1 + 0.05 * (r - 1)))


def test_an_update_older_than_the_bound_is_dropped_and_counted() -> None:
    run, arrivals, notes = played(10, max_staleness=2, delay="uniform:1-4", seed=3)
    for r, note in enumerate(notes, 1):
        ages = [when - of for when, _, of in arrivals if when == r]
        assert note["too_old"] == sum(age > 2 for age in ages)
        assert note["participants"] == sum(age <= 2 for age in ages)
        assert len(note["staleness"]) <= 3
    assert sum(note["too_old"] for note in notes) > 3
    assert all(not rounds or max(rounds) > 5 for rounds in run.hub.state.owed.values())  # dropped, and settled


def test_without_an_experiments_delays_devices_and_a_deadline_decide() -> None:
    """client/2 takes longer than a round: its update is used when it comes, and then it is asked for the next one.

    So no update is later than the first, however many rounds there are.
    """
    run = paf(delta=0.0, deadline_s=10.0, links=Steady(slow={"client/2": 25.0}))
    notes = [run.round(r) for r in range(1, 16)]
    assert all(note["staleness"][0] == 7 for note in notes)
    assert all(note["asked"] + note["busy"] == 8 for note in notes)
    used = [len(note["staleness"]) - 1 for note in notes if len(note["staleness"]) > 1]
    assert len(used) > 3
    assert set(used[1:]) == {used[0]}
    assert sum(note["too_old"] for note in notes) == 0
    of = [update.round for seen, update in run.view(HUB).messages(Update) if seen.src == "client/2"]
    assert of == sorted(set(of))
    assert of == [train.round for _, train in run.view("client/2").messages(Train)][: len(of)]
    assert dict(run.refused) == {}


def test_a_round_in_which_everybody_is_still_at_work_waits_for_the_first_of_them() -> None:
    run = paf(delta=0.0, deadline_s=10.0, links=Steady(slow={f"client/{i}": 15.0 for i in range(8)}))
    started = run.transport.clock_s
    first, second = (run.round(r) for r in (1, 2))
    assert (first["skipped"], first["asked"], first["busy"]) == ("no update came", 8, 0)
    assert (second["asked"], second["busy"], second["staleness"]) == (0, 8, [0, 8])
    assert 15.0 < run.transport.clock_s - started < 16.0  # it doesn't sit out the deadline of round 2


def test_who_refused_a_model_is_asked_again_at_once() -> None:
    """Under a deadline, too: otherwise a model that nobody could open would cost as many rounds as updates may be late.

    That a model which most refuse is given up is tested in ``test_pafed_liars``.
    """
    run = paf(delta=0.0, deadline_s=10.0)
    on_the_wire(run.transport, Train, lambda train: change(train, signature=flipped(train.signature)), rounds=[1])
    first, second = (run.round(r) for r in (1, 2))
    assert "refused" in first["skipped"]
    assert (second["participants"], second["busy"]) == (8, 0)


def test_late_updates_alone_move_the_model_as_they_come() -> None:
    """Round 2 has two of round 1 and nobody in time: there is nothing that they could conflict with."""
    run = paf(seed=2, delay="uniform:1")
    run.round(1)
    for name in run.common.clients:
        run.links.away[name, 2] = "offline"
    before = model(run)
    note, updates = taken(run, 2)
    assert note["staleness"] == [0, 4]
    mean = np.mean([opened(run, update) for _, update in updates], axis=0)
    assert np.abs(model(run) - before - run.config.server_step(2) * mean).max() < 1e-5


def test_the_model_that_a_client_trains_on_is_the_one_of_the_round_that_asked() -> None:
    """Each late update is a step from its own round's model towards its client's target, whenever it is used."""
    run, start = paf(seed=3, local="sgd"), {}
    for r in range(1, 9):
        start[r] = model(run)
        _, updates = taken(run, r)
        for name, update in updates:
            direction = run.transport.effects.targets[name] - start[update.round]
            unit = direction / np.linalg.norm(direction)
            assert np.abs(opened(run, update) - unit).max() < 2e-4
    assert {train.round for _, train in run.view("client/0").messages(Train)} == set(range(1, 9))


# -- whole runs --------------------------------------------------------------------------------------------------------


def digits(mode: str = "paper", crypto: str = "emulated", **options: Any) -> RunConfig:
    settings = {"participation": 1.0, "max_epochs": 1, "batch_size": 10, **options.pop("settings", {})}
    given: dict[str, Any] = {"clients": 6, "rounds": 4, "partition": "shards:2", "seed": 3, "delta": 0.5, **options}
    return RunConfig("pafed", "digits", mode=mode, crypto=crypto, model="linear", settings=settings, **given)  # type: ignore[arg-type]


def test_a_real_run_keeps_its_keys_out_of_the_checkpoint_and_goes_on(tmp_path: Path) -> None:
    """Keys of the helper and of every client lie in the log beside it, mode 0600."""
    config = digits(crypto="real", clients=3, rounds=3, checkpoint_every=1, out=str(tmp_path / "run"))

    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run(config, stop)
    written = (tmp_path / "run" / "checkpoint" / "checkpoint.bin").read_bytes()
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in (tmp_path / "run" / "checkpoint").iterdir())
    for name, kind in {"helper": Helper, **{f"client/{i}": Client for i in range(3)}}.items():
        pieces = key_bytes(tmp_path / "run", name, kind)
        assert len(pieces) > 4
        assert not any(piece in written for piece in pieces)
    result = run(config, resume=True)
    assert result.summary["refused"] == 0
    assert len(result.rounds) == 3


def test_it_learns_digits() -> None:
    """Real and emulated: from 10 % to more than half in eight rounds of which half of the answers are late."""
    result = run(digits(rounds=8, clients=10, partition="dirichlet:0.5", settings={"max_epochs": 3, "server_lr": 2.0}))
    assert result.summary["crypto"] == "emulated"
    assert result.summary["global_accuracy"] > 0.5
    assert result.summary["refused"] == 0
