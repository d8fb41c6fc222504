"""The masked-sum check: whether senders know what their ciphertexts under a joint key hold. No system uses it.

Joint pads (``protocols/threshold/pads``) need senders that hold shares. Here anybody sends whole ciphertexts. A sender
that adds K to the second polynomial of one has it open to K s more (``privacy/attacks/key_in_sum``), which it doesn't
know. So it is asked for a combination of what its ciphertexts hold:

    sender --with its ciphertexts c_i of messages m_i--> hub     Enc(rho), rho uniform in the ring     ``Checks.claim``
    hub --Challenge--> sender                                    ternary polynomials l_i, by a seed
    sender --Response--> hub                                     z = rho + sum of l_i m_i, uniform     ``answer``
    hub --Announce, Decrypt--> holders                           open Enc(rho) + sum of l_i c_i - z    ``difference``

What is opened must be noise: anything more counts as nonsense. Of a message with K it is l K s: some
``60 K sqrt(summands)`` a coefficient at N = 8192. It is opened without dividing, so K from about 2^49 on is caught with
"threshold-8192-sum". In the sum itself, which is divided by 2^40, what isn't caught is below 2^-33 of the flooding.
Sets whose sums aren't divided have no such margin, and are refused.

It costs a ciphertext and an answer of its size more a sender, and an opening of one ciphertext for each. Holders can't
tell it from a sum of one sender, so the key is declared with ``fewest=1``. It says nothing of the values: a sender may
send any that it knows. A sender answers one challenge for a claim: two would show its vector. Emulated ciphertexts have
nothing to forge.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

import coterie.method as fl
from coterie.crypto import residues, threshold, threshold_opening
from coterie.crypto.ckks import CipherVector, PublicKey
from coterie.crypto.residues import Residues
from coterie.crypto.seal import ring
from coterie.crypto.tally import Form
from coterie.protocol.codec import weighted
from coterie.protocols.threshold.keys import HubKey, Lost, OfKey
from coterie.protocols.threshold.opening import Closed, open_closed

SEED_BYTES = 32
FORGED = "its ciphertexts do not hold what it knows"
HONEST = -2
"""The number of a ciphertext of the hub, which opens if no holder lies; from there down those of senders follow."""

Floats = NDArray[np.float64]


@fl.message(src=fl.ANY, dst=fl.ANY)
class Challenge(OfKey, frozen=True):
    """Answer this challenge for what you have sent in this round."""

    challenge: bytes


@fl.message(src=fl.ANY, dst=fl.ANY)
class Response(OfKey, frozen=True):
    """The answer."""

    answer: bytes


class Claimed(msgspec.Struct, frozen=True):
    """SECRET: what a sender has said that it knows in a round. values: (d,).  seed: of its random rho."""

    round: int
    values: Floats
    seed: bytes

    def __repr__(self) -> str:
        return f"<Claimed in round {self.round}>"


class Claims(msgspec.Struct):
    """SECRET: by the name of a key."""

    of: dict[str, Claimed] = msgspec.field(default_factory=dict)


class Checks(fl.Component):
    """How a party shows that it knows what it has encrypted under a joint key, beside its ``keys`` and ``joint``."""

    Secret = Claims
    secret: Claims

    @fl.on(Challenge)
    def respond(self, msg: Challenge, src: str) -> Response:
        """Answer the first challenge for the claim of this round."""
        party = self.party
        fl.from_hub(party, msg, src)
        party.joint.of(msg.key)
        claim, terms = self.secret.of.get(msg.key), party.joint.terms(msg.key)
        if claim is None or claim.round != msg.round or terms.number != msg.number:
            raise fl.PeerError(f"{party.name} has claimed nothing in round {msg.round}, or has answered for it")
        if len(msg.challenge) != SEED_BYTES:
            raise fl.PeerError(f"a challenge of {len(msg.challenge)} bytes")
        del self.secret.of[msg.key]
        made = answer(party.keys.public(msg.key), claim.values, claim.seed, msg.challenge)
        return Response(msg.round, msg.key, msg.number, made)

    def claim(self, name: str, r: int, values: ArrayLike) -> bytes:
        """What a sender sends beside its ciphertext of these (d,) values. It keeps them until it is challenged."""
        seed = self.party.secrets(f"claim under {name}", r).bytes(SEED_BYTES)
        self.secret.of[name] = Claimed(r, np.asarray(values, np.float64), seed)
        return committed(self.party.keys.public(name), seed)


def check_senders(
    hub: Any,
    name: str,
    uploads: Mapping[str, tuple[CipherVector, bytes]],
    r: int,
    *,
    deadline_s: float | None = None,
) -> fl.Steps[dict[str, str]]:
    """By name, why a sender is to be left out. uploads: of each, its ciphertext as it came, and its claim.

    Raises NoAnswerError if the holders open nothing.
    """
    joint, failed = HubKey(hub, name, r, deadline_s), Lost()
    one = joint.group
    seeds = {sender: hub.secrets(f"challenge for {sender}", r).bytes(SEED_BYTES) for sender in uploads}
    asked = {sender: Challenge(*joint.of, seed) for sender, seed in seeds.items()}
    got, missing = yield from joint.gather(asked, Response)
    failed |= missing
    closed = {HONEST: Closed(1, 1, partial(threshold_opening.server_dec, one, joint.public.encrypt(np.zeros(1))))}
    senders: dict[int, str] = {}
    for sender, msg in got.items():
        make = partial(difference, one, *uploads[sender], seeds[sender], msg.answer)
        try:
            request = make().request
        except fl.PeerError:
            failed[sender] = "its answer to the challenge cannot be read"
            continue
        number = HONEST - len(closed)
        senders[number] = sender
        closed[number] = Closed(request.senders, request.length, make)
    opened = yield from open_closed(joint, closed, partly=True)
    return failed | {sender: FORGED for number, sender in senders.items() if number not in opened}


# ---- what a sender computes


def committed(key: PublicKey, seed: bytes) -> bytes:
    """Enc(rho), of 32 secret bytes."""
    nothing = key.encrypt(np.zeros(1 if key.emulated else key.parameters.degree))
    if key.emulated:
        return nothing.to_bytes()
    array = nothing.array.copy()
    array[:, 0] = residues.add(array[:, 0], _rho(key, seed), ring(key.parameters).moduli_at(key.fresh.level))
    return replace(nothing, array=array).to_bytes()


def answer(key: PublicKey, values: Floats, seed: bytes, challenge: bytes) -> bytes:
    """z, for a challenge of 32 bytes. Give one answer only: two would show the message."""
    space, form = key.parameters, key.fresh
    if key.emulated:
        return weighted(space.degree * sum(space.residue_bytes[: form.level + 1]), bytes(1))
    made = ring(space)
    total = _combined(key, made.encoded(values, form)[:, None], challenge)[:, 0]
    total = residues.add(total, _rho(key, seed), made.moduli_at(form.level))
    return b"".join(residues.pack(total, space.residue_bytes[: form.level + 1]))


# ---- what the hub has opened


def difference(
    group: threshold.Group,
    cipher: CipherVector,
    claimed: bytes,
    challenge: bytes,
    answered: bytes,
    **random_bytes: Any,
) -> threshold_opening.Prepared:
    """What the holders open, prepared: nonsense unless the sender knows what it sent.

    cipher: as it came, one term.  challenge: 32 bytes that the hub drew when it had ``cipher`` and the claim.
    Raises DecodeError for what the sender sent, and CryptoError for a set whose sums aren't divided, and for a vector
    that isn't fresh.
    """
    key, space, form = cipher.key, group.space, cipher.tally.form
    if form != key.fresh or cipher.terms != 1 or not group.switched(form).levels:
        raise fl.CryptoError(
            f"the check is for fresh vectors under a set whose sums are divided, not {group.parameters}"
        )
    total = key.from_bytes(claimed, 1 if group.emulated else space.degree, terms=1, blinded=0, form=form)
    if group.emulated:
        return threshold_opening.server_dec(group, total, **random_bytes)
    made, widths = ring(space), space.residue_bytes[: form.level + 1]
    if len(answered) != space.degree * sum(widths):
        raise fl.DecodeError(
            f"an answer of {len(answered)} bytes to a challenge: {space.degree * sum(widths)} are needed"
        )
    z, moduli = residues.unpack(answered, (1, form.level + 1, space.degree), widths), made.moduli_at(form.level)
    if not residues.valid(z, moduli):
        raise fl.DecodeError("an answer with a residue that is not below its prime")
    array = residues.add(total.array, _combined(key, cipher.array, challenge), moduli)
    array[:, 0] = residues.add(array[:, 0], moduli - z, moduli)
    limbs = group.opened_limbs  # the other primes are dropped, and not divided by, so that the error stays as it is
    total = replace(total, tally=replace(total.tally, form=Form(limbs - 1)), array=array[:, :, :limbs])
    terms = 1 + len(cipher.array) * space.degree * 2 / 3  # variances of a ternary polynomial times the noise of each
    prepared = threshold_opening.server_dec(group, total, deviation=group.fresh_deviation * math.sqrt(terms))
    return replace(prepared, request=replace(prepared.request, scale=1.0))  # so that more than noise is too large


def _combined(key: PublicKey, polynomials: Residues, challenge: bytes) -> Residues:
    """``(1, k, limbs, N)``: the sum of ternary polynomials, which follow from the challenge, times each row."""
    if len(challenge) != SEED_BYTES:
        raise fl.CryptoError(f"a challenge has {SEED_BYTES} bytes, not {len(challenge)}")
    count, _, limbs, degree = polynomials.shape
    words = residues.secret_words(hashlib.sha256(b"coterie/challenge/" + challenge).digest())(count * degree)
    made = ring(key.parameters)
    ternary = made.transformed((words % np.uint64(3)).astype(np.int64).reshape(count, degree) - 1, limbs - 1)
    total = np.zeros((1, *polynomials.shape[1:]), dtype=np.uint64)
    for row, one in zip(polynomials, ternary, strict=True):
        product = residues.product(row[None], one[None, None], made.moduli_at(limbs - 1))
        total = residues.add(total, product, made.moduli_at(limbs - 1))
    return total


def _rho(key: PublicKey, seed: bytes) -> Residues:
    space: Any = key.parameters
    limbs = key.fresh.level + 1
    words = residues.secret_words(hashlib.sha256(b"coterie/rho/" + seed).digest())
    return residues.uniform(words, (1, limbs, space.degree), ring(space).moduli_at(limbs - 1))
