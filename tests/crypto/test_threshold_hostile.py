"""Shared keys among parties that lie: garbage, other shares, answers for other sums, twice; noise as stated."""

from __future__ import annotations

import math
import pickle
from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threshold_parts import MUL, SUM, N, answers, group, made, opened, seeds

from coterie.crypto import CiphertextError, ckks, threshold_opening
from coterie.crypto import threshold as th
from coterie.crypto import threshold_generation as tg
from coterie.crypto.threshold_opening import gaussian
from coterie.protocol.errors import CapacityError, CoterieError, CryptoError, DecodeError, PeerError, UserError

BOTH = pytest.mark.parametrize("emulated", [False, True], ids=["real", "emulated"])


def asked(shared, length=30, among=()):
    prepared = threshold_opening.server_dec(shared.group, shared.key.encrypt(np.ones(length)))
    return prepared, answers(shared, prepared, among)


# ---- groups


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"holders": ("a",)}, "2 to 256"),
        ({"holders": ()}, "2 to 256"),
        ({"holders": ("a", "a")}, "different"),
        ({"threshold": 1}, "can't open"),
        ({"threshold": 4}, "can't open"),
        ({"openings": 0}, "at least 1"),
        ({"openings": 2**60}, "take fewer"),
        ({"parameters": "ckks-4096-add"}, "no set for shared keys"),
        ({"parameters": "nothing"}, "choose one of"),
        ({"allow_insecure": False}, "choose one of"),
    ],
)
def test_groups_that_can_t_be(change, why):
    facts = {"parameters": SUM, "holders": ("a", "b", "c"), "allow_insecure": True, **change}
    with pytest.raises(UserError, match=why):
        th.Group(**facts)


def test_every_fact_of_a_group_is_in_its_name():
    one = group(label=b"1")
    others = (
        *(group(label=b"2"), group(n=4, label=b"1"), group(threshold=2, label=b"1"), group(openings=5, label=b"1")),
        *(group(MUL, label=b"1"), group(emulated=True, label=b"1"), group(summands=5, label=b"1")),
        th.Group(SUM, ("leader-1leader-2", "leader-3"), label=b"1", allow_insecure=True),
    )
    assert len({one.digest, *(other.digest for other in others)}) == 1 + len(others)


# ---- answers


@BOTH
def test_a_share_of_another_holder_of_zero_or_none_at_all_opens_to_nonsense(emulated):
    shared = made(SUM, 3, emulated=emulated)
    g, zeros = shared.group, seeds(shared.group.holders)
    wrong = th.Share(g, g.plus(shared.shares["leader-2"].numbers[None], shared.shares["leader-2"].numbers[None])[0])
    with pytest.raises(CiphertextError, match="nonsense"):
        opened(shared._replace(shares={**shared.shares, "leader-2": wrong}), shared.key.encrypt(np.ones(5)))
    with pytest.raises(CiphertextError, match="nonsense"):
        opened(shared._replace(zeros={**shared.zeros, "leader-2": zeros["leader-2"]}), shared.key.encrypt(np.ones(5)))


@BOTH
def test_a_cheat_is_found_by_leaving_each_one_out(emulated):
    shared = made(SUM, 4, 3, emulated)
    g, cipher = shared.group, shared.key.encrypt(np.ones(5))
    lying = shared._replace(shares={**shared.shares, "leader-2": shared.shares["leader-1"]})
    fates = {}
    for left_out in g.holders:
        among = tuple(name for name in g.holders if name != left_out)
        try:
            fates[left_out] = bool(np.allclose(opened(lying, cipher, among), 1, atol=g.error()))
        except CiphertextError:
            fates[left_out] = False
    assert fates == {"leader-1": False, "leader-2": True, "leader-3": False, "leader-4": False}


