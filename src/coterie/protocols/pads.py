"""One-time pads between clients and a helper, so that no client chooses the c_1 of a ciphertext (``crypto/pads.py``).

    key_centre  - - Granted: k_i - ->  client i            k_i of all clients - ->  keeper          before round 1
    client  --(round, nonce, y, signature)-->  hub         y = encode(u) + pad
    hub  --Unpad (whose vectors of which rounds, nonces)-->  keeper  --Unpadded (p and the seed of a)-->  hub

The keeper holds the key that sums open with, and learns whose vectors are in each. A pad follows from k_i, a ratchet by
round, and a fresh nonce. The keeper answers once for a round's key, in each attempt, then erases it.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

import coterie.protocol.core as fl
from coterie.crypto.ckks import CipherVector, PublicKey, SecretKey
from coterie.crypto.pads import Counterpart, Padded, PadKey, completed, counterpart
from coterie.crypto.signing import digest
from coterie.protocols.key_centre import DealtKeys, Draw, Grant, Granted, OfGrants

PADS = "pads"
NONCE_BYTES = 16
KEY_BYTES = 32
PAD_SHARE = 0.5
"""Its nominal time, over an encryption under the secret key."""
MOST_AHEAD = 1 << 20
"""Steps of a ratchet for one message."""


class Unpad(fl.FromHub, frozen=True):
    """names: whose vectors to sum up, one a line.  rounds: (n,) of which rounds.  nonces: 16 bytes of each."""

    names: str
    rounds: fl.Integers
    nonces: bytes


class Unpadded(fl.OfRound, frozen=True):
    part: bytes


@dataclass(frozen=True)
class Pads(Grant):
    """The ratchets' first keys: k_i of 32 bytes for each party of the role, all for the keeper."""

    keeper: str

    def deal(self, holders: Sequence[str], draw: Draw, *, emulated: bool) -> DealtKeys:
        keys = {name: draw(f"{self.name} of {name}").bytes(KEY_BYTES) for name in holders}
        everything = fl.bundle(["\n".join(keys).encode(), *keys.values()])
        return DealtKeys({**keys, self.keeper: everything})


class Ratchet(fl.SecretStruct):
    """SECRET: a round's key, from which all later ones follow and no earlier one does."""

    key: bytes  # of ``round``
    round: int = 0
    kept: dict[int, bytes] = fl.field(default_factory=dict)  # unused keys of earlier rounds

    def take(self, r: int) -> bytes:
        """The key of round r, which is erased. Raises PeerError the second time."""
        self._reach(r + 1)
        if r not in self.kept:
            raise fl.PeerError(f"the pad of round {r} was used before, or is too old")
        return self.kept.pop(r)

    def forget(self, before: int) -> None:
        self._reach(before)
        self.kept = {r: key for r, key in self.kept.items() if r >= before}

    def _reach(self, r: int) -> None:
        if r - self.round > MOST_AHEAD:
            raise fl.PeerError(f"a pad of round {r} is wanted, {r - self.round} rounds ahead")
        while self.round < r:
            self.kept[self.round] = self.key
            self.key, self.round = _derived(self.key, b"next round"), self.round + 1


def _derived(key: bytes, use: bytes) -> bytes:
    return hmac.digest(key, use, "sha256")


def pad_key(public: PublicKey, key: bytes, nonce: bytes) -> PadKey:
    """SECRET: for the vector with this nonce. key: ``Ratchet.take``."""
    return PadKey(public, _derived(key, digest("coterie/pad/1", public.fingerprint, nonce)))


class PadKeys(fl.State):
    ratchets: dict[str, Ratchet] = fl.field(default_factory=dict)


class ClientPads(OfGrants):
    secret: PadKeys

    def granted(self, msg: Granted) -> None:
        if (key := self.party.keys.secret.secret.pop(PADS, None)) is not None:
            self.secret.ratchets = {self.party.name: Ratchet(key)}

    def take(self, public: PublicKey, r: int) -> tuple[bytes, PadKey]:
        """A fresh nonce and the key of this round's one vector; earlier keys are erased. Raises PeerError before the
        grant, and for a used pad.
        """
        party, ratchet = self.party, self.secret.ratchets.get(self.party.name)
        if ratchet is None:
            raise fl.PeerError(f"not provided with keys yet: {party.name} has no {PADS}")
        nonce = party.secrets("nonce of a pad", r).bytes(NONCE_BYTES)
        key = pad_key(public, ratchet.take(r), nonce)
        ratchet.forget(r + 1)
        return nonce, key


