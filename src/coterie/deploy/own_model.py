"""A client's trained model, out of its home: the run folder of a deployment has no models."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import coterie
from coterie.deploy.home import read_home
from coterie.deploy.place import place
from coterie.deploy.store import FileStore, unpack
from coterie.protocol.errors import UserError
from coterie.protocol.system import Mixture
from coterie.runs.trained import Facts, TrainedModel, state


def own_model(path: Path) -> tuple[TrainedModel, bool]:
    """The model that the client of this home had at its last commit, and whether the run has ended.

    It takes samples as the home has them: nothing is subtracted, and they are divided by 1. The home is only read, so
    its party may be at work. Raises UserError for a home without a model: a server's, or one that has not taken part.
    """
    home = read_home(path)
    here = place(home)
    if home.name not in here.common.clients:
        raise UserError(f"{path} is the home of {home.name}, {home.role}: only clients have models")
    data = FileStore(home.state).read()
    if data is None:
        raise UserError(
            f"{home.name} has no model yet, because it has not taken part: start coterie deploy party --home {path}"
        )
    kept, _ = unpack(data, here.party)
    own, facts = here.own_model(), here.plan.facts
    assert own is not None, "every client predicts with a model"
    vectors = np.atleast_2d(own.models if isinstance(own, Mixture) else own)
    numbers = facts.outputs if facts.task == "regression" else None
    model = TrainedModel(
        Facts(
            format=1,
            model=str(here.config.model),
            input_shape=facts.input_shape,
            classes=facts.outputs,
            class_names=None,
            task=here.config.task,
            data_kind="image" if len(facts.input_shape) == 3 else "tabular",
            version=coterie.__version__,
            name=home.name,
        ),
        np.asarray(own.weights, np.float64) if isinstance(own, Mixture) else np.ones(1),
        tuple(state(here.model.module_with(vector)) for vector in vectors),
        np.zeros(1, np.float32),
        np.ones(1, np.float32),
        where=f"the model in {path}",
        target_zero=None if numbers is None else np.zeros(numbers),
        target_unit=None if numbers is None else np.ones(numbers),
    )
    return model, kept.ended
