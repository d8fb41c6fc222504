"""Clients tested on other label mixes than their own."""

import numpy as np
import torch

from coterie.record.comparison import MIXES
from coterie.runs.forms import of_mix
from coterie.runs.on_data import ClientData, TensorSamples


def test_drawn_labels_are_uniform_over_the_classes_of_the_mix() -> None:
    y = torch.tensor([0] * 50 + [1] * 5 + [2] * 5)
    test_set = TensorSamples(torch.arange(60.0)[:, None], y)
    own = ClientData(torch.zeros(3, 2), torch.tensor([0, 1, 1]), test_set=test_set, tests=np.arange(3000) % 60)
    assert [*MIXES] == ["local", "own_classes", "all_classes"]
    assert torch.equal(of_mix(own, "local", 0, "client/0").y, y[own.test])
    for mix, classes in (("own_classes", 2), ("all_classes", 3)):
        drawn = of_mix(own, mix, 0, "client/0")
        assert torch.equal(y[drawn.x[:, 0].long()], drawn.y)
        counts = np.bincount(drawn.y, minlength=3)
        assert counts.sum() == 3000
        assert (counts > 0).sum() == classes
        assert abs(counts[:classes] - 3000 / classes).max() < 150
