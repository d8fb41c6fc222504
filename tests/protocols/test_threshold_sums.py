"""Holders compute c_1 of a sum of padded vectors themselves, so a hub that lies about the sum is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from federation import Rig
from joint_parts import BOTH, HOLDERS, KEY, SIZE, Fresh, drive, keyed, opened_by, sent, summed, weighted_sum
from prepared import begun

import coterie.method as fl
from coterie.crypto import threshold_opening, threshold_pads
from coterie.crypto.threshold_pads import _monomials
from coterie.privacy.attacks.key_in_sum import forged
from coterie.protocols.threshold import Joint, complete_pads, make_keys, open_padded, open_sums, open_weighted
from coterie.protocols.threshold.keys import TRIAL, Consent, HubKey, pad_context, text
from coterie.protocols.threshold.opening import Announce, Decrypt, Partials
from coterie.protocols.threshold.pads import Answer, AnswerFor

pytestmark = pytest.mark.usefixtures("small_ring")

PADS = {"pads": True, "fewest": 3, "effective": 2.0}
MOST = {**PADS, "threshold": 3, "least": 3}


def ready(
    r: int = 1, senders: tuple[str, ...] = HOLDERS, **settings: Any
) -> tuple[Rig, dict[str, Any], dict[str, Any]]:
    """A federation with a key, and by sender the completed ciphertexts and the pads of one round."""

    def make() -> tuple[Rig, dict[str, Any], dict[str, Any]]:
        run = keyed(**{"emulated": False, **PADS, **settings})
        return (run, *completed(run, r, senders))

    return begun(f"completed pads {r} {senders} {settings}", make)


def completed(run: Rig, r: int = 1, senders: tuple[str, ...] = HOLDERS) -> tuple[dict[str, Any], dict[str, Any]]:
    among = senders if run.hub.joint.of(KEY).threshold else ()
    uploads = sent(run, r, senders, among)
    ciphers = drive(run, complete_pads(HubKey(run.hub, KEY, r), uploads), r)
    return ciphers, {name: each.pad for name, each in uploads.items()}


def asked(run: Rig, *messages: Any, r: int = 1, name: str = "client/1") -> list[bool]:
    """Whether one holder answers these, one after the other."""
    answers: list[bool] = []

    def steps() -> Any:
        for message, reply in messages:
            found = yield from fl.for_each({name: message}, reply, lambda *_: None)
            answers.append(bool(found.got))

    drive(run, steps(), r)
    return answers


def announced(senders: int = 4, length: int = SIZE, *, number: int = 0, r: int = 1, making: int = 1) -> tuple[Any, Any]:
    return Announce(r, KEY, making, np.array([number, senders, length])), Consent


def wanted(run: Rig, data: bytes, *, number: int = 0, r: int = 1, making: int = 1) -> tuple[Any, Any]:
    among = HOLDERS[: run.hub.joint.group(KEY).needed]
    return Decrypt(r, KEY, making, text(among), np.array([number]), fl.bundle([data]), fl.bundle([])), Partials


def request(run: Rig, pads: Mapping[str, Any], weights: Mapping[str, int], seed: bytes = bytes(32)) -> bytes:
    group = run.hub.joint.group(KEY)
    return threshold_pads.SumRequest.of(group, run.hub.keys.public(KEY), pads, weights, seed).to_bytes()


def one_each(pads: Mapping[str, Any]) -> dict[str, int]:
    return dict.fromkeys(pads, 1)


# -- what honest parties do --------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("settings", [PADS, MOST, {**PADS, "products": True, "scalars": 1}], ids=str)
def test_the_weighted_sum_is_opened_to_within_the_stated_error(settings: dict[str, Any], emulated: bool) -> None:
    senders = HOLDERS[:3] if "threshold" in settings else HOLDERS
    run, ciphers, pads = ready(1, senders, emulated=emulated, **settings)
    weights = dict(zip(senders, (3, 1, 2, 5), strict=False))
    ended = drive(run, open_weighted(HubKey(run.hub, KEY, 1), ciphers, pads, weights), 1)
    error = run.hub.joint.group(KEY).error(sum(weights.values()))
    assert np.abs(ended.values - weighted_sum(weights)).max() <= error
    assert not run.refused


def test_real_and_emulated_agree_and_a_request_has_no_polynomial_in_either() -> None:
    sizes = []
    for emulated in (True, False):
        run, _, pads = ready(emulated=emulated)
        sizes.append(len(request(run, pads, one_each(pads))))
        group, key = run.hub.joint.group(KEY), run.hub.keys.public(KEY)
        data = request(run, pads, one_each(pads))
        read = threshold_pads.SumRequest.read(group, key, data, pad_context(1))
        assert read.to_bytes() == data
        assert (read.pads, read.weights, read.length, read.senders) == (pads, one_each(pads), SIZE, 4)
    assert sizes[0] == sizes[1] < 300


def test_c1_of_a_request_is_that_of_a_slow_twin() -> None:
    """Whole numbers, polynomial by polynomial: coefficients by interpolation, the Chinese remainder, and division."""
    run, _, pads = ready(1, HOLDERS)
    group, key, seed = run.hub.joint.group(KEY), run.hub.keys.public(KEY), bytes(range(32))
    pads = {name: threshold_pads.Pad(name, pad.context, 700, pad.nonce, pad.among) for name, pad in pads.items()}
    weights = dict(zip(HOLDERS, (3, 1, 2, 5), strict=True))
    found = threshold_pads.SumRequest.of(group, key, pads, weights, seed)
    moduli = [int(q) for q in group.moduli(group.limbs)[:, 0]]
    parts = {name: pad.polynomials(group)[0] for name, pad in pads.items()}
    u, whole = _monomials(group, seed), list[list[int]]()
    for limb, q in enumerate(moduli):
        total = [sum(weights[name] * int(part[limb, j]) for name, part in parts.items()) % q for j in range(N)]
        a = coefficients(key.arrays.pair[1, limb].tolist(), q)
        moved = times(a, u.tolist(), q)
        whole.append([(x + y) % q for x, y in zip(coefficients(total, q), moved, strict=True)])
    kept = group.opened_limbs
    assert kept < len(moduli), "this set divides by a prime"
    last = moduli[-1]
    for limb, q in enumerate(moduli[:kept]):
        got = coefficients(found.c1[0, limb].tolist(), q)
        for i in range(N):
            value = remainder([row[i] for row in whole], moduli)
            assert got[i] == (value + last // 2) // last % q


N = 1024


def root_of(q: int) -> int:
    """SEAL's root of unity of order 2 N: the smallest."""
    for x in range(2, 1000):
        candidate = pow(x, (q - 1) // (2 * N), q)
        if pow(candidate, N, q) == q - 1:
            return min(pow(candidate, 2 * i + 1, q) for i in range(N))
    raise AssertionError


def coefficients(values: list[int], q: int) -> list[int]:
    """Of a polynomial whose value at root^(2 r(j) + 1) stands in place j, with r reversing the bits."""
    root, bits = root_of(q), N.bit_length() - 1
    natural = [0] * N
    for j, value in enumerate(values):
        natural[int(f"{j:0{bits}b}"[::-1], 2)] = value
    square, transformed = pow(root, -2, q), recursive(natural, pow(root, -2, q), q)
    assert pow(square, N, q) == 1
    back, inverse = pow(root, -1, q), pow(N, -1, q)
    return [x * inverse * pow(back, i, q) % q for i, x in enumerate(transformed)]


def recursive(values: list[int], root: int, q: int) -> list[int]:
    """sum over j of values[j] root^(i j), for each i."""
    if len(values) == 1:
        return values
    even, odd = (recursive(values[start::2], root * root % q, q) for start in (0, 1))
    turned, power = [], 1
    for x in odd:
        turned.append(x * power % q)
        power = power * root % q
    return [x + y for x, y in zip(even, turned, strict=True)] + [x - y for x, y in zip(even, turned, strict=True)]


def times(a: list[int], u: list[int], q: int) -> list[int]:
    """Of polynomials modulo X^N + 1, of which u has few coefficients."""
    out = [0] * N
    for i, factor in ((i, x) for i, x in enumerate(u) if x):
        for j, x in enumerate(a):
            sign = 1 if i + j < N else -1
            out[(i + j) % N] = (out[(i + j) % N] + sign * factor * x) % q
    return out


def remainder(residues: list[int], moduli: list[int]) -> int:
    """The number below the product of the moduli with these residues."""
    value, modulus = 0, 1
    for residue, q in zip(residues, moduli, strict=True):
        value += modulus * ((residue - value) * pow(modulus, -1, q) % q)
        modulus *= q
    return value


# -- a hub that lies ---------------------------------------------------------------------------------------------------


def test_a_hub_that_sends_a_c1_of_its_own_is_refused_in_sums_trials_and_checks() -> None:
    """The attack that reads the joint key off one opening (``test_threshold_theft``), where vectors come under pads."""
    run, _, _ = ready()
    group, cipher = run.hub.joint.group(KEY), summed(run, *np.zeros((4, 1024))).cipher
    theft = threshold_opening.server_dec(group, forged(cipher, 0, 32.0)).request.to_bytes()
    said = list[str]()
    for r, number in enumerate((0, TRIAL, -2, -9), 2):
        what = (0, 1) if number == TRIAL else (4, 1024)
        row, ask = announced(*what, number=number, r=r), wanted(run, theft, number=number, r=r)
        assert asked(run, row, ask, r=r) == [number in (0, TRIAL), False]
        said += run.refused
    assert sum("no sum of a shared key" in reason for reason in said) == 2
    with pytest.raises(fl.NoAnswerError, match="says nothing of what it sums up: open it by open_weighted"):
        drive(run, open_sums(HubKey(run.hub, KEY, 9), {0: cipher}), 9)


def test_a_trial_opens_zero_and_no_vectors_and_a_sum_is_of_vectors() -> None:
    run, _, pads = ready()
    trial, total = request(run, {}, {}), request(run, pads, one_each(pads))
    assert asked(run, announced(0, 1, number=TRIAL), wanted(run, total, number=TRIAL)) == [True, False]
    assert asked(run, wanted(run, trial, number=TRIAL)) == [True]
    assert asked(run, announced(3, 1), wanted(run, trial)) == [True, False]
    for row in (announced(1, 1, number=TRIAL, r=2), announced(0, 2, number=TRIAL, r=2), announced(4, number=-2, r=2)):
        assert asked(run, row, r=2) == [False]


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ({"client/0": 1023}, "a sum of 1 vectors: of fewer than 3 it shows too much"),
        ({"client/0": 1023, "client/1": 1}, "a sum of 2 vectors: of fewer than 3 it shows too much"),
        ({"client/0": 1023, "client/1": 1, "client/2": 1}, "one of 3 has nearly all of the sum"),
        ({"client/0": 1023, "client/1": 1, "client/2": 1, "client/3": 1}, "one of 4 has nearly all of the sum"),
        ({"client/0": 2**31, "client/1": 2**31, "client/2": 2**31}, "too many"),
        ({"client/0": 0, "client/1": 1, "client/2": 1, "client/3": 1}, "integers of at least 1"),
    ],
    ids=str,
)
def test_weights_that_make_one_sender_s_vector_the_sum_are_refused(weights: dict[str, int], says: str) -> None:
    """By the holder, whatever the hub announces, and by an honest hub before it asks."""
    run, ciphers, pads = ready()
    try:
        data = request(run, {name: pads[name] for name in weights}, weights)
    except fl.CryptoError:  # a hub that packs it all the same
        one = dict.fromkeys(weights, 1)
        honest = request(run, {name: pads[name] for name in weights}, one)
        data = honest
        for name in weights:  # weights stand behind the place of each sender
            nonce = pads[name].nonce
            at = honest.index(nonce)
            data = data[: at - 4] + weights[name].to_bytes(4, "little") + data[at:]
    assert asked(run, announced(max(3, len(weights))), wanted(run, data)) == [True, False]
    assert any(says in reason for reason in run.refused), run.refused
    with pytest.raises((fl.NoAnswerError, fl.CryptoError)):
        drive(run, open_weighted(HubKey(run.hub, KEY, 2), ciphers, pads, weights), 2)
    pairs = np.array([*weights.values()])
    direct = AnswerFor(3, KEY, 1, text(weights), b"".join(pads[n].nonce for n in weights), SIZE, pairs)
    assert asked(run, (direct, Answer), r=3, name="client/0") == [False]


