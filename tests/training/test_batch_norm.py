"""Running statistics are averaged, with weights of at least 0 that sum to one, or stay where they are: in every system.

Every registered system that takes buffers trains a small network with batch normalisation in all its modes, also with
settings that take a server beyond a mean. What a client holds after a round lies between what clients have trained so
far, but for ``LATE``: a running variance beyond that may be negative. Each rule of averaging has its closed form below.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matrix import few

import coterie.method as fl
from coterie.aggregation.buffers import not_below_zero
from coterie.baselines.fedasync import Mixing
from coterie.crypto.sketch import rotate, unrotate
from coterie.protocols.late import Mean
from coterie.runs import SYSTEMS, Experiment, RunConfig, build
from coterie.runs.failures import check_not_all_skipped

CLIENTS, ROUNDS = 9, 3
LATE = 0.05  # of Coterie, which adds late changes, made from an older model, to a sum that no server reads
CIPHERS = 2e-4  # rounding of fixed point, turned back by a rotation of 714 coordinates
GIVEN: dict[str, Any] = {"clusters": 3, "start": "pretrained", "pretrain_epochs": 1, "max_epochs": 1, "batch_size": 80}
FAR: dict[str, Any] = {**GIVEN, "server_lr": 2.0, "server_decay": 0.1, "delta": 0.6, "participation": 0.8}
"""Delays, and settings for the systems that have them: plain; and steps beyond the mean, late updates, clients away."""
MORE = [
    ("fedadmm", "paper", {"reference": "received", "server_lr": 2.0}),
    ("fedcaprivacy", "hardened", {"descriptor": "model", "hardening": "rotation"}),
    ("mingledpie", "hardened", {"hardening": "uploads"}),
    ("mingledpie", "paper", {"rebuild": "ideal"}),
    ("mingledpie", "paper", {"rebuild": "none"}),
    ("mingledpie", "paper", {"max_condition": 1e6}),
    ("mingledpie", "paper", {"shared_layers": "1."}),
]


def settings_of(name: str, mode: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """What of it this system has, and takes in this mode."""
    known = vars(SYSTEMS[name].config())
    found = {key: value for key, value in wanted.items() if key in known}
    if name in ("fedasync", "rfl_ha", "coterie"):
        found["server_lr"] = 1.0  # its most
    if name == "coterie":
        found["noise"] = 0.0  # else its servers add a little to all sums, of running statistics too
    if name == "coterie" and "participation" in found:
        found["fewest"] = 1  # far: sums of two clients, of whom one may be away
    if (name, mode) == ("fedepc", "hardened"):
        found["min_cluster"] = 2  # far: of three chosen devices two are late, and then nothing is released
    if (name, mode) == ("fedepc", "literal"):
        found["fill"] = 1.0  # its bandit would choose one device, which far is late
    if (name, mode) == ("pafed", "literal"):
        found.pop("server_decay", None)  # whose printed step is constant
    return found


def made(name: str, mode: str = "paper", wanted: dict[str, Any] = GIVEN, **options: Any) -> Experiment:
    experiment = build(
        RunConfig(
            name,
            "digits",
            clients=CLIENTS,
            rounds=ROUNDS,
            model="batch_norm_models:small",
            mode=mode,  # type: ignore[arg-type]
            crypto="emulated",
            delta=wanted.get("delta", 0.0),
            settings=settings_of(name, mode, wanted),
            **{"partition": "labelsets:3", "samples": 600, **options},
        )
    )
    experiment.set_up()
    return experiment


def held(experiment: Experiment) -> dict[str, np.ndarray]:
    """(m, d) of every client: its model, or those that it mixes."""
    found = experiment.models().items()
    return {name: np.atleast_2d(model.models if isinstance(model, fl.Mixture) else model) for name, model in found}


@dataclass
class Trained:
    """What clients have trained: ``now`` in this round, by client; least and most of all buffers (b,) so far."""

    experiment: Experiment
    now: dict[str, list[fl.Fitted]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        e = self.experiment
        self.buffers = e.common.spec.buffers
        starts = list(e.system.pool(e.federation)) if e.system.pool else list(held(e).values())
        rows = np.concatenate([np.atleast_2d(start)[:, self.buffers] for start in starts])
        self.least, self.most = rows.min(axis=0), rows.max(axis=0)
        honest = e.effects.run

        def run(wanted: Sequence[tuple[str, Any]]) -> list[Any]:
            results = honest(wanted)
            for (name, _), result in zip(wanted, results, strict=True):
                if isinstance(result, fl.Fitted):
                    self.now[name].append(result)
                    row = result.weights[self.buffers]
                    self.least, self.most = np.minimum(self.least, row), np.maximum(self.most, row)
            return results

        e.effects.run = run  # type: ignore[method-assign]

    def round(self, r: int) -> dict[str, Any]:
        self.now.clear()
        return self.experiment.round(r)

    def of(self, name: str, i: int = 0) -> np.ndarray:
        """(b,) buffers that a client has trained in this round."""
        return self.now[name][i].weights[self.buffers].astype(np.float64)

    def mean(self, names: Sequence[str], weights: Sequence[float] | None = None, i: int = 0) -> np.ndarray:
        return np.average([self.of(name, i) for name in names], axis=0, weights=weights)

    def samples(self, names: Sequence[str]) -> list[float]:
        return [self.experiment.owns[name].samples for name in names]


REFUSING = ("dp_fedavg", "dp_ftrl")
"""Take no model with buffers, which no noise covers (``baselines/test_central_noise.py``)."""
QUICK = ("fedavg", "scaffold", "fedasync", "fedcaprivacy", "mingledpie", "pafed")


def cases() -> list[Any]:
    """In mode paper and with plain settings, those of ``QUICK``; all others are long."""
    found = []

    def add(name: str, mode: str, wanted: dict[str, Any], *more: str) -> None:
        marks = () if name in QUICK and mode == "paper" and not more else pytest.mark.long
        found.append(pytest.param(name, mode, wanted, marks=marks, id="-".join([name, mode, *more])))

    for name, system in SYSTEMS.items():
        for mode in system.modes if name not in REFUSING else ():
            add(name, mode, GIVEN)
            if settings_of(name, mode, FAR) != settings_of(name, mode, GIVEN):
                add(name, mode, {**FAR, "delta": 0.3} if name == "secagg" else FAR, "far")  # 5 of its 7 must answer
    for name, mode, more in MORE:
        add(name, mode, {**GIVEN, **more}, *map(str, more.values()))
    return found


@pytest.mark.parametrize(("name", "mode", "wanted"), cases())
def test_what_clients_hold_lies_between_what_clients_have_trained(name: str, mode: str, wanted: dict[str, Any]) -> None:
    experiment = made(name, mode, wanted)
    trained, variances = Trained(experiment), experiment.common.spec.variances
    most = LATE if name == "coterie" and wanted.get("delta") else CIPHERS
    first = np.stack([model[0] for model in held(experiment).values()])
    for r in range(1, ROUNDS + 1):
        line = trained.round(r)
        for client, models in held(experiment).items():
            assert np.isfinite(models).all(), client
            assert models[:, variances].min() >= 0, client
            beyond = np.maximum(trained.least - models[:, trained.buffers], models[:, trained.buffers] - trained.most)
            assert beyond.max() <= most, client
        assert np.isfinite([line["global_loss"], line["local_loss"]]).all()
    last = np.stack([model[0] for model in held(experiment).values()])
    assert (last != first)[:, trained.buffers].any(axis=0).all()  # they were trained at all
    assert (trained.most - trained.least).max() > 100 * CIPHERS
    experiment.close()


# -- the rules, one by one ---------------------------------------------------------------------------------------------


def near(a: np.ndarray, b: np.ndarray, off: float = 1e-6) -> None:
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=off)


BY_SAMPLES = ("fedavg", "fedprox", "fedavg_drop", "fedprox_drop", "fedavg_stale", "fedprox_stale", "time_weighted")
ALIKE = ("scaffold", "fedavg_late", "fedadmm")


@pytest.mark.parametrize("step", [1.7, *(pytest.param(step, marks=pytest.mark.long) for step in (0.6, 1.0))])
@pytest.mark.parametrize("name", [*BY_SAMPLES, *ALIKE])
def test_one_global_model(name: str, step: float) -> None:
    """b + min(1, step s) (m - b): m the mean of those who trained, s their share of all where the server counts all."""
    decay = 0.5 if name != "scaffold" else 0.0
    experiment = made(name, wanted={**GIVEN, "server_lr": step, "server_decay": decay, "participation": 0.7})
    trained, hub = Trained(experiment), experiment.federation.parties["server"]
    for r in (1, 2, 3):
        before = hub.state.weights[trained.buffers].astype(np.float64)  # type: ignore[attr-defined]
        trained.round(r)
        names = list(trained.now)
        share = len(names) / CLIENTS if name == "fedadmm" else 1.0
        mean = trained.mean(names, trained.samples(names) if name in BY_SAMPLES else None)
        expected = before + min(1.0, share * step / (1 + decay * (r - 1))) * (mean - before)
        near(hub.state.weights[trained.buffers], expected)  # type: ignore[attr-defined]
    experiment.close()


def test_components_of_fedem() -> None:
    experiment = made("fedem")
    trained, hub = Trained(experiment), experiment.federation.parties["server"]
    for r in (1, 2):
        trained.round(r)
        names = list(trained.now)
        for m, component in enumerate(hub.state.weights):  # type: ignore[attr-defined]
            near(component[trained.buffers], trained.mean(names, trained.samples(names), m))
    experiment.close()


def test_clusters_of_ifca() -> None:
    experiment = made("ifca")
    trained, hub = Trained(experiment), experiment.federation.parties["server"]
    for r in (1, 2):
        membership = trained.round(r)["notes"]["membership"]
        for k, model in enumerate(hub.state.weights):  # type: ignore[attr-defined]
            names = [n for n, own in zip(experiment.common.clients, membership, strict=True) if own == [k]]
            if names:
                near(model[trained.buffers], trained.mean(names, trained.samples(names)))
    assert len({own[0] for own in membership}) > 1
    experiment.close()


@pytest.mark.parametrize(
    ("mode", "more"),
    [
        ("paper", {}),
        ("hardened", {"descriptor": "model", "hardening": "sketch"}),
        pytest.param("hardened", {"descriptor": "model", "hardening": "rotation"}, marks=pytest.mark.long),
    ],
)
def test_clusters_of_fedcaprivacy_and_the_mean_of_a_clients_clusters(mode: str, more: dict[str, Any]) -> None:
    wanted = {**GIVEN, "gamma": 5.0, "kernel": "rbf", **more}  # which puts some clients into two clusters
    experiment = made("fedcaprivacy", mode, wanted, partition="dirichlet:0.3")
    trained, several = Trained(experiment), 0
    for r in (1, 2, 3):
        membership = dict(zip(experiment.common.clients, trained.round(r)["notes"]["membership"], strict=True))
        for name, models in held(experiment).items():
            means = [
                trained.mean(members)
                for k in membership[name]
                if len(members := [n for n, own in membership.items() if k in own]) >= (3 if mode == "hardened" else 1)
            ]
            several += len(means) > 1
            near(models[0, trained.buffers], np.mean(means, axis=0) if means else trained.of(name), CIPHERS)
    assert several > 0 or mode == "hardened"
    experiment.close()


@pytest.mark.parametrize("hardening", ["products", "uploads"])
def test_exact_cluster_means_of_mingledpie(hardening: str) -> None:
    experiment = made("mingledpie", "hardened", {**GIVEN, "hardening": hardening})
    trained = Trained(experiment)
    for r in (1, 2):
        trained.round(r)
        membership = experiment.system.observe(experiment.federation)["membership"]
        for name, own, models in zip(experiment.common.clients, membership, held(experiment).values(), strict=True):
            same = [n for n, other in zip(experiment.common.clients, membership, strict=True) if other == own]
            near(models[0, trained.buffers], trained.mean(same))
            assert name in same
    experiment.close()


@pytest.mark.parametrize("more", few([{}, {"rebuild": "ideal"}, {"rebuild": "none"}], [{}]))
def test_where_models_are_taken_off_each_other_buffers_never_leave_their_client(more: dict[str, Any]) -> None:
    """Weights of a rebuild may be negative. An update has no place for buffers; everybody evaluates with its own."""
    experiment = made("mingledpie", "paper", {**GIVEN, **more})
    trained, spec = Trained(experiment), experiment.common.spec
    client: Any = experiment.federation.parties["client/0"]
    assert client.layout.lengths == (spec.size - int(spec.buffers.sum()) + 3,)
    parameters = set()
    for r in (1, 2):
        trained.round(r)
        for name, models in held(experiment).items():
            np.testing.assert_array_equal(models[0, trained.buffers], trained.now[name][0].weights[trained.buffers])
            parameters.add(models[0, ~trained.buffers].tobytes())
    assert len(parameters) <= 2 * 3  # of each cluster in each round one
    experiment.close()


def test_a_client_looks_for_its_cluster_and_trains_on_with_its_own_buffers() -> None:
    experiment = made("mingledpie")
    trained, wanted = Trained(experiment), []
    honest = experiment.effects.run
    experiment.effects.run = lambda all_: (wanted.extend(all_), honest(all_))[1]  # type: ignore[method-assign,func-returns-value]
    trained.round(1)
    own = {name: trained.of(name) for name in trained.now}
    wanted.clear()
    trained.round(2)
    seen = [(name, effect.weights) for name, effect in wanted if hasattr(effect, "split") or hasattr(effect, "solver")]
    assert len(seen) == CLIENTS * (3 + 1)
    for name, weights in seen:
        np.testing.assert_array_equal(weights[trained.buffers], own[name].astype(np.float32))
    experiment.close()


def test_shared_layers_of_mingledpie_are_averaged_with_their_buffers() -> None:
    """A layer that all clients share is federated averaging, which bears its statistics; the other layer's stay."""
    experiment = made("mingledpie", "paper", {**GIVEN, "shared_layers": "1."})
    trained, spec = Trained(experiment), experiment.common.spec
    shared = np.concatenate([np.full(p.size, p.name.startswith("1.")) for p in spec.parts if p.kind == "buffer"])
    trained.round(1)
    everybody = trained.mean(list(trained.now))
    for name, models in held(experiment).items():
        near(models[0, trained.buffers][shared], everybody[shared])
        np.testing.assert_array_equal(models[0, trained.buffers][~shared], trained.of(name)[~shared].astype(np.float32))
    experiment.close()


