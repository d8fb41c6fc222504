"""What protects a shared key, left out: the key is read. With it: the attack does no better than guessing."""

from __future__ import annotations

import numpy as np
import pytest
from joint_keys import from_answers
from threshold_parts import SUM, N, answers, made, opened

from coterie.crypto import threshold_opening, threshold_pads
from coterie.crypto.threshold import Group
from coterie.privacy.attacks.joint_key import likeliest
from coterie.privacy.attacks.key_in_sum import coefficients, forged, key_agreement


def from_sum(group, change, share):
    """The likeliest secret, from by how much the opened values of a forged ciphertext are other than expected."""
    return likeliest(group, coefficients(change, group.space) * share)


def truth(shared):
    """(N,) coefficients of the secret that nobody holds."""
    g = shared.group
    total = None
    for each in shared.secrets.values():
        numbers = each.numbers[None, : g.limbs]
        total = numbers if total is None else g.plus(total, numbers)
    return from_answers(g, np.ones_like(total), [total])


def no_better_than_guessing(guess, secret):
    """Within three standard errors of the best constant guess, or below it."""
    result = key_agreement(guess, secret)
    return result.value - result.chance < 3 * np.sqrt(result.chance * (1 - result.chance) / N)


def total(shared, prepared):
    """What all answers add up to: the view of the server."""
    return threshold_opening.read_answers(shared.group, prepared, answers(shared, prepared), shared.group.holders)[0]


def seen(shared, prepared):
    """c_1 s with what was added: the answers alone."""
    return shared.group.minus(total(shared, prepared), prepared.c0)


def test_the_truth_is_a_sum_of_ternary_polynomials():
    secret = truth(made(SUM, 3))
    counts = np.bincount(secret + 3, minlength=7) / N
    np.testing.assert_allclose(counts, np.array([1, 3, 6, 7, 6, 3, 1]) / 27, atol=0.05)


def test_answers_without_flooding_are_the_key(monkeypatch):
    shared = made(SUM, 3)
    secret, cipher = truth(shared), shared.key.encrypt(np.ones(N))
    prepared = threshold_opening.server_dec(shared.group, cipher)
    assert no_better_than_guessing(from_answers(shared.group, prepared.request.c1, [seen(shared, prepared)]), secret)
    monkeypatch.setattr(Group, "flood", lambda *_, **__: 0.0)
    prepared = threshold_opening.server_dec(shared.group, cipher)
    guess = from_answers(shared.group, prepared.request.c1, [seen(shared, prepared)])
    assert key_agreement(guess, secret).value == 1.0


def test_the_mean_of_many_answers_for_one_ciphertext_is_the_key(monkeypatch):
    """So a holder gives one: flooding that hides one answer doesn't hide a thousand."""
    shared = made(SUM, 2)
    secret, cipher = truth(shared), shared.key.encrypt(np.ones(N))
    monkeypatch.setattr(Group, "flood", lambda *_, **__: 1.0)
    prepared = threshold_opening.server_dec(shared.group, cipher)
    one = seen(shared, prepared)
    assert no_better_than_guessing(from_answers(shared.group, prepared.request.c1, [one]), secret)
    many = [one, *(seen(shared, prepared) for _ in range(300))]  # sqrt(2) / sqrt(300) = .08 a coefficient
    assert key_agreement(from_answers(shared.group, prepared.request.c1, many), secret).value == 1.0


@pytest.mark.parametrize("share", [64.0, 256.0])
def test_a_sender_that_chooses_c1_reads_the_key_off_the_sum(share):
    """Enc(0) + (0, K): flooding, weights and the other holders don't help."""
    shared = made(SUM, 3)
    rng, secret = np.random.default_rng(0), truth(shared)
    others, weight = rng.normal(0, 1e-3, N), 3
    cipher = forged(shared.key.encrypt(np.zeros(N)), 0, share).scale(weight) + shared.key.encrypt(others)
    found = opened(shared, cipher)
    guess = from_sum(shared.group, found, share / weight)
    assert key_agreement(guess, secret).value > 0.999


def test_under_a_joint_pad_what_a_sender_adds_comes_out_as_it_went_in():
    shared = made(SUM, 3)
    g, secret = shared.group, truth(shared)
    padded = threshold_pads.Padding(g, shared.key, shared.shares["leader-1"], "leader-1", b"r").encrypt(np.zeros(N))
    constant = int(g.space.scale(g.space.fresh) / 64)
    each = np.array([[constant % int(prime)] for (prime,) in g.moduli(g.limbs)], dtype=np.uint64)
    array = g.plus(padded.array, np.broadcast_to(each, padded.array.shape))
    for sent in (padded, threshold_pads.Padded(g, padded.pad, array, None)):
        joining = threshold_pads.Joining(g, sent)
        for k in g.holders[1:]:
            joining.take(k, threshold_pads.contribution(g, shared.shares[k], k, padded.pad))
        cipher = joining.cipher(shared.key)
        found = opened(shared, cipher)
        assert no_better_than_guessing(from_sum(g, found, 64.0), secret)
    constant = g.space.spread / 64 * np.eye(1, N)[0]  # K, and nothing times s
    np.testing.assert_allclose(found, constant, atol=2 * g.error())
