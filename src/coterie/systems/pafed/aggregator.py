"""PAFed's server S_0, the hub and coordinator: algorithms 3, 4 and 5, on ciphertexts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, ClassVar

import numpy as np

import coterie.method as fl
from coterie.crypto.ckks import PublicKey, SecretKey
from coterie.crypto.tally import PLAIN
from coterie.protocols.committee import switch
from coterie.protocols.key_centre import Keys
from coterie.protocols.late import Gathering
from coterie.systems.pafed import messages
from coterie.systems.pafed.classification import REFRESHING
from coterie.systems.pafed.config import Laid
from coterie.systems.pafed.correction import averaged, correct
from coterie.systems.pafed.inbox import Inbox, PaddedInbox
from coterie.systems.pafed.messages import HELPER, HUB, MODEL_TERMS, SERVICE, USER, wide


class Tried(fl.State, frozen=True):
    """A model that was sent out, and that no client is known to have opened yet."""

    round: int
    model: bytes


class Aggregator(Laid, role=HUB):
    keys = Keys(PublicKey, SecretKey)

    class State(fl.State):
        """model: [w] under pk_s, empty while it is w^0.  good: the last model that a client has opened, as sent.
        tried: the first model sent after ``good``.  owed: by client, the rounds not answered yet.
        """

        model: bytes = b""
        good: bytes = b""
        tried: Tried | None = None
        owed: dict[str, tuple[int, ...]] = fl.field(default_factory=dict)
        round: int = 0

    state: State  # masks live for one round only
    update: ClassVar[type[Any]] = messages.Update  # the message with a client's update
    inbox: ClassVar[type[Inbox]] = Inbox
    takes: ClassVar[tuple[type[fl.Message], ...]] = (messages.Update,)

    def round(self, r: int) -> fl.Steps[Mapping[str, Any]]:
        """Algorithm 3, lines 4 to 14. Without the helper's answers, or with an unusable update, a round and its
        updates are lost.
        """
        self.state.round = r
        gathering = Gathering(self, r, self.state.owed, self.config.max_staleness)
        skipped: dict[str, Any] = {}
        with closing(fl.Spool()) as spool:
            try:
                yield from self._round(r, gathering, spool)
            except (fl.NoAnswerError, fl.PeerError) as error:
                lost = {"lost_updates": gathering.used.total(), "participants": 0, "staleness": []}
                skipped = {"skipped": str(error), **lost}
        return {**gathering.notes(), "server_step": self.config.server_step(r), **skipped}

    def _round(self, r: int, gathering: Gathering, spool: fl.Spool) -> fl.Steps[None]:
        config, layout, service, used = self.config, self.layout, self.keys.public(SERVICE), gathering.used
        fresh, requests = yield from self._requests(r, gathering.asked, spool)
        inbox = self.inbox(spool, layout, service)
        lengths: list[float] = []
        newest = None

        def fold(name: str, update: Any) -> None:
            nonlocal newest
            self._verify(name, update)
            vector = inbox.read(update)
            staleness = gathering.settle(name, update.round)
            newest = max(newest or 0, update.round)
            if staleness is None:
                return
            inbox.take(name, update, vector, late=staleness > 0)
            lengths.append(update.length)
            used[staleness] += 1

        answers = yield from gathering.gather(requests, self.update, fold)
        self._judge(r, len(requests), answers, newest)
        if not used:
            raise fl.NoAnswerError("no update came")
        yield from inbox.close(r)
        total, late = inbox.total, inbox.late
        rates = config.rates(r).scaled(float(np.mean(lengths)))
        head, buffers = (None, None) if total is None else layout.split(total)
        step = yield from correct(self, r, head, used[0], late, rates)
        if layout.has_buffers:
            buffers = averaged(buffers, late, used.total()).within(MODEL_TERMS)
        if fresh:
            w, _ = layout.split(service.from_bytes(fresh, layout.size))
            model = step + w
        else:
            model = step.add_plain(layout.packed(self.common.initial)[: layout.parameters])
        # weights stay small however many steps are summed up
        self.state.model = layout.joined(model.within(MODEL_TERMS), buffers).to_bytes()

    @property
    def finishes(self) -> bool:
        return self.common.deployed

    def finish(self) -> fl.Steps[None]:
        """The last model, under each client's key."""
        if not self.common.deployed or not self.state.model:
            return
        r = self.state.round + 1
        with closing(fl.Spool()) as spool, suppress(fl.NoAnswerError):
            _, tickets = yield from self._transformed(r, self.clients, spool)

            def final(name: str) -> messages.Final:
                return fl.signed(self.own, messages.Final(r, self.spec.digest, spool.take(tickets[name])), name)

            yield from fl.post(fl.LazyMapping(tuple(tickets), final, held=0))

    def _judge(self, r: int, asked: int, answers: fl.Answers, newest: int | None) -> None:
        """Whether clients could open the model. newest: the last round from which an update came."""
        state = self.state
        if 2 * len(answers.declined) > asked:
            state.model, state.tried = state.good, None
            why = answers.missing[answers.declined[0]]
            again = "the last model that clients have opened is taken up again"
            raise fl.NoAnswerError(f"most of those asked {why}; {again}")
        if newest == r:
            state.good, state.tried = state.model, None
        elif state.tried is None or (newest or 0) >= state.tried.round:
            state.good = state.good if state.tried is None else state.tried.model
            state.tried = Tried(r, state.model)

    def _requests(self, r: int, asked: Sequence[str], spool: fl.Spool) -> fl.Steps[tuple[bytes, Mapping[str, Any]]]:
        def train(name: str, weights: fl.Vector | None, cipher: bytes) -> messages.Train:
            return fl.signed(self.own, messages.Train(r, self.spec.digest, weights, cipher), name)

        if not self.state.model:
            return b"", {name: train(name, self.common.initial, b"") for name in asked}
        fresh, tickets = yield from self._transformed(r, asked, spool)
        return fresh, fl.LazyMapping(tuple(tickets), lambda name: train(name, None, spool.take(tickets[name])), held=0)

    def _transformed(self, r: int, asked: Sequence[str], spool: fl.Spool) -> fl.Steps[tuple[bytes, dict[str, int]]]:
        """Algorithm 5: [w] under pk_s to go on from, and by client of this round where ``spool`` holds [w] under
        pk_i.
        """
        # The helper opens w + r. The mask r is uniform over the ciphertexts' ring. In mode literal it is of numbers in
        # +-mask_bound, every client's copy is made (lines 8 and 14), and none under pk_s.
        service: Any = self.keys.public(SERVICE)
        size, literal = self.layout.size, self.literal
        model, source = service.from_bytes(self.state.model, size), self.secrets("mask", r)
        if literal:
            mask = self.config.mask_bound * (np.frombuffer(source.bytes(8 * size), "<u8") / 2.0**63 - 1.0)
            blinded = (model + wide(service, mask)).within(MODEL_TERMS)  # l. 3 and 4
        else:
            mask = service.mask(size, source.bytes)
            blinded = model.blind(mask)
        yield from fl.spend(fl.Cost(crypto_s=service.nominal_seconds_encrypt(size)))
        (blinded,) = yield from self.for_helper(r, REFRESHING, [blinded])

        tickets: dict[str, int] = {}
        fresh = b""

        def unmasked(key: Any, reply: messages.Refreshed | messages.Converted, name: str = "") -> bytes:
            if (reply.round, getattr(reply, "client", "")) != (r, name):
                raise fl.PeerError(f"{HELPER} answers {name or 'for itself'} in round {r} with {reply!r:.80}")
            if literal and not name:
                return self.state.model  # the text has nothing come back
            masked = key.from_bytes(reply.cipher, size, terms=MODEL_TERMS, blinded=0 if literal else 1, form=PLAIN)
            w = (masked + wide(key, -mask)).within(MODEL_TERMS) if literal else masked.unblind(mask, 1)  # l. 15 and 16
            return bytes(w.to_bytes())

        def keep(name: str, reply: Any) -> None:
            nonlocal fresh
            cipher = unmasked(self.keys.public(f"{USER} {name}" if name else SERVICE), reply, name)
            if not name:
                fresh = cipher
            elif name in asked:
                tickets[name] = spool.put(cipher)

        requests = {"": fl.To(HELPER, messages.Refresh(r, blinded.to_bytes()))}
        requests |= {name: fl.To(HELPER, messages.Convert(r, name)) for name in (self.clients if literal else asked)}
        kinds = messages.Refreshed, messages.Converted
        answers = yield from fl.for_each(requests, kinds, keep)  # at once: the helper keeps the order
        for name, why in answers.missing.items():
            raise fl.NoAnswerError(f"{HELPER} did not answer {'Convert' if name else 'Refresh'}: {why}")
        return fresh, {name: tickets[name] for name in asked}

    def for_helper(self, r: int, number: int, ciphers: list[Any]) -> fl.Steps[list[Any]]:
        """With keys=threshold, switched to the helper's key by a committee.

        number: of the request in round r; it grows. Raises NoAnswerError if too few members help.
        """
        if self.config.keys == "threshold":
            ciphers = yield from switch(self, SERVICE, r, number, ciphers)
        return ciphers

    def _verify(self, name: str, update: messages.Update | messages.PaddedUpdate) -> None:
        fl.check_signed(self.common, name, update)
        if update.spec != self.spec.digest:
            raise fl.PeerError(f"{name}: an update to a model of another shape")
        allowed = 0 <= update.length <= self.config.clip if self.config.clip else update.length == 1
        if not allowed:
            raise fl.PeerError(f"{name}: an update that was {update.length} long; clip is {self.config.clip}")


class PaddedAggregator(Aggregator, role=HUB):
    update, inbox = messages.PaddedUpdate, PaddedInbox
    takes = (messages.PaddedUpdate,)
