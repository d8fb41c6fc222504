"""Hostile engines, hubs and members against nodes: refused, counted, state unchanged; and what a broker can read."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from liars import CENTRE, CLIENT, CSP, HUB, OTHER, ROUNDS, SYSTEM, Reasons, Scene, apart
from memory_engine import Exchange
from nodes import Nodes, opened, steady, take_all

from coterie.crypto.roster import new_identity
from coterie.deploy.hub import HubNode
from coterie.deploy.logs import NodeObserver
from coterie.deploy.node import Node
from coterie.deploy.packet_queue import NodeLimits
from coterie.deploy.packets import (
    FORMAT,
    BeginAttempt,
    End,
    Letter,
    NoAnswer,
    Packet,
    Report,
    Tally,
    Wrapped,
    unwrap,
    wrap,
)
from coterie.protocol.codec import frame_digest
from coterie.protocol.party import To
from coterie.protocol.randomness import Randomness
from coterie.protocols import averaging
from coterie.protocols.key_centre import Deal, Granted, Ready
from coterie.runs.keyring import PartyKeys
from coterie.systems.fedcaprivacy.messages import Upload
from coterie.transport.envelope import Envelope
from tests.deploy.test_hostile import TARGETS


@pytest.fixture(scope="module")
def undisturbed() -> tuple[np.ndarray, list[tuple[str, str, bytes]]]:
    """The models of a run that nobody disturbs, and all that its broker has carried."""
    one, carried = apart(), []

    def record(src: str, dst: str, body: bytes) -> Sequence[bytes]:
        carried.append((src, dst, body))
        return [body]

    one.exchange.tamper = record
    one.run(ROUNDS)
    return one.models(), carried


# -- a broker that forges, repeats, swaps and cuts ---------------------------------------------------------------------


def renumbered(body: bytes, by: int) -> bytes:
    """The same packet under another number, as its signature does not cover it outside."""
    wrapped = msgspec.msgpack.decode(body, type=Wrapped)
    return msgspec.msgpack.encode(msgspec.structs.replace(wrapped, number=max(0, wrapped.number + by)))


@dataclass
class Broker:
    """Delivers every packet genuinely at last, and before it all that can be made of it without a key."""

    seed: int
    seen: dict[tuple[str, str], list[bytes]] = field(default_factory=dict)
    forged: Counter[str] = field(default_factory=Counter)

    def __call__(self, src: str, dst: str, body: bytes) -> Sequence[bytes]:
        draw = random.Random(f"{self.seed} {src} {dst} {len(body)} {len(self.seen)}")
        at, bit = draw.randrange(len(body)), 1 << draw.randrange(8)
        wrong = [
            body[: draw.randrange(len(body))],
            body + b"\0",
            body[:at] + bytes([body[at] ^ bit]) + body[at + 1 :],
            renumbered(body, 1),
            renumbered(body, -1),
            renumbered(body, 1 << 40),
            draw.randbytes(draw.randrange(1, 300)),
            b"",
        ]
        others = [bodies[-1] for (a, b), bodies in self.seen.items() if (a, b) != (src, dst)]
        wrong += draw.sample(others, min(3, len(others)))  # of other links: swapped senders and recipients
        self.forged[dst] += len(wrong)
        again = self.seen.setdefault((src, dst), [])
        again.append(body)
        return [*wrong, body, body, *draw.sample(again, 1)]


def test_a_hostile_broker_changes_no_model_and_everything_is_counted(
    undisturbed: tuple[np.ndarray, list[tuple[str, str, bytes]]],
) -> None:
    models, _ = undisturbed
    one, broker, reports = apart(), Broker(7), {}
    one.exchange.tamper = broker
    refused: Counter[str] = Counter()

    class Counts(NodeObserver):
        def __init__(self, name: str) -> None:
            self.name = name

        def dropped(self, src: str, kind: str, reason: str) -> None:
            assert kind == "packet"
            refused[self.name] += 1

    one.options = lambda name: {"observer": Counts(name)}
    one.heard = lambda name, report: reports.setdefault((name, report.era), report)
    one.run(ROUNDS)
    assert np.array_equal(one.models(), models)
    assert set(refused) == set(one.parties)
    for name, count in refused.items():
        left = one.exchange.waiting(name)  # what came after its end
        assert count >= broker.forged[name] - left > 0, name
    told = Counter(dict.fromkeys(one.parties, 0))
    for (name, _), report in reports.items():
        told[name] += report.refused.get("packet", 0)
    assert all(told[name] > 0 for name in one.parties if name != HUB)
    assert sum(one.traffic.refused.get("packet", 0) for one in one.rounds) > 0


# -- parties with keys of their own ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ran() -> Nodes:
    """A federation after its rounds."""
    one = apart()
    one.run(ROUNDS)
    return one


Open = Callable[[str], Scene]


@pytest.fixture
def scene(ran: Nodes) -> Iterator[Open]:
    opened: list[tuple[Node, bytes | None]] = []

    def make(name: str) -> Scene:
        ran.exchange = Exchange(list(ran.parties))
        reasons = Reasons()
        kept = ran.stores[name].data
        node = ran.node(name, observer=reasons)
        node.open()
        opened.append((node, kept))
        made = Scene(ran, node, reasons)
        if name != HUB:  # it has asked the hub where it is
            made.packet(HUB, BeginAttempt(node.era, 0, mark=node.kept.mark))
            made.take()
        return made

    yield make
    for node, kept in opened:
        node.close()
        ran.stores[node.name].data = kept


GRANT = Granted(number=0, grant="", names="secret service", keys=b"", signature=b"\0" * 64)


def test_a_hub_that_forges_credentials_is_refused(scene: Open) -> None:
    """In its own name, in that of the key centre's role, and with a number that was not dealt."""
    one = scene(CLIENT)
    before = one.state()
    one.letter(HUB, GRANT)
    one.letter(HUB, GRANT, role=CENTRE)
    one.letter(HUB, msgspec.structs.replace(GRANT, number=9), role=CENTRE)
    one.letter(HUB, GRANT, src=CENTRE, role=CENTRE)
    assert one.take() == 4
    assert one.state() == before
    assert any("comes from a business_server, not from a key_centre" in why for why in one.reasons.why)
    assert any("is no 'key_centre' of this federation" in why for why in one.reasons.why)
    assert any("sends a letter from 'key_centre'" in why for why in one.reasons.why)


