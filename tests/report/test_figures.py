"""What the figures show: the numbers of the files, in the right place, whoever else draws at the same time."""

from __future__ import annotations

import base64
import json
import math
import re
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from report_folders import write_comparison, write_run

import coterie
from coterie.record.load import Run, find, load
from coterie.record.schema import Partition
from coterie.report import clusters, compared_plots, comparison, plots, tables, words
from coterie.report.drawing import new_figure
from coterie.report.figure import PALETTE, Axis, Band, Bars, Figure, Image, Key, Line, Panel, colour, rgba


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load(write_run(tmp_path_factory.mktemp("run") / "one", clients=8, rounds=9, eval_every=4, fine_tuned=9))


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> list[comparison.RunGroup]:
    folder = write_comparison(tmp_path_factory.mktemp("compared"), clients=5, seeds=3, rounds=12)
    return comparison.group([load(each) for each in find([folder])])


def undrawn(plot: Any, *args: Any) -> tuple[list[Panel], str]:
    """The figure's panels, row by row, and its words; not its SVG."""
    figure, alt = plot.__wrapped__(*args)
    return [panel for row in figure.panels for panel in row if panel is not None], alt


def marks(panel: Panel, kind: type[Any]) -> list[Any]:
    return [mark for mark in panel.marks if isinstance(mark, kind)]


def painted(panel: Panel) -> np.ndarray:
    (image,) = marks(panel, Image)
    return np.asarray(image.pixels)


def raw(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]


def test_accuracy_curves_are_the_evaluated_rounds(run: Run) -> None:
    panels, alt = undrawn(plots.scores, run, run.leading)
    lines = raw(run)
    for panel, field in zip(panels, ("global_accuracy", "local_accuracy"), strict=True):
        mean, tuned = panel.lines()
        assert mean.x == [4, 8, 9]
        assert mean.y == [lines[r - 1][field] for r in (4, 8, 9)]
        assert (tuned.x, tuned.y, tuned.dashed) == ([9], [lines[8][f"fine_tuned_{field}"]], True)
        outer, inner = marks(panel, Band)
        assert outer.x == inner.x == [4, 8, 9]
        columns = [outer.low, inner.low, inner.high, outer.high]
        assert np.transpose(columns).tolist() == [
            np.delete(lines[r - 1]["bands"][field], 2).tolist() for r in (4, 8, 9)
        ]
    assert f"{100 * lines[8]['local_accuracy']:.1f}" in alt


def test_classes_are_shares_in_the_order_of_the_clusters(run: Run) -> None:
    members = clusters.final_members(run)
    assert members is not None
    order = clusters.order(members)
    (bars, heat, bar, strip, *_), _ = undrawn(plots.classes, run.partition, order, members)
    counts = np.array(run.partition.label_counts, dtype=float)
    (samples,) = marks(bars, Bars)
    assert samples.top.tolist() == counts[list(order)].sum(axis=1).tolist()
    shares = counts[list(order)].T / counts[list(order)].sum(axis=1)
    depth = (painted(heat)[..., 3] / 255 - 0.03) / 0.97
    np.testing.assert_allclose(depth * bar.y.high, shares, atol=1 / 128)
    for column, client in enumerate(order):
        assert {tuple(pixel) for pixel in painted(strip)[:, column].tolist()} == {
            rgba(colour(k)) for k in members[client]
        }


def test_clusters_name_clients_as_their_owner_does(run: Run) -> None:
    members = clusters.final_members(run)
    assert members is not None
    numbers = [row["clients"] for row in tables.cluster_table(run, members)]
    names = tuple(f"h{i}" for i in range(8))
    named = replace(run, partition=msgspec.structs.replace(run.partition, names=names))
    found = [row["clients"] for row in tables.cluster_table(named, members)]
    assert found == [[names[i] for i in of] for of in numbers]


