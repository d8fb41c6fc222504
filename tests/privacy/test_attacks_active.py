"""Clients that misbehave: what each kind sends, worked out by hand; who attacks; and that all else is honest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from federation import Pulled, Rig, planted, rig, spec_of
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import coterie.method as fl
from coterie.aggregation.contribution import contributed, contribution
from coterie.baselines import fedavg, fedem, scaffold
from coterie.privacy.attacks.active import ATTACKERS, KINDS, attacked, drawn, parse
from coterie.privacy.attacks.active.deviations import cosine, instead_of, moved, noisy, within
from coterie.privacy.attacks.active.samples import TARGET, Poison, backdoored, flipped, poisoned_fit, triggered
from coterie.runs.parties import dumped, restore
from coterie.training.models import build

SIZE = 12
TARGETS = planted([0, 0, 1, 1], SIZE)
LIAR, HONEST = "client/1", "client/0"
SCALING = attacked(fedavg.SYSTEM, parse("scale:3"), (LIAR,))
ADAPTING = attacked(fedavg.SYSTEM, parse("adaptive"), (LIAR,))
vectors = arrays(np.float32, 6, elements=st.floats(-4, 4, width=16))


# -- names, strengths, attackers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_parsed_with_its_usual_strength_and_with_another(name: str) -> None:
    assert parse(name).strength == KINDS[name].strength
    assert str(parse(f"{name}:0.5")) == f"{name}:0.5"
    assert parse(str(parse(name))) == parse(name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("label-flip", "did you mean 'label_flip'"),
        ("", "unknown attack ''"),
        ("scale:", "'' is not a number; write scale:10"),
        ("scale:ten", "'ten' is not a number"),
        ("scale:0", "must be above 0 and at most 1e"),
        ("scale:-1", "must be above 0"),
        ("scale:nan", "must be above 0"),
        ("noise:inf", "must be above 0"),
        ("scale:1e7", "at most 1e"),
        ("label_flip:1.5", "share of its labels that are wrong.* at most 1$"),
        ("scale:1", "what an honest client does"),
    ],
)
def test_nonsense_is_refused(text: str, said: str) -> None:
    with pytest.raises(fl.UserError, match=said):
        parse(text)


def test_attackers_follow_the_seed_alone_and_are_as_many_as_was_said() -> None:
    clients = [f"client/{i}" for i in range(20)]
    found = drawn(0.25, clients, 3)
    assert len(found) == 5
    assert found == drawn(0.25, clients, 3) != drawn(0.25, clients, 4)
    assert list(found) == sorted(found, key=clients.index)
    counts = np.zeros(20)
    for seed in range(400):
        counts[[clients.index(name) for name in drawn(0.25, clients, seed)]] += 1
    assert (abs(counts - 100) < 5 * np.sqrt(400 * 0.25 * 0.75)).all()  # nobody is drawn more often


@pytest.mark.parametrize(("share", "said"), [(0.02, "is nobody"), (0.98, "is everybody")])
def test_a_share_without_attackers_or_without_honest_clients_is_refused(share: float, said: str) -> None:
    with pytest.raises(fl.UserError, match=said):
        drawn(share, [f"client/{i}" for i in range(10)], 0)
    assert 0 < ATTACKERS < 1


# -- vectors -----------------------------------------------------------------------------------------------------------


@example(np.ones(6, np.float32), -np.ones(6, np.float32), 0.0, 1.0, np.zeros((30, 6)))  # a cone that is a half-space
@given(vectors, vectors, st.floats(0, 1), st.floats(0.1, 5), arrays(np.float64, (30, 6), elements=st.floats(-1, 1)))
def test_within_the_cone_nothing_points_more_towards_the_aim(
    towards: np.ndarray, reference: np.ndarray, least: float, length: float, others: np.ndarray
) -> None:
    found = within(towards, reference, least, length)
    if not reference.any() and not towards.any():
        assert not found.any()
        return
    assert np.linalg.norm(found) == pytest.approx(length)
    if not reference.any() or not towards.any():
        assert cosine(found, towards if towards.any() else reference) == pytest.approx(1)
        return
    assert cosine(found, reference) >= least - 1e-6
    for other in np.concatenate([others, [towards, reference]]):
        if cosine(other, reference) >= least:
            assert cosine(other, towards) <= cosine(found, towards) + 1e-6


def test_the_opposite_of_the_reference_ends_on_the_edge_of_the_cone() -> None:
    up = np.array([0, 2.0])
    np.testing.assert_allclose(np.abs(within(-up, up, 0.5, 3.0)), [3.0 * 0.75**0.5, 1.5])
    np.testing.assert_allclose(within(-up, up, 1.0, 3.0), [0, 3.0])
    np.testing.assert_allclose(within(-up[1:], up[1:], 0.5, 3.0), [3.0])  # a line has no edge


@given(vectors, vectors, st.floats(-20, 20, width=16))
def test_a_step_is_made_so_many_times_as_long(start: np.ndarray, weights: np.ndarray, factor: float) -> None:
    np.testing.assert_allclose(moved(start, weights, factor) - start, factor * (weights - start), atol=1e-3)


def test_noise_has_the_stated_deviation() -> None:
    found = noisy(np.ones(20_000, np.float32), 0.1, np.random.default_rng(0))
    assert found.dtype == np.float32
    assert (found - 1).std() == pytest.approx(0.1, rel=0.02)
    assert found.mean() == pytest.approx(1, abs=0.005)


# -- samples -----------------------------------------------------------------------------------------------------------


def test_every_flipped_label_is_the_next_class() -> None:
    y = torch.arange(10).repeat(10)
    assert (flipped(y, 10, 1.0, 0) == (y + 1) % 10).all()
    half = flipped(y, 10, 0.5, 0)
    assert int((half != y).sum()) == 50
    assert (half[half != y] == ((y + 1) % 10)[half != y]).all()
    assert (flipped(y, 10, 0.5, 0) == half).all()
    assert int((flipped(y[:3], 10, 0.01, 0) != y[:3]).sum()) == 1  # at least one


@pytest.mark.parametrize(
    ("shape", "side"), [((1, 8, 8), 2), ((1, 28, 28), 3), ((3, 32, 32), 4), ((1, 2, 2, 64, 64), 4)]
)
def test_a_trigger_is_a_square_in_the_corner_of_every_channel(shape: tuple[int, ...], side: int) -> None:
    x = torch.zeros(5, *shape)
    found = triggered(x, 3.0)
    assert not x.any()
    assert (found[..., -side:, -side:] == 3).all()
    assert float(found.sum()) == 3.0 * 5 * side**2 * np.prod(shape[:-2])


def test_the_trigger_of_a_table_is_its_last_features() -> None:
    assert triggered(torch.zeros(1, 16), 1.0).tolist() == [[0.0] * 14 + [1.0] * 2]
    assert triggered(torch.zeros(1, 1), 1.0).tolist() == [[1.0]]


def test_half_of_the_samples_get_the_trigger_and_the_target() -> None:
    x, y = torch.zeros(40, 1, 8, 8), torch.full((40,), 5)
    poisoned_x, poisoned_y = backdoored(x, y, 3.0, 1)
    marked = poisoned_x[:, 0, -1, -1] == 3
    assert int(marked.sum()) == 20
    assert (poisoned_y[marked] == TARGET).all()
    assert (poisoned_y[~marked] == 5).all()
    assert not x.any()
    assert (y == 5).all()


def own_data(seed: int = 0, n: int = 30) -> fl.OwnData:
    source = np.random.default_rng(seed)
    model = build("linear", (1, 4, 4), 3)
    x, y = source.normal(size=(n, 1, 4, 4)).astype(np.float32), source.integers(0, 3, n)
    for values in (x, y):
        values.setflags(write=False)
    return fl.OwnData(x, y, model)


def test_a_poisoned_training_is_the_training_on_poisoned_samples() -> None:
    """Against the engine on labels that are changed by hand; alone and together; the honest samples stay."""
    from coterie.training.engine import fit_many
    from coterie.training.jobs import Job

    one, two = own_data(0), own_data(1, 20)
    fit = fl.Fit(one.model.initial(0), fl.Sgd(0.1, 10), 2, 5)
    poison = Poison("labels", 1.0, 0.0, 3)
    alone = poisoned_fit(one, poison, fit)
    labels = torch.from_numpy((one.y + 1) % 3)
    (expected,) = fit_many(one.model, [Job(fit.weights, fit.solver, 2, 5, torch.from_numpy(one.x.copy()), labels)])
    np.testing.assert_array_equal(alone.weights, expected.weights)
    assert alone.samples == 30
    together = poisoned_fit.many([one, two], [(poison, fit), (poison, fit)])
    np.testing.assert_allclose(together[0].weights, alone.weights, atol=1e-6)
    diverging = replace(fit, solver=fl.Sgd(1e30, 10))
    with pytest.raises(fl.PeerError, match="poisoned samples diverged"):
        poisoned_fit(one, poison, diverging)
    with pytest.raises(fl.PeerError, match="poisoned samples diverged"):
        poisoned_fit.many([one, two], [(poison, fit), (poison, diverging)])


# -- deviations --------------------------------------------------------------------------------------------------------


def rounds_of(system: fl.System, rounds: int = 3, **settings: Any) -> tuple[Rig, list[dict[str, fl.Update]]]:
    """A run, and by client the updates that the server received in each round."""
    made = rig(system, TARGETS, delta=0.0, **settings)
    made.rounds(rounds)
    seen = made.view("server").seen
    return made, [{one.src: one.message for one in seen if one.round == r} for r in range(1, rounds + 1)]


def test_a_scaling_client_sends_its_honest_step_so_many_times_and_the_others_are_honest() -> None:
    _, honest = rounds_of(fedavg.SYSTEM, 1)
    made, updates = rounds_of(SCALING, 1)
    start = made.common.initial
    np.testing.assert_allclose(
        updates[0][LIAR].weights - start, 3 * (honest[0][LIAR].weights - start), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_array_equal(updates[0][HONEST].weights, honest[0][HONEST].weights)


def test_a_sign_flipping_client_goes_backwards_and_noise_repeats_by_round() -> None:
    _, honest = rounds_of(fedavg.SYSTEM, 1)
    made, updates = rounds_of(attacked(fedavg.SYSTEM, parse("sign_flip:2"), (LIAR,)), 1)
    start = made.common.initial
    np.testing.assert_allclose(
        updates[0][LIAR].weights - start, -2 * (honest[0][LIAR].weights - start), rtol=1e-4, atol=1e-6
    )
    found = [rounds_of(attacked(fedavg.SYSTEM, parse("noise:0.5"), (LIAR,)), 2)[1] for _ in range(2)]
    noise = [found[0][r][LIAR].weights - honest[0][LIAR].weights for r in (0, 1)]
    assert 0.1 < noise[0].std() < 1.5
    np.testing.assert_array_equal(found[0][1][LIAR].weights, found[1][1][LIAR].weights)
    assert not np.allclose(noise[0], noise[1])


def test_the_solvers_vectors_move_as_the_weights_do() -> None:
    """SCAFFOLD's control variate: a client that steps three times as far changes it three times as much."""
    _, honest = rounds_of(scaffold.SYSTEM, 1)
    _, updates = rounds_of(attacked(scaffold.SYSTEM, parse("scale:3"), (LIAR,)), 1)
    np.testing.assert_allclose(updates[0][LIAR].control, 3 * honest[0][LIAR].control, rtol=1e-4, atol=1e-5)


