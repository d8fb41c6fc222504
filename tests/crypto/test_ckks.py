"""CKKS against plain sums, against a textbook decryption in Python integers, and against its stated room and error."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.crypto import ckks, ckks_arrays, keys, paillier, residues, seal, sum_ciphers
from coterie.crypto.ckks_parameters import INSECURE, PARAMETERS, Milliseconds, ParameterSet
from coterie.protocol.errors import CapacityError, CryptoError, KeyMismatchError, UserError

ADD, MUL = (ckks.keygen(name, allow_insecure=True) for name in ("insecure-1024-add", "insecure-1024-mul"))
KEYS = {"add": ADD, "mul": MUL}
NAMES = ["ckks-4096-add", "ckks-8192-mul"]
N = 1024


def off(key, cipher, expected) -> float:
    """The largest error, as a share of the stated one."""
    bound = key.parameters.error(cipher.terms, cipher.tally.form)
    return float(np.abs(key.decrypt(cipher) - expected).max()) / bound


# ---- a textbook decryption: no FFT, no NTT, no SEAL


def centred(number: int, modulus: int) -> int:
    return number - modulus if number > modulus // 2 else number


def bits_reversed(index: int, bits: int) -> int:
    return int(format(index, f"0{bits}b")[::-1], 2)


def textbook(key, cipher) -> np.ndarray:
    """c0 + c1 s, interpolated from its values at the odd powers of a root of unity modulo q."""
    q = int(key.public.arrays.ring.moduli[0, 0])
    c0, c1 = (row[0].astype(object) for row in cipher.array[0])
    points = (c0 + c1 * key.arrays.secret[0].astype(object)) % q
    root = min(r for r in primitive_roots(q) if r)
    powers = [pow(root, i, q) for i in range(2 * N)]
    exponents = [2 * bits_reversed(i, 10) + 1 for i in range(N)]  # which power of the root SEAL's i-th value belongs to
    inverse = pow(N, -1, q)
    message = []
    for k in range(0, N, 37):  # some coefficients are enough: each depends on all values
        total = sum(int(points[i]) * powers[-exponents[i] * k % (2 * N)] for i in range(N))
        message.append(centred(total * inverse % q, q))
    return np.array(message, dtype=float)


def primitive_roots(q: int):
    """All primitive 2N-th roots of unity modulo q; SEAL takes the smallest."""
    g = next(r for r in (pow(x, (q - 1) // (2 * N), q) for x in range(2, 100)) if pow(r, N, q) == q - 1)
    return (pow(g, 2 * i + 1, q) for i in range(N))


def test_the_textbook_opens_ours():
    values = np.random.default_rng(1).uniform(-3, 3, N)
    cipher = ADD.public.encrypt(values)
    got = textbook(ADD, cipher) / 2.0**40
    expected = values[::37] / np.sqrt(N / 2)
    noise = np.sqrt((2 + 2 * N / 3) / 12) / 2**40  # of one coefficient
    assert np.abs(got - expected).max() < 8 * noise
    assert np.abs(got).max() > 1000 * noise


# ---- sums


@given(
    st.sampled_from(["add", "mul"]),
    st.one_of(st.sampled_from([1, 2, N - 1, N, N + 1, 2 * N + 1]), st.integers(1, 2500)),
    st.lists(st.tuples(st.booleans(), st.integers(1, 40)), min_size=1, max_size=5),
    st.integers(0, 2**32),
)
def test_sums_equal_plain_sums(which, length, clients, seed):
    key, rng = KEYS[which], np.random.default_rng(seed)
    values = rng.uniform(-64, 64, (len(clients), length))
    weights = np.array([weight for _, weight in clients])
    ciphers = []
    for (symmetric, weight), row in zip(clients, values, strict=True):
        cipher = (key if symmetric else key.public).encrypt(row).scale(weight)
        ciphers.append(key.public.from_bytes(cipher.to_bytes(), length, terms=weight, form=key.public.fresh))
    total = sum_ciphers(iter(ciphers)).add_plain(values[0])
    assert (total.length, total.terms, total.blinded) == (length, weights.sum() + 1, 0)
    assert off(key, total, weights @ values + values[0]) < 1


@pytest.mark.parametrize("key", [ADD, MUL], ids=["add", "mul"])
def test_the_whole_room_can_be_used_and_no_more(key):
    most = key.parameters.max_terms
    corners = np.full(N, 64.0)
    angles = np.pi * np.array([pow(3, j, 2 * N) for j in range(N // 2)]) / N  # largest first coefficient there is
    corners[0::2], corners[1::2] = 64 * np.sign(np.cos(angles)), 64 * np.sign(np.sin(angles))
    for values in (corners, -corners, np.full(N, 64.0), np.full(N, -64.0)):
        cipher = key.public.encrypt(values).scale(most)
        assert off(key, cipher, values * most) < 1
        for more in (lambda c=cipher: c + c, lambda c=cipher: c.scale(2), lambda c=cipher: c.add_plain(corners)):
            with pytest.raises(CapacityError, match=r"4097|8192"):
                more()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 64.0001, -1e300])
def test_values_that_do_not_fit(bad):
    values = np.zeros(7)
    values[4] = bad
    for action in (ADD.public.encrypt, ADD.encrypt, ADD.public.encrypt(np.zeros(7)).add_plain):
        with pytest.raises(CapacityError, match="index 4"):
            action(values)
    for scalar in (bad, -1.001):
        with pytest.raises(CapacityError, match="scalar"):
            MUL.public.encrypt_scalar(scalar)
    for shape in (np.zeros(0), np.zeros((2, 2)), np.zeros(3, dtype=complex)):
        with pytest.raises(CryptoError):
            ADD.public.encrypt(shape)


def test_what_must_not_be_mixed():
    other = ckks.keygen("insecure-1024-add", allow_insecure=True)
    a, b = ADD.public.encrypt([1.0, 2.0]), other.public.encrypt([1.0, 2.0])
    for misuse in (lambda: a + b, lambda: other.decrypt(a), lambda: ADD.decrypt(b)):
        with pytest.raises(KeyMismatchError):
            misuse()
    with pytest.raises(CryptoError, match="2 and 3"):
        a + ADD.public.encrypt([1.0, 2.0, 3.0])
    for weight in (0, -1, 0.5, True):
        with pytest.raises(CryptoError, match="integers"):
            a.scale(weight)
    with pytest.raises(CryptoError, match="compared"):
        assert a == a
    with pytest.raises(KeyMismatchError):
        ADD.decrypt(paillier.keygen(512, allow_insecure=True).public.encrypt([1.0]))


# ---- products


@given(
    st.integers(1, 2500),
    st.lists(st.tuples(st.integers(1, 3), st.floats(-1, 1)), min_size=1, max_size=4),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_sums_of_products_with_scalars(length, factors, symmetric, seed):
    values = np.random.default_rng(seed).uniform(-64, 64, (len(factors), length))
    key = MUL if symmetric else MUL.public
    products, expected, terms = [], np.zeros(length), 0
    for row, (at_most, share) in zip(values, factors, strict=True):
        products.append(MUL.public.encrypt(row).times(key.encrypt_scalar(at_most * share, at_most)))
        expected, terms = expected + row * share * at_most, terms + at_most
    total = sum_ciphers(products)
    assert total.terms == terms
    assert off(MUL, total, expected) < 1  # not rescaled: three polynomials
    small = total.rescaled()
    assert off(MUL, small, expected) < 1
    read = MUL.public.from_bytes(total.to_bytes(), length, terms=terms, form=small.tally.form)
    assert off(MUL, read + small, 2 * expected) < 1
    assert small.rescaled() is small
    assert off(MUL, total.add_plain(values[0]), expected + values[0]) < 1
    assert off(MUL, small.add_plain(values[0]).scale(3), 3 * (expected + values[0])) < 1


def test_products_use_the_whole_room():
    values = np.full(N, 64.0)
    full = MUL.public.encrypt(values).scale(64).times(MUL.public.encrypt_scalar(64.0, at_most=64))
    for product in (full, full.rescaled()):
        assert off(MUL, product, 64.0 * 4096) < 1
        with pytest.raises(CapacityError):
            product + product
    with pytest.raises(CapacityError):
        MUL.public.encrypt(values).scale(65).times(MUL.public.encrypt_scalar(1.0, at_most=64))


def test_scalars_are_vectors_of_one_value_that_add_up():
    a, b = MUL.public.encrypt_scalar(0.25), MUL.encrypt_scalar(-1.0)
    assert off(MUL, a + b, -0.75) < 1
    assert off(MUL, (a + b).scale(3).add_plain([0.5]), -1.75) < 1
    assert off(MUL, a.times(b).rescaled(), -0.25) < 1
    values = np.linspace(-1, 1, 1500)
    both = MUL.public.encrypt(values).times(a + b)
    assert both.terms == 2
    assert off(MUL, both, -0.75 * values) < 1


def test_products_that_are_refused():
    vector, scalar = MUL.public.encrypt([1.0, 2.0]), MUL.public.encrypt_scalar(0.5)
    product, other = vector.times(scalar), ckks.keygen("insecure-1024-mul", allow_insecure=True)
    for misuse, error, words in (
        (lambda: ADD.public.encrypt([1.0]).times(ADD.public.encrypt_scalar(1.0)), CapacityError, "no level"),
        (lambda: product.rescaled().times(scalar), CryptoError, "levels differ"),
        (lambda: product.times(scalar), CapacityError, "rescaled"),
        (lambda: product.rescaled().times(scalar.times(scalar).rescaled()), CapacityError, "no level"),
        (lambda: vector.times(vector), CryptoError, "encrypt_scalar"),
        (
            lambda: vector.times(other.encrypt_scalar(1.0)),
            KeyMismatchError,
            "two keys",
        ),
        (lambda: vector + product, CryptoError, "one form"),
        (lambda: product + product.rescaled(), CryptoError, "one form"),
        (lambda: MUL.public.encrypt([0.5]) + scalar, CryptoError, "one form"),
        (lambda: MUL.public.encrypt_scalar(0.5, at_most=0), CryptoError, "integers"),
        (lambda: MUL.public.encrypt_scalar(0.5, at_most=5000), CapacityError, "room"),
    ):
        with pytest.raises(error, match=words):
            misuse()


def test_a_set_without_room_for_masks_says_so():
    vector = ADD.public.encrypt([1.0])
    for action in (
        lambda: ADD.public.encrypt_blinded(None),
        lambda: ADD.public.mask(3, bytes),
        lambda: ADD.open_blinded(vector),
        lambda: vector.blind(None),
        lambda: vector.unblind(None, 1),
    ):
        with pytest.raises(CryptoError, match="Paillier"):
            action()


# ---- error


@pytest.mark.parametrize("name", NAMES)
def test_the_error_is_that_of_theory(name):
    key = ckks.keygen(name)
    values = np.random.default_rng(0).normal(0, 0.1, 40_000)
    scale = 2.0**key.parameters.scale_bits
    for symmetric in (False, True):
        errors = key.decrypt((key if symmetric else key.public).encrypt(values)) - values
        theory = key.parameters.deviation(scale, symmetric=symmetric)
        assert errors.std() == pytest.approx(theory, rel=0.06)
        assert abs(errors.mean()) < 5 * theory / 200
    if key.parameters.levels:
        product = key.encrypt(values).times(key.encrypt_scalar(1.0))
        exact = key.decrypt(product)
        errors = key.decrypt(product.rescaled()) - exact
        assert errors.std() == pytest.approx(key.parameters.deviation(2.0**40), rel=0.06)


def test_encryption_is_randomised():
    for encrypt in (ADD.public.encrypt, ADD.encrypt):
        a, b = (encrypt(np.zeros(20 * N)).array for _ in range(2))
        assert (a != b).mean() > 0.999
        spread = a[:, 1] / float(ADD.public.arrays.ring.moduli[0, 0])
        assert 0.487 < spread.mean() < 0.513  # 6 standard errors
        assert spread.std() == pytest.approx(12**-0.5, rel=0.02)


# ---- parameters


@pytest.mark.parametrize("name", NAMES)
def test_the_sets_are_what_they_say(name):
    parameters = PARAMETERS[name]
    # the standard's table for 128 bits and a ternary secret, written down independently
    assert sum(parameters.prime_bits) <= {4096: 109, 8192: 218}[parameters.degree]
    assert parameters.secure
    made = seal.ring(parameters)
    primes = [int(q) for q in made.moduli[:, 0]]
    assert [q.bit_length() for q in primes] == list(parameters.prime_bits)
    assert len(set(primes)) == len(primes)
    for level in range(parameters.levels + 1):
        modulus = np.prod([float(q) for q in primes[: level + 1]])
        form = parameters.fresh._replace(level=level)
        assert made.scale(form) == pytest.approx(parameters.scale(form), rel=1e-3)
        for product in (False, True) if level else (False,):
            scale = made.scale(form._replace(product=product))
            assert 2**0.5 * scale * parameters.reach * parameters.max_terms < modulus / 2


def test_sets_that_are_refused():
    times = Milliseconds(1, 1, 1)
    for arguments, words in (
        (("weak", 4096, (60, 50), 40, 6, 12), "insecure"),
        (("weak", 1024, (60, 49), 40, 6, 12), "insecure"),
        (("full", 4096, (60, 49), 45, 6, 12), "level 0"),
        (("full", 8192, (60, 50, 60), 47, 6, 12), "level 0: they need 63.5 bits"),
        (("full", 8192, (60, 40, 60), 81, 6, 12), "level 1: they need 100.5 bits"),
        (("odd", 5000, (60, 49), 40, 6, 12), "N is one of"),
        (("none", 4096, (60,), 40, 6, 12), "two primes"),
        (("wide", 8192, (61, 49), 40, 6, 12), "20 to 60"),
    ):
        with pytest.raises(UserError, match=words):
            ParameterSet(*arguments, times)
    for name in (*INSECURE, "ckks-1024-add", ""):
        with pytest.raises(UserError, match="ckks-4096-add"):
            ckks.keygen(name)
    every = (*PARAMETERS.values(), *INSECURE.values())
    assert len({p.identity for p in every}) == len(every)


def test_a_deeper_set_is_data():
    deep = ParameterSet("deep", 1024, (60, 40, 40, 60), 40, 2, 2, Milliseconds(1, 1, 1), secure=False)
    assert deep.levels == 2
    key = ckks.SecretKey(ckks_arrays.Secret.generate(deep, products=True))
    values, half = np.linspace(-4, 4, 1500), key.encrypt_scalar(0.5)
    once = key.encrypt(values).times(half).rescaled()
    again = once.times(half.times(half).rescaled()).rescaled()
    assert again.tally.form.level == 0
    np.testing.assert_allclose(key.decrypt(again), values / 8, atol=key.parameters.error(1, again.tally.form))


# ---- objects


def test_keys_and_vectors_are_immutable_and_tell_nothing():
    cipher = MUL.public.encrypt([1.5, -2.5])
    for thing in (MUL, MUL.public, cipher):
        assert copy.deepcopy(thing) is thing
        assert "2.5" not in repr(thing)
        assert str(int(MUL.arrays.secret[0, 0])) not in repr(thing)
    assert repr(MUL) == f"<SecretKey ckks insecure-1024-mul {MUL.fingerprint.hex()[:8]}>"
    assert repr(cipher).endswith("length 2 terms 1 masks 0 vector at level 1>")
    assert not MUL.emulated
    assert not MUL.public.emulated
    assert not cipher.emulated
    assert len({MUL, ADD, ckks.SecretKey.load(MUL.to_bytes(), allow_insecure=True)}) == 2


def again(thing):
    return pickle.loads(pickle.dumps(thing))  # noqa: S301


def test_pickles_work_and_keep_their_key():
    MUL.public.encrypt([1.0])  # with SEAL's objects made
    for thing in (MUL, MUL.public):
        assert again(thing) == thing
    product = MUL.public.encrypt([0.5, 0.25]).times(MUL.encrypt_scalar(1.0))
    assert off(MUL, again(product), [0.5, 0.25]) < 1


def test_sizes_and_times():
    for name in NAMES:
        key, parameters = ckks.keygen(name), PARAMETERS[name]
        for length in (1, parameters.degree, parameters.degree + 1):
            assert len(key.public.encrypt(np.zeros(length)).to_bytes()) == key.public.wire_bytes(length)
        count = -(-159_010 // parameters.degree)
        assert key.public.wire_bytes(159_010) == 40 + count * 2 * parameters.degree * (8 + 7 * parameters.levels)
        assert key.public.wire_bytes(159_010) <= (8.1 if parameters.levels else 4.1) * 4 * 159_010
        assert key.public.nominal_seconds_encrypt(159_010) == count * parameters.nominal.encrypt * 1e-3
        assert key.nominal_seconds_encrypt(1) == parameters.nominal.encrypt_symmetric * 1e-3
        assert key.nominal_seconds_decrypt(1) == parameters.nominal.decrypt * 1e-3
        assert key.public.nominal_seconds_times(1) == parameters.nominal.times * 1e-3
        assert key.public.nominal_seconds_rescale(1) == parameters.nominal.rescale * 1e-3
        if parameters.levels:
            product = key.public.encrypt(np.zeros(9000)).times(key.public.encrypt_scalar(1.0))
            form = product.rescaled().tally.form  # what travels, and the smaller one
            assert len(product.to_bytes()) == key.public.wire_bytes(9000, form) == 40 + 2 * 2 * 65536


def test_schemes_know_it():
    for emulated in (False, True):
        for name in NAMES:
            key = ckks.keygen(name, emulated=emulated, random_bytes=np.random.default_rng(0).bytes)
            assert key.emulated == emulated
            again, public = keys.secret_key(key.to_bytes()), keys.public_key(key.public.to_bytes())
            assert again == key
            assert public == key.public
            assert keys.public_key(key.public.to_bytes()) is public
            cipher = public.from_bytes(key.encrypt([1.0, 2.0]).to_bytes(), 2, terms=1, form=public.fresh)
            np.testing.assert_allclose(again.decrypt(cipher), [1.0, 2.0], atol=1e-6)
    with pytest.raises(UserError):
        ckks.keygen("paillier-2048", emulated=False, random_bytes=bytes)


# ---- residues and SEAL's files


@given(st.integers(0, 2**32), st.integers(1, 2**32 - 1), st.sampled_from([(60,), (60, 50), (49, 50, 60), (20, 61)]))
def test_residues_are_python_s_integers(seed, factor, bits):
    rng = np.random.default_rng(seed)
    moduli = np.array([[2**b - int(rng.integers(1, 2**18))] for b in bits], dtype=np.uint64)
    a, b = (rng.integers(0, 2**62, (3, 2, len(bits), 8)).astype(np.uint64) % moduli for _ in range(2))
    a[0, 0], b[0, 0] = moduli - np.uint64(1), moduli - np.uint64(1)
    a[1, 0], b[1, 0] = 0, 0
    x, y, q = (array.astype(object) for array in (a, b, moduli))
    assert (residues.add(a, b, moduli) == (x + y) % q).all()
    assert (residues.multiple(a, factor, moduli) == x * factor % q).all()
    assert (residues.product(a, b, moduli) == x * y % q).all()
    assert (residues.product(a, b[0, 0], moduli) == x * y[0, 0] % q).all()
    assert residues.valid(a, moduli)
    widths = [-(-width // 8) for width in bits]
    packed = b"".join(residues.pack(a, widths))
    assert len(packed) == 6 * 8 * sum(widths)
    assert (residues.unpack(packed, a.shape, widths) == a).all()
    assert packed[: widths[0]] == int(a[0, 0, 0, 0]).to_bytes(widths[0], "little")
    a[2, 1, -1, 7] = moduli[-1, 0]
    assert not residues.valid(a, moduli)


def test_without_files_in_memory(monkeypatch):
    monkeypatch.delattr(seal.os, "memfd_create")
    values = np.linspace(-1, 1, 3000)
    key = ckks.keygen("insecure-1024-mul", allow_insecure=True)
    product = key.public.encrypt(values).times(key.encrypt_scalar(0.5)).rescaled()
    assert off(key, product, values / 2) < 1
