"""What a holder of a joint key is asked for and refuses; and nothing secret is in what it says."""

from __future__ import annotations

from typing import Any

import joint_parts as parts
import msgspec
import numpy as np
import pytest
from federation import Rig, misbehaving
from joint_parts import KEY, held

import coterie.method as fl
from coterie.crypto.threshold_pads import sum_dec
from coterie.protocols.threshold import hand_over
from coterie.protocols.threshold.holder import AskTurns, Begin, Exchange, JointKey, Pass, Piece, Reveal
from coterie.protocols.threshold.keys import Consent, HubKey, text
from coterie.protocols.threshold.opening import Announce, Decrypt, Partials

pytestmark = pytest.mark.usefixtures("small_ring")

MOST = {"threshold": 3, "least": 3}
change = msgspec.structs.replace
LIAR = "client/1"


def asked(run: Rig, *messages: Any, r: int = 1, name: str = LIAR) -> list[Any]:
    """A hub that asks one holder for these, one after the other. Returns its answers, None where it refuses."""
    answers: list[Any] = []

    def steps() -> Any:
        for message, reply in messages:
            got: list[Any] = []
            yield from fl.for_each({name: message}, reply, lambda _, answer, got=got: got.append(answer))  # type: ignore[misc]
            answers.append(got[0] if got else None)

    parts.drive(run, steps(), r)
    return answers


def question(run: Rig, cipher: Any, *, r: int = 1, number: int = 0, **other: Any) -> tuple[Any, Any]:
    group, (halves, weights) = run.hub.joint.group(KEY), parts.of_round(run, cipher, r).terms()
    request = sum_dec(group, run.hub.keys.public(KEY), cipher.cipher, halves, weights).request.to_bytes()
    among, signed = parts.HOLDERS[: group.needed], fl.bundle([half.to_bytes(group) for half in halves.values()])
    fields = {"among": text(among), "numbers": np.array([number]), "ciphers": fl.bundle([request]), **other}
    fields = {"halves": signed, **fields}
    return Decrypt(r, KEY, fields.pop("making", 1), **fields), Partials


def announcement(cipher: Any, *, r: int = 1, number: int = 0, senders: int = 0) -> tuple[Any, Any]:
    return Announce(r, KEY, 1, np.array([number, senders or len(cipher.terms()[0]), cipher.length])), Consent


@pytest.mark.parametrize("settings", [{}, MOST], ids=str)
def test_a_holder_answers_for_announced_sums_only_and_once_for_a_ciphertext(settings: dict[str, Any]) -> None:
    run = parts.keyed(emulated=False, **settings)
    cipher = parts.summed(run, *parts.VECTORS)
    same = question(run, cipher)
    longer, other = parts.summed(run, *np.zeros((3, 5))), parts.summed(run, *parts.VECTORS[:2])
    answers = asked(
        run,
        same,  # not announced
        announcement(cipher),
        announcement(cipher, number=3),
        same,
        same,  # again
        (change(same[0], numbers=np.array([3])), Partials),  # again, as another sum
        question(run, cipher, number=1),  # under another number
        question(run, longer),  # another length
        question(run, other),  # other senders
        question(run, cipher, r=2),  # of another round
        question(run, cipher, making=2),
        question(run, cipher, among=text(parts.HOLDERS[:2])),  # too few
        question(run, cipher, among=text(("client/0", "client/2", "client/3", "client/4"))),  # not itself
        question(run, cipher, among=text(("client/1",) * 4)),
        question(run, cipher, numbers=np.array([], np.int64), ciphers=fl.bundle([])),
        question(run, cipher, ciphers=fl.bundle([b"garbage"])),
        question(run, cipher, number=3),
    )
    assert [answer is not None for answer in answers] == [False, True, True, True, *[False] * 12, True]
    parts.no_secret(run, " ".join(run.refused))
    assert any("the same ciphertext again" in reason for reason in run.refused)


