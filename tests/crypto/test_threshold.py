"""A key that several parties hold shares of: opened is plain within the stated bound; its twin beside."""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tampering import flipped
from threshold_parts import MUL, SUM, N, answers, group, made, opened, seeds

from coterie.crypto import CiphertextError, ckks, ckks_arrays, fourier, residues, threshold_opening
from coterie.crypto import threshold as th
from coterie.crypto import threshold_generation as tg
from coterie.crypto.residues import lagrange
from coterie.crypto.threshold import handed
from coterie.protocol.codec import weighs
from coterie.protocol.errors import CryptoError, DecodeError, PeerError, UserError

BOTH = pytest.mark.parametrize("emulated", [False, True], ids=["real", "emulated"])


# ---- keys


def whole(shared) -> ckks.SecretKey:
    """The secret key that nobody holds."""
    total = None
    for each in shared.secrets.values():
        numbers = each.numbers[None]
        total = numbers if total is None else shared.group.plus(total, numbers)
    return ckks.SecretKey(ckks_arrays.Secret(total[0], shared.key.arrays))


def test_the_key_is_that_of_the_sum_of_all_secrets():
    shared = made(MUL, 3)
    key, space = whole(shared), shared.group.space
    values = np.random.default_rng(1).normal(0, 1, 2 * N + 5)
    np.testing.assert_allclose(key.decrypt(shared.key.encrypt(values)), values, atol=2 * space.error())
    half = shared.key.encrypt(values).times(shared.key.encrypt_scalar(0.5)).rescaled()  # relinearised
    np.testing.assert_allclose(key.decrypt(half), values / 2, atol=2 * space.error(1, half.tally.form))
    unit = values / np.linalg.norm(values)
    x = shared.key.encrypt(unit)
    dot = x.dot(x.conjugated(shared.evaluation), shared.evaluation, constant=True)  # conjugated by the joint key
    assert key.decrypt(dot)[0] == pytest.approx(1, abs=1e-6)


@BOTH
def test_every_part_is_needed_and_the_same_parts_give_the_same_key(emulated):
    shared = made(SUM, 3, emulated=emulated)
    parts = {name: each.public() for name, each in shared.secrets.items()}
    assert tg.joined(shared.group, dict(reversed(parts.items()))) == tg.joined(shared.group, parts)
    with pytest.raises(CryptoError, match="every holder"):
        tg.joined(shared.group, {name: parts[name] for name in shared.group.holders[1:]})
    with pytest.raises(CryptoError, match="stranger"):
        tg.joined(shared.group, {**parts, "stranger": parts["leader-1"]})


def test_a_part_is_committed_to_before_it_is_seen():
    data, nonce = made(SUM).secrets["leader-1"].public(), bytes(range(32))
    committed = tg.commitment(data, nonce)
    tg.revealed(committed, data, nonce)
    for other, salt in ((flipped(data), nonce), (data, bytes(32)), (data, nonce[:-1]), (b"", nonce)):
        with pytest.raises(PeerError, match="committed"):
            tg.revealed(committed, other, salt)
    assert tg.commitment(data, bytes(32)) != committed  # the same part twice can't be told


@BOTH
def test_a_dealer_s_key(emulated):
    for threshold in (0, 2):
        g = group(MUL, 3, threshold, emulated)
        key, evaluation, shares = tg.dealt(g, products=True)
        shared = made(MUL, 3, threshold, emulated)._replace(group=g, key=key, evaluation=evaluation, shares=shares)
        x = key.encrypt(np.full(40, 0.1))
        dot = x.dot(x.conjugated(evaluation), evaluation, constant=True)
        among = g.holders[: g.needed]
        assert opened(shared, dot, among)[0] == pytest.approx(0.4, abs=g.error(1, dot.tally.form))


# ---- opened is plain


@BOTH
@settings(max_examples=12)
@given(
    st.integers(0, 2**32),
    st.sampled_from([(2, 0), (3, 0), (5, 0), (4, 2), (5, 3)]),
    st.integers(1, 2500),
    st.sampled_from([1, 7, 4096]),
)
def test_weighted_sums_open_to_what_they_are(emulated, seed, shape, length, most):
    n, threshold = shape
    shared, rng = made(SUM, n, threshold, emulated), np.random.default_rng(seed)
    values = rng.normal(0, 1, (3, length)).clip(-60, 60)
    weights = [int(w) for w in rng.integers(1, most + 1, 3)]
    cipher = shared.key.encrypt(values[0]).scale(weights[0])
    for value, weight in zip(values[1:], weights[1:], strict=True):
        cipher = cipher + shared.key.encrypt(value).scale(weight)
    among = tuple(rng.permutation(shared.group.holders)[: shared.group.needed])
    found = opened(shared, cipher, among)
    np.testing.assert_allclose(found, np.array(weights) @ values, atol=shared.group.error(sum(weights)), rtol=0)
    assert found.dtype == np.float64


