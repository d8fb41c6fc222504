"""OFL's parameter server, the hub: algorithm 1, and its part of algorithm 4. It sees no member's upload."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import coterie.method as fl
from coterie.clustering.kmeans import Clusters, nearest, regrouped
from coterie.crypto.ckks import PublicKey, SecretKey
from coterie.protocols.key_centre import Keys
from coterie.protocols.reports import StatusReport, accepted, checked, features, limits
from coterie.protocols.reports import opened as opened_report
from coterie.protocols.threshold import JointKeys
from coterie.selection.resources import elected, score
from coterie.systems.ofl import messages
from coterie.systems.ofl.config import LEAST_LEADERS, OFLConfig, costs_of, joint_of, usual_samples
from coterie.systems.ofl.global_aggregation import aggregate
from coterie.systems.ofl.messages import HUB, MODEL, named, names
from coterie.systems.ofl.sparse import bits


@dataclass
class Round:
    """taken: by leader, the members whose uploads are in its model, and their rounds.  up, down: mean shares of
    these.
    """

    taken: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    up: dict[str, float] = field(default_factory=dict)
    down: dict[str, float] = field(default_factory=dict)


class Server(fl.Party, role=HUB):
    keys, joint = Keys(PublicKey, SecretKey), JointKeys(lambda party: (joint_of(party.config),))

    class State(fl.State):
        """weights: theta_global (d,), whose buffers are those of the start.  version: its number of aggregations.
        reports: by client, its newest status report.  leaders: by cluster.
        served: by client, terms as a leader.  failed: by cluster, leaders that gave no model since the last clustering.
        counted: by client, the round of its last upload that is in a leader model.  holds: leaders that have the newest
        global model and may go on with their own.  owing: former leaders that may hold uploads, since which round.
        usual: ``usual_samples`` of the last clustering.
        """

        weights: fl.Vector = fl.initial
        version: int = 0
        reports: dict[str, bytes] = fl.field(default_factory=dict)
        clusters: Clusters | None = None
        leaders: dict[int, str] = fl.field(default_factory=dict)
        served: dict[str, float] = fl.field(default_factory=dict)
        failed: dict[int, list[str]] = fl.field(default_factory=dict)
        counted: dict[str, int] = fl.field(default_factory=dict)
        holds: list[str] = fl.field(default_factory=list)
        owing: dict[str, int] = fl.field(default_factory=dict)
        usual: float = 0.0

    state: State
    config: OFLConfig

    def round(self, r: int) -> fl.Steps[Mapping[str, Any]]:
        """Algorithm 1, l. 7 to 16. Without two leaders, or a sum that opens, a round is skipped, and leaders go on
        with their own models.
        """
        due = (r - 1) % self.config.recluster_every == 0 or not self.state.leaders
        yield from self.hear(r, fl.joined(self.clients, self.config, r) if due else self.newcomers(r))
        if due:
            self.regroup(r)
        self.elect(r, due)
        moved = yield from self.hand_over(r)
        notes: dict[str, Any] = {
            "leaders": {str(k): name for k, name in sorted(self.state.leaders.items())},
            "clusters": {"sizes": [len(members) for members in self.members().values()]},
            "reclustered": due,
            "handed_over": moved,
        }
        led, answers, asked = yield from self.lead(r)
        notes |= self.told(r, led, asked)
        if len(led.taken) < LEAST_LEADERS:
            return {**notes, "skipped": why_too_few(led, answers)}
        leaders = [name for _, name in sorted(self.state.leaders.items()) if name in led.taken]
        try:
            made = yield from aggregate(
                self, r, {name: len(led.taken[name]) for name in leaders}
            )  # in an order of their own: else each needs a new key
        except (
            fl.NoAnswerError,
            fl.PeerError,
        ) as error:  # its key may be spent, or a share of it false: the next is new
            self.joint.secret.terms.pop(MODEL, None)
            return {**notes, "skipped": str(error)}
        self.state.weights, self.state.version = made.weights, self.state.version + 1
        reached = yield from self.spread(r, led.taken)
        return {**notes, **made.notes(), "reached": reached}

    # -- clusters and elections ----------------------------------------------------------------------------------------

    def newcomers(self, r: int) -> Sequence[str]:
        return [name for name in fl.joined(self.clients, self.config, r) if name not in self.numbers]

    def hear(self, r: int, clients: Iterable[str]) -> fl.Steps[None]:
        heard: list[str] = []

        def fold(name: str, report: StatusReport) -> None:
            self.know(checked(self.common, report, r, self.config.step_s, sender=name))
            heard.append(name)

        if asked := list(clients):
            yield from fl.ask_each(self, asked, messages.Tell(r), StatusReport, fold)
        clusters = self.state.clusters
        for name in heard:
            if clusters is not None and name not in clusters.numbers and clusters.numbers:
                _, rows, _ = features({name: self.report(name)})
                clusters.numbers = {**clusters.numbers, name: nearest(clusters, rows[0])}

    def know(self, report: StatusReport) -> None:
        """Raises PeerError for an outdated one."""
        known = {report.client: self.report(report.client)} if report.client in self.state.reports else {}
        accepted(known, report)
        self.state.reports[report.client] = fl.codec.encode(report)

    def report(self, name: str) -> StatusReport:
        return fl.codec.decode(self.state.reports[name], StatusReport)

    def regroup(self, r: int) -> None:
        """Dynamic K-means over those that have reported in this round (algorithm 1, l. 8)."""
        fresh = {name: self.report(name) for name in self.clients if name in self.state.reports}
        fresh = {name: report for name, report in fresh.items() if report.round == r}
        order, rows, groups = features(fresh)
        k, before = self.config.clusters, self.state.clusters
        least = max(1, min(self.config.smallest, len(order) // k))
        self.state.clusters = regrouped(order, rows, k, before, seed=self.randomness.seed, groups=groups, least=least)
        self.state.failed, self.state.usual = {}, usual_samples(self.config, fresh.values())

    def members(self) -> dict[int, list[str]]:
        return fl.members(self.clients, self.numbers)

    @property
    def numbers(self) -> Mapping[str, int]:
        return {} if self.state.clusters is None else self.state.clusters.numbers

    def elect(self, r: int, due: bool) -> None:
        """Algorithm 1, l. 12: after a clustering, and for a leader without a model in the last round, who is no
        candidate before the next clustering, unless all members have failed.
        """
        state, before = self.state, set(self.state.leaders.values())
        leaders: dict[int, str] = {}
        for k, members in self.members().items():
            failed = state.failed.get(k, [])
            candidates = [name for name in members if name not in failed]
            if not candidates:
                candidates, state.failed[k] = members, []
            if not due and (now := state.leaders.get(k)) in candidates:
                leaders[k] = now
            else:
                leaders[k] = elected({name: self.score(name) for name in candidates}, state.served, self.config.penalty)
                state.served[leaders[k]] = state.served.get(leaders[k], 0.0) + 1
        state.leaders = leaders
        lost = before if due else before - set(leaders.values())
        state.owing |= {name: r for name in self.clients if name in lost}
        state.holds = [] if due else [name for name in state.holds if name in leaders.values()]

    def score(self, name: str) -> float:
        report = self.report(name)
        return score(limits(report), costs_of(report, self.spec, self.config, self.state.usual), self.spec.size)

    def hand_over(self, r: int) -> fl.Steps[int]:
        """Former leaders send on uncounted uploads. Returns how many."""
        state, moved, letters = self.state, 0, 0
        state.owing = {name: lost for name, lost in state.owing.items() if r - lost < self.config.recluster_every}
        members = self.members()
        of = [(name, state.leaders[k]) for k in members for name in members[k]]
        if not state.owing or not of:
            return 0
        table = messages.HandOver(r, names(name for name, _ in of), names(leader for _, leader in of))

        def fold(name: str, answer: messages.HandedOver) -> None:
            nonlocal moved, letters
            if not 0 <= answer.letters <= answer.uploads <= len(self.clients):
                raise fl.PeerError(f"{name}: handed over {answer.uploads} uploads in {answer.letters} letters")
            del state.owing[name]
            moved, letters = moved + answer.uploads, letters + answer.letters

        def arrived(name: str, answer: messages.Received) -> None:
            if answer.round != r:
                raise fl.PeerError(f"{name}: uploads of round {answer.round} in round {r}")

        yield from fl.ask_each(self, list(state.owing), table, messages.HandedOver, fold)
        if letters:
            with suppress(fl.NoAnswerError):  # one of the leaders that they are for is away: its round will fail, too
                yield from fl.take(messages.Received, arrived, at_least=letters, until_s=self.config.deadline_s)
        return moved

    # -- rounds --------------------------------------------------------------------------------------------------------

    def lead(self, r: int) -> fl.Steps[tuple[Round, fl.Answers, int]]:
        state, led, members = self.state, Round(), self.members()
        asked = set(fl.asked_in(self.clients, self.config, self.randomness.seed, r))
        requests = {
            leader: self.request(r, k, leader, members[k], asked) for k, leader in sorted(state.leaders.items())
        }
        cluster = {leader: k for k, leader in state.leaders.items()}

        def fold(name: str, answer: messages.Led) -> None:
            if answer.cluster != cluster[name]:
                raise fl.PeerError(f"{name}: leads cluster {answer.cluster}, not {cluster[name]}")
            of = named(answer.members, len(answer.rounds), once=False)
            taken = list(zip(of, answer.rounds.tolist(), strict=True))
            last = {member: state.counted.get(member, 0) for member in members[cluster[name]]}
            for member, of_round in taken:
                if member not in last:
                    raise fl.PeerError(f"{name}: counts {member}, which is not in its cluster")
                if not last[member] < of_round <= r:
                    raise fl.PeerError(f"{name}: counts the upload of {member} of round {of_round} a second time")
                last[member] = of_round
            if not taken or not 0 <= answer.up <= 1 or not 0 <= answer.down <= 1:
                raise fl.PeerError(f"{name}: a model of {len(taken)} uploads, of shares {answer.up}, {answer.down}")
            reports = fl.unbundle(answer.reports, len(taken))
            for (member, of_round), data in zip(taken, reports, strict=True):
                self.forwarded(member, of_round, data)
            state.counted |= dict(taken)
            led.taken[name], led.up[name], led.down[name] = taken, answer.up, answer.down

        answers = yield from fl.ask_all(self, requests, messages.Led, fold)
        state.holds = [*dict.fromkeys((*state.holds, *led.taken))]  # what they have counted stays in their models
        for k, leader in state.leaders.items():
            if leader not in led.taken:
                state.failed[k] = [*state.failed.get(k, []), leader]
        return led, answers, sum(name in asked for of in members.values() for name in of)

    def request(self, r: int, cluster: int, leader: str, members: Sequence[str], asked: set[str]) -> messages.Lead:
        state = self.state
        mandates = b"".join(
            fl.signed(self.own, messages.Mandate(r, cluster, leader, state.usual), name).signature for name in members
        )
        chosen = np.array([i for i, name in enumerate(members) if name in asked], np.int64)
        counted = np.array([state.counted.get(name, 0) for name in members], np.int64)
        weights = None if leader in state.holds else state.weights
        return messages.Lead(
            r,
            self.spec.digest,
            cluster,
            state.version,
            weights,
            names(members),
            mandates,
            bits(chosen, len(members)),
            counted,
            state.usual,
        )

    def forwarded(self, member: str, r: int, data: bytes) -> None:
        """As a leader sends it on (algorithm 4, l. 20)."""
        report = opened_report(self.common, data, r, self.config.step_s)
        if report.client != member:
            raise fl.PeerError(f"a report of {report.client} for {member}")
        if member not in self.state.reports or self.report(member).round < report.round:
            self.know(report)

    def spread(self, r: int, leaders: Iterable[str]) -> fl.Steps[int]:
        """Sends the global model to these leaders, and by them to members. Returns how many members it has reached."""
        state, reached = self.state, 0
        state.holds = []

        def fold(name: str, answer: messages.Forwarded) -> None:
            nonlocal reached
            if not 0 <= answer.members <= len(self.clients):
                raise fl.PeerError(f"{name}: forwarded to {answer.members} members of {len(self.clients)}")
            state.holds.append(name)
            reached += answer.members

        spread = messages.Spread(r, self.spec.digest, state.version, state.weights)
        yield from fl.ask_each(self, leaders, spread, messages.Forwarded, fold)
        return reached

    def told(self, r: int, led: Round, asked: int) -> dict[str, Any]:
        taken = [one for of in led.taken.values() for one in of]
        return {
            "participants": len({name for name, _ in taken}),
            "stands_for": {leader: sorted({name for name, _ in of}) for leader, of in led.taken.items()},
            "asked": asked,
            "late": sum(of_round < r for _, of_round in taken),
            "gammas": {name: [led.up[name], led.down[name]] for name in led.taken},
        }


def why_too_few(led: Round, answers: fl.Answers) -> str:
    if len(led.taken) == 1:
        return f"only the leader {next(iter(led.taken))} has answered, and a sum of one model would show it"
    reasons = "; ".join(f"{name}: {why}" for name, why in sorted(answers.missing.items()))
    return f"no leader has answered ({reasons})" if reasons else "no client has reported, so there is no leader"
