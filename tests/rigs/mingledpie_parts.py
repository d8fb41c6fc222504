"""MingledPie under test: federations that start where groups can be told apart, updates to forge, and a slow twin.

The twin is written from the paper's equations with plain loops over plain arrays: no parties, no ciphers, no forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from federation import Rig, misbehaving, planted, rig

from coterie.crypto import roster
from coterie.crypto.ckks_parameters import PARAMETERS
from coterie.protocol.messages import bundle, unbundle
from coterie.systems.mingledpie import SYSTEM
from coterie.systems.mingledpie.config import UNUSED
from coterie.systems.mingledpie.messages import Train, Update

K, SIZE = 3, 20
GROUPS = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
TARGETS = planted(GROUPS, SIZE, apart=3.0)
EVERYBODY = [f"client/{i}" for i in range(len(GROUPS))]
FORMS = [("paper", "products"), ("hardened", "uploads"), ("hardened", "products")]
"""Mode and hardening of each kind of ``layout.py``."""
EACH_FORM = [FORMS[0], *(pytest.param(*form, marks=pytest.mark.long) for form in FORMS[1:])]
REALLY = [pytest.param(True, id="emulated"), pytest.param(False, id="real", marks=pytest.mark.long)]
FLOAT32 = 2.0**-22  # a few roundings of a number near 1

change = msgspec.structs.replace


def near(targets: np.ndarray = TARGETS, groups: Sequence[int] = GROUPS) -> np.ndarray:
    """(k, d) start models, each a tenth of the way towards its group: every client knows its cluster from round 1."""
    groups = np.array(groups)
    return np.stack([0.1 * targets[groups == g].mean(axis=0) for g in range(max(groups) + 1)]).astype(np.float32)


def pies(targets: np.ndarray = TARGETS, *, starts: np.ndarray | None = None, **options: Any) -> Rig:
    """A federation with these start models; lr = 1, so that a trained model is its client's target exactly.

    How sure a rebuild must be, and how hardened mode is hardened, may be said for all modes here and count where they
    mean something.
    """
    starts = near() if starts is None else starts
    unused = {"max_condition", "hardening"} & set(UNUSED[options.get("mode", "paper")])
    options = {name: value for name, value in options.items() if name not in unused}
    return rig(SYSTEM, targets, starts=starts, **{"clusters": len(starts), "lr": 1.0, "seed": 1, **options})


def chosen(run: Rig) -> list[int]:
    """Everybody's true cluster."""
    return [run.party(name).cluster() for name in run.common.clients]


def held(run: Rig, name: str = "client/0") -> np.ndarray:
    """(k, d) of one client."""
    return np.array(run.party(name).models())


def joined_sets(note: dict[str, Any], k: int = K) -> np.ndarray:
    """(clients, k) bool of what a round's note says of identity sets."""
    sets = np.zeros((len(note["membership"]), k), bool)
    for row, own in zip(sets, note["membership"], strict=True):
        row[own] = True
    return sets


def parameters(mode: str, hardening: str) -> Any:
    products = mode == "hardened" and hardening == "products"
    return PARAMETERS["ckks-8192-mul" if products else "ckks-4096-add"]


def cipher_error(mode: str, hardening: str, terms: int, h: np.ndarray | None = None) -> float:
    """The stated bound on a model's weight: of a sum of so many, solved for (h) or divided by at least one."""
    used = parameters(mode, hardening)
    form = used.fresh._replace(level=0) if used.levels else None
    error = used.error(terms, form)
    return error if h is None else error * float(np.abs(np.linalg.pinv(h)).sum(axis=1).max())


# -- the slow twin -----------------------------------------------------------------------------------------------------


def choices(models: np.ndarray, targets: np.ndarray) -> list[int]:
    """Eq. (2) with the loss |theta - target|^2 / 2."""
    found = []
    for target in targets:
        losses = [0.5 * float(((theta - target) ** 2).sum()) for theta in models.astype(np.float64)]
        found.append(losses.index(min(losses)))
    return found


