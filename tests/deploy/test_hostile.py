"""What comes from others is hostile until it is verified: it is refused and counted, and changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any

import msgspec
import numpy as np
import pytest
from federation import planted
from nodes import Doom, Driven, Nodes, keys_of, opened, steady, take_all

from coterie.crypto.roster import entry, new_identity
from coterie.deploy.engine import EngineError, FullError
from coterie.deploy.hub import HubNode, Plans, RoundOutcome
from coterie.deploy.node import Node, RolledBackError
from coterie.deploy.packet_queue import NodeLimits
from coterie.deploy.packets import BeginAttempt, End, Era, Letter, NoAnswer, PlanUpdate, Report, Tally, wrap
from coterie.deploy.plan import NewPlanError, OlderPlanError
from coterie.deploy.store import unpack
from coterie.protocol.errors import PeerError
from coterie.protocol.randomness import Randomness
from coterie.protocol.setup_info import Common, Identity
from coterie.protocols import averaging
from coterie.runs.keyring import PartyKeys
from coterie.transport.envelope import Envelope

TARGETS = planted([0, 0, 1], 16)


def seen_state(apart: Nodes, name: str) -> bytes:
    """What a party has stored of rounds and messages."""
    party = apart.parties[name]
    data = apart.stores[name].data
    assert data is not None
    kept, _ = unpack(data, party)
    return msgspec.msgpack.encode((kept.era, kept.again, kept.inbox, kept.ended))


@pytest.mark.parametrize("victim", ["client/0", "server"])
def test_random_bytes_by_the_thousand(victim: str) -> None:
    """Of strangers and of parties, also in the shape of a packet: all are done, counted and forgotten."""
    apart, draws = steady(TARGETS), np.random.default_rng(3)
    node, noted = opened(apart, victim)
    saved, before = apart.stores[victim].data, seen_state(apart, victim)
    honest = wrap(keys_of(apart, "client/1"), "client/1", victim, 7, Report((0, 0), 1))
    for i in range(1000):
        if i % 2:
            body = draws.bytes(int(draws.integers(0, 200)))
        else:
            cut = bytearray(honest)
            cut[int(draws.integers(len(cut)))] ^= 1 << int(draws.integers(8))
            body = bytes(cut) if i % 4 else honest[: int(draws.integers(len(honest)))]
        apart.exchange.put("client/1" if i % 3 else "server", victim, body, str(i))
    take_all(node)
    assert apart.stores[victim].data is saved
    assert seen_state(apart, victim) == before
    assert not node.queue.held
    assert apart.exchange.waiting(victim) == 0
    assert sum(noted.said.values()) == 1000
    assert node.queue.traffic.refused["packet"] == 1000


def test_a_packet_is_taken_from_its_sender_by_its_recipient_once() -> None:
    """Swapped ends, another number, a signature of another party, a packet that comes again."""
    apart = steady(TARGETS)
    node, noted = opened(apart, "client/0")
    server, other = keys_of(apart, "server"), keys_of(apart, "client/1")
    begin = wrap(server, "server", "client/0", 5, BeginAttempt((0, 0), 0))
    forged = {
        "another's name": ("client/1", begin),
        "another's inbox": ("server", wrap(server, "server", "client/1", 6, BeginAttempt((0, 0), 0))),
        "another's signature": ("server", wrap(other, "client/1", "client/0", 6, End(True))),
        "another number": ("server", _renumbered(begin, 99)),
    }
    for key, (src, body) in forged.items():
        apart.exchange.put(src, "client/0", body, key)
    take_all(node)
    assert noted.said.total() == len(forged)
    assert node.kept.era is None
    for i in range(3):
        apart.exchange.put("server", "client/0", begin, f"again {i}")
    take_all(node)
    assert node.kept.era == (0, 0)
    assert node.kept.received == {"server": 1}


def _renumbered(body: bytes, number: int) -> bytes:
    fields = msgspec.msgpack.decode(body)
    fields[1] = number
    return msgspec.msgpack.encode(fields)


@pytest.mark.parametrize(
    "packet",
    [
        BeginAttempt((0, 1), 0),
        BeginAttempt((9, 0), 0),
        End(True),
        End(),
        PlanUpdate(b""),
        Tally((0, 0), {}, {}),
        Report((0, 0), 9),
    ],
    ids=lambda packet: type(packet).__name__,
)
def test_only_the_hub_leads(packet: Any) -> None:
    """A client begins rounds, ends the run, passes plans on: nothing of it is believed."""
    apart = steady(TARGETS)
    node, noted = opened(apart, "client/0")
    body = wrap(keys_of(apart, "client/1"), "client/1", "client/0", 3, packet)
    apart.exchange.put("client/1", "client/0", body, "x")
    take_all(node)
    assert node.kept.era is None
    assert not node.kept.ended
    assert noted.said == {f"{type(packet).__name__} of client/1": 1}


def test_nobody_gives_up_anothers_answer() -> None:
    """A party says that another's answer will not come: the hub waits for that one all the same."""
    apart = steady(TARGETS, limits=NodeLimits(patience_s=20.0, grace_s=0.3, poll_s=0.03))
    lies = keys_of(apart, "client/2")

    def tamper(src: str, dst: str, body: bytes) -> list[bytes]:
        if (src, dst) != ("client/2", "server"):
            return [body]
        sent = [wrap(lies, src, dst, 1 << 20 | next(count), NoAnswer(n, (1, 0), "refused")) for n in range(1, 9)]
        return [*sent, body]

    count = iter(range(1 << 16))
    apart.exchange.tamper = tamper
    apart.run(1)
    assert apart.rounds[1].notes["participants"] >= 2


