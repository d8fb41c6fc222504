"""Messages that a party can't accept are refused and counted, and the round goes on without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from emulated import exact
from fedcaprivacy_parts import at_own_model, two_groups
from federation import misbehaving
from tampering import flipped

from coterie.crypto import paillier, roster
from coterie.crypto.packing import Lanes
from coterie.protocol.errors import PeerError
from coterie.systems.fedcaprivacy.messages import Train, Upload

REALLY = [pytest.param(True, id="emulated"), pytest.param(False, id="real", marks=pytest.mark.long)]
change = msgspec.structs.replace


def signed(party: Any, upload: Upload) -> Upload:
    """The upload with a good signature of this participant over whatever it says."""
    return roster.signed(party.own, upload)


# -- uploads -----------------------------------------------------------------------------------------------------------

OTHER_KEY = {True: exact.keygen(2048, Lanes()).public, False: None}


def other_key(emulated: bool) -> Any:
    if not emulated and OTHER_KEY[False] is None:
        OTHER_KEY[False] = paillier.keygen(2048, Lanes()).public  # type: ignore[assignment]
    return OTHER_KEY[emulated]


@dataclass(frozen=True)
class BadUpload:
    """What a participant uploads instead, properly signed or not, and what the business server says to it."""

    name: str
    make: Callable[[Any, Upload], Upload]
    why: str


def own_key(party: Any) -> Any:
    return party.keys.public("service")


def numbers(party: Any, count: int, value: float = 0.5) -> np.ndarray:
    return np.full(count, value)


def blinded_itself(party: Any, upload: Upload) -> bytes:
    key = own_key(party)
    return key.from_bytes(upload.cipher).blind(key.mask(40, np.random.default_rng(0).bytes)).to_bytes()


BAD = [
    BadUpload("another ciphertext", lambda p, u: change(u, cipher=flipped(u.cipher, 50)), "signature"),
    BadUpload("stale", lambda p, u: signed(p, change(u, timestamp_s=u.timestamp_s - 101)), "s old"),
    BadUpload("from the future", lambda p, u: signed(p, change(u, timestamp_s=u.timestamp_s + 9)), "s old"),
    BadUpload("somebody else's PID", lambda p, u: signed(p, change(u, pid=4)), "has PID 0 and claims 4"),
    BadUpload(
        "another key",
        lambda p, u: signed(p, change(u, cipher=other_key(own_key(p).emulated).encrypt(numbers(p, 40)).to_bytes())),
        "encrypted under key",
    ),
    BadUpload(
        "one number too few",
        lambda p, u: signed(p, change(u, cipher=own_key(p).encrypt(numbers(p, 39)).to_bytes())),
        "39 values where 40 were expected",
    ),
    BadUpload(
        "two models in one",
        lambda p, u: signed(p, change(u, cipher=own_key(p).from_bytes(u.cipher).scale(2).to_bytes())),
        "2 terms where 1 were expected",
    ),
    BadUpload(
        "a multiple of N",
        lambda p, u: signed(p, change(u, cipher=multiple_of_n(p, u.cipher))),
        "no unit modulo N",
    ),
    BadUpload("masked by itself", lambda p, u: signed(p, change(u, cipher=blinded_itself(p, u))), "1 masks where 0"),
    BadUpload(
        "a sketch of its own", lambda p, u: signed(p, change(u, sketch=b"much")), "a sketch in a mode without sketches"
    ),
]


ONLY_REAL = "a multiple of N"  # the twin has no numbers modulo N
CASES = [(bad, bad.name != ONLY_REAL) for bad in BAD] + [(bad, False) for bad in BAD if bad.name == "another key"]


@pytest.mark.parametrize(("bad", "emulated"), CASES, ids=[f"{bad.name}{'' if e else ', real'}" for bad, e in CASES])
def test_a_bad_upload_is_refused_and_the_others_go_on(bad: BadUpload, emulated: bool) -> None:
    run = two_groups(emulated=emulated, max_age_s=100.0, max_ahead_s=0.0)
    run.round(1)
    misbehaving(run.party("client/0"), Train, lambda party, request, upload: bad.make(party, upload))
    note = run.round(2)
    assert note["participants"] == 5
    ((reason, count),) = run.refused.items()
    assert reason.startswith("business_server/Upload:")
    assert bad.why in reason
    assert count == 1
    assert at_own_model(run) == [True] + [False] * 5


def test_an_upload_that_was_accepted_is_not_accepted_again() -> None:
    """Whatever transport there is below: the business server itself remembers round and time of the last one."""
    run = two_groups()
    run.round(1)
    seen, upload = next(run.view("business_server").messages(Upload, 1))
    with pytest.raises(PeerError, match="was accepted before"):
        run.hub.verified(seen.src, upload, 1)


# -- garbage inside valid ciphertexts ----------------------------------------------------------------------------------


def multiple_of_n(party: Any, cipher: bytes) -> bytes:
    """An upload that a secret key would open to a factor of itself."""
    key = own_key(party)
    honest = key.from_bytes(cipher)
    return paillier.CipherVector(key, honest.tally, (3 * key.arrays.n, *honest.array[1:])).to_bytes()


def overfull(party: Any, cipher: bytes) -> bytes:
    """A well-formed, well-signed ciphertext under the right key whose lanes hold what no model does."""
    key = own_key(party)
    honest = key.from_bytes(cipher)
    if key.scheme != "paillier":
        words = honest.array._replace(words=honest.array.words + np.uint32(0x4000_0000))
        return paillier.CipherVector(key, honest.tally, words).to_bytes()
    unit = honest.array[0] * (1 + (1 << 2000) * key.arrays.n) % key.arrays.n_squared
    return paillier.CipherVector(key, honest.tally, (unit, *honest.array[1:])).to_bytes()


def spoil(field: str) -> Callable[[Any, Train, Upload], Upload]:
    return lambda party, request, upload: signed(
        party, change(upload, **{field: overfull(party, getattr(upload, field))})
    )


@pytest.mark.parametrize("emulated", REALLY)
@pytest.mark.parametrize(
    ("field", "mode", "hardening"),
    [("cipher", "paper", "sketch"), ("sketch", "hardened", "sketch"), ("cipher", "hardened", "rotation")],
)
def test_what_is_no_model_is_told_by_the_service_and_left_out(
    field: str, mode: str, hardening: str, emulated: bool
) -> None:
    """It differs from the others by more than models can, so the majority is known: nobody else notices anything.

    The two garbled ones agree with each other, and are still the fewer.
    """
    run = two_groups(mode=mode, emulated=emulated, hardening=hardening, sketch_dim=16, alpha=1e9, min_cluster=2)
    assert run.round(1)["left_out"] == []
    for name in ("client/1", "client/4"):
        misbehaving(run.party(name), Train, spoil(field))
    for r in range(2, 7 if emulated else 4):  # wherever the shuffle puts them
        note = run.round(r)
        assert not note["clustered"]  # told without a clustering, too
        assert note["left_out"] == ["client/1", "client/4"]
        assert note["clusters"]["sizes"] == [2, 2]
        assert at_own_model(run) == [False, True, False, False, True, False]
        assert dict(run.refused) == {}


def test_who_never_sent_a_model_gets_no_cluster_and_has_all_rounds_cluster() -> None:
    """It is there and in no cluster, which forces a clustering as for any newcomer: this much it costs the service."""
    run = two_groups(alpha=1e9)
    misbehaving(run.party("client/1"), Train, spoil("cipher"))
    for note in run.rounds(3):
        assert note["clustered"]
        assert note["left_out"] == ["client/1"]
        assert note["membership"][1] == []


def test_without_a_majority_of_models_the_round_is_skipped() -> None:
    run = two_groups()
    for i in range(3):
        misbehaving(run.party(f"client/{i}"), Train, spoil("cipher"))
    note = run.round(1)
    assert note["skipped"] == "csp did not answer Cluster: refused"
    assert any("no majority" in reason for reason in run.refused)
    assert at_own_model(run) == [True] * 6
    assert run.party("csp").state.opened == {}


@pytest.mark.parametrize("emulated", REALLY)
def test_in_sketch_mode_garbage_beside_a_good_sketch_spoils_its_own_cluster_only(emulated: bool) -> None:
    """The price of the sketches: nobody sees the models that the business server sums up. The members of that cluster
    notice, refuse the sum and go on with their own models; the other cluster is as ever.
    """
    run = two_groups(mode="hardened", emulated=emulated, sketch_dim=16)
    misbehaving(run.party("client/1"), Train, spoil("cipher"))
    note = run.round(1)
    assert note["left_out"] == []
    assert at_own_model(run) == [True, True, True, False, False, False]
    assert dict(run.refused).keys() == {key for key in run.refused if key.startswith("participant/ClusterModel:")}
    assert run.refused.total() == 3


def test_what_hides_in_lanes_that_no_model_uses_is_told_by_the_service() -> None:
    """Unnoticed it would be in the sum, and every member of the cluster would refuse the model."""

    def unused(party: Any, request: Train, upload: Upload) -> Upload:
        key = own_key(party)
        honest = key.from_bytes(upload.cipher)
        unit = honest.array[0] * (1 + (1 << (50 * 32)) * key.arrays.n) % key.arrays.n_squared  # 40 of 62 lanes are used
        return signed(
            party, change(upload, cipher=paillier.CipherVector(key, honest.tally, (unit, *honest.array[1:])).to_bytes())
        )

    run = two_groups(emulated=False)
    misbehaving(run.party("client/1"), Train, unused)
    assert run.round(1)["left_out"] == ["client/1"]
    assert dict(run.refused) == {}
