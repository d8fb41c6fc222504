"""One CKKS key that several parties hold shares of, so that nobody opens alone. docs/threshold.md is its page.

The public key is a ``ckks.PublicKey`` and what it encrypts is a ``ckks.CipherVector``: all of ``ckks`` works on it.
Only keys and opening are different.

    group = Group("threshold-8192-sum", ("a", "b", "c"), label=b"run 5, key 1")    # the same facts at everybody
    own = secret(group)                                  # each holder; then its part, committed to before it is sent
    key = joined(group, {"a": own.public(), ...})        # anybody
    share = own.share()                                  # n-of-n; t-of-n: own.dealt(), gathered()
    total = key.encrypt(x).scale(3) + key.encrypt(y)
    prepared = server_dec(group, total)                  # the server; prepared.request goes to the holders
    answer, answered = partial(group, share, prepared.request, "a", group.holders, zero, answered)    # each holder
    opened(group, prepared, {"a": answer, ...})          # the server: 3 x + y, to within group.error(total.terms)

``threshold_group``: the facts, noise and bounds.  ``_generation``: keys.  ``_sharing``: shares, handing over, zero.
``_opening``: ServerDec, PartDec, FinDec.  ``_pads``: joint pads.  ``_sums``: sums of these, whose c_1 holders compute
themselves.
"""

from __future__ import annotations

from coterie.crypto.threshold_generation import (
    Secret,
    commitment,
    dealt,
    evaluation,
    galois,
    joined,
    revealed,
    secret,
    with_products,
)
from coterie.crypto.threshold_group import OPENINGS, SECURITY_BITS, Group
from coterie.crypto.threshold_opening import Answered, Prepared, Request, opened, partial, server_dec
from coterie.crypto.threshold_pads import (
    Joining,
    Pad,
    Padded,
    Padding,
    contribution,
    joint,
    pad_partial,
    padded_error,
    padded_sum,
    sum_name,
)
from coterie.crypto.threshold_sharing import Share, Zero, gathered
from coterie.crypto.threshold_sums import SumRequest, sum_dec

__all__ = [
    "OPENINGS",
    "SECURITY_BITS",
    "Answered",
    "Group",
    "Joining",
    "Pad",
    "Padded",
    "Padding",
    "Prepared",
    "Request",
    "Secret",
    "Share",
    "SumRequest",
    "Zero",
    "commitment",
    "contribution",
    "dealt",
    "evaluation",
    "galois",
    "gathered",
    "joined",
    "joint",
    "opened",
    "pad_partial",
    "padded_error",
    "padded_sum",
    "partial",
    "revealed",
    "secret",
    "server_dec",
    "sum_dec",
    "sum_name",
    "with_products",
]
