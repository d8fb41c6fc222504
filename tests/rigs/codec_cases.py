"""Messages and hostile bytes for the tests of the codec.

As a script, ``codec_cases.py SEED COUNT``: decode the crafted bytes and COUNT mutations in an address space that has no
more than 128 MiB left, and write as JSON what the worst of them took.
"""

from __future__ import annotations

import json
import random
import resource
import struct
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np

from coterie.protocol import codec
from coterie.protocol.arrays import Bytes2D, Doubles, Flags2D, Floats, Integers
from coterie.protocol.errors import DecodeError
from coterie.protocol.messages import Message, message

LIMIT = 1 << 20


@message(src="a", dst="b")
class Everything(Message, frozen=True):
    """One field of each kind."""

    n: int
    x: float
    flag: bool
    text: str
    data: bytes
    w: Floats
    d: Doubles
    i: Integers
    b: Bytes2D
    f: Flags2D
    maybe_n: int | None = None
    maybe_x: float | None = None
    maybe_w: Floats | None = None


@message(src="a", dst="b")
class Small(Message, frozen=True):
    """A number and an array."""

    round: int
    w: Floats


@message(src="a", dst="b")
class Empty(Message, frozen=True):
    """Nothing."""


KINDS = (Everything, Small, Empty)

EXAMPLE = Everything(
    n=-5,
    x=0.25,
    flag=True,
    text="förändring",
    data=b"\x00\xff",
    w=np.array([1, -0.0, 3], np.float32),
    d=np.array([1e300], np.float64),
    i=np.array([-(2**63), 2**63 - 1], np.int64),
    b=np.arange(6, dtype=np.uint8).reshape(2, 3),
    f=np.array([[True, False]]),
    maybe_n=None,
    maybe_x=1.5,
    maybe_w=np.zeros(0, np.float32),
)


