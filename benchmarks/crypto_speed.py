"""What is gained for Paillier over the textbook, and what CKKS costs over bare SEAL: ratios, each in one run."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, cast
from unittest.mock import patch

import gmpy2
import numpy as np
import tenseal.sealapi as sealapi  # type: ignore[import-untyped]
from gmpy2 import mpz

from coterie.crypto import bigint, ckks, ckks_arrays, paillier, paillier_arrays
from coterie.crypto.bigint import cores, random_unit
from coterie.crypto.seal import ring
from coterie.protocol.arrays import Doubles
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
    with patch.object(bigint, "cores", lambda: 1):
        encrypt_wall_s, encrypt_s, cipher = _timed(lambda: key.public.encrypt(values))
        decrypt_wall_s, decrypt_s, opened = _timed(lambda: key.decrypt(cipher))
        add_s = _timed(lambda: cipher + cipher)[1]
    encrypt_all_s = _timed(lambda: key.public.encrypt(values))[0]
    decrypt_all_s = _timed(lambda: key.decrypt(cipher))[0]
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
    return result | {"met": met(result, TARGETS)}


CKKS_LENGTH = 159_010  # the MLP 784-200-10
CKKS_TARGETS = {"encrypt_over_bare_max": 1.3, "add_milliseconds_max": 3.0, "times_float32_max": 8.1}


def run_ckks(length: int = CKKS_LENGTH, repeats: int = 5) -> dict[str, Any]:
    """Measures CKKS, its emulated twin, and the bare loop over ``tenseal.sealapi``, which leaves SEAL objects behind.

    One core, CPU seconds, the best of ``repeats`` taken in turns. times_float32: size over that of the float32 vector.
    """
    values = np.random.default_rng(0).normal(0.0, 0.1, length)
    sets = {name: _ckks_set(name, values, repeats) for name in ("ckks-4096-add", "ckks-8192-mul")}
    worst = {what: max(entry[what] for entry in sets.values()) for what in ("encrypt_over_bare", "times_float32")}
    worst["add_milliseconds"] = sets["ckks-4096-add"]["add_seconds"] * 1e3
    measured = {"length": length, "repeats": repeats, "sets": sets}
    return measured | {"targets": CKKS_TARGETS, "met": met(worst, CKKS_TARGETS)}


DEEP_LENGTH = 1_660_000  # the CNN of PAFed's MNIST
DEEP_TARGETS = {"dot_seconds_max": 1.0, "mask_seconds_max": 0.3, "twin_over_real_max": 0.05}


def run_deep(length: int = DEEP_LENGTH, repeats: int = 2) -> dict[str, Any]:
    """Measures dot products and changes of keys with three levels, as PAFed's servers do them, and the emulated twin.

    One core, CPU seconds, the best of ``repeats``. conversion: all that one client's copy of a model costs both servers
    once the model is masked and opened: encrypted under its key, unmasked, written and read.
    """
    values = np.random.default_rng(0).normal(0.0, 1.0, length)
    values /= np.linalg.norm(values)
    real, sizes = _deep(False, values, repeats)
    twin, _ = _deep(True, values, repeats)
    result = {
        "length": length,
        "repeats": repeats,
        **{f"{what}_seconds": seconds for what, seconds in real.items()},
        **{f"twin_{what}_seconds": seconds for what, seconds in twin.items()},
        "conversion_seconds": real["convert"] + real["unblind"] + real["wire"],
        "twin_over_real": sum(twin.values()) / sum(real.values()),
        "megabytes": sizes,
        "targets": DEEP_TARGETS,
    }
    return result | {"met": met(result, DEEP_TARGETS)}


def _deep(emulated: bool, values: Doubles, repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds by operation, and megabytes by what travels."""
    key, own = (ckks.keygen("ckks-8192-deep", products=p, emulated=emulated) for p in (True, False))
    keys, public, length = key.evaluation(), key.public, values.size
    update = public.encrypt(values)
    prepared = update.conjugated(keys)
    scalar = update.dot(prepared, keys).at_level(1)
    low = update.at_level(1)
    product = low.times(scalar)
    model, mask = product.rescaled(), public.mask(length, secrets.token_bytes)
    blinded = model.blind(mask)
    opened = key.open_blinded(blinded)
    sent = own.public.encrypt_blinded(opened)
    received = sent.unblind(mask, 1)
    work: dict[str, Callable[[], Any]] = {
        "encrypt": lambda: public.encrypt(values),
        "conjugate": lambda: update.conjugated(keys),
        "dot": lambda: update.dot(prepared, keys),
        "lower": lambda: update.at_level(1),
        "times": lambda: low.times(scalar),
        "rescale": product.rescaled,
        "mask": lambda: public.mask(length, secrets.token_bytes),
        "blind": lambda: model.blind(mask),
        "open": lambda: key.open_blinded(blinded),
        "convert": lambda: own.public.encrypt_blinded(opened),
        "wire": lambda: own.public.from_bytes(sent.to_bytes(), length, blinded=1),
        "unblind": lambda: sent.unblind(mask, 1),
        "decrypt": lambda: own.decrypt(received),
    }
    travelling: dict[str, Any] = {
        "update": update,
        "converted": sent,
        "scalar": scalar,
        "service_public": public,
        "own_public": own.public,
        "evaluation": keys,
    }
    return best(work, repeats), {what: len(each.to_bytes()) / 1e6 for what, each in travelling.items()}


