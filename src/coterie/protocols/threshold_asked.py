"""What a holder of a joint key helps to open, and what it refuses: the rules of ``threshold_holder``.

**A key for vectors under joint pads** (``Joint.pads``). A holder computes c_1 of every sum itself, from pads, weights
and a seed (``crypto/threshold_sums.py``), so no hub has a c_1 of its own opened. It helps

- with one sum of pads a round, whatever keys are made in it: two of the same vectors by other weights show single ones;
- if the senders are holders, each once, and no fewer than ``Joint.fewest``; and none of them has nearly all weights;
- if its own vector is in the sum under the nonce that it has drawn for this round: so each sender vouches for its own;
- with ``Joint.scalars`` scalars a holder and round. It can't see what these are of.

**Any other key.** A holder is given c_1 and takes the hub's word for what it is of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.aggregation.detection import effective
from coterie.crypto import threshold
from coterie.protocol.errors import PeerError
from coterie.protocols.threshold_kept import Held, Helped
from coterie.protocols.threshold_parts import TRIAL, Announce, Joint, as_sums, pad_context


def helped_in(party: Any, name: str, r: int) -> Helped:
    """What this party has helped with in this round under keys of this name. Raises PeerError for an earlier one."""
    helped: dict[str, Helped] = party.secret.joint.helped
    last = helped.get(name)
    if last is not None and r < last.round:
        raise PeerError(f"sums of round {r} after round {last.round}")
    if last is None or r > last.round:
        helped[name] = Helped(r)
    return helped[name]


def announced(party: Any, joint: Joint, held: Held, msg: Announce) -> None:
    """Take the sums that are announced. Raises PeerError if some of them may not be opened."""
    sums = as_sums(msg.sums)
    if msg.round < held.round:
        raise PeerError(f"sums of round {msg.round} are announced after round {held.round}")
    helped = helped_in(party, msg.key, msg.round)
    if msg.round > held.round:
        held.round, held.sums, held.tries = msg.round, {}, {}
    for number, (senders, length) in sums.items():
        if length < 1 or not joint.opens(number, senders, length):
            raise PeerError(f"sum {number} of {senders} senders: of fewer than {joint.fewest} it shows too much")
        if number in held.sums:
            raise PeerError(f"sum {number} of round {msg.round} was announced before")
    scalars = helped.scalars + sum(joint.single(senders, length) for senders, length in sums.values())
    if scalars > joint.scalars * len(held.holders):
        most = joint.scalars * len(held.holders)
        raise PeerError(f"{scalars} scalars in round {msg.round}: {most} are opened, {joint.scalars} for each holder")
    held.sums |= sums
    helped.scalars = scalars


def asked(party: Any, joint: Joint, one: threshold.Group, held: Held, number: int, data: bytes) -> threshold.Request:
    """What an announced sum is opened by, after all checks. Raises PeerError and DecodeError."""
    if number not in held.sums:
        raise PeerError(f"sum {number} was not announced")
    senders, length = held.sums[number]
    request: threshold.Request
    if joint.pads and not joint.single(senders, length):
        request = threshold.SumRequest.read(one, party.public(joint.name), data, pad_context(held.round))
        if bool(request.pads) == (number == TRIAL):
            raise PeerError(f"sum {number} of {len(request.pads)} padded vectors: only a new key is tried without any")
        if request.pads:
            check_sum(party, joint, one, held, held.round, request.pads, request.weights)
    else:
        request = threshold.Request.load(one, data)
        if joint.pads and not request.scalar:
            raise PeerError(f"sum {number} is announced as a scalar, and is a vector")
    if (request.senders, request.length) != (senders, length):
        raise PeerError(f"sum {number} of {request.senders} senders of {request.length} values was not announced")
    return request


def check_sum(
    party: Any,
    joint: Joint,
    one: threshold.Group,
    held: Held,
    r: int,
    pads: Mapping[str, threshold.Pad],
    weights: Mapping[str, int],
) -> None:
    """Raises PeerError unless this sum of padded vectors may be opened, and keeps that it is the round's only one."""
    if len(pads) < joint.fewest:
        raise PeerError(f"a sum of {len(pads)} vectors: of fewer than {joint.fewest} it shows too much")
    if effective([*weights.values()]) < joint.balance:
        raise PeerError(f"weights of {max(weights.values())} and less: one of {len(weights)} has nearly all of the sum")
    own = pads.get(party.name)
    if own is not None and own.nonce != held.nonces.get(r):
        raise PeerError(f"a nonce of {party.name} that it has not drawn in round {r}")
    helped, name = helped_in(party, joint.name, r), threshold.sum_name(one, pads, weights)
    if helped.sum not in (b"", name):
        raise PeerError(f"a second sum of the vectors of round {r}: together they would show single ones")
    helped.sum = name