@pytest.mark.parametrize(("settings", "tries"), [({}, 1), (MOST, 4)], ids=["n-of-n", "3-of-4"])
def test_a_holder_opens_no_sum_of_too_few_senders_and_none_too_often(settings: dict[str, Any], tries: int) -> None:
    """Where all holders are needed, nobody can be left out of a second try."""
    run = parts.keyed(emulated=False, **settings)
    cipher = parts.summed(run, *parts.VECTORS)
    assert asked(run, announcement(parts.upload(run, LIAR, parts.VECTORS[0]))) == [None]
    again = [question(run, cipher, r=2) for _ in range(7)]
    answers = asked(run, announcement(cipher, r=2), *again, r=2)
    assert [answer is not None for answer in answers] == [True, *[True] * tries, *[False] * (7 - tries)]
    assert any(f"sum 0 of round 2 was opened {tries} times" in reason for reason in run.refused)
    assert asked(run, announcement(cipher, r=3), announcement(cipher, r=3), r=3)[1] is None
    late = asked(run, announcement(cipher, r=2, number=8), r=3)
    assert late == [None]
    with pytest.raises(fl.NoAnswerError, match="sum 0 has 1 senders: of fewer than 2 none is opened"):
        parts.opened(run, parts.upload(run, LIAR, parts.VECTORS[0]), 4)


@pytest.mark.parametrize("emulated", [True, False], ids=["emulated", "real"])
def test_weights_are_no_senders(emulated: bool) -> None:
    """One sender's vector times 1,023 has 1,023 terms, and is one vector; a number that is added is none."""
    run = parts.keyed(emulated=emulated, fewest=3, sums=1)
    one, two = (
        parts.upload(run, parts.HOLDERS[0], parts.VECTORS[0]).scale(1023),
        parts.upload(run, parts.HOLDERS[1], parts.VECTORS[1]),
    )
    for cipher, count in ((one, 1), (one + two, 2), (one + one, 1), ((one + two).scale(2), 2)):
        assert (len(cipher.terms()[0]), cipher.cipher.terms >= 1023) == (count, True)
        with pytest.raises(fl.NoAnswerError, match=f"sum 0 has {count} senders: of fewer than 3 none is opened"):
            parts.opened(run, cipher)
        assert asked(run, announcement(cipher)) == [None]
    others = two + parts.upload(run, parts.HOLDERS[2], parts.VECTORS[2])
    with pytest.raises(fl.NoAnswerError, match="refused"):
        parts.opened(run, one + others, 2)
    assert any("one of 3 has nearly all of the sum" in reason for reason in run.refused)
    assert np.abs(parts.opened(run, one + others.scale(1023), 3).values).max() > 1000


def test_a_key_opens_as_many_ciphertexts_as_its_noise_is_made_for() -> None:
    run = parts.joint(emulated=False, openings=3)
    parts.made(run)  # its trial is the first
    for r in (1, 2):
        assert parts.within(parts.opened(run, parts.summed(run, *parts.VECTORS), r).values, run)
    with pytest.raises(fl.NoAnswerError, match="client/0: "):
        parts.opened(run, parts.summed(run, *parts.VECTORS), 3)
    assert any("4 openings under one key: its noise is sized for 3, make a new key" in reason for reason in run.refused)
    parts.made(run, r=4)
    assert parts.within(parts.opened(run, parts.summed(run, *parts.VECTORS), 5).values, run)


def test_openings_are_counted_on_when_a_key_is_handed_over() -> None:
    run = parts.joint(emulated=False, openings=4)
    parts.made(run)  # its trial is the first
    assert parts.within(parts.opened(run, parts.summed(run, *parts.VECTORS), 1).values, run)
    parts.drive(run, hand_over(HubKey(run.hub, KEY, 2), ("client/4", "helper")), 2)  # with a trial
    assert parts.opened_by(run, "helper") == 3
    assert parts.within(parts.opened(run, parts.summed(run, *parts.VECTORS), 3).values, run)
    with pytest.raises(fl.NoAnswerError, match="helper: "):
        parts.opened(run, parts.summed(run, *parts.VECTORS), 4)


