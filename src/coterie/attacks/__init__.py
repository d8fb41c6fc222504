"""Attacks: what an honest but curious party computes from its view, and what one gets that deviates.

Each is a function of what that party holds (arrays in, a guess out), with a score beside it that takes the truth. The
score is a `Result`: the number, what chance gives, and how many clients were scored. An active attack also has what the
party does otherwise than the protocol says, to be wrapped around an honest one (`coterie.attacks.wrapping`).
"""

from __future__ import annotations

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
from coterie.attacks.result import Attack, Result
from coterie.attacks.similarity import group_ari, pair_auc, pair_correlation, similar_pairs, telling

__all__ = [
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
]