def scaled(experiment: Experiment, factor: float) -> None:
    """Everybody's samples, training and test: the first layer's running variances grow by its square."""
    tests = {own.test_set: replace(own.test_set, x=own.test_set.x * factor) for own in experiment.effects.data.values()}
    for name, own in experiment.effects.data.items():
        experiment.effects.data[name] = replace(own, inputs=own.x * factor, test_set=tests[own.test_set])
    experiment.observer.data = experiment.effects.data


@pytest.mark.parametrize(
    ("name", "mode", "more"),
    [
        ("mingledpie", "hardened", {"hardening": "products"}),
        pytest.param("mingledpie", "hardened", {"hardening": "uploads"}, marks=pytest.mark.long),
        ("mingledpie", "paper", {"shared_layers": "1."}),
        ("fedcaprivacy", "paper", {"value_bits": 40}),
    ],
)
def test_variances_of_thousands_have_room_under_encryption(name: str, mode: str, more: dict[str, Any]) -> None:
    experiment = made(name, mode, {**GIVEN, **more}, samples=None)
    scaled(experiment, 100.0)
    trained = Trained(experiment)
    for r in (1, 2):
        assert trained.round(r)["notes"]["participants"] == CLIENTS
    assert trained.most.max() > 1000
    for models in held(experiment).values():
        assert (models[:, trained.buffers] >= trained.least - 0.01).all()
        assert (models[:, trained.buffers] <= trained.most + 0.01).all()
    experiment.close()


