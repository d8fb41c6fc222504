"""Tables 2 to 4 and figures 3 to 5 of "FedEPC", section 4: 50 devices, three data sets, Dir(1) to Dir(.05).

What the paper leaves open is settled as follows. Every method has the same devices, rounds, epochs and learning rate,
which was chosen on FedAvg's column alone; docs/reproduction/fedepc.md says how. Each trains a fifth of the devices a
round. FedEPC's panels get models beyond that, to measure them. The paper's CNN is not described, so ``lenet`` stands
for it. A device has about 200 training samples. In ``mnist-mlp`` and ``fashion_mnist-mlp`` the model is 784-200-100-10,
so that a CPU suffices. The paper draws each device's label proportions from Dir(alpha): that is ``hsu:10 ALPHA`` here,
since ``hsu`` takes the concentration of all ten classes together. ``dirichlet:ALPHA`` spreads each class over the
devices instead. Latency is read off the virtual clock of the fleet ``mixed``, with the set-up. The paper does not say
whether its test accuracy is that of each device's model on the whole test set (``global``) or on test data of the
device's own distribution (``local``), so both stand beside its number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.reproductions.study import Curve, spread
from papers import tables


def partition(form: str, alpha: float) -> str:
    """The partition that stands for the paper's Dir(alpha)."""
    return f"hsu:{10 * alpha:g}" if form == "hsu" else f"dirichlet:{alpha:g}"


def options(words: Mapping[str, Any], found: dict[str, Any]) -> None:
    found["partition"] = words["partition"] if "partition" in words else partition(words["form"], words["alpha"])
    if "merge" in words:
        found["settings"] |= {"theta_merge": words["merge"], "theta_split": words["split"]}
        if words["split"] < words["merge"]:
            found["settings"]["force_thresholds"] = True


def clock(found: Sequence[Curve], cell: Any, target: str, which: str) -> str | None:
    """Virtual seconds until the first round that reaches the target, mean and standard deviation over the seeds.

    Where some seeds never reach it: how many do, of how many. None where none does.
    """
    times = [curve.seconds_to(float(target), f"{which}_accuracy") for curve in found]
    known = [t for t in times if t is not None]
    if not known:
        return None
    mean, sd = spread(known)
    of = "" if len(known) == len(times) else f" ({len(known)} of {len(times)} seeds)"
    return f"{mean:.4g}" + ("" if sd is None else f" ± {sd:.3g}") + of


def clusters(found: Sequence[Curve], cell: tables.Entry) -> str | None:
    """How many clusters there were at the end, of each seed."""
    counts = [curve.grouping[-1]["clusters"] for curve in found if curve.grouping and curve.grouping[-1]]
    return ", ".join(map(str, counts)) or None


def ari(found: Sequence[Curve], cell: tables.Entry) -> str | None:
    values = [curve.grouping[-1]["ari"] for curve in found if curve.grouping and curve.grouping[-1]]
    known = [value for value in values if value is not None]
    if not known:
        return None
    mean, sd = spread(known)
    return f"{mean:.2f}" + ("" if sd is None else f" ± {sd:.2f}")


ITEMS = tables.items("fedepc", globals())
"""By name, as ``coterie reproduce`` takes them."""
