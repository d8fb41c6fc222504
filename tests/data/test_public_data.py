"""Public data of the hub: drawn before the partition, no client's, its own for effects, the same for all methods."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.baselines.fedavg import SYSTEM as FEDAVG
from coterie.data.own import load_own
from coterie.data.partition import set_aside
from coterie.data.sources import load
from coterie.data.tasks import deal
from coterie.protocol.effects import Evaluate, Fit, Local, OwnData, local
from coterie.protocol.errors import UserError
from coterie.protocol.steps import compute
from coterie.protocols.averaging import Server
from coterie.runs import RunConfig, build, run
from coterie.runs.budget import plan
from coterie.runs.config import resolve
from coterie.training.solvers import Sgd


@local("labels of the test of public data")
def labels(own: OwnData) -> Any:
    return own.y


class Pretraining(Server):
    """FedAvg whose server trains its first model on its own data."""

    def setup(self) -> Any:
        before = self.now_s
        fitted = yield from compute(Fit(self.common.initial, Sgd(0.1, 10), 2, seed=0))
        self.state.weights = fitted.weights
        assert fitted.samples == self.samples == self.common.public
        work = 2 * self.samples * self.spec.flops_per_sample
        assert self.now_s - before == pytest.approx(work / 500e9)  # a server's, in virtual time
        own = yield from compute(Local(labels))
        assert len(own) == self.samples


def pretraining(**changes: Any) -> Any:
    def parties(config: Any) -> Any:
        of = FEDAVG.parties(config)
        return {"server": Pretraining, **{role: make for role, make in of.items() if role != "server"}}

    return replace(FEDAVG, name="pretraining", parties=parties, **changes)


SYSTEM = pretraining(public=0.05)
WITHOUT = pretraining()
HERE = f"{__name__}:SYSTEM"
OPTIONS: dict[str, Any] = {"data": "digits", "clients": 6, "rounds": 2, "partition": "dirichlet:0.5"}


@given(
    strata=st.lists(st.integers(0, 5), min_size=4, max_size=300),
    share=st.floats(0.01, 0.5),
    seed=st.integers(0, 1 << 30),
)
def test_every_stratum_gives_its_share_and_keeps_some(strata: list[int], share: float, seed: int) -> None:
    y = np.array(strata)
    try:
        taken = set_aside(y, share, seed)
    except UserError:
        assert share * len(y) < 1 or np.bincount(y).max() == 1 or round(share * len(y)) <= (np.bincount(y) == 1).sum()
        return
    assert (np.diff(taken) > 0).all()
    for label, size in zip(*np.unique(y, return_counts=True), strict=True):
        given_ = int((y[taken] == label).sum())
        assert given_ <= size - 1
        assert abs(given_ - share * size) <= 1
    assert len(taken) <= round(share * len(y))
    if np.bincount(y)[np.unique(y)].min() > 1 / (1 - share):
        assert len(taken) == round(share * len(y))


@pytest.mark.parametrize(
    "spec", ["dirichlet:0.3", "iid", "shards:2", "labelsets:2", "rotate:4", "swap:2+hsu:1", "permute:3"]
)
def test_no_client_has_a_public_sample(spec: str) -> None:
    data = load("digits")
    split, _ = deal(spec, data, 8, 3, public=0.1)
    whole, _ = deal(spec, data, 8, 3)
    assert len(split.public) == round(0.1 * len(data.y_train))
    everybody = np.concatenate([split.public, *split.train])
    assert len(np.unique(everybody)) == len(everybody) == len(np.concatenate(whole.train))
    again, _ = deal(spec, data, 8, 3, public=0.1)
    other, _ = deal(spec, data, 8, 4, public=0.1)
    assert np.array_equal(split.public, again.public)
    assert not np.array_equal(split.public, other.public)
    shares = np.bincount(data.y_train[split.public]) / len(split.public)
    np.testing.assert_allclose(shares, np.bincount(data.y_train) / len(data.y_train), atol=1 / len(split.public))


def test_with_share_zero_nothing_changes() -> None:
    data = load("digits")
    zero, plain = deal("dirichlet:0.3", data, 5, 1, public=0.0)[0], deal("dirichlet:0.3", data, 5, 1)[0]
    assert all(map(np.array_equal, zero.train, plain.train))
    assert not len(zero.public)


def test_the_hubs_public_data_are_of_the_plain_task() -> None:
    for spec in ("rotate:2", "permute:2", "swap:2"):
        made = build(RunConfig(HERE, **{**OPTIONS, "partition": spec}))
        plain, hub = load("digits"), made.effects.data["server"]
        np.testing.assert_array_equal(hub.y, plain.labels(made.split.public))
        np.testing.assert_array_equal(hub.x, plain.inputs(made.split.public))
        assert "server" not in made.common.clients
        assert len(made.label_counts) == 6
        made.close()


def test_of_domains_only_the_first_gives_public_data() -> None:
    data = load("digits")
    other = replace(data, name="other")
    split, _ = deal("domains:digits,other", data, 6, 0, load=lambda name: other, public=0.2)
    assert len(split.public) == round(0.2 * len(data.y_train))
    assert split.groups is not None
    held = [sum(len(split.train[i]) for i in np.flatnonzero(split.groups == g)) for g in (0, 1)]
    assert held == [len(data.y_train) - len(split.public), len(data.y_train)]


def test_clients_of_ones_own_data_each_give_their_share(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, n in (("north", 100), ("south", 40)):
        np.savez(tmp_path / f"{name}.npz", x=rng.normal(size=(n, 3)), y=np.arange(n) % 2)
    data = load_own(tmp_path, by="client", target=None, test_share=None, kind=None)
    split, _ = deal("by:client", data, None, 0, public=0.25)
    assert data.owners is not None
    assert [len(own) for own in split.train] == [60, 24]  # of 80 and 32 training samples
    assert np.bincount(data.owners.train[split.public]).tolist() == [20, 8]


def test_a_run_with_public_data(tmp_path: Path) -> None:
    done = run(RunConfig(HERE, **OPTIONS, out=str(tmp_path / "run")))
    dealt = json.loads((tmp_path / "run" / "partition.json").read_text())
    assert done.summary["public_samples"] == dealt["public"] == 72
    assert sum(dealt["samples"]) == 1437 - 72
    assert done.summary["set_up"]["phase_virtual_seconds"]["server/coordinate"] > 0
    assert done.summary["set_up"]["phase_seconds"]["server/Fit"] > 0
    assert done.summary["global_accuracy"] > 0.5


@pytest.mark.parametrize("share", [-0.1, 0.51, float("nan"), float("inf")])
def test_shares_that_are_refused(share: float) -> None:
    with pytest.raises(UserError, match="public"):
        resolve(RunConfig("fedavg", public=share))
    with pytest.raises(UserError, match=r"0 to 0\.5, not"):
        set_aside(np.zeros(10, int), share, 0)


def test_shares_that_leave_too_little() -> None:
    with pytest.raises(UserError, match="gives the server none: take a larger share"):
        build(RunConfig("fedavg", **OPTIONS, public=1e-5))
    with pytest.raises(UserError, match=r"1,000 clients cannot share 719 training .*\(718 samples are public"):
        build(RunConfig("fedavg", data="digits", clients=1000, partition="iid", public=0.5))


def test_a_hub_without_public_data_computes_nothing_on_data() -> None:
    made = build(RunConfig(f"{__name__}:WITHOUT", **OPTIONS))
    assert made.common.public == 0
    with pytest.raises(TypeError, match=r"server has no data .*--public"):
        made.set_up()
    made.close()


def test_a_hub_has_no_test_samples() -> None:
    made = build(RunConfig(HERE, **OPTIONS))
    (result,) = made.effects.run([("server", Evaluate(made.common.initial))])
    assert result.samples == made.common.public
    with pytest.raises(TypeError, match="server has no test samples"):
        made.effects.run([("server", Evaluate(made.common.initial, "test"))])
    made.close()


def test_only_effects_are_computed() -> None:
    for other in (None, 3, "labels of the test of public data", lambda: 1):
        with pytest.raises(TypeError, match="compute takes an effect"):
            next(compute(other))  # type: ignore[arg-type]


def test_a_comparison_takes_the_first_methods_share_for_all() -> None:
    for methods, share in (([HERE, "fedavg"], 0.05), (["fedavg", HERE], 0.0)):
        for each_own in (False, True):
            planned = plan(methods, OPTIONS, {}, each_own=each_own)
            assert {config.public for config in planned.methods.values()} == {share}
    planned = plan(["fedavg", HERE], {**OPTIONS, "public": 0.2}, {})
    assert {config.public for config in planned.methods.values()} == {0.2}
    made = [build(config) for config in planned.methods.values()]
    assert all(map(np.array_equal, made[0].split.train, made[1].split.train))
    for one in made:
        one.close()
