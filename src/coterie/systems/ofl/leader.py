"""OFL's client as the leader of its cluster: algorithm 2, l. 17 to 23, and its part of algorithm 4."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

import coterie.method as fl
from coterie.aggregation.contribution import contributed
from coterie.crypto.ckks_parameters import named as parameters
from coterie.dp.distributed import Distributed
from coterie.dp.uploads import Standard, shared_set
from coterie.protocols.reports import opened as opened_report
from coterie.protocols.threshold import padding
from coterie.systems.ofl import messages
from coterie.systems.ofl.client import Member
from coterie.systems.ofl.config import PARAMETERS
from coterie.systems.ofl.messages import CLIENT, LEADER, MANDATE_BYTES, MODEL, Upload, named, names
from coterie.systems.ofl.sparse import check_sparse, mixed, places_of, spread


class Office(fl.SecretStruct):
    """SECRET: a leader's state for its cluster.

    model: (d,) the leader model.  base: (d,) the global model that it began with, of ``version``.
    numbers: (p,) with mechanism=distributed, the sum of the members' whole numbers of this round.
    members: all of the cluster, with their mandates.  wanted: by member, a bit for each parameter.
    """

    round: int
    cluster: int
    version: int
    base: fl.Vector
    model: fl.Vector
    members: dict[str, bytes]
    wanted: dict[str, bytes]
    usual: float
    numbers: fl.Doubles | None = None


class Client(Member, role=CLIENT, also=(LEADER,)):
    class Secret(fl.SecretStruct):
        """SECRET. late: by member, an upload after the round was closed.  successors: by member, its new leader, for
        still later ones.
        """

        office: Office | None = None
        late: dict[str, bytes] = fl.field(default_factory=dict)
        successors: dict[str, str] = fl.field(default_factory=dict)

    secret: Secret

    # -- algorithm 2 ---------------------------------------------------------------------------------------------------

    @fl.on(messages.Lead, fl.training, answers=messages.Led)
    def lead(self, msg: messages.Lead, src: str) -> fl.Steps[messages.Led]:
        """Late uploads of the last round, and the leader's own, come first."""
        office, counted, asked = self.office(msg)
        gathering = Gathering(self, office, counted, msg.round)
        late, self.secret.late, self.secret.successors = self.secret.late, {}, {}
        for name in (name for name in office.members if name in late):
            with suppress(fl.PeerError):  # it is counted already, or too old
                gathering.take(name, fl.codec.decode(late[name], Upload))
        gathering.take(self.name, (yield from self.opportunity(msg.round, msg.usual)))

        requests = {
            name: messages.Work(msg.round, office.cluster, office.members[name], office.usual)
            for name in asked
            if name != self.name
        }
        yield from fl.for_each(requests, Upload, gathering.take, deadline_s=self.config.leader_s)
        self.secret.office, self.state.led = office, msg.round
        return gathering.led()

    def office(self, msg: messages.Lead) -> tuple[Office, dict[str, int], list[str]]:
        """Its office; by member the round of the last counted upload; and whom to ask."""
        if msg.round <= self.state.led:
            raise fl.PeerError(f"asked to lead in round {msg.round} after round {self.state.led}")
        size, left = divmod(len(msg.mandates), MANDATE_BYTES)
        members = named(msg.members, size)
        if left or len(msg.counted) != size or self.name not in members:
            raise fl.PeerError(f"a cluster of {size} members with {len(msg.counted)} counts, or without its leader")
        asked = [members[i] for i in places_of(msg.asked, size)]
        held = self.secret.office
        if msg.weights is not None:
            base = model = fl.check_model(self.spec, msg.spec, msg.weights)
        elif held is not None and (held.cluster, held.version) == (msg.cluster, msg.version):
            base, model = held.base, held.model
        else:
            raise fl.PeerError(f"asked to lead from version {msg.version} of the global model, which it does not have")
        parts = [msg.mandates[i : i + MANDATE_BYTES] for i in range(0, len(msg.mandates), MANDATE_BYTES)]
        of = dict(zip(members, parts, strict=True))
        office = Office(msg.round, msg.cluster, msg.version, base, model, of, {}, msg.usual)
        return office, dict(zip(members, msg.counted.tolist(), strict=True)), asked

    def sparse(self, name: str, upload: Upload) -> fl.Integers:
        if upload.spec != self.spec.digest:
            raise fl.PeerError(f"{name}: an upload for a model of another shape")
        if (upload.places is None) == (self.mechanism is None):
            raise fl.PeerError(f"{name}: an upload that is not by mechanism={self.config.mechanism}")
        places_of(upload.wanted, len(self.places))
        if len(upload.values) > len(self.places):
            raise fl.PeerError(f"{name}: {len(upload.values)} values for {len(self.places)} parameters")
        stated = self.public_places(name, upload) if upload.places is None else upload.places
        places = check_sparse(stated, upload.values, ~self.spec.buffers)
        self.check_length(name, upload)
        return places

    def check_length(self, name: str, upload: Upload) -> None:
        """By the clip and its noise, or the room of a cipher."""
        mechanism, values = self.mechanism, upload.values
        if isinstance(mechanism, Standard):
            fits = float(np.linalg.norm(values.astype(np.float64))) <= mechanism.longest(len(values))
        elif isinstance(mechanism, Distributed):
            fits = mechanism.fits(values, self.makers(upload.round) if self.config.noise_by == "members" else 0)
        else:
            fits = not len(values) or fl.largest(values) <= parameters(PARAMETERS[self.config.detection]).reach
        if not fits:
            raise fl.PeerError(f"{name}: an upload of larger values than an honest member sends")

    def public_places(self, name: str, upload: Upload) -> fl.Integers:
        k = len(upload.values)
        if not k:
            return np.zeros(0, np.int64)
        return shared_set(self.places, k, self.common.roster.session, name, upload.round)

    @fl.on(Upload)
    def late(self, msg: Upload, src: str) -> tuple[fl.To, ...]:
        """Kept, or sent on to the member's new leader."""
        fl.check_signed(self.common, src, msg)
        if isinstance(self.mechanism, Distributed):
            raise fl.PeerError(f"an upload of {src} for the sum of round {msg.round}, after it was closed")
        self.sparse(src, msg)
        if (leader := self.secret.successors.get(src)) is not None:
            return (
                fl.To(leader, messages.Inherited(msg.round, names([src]), fl.bundle([fl.codec.encode(msg)]), False)),
            )
        if self.secret.office is None or src not in self.secret.office.members:
            raise fl.PeerError(f"an upload of {src}, which is not in its cluster")
        self.retain(src, msg)
        return ()

    def retain(self, name: str, upload: Upload) -> None:
        known = self.secret.late.get(name)
        if known is None or fl.codec.decode(known, Upload).round < upload.round:
            self.secret.late[name] = fl.codec.encode(upload)

    # -- algorithm 4 ---------------------------------------------------------------------------------------------------

    @fl.on(messages.Submit, answers=messages.Submitted)
    def submit(self, msg: messages.Submit, src: str) -> fl.Work[messages.Submitted]:
        """L. 6 and 7."""
        office = self.held(msg.round)
        among = named(msg.among)
        holders = self.joint.group(MODEL).holders
        if (
            self.name not in among
            or not set(among) <= set(holders)
            or len(among) < (self.config.threshold or len(holders))
        ):
            raise fl.PeerError(f"pads among {len(among)} leaders, where {len(holders)} hold the key")
        model = yield from contributed(office.base, office.model)
        values = (model - office.base if self.config.sends_changes else model)[self.places]
        if isinstance(self.mechanism, Distributed):
            values = yield from self.noisy(self.mechanism, msg, len(among))
        values = values / self.config.unit(len(values), len(self.common.clients))
        cipher = yield fl.Encrypt(padding(self, MODEL, msg.round, tuple(among)), values)
        return messages.Submitted(msg.round, cipher.to_bytes())

    def noisy(self, mechanism: Distributed, msg: messages.Submit, leaders: int) -> fl.Work[fl.Doubles]:
        """(p,) its members' numbers, with its own share of noise unless members have added theirs. Raises PeerError
        for others once a sum of the round is opened.
        """
        # other leaders, or other numbers, get noise of their own
        numbers = self.held(msg.round).numbers
        assert numbers is not None
        numbers = yield from contributed(np.zeros_like(numbers), numbers)
        noise = self.joint.noise(MODEL, msg.round, msg.among + numbers.tobytes())
        if self.config.noise_by == "members":
            return numbers
        if leaders <= mechanism.missing:
            raise fl.PeerError(f"a sum of {leaders} leaders, of whose noise {mechanism.missing} may be missing")
        return np.rint(numbers) + mechanism.share(leaders, noise)

    def held(self, r: int) -> Office:
        if (office := self.secret.office) is None or office.round != r:
            raise fl.PeerError(f"it has not led in round {r}")
        return office

    @fl.on(messages.Spread, answers=messages.Forwarded)
    def spread(self, msg: messages.Spread, src: str) -> fl.Steps[messages.Forwarded]:
        office = self.held(msg.round)
        weights = fl.check_model(self.spec, msg.spec, msg.weights)
        office.base, office.model, office.version = weights, weights, msg.version
        parameters, total = weights[self.places], len(self.places)
        if wanted := office.wanted.pop(self.name, b""):
            chosen = places_of(wanted, total)
            if len(chosen):
                self.download(msg.round, chosen, parameters[chosen])

        def parcel(name: str) -> messages.Fresh:
            values = parameters[places_of(office.wanted[name], total)]
            return messages.Fresh(
                msg.round, office.cluster, office.members[name], office.usual, office.wanted[name], values
            )

        wanting = [name for name, wanted in office.wanted.items() if len(places_of(wanted, total))]
        requests = fl.LazyMapping(wanting, parcel, held=1)  # made on sending
        answers = yield from fl.for_each(requests, messages.Kept, deadline_s=self.config.leader_s)
        office.wanted = {}
        return messages.Forwarded(msg.round, len(answers.got))

    # -- another leader ------------------------------------------------------------------------------------------------

    @fl.on(messages.HandOver, answers=(messages.HandedOver, messages.Inherited))
    def send_on(self, msg: messages.HandOver, src: str) -> tuple[fl.To, ...]:
        members = named(msg.members)
        leaders = named(msg.leaders, len(members), once=False)
        now = dict(zip(members, leaders, strict=True))
        moving = {name: now[name] for name in self.secret.late if now.get(name, self.name) != self.name}
        letters: dict[str, list[str]] = {}
        for name, leader in moving.items():
            letters.setdefault(leader, []).append(name)
        former = set() if self.secret.office is None else set(self.secret.office.members)
        sent = tuple(
            fl.To(
                leader,
                messages.Inherited(msg.round, names(of), fl.bundle([self.secret.late[name] for name in of]), True),
            )
            for leader, of in letters.items()
        )
        self.secret.late = {name: data for name, data in self.secret.late.items() if now.get(name) == self.name}
        self.secret.successors |= {name: now[name] for name in former if now.get(name, self.name) != self.name}
        if self.name not in leaders:
            self.secret.office = None
        return (fl.To(src, messages.HandedOver(msg.round, len(moving), len(letters))), *sent)

    @fl.on(messages.Inherited, answers=messages.Received)
    def inherit(self, msg: messages.Inherited, src: str) -> tuple[fl.To, ...]:
        members = named(msg.members)
        for name, data in zip(members, fl.unbundle(msg.uploads, len(members)), strict=True):
            upload = fl.codec.decode(data, Upload)
            fl.check_signed(self.common, name, upload)
            self.sparse(name, upload)
            self.retain(name, upload)
        return (fl.To(self.common.roster.hub, messages.Received(msg.round)),) if msg.awaited else ()


