"""PAFed under test: small keys for fast federations, updates to forge, and a slow twin.

The twin is written from the paper's algorithms with plain loops over plain arrays: no parties, no ciphers, no messages.
It has its own delays only in so far as it is told who is late by how many rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest
from corrected import corrected_step
from emulated import rounded
from federation import Pulled, Rig, planted, rig

from benchmarks.security.late_classes import class_weights
from coterie.crypto import ckks, roster, wire
from coterie.crypto.ckks_parameters import INSECURE
from coterie.crypto.keys import public_key
from coterie.crypto.split_key import split_keygen
from coterie.privacy.audits.pafed_keys import UPDATES, opener, whole_key
from coterie.protocols import committee
from coterie.protocols.local_training import sample_clients
from coterie.systems import pafed
from coterie.systems.pafed import SYSTEM, config
from coterie.systems.pafed.config import Rates
from coterie.systems.pafed.messages import HUB, PaddedUpdate, Train, Update

SIZE = 20
TARGETS = planted([0, 0, 0, 1, 1, 2, 2, 2], SIZE, apart=3.0)
SMALL = {"paper": "insecure-1024-deep", "hardened": "insecure-1024-deep", "literal": "insecure-1024-long"}
EIGHT = replace(INSECURE["insecure-1024-long"], name="eight", prime_bits=(50, *8 * (36,), 60))  # enough for one Min()
REALLY = [pytest.param(True, id="emulated"), pytest.param(False, id="real", marks=pytest.mark.long)]
FLOAT32 = 2.0**-20  # a few roundings of a number near 8

change = msgspec.structs.replace


@contextmanager
def small_keys() -> Iterator[None]:
    """Federations with keys of an eighth of the degree or less, without security, real or emulated."""

    def keygen(parameters: str, *, emulated: bool, products: bool = True, random_bytes: Any) -> Any:
        return ckks.keygen(
            parameters, products=products, emulated=emulated, random_bytes=random_bytes, allow_insecure=True
        )

    def shares(*given: Any, **options: Any) -> Any:
        return split_keygen(*given, **options, allow_insecure=True)

    split = wire.split_key
    with pytest.MonkeyPatch.context() as patch:
        for mode, name in SMALL.items():
            patch.setitem(config.PARAMETERS, mode, name)
        patch.setitem(INSECURE, EIGHT.name, EIGHT)
        patch.setattr(config, "named", INSECURE.__getitem__)
        patch.setattr(pafed, "ckks_keygen", keygen)
        patch.setattr(committee, "split_keygen", shares)
        patch.setattr(wire, "split_key", lambda *given: split(*given[:-1], True))
        yield


def paf(targets: np.ndarray = TARGETS, **options: Any) -> Rig:
    """A federation with an even number of late and of early clients, unless said otherwise."""
    given = {"participation": 1.0, "delta": 0.5, "delay": "uniform:1-3", "lr": 0.1, "max_epochs": 1, **options}
    few = given.get("iterations", 7) < 2
    with pytest.MonkeyPatch.context() as patch:
        if given.get("mode") == "literal" and few:
            patch.setitem(config.PARAMETERS, "literal", EIGHT.name)
        return rig(SYSTEM, targets, fresh_keys=True, **given)


def four(**options: Any) -> Rig:
    """Every second client; of two the answer of the round before comes in each round, unless delta says otherwise."""
    return paf(TARGETS[::2], **{"seed": 1, "delay": "uniform:1", **options})


@cache
def stranger(emulated: bool, name: str) -> Any:
    """A key that nobody in the federation has."""
    return (rounded if emulated else ckks).keygen(name, allow_insecure=True)


def mistrusting(party: Any, name: str) -> None:
    """Let a party take another's messages for forged: on its own roster stands a verify key that nobody has."""
    entries = [change(one, verify_key=bytes(32)) if one.name == name else one for one in party.common.roster.entries]
    party.common = replace(party.common, roster=change(party.common.roster, entries=tuple(entries)))


# -- what an observer reads ------------------------------------------------------------------------------------------


def service_key(run: Rig) -> Any:
    """The helper's key, which opens updates and the model."""
    return whole_key(run.transport.transcript.views)


def opened(run: Rig, update: Update | PaddedUpdate) -> np.ndarray:
    """(d,) what an update that the aggregator was handed says; a padded one by the pads that the helper was granted."""
    src = next(one.src for one in run.view(HUB).seen if one.message is update)
    return opener(run.transport.transcript.views)(src, update)


def model(run: Rig) -> np.ndarray:
    """(d,) float64 of the aggregator's encrypted model, or the initial one."""
    if not run.hub.state.model:
        return run.common.initial.astype(np.float64)
    key = service_key(run)
    return np.asarray(key.decrypt(key.public.from_bytes(run.hub.state.model)))


def taken(run: Rig, r: int) -> tuple[dict[str, Any], list[tuple[str, Update]]]:
    """Run round r: its notes, and the updates (padded or not) that the aggregator was handed in it, with senders."""
    before = len(run.view(HUB).seen)
    notes = run.round(r)
    return notes, [(one.src, one.message) for one in run.view(HUB).seen[before:] if isinstance(one.message, UPDATES)]


# -- the slow twin ---------------------------------------------------------------------------------------------------