def test_an_adapting_client_keeps_to_the_length_and_the_angle_of_an_honest_one() -> None:
    """By hand: it is honest first, and then as far towards wrong labels as the cone around the last step lets it."""
    made, updates = rounds_of(ADAPTING, 4)
    start, last = made.common.initial, None
    for got in updates:
        fit = fl.Fit(start, made.config.solver(), made.owns[LIAR].epochs, 0)
        u, v = (Pulled({LIAR: sign * TARGETS[1]}).fit(LIAR, fit).weights - start for sign in (1, -1))
        sent = got[LIAR].weights - start
        if last is None:
            np.testing.assert_allclose(sent, u, atol=1e-6)
        else:
            bound = max(0.0, cosine(u, last))
            np.testing.assert_allclose(sent, within(v - u, last, bound, float(np.linalg.norm(u))), atol=1e-5)
            assert np.linalg.norm(sent) == pytest.approx(np.linalg.norm(u), rel=1e-4)
            assert cosine(sent, last) >= bound - 1e-4
            assert cosine(sent, v - u) > cosine(u, v - u)
        mean = np.mean([update.weights for update in got.values()], axis=0, dtype=np.float64).astype(np.float32)
        start, last = mean, mean - start


def test_what_it_remembers_is_in_its_bytes() -> None:
    made, _ = rounds_of(ADAPTING, 2)
    party: Any = made.party(LIAR)
    received = party.state.received["training"]
    assert received.round == 2
    assert len(received.now) == len(received.before) == 1
    twin: Any = ADAPTING.make(made.owns[LIAR], made.common, made.config)
    assert twin.state.received == {}
    restore(twin, dumped(party))
    np.testing.assert_array_equal(twin.state.received["training"].now[0], received.now[0])
    assert not hasattr(made.party(HONEST).state, "received")


