"""CKKS products, levels and dot products against plain numbers, exact scales, stated errors and room."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from functools import partial

import gmpy2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.crypto import ckks, residues, sum_ciphers
from coterie.crypto.ckks_parameters import INSECURE, PARAMETERS, Milliseconds, ParameterSet
from coterie.crypto.seal import ring
from coterie.crypto.tally import Form
from coterie.protocol.errors import CapacityError, CryptoError, KeyMismatchError, UserError

N = 1024
KEY = ckks.keygen("insecure-1024-deep", allow_insecure=True)
KEYS = KEY.evaluation()
LONG = ckks.keygen("insecure-1024-long", allow_insecure=True)
P = KEY.parameters
R = [P.added(level) for level in range(4)]  # r_l of the stated bounds


def unit(rng, length):
    vector = rng.normal(size=length)
    return vector / np.linalg.norm(vector)


def off(cipher, expected, key=KEY) -> float:
    return float(np.abs(key.decrypt(cipher) - expected).max())


# ---- dot products


@given(
    st.one_of(st.sampled_from([1, 2, 3, N - 1, N, N + 1, 5 * N + 3]), st.integers(1, 4000)),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 2**32),
)
def test_dot_products_equal_plain_ones(length, level, ours, theirs, seed):
    rng = np.random.default_rng(seed)
    v = [unit(rng, length) for _ in range(ours)]
    a = [unit(rng, length) for _ in range(theirs)]
    left = sum_ciphers(KEY.public.encrypt(row, level) for row in v)
    right = sum_ciphers(KEY.public.encrypt(row, level) for row in a)
    dot = left.dot(right.conjugated(KEYS), KEYS)
    assert (dot.length, dot.terms, dot.tally.form) == (1, ours * theirs, Form(level - 1, scalar=True))
    bound = 4 * ours * theirs * R[level] + R[level - 1]  # norms are at most the terms; errors ours * r and theirs * 3 r
    assert off(dot, np.sum(v, axis=0) @ np.sum(a, axis=0)) < bound


def test_a_dot_product_with_itself_and_its_corners():
    """All the mass in one slot, in half of one, alternating, in the last ciphertext: nothing is lost or doubled."""
    for length, places in ((1, [0]), (N, [1]), (N, [0, 1]), (N, range(0, N, 2)), (3 * N, range(2 * N, 3 * N))):
        values = np.zeros(length)
        values[list(places)] = 1 / math.sqrt(len(places))
        values[list(places)[::2]] *= -1
        cipher = KEY.public.encrypt(values)
        prepared = cipher.conjugated(KEYS)
        assert off(cipher.dot(prepared, KEYS), 1.0) < 5 * R[3] + R[2]
        turned = np.zeros(length)  # orthogonal to the values
        turned[0::2], turned[1::2] = -values[1::2] if length > 1 else 0.0, values[0::2][: length // 2]
        if length > 1:
            assert off(KEY.public.encrypt(turned).dot(prepared, KEYS), 0.0) < 5 * R[3] + R[2]


def test_a_dot_product_is_a_constant():
    """Other coefficients would mix into whatever it is multiplied by."""
    rng = np.random.default_rng(5)
    v, a = unit(rng, 2 * N), unit(rng, 2 * N)
    dot = KEY.public.encrypt(v).dot(KEY.public.encrypt(a).conjugated(KEYS), KEYS)
    made = KEY.public.arrays.ring
    coefficients = made.decoded(KEY.arrays._plain(dot.array), made.unit(dot.tally.form)).ravel()
    assert np.abs(coefficients - np.eye(1, N)[0] * (v @ a)).max() < 5 * R[3] + R[2]
    as_vector = KEY.public.encrypt(np.full(N, 2.0), dot.tally.form.level)
    assert off(as_vector.times(dot).rescaled(), 2 * (v @ a)) < 30 * R[3]


def test_halves_modulo_a_prime():
    """The trick behind it: x / 2 modulo odd primes, of even and odd x."""
    moduli = KEY.public.arrays.ring.moduli
    numbers = np.array([[0, 1, 2, 3, int(q) - 1, int(q) - 2] for q in moduli.ravel()], dtype=np.uint64)
    halves = residues.halved(numbers, moduli)
    for row, half, q in zip(numbers.tolist(), halves.tolist(), moduli.ravel().tolist(), strict=True):
        assert half == [x * pow(2, -1, q) % q for x in row]


def test_products_of_scalars_and_of_many_levels():
    x, y = KEY.public.encrypt_scalar(-0.75), KEY.public.encrypt_scalar(0.5)
    once = x.times(y).rescaled()
    again = once.times(once).rescaled()
    assert (again.tally.form, again.terms) == (Form(1, scalar=True), 1)
    assert off(again, 0.140625) < 8 * R[1]
    vector = KEY.public.encrypt(np.linspace(-4, 4, 1500)).at_level(1).times(again).rescaled()
    assert off(vector, np.linspace(-4, 4, 1500) * 0.140625) < 60 * R[1]


# ---- plaintext numbers, levels, exact scales


@given(
    st.one_of(
        st.sampled_from([0.0, 1.0, -1.0, 2.0**-36, 2.0**-38, -1e-9, 3.7, -256.0, 1000.0]),
        st.floats(-20, 20, allow_nan=False),
    ),
    st.integers(1, 3),
    st.booleans(),
)
def test_products_with_numbers(number, level, scalar):
    largest = 0.25 if abs(number) > 16 else 1.0
    values = np.array([largest]) if scalar else np.linspace(-largest, largest, 1500)
    cipher = KEY.public.encrypt_scalar(largest, level=level) if scalar else KEY.public.encrypt(values, level)
    error = off(cipher, values)
    product = cipher.times_plain(number)
    assert product.tally.form == Form(level - 1, scalar)
    assert product.terms == max(1, math.ceil(abs(number)))
    bound = abs(number) * error + largest * 2.0**-36 + R[level - 1]
    assert off(product, number * values) < bound
    if scalar:
        assert cipher.times_plain(number, at_most=3000).terms == 3000


@pytest.mark.parametrize("key", [KEY, LONG], ids=["deep", "long"])
def test_every_way_leads_to_one_scale(key):
    """A relative difference of scales would show in the mean of many equal values, where the noise averages out.

    Without the exact products, a vector lowered by dropping primes is off by 1e-5 and more. The factor 1 has encryption
    noise of its own, 3e-9, which moves all values alike.
    """
    high = key.parameters.levels
    values = np.full(8 * N, 4.0)
    fresh = key.encrypt(values)
    one = key.encrypt_scalar(1.0)
    ways = {
        "one step": lambda c: c.at_level(high - 3),
        "three steps": lambda c: c.at_level(high - 1).at_level(high - 2).at_level(high - 3),
        "numbers": lambda c: c.times_plain(0.5).times_plain(0.5).times_plain(4.0),
        "products": lambda c: c.times(one).rescaled().times_plain(1.0).times(one.at_level(high - 2)).rescaled(),
        "fresh": lambda c: key.encrypt(values, high - 3),
    }
    for name, way in ways.items():
        cipher = way(fresh)
        assert cipher.tally.form.level == high - 3, name
        assert abs(key.decrypt(cipher).mean() / 4 - 1) < 3e-8, name
    lowest = fresh.at_level(0)
    assert abs(key.decrypt(lowest).mean() / 4 - 1) < 2e-9


def test_scales_follow_the_recursion_and_long_chains_stay_near():
    for key in (KEY, LONG):
        made, exact = key.public.arrays.ring, Decimal(2**36)
        for level in range(key.parameters.levels, -1, -1):
            assert made.scale(Form(level)) == pytest.approx(float(exact), rel=1e-10)
            assert made.scale(Form(level, product=True)) == pytest.approx(float(exact) ** 2, rel=1e-9)
            assert abs(float(exact) / 2**36 - 1) < 2e-3
            with localcontext(prec=60):
                exact = exact * exact / int(made.moduli[level, 0])


@pytest.mark.parametrize("name", ["ckks-32768-deep", "insecure-1024-long"])
def test_the_primes_of_long_chains(name):
    from coterie.crypto.seal import _chain

    parameters = (PARAMETERS | INSECURE)[name]
    primes = [modulus.value() for modulus in _chain(parameters)]
    assert len(set(primes)) == len(primes) == 23
    assert all(gmpy2.is_prime(q) and q % (2 * parameters.degree) == 1 for q in primes)
    assert math.prod(primes).bit_length() <= 881
    assert min(primes[1:-1]) < 2**36 < max(primes[1:-1])
    for prime, size in zip(primes, parameters.residue_bytes, strict=True):
        assert prime < 256**size


def test_fresh_vectors_at_lower_levels():
    values = np.linspace(-4, 4, 3000)
    sizes = []
    for level in range(4):
        for encryptor in (KEY, KEY.public):
            cipher = encryptor.encrypt(values, level)
            assert cipher.tally.form == Form(level)
            assert off(cipher, values) < R[level]
        data = cipher.to_bytes()
        sizes.append(len(data))
        assert len(data) == KEY.public.wire_bytes(3000, Form(level))
        back = KEY.public.from_bytes(data, 3000, form=Form(level))
        assert off(back + KEY.public.encrypt(values).at_level(level), 2 * values) < 3 * R[level]
    widths = np.cumsum([7, 5, 5, 5])
    assert [size - 40 for size in sizes] == [int(w) * 2 * 3 * N for w in widths]
    for level in (-1, 4):
        for action in (partial(KEY.public.encrypt, values), partial(KEY.encrypt_scalar, 0.5, 1)):
            with pytest.raises(CryptoError, match="levels 0 to 3"):
                action(level)


def test_scalars_take_plain_numbers_of_any_size_as_terms():
    cipher = KEY.public.encrypt_scalar(0.5).add_plain([-3.0])
    assert (cipher.terms, off(cipher, -2.5) < R[3] + 1e-9) == (4, True)
    assert cipher.add_plain([0.001]).terms == 5
    assert off(cipher.times_plain(0.25, at_most=1).add_plain([1.0]), 0.375) < R[2] + R[3]
    product = KEY.public.encrypt_scalar(0.5).times(KEY.public.encrypt_scalar(0.5)).add_plain([-3.0])
    assert off(product, -2.75) < 3 * R[3]
    for bad in (np.nan, np.inf):
        with pytest.raises(CapacityError, match="index 0"):
            cipher.add_plain([bad])
    with pytest.raises(CapacityError, match="room"):
        cipher.add_plain([2.0**25])


# ---- room


def test_room_is_where_the_modulus_is():
    assert [P.room(Form(level, scalar=True)) for level in range(4)] == [2**12, 2**24, 2**24, 2**24]
    assert P.room(Form(1, scalar=True, product=True)) == 2**12
    assert [P.room(Form(level)) for level in range(4)] == [2**10] * 4
    for level, most in ((0, 2**12), (1, 2**24), (3, 2**24)):
        cipher = KEY.public.encrypt_scalar(0.9 * most, at_most=most, level=level)
        assert off(cipher, 0.9 * most) < R[level] + most * 2.0**-36
        assert KEY.public.from_bytes(cipher.to_bytes(), 1).terms == most
        for more in (lambda c=cipher: c + c, lambda c=cipher: c.add_plain([1.0])):
            with pytest.raises(CapacityError, match=f"room for {most}"):
                more()
        with pytest.raises(CapacityError, match="room"):
            KEY.public.encrypt_scalar(0.0, at_most=most + 1, level=level)
    large = KEY.public.encrypt_scalar(5000.0, at_most=5000, level=1)
    for too_much in (lambda: large.at_level(0), lambda: large.times_plain(1.0), lambda: large.times(large)):
        with pytest.raises(CapacityError, match="room for 4096"):
            too_much()
    assert off(large.times_plain(0.1, at_most=500), 500.0) < 1e-5


def test_the_whole_room_of_the_lowest_level_can_be_used():
    angles = np.pi * np.array([pow(3, j, 2 * N) for j in range(N // 2)]) / N
    corners = np.empty(N)  # largest first coefficient there is
    corners[0::2], corners[1::2] = 4 * np.sign(np.cos(angles)), 4 * np.sign(np.sin(angles))
    for values in (corners, -corners, np.full(N, 4.0)):
        cipher = KEY.public.encrypt(values).at_level(0).scale(P.max_terms)
        assert off(cipher, values * P.max_terms) < P.error(P.max_terms, cipher.tally.form)
        product = KEY.public.encrypt(values, 1).scale(P.max_terms).times(KEY.public.encrypt_scalar(1.0, level=1))
        assert off(product.rescaled(), values * P.max_terms) < P.error(P.max_terms, cipher.tally.form)


def test_terms_that_the_caller_answers_for():
    values = np.linspace(-1, 1, 1500)
    cipher = KEY.public.encrypt(values, 0).scale(P.max_terms)
    with pytest.raises(CapacityError):
        cipher + cipher
    less = KEY.public.encrypt(values, 0).within(3).scale(2)
    assert (less.terms, off(less, 2 * values) < 2 * R[0]) == (6, True)
    for bad in (0, 0.5, -1):
        with pytest.raises(CryptoError, match="integers"):
            cipher.within(bad)
    with pytest.raises(CapacityError, match="room"):
        cipher.within(P.max_terms + 1)


def test_sets_are_checked():
    nominal = Milliseconds(1, 1, 1)
    for bits, words in (((50, 36, 36, 36, 36, 60), "insecure"), ((48, 36, 60), "fit")):
        with pytest.raises(UserError, match=words):
            ParameterSet("x", 8192, bits, 36, 2, 10, nominal)
    assert sum(PARAMETERS["ckks-8192-deep"].prime_bits) == 218
    assert sum(PARAMETERS["ckks-32768-deep"].prime_bits) <= 881
    names = [p.identity for p in (*PARAMETERS.values(), *INSECURE.values())]
    assert len(set(names)) == len(names)


# ---- misuse


def test_what_must_not_be_mixed():
    other = ckks.keygen("insecure-1024-deep", allow_insecure=True)
    vector, scalar = KEY.public.encrypt(np.ones(9)), KEY.public.encrypt_scalar(0.5)
    prepared, low = vector.conjugated(KEYS), vector.at_level(0)
    product = vector.times(scalar)
    for misuse, error, words in (
        (lambda: vector.dot(vector, KEYS), CryptoError, "conjugated"),
        (lambda: prepared.dot(prepared, KEYS), CryptoError, "conjugated"),
        (lambda: scalar.dot(prepared, KEYS), CryptoError, "conjugated"),
        (lambda: vector.at_level(2).dot(prepared, KEYS), CryptoError, "at_level"),
        (lambda: product.dot(prepared, KEYS), CapacityError, "rescaled"),
        (lambda: product.conjugated(KEYS), CapacityError, "rescaled"),
        (lambda: prepared.conjugated(KEYS), CryptoError, "once"),
        (lambda: scalar.conjugated(KEYS), CryptoError, "vector"),
        (lambda: KEY.public.encrypt(np.ones(8)).dot(prepared, KEYS), CryptoError, "8 and 9"),
        (lambda: other.public.encrypt(np.ones(9)).dot(prepared, other.evaluation()), KeyMismatchError, "two keys"),
        (lambda: vector.dot(prepared, other.evaluation()), KeyMismatchError, "doesn't fit"),
        (lambda: vector.conjugated(other.evaluation()), KeyMismatchError, "doesn't fit"),
        (lambda: vector.conjugated(KEY.public), KeyMismatchError, "no evaluation key"),
        (lambda: vector.dot(prepared, None), KeyMismatchError, "no evaluation key"),
        (lambda: low.conjugated(KEYS), CapacityError, "no level"),
        (lambda: low.times_plain(0.5), CapacityError, "no level"),
        (lambda: prepared.add_plain(np.ones(9)), CryptoError, "before it is conjugated"),
        (lambda: vector.times_plain(1e60, at_most=1), CapacityError, "too large a factor"),
        (lambda: vector.times_plain(-1e60, at_most=1), CapacityError, "too large a factor"),
        (lambda: low.times(KEY.public.encrypt_scalar(0.5, level=0)), CapacityError, "no level"),
        (lambda: product.times_plain(0.5), CapacityError, "rescaled"),
        (lambda: low.at_level(1), CapacityError, "only go down"),
        (lambda: vector.at_level(-1), CapacityError, "only go down"),
        (lambda: vector + low, CryptoError, "one form"),
        (lambda: vector + prepared, CryptoError, "one form"),
        (lambda: low.times(scalar), CryptoError, "levels differ"),
        (lambda: prepared.to_bytes(), CryptoError, "half of a dot"),
        (lambda: KEY.decrypt(prepared), CryptoError, "half of a dot"),
        (lambda: vector.times(scalar, at_most=0), CryptoError, "integers"),
        (lambda: vector.times_plain(0.5, at_most=1.5), CryptoError, "integers"),
        (lambda: vector.times_plain(math.nan), CryptoError, "nan"),
        (lambda: vector.times_plain("half"), CryptoError, "finite number"),
    ):
        with pytest.raises(error, match=words):
            misuse()
    assert off(product.at_level(1), 0.5) < 8 * R[1]  # rescaled on the way
    assert low.at_level(0) is low


def test_keys_without_products():
    small = ckks.keygen("insecure-1024-deep", products=False, allow_insecure=True)
    assert len(small.public.to_bytes()) == 20 + 2 * N * 30
    assert len(KEY.public.to_bytes()) == 20 + 5 * 2 * N * 30
    vector = small.public.encrypt([0.5], 1)
    for misuse in (lambda: vector.times(small.public.encrypt_scalar(0.5, level=1)), small.evaluation):
        with pytest.raises(CryptoError, match="without products"):
            misuse()
    assert off(vector.times_plain(0.5), 0.25, small) < 2 * R[0]
    for key in (small, ckks.SecretKey.load(small.to_bytes(), allow_insecure=True)):
        assert not key.public.products
        assert off(vector, 0.5, key) < R[1]

    slim = KEY.public.without_products()
    assert slim == KEY.public
    assert slim.fingerprint == KEY.fingerprint
    assert ckks.PublicKey.load(slim.to_bytes(), allow_insecure=True).fingerprint == KEY.fingerprint
    received = KEY.public.from_bytes(slim.encrypt(np.full(9, 1 / 3)).to_bytes(), 9, form=KEY.public.fresh)
    assert off(received.dot(received.conjugated(KEYS), KEYS), 1.0) < 5 * R[3]
    with pytest.raises(CryptoError, match="without products"):
        slim.encrypt([1.0]).times(slim.encrypt_scalar(1.0))


# ---- a long computation


def minimum_of_half(c, iterations):
    """Algorithm 1 of PAFed with a = (1 + c) / 2, b = 1 / 2 in plain numbers: |c| / 4 as it approximates it."""
    y = c / 4
    m, n = y * y, y * y - 1
    for _ in range(iterations):
        m, n = m * (1 - n / 2), n * n * ((n - 3) / 4)
    return m


def test_twenty_products_in_a_row():
    """Algorithm 1's seven iterations under encryption, from level 21 down, against plain numbers."""
    key = LONG.public
    for c in (-0.9, -0.05, 0.01, 0.6):
        y = key.encrypt_scalar(c).times_plain(0.25, at_most=1)
        m = y.times(y, at_most=1).rescaled()
        n = m.add_plain([-1.0])
        for _ in range(7):
            factor = n.times_plain(-0.5, at_most=1).add_plain([1.0])
            m = m.at_level(factor.tally.form.level).times(factor, at_most=1).rescaled()
            square = n.times(n, at_most=1).rescaled()
            n = square.times(n.add_plain([-3.0]).times_plain(0.25, at_most=1), at_most=1).rescaled()
        assert (m.tally.form.level, n.tally.form.level) == (5, 5)
        assert off(m, minimum_of_half(c, 7), LONG) < 1e-5