def test_a_hub_that_has_a_genuine_grant_gives_it_to_nobody_else(
    scene: Open, undisturbed: tuple[np.ndarray, list[tuple[str, str, bytes]]]
) -> None:
    """A packet of the key centre to one client, delivered to another, or under the hub's name."""
    one = scene(OTHER)
    before = one.state()
    grants = [body for src, dst, body in undisturbed[1] if (src, dst) == (CENTRE, CLIENT)]
    assert grants
    for body in grants:
        one.put(CENTRE, body)
        one.put(HUB, body)
    assert one.take() == 2 * len(grants)
    assert one.state() == before


def test_enrolment_cannot_be_forged(scene: Open) -> None:
    """Only the hub asks the key centre to deal, each grant once, and only to parties of the grant's role."""
    one = scene(CENTRE)
    before = one.state()
    one.letter(CLIENT, Deal(1, "", ""))
    one.letter(CLIENT, Deal(1, "", ""), role=HUB)
    one.letter(HUB, Deal(0, "", ""))
    one.letter(HUB, Deal(1, "seed", f"{CSP}"))
    one.letter(HUB, Deal(1, "seed", "client/99"))
    assert one.take() == 5
    assert one.state() == before


def test_a_key_that_is_not_in_the_roster_is_nobody(scene: Open) -> None:
    """An engine that lets a stranger in, under its own name or that of a member whose keys it has not."""
    one = scene(CLIENT)
    before, roster = one.state(), one.all.made.common.roster
    one.node.kept.ended = False
    stranger = new_identity("client/9", Randomness(1, emulated=True))
    entry = msgspec.structs.replace(roster.by_name[OTHER], name="client/9")
    for name in ("client/9", OTHER, HUB, CENTRE, CLIENT):
        widened = msgspec.structs.replace(roster, entries=(*roster.entries, entry))
        body = wrap(PartyKeys(widened, {name: stranger}), name, CLIENT, 1 << 55, End(final=True))
        one.put(name, body)
    assert one.take() == 5
    assert one.state() == before
    assert not one.node.kept.ended
    assert any("has no verification key" in why for why in one.reasons.why)
    assert any("is not one of key" in why for why in one.reasons.why)


