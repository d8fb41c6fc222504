"""What goes between PAFed's two servers: a wrong or a missing answer skips a round; what the helper refuses; damaged
answers end no run and cost no model, and a relay's forgeries are refused by their signature.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from federation import Rig, misbehaving, on_the_wire
from pafed_parts import REALLY, TARGETS, change, four, model, stranger

from coterie.protocol.errors import PeerError
from coterie.protocol.messages import Message, bundle, unbundle
from coterie.protocols.pads import Unpad
from coterie.systems.pafed import messages as msgs
from coterie.systems.pafed.classification import MOST_MASK

D = TARGETS.shape[1]


# -- the helper's answers ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wrong:
    """An answer of the helper, changed: to which request, how, and what the aggregator says."""

    name: str
    kind: type[Message]
    make: Callable[[Any, Any, Any], Any]
    why: str


def key(helper: Any) -> Any:
    return helper.keys.own("service")


def scalars(by: Any, count: int, **changed: Any) -> bytes:
    return bundle([by.encrypt_scalar(0.5, **changed).to_bytes()] * count)


def blinded(helper: Any, **options: Any) -> bytes:
    public = key(helper).public
    at = options.get("level", 0)
    vector = public.encrypt(np.zeros(D), at)
    made = vector.blind(public.mask(vector.length, np.random.default_rng(0).bytes, at))
    return made.to_bytes()


REQUEST = {
    msgs.Refreshed: msgs.Refresh,
    msgs.Converted: msgs.Convert,
    msgs.Compared: msgs.Compare,
    msgs.Inverted: msgs.Invert,
}
COUNT = {msgs.Compared: lambda m: m.count, msgs.Inverted: lambda m: 3}
WRONG = [
    *(
        Wrong(f"{kind.__name__}: {name}", kind, make, why)
        for kind in REQUEST
        for name, make, why in (
            ("the round before", lambda h, m, a: change(a, round=m.round - 1), "round"),
            ("nothing", lambda h, m, a: None, "gave no direct answer"),
        )
    ),
    *(
        Wrong(f"{kind.__name__}: {name}", kind, make, why)
        for kind in (msgs.Refreshed, msgs.Converted)
        for name, make, why in (
            ("without the mask", lambda h, m, a: change(a, cipher=key(h).encrypt(np.zeros(D), 0).to_bytes()), ""),
            ("fewer terms", lambda h, m, a: change(a, cipher=blinded(h)), ""),
            ("another level", lambda h, m, a: change(a, cipher=blinded(h, level=2)), ""),
        )
    ),
    Wrong("Converted: another client", msgs.Converted, lambda h, m, a: change(a, client="client/9"), "client/9"),
    Wrong("Converted: under sk_s", msgs.Converted, lambda h, m, a: change(a, cipher=blinded(h)), "under key"),
    *(
        Wrong(f"{kind.__name__}: {name}", kind, make, why)
        for kind in (msgs.Compared, msgs.Inverted)
        for name, make, why in (
            ("one too many", lambda h, m, a: change(a, ciphers=scalars(key(h), 30)), "parts were expected"),
            (
                "vectors",
                lambda h, m, a: change(a, ciphers=bundle([key(h).encrypt(np.zeros(1)).to_bytes()] * parts(a))),
                "",
            ),
            (
                "a level lower",
                lambda h, m, a: change(a, ciphers=scalars(key(h), parts(a), level=0, at_most=most(a))),
                "level",
            ),
            ("out of bounds", lambda h, m, a: change(a, ciphers=scalars(key(h), parts(a), at_most=1 << 20)), "terms"),
            (
                "under another key",
                lambda h, m, a: change(
                    a, ciphers=bundle([stranger(True, "insecure-1024-deep").encrypt_scalar(0.5).to_bytes()] * parts(a))
                ),
                "under key",
            ),
        )
    ),
]


def most(answer: msgs.Compared | msgs.Inverted) -> int:
    return MOST_MASK if isinstance(answer, msgs.Compared) else msgs.LARGEST


def parts(answer: msgs.Compared | msgs.Inverted) -> int:
    return int(np.frombuffer(answer.ciphers[:4], "<u4")[0])


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_a_wrong_answer_of_the_helper_skips_the_round_and_says_why(wrong: Wrong) -> None:
    """The model stays as it was, and the next round, answered properly, goes on from it."""
    run = four()
    run.round(1)
    before, asked = model(run), REQUEST[wrong.kind]
    helper = run.party(msgs.HELPER)
    honest = type(helper)
    misbehaving(helper, asked, wrong.make)
    notes = run.round(2)
    assert notes["skipped"].startswith(f"helper did not answer {asked.__name__}: ")
    if wrong.why == "gave no direct answer":
        assert wrong.why in notes["skipped"]
    else:
        assert run.refusals(msgs.HUB, wrong.kind.__name__) == (4 if wrong.kind is msgs.Converted else 1)  # one a client
        assert any(wrong.why in reason for reason in run.refused)
    assert np.abs(model(run) - before).max() < 1e-6
    helper.__class__ = honest
    notes = run.round(3)
    assert "skipped" not in notes
    assert sum(notes["staleness"]) == notes["participants"] >= 2
    assert np.abs(model(run) - before).max() > 1e-3


@pytest.mark.parametrize("kind", [msgs.Refreshed, msgs.Convert, msgs.Compare, msgs.Inverted])
def test_what_is_lost_between_the_servers_skips_the_round(kind: type[Message]) -> None:
    run = four()
    run.round(1)
    before = model(run)
    on_the_wire(run.transport, kind, lambda m: None, rounds=[2])
    notes = run.round(2)
    assert "lost on the way" in notes["skipped"]
    assert notes["participants"] == 0
    assert notes["lost_updates"] == (4 if kind in (msgs.Compare, msgs.Compared, msgs.Invert, msgs.Inverted) else 0)
    assert np.abs(model(run) - before).max() < 1e-6
    run.transport.intercept = None
    assert "skipped" not in run.round(3)


def test_a_helper_that_is_gone_ends_no_run_and_is_named_in_every_round() -> None:
    run = four()
    run.round(1)
    for r in (2, 3, 4):
        run.links.away[msgs.HELPER, r] = "offline"
    assert {run.round(r)["skipped"].split(":")[0] for r in (2, 3, 4)} == {"helper did not answer Refresh"}
    notes = run.round(5)  # late updates of round 1 have waited
    assert notes["staleness"][0] == 2
    assert sum(notes["staleness"][1:]) == 2


def test_a_helper_that_lies_within_the_form_is_believed() -> None:
    """A limit: what it encrypts nobody else can open. With reciprocals of its own it moves the model at will."""
    run = four()
    run.round(1)
    before = model(run)

    def lie(helper: Any, request: msgs.Invert, answer: msgs.Inverted) -> msgs.Inverted:
        made = [key(helper).encrypt_scalar(value, 1 << 11) for value in (300.0, -300.0, 0.0)]
        return change(answer, ciphers=bundle([cipher.to_bytes() for cipher in made]))

    misbehaving(run.party(msgs.HELPER), msgs.Invert, lie)
    assert "skipped" not in run.round(2)
    assert np.linalg.norm(model(run) - before) > 5


# -- what the helper refuses -------------------------------------------------------------------------------------------


def test_the_helper_opens_one_vector_a_round() -> None:
    """A second one, of whatever is under the mask, could be an update: see test_pafed_security.py."""
    run = four()
    run.rounds(2)
    helper = run.party(msgs.HELPER)
    ((_, first),) = run.view(msgs.HELPER).messages(msgs.Refresh, 2)
    for r in (2, 1, 0):
        with pytest.raises(Exception, match=f"asked to open a vector of round {r} after one of round 2"):
            helper.refresh(change(first, round=r), msgs.HUB)


@pytest.mark.parametrize("mode", ["paper", "hardened"])
def test_the_helper_opens_so_many_scalars_a_round_as_an_honest_round_has(mode: str) -> None:
    """An aggregator that calls coordinates of an update cosines gets no more numbers than that; in ``hardened`` the
    helper knows how many updates are late.
    """
    run = four(mode=mode)
    run.rounds(2)
    helper, late = run.party(msgs.HELPER), {"paper": 4 * 10, "hardened": 2}[mode]
    compared, inverted = (next(run.view(msgs.HELPER).messages(kind, 2))[1] for kind in (msgs.Compare, msgs.Invert))
    for handler, message in ((helper.compare, compared), (helper.invert, inverted)):
        with pytest.raises(PeerError, match=f"a second {type(message).__name__} of round 2"):
            handler(message, msgs.HUB)
    most = late + run.config.dummies
    for r, count in ((3, most + 1), (3, 1 << 15)):
        helper.state.unpadded = (3, late)
        with pytest.raises(PeerError, match=rf"{count} scalars to open, where this round has {most} at most"):
            helper.compare(msgs.Compare(r, count, scalars(key(helper), 1)), msgs.HUB)
    with pytest.raises(PeerError, match="8 scalars to open, where this round has 4 at most"):
        helper.invert(msgs.Invert(3, 2, scalars(key(helper), 8)), msgs.HUB)
    assert (
        len(unbundle(helper.compare(msgs.Compare(3, most, scalars(key(helper), most)), msgs.HUB).ciphers, most)) == most
    )


def test_the_helper_of_padded_updates_counts_the_late_ones_itself() -> None:
    run = four(mode="hardened")
    run.rounds(2)
    helper = run.party(msgs.HELPER)
    singles = [msg for _, msg in run.view(msgs.HELPER).messages(Unpad, 2) if len(msg.rounds) == 1]
    assert helper.state.unpadded == (2, len(singles))
    assert len(singles) == sum(len(msg.rounds) for msg in singles) == 2
    assert helper.late(3) == 0
    with pytest.raises(PeerError, match=r"5 scalars to open, where this round has 4 at most"):
        helper.compare(msgs.Compare(3, 5, scalars(key(helper), 5)), msgs.HUB)


HELPED: list[tuple[str, type[Message], Callable[[Any], Any], str]] = [
    ("a model without a mask", msgs.Refresh, lambda m: change(m, cipher=PLAIN["model"]), "mask"),
    ("another key", msgs.Refresh, lambda m: change(m, cipher=PLAIN["other"]), "under key"),
    ("an unknown client", msgs.Convert, lambda m: change(m, client="client/77"), "nothing to convert for client/77"),
    ("very many", msgs.Compare, lambda m: change(m, count=1 << 30), "scalars to open"),
    ("a wrong count", msgs.Compare, lambda m: change(m, count=m.count + 1), "bundle"),
    ("a vector among scalars", msgs.Compare, lambda m: with_first(m, PLAIN["one"]), "something other than scalars"),
    ("a vector to invert", msgs.Invert, lambda m: with_first(m, PLAIN["one"]), "something other than scalars"),
    ("a masked vector to compare", msgs.Compare, lambda m: with_first(m, PLAIN["masked one"]), "mask"),
]
PLAIN: dict[str, bytes] = {}


def with_first(message: msgs.Compare | msgs.Invert, cipher: bytes) -> msgs.Compare | msgs.Invert:
    count = message.count if isinstance(message, msgs.Compare) else 4
    return change(message, ciphers=bundle([cipher, *unbundle(message.ciphers, count)[1:]]))


@pytest.mark.parametrize(("name", "kind", "make", "why"), HELPED, ids=[entry[0] for entry in HELPED])
def test_what_the_helper_can_not_accept_it_refuses_with_a_reason(
    name: str, kind: type[Message], make: Callable[[Any], Any], why: str
) -> None:
    run = four()
    run.round(1)
    public = run.hub.keys.public("service")
    other = stranger(True, "insecure-1024-deep").public
    source = np.random.default_rng(0).bytes
    PLAIN["model"] = run.hub.state.model
    PLAIN["other"] = other.encrypt(np.zeros(D), 0).blind(other.mask(D, source)).to_bytes()
    PLAIN["one"] = public.encrypt(np.zeros(1)).to_bytes()
    PLAIN["masked one"] = public.encrypt(np.zeros(1), 0).blind(public.mask(1, source)).to_bytes()
    on_the_wire(run.transport, kind, lambda m: make(m) if getattr(m, "client", "client/0") == "client/0" else m)
    notes = run.round(2)
    (reason, *others) = run.refused  # without a refreshed model there is nothing to convert either
    assert all(kind is msgs.Refresh and "Convert: nothing to convert" in other for other in others)
    assert reason.startswith(f"helper/{kind.__name__}:")
    assert why in reason
    assert notes["skipped"].endswith(": refused")


@pytest.mark.parametrize(
    ("sums", "inverted"),
    [
        ((0.5, -0.25, 0.125, 0.1), (2, -4, -3.2)),
        ((1 / 4096, -0.25, 0.125, 0.1), (0, -4, -3.2)),  # next to nobody agrees
        ((0.5, 1 / 4096, 0.125, 0.1), (2, 0, 0)),  # next to nobody conflicts
        ((0.5, -0.25, 1 / 4096, 0.1), (2, 0, 0)),  # next to nothing to turn by: unturned they would conflict
        ((0.5, 1 / 2048, 1 / 2048, 0.5), (2, 0, 0)),  # further than the ciphers hold
    ],
)
def test_what_the_helper_inverts_and_when_a_class_is_left_out(sums: tuple, inverted: tuple) -> None:
    run = four()
    run.round(1)
    helper = run.party(msgs.HELPER)
    key = helper.keys.own("service")
    request = msgs.Invert(1, 1, bundle([key.public.encrypt_scalar(x).to_bytes() for x in sums]))
    answer = unbundle(helper.invert(request, msgs.HUB).ciphers, 3)
    got = [float(key.decrypt(key.public.from_bytes(part, 1, terms=1 << 11))[0]) for part in answer]
    np.testing.assert_allclose(got, inverted, rtol=0.01, atol=0.02)


# -- answers that are damaged on the way -------------------------------------------------------------------------------


def service(run: Rig) -> Any:
    return run.hub.keys.public("service")


def disturbed(key: Any, data: bytes) -> bytes:
    """The same ciphertext with another number in its first place."""
    cipher = key.from_bytes(data)
    if cipher.emulated:
        values = cipher.array.copy()
        values[0] += 1 << 60
        return replace(cipher, array=values).to_bytes()
    polynomials = cipher.array.copy()
    polynomials[0, 0, 0, 0] ^= 1
    return replace(cipher, array=polynomials).to_bytes()


def forged(key: Any, size: int) -> bytes:
    """What anybody can make: zeros under a mask of one's own, in the form of a model."""
    vector = key.encrypt(np.zeros(size), 0).within(msgs.MODEL_TERMS)
    return vector.blind(key.mask(size, np.random.default_rng(0).bytes)).to_bytes()


