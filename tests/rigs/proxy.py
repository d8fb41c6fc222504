"""A proxy of HTTPS on loopback, as a hospital has it."""

from __future__ import annotations

import base64
import contextlib
import socket
import threading


class Proxy:
    """It knows one name, and lets others than its user through only if it has none.

    host: the name, which it resolves itself to ``port`` of this machine.  said: the first lines of requests.
    """

    def __init__(self, host: str, port: int, user: str = "") -> None:
        self.said: list[str] = []
        self._host, self._port, self._user = host, port, user
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._ends: list[socket.socket] = [self._listening]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        for end in self._ends:
            end.close()

    def _serve(self) -> None:
        while True:
            try:
                here, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(here,), daemon=True).start()

    def _answer(self, here: socket.socket) -> None:
        asked = b""
        while b"\r\n\r\n" not in asked and (data := here.recv(1000)):
            asked += data
        first, *headers = asked.decode().split("\r\n")
        self.said.append(first)
        basic = f"Proxy-Authorization: Basic {base64.b64encode(self._user.encode()).decode()}"
        if self._user and basic not in headers:
            here.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            here.close()
        elif first != f"CONNECT {self._host}:443 HTTP/1.1":
            here.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
            here.close()
        else:
            try:
                there = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                here.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
                here.close()
                return
            self._ends += [here, there]
            here.sendall(b"HTTP/1.1 200 Connection established\r\nVia: a test\r\n\r\n")
            for one, other in ((here, there), (there, here)):
                threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(1 << 16):
                other.sendall(data)
        except OSError:
            pass
        finally:
            for end in (one, other):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