@pytest.mark.parametrize("role", [HUB, CENTRE, CSP, "operator", ""])
def test_the_right_certificate_claims_no_other_role(scene: Open, role: str) -> None:
    one = scene(CLIENT)
    before = one.state()
    one.letter(OTHER, GRANT, role=role)
    one.letter(OTHER, Ready(0, ""), role=role)
    assert one.take() == 2
    assert one.state() == before
    assert all(f"is no {role!r} of this federation" in why for why in one.reasons.why)


def test_the_hub_takes_no_orders(scene: Open) -> None:
    one = scene(HUB)
    before, era = one.state(), one.node.kept.era
    for packet in (BeginAttempt((9, 0), 0), End(final=True)):
        one.packet(CLIENT, packet)
    one.letter(CLIENT, Ready(0, ""), src=CSP, role=CSP)
    one.letter(CLIENT, Ready(0, ""), session="00" * 16)
    assert one.take() == 4
    assert one.state() == before
    assert one.node.kept.era == era


def test_random_bytes_by_the_thousand(scene: Open) -> None:
    """As sealed content under a genuine signature. ``test_hostile`` has bytes that are no packet."""
    draw = random.Random(3)
    for name in (CLIENT, HUB, CENTRE, CSP):
        one = scene(name)
        before, keys = one.state(), one.keys(OTHER)
        for _ in range(250):
            one.number += 1
            header = msgspec.msgpack.encode(("packet", FORMAT, keys.session, OTHER, name, one.number))
            sealed = keys.seal(OTHER, name, draw.randbytes(draw.randrange(100)), header)
            body = msgspec.msgpack.encode(Wrapped(FORMAT, one.number, sealed, keys.sign(OTHER, header, sealed)))
            one.put(OTHER, body)
        assert one.take() == 250
        assert one.state() == before
        assert len(one.node.kept.numbering.open.get(OTHER, [])) == 0


def test_a_packet_of_an_earlier_version_is_refused_in_words(scene: Open) -> None:
    one = scene(CSP)
    for body in ((1 << 50, b"sealed", b"signature"), (1, 1 << 50, b"sealed", b"signature")):
        one.put(OTHER, msgspec.msgpack.encode(body))
    assert one.take() == 2
    assert all("all parties must run the same version of coterie" in why for why in one.reasons.why)


