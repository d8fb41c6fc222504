"""What the views of OFL's parties hold in a recorded run, by round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import coterie.method as fl
from coterie.crypto.roster import check_signed
from coterie.dp.uploads import eligible, shared_set
from coterie.privacy.audits import Recorded, View
from coterie.protocols.reports import FIELDS, StatusReport
from coterie.systems.ofl.messages import HUB, LEADER, Lead, Led, Spread, Upload, named
from coterie.systems.ofl.sparse import places_of


class Heard(NamedTuple):
    """An upload that a leader has read.  member, leader: numbers of clients.

    places, change: (k,) where and by how much it differs from the server's model ``base`` (d,); None for unknown
    places.  wanted: (w,) parameters that the member wants to download.
    """

    round: int
    member: int
    leader: int
    base: fl.Vector
    places: fl.Integers | None
    change: fl.Doubles | None
    wanted: fl.Integers

    def step(self) -> fl.Doubles:
        """(d,) the change; 0 at what was not uploaded."""
        found = np.zeros(len(self.base))
        found[self.places] = self.change
        return found


def leaders_views(run: Recorded) -> Iterator[tuple[int, View]]:
    for view in run.views.values():
        if view.role == LEADER:
            yield run.clients.index(view.party.partition(" as ")[0]), view


def heard(run: Recorded) -> dict[int, list[Heard]]:
    """By round, the uploads that leaders have read, without empty, late or relayed ones.

    A member is taken to begin with that round's server model, certain only if it downloads everything.
    """
    found: dict[int, list[Heard]] = {}
    for leader, view in leaders_views(run):
        model, bases = run.initial, dict[int, fl.Vector]()
        for seen in view.seen:
            message: Any = seen.message
            if isinstance(message, Lead | Spread) and message.weights is not None:
                model = np.asarray(message.weights)
            if isinstance(message, Lead):
                bases[message.round] = model
            if isinstance(message, Upload) and len(message.values) and message.round == seen.round:
                one = _heard(run, seen.src, leader, message, bases[message.round])
                found.setdefault(message.round, []).append(one)
    return dict(sorted(found.items()))


def _heard(run: Recorded, src: str, leader: int, upload: Upload, base: fl.Vector) -> Heard:
    every = eligible(run.spec)
    places = uploaded_places(run, src, upload)
    values = upload.values.astype(np.float64)
    change = None if places is None else values if run.settings.mechanism == "standard" else values - base[places]
    wanted = every[places_of(upload.wanted, len(every))]
    return Heard(upload.round, run.clients.index(src), leader, base, places, change, wanted)


def uploaded_places(run: Recorded, src: str, upload: Upload) -> fl.Integers | None:
    """None if unknown: public places follow from the session, which a folder with real keys lacks."""
    if upload.places is not None:
        return upload.places.astype(np.int64)
    every, common = eligible(run.spec), run.federation.common
    if len(upload.values) < len(every):
        try:
            check_signed(common, src, upload)
        except (fl.PeerError, fl.CryptoError):
            return None
    return shared_set(every, len(upload.values), common.roster.session, src, upload.round)


def reports(run: Recorded) -> dict[int, dict[str, StatusReport]]:
    """By round and client, the status reports that leaders have sent on."""
    found: dict[int, dict[str, StatusReport]] = {}
    for seen, led in run.views.get(HUB, View(HUB, HUB)).messages(Led):
        parts = [fl.codec.decode(data, StatusReport) for data in fl.unbundle(led.reports, len(led.rounds))]
        found.setdefault(seen.round, {}).update({one.client: one for one in parts})
    return found


def global_models(run: Recorded) -> dict[int, fl.Vector]:
    return {spread.round: spread.weights for _, view in leaders_views(run) for _, spread in view.messages(Spread)}


def clusters(run: Recorded) -> dict[int, dict[str, int]]:
    """By round, each client's cluster, as the server told the leaders."""
    found: dict[int, dict[str, int]] = {}
    for _, view in leaders_views(run):
        for seen, lead in view.messages(Lead):
            of = dict.fromkeys(named(lead.members, len(lead.counted)), lead.cluster)
            found.setdefault(seen.round, {}).update(of)
    return dict(sorted(found.items()))


def pooled(run: Recorded, note: Mapping[str, Any], leaders: Sequence[str]) -> fl.Integers:
    """(n, classes) label counts of the clients that each leader represented."""
    members = [run.numbers(note["stands_for"][leader]) for leader in leaders]
    return np.stack([run.label_counts[of].sum(axis=0) for of in members])


def reported_samples(of_round: Mapping[str, StatusReport]) -> fl.Doubles:
    return np.array([report.values[FIELDS.index("samples")] for report in of_round.values()])
