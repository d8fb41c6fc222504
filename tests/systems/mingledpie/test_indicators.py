"""Encrypted indicators that are not one-hot: what one does to everybody, what the others notice, and what they can't.

The server sees ciphertexts. Clients see what all indicators sum up to, and refuse what one-hot ones can't have given;
who it was, nobody can tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mingledpie_parts as parts
import numpy as np
import pytest
from federation import Rig, misbehaving, planted

from coterie.aggregation import mingled
from coterie.systems.mingledpie.messages import Train, Update

THETA = parts.trained(parts.near(), parts.TARGETS, parts.GROUPS)
MEANS = parts.cluster_means(THETA, parts.GROUPS, parts.near())
N = len(parts.GROUPS)


def lying(run: Rig, name: str, sigma: Sequence[float], identities: Sequence[int] | None = None) -> None:
    """From now on this client's indicator is sigma, and its set what is said."""

    def make(party: Any, request: Train, update: Update) -> Update:
        if identities is not None:
            update = parts.signed(party, parts.change(update, identities=np.array(identities, np.int64)))
        return parts.with_indicator(party, update, sigma)

    misbehaving(run.party(name), Train, make)


def blind(patch: pytest.MonkeyPatch) -> None:
    """Clients that look at nothing: the coefficients are taken as they come."""
    patch.setattr(mingled, "implausible", lambda *_: "")
    patch.setattr(mingled, "round_counts", lambda x, *_: np.rint(x).astype(np.int64))


def off(run: Rig) -> np.ndarray:
    """(k,): how far each rebuilt model is from the mean of its cluster."""
    return np.abs(parts.held(run) - MEANS).max(axis=1)


# -- detected ----------------------------------------------------------------------------------------------------------

WRONG = {
    "nothing": (0, 0, 0),
    "two hot": (1, 1, 0),
    "half": (0.5, 0.5, 0),
    "negative": (-1, 0, 0),
    "very large": (20, -10, -9),
    "fractional and shifted": (1.5, -0.5, 0),
}


CASES = [(name, *parts.FORMS[0]) for name in WRONG] + [("half", *form) for form in parts.FORMS[1:]]


@pytest.mark.parametrize(("name", "mode", "hardening"), CASES)
def test_the_others_notice_keep_their_models_and_say_why(name: str, mode: str, hardening: str) -> None:
    """Also the liar itself, which opens what all open. Nothing is refused by name: nobody knows whose it was."""
    run = parts.pies(mode=mode, hardening=hardening)
    lying(run, "client/0", WRONG[name])
    note = run.round(1)
    assert note["participants"] == N
    assert note["rebuilt"] == {"by": 0, "refused_by": N}
    assert dict(run.refused) == {}
    for client in parts.EVERYBODY:
        assert parts.held(run, client).tobytes() == parts.near().tobytes()
    why = run.party("client/5").state.why
    assert why.endswith("so all models were kept")
    reasons = (
        "no whole number",
        "by their indicators",
        "by the diagonal",
        "below 0",
        "are truly in",
        "no sum of 12 values",
    )
    assert any(reason in why for reason in reasons)
    seen = run.system.observe(run.federation)
    assert (seen["why_kept"], seen["kept_by"]) == ([why], N)


def test_a_lie_that_only_the_threshold_gives_away() -> None:
    """(1, 1, -1) in all three sets: rows, diagonal and total are as they must be. But of cluster 2, whose four clients
    are in two sets each, three would be in five.
    """
    run = parts.pies(max_condition=1e6)
    parts.joining(run, [[0, 1, 2], *[[g, (g + 1) % 3] for g in parts.GROUPS[1:8]], [0, 2], [0, 2], [1, 2], [1, 2]])
    lying(run, "client/0", (1, 1, -1), identities=(0, 1, 2))
    assert run.round(1)["rebuilt"] == {"by": 0, "refused_by": N}
    why = "the 3 clients of cluster 2 are in 5 sets in all, not in 2 each, so all models were kept"
    assert run.party("client/1").state.why == why


def test_what_the_cipher_has_no_room_for_can_not_be_encrypted() -> None:
    run = parts.pies(mode="hardened", hardening="uploads")
    lying(run, "client/0", WRONG["very large"])
    note = run.round(1)
    assert note["participants"] == N - 1
    assert next(iter(run.refused)).startswith("client/Train: value ")