def some_packet(draw: random.Random, one: Scene, template: Sequence[Letter]) -> Packet:
    """A packet of a member that says what it wants: of valid form, with fields from anywhere."""
    number = draw.choice([0, 1, 5, 1 << 33, 1 << 61])
    era = draw.choice([(0, 0), one.node.kept.era or (0, 0), (ROUNDS, 9), (1 << 60, 1 << 60)])
    counts = {draw.choice(["x", HUB, CLIENT, "\0"]): number}
    kind = draw.randrange(6)
    if kind == 0:
        return NoAnswer(number, era, draw.choice(["gone", "late", "x" * 80]), (draw.uniform(-1e300, 1e300), 0))
    if kind == 1:
        return Report(era, number, float("nan"), number, number, counts, {"local_accuracy": float("inf")}, number)
    if kind == 2:
        return Tally(era, counts, counts)
    if kind == 3:
        return BeginAttempt(era, number)
    letter = draw.choice(template)
    changes = {
        "kind": draw.choice([letter.envelope.kind, "Upload", "x" * 1000, "\0"]),
        "role": draw.choice([letter.envelope.role, HUB, "", "x" * 1000]),
        "round": draw.choice([letter.envelope.round, 0, 1 << 61]),
        "attempt": draw.choice([0, 0, 7, 1 << 61]),
        "number": number + draw.randrange(100),
        "answers": draw.choice([letter.envelope.answers, 0, 1, 1 << 61]),
        "sealed": draw.choice([letter.envelope.sealed, True, False]),
        "weight": draw.choice([letter.envelope.weight, 0, 1 << 61]),
    }
    frame = draw.choice([letter.frame, b"", draw.randbytes(50), letter.frame[:-1]])
    chosen = draw.sample(sorted(changes), draw.randrange(len(changes)))
    envelope = msgspec.structs.replace(letter.envelope, **{key: changes[key] for key in chosen})
    digest = frame_digest(frame)
    return Letter(msgspec.structs.replace(envelope, digest=digest), frame, era)


@pytest.mark.parametrize("name", [CSP, CENTRE, CLIENT, HUB])
def test_a_member_that_says_anything_stops_nobody(scene: Open, ran: Nodes, name: str) -> None:
    """Valid keys, any words: the node lives on, and handles the next honest packet."""
    one, draw = scene(name), random.Random(f"anything {name}")
    before = one.state()
    here = Envelope(
        OTHER, name, ran.roles[OTHER][0], "Upload", one.keys(OTHER).session, ROUNDS, 0, 1, 0, name != HUB, 9
    )
    template = [Letter(here, b"frame", (ROUNDS, 0)), Letter(msgspec.structs.replace(here, answers=3), b"", (ROUNDS, 0))]
    for _ in range(300):
        one.packet(OTHER, some_packet(draw, one, template))
    one.take()
    assert one.state() == before
    assert len(one.node.waiting) <= 300
    one.number += 1
    refused = sum(one.node.queue.traffic.refused.values())
    one.put(OTHER, b"x")
    one.take()
    assert sum(one.node.queue.traffic.refused.values()) == refused + 1


# -- what the broker and the hub can read ------------------------------------------------------------------------------


def test_recorded_traffic_shows_no_kind_of_message_and_no_name(
    undisturbed: tuple[np.ndarray, list[tuple[str, str, bytes]]],
) -> None:
    _, carried = undisturbed
    kinds = {kind.__name__ for kind in SYSTEM.kinds()}
    words = sorted(kinds | {"Letter", "Begin", "Report", "NoAnswer", "Tally", "Credentials", "Enrol"})
    assert "Upload" in words
    assert len(carried) > 50
    names = (HUB, CENTRE, "client/", "participant")
    for _, _, body in carried:
        for word in (*words, *names, "letter", "begin", "report", "silence"):
            assert word.encode() not in body
    assert any(src != HUB and dst != HUB for src, dst, _ in carried)


def test_the_hub_relays_nothing(undisturbed: tuple[np.ndarray, list[tuple[str, str, bytes]]], ran: Nodes) -> None:
    """What comes to the hub is for the hub, and of the kinds that *Sees* says. It opens nothing else."""
    _, carried = undisturbed
    one = apart()
    identity = ran.made.owns[HUB].identity
    assert identity is not None
    keys, kinds = PartyKeys(ran.made.common.roster, {HUB: identity}), set()
    assert one.hub == HUB
    for src, dst, body in carried:
        if dst == HUB:
            _, packet = unwrap(keys, src, dst, body)
            if isinstance(packet, Letter):
                assert (packet.envelope.src, packet.envelope.dst) == (src, HUB)
                kinds.add(packet.envelope.kind)
        elif src != HUB:
            with pytest.raises(Exception, match="opening key"):
                unwrap(keys, src, dst, body)
    assert Upload.__name__ in kinds
    assert kinds <= {kind.__name__ for kind in SYSTEM.views("paper")[HUB].receives}