@BOTH
def test_products_and_scalars_open(emulated):
    shared = made(MUL, 3, emulated=emulated)
    g, key, keys = shared.group, shared.key, shared.evaluation
    values = np.random.default_rng(3).normal(0, 0.05, 3000)
    cipher = key.encrypt(values)
    for product in (cipher.times(key.encrypt_scalar(-0.5)), cipher.times(key.encrypt_scalar(-0.5)).rescaled()):
        np.testing.assert_allclose(opened(shared, product), -values / 2, atol=g.error(1, product.tally.form), rtol=0)
    dot = cipher.dot(cipher.conjugated(keys), keys, constant=True, at_most=16)
    assert abs(opened(shared, dot)[0] - values @ values) <= g.error(16, dot.tally.form)
    prepared = threshold_opening.server_dec(g, dot)
    assert len(answers(shared, prepared)["leader-1"]) < 100  # one number a prime: nothing else of the product is shown


@BOTH
def test_energies_open_as_one_number(emulated):
    shared = made("insecure-1024-high", 3, emulated=emulated)
    g, values = shared.group, np.random.default_rng(8).normal(0, 0.05, 3000)
    high, total = fourier.energies(values, N)
    cipher = shared.key.encrypt(values)
    for make, wanted, unit in ((fourier.high_energy, high, fourier.TAPS), (fourier.energy, total, 1)):
        energy = make(cipher, shared.evaluation)
        assert abs(opened(shared, energy)[0] - unit * wanted) <= g.error(energy.terms, energy.tally.form)
    np.testing.assert_allclose(opened(shared, cipher), values, atol=g.error(), rtol=0)


@pytest.mark.parametrize("emulated", [False, True])
def test_the_stated_deviation_is_that_of_real_errors_and_of_the_twin_s(emulated):
    shared = made(SUM, 4, emulated=emulated)
    g, values = shared.group, np.zeros(20 * N)
    error = opened(shared, shared.key.encrypt(values).scale(100))
    stated = g.error(100) / 10  # floodings decide it, and the bound is 10 of their deviations
    assert 0.9 < np.std(error) / stated < 1.1
    assert abs(np.mean(error)) < 5 * stated / np.sqrt(error.size)


def test_more_openings_more_noise():
    few, many = group(openings=100), group(openings=10_000)
    assert many.error() == pytest.approx(10 * few.error(), rel=1e-3)
    assert group(n=12).error() == pytest.approx(4 * group(n=3).error(), rel=0.02)  # more floodings, and a larger key


# ---- shares


@pytest.mark.parametrize("places", [(3, 4, 6, 7, 8), (1, 2, 3, 4, 5), (1, 3, 5, 7, 8), (8, 7, 6, 5, 4)])
@BOTH
def test_any_five_of_eight_open(places, emulated):
    """With 3, 4, 6, 7, 8 no Lagrange coefficient is an integer, so noise must not be multiplied by them."""
    shared = made(SUM, 8, 5, emulated)
    values = np.random.default_rng(4).normal(0, 1, 1500)
    among = tuple(f"leader-{place}" for place in places)
    np.testing.assert_allclose(
        opened(shared, shared.key.encrypt(values), among), values, atol=shared.group.error(among=5), rtol=0
    )


def test_coefficients_that_multiply_noise_would_spoil_it():
    """The order that is wrong: noise first, coefficients after. The set 3, 4, 6, 7, 8 shows it, as 1 to 5 don't."""
    g = group(SUM, 8, 5)
    prime = int(g.moduli(1)[0, 0])

    def worst(places):
        sizes = [int(lagrange(place, places, g.moduli(1))[0, 0]) for place in places]
        return max(min(size, prime - size) for size in sizes)

    assert worst((1, 2, 3, 4, 5)) == comb(5, 2)
    assert worst((3, 4, 6, 7, 8)) > 2**40


