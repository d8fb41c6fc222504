"""PAFed's key transformation, algorithm 5, as the aggregator drives it: [w] under pk_s becomes [w] under pk_i.

The helper opens w + r and encrypts it under each client's key. The aggregator knows r and subtracts it from the
ciphertexts. What the helper learns of w depends on r alone:

- Mode ``paper``: r is uniform over the ciphertexts' ring. It hides w perfectly and is removed exactly. The helper also
  returns w + r freshly encrypted under pk_s, so that noise does not accumulate in the model.
- Mode ``literal``: r is a vector of numbers, as printed. The text does not say which, so they are uniform in
  +-``mask_bound``. Such a mask lets the helper distinguish models (``attacks/real_mask.py``). A copy is made for every
  client (lines 8 and 14), and noise accumulates.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from coterie.crypto.ckks import PublicKey, SecretKey
from coterie.crypto.tally import PLAIN
from coterie.protocol.errors import PeerError
from coterie.protocol.party import Cost, To
from coterie.protocol.spool import Spool
from coterie.protocol.steps import NoAnswerError, Steps, ask, for_each, spend
from coterie.protocols.key_centre import Keyed
from coterie.systems.pafed import messages
from coterie.systems.pafed.config import layout_of
from coterie.systems.pafed.messages import HELPER, MODEL_TERMS, SERVICE, USER, wide


def transformed(
    hub: Keyed[PublicKey, SecretKey], r: int, asked: Sequence[str], spool: Spool
) -> Steps[tuple[bytes, dict[str, int]]]:
    """[w] under pk_s to go on from, and by client of this round where ``spool`` holds [w] under its key."""
    service: Any = hub.public(SERVICE)
    size, literal = layout_of(hub.spec, hub.common.mode).size, hub.common.mode == "literal"
    model, source = service.from_bytes(hub.state.model, size), hub.secrets("mask", r)
    if literal:
        mask = hub.config.mask_bound * (np.frombuffer(source.bytes(8 * size), "<u8") / 2.0**63 - 1.0)
        blinded = (model + wide(service, mask)).within(MODEL_TERMS)  # l. 3 and 4
    else:
        mask = service.mask(size, source.bytes)
        blinded = model.blind(mask)
    yield from spend(Cost(crypto_s=service.nominal_seconds_encrypt(size)))

    def unmasked(key: Any, reply: messages.Refreshed | messages.Converted, name: str = "") -> bytes:
        if (reply.round, getattr(reply, "client", "")) != (r, name):
            raise PeerError(f"{HELPER} answers {name or 'for itself'} in round {r} with {reply!r:.80}")
        if literal and not name:
            return bytes(hub.state.model)  # the text has nothing come back
        masked = key.from_bytes(reply.cipher, size, terms=MODEL_TERMS, blinded=0 if literal else 1, form=PLAIN)
        w = (masked + wide(key, -mask)).within(MODEL_TERMS) if literal else masked.unblind(mask, 1)  # l. 15 and 16
        return bytes(w.to_bytes())

    refresh = messages.Refresh(r, blinded.to_bytes())
    fresh: bytes = yield from ask(HELPER, refresh, messages.Refreshed, partial(unmasked, service))
    tickets: dict[str, int] = {}

    def keep(name: str, reply: messages.Converted) -> None:
        cipher = unmasked(hub.public(f"{USER} {name}"), reply, name)
        if name in asked:
            tickets[name] = spool.put(cipher)

    names = hub.clients if literal else asked
    answers = yield from for_each(
        {name: To(HELPER, messages.Convert(r, name)) for name in names}, messages.Converted, keep
    )
    for why in answers.missing.values():
        raise NoAnswerError(f"{HELPER} did not answer Convert: {why}")
    return fresh, {name: tickets[name] for name in asked}
