"""Messages that a party of MingledPie can't accept are refused with a reason, and the round goes on without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from emulated import rounded
from federation import Pulled, Rig, misbehaving, on_the_wire
from mingledpie_parts import (
    EVERYBODY,
    REALLY,
    TARGETS,
    change,
    held,
    key_of,
    near,
    parts_of,
    pies,
    signed,
    with_part,
)

from coterie.crypto import ckks
from coterie.crypto.residues import Residues
from coterie.protocol.effects import Fit, Fitted
from coterie.systems.mingledpie.messages import Train, Update

FEW = slice(0, 12, 2)
SIX = EVERYBODY[:6]


def six(**options: Any) -> Rig:
    """Two clients a group."""
    return pies(
        TARGETS[FEW], starts=near(), effects=lambda t: Pulled(t, noise=0.02), **{"max_condition": 1e6, **options}
    )


def kept_models(run: Rig, before: np.ndarray) -> list[bool]:
    """Which clients have the models that they had before."""
    return [held(run, name).tobytes() == before.tobytes() for name in run.common.clients]


# -- updates -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bad:
    """What a client sends instead, properly signed or not, and what the server says to it."""

    name: str
    make: Callable[[Any, Update], Update]
    why: str
    mode: str = "paper"
    hardening: str = "products"


def naming(*identities: int) -> Callable[[Any, Update], Update]:
    return lambda p, u: signed(p, change(u, identities=np.array(identities, np.int64)))


def encrypted(count: int, value: float = 0.5) -> Callable[[Any], bytes]:
    return lambda p: key_of(p).encrypt(np.full(count, value)).to_bytes()


def first(cipher: Callable[[Any], bytes], index: int = 0) -> Callable[[Any, Update], Update]:
    return lambda p, u: with_part(p, u, index, cipher(p))


def own_part(change: Callable[[Any, Any], Any]) -> Callable[[Any, Update], Update]:
    """The client's own first ciphertext, changed by ``change(party, ciphertext)``."""

    def make(p: Any, u: Update) -> Update:
        return with_part(p, u, 0, change(p, key_of(p).public.from_bytes(parts_of(p, u)[0])).to_bytes())

    return make


OTHER: dict[Any, Any] = {}


def other_key(p: Any, name: str = "") -> Any:
    """A key of these parameters (or of others) that nobody in the federation has."""
    module = rounded if key_of(p).emulated else ckks
    at = key_of(p).scheme, name or key_of(p).parameters.name
    if at not in OTHER:
        OTHER[at] = module.keygen(at[1])
    return OTHER[at]


def under_another_key(name: str = "") -> Callable[[Any, Update], Update]:
    return first(lambda p: other_key(p, name).encrypt(np.zeros(p.layout.lengths[0])).to_bytes())


BAD = [
    Bad("stale models", lambda p, u: signed(p, change(u, basis=0)), "to the models of round 0; this is round 2"),
    Bad("one cluster only", naming(0), "names 1 clusters; the threshold requires 2"),
    Bad("an unknown cluster", naming(0, 3), "[0, 3] is no ascending list of clusters 0 to 2"),
    Bad("a cluster twice", naming(0, 0, 1), "[0, 0, 1] is no ascending list"),
    Bad("clusters out of order", naming(1, 0), "[1, 0] is no ascending list"),
    Bad("identities in hardened mode", naming(0, 1), "names clusters [0, 1] in a mode without identities", "hardened"),
    Bad("another key", under_another_key(), "key"),
    Bad("other parameters", under_another_key("ckks-8192-mul"), "key"),
    Bad("one number too few", first(encrypted(22)), "22 values where 23 were expected"),
    Bad("a sum of two", own_part(lambda p, c: c + c), "2 terms where 1 were expected"),
    Bad(
        "a vector for a scalar",
        first(lambda p: key_of(p).encrypt(np.ones(1)).to_bytes(), index=2),
        "ciphertext 2 is a vector at level 1, not a scalar at level 1",
        "hardened",
    ),
    Bad(
        "a scalar with room for more",
        first(lambda p: key_of(p).encrypt_scalar(2.0, 2).to_bytes(), index=1),
        "2 terms where 1 were expected",
        "hardened",
    ),
    Bad(
        "no level left",
        own_part(lambda p, c: c.times(key_of(p).encrypt_scalar(1.0))),
        "ciphertext 0 is a vector at level 0, not a vector at level 1",
        "hardened",
    ),
    Bad("a block too few", first(encrypted(2 * 21)), "42 values where 63 were expected", "hardened", "uploads"),
]  # fmt: skip
REAL = ("another key", "a sum of two")
CASES = [(bad, True) for bad in BAD] + [(bad, False) for bad in BAD if bad.name in REAL]