@BOTH
def test_answers_for_another_sum_another_set_or_another_key(emulated):
    shared = made(SUM, 4, 2, emulated)
    g, among = shared.group, ("leader-1", "leader-2")
    prepared, good = asked(shared, among=among)
    _, other = asked(shared, among=among)
    _, elsewhere = asked(shared, among=("leader-2", "leader-3"))
    later = made(SUM, 4, 2, emulated)._replace(group=group(SUM, 4, 2, emulated, label=b"x"))
    foreign = shared._replace(
        group=later.group, shares={k: th.Share(later.group, v.numbers) for k, v in shared.shares.items()}
    )
    again = threshold_opening.server_dec(later.group, shared.key.encrypt(np.ones(30)))
    cases = {
        "leader-2: a partial for something else": other["leader-2"],
        "leader-2: a partial for something else ": elsewhere["leader-2"],
        "leader-2: a partial of another group": answers(foreign, again, among)["leader-2"],
        "leader-2: no partial": prepared.request.to_bytes(),
        "leader-2: 0 bytes": b"",
    }
    for why, data in cases.items():
        with pytest.raises(DecodeError, match=why.strip()):
            threshold_opening.opened(g, prepared, {**good, "leader-2": data})
    with pytest.raises(UserError, match="takes 2"):
        threshold_opening.opened(g, prepared, {"leader-1": good["leader-1"]})
    with pytest.raises(UserError, match="holds no share"):
        threshold_opening.opened(g, prepared, {"leader-1": good["leader-1"], "eve": good["leader-2"]})
    with pytest.raises(DecodeError, match="something else"):  # one more than were asked
        threshold_opening.opened(g, prepared, {**good, "leader-3": good["leader-2"]})
    np.testing.assert_allclose(threshold_opening.opened(g, prepared, good), 1, atol=g.error())


@BOTH
def test_one_answer_a_ciphertext_and_no_more_than_stated(emulated):
    shared = made(SUM, 3, emulated=emulated)
    g, name = shared.group, "leader-1"
    ask = threshold_opening.server_dec(g, shared.key.encrypt(np.ones(2 * N))).request
    args = shared.shares[name], ask, name, g.holders, shared.zeros[name]
    _, answered = threshold_opening.partial(g, *args, th.Answered())
    assert answered.ciphertexts == 2
    with pytest.raises(PeerError, match="same ciphertext again"):
        threshold_opening.partial(g, *args, answered)
    dressed = threshold_opening.Request(
        g, 3, 5, 1, False, ask.deviation, ask.scale, ask.c1
    )  # the same c_1 with other facts
    with pytest.raises(PeerError, match="same ciphertext again"):
        threshold_opening.partial(g, shared.shares[name], dressed, name, g.holders, shared.zeros[name], answered)
    full = th.Answered(b"", g.openings - 1)
    with pytest.raises(PeerError, match="sized for 65536"):
        threshold_opening.partial(g, *args, full)
    with pytest.raises(CryptoError, match="no common seed"):
        threshold_opening.partial(g, shared.shares[name], ask, name, g.holders, th.Zero(name, {}), th.Answered())
    with pytest.raises(UserError, match="not among"):
        threshold_opening.partial(
            made(SUM, 4, 2).group,
            made(SUM, 4, 2).shares[name],
            ask,
            name,
            g.holders[1:],
            shared.zeros[name],
            th.Answered(),
        )


def test_a_residue_of_zero_in_the_first_part_of_relinearisation_is_sent_as_zero(monkeypatch):
    """One in some 2^40 is 0. Its negative is 0, too, and not the prime, which no holder takes."""
    own = tg.secret(group(MUL))
    zeros = lambda self, a, added=None: np.zeros_like(a)  # noqa: E731
    monkeypatch.setattr(tg.Secret, "_rows", zeros)
    part, _ = own.first()
    limbs = own.numbers.shape[0]
    numbers, _ = own.group.unpack("first", part, (2 * (limbs - 1), limbs, N), real=(2 * (limbs - 1) * N, limbs))
    assert not numbers.any()


