"""All exceptions of Coterie. A message says what was wrong, where, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CoterieError(Exception):
    """Base of everything that Coterie raises on purpose."""


class UserError(CoterieError):
    """A mistake of the caller (option, data, configuration): exit code 2. It says what, where and what to do.

    >>> try:
    ...     coterie.run("fedavg", data="mnst")
    ... except coterie.UserError as error:
    ...     print(error)
    """


class RunError(CoterieError):
    """The run cannot go on (too few parties, full disk, ...): exit code 1."""


class PeerError(CoterieError):
    """A message of another party that cannot be accepted. It is refused and counted, and the round goes on.

    The text is for the observer alone. It may contain the party's own numbers, so it is never sent to another party.
    """


class DecodeError(PeerError):
    """The bytes are no valid message. Decoding raises no other error, whatever the bytes."""


class CryptoError(CoterieError):
    """Our own code uses keys or ciphertexts in a way that would give a wrong or an unsafe result. Never ignored."""


class KeyMismatchError(CryptoError):
    """Two objects of different keys were combined, or a ciphertext was opened with another key."""


class CapacityError(CryptoError):
    """A value or a sum would not fit its lane, level or modulus."""


def suggest(word: str, known: Iterable[str]) -> str:
    """The end of an error's sentence: ``"; did you mean 'lr'?"``, or ``"."`` if no known word is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else "."
