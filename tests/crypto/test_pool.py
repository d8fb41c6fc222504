"""Encrypting in other processes: the same results, errors in their places, and no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from emulated import exact, rounded

from coterie.crypto import ckks, pool
from coterie.protocol.effects import Encrypt
from coterie.protocol.errors import CapacityError, CryptoError, DecodeError, RunError, UserError
from coterie.runs.interpreter import LocalEffects
from coterie.training.models import build

KEY = ckks.keygen("insecure-1024-add", allow_insecure=True)


@pytest.fixture
def workers(monkeypatch):
    """Two workers for however little there is to do; of this test's own."""
    monkeypatch.setattr(pool, "WORTH_S", 0.0)
    made = pool._Pool()
    monkeypatch.setattr(pool, "_pool", made)
    yield made
    made.stop()


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return stream.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before it was opened, or before it was read
        return False


def gone(pids: list[int], seconds: float = 100.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not any(map(alive, pids)):
            return True
        time.sleep(0.05)
    return False


def test_results_in_order_errors_in_place_and_keys_of_every_kind(workers):
    twin, lanes = rounded.keygen("insecure-1024-add", allow_insecure=True), exact.keygen(512, allow_insecure=True)
    keys = [
        KEY.public,
        KEY,
        *(ckks.keygen("insecure-1024-mul", allow_insecure=True) for _ in range(18)),
        KEY.public,
        KEY,
    ]
    values = [np.random.default_rng(i).normal(size=1 + 700 * i % 2900) for i in range(len(keys))]
    jobs = [*zip(keys, values, strict=True), (twin.public, [0.5]), (lanes.public, [0.25, 2.0])]
    jobs.insert(1, (KEY.public, [0.0, np.nan]))
    jobs.insert(5, (lanes.public, [1e9]))
    results = pool.encrypt_many(jobs, processes=2)
    assert len(workers._workers) == 2
    assert len({worker.process.pid for worker in workers._workers} | {os.getpid()}) == 3
    errors = {i: result for i, result in enumerate(results) if isinstance(result, CryptoError)}
    assert {i: type(error) for i, error in errors.items()} == {1: CapacityError, 5: CapacityError}
    assert "index 1" in str(errors[1])
    assert results[-2].to_bytes() == twin.public.encrypt([0.5]).to_bytes()
    openers = [KEY, KEY, *keys[2:-2], KEY, KEY, twin, lanes]
    ciphers = [result for result in results if not isinstance(result, CryptoError)]
    for opener, cipher, expected in zip(openers, ciphers, [*values, [0.5], [0.25, 2.0]], strict=True):
        np.testing.assert_allclose(opener.decrypt(cipher), expected, atol=1e-4)
    alone = pool.encrypt_many(jobs, processes=1)
    assert [type(result) for result in alone] == [type(result) for result in results]
    assert str(alone[1]) == str(errors[1])
    again = pool.encrypt_many(jobs, processes=2)
    assert [type(result) for result in again] == [type(result) for result in results]
    assert len(workers._workers) == 2


def test_small_work_stays_here_and_a_twin_always_does(monkeypatch):
    def never(*_):
        raise AssertionError("a worker was started")

    monkeypatch.setattr(pool, "_Worker", never)
    assert KEY.decrypt(pool.encrypt_many([(KEY, [1.0]), (KEY, [2.0])])[1]) == pytest.approx(2.0)
    twin = rounded.keygen("ckks-4096-add")
    many = [(twin.public, np.full(159_010, float(i))) for i in range(12)]
    assert many[0][0].nominal_seconds_encrypt(159_010) * 12 > pool.WORTH_S
    assert [c.length for c in pool.encrypt_many(many)] == [159_010] * 12
    assert pool.encrypt_many([]) == []
    assert [type(r) for r in pool.encrypt_many([(KEY, [99.0]), (KEY, [])])] == [CapacityError, CryptoError]
    with pytest.raises(UserError, match="0 processes"):
        pool.encrypt_many([], processes=0)


def test_a_worker_that_dies_is_reported_and_replaced(workers):
    jobs = [(KEY.public, np.ones(3000))] * 4
    pool.encrypt_many(jobs, processes=2)
    victims = [worker.process.pid for worker in workers._workers]
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    assert gone(victims)
    assert len(pool.encrypt_many(jobs, processes=2)) == 4  # they were found dead before anything was given to them
    worker = workers._workers[0]
    worker.process.kill()
    worker.process.wait()
    with pytest.raises(RunError, match="ended with code -9"):
        worker.encrypt(KEY, np.ones(3))
    assert len(pool.encrypt_many(jobs, processes=2)) == 4


def test_workers_do_not_outlive_their_parent():
    """Not even one that is killed, nor one that just ends."""
    code = """
import os, sys
import numpy as np
from coterie.crypto import ckks, pool
pool.WORTH_S = 0.0
key = ckks.keygen("insecure-1024-add", allow_insecure=True)
pool.encrypt_many([(key, np.ones(9))] * 4, processes=2)
print(*(worker.process.pid for worker in pool._pool._workers), flush=True)
sys.stdin.read()
"""
    for kill in (True, False):
        parent = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(alive, pids))
        if kill:
            parent.kill()
        parent.communicate()
        assert gone(pids)
        assert parent.returncode == (-9 if kill else 0)


def test_an_interruption_is_the_parent_s_to_handle(workers):
    jobs = [(KEY, np.ones(9))] * 2
    pool.encrypt_many(jobs, processes=2)
    pids = [worker.process.pid for worker in workers._workers]
    for pid, number in product(pids, (signal.SIGINT, signal.SIGTERM)):
        os.kill(pid, number)
    assert len(pool.encrypt_many(jobs, processes=2)) == 2
    assert [worker.process.pid for worker in workers._workers] == pids


def test_a_batch_of_effects(workers, monkeypatch):
    monkeypatch.setattr(pool, "cores", lambda: 2)

    @dataclass
    class Broken:
        def encrypt(self, values):
            raise DecodeError("no key")

    model = build("linear", (6,), 3)
    runner = LocalEffects(model, {})
    values = [np.full(5, float(i), np.float32) for i in range(4)]
    wanted = [(f"client/{i}", Encrypt(KEY.public, v)) for i, v in enumerate(values)]
    wanted.insert(1, ("client/x", Encrypt(KEY.public, np.array([1.0, np.inf]))))
    wanted.insert(2, ("client/y", Encrypt(Broken(), values[0])))
    results = runner.run(wanted)
    assert isinstance(results.pop(1), CapacityError)
    assert isinstance(results.pop(1), DecodeError)
    for cipher, expected in zip(results, values, strict=True):
        np.testing.assert_allclose(KEY.decrypt(cipher), expected, atol=1e-4)
    assert len(workers._workers) == 2
