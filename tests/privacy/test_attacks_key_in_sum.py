"""One client that deviates reads the key that opens a sum; with real CKKS, small keys and a made-up training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from federation import Rig, planted
from pafed_parts import mistrusting, paf, service_key, small_keys

from coterie.crypto import ckks
from coterie.privacy.attacks import key_in_sum
from coterie.privacy.attacks.wrapping import wrap
from coterie.protocol.effects import Encrypt, Fit, Open
from coterie.protocol.errors import CryptoError, PeerError, UserError
from coterie.protocol.interpreters import each
from coterie.systems.pafed.messages import HUB, Train, Update

N = 1024
TARGETS = planted([0, 0, 1, 1, 2, 2], 2 * N + 300, apart=0.1)


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    with small_keys():
        yield


@pytest.fixture(scope="module")
def key() -> Any:
    return ckks.keygen("insecure-1024-deep", allow_insecure=True)


def robbed(targets: np.ndarray = TARGETS, late: int = 0, **options: Any) -> tuple[Rig, key_in_sum.KeyThief]:
    """A federation whose first client is a thief. Rings of 1,024 spread the others' changes over fewer coefficients
    than those of 8,192, and so they hide more of K s: hence a larger K than the default.
    """
    run = paf(targets, **{"emulated": False, **options})
    thief = key_in_sum.KeyThief(run.common.spec, share=4, late=late)
    wrap(run.party("client/0"), thief.between)
    run.links.delays.least["client/0"] = late
    return run, thief


# -- the parts ---------------------------------------------------------------------------------------------------------


def test_the_truth_is_the_secret_polynomial(key: Any) -> None:
    truth = key_in_sum.key_coefficients(key)
    assert set(truth) == {-1, 0, 1}
    limbs = key.parameters.levels + 1
    np.testing.assert_array_equal(
        key.public.arrays.ring.transformed(truth[None], limbs - 1)[0], key.arrays.secret[:limbs]
    )


def test_a_forged_vector_looks_fresh_and_opens_to_the_key_in_one_place(key: Any) -> None:
    values = np.random.default_rng(1).normal(0, 0.01, 3 * N)
    vector = key_in_sum.forged(key.public.encrypt(values), 1)
    fresh = key.public.from_bytes(vector.to_bytes(), 3 * N, terms=1, blinded=0, form=key.public.fresh)
    added = key.decrypt(fresh) - values
    np.testing.assert_allclose(added[[*range(N), *range(2 * N, 3 * N)]], 0, atol=1e-5)
    np.testing.assert_allclose(
        key_in_sum.LEAST * key_in_sum.coefficients(added[N : 2 * N], key.parameters),
        key_in_sum.key_coefficients(key),
        atol=1e-3,
    )


@pytest.mark.parametrize("factor", [1.0, 0.08, -0.3])
def test_the_key_is_read_whatever_the_factor_and_the_mean(key: Any, factor: float) -> None:
    """Noise of a ninth of the unit; a mean that spoils three coefficients; K s may come in negative, too."""
    truth, public = key_in_sum.key_coefficients(key), key.public
    unit = factor / key_in_sum.LEAST
    added = key.decrypt(key_in_sum.forged(public.encrypt(np.zeros(N)), 0)) * factor
    noise = np.random.default_rng(2).normal(0, abs(unit) / 9 * np.sqrt(N / 2), N)
    guess, found = key_in_sum.read_key(added + noise + 0.9 * abs(unit), public)
    np.testing.assert_array_equal(guess, truth)
    update = np.random.default_rng(3).normal(0, 0.1, 2 * N)
    np.testing.assert_allclose(found.decrypt(public.encrypt(update)), update, atol=1e-5)


def test_what_holds_no_key_gives_none(key: Any) -> None:
    guess, found = key_in_sum.read_key(np.random.default_rng(4).normal(size=N), key.public)
    assert found is None
    agreement = key_in_sum.key_agreement(guess, key_in_sum.key_coefficients(key))
    assert abs(agreement.value - agreement.chance) < 0.1
    assert key_in_sum.read_key(np.zeros(N), key.public)[1] is None


def test_the_public_key_tells_a_right_guess_from_one_that_is_wrong_once(key: Any) -> None:
    truth = key_in_sum.key_coefficients(key)
    assert key_in_sum.rebuilt(truth, key.public) is not None
    wrong = truth.copy()
    wrong[5] += 1
    assert key_in_sum.rebuilt(wrong, key.public) is None
    assert key_in_sum.key_agreement(wrong, truth).value == 1 - 1 / N


# -- a federation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"delta": 0.0, "participation": 0.5, "seed": 3},
        pytest.param({"delta": 0.0}, marks=pytest.mark.long),
        pytest.param({"delta": 0.0, "local": "sgd", "clip": 5.0}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_one_client_alone_gets_the_helpers_key(settings: dict[str, Any]) -> None:
    """As soon as it is asked again, with nothing refused; and with it whoever has the others' updates opens them."""
    run, thief = robbed(**settings)
    asked = []
    for r in range(1, 6):
        notes = run.round(r)
        asked += [r] if any(seen.kind == "Train" and seen.round == r for seen in run.view("client/0").seen) else []
        assert "skipped" not in notes
        assert not run.refused
    assert thief.forged_in == asked[:1]
    assert thief.round == asked[1]
    key, truth = thief.key, service_key(run)
    assert key is not None
    np.testing.assert_array_equal(key_in_sum.key_coefficients(key), key_in_sum.key_coefficients(truth))
    updates = [(seen.src, truth.public.from_bytes(update.cipher)) for seen, update in run.view(HUB).messages(Update)]
    others = [vector for name, vector in updates if name != "client/0"]
    assert len({name for name, _ in updates}) == 6
    for vector in others:
        np.testing.assert_array_equal(key.decrypt(vector), truth.decrypt(vector))
    for vector in [vector for name, vector in updates if name == "client/0"][1:]:  # it is honest again
        assert np.linalg.norm(truth.decrypt(vector)) <= max(1, run.config.clip) + 1e-3


