"""Sparsity features and AIDC on real data: groups that are planted are found, and where there are none, none is.

Whoever sees inputs alone cannot tell groups that call the same samples by other labels (permute, swap): one cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from benchmarks.features import Fleet, Ground, describe_all, extractor_weights, fleet, ground
from coterie.clustering.isomorphic import Aidc, cluster
from coterie.training.models import build, default_model
from coterie.training.sparsity import Extractor


@cache
def described(
    data: str, model: str | None, kind: str, spec: str, seed: int, devices: int = 50
) -> tuple[np.ndarray, np.ndarray, Fleet]:
    base = grounds(data, seed)
    made = extractors(data, model, kind, seed)
    dealt = fleet(spec, base.private, seed, devices)
    vectors = [made(task.inputs(part)) for task, part in zip(dealt.tasks, dealt.devices, strict=True)]
    return (*describe_all(vectors, seed), dealt)


@cache
def grounds(data: str, seed: int) -> Ground:
    return ground(data, seed)


@cache
def extractors(data: str, model: str | None, kind: str, seed: int) -> Extractor:
    base = grounds(data, seed)
    built = build(model or default_model(data), base.private.input_shape, base.private.classes)
    return Extractor(built, extractor_weights(base, built, kind, seed))


def found(
    data: str, spec: str, seed: int, *, model: str | None = None, kind: str = "pretrained", devices: int = 50,
    settings: Aidc | None = None,
) -> tuple[float, int]:  # fmt: skip
    """Adjusted Rand index against the planted groups, and the number of clusters."""
    vectors, floors, dealt = described(data, model, kind, spec, seed, devices)
    labels = cluster([f"d{i}" for i in range(devices)], vectors, floors, settings)[0].labels
    assert dealt.groups is not None
    return float(adjusted_rand_score(dealt.groups, labels)), len(set(labels.tolist()))


# -- digits, which every installation has ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_digits_in_two_groups_of_five_classes_and_five_of_two(seed: int) -> None:
    """10 devices, 136 samples each, a network of 32 hidden units. By default AIDC takes such weak groups for noise."""
    finer = Aidc(floors_per_scale=5)
    assert found("digits", "sets:2", seed, devices=10, settings=finer) == (1.0, 2)
    assert found("digits", "sets:5", seed, devices=10, settings=finer) == (1.0, 5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("spec", ["iid", "permute:4", "swap:4"])
def test_digits_whose_inputs_are_alike_are_one_cluster(spec: str, seed: int) -> None:
    for settings in (None, Aidc(floors_per_scale=5)):
        index, clusters = found("digits", spec, seed, devices=10, settings=settings)
        assert clusters == 1
        assert index == (1.0 if spec == "iid" else 0.0)


def test_literal_aidc_finds_no_group_in_digits() -> None:
    settings = Aidc(literal=True)
    assert [found("digits", "sets:5", seed, devices=10, settings=settings)[0] for seed in range(3)] == [0.0] * 3


# -- MNIST and Fashion-MNIST -------------------------------------------------------------------------------------------

PLANTED = ("sets:2", "sets:2:uneven", "sets:5", "sets:5:uneven", "sets:10", "sets:10:uneven")


def each_found(data: str, specs: Sequence[str], seed: int) -> dict[str, float]:
    return {spec: found(data, spec, seed)[0] for spec in specs}


@pytest.mark.real_data
@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_planted_groups_of_mnist_are_found_and_without_groups_there_is_one(seed: int) -> None:
    """50 devices, 200 samples, five, two and one classes a group, even and uneven."""
    indices = each_found("mnist", PLANTED, seed)
    assert min(indices.values()) >= 0.95, indices
    for spec in ("iid", "permute:4", "swap:4"):
        assert found("mnist", spec, seed)[1] == 1


@pytest.mark.real_data
@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_groups_of_mnist_that_share_classes_are_found_from_single_devices(seed: int) -> None:
    """Each device has two classes. The dense parts of eq. (5) and (6) chain some of the groups together."""
    assert found("mnist", "pairs", seed, model="mlp")[0] == 1
    assert found("mnist", "pairs", seed, model="mlp", settings=Aidc(singles_to=0))[0] < 0.9


@pytest.mark.real_data
@pytest.mark.long
@pytest.mark.parametrize("data", ["mnist", "fashion_mnist"])
def test_turned_images_are_groups(data: str) -> None:
    indices = [found(data, "rotate:4", seed)[0] for seed in range(3)]
    assert min(indices) >= 0.95, indices


@pytest.mark.real_data
@pytest.mark.long
def test_groups_of_like_classes_are_fewer_in_fashion_mnist() -> None:
    """Two and five groups are found. One class a group is not: shirts and pullovers are alike."""
    for seed in range(3):
        assert min(each_found("fashion_mnist", PLANTED[:4], seed).values()) >= 0.95
    assert found("fashion_mnist", "iid", 0)[1] == 1
    assert np.mean([found("fashion_mnist", "sets:10", seed)[0] for seed in range(3)]) > 0.8


@pytest.mark.real_data
@pytest.mark.long
@pytest.mark.long
def test_planted_groups_of_mnist_are_found_by_a_convolutional_network_s_dense_layer() -> None:
    indices = {spec: found("mnist", spec, 0, model="cnn")[0] for spec in PLANTED}
    assert min(indices.values()) >= 0.95, indices
    assert found("mnist", "iid", 0, model="cnn")[1] == 1


@pytest.mark.real_data
@pytest.mark.long
def test_reference_mode_and_the_literal_reading_lose_groups_of_mnist() -> None:
    """Section 3.5 keeps one number a device. Algorithm 2 as printed makes all noise, or one cluster."""
    reference, literal = (
        [found("mnist", "sets:5", seed, settings=settings)[0] for seed in range(3)]
        for settings in (Aidc(reference=True), Aidc(literal=True))
    )
    assert np.mean(reference) < 0.95
    assert literal == [0.0] * 3