def test_variances_that_fixed_point_has_no_room_for_are_named_with_the_setting_that_makes_some() -> None:
    experiment = made("fedcaprivacy")
    scaled(experiment, 100.0)
    lines = [experiment.round(1), experiment.round(2)]
    assert [line["notes"]["participants"] for line in lines] == [0, 0]
    with pytest.raises(fl.RunError, match=r"all 2 rounds were skipped.*participant/Train.*value_bits"):
        check_not_all_skipped(lines)
    experiment.close()


# -- the pieces --------------------------------------------------------------------------------------------------------

SPEC = fl.ModelSpec(
    (
        fl.Part("0.weight", (2,), "float32", "parameter", "shared", 0),
        fl.Part("0.running_mean", (1,), "float32", "buffer", "shared", 2),
        fl.Part("0.running_var", (2,), "float32", "buffer", "shared", 3),
        fl.Part("not.running_variety", (1,), "float32", "buffer", "shared", 5),
        fl.Part("1.running_var", (1,), "float32", "parameter", "shared", 6),
    )
)
B = np.array([False, False, True, True, True, True, False])
numbers = st.floats(-100, 100, width=32)
vectors = st.lists(numbers, min_size=7, max_size=7).map(lambda v: np.array(v, np.float32))


def test_which_coordinates_are_buffers_and_variances() -> None:
    assert SPEC.buffers.tolist() == B.tolist()
    assert SPEC.variances.tolist() == [False, False, False, True, True, False, False]
    with pytest.raises(ValueError, match="read-only"):
        SPEC.buffers[0] = True


