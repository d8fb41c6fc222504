"""What travels over Flower: a call of the hub to a site, and the site's answer, each signed by the key in the roster.

A call has a fresh number, and the answer repeats it. So an answer proves that it comes from the party that it names,
now, and over the Flower node that was called. A node is given packets only after such a proof.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, TypeVar

import msgspec

from coterie.deploy.packets import Short
from coterie.protocol.errors import DecodeError, PeerError
from coterie.transport.envelope import Keyring

ID_BYTES = NONCE_BYTES = 16
T = TypeVar("T")
Bytes16 = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]


class Carried(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A packet on its way. id: the same whenever its sender pushes it again.  body: sealed and signed by its sender."""

    src: Short
    dst: Short
    id: Bytes16
    body: bytes


Ref = tuple[Short, Short, Bytes16]
"""Source, destination and identity of a packet."""


class Call(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The hub calls a node. to: the party that it has proven to be, or "" before.  stored: packets of it that the hub
    has stored.  wait_s: how long it may work before it answers.
    """

    nonce: Bytes16
    to: Short
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=3600)]
    stored: list[Ref]
    packets: list[Carried]


class Answer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A party answers. stored: packets of the call.  busy: it works still, or has more to send: call it again."""

    nonce: Bytes16
    name: Short
    stored: list[Ref]
    packets: list[Carried]
    busy: bool


class _Signed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    body: bytes
    signature: bytes


def identity(src: str, dst: str, key: str) -> bytes:
    """Of the packet that ``src`` pushes to ``dst`` under this key."""
    return hashlib.sha256(msgspec.msgpack.encode((src, dst, key))).digest()[:ID_BYTES]


def write(keyring: Keyring, name: str, node: int, words: Call | Answer) -> bytes:
    """The bytes of a call or of an answer, signed by ``name``. node: the Flower node that is called."""
    body = msgspec.msgpack.encode(words)
    return msgspec.msgpack.encode(_Signed(body, keyring.sign(name, *_signed(keyring, type(words), name, node, body))))


def read_call(keyring: Keyring, hub: str, node: int, data: bytes) -> Call:
    """A call of the hub to this node. Raises PeerError."""
    signed = _decode(data, _Signed)
    keyring.verify(hub, signed.signature, *_signed(keyring, Call, hub, node, signed.body))
    return _decode(signed.body, Call)


def read_answer(keyring: Keyring, node: int, nonce: bytes, data: bytes) -> Answer:
    """The answer of this node to the call with this number. Raises PeerError."""
    signed = _decode(data, _Signed)
    answer = _decode(signed.body, Answer)
    keyring.verify(answer.name, signed.signature, *_signed(keyring, Answer, answer.name, node, signed.body))
    if answer.nonce != nonce:
        raise PeerError(f"{answer.name} answers another call")
    return answer


def _signed(keyring: Keyring, kind: type, name: str, node: int, body: bytes) -> tuple[bytes, bytes]:
    header = msgspec.msgpack.encode((f"flower {kind.__name__}", keyring.session, name, node))
    return header, hashlib.sha256(body).digest()


def _decode(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DecodeError(f"{len(data)} bytes are no {kind.__name__.strip('_').lower()} of Flower's: {error}") from None
