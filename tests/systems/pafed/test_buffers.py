"""Statistics of batch normalisation in PAFed: averaged with weights of at least 0 that sum to 1, apart from updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from federation import Pulled, rig
from hypothesis import given
from hypothesis import strategies as st
from matrix import few
from pafed_parts import EIGHT, TARGETS, clear, opened, service_key, small_keys, step, taken
from torch import nn

import coterie.method as fl
from coterie.aggregation.buffers import CKKS_UNIT
from coterie.privacy.audits.pafed import AUDIT
from coterie.protocol.interpreters import each
from coterie.runs import RunConfig, build
from coterie.runs.recorded import recorded_run
from coterie.systems.pafed import SYSTEM, config
from coterie.systems.pafed.layout import Layout

SIZE, BUFFERS = 20, slice(5, 9)
UPDATES = np.delete(np.arange(SIZE), BUFFERS)


def spec_of(*kinds: tuple[int, str]) -> fl.ModelSpec:
    """Parts of these sizes and kinds, one after the other."""
    ends = np.cumsum([size for size, _ in kinds])
    parts = [
        fl.Part(f"p{i}", (n,), "float32", kind, "shared", int(end) - n)
        for i, ((n, kind), end) in enumerate(zip(kinds, ends, strict=True))
    ]
    return fl.ModelSpec(tuple(parts), 6.0 * int(ends[-1]))


SPEC = spec_of((5, "parameter"), (4, "buffer"), (SIZE - 9, "parameter"))


# -- where they lie ----------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from(["parameter", "buffer"])), min_size=1, max_size=6))
def test_what_is_packed_comes_back_in_its_place(kinds: list[tuple[int, str]]) -> None:
    """Parameters first, up to a whole ciphertext if buffers follow; zeros between, so that no product sees them."""
    layout = Layout(spec_of(*kinds), degree=8)
    vector = np.random.default_rng(0).normal(size=layout.spec.size).astype(np.float32)
    mask = layout.spec.buffers
    assert mask.tolist() == [kind == "buffer" for size, kind in kinds for _ in range(size)]
    packed = layout.packed(vector)
    assert len(packed) == layout.size
    np.testing.assert_array_equal(layout.unpacked(packed), vector)
    np.testing.assert_array_equal(packed[layout.parameters :] * np.float32(CKKS_UNIT), vector[mask])
    assert packed[: layout.parameters].sum() == pytest.approx(float(vector[~mask].sum()), abs=1e-5)
    if layout.has_buffers:
        assert layout.parameters % 8 == 0
        assert layout.parameters - (~mask).sum() < 8
    else:
        assert packed is vector
    with pytest.raises(fl.PeerError, match=f"a model of {layout.size + 1} numbers"):
        layout.unpacked(np.zeros(layout.size + 1))


def test_a_variance_that_the_cipher_has_rounded_below_0_is_0() -> None:
    """What clients are handed is off by about 0.009, and a variance that is 0 everywhere is no rarity."""
    names = ("w", "bn.running_mean", "bn.running_var")
    kinds = ("parameter", "buffer", "buffer")
    spec = fl.ModelSpec(
        tuple(fl.Part(n, (2,), "float32", k, "", 2 * i) for i, (n, k) in enumerate(zip(names, kinds, strict=True)))
    )
    layout = Layout(spec, degree=8)
    opened = layout.packed(np.array([-1, 1, -1, 1, -0.01, 1], np.float32))
    np.testing.assert_array_equal(layout.unpacked(opened), np.array([-1, 1, -1, 1, 0, 1], np.float32))


# -- federations with made-up statistics -------------------------------------------------------------------------------


class Measured(Pulled):
    """Each client's training also measures four statistics, of its own and anew in every round."""

    rows: dict[tuple[str, int], np.ndarray]

    def fit(self, party: str, effect: fl.Fit) -> fl.Fitted:
        fitted = super().fit(party, effect)
        source = np.random.default_rng([effect.seed % 2**32, int(party[7:])])
        weights = np.array(fitted.weights)
        weights[BUFFERS] = source.uniform([-200, 0, 0, 0.5], [200, 200, 1e-3, 0.6]).astype(np.float32)
        state = {name: np.where(SPEC.buffers, 0, vector) for name, vector in fitted.state.items()}
        return fl.Fitted(weights, fitted.samples, fitted.steps, fitted.loss, state)


