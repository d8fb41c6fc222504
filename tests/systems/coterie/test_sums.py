"""Coterie's rows are the integer sums of their groups, whoever is absent or late, and models are their means."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from math import comb
from typing import Any

import numpy as np
import pytest
from prepared import prepared

from coterie.crypto import shared_rows
from coterie.crypto.shared_rows import Grid
from coterie.protocol import state
from coterie.protocol.errors import UserError
from coterie.protocols import hidden_servers
from coterie.protocols.hidden_servers import ServerRows
from coterie.protocols.hidden_settings import shows_few
from coterie.protocols.hidden_sums import ClientRow
from coterie.protocols.setup_sums import SIZES, OpenSum
from coterie.protocols.signatures import HELD
from coterie.runs import RunConfig, registry, run
from coterie.runs.experiment import Experiment, build
from coterie.systems.coterie.config import CoterieConfig

BASE: dict[str, Any] = {"clients": 8, "partition": "permute:2", "crypto": "emulated", "data": "digits"}
QUICK = {"model": "linear", "lr": 0.1, "max_epochs": 1}


def config(settings: dict[str, Any] | None = None, **options: Any) -> RunConfig:
    both = {**QUICK, **(settings or {})}
    model = both.pop("model")
    return RunConfig("coterie", settings=both, model=model, **{**BASE, **options})


def made(settings: dict[str, Any] | None = None, **options: Any) -> Experiment:
    return prepared(config(settings, **options))


class Seen:
    """By round: x of each client, what the hub has added, and the sums that clients have opened."""

    def __init__(self) -> None:
        self.x: dict[tuple[str, int], np.ndarray] = {}
        self.added: dict[int, list[tuple[str, int, int]]] = defaultdict(list)
        self.opened: dict[tuple[str, int], np.ndarray] = {}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found = Seen()
    upload, opened, add_one = ClientRow.upload, ClientRow.opened, hidden_servers.ServerRows.add_one

    def uploading(self: Any, x: np.ndarray, r: int) -> Any:
        found.x[self.party.name, r] = x
        return upload(self, x, r)

    def opening(self: Any, msg: Any) -> Any:
        total = opened(self, msg)
        found.opened[self.party.name, msg.sealed_in] = total
        return total

    def adding(self: Any, fresh: Any, adding: Any, name: str, r: int, *rest: Any) -> Any:
        if self.sign == 1:
            age, expected = adding.round - r, self.party.config.expected(len(self.party.clients))
            weight = shared_rows.upload_weight(age, expected, adding.on_time)
            found.added[adding.round].append((name, r, weight))
        return add_one(self, fresh, adding, name, r, *rest)

    monkeypatch.setattr(ClientRow, "upload", uploading)
    monkeypatch.setattr(ClientRow, "opened", opening)
    monkeypatch.setattr(hidden_servers.ServerRows, "add_one", adding)
    return found


@contextmanager
def played(experiment: Experiment, rounds: int) -> Iterator[tuple[dict[str, int], list[dict[str, Any]]]]:
    try:
        lines = [experiment.round(r) for r in range(1, rounds + 1)]
        clients = experiment.federation.of_role("client")
        yield {client.name: client.row.secret.group for client in clients}, lines
    finally:
        experiment.close()


CASES = [
    {},
    {"delta": 0.4, "delay": "uniform:1-3"},
    {"delta": 0.3, "delay": "geometric:0.5", "seed": 5, "crypto": "real"},
]


@pytest.mark.parametrize("options", CASES, ids=["all", "late", "real"])
def test_every_opened_row_is_the_integer_sum_of_its_group(options: dict[str, Any], seen: Seen) -> None:
    with played(made({"noise": 0.0, "fewest": 1}, **options), 6) as (groups, lines):
        sums: dict[int, list[int]] = defaultdict(lambda: [0] * len(next(iter(seen.x.values()))))
        after: dict[int, dict[int, np.ndarray]] = {}
        for r in sorted(seen.added):
            for name, of, weight in seen.added[r]:
                x = seen.x[name, of].view(np.int32).tolist()
                sums[groups[name]] = [old + weight * new for old, new in zip(sums[groups[name]], x, strict=True)]
            after[r] = {k: np.array(total) for k, total in sums.items()}
        assert len(set(groups.values())) == 2
        assert len(seen.opened) >= 30
        for (name, r), total in seen.opened.items():
            assert (after[r][groups[name]] == total).all()
        late = [of for r, added in seen.added.items() for _, of, _ in added if of < r]
        assert bool(late) == ("delta" in options)
        assert sum(line["notes"]["added"] for line in lines) == sum(map(len, seen.added.values()))


def test_a_model_is_the_mean_of_its_group(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all clients there and equal weights: the mean of the clipped changes, up to a step of the grid."""
    changes, words = {}, Grid.words
    monkeypatch.setattr(
        Grid,
        "words",
        lambda self, change, *rest: changes.setdefault(len(changes), (change, words(self, change, *rest)))[1],
    )
    experiment = made({"noise": 0.0, "clip": 0.5})
    with played(experiment, 1) as (groups, _):
        by_x = {x.tobytes(): change for change, x in changes.values()}
        grid = experiment.settings.grid(8, experiment.common.spec)
        for client in experiment.federation.of_role("client"):
            members = [name for name, k in groups.items() if k == groups[client.name]]
            clipped = [
                change * min(1, 0.5 / np.linalg.norm(change))
                for change in (by_x[seen.x[n, 1].tobytes()] for n in members)
            ]
            moved = client.state.weights - experiment.common.initial
            assert np.abs(moved - np.mean(clipped, axis=0)).max() < 3 * 0.5 / grid.steps + 1e-6