def test_a_flood_is_bounded() -> None:
    """Letters of rounds that never begin: so many wait, and more are refused."""
    apart = steady(TARGETS, limits=NodeLimits(most=20, most_bytes=1 << 20, poll_s=0.01))
    node, noted = opened(apart, "client/0")
    lies, session = keys_of(apart, "client/1"), apart.made.common.roster.session.hex()
    for i in range(1, 501):
        envelope = Envelope("client/1", "client/0", "client", "Train", session, 9, 0, i, 0, True, 1)
        body = wrap(lies, "client/1", "client/0", i, Letter(envelope, bytes(100), (9, 0)))
        apart.exchange.put("client/1", "client/0", body, str(i))
    take_all(node)
    assert len(node.waiting) == len(node.queue.held) == 20
    assert noted.said == {"packet of client/1": 480}


def test_kinds_of_refusals_are_bounded() -> None:
    """They are others' words."""
    node, _ = opened(steady(TARGETS), "client/0")
    for i in range(1000):
        node.queue.traffic.refuse(f"kind {i}" + 100 * "x")
    assert len(node.queue.traffic.refused) <= 65
    assert sum(node.queue.traffic.refused.values()) == 1000
    assert max(map(len, node.report().refused)) <= 80


# -- rollbacks ---------------------------------------------------------------------------------------------------------


class Backed(Doom):
    """When it kills a node, it puts its store back, by so many commits."""

    def __init__(self, when: Callable[[Node, str], bool], apart: Nodes, name: str, by: int) -> None:
        super().__init__(when=when)
        self.apart, self.name, self.by, self.commits = apart, name, by, [b""]

    def point(self, what: str) -> None:
        store = self.apart.stores[self.name]
        if store.data is not None and store.data is not self.commits[-1]:
            self.commits.append(store.data)
        try:
            super().point(what)
        except BaseException:
            store.data = self.commits[-1 - self.by]
            raise


@pytest.mark.parametrize("by", [1, 2, 3])
def test_a_party_whose_disk_was_put_back_is_noticed_and_goes_on_no_more(by: int) -> None:
    """Also by the last commit alone, if the hub has heard of it."""
    apart = steady(TARGETS)

    def answered(node: Node, what: str) -> bool:
        return node.kept.era == (3, 0) and "server" in node.kept.sent and what == "after it is done"

    doom = apart.dooms["client/1"] = Backed(answered, apart, "client/1", by)
    with pytest.raises(RolledBackError, match="of commit"):
        apart.run(6)
    assert doom.died == 1
    assert [one.skipped for one in apart.rounds] == [""] * len(apart.rounds)
    why = [one.gone["client/1"] for one in apart.rounds if "client/1" in one.gone]
    assert any("older than it was" in reason for reason in why)
    assert "client/1" not in apart.rounds[1].gone


