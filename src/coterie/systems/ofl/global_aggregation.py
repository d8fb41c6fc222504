"""Algorithm 4 at the hub.

server --Submit / Submitted--> leader    a model under a joint pad
server <--> leaders                      pads are completed to ciphertexts under the joint key (threshold_pads)
server <--> leaders                      the weights of the models (poison_detection)
server <--> leaders                      the weighted sum is opened (threshold_opening)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import coterie.method as fl
from coterie.crypto import threshold_pads
from coterie.crypto.ckks import CipherVector
from coterie.dp.uploads import eligible
from coterie.protocols.noise import mean_change, rotation
from coterie.protocols.threshold import complete_pads, hand_over, loaded, make_keys, open_padded, open_weighted
from coterie.systems.ofl.config import LEAST_LEADERS, OFLConfig
from coterie.systems.ofl.messages import MODEL, Submit, Submitted, names
from coterie.systems.ofl.poison_detection import Judged, judge, model_key

MEAN = 1 << 20
"""The number of the weighted mean among the sums of a round. Those of scalars are smaller."""
TRIES = 3
"""Of models, in a round, because leaders have gone."""


@dataclass(frozen=True, eq=False)
class Aggregated:
    """weights: (d,) the new global model.  judged: each leader's weight in it.  blamed: replaced leaders whose
    shares were false.
    """

    weights: fl.Vector
    judged: Judged
    blamed: tuple[str, ...] = ()

    def notes(self) -> dict[str, Any]:
        return {**self.judged.notes(), **({"blamed": list(self.blamed)} if self.blamed else {})}


def aggregate(hub: Any, r: int, leaders: Mapping[str, int]) -> fl.Steps[Aggregated]:
    """Algorithm 4, l. 13 to 19. leaders: with the number of uploads in the model of each.

    Raises NoAnswerError if it can't be done, and PeerError if it opens to no model.
    """
    config: OFLConfig = hub.config
    if config.mechanism == "distributed":
        return (yield from summed(hub, r, leaders))
    if config.detection == "none" and not config.threshold:
        uploads = yield from submitted_by_all(hub, r, tuple(leaders))
        opened = yield from open_padded(model_key(hub, r), uploads)
        found = Judged.alike(opened.among)
    else:
        ciphers, pads = yield from completed(hub, r, tuple(leaders))
        found = yield from judge(hub, r, ciphers)
        opened = yield from open_weighted(model_key(hub, r), ciphers, pads, found.weights, number=MEAN)
    mean = opened.values / found.divisor
    found.check(mean if config.sends_changes else mean - hub.state.weights[eligible(hub.spec)])
    return Aggregated(moved(hub, mean), found, opened.blamed)


def summed(hub: Any, r: int, leaders: Mapping[str, int]) -> fl.Steps[Aggregated]:
    """Of all clients' whole numbers, with noise. Raises as ``aggregate``, and for a sum that no honest leaders can
    have made.
    """
    config: OFLConfig = hub.config
    places, session = eligible(hub.spec), hub.common.roster.session
    mechanism = config.sums(len(places))
    if config.noise_by == "members":
        needed = config.makers(len(fl.joined(hub.clients, config, r)), 0) - config.missing
        if sum(leaders.values()) < needed:
            raise fl.NoAnswerError(f"{sum(leaders.values())} clients add noise to the sum, which needs {needed}")
    uploads = yield from submitted_by_all(hub, r, tuple(leaders))
    opened = yield from open_padded(model_key(hub, r), uploads)
    exact = opened.values * config.unit(len(places), len(hub.clients))
    terms = sum(leaders[name] for name in opened.among)
    weights = hub.state.weights.astype(np.float64)
    weights[places] += mean_change(mechanism, exact, terms, rotation(session, r))
    model = fl.check_model(hub.spec, hub.spec.digest, weights.astype(np.float32))
    return Aggregated(model, Judged.alike(opened.among), opened.blamed)


def moved(hub: Any, mean: fl.Doubles) -> fl.Vector:
    places, weights = eligible(hub.spec), hub.state.weights.astype(np.float64)
    weights[places] = (
        weights[places] + mean * hub.config.unit(len(places), len(hub.clients)) if hub.config.sends_changes else mean
    )
    return fl.check_model(hub.spec, hub.spec.digest, weights.astype(np.float32))


def completed(
    hub: Any, r: int, leaders: Sequence[str]
) -> fl.Steps[tuple[dict[str, CipherVector], dict[str, threshold_pads.Pad]]]:
    """The leaders' models under their joint key, and their pads."""
    for left in reversed(range(TRIES)):
        uploads = yield from submitted_by_all(hub, r, leaders)
        try:
            ciphers = yield from complete_pads(model_key(hub, r), uploads)
        except fl.NoAnswerError:  # a leader has gone since it sent its own: those that are left encrypt anew
            if not left:
                raise
            leaders = tuple(uploads)
        else:
            return ciphers, {name: one.pad for name, one in uploads.items()}
    raise AssertionError


def submitted_by_all(hub: Any, r: int, leaders: Sequence[str]) -> fl.Steps[dict[str, threshold_pads.Padded]]:
    """Models under pads, from all leaders that then hold the joint key and are still there. Raises NoAnswerError for
    fewer than two.
    """
    left = tuple(leaders)
    while True:
        if len(left) < LEAST_LEADERS:
            raise fl.NoAnswerError(
                f"{len(left)} of {len(leaders)} leaders are left, and a sum of one would show its model"
            )
        left = yield from keyed(hub, r, left)
        uploads = yield from submitted(hub, r, left)
        if len(uploads) == len(left):
            return uploads
        left = tuple(uploads)


def keyed(hub: Any, r: int, leaders: tuple[str, ...]) -> fl.Steps[tuple[str, ...]]:
    """Make sure that leaders hold the joint key. Returns those that do.

    A change of leaders makes a new key; with ``renew=shares`` the old one is handed over while enough of its holders
    are there. A key of t holders serves while all these leaders hold it.
    """
    config: OFLConfig = hub.config
    known = hub.joint.secret.terms.get(MODEL)
    if known is not None and known.holders == leaders:
        return leaders
    holding = () if known is None else known.holders
    if 0 < config.threshold <= len(leaders) and set(leaders) <= set(holding):
        return leaders
    if known is not None and config.renew == "shares":
        try:
            made = yield from hand_over(model_key(hub, r), leaders, tell=leaders)
        except fl.NoAnswerError:  # too few former holders are there
            pass
        else:
            return made.holders
    try:
        made = yield from make_keys(model_key(hub, r), leaders, tell=leaders)
    except fl.NoAnswerError:  # it is not known who has heard of it
        hub.joint.secret.terms.pop(MODEL, None)
        raise
    return made.holders


def submitted(hub: Any, r: int, leaders: tuple[str, ...]) -> fl.Steps[dict[str, threshold_pads.Padded]]:
    length, got = len(eligible(hub.spec)), dict[str, threshold_pads.Padded]()

    def fold(name: str, answer: Submitted) -> None:
        got[name] = loaded(model_key(hub, r), name, answer.cipher, length, leaders)

    yield from fl.ask_each(hub, leaders, Submit(r, names(leaders)), Submitted, fold)
    hub.state.holds = [name for name in hub.state.holds if name in got or name not in leaders]  # theirs may not fit
    return {name: got[name] for name in leaders if name in got}