def test_what_can_t_be_opened_by_parts():
    shared, mul = made(SUM, 3), made(MUL, 3)
    with pytest.raises(CryptoError, match="isn't one of"):
        threshold_opening.server_dec(shared.group, mul.key.encrypt(np.ones(3)))
    with pytest.raises(CryptoError, match="isn't one of"):
        threshold_opening.server_dec(shared.group, made(SUM, 3, emulated=True).key.encrypt(np.ones(3)))
    with pytest.raises(CryptoError, match="can't be opened"):
        threshold_opening.server_dec(mul.group, mul.key.encrypt(np.ones(3)).conjugated(mul.evaluation))
    with pytest.raises(CryptoError, match="no level"):
        tg.with_products(shared.group, shared.key, {}, {})
    stranger = ckks.keygen(SUM, allow_insecure=True).public.encrypt(np.ones(30))
    prepared = threshold_opening.server_dec(shared.group, stranger)
    with pytest.raises(CiphertextError, match="nonsense"):
        threshold_opening.opened(shared.group, prepared, answers(shared, prepared))


# ---- bytes


@BOTH
@given(st.data())
def test_garbage_is_refused_or_opens_to_nonsense(emulated, data):
    """Every kind that travels, damaged anywhere: a DecodeError or another of ours, never something else."""
    shared = made(MUL, 3, emulated=emulated)
    g, own = shared.group, shared.secrets["leader-1"]
    prepared, answer = asked(shared)
    new = g.handed(("a", "b"), b"new")
    part = shared.shares["leader-1"].handed("leader-1", g.holders, new)["a"]
    readers = {
        "public": (
            own.public(),
            lambda b: tg.joined(g, {**{k: s.public() for k, s in shared.secrets.items()}, "leader-1": b}),
        ),
        "request": (prepared.request.to_bytes(), lambda b: threshold_opening.Request.load(g, b)),
        "partial": (answer["leader-1"], lambda b: threshold_opening.opened(g, prepared, {**answer, "leader-1": b})),
        "share": (shared.shares["leader-1"].to_bytes(), lambda b: th.Share.load(g, b)),
        "secret": (own.to_bytes(), lambda b: tg.Secret.load(g, b)),
        "part": (part, lambda b: th.gathered(new, "a", {"leader-1": b})),
    }
    good, read = readers[data.draw(st.sampled_from(sorted(readers)))]
    kind = data.draw(st.sampled_from(["cut", "longer", "flip", "random", "head", "high"]))
    at = data.draw(st.integers(0, len(good) - 1))
    damaged = {
        "cut": good[:at],
        "longer": good + b"\0",
        "flip": good[:at] + bytes([good[at] ^ data.draw(st.integers(1, 255))]) + good[at + 1 :],
        "random": data.draw(st.binary(max_size=200)),
        "head": good[:4] + data.draw(st.binary(min_size=40, max_size=60)) + good[64:],
        "high": good[:60] + b"\xff" * (len(good) - 60),
    }[kind]
    try:
        read(damaged)
    except CoterieError as error:
        told = str(error)
    else:
        told = ""
    assert len(told) < 400


@pytest.mark.parametrize("parameters", [SUM, MUL])
def test_a_server_that_states_no_error_gets_noise_all_the_same(parameters):
    shared = made(parameters, 3)
    g, quiet = (
        shared.group,
        threshold_opening.server_dec(shared.group, shared.key.encrypt(np.zeros(20 * N)), deviation=0.0),
    )
    values = threshold_opening.opened(g, quiet, answers(shared, quiet))
    assert np.std(values) > 0.9 * math.sqrt(3) * g.error() / 10 / math.sqrt(3 + (parameters == MUL))


def test_requests_of_impossible_facts():
    shared = made(SUM, 3)
    g, ask = shared.group, threshold_opening.server_dec(shared.group, shared.key.encrypt(np.ones(3))).request
    for change in (
        *(
            {"length": 0},
            {"terms": 0},
            {"senders": 0},
            {"length": 2**40},
            {"length": N + 1},
            {"deviation": -1.0},
            {"deviation": math.inf},
        ),
        *({"deviation": math.nan}, {"scale": math.nan}, {"scale": 0.0}, {"scalar": True}),
        {"c1": np.zeros_like(ask.c1)},
    ):
        facts = {name: getattr(ask, name) for name in ("length", "terms", "senders", "scalar")}
        facts |= {name: getattr(ask, name) for name in ("deviation", "scale", "c1")}
        with pytest.raises(DecodeError):
            threshold_opening.Request.load(g, threshold_opening.Request(g, **{**facts, **change}).to_bytes())
    loud = threshold_opening.Request(g, 3, 1, 1, False, 2.0**60, ask.scale, ask.c1)
    with pytest.raises(DecodeError, match="no ciphertext has"):
        threshold_opening.Request.load(g, loud.to_bytes())
    with pytest.raises(CapacityError, match="no room for noise"):
        threshold_opening.partial(
            g,
            shared.shares["leader-1"],
            loud,
            "leader-1",
            g.holders,
            shared.zeros["leader-1"],
            th.Answered(),
        )


