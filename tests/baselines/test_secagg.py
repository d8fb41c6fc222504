"""Secure aggregation is FedAvg up to rounding, survives drop-outs to its threshold, and no server gets both shares."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from federation import Rig, Steady, misbehaving, planted, rig

import coterie.method as fl
from coterie.baselines import fedavg
from coterie.baselines import secagg as sa
from coterie.crypto import marks, shared_seed
from coterie.crypto.signing import OpeningKey, SealingKey
from coterie.protocol.errors import PeerError, UserError
from coterie.protocols.padded_counts import AskForPadded

TARGETS = planted([0, 0, 0, 1, 1, 1], 24, seed=3)
N, NEEDED = 6, 5  # more than two thirds
NAMES = tuple(f"client/{i}" for i in range(N))
change = msgspec.structs.replace


@dataclass
class Drops(Steady):
    """A client answers so many requests of a round, and then is gone."""

    after: dict[tuple[str, int], int] = field(default_factory=dict)
    asked: dict[tuple[str, int], int] = field(default_factory=dict)

    def fate(self, party: str, round: int, request: int) -> str:
        if (party, round) not in self.after:
            return "ok"
        self.asked[party, round] = self.asked.get((party, round), 0) + 1
        return "ok" if self.asked[party, round] <= self.after[party, round] else "offline"


def made(**options: Any) -> Rig:
    return rig(sa.SYSTEM, TARGETS, **options)


def plain(*away: tuple[str, int], **options: Any) -> Rig:
    return rig(fedavg.SYSTEM, TARGETS, links=Steady(away=dict.fromkeys(away, "offline")), **options)


def close(one: Rig, other: Rig) -> bool:
    """To a rounding to 2^-20 for each sample of a client, in each of a few rounds, and to float32."""
    return float(np.abs(one.hub.state.weights - other.hub.state.weights).max()) < 1e-6


# -- FedAvg ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"server_lr": 0.5, "server_decay": 0.1}, {"participation": 0.67}], ids=str)
def test_it_is_fedavg_up_to_the_rounding(options: dict[str, Any]) -> None:
    ours, theirs = made(threshold=0.5, **options), plain(**options)
    start = theirs.hub.state.weights.copy()
    for r in range(1, 4):
        assert ours.round(r)["participants"] == theirs.round(r)["participants"]
        assert close(ours, theirs)
    assert np.abs(ours.hub.state.weights - start).max() > 0.1
    assert not ours.refused


def test_real_secrets_give_the_same_model() -> None:
    ours, theirs = made(emulated=False), plain(emulated=False)
    assert ours.round(1)["participants"] == theirs.round(1)["participants"] == N
    assert close(ours, theirs)


@pytest.mark.parametrize("answered", [0, 1, 2, 3])
def test_a_client_that_drops_out_in_any_step_costs_at_most_its_own_vector(answered: int) -> None:
    """Who is gone before it sends its vector is not in the sum; who is gone after is."""
    ours = made(links=Drops(after={("client/2", 1): answered}))
    theirs = plain(*([("client/2", 1)] if answered < 2 else []))
    assert ours.round(1)["participants"] == theirs.round(1)["participants"]
    assert close(ours, theirs)


@pytest.mark.parametrize("answered", [0, 1, 2, 3])
def test_a_round_below_the_threshold_is_skipped_and_the_next_one_goes_on(answered: int) -> None:
    after = {(name, 1): answered for name in ("client/2", "client/4")}
    ours, theirs = made(links=Drops(after=after)), plain()
    before = ours.hub.state.weights.copy()
    notes = ours.round(1)
    assert notes["participants"] == 0
    assert "4 of 6 answered" in notes["skipped"]
    assert (ours.hub.state.weights == before).all()
    assert ours.round(2)["participants"] == N
    theirs.round(2)
    assert close(ours, theirs)


# -- a server that deviates --------------------------------------------------------------------------------------------


def at_the_end(run: Rig, without: tuple[str, ...] = ()) -> dict[str, sa.Confirmed]:
    """Round 1 until all vectors are sent, and who confirms the sum without these."""
    sum_of = "\n".join(name for name in NAMES if name not in without)
    caught: dict[str, sa.Confirmed] = {}
    links = run.transport.links
    assert isinstance(links, Drops)
    links.after = dict.fromkeys(((name, 1) for name in NAMES), 2)
    run.round(1)
    for name in NAMES:
        if name not in without:
            caught[name] = run.party(name).confirm(sa.Confirm(1, sum_of), "server")
    return caught


def unmask(run: Rig, name: str, proofs: dict[str, sa.Confirmed], without: tuple[str, ...] = ()) -> list[bytes]:
    sum_of = "\n".join(one for one in NAMES if one not in without)
    signed = b"".join(one.proof for one in proofs.values())
    reply = run.party(name).unmask(sa.Unmask(1, sum_of, "\n".join(proofs), signed), "server")
    return fl.unbundle(reply.shares, N)


def test_no_client_tells_both_kinds_of_shares_of_one_client() -> None:
    """First that client/5 is in the sum; then that it has dropped out."""
    run = made(links=Drops())
    proofs = at_the_end(run)
    victim, first = NAMES.index("client/5"), {name: unmask(run, name, proofs) for name in NAMES}
    own = {name: of[victim] for name, of in first.items()}
    sent = {seen.src: one.credential for seen, one in run.view("server").messages(sa.Enrolled)}
    assert sa.mark_of(shared_seed.joined(NAMES, own)) == sa.Credential.load(sent["client/5"]).mark
    for name in NAMES[:5]:
        with pytest.raises(PeerError, match="a second sum in round 1"):
            run.party(name).confirm(sa.Confirm(1, "\n".join(NAMES[:5])), "server")
        with pytest.raises(PeerError, match="a sum of round 1 that it has not confirmed"):
            unmask(run, name, proofs, without=("client/5",))
        with pytest.raises(PeerError, match="asked for a second time"):
            unmask(run, name, proofs)


def test_a_repeated_attempt_opens_no_other_sum_of_the_same_models() -> None:
    """Of the sums with client/5 and without it the difference would be its model."""
    run = made(links=Drops())
    proofs, client = at_the_end(run), run.party("client/0")
    unmask(run, "client/0", proofs)
    again = type(client)(client.own, client.common, client.config)
    again.lasts(client.state, client.secret)
    again.enrol(sa.Enrol(1, "\n".join(NAMES)), "server")
    again.secret.members = NAMES  # as if it had sent its vector
    with pytest.raises(PeerError, match="a second sum in round 1"):
        again.confirm(sa.Confirm(1, "\n".join(NAMES[:5])), "server")
    assert again.confirm(sa.Confirm(1, "\n".join(NAMES)), "server").proof


def test_a_server_that_tells_clients_different_sums_gets_no_shares() -> None:
    """Three are told that client/5 is in the sum, two that it is not: no list has the five signatures it needs."""
    run = made(links=Drops())
    at_the_end(run, without=NAMES)
    all_of, others = "\n".join(NAMES), "\n".join(NAMES[:5])
    proofs = {name: run.party(name).confirm(sa.Confirm(1, all_of), "server") for name in NAMES[:3]}
    against = {name: run.party(name).confirm(sa.Confirm(1, others), "server") for name in NAMES[3:5]}
    for name in NAMES[:3]:
        with pytest.raises(PeerError, match="3 have signed the sum, where 5 are needed"):
            unmask(run, name, proofs)
        with pytest.raises(PeerError, match="signature"):  # the others have signed something else
            unmask(run, name, {**proofs, **against})
    for name in NAMES[3:5]:
        with pytest.raises(PeerError, match="2 have signed"):
            unmask(run, name, against, without=("client/5",))
        with pytest.raises(PeerError, match="names a client twice"):
            run.party(name).unmask(sa.Unmask(1, others, "\n".join([NAMES[3]] * 5), bytes(320)), "server")


def gathered(run: Rig, helpers: tuple[str, ...], honest: tuple[str, ...], names: tuple[str, ...]) -> dict[str, bytes]:
    """The shares of client/5 that a server gets for this list, of helpers, who confirm any, and of honest clients."""
    parties = {name: run.party(name) for name in honest}
    for name in helpers:
        parties[name] = copy.copy(run.party(name))
        parties[name].secret = copy.deepcopy(run.party(name).secret)
    sum_of = "\n".join(names)
    proofs = {name: party.confirm(sa.Confirm(1, sum_of), "server").proof for name, party in parties.items()}
    request = sa.Unmask(1, sum_of, "\n".join(proofs), b"".join(proofs.values()))
    shares = {name: party.unmask(request, "server").shares for name, party in parties.items()}
    return {name: fl.unbundle(data, N)[NAMES.index("client/5")] for name, data in shares.items()}


FEW = 2 * NEEDED - N
"""So many helpers are too many."""


def test_as_many_helpers_as_are_excluded_open_a_clients_vector() -> None:
    """They and one honest client sign that client/5 is in the sum; they and another that it has dropped out."""
    run = made(links=Drops())
    start = run.hub.state.weights.copy()
    at_the_end(run, without=NAMES)
    helpers, (other, victim) = NAMES[:FEW], NAMES[FEW:]
    seed = shared_seed.joined(NAMES, gathered(run, helpers, (victim,), NAMES))
    key = shared_seed.joined(NAMES, gathered(run, helpers, (other,), NAMES[:5]))
    enrolled = {seen.src: one for seen, one in run.view("server").messages(sa.Enrolled)}
    padded = next(one.padded for seen, one in run.view("server").messages(sa.Collected) if seen.src == victim)
    keys = {name: SealingKey(sa.Credential.load(enrolled[name].credential).key) for name in NAMES if name != victim}
    pads = sa.pads_of(sa.round_of(run.common, 1, "\n".join(NAMES)), start)
    alone = marks.masked(np.zeros(len(padded), np.uint64), seed, OpeningKey(key), victim, keys, pads)
    opened, sent = (padded.view(np.uint64) - alone).view(np.int64), in_the_clear(start, victim)
    assert opened[-1] == sent.samples
    np.testing.assert_allclose(sa.LANES.dequantise(opened[:-1]) / opened[-1], sent.weights, atol=1e-5)


def test_one_helper_less_gets_one_list_signed_alone() -> None:
    """Each list needs two of the three honest clients, of whom none signs two."""
    run = made(links=Drops())
    at_the_end(run, without=NAMES)
    helpers, honest = NAMES[: FEW - 1], NAMES[FEW - 1 :]
    assert len(gathered(run, helpers, honest[1:], NAMES)) == NEEDED
    with pytest.raises(PeerError, match="4 have signed the sum, where 5 are needed"):
        gathered(run, helpers, honest[:1], NAMES[:5])


@pytest.mark.parametrize("threshold", [0.5, 0.6, 2 / 3, 0.75, 0.9, 0.99])
def test_the_share_that_may_help_is_below_the_number_that_may_not(threshold: float) -> None:
    config = sa.SecAggConfig(threshold=threshold)
    share = re.search(r"\((?:a share of ([\d.]+)|none) is few enough\)", sa.SYSTEM.assumed("paper", config))
    assert share is not None
    for n in range(3, 200):
        assert int(float(share[1] or 0) * n) < 2 * config.needed(n) - n


def test_a_sum_is_confirmed_by_its_members_only_and_of_enough_of_them() -> None:
    run = made(links=Drops())
    at_the_end(run, without=NAMES)
    client = run.party("client/0")
    for names, why in (
        (NAMES[:4], "a sum of 4, where 5 are needed"),
        (NAMES[1:], "not one of its members"),
        ((*NAMES, "client/9"), "not one of its members"),
        ((NAMES[0],) * 6, "twice"),
    ):
        with pytest.raises(PeerError, match=why):
            client.confirm(sa.Confirm(1, "\n".join(names)), "server")
    with pytest.raises(PeerError, match="a sum of 6 in round 2"):
        client.confirm(sa.Confirm(2, "\n".join(NAMES)), "server")


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (NAMES[:5], "asked to enrol among 5 names"),  # fewer than a round asks
        ((*NAMES[:5], "client/9"), "1 of them no clients"),
        ((*NAMES[:5], "server"), "1 of them no clients"),
        ((*NAMES[1:], "client/1"), "twice"),
    ],
)
def test_a_client_enrols_among_a_rounds_clients_only(names: tuple[str, ...], why: str) -> None:
    with pytest.raises(PeerError, match=why):
        made().party("client/0").enrol(sa.Enrol(1, "\n".join(names)), "server")


def test_a_client_enrols_once_a_round() -> None:
    run = made()
    run.round(1)
    with pytest.raises(PeerError, match="asked to enrol for round 1 after round 1"):
        run.party("client/0").enrol(sa.Enrol(1, "\n".join(NAMES)), "server")


@pytest.mark.parametrize("wrong", ["key", "mark", "proof"])
def test_a_servers_own_key_in_a_clients_place_is_refused(wrong: str) -> None:
    """Else it would know that client's pads with all others."""
    run = made(links=Drops(after=dict.fromkeys(((name, 1) for name in NAMES), 1)))
    run.round(1)
    enrolled = {seen.src: one for seen, one in run.view("server").messages(sa.Enrolled)}
    given = {name: sa.Credential.load(enrolled[name].credential) for name in NAMES}
    forged = {"key": OpeningKey(bytes([7]) * 32).public.to_bytes(), "mark": bytes(32), "proof": bytes(64)}[wrong]
    given["client/3"] = replace(given["client/3"], **{wrong: forged})
    of = sa.round_of(run.common, 1, "\n".join(NAMES))
    with pytest.raises(PeerError, match="signature"):
        sa.checked(run.common, of, NAMES, list(given.values()))


