"""The active attack on a joint key: one client reads it off what is opened, in a recorded run that is repeated.

It sends Enc(m) + (0, K) once (``key_in_sum.py``), which opens to m + K s for the joint secret s. Under joint pads it
opens to m + K.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import coterie.method as fl
from coterie.aggregation.contribution import contribution
from coterie.crypto import threshold, threshold_pads
from coterie.crypto.ckks import PublicKey
from coterie.dp.uploads import eligible
from coterie.privacy.attacks.key_in_sum import KeyThief, coefficients, forged, key_agreement
from coterie.privacy.attacks.result import AttackResult
from coterie.privacy.attacks.wrapping import Between, wrap
from coterie.privacy.audits import Delays, Measured, Recorded, attack
from coterie.privacy.views import check_real

Guess = NDArray[np.int64]
"""(N,) coefficients of the joint secret: within +-1 for each of its makers."""
SHARE = 32.0
"""K is the scale over it, so K s hides others' changes, and spoils the model for a round or more."""


class JointThief(KeyThief):
    """A client that forges one update and reads the next model."""

    def __init__(self, spec: fl.ModelSpec, party: Any, name: str, share: float = SHARE) -> None:
        super().__init__(spec, share)
        self._party, self._name = party, name

    @property
    def group(self) -> threshold.Group:
        group: threshold.Group = self._party.joint.group(self._name)
        return group

    def _trained(self, message: fl.Message, effect: fl.Fit, result: Any) -> Any:
        if self.guess is None and self._row is not None:
            change = self._places(effect.weights) - self._places(self._models[-1])
            self.guess, self.round = read_joint(change, self.group), getattr(message, "round", None)
        self._models.append(effect.weights)
        return result

    def _encrypted(self, message: fl.Message, effect: fl.Encrypt, honest: Any) -> Any:
        if self._row is not None:
            return honest
        if not isinstance(effect.key, PublicKey | threshold_pads.Padding) or effect.key.emulated:
            raise fl.UserError("an emulated key has no secret to be stolen: run it with --crypto real")
        self._public = self._party.keys.public(self._name)
        self._row = self._shortest(effect.values, self.group.space.degree)
        self.forged_in.append(int(getattr(message, "round", 0)))
        if isinstance(effect.key, PublicKey):
            return forged(honest, self._row, self.share)
        return moved(honest, self._row, self.share)


class LeaderThief(KeyThief):
    """parties: all clients.  name: of the key. guess: (N,) its reading, or None.  secret: (N,) truth."""

    def __init__(self, party: Any, parties: dict[str, Any], name: str) -> None:
        super().__init__(party.spec, SHARE)
        self._places_of_model = eligible(party.spec)
        self._parties, self._name = parties, name
        self._group: threshold.Group | None = None
        self._base: NDArray[Any] | None = None
        self.secret: Guess | None = None

    @property
    def between(self) -> Between:
        return {fl.Compute: self._contributed, fl.Encrypt: self._encrypted}

    def _contributed(self, message: fl.Message, effect: fl.Compute, result: Any) -> Any:
        if effect.function is contribution and self.guess is None:
            base = np.asarray(effect.arguments[0], np.float64)[self._places_of_model]
            if self._row is not None and self._base is not None and self._group is not None:
                change = (base - self._base)[self._row * self._group.degree :][: self._group.degree]
                if change.any():  # no round was skipped in between
                    self.guess, self.round = read_joint(change, self._group), getattr(message, "round", None)
            elif self._row is None:
                self._base = base
        return result

    def _encrypted(self, message: fl.Message, effect: fl.Encrypt, honest: Any) -> Any:
        if self._row is not None or not isinstance(effect.key, threshold_pads.Padding):
            return honest
        self._group = honest.group
        self.secret = joint_secret(self._parties, self._name)
        self._row = self._shortest(effect.values, honest.group.degree)
        self.forged_in.append(int(getattr(message, "round", 0)))
        return moved(honest, self._row, self.share)


