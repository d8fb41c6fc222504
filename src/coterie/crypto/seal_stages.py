"""Maps of slots by diagonals, over SEAL, and the scale of plaintext factors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tenseal.sealapi import Ciphertext, Plaintext  # type: ignore[import-untyped]

from coterie.crypto.seal import Handle, Ring
from coterie.crypto.stages import Stage
from coterie.crypto.tally import Form


def mapped(ring: Ring, cipher: Handle, stage: Stage, turns: Sequence[tuple[int, Handle]], form: Form) -> None:
    """One ciphertext of this form, mapped in place and rescaled. turns: element and key of a baby and a giant step."""
    seal, (baby, small), (giant, large) = ring.evaluator, *turns
    rows, total, term = [cipher], Ciphertext(ring.context), Ciphertext(ring.context)
    for _ in range(stage.baby - 1):
        seal.apply_galois(rows[-1], baby, small, turned := Ciphertext(ring.context))
        rows.append(turned)
    plaintexts, empty = encoded(ring, stage, form.level), True
    for g in range(stage.giants - 1, -1, -1):
        if not empty:
            seal.apply_galois_inplace(total, giant, large)
        for b, row in enumerate(rows):
            if (g, b) not in plaintexts:
                continue
            seal.multiply_plain(row, plaintexts[g, b], total if empty else term)
            if not empty:
                seal.add_inplace(total, term)
            empty = False
    seal.rescale_to_next(total, cipher)


def factor(ring: Ring, form: Form) -> float:
    """The scale of plaintexts whose products, rescaled, have the scale of the level below."""
    return ring.scale(form._replace(level=form.level - 1)) * float(ring.moduli[form.level, 0]) / ring.scale(form)


@lru_cache(maxsize=16)
def encoded(ring: Ring, stage: Stage, level: int) -> dict[tuple[int, int], Handle]:
    """A stage's diagonals as plaintexts that lead to the scale of the level below. Encoded once a process."""
    made = {}
    for place, row in stage.diagonals.items():
        ring.encoder.encode(row.tolist(), ring.ids[level], factor(ring, Form(level)), plaintext := Plaintext())
        made[place] = plaintext
    return made
