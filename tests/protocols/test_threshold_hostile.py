"""Holders that lie, vanish or are asked for too much: what happens is defined, and nothing secret is in any error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import joint_parts as parts
import msgspec
import numpy as np
import pytest
from federation import Rig, misbehaving, on_the_wire
from joint_parts import KEY, held
from tampering import flipped

import coterie.method as fl
from coterie.crypto import threshold_generation
from coterie.crypto.threshold_pads import sum_dec
from coterie.protocols.threshold import hand_over, make_keys, open_sums
from coterie.protocols.threshold.holder import AskTurns, Begin, Committed, Exchange, JointKey, Pass, Piece, Reveal
from coterie.protocols.threshold.keys import Consent, HubKey, text
from coterie.protocols.threshold.opening import Announce, Decrypt, Partials

pytestmark = pytest.mark.usefixtures("small_ring")

MOST = {"threshold": 3, "least": 3}
LIAR = "client/1"
change = msgspec.structs.replace


def vanishing(run: Rig, kind: type, name: str = LIAR) -> None:
    misbehaving(run.party(name), kind, lambda party, request, answer: None)


# -- while a key is made -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, MOST, {"products": True}], ids=str)
@pytest.mark.parametrize("kind", [Begin, Reveal, Exchange, AskTurns, JointKey], ids=lambda kind: kind.__name__)
def test_a_holder_that_vanishes_while_a_key_is_made_is_left_out(kind: type, settings: dict[str, Any]) -> None:
    run = parts.joint(**settings)
    vanishing(run, kind)
    ready = parts.made(run)
    if kind is AskTurns and "products" not in settings:
        assert ready.holders == parts.HOLDERS
    elif kind is JointKey and settings == MOST:  # three others have it
        assert (ready.holders, set(ready.missing), ready.number) == (parts.HOLDERS, {LIAR}, 1)
    else:
        assert (ready.holders, set(ready.missing)) == (tuple(h for h in parts.HOLDERS if h != LIAR), {LIAR})
    assert parts.within(parts.opened(run, parts.summed(run, *parts.VECTORS)).values, run)


@pytest.mark.parametrize("kind", [Begin, Pass, Exchange], ids=lambda kind: kind.__name__)
def test_a_holder_that_vanishes_while_a_key_is_handed_over(kind: type) -> None:
    run = parts.keyed(**MOST)
    cipher = parts.summed(run, *parts.VECTORS)
    vanishing(run, kind)
    ready = parts.drive(run, hand_over(HubKey(run.hub, KEY, 1), (*parts.HOLDERS[:3], "client/4")), 1)
    assert (ready.holders, set(ready.missing)) == (("client/0", "client/2", "client/4"), {LIAR})
    assert parts.within(parts.opened(run, cipher, 2).values, run)


def test_a_key_of_all_is_not_handed_over_without_one_of_them() -> None:
    run = parts.keyed()
    vanishing(run, Pass)
    with pytest.raises(fl.NoAnswerError, match=r"is handed over by 4 of its holders: client/1: .*"):
        parts.drive(run, hand_over(HubKey(run.hub, KEY, 1), (*parts.HOLDERS[:3], "client/4")), 1)
    assert parts.within(
        parts.opened(run, parts.summed(run, *parts.VECTORS), 2).values, run
    )  # the old holders still have it


def test_a_key_of_all_is_lost_with_a_new_holder_that_goes_at_the_last_moment() -> None:
    """The old holders have erased their shares by then. A new key is made."""
    run = parts.keyed()
    new = ("client/4", "helper", LIAR)
    vanishing(run, JointKey)

    def steps() -> Any:
        with pytest.raises(fl.NoAnswerError, match="is handed over by 4 of its holders: client/1: "):
            yield from hand_over(HubKey(run.hub, KEY, 1), new)
        return (yield from make_keys(HubKey(run.hub, KEY, 1), ("client/0", "client/2", "client/4")))

    assert parts.drive(run, steps()).missing == {}
    assert parts.within(parts.opened(run, parts.summed(run, *parts.VECTORS), 2).values, run)


def test_all_holders_gone() -> None:
    run = parts.joint()
    for name in parts.HOLDERS:
        vanishing(run, Begin, name)
    with pytest.raises(fl.NoAnswerError, match=r"at least 2 holders and at most 256, each once, not 0 .*client/3: "):
        parts.made(run)
    parts.made(run, (*parts.CLIENTS[4:], "helper"), 1)
    for name in ("client/4", "helper"):
        vanishing(run, Announce, name)
    with pytest.raises(fl.NoAnswerError, match=r"is opened by 2 of 2 holders: client/4: .*; helper: "):
        parts.opened(run, parts.summed(run, *parts.VECTORS))


@pytest.mark.parametrize(
    "holders", [(), ("client/0",), ("client/0", "client/0"), ("client/0", "hub"), ("nobody", "client/1")]
)
def test_who_cannot_hold_a_key(holders: tuple[str, ...]) -> None:
    with pytest.raises(fl.NoAnswerError, match=r"for at least 2 holders|may not hold key 'sum'"):
        parts.made(parts.joint(), holders)


@pytest.mark.parametrize(
    ("kind", "lie"),
    [
        (Begin, lambda party, request, answer: change(answer, digest=b"short")),
        (Begin, lambda party, request, answer: change(answer, digest=bytes(32))),
        (Begin, lambda party, request, answer: change(answer, number=7)),
        (Begin, lambda party, request, answer: change(answer, key="other")),
        (Reveal, lambda party, request, answer: change(answer, part=b"garbage")),
        (Reveal, lambda party, request, answer: change(answer, part=fl.bundle([b"", b"", bytes(32)]))),
        (
            Exchange,
            lambda party, request, answer: (fl.To("hub", change(answer[0].message, signature=bytes(64))), *answer[1:]),
        ),
        (Exchange, lambda party, request, answer: answer[:1]),
        (Exchange, lambda party, request, answer: (answer[0], *(garbled(to) for to in answer[1:]))),
    ],
)
def test_a_holder_that_lies_while_a_key_is_made_is_left_out(kind: type, lie: Callable[..., Any]) -> None:
    run = parts.joint(**MOST)
    misbehaving(run.party(LIAR), kind, lie)
    ready = parts.made(run)
    assert (ready.holders, set(ready.missing)) == (tuple(h for h in parts.HOLDERS if h != LIAR), {LIAR})
    assert parts.within(parts.opened(run, parts.summed(run, *parts.VECTORS)).values, run)


@pytest.mark.parametrize("deadline_s", [None, 60.0])
def test_pieces_that_never_come_are_not_waited_for_a_week(deadline_s: float | None) -> None:
    run = parts.joint(**MOST)
    misbehaving(run.party(LIAR), Exchange, lambda party, request, answer: answer[:1])
    assert set(parts.made(run, deadline_s=deadline_s).missing) == {LIAR}
    assert run.hub.now_s < 1000


def garbled(to: fl.To) -> fl.To:
    return fl.To(to.dst, change(to.message, piece=b"garbage")) if isinstance(to.message, Piece) else to


def test_a_part_that_is_committed_to_and_is_no_part_is_noticed_when_all_are_joined() -> None:
    run = parts.joint()

    def lie(party: Any, request: Any, answer: Committed) -> Committed:
        making = party.secret.making.rounds[KEY]
        _, first, nonce = fl.unbundle(making.shown, 3)
        making.shown = fl.bundle([b"garbage", first, nonce])
        return change(answer, digest=threshold_generation.commitment(fl.bundle([b"garbage", first]), nonce))

    misbehaving(run.party(LIAR), Begin, lie)
    ready = parts.made(run)
    assert ready.missing == {LIAR: "its answer cannot be read"}


def test_a_holder_shows_its_part_only_to_a_hub_that_has_its_commitment() -> None:
    """Commitments come first: else the last to speak chooses its part so that the sum is a key of its own."""
    run = parts.joint(emulated=False)
    on_the_wire(run.transport, Reveal, lambda msg: change(msg, digests=bytes(len(msg.digests))), dst=LIAR)
    assert parts.made(run).missing.keys() == {LIAR}
    assert any("the commitment of client/1 was changed" in reason for reason in run.refused)


def test_a_hub_that_swaps_the_joint_key_or_its_holders_is_refused() -> None:
    run = parts.keyed(emulated=False)
    other = parts.joint(emulated=False, seed=5)
    parts.made(other)
    before = run.hub.keys.public(KEY).fingerprint
    swaps: list[Callable[[JointKey], JointKey]] = [
        lambda msg: change(msg, public=other.hub.keys.public(KEY).to_bytes()),
        lambda msg: change(msg, holders=text(parts.HOLDERS[:2]), signatures=msg.signatures[:128]),
        lambda msg: change(msg, holders=text(("client/4", *parts.HOLDERS[1:]))),
        lambda msg: change(msg, signatures=flipped(msg.signatures)),
        lambda msg: change(msg, signatures=b""),
        lambda msg: change(msg, summands=9),
        lambda msg: change(msg, number=1),
    ]
    for r, swap in enumerate(swaps, 1):
        on_the_wire(run.transport, JointKey, swap, dst="client/4")
        ready = parts.made(run, parts.HOLDERS[:3], r)
        assert ready.untold == ("client/4",)
        assert run.party("client/4").keys.public(KEY).fingerprint == before


# -- while a sum is opened ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Announce, Decrypt], ids=lambda kind: kind.__name__)
def test_with_t_of_n_a_holder_that_vanishes_is_replaced(kind: type) -> None:
    run = parts.keyed(**MOST)
    vanishing(run, kind, "client/0")
    ended = parts.opened(run, parts.summed(run, *parts.VECTORS))
    assert set(ended.among) == {"client/1", "client/2", "client/3"}
    assert (ended.blamed, ended.tries) == ((), 1 + (kind is Decrypt))
    assert parts.within(ended.values, run)


@pytest.mark.parametrize("kind", [Announce, Decrypt], ids=lambda kind: kind.__name__)
def test_with_n_of_n_a_holder_that_vanishes_keeps_the_sum_closed(kind: type) -> None:
    run = parts.keyed()
    vanishing(run, kind)
    with pytest.raises(fl.NoAnswerError, match="is opened by 4 of 4 holders: client/1: "):
        parts.opened(run, parts.summed(run, *parts.VECTORS))


@pytest.mark.parametrize("emulated", [True, False], ids=["emulated", "real"])
@pytest.mark.parametrize("liar", parts.HOLDERS)
def test_with_t_of_n_a_false_share_is_noticed_and_its_holder_left_out(liar: str, emulated: bool) -> None:
    run = parts.keyed(emulated=emulated, sums=2, **MOST)
    parts.false_share(run, liar)
    ended = parts.opened(run, parts.summed(run, *parts.VECTORS))
    assert parts.within(ended.values, run)
    used = {"client/0", "client/1", "client/2"}  # who is asked first
    assert ended.blamed == ((liar,) if liar in used else ())
    assert liar not in ended.among
    sums = {number: parts.summed(run, *parts.VECTORS, r=2) for number in (3, 4)}
    several = parts.drive(run, open_sums(HubKey(run.hub, KEY, 2), sums), 2)
    assert all(parts.within(one.values, run) and liar not in one.among for one in several.values())


def test_two_false_shares_of_four_keep_the_sum_closed() -> None:
    run = parts.keyed(**MOST)
    for liar in parts.HOLDERS[1:3]:
        parts.false_share(run, liar)
    with pytest.raises(fl.NoAnswerError, match="opens to nonsense whichever one holder is left out"):
        parts.opened(run, parts.summed(run, *parts.VECTORS))


def test_with_n_of_n_a_false_share_keeps_the_sum_closed() -> None:
    run = parts.keyed(emulated=False)
    parts.false_share(run, LIAR)
    with pytest.raises(fl.NoAnswerError, match="gave a false share, and as 4 of 4 holders are needed"):
        parts.opened(run, parts.summed(run, *parts.VECTORS))


def other_sum(run: Rig) -> Callable[..., Any]:
    """What the liar gave for an earlier sum."""
    kept: list[Any] = []

    def lie(party: Any, request: Any, answer: Partials) -> Partials:
        kept.append(answer.parts)
        return change(answer, parts=kept[0])

    return lie


LIES: dict[str, Callable[[Rig], Callable[..., Any]]] = {
    "garbage": lambda run: lambda party, request, answer: change(answer, parts=b"garbage"),
    "garbage in a bundle": lambda run: lambda party, request, answer: change(answer, parts=fl.bundle([b"garbage"])),
    "nothing": lambda run: lambda party, request, answer: change(answer, parts=fl.bundle([b""])),
    "one too many": lambda run: (
        lambda party, request, answer: change(answer, parts=fl.bundle([*fl.unbundle(answer.parts, 1)] * 2))
    ),
    "another making": lambda run: lambda party, request, answer: change(answer, number=9),
    "another key": lambda run: lambda party, request, answer: change(answer, key="other"),
    "another round": lambda run: lambda party, request, answer: change(answer, round=0),
    "another sum": other_sum,
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("settings", [{}, MOST], ids=str)
def test_an_answer_that_is_none_counts_as_none(settings: dict[str, Any], lie: str) -> None:
    run = parts.keyed(emulated=False, **settings)
    misbehaving(run.party(LIAR), Decrypt, LIES[lie](run))
    if settings or lie == "another sum":  # which is honest at first
        assert parts.within(parts.opened(run, parts.summed(run, *parts.VECTORS)).values, run)
    if settings:
        ended = parts.opened(run, parts.summed(run, *parts.VECTORS), 2)
        assert (parts.within(ended.values, run), LIAR in ended.among) == (True, False)
    else:
        with pytest.raises(fl.NoAnswerError, match="client/1: ") as error:
            parts.opened(run, parts.summed(run, *parts.VECTORS), 2)
        parts.no_secret(run, str(error.value))


def test_a_share_that_comes_twice_counts_once() -> None:
    run = parts.keyed(emulated=False)
    misbehaving(run.party(LIAR), Decrypt, lambda party, request, answer: (fl.To("hub", answer), fl.To("hub", answer)))
    ended = parts.opened(run, parts.summed(run, *parts.VECTORS))
    assert (sorted(ended.among), parts.within(ended.values, run)) == (sorted(parts.HOLDERS), True)


def test_a_share_under_another_key_is_no_share() -> None:
    """Of a holder that sleeps through a new key: it says so itself, and with its old share it would be refused."""
    run = parts.keyed(emulated=False)
    old = held(run, LIAR).share
    parts.made(run, r=1)
    held(run, LIAR).share = old
    with pytest.raises(fl.NoAnswerError, match="client/1: "):
        parts.opened(run, parts.summed(run, *parts.VECTORS), 2)
    assert any("a share of another group of holders, or of an earlier one" in reason for reason in run.refused)
    parts.no_secret(run, " ".join(run.refused))


# -- what a holder is asked for ----------------------------------------------------------------------------------------


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
