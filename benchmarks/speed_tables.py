"""Tables of how fast things are, of ``docs/bench.json`` and ``docs/scale``. What an older record lacks shows as –."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from benchmarks.markdown import grid

Record = Mapping[str, Any]


COLUMNS = {
    "asked": ("asked a round", ","),
    "clients": ("of clients", ","),
    "job_processor_s": ("processor seconds of the job", ".1f"),
    "job_s": ("seconds", ".1f"),
    "peak_mb": ("peak memory, MB", ".0f"),
    "files": ("files", ","),
    "folder_mb": ("their MB", ".1f"),
}


def clients(record: Record) -> str:
    """Whole jobs by the number of clients."""
    rows = [
        [f"{run[key]:{form}}" if key in run else "–" for key, (_, form) in COLUMNS.items()] for run in record["runs"]
    ]
    return grid([words for words, _ in COLUMNS.values()], rows)


ROUNDS = {
    "one_key": "one key: encrypt, sum, decrypt",
    "shared": "shared: public-key encryption, `server_dec`, `partial`, `opened`",
    "padded": "joint pads, `padded_sum`",
    "joint": "joint pads with contributions, each holder computes `c_1`",
}


OVERHEAD = 1.5, 3.0
"""A job should cost at most so many times its training, and so many seconds more."""


def jobs(record: Record) -> str:
    """Seconds of whole jobs, of their medians, and in brackets the ratio to ours of what was measured in turns."""
    found = record["jobs"]
    peaks = {row["job"]: row["peak_mb"] for row in record["memory"]["jobs"]}
    names = list(found["packages"])
    head = ["job", "Coterie, s", "of which training", f"at most {OVERHEAD[0]:g} x training + {OVERHEAD[1]:g} s"]
    rows = [
        [row["job"], f"{row['medians']['coterie']:.1f}", *_beside_training(row["times"]["coterie"])]
        + [_beside(row, name) for name in names]
        + [" / ".join(_gb(peaks.get(row["job"], {}).get(name)) for name in row["times"])]
        + [" / ".join(f"{100 * fmean(one['accuracy'] for one in times):.1f}" for times in row["times"].values())]
        for row in found["jobs"]
    ]
    return grid([*head, *(f"{name}, s" for name in names), "peak of all processes, GB", "accuracy, %"], rows)


def machines(record: Record) -> str:
    """By machine, the others' seconds over ours in each job, with what the processor has for products."""
    names, rows = [row["job"] for row in record["jobs"]["jobs"]], []
    for part in (record["jobs"], *record.get("elsewhere", ())):
        made, *_ = (row["made"]["coterie"] for row in part["jobs"])
        of, ratios = made["machine"], {row["job"]: row["over_coterie"] for row in part["jobs"]}
        products = next((words for flag, words in PRODUCTS.items() if flag in of["vector_flags"]), "–")
        shown = [", ".join(f"{who} {x:.1f}" for who, x in ratios.get(name, {}).items()) or "–" for name in names]
        rows.append([of["cpu"], products, *shown, " ".join([made["date"], (made["commit"] or "")[:9]])])
    return grid(["processor", "products", *names, "when, commit"], rows)


PRODUCTS = {"amx_bf16": "bfloat16 by AMX", "avx512f": "float32 by AVX-512", "avx2": "float32 by AVX2"}
"""Of a CNN, by the processor's flags: the first that it has."""


def _gb(mb: float | None) -> str:
    return "–" if mb is None else f"{mb / 1000:.2f}"


def _beside_training(ours: Sequence[Record]) -> list[str]:
    if any("training_s" not in one for one in ours):
        return ["–", "–"]
    seconds, training = (median(one[key] for one in ours) for key in ("seconds", "training_s"))
    return [f"{training:.1f}", "yes" if seconds <= OVERHEAD[0] * training + OVERHEAD[1] else "no"]


