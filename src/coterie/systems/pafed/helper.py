"""PAFed's second server S_1, the helper, which holds sk_s and sees masked numbers only."""

from __future__ import annotations

import numpy as np

import coterie.method as fl
from coterie.crypto.ckks import PublicKey, SecretKey
from coterie.crypto.vector import StoredVector
from coterie.protocols.key_centre import HeldKeys
from coterie.protocols.pads import KeeperPads, Unpad, Unpadded
from coterie.systems.pafed import messages
from coterie.systems.pafed.config import Laid, compares, corrects
from coterie.systems.pafed.messages import HELPER, LARGEST, SERVICE, USER, wide


class Helper(Laid, role=HELPER):
    keys = HeldKeys(PublicKey, SecretKey)

    class State(fl.State):
        """w + r of ``round``, opened. numbers: (d,), in mode ``literal``, whose masks are numbers; else blinded.
        compared, inverted: the last rounds of opened cosines, and sums.  unpadded: the last round of an ``Unpad``, and
        for how many single vectors (mode ``hardened``).
        """

        round: int = 0
        compared: int = 0
        inverted: int = 0
        unpadded: tuple[int, int] = (0, 0)
        blinded: StoredVector | None = None
        numbers: fl.Doubles | None = None

    state: State

    def opened(self, model: bytes, key: SecretKey | None = None) -> fl.Vector:
        """(d,) float32: a model under pk_s, opened for the observer. Raises PeerError.

        key: sk_s, if the helper alone does not hold it.
        """
        key = key or self.keys.own(SERVICE)
        return self.layout.unpacked(key.decrypt(key.public.from_bytes(model)).astype(np.float32))

    def sealing(self) -> PublicKey | SecretKey:
        # with keys=threshold its own key opens only what was switched to it
        return self.keys.public(SERVICE) if self.config.keys == "threshold" else self.keys.own(SERVICE)

    def late(self, r: int) -> int:
        return self.config.most_late(len(self.clients))

    def most_scalars(self, msg: messages.Compare | messages.Invert) -> int:
        """Cosines of late updates with dummies, or sums with decoys."""
        config = self.config
        return config.most_cosines(self.late(msg.round)) if isinstance(msg, messages.Compare) else config.most_sums

    def _opened(self, msg: messages.Compare | messages.Invert, last: int, count: int) -> tuple[list[float], int]:
        if msg.round <= last:
            raise fl.PeerError(f"a second {type(msg).__name__} of round {msg.round}, or one after round {last}")
        most = self.most_scalars(msg)
        if not 1 <= count <= most:
            raise fl.PeerError(f"{count} scalars to open, where this round has {most} at most")
        key = self.keys.own(SERVICE)
        ciphers = [key.public.from_bytes(part, 1, blinded=0) for part in fl.unbundle(msg.ciphers, count)]
        if not all(cipher.tally.form.scalar for cipher in ciphers):
            raise fl.PeerError("asked to open something other than scalars: a vector would show weights")
        return [float(key.decrypt(cipher)[0]) for cipher in ciphers], max(cipher.terms for cipher in ciphers)

    def _sealed(self, values: list[float], at_most: int) -> bytes:
        key = self.sealing()
        return fl.bundle([key.encrypt_scalar(value, at_most).to_bytes() for value in values])

    def _scalar_cost(self, msg: messages.Compare | messages.Invert, opened: int, sealed: int) -> fl.Cost:
        key = self.keys.own(SERVICE)
        open_s, seal_s = key.nominal_seconds_decrypt(1), key.nominal_seconds_encrypt(1)
        return (
            fl.Cost(crypto_s=opened * open_s + sealed * seal_s) if 0 < opened <= self.most_scalars(msg) else fl.Cost()
        )

    def compare_cost(self, msg: messages.Compare) -> fl.Cost:
        return self._scalar_cost(msg, msg.count, msg.count)

    @fl.on(messages.Compare, compare_cost, answers=messages.Compared, when=compares)
    def compare(self, msg: messages.Compare, src: str) -> messages.Compared:
        """Eq. (13) without Min. Once a round."""
        values, at_most = self._opened(msg, self.state.compared, msg.count)
        self.state.compared = msg.round
        return messages.Compared(msg.round, self._sealed([max(x, 0.0) for x in values], at_most))

    def invert_cost(self, msg: messages.Invert) -> fl.Cost:
        return self._scalar_cost(msg, 4 * msg.count, 3 * msg.count)

    @fl.on(messages.Invert, invert_cost, answers=messages.Inverted, when=corrects)
    def invert(self, msg: messages.Invert, src: str) -> messages.Inverted:
        """Once a round."""
        sums, _ = self._opened(msg, self.state.inverted, 4 * msg.count)
        self.state.inverted = msg.round
        inverted = [x for at in range(0, len(sums), 4) for x in inverses(*sums[at : at + 4])]
        return messages.Inverted(msg.round, self._sealed(inverted, LARGEST))

    def refresh_cost(self, msg: messages.Refresh) -> fl.Cost:
        key, d = self.keys.own(SERVICE), self.layout.size
        sealed_s = 0.0 if self.literal else key.nominal_seconds_encrypt(d)
        return fl.Cost(crypto_s=key.nominal_seconds_decrypt(d) + sealed_s)

    @fl.on(messages.Refresh, refresh_cost, answers=messages.Refreshed)
    def refresh(self, msg: messages.Refresh, src: str) -> messages.Refreshed:
        """Once a round.

        Mode ``literal`` opens real numbers, and returns an empty answer.
        """
        if msg.round <= self.state.round:
            raise fl.PeerError(f"asked to open a vector of round {msg.round} after one of round {self.state.round}")
        key = self.keys.own(SERVICE)
        cipher = key.public.from_bytes(msg.cipher, self.layout.size, blinded=0 if self.literal else 1)
        if self.literal:
            self.state.round, self.state.numbers = msg.round, key.decrypt(cipher)
            return messages.Refreshed(msg.round, b"")
        blinded = key.open_blinded(cipher)
        self.state.round, self.state.blinded = msg.round, blinded.stored()
        return messages.Refreshed(msg.round, self.sealing().public.encrypt_blinded(blinded).to_bytes())

    def convert_cost(self, msg: messages.Convert) -> fl.Cost:
        return fl.Cost(crypto_s=self.keys.own(SERVICE).nominal_seconds_encrypt(self.layout.size))

    @fl.on(messages.Convert, convert_cost, answers=messages.Converted)
    def convert(self, msg: messages.Convert, src: str) -> messages.Converted:
        state = self.state
        if state.round != msg.round or msg.client not in self.clients:
            raise fl.PeerError(f"nothing to convert for {msg.client} in round {msg.round}")
        own = self.keys.public(f"{USER} {msg.client}")
        if state.numbers is not None:
            sealed = wide(own, state.numbers)
        elif state.blinded is not None:
            sealed = own.encrypt_blinded(self.keys.own(SERVICE).public.blinded(state.blinded))
        return messages.Converted(msg.round, msg.client, sealed.to_bytes())


