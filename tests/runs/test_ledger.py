"""Every system's ledger: what its clients send is counted, has no proof where there is none, and survives a stop."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from every_system import model_for
from matrix import few

import coterie.method as fl
from coterie.dp.ledger import UNPROVED, Ledger
from coterie.report.ledger import released
from coterie.runs import SYSTEMS, RunConfig, register, run

KNOWN = list(SYSTEMS)
SILENT = {"local"}


def found(name: str, tmp_path: Path, **options: Any) -> dict[str, Any]:
    given = {
        "data": "digits",
        "samples": 240,
        "model": model_for(name),
        "clients": 4,
        "rounds": 2,
        "crypto": "emulated",
        "out": str(tmp_path / name),
        **options,
    }
    return dict(run(RunConfig(name, **given)).summary)


@pytest.mark.parametrize("name", KNOWN)
def test_every_system_says_what_its_clients_release(name: str) -> None:
    """In each of its modes, by messages that its clients do send, or by an account that its parties keep."""
    system: fl.System = SYSTEMS[name]
    if system.ledger is not None:
        return
    assert system.releases is not None, "say what the messages of its clients tell, or that it is nothing"
    for mode in system.modes:
        config = system.config(**system.defaults(mode))
        client = list(system.factories(config, mode))[-1]
        leads = {"head"} if name == "rfl_ha" else set()  # a role that its clients take besides
        counted = system.counted(config, mode)
        assert bool(counted) != (name in SILENT)
        received = {kind for sees in system.views(mode).values() for kind in sees.receives}
        for kind, told in counted.items():
            assert issubclass(kind, fl.Message)
            assert kind.SRC in {client, "any", *leads}
            assert told
            assert kind in received


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("fedavg", ["trained model and number of samples"]),
        ("fedavg_late", ["change of the model and number of samples"]),
        ("scaffold", ["change of the model and of the control variate"]),
        ("ifca", ["choice of the cluster", "trained model and number of samples"]),
        ("oort", ["trained model and number of samples", "loss"]),
    ],
)
def test_plain_updates_are_releases_without_a_proof(name: str, what: list[str], tmp_path: Path) -> None:
    ledger = found(name, tmp_path, delta=0.0, settings={"participation": 1.0})["ledger"]
    assert len(ledger) == 4
    for own in ledger.values():
        assert [row["what"] for row in own["releases"]] == what
        assert {row["mechanism"] for row in own["releases"]} == {"none"}
        assert {row["count"] for row in own["releases"]} == {2}
        assert own["releases"][0]["rounds"] == [1, 2]
        assert set(own["epsilon"].values()) == {"infinite"}
    assert released(ledger) == f"no proof for: {'; '.join(what)}"


SUMS = "model, in sums"


@pytest.mark.parametrize(
    ("name", "options", "what"),
    [
        ("fedcaprivacy", {}, ["model, in differences without a name", SUMS]),
        ("fedcaprivacy", {"mode": "hardened", "settings": {"descriptor": "model"}},
         ["sketch of the model, in differences without a name", SUMS]),
        ("fedcaprivacy", {"mode": "hardened", "partition": "iid"},
         ["label statistics, in a sum", "signature, in differences", SUMS]),
        ("mingledpie", {}, [SUMS, "cluster, in sums", "set of cluster identities"]),
        ("mingledpie", {"mode": "hardened", "partition": "iid"}, [SUMS, "cluster, in sums"]),
        ("pafed", {"delta": 0.0}, ["update, in sums", "masked cosine among dummies, if it is late"]),
        ("pafed", {"delta": 0.0, "mode": "literal"}, ["update, in sums"]),
        ("pafed", {"delta": 0.0, "mode": "hardened", "partition": "iid"},
         ["update, in sums", "masked cosine among dummies, if it is late"]),
    ],
)  # fmt: skip
def test_what_ciphers_masks_and_dummies_hide_has_no_epsilon(
    name: str, options: dict[str, Any], what: list[str], tmp_path: Path
) -> None:
    ledger = found(name, tmp_path, clients=8, rounds=1, **options)["ledger"]
    kinds = {row["what"] for own in ledger.values() for row in own["releases"]}
    assert kinds == set(what)
    assert all(row["epsilon"] == "infinite" for own in ledger.values() for row in own["releases"])


def test_local_training_releases_nothing(tmp_path: Path) -> None:
    summary = found("local", tmp_path)
    assert [own["epsilon"]["replace one client"] for own in summary["ledger"].values()] == [0.0] * 4
    assert released(summary["ledger"]) == ""


def test_a_client_that_is_not_asked_releases_nothing(tmp_path: Path) -> None:
    ledger = found("fedavg", tmp_path, clients=8, rounds=1, settings={"participation": 0.5})["ledger"]
    assert sorted(sum(row["count"] for row in own["releases"]) for own in ledger.values()) == [0] * 4 + [1] * 4


def test_an_answer_that_is_held_back_to_the_end_was_not_released(tmp_path: Path) -> None:
    """A late client's update leaves its device in a later round, and is counted then."""
    settings = {"participation": 1.0}
    ledger = found("fedavg_late", tmp_path, clients=8, rounds=3, delta=0.5, settings=settings)["ledger"]
    counts = [sum(row["count"] for row in own["releases"]) for own in ledger.values()]
    assert max(counts) == 3 > min(counts)


