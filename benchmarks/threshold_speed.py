"""What a key that several parties hold shares of costs over one key with the same parameters: ratios of one run."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from functools import reduce
from itertools import combinations
from operator import add
from typing import Any

import numpy as np

from benchmarks.crypto_speed import PARAMETERS, best, met
from coterie.crypto import ckks, threshold_opening, threshold_pads
from coterie.crypto import threshold as th
from coterie.crypto import threshold_generation as tg
from coterie.protocol.arrays import Doubles
from coterie.protocol.codec import weighs

TARGETS = {"shared_over_one_key_max": 2.5, "padded_over_one_key_max": 2.5}


def run(length: int = PARAMETERS, holders: int = 8, repeats: int = 3, parameters: str = "threshold-8192-sum") -> Any:
    """Measures a round: every holder encrypts and sends, weights of 12 bits, the sum is opened and compared.

    One core, CPU seconds, the best of ``repeats`` taken in turns; bytes are written and read. one_key: the same with
    one key.  shared: OFL's ServerDec, PartDec and FinDec.  padded: no sender chooses c_1 (``threshold_pads``).
    joint: the same by contributions, for what is computed on before it is opened; each holder computes c_1 itself.
    """
    group = th.Group(parameters, tuple(f"leader-{k}" for k in range(1, holders + 1)))
    rng = np.random.default_rng(0)
    values = [rng.normal(0.0, 0.1, length) for _ in group.holders]
    weights = {name: int(w) for name, w in zip(group.holders, rng.integers(1, 4096, holders), strict=True)}
    own = {name: tg.secret(group) for name in group.holders}
    key = tg.joined(group, {name: each.public() for name, each in own.items()})
    shares, zeros = {name: each.share() for name, each in own.items()}, _zeros(group)
    one = ckks.keygen(parameters, products=False)
    wanted = np.array(list(weights.values())) @ np.array(values)
    times: dict[str, float] = {}

    def summed(public: ckks.PublicKey) -> ckks.CipherVector:
        sent = (public.encrypt(each).to_bytes() for each in values)
        read = (public.from_bytes(data, length, terms=1, blinded=0, form=public.fresh) for data in sent)
        return reduce(add, (cipher.scale(w) for cipher, w in zip(read, weights.values(), strict=True)))

    def opened(cipher: ckks.CipherVector) -> Doubles:
        prepared = threshold_opening.server_dec(group, cipher)
        data = prepared.request.to_bytes()
        answers = {
            name: threshold_opening.partial(
                group,
                shares[name],
                threshold_opening.Request.load(group, data),
                name,
                group.holders,
                zeros[name],
                th.Answered(),
            )[0]
            for name in group.holders
        }
        return threshold_opening.opened(group, prepared, answers)

    def sent() -> dict[str, threshold_pads.Padded]:
        made = {}
        for name, each in zip(group.holders, values, strict=True):
            data = threshold_pads.Padding(group, key, shares[name], name, b"bench").encrypt(each).to_bytes()
            made[name] = threshold_pads.Padded.load(group, data, name, b"bench", length)
        return made

    def padded() -> Doubles:
        vectors = sent()
        pads = {name: each.pad for name, each in vectors.items()}
        answers = {
            name: threshold_pads.pad_partial(group, shares[name], name, pads, weights, zeros[name], th.Answered())[0]
            for name in group.holders
        }
        return threshold_pads.padded_sum(group, key, vectors, weights, answers)

    def joint() -> Doubles:
        ciphers, vectors = [], sent()
        for name, each in vectors.items():
            joining = threshold_pads.Joining(group, each)
            for other in group.holders:
                if other != name:
                    joining.take(other, threshold_pads.contribution(group, shares[other], other, each.pad))
            ciphers.append(joining.cipher(key).scale(weights[name]))
        pads = {name: each.pad for name, each in vectors.items()}
        prepared = threshold_pads.sum_dec(group, key, reduce(add, ciphers), pads, weights)
        data, answers = prepared.request.to_bytes(), dict[str, bytes]()
        for name in group.holders:
            request = threshold_pads.SumRequest.read(group, key, data, b"bench")
            answers[name], _ = threshold_opening.partial(
                group, shares[name], request, name, group.holders, zeros[name], th.Answered()
            )
        return threshold_opening.opened(group, prepared, answers)

    work: Mapping[str, Callable[[], Doubles]] = {
        "one_key": lambda: one.decrypt(summed(one.public)),
        "shared": lambda: opened(summed(key)),
        "padded": padded,
        "joint": joint,
    }
    errors = {what: float(np.abs(action() - wanted).max() / sum(weights.values())) for what, action in work.items()}
    times = best(work, repeats)
    cipher = key.encrypt(values[0])
    prepared = threshold_opening.server_dec(group, cipher)
    vector = sent()["leader-1"]
    single = best(_single(group, cipher, vector, shares, zeros, own), repeats)
    pads = {name: each.pad for name, each in sent().items()}
    result: dict[str, Any] = {
        "parameters": parameters,
        "length": length,
        "holders": holders,
        "openings": group.openings,
        "repeats": repeats,
        **{f"{what}_seconds": seconds for what, seconds in times.items()},
        **{f"{what}_over_one_key": seconds / times["one_key"] for what, seconds in times.items() if what != "one_key"},
        "errors_of_the_mean": errors,
        "stated_error_of_the_mean": group.error(sum(weights.values())) / sum(weights.values()),
        "operation_seconds": single,
        "c1_over_joint_round": holders * single["c1"] / times["joint"],
        "megabytes": {
            "ciphertext": weighs(cipher.to_bytes()) / 1e6,
            "request": weighs(prepared.request.to_bytes()) / 1e6,
            "sum_request": len(threshold_pads.SumRequest.of(group, key, pads, weights, bytes(32)).to_bytes()) / 1e6,
            "padded": weighs(vector.to_bytes()) / 1e6,
            "contribution": weighs(threshold_pads.contribution(group, shares["leader-2"], "leader-2", vector.pad))
            / 1e6,
            "public_part": weighs(own["leader-1"].public()) / 1e6,
        },
        "targets": TARGETS,
    }
    return result | {"met": met(result, TARGETS)}


def _single(
    group: th.Group,
    cipher: ckks.CipherVector,
    vector: threshold_pads.Padded,
    shares: Mapping[str, th.Share],
    zeros: Mapping[str, th.Zero],
    own: Mapping[str, tg.Secret],
) -> dict[str, Callable[[], Any]]:
    """What one party does, once."""
    first, second = group.holders[:2]
    request = threshold_opening.server_dec(group, cipher).request
    context, length = vector.pad.context, vector.pad.length
    pads = {name: threshold_pads.Pad(name, context, length, bytes(16), group.holders) for name in group.holders}
    pads[first] = vector.pad
    weights = dict.fromkeys(group.holders, 1)
    pads_of_sum = threshold_pads.SumRequest.of(group, cipher.key, pads, weights, bytes(32)).to_bytes()
    return {
        "encrypt": lambda: cipher.key.encrypt(np.zeros(cipher.length)),
        "server_dec": lambda: threshold_opening.server_dec(group, cipher),
        "partial": lambda: threshold_opening.partial(
            group, shares[first], request, first, group.holders, zeros[first], th.Answered()
        ),
        "pad": lambda: threshold_pads.Padding(group, cipher.key, shares[first], first, b"").encrypt(
            np.zeros(cipher.length)
        ),
        "c1": lambda: threshold_pads.SumRequest.read(group, cipher.key, pads_of_sum, vector.pad.context),
        "contribution": lambda: threshold_pads.contribution(group, shares[second], second, vector.pad),
        "pad_partial": lambda: threshold_pads.pad_partial(
            group, shares[first], first, pads, weights, zeros[first], th.Answered()
        ),
        "public": own[first].public,
        "galois": lambda: own[first].galois([2 * group.space.degree - 1]),
        "first": own[first].first,
    }


def _zeros(group: th.Group) -> dict[str, th.Zero]:
    seeds: dict[str, dict[str, bytes]] = {name: {} for name in group.holders}
    for a, b in combinations(group.holders, 2):
        seeds[a][b] = seeds[b][a] = secrets.token_bytes(32)
    return {name: th.Zero(name, held) for name, held in seeds.items()}