# -- members that send without end what is kept for later: bounded, each sender's by itself --


def test_a_flood_of_messages_of_earlier_rounds_is_bounded(scene: Open) -> None:
    """They are kept for another attempt, in memory and in each commit."""
    one = scene(CSP)
    one.node.limits = replace(one.node.limits, most=50)
    kinds = [kind.__name__ for kind in one.node.member.party.handlers]
    body = Envelope(OTHER, CSP, one.all.roles[OTHER][0], kinds[0], one.keys(OTHER).session, 0, 0, 1, 0, True, 9)
    for number in range(200):
        one.packet(OTHER, Letter(msgspec.structs.replace(body, number=number + 1), b"", one.node.era))
    one.take()
    assert len(one.node.kept.again) == 50
    assert one.node.queue.traffic.refused["packet"] == 150


class Busy:
    """In the place of a coordination that has asked for nothing."""

    def __init__(self) -> None:
        self.came: list[Envelope] = []

    def awaits(self, envelope: Envelope) -> bool:
        return False

    lacks = awaits

    def letter(self, envelope: Envelope, frame: bytes, arrives: object) -> None:
        self.came.append(envelope)


def test_a_flood_of_messages_that_nobody_has_asked_for_is_bounded(scene: Open) -> None:
    """They would wait for a step that takes them, of this round or a later one."""
    one, busy = scene(HUB), Busy()
    one.node.limits = replace(one.node.limits, most=50)
    session = one.keys(OTHER).session
    for number in range(200):
        envelope = Envelope(OTHER, HUB, one.all.roles[OTHER][0], "Junk", session, *one.node.era, number, 0, False, 9)
        one.packet(OTHER, Letter(envelope, b"", one.node.era))
    one.node.lead = busy  # type: ignore[assignment]
    while (arrived := one.node.queue.pull(0.0)) is not None:
        one.node.take(arrived)
    one.node.lead = None
    assert len(busy.came) == 50
    assert one.node.queue.traffic.refused["packet"] == 150


@pytest.mark.parametrize("asked", ["client/0", "client/1"])
def test_a_flood_of_answers_to_one_request_is_bounded(asked: str) -> None:
    """To a request of its own, and to that of another: one answer is awaited, of the party that was asked."""
    apart = steady(TARGETS, limits=NodeLimits(most=50))
    hub, _ = opened(apart, "server")
    assert isinstance(hub, HubNode)
    for era in ((0, 0), (1, 0)):
        hub._announce(era)
    party: Any = hub.member.party
    hub.lead = hub.leading(party.round(1), party.role, (1, 0), (0.0, 0))
    hub._lead_on(hub.lead, lambda lead: lead.begin())
    (number,) = (n for n, name in hub.lead.coordination.awaited.items() if name == asked)
    liar = apart.node("client/0").member
    request = Envelope("server", "client/0", "server", "Train", liar.keyring.session, 1, 0, number, 0, False, 0)
    message = averaging.Train(1, apart.made.common.spec.digest, apart.made.common.initial)
    for at in range(200):
        (sent,) = liar.send([To("server", message)], "client", round=1, attempt=0, request=request)
        body = wrap(apart.keys("client/0"), "client/0", "server", at + 1, Letter(sent.envelope, sent.frame, (1, 0)))
        apart.exchange.put("client/0", "server", body, str(at))
    take_all(hub)
    assert len(hub.member.inbox) <= 50
    assert hub.queue.traffic.refused["packet"] >= 149
    hub.lead.stop()
    hub.lead = None
    hub.close()
