"""What Coterie's two servers cost: ``python -m benchmarks.servers rounds|grouping|million|workers FILE``.

``rounds``: Coterie beside FedAvg, 100 clients of MNIST with 178,110 weights, each in a process of its own with one
thread, as a user runs it. Rounds take turns, so that a busy machine slows all alike. The least processor seconds of the
rounds are taken.
``grouping``: what they exchange, once, to make groups of rows in shares, and what is dealt for it.
``million``: what each server spends, sends and holds, on paper, from constants that are measured here.
``workers``: uploads that one process checks and adds, and two that take them from one queue and add their sums.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.scale import rounded
from coterie.clustering.evidence import twisted
from coterie.crypto import norm_proof, one_hot, shared_rows
from coterie.crypto.signing import OpeningKey, VerifyKey, digest
from coterie.crypto.two_party import Dealt, deal
from coterie.privacy.audits.hidden_places import row_shares
from coterie.protocol.errors import UserError
from coterie.protocol.randomness import Derived
from coterie.protocols.hidden_servers import BATCH
from coterie.protocols.shared_groups import found, sizes_of
from coterie.record.provenance import write_record
from coterie.runs import RunConfig, experiment
from coterie.runs.recorded import record
from coterie.systems.coterie.messages import HELPER, HUB
from papers.mingledpie_costs import timed

WEIGHTS = 178_110
MODEL_BYTES = 4 * WEIGHTS
CONTEXT, SEED = bytes(32), bytes(16)
SEEDS = SEED, bytes([1]) * len(SEED)
VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "FedAvg": ("fedavg", {}),
    "one group": ("coterie", {"clusters": 1}),
    "groups": ("coterie", {}),
    "groups, check=norm": ("coterie", {"check": "norm"}),
}
MEMBERS = (100, 1_000, 10_000, 100_000, 1_000_000)


# -- rounds ------------------------------------------------------------------------------------------------------------


def rounds(clients: int = 100, repeats: int = 5) -> dict[str, Any]:
    """A row for each variant."""
    lines: dict[str, list[Mapping[str, Any]]] = {name: [] for name in VARIANTS}
    spent: dict[str, list[float]] = {name: [] for name in VARIANTS}
    with ExitStack() as stack:
        ends = {}
        for name, (system, own) in VARIANTS.items():
            ends[name], theirs = get_context("spawn").Pipe()
            process = get_context("spawn").Process(target=_in_turns, args=(theirs, system, own, clients, repeats))
            process.start()
            stack.callback(process.join)
            stack.enter_context(ends[name]).recv()  # once it is set up
        for _ in range(repeats):
            for name, end in ends.items():
                end.send(None)
                line, seconds = end.recv()
                lines[name].append(line)
                spent[name].append(seconds)
    found, least_s = [], min(spent["FedAvg"])
    whole = sum(_moved(lines["FedAvg"][-1]))
    for name in VARIANTS:
        line, (up, down) = lines[name][-1], _moved(lines[name][-1])
        found.append(
            {
                "": name,
                "groups": line["notes"].get("groups", 1),
                "MB up, a client": up / clients / 1e6,
                "MB down": down / clients / 1e6,
                "both, over FedAvg": (up + down) / whole,
                "MB from hub to helper, a client": line["message_bytes"].get("hub > helper Shares", 0) / clients / 1e6,
                "processor seconds of a round": min(spent[name]),
                "over FedAvg's": min(spent[name]) / least_s,
            }
        )
    return {"clients": clients, "weights": WEIGHTS, "rounds": repeats, "cores": os.cpu_count(), "rows": found}


def _in_turns(end: Connection, system: str, own: Mapping[str, Any], clients: int, repeats: int) -> None:
    """Sets a run up, and at each word from the other end trains a round and says what it took."""
    torch.set_num_threads(1)
    settings = {"lr": 0.1, "slowest": 1.0, **own}
    options: dict[str, Any] = {"clients": clients, "rounds": repeats + 1, "eval_every": repeats + 1}
    config = RunConfig(system, data="mnist", model="mlp", partition="permute:4", settings=settings, **options)
    with closing(experiment.build(config)) as one:
        one.set_up()
        end.send(None)
        for r in range(1, repeats + 1):
            end.recv()
            began = time.process_time()
            line = one.round(r)
            end.send((line, time.process_time() - began))


def _moved(line: Mapping[str, Any]) -> tuple[int, int]:
    """Bytes of a round that clients send and receive."""
    sizes = {tuple(what.split()[:3]): 0 for what in line["message_bytes"]}
    for what, size in line["message_bytes"].items():
        sizes[tuple(what.split()[:3])] += size
    sent = sum(size for (src, _, _), size in sizes.items() if src == "client")
    return sent, sum(size for (_, _, dst), size in sizes.items() if dst == "client")


# -- the grouping ------------------------------------------------------------------------------------------------------


def grouping(round_trip_s: float = 0.02) -> dict[str, Any]:
    """A row for each number of clients. round_trip_s: of a message between the servers and its answer."""
    rows = [_grouped(24, "digits", round_trip_s), _grouped(100, "mnist", round_trip_s)]
    return {"round_trip_s": round_trip_s, "cores": os.cpu_count(), "rows": rows}


def _grouped(clients: int, data: str, round_trip_s: float) -> dict[str, Any]:
    """The rows of clients in four groups with label skew, grouped again by both sides in one process."""
    settings = {"max_epochs": 1, "lr": 0.1}
    partition = "permute:4+dirichlet:0.5"
    config = RunConfig("coterie", data=data, clients=clients, partition=partition, rounds=1, record=True)
    run = record(replace(config, crypto="emulated", settings=settings))
    (shares,) = row_shares(run, HUB, HELPER).values()
    sizes, keys = sizes_of(run.settings, clients, run.spec), SEEDS
    began = time.process_time()
    corrections = deal(sizes, twisted, keys)
    dealt_s, began = time.process_time() - began, time.process_time()
    both = Dealt(0, sizes, keys[0]), Dealt(1, sizes, keys[1], corrections)
    sides = zip(both, (shares.ours, shares.theirs), SEEDS, strict=True)
    hub, helper = (found(dealt, run.settings, rows, bytes(clients), nonce) for dealt, rows, nonce in sides)
    steps, sent = 0, 0
    with suppress(StopIteration):
        mine, theirs = next(hub), next(helper)
        while True:
            steps, sent = steps + 1, sent + len(mine)
            mine, theirs = hub.send(theirs), helper.send(mine)
    return {
        "clients": clients,
        "messages each way": steps,
        "MB each way": sent / 1e6,
        "processor seconds of both": time.process_time() - began,
        "seconds on the line": round_trip_s * steps,
        "MB dealt to the helper": len(corrections) / 1e6,
        "processor seconds to deal": dealt_s,
    }


# -- a million clients -------------------------------------------------------------------------------------------------


def million() -> dict[str, Any]:
    """A row for each number of groups and of clients, all of which take part in a round."""
    torch.set_num_threads(1)
    found, measured = [], {str(groups): constants(groups) for groups in (1, 4, 16)}
    for groups in (1, 4, 16):
        cost = measured[str(groups)]
        for clients in MEMBERS:
            answers = clients * cost["answer_s"] if groups > 1 else 0.0
            relayed = one_hot.TAG_BYTES if groups == 1 else MODEL_BYTES
            steps = None
            with suppress(UserError):  # its sums do not fit words of 32 bits
                steps = shared_rows.Grid.of(1.0, clients, WEIGHTS).steps
            found.append(
                {
                    "groups": groups,
                    "clients": clients,
                    "processor seconds of a server": clients * cost["upload_s"] + answers + cost["seal_s"],
                    "with check=norm": clients * (cost["upload_s"] + cost["norm_s"]) + answers + cost["seal_s"],
                    "GB up": clients * MODEL_BYTES / 1e9,
                    "GB from hub to helper": clients * (relayed + 200 + one_hot.SEED_BYTES * groups) / 1e9,
                    "GB down": clients * MODEL_BYTES * min(groups, 2) / 1e9,
                    "MB of rows": 3 * groups * MODEL_BYTES / 1e6,
                    "steps of a clip": steps,
                }
            )
    return {"weights": WEIGHTS, "measured": measured, "cores": os.cpu_count(), "rows": found}


def constants(groups: int, repeats: int = 20) -> dict[str, float]:
    """The helper's processor seconds for an upload, an answer to a query, a seal of all rows, and a proof of length."""
    x = np.ones(WEIGHTS, np.uint32)
    one = one_hot.shared(x, 0, groups, CONTEXT, Derived(b"upload"))
    word, opening, private = one.word.tobytes(), OpeningKey.generate(), Ed25519PrivateKey.generate()
    sealed, public = opening.public.seal(one.seeds, "a", "b"), VerifyKey(private.public_key().public_bytes_raw())
    signed = iter([private.sign(digest("coterie/signed/1", at)) for at in range(repeats)])  # by another process
    number = iter(range(repeats))
    rows, masks = np.zeros((groups, WEIGHTS), np.uint32), [SEED] * groups
    bound = norm_proof.bound_of(shared_rows.Grid.of(1.0, 100, WEIGHTS).longest)
    hub, both = norm_proof.projected(SEED, np.stack([x, 3 * x])).astype(np.uint32)
    proof = norm_proof.prove(hub, both - hub, bound, CONTEXT, Derived(b"proof"))
    assert proof is not None
    told = norm_proof.told(proof.share, proof.name, hub, bound, CONTEXT)

    def upload() -> None:
        public.verify(next(signed), next(number))
        seeds = opening.open(sealed, "a", "b")
        one_hot.tag(CONTEXT, seeds, one.check, one_hot.word_name(word))
        one_hot.fold(rows, seeds, one.word, 1)

    def answer() -> None:
        opening.public.seal(shared_rows.answer(rows, b"\x55" * -(-groups // 8)).tobytes(), "b", "a")

    def seal() -> None:
        shared_rows.row_names(shared_rows.masked(rows + shared_rows.noise(rows.shape, 1.0, Derived(b"")), masks, SEED))

    def norms() -> None:
        norm_proof.projected(SEED, np.stack([x] * BATCH))

    def holds() -> None:
        assert norm_proof.holds(told, proof.seed, both - hub, bound, CONTEXT)

    return {
        "upload_s": least(upload, repeats),
        "answer_s": least(answer, repeats),
        "seal_s": least(seal, 3),
        "norm_s": least(norms, 3) / BATCH + least(holds, 3),
    }


def least(call: Callable[[], Any], repeats: int) -> float:
    """The fewest processor seconds of a call: what else a machine does can only add to them."""
    return min(timed(call)[0] for _ in range(repeats))


# -- workers -----------------------------------------------------------------------------------------------------------


def workers(groups: int = 4, uploads: int = 2_000, repeats: int = 5) -> dict[str, Any]:
    """The same uploads, added by one process and by two that take the next ones from one queue until it is empty."""
    x, forked = np.ones(WEIGHTS, np.uint32), get_context("fork")  # so the queue lies where all find it
    made = [one_hot.shared(x, at % groups, groups, CONTEXT, Derived(b"%d" % at)) for at in range(4 * BATCH)]
    queue = [made[at % len(made)] for at in range(uploads)]
    taken, rows = forked.Value("q", 0), forked.RawArray("I", 2 * groups * WEIGHTS)
    sums = np.frombuffer(rows, np.uint32).reshape(2, groups, WEIGHTS)

    def work(at: int, spent: Any) -> None:
        began = time.process_time()
        while True:
            with taken.get_lock():
                first, taken.value = taken.value, taken.value + BATCH
            if first >= uploads:
                break
            for one in queue[first : first + BATCH]:
                one_hot.tag(CONTEXT, one.seeds, one.check, one_hot.word_name(one.word))
                one_hot.fold(sums[at], one.seeds, one.word, 16)
        spent.put(time.process_time() - began)

    found: dict[int, list[dict[str, Any]]] = {1: [], 2: []}
    for count in (count for _ in range(repeats) for count in found):
        sums[:], taken.value, spent = 0, 0, forked.SimpleQueue()
        processes = [forked.Process(target=work, args=(at, spent)) for at in range(count)]
        began = time.perf_counter()
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        total = sums[0] + sums[1]
        seconds = time.perf_counter() - began
        processor_s = sum(spent.get() for _ in processes)
        name = one_hot.word_name(total.reshape(-1))
        found[count].append({"seconds": seconds, "processor seconds": processor_s, "sum": name.hex()})
    assert len({one["sum"] for every in found.values() for one in every}) == 1, "sums differ"
    kinds = ("seconds", "processor seconds")
    table = [{"workers": n, **{kind: min(one[kind] for one in every) for kind in kinds}} for n, every in found.items()]
    return {"groups": groups, "weights": WEIGHTS, "uploads": uploads, "cores": os.cpu_count(), "rows": table}


MEASURES: Mapping[str, Callable[[], dict[str, Any]]] = {
    "rounds": rounds,
    "grouping": grouping,
    "million": million,
    "workers": workers,
}


def main() -> None:
    """Write the record of one of the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.servers", description=__doc__)
    parser.add_argument("table", choices=MEASURES)
    parser.add_argument("file", type=Path, help="where the record is written, as JSON")
    given = parser.parse_args()
    command = f"python -m benchmarks.servers {given.table} {given.file.as_posix()}"
    write_record(given.file, command, rounded(MEASURES[given.table](), 3))


if __name__ == "__main__":
    main()