@pytest.mark.parametrize(("bad", "emulated"), CASES, ids=[f"{bad.name}{'' if e else ', real'}" for bad, e in CASES])
def test_a_bad_update_is_refused_and_the_others_go_on(bad: Bad, emulated: bool) -> None:
    run = six(mode=bad.mode, hardening=bad.hardening, emulated=emulated)
    run.round(1)
    misbehaving(run.party("client/0"), Train, lambda party, request, update: bad.make(party, update))
    note = run.round(2)
    ((reason, count),) = run.refused.items()
    assert reason.startswith("server/Update:")
    assert bad.why in reason
    assert count == 1
    assert note["participants"] == 5
    assert note["membership"][0] == []
    assert len({held(run, name).tobytes() for name in SIX}) == 1  # it hears of the round's sums like everybody


def test_who_comes_first_with_another_form_does_not_shut_the_others_out() -> None:
    """Sums take vectors of one form, and it isn't the first that decides which."""
    run = six(mode="hardened", shared_layers="bias")

    def a_level_lower(p: Any, r: Any, u: Update) -> Update:
        shared = key_of(p).public.from_bytes(parts_of(p, u)[4])
        return with_part(p, u, 4, shared.times(key_of(p).encrypt_scalar(1.0)).to_bytes())

    misbehaving(run.party("client/0"), Train, a_level_lower)
    assert run.round(1)["participants"] == 5
    assert run.refusals("server", "Update") == 1


def test_somebody_elses_update_is_refused() -> None:
    """Signed by client/3, sent by client/2: the key that is looked up is the sender's."""
    run = six()
    theirs: list[Update] = []
    misbehaving(run.party("client/3"), Train, lambda p, r, u: theirs.append(u) or u)
    run.round(1)
    run.round(2)
    stolen = on_the_wire(run.transport, Update, lambda m: m, src="client/3")
    misbehaving(run.party("client/4"), Train, lambda p, r, u: (stolen or theirs)[-1])
    assert run.round(3)["participants"] == 5
    assert run.refusals("server", "Update") == 1
    assert "signature" in next(iter(run.refused))


@pytest.mark.parametrize("emulated", REALLY)
def test_a_damaged_ciphertext_under_a_good_signature_is_told_by_those_who_open_the_sums(emulated: bool) -> None:
    """A client signs noise: well-formed, under the right key, and opening to nothing that models are. Everybody keeps
    its models and says why; the next round goes on without it, and nobody is left behind.
    """
    run = six(emulated=emulated)
    run.round(1)
    before = held(run)
    honest = dict(run.party("client/0").handlers)

    def noise(p: Any, r: Any, u: Update) -> Update:
        key = key_of(p).public
        vector = key.from_bytes(parts_of(p, u)[0])
        if emulated:
            garbled = rounded.CipherVector(key, vector.tally, vector.array + (1 << 61))
        else:
            random: Residues = np.random.default_rng(0).integers(0, 1 << 40, vector.array.shape, np.uint64)
            garbled = ckks.CipherVector(key, vector.tally, random)
        return with_part(p, u, 0, garbled.to_bytes())

    misbehaving(run.party("client/0"), Train, noise)
    note = run.round(2)
    assert note["participants"] == 6
    assert note["rebuilt"] == {"by": 0, "refused_by": 6}
    assert dict(run.refused) == {}
    assert kept_models(run, before) == [True] * 6
    assert "damaged or forged, so all models were kept" in run.party("client/3").state.why
    type(run.party("client/0")).handlers = honest
    note = run.round(3)
    assert note["behind"] == []
    assert note["rebuilt"]["by"] == 6
    assert kept_models(run, before) == [False] * 6


# -- weights that are none ---------------------------------------------------------------------------------------------


class Breaking(Pulled):
    """client/1's training ends in this value."""

    value = float("nan")

    def fit(self, party: str, effect: Fit) -> Fitted:
        result = super().fit(party, effect)
        if party == "client/1":
            result.weights[7] = self.value
        return result


@pytest.mark.parametrize("value", [float("nan"), -float("inf"), 65.0])
def test_a_client_encrypts_no_weights_that_are_not_finite_or_too_large(value: float) -> None:
    """It sends nothing: nobody else could see them. It is told, and the round goes on."""
    broken = type("Broken", (Breaking,), {"value": value})
    run = pies(TARGETS[FEW], starts=near(), effects=broken, max_condition=1e6)
    note = run.round(1)
    assert note["participants"] == 5
    ((reason, _),) = run.refused.items()
    assert reason.startswith("client/Train: value ")
    assert "at index 7" in reason
    assert run.party("client/1").state.trained == 0
    assert run.party("client/1").secret.sets == {}  # a handler is a transaction
    assert len({held(run, name).tobytes() for name in SIX}) == 1
