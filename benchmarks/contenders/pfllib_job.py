"""The job by PFLlib's own ``main.py``, out of a checkout in this environment: ``python pfllib_job.py``.

``python pfllib_job.py deal`` writes the clients' files before, as its ``dataset/generate_MNIST.py`` does: pixels in
[-1, 1], and test images of each client's own, by which it scores the global model. It scores before each round's
training, so the model after the last round has no score. The job's model takes the place of its own.
"""

import os
import runpy
import sys
from pathlib import Path

import network
import numpy as np

SOURCE = Path(sys.prefix, "source", "system")
CLIENTS, ROUNDS, EPOCHS, BATCH = (os.environ[f"JOB_{name}"] for name in ("CLIENTS", "ROUNDS", "EPOCHS", "BATCH"))
FOLDER = Path(os.environ["JOB_DATA"]).parent
SCORE = "Averaged Test Accurancy:"


class Told:
    """Standard output that keeps the last score."""

    def __init__(self, out):
        self.out, self.last = out, ""

    def write(self, text):
        """Pass it on."""
        if SCORE in text:
            self.last = text.split(SCORE)[1].split()[0]
        return self.out.write(text)

    def flush(self):
        """Pass it on."""
        self.out.flush()


def deal():
    """``dataset/MNIST/train/0.npz`` and so on: ``data`` holds x (n, 1, 28, 28) float32 and y (n,)."""
    draw = np.random.default_rng(1)
    with np.load(os.environ["JOB_DATA"]) as data:
        for split in ("train", "test"):
            folder = FOLDER / "dataset" / "MNIST" / split
            folder.mkdir(parents=True)
            x = ((data[f"x_{split}"].astype(np.float32) / 255 - 0.5) / 0.5).reshape(-1, 1, 28, 28)
            y = data[f"y_{split}"].astype(np.int64)
            for client, rows in enumerate(np.array_split(draw.permutation(len(y)), int(CLIENTS))):
                np.savez_compressed(folder / f"{client}.npz", data={"x": x[rows], "y": y[rows]})


def train():
    """It trains in ``-gr`` rounds and one more."""
    sys.path.insert(0, str(SOURCE))
    from flcore.trainmodel import models  # of the checkout

    models.DNN = models.FedAvgCNN = network.WithHead
    (FOLDER / "system").mkdir()
    os.chdir(FOLDER / "system")
    share, rate = os.environ["JOB_SHARE"], os.environ["JOB_RATE"]
    words = f"-data MNIST -m dnn -algo FedAvg -dev cpu -nb 10 -eg 1 -nc {CLIENTS} -jr {share} -gr {int(ROUNDS) - 1}"
    sys.argv = ["main.py", *f"{words} -ls {EPOCHS} -lbs {BATCH} -lr {rate}".split()]
    sys.stdout = told = Told(sys.stdout)
    runpy.run_path(str(SOURCE / "main.py"), run_name="__main__")
    sys.stdout.write(f"\naccuracy {told.last}\n")


if __name__ == "__main__":
    deal() if sys.argv[1:] == ["deal"] else train()
