"""A key of an opener and a committee: what t members switch opens to the same values, and less opens to nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from coterie.crypto import residues
from coterie.crypto.arrays import CiphertextError
from coterie.crypto.ckks import CipherVector
from coterie.crypto.seal import ring
from coterie.crypto.split_key import CommitteeShare, Partial, SplitKey, joined, split_keygen, switched
from coterie.protocol.codec import weighs
from coterie.protocol.errors import CryptoError, DecodeError, KeyMismatchError, UserError

NAME, D = "insecure-1024-deep", 1500
MADE = {e: split_keygen(NAME, 5, 3, emulated=e, allow_insecure=True) for e in (False, True)}
VALUES = np.random.default_rng(0).normal(0, 0.02, D)


@pytest.fixture(params=[False, True], ids=["real", "emulated"])
def made(request: pytest.FixtureRequest) -> SplitKey:
    return MADE[request.param]


def helped(made: SplitKey, cipher: CipherVector, places: tuple[int, ...], bits: int = 12) -> CipherVector:
    parts = [made.shares[place - 1].partial(cipher, places, bits) for place in places]
    return switched(cipher, parts, made.opener.public)


def forms(made: SplitKey) -> dict[str, CipherVector]:
    key = made.whole.public
    fresh, scalar = key.encrypt(VALUES), key.encrypt_scalar(0.25)
    keys = made.whole.evaluation()
    return {
        "fresh": fresh,
        "lowered": fresh.at_level(0),
        "scalar": scalar,
        "product": fresh.times(scalar).rescaled(),
        "dot": fresh.dot(fresh.conjugated(keys), keys),
        "sum": fresh + key.encrypt(VALUES),
    }


@pytest.mark.parametrize("form", ["fresh", "lowered", "scalar", "product", "dot", "sum"])
def test_three_of_five_switch_every_form_to_the_opener_s_key(made: SplitKey, form: str) -> None:
    cipher = forms(made)[form]
    whole, noise = made.whole.decrypt(cipher), made.whole.parameters.flood_deviation(cipher.tally.form.level, 12)
    for places in ((1, 2, 3), (2, 4, 5), (5, 1, 3)):
        turned = helped(made, cipher, places)
        assert turned.fingerprint == made.opener.fingerprint
        assert np.abs(made.opener.decrypt(turned) - whole).max() < 10 * np.sqrt(3) * noise


def test_the_whole_key_is_one_for_everything_else(made: SplitKey) -> None:
    keys = forms(made)
    np.testing.assert_allclose(made.whole.decrypt(keys["product"]), VALUES / 4, atol=1e-4)
    np.testing.assert_allclose(made.whole.decrypt(keys["dot"]), [VALUES @ VALUES], atol=1e-4)
    assert made.whole.public.fingerprint != made.opener.fingerprint


def test_fewer_than_three_and_no_one_alone_open_anything() -> None:
    made = MADE[False]
    cipher = forms(made)["fresh"]
    with pytest.raises(KeyMismatchError):
        made.opener.decrypt(cipher)
    for count in (1, 2):
        for places in combinations(range(1, 6), count):
            with pytest.raises(CiphertextError):
                made.opener.decrypt(helped(made, cipher, places))
    three = helped(made, cipher, (1, 2, 3))
    stranger = split_keygen(NAME, 2, 2, allow_insecure=True).opener  # whoever has three partials, but not s_h
    relabelled = CipherVector(stranger.public, replace(three.tally, fingerprint=stranger.fingerprint), three.array)
    with pytest.raises(CiphertextError):
        stranger.decrypt(relabelled)


def test_shares_of_two_are_uniform_and_of_three_give_the_summand() -> None:
    """By whole numbers at one coefficient: Shamir's polynomial modulo each prime."""
    made = MADE[False]
    moduli = ring(made.opener.parameters).moduli
    truth = residues.add(
        made.whole.arrays.secret[None],
        (moduli - made.opener.arrays.secret)[None] % moduli,
        moduli,  # type: ignore[union-attr]
    )[0]
    for limb, (prime,) in enumerate(moduli.tolist()):
        for at in (0, 7, 1000):
            f = {share.place: int(share.numbers[limb, at]) for share in made.shares}
            for places in combinations(f, 3):
                total = 0
                for i in places:
                    top = bottom = 1
                    for j in places:
                        if j != i:
                            top, bottom = top * j, bottom * (j - i)
                    total += f[i] * top * pow(bottom, -1, prime)
                assert total % prime == int(truth[limb, at])


def test_the_parts_together_are_the_whole_key(made: SplitKey) -> None:
    cipher = forms(made)["fresh"]
    key = joined(made.whole.public, made.opener, [made.shares[i] for i in (4, 0, 2)])
    np.testing.assert_array_equal(key.decrypt(cipher), made.whole.decrypt(cipher))


def test_a_partial_carries_noise_as_large_as_asked() -> None:
    made = MADE[False]
    cipher = made.whole.public.encrypt(np.zeros(D))
    key = made.opener
    errors = [key.decrypt(helped(made, cipher, (1, 2, 3), bits)) for bits in (12, 12, 12)]
    expected = np.sqrt(3) * made.whole.parameters.flood_deviation(cipher.tally.form.level, 12)
    assert np.std(errors[0] - errors[1]) == pytest.approx(np.sqrt(2) * expected, rel=0.1)


def test_bytes_of_shares_and_partials(made: SplitKey) -> None:
    cipher, share = forms(made)["lowered"], made.shares[2]
    again = CommitteeShare.load(share.to_bytes())
    assert (again.place, again.fingerprint) == (3, made.whole.fingerprint)
    np.testing.assert_array_equal(again.numbers, share.numbers)
    assert weighs(share.to_bytes()) == 36 + made.whole.parameters.secret_bytes
    data = share.partial(cipher, (1, 2, 3), 12).to_bytes()
    part = Partial.from_bytes(made.whole.public, data, cipher)
    assert weighs(data) == (weighs(cipher.to_bytes()) - 40) // 2 + 32
    assert part.length == D
    for wrong in (b"", data[:-1], data + b"x", bytes(len(data)), cipher.to_bytes()):
        with pytest.raises(DecodeError):
            Partial.from_bytes(made.whole.public, wrong, cipher)
    with pytest.raises(DecodeError, match="at level"):
        Partial.from_bytes(made.whole.public, data, forms(made)["fresh"])
    for wrong in (b"", share.to_bytes()[:-1], share.to_bytes() + b"x", bytes(99), cipher.to_bytes()):
        with pytest.raises(DecodeError):
            CommitteeShare.load(wrong)


def test_misuse_is_an_error(made: SplitKey) -> None:
    share, cipher = made.shares[0], forms(made)["fresh"]
    with pytest.raises(CryptoError, match="does not answer among"):
        share.partial(cipher, (2, 3, 4), 12)
    with pytest.raises(CryptoError, match="does not answer among"):
        share.partial(cipher, (1, 1, 2), 12)
    with pytest.raises(CryptoError, match="has no part in"):
        share.partial(made.opener.public.encrypt(VALUES), (1, 2, 3), 12)
    for members, needed in ((2, 3), (3, 0), (300, 2)):
        with pytest.raises(UserError, match="can't help to open"):
            split_keygen(NAME, members, needed, emulated=True, allow_insecure=True)
    shown: Any = repr(share)
    assert "numbers" not in shown
