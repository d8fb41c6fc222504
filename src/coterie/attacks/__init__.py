"""Attacks: what an honest but curious party computes from its view, and what one gets that deviates.

Each is a function of what that party holds (arrays in, a guess out), with a score beside it that takes the truth. The
score is a `Result`: the number, what chance gives, and how many clients were scored. An active attack also has what the
party does otherwise than the protocol says, to be wrapped around an honest one (`coterie.attacks.wrapping`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coterie.attacks.conflicts import (
    count_accuracy,
    count_among_decoys,
    count_posterior,
    expected_correlation,
    expected_count,
    size_correlation,
)
from coterie.attacks.identity import (
    Expected,
    claimed_accuracy,
    cluster_posterior,
    common_false,
    estimated_sizes,
    expected_accuracy,
    identity_accuracy,
    intersection_posterior,
)
from coterie.attacks.identity_changes import change_posterior, expected_after_change
from coterie.attacks.identity_estimates import expected_by_estimates
from coterie.attacks.key_in_sum import key_agreement, read_key
from coterie.attacks.label_shares import (
    label_shares,
    label_shares_from_bias,
    last_bias,
    share_correlation,
    top_label_hit_rate,
)
from coterie.attacks.model_recovery import recover_from_colluder, recover_from_start, recovery_error
from coterie.attacks.real_mask import expected_told_apart, needed_bound, telling_accuracy, told_apart
from coterie.attacks.relink import relink, relink_accuracy, relink_by_profiles
from coterie.attacks.result import Result
from coterie.attacks.scalar_mask import unmask_scalar, unmasking_error
from coterie.attacks.similarity import group_ari, pair_auc, pair_correlation, similar_pairs, telling


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
_C = ("mingledpie",)
_E = ("pafed",)

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
        Attack(
            "cluster-identity",
            _C,
            "server",
            "each client's identity set of one round",
            "guesses a client's true cluster among those that it joins, all equally likely",
            cluster_posterior,
            (identity_accuracy,),
        ),
        Attack(
            "cluster-identity-by-size",
            _C,
            "server knowing or estimating the clusters' sizes",
            "each client's identity set of one round, the sizes (or the false positive rate to estimate them)",
            "guesses the largest of the clusters that a client joins",
            cluster_posterior,
            (identity_accuracy,),
        ),
        Attack(
            "identity-intersection",
            _C,
            "server",
            "each client's identity sets of several rounds",
            "finds a client's true cluster as the one that is in all sets that it drew",
            intersection_posterior,
            (identity_accuracy,),
        ),
        Attack(
            "identity-changes",
            _C,
            "server",
            "one client's different identity sets under the same keys",
            "finds a client's true cluster from the sets of the other clusters that it has been in",
            change_posterior,
            (identity_accuracy,),
        ),
        Attack(
            "conflict-count",
            _E,
            "helper",
            "the signs of masked cosines of one round, how many late updates and dummies there are",
            "guesses how many late updates conflict with the others",
            count_posterior,
            (count_accuracy,),
        ),
        Attack(
            "real-mask",
            _E,
            "helper",
            "a model under a mask of real numbers, two models that it may be",
            "tells two models apart by what the mask's range allows (no mode masks so)",
            told_apart,
            (telling_accuracy,),
        ),
        Attack(
            "key-in-sum",
            _E,
            "one client, deviating",
            "how the model changed where the client forged a ciphertext, the helper's public key",
            "reads the helper's secret key off the model that it is handed",
            read_key,
            (key_agreement,),
        ),
    )
}

__all__ = [
    "ATTACKS",
    "Attack",
    "Expected",
    "Result",
    "change_posterior",
    "claimed_accuracy",
    "cluster_posterior",
    "common_false",
    "count_accuracy",
    "count_among_decoys",
    "count_posterior",
    "estimated_sizes",
    "expected_accuracy",
    "expected_after_change",
    "expected_by_estimates",
    "expected_correlation",
    "expected_count",
    "expected_told_apart",
    "group_ari",
    "identity_accuracy",
    "intersection_posterior",
    "key_agreement",
    "label_shares",
    "label_shares_from_bias",
    "last_bias",
    "needed_bound",
    "pair_auc",
    "pair_correlation",
    "read_key",
    "recover_from_colluder",
    "recover_from_start",
    "recovery_error",
    "relink",
    "relink_accuracy",
    "relink_by_profiles",
    "share_correlation",
    "similar_pairs",
    "size_correlation",
    "telling",
    "telling_accuracy",
    "told_apart",
    "top_label_hit_rate",
    "unmask_scalar",
    "unmasking_error",
]