def test_nobody_but_the_hub_asks_and_only_holders_send_pieces() -> None:
    run = parts.keyed(emulated=False)
    cipher = parts.summed(run, *parts.VECTORS)
    party = run.party(LIAR)
    for message, _ in (announcement(cipher), question(run, cipher)):
        with pytest.raises(fl.PeerError, match="only the hub may send one"):
            party.handlers[type(message)].run(party, message, "client/2")
    for kind in (Begin, Reveal, Exchange, AskTurns, Pass, JointKey):
        fields = [field.name for field in msgspec.structs.fields(kind)]
        values = {"round": 1, "key": KEY, "number": 2, "elements": np.array([3])}
        message = kind(
            *(values.get(name, b"" if name in ("parts", "digests", "public", "signatures") else "") for name in fields)
        )
        with pytest.raises(fl.PeerError, match="only the hub may send one"):
            party.handlers[kind].run(party, message, "client/2")
    with pytest.raises(fl.PeerError, match="which is not being made"):
        party.making.take_piece(Piece(1, KEY, 2, bytes(32), b""), "client/2")
    party.making.begin(Begin(1, KEY, 2, text(parts.HOLDERS), ""), "hub")
    for piece, src in [
        (Piece(1, KEY, 2, bytes(32), b""), "client/4"),
        (Piece(1, KEY, 2, bytes(31), b""), "client/2"),
        (Piece(1, KEY, 2, b"", b""), "client/2"),
        (Piece(1, KEY, 2, b"", b"piece"), "client/2"),
        (Piece(1, KEY, 3, bytes(32), b""), "client/2"),
    ]:
        with pytest.raises(fl.PeerError):
            party.making.take_piece(piece, src)
    party.making.take_piece(Piece(1, KEY, 2, bytes(32), b""), "client/2")
    with pytest.raises(fl.PeerError, match="has sent one"):
        party.making.take_piece(Piece(1, KEY, 2, bytes(32), b""), "client/2")


def test_a_part_of_a_key_is_given_once() -> None:
    """Two answers for one common polynomial differ by their noise, and the mean of many shows the secret."""
    run = parts.joint(emulated=False, products=True)
    asked_for: list[Any] = []

    def again(party: Any, request: Any, answer: Any) -> Any:
        other = AskTurns(0, KEY, 1, request.elements[:1])
        for message, kind in [(request, AskTurns), (other, AskTurns), *asked_for]:
            with pytest.raises(fl.PeerError, match=r"no rotations to be made|which is at (Exchanged|Whole)"):
                parts.Client.handlers[kind].run(party, message, "hub")
        return answer

    for kind in (Reveal, Exchange):
        misbehaving(
            run.party(LIAR), kind, lambda party, request, answer, kind=kind: asked_for.append((request, kind)) or answer
        )
    misbehaving(run.party(LIAR), AskTurns, again)
    assert not parts.made(run).missing
    assert len(asked_for) == 2
    fresh = parts.joint(emulated=False, products=True)

    def few(party: Any, request: Any, answer: Any) -> Any:
        making = party.secret.making.rounds[KEY]
        making.turned = False
        with pytest.raises(fl.PeerError, match=r"automorphisms that .* has no keys for"):
            parts.Client.handlers[AskTurns].run(party, AskTurns(0, KEY, 1, np.array([3, 5])), "hub")
        return answer

    misbehaving(fresh.party(LIAR), AskTurns, few)
    assert not parts.made(fresh).missing


def test_a_making_is_begun_once_and_by_who_may_hold_the_key() -> None:
    run = parts.keyed()
    party = run.party(LIAR)
    for begin, says in [
        (Begin(1, KEY, 1, text(parts.HOLDERS), ""), "making 1 of key 'sum' after 1"),
        (Begin(1, "other", 2, text(parts.HOLDERS), ""), "knows of no joint key 'other'"),
        (Begin(1, KEY, 2, text(("client/0", "client/2")), ""), "client/1 is not among the 2 holders"),
        (
            Begin(1, KEY, 2, text((*parts.HOLDERS, "hub")), ""),
            "'hub' may not hold key 'sum': it is for a client or a helper",
        ),
        (Begin(1, KEY, 2, LIAR, ""), "for at least 2 holders"),
        (Begin(1, KEY, 2, text(parts.HOLDERS), text(("client/4",) * 4)), "is handed over by 4 of its holders"),
        (Begin(1, KEY, 2, text(parts.HOLDERS), text(parts.HOLDERS[:3])), "is handed over by 4 of its holders"),
    ]:
        with pytest.raises(fl.PeerError, match=says):
            party.making.begin(begin, "hub")


def test_what_holds_a_secret_shows_none() -> None:
    run = parts.keyed(emulated=False, **MOST)
    party = run.party(LIAR)
    party.making.begin(Begin(1, KEY, 2, text(parts.HOLDERS), ""), "hub")
    shown = f"{party.secret!r} {party.secret.joint!r} {held(run, LIAR)!r} {party.secret.making.rounds[KEY]!r}"
    parts.no_secret(run, shown)
    assert "share=" not in shown
    assert repr(Piece(1, KEY, 2, b"secret seed", b"secret piece")) == "<Piece of sum 2>"