class HelperPads(KeeperPads):
    def padded_for(self) -> tuple[SecretKey, int, int]:
        return self.party.keys.own(SERVICE), self.party.layout.size, self.party.config.max_staleness

    @fl.on(Unpad, KeeperPads.unpad_cost, answers=Unpadded)
    def unpad(self, msg: Unpad, src: str) -> Unpadded:
        answer: Unpadded = super().unpad(msg, src)
        self.party.state.unpadded = msg.round, self.party.late(msg.round) + (len(msg.rounds) == 1)
        return answer


class PaddedHelper(Helper, role=HELPER):
    pads = HelperPads()

    def late(self, r: int) -> int:
        last, count = self.state.unpadded
        return count if last == r else 0


def inverses(n1: float, n2: float, square: float, inner: float) -> tuple[float, float, float]:
    """1/n_1, 1/n_2 and inner / (n_2 square), all masked; 0 for a negligible class."""
    one = 1 / n1 if abs(n1) >= 1 / LARGEST else 0.0
    two = 1 / n2 if abs(n2) >= 1 / LARGEST else 0.0
    turn = inner * two / square if square >= 1 / LARGEST else LARGEST + 1
    if abs(turn) > LARGEST:
        two = turn = 0.0  # a class that can't be corrected so far is left out as a whole, since it would conflict
    return one, two, turn
