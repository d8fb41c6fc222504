"""Masks of CKKS, vectors that change keys, and parts of vectors; real and emulated."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from emulated import exact, rounded

from coterie.crypto import ckks, paillier, residues, sum_ciphers
from coterie.crypto.arrays import CiphertextError
from coterie.crypto.tally import Form
from coterie.protocol.codec import weighs
from coterie.protocol.errors import CapacityError, CryptoError, DecodeError, KeyMismatchError

N = 1024
SET = "insecure-1024-deep"
MODULES = {"ckks": ckks, "rounded": rounded}
SERVICE = {name: module.keygen(SET, allow_insecure=True) for name, module in MODULES.items()}
OWN = {name: module.keygen(SET, products=False, allow_insecure=True) for name, module in MODULES.items()}
P = SERVICE["ckks"].parameters
LENGTH = 2 * N + 7
VALUES = np.linspace(-4, 4, LENGTH)
both = pytest.mark.parametrize("scheme", list(MODULES))


def masked(scheme, level=0, terms=1):
    """(a vector's mask, the vector under it, from its bytes)."""
    public = SERVICE[scheme].public
    mask = public.mask(LENGTH, os.urandom, level)
    cipher = public.encrypt(VALUES, level).scale(terms).blind(mask)
    return mask, public.from_bytes(cipher.to_bytes(), LENGTH, terms=terms, blinded=1, form=Form(level))


# ---- from key to key


@both
@pytest.mark.parametrize("level", [0, 1, 3])
def test_a_vector_changes_its_key(scheme, level):
    service, own = SERVICE[scheme], OWN[scheme]
    mask, cipher = masked(scheme, level, terms=5)
    opened = service.open_blinded(cipher)
    assert (opened.terms, opened.blinded, opened.length, opened.fingerprint) == (5, 1, LENGTH, service.fingerprint)
    r = P.added(level)
    for key, extra in ((service, 0.0), (own, P.flooded(level))):
        sent = key.public.encrypt_blinded(opened).to_bytes()
        assert weighs(sent) == key.public.wire_bytes(LENGTH, Form(level))
        back = key.public.from_bytes(sent, LENGTH, terms=5, blinded=1, form=Form(level)).unblind(mask, 1)
        assert (back.terms, back.blinded, back.fingerprint) == (5, 0, key.fingerprint)
        assert np.abs(key.decrypt(back) - 5 * VALUES).max() < 8 * r + extra


@both
def test_only_another_key_sees_the_flood(scheme):
    """Its size as stated; the same for all that get it, so that they can't average it away."""
    service, own = SERVICE[scheme], OWN[scheme]
    third = MODULES[scheme].keygen(SET, allow_insecure=True)
    mask, cipher = masked(scheme)
    opened = service.open_blinded(cipher)
    errors = {}
    for key in (service, own, third):
        errors[key] = key.decrypt(key.public.encrypt_blinded(opened).unblind(mask, 1)) - VALUES
    fresh = P.deviation(2.0**36)
    assert np.std(errors[own]) == pytest.approx(P.flood_deviation(0), rel=0.08)
    assert np.std(errors[service]) < 5 * fresh
    assert np.std(errors[own] - errors[third]) < 6 * fresh
    less = service.open_blinded(cipher, flood_bits=8)
    smaller = own.decrypt(own.public.encrypt_blinded(less).unblind(mask, 1)) - VALUES
    assert np.std(smaller) == pytest.approx(P.flood_deviation(0, 8), rel=0.4)
    for bits in (-1, 17):
        with pytest.raises(CryptoError, match="0 to 16"):
            service.open_blinded(cipher, flood_bits=bits)


@both
def test_scalars_and_sums_carry_masks_too(scheme):
    service, own = SERVICE[scheme], OWN[scheme]
    scalar = service.public.encrypt_scalar(700.5, at_most=1000, level=1)
    mask = service.public.mask(1, os.urandom, 1)
    back = own.public.encrypt_blinded(service.open_blinded(scalar.blind(mask))).unblind(mask, 1)
    assert (back.tally.form, back.terms) == (Form(1, scalar=True), 1000)
    assert own.decrypt(back)[0] == pytest.approx(700.5, abs=P.flooded(1) + 1e-6)

    mask, cipher = masked(scheme)
    total = (cipher + cipher).add_plain(VALUES).scale(2)
    assert (total.terms, total.blinded) == (6, 4)
    opened = sum_ciphers([service.open_blinded(total), service.open_blinded(cipher)])
    assert (opened.terms, opened.blinded) == (7, 5)
    back = own.public.encrypt_blinded(opened).unblind(mask, 2).unblind(mask, 3)
    assert np.abs(own.decrypt(back) - 7 * VALUES).max() < 2 * P.flooded(0) + 1e-5


def test_the_lowest_levels_room_survives_a_change_of_keys():
    service, own = SERVICE["ckks"], OWN["ckks"]
    mask, cipher = masked("ckks", terms=P.max_terms)
    back = own.public.encrypt_blinded(service.open_blinded(cipher)).unblind(mask, 1)
    assert np.abs(own.decrypt(back) - P.max_terms * VALUES).max() < P.flooded(0) + 2e-4


# ---- hiding


def test_what_is_opened_is_the_value_plus_the_mask_and_nothing_else():
    """Exactly, modulo q. So for every other value there is a mask that gives the same view: it says nothing."""
    service, ring = SERVICE["ckks"], SERVICE["ckks"].public.arrays.ring
    mask, cipher = masked("ckks", level=1)
    opened = service.open_blinded(cipher)
    moduli = ring.moduli_at(1)
    polynomials = residues.add(opened.array[0], moduli - mask.numbers, moduli)
    plain = service.arrays._plain(cipher.unblind(mask, 1).array)
    fresh = residues.add(polynomials, moduli - plain, moduli)  # differ by the noise of two fresh encryptions, m cancels
    assert np.abs(centred_coefficients(fresh, level=1)).max() < 2**10
    assert np.abs(centred_coefficients(polynomials, level=1)).max() > 2**33
    # the mask for which the same view would be of another value:
    message = ring.encoded(np.cos(VALUES), Form(1))
    other = replace(mask, numbers=residues.add(opened.array[0], moduli - message, moduli))
    lie = cipher.unblind(other, 1)
    assert np.abs(service.decrypt(lie) - np.cos(VALUES)).max() < 1e-5


def centred_coefficients(polynomials, level):
    """Residues in NTT form as integers around zero, by a slow transform modulo the first prime only."""
    ring = SERVICE["ckks"].public.arrays.ring
    q = int(ring.moduli[0, 0])
    g = next(r for r in (pow(x, (q - 1) // (2 * N), q) for x in range(2, 99)) if pow(r, N, q) == q - 1)
    root = min(pow(g, 2 * i + 1, q) for i in range(N))
    powers = np.array([pow(root, i, q) for i in range(2 * N)], dtype=object)
    exponents = np.array([2 * int(format(i, "010b")[::-1], 2) + 1 for i in range(N)])
    points, inverse = polynomials[0, 0].astype(object), pow(N, -1, q)
    found = [int((points * powers[(-exponents * k) % (2 * N)]).sum()) * inverse % q for k in range(0, N, 101)]
    return np.array([x - q if x > q // 2 else x for x in found], dtype=float)


def test_opened_vectors_look_uniform_whatever_is_inside():
    """Kolmogorov and Smirnov's distance of the view's residues from uniform ones, for zeros and for large values."""
    service = SERVICE["ckks"]
    for values in (np.zeros(8 * N), np.full(8 * N, 4.0)):
        mask = service.public.mask(8 * N, np.random.default_rng(1).bytes)
        opened = service.open_blinded(service.public.encrypt(values, 0).blind(mask))
        for polynomials in opened.array:
            shares = np.sort(polynomials[:, 0].ravel() / float(service.public.arrays.ring.moduli[0, 0]))
            distance = np.abs(shares - (np.arange(shares.size) + 0.5) / shares.size).max()
            assert distance < 2.5 / np.sqrt(shares.size)


def test_masks_are_unbiased_and_follow_from_their_bytes():
    moduli = np.array([[5], [2**61 - 1], [8]], dtype=np.uint64)
    numbers = residues.uniform(residues.secret_words(bytes(32)), (40, 3, 1000), moduli)
    assert (numbers < moduli).all()
    counts = np.bincount(numbers[:, 0].ravel().astype(int), minlength=5)
    assert ((counts - 8000) ** 2 / 8000).sum() < 30  # chi-square of 4 degrees: once in 200,000
    high = numbers[:, 1].ravel() >> np.uint64(58)
    assert ((np.bincount(high.astype(int), minlength=8) - 5000) ** 2 / 5000).sum() < 45
    public = SERVICE["ckks"].public
    same = [public.mask(5, lambda n: bytes(n)).numbers for _ in range(2)]
    assert np.array_equal(*same)
    assert not np.array_equal(same[0], public.mask(5, lambda n: b"\1" * n).numbers)
    with pytest.raises(CryptoError, match="31 bytes"):
        public.mask(5, lambda n: bytes(n - 1))


def test_the_stream_is_aes_256_in_counter_mode():
    """Known answers: the cipher of the zero block, and of the block 1, under the zero key."""
    words = residues.secret_words(bytes(32))(4)
    assert words.tobytes().hex() == "dc95c078a2408989ad48a21492842087530f8afbc74536b9a963b4f1c4cb738b"


def test_blinding_and_unblinding_leave_no_trace():
    """Fresh randomness on both polynomials: the difference from before is neither the mask nor zero."""
    mask, cipher = masked("ckks")
    for after in (cipher.blind(mask), cipher.unblind(mask, 1)):
        moduli = SERVICE["ckks"].public.arrays.ring.moduli_at(0)
        change = residues.add(after.array, moduli - cipher.array, moduli)
        assert change[:, 1].any(axis=(1, 2)).all()
        assert not (change[:, 0] == mask.numbers).any(axis=2).all()


def test_flooding_noise_is_uniform_in_its_range():
    exact = np.zeros((3, 1, N), dtype=np.uint64)
    for bits in (4, 16):
        noise = SERVICE["ckks"].public.arrays.flooded(exact, bits, Form(0))
        coefficients = np.concatenate([centred_coefficients(noise[i : i + 1], 0) for i in range(3)])
        assert coefficients.min() >= -(2**bits)
        assert coefficients.max() < 2**bits
        assert np.abs(coefficients).max() > 2 ** (bits - 2)


# ---- masked numbers


def noise_of(scalar):
    """The error in every coefficient but the constant one, as the key's holder sees it."""
    key = SERVICE["ckks"]
    made = key.public.arrays.ring
    return made.decoded(key.arrays._plain(scalar.array), made.scale(scalar.tally.form) / P.spread).ravel()[1:]


def test_sanitised_multiples_can_not_be_linked():
    """Two multiples of one number share its error: their holder sees that. Not after noise is added."""
    key = SERVICE["ckks"].public
    number = key.encrypt_scalar(0.3).times(key.encrypt_scalar(0.8)).rescaled()
    multiples = [number.times_plain(factor) for factor in (0.9, 0.6)]
    assert np.corrcoef(*map(noise_of, multiples))[0, 1] > 0.2
    for bits in (8, 12):
        assert abs(np.corrcoef(*(noise_of(m.sanitised(bits)) for m in multiples))[0, 1]) < 6 / np.sqrt(N)
    before, after = multiples[0], multiples[0].sanitised()
    change = residues.add(after.array, key.arrays.ring.moduli_at(1) - before.array, key.arrays.ring.moduli_at(1))
    assert change.any(axis=(2, 3)).all()
    assert np.std(noise_of(after)) == pytest.approx(P.flood_deviation(1, 12), rel=0.2)


@both
def test_sanitised_vectors_keep_their_values(scheme):
    key = SERVICE[scheme]
    vector = key.public.encrypt(VALUES).times(key.public.encrypt_scalar(0.5))
    clean = vector.sanitised()
    assert (clean.tally.form, clean.terms, clean.blinded) == (Form(2), 1, 0)
    error = key.decrypt(clean) - VALUES / 2
    assert np.std(error) == pytest.approx(P.flood_deviation(2, 12), rel=0.1)
    more = key.decrypt(key.public.encrypt(VALUES, 0).sanitised(16)) - VALUES
    assert np.std(more) == pytest.approx(P.flood_deviation(0), rel=0.1)
    keys = key.evaluation()
    shallow = MODULES[scheme].keygen("insecure-1024-mul", allow_insecure=True).public.encrypt([1.0])
    for misuse, words in (
        (lambda: vector.sanitised(17), "0 to 16"),
        (lambda: key.public.encrypt(VALUES).conjugated(keys).sanitised(), "half of a dot"),
        (shallow.sanitised, "no masks"),
    ):
        with pytest.raises(CryptoError, match=words):
            misuse()


@both
def test_repr_and_copies_show_no_mask(scheme):
    mask, cipher = masked(scheme)
    opened = SERVICE[scheme].open_blinded(cipher)
    assert repr(mask) == f"<Mask length {LENGTH} level 0>"
    assert repr(opened).endswith(f"length {LENGTH} terms 1 masks 1>")
    assert __import__("copy").deepcopy(mask) is mask


# ---- misuse


@both
def test_what_is_refused(scheme):
    service, module = SERVICE[scheme], MODULES[scheme]
    public, other_set = service.public, module.keygen("insecure-1024-long", allow_insecure=True)
    twin = SERVICE["rounded" if scheme == "ckks" else "ckks"]
    mask, cipher = masked(scheme)
    plain, high = public.encrypt(VALUES, 0), public.encrypt(VALUES)
    keys = service.evaluation()
    opened = service.open_blinded(cipher)
    scalar = public.encrypt_scalar(0.5)
    high_mask, strange = public.mask(LENGTH, os.urandom, 3), paillier.keygen(512, allow_insecure=True)
    for misuse, error, words in (
        (lambda: service.decrypt(cipher), CryptoError, "1 masks"),
        (lambda: service.open_blinded(plain), CryptoError, "no mask"),
        (lambda: OWN[scheme].open_blinded(cipher), KeyMismatchError, "can't be opened"),
        (lambda: service.open_blinded(twin.public.encrypt(VALUES)), KeyMismatchError, "ciphertext"),
        (lambda: plain.unblind(mask, 1), CryptoError, "0"),
        (lambda: cipher.unblind(mask, 2), CryptoError, "2 masks"),
        (lambda: cipher.unblind(mask, 0), CryptoError, "integers"),
        (lambda: high.blind(mask), CryptoError, "level 0"),
        (lambda: public.encrypt(VALUES[1:], 0).blind(mask), CryptoError, "doesn't fit"),
        (lambda: plain.blind(other_set.public.mask(LENGTH, os.urandom)), KeyMismatchError, "doesn't fit"),
        (lambda: plain.blind(twin.public.mask(LENGTH, os.urandom)), KeyMismatchError, "no mask"),
        (lambda: plain.blind(b"mask"), KeyMismatchError, "no mask"),
        (lambda: high.times(scalar).blind(high_mask), CryptoError, "rescale"),
        (lambda: high.conjugated(keys).blind(high_mask), CryptoError, "conjugated"),
        (lambda: high.blind(high_mask).times(scalar), CryptoError, "unblind it first"),
        (lambda: high.blind(high_mask).times_plain(0.5), CryptoError, "unblind it first"),
        (lambda: high.blind(high_mask).at_level(1), CryptoError, "unblind it first"),
        (lambda: high.blind(high_mask).conjugated(keys), CryptoError, "unblind it first"),
        (lambda: high.blind(high_mask).dot(high.conjugated(keys), keys), CryptoError, "unblind it first"),
        (lambda: other_set.public.encrypt_blinded(opened), KeyMismatchError, "not opened"),
        (lambda: twin.public.encrypt_blinded(opened), KeyMismatchError, "not opened"),
        (lambda: opened + twin.open_blinded(masked(twin.scheme)[1]), KeyMismatchError, "not opened"),
        (lambda: public.mask(0, os.urandom), CryptoError, "at least 1"),
        (lambda: public.mask(5, os.urandom, 4), CryptoError, "levels 0 to 3"),
        (lambda: opened == opened, CryptoError, "compared"),
        (lambda: cipher.scale(1024).scale(2), CapacityError, "room"),
        (lambda: cipher.unblind(strange.public.mask(LENGTH, os.urandom), 1), KeyMismatchError, "no mask"),
        (lambda: strange.public.encrypt(VALUES).blind(mask), KeyMismatchError, "no mask"),
    ):
        with pytest.raises(error, match=words):
            misuse()
    for wanted in ({"blinded": 0}, {"blinded": 2}):
        with pytest.raises(DecodeError):
            public.from_bytes(cipher.to_bytes(), LENGTH, **wanted)
    shallow = module.keygen("insecure-1024-mul", allow_insecure=True)
    for misuse in (lambda: shallow.public.mask(5, os.urandom), lambda: shallow.public.encrypt_blinded(opened)):
        with pytest.raises(CryptoError, match="no masks"):
            misuse()


@both
def test_the_wrong_mask_leaves_nonsense(scheme):
    service = SERVICE[scheme]
    _, cipher = masked(scheme)
    wrong = cipher.unblind(service.public.mask(LENGTH, os.urandom), 1)
    with pytest.raises(CiphertextError):
        service.decrypt(wrong)


# ---- the twin


def test_emulated_masks_repeat_and_hide():
    public = SERVICE["rounded"].public
    first, again = (public.mask(4000, lambda n: b"\7" * n) for _ in range(2))
    assert np.array_equal(first.numbers, again.numbers)
    shares = np.sort(first.numbers.astype(np.float64) / 2**64 + 0.5)
    assert np.abs(shares - np.arange(4000) / 4000).max() < 2.5 / np.sqrt(4000)
    results = []
    for _ in range(2):
        key = rounded.keygen(SET, random_bytes=lambda n: b"\3" * n, allow_insecure=True)
        own = rounded.keygen(SET, random_bytes=lambda n: b"\4" * n, allow_insecure=True)
        cipher = key.public.encrypt(VALUES[:4000] if LENGTH > 4000 else np.resize(VALUES, 4000), 0).blind(first)
        results.append(own.public.encrypt_blinded(key.open_blinded(cipher)).unblind(first, 1).to_bytes())
    assert results[0] == results[1]


# ---- vectors that are split between ciphertexts and joined again


@both
@pytest.mark.parametrize("at", [N, 2 * N])
def test_what_is_split_can_be_opened_summed_and_joined(scheme, at):
    key = SERVICE[scheme]
    error = key.parameters.error(4)
    head, tail = key.public.encrypt(VALUES).split(at)
    assert (head.length, tail.length) == (at, LENGTH - at)
    for part, values in ((head, VALUES[:at]), (tail, VALUES[at:])):
        assert np.abs(key.decrypt(part) - values).max() <= error
        again = key.public.from_bytes(part.to_bytes(), len(values), terms=1, form=key.public.fresh)
        assert np.abs(key.decrypt(again + key.public.encrypt(values)) - 2 * values).max() <= error
    other = (tail + tail).at_level(3)
    whole = head.joined(other)
    assert (whole.length, whole.terms, whole.blinded) == (LENGTH, 2, 0)
    assert np.abs(key.decrypt(whole) - np.concatenate((VALUES[:at], 2 * VALUES[at:]))).max() <= error
    back = key.public.from_bytes(whole.to_bytes(), LENGTH, terms=2)
    assert np.abs(key.decrypt(back) - key.decrypt(whole)).max() == 0


@both
def test_a_joined_vector_carries_masks_as_any_other(scheme):
    key = SERVICE[scheme]
    head, tail = key.public.encrypt(VALUES, 0).split(N)
    mask = key.public.mask(LENGTH, os.urandom)
    opened = key.open_blinded(head.joined(tail).blind(mask))
    back = key.public.encrypt_blinded(opened).unblind(mask, 1)
    assert np.abs(key.decrypt(back) - VALUES).max() <= 4 * key.parameters.added(0)


@both
def test_the_parts_keep_their_own_products(scheme):
    """A dot product of heads knows nothing of the tails."""
    key = SERVICE[scheme]
    keys = key.evaluation()
    unit = np.zeros(LENGTH)
    unit[:N], unit[N:] = 1 / N**0.5, 4.0
    head, _ = key.public.encrypt(unit).split(N)
    assert key.decrypt(head.dot(head.conjugated(keys), keys))[0] == pytest.approx(1.0, abs=1e-4)


@both
def test_what_has_no_parts_is_refused(scheme):
    key, other = SERVICE[scheme], MODULES[scheme].keygen(SET, allow_insecure=True)
    vector = key.public.encrypt(VALUES)
    keys = key.evaluation()
    head, tail = vector.split(N)
    masked = key.public.encrypt(VALUES, 0).blind(key.public.mask(LENGTH, os.urandom))
    product = vector.times(key.encrypt_scalar(0.5))
    for at in (0, -N, 1, N - 1, LENGTH, 3 * N):
        with pytest.raises(CryptoError, match=f"at a multiple of {N}, not at {at}"):
            vector.split(at)
    for whole in (key.encrypt_scalar(0.5), masked, product, vector.conjugated(keys)):
        with pytest.raises(CryptoError, match="has no parts"):
            whole.split(N)
        with pytest.raises(CryptoError, match=r"has no parts|can't be joined"):
            whole.joined(tail)
        with pytest.raises(CryptoError, match="can't be joined"):
            head.joined(whole)
    with pytest.raises(CryptoError, match="can't be joined"):
        head.joined(tail.at_level(1))
    with pytest.raises(CryptoError, match="nothing can follow them"):
        tail.joined(head)
    with pytest.raises(KeyMismatchError, match="two keys"):
        head.joined(other.public.encrypt(VALUES))
    with pytest.raises(KeyMismatchError):
        head.joined(exact.keygen(512, allow_insecure=True).public.encrypt(VALUES))