def again(run: Rig, name: str) -> Any:
    """The client at the beginning of a further attempt of round 1."""
    client = run.party(name)
    kept = type(client)(client.own, client.common, client.config)
    kept.lasts(client.state, client.secret)
    return kept


def test_no_further_attempt_of_a_round_gets_the_other_kind_of_shares_of_a_client() -> None:
    """The server repeats the round with client/5's first credential and shares, and says that it has dropped out."""
    run = made(emulated=False)
    run.round(1)
    first = {seen.src: one for seen, one in run.view("server").messages(sa.Enrolled)}
    clients = {name: again(run, name) for name in NAMES[:5]}
    enrolled = {name: one.enrol(sa.Enrol(1, "\n".join(NAMES)), "server") for name, one in clients.items()}
    enrolled["client/5"] = first["client/5"]
    credentials = b"".join(enrolled[name].credential for name in NAMES)
    for name, client in clients.items():
        held = [
            fl.unbundle(enrolled[other].shares, N - 1)[[one for one in NAMES if one != other].index(name)]
            for other in NAMES
            if other != name
        ]
        digest, weights = run.common.spec.digest, run.common.initial
        asked = sa.Collect(1, digest, weights, "\n".join(NAMES), credentials, fl.bundle(held))
        work = client.collect(asked, "server")
        effect = next(work)
        with pytest.raises(StopIteration):
            work.send(run.transport.effects.run([(name, effect)])[0])
        with pytest.raises(PeerError, match="a second sum in round 1"):
            client.confirm(sa.Confirm(1, "\n".join(NAMES[:5])), "server")
        client.confirm(sa.Confirm(1, "\n".join(NAMES)), "server")  # the same sum as before