def measuring(targets: np.ndarray = TARGETS, **options: Any) -> Any:
    given = {"participation": 1.0, "delta": 0.5, "delay": "uniform:1", "max_epochs": 1, "lr": 0.1, "seed": 1, **options}
    with small_keys(), pytest.MonkeyPatch.context() as patch:
        if given.get("iterations") == 0:
            patch.setitem(config.PARAMETERS, "literal", EIGHT.name)
        return rig(SYSTEM, targets, spec=SPEC, effects=Measured, fresh_keys=True, **given)


CASES: list[dict[str, Any]] = [{}, {"project": "printed", "clip": 0.5}, {"mode": "literal", "iterations": 0}]
LONG: list[dict[str, Any]] = [
    {"project": "none"},
    {"signs": "hidden"},
    {"delta": 1.0},
    {"delta": 0.0, "server_lr": 20.0},
    {"agreeing": 3.0, "conflicting": 5.0, "local": "sgd"},
    {"emulated": False},
    {"emulated": False, "mode": "literal", "iterations": 0},
]


@pytest.mark.parametrize("settings", [*CASES, *(pytest.param(one, marks=pytest.mark.long) for one in LONG)], ids=str)
def test_buffers_are_the_mean_of_those_used_and_decide_nothing(settings: dict[str, Any]) -> None:
    """Encrypted as with plain numbers; and the parameters' step is that of a model without buffers."""
    few = {"targets": TARGETS[::2]} if settings.get("emulated") is False else {}
    run = measuring(**few, **settings)
    key, layout, literal = service_key(run), run.hub.layout, run.common.mode == "literal"
    p, checked = key.public.parameters, 0

    def model() -> np.ndarray:
        state = run.hub.state
        return layout.unpacked(key.decrypt(key.public.from_bytes(state.model))) if state.model else run.common.initial

    for r in range(1, 6):
        before = model()
        notes, handed = taken(run, r)
        assert not run.refused
        if "skipped" in notes:
            assert (model() == before).all()
            continue
        rows = {(name, u.round): layout.unpacked(opened(run, u)) for name, u in handed}
        np.testing.assert_allclose(
            model()[BUFFERS], np.mean([row[BUFFERS] for row in rows.values()], axis=0), atol=1e-4
        )
        early = [row[UPDATES] for (_, of), row in rows.items() if of == r]
        stale = [row[UPDATES] for (_, of), row in rows.items() if of < r]
        if not run.config.clip:
            assert all(abs(np.linalg.norm(row) - 1) < 1e-5 for row in (*early, *stale))
        if clear(early, stale, 0.05, run.config.iterations if literal else None):
            rates = run.config.rates(r).scaled(float(np.mean([u.length for _, u in handed])))
            expected = step(early, stale, rates, run.config, run.common.mode)
            assert np.abs((model() - before)[UPDATES] - expected).max() < 2e-3 * run.config.largest_share
            checked += 1
        np.testing.assert_allclose(run.models()[0], model(), rtol=1e-5, atol=1e-5)
    assert checked >= 2
    assert p.degree == layout.degree


