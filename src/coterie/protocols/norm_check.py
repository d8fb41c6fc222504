"""``check=norm``: clients of hidden sums prove that their uploads are as short as the clip allows.

    hub     --Toss / Tossed--> helper            names of all uploads of a round, then both servers' parts of a coin
    hub     --Challenge / NormProof--> client    the coin, which chooses the projections (``crypto/norm_proof.py``)
    hub     --Shares--> helper                   with what the hub tells of each proof; those that hold are counted

The coin comes after the uploads, so that no client can hide a long vector from it, and neither server chooses it, nor
shows a client another than the servers use: the hub commits to its part first, and the helper signs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np

import coterie.protocol.core as fl
from coterie.crypto import norm_proof, one_hot
from coterie.crypto.one_hot import SEED_BYTES
from coterie.crypto.roster import signing_key, verify_key
from coterie.crypto.signing import OVERHEAD_BYTES, SIGNATURE_BYTES, digest
from coterie.protocols.hidden_sums import HiddenUpdate, opened_from, sealed_to, upload_name

Upload = tuple[str, int]
NAME_BYTES = 32
SEALED_BYTES = SEED_BYTES + OVERHEAD_BYTES + SIGNATURE_BYTES


class Toss(fl.FromHub, frozen=True):
    """uploads: 32 bytes, a name, each.  commitment: to the hub's part of the coin."""

    uploads: bytes
    commitment: bytes


class Tossed(fl.OfRound, frozen=True):
    """part: the helper's.  signature: over the round, the commitment and this part."""

    part: bytes
    signature: bytes


class Challenge(fl.FromHub, frozen=True):
    """Prove the upload of round ``of``. parts: of the coin, the hub's and the helper's."""

    of: int
    parts: bytes
    signature: bytes


class NormProof(fl.OfRound, frozen=True):
    """As ``norm_proof.Proof``. seed: sealed to the helper and signed. All empty for an upload that is too long."""

    ABOUT = ("round", "of")
    of: int
    share: bytes
    name: bytes
    seed: bytes


def _commitment(party: Any, r: int, part: bytes) -> bytes:
    return digest("coterie/coin/1", party.common.roster.session, r, part)


def _said(party: Any, r: int, commitment: bytes, part: bytes) -> tuple[bytes | int | str, ...]:
    return "coin", party.common.roster.session, r, commitment, part


def _coin(party: Any, r: int, parts: bytes) -> bytes:
    return digest("coterie/projections/1", party.common.roster.session, r, parts)[:SEED_BYTES]


def _context(client: str, upload: bytes, coin: bytes) -> bytes:
    return digest("coterie/short upload/1", client, upload, coin)


def _bound(party: Any) -> int:
    grid = party.config.grid(len(party.common.clients), party.spec)
    return norm_proof.bound_of(grid.longest)


def _projected(coin: bytes, shares: Sequence[fl.Words]) -> fl.Words:
    return norm_proof.projected(coin, np.stack(shares))


# -------------------------------------------------------------------------------------------------------- the clients


class Uploaded(fl.SecretStruct):
    """SECRET. name: 32 bytes.  x: (d,) words.  hub: (d,) the hub's share of x."""

    name: bytes
    x: fl.Words
    hub: fl.Words


class Unproved(fl.SecretStruct):
    """sent: by round, uploads without a proof yet."""

    sent: dict[int, Uploaded] = fl.field(default_factory=dict)


class ClientNorms(fl.Component):
    secret: Unproved

    def keep(self, x: fl.Words, update: HiddenUpdate, groups: int) -> None:
        """An upload of the words x (d,), to be proved."""
        oldest = update.round - self.party.config.max_staleness
        kept = {of: one for of, one in self.secret.sent.items() if of >= oldest}
        hub = one_hot.share(one_hot.seeds_of(update.master, groups), np.frombuffer(update.word, "<u4"))
        name = upload_name(self.party.name, update)
        self.secret.sent = {**kept, update.round: Uploaded(name, x, hub)}

    @fl.on(Challenge, answers=NormProof)
    def prove(self, msg: Challenge, src: str) -> NormProof:
        """An upload once, by a coin that the helper has signed."""
        party, of = self.party, msg.of
        if len(msg.parts) != 2 * SEED_BYTES:
            raise fl.PeerError(f"{len(msg.parts)} bytes are no two parts of a coin")
        if of not in self.secret.sent:
            raise fl.PeerError(f"{party.name} has no upload of round {of} to prove")
        ours, theirs = msg.parts[:SEED_BYTES], msg.parts[SEED_BYTES:]
        said = _said(party, msg.round, _commitment(party, msg.round, ours), theirs)
        verify_key(party.common, party.helper).verify(msg.signature, *said)
        sent = self.secret.sent[of]
        self.secret.sent = {q: one for q, one in self.secret.sent.items() if q != of}
        coin = _coin(party, msg.round, msg.parts)
        hub, both = _projected(coin, [sent.hub, sent.x])
        context = _context(party.name, sent.name, coin)
        secrets = party.secrets(f"proof of the length of {of}", msg.round)
        proof = norm_proof.prove(hub, both - hub, _bound(party), context, secrets)
        if proof is None:
            return NormProof(msg.round, of, b"", b"", b"")
        seed = sealed_to(party, party.helper, proof.seed, "length", of, sent.name, coin)
        return NormProof(msg.round, of, proof.share, proof.name, seed)