def test_a_party_whose_disk_was_put_back_takes_nothing_before_it_knows() -> None:
    """It has lost one commit, and a request waits: with the commit that follows it would seem to have lost none."""
    apart = steady(TARGETS)
    one, common = Driven(apart, "client/0"), apart.made.common
    message = averaging.Train(1, common.spec.digest, common.initial)
    for r in range(2):
        one.tell(BeginAttempt((r, 0), 0))
    old = apart.stores["client/0"].data
    one.ask(message, 1)
    told = one.node.kept.commits
    one.node.close()
    apart.stores["client/0"].data = old
    one.start()
    one.ask(message, 1)
    with pytest.raises(RolledBackError):
        one.tell(BeginAttempt((1, 0), told))
    one.node.close()


@pytest.mark.parametrize(
    ("commit", "taken", "says"),
    [
        (9, 0, "is of commit {commits}, and the hub has heard of 9: "),
        (0, 99, "has sent packets up to number {sent}, and the hub has taken number 99: "),
        (9, 99, "is of commit {commits}, and the hub has heard of 9: "),
    ],
)
def test_the_error_says_what_is_older(commit: int, taken: int, says: str) -> None:
    apart = steady(TARGETS)
    node, _ = opened(apart, "client/0")
    says = says.format(commits=node.kept.commits, sent=node.queue.numbering.sent)
    begin = wrap(apart.keys("server"), "server", "client/0", 1, BeginAttempt((0, 0), commit, taken))
    apart.exchange.put("server", "client/0", begin, "begin")
    with pytest.raises(RolledBackError, match=says):
        take_all(node)
    node.close()


def test_a_hub_whose_disk_was_put_back_is_told_so() -> None:
    apart = steady(TARGETS)
    apart.dooms["server"] = doom = Backed(
        lambda node, what: node.kept.era == (4, 0) and what.startswith("after a push"), apart, "server", 4
    )
    apart.run(5)
    assert doom.died == 1
    assert any("was the hub's disk put back?" in why for one in apart.rounds for why in one.gone.values())


def test_what_could_not_leave_before_a_stop_is_in_every_later_commit() -> None:
    apart = steady(TARGETS)
    node, _ = opened(apart, "client/0")

    def away(dst: str, body: bytes, key: str) -> None:
        raise EngineError("away")

    node.stop()
    node.queue.engine.push = away  # type: ignore[method-assign]
    first, second = (node.queue.wrap("server", Report((0, 0), i)) for i in range(2))
    node.commit([first])
    node.commit([second])
    node.close()
    data = apart.stores["client/0"].data
    assert data is not None
    assert unpack(data, apart.parties["client/0"])[0].outbox == [first, second]


def test_a_tally_that_is_lost_is_told_again() -> None:
    """Alone or with a letter. Else the hub would wait for it at the end of the run, and all the time in a rehearsal."""
    apart = steady(TARGETS, limits=NodeLimits(grace_s=0.0, poll_s=0.01))
    node, _ = opened(apart, "client/0")
    node.kept.era, node.kept.tallies = (1, 0), True
    push = node.queue.engine.push

    def full(dst: str, body: bytes, key: str) -> None:
        raise FullError("8 GiB wait")

    for lose in (node.tally, lambda: node.commit(node.wrapped([("server", node.none(1, "refused", (0.0, 0)))]))):
        node.queue.engine.push = full  # type: ignore[method-assign]
        lose()
        node.queue.engine.push = push  # type: ignore[method-assign]
        before = apart.exchange.packets["client/0", "server"]
        node.tally()
        node.tally()
        assert apart.exchange.packets["client/0", "server"] == before + 1
    node.close()


# -- plans -------------------------------------------------------------------------------------------------------------