def test_clients_without_a_place_do_not_make_the_others_steps_longer(seen: Seen) -> None:
    """Twelve of 18 make the groups, and all of these answer: rows move by their sum, not by 18/12 of it."""
    coming = {"noise": 0.0, "founders": 12, "newcomers": 6, "join_every": 9}
    with played(made(coming, clients=18), 1) as (groups, _):
        assert len(seen.opened) == 12
        for (name, _), total in seen.opened.items():
            members = [other for other, k in groups.items() if k == groups[name]]
            sent = sum(seen.x[other, 1].view(np.int32).astype(np.int64) for other in members)
            assert (total == shared_rows.PARTS * sent).all()


def test_noise_of_both_servers_is_in_every_row(seen: Seen) -> None:
    z = 0.05
    experiment = made({"noise": z})
    with played(experiment, 1) as (groups, _):
        grid = experiment.settings.grid(8, experiment.common.spec)
        for (name, _), total in seen.opened.items():
            members = [n for n, k in groups.items() if k == groups[name]]
            exact = sum(16 * seen.x[n, 1].view(np.int32).astype(np.int64) for n in members)
            deviation = float((total - exact).std())
            assert deviation == pytest.approx(2**0.5 * z * grid.steps * 16, rel=0.1)


@pytest.mark.parametrize(("enlisted", "groups", "smallest", "fewest"), [(12, 2, 3, 2), (24, 4, 6, 3), (30, 3, 10, 1)])
def test_a_round_is_skipped_if_a_sum_could_be_of_too_few(
    enlisted: int, groups: int, smallest: int, fewest: int
) -> None:
    """The hypergeometric tail, by counting: absences are by chance, and a group has at least ``smallest``."""
    for added in range(enlisted + 1):
        few = [
            comb(smallest, k) * comb(enlisted - smallest, added - k)
            if k <= added and added - k <= enlisted - smallest
            else 0
            for k in range(1, fewest)
        ]
        chance = groups * sum(few) / comb(enlisted, added)
        assert bool(shows_few(enlisted, added, groups, smallest, fewest)) == (not added or chance > 1e-6)


def test_so_many_may_be_away() -> None:
    """Of 24 clients in groups of six, with sums of at least three: three. Of 100 in groups of 25, five: 39."""

    def away(clients: int, smallest: int, fewest: int) -> int:
        return next(m for m in range(clients) if shows_few(clients, clients - m - 1, 4, smallest, fewest))

    assert away(24, 6, 3) == 3
    assert 36 <= away(100, 25, 5) <= 40


