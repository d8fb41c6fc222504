"""The emulated twins under the names that their modules have, so that a test runs on a scheme or on its twin alike."""

from __future__ import annotations

from functools import partial
from typing import Any

from coterie.crypto import ckks, paillier


class Twin:
    """As a front module whose keys are emulated."""

    def __init__(self, front: Any) -> None:
        self._front = front
        self.keygen = partial(front.keygen, emulated=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._front, name)


exact, rounded = Twin(paillier), Twin(ckks)


class Pads:
    """As the module of Paillier's front, whose keys are those of padded vectors."""

    def __init__(self, *, emulated: bool = False) -> None:
        self._emulated = emulated

    def keygen(self, size: int = 0, lanes: Any = None, *, allow_insecure: bool = False) -> paillier.SecretKey:
        """size: has no meaning for these."""
        return paillier.pads_keygen(lanes, emulated=self._emulated)


pads, plain = Pads(), Pads(emulated=True)


def of_integers(key: paillier.SecretKey, integers: Any) -> paillier.CipherVector:
    """The encryption of values that are these integers in steps."""
    return key.public.encrypt(key.layout.lanes.dequantise(integers))