def _beside(row: Record, name: str) -> str:
    if name not in row["medians"]:
        return "–"
    ratio = row["over_coterie"].get(name)
    return f"{row['medians'][name]:.1f}" + ("" if ratio is None else f" ({ratio:.1f} x)")


def ciphers(record: Record) -> str:
    """A round with real ciphers beside its emulated twin."""
    found = record["ciphers"]["cases"]
    return grid(
        ["system, mode", "emulated, s", "real, s", "ratio", "processor seconds of the ciphers"],
        [
            [name.replace("-", ", ")]
            + [f"{one[f'{crypto}_round_seconds']:.2f}" for crypto in ("emulated", "real")]
            + [f"{one['round_ratio']:.1f}", f"{max(0.0, one['cpu_seconds_of_ciphers_a_round']):.1f}"]
            for name, one in found.items()
        ],
    )


def training(record: Record) -> str:
    """How many times as fast as a plain loop clients train; of convolutions, the better of two loops."""
    found = record["training"]
    rows = [["dense layers", found["mlp"]["fp32_over_loop"]]]
    rows += [[f"convolutions, {shape}", one["bf16_over_best_loop"]] for shape, one in found["cnn"].items()]
    return grid(["layers", "over a plain loop"], [[name, f"{ratio:.1f}"] for name, ratio in rows])


SHOWN = 3
"""Operations of a mode that are named: those that take most."""


def floors(record: Record) -> str:
    """What a round's operations on ciphertexts take, beside what it takes. All in processor seconds."""
    found = []
    for name, one in record["floors"]["cases"].items():
        first = list(one["operations"].items())[:SHOWN]
        words = [f"{of['count']:,.0f} x {what}, {1000 * of['seconds_of_one']:.3g} ms" for what, of in first]
        seconds = [f"{one[key]:.2f}" for key in ("emulated_s", "floor_s", "measured_s")]
        found.append([name.replace("-", ", "), seconds[0], "; ".join(words), *seconds[1:]])
    head = ["system, mode", "emulated round, s", f"the {SHOWN} that take most", "all operations, s"]
    return grid([*head, "a real round beyond its twin, s"], found)


def threshold_rounds(record: Record) -> str:
    costs = record["threshold"]
    found = []
    for what, words in ROUNDS.items():
        ratio = costs.get(f"{what}_over_one_key")
        shown = "1" if ratio is None else f"{ratio:.2f}"
        found.append([words, f"{costs[f'{what}_seconds']:.2f}", shown, f"{costs['errors_of_the_mean'][what]:.0e}"])
    return grid(["round", "CPU seconds", "over one key", "largest error of the mean"], found)


# -- when, and on what -------------------------------------------------------------------------------------------------


def _stamps(name: str, part: Record) -> Iterator[tuple[str, Record]]:
    """All stamps of a part, and of what each is: of the whole part, or of some frameworks in rows of jobs."""
    if "made" in part:
        yield name, part["made"]
    found: list[tuple[Record, list[str]]] = []
    for who, made in (pair for row in part.get("jobs", ()) for pair in row.get("made", {}).items()):
        names = next((names for known, names in found if known == made), None)
        if names is None:
            found.append((made, [who]))
        elif who not in names:
            names.append(who)
    for made, names in found:
        yield f"{name}: {', '.join(names)}", made


def stamps(record: Record, *parts: str) -> str:
    """When, by which version and on what these parts were measured; – for what an older record does not say."""
    rows = []
    for what, made in (pair for part in parts for pair in _stamps(part, record[part])):
        of = made.get("machine") or {}
        version = " ".join([str(made.get("version") or "–"), *([made["commit"][:9]] if made.get("commit") else [])])
        place = f"{of['cpu']}, {of['cores']} cores" if of else "–"
        load = f"{of['load'][0]:.1f}" if "load" in of else "–"
        rows.append([what, made.get("date") or "–", version, place, load])
    return grid(["measured", "when", "version, commit", "machine", "load before"], rows)