def test_classes_are_called_as_the_data_call_them(run: Run) -> None:
    members = clusters.final_members(run)
    assert members is not None
    assert run.partition.label_counts is not None
    count = len(run.partition.label_counts[0])
    names = tuple(f"class {k} with a very long name" for k in range(count))
    partition = msgspec.structs.replace(run.partition, class_names=names)
    numbers = [[int(k) for k, _ in row["classes"]] for row in tables.cluster_table(run, members)]
    found = [[k for k, _ in row["classes"]] for row in tables.cluster_table(replace(run, partition=partition), members)]
    assert found == [[names[k] for k in of] for of in numbers]
    for known, ticks in ((run.partition, None), (partition, [(k, names[k][:20]) for k in range(count)])):
        (_, heat, *_), _ = undrawn(plots.classes, known, range(len(members)), None)
        assert heat.y.ticks == ticks


def test_the_agreement_is_that_of_the_evaluated_rounds(run: Run) -> None:
    (index, number), alt = undrawn(plots.agreement, run)
    known = {line["round"]: line["grouping"] for line in raw(run) if "grouping" in line}
    assert list(known) == [4, 8, 9]
    several = any(one["per_client"] > 1 for one in known.values())  # else that is no line of the plot
    keys = ("ari", "clusters", *["per_client"] * several)
    for line, key in zip([*index.lines(), *number.lines()], keys, strict=True):
        assert list(line.x) == list(known)
        assert list(line.y) == [one[key] for one in known.values()]
    assert f"{known[9]['ari']:.2f} at the end" in alt


def test_without_groups_the_agreement_has_no_index(run: Run, tmp_path: Path) -> None:
    bare = with_membership(run, [{"clustered": True, "membership": [[0]] * 8}], tmp_path / "x")
    for per_client, lines in ((1.0, 1), (1.5, 2)):
        line = {"round": 1, "grouping": {"clusters": 1, "per_client": per_client, "sizes": [8]}}
        (bare.folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        (panel,), alt = undrawn(plots.agreement, load(bare.folder))
        assert len(panel.lines()) == lines
        assert "Rand" not in alt


def test_groups_of_the_data_stand_beside_the_clusters_in_their_colours(run: Run, tmp_path: Path) -> None:
    """Groups 2, 0 and 1 are clusters 0, 1 and 2 but for client 7, whose strip has another colour than its cluster."""
    noted = [{"clustered": True, "membership": [[g] for g in [*GROUPS[:-1], 0]]}]
    grouped = with_membership(run, noted, tmp_path / "x", groups=[(g + 2) % 3 for g in GROUPS])
    known = clusters.history(grouped)
    assert known is not None
    assert known.groups == tuple(frozenset({g}) for g in GROUPS)
    assert known.order == (7, 0, 1, 2, 3, 4, 5, 6)  # within a cluster by group
    (_, side), _ = undrawn(plots.membership, known)
    by_group = [list(rgba(colour(GROUPS[i]))) for i in known.order]
    assert painted(side)[::12, 0].tolist() == by_group
    (*_, of_cluster, of_group), _ = undrawn(plots.classes, grouped.partition, known.order, known.last)
    assert painted(of_cluster)[0].tolist() == [list(rgba(colour(min(known.last[i])))) for i in known.order]
    assert painted(of_group)[0].tolist() == by_group


def test_affinity_is_reordered_on_both_sides(run: Run) -> None:
    n = run.result.clients
    matrix = tuple(tuple(float(10 * i + j) for j in range(n)) for i in range(n))
    order = list(reversed(range(n)))
    (panel, bar), _ = undrawn(plots.affinity, matrix, order, None)
    depth = painted(panel)[..., 3]
    assert (bar.y.low, bar.y.high) == (1, 10 * (n - 1) + n - 2)
    assert depth[0, 1] == 255
    assert depth[-1, -2] == int(0.03 * 255)
    assert not np.diag(depth).any()
    assert depth[~np.eye(n, dtype=bool)].all()


def test_stacks_add_up_to_what_was_counted(run: Run) -> None:
    panels, _ = undrawn(plots.per_round, run)
    lines = raw(run)
    sent, real, virtual = (marks(panel, Bars)[-1].top for panel in panels)
    np.testing.assert_allclose(sent, [sum(line["bytes_up"].values()) for line in lines])
    np.testing.assert_allclose(real, [sum(line["phase_seconds"].values()) for line in lines])
    clock = [run.result.set_up.virtual_seconds, *(line["virtual_seconds"] for line in lines)]
    np.testing.assert_allclose(virtual, np.diff(clock))


def test_of_thousands_of_clients_every_kth_is_drawn_and_the_figure_says_so() -> None:
    clients = 10_000
    partition = Partition(label_counts=tuple((1 + i % 3, 2, 0, 0) for i in range(clients)))
    (bars, heat, _), alt = undrawn(plots.classes, partition, range(clients), None)
    (samples,) = marks(bars, Bars)
    assert samples.top.tolist() == [3.0 + i % 3 for i in range(0, clients, 25)]
    assert painted(heat).shape == (4, 400, 4)
    assert "one of every 25 shown" in bars.title
    assert "10000 clients" in alt


# --- the kit ----------------------------------------------------------------------------------------------------------


def test_marks_lie_where_their_values_are() -> None:
    """A panel of 0 to 10 by 0 to 100, whose plot is 100 by 100 pixels."""
    panel = Panel(x=Axis(low=0, high=10), y=Axis(low=0, high=100))
    panel.marks += [Line([0, 5, 10], [0, float("nan"), 100], "#1", every=slice(None)), Line([2, 4], [50, 60], "#2")]
    panel.marks += [Bars([5], [10], [40], "#3", width=2), Band([0, 10], [0, 0], [10, 20], "#4", 0.5)]
    svg = panel.draw(0, 0, 100, 100)
    assert "M20.0,50.0L40.0,40.0" in svg
    assert "M40.0,90.0V60.0H60.0V90.0Z" in svg
    assert "M0.0,100.0L100.0,100.0L100.0,80.0L0.0,90.0Z" in svg
    assert "nan" not in svg


def test_a_picture_is_a_png_of_its_pixels() -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    panel = Panel(marks=[Image(pixels, 0, 3, 0, 2)])
    (code,) = re.findall(r"base64,([^\"]+)", panel.draw(0, 0, 9, 9))
    file = base64.b64decode(code)
    assert file.startswith(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 3, 2) + b"\x08\x06")
    start = file.index(b"IDAT") + 4
    (length,) = struct.unpack(">I", file[start - 8 : start - 4])
    rows = zlib.decompress(file[start : start + length])
    assert rows == b"".join(b"\0" + row.tobytes() for row in pixels)


