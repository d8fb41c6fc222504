"""What packing, short randomness and the Chinese remainder theorem gain for Paillier, measured as ratios in one run."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

import gmpy2
import numpy as np
from gmpy2 import mpz

from coterie.crypto import paillier
from coterie.crypto.bigint import cores, random_unit
from coterie.protocol.errors import RunError

PARAMETERS = 178_110  # the MLP 784-200-100-10
TARGETS = {"encrypt_ratio_min": 300.0, "decrypt_ratio_min": 50.0, "megabytes_per_client_max": 2.0}


def run(parameters: int = PARAMETERS, key_bits: int = 2048, sample: int = 40) -> dict[str, Any]:
    """Measures packed Paillier against one ciphertext a parameter; about 30 s on two cores.

    The packed figures are of the whole vector, on one core and on all. The unpacked ones (``g^m r^N mod N^2``, and
    decryption by lambda without CRT) are the mean of ``sample`` ciphertexts times ``parameters``: extrapolated, and
    labelled so. One-core seconds are CPU time, so that a busy machine doesn't change the ratios; those of all
    cores, and the speedups, are wall-clock and mean something on a quiet machine only.
    """
    key = paillier.keygen(key_bits)
    values = np.random.default_rng(0).normal(0.0, 0.1, parameters)
    table_s, _, _ = _timed(lambda: key.public.encrypt(values[:1]))  # builds the table of the short randomness
    with paillier.threads(1):
        encrypt_wall_s, encrypt_s, cipher = _timed(lambda: key.public.encrypt(values))
        decrypt_wall_s, decrypt_s, opened = _timed(lambda: key.decrypt(cipher))
        _, add_s, _ = _timed(lambda: cipher + cipher)
    encrypt_all_s, _, _ = _timed(lambda: key.public.encrypt(values))
    decrypt_all_s, _, _ = _timed(lambda: key.decrypt(cipher))
    plain_encrypt_s, plain_decrypt_s = (seconds / sample * parameters for seconds in _unpacked(key, sample))
    _, wire_s, data = _timed(cipher.to_bytes)
    result: dict[str, Any] = {
        "parameters": parameters,
        "key_bits": key_bits,
        "cores": cores(),
        "lanes_per_ciphertext": key.layout.lanes_per_plaintext,
        "ciphertexts": key.layout.plaintexts(parameters),
        "megabytes_per_client": len(data) / 1e6,
        "max_error": float(np.abs(opened - values).max()),
        "table_seconds": table_s,
        "encrypt_seconds_one_core": encrypt_s,
        "encrypt_seconds_all_cores": encrypt_all_s,
        "decrypt_seconds_one_core": decrypt_s,
        "decrypt_seconds_all_cores": decrypt_all_s,
        "add_seconds_one_core": add_s,
        "to_bytes_seconds": wire_s,
        "unpacked_sample": sample,
        "unpacked_encrypt_seconds_one_core_extrapolated": plain_encrypt_s,
        "unpacked_decrypt_seconds_one_core_extrapolated": plain_decrypt_s,
        "unpacked_megabytes_extrapolated": parameters * key.layout.ciphertext_bytes / 1e6,
        "encrypt_ratio": plain_encrypt_s / encrypt_s,
        "decrypt_ratio": plain_decrypt_s / decrypt_s,
        "encrypt_speedup_all_cores": encrypt_wall_s / encrypt_all_s,
        "decrypt_speedup_all_cores": decrypt_wall_s / decrypt_all_s,
        "targets": TARGETS,
    }
    result["met"] = (
        result["encrypt_ratio"] >= TARGETS["encrypt_ratio_min"]
        and result["decrypt_ratio"] >= TARGETS["decrypt_ratio_min"]
        and result["megabytes_per_client"] <= TARGETS["megabytes_per_client_max"]
    )
    return result


def _unpacked(key: paillier.SecretKey, sample: int) -> tuple[float, float]:
    """Seconds to encrypt and to decrypt ``sample`` values as printed in the paper, one ciphertext each."""
    n, modulus = key.public.n, key.public.n_squared
    exponent = gmpy2.lcm(key.p - 1, key.q - 1)
    mu = gmpy2.invert((gmpy2.powmod(n + 1, exponent, modulus) - 1) // n, n)
    messages = [mpz(secrets.randbits(key.layout.lanes.value_bits)) for _ in range(sample)]

    def encrypt() -> list[Any]:
        return [gmpy2.powmod(n + 1, m, modulus) * gmpy2.powmod(random_unit(n), n, modulus) % modulus for m in messages]

    def decrypt() -> list[Any]:
        return [(gmpy2.powmod(c, exponent, modulus) - 1) // n * mu % n for c in ciphertexts]

    _, encrypt_s, ciphertexts = _timed(encrypt)
    _, decrypt_s, opened = _timed(decrypt)
    if opened != messages:
        raise RunError("the unpacked reference doesn't decrypt what it encrypted")
    return encrypt_s, decrypt_s


def _timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Wall-clock seconds, CPU seconds of all threads, result."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return time.perf_counter() - wall, time.process_time() - cpu, result
