"""The study of label-residual signatures: it plants what it says, and its runs are valid."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from benchmarks import signatures
from benchmarks.items import main
from coterie.reproductions.study import Curve
from coterie.runs.config import resolve


def test_every_run_of_digits_is_valid() -> None:
    cells = [cell for cell in signatures.ACCURACY.cells if cell.name.startswith("digits/")]
    assert len(cells) == len(signatures.PARTITIONS) * len(signatures.METHODS)
    for cell in cells:
        resolved = resolve(cell.config)
        assert (resolved.clients, resolved.rounds, resolved.fine_tune) == (24, 10, "held_out")


def test_groups_have_the_sizes_that_are_asked_for() -> None:
    data = signatures.small("digits")
    samples, truth = signatures.clients_of(data, "permute:4+dirichlet:0.5", 32, 0, (16, 8, 4, 4))
    assert np.bincount(truth).tolist() == [16, 8, 4, 4]
    assert len(samples) == 32
    alike = signatures.clients_of(data, "dirichlet:0.3", 24, 0)
    assert not alike[1].any()


def test_the_groups_of_a_seed_are_those_of_a_run_of_the_system() -> None:
    """The study's plain signatures are no other than the system's: both find the groups."""
    assert signatures.indices("digits", "rotate:4", 24, (), 0)["ari"] == 1
    late = signatures.newcomers("digits", "permute:4", 24, 0)
    assert late["right"] == 1
    assert signatures.poisoned("digits", "permute:4", 24, 3.0, 0)["groups"] == 1


def test_the_tables_say_what_was_found(tmp_path: Path) -> None:
    only = ["digits/permute:4", "digits/no groups, iid"]
    picked = [word for cell in only for word in ("--only", cell)]
    main(signatures.ITEMS, ["signatures/groups", *picked, "--seeds", "2", "--out", str(tmp_path)])
    told = json.loads((tmp_path / "groups.json").read_text())
    assert [(row["ARI"], row["right"], row["found"]) for row in told["rows"]] == [
        (1.0, "2 of 2", "4, 4"),
        (1.0, "2 of 2", "1, 1"),
    ]


def test_leads_are_paired_by_seed() -> None:
    def curve(local: float, tuned: float, ari: float | None) -> Curve:
        summary = {"local_accuracy": local, "fine_tuned_local_accuracy": tuned}
        grouping = ({"ari": ari, "clusters": 4},) if ari is not None else (None,)
        return Curve(0, (local,), (local,), (True,), summary=summary, grouping=grouping)

    first, second = signatures._accuracy_table(
        {
            "digits/x/signature, auto": [curve(0.9, 0.95, 1.0), curve(0.8, 0.9, 0.5)],
            "digits/x/FedAvg": [curve(0.5, 0.9, None), curve(0.5, 0.8, None)],
        }
    )
    assert (first["ARI"], first["clusters"]) == ("0.75 (0.50)", "4, 4")
    assert (second["ARI"], second["clusters"]) == (None, None)
    assert second["lead of signature, local %"] == "35.00 ± 7.07"
    assert second["lead of signature, tuned %"] == "7.50 ± 3.54"