def test_a_client_of_several_models_takes_each_for_what_became_of_it() -> None:
    made, _ = rounds_of(attacked(fedem.SYSTEM, parse("adaptive"), (LIAR,)), 3, components=2)
    received = made.party(LIAR).state.received["training"]
    assert len(received.now) == len(received.before) == 2


def test_buffers_stay_as_they_are_trained() -> None:
    """A running variance below 0 would be refused."""
    parts = (
        fl.Part("weight", (4,), "float32", "parameter", "shared", 0),
        fl.Part("running_var", (2,), "float32", "buffer", "shared", 4),
    )
    party = bare(fl.ModelSpec(parts, 1.0, outputs=2))
    start, trained = np.ones(6, np.float32), np.full(6, 2, np.float32)
    for text in ("sign_flip:3", "noise:1", "scale:9"):
        work = instead_of(KINDS[parse(text).kind].deviation(parse(text)))[fl.Fit](
            party, fl.Train(1, b"", start), fl.Fit(start, fl.Sgd(0.1, 1), 1, 0)
        )
        next(work)
        with pytest.raises(StopIteration) as done:
            work.send(fl.Fitted(trained, 1, 1, 0.0))
        sent = done.value.value.weights
        np.testing.assert_array_equal(sent[4:], 2)
        assert (sent[:4] != 2).all()


