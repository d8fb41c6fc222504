"""Settings that could never work are refused when the federation is built; keys are given once."""

import msgspec
import numpy as np
import pytest
from federation import planted, rig

from coterie.crypto.packing import RANDOMNESS, Lanes
from coterie.crypto.paillier import keygen as paillier_keygen
from coterie.crypto.roster import signing_key
from coterie.protocol.errors import PeerError, UserError
from coterie.protocol.messages import bundle
from coterie.protocols.anonymous import SERVICE
from coterie.protocols.cluster_sums import USER
from coterie.protocols.key_centre import KEY_CENTRE, Granted
from coterie.runs import RunConfig, build
from coterie.systems.fedcaprivacy import SYSTEM
from coterie.systems.fedcaprivacy.config import FedCAPrivacyConfig
from coterie.systems.fedcaprivacy.messages import CSP, GROUP, HUB
from tests.systems.fedcaprivacy.test_hostile import two_groups


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
    ("mode", "settings"),
    [
        ("hardened", {"descriptor": "model", "hardening": "rotation", "min_cluster": 4}),
        ("hardened", {"descriptor": "model", "sketch_dim": 8}),
        ("hardened", {"clusters": 2, "min_cluster": 4}),
        ("paper", {"schedule": "always", "alpha": 0.1, "hardening": "sketch", "sketch_dim": 64}),  # the defaults
    ],
)
def test_settings_that_mean_something_or_are_the_defaults_may_be_said(mode, settings):
    build(RunConfig("fedcaprivacy", clients=4, crypto="emulated", mode=mode, settings=settings))


@pytest.mark.parametrize("wrong", [{"gamma": -1.0}, {"gamma": float("nan")}, {"max_ahead_s": -1.0}])
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        FedCAPrivacyConfig(**wrong)


def test_nobody_can_give_a_party_the_same_keys_again_or_others():
    run = two_groups(emulated=True)
    for name in (run.common.clients[0], CSP):
        party = run.party(name)
        before = msgspec.to_builtins(party.secret)
        mine = next(m for _, m in run.view(name).messages(Granted))
        with pytest.raises(PeerError, match="already provided with keys"):
            party.keys.keep(mine, KEY_CENTRE)
        other = bundle([b"k", b"s", b"u"])
        names = f"secret {USER}\nsecret {SERVICE}\nsecret {GROUP}"
        for signer in (HUB, name):
            signature = signing_key(run.party(signer).own).sign(
                "granted", run.common.roster.session, name, 2, "", names, other
            )
            with pytest.raises(PeerError, match="the signature is not one of key"):
                party.keys.keep(Granted(2, "", names, other, signature), KEY_CENTRE)
        assert msgspec.to_builtins(party.secret) == before


@pytest.mark.parametrize("randomness", ["short", "full"])
def test_the_plain_randomness_can_be_chosen(randomness):
    for emulated in (True, False):
        key = paillier_keygen(2048, Lanes(), randomness, emulated=emulated, random_bytes=bytes)
        assert (key.emulated, RANDOMNESS[key.public.arrays.flag]) == (emulated, randomness)


# -- room for the sum of a round's models ------------------------------------------------------------------------------


def test_a_thousand_clients_of_whom_a_round_asks_fifty_need_no_more_bits():
    """What counts is how many models a sum holds, not how many clients there are."""
    run = rig(SYSTEM, planted([0, 1] * 500, 5), clusters=2, participation=0.05)
    note = run.round(1)
    assert note["participants"] == 50
    assert sum(note["clusters"]["sizes"]) >= 50
    assert note["clusters"]["unreleased"] == {}
    assert SYSTEM.observe(run.federation)["guard_bits"] == 8


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