def test_a_party_that_is_revoked_is_gone_at_once_and_the_others_go_on() -> None:
    apart = steady(TARGETS)
    plans, common, revoked = iter([None, None, b"revoked"]), apart.made.common, list[Node]()
    left = tuple(one for one in common.roster.entries if one.name != "client/2")
    roster = msgspec.structs.replace(common.roster, entries=left)

    def live(name: str, rounds: int) -> None:
        node = apart.node(name)
        revoked[:] = [node] if name == "client/2" else revoked
        apart.drive(node, rounds)
        if name == "server":
            revoked[0].stop()

    apart.options = lambda name: {
        "renew": lambda plan: (PartyKeys(roster, {name: identity_of(apart, name)}), common),
        **({"plans": Told(newest=lambda: next(plans, None))} if name == "server" else {}),
    }
    apart.run(3, live)
    assert [one.gone for one in apart.rounds] == 2 * [{}] + 2 * [{"client/2": "it was revoked"}]
    assert [one.notes.get("participants") for one in apart.rounds] == [None, 3, 2, 2]


class Told(Plans):
    """What these functions say of the plan, instead of the methods of their names."""

    def __init__(self, **functions: Any) -> None:
        self.asks_all = "unshown" in functions
        vars(self).update(functions)


@pytest.mark.parametrize("asks", [True, False])
def test_parties_show_a_newer_plan_to_a_hub_that_has_an_older_one(asks: bool) -> None:
    """A hub that was restored asks before it begins; one that does not know that it was is shown the plan, too."""
    apart = steady(TARGETS)
    nodes, common, began = dict[str, Node](), apart.made.common, list[Era]()
    made = threading.Barrier(4)  # nodes: the hub's thread stops them all

    def renew(name: str, plan: bytes) -> tuple[PartyKeys, Common]:
        if name != "server":
            raise OlderPlanError("version 6 was seen before", b"version 6")
        return apart.keys(name), common

    def shown(plan: bytes) -> None:
        raise NewPlanError(plan)

    def live(name: str, rounds: int) -> None:
        node = nodes[name] = apart.node(name)
        made.wait(60.0)
        if name == "server":
            node.observer.began = began.append  # type: ignore[method-assign]
            with pytest.raises(NewPlanError) as error:
                apart.drive(node, rounds)
            assert error.value.plan == b"version 6"
            for other in nodes.values():
                other.stop()
        else:
            apart.drive(node, rounds)

    plans, others = iter([b"version 5"]), {"client/0", "client/1", "client/2"}
    asked = {"unshown": lambda here: others - {*here}} if asks else {}
    of_hub = {"plans": Told(newest=lambda: next(plans, None), check_shown=shown, **asked)}
    apart.options = lambda name: {"renew": partial(renew, name), **(of_hub if name == "server" else {})}
    apart.run(3, live)
    assert (began == []) == asks


def test_a_hub_that_asks_waits_for_all_that_it_needs_and_refuses_what_nobody_has_signed() -> None:
    apart = steady(TARGETS)
    common, seen = apart.made.common, list[set[str]]()

    def shown(plan: bytes) -> None:
        if plan != b"plan":
            raise PeerError("the operator has not signed it")

    def unshown(here: Collection[str]) -> Collection[str]:
        seen.append({*here})
        return {"client/0", "client/1"} - {*here}

    def renew(name: str, plan: bytes) -> tuple[PartyKeys, Common]:
        if name == "client/2":
            raise OlderPlanError("seen before", b"forged")
        return apart.keys(name), common

    plans = iter([b"plan"])
    of_hub = {"plans": Told(newest=lambda: next(plans, None), check_shown=shown, unshown=unshown)}
    apart.options = lambda name: {"renew": partial(renew, name), **(of_hub if name == "server" else {})}
    apart.run(3)
    assert {"client/0", "client/1"} <= seen[-1]
    assert not any("client/2" in here for here in seen)
    assert [one.notes.get("participants") for one in apart.rounds] == [None, 3, 3, 3]


def identity_of(apart: Nodes, name: str) -> Identity:
    identity = apart.made.owns[name].identity
    assert identity is not None
    return identity


def enrolled_anew(apart: Nodes, name: str) -> tuple[Identity, Common]:
    """New keys of a client, and what all know then."""
    old, fresh = apart.made.common, new_identity(name, Randomness(9, True))
    changed = [entry(name, "client", fresh) if e.name == name else e for e in old.roster.entries]
    return fresh, replace(old, roster=msgspec.structs.replace(old.roster, entries=tuple(changed)))