@given(st.data())
def test_any_t_of_n_shares_add_up_handed_over_again_and_again(data):
    """The algebra alone, on one number a prime."""
    n = data.draw(st.integers(2, 12))
    g = group(SUM, n, data.draw(st.sampled_from([0, *range(2, n + 1)])), True)
    own = tg.secret(g)
    parts, senders, rounds = {name: {"": part} for name, part in handed(g, own.numbers, ("",)).items()}, g, 0
    while True:
        shares = {name: th.gathered(senders, name, parts[name]) for name in senders.holders}
        among = tuple(
            data.draw(st.permutations(senders.holders))[: data.draw(st.integers(senders.needed, len(senders.holders)))]
        )
        total = np.zeros((1, g.limbs, 1), dtype=np.uint64)
        for name in among:
            total = g.plus(total, shares[name].additive(name, among)[None])
        assert (total[0] == own.numbers).all()
        if (rounds := rounds + 1) == 3:
            return
        m = data.draw(st.integers(2, 6))
        later = senders.handed(
            tuple(f"{rounds}-{k}" for k in range(m)), b"%d" % rounds, data.draw(st.sampled_from([0, *range(2, m + 1)]))
        )
        given_on = {name: shares[name].handed(name, among, later) for name in among}
        parts = {name: {old: given_on[old][name] for old in among} for name in later.holders}
        senders = later


def test_fewer_than_t_shares_say_nothing():
    """For any t - 1 shares and any key there is a polynomial: the next share is as good as uniform."""
    shared = made(SUM, 5, 3)
    g, (prime, *_) = shared.group, (int(p) for p in shared.group.moduli(3)[:, 0])
    for names in combinations(g.holders, 3):
        total = np.zeros((1, g.limbs, N), dtype=np.uint64)
        for name in names:
            total = g.plus(total, shared.shares[name].additive(name, names)[None])
        assert (total[0] == whole(shared).arrays.secret[: g.limbs]).all()
    share = shared.shares["leader-1"].numbers[0].astype(np.float64) / prime
    assert abs(share.mean() - 0.5) < 0.05
    assert np.histogram(share, 8, (0, 1))[0].min() > 70
    with pytest.raises(UserError, match="takes 3"):
        opened(shared, shared.key.encrypt(np.ones(3)), g.holders[:2])


@BOTH
@pytest.mark.parametrize(("before", "after"), [(0, 0), (0, 2), (3, 0), (3, 4)])
def test_shares_are_handed_over(emulated, before, after):
    shared = made(SUM, 4, before, emulated)
    among = shared.group.holders[1 : 1 + before] if before else shared.group.holders
    new = shared.group.handed(("leader-4", "x", "y", "z"), b"second", after)
    parts = {name: shared.shares[name].handed(name, among, new) for name in among}
    shares = {name: th.gathered(new, name, {old: parts[old][name] for old in among}) for name in new.holders}
    later = shared._replace(group=new, shares=shares, zeros=seeds(new.holders))
    values = np.random.default_rng(5).normal(0, 1, 1100)
    cipher = shared.key.encrypt(values)
    np.testing.assert_allclose(opened(later, cipher, new.holders[: new.needed]), values, atol=new.error(), rtol=0)
    np.testing.assert_allclose(opened(shared, cipher, among), values, atol=shared.group.error(), rtol=0)  # unerased
    with pytest.raises(DecodeError, match="not all"):
        th.gathered(new, "x", {old: parts[old]["x"] for old in among[1:]})


@BOTH
def test_old_and_new_shares_don_t_add_up(emulated):
    shared = made(SUM, 3, emulated=emulated)
    g = shared.group
    new = g.handed(g.holders, b"refreshed")
    parts = {name: each.handed(name, g.holders, new) for name, each in shared.shares.items()}
    fresh = {name: th.gathered(new, name, {old: parts[old][name] for old in parts}) for name in g.holders}
    mixed = {**fresh, "leader-2": th.Share(new, shared.shares["leader-2"].numbers)}
    cipher = shared.key.encrypt(np.ones(100))
    np.testing.assert_allclose(opened(shared._replace(group=new, shares=fresh), cipher), 1, atol=new.error())
    with pytest.raises(CiphertextError, match="nonsense"):
        opened(shared._replace(group=new, shares=mixed), cipher)
    with pytest.raises(CryptoError, match="another group"):
        opened(shared._replace(group=new), cipher)
    with pytest.raises(UserError, match="another label"):
        shared.shares["leader-1"].handed("leader-1", g.holders, g)


