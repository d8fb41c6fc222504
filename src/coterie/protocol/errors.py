"""The one family of exceptions. A message says what was wrong, where, and what to do about it.

Our own faults, a caller's mistakes and a peer's misdeeds are kept apart, because they end differently:

- ``UserError``   the caller's mistake (option, data, configuration): exit code 2
- ``RunError``    the run cannot go on (too few parties, full disk, ...): exit code 1
- ``PeerError``   what another party sent cannot be accepted: refused, counted, and the round goes on without it
- ``CryptoError`` misuse of keys or ciphertexts by our own code: a bug or a wrong configuration, never ignored
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CoterieError(Exception):
    """Base of everything that Coterie raises on purpose."""


class UserError(CoterieError):
    """A mistake of the caller: says which option or file, what is wrong with it and what would be right."""


class RunError(CoterieError):
    """The run cannot continue; says at which step, and what to change."""


class PeerError(CoterieError):
    """A message of another party that cannot be accepted.

    The text is for the observer, and may hold the party's own numbers: no other party is told it.
    """


class DecodeError(PeerError):
    """Bytes that are not a valid message: the only error that decoding raises, whatever the bytes."""


class CryptoError(CoterieError):
    """Keys or ciphertexts used in a way that would give a wrong or an unsafe result."""


class KeyMismatchError(CryptoError):
    """Two objects of different keys were combined, or a ciphertext was opened with another key."""


class CapacityError(CryptoError):
    """A value or a sum would not fit its lane, level or modulus."""


def suggest(word: str, known: Iterable[str]) -> str:
    """The end of a sentence: ``"; did you mean 'lr'?"``, or ``"."`` when no known word is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else "."
