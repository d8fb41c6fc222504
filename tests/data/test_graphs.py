"""Citation graphs, from .npz files and from the LINQS archives."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from coterie.data import load
from coterie.protocol.errors import UserError

NODES = 9


@pytest.fixture(autouse=True)
def no_folders_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("COTERIE_DATA", raising=False)


def graph(**changes: object) -> dict[str, np.ndarray]:
    dense = (np.arange(NODES * 4).reshape(NODES, 4) % 3).astype(np.float32)
    dense[8] = 0
    x = csr_matrix(dense)
    good = {
        "x_indptr": x.indptr,
        "x_indices": x.indices,
        "x_data": x.data,
        "x_shape": np.array(x.shape),
        "edges": np.array([[0, 1, 2, 7], [1, 2, 5, 8]]),
        "y": np.array([0, 1, 2, 0, 1, 2, 0, 1, -1], np.int16),
        "train": np.array([0, 1, 2]),
        "val": np.array([3]),
        "test": np.array([4, 5, 6, 7]),
    }
    return {key: np.asarray(value) for key, value in {**good, **changes}.items() if value is not None}


ENTRIES = len(graph()["x_data"])


def mask(*nodes: int) -> np.ndarray:
    return np.isin(np.arange(NODES), nodes)


def test_graph_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", **graph())
    masks = {"train": mask(0, 1, 2), "val": mask(3), "test": mask(4, 5, 6, 7)}
    np.savez(tmp_path / "masked.npz", **graph(**masks))
    dense = (np.arange(NODES * 4).reshape(NODES, 4) % 3).astype(np.float64)
    dense[8] = 0
    for name in ("own", "masked"):
        data = load(name, tmp_path)
        assert (data.kind, data.input_shape, data.classes) == ("graph", (4,), 3)
        g = data.graph
        np.testing.assert_allclose(g.x[:8], (dense / np.maximum(dense.sum(axis=1, keepdims=True), 1))[:8], rtol=1e-6)
        np.testing.assert_array_equal(g.x[8], 0)
        np.testing.assert_array_equal(data.inputs(), g.x[[0, 1, 2]])
        np.testing.assert_array_equal(data.labels(split="test"), [1, 2, 0, 1])
        np.testing.assert_array_equal(g.val, [3])
        np.testing.assert_array_equal(g.edges, [[0, 1, 2, 7], [1, 2, 5, 8]])
        for array in (g.x, g.edges, g.y, g.train, g.val, g.test, data.x_train, data.y_test):
            assert not array.flags.writeable
        assert "9 nodes, 4 edges, 3 training, 1 validation and 4 test" in data.source
    np.savez(tmp_path / "noval.npz", **graph(val=None))
    assert len(load("noval", tmp_path).graph.val) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edges": None, "y": None}, "arrays edges, y are missing"),
        ({"x_shape": [9]}, "x_shape is"),
        ({"x_shape": [9, -4]}, "x_shape is"),
        ({"x_shape": [1 << 40, 1 << 40]}, "x_shape is"),
        ({"x_shape": [9, 2]}, "do not form a sparse matrix"),
        ({"x_shape": [8, 4]}, "do not form a sparse matrix"),
        ({"x_indices": np.full(ENTRIES, -1)}, "do not form a sparse matrix"),
        ({"x_indices": np.full(ENTRIES, 4)}, "do not form a sparse matrix"),
        ({"x_data": np.ones(3)}, "do not form a sparse matrix"),
        ({"x_indptr": np.arange(10) * 1000}, "do not form a sparse matrix"),
        ({"x_data": np.array(["a"] * ENTRIES)}, "do not form a sparse matrix"),
        ({"x_data": np.full(ENTRIES, np.nan)}, "NaN"),
        ({"x_data": -np.ones(ENTRIES)}, "negative"),
        ({"edges": [[0, 1], [1, 9]]}, r"edges name nodes 0\.\.9, but there are 9 nodes"),
        ({"edges": [[0, 1], [1, -1]]}, r"edges name nodes -1\.\.1"),
        ({"edges": [[0, 1, 2]]}, "edges are"),
        ({"edges": [[0.5, 1], [1, 2]]}, "edges are float64"),
        ({"y": [0, 1]}, "y is"),
        ({"y": [0, 1, 2, 0, 1, 2, 0, 1, -2]}, "y is"),
        ({"train": [0, 9]}, r"train must be node numbers 0\.\.8"),
        ({"train": [0.0, 1.0]}, "train must be node numbers"),
        ({"test": mask(4)[:5]}, "test must be node numbers"),
        ({"test": np.zeros(0, int)}, "test names no node"),
        ({"train": mask()}, "train names no node"),
        ({"test": [8]}, "test names node 8, which has no class"),
        ({"val": [2]}, "in two of train, val and test"),
        ({"test": [4, 4]}, "twice in one"),
    ],
)
def test_graphs_that_are_refused(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", **{"x_indptr": np.zeros(0), **graph(**changes)})
    with pytest.raises(UserError, match=message) as error:
        load("own", tmp_path)
    assert str(tmp_path / "own.npz") in str(error.value)


def test_a_known_graph_has_its_classes(tmp_path: Path) -> None:
    np.savez(tmp_path / "cora.npz", **graph())
    assert load("cora", tmp_path).classes == 7
    np.savez(tmp_path / "pubmed.npz", **graph(y=[0, 1, 2, 3, 1, 2, 0, 1, -1]))
    with pytest.raises(UserError, match="class 3, but pubmed has 3 classes"):
        load("pubmed", tmp_path)


# The authors' archives


def write(path: Path, members: dict[str, str]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))


def content(papers: int) -> tuple[str, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    flags, topic = rng.integers(0, 2, (papers, 6)), np.arange(papers) % 4
    names = ["Theory", "Agents", "Networks", "Genetic"]  # numbered in alphabetical order: 3, 0, 2, 1
    lines = [f"p{i}\t" + "\t".join(map(str, flags[i])) + f"\t{names[topic[i]]}" for i in range(papers)]
    return "\n".join(lines) + "\n", flags, np.array([3, 0, 2, 1])[topic]


def test_cora_as_its_authors_publish_it(tmp_path: Path) -> None:
    text, flags, y = content(2000)
    cites = "p1\tp0\np0\tp1\np5\tp5\np7\tp3\np7\tmissing\n\np3\tp7\np1999\tp0\n"
    write(tmp_path / "cora.tgz", {"cora/README": "?", "cora/cora.cites": cites, "cora/cora.content": text})
    data = load("cora", tmp_path, download=False)
    g = data.graph
    sums = np.maximum(flags.sum(axis=1, keepdims=True), 1)
    np.testing.assert_allclose(g.x, flags / sums, rtol=1e-6)
    np.testing.assert_array_equal(g.y, y)
    assert {tuple(e) for e in g.edges.T.tolist()} == {(0, 1), (3, 7), (0, 1999)}  # undirected, once, no loops
    assert (len(g.train), len(g.val), len(g.test)) == (80, 500, 1000)
    np.testing.assert_array_equal(np.bincount(g.y[g.train], minlength=7), [20, 20, 20, 20, 0, 0, 0])
    assert len(np.unique(np.concatenate([g.train, g.val, g.test]))) == 1580
    assert np.abs(np.bincount(g.y[g.test])[:4] - 250).max() < 40  # spread over the whole file
    assert "not Planetoid's" in data.source


def test_pubmed_as_its_authors_publish_it(tmp_path: Path) -> None:
    header = "cat=1,2,3:label\tnumeric:w-rat:0.0\tnumeric:w-common:0.0\tsummary"
    rows = [
        f"{100 + i}\tlabel={i % 3 + 1}\tw-common=0.25\tw-rat=0.{i % 9 + 1}\tsummary=w-common,w-rat" for i in range(90)
    ]
    links = ["33824\tpaper:100\t|\tpaper:105", "33825\tpaper:107 \t|\tpaper:100", "33826\tpaper:100\t|\tpaper:9"]
    members = {
        "Pubmed-Diabetes/data/Pubmed-Diabetes.NODE.paper.tab": "\n".join(["NODE\tpaper", header, *rows]),
        "Pubmed-Diabetes/data/Pubmed-Diabetes.DIRECTED.cites.tab": "\n".join(
            ["DIRECTED\tcites", "NO_FEATURES", *links]
        ),
    }
    (tmp_path / "pubmed").mkdir()
    write(tmp_path / "pubmed" / "Pubmed-Diabetes.tgz", members)
    g = load("pubmed", tmp_path, download=False).graph
    np.testing.assert_allclose(g.x[4], np.array([0.5, 0.25]) / 0.75, rtol=1e-6)
    np.testing.assert_array_equal(g.y, np.arange(90) % 3)
    assert {tuple(e) for e in g.edges.T.tolist()} == {(0, 5), (0, 7)}
    assert (len(g.train), len(g.val), len(g.test)) == (60, 10, 20)


@pytest.mark.parametrize(
    ("papers", "cites", "message"),
    [
        ("p1\t0\t1\tA\np2\t0\tB\n", "", "damaged"),
        ("p1\n", "", "damaged"),
        ("p1\t0\tx\tA\n", "", "damaged"),
        ("", "", "damaged"),
        (content(100)[0], "p1\n", "damaged"),
        (content(60)[0], "", "60 papers leave no test set"),
    ],
)
def test_damaged_archives(papers: str, cites: str, message: str, tmp_path: Path) -> None:
    write(tmp_path / "citeseer.tgz", {"citeseer/citeseer.content": papers, "citeseer/citeseer.cites": cites})
    with pytest.raises(UserError, match=message) as error:
        load("citeseer", tmp_path, download=False)
    assert str(tmp_path / "citeseer.tgz") in str(error.value)