def test_senders_that_are_none_or_stand_twice_are_refused() -> None:
    """A hub that makes up senders: places beyond the holders, and one holder under several nonces."""
    run, _, pads = ready()
    data = request(run, pads, one_each(pads))
    start = len(data) - 4 * 22
    rows = [data[start + 22 * i :][:22] for i in range(4)]
    strange = (b"\x09\x00" + rows[1][2:], b"\x00\x00" + rows[1][2:], rows[0][:6] + bytes(16), rows[0])
    for row in strange:
        forged_data = data[:start] + rows[0] + row + rows[2] + rows[3]
        with pytest.raises(fl.DecodeError, match="or one that is named twice"):
            threshold_pads.SumRequest.read(
                run.hub.joint.group(KEY), run.hub.keys.public(KEY), forged_data, pad_context(1)
            )
    for cut in (data[:-1], data[:40], data[: len(data) - 22], data + b"x", b""):
        with pytest.raises(fl.DecodeError):
            threshold_pads.SumRequest.read(run.hub.joint.group(KEY), run.hub.keys.public(KEY), cut, pad_context(1))
    assert asked(run, announced(9), wanted(run, data)) == [True, False]
    assert any("sum 0 of 4 senders of 1500 values was not announced" in reason for reason in run.refused)


def test_each_sender_vouches_for_its_own_nonce() -> None:
    """A nonce of the hub's own making, of an earlier round, or of another sender."""
    run, _, old = ready(1)
    _, pads = completed(run, 2)
    own = pads["client/1"]
    for nonce in (bytes(16), old["client/1"].nonce, pads["client/0"].nonce):
        false = {**pads, "client/1": threshold_pads.Pad("client/1", own.context, SIZE, nonce, own.among)}
        assert asked(run, announced(r=2), wanted(run, request(run, false, one_each(pads)), r=2), r=2)[-1] is False
    assert any("a nonce of client/1 that it has not drawn in round 2" in reason for reason in run.refused)
    data = request(run, pads, one_each(pads))
    assert asked(run, wanted(run, data, r=2), r=2) == [True]