class Gathering:
    """The uploads of one round, each mixed into the leader's model at once (algorithm 2, l. 20).

    Changes, and values in mode literal, are added instead.
    counted: by member, the round of its last upload that is in a model.
    """

    def __init__(self, leader: Client, office: Office, counted: dict[str, int], r: int) -> None:
        self.leader, self.office, self.round, self.counted = leader, office, r, counted
        self.taken: list[tuple[str, int, bytes]] = []
        self.up: list[float] = []
        self.down: list[float] = []
        added = leader.mechanism is not None or leader.common.mode == "literal"
        self.total = fl.Sum(len(office.model)) if added else None

    def take(self, name: str, upload: Upload) -> None:
        """Algorithm 2, l. 19 to 21. Raises PeerError for an upload that may not count."""
        leader, office = self.leader, self.office
        if upload.round <= self.counted[name]:
            raise fl.PeerError(f"{name}: an upload of round {upload.round} after that of round {self.counted[name]}")
        if not 0 <= self.round - upload.round <= leader.config.recluster_every:
            raise fl.PeerError(
                f"{name}: an upload of round {upload.round} in round {self.round}, too late or too early"
            )
        places = leader.sparse(name, upload)
        if name != leader.name:
            fl.check_signed(leader.common, name, upload)
        report = opened_report(leader.common, upload.report, upload.round, leader.config.step_s)
        if report.client != name:
            raise fl.PeerError(f"{name}: an upload with a report of {report.client}")
        if self.total is None:
            office.model = mixed(office.model, places, upload.values, len(office.members))
        else:
            self.total.take(spread(places, upload.values, len(office.model)))
        office.wanted[name] = upload.wanted
        self.counted[name] = upload.round
        self.taken.append((name, upload.round, upload.report))
        total = len(leader.places)
        self.up.append(len(upload.values) / total)
        self.down.append(len(places_of(upload.wanted, total)) / total)

    def led(self) -> messages.Led:
        office, place = self.office, {name: i for i, name in enumerate(self.office.members)}
        if isinstance(self.leader.mechanism, Distributed) and self.total is not None:
            office.numbers = self.total.value()[self.leader.places]
        elif self.total is not None:
            office.model = (office.model + self.total.value() / len(office.members)).astype(np.float32)
        of, rounds, reports = zip(*sorted(self.taken, key=lambda one: (place[one[0]], one[1])), strict=True)
        means = float(np.mean(self.up)), float(np.mean(self.down))
        return messages.Led(
            self.round, office.cluster, names(of), np.array(rounds, np.int64), fl.bundle(reports), *means
        )
