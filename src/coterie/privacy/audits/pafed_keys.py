"""What PAFed's keys open, for an observer with all views."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.crypto.keys import public_key
from coterie.crypto.pads import Padded, completed, counterpart
from coterie.crypto.split_key import CommitteeShare, joined
from coterie.privacy.audits import View
from coterie.privacy.views import granted, held_key
from coterie.protocols.pads import PADS, Ratchet, dealt_pads, pad_key
from coterie.systems.pafed import messages
from coterie.systems.pafed.messages import CLIENT, HELPER, HUB, SERVICE

Doubles = NDArray[np.float64]
UPDATES = messages.Update, messages.PaddedUpdate


def opener(views: Mapping[str, View]) -> Callable[[str, Any], Doubles]:
    """Opens a client's update, (d,) as encrypted, with the helper's grant and the committee's shares. Raises
    CoterieError.
    """
    keys, key = granted(views[HELPER]), whole_key(views)
    ratchets = dealt_pads(keys[f"secret {PADS}"]) if f"secret {PADS}" in keys else {}

    def read(name: str, message: Any) -> Doubles:
        if isinstance(message, messages.Update):
            return opened(key, message.cipher)
        pad = pad_key(key.public, Ratchet(ratchets[name]).take(message.round), message.nonce)
        padded = Padded.from_bytes(key.public, message.padded)
        return np.asarray(key.decrypt(completed(padded, counterpart(key, [pad.key], padded.length))))

    return read


def opened(key: Any, cipher: bytes) -> Doubles:
    return np.asarray(key.decrypt(key.public.from_bytes(cipher)))


def whole_key(views: Mapping[str, View]) -> Any:
    """sk_s, from all holders of its parts. Raises UserError where recording began too late."""
    key = held_key(views[HELPER], SERVICE)
    held = (granted(view).get(f"secret {SERVICE}") for view in views.values() if view.role == CLIENT)
    shares = [CommitteeShare.load(share) for share in held if share is not None]
    if not shares:
        return key
    public: Any = public_key(granted(views[HUB])[f"public {SERVICE}"])
    return joined(public, key, shares)
