"""Settings that could never work are refused when the federation is built; keys are given once."""

import numpy as np
import pytest
from federation import planted, rig

from coterie.crypto.packing import RANDOMNESS, Lanes
from coterie.crypto.paillier import keygen as paillier_keygen
from coterie.protocol.errors import UserError
from coterie.runs import RunConfig, build
from coterie.systems.fedcaprivacy import SYSTEM
from coterie.systems.fedcaprivacy.config import FedCAPrivacyConfig


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"settings": {"min_participants": 5}}, "min_participants is 5"),
        ({"settings": {"participation": 0.25, "min_participants": 2}}, "min_participants is 2"),
        ({"mode": "hardened", "settings": {"min_cluster": 9}}, "min_cluster is 9"),
    ],
)
def test_a_round_that_could_never_be_complete_is_refused_before_it_starts(options, named):
    with pytest.raises(UserError, match=named):
        build(RunConfig("fedcaprivacy", clients=4, crypto="emulated", **options))


UNUSED = [
    ("paper", {"hardening": "rotation"}, "hardening=rotation has no effect with mode paper: leave it out, or change"),
    ("literal", {"hardening": "rotation"}, "hardening=rotation has no effect with mode literal"),
    ("paper", {"sketch_dim": 8}, "sketch_dim=8 has no effect with mode paper"),
    ("paper", {"min_cluster": 4}, "min_cluster=4 has no effect with mode paper"),
    ("literal", {"min_cluster": 4}, "min_cluster=4 has no effect with mode literal"),
    (
        "hardened",
        {"descriptor": "model", "hardening": "rotation", "sketch_dim": 8},
        "sketch_dim=8 has no effect with hardening=rotation",
    ),
    ("hardened", {"hardening": "rotation"}, "hardening=rotation has no effect with descriptor=signature: leave it out"),
    ("hardened", {"schedule": "always"}, "schedule=always has no effect with descriptor=signature"),
    ("paper", {"schedule": "always", "alpha": 0.5}, "alpha=0.5 has no effect with schedule=always"),
    (
        "hardened",
        {"descriptor": "model", "schedule": "every:5", "alpha": 0.5},
        "alpha=0.5 has no effect with schedule=every:5",
    ),
]


@pytest.mark.parametrize(("mode", "settings", "named"), UNUSED)
def test_settings_that_mean_nothing_beside_others_are_refused(mode, settings, named):
    """Who asks for a rotation and forgets the mode would otherwise show every distance as it is."""
    with pytest.raises(UserError, match=named):
        build(RunConfig("fedcaprivacy", clients=4, crypto="emulated", mode=mode, settings=settings))


@pytest.mark.parametrize(
    "wrong",
    [
        {"clusters": 0},
        {"clusters": "many"},
        {"gamma": -1.0},
        {"gamma": float("nan")},
        {"gamma": "mean"},
        {"schedule": "sometimes"},
        {"alpha": -1.0},
        {"guard_bits": 60},
        {"hardening": "none"},
        {"max_age_s": 0.0},
        {"max_ahead_s": -1.0},
        {"min_participants": 0},
        {"sketch_dim": 0},
    ],
)
def test_impossible_settings_are_the_callers_mistakes(wrong):
    with pytest.raises(UserError, match="bits" if "guard_bits" in wrong else next(iter(wrong))):
        FedCAPrivacyConfig(**wrong)


@pytest.mark.parametrize("randomness", ["short", "full"])
def test_the_plain_randomness_can_be_chosen(randomness):
    for emulated in (True, False):
        key = paillier_keygen(2048, Lanes(), randomness, emulated=emulated, random_bytes=bytes)
        assert (key.emulated, RANDOMNESS[key.public.arrays.flag]) == (emulated, randomness)


# -- room for the sum of a round's models ------------------------------------------------------------------------------


@pytest.mark.long
def test_a_round_of_more_than_256_clients_takes_the_bits_that_its_sum_needs():
    """300 models near the largest value that fits: 8 bits would overflow, 9 hold the sum exactly."""
    run = rig(SYSTEM, np.full((300, 5), 254.0), clusters=1)
    run.round(1)
    assert SYSTEM.observe(run.federation)["guard_bits"] == 9
    trained = np.stack([run.party(name).state.weights for name in run.common.clients])
    assert trained.min() > 120
    mean = np.round(trained.astype(float) * 2**16).mean(axis=0) / 2**16
    assert (run.models() == mean.astype(np.float32)).all()


@pytest.mark.parametrize(
    ("clients", "participation", "bits"), [(1, 1, 8), (256, 1, 8), (257, 1, 9), (1000, 1, 10), (1000, 0.25, 8)]
)
def test_bits_by_the_size_of_a_round(clients, participation, bits):
    assert FedCAPrivacyConfig(participation=participation).lanes(clients).guard_bits == bits


def test_bits_that_are_given_are_kept_and_checked_against_a_round_s_size():
    four = FedCAPrivacyConfig(guard_bits=2, participation=0.2).lanes(20)
    assert (four.guard_bits, four.max_terms) == (2, 4)
    run = rig(SYSTEM, planted([0, 1] * 10, 5), clusters=2, guard_bits=2, participation=0.2)
    assert run.round(1)["participants"] == 4
    with pytest.raises(UserError, match=r"a round asks 5 clients, .* guard_bits=2 sum up at most 4: choose"):
        rig(SYSTEM, planted([0, 1] * 10, 5), clusters=2, guard_bits=2, participation=0.25)