# ---- the sets that are used


@pytest.mark.parametrize("name", ["ckks-8192-deep"])
def test_the_real_set(name):
    key = ckks.keygen(name)
    keys, rng = key.evaluation(), np.random.default_rng(3)
    v, a = unit(rng, 20_000), unit(rng, 20_000)
    ours, theirs = key.public.encrypt(v), key.public.encrypt(a)
    prepared = theirs.conjugated(keys)
    r = [key.parameters.added(level) for level in range(4)]
    dot = ours.dot(prepared, keys)
    assert off(dot, v @ a, key) < 4 * r[3] + r[2]
    square = theirs.dot(prepared, keys)
    product = dot.times(square).rescaled()
    assert off(ours.at_level(1).times(product).rescaled(), v * (v @ a), key) < 8 * r[0]


@pytest.mark.long
def test_the_long_set():
    key = ckks.keygen("ckks-32768-deep")
    keys, rng = key.evaluation(), np.random.default_rng(3)
    v, a = unit(rng, 40_000), unit(rng, 40_000)
    dot = key.public.encrypt(v).dot(key.public.encrypt(a).conjugated(keys), keys)
    assert off(dot, v @ a, key) < 5 * key.parameters.added(20)
    assert off(dot.at_level(1).times_plain(0.5), v @ a / 2, key) < 5 * key.parameters.added(0)


def test_rings_are_shared():
    assert ring(P) is KEY.public.arrays.ring
