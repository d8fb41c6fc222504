"""The theft of PAFed's helper key as the documentation has it: secure real keys, digits, an MLP, default settings."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from coterie.privacy.attacks.key_in_sum import key_coefficients
from coterie.privacy.audits.pafed import by_theft, steal
from coterie.privacy.views import held_key
from coterie.runs import RunConfig
from coterie.runs.recorded import record
from coterie.systems.pafed.messages import HELPER, SERVICE


@pytest.mark.long
def test_one_client_of_twelve_has_the_key_within_ten_rounds() -> None:
    config = RunConfig("pafed", clients=12, rounds=10, model="mlp", record=True)
    run, thief = steal(partial(record, config), "client/4")
    key, updates = by_theft("client/4", run, thief)
    assert key.round is not None
    assert key.results[0].value == 1.0
    truth = held_key(run.views[HELPER], SERVICE)
    assert truth.size == "ckks-8192-deep"
    np.testing.assert_array_equal(thief.guess, key_coefficients(truth))
    assert (updates.results[0].value, updates.results[0].n) == (0.0, 11)
    assert run.lines[-1]["global_accuracy"] > 0.7


@pytest.mark.long
def test_where_uploads_are_padded_it_reads_nothing() -> None:
    config = RunConfig("pafed", mode="hardened", clients=12, rounds=10, model="mlp", record=True)
    run, thief = steal(partial(record, config), "client/4")
    (key,) = by_theft("client/4", run, thief)
    (agreement,) = key.results
    assert thief.key is None
    assert len(thief.forged_in) > 1
    assert abs(agreement.value - agreement.chance) < 3 * np.sqrt(2 * agreement.chance * (1 - agreement.chance) / 8192)
    assert run.lines[-1]["global_accuracy"] > 0.7
