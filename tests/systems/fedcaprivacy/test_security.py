"""What the parties of FedCAPrivacy find out, measured on recorded views: as the paper says, and what hardening leaves.

Chance levels come with every number. The documentation's tables are made by ``benchmarks.security``; the long
test here asks for the same at 30 clients.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fedcaprivacy_parts import by_models
from federation import Pulled, Steady, planted, rig

from benchmarks.security.__main__ import main
from benchmarks.security.compared import summary
from benchmarks.security.fedcaprivacy import VARIANTS, configured, measured
from coterie.privacy.attacks.result import AttackResult
from coterie.privacy.audits import fedcaprivacy
from coterie.privacy.views import by_round, granted, held_key
from coterie.protocol.errors import UserError
from coterie.protocols.anonymous import SERVICE, Relayed
from coterie.protocols.cluster_sums import ClusterModel
from coterie.runs.recorded import recorded_run
from coterie.systems.fedcaprivacy import SYSTEM
from coterie.systems.fedcaprivacy.messages import CSP
from coterie.transport.transcript import View

TRAINING = {"lr": 0.05, "batch_size": 10}
STEP = 2.0**-16
EVERY_ROUND = tuple(variant for variant in VARIANTS if variant != "hardened, signature")


@pytest.fixture(scope="module")
def attacks() -> dict[str, dict[str, list[AttackResult]]]:
    """Every attack on every variant: 20 clients with Dirichlet 0.3 digits, two rounds."""
    found = {}
    for variant in VARIANTS:
        run, experiment = recorded_run(configured(variant, TRAINING, clients=20, rounds=2, partition="dirichlet:0.3"))
        found[variant] = {finding.name: list(finding.results) for finding in fedcaprivacy.passive(run)}
        experiment.close()
    return found


def mean(results: list[AttackResult]) -> float:
    return float(np.mean([result.value for result in results]))


def above_chance(results: list[AttackResult]) -> float:
    """The mean of a run's rounds, in standard deviations of what guessing gives (rounds are not independent)."""
    return (mean(results) - mean_chance(results)) / float(np.mean([result.chance_sd for result in results]))


def mean_chance(results: list[AttackResult]) -> float:
    return float(np.mean([result.chance for result in results]))


# -- paper mode --------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_service_follows_shuffled_clients_from_round_to_round(attacks: dict) -> None:
    assert mean(attacks["paper"]["csp: re-linked, by vectors"]) > 0.9  # chance is 0.05
    assert mean(attacks["paper"]["csp: re-linked, by distances"]) > 0.25


def test_the_service_reads_label_shares_off_the_last_layer(attacks: dict) -> None:
    shares, top = attacks["paper"]["csp: label shares"], attacks["paper"]["csp: top label"]
    assert shares[0].value > 0.7
    assert top[0].value > 0.5  # chance is 0.1
    assert above_chance(top[:1]) > 4
    assert mean(shares) > 0.6


def test_the_service_recovers_models_with_what_is_no_secret(attacks: dict) -> None:
    """Half way from the public start alone; exactly with one participant."""
    (known,) = attacks["paper"]["csp, knowing the start: models of round 1"]
    assert known.value < 0.7 * known.chance
    for result in attacks["paper"]["csp with a participant: models"]:
        assert result.value < 1e-12 < 0.2 < result.chance


def test_the_business_server_learns_who_is_similar(attacks: dict) -> None:
    name = "business server: which pairs have similar labels, by phi"
    for variant in EVERY_ROUND:  # nothing of the hardening is against that
        assert above_chance(attacks[variant][name]) > 2.5


def test_signatures_show_the_service_no_labels_but_with_a_participant(attacks: dict) -> None:
    """Distances of signatures say less of labels than those of sketches do. The common seed gives the labels away."""
    found, sketched = attacks["hardened, signature"], attacks["hardened, sketch"]
    pairs = "csp: which pairs have similar labels, by distances"
    assert len(found[pairs]) == 1  # once, and never again
    assert mean(found[pairs]) < mean(sketched[pairs])
    assert abs(above_chance(found["csp: label shares"])) < 3
    assert abs(above_chance(found["csp: top label"])) < 3
    assert mean(found["csp with a participant: label shares"]) > 0.4
    assert not any("re-linked" in attack or "models" in attack for attack in found)