def test_a_further_attempt_asks_the_same_clients_and_no_earlier_round() -> None:
    """Else sums of many lists would give each of their vectors."""
    run = rig(sa.SYSTEM, planted([0] * 4 + [1] * 4, 24, seed=3), participation=0.75)
    run.rounds(2)
    name = run.view("client/0").messages(sa.Enrol)
    asked = [one.names.split("\n") for _, one in name][-1]
    client = again(run, "client/0")
    r = client.secret.signed[0]
    others = "\n".join([*(one for one in asked if one != asked[-1]), *{*run.common.clients} - {*asked}][: len(asked)])
    for round_, names in ((r, others), (r - 1, "\n".join(asked))):
        with pytest.raises(PeerError, match="asked to enrol"):
            client.enrol(sa.Enrol(round_, names), "server")
    client.enrol(sa.Enrol(r, "\n".join(asked)), "server")


def test_clients_that_are_sent_different_models_make_no_sum() -> None:
    """Else a model that only one client can train shows the change of that one in the sum."""
    run = made()
    party, before = run.party("client/3"), run.hub.state.weights.copy()
    honest = party.handlers[sa.Collect]

    def misled(self: Any, msg: sa.Collect, src: str) -> Any:
        return (yield from honest.run(self, change(msg, weights=msg.weights + np.float32(0.5)), src))

    table = {**party.handlers, sa.Collect: replace(honest, run=misled)}
    party.__class__ = type("Misled", (type(party),), {"handlers": table})
    party.__class__.handlers = table
    assert "one of them lied" in run.round(1)["skipped"]
    assert (run.hub.state.weights == before).all()


