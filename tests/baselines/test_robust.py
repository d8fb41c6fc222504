"""The robust baselines: a round is the rule on the clients' changes, whatever order they come in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from federation import Pulled, Steady, planted, public_target, rig
from matrix import few

import coterie.method as fl
from coterie.aggregation import robust
from coterie.baselines.robust import SYSTEMS, combined
from coterie.privacy.attacks.active import attacked, parse
from coterie.protocol.interpreters import each
from coterie.runs import RunConfig, build, registry

SIZE = 12
TARGETS = planted([0] * 7, SIZE)
RULES: dict[str, Any] = {
    "krum": lambda u: robust.krum(u, 1),  # a quarter of seven, rounded down
    "multi_krum": lambda u: robust.multi_krum(u, 1),
    "trimmed_mean": lambda u: robust.trimmed_mean(u, 1),
    "median": robust.median,
    "flame": lambda u: robust.flame(u, np.zeros(SIZE)),
}
QUIET = {"flame": {"noise": 0.0}}


def test_all_are_known_by_name() -> None:
    assert set(SYSTEMS) == {*RULES, "fltrust"}
    for name, system in SYSTEMS.items():
        assert registry.get(name) is system


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_round_is_the_rule_on_the_changes(name: str) -> None:
    made = rig(SYSTEMS[name], TARGETS, **QUIET.get(name, {}))
    start = made.common.initial
    notes = made.round(1)
    updates = {seen.src: seen.message.weights for seen in made.view("server").seen}
    changes = np.stack([updates[c].astype(float) - start for c in made.common.clients])
    if name == "fltrust":
        effects = Pulled({"server": public_target(TARGETS)})
        own = effects.fit("server", fl.Fit(start, made.config.solver(), made.config.max_epochs, 0)).weights - start
        found = robust.fltrust(changes, own)
    else:
        found = RULES[name](changes)
    np.testing.assert_allclose(made.hub.state.weights, start + found.mean, rtol=1e-5, atol=1e-6)
    assert list(notes["influence"]) == list(made.common.clients)
    np.testing.assert_allclose(list(notes["influence"].values()), found.influence, atol=1e-5)
    assert notes["flagged"] == [c for c, is_one in zip(made.common.clients, found.flagged, strict=True) if is_one]


@pytest.mark.parametrize("name", SYSTEMS)
def test_who_answers_first_does_not_matter(name: str) -> None:
    alike = rig(SYSTEMS[name], TARGETS)
    slow = rig(SYSTEMS[name], TARGETS, links=Steady(slow={"client/0": 9.0, "client/3": 5.0}))
    assert [alike.round(r) for r in (1, 2)] == [slow.round(r) for r in (1, 2)]
    np.testing.assert_array_equal(alike.models(), slow.models())


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_servers_step_is_a_part_of_the_way(name: str) -> None:
    whole, half = (rig(SYSTEMS[name], TARGETS, server_lr=step) for step in (1.0, 0.5))
    start = whole.common.initial
    whole.round(1)
    half.round(1)
    np.testing.assert_allclose(half.hub.state.weights - start, (whole.hub.state.weights - start) / 2, atol=1e-6)


@pytest.mark.parametrize("name", few(SYSTEMS, ["krum", "fltrust"]))
@pytest.mark.parametrize("text", few(["scale:100", "sign_flip:50"], ["scale:100"]))
def test_what_ruins_a_mean_does_not_ruin_these(name: str, text: str) -> None:
    def error(system: Any) -> float:
        made = rig(attacked(system, parse(text), ("client/2",)), TARGETS)
        made.rounds(6)
        return float(np.linalg.norm(made.models()[0] - TARGETS.mean(axis=0)))

    assert error(SYSTEMS[name]) < 0.5 < error(registry.get("fedavg"))


@pytest.mark.parametrize(("clients", "name"), [(2, "krum"), (2, "multi_krum")])
def test_a_round_with_too_few_updates_is_skipped_with_the_reason(clients: int, name: str) -> None:
    made = rig(SYSTEMS[name], TARGETS[:clients])
    notes = made.round(1)
    assert "at least 3 updates, not 2" in notes["skipped"]
    np.testing.assert_array_equal(made.hub.state.weights, made.common.initial)
    assert "influence" not in notes


def test_fltrust_without_an_update_of_its_own_skips_the_round() -> None:
    made = rig(SYSTEMS["fltrust"], TARGETS)
    usual = made.transport.effects

    def fit(party: str, effect: fl.Fit) -> Any:
        if party == "server":
            raise fl.PeerError("its training diverged")
        return usual.fit(party, effect)

    usual.table[fl.Fit] = each(fit)
    assert made.round(1)["skipped"] == "its training diverged"
    np.testing.assert_array_equal(made.hub.state.weights, made.common.initial)


def test_fltrust_needs_public_samples() -> None:
    with pytest.raises(fl.UserError, match="give it some"):
        build(RunConfig("fltrust", clients=4, public=0.0))


# -- buffers -----------------------------------------------------------------------------------------------------------

SPEC = fl.ModelSpec(
    (
        fl.Part("w", (3,), "float32", "parameter", "shared", 0),
        fl.Part("running_var", (2,), "float32", "buffer", "shared", 3),
    )
)


@pytest.mark.parametrize("name", [*RULES, "fltrust"])
def test_running_statistics_of_one_liar_do_not_move_the_models(name: str) -> None:
    """A client with honest parameters and huge running statistics is no outlier to rules that compare parameters."""
    models = np.ones((5, 5), np.float32)
    models[:, :3] += np.random.default_rng(0).normal(0, 0.1, (5, 3)).astype(np.float32)
    models[0, :3], models[0, 3:] = models[1:, :3].mean(axis=0), 2.0**39
    rules = {
        **RULES,
        "flame": lambda u: robust.flame(u, np.zeros(5)),
        "fltrust": lambda u: robust.fltrust(u, np.array([1.0, 1, 1, 0, 0])),
        "trimmed_mean": lambda u: robust.trimmed_mean(u, 0),  # even if it trims nothing
    }
    by_coordinate = name in ("trimmed_mean", "median")
    found, new = combined(SPEC, np.zeros(5, np.float32), models, rules[name], 1.0, by_coordinate=by_coordinate)
    assert found.influence[0] > 0
    np.testing.assert_array_equal(new[3:], 1)


def test_a_rule_by_coordinate_serves_for_buffers_too() -> None:
    models = np.ones((5, 5), np.float32)
    models[0] = 100.0
    _, new = combined(SPEC, np.zeros(5, np.float32), models, robust.median, 3.0, by_coordinate=True)
    np.testing.assert_allclose(new, [3, 3, 3, 1, 1])  # parameters go three times as far, buffers to the mean at most


def test_without_trust_nothing_moves() -> None:
    models = -np.ones((3, 5), np.float32)
    found, new = combined(
        SPEC, np.zeros(5, np.float32), models, lambda u: robust.fltrust(u, np.array([1.0, 1, 1, 0, 0])), 1.0
    )
    assert found.flagged.all()
    np.testing.assert_array_equal(new, 0)


def test_flames_noise_follows_the_changes_and_their_median_length() -> None:
    """Of two runs that differ in lambda alone the models differ by the noise of the first, of its stated size."""
    size = 3000
    targets = planted([0] * 7, size)
    quiet, noisy, again = (rig(SYSTEMS["flame"], targets, noise=noise) for noise in (0.0, 0.1, 0.1))
    start = quiet.common.initial
    for made in (quiet, noisy, again):
        made.round(1)
    noise = noisy.hub.state.weights - quiet.hub.state.weights
    median = np.median([np.linalg.norm(seen.message.weights - start) for seen in quiet.view("server").seen])
    assert np.std(noise) == pytest.approx(0.1 * median, rel=0.05)
    np.testing.assert_array_equal(noisy.hub.state.weights, again.hub.state.weights)