def test_shares_of_zero_are_uniform_and_add_up_to_nothing():
    g, zeros = group(), seeds(group().holders)
    shape, total = (2, 2, N), np.zeros((2, 2, N), dtype=np.uint64)
    for name in g.holders:
        ours = zeros[name].share(g, g.holders, bytes(16), shape)
        assert abs((ours[:, 0] / float(g.moduli(1)[0, 0])).mean() - 0.5) < 0.05
        assert (ours != zeros[name].share(g, g.holders, bytes(15) + b"1", shape)).any()
        total = g.plus(total, ours)
    assert not total.any()


# ---- the twin


def test_the_twin_weighs_what_is_real():
    real, twin = made(MUL, 3), made(MUL, 3, emulated=True)
    values = np.ones(2500)
    for shared in (real, twin):
        assert shared.key.emulated == (shared is twin)
    pairs = []
    for shared in (real, twin):
        own, cipher = shared.secrets["leader-1"], shared.key.encrypt(values)
        first, ephemeral = own.first()
        firsts = {name: each.first()[0] for name, each in shared.secrets.items()}
        new = shared.group.handed(("a", "b"), b"other")
        prepared = threshold_opening.server_dec(shared.group, cipher)
        pairs.append(
            (
                *(own.public(), first, own.second(ephemeral, firsts), own.galois([3, 5]), own.to_bytes()),
                *(
                    shared.shares["leader-1"].to_bytes(),
                    shared.shares["leader-1"].handed("leader-1", shared.group.holders, new)["a"],
                ),
                *(cipher.to_bytes(), prepared.request.to_bytes(), answers(shared, prepared)["leader-1"]),
            )
        )
    assert [weighs(x) for x in pairs[0]] == [weighs(x) for x in pairs[1]]
    assert [len(x) for x in pairs[0]] == [weighs(x) for x in pairs[0]]


def test_the_twin_repeats():
    def run():
        g, random = group(SUM, 3, 2, True), iter(range(1000)).__next__

        def draw(n):
            return bytes([random() % 256]) * n

        own = {name: tg.secret(g, draw) for name in g.holders}
        key = tg.joined(g, {name: each.public() for name, each in own.items()})
        dealt = {name: each.dealt(draw) for name, each in own.items()}
        shares = {name: th.gathered(g, name, {other: dealt[other][name] for other in own}) for name in own}
        zeros = {a: th.Zero(a, {b: bytes(32) for b in own if b != a}) for a in own}
        prepared = threshold_opening.server_dec(g, key.encrypt(np.ones(10)), random_bytes=draw)
        request, among = prepared.request, g.holders[:2]
        sent = {
            k: threshold_opening.partial(g, shares[k], request, k, among, zeros[k], th.Answered())[0] for k in among
        }
        return key, sent, threshold_opening.opened(g, prepared, sent)

    (key, sent, values), (again, resent, repeated) = run(), run()
    assert key == again
    assert sent == resent
    assert (values == repeated).all()


# ---- the paper's Enc


def test_the_paper_s_enc_opens_to_the_message_times_the_key():
    """OFL, section 4.3: Enc adds the message to the component that FinDec multiplies by the key."""
    shared = made(SUM, 3)
    g, form = shared.group, shared.group.space.fresh
    values = np.random.default_rng(6).normal(0, 1e-3, N)
    zero = shared.key.encrypt(np.zeros(N))
    message = g.ring.encoded(values, form)
    literal = zero.array.copy()
    literal[:, 1] = residues.add(literal[:, 1], message, g.ring.moduli_at(form.level))
    found = opened(shared, ckks.CipherVector(shared.key, zero.tally, literal))
    secret = np.zeros((1, form.level + 1, N), dtype=np.uint64)
    for each in shared.secrets.values():
        secret = g.plus(secret, each.numbers[None, : form.level + 1])
    product = g.times(message, secret)  # m s
    wanted = g.ring.decoded(product, g.ring.unit(form)).ravel()
    np.testing.assert_allclose(found, wanted, atol=g.error(64))
    assert np.abs(found - values).max() > 5 * np.abs(values).max()
    assert abs(np.corrcoef(found, values)[0, 1]) < 0.15
