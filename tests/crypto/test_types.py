"""What a scheme can't do, its classes don't have: neither at run time nor for mypy. A twin has the same types."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coterie.crypto import ckks, paillier

SOURCE = Path(__file__).resolve().parents[2] / "src"

PROGRAM = """
import os

from coterie.crypto import ckks, paillier, sum_ciphers

one, two = paillier.keygen(), ckks.keygen("ckks-8192-deep", emulated=True)
a, b, keys = one.public.encrypt([0.5]), two.public.encrypt([0.5]), two.evaluation()
scalar = two.encrypt_scalar(0.5, level=2)
b.dot(b.conjugated(keys), keys).times_plain(0.5).at_level(0).to_bytes()
b.at_level(2).times(scalar).rescaled().sanitised().within(1)
b.split(8192)[0].joined(b)
a.scale(2).add_plain([0.5]).blind(one.public.mask(1, os.urandom)).to_bytes()
opened = one.open_blinded(a)
opened.minus(opened + opened).sum()
one.decrypt_integers(sum_ciphers([a, a])).sum()
two.decrypt(sum_ciphers([b, b])).sum()
one.public.layout.lanes.max_terms
a.dot(b, keys)  # refused
a.times(b)  # refused
a.times_plain(0.5)  # refused
a.rescaled()  # refused
a.at_level(0)  # refused
a.within(1)  # refused
a.sanitised()  # refused
a.split(1)  # refused
a.joined(a)  # refused
a.conjugated(keys)  # refused
one.encrypt_scalar(0.5)  # refused
one.public.encrypt_scalar(0.5)  # refused
one.public.encrypt([0.5], level=1)  # refused
one.public.fresh_scalar  # refused
one.public.without_products()  # refused
one.public.nominal_seconds_times(1)  # refused
one.public.nominal_seconds_rescale(1)  # refused
one.public.mask(1, os.urandom, 0)  # refused
one.evaluation()  # refused
two.decrypt_integers(b)  # refused
two.public.layout  # refused
two.open_blinded(b).minus(two.open_blinded(b))  # refused
a + b  # refused
b + a  # refused
one.decrypt(b)  # refused
two.decrypt(a)  # refused
two.open_blinded(a)  # refused
b.times(a)  # refused
b.dot(a, keys)  # refused
b.conjugated(two)  # refused
"""
"""A program that uses both schemes: what is marked must be refused, and nothing else."""


@pytest.mark.long
def test_mypy_refuses_what_a_scheme_cannot_do(tmp_path: Path) -> None:
    """About 20 s. A line that is refused without a mark, or marked and not refused, is a failure."""
    (tmp_path / "program.py").write_text(PROGRAM)
    options = "--strict", "--cache-dir", str(tmp_path / "cache"), "--follow-imports", "silent"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "program.py"],
        cwd=tmp_path,
        env={"MYPYPATH": str(SOURCE), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    found = {int(line.split(":")[1]) for line in done.stdout.splitlines() if line.startswith("program.py:")}
    marked = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# refused")}
    assert found == marked, done.stdout + done.stderr


LACKS_PRODUCTS = ("times", "times_plain", "rescaled", "at_level", "within", "sanitised", "split", "joined", "dot")


@pytest.mark.parametrize("emulated", [False, True])
def test_neither_has_them_when_it_runs(emulated: bool) -> None:
    key, other = (
        paillier.keygen(512, emulated=emulated, allow_insecure=True),
        ckks.keygen("insecure-1024-add", emulated=emulated, allow_insecure=True),
    )
    for name in LACKS_PRODUCTS:
        assert not hasattr(key.encrypt([0.5]), name)
        assert hasattr(other.encrypt([0.5]), name)
    for name in ("encrypt_scalar", "evaluation"):
        assert not hasattr(key, name)
    assert not hasattr(other.public, "layout")
    assert not hasattr(other, "decrypt_integers")
    assert not hasattr(ckks.BlindedVector, "minus")


def test_a_twin_has_the_types_of_the_real() -> None:
    for scheme, size in ((paillier, 512), (ckks, "insecure-1024-add")):
        real, twin = (scheme.keygen(size, emulated=emulated, allow_insecure=True) for emulated in (False, True))
        assert (real.emulated, twin.emulated) == (real.public.emulated, twin.public.emulated) == (False, True)
        assert type(real) is type(twin)
        assert type(real.encrypt([0.5])) is type(twin.encrypt([0.5]))
        assert (real.encrypt([0.5]).emulated, twin.encrypt([0.5]).emulated) == (False, True)


@pytest.mark.parametrize(("scheme", "size"), [(paillier, 512), (ckks, "insecure-1024-add")])
def test_decoded_vectors_of_a_twin_are_read_only_views(scheme: Any, size: Any) -> None:
    key = scheme.keygen(size, emulated=True, allow_insecure=True)
    cipher = key.public.from_bytes(key.public.encrypt([1.0] * 20).to_bytes())
    held = cipher.array if scheme is ckks else cipher.array.words
    assert not held.flags.writeable
    assert not held.flags.owndata