def test_after_a_stop_the_ledger_is_that_of_the_whole_run(tmp_path: Path) -> None:
    """The first two rounds are counted from the run's file, the others as they come."""
    whole = found("fedavg", tmp_path / "whole", rounds=4)
    stopped = RunConfig("fedavg", samples=240, model="linear", clients=4, rounds=2, out=str(tmp_path / "parts"))
    run(stopped)
    parts = run(replace(stopped, rounds=4), resume=True)
    assert parts.summary["ledger"] == whole["ledger"]


def test_an_audit_of_the_noise_is_in_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from coterie.privacy.attacks.noisy_uploads import audit_heuristic
    from coterie.privacy.audits import Audit

    monkeypatch.setattr(SYSTEMS, "registered", {})
    row = audit_heuristic(trials=100).row()
    register(
        replace(
            SYSTEMS["fedavg"],
            name="audited",
            audit=Audit(lambda run: [], noise=lambda federation: [row]),
            ledger=lambda federation: {},
        )
    )
    assert found("audited", tmp_path, rounds=1)["dp_audit"] == [row]
    assert json.loads((tmp_path / "audited" / "result.json").read_text())["dp_audit"] == [row]
    assert found("fedavg", tmp_path, rounds=1)["dp_audit"] is None


# -- DP-SGD ------------------------------------------------------------------------------------------------------------


REFUSING = {"fedem", "local", "fedrep", "fedbn", "fedlc"}
"""Train no sample with noise, or send nothing; batch normalisation mixes samples, margins follow from all labels."""
OFTEN = {"fedavg", "haccs", "ifca", "mingledpie", "pafed"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in OFTEN else pytest.mark.long) for n in sorted(set(KNOWN) - REFUSING)],
)
def test_dp_sgd_gives_what_follows_from_training_a_proof_for_a_sample_in_every_system(
    name: str, tmp_path: Path
) -> None:
    """One release a message, whose noise is that of the settings; what is measured besides stays without a proof."""
    public = {"public": 0.2, "model": "mlp_small"} if name in ("fltrust", "fedepc") else {}
    settings = {"sample_noise": 2.0, "batch_size": 10, "slowest": 1.0}  # alike, so that one proof is enough
    summary = found(name, tmp_path, rounds=1, clients=6, partition="iid", settings=settings, **public)
    rows = [row for own in summary["ledger"].values() for row in own["releases"]]
    alone = [row for row in rows if row["mechanism"] == "gaussian" and row["neighbours"] == "replace one sample"]
    proofs = alone + [row["sample"] for row in rows if row["sample"]]
    assert proofs
    for proof in proofs:
        assert (proof["noise_multiplier"], proof["hidden"]) == (1.0, True)
        assert 0 < proof["sampled"] <= 1
    for row in alone:
        assert row["count"] == 1
        assert row["epsilon"] < 60
    measured = {row["what"] for row in rows if row["mechanism"] in UNPROVED}
    assert measured <= {
        "choice of the cluster",
        "cluster, in sums",
        "label histogram",
        "label statistics, in a sum",
        "loss",
        "set of cluster identities",
        "signature, in differences without a name",
        "sparsity vector and noise floor",
        "which group, without a name",
    }