@pytest.mark.parametrize("log", [False, True])
@given(low=st.floats(1e-9, 1e9), factor=st.floats(1.5, 1e12))
def test_an_axis_has_a_few_ticks_inside(log: bool, low: float, factor: float) -> None:
    axis = Axis(log=log)
    ticks = axis.marked(low, low * factor)
    assert (1 if factor < 2.5 else 2) <= len(ticks) <= 10
    assert all(low * (1 - 1e-6) <= value <= low * factor * (1 + 1e-6) for value, _ in ticks) or not log
    assert len({words for _, words in ticks}) == len(ticks)


def test_an_axis_reaches_the_largest_number() -> None:
    assert Axis(log=True).marked(1.0, math.inf)


def test_a_legend_takes_as_many_rows_as_it_needs() -> None:
    def height(keys: int) -> float:
        svg = Figure(400, 100, [[Panel()]], keys=[Key("x" * 20, "#1")] * keys).svg('a "b" <c>')
        assert 'aria-label="a &#34;b&#34; &lt;c&gt;"' in svg
        return float(re.findall(r'viewBox="0 0 400 ([\d.]+)"', svg)[0])

    assert [height(keys) for keys in (2, 3, 4, 5)] == [122, 140, 140, 158]


def test_ink_follows_the_theme(run: Run) -> None:
    svg = plots.scores(run, run.leading)
    assert set(re.findall(r'(?:fill|stroke)="([^"]+)"', svg)) <= {*PALETTE, "none", *(f"var(--{v})" for v in INKS)}


