"""Joint keys: parties make one that nobody holds, open sums with it, and hand it over when they change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import joint_parts as rig
import numpy as np
import pytest
from federation import Rig

from coterie.crypto import threshold, threshold_opening
from coterie.crypto.arrays import CiphertextError
from coterie.protocol.codec import content
from coterie.protocol.errors import DecodeError, UserError
from coterie.protocol.steps import NoAnswerError
from coterie.protocols.key_centre import KEY_CENTRE
from coterie.protocols.threshold import HubKey, Joint, hand_over, open_sums
from coterie.runs.parties import dumped
from coterie.transport.local import LocalTransport

pytestmark = pytest.mark.usefixtures("small_ring")

VECTORS = np.random.default_rng(0).normal(size=(3, 1500))
TOTAL = VECTORS.sum(axis=0)
MOST = {"threshold": 3, "least": 3}


def error(run: Rig, terms: int = 3) -> float:
    return run.hub.joint.group(rig.KEY).error(terms)


# -- made, and used ----------------------------------------------------------------------------------------------------


@rig.BOTH
@pytest.mark.parametrize(
    "settings", [{}, MOST, {"products": True}, {"dealer": True}, {"dealer": True, **MOST}], ids=str
)
def test_a_sum_is_opened_by_those_who_made_the_key(settings: dict[str, Any], emulated: bool) -> None:
    run = rig.joint(emulated=emulated, **settings)
    ready = rig.made(run)
    number = 2 if settings.get("dealer") else 1
    assert (ready.holders, ready.number, dict(ready.missing), ready.untold) == (rig.HOLDERS, number, {}, ())
    ended = rig.opened(run, rig.summed(run, *VECTORS))
    assert np.abs(ended.values - TOTAL).max() <= error(run)
    assert (set(ended.among) <= set(rig.HOLDERS), ended.blamed, ended.tries) == (True, (), 1)
    assert len(ended.among) == settings.get("threshold", 4)
    assert not run.refused


def test_everybody_knows_the_key_and_only_its_holders_have_shares() -> None:
    run = rig.keyed(emulated=False, **MOST)
    for name in (*rig.CLIENTS, "helper", "hub"):
        assert run.party(name).keys.public(rig.KEY).fingerprint == run.hub.keys.public(rig.KEY).fingerprint
        assert run.party(name).joint.terms(rig.KEY).holders == rig.HOLDERS
    assert [name for name in (*rig.CLIENTS, "helper") if run.party(name).secret.joint.held] == list(rig.HOLDERS)
    assert not any(run.party(name).secret.making.rounds for name in (*rig.CLIENTS, "helper"))
    assert len(set(rig.shares_of(run).values())) == 4
    with pytest.raises(NoAnswerError, match=r"holds? no share|REFUSED|refused"):
        rig.opened(run, rig.summed(run, *VECTORS), present=["client/4", *rig.HOLDERS[:2]])


def test_holders_may_have_several_roles() -> None:
    run = rig.joint()
    assert rig.made(run, ("helper", "client/0", "client/3")).holders == ("helper", "client/0", "client/3")
    assert np.abs(rig.opened(run, rig.summed(run, *VECTORS)).values - TOTAL).max() <= error(run)


@rig.BOTH
def test_products_are_opened_too(emulated: bool) -> None:
    run = rig.keyed(emulated=emulated, products=True)
    key, keys = run.hub.keys.public(rig.KEY), run.hub.keys.evaluation(rig.KEY)
    rows = VECTORS[:2] / 60
    ciphers = [key.encrypt(row) for row in rows]
    dot = ciphers[0].dot(ciphers[1].conjugated(keys), keys, constant=True, at_most=64)
    several = rig.drive(run, open_sums(HubKey(run.hub, rig.KEY, 1), {0: dot + dot, 7: ciphers[0] + ciphers[1]}), 1)
    assert abs(several[0].values[0] - 2 * rows[0] @ rows[1]) < 1e-6
    assert np.abs(several[7].values - rows.sum(axis=0)).max() < 1e-6


def test_scalars_of_one_sender_are_opened_where_that_is_declared() -> None:
    for scalars in (0, 1):
        run = rig.keyed(products=True, scalars=scalars)
        key, keys = run.hub.keys.public(rig.KEY), run.hub.keys.evaluation(rig.KEY)
        cipher = key.encrypt(VECTORS[0] / 60)
        norm = cipher.dot(cipher.conjugated(keys), keys, constant=True, at_most=1)
        if scalars:
            both = rig.drive(run, open_sums(HubKey(run.hub, rig.KEY, 1), {0: norm, 1: norm}, deviation={1: 1e6}), 1)
            assert all(abs(one.values[0] - np.square(VECTORS[0] / 60).sum()) < 1e-4 for one in both.values())
        else:
            with pytest.raises(NoAnswerError, match="sum 0 has 1 senders"):
                rig.drive(run, open_sums(HubKey(run.hub, rig.KEY, 1), {0: norm}), 1)
        with pytest.raises(NoAnswerError, match="sum 2 has 1 senders"):
            rig.drive(run, open_sums(HubKey(run.hub, rig.KEY, 2), {2: cipher}), 2)


def test_a_forged_ciphertext_beside_others_is_left_out_and_blames_no_holder() -> None:
    run = rig.keyed(emulated=False, sums=2)
    good, other = rig.summed(run, *VECTORS), rig.summed(run, *VECTORS)
    spoilt = other.cipher.array.copy()
    spoilt[0, 0] = spoilt[0, 0, :, ::-1]
    bad = replace(other, cipher=replace(other.cipher, array=spoilt))
    found = rig.drive(run, open_sums(HubKey(run.hub, rig.KEY, 1), {0: good, 1: bad}, partly=True), 1)
    assert list(found) == [0]
    assert np.abs(found[0].values - TOTAL).max() <= error(run)
    again = {2: rig.of_round(run, good, 2), 3: rig.of_round(run, bad, 2)}
    with pytest.raises(NoAnswerError, match="or a ciphertext in it is forged"):
        rig.drive(run, open_sums(HubKey(run.hub, rig.KEY, 2), again), 2)


def test_values_are_the_same_whoever_opens_them_up_to_the_stated_error() -> None:
    run = rig.keyed(emulated=False, **MOST)
    cipher = rig.summed(run, *VECTORS)
    sets = [rig.HOLDERS[:3], rig.HOLDERS[1:], (rig.HOLDERS[0], rig.HOLDERS[2], rig.HOLDERS[3])]
    for r, present in enumerate(sets, 1):
        ended = rig.opened(run, cipher, r, present=present)
        assert set(ended.among) == set(present)
        assert np.abs(ended.values - TOTAL).max() <= error(run)


def test_emulated_federations_repeat_bit_for_bit() -> None:
    runs = [rig.joint(seed=3, **MOST) for _ in range(2)]
    for run in runs:
        rig.made(run)
    first, second = (rig.opened(run, rig.summed(run, *VECTORS)).values for run in runs)
    np.testing.assert_array_equal(first, second)


def test_what_the_hub_relays_is_sealed_and_no_share_crosses_in_the_clear() -> None:
    crossing: list[tuple[Any, bytes]] = []

    def tap(envelope: Any, frame: bytes) -> list[bytes]:
        crossing.append((envelope, bytes(content(frame))))
        return [frame]

    run = rig.keyed(emulated=False, intercept=tap, **MOST)
    rig.opened(run, rig.summed(run, *VECTORS))
    pieces = [envelope for envelope, _ in crossing if envelope.kind == "Piece"]
    assert len(pieces) == 4 * 3
    assert all(envelope.sealed for envelope in pieces)
    secrets = {bytes(content(share))[64:128] for share in rig.shares_of(run).values()}
    secrets |= {seed for name in rig.HOLDERS for seed in rig.held(run, name).seeds.values()}
    assert len(secrets) == 4 + 6
    assert not any(secret in frame for secret in secrets for _, frame in crossing)


@rig.BOTH
def test_every_party_is_made_again_from_its_bytes_before_any_message(emulated: bool) -> None:
    def played(restarting: bool) -> np.ndarray:
        run = rig.joint(emulated=emulated, **MOST)
        handle = LocalTransport._handle

        def handled(self: LocalTransport, jobs: Any) -> None:
            for job in jobs:
                run.federation.parties.restart(job.parcel.envelope.dst)  # type: ignore[attr-defined]
            handle(self, jobs)

        with patch.object(LocalTransport, "_handle", handled if restarting else handle):
            rig.made(run)
            rig.drive(run, hand_over(HubKey(run.hub, rig.KEY, 1), (*rig.HOLDERS[1:], "helper")), 1)
            values = rig.opened(run, rig.summed(run, *VECTORS), 2).values
        assert not run.refused
        return values

    plain, again = played(False), played(True)
    assert np.abs(plain - TOTAL).max() < 1e-6
    assert np.abs(again - TOTAL).max() < 1e-6
    if emulated:
        np.testing.assert_array_equal(plain, again)


# -- holders change ----------------------------------------------------------------------------------------------------


@rig.BOTH
@pytest.mark.parametrize("settings", [{}, MOST, {"dealer": True}], ids=str)
def test_a_key_is_handed_over(settings: dict[str, Any], emulated: bool) -> None:
    """The same key: what was encrypted before is opened by the new holders, and by nobody of the old alone."""
    run = rig.keyed(emulated=emulated, **settings)
    before, cipher, old = run.hub.keys.public(rig.KEY), rig.summed(run, *VECTORS), rig.shares_of(run)
    new = ("client/4", "helper", "client/0")
    ready = rig.drive(run, hand_over(HubKey(run.hub, rig.KEY, 1), new), 1)
    assert (ready.holders, dict(ready.missing)) == (new, {})
    assert run.hub.keys.public(rig.KEY).fingerprint == before.fingerprint
    ended = rig.opened(run, cipher, 2)
    assert set(ended.among) <= set(new)
    assert np.abs(ended.values - TOTAL).max() <= error(run)
    assert set(rig.shares_of(run)) == set(new)
    for name, share in old.items():  # erased: in no byte of what they keep
        assert bytes(content(share))[40:] not in dumped(run.party(name))
    rig.drive(run, hand_over(HubKey(run.hub, rig.KEY, 3), rig.HOLDERS), 3)  # and back, to those who have been told
    assert np.abs(rig.opened(run, rig.summed(run, *VECTORS), 4).values - TOTAL).max() <= error(run)
    assert not run.refused


def test_an_old_share_does_not_fit_the_new_ones() -> None:
    run = rig.keyed(emulated=False)
    old, group = rig.shares_of(run), run.hub.joint.group(rig.KEY)
    rig.drive(run, hand_over(HubKey(run.hub, rig.KEY, 1), rig.HOLDERS), 1)
    new = run.hub.joint.group(rig.KEY)
    with pytest.raises(DecodeError, match="another group of holders, or of an earlier one"):
        threshold.Share.load(new, old["client/0"])
    stale = threshold.Share(new, threshold.Share.load(group, old["client/0"]).numbers)
    rig.held(run, "client/0").share = stale.to_bytes()
    with pytest.raises(NoAnswerError, match="opens to nonsense: a holder gave a false share, and as 4 of 4"):
        rig.opened(run, rig.summed(run, *VECTORS), 2)


@pytest.mark.parametrize("settings", [{}, MOST], ids=str)
def test_former_holders_who_kept_their_shares_could_open_what_is_handed_over_but_not_a_new_key(
    settings: dict[str, Any],
) -> None:
    """What erasure is assumed for."""
    run = rig.keyed(emulated=False, **settings)
    kept, group = rig.shares_of(run), run.hub.joint.group(rig.KEY)
    seeds = {name: dict(rig.held(run, name).seeds) for name in kept}
    among = tuple(rig.HOLDERS[: group.needed])

    def plotted(cipher: Any) -> np.ndarray:
        """By former holders, with a copy of the ciphertext."""
        ready = threshold_opening.server_dec(group, cipher.cipher)
        parts = {}
        for name in among:
            share, zero = threshold.Share.load(group, kept[name]), threshold.Zero(name, seeds[name])
            parts[name], _ = threshold_opening.partial(
                group, share, ready.request, name, among, zero, threshold.Answered()
            )
        return threshold_opening.opened(group, ready, parts)

    rig.drive(run, hand_over(HubKey(run.hub, rig.KEY, 1), ("client/4", "helper", "client/0")), 1)
    assert np.abs(plotted(rig.summed(run, *VECTORS)) - TOTAL).max() <= group.error(3)
    rig.made(run, ("client/4", "helper", "client/0"), 2)
    with pytest.raises(CiphertextError, match="nonsense"):
        plotted(rig.summed(run, *VECTORS))


def test_a_new_key_opens_nothing_old_and_old_shares_are_erased() -> None:
    run = rig.keyed(emulated=False)
    old, cipher, kept = run.hub.keys.public(rig.KEY), rig.summed(run, *VECTORS), rig.shares_of(run)
    rig.made(run, rig.CLIENTS[1:], 1)
    assert run.hub.keys.public(rig.KEY).fingerprint != old.fingerprint
    with pytest.raises(DecodeError, match="encrypted under key"):
        run.hub.keys.public(rig.KEY).from_bytes(cipher.cipher.to_bytes())
    with pytest.raises(NoAnswerError, match="opens to nonsense"):
        rig.opened(run, cipher, 2)
    assert np.abs(rig.opened(run, rig.summed(run, *VECTORS), 3).values - TOTAL).max() <= error(run)
    assert not run.party("client/0").secret.joint.held
    for name, share in kept.items():
        assert bytes(content(share))[40:] not in dumped(run.party(name))


def test_the_key_centre_keeps_nothing_of_a_dealt_key() -> None:
    run = rig.joint(emulated=False, dealer=True)
    centre = run.party(KEY_CENTRE)
    assert centre.state.dealt == {rig.KEY: 1}
    assert type(centre.secret).__struct_fields__ == ()
    assert np.abs(rig.opened(run, rig.summed(run, *VECTORS)).values - TOTAL).max() <= error(run)
    for name in rig.HOLDERS:  # the share stands in one place
        assert rig.KEY not in run.party(name).secret.keys.secret


# -- declarations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"threshold": 1}, "a threshold of 1 would let one holder open all"),
        ({"threshold": -1}, "a threshold of -1"),
        ({"least": 1}, "1 holders are too few: at least 2"),
        ({"threshold": 3}, "2 holders are too few.*as many as the threshold of 3"),
        ({"fewest": 0}, "a sum has at least 1 sender"),
        ({"openings": 0}, "a key at least 1 opening"),
    ],
    ids=str,
)
def test_a_key_that_keeps_nothing_is_not_declared(settings: dict[str, int], says: str) -> None:
    with pytest.raises(UserError, match=says):
        Joint("key", "threshold-8192-sum", ("client",), **settings)  # type: ignore[arg-type]
