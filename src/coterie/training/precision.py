"""Precision of the products: float32, or bfloat16 with float32 master weights."""

from __future__ import annotations

import torch

from coterie.protocol.errors import UserError

PRECISIONS = ("fp32", "bf16", "auto")


def has_fast_bf16(device: str = "cpu") -> bool:
    """Whether bfloat16 products pay: matrix units in the CPU (AMX), or a GPU that has them."""
    if torch.device(device).type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_amx_tile_supported())


def products(precision: str, device: str) -> torch.dtype:
    """The dtype of products for a ``--precision``; UserError for an unknown precision or an unusable device."""
    if precision not in PRECISIONS:
        raise UserError(f"unknown precision {precision!r}: choose one of {', '.join(PRECISIONS)}")
    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        raise UserError(f"unknown device {device!r}: choose cpu, cuda or cuda:N")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device {device!r}: this machine, or this build of torch, has no usable GPU; use cpu")
    if precision == "auto":
        precision = "bf16" if has_fast_bf16(device) else "fp32"
    return torch.bfloat16 if precision == "bf16" else torch.float32
