"""The job in FedJAX: ``python fedjax_job.py``; its work is in the environment (``jobs.Job``)."""

import os
import sys

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

CLIENTS, ROUNDS, EPOCHS, BATCH = (int(os.environ[f"JOB_{name}"]) for name in ("CLIENTS", "ROUNDS", "EPOCHS", "BATCH"))


def network(batch):
    """The job's model, for images (n, 28, 28, 1)."""
    if os.environ["JOB_MODEL"] == "mlp":
        return hk.nets.MLP([200, 100, 10])(batch["x"].reshape(len(batch["x"]), -1))
    h = batch["x"]
    for channels in (32, 64):
        h = hk.max_pool(jax.nn.relu(hk.Conv2D(channels, 5)(h)), (2, 2, 1), (2, 2, 1), "VALID")
    return hk.nets.MLP([512, 10])(h.reshape(len(h), -1))


def main():
    """Train, score after every round, print the last accuracy."""
    with np.load(os.environ["JOB_DATA"]) as data:
        sets = {
            split: (
                data[f"x_{split}"].reshape(-1, 28, 28, 1).astype(np.float32) / 255,
                data[f"y_{split}"].astype(np.int32),
            )
            for split in ("train", "test")
        }
    x, y = sets["train"]
    size = len(x) // CLIENTS
    shares = {
        str(i).encode(): {"x": x[i * size : (i + 1) * size], "y": y[i * size : (i + 1) * size]} for i in range(CLIENTS)
    }
    clients = fedjax.InMemoryFederatedData(shares)
    module = hk.transform(network)
    model = fedjax.create_model_from_haiku(
        module,
        sample_batch={"x": x[:1], "y": y[:1]},
        train_loss=lambda batch, outputs: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], outputs),
        eval_metrics={"accuracy": fedjax.metrics.Accuracy()},
    )
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(float(os.environ["JOB_RATE"])),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=EPOCHS, seed=0),
    )
    asked = round(float(os.environ["JOB_SHARE"]) * CLIENTS)
    sampler = fedjax.client_samplers.UniformGetClientSampler(clients, num_clients=asked, seed=0)
    state = algorithm.init(model.init(jax.random.PRNGKey(0)))
    predict = jax.jit(lambda params, x: jnp.argmax(model.apply_for_eval(params, {"x": x}), 1))
    x, y = sets["test"]
    for number in range(ROUNDS):
        sampler.set_round_num(number)
        state, _ = algorithm.apply(state, sampler.sample())
        hits = sum(
            int((predict(state.params, x[at : at + 500]) == y[at : at + 500]).sum()) for at in range(0, len(x), 500)
        )
    sys.stdout.write(f"accuracy {hits / len(x)}\n")


if __name__ == "__main__":
    main()
