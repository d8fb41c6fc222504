"""OFL's audit: it reads what the parties had, in every mode, and its attacks find what is there and nothing else."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matrix import OnDemand, few

import coterie
from coterie.dp.uploads import eligible
from coterie.privacy.attacks.labels import selected_by_class, share_correlation
from coterie.privacy.audits import Finding, Recorded
from coterie.privacy.audits.ofl import asked, passive, within
from coterie.privacy.audits.ofl_active import COALITION
from coterie.privacy.audits.ofl_views import clusters, global_models, heard, reports
from coterie.protocol.errors import UserError
from coterie.protocol.model_spec import ModelSpec
from coterie.protocols.reports import FIELDS
from coterie.runs import RunConfig, run
from coterie.runs.recorded import record, recorded_run
from coterie.systems.ofl.messages import Upload

OPTIONS: dict[str, Any] = {
    "clients": 9,
    "rounds": 3,
    "samples": 800,
    "crypto": "emulated",
    "record": True,
    "partition": "labelsets:2",
}
SETTINGS = {"clusters": 3, "max_epochs": 2}
SHARES = "leader: label shares, by uploads"
CHOSEN = "leader: label shares, by which parameters are uploaded"
WANTED = "leader: label shares, by which parameters are wanted"
MEMBERS = "leader: samples that were trained on, by losses that an upload lowers"
SUBTRACTED = f"{COALITION}: models of the last leader, by subtraction"
SPARSE = {"most_up": 0.3, "most_down": 0.3}


def config(mode: str = "paper", *, settings: dict[str, Any] | None = None, **options: Any) -> RunConfig:
    return RunConfig("ofl", mode=mode, settings={**SETTINGS, **(settings or {})}, **{**OPTIONS, **options})


def by_name(run: Recorded) -> dict[str, Finding]:
    return {one.name: one for one in passive(run)}


@pytest.fixture(scope="module")
def recorded() -> dict[str, Recorded]:
    return OnDemand(lambda mode: record(config(mode)))


@pytest.fixture(scope="module")
def sparse() -> dict[str, Recorded]:
    return OnDemand(lambda mode: record(config(mode, rounds=5, settings=SPARSE)))


# -- what is read ------------------------------------------------------------------------------------------------------


def test_models_reports_and_clusters_are_those_of_the_parties() -> None:
    run, experiment = recorded_run(config())
    hub = experiment.federation.look("server")
    assert np.array_equal(global_models(run)[3], hub.state.weights)
    assert clusters(run)[3] == hub.state.clusters.numbers
    told = reports(run)[3]
    assert set(told) == set(run.clients)
    truth = run.label_counts.sum(axis=1)
    for name, report in told.items():
        assert report.values[FIELDS.index("samples")] == truth[run.clients.index(name)]
    experiment.close()


@pytest.mark.parametrize("mode", ["paper", "hardened"])
def test_places_and_changes_are_what_members_uploaded(sparse: dict[str, Recorded], mode: str) -> None:
    run = sparse[mode]
    every, models = eligible(run.spec), {0: run.initial} | global_models(run)
    sent = {(seen.src, upload.round): upload for view in run.views.values() for seen, upload in view.messages(Upload)}
    read = [one for of in heard(run).values() for one in of]
    assert {(run.clients[one.member], one.round) for one in read} == set(sent)
    for one in read:
        upload = sent[run.clients[one.member], one.round]
        assert one.places is not None
        assert len(one.places) == len(upload.values) < len(every)
        assert np.array_equal(one.base, models[one.round - 1])
        if mode == "paper":
            assert upload.places is not None
            assert np.array_equal(one.places, upload.places)
            assert np.allclose((one.base + one.step())[one.places], upload.values, atol=1e-6)
        else:
            assert np.array_equal(one.step()[one.places], upload.values.astype(np.float64))


def test_public_places_of_another_session_are_not_made_up(sparse: dict[str, Recorded]) -> None:
    """A folder of a run with real keys gives parties with other keys, and another session."""
    run = sparse["hardened"]
    other = record(config("hardened", rounds=1, seed=5, settings=SPARSE))
    strange = replace(run, federation=other.federation)
    assert all(one.places is None for of in heard(strange).values() for one in of)
    found = by_name(strange)
    assert not found[SHARES].results
    assert "session" in found[SHARES].why


def test_a_record_in_which_nobody_led_is_refused(recorded: dict[str, Recorded]) -> None:
    run = recorded["paper"]
    views = {name: view for name, view in run.views.items() if view.role != "leader"}
    with pytest.raises(UserError, match="nobody led"):
        passive(replace(run, views=views))


# -- who finds what ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", few(["paper", "literal", "hardened"], ["paper", "hardened"]))
def test_every_mode_has_what_no_cipher_hides(recorded: dict[str, Recorded], mode: str) -> None:
    found = by_name(recorded[mode])
    assert found["server: number of samples, as reported"].results[0].value == pytest.approx(1)
    assert len(found[SUBTRACTED].results) == 3
    assert found[SHARES].results
    assert found[MEMBERS].results
    scalars = "squared distance" if mode != "hardened" else "dot product"
    assert any(scalars in name for name in found)
    assert found["server: samples that were trained on, by loss of the global model"].results


def test_a_model_without_weight_in_the_mean_does_not_follow(recorded: dict[str, Recorded]) -> None:
    run = recorded["paper"]
    note = run.lines[0]["notes"]
    none = dict.fromkeys(note["influence"], 1.0) | {next(iter(note["influence"])): 0.0}
    one = replace(run, lines=[{**run.lines[0], "notes": {**note, "influence": none}}])
    assert by_name(one)[SUBTRACTED].results[0].value == pytest.approx(2 / 3)


@pytest.mark.long
def test_label_shares_are_read_off_uploads_without_noise_and_not_under_much_of_it() -> None:
    quiet, loud = (
        by_name(record(config("hardened", clients=18, settings={"noise": noise, "clip": 5.0})))[SHARES]
        for noise in (1e-6, 50.0)
    )
    assert quiet.verdict == "much"
    assert quiet.leak > 0.5
    assert loud.verdict == "nothing found"
    assert abs(loud.leak) < 2 * loud.error


@pytest.mark.long
def test_what_a_member_knows_by_heart_shows_in_its_upload_and_not_under_noise() -> None:
    """Few samples, trained on for long: their losses fall further than those of others."""
    options: dict[str, Any] = {"clients": 30, "rounds": 1, "model": "mlp", "partition": "iid"}
    long = {"max_epochs": 40, "clip": 1e4, "full_samples": 1}
    quiet, loud = (
        by_name(record(config("hardened", settings={**long, "noise": noise}, **options)))[MEMBERS]
        for noise in (1e-9, 1e-3)
    )
    assert quiet.leak > 2 * quiet.error
    assert abs(loud.leak) < 2 * loud.error
    assert quiet.leak > loud.leak + quiet.error


def test_public_places_tell_nothing_and_wishes_are_alike(sparse: dict[str, Recorded]) -> None:
    found = by_name(sparse["hardened"])
    assert abs(found[CHOSEN].leak) < 2 * found[CHOSEN].error
    assert not found[WANTED].results  # all want the stalest, and these are the same for all
    assert "same for all clients" in found[WANTED].why


def test_wishes_that_follow_labels_are_seen(sparse: dict[str, Recorded]) -> None:
    counts = np.random.default_rng(0).integers(0, 2, (9, 10)) * 40 + 1
    run = replace(sparse["hardened"], label_counts=counts)
    rows = np.arange(run.spec.size)[-10:]  # the biases of the last layer
    uploads = heard(run)[1]
    told = [one._replace(wanted=rows[counts[one.member] > 1]) for one in uploads]
    assert within(run, told, asked).value > 0.7
    assert all(np.array_equal(one.wanted, uploads[0].wanted) for one in uploads)


# -- the scores --------------------------------------------------------------------------------------------------------


def spec(sparse: dict[str, Recorded]) -> ModelSpec:
    return sparse["paper"].spec


def test_choices_that_follow_labels_are_seen_and_random_ones_not(sparse: dict[str, Recorded]) -> None:
    shape, rng = spec(sparse), np.random.default_rng(0)
    bias = next(part for part in reversed(shape.parts) if part.name.endswith("bias"))
    rows = next(part for part in shape.parts if part.offset + part.size == bias.offset)
    counts = np.eye(10, dtype=np.int64)[rng.integers(0, 10, 12)] * 50 + 1
    planted = rng.random((12, shape.size)) < 0.2
    random = planted.copy()
    for mask, label in zip(planted, counts.argmax(axis=1), strict=True):
        mask[rows.offset : bias.offset].reshape(10, -1)[label] = True
        mask[bias.offset + label] = True
    assert share_correlation(selected_by_class(planted, shape), counts).value > 0.8
    luck = share_correlation(selected_by_class(random, shape), counts)
    assert abs(luck.value) < 3 * luck.chance_sd


def test_shares_by_class_are_those_of_the_last_rows(sparse: dict[str, Recorded]) -> None:
    shape = spec(sparse)
    mask = np.zeros((1, shape.size), np.bool_)
    mask[0, -1] = True  # the last class's bias
    rows = next(part for part in reversed(shape.parts) if len(part.shape) == 2)
    expected = np.zeros(10)
    expected[9] = 1 / (rows.shape[1] + 1)
    assert selected_by_class(mask, shape)[0] == pytest.approx(expected)


def test_groups_are_scored_within_and_chance_is_that_of_all_hands_within() -> None:
    rng = np.random.default_rng(3)
    counts, guess = rng.integers(1, 20, (6, 3)), rng.normal(size=(6, 3))
    groups = np.array([0, 0, 0, 1, 1, 1])
    found = share_correlation(guess, counts, groups)
    shifted = guess + np.where(groups == 1, 100.0, 0.0)[:, None]
    assert share_correlation(shifted, counts, groups).value == pytest.approx(found.value)
    every = [
        share_correlation(guess[[*first, *(3 + np.array(second))]], counts, groups).value
        for first in permutations(range(3))
        for second in permutations(range(3))
    ]
    assert np.mean(every) == pytest.approx(0, abs=1e-12)
    assert np.std(every) == pytest.approx(found.chance_sd)


def test_a_group_of_one_is_left_out_and_one_group_is_the_usual_score() -> None:
    rng = np.random.default_rng(4)
    counts, guess = rng.integers(1, 20, (5, 4)), rng.normal(size=(5, 4))
    assert share_correlation(guess, counts, np.zeros(5)) == share_correlation(guess, counts)
    alone = share_correlation(guess, counts, np.array([0, 0, 0, 0, 1]))
    assert alone.n == 4
    assert alone.value == pytest.approx(share_correlation(guess[:4], counts[:4]).value)
    with pytest.raises(UserError):
        share_correlation(guess, counts, np.arange(5))


# -- from a folder -----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_folder_of_a_run_with_real_ciphers_is_audited_without_its_session(tmp_path: Path) -> None:
    out = str(tmp_path / "real")
    run(config("hardened", crypto="real", rounds=2, settings=SPARSE, out=out))
    content = coterie.audit(out)
    assert "session" in content["not_applicable"][SHARES]
    found = {row["name"]: row for row in content["attacks"]}
    assert found[SUBTRACTED]["clients"] == 3
    assert found["server: number of samples, as reported"]["verdict"] == "everything"
