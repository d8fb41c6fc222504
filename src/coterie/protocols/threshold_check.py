"""The masked-sum check: whether senders know what their ciphertexts under a joint key hold, for groups of any size.

    sender --its system's own message, with ``claimed(...)``--> hub    Enc(m), and Enc(rho) of a random rho
    hub --Challenge / Response--> sender                               z = rho + sum of l_i m_i, for the hub's l_i
    hub --Announce, Decrypt (``threshold_keys``)--> holders            open Enc(rho) + sum of l_i c_i - z: noise

Joint pads (``threshold_pads``) need senders that hold shares. Here anybody sends whole ciphertexts. A sender that has
changed the second polynomial of one, to read the key off the sum (``attacks/key_in_sum.py``), does not know what it
opens to, and so cannot answer (``crypto/threshold_check.py``, which says how small a change is found). Those who fail
are left out before anything of theirs is added. Cost for each sender: one more ciphertext, an answer of its size, and
an opening.

A sender answers one challenge for a claim: two would show its vector. Emulated ciphertexts have nothing to forge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.crypto import threshold
from coterie.crypto.arrays import CiphertextError
from coterie.crypto.ckks import CipherVector
from coterie.crypto.vector import sum_ciphers
from coterie.protocol.codec import weighted
from coterie.protocol.errors import PeerError
from coterie.protocol.messages import ANY, message
from coterie.protocol.party import Component, from_hub, on
from coterie.protocol.steps import Steps
from coterie.protocols.threshold_keys import CHECKS, Lost, OfKey, gather
from coterie.protocols.threshold_opening import Closed, open_closed

CHALLENGE_BYTES = 32
FORGED = "its ciphertexts do not hold what it knows"


@message(src=ANY, dst=ANY)
class Challenge(OfKey, frozen=True):
    """Answer this challenge for your ciphertext of this round."""

    challenge: bytes


@message(src=ANY, dst=ANY)
class Response(OfKey, frozen=True):
    """The answer."""

    answer: bytes


class Claimed(msgspec.Struct, frozen=True):
    """SECRET: a sender's claim in a round. values: (d,).  seed: of its random rho."""

    round: int
    values: NDArray[np.float64]
    seed: bytes

    def __repr__(self) -> str:
        return f"<Claimed in round {self.round}>"


class Claims(msgspec.Struct):
    """SECRET: by the name of a key."""

    of: dict[str, Claimed] = msgspec.field(default_factory=dict)


class Checks(Component):
    """How a party shows that it knows what it has encrypted under a joint key, beside its ``keys`` and ``joint``."""

    Secret = Claims
    secret: Claims

    @on(Challenge)
    def respond(self, msg: Challenge, src: str) -> Response:
        """Answer the first challenge for the claim of this round."""
        party = self.party
        from_hub(party, msg, src)
        party.joint.of(msg.key)
        claim, terms = self.secret.of.get(msg.key), party.joint.terms(msg.key)
        if claim is None or claim.round != msg.round or terms.number != msg.number:
            raise PeerError(f"{party.name} has claimed nothing in round {msg.round}, or has answered for it")
        if len(msg.challenge) != CHALLENGE_BYTES:
            raise PeerError(f"a challenge of {len(msg.challenge)} bytes")
        del self.secret.of[msg.key]
        key = party.keys.public(msg.key)
        answer = threshold.Claim(key, claim.values, claim.seed, b"").answer(msg.challenge)
        if key.emulated:
            space = key.parameters
            answer = weighted(space.degree * sum(space.residue_bytes[: key.fresh.level + 1]), answer)
        return Response(msg.round, msg.key, msg.number, answer)

    def claim(self, name: str, r: int, values: ArrayLike) -> bytes:
        """What a sender sends beside its ciphertext of these (d,) values, which it keeps until it is challenged."""
        array = np.asarray(values, np.float64)
        claim = threshold.claim(self.party.keys.public(name), array, self.party.secrets(f"claim under {name}", r).bytes)
        self.secret.of[name] = Claimed(r, array, claim.seed)
        return claim.committed


def check_senders(
    hub: Any,
    name: str,
    uploads: Mapping[str, tuple[CipherVector, bytes]],
    r: int,
    *,
    deadline_s: float | None = None,
) -> Steps[dict[str, str]]:
    """By name, the reason to leave a sender out. uploads: each sender's ciphertext as it came, and its ``claimed``.

    Raises NoAnswerError if the holders open nothing.
    """
    joint, one, key = hub.joint.of(name), hub.joint.group(name), hub.keys.public(name)
    of, failed = (r, name, hub.joint.terms(name).number), Lost()
    seeds = {sender: hub.secrets(f"challenge for {sender}", r).bytes(CHALLENGE_BYTES) for sender in uploads}
    asked = {sender: Challenge(*of, seed) for sender, seed in seeds.items()}
    got, missing = yield from gather(of, asked, Response, lambda *_: None, deadline_s)
    failed |= missing
    nothing = sum_ciphers(key.encrypt(np.zeros(1)) for _ in range(joint.fewest))
    closed = {CHECKS: Closed(joint.fewest, 1, partial(threshold.server_dec, one, nothing))}  # if no holder lies
    first: dict[int, tuple[str, threshold.Prepared]] = {}
    for number, (sender, msg) in zip(range(CHECKS - 1, -len(got) + CHECKS - 1, -1), got.items(), strict=True):
        make = partial(threshold.difference, one, *uploads[sender], seeds[sender], msg.answer)
        try:
            ready = make()
        except PeerError:
            failed[sender] = "its answer to the challenge cannot be read"
            continue
        first[number] = sender, ready
        closed[number] = Closed(ready.request.senders, ready.request.length, _ready_then(ready, make))
    opened = yield from open_closed(hub, name, closed, r, partly=True, control=CHECKS, deadline_s=deadline_s)
    for number, (sender, ready) in first.items():
        try:
            if number not in opened:
                raise CiphertextError("it opens to nonsense")
            threshold.is_noise(one, ready, opened[number].values, len(opened[number].among))
        except CiphertextError:
            failed[sender] = FORGED
    return failed


def _ready_then(ready: threshold.Prepared, make: Callable[[], threshold.Prepared]) -> Callable[..., threshold.Prepared]:
    waiting = [ready]
    return lambda random_bytes: waiting.pop() if waiting else make()