@given(
    st.lists(st.tuples(vectors, st.integers(0, 4), st.integers(1, 50)), min_size=1, max_size=5),
    vectors,
    st.floats(0.01, 5),
    st.sampled_from(["model", "change"]),
    st.sampled_from([None, 5.0]),
)
def test_late_updates_by_hand(updates: Any, w: np.ndarray, step: float, of: Any, over: float | None) -> None:
    """Parameters as the method says; buffers a mean of the server's and the received ones by the same weights."""
    weight: Callable[[int, int], float] = lambda staleness, samples: (  # noqa: E731
        1.0 if over else samples * 1.36**-staleness
    )
    mean = Mean(SPEC, w, step, of=of, weight=weight, over=over)
    for values, staleness, samples in updates:
        mean.take(values, staleness, samples)
    weights = np.array([weight(staleness, samples) for _, staleness, samples in updates])
    rows = np.array([values for values, _, _ in updates], np.float64)
    divisor = over or weights.sum()
    summed = weights @ rows
    change = summed / divisor - (w if of == "model" else 0)
    near(mean.result()[~B], (w + step * change)[~B], 1e-4)
    share = min(1.0, step * weights.sum() / divisor)
    near(mean.result()[B], ((1 - share) * w + share * summed / weights.sum())[B], 1e-4)
    low, high = np.vstack([rows, w])[:, B].min(axis=0), np.vstack([rows, w])[:, B].max(axis=0)
    assert (mean.result()[B] >= low - 1e-9).all()
    assert (mean.result()[B] <= high + 1e-9).all()


