"""Passive attacks: what an honest but curious party computes from its view.

Each is a function of what that party holds (arrays in, a guess out), with a score beside it that takes the truth. The
score is a `Result`: the number, what chance gives, and how many clients were scored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coterie.attacks.label_shares import (
    label_shares,
    label_shares_from_bias,
    last_bias,
    share_correlation,
    top_label_hit_rate,
)
from coterie.attacks.model_recovery import recover_from_colluder, recover_from_start, recovery_error
from coterie.attacks.relink import relink, relink_accuracy, relink_by_profiles
from coterie.attacks.result import Result
from coterie.attacks.scalar_mask import unmask_scalar, unmasking_error
from coterie.attacks.similarity import group_ari, pair_auc, pair_correlation, similar_pairs


@dataclass(frozen=True)
class Attack:
    """An attack as listed to a person.

    systems: names of the systems it applies to.  adversary: who runs it.  needs: the arrays it takes, in words.
    summary: what it finds out.  function: view -> guess.  scores: (guess, truth) -> `Result`.
    """

    name: str
    systems: tuple[str, ...]
    adversary: str
    needs: str
    summary: str
    function: Callable[..., Any]
    scores: tuple[Callable[..., Result], ...]


_CSP = "cloud service provider"
_A = ("fedcaprivacy",)

ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for attack in (
        Attack(
            "relink",
            _A,
            _CSP,
            "decrypted rows of two rounds",
            "follows shuffled clients from round to round by their differences from the mean row",
            relink,
            (relink_accuracy,),
        ),
        Attack(
            "relink-profiles",
            _A,
            _CSP,
            "distances between clients in two rounds",
            "follows shuffled clients from round to round where only distances are visible",
            relink_by_profiles,
            (relink_accuracy,),
        ),
        Attack(
            "label-shares",
            _A,
            _CSP,
            "decrypted rows of one round, the model's shape",
            "tells which classes a client has more of than others from the last layer's bias",
            label_shares,
            (share_correlation, top_label_hit_rate),
        ),
        Attack(
            "similar-pairs",
            _A,
            "business server",
            "the label matrix phi by identity",
            "tells which participants have similar data from the clusters that they share",
            similar_pairs,
            (pair_correlation, pair_auc),
        ),
        Attack(
            "scalar-mask",
            _A,
            _CSP,
            "decrypted rows of one round, blinded by one number",
            "takes off a scalar blinding factor by subtracting the mean of all entries (no mode blinds so)",
            unmask_scalar,
            (unmasking_error,),
        ),
        Attack(
            "models-from-start",
            _A,
            f"{_CSP} knowing the initial model",
            "decrypted rows of one round, the initial weights",
            "recovers all models up to the mean update",
            recover_from_start,
            (recovery_error,),
        ),
        Attack(
            "models-from-colluder",
            _A,
            f"{_CSP} with one colluding client",
            "decrypted rows of one round, one client's model and its row",
            "recovers all models exactly",
            recover_from_colluder,
            (recovery_error,),
        ),
    )
}

__all__ = [
    "ATTACKS",
    "Attack",
    "Result",
    "group_ari",
    "label_shares",
    "label_shares_from_bias",
    "last_bias",
    "pair_auc",
    "pair_correlation",
    "recover_from_colluder",
    "recover_from_start",
    "recovery_error",
    "relink",
    "relink_accuracy",
    "relink_by_profiles",
    "share_correlation",
    "similar_pairs",
    "top_label_hit_rate",
    "unmask_scalar",
    "unmasking_error",
]