def test_what_a_hub_opens_with_nonces_that_nobody_used_is_nonsense() -> None:
    """The others can't tell a false nonce, and need not: nobody has what it would be the pad of."""
    run, ciphers, pads = ready(**MOST, senders=HOLDERS[:3])
    own = pads["client/2"]
    false = {**pads, "client/2": threshold_pads.Pad("client/2", own.context, SIZE, bytes(16), own.among)}
    run.party("client/2").secret.joint.held[KEY].nonces[1] = bytes(16)  # as if it were the hub's
    with pytest.raises(fl.NoAnswerError, match="nonsense"):
        drive(run, open_weighted(HubKey(run.hub, KEY, 1), ciphers, false, one_each(pads)), 1)


def test_a_sum_of_another_round_or_under_another_seed_of_the_same_round() -> None:
    """The round is the holder's own: nonces of an earlier one make other pads. Another try has another seed."""
    run, _, pads = ready(**MOST, senders=HOLDERS[:3])
    data = request(run, pads, one_each(pads))
    assert asked(run, announced(3, r=2), wanted(run, data), wanted(run, data, r=2), r=2) == [True, False, False]
    run, _, pads = ready(**MOST, senders=HOLDERS[:3])
    seeds = [request(run, pads, one_each(pads), bytes([i]) * 32) for i in (0, 0, 1, 2, 3, 4)]
    answers = asked(run, announced(3), *(wanted(run, data) for data in seeds))
    assert answers == [True, True, False, True, True, True, False]  # the same again is none; then it is enough
    assert opened_by(run, "client/1") == 1 + 4 * 2  # the trial, and four times two ciphertexts