@given(st.lists(st.tuples(vectors, st.integers(0, 4)), min_size=1, max_size=5), vectors, st.floats(0.01, 1))
def test_models_mixed_in_one_by_one_by_hand(updates: Any, w: np.ndarray, step: float) -> None:
    mixing, expected = Mixing(SPEC, w, step, exponent=0.5), w.astype(np.float64)
    for values, staleness in updates:
        mixing.take(values, staleness, 1)
    for values, staleness in [u for u in updates if u[1]] + [u for u in updates if not u[1]]:
        share = step * (1 + staleness) ** -0.5
        expected = (1 - share) * expected + share * values
    near(mixing.result(), expected, 1e-4)


@given(vectors, vectors, vectors, st.floats(0, 9), st.floats(0, 1))
def test_a_step_moves_buffers_within_their_range_and_parameters_as_far_as_it_says(
    w: np.ndarray, change: np.ndarray, mean: np.ndarray, step: float, share: float
) -> None:
    got = fl.stepped(SPEC, w, change, mean, step, share)
    near(got[~B], (w + step * change)[~B], 1e-4)
    assert (np.minimum(w, mean)[B] <= got[B] + 1e-4).all()
    assert (got[B] <= np.maximum(w, mean)[B] + 1e-4).all()
    if w[B].min() >= 0 and mean[B].min() >= 0:
        assert got[B].min() >= 0


def test_a_step_without_buffers_is_the_plain_one() -> None:
    plain = fl.ModelSpec((fl.Part("w", (3,), "float32", "parameter", "shared", 0),))
    w, change = np.float32([1, 2, 3]), np.array([0.5, -4, 1e-9])
    np.testing.assert_array_equal(fl.stepped(plain, w, change, np.full(3, np.nan), 1.5), w + 1.5 * change)
    assert fl.with_buffers(plain, change, np.zeros(3)) is change
    assert not_below_zero(plain, change) is change


def test_a_change_carries_buffers_as_they_are() -> None:
    start, end = np.arange(7, dtype=np.float32), np.full(7, 9, np.float32)
    assert fl.with_buffers(SPEC, end - start, end).tolist() == [9, 8, 9, 9, 9, 9, 3]


def test_a_variance_of_0_stays_0_through_a_rotation_in_fixed_point() -> None:
    """Its mean comes back a little off, half of the times below 0: torch would take the root of it."""
    values, seed = np.array([0.7, -1.3, 0.2, 0, 0, 1.1, 0.4], np.float32), bytes(32)
    back = unrotate(np.rint(rotate(values, seed) * 2.0**16) / 2.0**16, seed)
    assert 0 < np.abs(back - values).max() < 1e-4
    back[3:5] = -np.abs(back[3:5])
    mended = not_below_zero(SPEC, back.astype(np.float32))
    assert mended[3:5].tolist() == [0, 0]
    np.testing.assert_array_equal(np.delete(mended, [3, 4]), np.delete(back, [3, 4]).astype(np.float32))
    assert mended.dtype == np.float32
