"""Real CKKS encryptions of many vectors on several cores: by child processes, as SEAL's bindings hold Python's lock.
They read jobs from standard input, and so end with their parent; nothing is pickled.
"""

from __future__ import annotations

import atexit
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from queue import SimpleQueue
from threading import Lock
from typing import IO, Any, cast

import numpy as np
from numpy.typing import ArrayLike

from coterie.crypto import ckks
from coterie.crypto.bigint import cores
from coterie.crypto.vector import CipherVector
from coterie.protocol.arrays import Doubles
from coterie.protocol.errors import CryptoError, PeerError, RunError, UserError

Outcome = CipherVector | CryptoError | PeerError

WORTH_S = 0.3
"""Nominal seconds of work from which workers are used: about what they take to start."""

# Frames: a length, and so many bytes. To a worker, for each job: a key, after P for a public and S for a secret one,
# and values as float64. Back: a ciphertext.
_LENGTH = struct.Struct("<Q")
_KEPT_KEYS = 16


def encrypt_many(jobs: Sequence[tuple[Any, ArrayLike]], processes: int | None = None) -> list[Outcome]:
    """``key.encrypt(values)`` of every job ``(key, values)``, in order; a refused job's error stands in its place.

    Only real CKKS encryptions leave this process. processes: at most, by default one a core; 1: this process alone.
    Raises RunError if a worker dies.
    """
    if processes is not None and processes < 1:
        raise UserError(f"{processes} processes can't encrypt: take at least 1")
    results: dict[int, Outcome] = {}
    away: list[tuple[int, Any, Doubles]] = []
    work_s = 0.0
    for index, (key, values) in enumerate(jobs):
        try:
            if isinstance(key, ckks.PublicKey | ckks.SecretKey) and not key.emulated:
                array, _ = key.prepared(values)  # refuses here what a worker would
                away.append((index, key, array))
                work_s += key.nominal_seconds_encrypt(array.size)
            else:
                results[index] = key.encrypt(values)
        except (CryptoError, PeerError) as error:
            results[index] = error
    count = min(cores() if processes is None else processes, len(away))
    if count > 1 and work_s >= WORTH_S:
        results |= _pool.encrypt(away, count)
    else:
        results |= {index: key.encrypt(array) for index, key, array in away}
    return [results[index] for index in range(len(jobs))]


class _Worker:
    def __init__(self) -> None:
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        command = [sys.executable, "-P", "-c", "from coterie.crypto.pool import serve; serve()"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
        )
        self._to, self._back = cast(IO[bytes], self.process.stdin), cast(IO[bytes], self.process.stdout)

    def encrypt(self, key: Any, array: Doubles) -> CipherVector:
        public: ckks.PublicKey = key.public
        try:
            _send(self._to, _written(key))
            _send(self._to, array.data.cast("B"))
            data = _receive(self._back)
        except (OSError, EOFError) as error:
            self.stop()
            code = self.process.returncode
            guess = ": the system has killed it, out of memory? Use fewer processes" if code == -signal.SIGKILL else ""
            raise RunError(
                f"a process that encrypts ended with code {code} (its own words are above){guess}"
            ) from error
        return public.from_bytes(data, array.size, terms=1, form=public.fresh)

    def stop(self) -> None:
        try:
            self.process.communicate(timeout=5)  # closes its input
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()


class _Pool:
    def __init__(self) -> None:
        self._workers: list[_Worker] = []
        self._owner = os.getpid()
        self._lock = Lock()

    def encrypt(self, jobs: Sequence[tuple[int, Any, Doubles]], count: int) -> dict[int, CipherVector]:
        with self._lock:
            if self._owner != os.getpid():  # a fork: the workers are the parent's
                self._workers, self._owner = [], os.getpid()
            for worker in self._workers:
                if worker.process.poll() is not None:
                    worker.stop()
            self._workers = [worker for worker in self._workers if worker.process.poll() is None]
            self._workers += [_Worker() for _ in range(count - len(self._workers))]
            free: SimpleQueue[_Worker] = SimpleQueue()
            for worker in self._workers[:count]:
                free.put(worker)

            def run(job: tuple[int, Any, Doubles]) -> tuple[int, CipherVector]:
                index, key, array = job
                worker = free.get()
                try:
                    return index, worker.encrypt(key, array)
                finally:
                    free.put(worker)

            with ThreadPoolExecutor(count) as threads:
                return dict(threads.map(run, jobs))

    def stop(self) -> None:
        if self._owner == os.getpid():
            for worker in self._workers:
                worker.stop()
            self._workers = []


_pool = _Pool()
atexit.register(_pool.stop)


def serve() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # an interruption is the parent's to handle: then the input ends
    source, target = sys.stdin.buffer, sys.stdout.buffer
    try:
        while True:
            key, values = _read(_receive(source)), np.frombuffer(_receive(source))
            _send(target, key.encrypt(values).to_bytes())
    except (EOFError, BrokenPipeError):
        os._exit(0)  # the parent is gone or done; flushing to it would only fail


@lru_cache(_KEPT_KEYS)
def _written(key: ckks.PublicKey | ckks.SecretKey) -> bytes:
    if isinstance(key, ckks.PublicKey):
        return b"P" + key.without_products().to_bytes()
    arrays: Any = key.arrays
    return b"S" + ckks.SecretKey(replace(arrays, public=arrays.public.without_products())).to_bytes()


@lru_cache(_KEPT_KEYS)
def _read(data: bytes) -> ckks.PublicKey | ckks.SecretKey:
    kind = ckks.PublicKey if data[:1] == b"P" else ckks.SecretKey
    return kind.load(data[1:], allow_insecure=True)  # of the parent's own making


def _send(stream: IO[bytes], data: bytes | memoryview) -> None:
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes:
    head = stream.read(_LENGTH.size)
    size = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else 1
    data = stream.read(size)
    if len(data) != size:
        raise EOFError
    return data