INKS = ("ink", "muted", "grid", "paper")


# --- clusters ---------------------------------------------------------------------------------------------------------


def with_membership(run: Run, noted: list[dict[str, Any]], folder: Path, groups: list[int] | None = None) -> Run:
    """The run with other notes, one round for each, and other groups of the data."""
    folder.mkdir()
    for name in ("config.toml", "observed.json"):
        (folder / name).write_bytes((run.folder / name).read_bytes())
    (folder / "partition.json").write_text(json.dumps({"label_counts": run.partition.label_counts, "groups": groups}))
    told = json.loads((run.folder / "result.json").read_text()) | {"rounds": len(noted)}
    (folder / "result.json").write_text(json.dumps(told))
    lines = [{"round": r, "notes": notes} for r, notes in enumerate(noted, start=1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return load(folder)


GROUPS = [0, 0, 0, 1, 1, 1, 2, 2]


@given(names=st.lists(st.permutations([0, 1, 2]), min_size=1, max_size=4))
def test_names_that_change_do_not_move_anybody(
    run: Run, names: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    noted = [{"clustered": True, "membership": [[p[g]] for g in GROUPS]} for p in names]
    known = clusters.history(with_membership(run, noted, tmp_path_factory.mktemp("h") / "x"))
    assert known is not None
    assert set(known.members) == {tuple(frozenset({names[0][g]}) for g in GROUPS)}


def test_one_mover_is_the_only_one_who_moves(run: Run, tmp_path: Path) -> None:
    moved = [*GROUPS[:-1], 0]
    noted: list[dict[str, Any]] = [
        {"clustered": True, "membership": [[g] for g in GROUPS]},
        {"clustered": False, "membership": None},
        {"clustered": True, "membership": [[(g + 1) % 3] for g in moved]},
        {"clustered": True, "membership": None},
    ]
    known = clusters.history(with_membership(run, noted, tmp_path / "x"))
    assert known is not None
    first, kept, after, unknown = known.members
    assert first == kept == tuple(frozenset({g}) for g in GROUPS)
    assert after == tuple(frozenset({g}) for g in moved)
    assert unknown == (frozenset(),) * 8
    assert known.events == (1, 3, 4)
    assert known.order == (0, 1, 2, 7, 3, 4, 5, 6)


def test_a_new_cluster_gets_a_new_number_and_the_absent_keep_theirs(run: Run, tmp_path: Path) -> None:
    noted = [
        {"clustered": True, "membership": [[0], [0], [0], [0], [1], [1], [1], [1]]},
        {"clustered": True, "membership": [[0], [0], [0], [0], [], [], [], []]},
        {"clustered": True, "membership": [[5], [5], [7], [7], [6], [6], [6], [6]]},
    ]
    known = clusters.history(with_membership(run, noted, tmp_path / "x"))
    assert known is not None
    last = [min(own) for own in known.last]
    assert last[4:] == [1] * 4
    assert sorted(last[:4]) == [0, 0, 2, 2]


def test_pixels_split_a_cell_evenly() -> None:
    sets = (frozenset({0}), frozenset({0, 2}), frozenset({0, 1, 2}), frozenset[int]())
    rows = clusters.pixels([sets], range(4), PALETTE).reshape(4, 12, 4)
    for client, own in enumerate(sets):
        found = [tuple(pixel) for pixel in rows[client].tolist()]
        if own:
            assert {found.count(rgba(colour(k))) for k in own} == {12 // len(own)}
        else:
            assert found == [(0, 0, 0, 0)] * 12


# --- comparisons ------------------------------------------------------------------------------------------------------


def test_seeds_of_one_method_are_one_group(groups: list[comparison.RunGroup]) -> None:
    assert {found.label: [run.result.seed for run in found.runs] for found in groups} == {
        "FedAvg": [0, 1, 2],
        "FedCAPrivacy": [0, 1, 2],
        "IFCA": [0, 1, 2],
    }


def test_curves_are_mean_and_sample_deviation(groups: list[comparison.RunGroup]) -> None:
    for found in groups:
        rounds, mean, std = found.curve("local_accuracy")
        assert std is not None
        columns = [[line["local_accuracy"] for line in raw(run)] for run in found.runs]
        assert rounds.tolist() == list(range(1, 13))
        for i, values in enumerate(zip(*columns, strict=True)):
            assert mean[i] == pytest.approx(sum(values) / 3)
            assert std[i] == pytest.approx((sum((v - sum(values) / 3) ** 2 for v in values) / 2) ** 0.5)


def test_target_is_reached_by_all_and_by_somebody_only_just(groups: list[comparison.RunGroup]) -> None:
    target = comparison.common_target(groups, "global_accuracy")
    assert target is not None
    assert round(100 * target) == pytest.approx(100 * target)
    for found in groups:
        rounds, mean, _ = found.curve("global_accuracy")
        reached = [int(r) for r, value in zip(rounds, mean, strict=True) if value >= target]
        assert found.rounds_to("global_accuracy", target) == reached[0]
    assert any(found.rounds_to("global_accuracy", target + 0.01) is None for found in groups)


def test_comparison_lines_are_the_curves_and_costs(groups: list[comparison.RunGroup]) -> None:
    (_, local), _ = undrawn(compared_plots.compared_scores, groups)
    for line, found in zip([one for one in local.lines() if not one.dashed], groups, strict=True):
        assert np.array_equal(line.y, found.curve("local_accuracy")[1])
    (costs, *_), _ = undrawn(compared_plots.compared_costs, groups)
    for line, found in zip(costs.lines(), groups, strict=True):
        per_client = [np.cumsum([one["bytes_up"]["client"] / 5 for one in raw(run)]) for run in found.runs]
        np.testing.assert_allclose(line.x, np.mean(per_client, axis=0))


def test_ablations_are_told_apart_and_unequal_work_is_confessed(tmp_path: Path) -> None:
    for name, alpha, clients in (("a", 0.0, 4), ("b", 0.5, 4), ("c", 0.5, 5)):
        write_run(tmp_path / name, clients=clients, rounds=2, settings={"alpha": alpha, "lr": 0.1})
    write_run(tmp_path / "d", clients=4, rounds=2, system="fedavg", title="FedAvg", crypto="none", seed=3)
    runs = [load(folder) for folder in find([tmp_path])]
    assert [found.label for found in comparison.group(runs)] == [
        "FedCAPrivacy, clients=4, alpha=0.0",
        "FedCAPrivacy, clients=4, alpha=0.5",
        "FedCAPrivacy, clients=5, alpha=0.5",
        "FedAvg",
    ]
    differing = comparison.differing_work(runs)
    assert differing["clients"] == ["4", "5"]
    assert set(differing) == {"clients", "seeds"}
    assert comparison.differing_work(runs[:2]) == {}


def test_a_comparison_keeps_the_order_in_which_it_was_asked_for(tmp_path: Path) -> None:
    write_comparison(tmp_path, clients=3, seeds=2, rounds=1)
    assert find([tmp_path])[0].name == "fedavg-0"
    rows = [{"runs": [f"{system}-0", f"{system}-1"]} for system in ("ifca", "fedcaprivacy", "fedavg")]
    (tmp_path / "compare.json").write_text(json.dumps({"rows": rows}))
    assert [folder.name for folder in find([tmp_path, tmp_path / "ifca-0"])] == [n for row in rows for n in row["runs"]]


def test_the_best_is_best_with_fine_tuning_counted(groups: list[comparison.RunGroup]) -> None:
    table = tables.comparison_table(groups)
    for kind in ("global_accuracy", "local_accuracy"):
        means = [np.mean([getattr(run.result, kind) for run in found.runs]) for found in groups]
        tuned = np.mean([getattr(run.result, f"fine_tuned_{kind}") for run in groups[0].runs])
        assert table["best"][kind] == table["best"][f"fine_tuned_{kind}"] == pytest.approx(max(*means, tuned))


def test_reads_what_a_run_writes(tmp_path: Path) -> None:
    from coterie.runs.config import RunConfig
    from coterie.runs.runner import run as train

    done = train(RunConfig("ifca", samples=300, clients=4, rounds=3, eval_every=2, out=str(tmp_path / "run")))
    read = load(done.folder)
    assert read.result.global_accuracy == done.summary["global_accuracy"]
    assert [line.global_accuracy is not None for line in read.rounds] == [False, True, True]
    assert sum(read.total("bytes_up").values()) == done.summary["bytes_up"]
    assert read.client_bytes("bytes_up") == [line["bytes_up"]["client"] / 4 for line in done.rounds]
    assert np.sum(read.partition.label_counts) == np.sum(read.partition.samples)
    known = clusters.history(read)
    assert known is not None
    assert known.events == (1, 2, 3)


def test_the_role_of_the_clients_is_found_by_who_trains(run: Run, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x", clients=4, rounds=2)
    text = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(text.replace('"client/Fit"', '"device/Fit"').replace('"client"', '"device"'))
    renamed = load(folder)
    assert (run.client_role, renamed.client_role) == ("client", "device")
    expected = [line["bytes_up"]["device"] / 4 for line in raw(renamed)]
    assert renamed.client_bytes("bytes_up") == expected


# --- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "–"),
        (0, "0 s"),
        (0.0123, "12.3 ms"),
        (0.9996, "1.00 s"),
        (8.26, "8.26 s"),
        (99.96, "1 min 40 s"),
        (125, "2 min 5 s"),
        (3599.6, "1 h"),
        (12_000, "3 h 20 min"),
        (190_800, "2 d 5 h"),
    ],
)
def test_durations(seconds: float | None, shown: str) -> None:
    assert words.duration(seconds) == shown


@given(st.integers(0, 10**15))
@example(999_600)
@example(9_996)
def test_sizes_read_back(count: int) -> None:
    number, unit = words.size(count).split(" ")
    factor = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit]
    assert float(number) * factor == pytest.approx(count, rel=0.006)
    assert float(number) < 1000 or unit == "TB"


def test_percents_and_lists() -> None:
    assert words.percent(0.8731) == "87.3 %"
    sizes = [words.sized(count) for count in (0.2, 7, 100, 1000, 1500, 20_000, 123_456, 2e6)]
    assert sizes == ["0.2 B", "7 B", "100 B", "1 kB", "1.5 kB", "20 kB", "123 kB", "2 MB"]
    assert words.percent(0.8731, 0.0123) == "87.3 ± 1.2 %"
    assert words.plural(1, "class", "classes") == "1 class"
    assert words.listed([1, 2, 3]) == "1, 2, 3"
    assert words.listed(list(range(100)), 8) == "0, 1, 2, 3, … (93 more) …, 97, 98, 99"


def test_a_notebook_shows_a_plot_as_a_picture(tmp_path: Path) -> None:
    """By the protocol of IPython's display: an object that has ``_repr_png_`` is shown by it."""
    options: dict[str, Any] = {"clients": 3, "rounds": 1, "max_epochs": 1, "progress": False}
    race = coterie.compare(["fedavg"], seeds=1, out=str(tmp_path / "c"), **options)
    for figure in (race.plot(), race.results["fedavg"][0].plot()):
        picture = figure._repr_png_()  # type: ignore[attr-defined]
        assert picture.startswith(b"\x89PNG\r\n\x1a\n")
        width, height = (int.from_bytes(picture[at : at + 4], "big") for at in (16, 20))
        assert (width, height) == tuple(figure.get_size_inches() * figure.dpi)


def test_ipython_itself_shows_it() -> None:
    formatters = pytest.importorskip("IPython.core.formatters")
    found, _ = formatters.DisplayFormatter().format(new_figure(2, 1))
    assert found["image/png"].startswith(b"\x89PNG")
