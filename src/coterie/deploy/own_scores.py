"""A client's scores on own held-out samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import coterie.protocol.core as fl
from coterie.data.targets import Targets
from coterie.deploy.own_work import OwnWork
from coterie.record.comparison import PRIOR
from coterie.runs.evaluation import Evaluator
from coterie.runs.forms import scored_forms
from coterie.runs.metrics import run_metrics


def observer_of(work: OwnWork) -> Evaluator | None:
    if work.data is None:
        return None
    config, device = work.config, work.effects.how["device"]
    targets, metrics = Targets(config.task), run_metrics(config)
    return Evaluator(work.model, {work.name: work.data}, device, targets=targets, metrics=metrics)


def may_score(work: OwnWork) -> tuple[str, ...]:
    """Scores that it may report: ``local_accuracy``, ``prior_local_accuracy``."""
    tested = work.data is not None and len(work.data.test) > 0
    return tuple(name for name in work.allowed if name.startswith(("local_", PRIOR))) if tested else ()


def own_scores(
    work: OwnWork, observer: Evaluator, model: fl.ClientModel, told: NDArray[np.int64] | None
) -> dict[str, float]:
    """Those that it may report, also with the labels' prior (``PRIOR``).  told: (classes,) label counts of the model's
    training data, or None.
    """
    wanted, models = may_score(work), {work.name: model}
    found = observer.scores(models).means()
    if told is not None and work.config.class_weights is None and any(name.startswith(PRIOR) for name in wanted):
        forms = scored_forms(observer, models, work.config.seed, told={work.name: told}, briefly=True)
        found |= {f"{PRIOR}{name}": value for name, value in forms[PRIOR].means().items()} if PRIOR in forms else {}
    return {name: found[name] for name in wanted if name in found and np.isfinite(found[name])}