# -------------------------------------------------------------------------------------------------------- the servers


class Tossing(fl.State, frozen=True):
    """parts: its own and the helper's."""

    parts: bytes
    names: Mapping[Upload, bytes]
    proofs: Mapping[Upload, NormProof]


class HubNorms(fl.Component):
    def proved(self, r: int, names: Mapping[Upload, bytes]) -> fl.Steps[Tossing]:
        """Toss a coin over these uploads, and ask for proofs. Raises NoAnswerError and PeerError."""
        party = self.party
        own = party.secrets("coin", r).bytes(SEED_BYTES)
        toss = Toss(r, b"".join(names.values()), _commitment(party, r, own))
        tossed: Tossed = yield from fl.ask(party.helper, toss, Tossed)
        said = _said(party, r, toss.commitment, tossed.part)
        verify_key(party.common, party.helper).verify(tossed.signature, *said)
        parts, proofs = own + tossed.part, dict[Upload, NormProof]()
        size = norm_proof.share_bytes(_bound(party))

        def fold(key: Upload, proof: NormProof) -> None:
            lengths = len(proof.share), len(proof.name), len(proof.seed)
            if lengths != (size, norm_proof.NAME_BYTES, SEALED_BYTES):
                raise fl.PeerError(f"{key[0]}: a proof of {', '.join(map(str, lengths))} bytes")
            proofs[key] = proof

        challenges = {key: fl.To(key[0], Challenge(r, key[1], parts, tossed.signature)) for key in names}
        yield from fl.for_each(challenges, NormProof, fold, deadline_s=party.config.deadline_s)
        return Tossing(parts, names, proofs)

    def told(self, r: int, tossing: Tossing, uploads: Sequence[Upload], shares: Sequence[fl.Words]) -> list[bytes]:
        """For the helper, of each upload. shares: the hub's, (d,) each."""
        coin = _coin(self.party, r, tossing.parts)
        found = []
        for upload, y in zip(uploads, _projected(coin, shares), strict=True):
            proof = tossing.proofs[upload]
            context = _context(upload[0], tossing.names[upload], coin)
            told = norm_proof.told(proof.share, proof.name, y, _bound(self.party), context)
            found.append(told + proof.seed)
        return found


class Coin(fl.SecretStruct):
    """SECRET. part: the helper's.  uploads: the names that the round's coin was tossed over."""

    round: int = 0
    part: bytes = b""
    commitment: bytes = b""
    uploads: frozenset[bytes] = frozenset()


class HelperNorms(fl.Component):
    secret: Coin

    @fl.on(Toss, answers=Tossed)
    def toss(self, msg: Toss, src: str) -> Tossed:
        """Once a round: then the uploads are fixed."""
        secret = self.secret
        if self.party.config.check != "norm" or msg.round <= secret.round:
            raise fl.PeerError(f"a coin for round {msg.round}, after that of round {secret.round}")
        if len(msg.commitment) != sha256().digest_size or not msg.uploads or len(msg.uploads) % NAME_BYTES:
            raise fl.PeerError(
                f"a coin over {len(msg.uploads)} bytes of names, with {len(msg.commitment)} of a commitment"
            )
        names = (msg.uploads[at : at + NAME_BYTES] for at in range(0, len(msg.uploads), NAME_BYTES))
        secret.round, secret.commitment, secret.uploads = msg.round, msg.commitment, frozenset(names)
        secret.part = self.party.secrets("coin", msg.round).bytes(SEED_BYTES)
        said = _said(self.party, msg.round, msg.commitment, secret.part)
        return Tossed(msg.round, secret.part, signing_key(self.party.own).sign(*said))

    def coin(self, r: int, part: bytes) -> bytes:
        """Raises PeerError unless the hub has committed to this part."""
        secret = self.secret
        if r != secret.round or _commitment(self.party, r, part) != secret.commitment:
            raise fl.PeerError(f"not the hub's part of the coin of round {r}")
        return _coin(self.party, r, part + secret.part)

    def short(
        self, coin: bytes, uploads: Sequence[tuple[str, int, bytes]], told: Sequence[bytes], shares: Sequence[fl.Words]
    ) -> list[bool]:
        """Which uploads' (client, round and name) proofs hold. shares: the helper's, (d,) each."""
        if not uploads:
            return []
        every = zip(uploads, told, _projected(coin, shares), strict=True)
        return [self._holds(coin, *upload, data, y) for upload, data, y in every]

    def _holds(self, coin: bytes, client: str, of: int, upload: bytes, data: bytes, y: fl.Words) -> bool:
        if upload not in self.secret.uploads:
            return False
        at = norm_proof.told_bytes()
        try:
            seed = opened_from(self.party, client, data[at:], "length", of, upload, coin)
        except (fl.PeerError, fl.CryptoError):
            return False
        return norm_proof.holds(data[:at], seed, y, _bound(self.party), _context(client, upload, coin))