def trained(models: np.ndarray, targets: np.ndarray, true: Sequence[int], lr: float = 1.0) -> np.ndarray:
    """Algorithm 3, line 14, of one full-batch step: (clients, d)."""
    return np.stack([models[b] + lr * (t - models[b]) for b, t in zip(true, targets, strict=True)])


def mingled_sums(theta: np.ndarray, true: Sequence[int], sets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eq. (5): |G_a| times the mingled models (k, d); eq. (6): H (k, k)."""
    k = sets.shape[1]
    sums, h = np.zeros((k, theta.shape[1])), np.zeros((k, k))
    for i, own in enumerate(sets):
        for a in range(k):
            if own[a]:
                sums[a] += theta[i]
                h[a, true[i]] += 1
    return sums, h


def solved(sums: np.ndarray, h: np.ndarray, previous: np.ndarray) -> np.ndarray:
    """Eq. (7): H theta* = sums; a cluster that nobody was in keeps its previous model."""
    models = np.array(previous, np.float64)
    live = h.any(axis=0)
    models[live] = np.linalg.lstsq(h[:, live], sums, rcond=None)[0]
    return models


def cluster_means(theta: np.ndarray, true: Sequence[int], previous: np.ndarray) -> np.ndarray:
    """What all of it approximates: the mean model of each true cluster."""
    models = np.array(previous, np.float64)
    for b in range(len(models)):
        members = [theta[i] for i in range(len(theta)) if true[i] == b]
        if members:
            models[b] = sum(members) / len(members)
    return models


# -- forging -----------------------------------------------------------------------------------------------------------


def signed(party: Any, update: Update) -> Update:
    """The update with a good signature of this client over whatever it says."""
    return roster.signed(party.own, update)


def key_of(party: Any) -> Any:
    return party.keys.own("user")


def parts_of(party: Any, update: Update) -> list[bytes]:
    return unbundle(update.ciphers, len(party.layout.lengths))


def with_part(party: Any, update: Update, index: int, cipher: bytes) -> Update:
    """One ciphertext replaced, everything signed."""
    parts = parts_of(party, update)
    parts[index] = cipher
    return signed(party, change(update, ciphers=bundle(parts)))


def with_indicator(party: Any, update: Update, sigma: Sequence[float]) -> Update:
    """The honest update with another indicator sigma (k,), under encryption, in whatever form (emulated for products).

    ``encrypt_scalar`` takes numbers within +-1 only; a liar scales the ciphertext and doesn't say so.
    """
    layout, key = party.layout, key_of(party)
    opened = [key.decrypt(key.public.from_bytes(part)) for part in parts_of(party, update)]
    sigma = np.asarray(sigma, float)
    if layout.kind == "mingled":
        vector = np.concatenate([opened[0][: layout.own], sigma])
        return with_part(party, update, 0, key.encrypt(vector).to_bytes())
    if layout.kind == "uploads":
        blocks = opened[0].reshape(layout.clusters, layout.own + 1)
        theta = blocks[:, : layout.own].sum(axis=0)
        vector = np.concatenate([np.append(theta * s, s) for s in sigma])
        return with_part(party, update, 0, key.encrypt(vector).to_bytes())
    for b, s in enumerate(sigma):
        one = key.encrypt_scalar(1.0)
        scaled = replace(one, array=np.rint(one.array * s).astype(np.int64))
        update = with_part(party, update, 1 + b, scaled.to_bytes())
    return update


def joining(run: Rig, *sets: list[list[int]]) -> None:
    """Everybody joins what is said for round 1, 2, ..."""

    def make(party: Any, request: Train, update: Update) -> Update:
        own = sets[request.round - 1][EVERYBODY.index(party.name)]
        return signed(party, change(update, identities=np.array(sorted(own), np.int64)))

    for name in EVERYBODY:
        misbehaving(run.party(name), Train, make)