def test_nothing_shows_a_secret():
    shared = made(SUM, 3)
    secret, share, zero = shared.secrets["leader-1"], shared.shares["leader-1"], shared.zeros["leader-1"]
    for held in (secret, share, zero):
        shown = repr(held) + str(held)
        assert len(shown) < 200
        assert "array" not in shown
        assert str(next(iter(zero.seeds.values()))) not in shown
    assert deepcopy(share) is share
    assert (th.Share.load(shared.group, share.to_bytes()).numbers == share.numbers).all()
    assert (tg.Secret.load(shared.group, secret.to_bytes()).numbers == secret.numbers).all()
    with pytest.raises(DecodeError, match="another group"):
        th.Share.load(group(label=b"other"), share.to_bytes())
    assert pickle.dumps(shared.group)


# ---- noise


@pytest.mark.parametrize("bits", [0, 10, 47, 52, 59])
def test_floodings_are_gaussian_integers(bits):
    deviation = 2.0**bits
    noise = gaussian(deviation, 200_000)
    assert noise.dtype == np.int64
    scaled = noise / deviation
    assert abs(scaled.mean()) < 5 / math.sqrt(scaled.size)
    assert scaled.std() == pytest.approx(math.hypot(1, math.sqrt(1 / 6) * (bits == 0)), rel=0.01)
    assert np.mean((scaled / scaled.std()) ** 4) == pytest.approx(3, rel=0.05)
    assert 4 <= np.abs(scaled).max() < 8.6  # of whole numbers alone 4 may be the largest
    if bits:  # every low bit is used: rounded reals of 53 bits would leave some at zero
        for bit in range(min(bits, 12)):
            assert abs(np.mean((noise >> bit) & 1) - 0.5) < 0.01


def test_the_size_of_flooding():
    """sqrt(12 Q_D) 2^(s/2) |e|: theorem 4 of Li, Micciancio, Schultz and Sorrell; of a scalar one coefficient."""
    g = group(openings=1000)
    assert g.flood(7.0, scalar=True) == pytest.approx(math.sqrt(12_000) * 2**20 * 7)
    assert g.flood(7.0, scalar=False) == pytest.approx(math.sqrt(12_000) * 2**20 * 7 * math.sqrt(N))
    assert g.flood(0.0, scalar=True) == g.flood(1.0, scalar=True)


def test_the_error_that_floodings_are_sized_for_is_the_real_one(monkeypatch):
    """Without any flooding what is left is rounding, which the key multiplies: its deviation is as stated."""
    shared = made(SUM, 4)
    g = shared.group
    monkeypatch.setattr(th.Group, "flood", lambda *_, **__: 1.0)  # next to nothing, and of the server nothing
    prepared = threshold_opening.server_dec(g, shared.key.encrypt(np.zeros(30 * N)).scale(50))
    values = threshold_opening.opened(g, prepared, answers(shared, prepared))
    measured = np.std(values) * prepared.request.scale / math.sqrt(N / 2)
    assert 0.9 < measured / prepared.request.deviation < 1.1


@pytest.mark.parametrize("name", ["threshold-8192-sum", "threshold-8192-mul", "threshold-8192-high"])
def test_weights_of_a_model_open_precisely_with_each_set(name):
    """A mean of eight models, as each set states it for all sums."""
    g = th.Group(name, tuple("abcdefgh"))
    for terms in (8, 8 * 1024):
        assert g.error(terms) / terms < (1e-5 if name.endswith("sum") else 2e-4)
