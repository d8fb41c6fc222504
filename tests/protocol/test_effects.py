"""Tables of interpreters, and functions of a party's own data: registered, batched, pure, and all that is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from federation import Pulled
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import coterie.method as fl
from coterie.devices.profiles import Profile
from coterie.protocol import effects as effects_module
from coterie.protocol.effects import LocalFunction
from coterie.protocol.interpreters import PLAIN, Interpreter, each, interpret, locally
from coterie.runs import RunConfig, build
from coterie.runs.interpreter import LocalEffects
from coterie.runs.on_data import ClientData, TensorSamples
from coterie.training.models import build as build_model

# -- registered functions ----------------------------------------------------------------------------------------------


@fl.local("test: class counts")
def class_counts(own: fl.OwnData, classes: int) -> NDArray[np.float32]:
    """(classes,) how many samples of each it has."""
    if classes <= own.y.max():
        raise fl.PeerError(f"a class beyond {classes}")
    return np.bincount(own.y, minlength=classes).astype(np.float32)


BATCHES: list[int] = []
"""How many parties each call of the batched form was for."""


@fl.local("test: scaled mean")
def scaled_mean(own: fl.OwnData, factor: float) -> dict[str, Any]:
    """The mean sample, and how many there are."""
    if factor < 0:
        raise fl.PeerError(f"a factor of {factor:g}")
    return {"mean": factor * own.x.mean(axis=0), "of": (len(own.x), own.x[:1])}


@scaled_mean.batched
def _(data: Sequence[fl.OwnData], arguments: Sequence[tuple[float]]) -> list[dict[str, Any]]:
    BATCHES.append(len(data))
    return [scaled_mean.run(own, factor) for own, (factor,) in zip(data, arguments, strict=True)]


@fl.local("test: gradient")
def gradient(own: fl.OwnData, weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """(d,) of the mean loss over all its samples."""
    module = own.model.module_with(weights)
    outputs = module(torch.from_numpy(own.x.copy()))
    torch.nn.functional.cross_entropy(outputs, torch.from_numpy(own.y.copy())).backward()
    return np.concatenate([p.grad.numpy().ravel() for p in module.parameters()])


@fl.local("test: speed")
def speed(own: fl.OwnData) -> float:
    return 0.0 if own.device is None else float(own.device.compute_flops_per_s)


@fl.local("test: spoil")
def spoil(own: fl.OwnData) -> None:
    own.x[0] = 9.0


MODEL = build_model("linear", (6,), 3)
NAMES = tuple(f"client/{i}" for i in range(4))


def data() -> dict[str, ClientData]:
    source, none = np.random.default_rng(3), np.zeros(0, np.int64)
    test = TensorSamples(torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64))
    return {
        name: ClientData(
            torch.from_numpy(source.normal(size=(5 + i, 6)).astype(np.float32)),
            torch.from_numpy(source.integers(0, 3, 5 + i)), tests=none, test_set=test,
        )
        for i, name in enumerate(NAMES)
    }  # fmt: skip


def simulation(**options: Any) -> LocalEffects:
    return LocalEffects(MODEL, data(), **options)


def test_it_computes_of_each_party_s_own_data_by_function_or_by_name() -> None:
    runner = simulation()
    wanted = [(name, fl.Local(of, (3,))) for name in NAMES for of in (class_counts, "test: class counts")]
    found = runner.run(wanted)
    for (name, _), counts in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(counts, np.bincount(runner.data[name].y.numpy(), minlength=3))
        assert counts.sum() == len(runner.data[name].y)


def test_a_gradient_is_what_one_step_of_training_goes_against() -> None:
    """w - lr g after one step with the whole data as a batch."""
    runner, w = simulation(), MODEL.initial(1)
    (found,) = runner.run([("client/2", fl.Local(gradient, (w,)))])
    (fitted,) = runner.run([("client/2", fl.Fit(w, fl.Sgd(0.5, 1000), 1, 0))])
    np.testing.assert_allclose(fitted.weights, w - 0.5 * found, atol=1e-6)


def test_it_may_ask_what_its_own_device_can_do() -> None:
    fast = Profile("fast", 7e9, 1e6, 1e6)
    runner = simulation(devices={"client/1": fast})
    assert runner.run([(name, fl.Local(speed)) for name in NAMES]) == [0.0, 7e9, 0.0, 0.0]


# -- what is refused ---------------------------------------------------------------------------------------------------


def plain(own: fl.OwnData) -> int:
    return len(own.y)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (plain, r"plain of .*test_effects.py is not registered: decorate it with @local\(name\)"),
        (len, "len.* is not registered"),
        (lambda own: own.x, "<lambda> of .* is not registered"),
        (None, "None is not registered"),
        (LocalFunction("test: never", plain), "is not registered"),
        (LocalFunction("test: speed", plain), "is not registered"),  # in another's name
        ("test: nothing", "no function is registered as 'test: nothing'; there are: .*test: class counts"),
        ("", "no function is registered as ''"),
    ],
)
def test_a_function_that_is_not_registered_is_refused_where_it_is_asked_for(function: Any, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        fl.Local(function)


def test_a_name_is_of_one_function() -> None:
    known = dict(effects_module._REGISTERED)
    with pytest.raises(TypeError, match=r"'test: speed' is the name of speed of .* already: give plain of .* another"):
        fl.local("test: speed")(plain)
    again = fl.local("test: speed")(speed.run)  # its module was imported a second time
    assert fl.Local(speed).registered is fl.Local(again).registered
    effects_module._REGISTERED.update(known)
    with pytest.raises(TypeError, match="'test: scaled mean' has a batched form already"):
        scaled_mean.batched(lambda data, arguments: [])


def test_nothing_that_it_hands_out_or_is_handed_can_be_changed() -> None:
    runner = simulation()
    with pytest.raises(ValueError, match="read-only"):
        runner.run([("client/0", fl.Local(spoil))])
    counts, mean = runner.run([("client/0", fl.Local(class_counts, (3,))), ("client/0", fl.Local(scaled_mean, (1.0,)))])
    for array in (counts, mean["mean"], mean["of"][1]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    assert runner.data["client/0"].x.numpy().flags.writeable  # for training, which owns it


def test_who_has_no_data_computes_nothing_of_it() -> None:
    with pytest.raises(TypeError, match="server has no data"):
        simulation().run([("server", fl.Local(speed))])


# -- batches -----------------------------------------------------------------------------------------------------------

CALLS = st.lists(st.tuples(st.sampled_from(NAMES), st.floats(0.5, 3)))


@given(CALLS)
def test_the_batched_form_is_called_once_and_gives_the_same(calls: list[tuple[str, float]]) -> None:
    runner = simulation()
    BATCHES.clear()
    found = runner.run([(name, fl.Local(scaled_mean, (factor,))) for name, factor in calls])
    assert ([len(calls)] if calls else []) == BATCHES
    for (name, factor), got in zip(calls, found, strict=True):
        np.testing.assert_array_equal(got["mean"], factor * runner.data[name].x.numpy().mean(axis=0))


def test_an_error_of_a_batch_finds_its_party() -> None:
    factors = (1.0, -2.0, 3.0, -4.0)
    found = simulation().run([(name, fl.Local(scaled_mean, (f,))) for name, f in zip(NAMES, factors, strict=True)])
    assert [isinstance(one, fl.PeerError) for one in found] == [False, True, False, True]
    assert [str(found[1]), str(found[3])] == ["a factor of -2", "a factor of -4"]


def test_a_batched_form_with_another_number_of_results_is_a_bug() -> None:
    short = LocalFunction("test: short", speed.run, lambda data, arguments: [0.0])
    effect = fl.Local(speed)
    known = effects_module._REGISTERED["test: speed"]
    effects_module._REGISTERED["test: speed"] = short
    try:
        with pytest.raises(TypeError, match="batched 'test: short' gives 1 results for 2 parties"):
            simulation().run([("client/0", effect), ("client/1", effect)])
    finally:
        effects_module._REGISTERED["test: speed"] = known


# -- tables ------------------------------------------------------------------------------------------------------------

DOUBLED: list[int] = []


def doubled(wanted: Sequence[tuple[str, Any]]) -> list[Any]:
    DOUBLED.append(len(wanted))
    return [2 * effect for _, effect in wanted]


def refused_if_odd(party: str, effect: float) -> Any:
    if effect % 2:
        raise (fl.PeerError if effect > 0 else fl.CryptoError)(f"{party}: {effect}")
    return -effect


TABLE: dict[type, Interpreter] = {
    int: doubled,
    float: each(refused_if_odd),
    str: each(lambda party, effect: party + effect),
}


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.one_of(st.integers(-9, 9), st.integers(-9, 9).map(float), st.text())))
)
def test_a_table_gives_what_its_interpreters_give_one_by_one(wanted: list[tuple[str, Any]]) -> None:
    """In the order in which it was asked, whatever is grouped; each type is computed together, once."""
    DOUBLED.clear()
    found = interpret(TABLE, wanted)
    assert len(found) == len(wanted)
    for (party, effect), got in zip(wanted, found, strict=True):
        if isinstance(effect, float) and effect % 2:
            assert type(got) is (fl.PeerError if effect > 0 else fl.CryptoError)
            assert str(got) == f"{party}: {effect}"
        else:
            expected = 2 * effect if isinstance(effect, int) else party + effect if isinstance(effect, str) else -effect
            assert got == expected
    whole = sum(isinstance(effect, int) for _, effect in wanted)
    assert [whole] * bool(whole) == DOUBLED


def test_what_a_table_does_not_have_is_no_effect_there() -> None:
    with pytest.raises(TypeError, match="a yields Fit, which is no effect here: there are int, float, str"):
        interpret(TABLE, [("a", fl.Fit(np.zeros(3, np.float32), None, 1, 0))])
    with pytest.raises(TypeError, match="no effect here: there are Encrypt, Open, Compute"):
        interpret(PLAIN, [("a", fl.Local(speed))])


def test_an_error_that_refuses_nothing_is_raised() -> None:
    """A bug, such as an attribute that is not there, ends the run."""
    with pytest.raises(AttributeError):
        interpret(PLAIN, [("a", fl.Encrypt(None, np.zeros(1)))])
    with pytest.raises(ZeroDivisionError):
        interpret({int: each(lambda party, effect: 1 / effect)}, [("a", 0)])


# -- a federation ------------------------------------------------------------------------------------------------------


@fl.message(src="server", dst="client")
class Describe(fl.Message, frozen=True):
    """Say what you have."""

    round: int
    classes: int


@fl.message(src="client", dst="server")
class Described(fl.Message, frozen=True):
    """Class counts, and the mean sample."""

    counts: fl.Floats
    mean: fl.Floats


class Client(fl.Party, role="client"):
    """Computes two functions of its own data, and trains between them."""

    @fl.on(Describe, answers=Described)
    def describe(self, msg: Describe, src: str) -> fl.Work[Described]:
        counts = yield fl.Local(class_counts, (msg.classes,))
        fitted: fl.Fitted = yield fl.Fit(self.common.initial, self.config.solver(), 1, fl.batch_seed(self, msg.round))
        assert np.isfinite(fitted.weights).all()
        described = yield fl.Local("test: scaled mean", (2.0,))
        return Described(counts, described["mean"].ravel())


class Server(fl.Party, role="server"):
    """Keeps what each client says of its data."""

    class State(msgspec.Struct):
        counts: dict[str, NDArray[Any]] = msgspec.field(default_factory=dict)
        means: dict[str, NDArray[Any]] = msgspec.field(default_factory=dict)

    def __init__(self, own: fl.Own, common: fl.Common, config: fl.LocalTraining) -> None:
        super().__init__(own, common, config)
        self.state, self.classes = self.State(), 10

    def setup(self) -> fl.Steps[None]:
        yield from ()

    def round(self, r: int) -> fl.Steps[Mapping[str, Any]]:
        def fold(name: str, said: Described) -> None:
            self.state.counts[name], self.state.means[name] = said.counts, said.mean

        answers = yield from fl.for_each(dict.fromkeys(self.clients, Describe(r, self.classes)), Described, fold)
        return {"participants": len(answers.got), "asked": len(self.clients)}


@dataclass(frozen=True)
class DescribingConfig(fl.LocalTraining):
    """Those of local training."""


SYSTEM = fl.System(
    name="describing",
    title="Describing",
    citation="none",
    config=DescribingConfig,
    parties=lambda config: {"server": Server, "client": Client},
    models=lambda federation: {c.name: c.common.initial for c in federation.of_role("client")},
    learns={"server": "class counts and means", "client": "nothing"},
)


def test_a_run_whose_clients_describe_their_data() -> None:
    """Against the data themselves; six clients' calls are one batch. A client that refuses is left out."""
    made = build(
        RunConfig("tests.protocol.test_effects:SYSTEM", clients=6, rounds=2, model="linear", partition="shards:2")
    )
    made.set_up()
    BATCHES.clear()
    assert made.round(1)["notes"]["participants"] == 6
    assert BATCHES == [6]
    hub: Any = made.federation.parties["server"]
    for row, name in zip(made.label_counts, made.common.clients, strict=True):
        own = made.effects.data[name]
        np.testing.assert_array_equal(hub.state.counts[name], row)
        np.testing.assert_allclose(hub.state.means[name], 2 * own.x.numpy().mean(axis=0).ravel(), rtol=1e-6)
    (device,) = made.effects.run([("client/0", fl.Local(speed))])
    assert device == 20e9  # of the fleet "uniform"
    hub.classes = 9
    line = made.round(2)
    few = {name for name, row in zip(made.common.clients, made.label_counts, strict=True) if row[9] == 0}
    assert line["notes"]["participants"] == len(few) < 6
    assert line["refused"] == {"client/Describe: a class beyond 9": 6 - len(few)}
    made.close()


def test_a_table_of_one_s_own_starts_from_what_is_there() -> None:
    """A test or study changes one interpreter, and the rest stays."""
    pulled = Pulled({"a": np.ones(4)})
    pulled.table[fl.Evaluate] = each(lambda party, effect: party)
    w = np.zeros(4, np.float32)
    said, fitted, counts = pulled.run(
        [("a", fl.Evaluate(w)), ("a", fl.Fit(w, fl.Sgd(0.5), 1, 0)), ("a", fl.Local(class_counts, (2,)))]
    )
    assert said == "a"
    np.testing.assert_allclose(fitted.weights, 0.5 * np.ones(4))
    np.testing.assert_array_equal(counts, [1, 0])
    own = fl.OwnData(np.zeros((2, 1), np.float32), np.array([0, 1]))
    (lone,) = interpret({fl.Local: locally(lambda party: own)}, [("a", fl.Local(class_counts, (3,)))])
    np.testing.assert_array_equal(lone, [1, 1, 0])