def test_the_epsilon_of_a_run_is_that_of_its_steps(tmp_path: Path) -> None:
    """Whoever trains without noise has no epsilon, for a sample as for a client."""
    settings = {"sample_noise": 1.1, "sample_clip": 0.5, "batch_size": 10, "max_epochs": 2, "slowest": 1.0}
    for own in found("fedavg", tmp_path, partition="iid", rounds=3, settings=settings)["ledger"].values():
        (row,) = own["releases"]
        samples = round(10 / row["sampled"])
        alone = fl.Release(
            "model", "gaussian", 0.55, 0.1, draws=2 * -(-samples // 10), sampled=10 / samples, hidden=True
        )
        assert own["epsilon"]["replace one sample"] == Ledger((alone,) * 3).epsilon(1e-5)
        assert own["epsilon_after_one_more_round"]["replace one sample"] == Ledger((alone,) * 4).epsilon(1e-5)
        assert own["epsilon"]["replace one client"] == "infinite"


def test_an_upload_of_ofl_keeps_its_proof_for_a_client_and_gets_one_for_a_sample(tmp_path: Path) -> None:
    settings = {"sample_noise": 2.0, "noise": 4.0}
    options: dict[str, Any] = {"clients": 8, "rounds": 1, "mode": "hardened", "partition": "iid"}
    both = found("ofl", tmp_path, settings=settings, **options)["ledger"]
    plain = found("ofl", tmp_path / "plain", settings={"noise": 4.0}, **options)["ledger"]
    assert any(own["releases"] for own in both.values())
    for name, own in both.items():
        assert own["epsilon"]["replace one client"] == plain[name]["epsilon"]["replace one client"]
        assert own["epsilon"]["replace one sample"] <= plain[name]["epsilon"]["replace one sample"]


@pytest.mark.parametrize("name", few(["ofl", "dp_fedavg"], ["dp_fedavg"]))
def test_what_two_observers_see_of_a_training_counts_once(name: str, tmp_path: Path) -> None:
    """Own leader and server, or server and public: all together know no more than the models that DP-SGD has made."""
    settings: dict[str, Any] = {"sample_noise": 2.0, "noise": 0.05}
    if name == "ofl":
        settings |= {"mechanism": "distributed"}
    ledgers = found(name, tmp_path, clients=8, rounds=2, partition="iid", settings=settings)["ledger"]
    assert any(len(own["releases"]) == 2 for own in ledgers.values()), "all rounds of a kind are one row"
    for own in ledgers.values():
        for by in own["against"].values():
            assert by["replace one sample"] == own["epsilon"]["replace one sample"] < 20
    assert any(own["epsilon"]["replace one sample"] > 0 for own in ledgers.values())


def test_data_that_change_and_weights_of_classes_are_refused_with_dp_sgd(tmp_path: Path) -> None:
    with pytest.raises(fl.UserError, match="leave one of the two out"):
        found("fedavg", tmp_path, drift="0.5@2", settings={"sample_noise": 1.0})
    with pytest.raises(fl.UserError, match="leave class_weights"):
        found("fedavg", tmp_path, class_weights="balanced", settings={"sample_noise": 1.0})