# -- what hardening leaves ---------------------------------------------------------------------------------------------


def test_a_sketch_leaves_the_service_no_coordinates_and_no_vectors_to_follow(attacks: dict) -> None:
    found = attacks["hardened, sketch"]
    assert abs(above_chance(found["csp: label shares"])) < 3  # with a guessed seed
    assert abs(above_chance(found["csp: top label"])) < 3
    (known,) = found["csp, knowing the start: models of round 1"]
    assert known.value > known.chance  # worse than knowing the start alone
    assert mean(found["csp: re-linked, by vectors"]) < 0.3
    assert mean(found["csp with a participant: label shares"]) < 0.5
    assert mean(found["csp with a participant: models"]) > 0.1  # never exactly


def test_a_rotation_leaves_the_service_no_labels_and_no_vectors_to_follow(attacks: dict) -> None:
    found = attacks["hardened, rotation"]
    assert abs(above_chance(found["csp: label shares"])) < 3
    assert abs(above_chance(found["csp: top label"])) < 3
    assert mean(found["csp: re-linked, by vectors"]) < 0.4
    (known,) = found["csp, knowing the start: models of round 1"]
    assert known.value > known.chance  # worse than knowing the start alone


@pytest.mark.parametrize("variant", ["hardened, sketch", "hardened, rotation"])
def test_distances_remain_and_tell_who_is_similar_and_somewhat_who_is_who(attacks: dict, variant: str) -> None:
    found = attacks[variant]
    assert above_chance(found["csp: which pairs have similar labels, by distances"]) > 2.5
    assert above_chance(found["csp: re-linked, by distances"]) > 2


def test_one_participant_undoes_the_rotation_for_the_service(attacks: dict) -> None:
    """The seed is common to all participants: up to rounding, the service then has what it has in paper mode."""
    paper, found = attacks["paper"], attacks["hardened, rotation"]
    assert mean(found["csp with a participant: models"]) < 1e-3
    shares = "csp with a participant: label shares"
    assert found[shares][0].value == pytest.approx(paper[shares][0].value, abs=0.01)
    assert mean(found["csp with a participant: re-linked"]) > 0.9


def test_a_cluster_of_two_shows_each_the_other() -> None:
    """What no server sees a participant may: twice the mean less its own model. ``min_cluster`` is against that."""
    targets = planted([0, 0, 1, 1, 1], 40)
    run = rig(SYSTEM, targets, clusters=2, effects=lambda t: Pulled(t, noise=0.02))
    assert sorted(run.round(1)["clusters"]["sizes"]) == [2, 3]
    (message,) = (m for _, m in run.view("client/0").messages(ClusterModel))
    assert message.count == 2
    own, other = (run.party(f"client/{i}").state.weights for i in (0, 1))
    assert np.abs(2 * run.models()[0] - own - other).max() < 2 * STEP
    safe = rig(SYSTEM, targets, **by_models(mode="hardened", min_cluster=3, clusters=2, sketch_dim=16))
    safe.round(1)
    assert all(m.count >= 3 for i in range(5) for _, m in safe.view(f"client/{i}").messages(ClusterModel))


# -- from views to arrays ----------------------------------------------------------------------------------------------

TARGETS = planted([0, 0, 0, 1, 1, 1], 40, within=0.3)


def identity(rows: np.ndarray, seed: bytes, r: int) -> np.ndarray:
    return rows


def test_the_services_rows_are_exact_differences_of_models() -> None:
    """With the real cipher; and who is behind a row is found from the two servers' views alone."""
    run = rig(SYSTEM, TARGETS, emulated=False, clusters=2, effects=lambda t: Pulled(t, noise=0.02))
    run.round(1)
    trained = np.stack([run.party(name).state.weights for name in run.common.clients])
    grid = np.rint(trained * 65536.0) / 65536
    views = run.transport.transcript.views
    (one,) = fedcaprivacy.recorded_rounds(views, run.common.clients, identity)
    assert (one.rows == grid[one.who] - grid[one.who[0]]).all()
    assert (one.models == grid[one.who]).all()
    assert [run.common.clients[i] for i in one.who] == list(run.hub.state.clustered_order)
    positions, rows = fedcaprivacy.csp_rows(views[CSP], held_key(views[CSP], SERVICE), 1)
    assert positions == list(range(6))
    assert (rows == one.rows).all()


