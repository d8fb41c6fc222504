"""The job in Flower's simulation, with Ray: ``python flower_job.py``; its work is in the environment (``jobs.Job``)."""

import os
import sys

import flower_client
import network
import torch
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

server = ServerApp()


def score(_, arrays):
    """Accuracy of the global model on the whole test set, after every round."""
    module = nn.Sequential(*network.layers())
    module.load_state_dict(arrays.to_torch_state_dict())
    x, y = flower_client.samples("test")
    with torch.inference_mode():
        hits = sum(int((module(x[at : at + 500]).argmax(1) == y[at : at + 500]).sum()) for at in range(0, len(x), 500))
    return MetricRecord({"accuracy": hits / len(x)})


@server.main()
def main(grid, _):
    """Run all rounds; print the last accuracy."""
    strategy = FedAvg(
        fraction_train=float(os.environ["JOB_SHARE"]),
        fraction_evaluate=0.0,
        min_available_nodes=int(flower_client.CLIENTS),
    )
    start = ArrayRecord(nn.Sequential(*network.layers()).state_dict())
    result = strategy.start(grid, start, num_rounds=int(os.environ["JOB_ROUNDS"]), evaluate_fn=score)
    last = result.evaluate_metrics_serverapp[int(os.environ["JOB_ROUNDS"])]
    sys.stdout.write(f"accuracy {last['accuracy']}\n")


if __name__ == "__main__":
    actors = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, flower_client.app, num_supernodes=int(flower_client.CLIENTS), backend_config=actors)
