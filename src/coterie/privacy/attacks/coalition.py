"""What a server opens together with some holders of shares of a key, by the shares that they hold.

Who: the server, which has every ciphertext, with holders that give it their shares. On: any ciphertext under the joint
key, such as one client's update. With as many holders as open a sum it opens everything, as the owner of the key would;
no protocol can refuse them. With fewer, what they have is independent of the key, and the rest has to be guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from os import urandom
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.crypto import residues, threshold
from coterie.crypto.arrays import CiphertextError
from coterie.crypto.ckks import CipherVector


def opened_together(
    group: threshold.Group, shares: Mapping[str, threshold.Share], cipher: CipherVector
) -> NDArray[np.float64] | None:
    """The ``(d,)`` values, or None if these shares open to nonsense. Too few are made up with guesses.

    shares: by holder. Of more than needed, the first are used.
    """
    among = [name for name in group.holders if name in shares][: group.needed]
    among += [name for name in group.holders if name not in among][: group.needed - len(among)]
    prepared = threshold.server_dec(group, cipher)
    request = threshold.Request.load(group, prepared.request.to_bytes())
    answers = {}
    for name in among:
        share = shares[name] if name in shares else _guessed(group, next(iter(shares.values())))
        silent = threshold.Zero(name, {other: bytes(32) for other in among if other != name})
        answers[name], _ = threshold.partial(group, share, request, name, among, silent, threshold.Answered())
    try:
        return threshold.opened(group, prepared, answers)
    except CiphertextError:
        return None


def _guessed(group: threshold.Group, like: threshold.Share) -> threshold.Share:
    shape = 1, group.limbs, group.degree
    numbers: Any = residues.uniform(residues.secret_words(urandom(32)), shape, group.moduli(group.limbs))[0]
    return replace(like, numbers=numbers)
