"""The audit of a method whose clients seal vectors for ``protocols.sums.Sums``."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from coterie.privacy.attacks.joint_key import stolen_joint_key
from coterie.privacy.audits import Audit, Measured, attack
from coterie.privacy.measures import profiles
from coterie.privacy.views import by_round, held_key
from coterie.protocol.messages import Message
from coterie.protocols.sums import SERVER, Sums


def sums_audit(sums: Sums, kind: type[Message], field: str) -> Audit:
    """With any client's key at a server, and by a client's forged vector.

    kind, field: of the message, with a ``round``, that carries the sealed vector.
    """
    who = "server with any client's key"

    @attack("shared-key", who, "labels")
    def passive(run: Any) -> Any:
        """Opens updates, and reads label shares off them."""
        if run.settings.keys == "threshold":
            return  # nobody has a key that opens what the server holds
        if run.settings.noisy:
            why = "vectors are changes with noise, in coordinates that are rotated anew in every round: not tried"
            yield Measured(who, "label shares", None, why=why, topic="labels")
            return
        key = held_key(run.views[run.clients[0]], sums.name)
        for sent in by_round(run.views[SERVER], kind).values():
            if len(sent) > 1:
                sealed = [getattr(one, field) for one in sent.values()]
                models = np.stack([key.decrypt(key.public.from_bytes(data)) for data in sealed])
                yield from profiles(who, models, run.label_counts[run.numbers(sent)], run.spec)

    return Audit(passive, partial(stolen_joint_key, name=sums.name), (passive,))
