"""What a process that runs tests has: fewer threads, no waits for the disk, and what all forks of it need."""

import os
from functools import cache

import shipped  # noqa: F401  reads what the package has, before fast tests take less
import torch
import typer
from threadpoolctl import threadpool_limits

from coterie.operate import supervision
from coterie.privacy.audits import ofl
from coterie.runs import benefit, tuning

# Products this small are slower on two threads, and on a busy machine a hundred times so.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # of the processes that tests start
# Typer makes all commands anew at every call, which takes longer than most calls of tests.
typer.main.get_command = cache(typer.main.get_command)
# A process that a test forks has them already: to import them takes longer than most of what it does.
supervision.PRELOADED += (
    *("pytest", "sklearn.cluster", "sklearn.datasets", "sklearn.metrics", "pydantic", "markdown_it"),
    *("coterie.cli.app", "coterie.cli.deploy_runs", "coterie.operate.rehearsal", "coterie.runs.experiment"),
    *("benchmarks.engines", "benchmarks.lines"),
)
# A test that kills a process leaves what the system holds; only a loss of power needs the disk, and no test has one.
os.fsync = lambda descriptor: None
threadpool_limits(1)
torch.set_num_threads(1)


def do_less() -> None:
    """Runs end soon: they tune for few epochs, and few draws make intervals and audits of noise. Long ones do all."""
    tuning.MOST_EPOCHS, benefit.DRAWS, benefit.SLOW_DRAWS, ofl.TRIALS = 8, 100, 20, 1000