class KeeperPads(OfGrants):
    """At the holder of the key that sums open with."""

    secret: PadKeys

    def padded_for(self) -> tuple[SecretKey, int, int]:
        raise NotImplementedError

    def granted(self, msg: Granted) -> None:
        if (held := self.party.keys.secret.secret.pop(PADS, None)) is not None:
            self.secret.ratchets = {name: Ratchet(key) for name, key in dealt_pads(held).items()}

    def unpad_cost(self, msg: Unpad) -> fl.Cost:
        key, length, _ = self.padded_for()
        one = key.nominal_seconds_encrypt(length)
        return fl.Cost(crypto_s=one * (1 + PAD_SHARE * min(len(msg.rounds), len(self.party.clients))))

    @fl.on(Unpad, unpad_cost, answers=Unpadded)
    def unpad(self, msg: Unpad, src: str) -> Unpadded:
        """The counterpart of the sum of these vectors.

        Raises PeerError for a vector that it has answered for before.
        """
        key, length, oldest = self.padded_for()
        for ratchet in self.secret.ratchets.values():
            ratchet.forget(msg.round - oldest)
        pads = [self._pad(key, *entry) for entry in entries(msg)]
        source = self.party.secrets(f"counterpart for {msg.nonces[:NONCE_BYTES].hex()}", msg.round)
        return Unpadded(msg.round, counterpart(key, pads, length, source.bytes).to_bytes())

    def _pad(self, key: SecretKey, name: str, r: int, nonce: bytes) -> bytes:
        if name not in self.secret.ratchets:
            raise fl.PeerError(f"{name!r} has no pads")
        return pad_key(key.public, self.secret.ratchets[name].take(r), nonce).key


def dealt_pads(held: bytes) -> dict[str, bytes]:
    count = int.from_bytes(held[:4], "little")
    names, *keys = fl.unbundle(held, count)
    return dict(zip(names.decode().split("\n"), keys, strict=True))


def entries(msg: Unpad) -> Iterator[tuple[str, int, bytes]]:
    """(name, round, nonce) of each vector. Raises PeerError for impossible ones."""
    names, rounds = msg.names.split("\n"), [int(r) for r in msg.rounds]
    if not len(names) == len(rounds) == len(msg.nonces) / NONCE_BYTES:
        raise fl.PeerError(f"{len(names)} names, {len(rounds)} rounds and {len(msg.nonces)} bytes of nonces")
    if not all(0 < r <= msg.round for r in rounds):
        raise fl.PeerError(f"asked in round {msg.round} for pads of rounds {min(rounds)} to {max(rounds)}")
    for at, (name, r) in enumerate(zip(names, rounds, strict=True)):
        yield name, r, msg.nonces[at * NONCE_BYTES : (at + 1) * NONCE_BYTES]


@dataclass(eq=False)
class Collected:
    held: Sequence[tuple[str, int, bytes]]
    load: Callable[[], Padded]

    def request(self, r: int) -> Unpad:
        names, rounds, nonces = zip(*self.held, strict=True)
        return Unpad(r, "\n".join(names), np.array(rounds, np.int64), b"".join(nonces))


def complete(
    r: int, keeper: str, public: PublicKey, sums: Mapping[int, Collected], use: Callable[[int, CipherVector], None]
) -> fl.Steps[None]:
    """Ask the keeper for every sum's counterpart. ``use(key, ciphertext)`` takes the sums in turn.

    Raises NoAnswerError if one has no acceptable answer.
    """

    def fold(key: int, reply: Unpadded) -> None:
        padded = sums[key].load()
        use(key, completed(padded, Counterpart.from_bytes(public, reply.part, padded.length)))

    requests = {key: fl.To(keeper, collected.request(r)) for key, collected in sums.items()}
    answers = yield from fl.for_each(requests, Unpadded, fold)
    for why in answers.missing.values():
        raise fl.NoAnswerError(f"{keeper} did not answer Unpad: {why}")
