"""Label counts of the clients that hold one model, summed under pads, for servers that know who holds which.

    hub  --WantCounts / CountsReady-->   client      who is there after the last round, and which model it holds
    hub  --AskForPadded / PaddedCounts-->  client    its label counts under pads of all clients on its list
    hub  --ModelCounts-->   client                   the sum over the lists of its model

Pads of every two clients of a list cancel (``crypto/marks.py``), so the hub learns the sums of lists of ``FEWEST``
clients or more, if all of a list answer, and nothing of one client, as long as two of its list keep their keys from it.
Over all runs on the same data a client tells its counts beside one list alone, so no two opened lists share a client.
docs/systems/baselines_appendix.md has the arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

import coterie.protocol.core as fl
from coterie.crypto.marks import pad
from coterie.crypto.signing import OpeningKey, SealingKey, digest
from coterie.protocols.local_training import MOST_SAMPLES, counts_labels, label_counts

FEWEST = 3
LONGEST = 64
"""A list with one that lies, or is lost, counts for nothing."""


@fl.message(src=fl.HUB)
class WantCounts(fl.Message, frozen=True):
    """Say that you are there, and which of the server's models you hold."""


@fl.message(tells=())
class CountsReady(fl.Message, frozen=True):
    """names: the list of its former counts, one name a line, or none."""

    model: int
    names: str


@fl.message(src=fl.HUB)
class AskForPadded(fl.Message, frozen=True):
    """Send your label counts under the pads of these clients, one name a line."""

    names: str


@fl.message(tells=("label counts, in a sum",))
class PaddedCounts(fl.Message, frozen=True):
    """words: of 64 bits, one for each label."""

    words: bytes


@fl.message(src=fl.HUB)
class ModelCounts(fl.Message, frozen=True):
    """counts: (labels,) of the training data of your model."""

    counts: fl.Integers


class CountsTold(fl.State):
    """SECRET."""

    names: str = ""  # the list that it was told
    sent: fl.Integers | None = None  # its counts then, in any attempt and run
    total: fl.Integers | None = None  # its model's


class CountsClient(fl.Component):
    """Its party has ``held_model``."""

    secret: CountsTold
    LASTS = ("names", "sent")

    def __init__(self) -> None:
        super().__init__(counts_labels)

    def follows(self, former: CountsTold) -> None:
        if former.names:
            self.secret.names, self.secret.sent = former.names, former.sent

    @fl.on(WantCounts, answers=CountsReady)
    def ready(self, msg: WantCounts, src: str) -> CountsReady:
        self._refuse()
        return CountsReady(self.party.held_model, self.secret.names)

    @fl.on(AskForPadded, answers=PaddedCounts)
    def tell(self, msg: AskForPadded, src: str) -> fl.Work[PaddedCounts]:
        """Its counts under its pads. Raises PeerError for a second list, and for an impossible one."""
        self._refuse()
        party, secret, names = self.party, self.secret, msg.names.split("\n")
        if not is_list(names) or not {party.name} <= set(names) <= set(party.clients):
            raise fl.PeerError(
                f"a list of {len(names)}: of {FEWEST} to {LONGEST} clients, with its own name, once each"
            )
        if secret.names not in ("", msg.names):
            raise fl.PeerError("its counts were told beside other clients: the difference would show some")
        labels = int(party.spec.outputs)
        if secret.sent is None:
            secret.sent, secret.names = (yield fl.Local(label_counts, (labels,))), msg.names
        assert secret.sent is not None
        roster, key = party.common.roster, OpeningKey.load(party.own.identity.opening)
        others = {name: SealingKey(roster.by_name[name].sealing_key) for name in names if name != party.name}
        padded = secret.sent.view(np.uint64) + pad(key, party.name, others, _use(party, msg.names), labels)
        return PaddedCounts(padded.astype("<u8").tobytes())

    @fl.on(ModelCounts)
    def take(self, msg: ModelCounts, src: str) -> None:
        self._refuse()
        counts, most = msg.counts, MOST_SAMPLES * len(self.party.clients)
        if self.secret.total is not None or not _possible(counts, int(self.party.spec.outputs), most):
            raise fl.PeerError(f"{len(counts)} counts of labels, which are impossible, or come again")
        self.secret.total = counts

    def _refuse(self) -> None:
        if not counts_labels(self.party.config, ""):
            raise fl.PeerError("label counts, which the settings do not ask for")


