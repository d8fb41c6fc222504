"""Clients tested on other label mixes than their own."""

import numpy as np
import torch

from benchmarks.cells import MIXES, other_test
from coterie.runs.on_data import ClientData, TensorSamples


def test_drawn_labels_are_uniform_over_the_classes_of_the_mix() -> None:
    y = torch.tensor([0] * 50 + [1] * 5 + [2] * 5)
    test_set = TensorSamples(torch.zeros(60, 2), y)
    own = ClientData(torch.zeros(3, 2), torch.tensor([0, 1, 1]), test_set=test_set, tests=np.arange(3000) % 60)
    draw = np.random.default_rng(0)
    for mix, classes in ((MIXES[1], 2), (MIXES[2], 3)):
        counts = np.bincount(y[other_test(own, mix, draw).test], minlength=3)
        assert counts.sum() == 3000
        assert (counts > 0).sum() == classes
        assert abs(counts[:classes] - 3000 / classes).max() < 150