def test_rounds_with_others_are_linked_by_who_was_in_both() -> None:
    links = Steady(away={("client/2", 2): "offline", ("client/0", 3): "dropped"})
    run = rig(SYSTEM, TARGETS, clusters=2, effects=lambda t: Pulled(t, noise=0.02), links=links)
    run.rounds(3)
    views = run.transport.transcript.views
    assert list(by_round(views[CSP], Relayed)) == [1, 2, 3]
    rounds = fedcaprivacy.recorded_rounds(views, run.common.clients, identity)
    assert [sorted(one.who) for one in rounds] == [[0, 1, 2, 3, 4, 5], [0, 1, 3, 4, 5], [1, 2, 3, 4, 5]]
    counts = np.random.default_rng(0).integers(1, 9, (6, 3))
    told: Any = SimpleNamespace(label_counts=counts, spec=run.common.spec, initial=run.common.initial, groups=None)
    found = {finding.name: finding for finding in fedcaprivacy.by_rounds(told, rounds)}
    assert [result.n for result in found["csp: re-linked, by vectors"].results] == [5, 4]


def test_views_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match="record from the set-up on"):
        granted(View("csp", "csp"))
    with pytest.raises(UserError, match="not the uploads"):
        fedcaprivacy.order(np.zeros((2, 3)), {"a": np.zeros(3), "b": np.ones(3)})
    assert sorted(fedcaprivacy.order(np.zeros((2, 3)), {"a": np.ones(3), "b": np.ones(3), "c": np.zeros(3)})) == [
        "a",
        "b",
    ]


def test_summary_is_the_mean_over_rounds_and_its_standard_error_over_runs() -> None:
    def runs(*values: float) -> dict[str, list[AttackResult]]:
        return {"a": [AttackResult("x", value, 0.1, 1.0, 5) for value in values]}

    table = summary([runs(0.2, 0.4), runs(0.5, 0.9)])["a"]
    expected = {"value": 0.5, "standard_error": 0.2, "first": 0.35, "chance": 0.1, "perfect": 1.0}
    assert table == pytest.approx(expected)
    assert summary([runs(0.2)])["a"]["standard_error"] == 0.0


@pytest.mark.long
def test_the_script_writes_a_table(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "security.json"
    main(["fedcaprivacy", str(out), "--clients", "5", "--rounds", "2", "--seeds", "1"])
    content: dict[str, Any] = json.loads(out.read_text())
    assert content["command"].startswith(f"python -m benchmarks.security fedcaprivacy {out.as_posix()}")
    assert set(content["variants"]) == set(VARIANTS)
    for name, variant in content["variants"].items():
        once = name == "hardened, signature"
        attack = "csp: label shares" if once else "csp: re-linked, by distances"
        assert 0 < variant["local_accuracy"] <= 1
        assert variant["settings"]["clusters"] == ("auto" if once else 5)
        assert {"value", "standard_error", "chance"} <= variant["attacks"][attack].keys()


# -- at length ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_measured_security_at_30_clients() -> None:
    """Two seeds, ten rounds. Every bound leaves room of several standard errors to what five seeds gave."""
    options = {"clients": 30, "rounds": 10, "partition": "dirichlet:0.3", "settings": dict(TRAINING)}
    paper, sketch, rotation, signed = (measured(variant, 2, **options)["attacks"] for variant in VARIANTS)
    assert paper["csp: re-linked, by vectors"]["value"] > 0.93
    assert paper["csp: label shares"]["first"] > 0.8
    assert paper["csp: top label"]["first"] > 0.6
    assert paper["csp with a participant: models"]["value"] < 1e-12
    for hardened in (sketch, rotation):
        assert hardened["csp: re-linked, by vectors"]["value"] < 0.2
        assert hardened["csp: re-linked, by distances"]["value"] > 0.1
    assert abs(rotation["csp: label shares"]["value"]) < 0.1
    assert sketch["csp with a participant: label shares"]["value"] < 0.35
    assert abs(signed["csp: label shares"]["value"]) < 0.15
    assert signed["csp: which pairs have similar labels, by distances"]["value"] < 0.15
    assert not any("re-linked" in attack or "models" in attack for attack in signed)
