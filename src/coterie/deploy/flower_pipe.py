"""The pipe between a Flower app and the process of its own party: frames over a Unix-domain socket in the home.

Only the user of the home may open the socket (0600). The app of a site asks once and ends; the app of the hub stays.
Needs neither Flower nor anything else of this package, so that an app starts quickly.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

PIPE = "flower.sock"
LARGEST = 1 << 30
"""Bytes of a frame."""
_LENGTH = struct.Struct(">Q")
_LONGEST = 100
"""Bytes of a socket's path, which operating systems limit to about this."""


def send(connection: socket.socket, data: bytes) -> None:
    """Send a frame. Raises OSError if the other end has gone."""
    connection.sendall(_LENGTH.pack(len(data)))
    if data:  # to send nothing fails, too, where the other end has gone
        connection.sendall(data)


def receive(connection: socket.socket) -> bytes | None:
    """The next frame, or None if the other end has gone, also in the middle of a frame. Raises OSError."""
    head = _exactly(connection, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > LARGEST:
        raise OSError(f"a frame of {length} bytes is larger than {LARGEST}")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, length: int) -> bytes | None:
    data = bytearray()
    while len(data) < length:
        try:
            part = connection.recv(min(length - len(data), 1 << 20))
        except ConnectionError:  # it has gone before it read all
            return None
        if not part:
            return None
        data += part
    return bytes(data)


def listen(path: Path) -> socket.socket:
    """A socket at this path that only this user may open. It takes the place of an earlier one. Raises OSError."""
    path.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        with _short(path) as name:
            made.bind(name)
    except BaseException:
        made.close()
        raise
    finally:
        os.umask(before)
    made.listen(8)
    return made


def dial(path: Path, wait_s: float = 0.0, every_s: float = 0.5) -> socket.socket:
    """A connection to the process that listens at this path. Raises OSError if none does within ``wait_s`` seconds."""
    until_s = time.monotonic() + wait_s
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _short(path) as name:
                connection.connect(name)
            return connection
        except OSError:
            connection.close()
            if time.monotonic() >= until_s:
                raise
        time.sleep(every_s)


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name of the path that is short enough for a socket."""
    if len(os.fsencode(path)) <= _LONGEST:
        yield str(path)
        return
    if not os.path.isdir("/proc/self/fd"):
        raise OSError(f"{path} is too long for a socket: put the home where its path has at most {_LONGEST} bytes")
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