def test_a_party_that_is_enrolled_anew_begins_anew() -> None:
    """Its disk is lost after round 2: it has new keys, an empty store, and numbers that it has used before."""
    apart = steady(TARGETS)
    owns, (fresh, common) = dict(apart.made.owns), enrolled_anew(apart, "client/2")
    plans = iter([None, None, None, b"newer"])
    lost = threading.Event()

    def live(name: str, rounds: int) -> None:
        node = apart.node(name)
        if name == "client/2":
            node.observer.read = lambda opened: node.stop() if opened.envelope.round == 2 else None  # type: ignore
            node.serve()
            apart.stores[name].data = None
            apart.made.owns = {**owns, name: replace(owns[name], identity=fresh)}
            apart.made.federation = replace(apart.made.federation, common=common)
            node = apart.node(name)
            lost.set()
        apart.drive(node, rounds)

    def closed(one: RoundOutcome) -> None:
        assert one.round != 2 or lost.wait(20.0)

    apart.closed = closed
    apart.options = lambda name: {
        "renew": lambda plan: (PartyKeys(common.roster, {name: identity_of(apart, name)}), common),
        **({"plans": Told(newest=lambda: next(plans, None))} if name == "server" else {}),
    }
    apart.run(4, live)
    assert [one.notes.get("participants") for one in apart.rounds] == [None, 3, 3, 3, 3]
    assert [one.gone for one in apart.rounds] == [{}] * 5


def test_the_hub_forgets_what_an_earlier_key_has_sent() -> None:
    """A letter of an earlier round is kept for another attempt. Then its sender is enrolled anew, with another key."""
    apart = steady(TARGETS)
    old, (_, common) = apart.made.common, enrolled_anew(apart, "client/1")
    plans = iter([None, None, b"newer"])
    renewed = PartyKeys(common.roster, {"server": identity_of(apart, "server")}), common
    node, noted = opened(apart, "server", renew=lambda plan: renewed, plans=Told(newest=lambda: next(plans, None)))
    assert isinstance(node, HubNode)
    node._announce((1, 0))
    node._announce((2, 0))
    steps = node.member.party.round(2)
    node.lead = node.leading(steps, "server", (2, 0), node.clock.times.at)
    for name in ("client/1", "client/2"):
        envelope = Envelope(name, "server", "client", "Update", old.roster.session.hex(), 1, 0, 3, 0, False, 1)
        body = wrap(keys_of(apart, name), name, "server", 3, Letter(envelope, b"x", (1, 0)))
        apart.exchange.put(name, "server", body, name)
    take_all(node)
    assert [one.envelope.src for one in node._coming] == ["client/1", "client/2"], noted.said
    node.lead = None
    node._announce((2, 1))
    assert [one.envelope.src for one in node._coming] == ["client/2"]
    stored, _ = unpack(apart.stores["server"].data or b"", apart.parties["server"])
    assert [one.envelope.src for one in stored.again] == ["client/2"]
    node.close()


def test_what_came_late_in_a_given_up_attempt_waits_once_in_the_next() -> None:
    """A coordinator takes such messages in any round, so the attempt before has let it wait already."""
    apart = steady(TARGETS)
    session = apart.made.common.roster.session.hex()
    node, noted = opened(apart, "server")
    assert isinstance(node, HubNode)
    node.member.party.takes = (averaging.Update,)
    for r in (1, 2):
        node._announce((r, 0))
    envelope = Envelope("client/1", "server", "client", "Update", session, 1, 0, 3, 0, False, 1, sha256(b"x").digest())
    apart.exchange.put(
        "client/1",
        "server",
        wrap(keys_of(apart, "client/1"), "client/1", "server", 3, Letter(envelope, b"x", (1, 0))),
        "late",
    )
    for attempt in range(3):
        if attempt:
            node._announce((2, attempt))
        node.lead = node.leading(node.member.party.round(2), "server", (2, attempt), node.clock.times.at)
        node.lead.begin()
        for came in node._coming:
            node.lead.letter(came.envelope, node.member.spool.peek(came.ticket), came.arrives)
        take_all(node)
        assert [one.envelope.src for one in node.member.inbox] == ["client/1"], noted.said
        node.lead = None
    node.close()