@pytest.mark.parametrize("nudge", [0.0, 1e-6], ids=["equal", "nearly equal"])
def test_a_server_that_sends_a_model_again_without_one_client_learns_that_ones(
    nudge: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round is secure alone, not two together. To refuse the same model again would not help: one that differs in
    its last digits is trained alike. Nor could a client refuse it, as a skipped round moves nothing.
    """
    sums, moved = list[np.ndarray](), sa.Server._move

    def kept(self: Any, r: int, total: np.ndarray, count: int) -> None:
        sums.append(total.copy())
        moved(self, r, total, count)

    monkeypatch.setattr(sa.Server, "_move", kept)
    run = made(links=Steady(away={("client/5", 2): "offline"}))
    model = run.hub.state.weights.copy()
    run.round(1)
    run.hub.state.weights = model * np.float32(1 + nudge)
    assert run.round(2)["participants"] == N - 1
    difference = (sums[0] - sums[1]).view(np.int64)
    sent = in_the_clear(model, "client/5")
    assert difference[-1] == sent.samples
    np.testing.assert_allclose(sa.LANES.dequantise(difference[:-1]) / difference[-1], sent.weights, atol=1e-4)


def in_the_clear(model: np.ndarray, name: str) -> Any:
    """What a client sends in plain averaging."""
    run = plain()
    run.hub.state.weights = model
    run.round(1)
    return next(one for seen, one in run.view("server").messages(fl.Update) if seen.src == name)


def test_what_was_told_of_label_counts_stays_over_rounds() -> None:
    run = made(label_counts=True)
    run.round(1)
    client = run.party("client/0")
    client.secret.counts.names = "\n".join(NAMES)
    client.enrol(sa.Enrol(2, "\n".join(NAMES)), "server")
    with pytest.raises(PeerError, match="beside other clients"):
        next(client.counts.tell(AskForPadded("\n".join(NAMES[:5])), "server"))


# -- clients that deviate ----------------------------------------------------------------------------------------------


def test_a_wrong_share_skips_the_round_and_moves_nothing() -> None:
    run = made()

    def lie(party: Any, request: Any, answer: Any) -> Any:
        parts = fl.unbundle(answer.shares, N)
        return change(answer, shares=fl.bundle([bytes(40), *parts[1:]]))

    misbehaving(run.party("client/0"), sa.Unmask, lie)
    before = run.hub.state.weights.copy()
    assert "the shares of client/0 give another secret" in run.round(1)["skipped"]
    assert (run.hub.state.weights == before).all()


def test_a_sum_that_no_honest_clients_have_is_not_taken() -> None:
    run = made()
    misbehaving(run.party("client/0"), sa.Collect, lambda p, m, a: change(a, padded=a.padded + (1 << 40)))
    assert "one of them lied" in run.round(1)["skipped"]


def keeping_no_secrets(party: Any, msg: sa.Enrol, answer: sa.Enrolled) -> sa.Enrolled:
    one = replace(sa.Credential.load(answer.credential), key=bytes(32))
    of = sa.round_of(party.common, msg.round, msg.names)
    proof = sa.signing_key(party.own).sign(*sa.credential_fields(of, one.key, one.mark))
    return change(answer, credential=replace(one, proof=proof).to_bytes())


LIES: dict[str, tuple[type, Any]] = {
    "a credential of another round": (
        sa.Enrol,
        lambda party, msg, answer: change(answer, credential=answer.credential[:64] + bytes(64)),
    ),
    "a key with which others have no pads": (sa.Enrol, keeping_no_secrets),
    "a short credential": (sa.Enrol, lambda party, msg, answer: change(answer, credential=bytes(3))),
    "shares for too few": (sa.Enrol, lambda party, msg, answer: change(answer, shares=fl.bundle([b""]))),
    "a vector of another length": (sa.Collect, lambda party, msg, answer: change(answer, padded=answer.padded[:-1])),
    "another round's vector": (sa.Collect, lambda party, msg, answer: change(answer, round=0)),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_answer_that_does_not_fit_leaves_its_client_out(lie: str) -> None:
    ours, theirs = made(), plain(("client/2", 1))
    misbehaving(ours.party("client/2"), *LIES[lie])
    assert ours.round(1)["participants"] == theirs.round(1)["participants"] == N - 1
    assert close(ours, theirs)
    assert ours.refused.total() == 1


def test_a_share_that_does_not_open_is_left_out_of_the_answers() -> None:
    """Whoever sends one harms nobody but itself, as long as enough others hold good shares of its secrets."""
    ours, theirs = made(), plain()

    def spoil(party: Any, request: Any, answer: Any) -> Any:
        parts = fl.unbundle(answer.shares, N - 1)
        return change(answer, shares=fl.bundle([bytes(len(parts[0])), *parts[1:]]))

    misbehaving(ours.party("client/2"), sa.Enrol, spoil)
    assert ours.round(1)["participants"] == N
    theirs.round(1)
    assert close(ours, theirs)


# -- what the server sees, and settings --------------------------------------------------------------------------------


def test_what_the_server_is_sent_is_no_model_and_no_number_of_samples() -> None:
    run = made()
    run.round(1)
    for _, one in run.view("server").messages(sa.Collected):
        words = one.padded.view(np.uint64)
        assert np.unique(words >> np.uint64(58)).size > 8  # a model's words begin with equal bits
        assert one.padded[-1] != 10


@pytest.mark.parametrize(("asked", "threshold", "needed"), [(6, 2 / 3, 5), (9, 2 / 3, 7), (6, 0.5, 4), (3, 0.5, 3)])
def test_the_threshold(asked: int, threshold: float, needed: int) -> None:
    assert sa.SecAggConfig(threshold=threshold).needed(asked) == needed
    assert 2 * needed > asked


def test_too_few_clients_for_a_sum_and_a_threshold_below_a_half_are_refused() -> None:
    with pytest.raises(UserError, match="3 to 1024 clients a round, not 2"):
        rig(sa.SYSTEM, TARGETS[:2])
    crowd: Any = SimpleNamespace(clients=tuple(map(str, range(1026))))
    with pytest.raises(UserError, match="not 1026"):
        sa.check(sa.SecAggConfig(founders=6), crowd)
    with pytest.raises(UserError, match="threshold"):
        sa.SecAggConfig(threshold=0.4)