def _ckks_set(name: str, values: Doubles, repeats: int) -> dict[str, Any]:
    key, twin = ckks.keygen(name), ckks.keygen(name, emulated=True)
    public, made = key.public, ring(key.parameters)
    numbers: ckks_arrays.Secret = cast(Any, key.arrays)
    cipher, emulated = public.encrypt(values), twin.public.encrypt(values)
    data, encoder = cipher.to_bytes(), sealapi.CKKSEncoder(made.context)
    padded = np.zeros(len(cipher.array) * key.parameters.degree)
    padded[: values.size] = values
    slots = padded.view(np.complex128).reshape(len(cipher.array), -1)
    encryptor = numbers.public.encryptor
    decryptor = sealapi.Decryptor(made.context, made._secret_object(numbers.secret))
    objects = [next(made.objects(row[None], cipher.tally.form)) for row in cipher.array]
    plaintext, scale = sealapi.Plaintext(), made.scale(cipher.tally.form)

    def bare_encrypt() -> None:
        for row in slots:
            encoder.encode(row.tolist(), scale, plaintext)
            encryptor.encrypt(plaintext, sealapi.Ciphertext(made.context))

    def bare_decrypt() -> None:
        for each in objects:
            decryptor.decrypt(each, plaintext)
            encoder.decode_complex(plaintext)

    work: dict[str, Callable[[], Any]] = {
        "bare_encrypt": bare_encrypt,
        "encrypt": lambda: public.encrypt(values),
        "encrypt_symmetric": lambda: key.encrypt(values),
        "bare_decrypt": bare_decrypt,
        "decrypt": lambda: key.decrypt(cipher),
        "add": lambda: cipher + cipher,
        "scale": lambda: cipher.scale(100),
        "to_bytes": cipher.to_bytes,
        "from_bytes": lambda: public.from_bytes(data),
        "twin_encrypt": lambda: twin.public.encrypt(values),
        "twin_add": lambda: emulated + emulated,
    }
    if key.parameters.multiplies:
        scalar = public.encrypt_scalar(0.5)
        product = cipher.times(scalar)
        work |= {"times": lambda: cipher.times(scalar), "rescale": product.rescaled}
    least = best(work, repeats)
    return {
        **{f"{what}_seconds": seconds for what, seconds in least.items()},
        "encrypt_over_bare": least["encrypt"] / least["bare_encrypt"],
        "decrypt_over_bare": least["decrypt"] / least["bare_decrypt"],
        "twin_over_encrypt": least["twin_encrypt"] / least["encrypt"],
        "ciphertexts": len(cipher.array),
        "megabytes": len(data) / 1e6,
        "times_float32": len(data) / (4 * values.size),
        "max_error": float(np.abs(key.decrypt(cipher) - values).max()),
        "stated_error": key.parameters.error(),
    }


def _unpacked(key: paillier.SecretKey, sample: int) -> tuple[float, float]:
    """Seconds to encrypt and to decrypt ``sample`` values as printed in the paper, one ciphertext each."""
    numbers: paillier_arrays.Secret = cast(Any, key.arrays)
    n, modulus = numbers.public.n, numbers.public.n_squared
    exponent = gmpy2.lcm(numbers.p - 1, numbers.q - 1)
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


def met(measured: Mapping[str, Any], targets: Mapping[str, float]) -> bool:
    """Whether each figure is at least its target, NAME_min, or at most, NAME_max."""
    figures = ((name, measured[name[:-4]], target) for name, target in targets.items())
    return all(figure >= target if name.endswith("_min") else figure <= target for name, figure, target in figures)


def best(work: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """CPU seconds of each, the best of ``repeats`` taken in turns."""
    turns = [{what: _timed(action)[1] for what, action in work.items()} for _ in range(repeats)]
    return {what: min(turn[what] for turn in turns) for what in work}


def _timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Wall-clock seconds, CPU seconds of all threads, result."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return time.perf_counter() - wall, time.process_time() - cpu, result