def test_what_a_client_is_handed_is_what_the_aggregator_has() -> None:
    run = measuring(emulated=False, delta=0.0)
    run.round(1)
    key, layout = service_key(run), run.hub.layout
    before = layout.unpacked(key.decrypt(key.public.from_bytes(run.hub.state.model)))
    starts: list[np.ndarray] = []
    effects = run.transport.effects

    def watched(party: str, effect: fl.Fit) -> fl.Fitted:
        starts.append(np.array(effect.weights))
        return effects.fit(party, effect)

    effects.table[fl.Fit] = each(watched)
    run.round(2)
    off = np.abs(np.stack(starts) - before)
    flood = key.public.parameters.flooded(0) + 1e-6
    assert off[:, UPDATES].max() <= flood
    assert off[:, BUFFERS].max() <= CKKS_UNIT * flood


# -- a model that is trained -------------------------------------------------------------------------------------------


def normalised(input_shape: Any, classes: int) -> nn.Module:
    """Two convolutions with batch normalisation."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32, classes),
    )


@pytest.mark.parametrize(
    ("mode", "crypto"),
    few([("paper", "emulated"), ("literal", "emulated"), ("paper", "real")], [("paper", "emulated")]),
)
def test_a_trained_model_s_statistics_lie_among_those_that_clients_measured(mode: str, crypto: str) -> None:
    """Half of the updates late, some of them turned: variances stay positive, whatever the coefficients are."""
    settings: dict[str, Any] = {"participation": 1.0, "max_epochs": 1, "batch_size": 20}
    sizes: dict[str, Any] = {"clients": 8 if crypto == "emulated" else 4, "rounds": 4, "min_samples": 2}
    sizes |= {"delta": 0.5, "delay": "uniform:1-2"}
    config = RunConfig(
        "pafed", "digits", mode=mode, crypto=crypto, record=True, partition="shards:2", seed=4,  # type: ignore[arg-type]
        model="tests.systems.pafed.test_buffers:normalised", settings=settings, **sizes,
    )  # fmt: skip
    experiment = build(config)
    experiment.set_up()
    hub, spec = experiment.federation.parties["aggregator"], experiment.model.spec
    key, buffers = service_key(as_rig(experiment)), spec.buffers
    variances = np.concatenate(
        [np.arange(p.offset, p.offset + p.size) for p in spec.parts if p.name.endswith("running_var")]
    )
    late = 0
    view = experiment.transport.transcript.views["aggregator"]
    for r in range(1, 5):
        before = len(view.seen)
        line = experiment.round(r)
        assert not line["refused"]
        handed = [one.message for one in view.seen[before:] if one.kind == "Update"]
        rows = np.stack([hub.layout.unpacked(key.decrypt(key.public.from_bytes(u.cipher))) for u in handed])[:, buffers]
        found = experiment.models()["client/0"]
        slack = 1e-6 * CKKS_UNIT
        assert (rows.min(axis=0) - slack <= found[buffers]).all()
        assert (found[buffers] <= rows.max(axis=0) + slack).all()
        assert np.abs(found[buffers] - rows.mean(axis=0)).max() < slack
        assert (found[variances] > 0).all()
        late += sum(u.round < r for u in handed)
    experiment.close()
    assert late >= 3
    assert np.abs(rows).max() < CKKS_UNIT


def test_an_audit_reads_updates_without_the_statistics_among_them() -> None:
    """In the order of the model, so that the last bias is where it looks for it; statistics are no step."""
    settings = {"participation": 1.0, "max_epochs": 1, "batch_size": 20}
    given: dict[str, Any] = {
        "clients": 6,
        "rounds": 2,
        "partition": "dirichlet:0.3",
        "crypto": "emulated",
        "delta": 0.0,
    }
    config = RunConfig(
        "pafed", record=True, model="tests.systems.pafed.test_buffers:normalised", settings=settings, **given
    )
    run, experiment = recorded_run(config)
    experiment.close()
    found = {finding.name: finding for finding in AUDIT.passive(run)}
    assert found["aggregator with the helper: label shares"].results[0].value > 0.5
    assert found["aggregator with one client: global model"].row()["value"] < 2e-2


def as_rig(experiment: Any) -> Any:
    class Seen:
        party = staticmethod(experiment.federation.parties.__getitem__)
        transport = experiment.transport

    return Seen()