def bare(spec: fl.ModelSpec) -> fl.Party:
    common = fl.Common(
        fl.Roster(b"", (), b""), ("client/0",), spec, np.zeros((1, spec.size), np.float32), "paper", True
    )
    return fl.AveragingClient(fl.Own("client/0", fl.Randomness(0, True), samples=7), common, fl.Averaging())


# -- a leader's contribution -------------------------------------------------------------------------------------------


class Leading(fl.AveragingClient, role="client"):
    """Contributes a model of twos."""

    @fl.on(fl.Train)
    def train(self, msg: fl.Train, src: str) -> fl.Work[fl.Update]:
        found = yield from contributed(msg.weights, np.full(6, 2, np.float32))
        return fl.Update(msg.round, msg.spec, found, 1)


LEADING = replace(fedavg.SYSTEM, parties=lambda config: {"server": fl.Server, "client": Leading})


def led(text: str | None, rounds: int = 1) -> tuple[list[np.ndarray], list[Any]]:
    """What a leader contributes from a start of [r / 2, ...] in rounds from 0, and the effects on the way.

    A poisoned training gives the opposite of what it starts from.
    """
    system = LEADING if text is None else attacked(LEADING, parse(text), ("client/0",))
    entries = tuple(fl.Entry(name, name.partition("/")[0], b"", b"") for name in ("server", "client/0"))
    common = fl.Common(
        fl.Roster(b"", entries, b""), ("client/0",), spec_of(6), np.zeros((1, 6), np.float32), "paper", True
    )
    party = system.make(fl.Own("client/0", fl.Randomness(0, True), samples=7), common, fl.Averaging())
    found, effects = [], []
    for r in range(rounds):
        work = party.handlers[fl.Train].run(party, fl.Train(r + 1, b"", np.full(6, r / 2, np.float32)), "server")
        result = None
        try:
            while True:
                effects.append(effect := work.send(result))
                result = fl.Fitted(-effect.arguments[1].weights, 1, 1, 0.0) if isinstance(effect, fl.Local) else None
                if isinstance(effect, fl.Compute):
                    result = effect.function(*effect.arguments)
        except StopIteration as done:
            found.append(done.value.weights)
    return found, effects


