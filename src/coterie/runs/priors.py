"""Clients' priors to predict with: ``priors.json``, a private file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np

from coterie.protocol.arrays import Doubles
from coterie.protocol.errors import UserError
from coterie.protocol.system import ClientModel
from coterie.protocols.local_training import MOST_SAMPLES
from coterie.record.files import FILE_MODE, opened, reading
from coterie.record.folder import write_json
from coterie.runs.evaluation import Trained
from coterie.runs.experiment import Experiment
from coterie.runs.forms import priors_of
from coterie.runs.models import load_models
from coterie.runs.trained import TrainedModel
from coterie.training.prior import LEAST_BATCH, Prior

PRIORS = "priors.json"
_MOST_BYTES = 256 << 20

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Counts = Annotated[tuple[Count, ...], msgspec.Meta(min_length=2)]


class PriorRecord(msgspec.Struct, frozen=True):
    """As ``training.prior.Prior``."""

    own: Counts
    mixture: Counts
    predicted: Counts


class Priors(msgspec.Struct, frozen=True):
    format: Literal[1]
    round: int
    clients: dict[str, PriorRecord]


def write_priors(
    out: Path, experiment: Experiment, models: Mapping[str, ClientModel], r: int, trained: Mapping[str, Trained]
) -> None:
    """Of round r's models; no file without priors (``runs/forms.py``)."""
    told = experiment.observer.told_counts()
    found = priors_of(experiment.observer, models, told, trained) if experiment.config.class_weights is None else {}
    if found:
        clients = {name: {key: values.tolist() for key, values in vars(prior).items()} for name, prior in found.items()}
        write_json(out / PRIORS, {"format": 1, "round": r, "clients": clients}, FILE_MODE)


def prior_of(folder: Path, model: TrainedModel) -> Prior:
    """A client's prior, out of its run's folder. Raises UserError without one."""
    path, facts = folder / PRIORS, model.facts
    if folder.is_file():
        raise UserError(
            f"{folder} has no prior: give the run's folder, or the party's home, instead of the exported file"
        )
    if not path.is_file():
        raise UserError(
            f"{folder} has no {PRIORS}: the prior is for the folder of a finished run whose models are classifiers, "
            "trained without class_weights. A deployment and its rehearsal have one with --set label_counts=true "
            "alone: a party in its home, and a rehearsal in DIR/run"
        )
    r, client, classes = load_models(folder).index.round, str(facts.client), facts.classes
    with reading(path, "run again"), opened(path) as file:
        try:
            found = msgspec.json.decode(file.read(_MOST_BYTES), type=Priors)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise UserError(f"{path} holds no priors ({error}): run again") from None
    one = found.clients.get(client)
    if (
        one is None
        or found.round != r
        or {len(one.own), len(one.mixture), len(one.predicted)} != {classes}
        or sum(one.predicted) > MOST_SAMPLES
    ):
        raise UserError(f"{path} holds no prior of {client} for its model of round {r}: finish the run, or run again")
    return Prior(*(np.array(counts, np.int64) for counts in (one.own, one.mixture, one.predicted)))


def with_prior(scores: Doubles, prior: Prior) -> tuple[Doubles, str]:
    """(n, classes) of a batch with the prior, unless the guard leaves it out; and which."""
    if not prior.fits(scores.argmax(axis=1), np.random.default_rng(0)):
        return scores, "the prior is left out: the batch does not look like the client's own labels"
    shifted = scores * np.exp(prior.shift - prior.shift.max())
    checked = "" if len(scores) >= LEAST_BATCH else f", not checked with fewer than {LEAST_BATCH} samples"
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True)), f"with the prior of the client's labels{checked}"