Damage = Callable[[Rig, msgs.Refreshed, list[msgs.Refreshed]], msgs.Refreshed]
DAMAGED: dict[str, Damage] = {
    "one residue": lambda run, m, kept: change(m, cipher=disturbed(service(run), m.cipher)),
    "forged": lambda run, m, kept: change(m, cipher=forged(service(run), run.hub.layout.size)),
    "swapped": lambda run, m, kept: change(m, cipher=kept[0].cipher if len(kept) > 1 else m.cipher),
    "empty": lambda run, m, kept: change(m, cipher=b""),
}


def relayed(run: Rig, damage: Damage, rounds: set[int]) -> None:
    """Let the helper give back something else in some rounds."""
    kept: list[msgs.Refreshed] = []

    def relay(message: msgs.Refreshed) -> msgs.Refreshed:
        kept.append(message)
        return damage(run, message, kept) if message.round in rounds else message

    on_the_wire(run.transport, msgs.Refreshed, relay)


@pytest.mark.parametrize("emulated", REALLY)
@pytest.mark.parametrize(
    "rounds", [{3, 4}, *(pytest.param(one, marks=pytest.mark.long) for one in ({3}, {3, 4, 5, 6}, {3, 5}))], ids=str
)
@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_copy_costs_rounds_and_never_the_model(name: str, rounds: set[int], emulated: bool) -> None:
    """Clients go on from the last model that they have opened, whatever comes back, and so does the observer."""
    run = four(emulated=emulated, delta=0.0)
    relayed(run, DAMAGED[name], rounds)
    for r in (1, 2):
        run.round(r)
    good, sound = model(run), run.models()[0]
    for r in range(3, max(rounds) + 1):
        notes = run.round(r)
        if name == "empty":
            assert ("helper did not answer Refresh" in notes["skipped"]) if r in rounds else "skipped" not in notes
        elif r == 4:
            assert "the last model that clients have opened is taken up again" in notes["skipped"]
        if len(rounds) == max(rounds) - 2:  # in every round from 3 on: nothing is ever added to the good one
            np.testing.assert_allclose(run.models()[0], sound, atol=1e-4)
    after = [run.round(r) for r in range(max(rounds) + 1, max(rounds) + 4)]
    assert [note["participants"] for note in after[1:]] == [4, 4]
    assert np.linalg.norm(model(run) - good) > 0.5
    assert np.abs(model(run) - good).max() < 3
    np.testing.assert_allclose(run.models()[0], model(run), atol=1e-4)