@pytest.mark.parametrize(("mode", "hardening"), parts.EACH_FORM)
def test_after_a_refused_round_the_next_one_is_as_ever(mode: str, hardening: str) -> None:
    run = parts.pies(mode=mode, hardening=hardening)
    honest = run.party("client/0").handlers
    lying(run, "client/0", (0.5, 0.5, 0))
    run.round(1)
    type(run.party("client/0")).handlers = honest
    note = run.round(2)
    assert note["rebuilt"] == {"by": N, "refused_by": 0}
    assert note["behind"] == []
    assert off(run).max() < (1.0 if mode == "paper" else 1e-5)


# -- what it would do --------------------------------------------------------------------------------------------------


def test_without_looking_one_client_shrinks_everybodys_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """An indicator of 40 counts one client as forty: its cluster's model shrinks, and drags the others along."""
    honest = parts.pies()
    honest.round(1)
    blind(monkeypatch)
    run = parts.pies()
    lying(run, "client/0", (40, 0, 0))
    assert run.round(1)["rebuilt"]["by"] == N
    assert np.abs(parts.held(run)[0]).max() < 0.5 * np.abs(MEANS[0]).max()
    assert (off(run)[1:] > 3 * off(honest)[1:]).any()


def test_without_looking_one_client_counts_several_times_in_exact_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    blind(monkeypatch)
    run = parts.pies(mode="hardened")
    lying(run, "client/0", (4, 0, 0))
    assert run.round(1)["rebuilt"]["by"] == N
    assert np.abs(parts.held(run)[0] - (THETA[:4].sum(axis=0) + 3 * THETA[0]) / 7).max() < 1e-5
    assert off(run)[1:].max() < 1e-5


# -- what slips through ------------------------------------------------------------------------------------------------


def test_the_one_hot_of_a_wrong_cluster_is_an_honest_clients_and_goes_through() -> None:
    """Nobody can tell it from a client whose data are nearest to that model: it is one member more, of any weights."""
    run = parts.pies(max_condition=1e6)
    lying(run, "client/0", (0, 1, 0), identities=(0, 1))
    note = run.round(1)
    assert note["rebuilt"] == {"by": N, "refused_by": 0}
    assert run.party("client/1").state.why == ""

    exact = parts.pies(mode="hardened")
    lying(exact, "client/0", (0, 1, 0))
    exact.round(1)
    mixed = (THETA[0] + THETA[4:8].sum(axis=0)) / 5
    assert np.abs(parts.held(exact)[1] - mixed).max() < 1e-5  # a fifth of the way to the other group
    assert np.abs(parts.held(exact)[0] - THETA[1:4].mean(axis=0)).max() < 1e-5
    assert np.abs(parts.held(exact)[2] - MEANS[2]).max() < 1e-5


def test_two_counts_that_are_shifted_consistently_slip_through() -> None:
    """(2, -1, 0): twice in one cluster, and away from another. All counts are such as one-hot indicators give, and both
    models are wrong: the first has its weights twice, the second without them, divided by one less.
    """
    run = parts.pies(mode="hardened")
    lying(run, "client/0", (2, -1, 0))
    note = run.round(1)
    assert note["rebuilt"] == {"by": N, "refused_by": 0}
    assert run.party("client/1").state.why == ""
    assert np.abs(parts.held(run)[0] - (THETA[:4].sum(axis=0) + THETA[0]) / 5).max() < 1e-5
    assert np.abs(parts.held(run)[1] - (THETA[4:8].sum(axis=0) - THETA[0]) / 3).max() < 1e-5
    assert off(run)[1] > 1
    assert off(run)[2] < 1e-5


def test_the_same_shift_in_mingled_form_spoils_more_than_the_two() -> None:
    """What is solved is another system: the third model is off, too, though members are equal and a round is exact."""
    targets = planted(parts.GROUPS, 20, apart=3.0, within=0.0)
    run = parts.pies(targets)
    lying(run, "client/0", (2, -1, 0), identities=(0, 1, 2))
    note = run.round(1)
    assert note["rebuilt"] == {"by": N, "refused_by": 0}
    assert run.party("client/1").state.why == ""
    sums, h = parts.mingled_sums(targets, parts.GROUPS, parts.joined_sets(note))
    assert np.abs(parts.held(run) - parts.solved(sums, h + np.array([1, -1, 0]), parts.near())).max() < 1e-4
    assert np.abs(parts.held(run)[2] - targets[8]).max() > 0.1


def test_two_that_lie_together_slip_through_with_fractions() -> None:
    """Their indicators sum up to those of two honest clients."""
    run = parts.pies(mode="hardened", hardening="uploads")
    lying(run, "client/0", (0.25, 1.5, -0.75))
    lying(run, "client/4", (0.75, -0.5, 0.75))
    assert run.round(1)["rebuilt"]["by"] == N
    assert off(run).min() > 0.5