class Twin:
    """PAFed with plain numbers: who is asked when and who is how late is told, everything else is computed.

    late(r): rounds by client, of those whose answer to round r comes later.
    """

    def __init__(self, run: Rig, late: Any) -> None:
        self.config, self.mode, self.seed = run.config, run.common.mode, run.hub.randomness.seed
        self.names, self.late, self.targets = run.common.clients, late, run.transport.effects.targets
        self.weights = run.common.initial.astype(np.float64)
        self.duals = {name: np.zeros(len(self.weights)) for name in self.names}
        self.own = dict.fromkeys(self.names, self.weights)  # each client's last own model, for mode literal
        self.waiting: list[tuple[int, int, str, np.ndarray, float]] = []  # due, of round, who, update, length
        self.used: dict[tuple[str, int], np.ndarray] = {}  # in the last round, by who and of which round

    def trained(self, name: str) -> tuple[np.ndarray, float]:
        """Algorithm 2, eq. (10), (16), and algorithm 3, line 8: the update at length 1, and the length that is told.

        In mode literal a client trains on from its own last model, from which eq. (16) counts as well.
        """
        config, received = self.config, self.weights
        start = self.own[name] if self.mode == "literal" else received
        w, y = start.copy(), self.duals[name]
        for _ in range(config.max_epochs):
            gradient = w - self.targets[name]
            if config.local == "admm":
                gradient = gradient + y + config.rho * (w - received)  # of eq. (8)
            w = w - config.lr * gradient
        self.own[name] = w
        send = w - start
        if config.local == "admm":
            self.duals[name] = y + config.rho * (w - received)  # eq. (10)
            send = send + (self.duals[name] - y) / config.rho  # eq. (16)
        length = float(np.linalg.norm(send))
        return send / length, min(length, config.clip) if config.clip else 1.0

    def round(self, r: int) -> dict[str, Any]:
        """Algorithm 3; gives what the notes of the round should say of staleness."""
        config, late = self.config, self.late(r)
        for name in sample_clients(self.names, config.participation, self.seed, r):
            self.waiting.append((r + late.get(name, 0), r, name, *self.trained(name)))
        here = [entry for entry in self.waiting if entry[0] == r]
        self.waiting = [entry for entry in self.waiting if entry[0] > r]
        used = [entry for entry in here if r - entry[1] <= config.max_staleness]
        early = [update for _, of, _, update, _ in used if of == r]
        stale = [update for _, of, _, update, _ in used if of < r]
        if used:
            rates = config.rates(r).scaled(float(np.mean([entry[4] for entry in used])))
            self.weights = self.weights + step(early, stale, rates, config, self.mode)
        self.used = {(name, of): update for _, of, name, update, _ in used}
        ages = [r - entry[1] for entry in used]
        return {
            "participants": len(used),
            "staleness": [ages.count(age) for age in range(max(ages, default=-1) + 1)],
            "too_old": len(here) - len(used),
        }


def step(early: list[np.ndarray], stale: list[np.ndarray], rates: Rates, config: Any, mode: str) -> np.ndarray:
    """Eq. (17): the mean of those in time, corrected by the late ones as the settings say."""
    if not early:
        return rates.agreeing * np.mean(stale, axis=0)
    mean = np.mean(early, axis=0)
    if not stale:
        return rates.in_time * mean
    if config.project == "none":
        return rates.in_time * mean + rates.agreeing * np.mean(stale, axis=0)
    literal = mode == "literal"
    iterations = config.iterations if literal else None
    printed = literal or config.project == "printed"
    return corrected_step(mean, np.stack(stale), rates, iterations=iterations, unit_mean=printed)


def stated_bound(key: Any, early: list[np.ndarray], stale: list[np.ndarray], rates: Rates) -> float:
    """How far a step under encryption may be from the plain one, by the errors that the scheme states.

    An operation on scalars adds at most e. A weight is off by 2^8 e, as the largest mask of a cosine is taken off it; a
    class's weights are divided by their sum. Vectors add e for each of them.
    """
    p = key.public.parameters
    e, n, m = p.added(0), len(early), max(1, len(stale))
    if not early or not stale:
        return (n + m) * 2 * e
    mean = np.mean(early, axis=0)
    cosines = np.stack(stale) @ mean
    sums = [abs(c[keep].sum()) for c in [cosines] for keep in (c > 0, c < 0) if keep.any()]
    least, square = min(sums), float(mean @ mean)
    weight = 2 * 2.0**8 * e
    share = 2 * (m + 1) * weight / least * max(rates.agreeing, rates.conflicting)
    return m * share + share / square + (n + m) * 2 * e


def clear(early: list[np.ndarray], stale: list[np.ndarray], least: float = 0.01, iterations: int | None = None) -> bool:
    """Whether no class is so light that a mask decides if it is left out, and no update is a tie.

    iterations: of Min(), whose weights can cancel.
    """
    if not early or not stale:
        return True
    cosines = np.stack(stale) @ np.mean(early, axis=0)
    agreeing, conflicting = (2 * weights for weights in class_weights(cosines, iterations))
    if iterations is not None:
        return all(abs(w.sum()) > least * max(1, np.abs(w).sum()) for w in (agreeing, conflicting))
    sums = [abs(w.sum()) for w in (agreeing, conflicting) if w.any()]
    return min(sums) > least and float(np.abs(cosines).min()) > 1e-4


# -- forging ---------------------------------------------------------------------------------------------------------


def signed(party: Any, update: Update) -> Update:
    """The update with a good signature of this client over whatever it says."""
    return roster.signed(party.own, update)


def signed_train(run: Rig, name: str, msg: Train) -> Train:
    """The request with a good signature of the aggregator."""
    return roster.signed(run.hub.own, msg, name)


__all__ = [name for name in dir() if not name.startswith("_")] + ["Mapping", "Pulled", "public_key"]