def test_where_nobody_answers_a_damaged_copy_is_not_taken_up() -> None:
    run = four(delta=0.0)
    relayed(run, DAMAGED["forged"], {3})
    for r in (1, 2):
        run.round(r)
    before = model(run)
    for name in run.common.clients:
        run.links.away[name, 3] = "offline"
    assert run.round(3)["skipped"] == "no update came"
    assert (model(run) == before).all()
    assert run.round(4)["participants"] == 4


def test_where_all_answers_are_late_the_model_of_those_that_came_is_kept() -> None:
    """Nobody in time says that a model opens; the late ones of its round do, and then it is the one to go back to."""
    run, sent = four(delta=1.0), []
    relayed(run, DAMAGED["forged"], {7, 8})
    for r in range(1, 8):
        sent.append(model(run))
        run.round(r)
    assert np.abs(sent[-1] - run.common.initial).max() > 0.1
    assert "is taken up again" in run.round(8)["skipped"]
    assert any((model(run) == of).all() for of in sent[3:6])  # what was sent out in rounds 4 to 6
    before = model(run)
    assert sum(run.round(r)["participants"] for r in range(9, 14)) >= 8
    assert np.abs(run.models()[0] - before).max() > 0.1


# -- what a relay forges -----------------------------------------------------------------------------------------------


FORGED: dict[type[Message], Callable[[Rig, Any], Any]] = {
    msgs.Refreshed: lambda run, m: change(m, cipher=forged(service(run), run.hub.layout.size)),
    msgs.Converted: lambda run, m: change(
        m, cipher=forged(run.hub.keys.public(f"user {m.client}"), run.hub.layout.size)
    ),
    msgs.Compared: lambda run, m: change(m, ciphers=scalars(service(run), 2 + run.config.dummies, at_most=1)),
    msgs.Inverted: lambda run, m: change(m, ciphers=scalars(service(run), 3, at_most=msgs.LARGEST)),
}


@pytest.mark.parametrize("kind", FORGED, ids=lambda kind: kind.__name__)
def test_a_relay_that_forges_what_the_helper_says_is_refused_by_signature(kind: type[Message]) -> None:
    run = four()
    run.round(1)
    caught = on_the_wire(run.transport, kind, lambda m: FORGED[kind](run, m), rounds=[2], signed=False)
    run.round(2)
    assert caught
    assert run.refusals(msgs.HUB, kind.__name__) == len(caught)
    assert all("signature" in reason for reason in run.refused)
