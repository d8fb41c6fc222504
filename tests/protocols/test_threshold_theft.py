"""One client that sends Enc(0) + (0, K) reads a joint key off what is opened, and under joint pads it reads nothing.

A hub that deviates is refused.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from federation import Rig, planted, rig
from joint_parts import HOLDERS, KEY, SMALL, keyed, opened, summed
from own_system import page_module

from coterie.crypto import residues, threshold_opening
from coterie.crypto.threshold_opening import read_answers
from coterie.crypto.vector import sum_ciphers
from coterie.privacy.attacks.joint_key import JointThief, joint_secret, read_joint
from coterie.privacy.attacks.key_in_sum import forged, key_agreement
from coterie.privacy.attacks.wrapping import wrap
from coterie.protocol.messages import bundle, unbundle
from coterie.protocol.steps import NoAnswerError, for_each
from coterie.protocols import threshold
from coterie.protocols.threshold import keys as threshold_keys
from coterie.protocols.threshold.keys import Consent, HubKey, text
from coterie.protocols.threshold.opening import Announce, Closed, Decrypt, Partials, open_closed

pytestmark = pytest.mark.usefixtures("small_ring")

TARGETS = planted([0, 0, 1, 1, 2], 2 * 1024 + 300, apart=0.1)


@pytest.fixture
def secure_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The page's system, with a small ring."""
    page = page_module(tmp_path, monkeypatch)

    def small(name: str, parameters: str, **fields: Any) -> threshold_keys.Joint:
        return threshold_keys.Joint(name, SMALL, **fields)

    monkeypatch.setattr(threshold, "Joint", small)
    return page


def robbed(secure_mean: ModuleType, pads: bool) -> tuple[Rig, JointThief]:
    run = rig(secure_mean.SYSTEM, TARGETS, emulated=False, keys="threshold", pads=pads, lr=0.05)
    thief = JointThief(run.common.spec, run.party("client/0"), "mean")
    wrap(run.party("client/0"), thief.between)
    for r in (1, 2):
        assert "skipped" not in run.round(r)
    assert not run.refused
    return run, thief


def truth(run: Rig) -> np.ndarray:
    return joint_secret({name: run.party(name) for name in run.common.clients}, "mean")


def test_without_pads_one_client_alone_reads_the_joint_key(secure_mean: ModuleType) -> None:
    run, thief = robbed(secure_mean, pads=False)
    found = key_agreement(thief.guess, truth(run))  # type: ignore[arg-type]
    assert found.value > 0.99
    assert found.chance < 0.3


def test_with_pads_it_reads_nothing(secure_mean: ModuleType) -> None:
    run, thief = robbed(secure_mean, pads=True)
    found = key_agreement(thief.guess, truth(run))  # type: ignore[arg-type]
    assert found.value < found.chance + 5 * np.sqrt(found.chance * (1 - found.chance) / 1024)


def test_the_truth_is_a_sum_of_ternary_secrets(secure_mean: ModuleType) -> None:
    run = rig(secure_mean.SYSTEM, TARGETS, emulated=False, keys="threshold")
    secret = truth(run)
    assert np.abs(secret).max() <= 5
    assert abs(np.square(secret).mean() - 5 * 2 / 3) < 5 * (170 / 9 / 1024) ** 0.5  # real keys differ in each run


@pytest.mark.parametrize("refused", [True, False], ids=["sums", "given"])
def test_a_hub_that_deviates_reads_the_joint_key_from_one_opening_where_holders_are_given_c1(refused: bool) -> None:
    """The page's limit: where single vectors are opened, holders can't tell whether a c_1 is a sum's."""
    run = keyed(emulated=False, fewest=2 if refused else 1)
    stolen = forged(summed(run, *np.zeros((3, 1024))).cipher, 0, 32.0)
    closed = {0: Closed(3, 1024, partial(threshold_opening.server_dec, run.hub.joint.group(KEY), stolen))}
    if refused:
        with pytest.raises(NoAnswerError, match="says nothing of what it sums up"):
            opened(run, stolen)
        with pytest.raises(NoAnswerError, match="refused"):
            run.transport.drive(open_closed(HubKey(run.hub, KEY, 1), closed), 1)
        assert run.refused == {"client/Decrypt: no sum of a shared key": 4}
        return
    guess = read_joint(opened(run, stolen).values, run.hub.joint.group(KEY))
    secret = joint_secret({name: run.party(name) for name in run.common.clients}, KEY)
    assert key_agreement(guess, secret).value > 0.99
    assert not run.refused