def test_its_update_may_come_late() -> None:
    """By its own choice. (Without algorithm 4, for whose products what is forged in a small ring may be too long.)"""
    run, thief = robbed(late=1, delta=0.3, delay="uniform:3", seed=0, project="none")
    delays = run.links.delays
    assert not {"client/0", "client/3"} & {*delays.of(1), *delays.of(2)}
    run.rounds(3)
    came = [(seen.src, update.round) for seen, update in run.view(HUB).messages(Update)]
    assert came.index(("client/0", 1)) > came.index(("client/3", 1))
    assert ("client/3", 2) in came[: came.index(("client/0", 2))]
    assert (thief.forged_in, thief.round) == ([1], 3)  # in round 2 it waits
    np.testing.assert_array_equal(thief.guess, key_in_sum.key_coefficients(service_key(run)))


def test_a_thief_that_reads_nothing_puts_in_more() -> None:
    """Up to a bound; here its update is lost on the way."""
    run, _ = robbed(delta=0.0)
    thief = key_in_sum.KeyThief(run.common.spec)
    weights = np.random.default_rng(0)
    shares = []
    for r in range(1, 6):
        train = Train(r, b"", None, b"")
        thief.between[Fit](train, Fit(weights.normal(size=2 * N).astype(np.float32), None, 1, 0), None)
        shares.append(thief.share)
        effect = Encrypt(service_key(run).public, np.ones(2 * N))
        thief.between[Encrypt](train, effect, service_key(run).public.encrypt(effect.values))
    assert shares == [256, 128, 64, 64, 64]
    assert (thief.forged_in, thief.key) == ([1, 2, 3, 4, 5], None)


def test_where_the_attack_does_not_apply_it_says_so() -> None:
    run, _ = robbed(TARGETS[:, : N - 1], delta=0.0)
    with pytest.raises(UserError, match="a model of 1023 weights fills no ciphertext of 1024"):
        run.round(1)
    run, _ = robbed(delta=0.0, emulated=True)
    with pytest.raises(UserError, match="run it with --crypto real"):
        run.round(1)


# -- wrapping ----------------------------------------------------------------------------------------------------------


def test_a_wrapped_party_that_changes_nothing_is_the_same() -> None:
    """Under emulated keys, where everything repeats; refused messages and failed effects pass through as well."""
    honest, wrapped = (paf(TARGETS, seed=2) for _ in range(2))
    kinds = []

    def watch(message: Any, effect: Any, result: Any) -> Any:
        kinds.append(type(effect))
        return result

    for name in wrapped.common.clients:
        wrap(wrapped.party(name), dict.fromkeys((Fit, Open, Encrypt), watch))
    assert honest.rounds(4) == wrapped.rounds(4)
    np.testing.assert_array_equal(honest.models(), wrapped.models())
    assert {Fit, Open, Encrypt} == set(kinds)
    assert wrapped.party("client/0").role == "client"
    for run in (honest, wrapped):
        mistrusting(run.party("client/1"), HUB)
        run.round(5)
    assert honest.refused == wrapped.refused != {}


@pytest.mark.parametrize("error", [PeerError("refused"), CryptoError("misused")])
def test_an_effect_that_fails_is_the_handlers_concern(error: Exception) -> None:
    run, thief = robbed(delta=0.0)
    run.round(1)

    def fail(party: str, effect: Encrypt) -> Any:
        if party == "client/0":
            raise error
        return effect.key.encrypt(effect.values)

    run.transport.effects.table[Encrypt] = each(fail)
    assert run.round(2)["participants"] == 5
    assert list(run.refused) == [f"client/Train: {error}"]
    assert thief.round == 2