@pytest.mark.parametrize("again", ["weights", "senders", "number", "key", "answers"])
def test_the_vectors_of_a_round_are_in_one_sum_only(again: str) -> None:
    """Two sums of the same vectors by other weights would give a single one by subtraction."""
    run, ciphers, pads = ready()
    weights = one_each(pads)
    drive(run, open_weighted(HubKey(run.hub, KEY, 1), ciphers, pads, weights), 1)
    other = {**weights, "client/0": 2}
    if again == "answers":
        nonces = b"".join(pads[name].nonce for name in HOLDERS)
        ask = AnswerFor(1, KEY, 1, text(HOLDERS), nonces, SIZE, np.array([*other.values()]))
        assert asked(run, (ask, Answer)) == [False]
    elif again == "key":  # the hub has another key made, and the senders encrypt under that
        drive(run, make_keys(HubKey(run.hub, KEY, 1), HOLDERS), 1)
        ciphers, pads = completed(run, 1)
        with pytest.raises(fl.NoAnswerError, match="refused"):
            drive(run, open_weighted(HubKey(run.hub, KEY, 1), ciphers, pads, other, number=1), 1)
    else:
        chosen = {"weights": other, "senders": dict.fromkeys(HOLDERS[:3], 1), "number": other}[again]
        number = 5 if again == "number" else 1
        data = request(run, {name: pads[name] for name in chosen}, chosen)
        assert asked(run, announced(len(chosen), number=number), wanted(run, data, number=number)) == [True, False]
    assert any("a second sum of the vectors of round 1" in reason for reason in run.refused), run.refused
    later, fresh = completed(run, 2)
    ended = drive(run, open_weighted(HubKey(run.hub, KEY, 2), later, fresh, other), 2)
    np.testing.assert_allclose(ended.values, weighted_sum(other), atol=1e-3)


