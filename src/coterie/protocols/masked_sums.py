"""One open sum over all clients; no server sees a term or the sum.

    hub     --AskForTerm-->  client  --Term-->  hub       the client's vector under the helper's key
    hub     <--Convert / ClusterSum-->  helper            the sum under a mask of the hub (``cluster_sums``)
    client  <--Total--       hub                          the sum under the users' key
    client  --Received-->    hub

A sum has at least ``FEWEST`` terms; clients that pool theirs learn the sum of the others. Keys and assumptions are
those of ``cluster_sums``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import coterie.protocol.core as fl
from coterie.crypto.paillier import CipherVector
from coterie.protocols.anonymous import SERVICE, KeyedParty
from coterie.protocols.cluster_sums import ClusterModel, Received, converted, distribute, masked_sum, opened_mean
from coterie.protocols.local_training import ask_each

FEWEST = 3


class AskForTerm(fl.FromHub, frozen=True):
    number: int


class Term(fl.OfRound, frozen=True):
    ABOUT = ("round", "number")
    number: int
    cipher: bytes


class Total(ClusterModel, frozen=True):
    """cluster: the number of the sum.  count: its terms."""


def summed(hub: KeyedParty, r: int, number: int, names: Sequence[str], length: int) -> fl.Steps[Total]:
    """The hub: ask for terms (length,) and add them up, for ``tell``.

    Raises NoAnswerError for fewer than ``FEWEST``, or without the helper.
    """
    key, terms = hub.keys.public(SERVICE), dict[str, CipherVector]()

    def fold(name: str, term: Term) -> None:
        terms[name] = key.from_bytes(term.cipher, length, terms=1, blinded=0)

    yield from ask_each(hub, names, AskForTerm(r, number), Term, fold)
    if len(terms) < FEWEST:
        raise fl.NoAnswerError(f"{len(terms)} of {len(names)} clients sent a term of a sum that needs {FEWEST}")
    one = masked_sum(hub, r, number, list(terms), terms.__getitem__, length)
    done, missing = yield from converted(hub, r, {number: one}, Total)
    if missing:
        raise fl.NoAnswerError(f"no sum of {len(terms)} terms: {missing[number]}")
    return cast(Total, done[number])


def tell(hub: KeyedParty, total: Total, names: Sequence[str]) -> fl.Steps[tuple[str, ...]]:
    answers = yield from distribute(hub, {total.cluster: total}, {total.cluster: names})
    return tuple(name for _, name in answers.got)


def term(client: KeyedParty, msg: AskForTerm, values: fl.Doubles) -> fl.Work[Term]:
    return Term(msg.round, msg.number, (yield fl.Encrypt(client.keys.public(SERVICE), values)).to_bytes())


def opened_total(
    client: KeyedParty, msg: Total, r: int, lengths: Mapping[int, int], held: Mapping[int, Any]
) -> fl.Work[tuple[fl.Doubles, Received]]:
    """A client: the sum (length,) and its answer. held: the sums that it has.

    Raises PeerError for too few terms, one of these, and as ``opened_mean``.
    """
    if msg.cluster not in lengths or msg.cluster in held:
        raise fl.PeerError(f"sum {msg.cluster} is not awaited")
    if msg.count < FEWEST:
        raise fl.PeerError(f"a sum of {msg.count} terms; of fewer than {FEWEST} it shows too much")
    mean = yield from opened_mean(client, msg, r, lengths[msg.cluster])
    return mean * msg.count, Received(msg.round, msg.cluster)
