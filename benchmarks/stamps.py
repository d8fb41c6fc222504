"""Which command made a part of a record, of which version, when and on what: the parts of one file may differ."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import torch

import coterie
from coterie.record.provenance import commit
from coterie.training.jobs import has_fast_bf16


def machine() -> dict[str, Any]:
    """What numbers depend on. load: of the last minutes, so ask before the work."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    facts = {key.strip(): value.split() for key, _, value in (line.partition(":") for line in lines)}
    vector = ("avx2", "avx512f", "avx512_bf16", "amx", "fma")
    return {
        "cpu": " ".join(facts.get("model name", [])) or platform.processor(),
        "vector_flags": sorted(flag for flag in facts.get("flags", []) if flag.startswith(vector)),
        "fast_bf16": has_fast_bf16(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "load": os.getloadavg(),
    }


def stamp(command: str) -> dict[str, Any]:
    """Of what is measured from now on. command: makes the same part again."""
    made = {"command": command, "version": coterie.__version__, "commit": commit()}
    return {**made, "date": time.strftime("%Y-%m-%d"), "machine": machine()}