def test_a_round_with_too_few_is_skipped_and_models_stay(seen: Seen) -> None:
    with played(made({"fewest": 3}, delta=0.5, delay="uniform:3-4"), 1) as (_, lines):
        assert "fewer than 3" in lines[0]["notes"]["skipped"]
        assert lines[0]["notes"]["added"] == 0
        assert not seen.opened


def test_settings_that_show_too_little_of_a_crowd_are_refused_before_the_run() -> None:
    with pytest.raises(UserError, match="a group's sum might be of fewer than 2") as said:
        build(config({"participation": 0.7}, clients=24))
    told = dict(re.findall(r"(min_cluster|fewest|Set participation)=([\d.]+\d|\d+)", str(said.value)))
    share, size = float(told["Set participation"]), int(told["min_cluster"])
    for enough in ({"participation": share}, {"min_cluster": size}, {"fewest": int(told["fewest"])}):
        build(config({"participation": 0.7, **enough}, clients=24)).close()
    for less in ({"participation": share - 0.05}, {"min_cluster": size - 1}):
        with pytest.raises(UserError, match="fewer than 2"):
            build(config({"participation": 0.7, **less}, clients=24))
    with pytest.raises(UserError, match="at least 3 clients"):
        build(config(clients=2))


def test_of_one_group_s_uploads_the_helper_gets_names_alone() -> None:
    line = {}
    for clusters in ("auto", 1):
        with played(made({"clusters": clusters}), 1) as (_, lines):
            line[clusters] = lines[0]
            assert lines[0]["notes"]["added"] == 8
    relayed = {clusters: one["message_bytes"]["hub > helper Shares"] for clusters, one in line.items()}
    assert relayed[1] < 8 * 1024 < relayed["auto"]


def test_a_server_keeps_three_models_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that the helper keeps when a round's uploads are added, as bytes."""
    sizes, masked = [], ServerRows.masked

    def measured(self: Any, fresh: np.ndarray, adding: Any) -> Any:
        if self.party.name == "helper":
            sizes.append((len(state.dump({"": self.secret})), 3 * fresh.nbytes))
        return masked(self, fresh, adding)

    monkeypatch.setattr(ServerRows, "masked", measured)
    with played(made({"model": "mlp_small"}), 2):
        (_, (size, models)) = sizes
        assert models < size < models + 4096


def test_one_group_of_all_is_an_average_for_any_task() -> None:
    settings = {"clusters": 1, "lr": 0.1, "noise": 0.0}
    result = run(RunConfig("coterie", clients=5, rounds=3, data="digits", settings=settings, crypto="emulated"))
    plain = run(RunConfig("fedavg", clients=5, rounds=3, data="digits", settings={"lr": 0.1}))
    assert result.summary["local_accuracy"] == pytest.approx(plain.summary["local_accuracy"], abs=0.03)


def test_of_one_group_clients_are_shown_sizes_alone_as_its_statement_says() -> None:
    experiment = made({"clusters": 1}, record=True)
    views = experiment.transport.transcript.views
    assert {one.number for name in experiment.common.clients for _, one in views[name].messages(OpenSum)} == {HELD}
    assert {len(one.words) for _, one in views["client/0"].messages(OpenSum)} == {8 * SIZES}
    told, in_groups = (registry.get("coterie").learns(CoterieConfig(clusters=k), "paper") for k in (1, "auto"))
    assert "label" not in told["client"]
    assert "label" in in_groups["client"]
    assert told["hub"] != in_groups["hub"]
    experiment.close()


def test_a_client_whose_answer_is_late_takes_its_row_again_and_refuses_nothing() -> None:
    experiment = made({"fewest": 1}, delta=0.5, delay="uniform:1-2")
    lines = [experiment.round(r) for r in range(1, 5)]
    assert any(line["late"] for line in lines)
    assert not any(line["refused"] for line in lines)
    experiment.close()
