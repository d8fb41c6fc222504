"""The job's model in PyTorch, for frameworks that train its modules."""

import os

import torch
from torch import nn


def layers() -> list[nn.Module]:
    """For images (n, 1, 28, 28); the last gives logits (n, 10)."""
    if os.environ["JOB_MODEL"] == "mlp":
        return [nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 100), nn.ReLU(), nn.Linear(100, 10)]
    convolutions = [
        nn.Conv2d(1, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
    return [*convolutions, nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10)]


class WithHead(nn.Module):
    """Its last layer is ``fc``, by which PFLlib cuts a model into base and head."""

    def __init__(self, *_, **__):
        super().__init__()
        *body, self.fc = layers()
        self.body = nn.Sequential(*body)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (n, 10)."""
        return self.fc(self.body(x))