def test_the_direct_sum_of_pads_is_one_a_round_too() -> None:
    """A hub that says that a sender has gone, and has the others encrypt anew."""
    run = keyed(emulated=False, **PADS)
    for attempt in range(2):
        for name in HOLDERS:
            run.party(name).randomness = Fresh(0, False)
        uploads = sent(run)
        weights = {**dict.fromkeys(HOLDERS, 1), "client/0": 1 + attempt}
        if not attempt:
            assert drive(run, open_padded(HubKey(run.hub, KEY, 1), uploads, weights=weights), 1).among == HOLDERS
    with pytest.raises(fl.NoAnswerError, match="stays closed"):
        drive(run, open_padded(HubKey(run.hub, KEY, 1), uploads, weights=weights), 1)
    assert any("a second sum of the vectors of round 1" in reason for reason in run.refused)


@pytest.mark.parametrize("spread", ["one announcement", "two", "another making"])
def test_scalars_are_so_many_for_each_holder_and_round(spread: str) -> None:
    """Three for each of four holders: the thirteenth is refused, and so is a vector that is called one."""
    run, _, _ = ready(products=True, scalars=3, fewest=2)
    rows = np.array([(number, 1, 1) for number in range(13)])

    def scalars(few: slice, r: int = 1, making: int = 1) -> tuple[Any, Any]:
        return Announce(r, KEY, making, rows[few].ravel()), Consent

    if spread == "one announcement":
        assert asked(run, scalars(slice(13))) == [False]
    else:
        assert asked(run, scalars(slice(12))) == [True]
        if spread == "another making":
            drive(run, make_keys(HubKey(run.hub, KEY, 1), HOLDERS), 1)
        assert asked(run, scalars(slice(12, 13), making=1 + (spread == "another making"))) == [False]
    assert any("13 scalars in round 1: 12 are opened, 3 for each holder" in reason for reason in run.refused)
    keys, small = run.hub.keys.evaluation(KEY), run.hub.keys.public(KEY).encrypt(np.full(4, 0.1))
    r, making = 3, 2 if spread == "another making" else 1
    norm = small.dot(small.conjugated(keys), keys, constant=True, at_most=1)
    found = drive(run, open_sums(HubKey(run.hub, KEY, r), {0: norm}), r)
    assert abs(found[0].values[0] - 0.04) < 1e-4
    group = run.hub.joint.group(KEY)
    vector = threshold_opening.server_dec(group, summed(run, *np.zeros((2, 1))).cipher).request.to_bytes()
    row = announced(1, 1, number=1, r=r, making=making)
    assert asked(run, row, wanted(run, vector, number=1, r=r, making=making), r=r) == [True, False]
    assert any("is announced as a scalar, and is a vector" in reason for reason in run.refused)


def test_a_sum_that_is_not_of_these_pads_and_weights_is_no_sum() -> None:
    run, ciphers, pads = ready()
    group, key = run.hub.joint.group(KEY), run.hub.keys.public(KEY)
    total = ciphers["client/0"] + ciphers["client/1"]
    for weights in ({"client/0": 1}, {"client/0": 2, "client/1": 1}):
        with pytest.raises(fl.CryptoError, match="is not the sum of"):
            threshold_pads.sum_dec(group, key, total, {name: pads[name] for name in weights}, weights)
    for bad in ({"client/0": pads["client/1"]}, {}):
        with pytest.raises(fl.CryptoError, match="takes a weight and a pad of each sender"):
            threshold_pads.sum_dec(group, key, total, bad, {"client/0": 1})
    longer = threshold_pads.Pad("client/1", pads["client/1"].context, 9, bytes(16), HOLDERS)
    with pytest.raises(fl.CryptoError, match="different lengths or contexts"):
        threshold_pads.sum_dec(group, key, total, {**pads, "client/1": longer}, one_each(pads))


def test_a_declaration_whose_balance_is_none() -> None:
    for effective in (-1.0, 3.5):
        with pytest.raises(fl.UserError, match="effective number of senders is 0 to fewest"):
            Joint("k", "threshold-8192-sum", ("client",), effective=effective)
