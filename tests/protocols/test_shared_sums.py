"""Anonymous uploads, cluster sums and masked sums in a small system of its own, whose roles have other names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from federation import Rig, misbehaving, rig

import coterie.method as fl
from coterie.crypto.paillier import PublicKey, SecretKey, keygen
from coterie.crypto.roster import signed, signing_key
from coterie.protocols import cluster_sums
from coterie.protocols.anonymous import SERVICE, Forget, Relayed, forget, opened, relay
from coterie.protocols.cluster_sums import convert
from coterie.protocols.key_centre import KEY_CENTRE, HeldKeys, KeyCentre, Keys
from coterie.protocols.masked_sums import AskForTerm, Term, Total, opened_total, summed, tell, term

SIZE = 12
TARGETS = np.random.default_rng(0).normal(size=(6, SIZE))
CLUSTERS = {0: (0, 2, 4), 1: (1, 3, 5)}


@fl.message(src="server", dst="device")
class Describe(fl.OfRound, frozen=True):
    """Send your vector."""


@fl.message(src="device", dst="server")
class Described(fl.OfRound, frozen=True):
    cipher: bytes


class Device(fl.Party, role="device"):
    keys = HeldKeys(PublicKey, SecretKey)
    helper = "helper"

    class State(msgspec.Struct):
        got: dict[int, np.ndarray] = msgspec.field(default_factory=dict)
        totals: dict[int, np.ndarray] = msgspec.field(default_factory=dict)

    state: State

    @property
    def own_vector(self) -> np.ndarray:
        return TARGETS[self.clients.index(self.name)]

    @fl.on(Describe)
    def describe(self, msg: Describe, src: str) -> fl.Work[Described]:
        return Described(msg.round, (yield fl.Encrypt(self.keys.public(SERVICE), self.own_vector)).to_bytes())

    @fl.on(cluster_sums.ClusterModel)
    def receive(self, msg: cluster_sums.ClusterModel, src: str) -> fl.Work[cluster_sums.Received]:
        self.state.got[msg.cluster] = yield from cluster_sums.opened_mean(self, msg, 1, SIZE)
        return cluster_sums.Received(msg.round, msg.cluster)

    @fl.on(AskForTerm)
    def contribute(self, msg: AskForTerm, src: str) -> fl.Work[Term]:
        return (yield from term(self, msg, self.own_vector))

    @fl.on(Total)
    def total(self, msg: Total, src: str) -> fl.Work[cluster_sums.Received]:
        total, answer = yield from opened_total(self, msg, 1, {7: SIZE}, self.state.totals)
        self.state.totals[msg.cluster] = total
        return answer


class Helper(fl.Party, role="helper"):
    keys = HeldKeys(PublicKey, SecretKey)

    class State(msgspec.Struct):
        seen: dict[int, np.ndarray] = msgspec.field(default_factory=dict)

    state: State

    @fl.on(Relayed)
    def open(self, msg: Relayed, src: str) -> fl.Work[None]:
        self.state.seen[msg.position] = yield from opened(self, msg, SIZE, blinded=False)

    @fl.on(cluster_sums.Convert)
    def convert(self, msg: cluster_sums.Convert, src: str) -> fl.Work[cluster_sums.ClusterSum]:
        return (yield from convert(self, msg, SIZE, cluster_sums.Formed()))

    @fl.on(Forget)
    def forget(self, msg: Forget, src: str) -> fl.Done:
        return fl.Done(msg.round)


class Server(fl.Party, role="server"):
    keys = Keys(PublicKey, SecretKey)
    helper = "helper"

    class State(msgspec.Struct):
        order: list[str] = msgspec.field(default_factory=list)

    state: State

    def round(self, r: int) -> fl.Steps[dict[str, Any]]:
        sent: dict[str, bytes] = {}
        requests = dict.fromkeys(self.clients, Describe(r))
        yield from fl.for_each(requests, Described, lambda name, answer: sent.update({name: answer.cipher}))
        self.state.order = yield from relay(self, r, list(sent), sent.__getitem__)
        members = {k: [self.clients[i] for i in own] for k, own in CLUSTERS.items()}
        key = self.keys.public(SERVICE)
        sums = {
            k: cluster_sums.masked_sum(
                self, r, k, names, lambda name: key.from_bytes(sent[name], SIZE, terms=1, blinded=0), SIZE
            )
            for k, names in members.items()
        }
        models, why = yield from cluster_sums.converted(self, r, sums)
        answers = yield from cluster_sums.distribute(self, models, members)
        total = yield from summed(self, r, 7, self.clients, SIZE)
        told = yield from tell(self, total, self.clients)
        yield from forget(self, r)
        return {"why": why, "got": len(answers.got), "told": len(told)}


@dataclass(frozen=True)
class Config(fl.LocalTraining):
    lr: float = 0.1


def key_centre(own: Any, common: Any, config: Config) -> KeyCentre:
    return KeyCentre(own, common, cluster_sums.pairs(keygen, "helper", "device"))


SYSTEM = fl.System(
    name="small",
    title="Small",
    citation="",
    config=Config,
    parties=lambda _: {"server": Server, KEY_CENTRE: key_centre, "helper": Helper, "device": Device},
    models=lambda federation: {},
    encrypted=True,
)


def ran(wrap: Any = None, **options: Any) -> tuple[Rig, dict[str, Any]]:
    run = rig(SYSTEM, TARGETS, wrap=wrap, **options)
    return run, run.round(1)


@pytest.mark.parametrize("emulated", [True, pytest.param(False, marks=pytest.mark.long)])
def test_members_get_their_clusters_mean_and_all_the_sum(emulated: bool) -> None:
    run, note = ran(emulated=emulated)
    assert note == {"why": {}, "got": 6, "told": 6}
    for k, own in CLUSTERS.items():
        for i in range(6):
            got = run.party(f"client/{i}").state.got
            assert (k in got) == (i in own)
            if i in own:
                assert np.abs(got[k] - TARGETS[list(own)].mean(axis=0)).max() < 2**-16
            assert np.abs(run.party(f"client/{i}").state.totals[7] - TARGETS.sum(axis=0)).max() < 6 * 2**-16


def test_the_helper_has_the_vectors_by_position_alone() -> None:
    run, _ = ran()
    order, seen = run.hub.state.order, run.party("helper").state.seen
    assert sorted(order) == list(run.common.clients)
    assert order != list(run.common.clients)
    for j, name in enumerate(order):
        assert np.abs(seen[j] - TARGETS[run.common.clients.index(name)]).max() < 2**-16
    names = [name.encode() for name in run.common.clients]
    for seen_one in run.view("helper").seen:
        assert not any(name in msgspec.msgpack.encode(repr(seen_one.message)) for name in names)


def test_no_server_opens_a_sum() -> None:
    """What the helper opens of a sum is under a mask; the hub holds no secret key at all."""
    run, _ = ran()
    key = run.party("helper").keys.own(SERVICE)
    assert not run.hub.secret.keys.secret
    for _, m in run.view("helper").messages(cluster_sums.Convert):
        words = key.open_blinded(key.public.from_bytes(m.cipher)).array[0]
        own = TARGETS.sum(axis=0) if m.cluster == 7 else TARGETS[list(CLUSTERS[m.cluster])].sum(axis=0)
        plain = np.rint(own * 65536).astype(np.int64).astype(np.uint32)
        apart = (words - plain).astype(np.int32)
        assert np.abs(apart.astype(np.int64)).max() > 2**28


def test_only_the_hub_is_answered() -> None:
    run, _ = ran()
    held = next(m for _, m in run.view("client/0").messages(cluster_sums.ClusterModel))
    total = next(m for _, m in run.view("client/0").messages(Total))
    for name, request in (
        ("helper", Relayed(1, 0, b"")),
        ("helper", cluster_sums.Convert(1, 0, 3, b"")),
        ("helper", Forget(1)),
        ("client/0", held),
        ("client/0", total),
        ("client/0", AskForTerm(1, 7)),
    ):
        party = run.party(name)
        if request is total:
            party.state.totals.clear()
        with pytest.raises(fl.PeerError, match=f"a {type(request).__name__} from client/3; only the hub may send one"):
            step(party, request, "client/3")


def step(party: Any, request: Any, src: str) -> Any:
    outcome = party.handlers[type(request)].run(party, request, src)
    return next(outcome) if hasattr(outcome, "send") else outcome


@pytest.mark.parametrize(
    ("kind", "spoil", "message"),
    [
        (Relayed, lambda m: msgspec.structs.replace(m, position=6), "position 6 of 6"),
        (Relayed, lambda m: msgspec.structs.replace(m, position=-1), "position -1 of 6"),
    ],
)
def test_positions_that_nobody_has_are_refused(kind: Any, spoil: Any, message: str) -> None:
    run, _ = ran()
    (first, *_) = [m for _, m in run.view("helper").messages(kind)]
    with pytest.raises(fl.PeerError, match=message):
        step(run.party("helper"), spoil(first), "server")


def test_a_helper_that_signs_another_count_is_not_believed() -> None:
    def other(party: Any, request: cluster_sums.Convert, honest: cluster_sums.ClusterSum) -> cluster_sums.ClusterSum:
        if request.cluster:
            return honest
        count = signing_key(party.own).sign("cluster count", 1, 0, honest.count - 1)
        return signed(party.own, msgspec.structs.replace(honest, count_signature=count, signature=b""))

    run, note = ran(lambda federation: misbehaving(federation.parties["helper"], cluster_sums.Convert, other))
    assert note["why"] == {0: "helper: its answer was refused"}
    assert note["got"] == 3
    assert [0 in run.party(f"client/{i}").state.got for i in range(6)] == [False] * 6
    assert [1 in run.party(f"client/{i}").state.got for i in range(6)] == [False, True] * 3


def test_a_sum_needs_three_terms() -> None:
    def silent(party: Any, *_: Any) -> Any:
        raise fl.PeerError("no")

    def wrap(federation: Any) -> None:
        for i in range(4):
            misbehaving(federation.parties[f"client/{i}"], AskForTerm, silent)

    with pytest.raises(fl.RunError, match="2 of 6 clients sent a term of a sum that needs 3"):
        ran(wrap)
