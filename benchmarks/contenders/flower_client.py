"""A client of the job in Flower, in a module of its own: Ray would send one from ``__main__`` anew with every message.

Tuned as its users can: data are read once a process, an epoch is shuffled by one index, and nothing is scored here.
"""

import functools
import os

import network
import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

CLIENTS, EPOCHS, BATCH, RATE = (float(os.environ[f"JOB_{name}"]) for name in ("CLIENTS", "EPOCHS", "BATCH", "RATE"))
app = ClientApp()


@functools.cache
def samples(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (n, 1, 28, 28) in [0, 1] and labels (n,)."""
    with np.load(os.environ["JOB_DATA"]) as data:
        x = torch.from_numpy(data[f"x_{split}"].reshape(-1, 1, 28, 28).astype(np.float32) / 255)
        return x, torch.from_numpy(data[f"y_{split}"].astype(np.int64))


@app.train()
def train(message, context):
    """Local SGD from the global model on this client's share."""
    module = nn.Sequential(*network.layers())
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = samples("train")
    size = len(x) // int(CLIENTS)
    first = int(context.node_config["partition-id"]) * size
    x, y = x[first : first + size], y[first : first + size]
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, foreach=True)
    for _ in range(int(EPOCHS)):
        for rows in torch.split(torch.randperm(size), int(BATCH)):
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
            optimizer.step()
    content = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": size})}
    return Message(content=RecordDict(content), reply_to=message)