def test_a_scalar_of_a_hub_s_own_shows_some_coefficients_of_the_key_and_no_more() -> None:
    """The page's limit: holders can't see what a scalar is of. c_1 = F (1 + b X^-1 + b^2 X^-2 + ...) opens to
    F (s_0 + b s_1 + b^2 s_2 + ...) and noise.
    """
    run = keyed(emulated=False, pads=True, products=True, scalars=1, fewest=2)
    one, base, count = run.hub.joint.group(KEY), 16, 3
    scale = 32 * one.flood(one.fresh_deviation, scalar=True)
    row = np.zeros(one.degree, np.int64)
    for i in range(count):
        row[-i % one.degree] = round(scale) * base**i * (-1 if i else 1)  # X^-i is -X^(N - i)
    c1 = one.ring.transformed(row[None], one.opened_limbs - 1)
    request = threshold_opening.Request(one, 1, 1, 1, True, 0.0, 1.0, c1)
    parts: dict[str, bytes] = {}

    def take(name: str, msg: Any) -> None:
        parts[name] = unbundle(msg.parts, 1)[0]

    def lies() -> Any:
        yield from for_each(dict.fromkeys(HOLDERS, Announce(1, KEY, 1, np.array([0, 1, 1]))), Consent, lambda *_: None)
        ask = Decrypt(1, KEY, 1, text(HOLDERS), np.array([0]), bundle([request.to_bytes()]), bundle([]))
        yield from for_each(dict.fromkeys(HOLDERS, ask), Partials, take)

    run.transport.drive(lies(), 1)
    nothing = np.zeros((1, one.opened_limbs, 1), np.uint64)
    ready = threshold_opening.Prepared(request, nothing, None, one.space.fresh, (0.0, 0.0))
    total, _ = read_answers(one, ready, parts, one.holders)
    value = round(residues.centred(total[0, :, 0], one.moduli(one.opened_limbs)) / round(scale))
    found = []
    for _ in range(count):
        digit = (value + base // 2) % base - base // 2
        found, value = [*found, digit], (value - digit) // base
    secret = joint_secret({name: run.party(name) for name in run.common.clients}, KEY)
    assert found == secret[:count].tolist()
    assert any(found) or not secret[:count].any()


@pytest.mark.parametrize("pads", [True, False], ids=["pads", "no pads"])
def test_a_hub_that_deviates_in_the_page_s_system_is_refused(secure_mean: ModuleType, pads: bool) -> None:
    run = rig(secure_mean.SYSTEM, TARGETS, emulated=False, keys="threshold", pads=pads)
    run.round(1)
    zero = sum_ciphers(run.hub.keys.public("mean").encrypt(np.zeros(1024)) for _ in range(5))
    one = run.hub.joint.group("mean")
    stolen = {0: Closed(5, 1024, partial(threshold_opening.server_dec, one, forged(zero, 0, 32.0)))}
    with pytest.raises(NoAnswerError, match="refused"):
        run.transport.drive(open_closed(HubKey(run.hub, "mean", 2), stolen), 2)
    assert run.refused == {"client/Decrypt: no sum of a shared key": 5}


def test_a_whole_ciphertext_is_refused_where_pads_are_used(secure_mean: ModuleType) -> None:
    run = rig(secure_mean.SYSTEM, TARGETS, emulated=False, keys="threshold")
    run.round(1)
    from federation import misbehaving

    def whole(party: Any, request: Any, answer: Any) -> Any:
        return secure_mean.Update(request.round, party.keys.public("mean").encrypt(TARGETS[0]).to_bytes())

    misbehaving(run.party("client/0"), secure_mean.Train, whole)
    assert run.round(2) == {"participants": 4, "asked": 5}
    assert run.refusals("server", "Update") == 1
