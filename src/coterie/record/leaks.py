"""Finds secrets in files, in any form."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from coterie.record.files import opened

_CHUNK = 1 << 24
_WORD = 8
PEM = b"PRIVATE KEY-----"


class Patterns:
    """Looks for all in one pass.  secrets: by description, 32 bytes or more.  more: other texts by name."""

    def __init__(self, secrets: Mapping[str, bytes], more: Mapping[str, bytes]) -> None:
        found = [(needle, name) for name, secret in secrets.items() for needle in forms(secret)]
        found += [(needle, name) for name, needle in more.items()]
        self._by_word: dict[bytes, list[tuple[bytes, str]]] = {}
        for needle, name in found:
            self._by_word.setdefault(needle[:_WORD], []).append((needle, name))
        self._words = np.array([int.from_bytes(word, "little") for word in self._by_word], np.uint64)
        self._begins = np.zeros(1 << 16, np.bool_)
        self._begins[self._words & np.uint64(0xFFFF)] = True
        self._longest = max((len(needle) for needle, _ in found), default=_WORD)

    def found_in(self, path: Path) -> set[str]:
        """The names of all that is in a file. Raises OSError unless it is a plain file."""
        names: set[str] = set()
        with opened(path, follow=False) as file:
            kept = b""
            while part := file.read(_CHUNK):
                data = kept + part
                names.update(self._names(data))
                kept = data[-self._longest :]
        return names

    def _names(self, data: bytes) -> Iterator[str]:
        if len(data) < _WORD or not len(self._words):
            return
        numbers = np.frombuffer(data, np.uint8)
        pairs = numbers[: 1 - _WORD].astype(np.uint16) | (numbers[1 : len(data) - _WORD + 2].astype(np.uint16) << 8)
        at = np.flatnonzero(self._begins[pairs])
        windows = np.lib.stride_tricks.sliding_window_view(numbers, _WORD)[at]
        words = np.ascontiguousarray(windows).view("<u8").ravel()
        for i in at[np.isin(words, self._words)].tolist():
            for needle, name in self._by_word[data[i : i + _WORD]]:
                if data.startswith(needle, i):
                    yield name


def forms(secret: bytes) -> set[bytes]:
    """How a secret may be written: raw, in hex, and in base64 (both alphabets) after 0, 1 or 2 other bytes."""
    found = {secret, secret.hex().encode(), secret.hex().upper().encode()}
    for before in range(3):
        text = base64.b64encode(bytes(before) + secret + bytes(2))
        own = text[-(-8 * before // 6) : 8 * (before + len(secret)) // 6]
        found |= {own, own.replace(b"+", b"-").replace(b"/", b"_")}
    return found