def moved(padded: threshold_pads.Padded, row: int, share: float) -> threshold_pads.Padded:
    """With K = scale / share added to one of its polynomials: all that the sender can do."""
    group, array = padded.group, padded.array.copy()
    constant = int(group.space.scale(group.space.fresh) / share)
    moduli = group.moduli(array.shape[1])
    each = np.array([[constant % int(prime)] for prime in moduli[:, 0]], np.uint64)
    array[row : row + 1] = group.plus(array[row : row + 1], np.broadcast_to(each, array[0].shape)[None])
    return threshold_pads.Padded(group, padded.pad, array, padded.words)


def read_joint(change: NDArray[Any], group: threshold.Group) -> Guess:
    """(N,) the likeliest joint secret, from (N,) changes of weights, whose size shows K s's factor."""
    found = coefficients(change, group.space)
    degree = len(found)
    rest = np.delete(found, [0, degree // 4, 3 * degree // 4])
    return likeliest(group, found / (float(np.sqrt(1.5 * np.mean(np.square(rest)) / group.secrets)) or 1.0))


def likeliest(group: threshold.Group, found: NDArray[Any]) -> Guess:
    """Coefficients that a secret can have, nearest to what was found."""
    return np.asarray(np.clip(np.rint(found), -group.secrets, group.secrets).astype(np.int64))


def joint_secret(parties: dict[str, Any], name: str) -> Guess:
    """The joint key, from the shares that these parties hold: (limbs, N) polynomials, added up."""
    holding = {holder: party for holder, party in parties.items() if name in party.secret.joint.held}
    held = {holder: party.secret.joint.held[name] for holder, party in holding.items()}
    group = next(iter(holding.values())).joint.group(name)
    among = group.holders[: group.needed]
    total = np.zeros((1, group.limbs, group.degree), np.uint64)
    for holder in among:
        share = threshold.Share.load(group, held[holder].share)
        total = group.plus(total, share.additive(holder, among)[None])
    return np.asarray(np.rint(group.ring.decoded(total, 1.0).ravel()), np.int64)


@attack("joint-key", "one client, deviating", "other")
def stolen_joint_key(run: Recorded, name: str) -> Iterator[Measured]:
    """Reads the joint key off what is opened (fails under pads).

    How much of the joint key ``name`` the first client reads. Raises UserError if the attack does not apply.
    """
    check_real(run)
    client, thieves, parties = run.clients[0], list[JointThief](), dict[str, Any]()

    def meddle(federation: fl.Federation, delays: Delays) -> None:
        for party in federation.common.roster.by_name:
            if party != federation.hub:
                parties[party] = federation.alter(party)
        if not any(joint.name == name for joint in parties[client].joint.declared(parties[client])):
            raise fl.UserError(f"there is no joint key {name!r} in this run")
        thieves.append(JointThief(parties[client].spec, parties[client], name))
        wrap(parties[client], thieves[0].between)

    run.again(meddle)
    (thief,) = thieves
    if thief.guess is None:
        raise fl.UserError(f"{client} received no model after its forged update: take more rounds")
    agreement = key_agreement(thief.guess, joint_secret(parties, name))
    yield Measured(f"{client}, deviating", "the joint key", agreement, round=thief.round)


def key_read_by_leader(run: Recorded, client: str, name: str, thieves: list[LeaderThief]) -> AttackResult:
    """How much of the leaders' joint key this client reads in a repeated run. Chance: the best constant guess.

    thieves: gets the thief. Raises UserError if the attack does not apply.
    """
    check_real(run)

    def meddle(federation: fl.Federation, delays: Delays) -> None:
        parties = {one: federation.alter(one) for one in run.clients}
        thieves.append(LeaderThief(parties[client], parties, name))
        wrap(parties[client], thieves[0].between)

    run.again(meddle)
    (thief,) = thieves
    if thief.guess is None or thief.secret is None:
        raise fl.UserError(f"{client} led in no two rounds with a global model between: take more rounds")
    return key_agreement(thief.guess, thief.secret)
