"""The figures and tables of one run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coterie.record.load import Run
from coterie.record.schema import RoundRecord
from coterie.report import clusters, ledger, plots, tables, words


def run_view(run: Run, key: str) -> dict[str, Any]:
    members, history = clusters.final_members(run), clusters.history(run)
    selected, result = clusters.selected(run), run.result
    return {
        **vars(run),
        "whole": run,
        "key": key,
        "leading": run.leading,
        "figures": figures(run, members, history, selected),
        "history": history,
        "clusters": tables.cluster_table(run, members) if members else [],
        "events": clusters.events(run),
        "bytes_by_role": tables.paired(run.total("bytes_up"), run.total("bytes_down")),
        "seconds_by_work": tables.barred(run.total("phase_seconds")),
        "selection": selected,
        "mishaps": tables.mishaps(run),
        "audit": tables.audit_table([result.audit]),
        "ledger": ledger.ledger_table(result.ledger),
        "participants": [line.notes.participants for line in run.rounds if line.notes.participants is not None],
    }


def figures(
    run: Run,
    members: clusters.Sets | None,
    history: clusters.History | None,
    selected: clusters.Selected | None,
) -> dict[str, Any]:
    groups, matrix = run.partition.groups, run.observed.affinity
    order = clusters.order(members, groups) if members else tuple(range(run.result.shown))

    def known(*fields: str) -> bool:
        return any(run.points(field)[0] for field in fields)

    def noted(has: Callable[[RoundRecord], object]) -> bool:
        return any(has(line) for line in run.rounds)

    sized = noted(lambda line: line.notes.clusters and line.notes.clusters.sizes)
    timed = noted(lambda line: line.bytes_up or line.phase_seconds)
    counts, features = run.partition.label_counts, run.observed.features or ()
    told = sum(map(bool, features))
    return {
        "leading": plots.scores(run, run.leading) if known(*words.sides(run.leading)) else None,
        "metrics": [plots.scores(run, measure) for measure in run.others if known(*words.explained(measure))],
        "loss": plots.loss(run) if known("global_loss", "local_loss") else None,
        "membership": plots.membership(history) if history else None,
        "agreement": plots.agreement(run) if noted(lambda line: line.grouping) else None,
        "sizes": plots.sizes(run.rounds) if sized and not history else None,
        "affinity": plots.affinity(matrix, order, members) if matrix else None,
        "classes": plots.classes(run.partition, order, members) if counts and counts[0] else None,
        "per_round": plots.per_round(run) if timed else None,
        "features": plots.feature_space(features, members, groups) if told > 1 else None,
        "timeline": plots.timeline(run) if noted(lambda line: line.notes.events) else None,
        "selections": plots.selections(selected, order, members) if selected else None,
    }