def large() -> bytes:
    """A valid frame of almost the limit."""
    return codec.encode(Small(1, np.arange((LIMIT - 64) // 4, dtype=np.float32)))


def array(dtype: int, shape: tuple[int, ...], data: bytes) -> msgspec.msgpack.Ext:
    """An array as the codec writes it, with any header."""
    return msgspec.msgpack.Ext(1, struct.pack(f"<BB{len(shape)}Q", dtype % 256, len(shape), *shape) + data)


def small(w: object) -> bytes:
    """A frame of ``Small`` with anything in the place of its array."""
    return msgspec.msgpack.encode(["Small", 1, w])


def crafted() -> Iterator[tuple[str, bytes]]:
    """What a person would try, by name."""
    pack, ext = msgspec.msgpack.encode, msgspec.msgpack.Ext
    head = b"\x93\xa5Small\x01"
    for name, depth_byte in (("arrays", b"\x91"), ("maps", b"\x81\x01"), ("wide arrays", b"\xdc\x00\x01")):
        yield f"deeply nested {name}", (depth_byte * LIMIT)[:LIMIT]
        yield f"deeply nested {name} in a field", (head + depth_byte * LIMIT)[:LIMIT]
    for width, code in ((2, b"\xdc"), (4, b"\xdd"), (2, b"\xde"), (4, b"\xdf")):
        for count in (2 ** (8 * width) - 1, 2 ** (8 * width - 1), 2**15):
            length = count.to_bytes(width, "big")
            yield f"{count} declared elements and none there", code + length
            yield f"{count} declared elements and a megabyte of ones", (code + length + b"\x01" * LIMIT)[:LIMIT]
            yield f"{count} declared elements in a field", head + code + length + bytes(100)
    for code, width in ((b"\xc4", 1), (b"\xc5", 2), (b"\xc6", 4), (b"\xd9", 1), (b"\xda", 2), (b"\xdb", 4)):
        yield f"{code.hex()} with all its length and no data", head + code + b"\xff" * width
    for code, width in ((b"\xc7", 1), (b"\xc8", 2), (b"\xc9", 4)):
        for kind in (b"\x01", b"\x02", b"\xff", b"\x00"):
            yield f"extension {code.hex()}{kind.hex()} without its data", head + code + b"\xff" * width + kind
    yield "a million small elements", (b"\xdd" + struct.pack(">I", LIMIT - 5) + bytes(LIMIT))[:LIMIT]
    yield "a million empty maps", (b"\xdd" + struct.pack(">I", LIMIT - 5) + b"\x80" * LIMIT)[:LIMIT]
    for name, element in (("ints", b"\x00"), ("empty maps", b"\x80"), ("empty arrays", b"\x90")):
        yield f"a million {name} in a field", head + b"\xdd" + struct.pack(">I", LIMIT - 20) + element * (LIMIT - 20)
    yield "a megabyte of nil", b"\xc0" * LIMIT
    yield "a never used byte", b"\xc1"
    yield "nothing", b""
    four = bytes(4)
    for shape in [(2**63,), (2**63, 2), (2**62, 4), (2**64 - 1,), (2**32, 2**32), (2**64 - 1, 2**64 - 1), (2**61, 8)]:
        yield f"shape {shape}", small(array(0, shape, four))
        yield f"shape {shape} and 0", small(array(0, (*shape, 0), b""))
    yield "no dimension", small(array(0, (), four))
    yield "two dimensions", small(array(0, (1, 1), four))
    yield "five dimensions", small(array(0, (1,) * 5, four))
    yield "255 dimensions", small(ext(1, b"\x00\xff" + bytes(2040)))
    yield "header too short", small(ext(1, b"\x00\x02" + bytes(8)))
    yield "empty header", small(ext(1, b""))
    for dtype in (1, 2, 3, 4, 5, 6, 127, 255):
        yield f"dtype {dtype}", small(array(dtype, (1,), bytes(8)))
    yield "one byte too many", small(array(0, (1,), bytes(5)))
    yield "one byte too few", small(array(0, (1,), bytes(3)))
    for value in (np.nan, np.inf, -np.inf):
        yield f"{value} in an array", small(array(0, (1,), struct.pack("<f", value)))
    yield "a signalling NaN", small(array(0, (1,), b"\x01\x00\x80\x7f"))
    for code in (-128, -1, 0, 2, 5, 127):
        for size in (0, 1, 2, 4, 8, 12, 16, 100):
            yield f"extension {code} of {size} bytes", small(ext(code, b"\xff" * size))
    for value in (None, True, 1, -1, 1.5, "x", b"x", [], {}, [1.0], {"a": 1}, 2**64 - 1, -(2**63)):
        yield f"{value!r} for an array", small(value)
        yield f"{value!r} for a message", pack(value)
        yield f"{value!r} for a tag", pack([value, 1, array(0, (1,), four)])
        yield f"{value!r} for an int", pack(["Small", value, array(0, (1,), four)])
    for tag in ("small", "Small ", "Message", "", "\0", "\x1b[31m<script>", "Small" * 1000, "\u202e" * 1000):
        yield f"tag {tag[:20]!r}", pack([tag, 1, array(0, (1,), four)])
    yield "invalid UTF-8 in the tag", b"\x93\xa5Sm\xffll\x01\x01"
    yield "invalid UTF-8 in a field", codec.encode(EXAMPLE).replace("förändring".encode(), b"f\xff\xfer\xe4ndr\x80ing!")
    yield "a surrogate in UTF-8", codec.encode(EXAMPLE).replace("förändring".encode(), b"f\xed\xa0\x80\xc3\xa4ndring!")
    yield "too few fields", pack(["Small", 1])
    yield "too many fields", pack(["Small", 1, array(0, (1,), four), 1])
    yield "the right one twice", codec.encode(Empty()) * 2
    yield "a map with the right names", pack({"type": "Small", "round": 1, "w": array(0, (1,), four)})
    for value in (float("nan"), float("inf"), 2**64 - 1):
        fields = [value if name == "x" else getattr(EXAMPLE, name) for name in EXAMPLE.__struct_fields__]
        yield f"x = {value}", msgspec.msgpack.encode(["Everything", *fields], enc_hook=codec.array_to_ext)
    flags = [np.array([[2]], np.uint8) if name == "f" else getattr(EXAMPLE, name) for name in EXAMPLE.__struct_fields__]
    yield (
        "a truth value of 2",
        msgspec.msgpack.encode(["Everything", *flags], enc_hook=codec.array_to_ext).replace(
            b"\x04\x02\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x02",
            b"\x05\x02\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x02",
        ),
    )


def mutated(seed: int, count: int) -> Iterator[bytes]:
    """Valid frames, damaged in all the usual ways; now and then large ones, or nothing but noise."""
    draw = random.Random(seed)
    good = [codec.encode(EXAMPLE), codec.encode(Small(7, np.ones(5, np.float32))), codec.encode(Empty())]
    seeds = good + [frame for _, frame in crafted() if len(frame) < 5000]
    big = large()
    interesting = [0, 1, 0x7F, 0x80, 0x81, 0x90, 0x91, 0xC0, 0xC1, 0xC6, 0xC9, 0xCB, 0xCF, 0xD4, 0xD8, 0xDB, 0xDD, 0xDF]
    for index in range(count):
        if index % 50 == 0:
            yield draw.randbytes(draw.choice([3, 30, 300, LIMIT]))
            continue
        data = bytearray(big if index % 50 == 1 else draw.choice(good if index % 2 else seeds))
        for _ in range(draw.choice([1, 1, 1, 2, 4, 16])):
            at = draw.randrange(len(data) + 1)
            match draw.randrange(3) if index % 3 == 0 else draw.randrange(7):
                case 0:
                    data[at : at + 1] = bytes([draw.choice(interesting)])
                case 1:
                    data[at : at + 1] = bytes([draw.randrange(256)])
                case 2:
                    data[at : at + 1] = bytes([data[at] ^ (1 << draw.randrange(8))]) if at < len(data) else b""
                case 3:
                    data[at:at] = draw.randbytes(draw.choice([1, 2, 8, 64]))
                case 4:
                    del data[at : at + draw.choice([1, 2, 8, 64, LIMIT])]
                case 5:
                    data[at : at + 8] = draw.choice([b"\xff" * 8, bytes(8), bytes(7) + b"\x80", b"\x7f" + b"\xff" * 7])
                case 6:
                    other = draw.choice(seeds)
                    start = draw.randrange(len(other) + 1)
                    data[at:at] = other[start : start + draw.randrange(200)]
        yield bytes(data[:LIMIT])


def peak_bytes(work: Callable[[], object]) -> int:
    """Memory that this work needs at its worst, above what there was before."""
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    work()
    return tracemalloc.get_traced_memory()[1] - before


def main(seed: int, count: int) -> None:
    """See the module."""
    tracemalloc.start()
    space = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (space + (128 << 20),) * 2)
    decoded = refused = peak = 0
    slowest_s = 0.0

    def decode(data: bytes) -> None:
        nonlocal decoded, refused
        try:
            codec.decode(data, *KINDS)
            decoded += 1
        except DecodeError:
            refused += 1

    for data in chain((data for _, data in crafted()), mutated(seed, count), [large()]):
        started = time.process_time()
        peak = max(peak, peak_bytes(partial(decode, data)))
        slowest_s = max(slowest_s, time.process_time() - started)
    json.dump({"decoded": decoded, "refused": refused, "slowest_s": slowest_s, "peak": peak}, sys.stdout)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
