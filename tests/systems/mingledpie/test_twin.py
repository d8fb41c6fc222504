"""Real CKKS against its emulated twin in every form, exact modes against each other, and whole runs on digits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import mingledpie_parts as parts
import numpy as np
import pytest
from federation import Pulled
from kept_parties import contents, key_bytes

from coterie.protocol.errors import RunError, UserError
from coterie.record.folder import read_lines
from coterie.runs import RunConfig, build, load_result, run
from coterie.systems.mingledpie.client import Client

FEW = slice(0, 12, 2)  # two clients a group


def few(**options: Any) -> Any:
    return parts.pies(parts.TARGETS[FEW], starts=parts.near(), effects=lambda t: Pulled(t, noise=0.1), **options)


@pytest.mark.parametrize(("mode", "hardening"), parts.EACH_FORM)
@pytest.mark.parametrize("shared", ["bias", pytest.param("", marks=pytest.mark.long)])
def test_real_ckks_gives_its_twins_models_within_the_stated_bound(mode: str, hardening: str, shared: str) -> None:
    """Two rounds with the same identity sets; notes, bytes and virtual seconds are equal, too.

    What the models of round 1 differ by is halved by training and goes through the rebuild as it is.
    """
    real, twin = (
        few(mode=mode, hardening=hardening, shared_layers=shared, emulated=emulated, seed=5, lr=0.5)
        for emulated in (False, True)
    )
    bound = 0.0
    for r in (1, 2):
        notes = [run.round(r) for run in (real, twin)]
        assert notes[0] == notes[1]
        assert parts.chosen(real) == parts.chosen(twin) == parts.GROUPS[FEW]
        h = None
        if mode == "paper":
            _, h = parts.mingled_sums(np.zeros((6, 1)), parts.GROUPS[FEW], parts.joined_sets(notes[0]))
        bound = 0.5 * bound + 2 * parts.cipher_error(mode, hardening, 6, h)
        error = np.abs(parts.held(real) - parts.held(twin)).max()
        assert 0 < error <= bound + 2e-6  # float32 holds numbers near 5
        assert (real.transport.clock_s, dict(real.transport.meter.message_bytes)) == (
            twin.transport.clock_s,
            dict(twin.transport.meter.message_bytes),
        )
    assert bound < 2e-5
    assert real.party("client/0").state.why == ""


def test_uploads_and_products_give_the_same_models() -> None:
    runs = [few(mode="hardened", hardening=hardening, lr=0.5) for hardening in ("uploads", "products")]
    for r in (1, 2, 3):
        notes = [run.round(r) for run in runs]
        assert notes[0] == notes[1]
    assert np.abs(parts.held(runs[0]) - parts.held(runs[1])).max() < 1e-5
    up = [run.transport.meter.message_bytes["client > server Update"] for run in runs]
    assert up[0] != up[1]


# -- whole runs on digits ----------------------------------------------------------------------------------------------


def digits(mode: str = "paper", crypto: str = "emulated", **options: Any) -> RunConfig:
    settings = {"clusters": 3, "lr": 0.1, "batch_size": 10, "max_epochs": 1, **options.pop("settings", {})}
    given = {"clients": 9, "rounds": 2, "partition": "labelsets:3", "seed": 3, **options}
    return RunConfig("mingledpie", "digits", mode=mode, crypto=crypto, settings=settings, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("crypto", ["emulated", pytest.param("real", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("mode", "settings"),
    [
        ("paper", {}),
        ("literal", {}),
        ("hardened", {"hardening": "uploads"}),
        pytest.param("hardened", {}, marks=pytest.mark.long),
    ],
)
def test_a_run_on_digits(mode: str, settings: dict, crypto: str, tmp_path: Path) -> None:
    """In each mode and form; a real one with fewer clients."""
    clients = 9 if crypto == "emulated" else 4
    config = digits(mode, crypto, clients=clients, out=str(tmp_path / "run"), settings=settings)
    if mode == "literal":  # which trains nothing
        with pytest.raises(RunError, match="all 2 rounds were skipped"):
            run(replace(config, record=True))
    else:
        summary = run(replace(config, record=True)).summary
        assert load_result(tmp_path / "run").summary["crypto"] == crypto
        assert summary["refused"] == 0
        assert 0 < summary["global_accuracy"] <= 1
    for line in read_lines(tmp_path / "run" / "metrics.jsonl"):
        notes = line["notes"]
        assert notes["participants"] == clients
        assert (notes["clusters"]["sizes"] == []) == (mode == "hardened")
        by = sum(notes["rebuilt"].values())
        assert by == clients
        assert notes["rebuilt"]["by"] == (0 if mode == "literal" else clients)


@pytest.mark.long
def test_real_and_emulated_digits_agree_in_exact_mode() -> None:
    """No identity sets, so nothing secret can move a result: the same clusters, and accuracies to a sample."""
    real, emulated = (build(digits("hardened", crypto, clients=4)) for crypto in ("real", "emulated"))
    for experiment in (real, emulated):
        experiment.set_up()
    for r in (1, 2):
        a, b = real.round(r), emulated.round(r)
        assert a["notes"] == b["notes"]
        assert a["message_bytes"] == b["message_bytes"]
        assert a["virtual_seconds"] == b["virtual_seconds"]
        for mine, theirs in zip(real.models().values(), emulated.models().values(), strict=True):
            assert np.abs(mine - theirs).max() < 1e-4
            assert (mine != theirs).any()


def test_training_from_pretrained_models_on_digits_learns_clusters() -> None:
    """Every client finds its own label set's model, and the rebuilt ones serve it."""
    experiment = build(digits(clients=18, seed=1, settings={"start": "pretrained", "max_condition": 1e4}))
    experiment.set_up()
    lines = [experiment.round(r) for r in (1, 2)]
    true = [clusters[0] for clusters in experiment.system.observe(experiment.federation)["membership"]]
    assert true == experiment.split.groups.tolist()
    assert lines[-1]["notes"]["rebuilt"]["by"] == 18
    assert lines[-1]["local_accuracy"] > 0.8


def test_everybodys_work_on_equal_sums_is_done_once() -> None:
    """Opening and rebuilding: clients share one array of models, so a simulation holds k and not k times N."""
    experiment = build(digits())
    experiment.set_up()
    for r in (1, 2):
        experiment.round(r)
        clients = [experiment.federation.parties[name] for name in experiment.common.clients]
        assert len({id(client.state.models) for client in clients}) == 1
    assert len(experiment.effects._opened._held) == 6  # k sums of two rounds


# -- resume ------------------------------------------------------------------------------------------------------------


def test_secrets_of_a_run_are_not_in_its_checkpoint(tmp_path: Path) -> None:
    """The clients' secret key, and who is truly in which cluster, lie in the log beside it."""
    config = digits(rounds=1, checkpoint_every=1, out=str(tmp_path / "run"), crypto="real", clients=3)
    run(config)
    written = (tmp_path / "run" / "checkpoint" / "checkpoint.bin").read_bytes()
    assert contents(tmp_path / "run", "client/0", Client)[1].cluster >= 0
    pieces = key_bytes(tmp_path / "run", "client/0", Client)
    assert len(pieces) > 4
    assert not any(piece in written for piece in pieces)


def test_the_run_says_what_is_impossible_before_it_starts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="labelsets:3"):
        build(digits(partition="iid", settings={"start": "pretrained"}))
    with pytest.raises(UserError, match="shared_layers"):
        run(digits(out=str(tmp_path / "run"), settings={"shared_layers": "nonsense"}))
    assert not (tmp_path / "run").exists()
