"""Sums of vectors whose senders hold no shares: holders open what the senders have signed, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from federation import Rig
from joint_parts import ALL, BOTH, CLIENTS, KEY, VALUES, drive, halves, keyed, lying, upload, uploads

from coterie.crypto.threshold_halves import Half
from coterie.crypto.threshold_pads import SumRequest
from coterie.protocol.codec import weighs
from coterie.protocol.errors import CryptoError, DecodeError, PeerError
from coterie.protocol.steps import NoAnswerError
from coterie.protocols.openings import shows_few
from coterie.protocols.threshold import HubKey, open_sums, taken, vouched
from coterie.protocols.threshold.halves import parted, signed

pytestmark = pytest.mark.usefixtures("small_ring")


@BOTH
@pytest.mark.parametrize("settings", [{}, {"threshold": 3, "least": 3}], ids=str)
def test_sums_of_signed_vectors_are_opened_also_of_parties_without_a_share(
    settings: dict[str, Any], emulated: bool
) -> None:
    run = keyed(emulated=emulated, fewest=2, sums=2, **settings)
    a, b, c, d, e = uploads(run).values()
    found = drive(run, open_sums(HubKey(run.hub, KEY, 1), {3: a + b + c + d + e, 7: a + (b + c)}), 1)
    error = 2 * run.hub.joint.group(KEY).error(5)
    assert np.abs(found[3].values - VALUES.sum(axis=0)).max() < error
    assert np.abs(found[7].values - VALUES[:3].sum(axis=0)).max() < error
    assert not run.refused


@BOTH
@pytest.mark.parametrize(
    ("sums", "answered", "says"),
    [
        ([ALL], [True], ""),
        ([{"client/4": 1}], [False], "of fewer than 3 it shows too much"),
        ([{"client/4": 3}], [False], "of fewer than 3 it shows too much"),
        ([{**ALL, "client/4": 60}], [False], "one of 5 has nearly all of the sum"),
        ([ALL, dict.fromkeys(CLIENTS[:4], 1)], [True, False], "2 sums of round 1: together they show fewer than 3"),
        ([ALL, {**ALL, "client/4": 2}], [True, False], "2 sums of round 1: together they show fewer than 3"),
        ([ALL, dict.fromkeys(CLIENTS[:3], 1)], [True, False], "together they show fewer than 3"),
        ([ALL, ALL], [True, True], ""),
    ],
)
def test_a_hub_that_lies_about_a_sum(
    sums: list[dict[str, int]], answered: list[bool], says: str, emulated: bool
) -> None:
    run = keyed(emulated=emulated, fewest=3, sums=2)
    of = halves(uploads(run))
    assert lying(run, sums, of) == answered
    assert all(says in reason for reason in run.refused)
    assert bool(run.refused) == (not all(answered))


def test_a_sum_with_another_number_of_senders_than_was_announced_is_refused() -> None:
    run = keyed(emulated=False, fewest=3)
    of = halves(uploads(run))
    assert lying(run, [dict.fromkeys(CLIENTS[:4], 1)], of, senders=5) == [False]
    assert all("sum 0 of 4 senders" in reason for reason in run.refused)


def test_a_vector_stands_in_a_sum_once() -> None:
    run = keyed(emulated=False, fewest=3)
    sent = uploads(run)
    group, key = run.hub.joint.group(KEY), run.hub.keys.public(KEY)
    request = SumRequest.of(group, key, halves(sent), ALL, bytes(32))
    twice = bytearray(request.to_bytes())
    twice[-36:] = twice[-72:-36]
    with pytest.raises(DecodeError, match="or one that is named twice"):
        SumRequest.read(group, key, bytes(twice), b"", request.halves)
    other = upload(run, "client/0", VALUES[1])
    with pytest.raises(CryptoError, match="a sum of two vectors of client/0"):
        (sent["client/0"] + sent["client/1"] + other).terms()
    assert (sent["client/0"] + sent["client/0"].scale(3) + sent["client/1"]).terms()[1] == {
        "client/0": 4,
        "client/1": 1,
    }


def by_the_hub(run: Rig, half: Half) -> Half:
    return replace(signed(run.hub, KEY, half, 1), sender="client/1")


FORGED: dict[str, tuple[Callable[[Rig, Half], Half], str]] = {
    "another c_1": (lambda run, half: replace(half, array=half.array[:, :, ::-1].copy()), "signature"),
    "of another round": (lambda run, half: signed(run.party("client/1"), KEY, half, 2), "signature"),
    "another's": (lambda run, half: replace(half, sender="client/0"), "signature"),
    "signed by the hub": (by_the_hub, "signature"),
    "the hub's own": (
        lambda run, half: signed(run.hub, KEY, replace(half, sender="hub"), 1),
        "sends nothing under key",
    ),
    "a stranger's": (lambda run, half: replace(half, sender="client/99"), "sends nothing under key"),
}


@pytest.mark.parametrize("lie", FORGED)
def test_what_no_sender_has_signed_for_the_round_is_refused(lie: str) -> None:
    run = keyed(emulated=False, fewest=3)
    of = halves(uploads(run))
    make, says = FORGED[lie]
    forged = make(run, of["client/1"])
    rest = {name: of[name] for name in CLIENTS[2:]}
    assert lying(run, [dict.fromkeys([*rest, forged.sender], 1)], {**rest, forged.sender: forged}) == [False]
    assert run.refused
    assert all(says in reason for reason in run.refused), run.refused


def test_an_upload_that_its_sender_has_not_signed_is_refused() -> None:
    run = keyed(emulated=False)
    cipher = run.hub.keys.public(KEY).encrypt(VALUES[0])
    data = vouched(run.party("client/0"), KEY, cipher, 1)
    assert len(data) == 64 + len(cipher.to_bytes())
    assert parted(data)[1] == cipher.to_bytes()
    for name, r, given in (("client/1", 1, data), ("client/0", 2, data), ("client/0", 1, bytes(64) + data[64:])):
        with pytest.raises(PeerError, match="signature"):
            taken(HubKey(run.hub, KEY, r), name, given, len(VALUES[0]))
    with pytest.raises(PeerError, match="signature"):
        taken(HubKey(run.hub, KEY, 1), "client/0", data, len(VALUES[0]), part=1)
    for cut in (b"", data[:60]):
        with pytest.raises(DecodeError, match="no signed ciphertext"):
            taken(HubKey(run.hub, KEY, 1), "client/0", cut, len(VALUES[0]))
    with pytest.raises(CryptoError, match="is not one fresh vector"):
        vouched(run.party("client/0"), KEY, cipher + cipher, 1)


@BOTH
def test_a_half_has_half_the_bytes_of_a_ciphertext_and_reads_back(emulated: bool) -> None:
    run = keyed(emulated=emulated)
    group, (half,) = run.hub.joint.group(KEY), halves({"client/4": upload(run, "client/4", VALUES[4])}).values()
    data = half.to_bytes(group)
    assert weighs(data) == pytest.approx(run.hub.keys.public(KEY).wire_bytes(len(VALUES[4])) / 2, rel=0.01)
    again = Half.read(group, data)
    assert (again.sender, again.part, again.length, again.name) == ("client/4", 0, len(VALUES[4]), half.name)
    for bad in (data[:20], data[:-8], b"garbage"):
        with pytest.raises(DecodeError):
            Half.read(group, bad)


def test_a_hub_s_own_sums_that_show_too_much_are_not_even_asked_for() -> None:
    run = keyed(emulated=True, fewest=3, sums=2)
    a, b, c, d, e = uploads(run).values()
    with pytest.raises(NoAnswerError, match="2 sums under 'sum' together show fewer than 3 vectors"):
        drive(run, open_sums(HubKey(run.hub, KEY, 1), {0: a + b + c + d + e, 1: a + b + c}), 1)


def smallest(rows: np.ndarray) -> int:
    """How many vectors a combination shows at least, by trying which columns can be 0 together."""
    count, best = rows.shape[1], rows.shape[1]
    for kept in product([False, True], repeat=count):
        shown = rows[:, np.array(kept)]
        hidden = rows[:, ~np.array(kept)]
        if shown.any() and np.linalg.matrix_rank(hidden) < np.linalg.matrix_rank(rows):
            best = min(best, sum(kept))
    return best


def test_combinations_of_sums_are_found_that_show_few_vectors() -> None:
    rng, seen = np.random.default_rng(0), set[bool]()
    for _ in range(25):
        rows = rng.integers(0, 2, (int(rng.integers(1, 4)), 7))
        if not rows.any():
            continue
        for fewest in (2, 3, 4):
            found = shows_few([np.flatnonzero(row).tolist() for row in rows], fewest)
            assert found == (smallest(rows) < fewest), rows
            seen.add(found)
    assert seen == {True, False}
    assert shows_few([range(20), range(2, 20)], 3)
    assert not shows_few([range(20), range(20), range(3, 20)], 3)