def test_an_honest_leader_contributes_what_it_has() -> None:
    (found,), effects = led(None)
    np.testing.assert_array_equal(found, 2)
    assert [effect.function for effect in effects] == [contribution]


def test_a_leader_that_attacks_contributes_what_a_client_would_send() -> None:
    for text, expected in (("scale:3", 6), ("sign_flip:2", -4), ("scale:0.5", 1)):
        (found,), effects = led(text)
        np.testing.assert_allclose(found, expected)
        assert not effects  # nothing is trained, and no honest contribution is made
    assert not np.allclose(led("noise:1")[0][0], 2)


@pytest.mark.parametrize("text", ["label_flip", "backdoor"])
def test_a_leader_trains_its_clusters_model_on_poisoned_samples(text: str) -> None:
    (found,), (effect,) = led(text)
    assert isinstance(effect, fl.Local)
    assert effect.name == poisoned_fit.name
    np.testing.assert_array_equal(effect.arguments[1].weights, 2)
    np.testing.assert_array_equal(found, -2)


def test_a_leader_adapts_to_how_the_global_model_moved() -> None:
    found, effects = led("adaptive", rounds=2)
    np.testing.assert_array_equal(found[0], 2)  # honest in its first round
    start, step = 0.5, found[1] - 0.5
    assert len(effects) == 2
    assert np.linalg.norm(step) == pytest.approx(np.linalg.norm(np.full(6, 2 - start)), rel=1e-5)
    assert cosine(step, np.ones(6)) == pytest.approx(1)  # u is along g, so at the cosine of u nothing else is left


# -- wrapping ----------------------------------------------------------------------------------------------------------


def test_a_refused_effect_of_an_attacker_is_its_handlers_concern() -> None:
    """An attacker whose poisoned training diverges sends nothing, and the round goes on."""
    made = rig(attacked(fedavg.SYSTEM, parse("label_flip"), (LIAR,)), TARGETS, delta=0.0)
    usual = made.transport.effects.table[fl.Local]

    def refusing(wanted: Any) -> list[Any]:
        return [fl.PeerError("diverged") if p == LIAR else usual([(p, e)])[0] for p, e in wanted]

    made.transport.effects.table[fl.Local] = refusing
    assert made.round(1)["participants"] == 3
    assert list(made.refused) == ["client/Train: diverged"]


def test_other_effects_pass_through() -> None:
    act = instead_of(lambda *_: pytest.fail("no training here"))[fl.Compute]
    work = act(bare(spec_of(6)), fl.Train(1, b"", np.zeros(1, np.float32)), fl.Compute(max, (1, 2)))
    assert next(work).function is max
    with pytest.raises(StopIteration) as done:
        work.send(2)
    assert done.value.value == 2
