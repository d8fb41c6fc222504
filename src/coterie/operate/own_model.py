"""A party's own trained model, out of its home."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from torch import Tensor

import coterie
from coterie.data.columns import inputs_of
from coterie.deploy.built_party import stored_party
from coterie.deploy.home import INFO, RUN, read_home
from coterie.protocol.errors import UserError
from coterie.protocol.system import Mixture
from coterie.protocols.openings import Statements, collected
from coterie.record.folder import deployed
from coterie.runs.forms import offered, priors_of
from coterie.runs.metrics import named
from coterie.runs.models import MODELS, load_models
from coterie.runs.trained import INPUTS, ModelFacts, TrainedModel, state
from coterie.training.prior import Prior

_IMAGE_AXES = 3


def own_model(path: Path) -> tuple[TrainedModel, int]:
    """The current model, and after which round. It takes samples as the party's own: tables by the plan's schema, the
    model's inputs, or bytes, and refuses images far beyond those as unscaled. Raises UserError without a home, or a
    model: of a server, or before it has begun.
    """
    home = read_home(path)
    found, kept = stored_party(home)
    own = found.own_model()
    if own is None:
        raise UserError(f"{home.name} has no model, for it is no client: name the home of a client")
    vectors, shares = (own.models, own.weights) if isinstance(own, Mixture) else (own[None], np.ones(1))
    form = found.plan.facts
    facts = ModelFacts(
        format=1,
        model=found.config.model,
        input_shape=form.input_shape,
        classes=form.outputs,
        class_names=None,
        task=found.config.task,
        data_kind=INPUTS,
        version=coterie.__version__,
        client=home.name,
        metrics=named(found.config.metrics),
    )
    if (schema := form.schema) is not None:
        stated = {"columns": schema.columns, "features": inputs_of(schema.columns), "label_columns": (schema.label,)}
        facts = msgspec.structs.replace(facts, class_names=schema.names, **stated)
    tensors = tuple(state(found.work.model.module_with(vector)) for vector in vectors)
    zero, unit = np.zeros(1, np.float32), np.ones(1, np.float32)
    outputs = facts.classes if facts.task == "regression" else 0
    scale = (np.zeros(outputs), np.ones(outputs)) if outputs else (None, None)
    where = f"the model of {home.name} in {home.path}"
    done = min(kept.era[0] if kept.era is not None else 0, found.rounds)
    data = found.work.data
    limits = None if data is None or len(form.input_shape) != _IMAGE_AXES else _limits(data.x)
    return TrainedModel(facts, shares, tensors, zero, unit, where, None, scale[0], scale[1], limits), done


def _limits(x: Tensor) -> tuple[float, float]:
    """As far beyond the range of training images x as this is wide."""
    low, high = float(x.min()), float(x.max())
    return 2 * low - high, 2 * high - low


def rehearsed(path: Path) -> Path | None:
    """The run folder, for a home that lies in a rehearsal's folder."""
    run = path.absolute().parent.parent / RUN
    return run if deployed(run) == "rehearsal" else None


def homes_in(folder: Path) -> list[str]:
    """The homes in a folder, as ``client-0 (east)`` where a rehearsal knows the data's name."""
    homes = sorted(path for path in folder.glob("*") if (path / INFO).exists())
    run = rehearsed(homes[0]) if homes else None
    known = {} if run is None or not (run / MODELS).exists() else load_models(run).names
    names = {path.name: known.get(read_home(path).name) for path in homes}
    return [home if name is None else f"{home} ({name})" for home, name in names.items()]


def own_prior(path: Path) -> Prior:
    """The prior for a client's current model, from its own data and the label counts that it was told. Raises UserError
    as ``own_model``, if it was told none, or its own samples speak against them.
    """
    home = read_home(path)
    found, _ = stored_party(home)
    own, data, observer = found.own_model(), found.work.data, found.observer
    if own is None or data is None or observer is None or not offered(observer) or found.config.class_weights:
        raise UserError(f"{home.name} has no prior, for it is no client with a classifier without class weights")
    if found.told is None:
        raise UserError(
            f"{home.name} was told no label counts of its model yet: the operator founds the run with "
            "label_counts = true under [settings] of run.toml, where the system has a message for them; some systems "
            "send it after the last round, and none beside another list of clients than in a former run"
        )
    priors = priors_of(observer, {home.name: own}, {home.name: found.told})
    if home.name not in priors:
        raise UserError(
            f"{home.name}: its own samples speak against the label counts that it was told; leave out --prior"
        )
    return priors[home.name]


def own_account(path: Path) -> str:
    """What a party has released until its last commit, with epsilon. Raises as ``own_model``."""
    found, kept = stored_party(read_home(path))
    return found.account.in_words(kept.released)


def own_openings(path: Path) -> Statements | None:
    """What a party states that it has opened until its last commit, or None. Raises as ``own_model``."""
    found, _ = stored_party(read_home(path))
    return collected(found.party.common.roster, [found.party])