class CountsServer(fl.Component):
    def tell(self, models: Mapping[str, Any]) -> fl.Steps[dict[str, Any]]:
        """Sum up label counts, and tell them. Returns, as a note, of how many clients they are.

        models: by client, what the hub has for it; equal arrays and numbers are one model.
        """
        hub, waits, ready, before = self.party, self.party.config.deadline_s, dict[str, int](), dict[str, str]()

        def here(name: str, answer: CountsReady) -> None:
            if not 0 <= answer.model < hub.config.models:
                raise fl.PeerError(f"{name} holds model {answer.model} of {hub.config.models}")
            ready[name], before[name] = answer.model, answer.names

        yield from fl.for_each(dict.fromkeys(models, WantCounts()), CountsReady, here, deadline_s=waits)
        names_of, groups = dict[int, bytes](), dict[tuple[bytes, int], list[str]]()
        for name in (name for name in models if name in ready):
            array = models[name]
            if id(array) not in names_of:
                names_of[id(array)] = digest("coterie/counted model/1", np.ascontiguousarray(array).tobytes())
            groups.setdefault((names_of[id(array)], ready[name]), []).append(name)
        lists = {key: listed(group, before) for key, group in groups.items()}
        terms: dict[str, fl.Words64] = {}
        labels = int(hub.spec.outputs)

        def fold(name: str, answer: PaddedCounts) -> None:
            if len(answer.words) != 8 * labels:
                raise fl.PeerError(f"{name}: {len(answer.words)} bytes of counts of {labels} labels")
            terms[name] = np.frombuffer(answer.words, "<u8")

        every = [names for some in lists.values() for names in some]
        asked = {name: AskForPadded("\n".join(names)) for names in every for name in names}
        yield from fl.for_each(asked, PaddedCounts, fold, deadline_s=waits)
        counted = 0
        for key, group in groups.items():
            total = np.zeros(labels, np.int64)
            for names in lists[key]:
                if terms.keys() >= {*names}:
                    part = np.asarray(np.sum([terms[name] for name in names], axis=0, dtype=np.uint64)).view(np.int64)
                    if _possible(part, labels, MOST_SAMPLES * len(names)):  # else one of them has lied
                        total, counted = total + part, counted + len(names)
            if total.any():
                yield from fl.post(dict.fromkeys(group, ModelCounts(total)))
        return {"counted": counted}


def listed(group: Sequence[str], before: Mapping[str, str]) -> list[Sequence[str]]:
    """The lists of clients that hold one model: those of former runs that it has whole, and new ones of the others.

    before: by client, the list that it says it was told, or none. Clients of a list that is not whole are on none. One
    that names none is on the list that most of its clients name: the request did not reach it.
    """
    former = {told: told.split("\n") for told in dict.fromkeys(before[name] for name in group) if told}
    whole, taken = list[Sequence[str]](), set[str]()
    for told, names in former.items():
        stated = sum(before.get(name) == told for name in names)
        if is_list(names) and 2 * stated > len(names):
            taken |= {*names}
            if all(before.get(name) in (told, "") for name in names) and {*names} <= {*group}:
                whole.append(names)
    return [*whole, *divided([name for name in group if not before[name] and name not in taken])]


def is_list(names: Sequence[str]) -> bool:
    return FEWEST <= len(set(names)) == len(names) <= LONGEST


def divided(names: Sequence[str]) -> list[Sequence[str]]:
    if len(names) < FEWEST:
        return []
    parts = -(-len(names) // LONGEST)
    ends = [len(names) * at // parts for at in range(parts + 1)]
    return [names[start:end] for start, end in pairwise(ends)]


def _possible(counts: fl.Integers, labels: int, most: int) -> bool:
    return counts.shape == (labels,) and counts.min() >= 0 and counts.max() <= most and 0 < counts.sum() <= most


def _use(party: Any, names: str) -> bytes:
    return digest("coterie/padded counts/1", party.common.roster.session, names)
