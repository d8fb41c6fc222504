"""Downloads, against a web server on this machine."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import re
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.data import cache_dir, load
from coterie.data.catalogue import KNOWN, RemoteFile, fetch
from coterie.protocol.errors import UserError


class Web:
    """Serves ``files``; counts what was asked for; can lie about lengths and stall."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.missing_bytes = 0
        self.chunked = False
        web = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.lstrip("/")
                web.asked.append(name)
                if name == "stall":
                    time.sleep(2)
                    return
                if name not in web.files:
                    self.send_error(404)
                    return
                self.send_response(200)
                if not web.chunked:
                    self.send_header("Content-Length", str(len(web.files[name]) + web.missing_bytes))
                self.end_headers()
                self.wfile.write(web.files[name])

            def log_message(self, *args: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def remote(self, name: str) -> RemoteFile:
        return RemoteFile(self.address + name, hashlib.md5(self.files[name]).hexdigest())


@pytest.fixture
def web() -> Iterator[Web]:
    web = Web()
    yield web
    web.server.shutdown()
    web.server.server_close()


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("COTERIE_DATA", raising=False)


def everything_under(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(header + array.tobytes())


@pytest.fixture
def mnist(web: Web, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """MNIST on the local server, with four tiny files in place of the real ones."""
    images = np.random.default_rng(0).integers(0, 256, (30, 28, 28)).astype(np.uint8)
    parts = (images[:20], np.arange(20) % 10, images[20:], np.arange(10))
    names = [remote.file_name for remote in KNOWN["mnist"].remote]
    web.files = {name: idx(part.astype(np.uint8)) for name, part in zip(names, parts, strict=True)}
    monkeypatch.setitem(KNOWN, "mnist", replace(KNOWN["mnist"], remote=tuple(map(web.remote, names))))
    return images


def test_a_missing_set_is_fetched_once(web: Web, mnist: np.ndarray) -> None:
    seen: list[tuple[str, int, int | None]] = []
    data = load("mnist", progress=lambda *state: seen.append(state))
    np.testing.assert_array_equal(data.x_train[:, 0], mnist[:20])
    np.testing.assert_array_equal(data.x_test[:, 0], mnist[20:])
    assert everything_under(cache_dir()) == sorted(f"mnist/{name}" for name in web.files)
    for name, content in web.files.items():
        assert seen[[s[0] for s in seen].index(name)] == (name, len(content), len(content))
    assert web.asked == list(web.files)
    np.testing.assert_array_equal(load("mnist").x_train, data.x_train)
    assert len(web.asked) == 4  # not asked again
    (cache_dir() / "mnist" / web.asked[2]).unlink()
    load("mnist")
    assert web.asked[4:] == [web.asked[2]]  # only what was missing


def test_no_download_when_told_so(web: Web, mnist: np.ndarray) -> None:
    with pytest.raises(UserError, match="is not in"):
        load("mnist", download=False)
    assert web.asked == []
    assert not cache_dir().exists()


def test_a_wrong_checksum_leaves_nothing_behind(web: Web, mnist: np.ndarray, tmp_path: Path) -> None:
    name = KNOWN["mnist"].remote[1].file_name
    web.files[name] += b"!"
    with pytest.raises(UserError, match=r"instead of .*: refused") as error:
        load("mnist", tmp_path)
    for part in (
        web.address + name,
        str(tmp_path),
        str(cache_dir()),
        "mnist.npz",
        "--data-dir",
        "COTERIE_DATA",
        "digits",
    ):
        assert part in str(error.value)
    assert everything_under(cache_dir()) == [f"mnist/{KNOWN['mnist'].remote[0].file_name}"]  # the good one before it


def test_a_server_that_is_not_there(web: Web, mnist: np.ndarray) -> None:
    web.server.shutdown()
    web.server.server_close()
    with pytest.raises(UserError, match=r"cannot download http://127.*: the connection to 127\.0\.0\.1 fails") as error:
        load("mnist")
    assert not re.search("urllib3|HTTPConnection|retries", str(error.value))
    assert "digits" in str(error.value)
    assert everything_under(cache_dir()) == []


def test_a_file_that_is_not_there(web: Web, mnist: np.ndarray) -> None:
    del web.files[KNOWN["mnist"].remote[0].file_name]
    with pytest.raises(UserError, match="404"):
        load("mnist")
    assert everything_under(cache_dir()) == []


def test_a_download_that_breaks_off(web: Web, tmp_path: Path) -> None:
    web.files["file"] = bytes(1000)
    web.missing_bytes = 500
    with pytest.raises(UserError, match=r"broke off after 1,000 of 1,500|cannot download"):
        fetch(web.remote("file"), tmp_path / "to")
    assert everything_under(tmp_path / "to") == []


def test_a_server_that_says_nothing(web: Web, tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(UserError, match="cannot download"):
        fetch(RemoteFile(web.address + "stall", "0"), tmp_path, timeout_s=0.2)
    assert time.monotonic() - start < 10  # not the half minute of the default
    assert everything_under(tmp_path) == []


def test_a_stream_without_end_is_cut(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.data.catalogue._MAX_BYTES", 1 << 20)
    web.files["file"] = bytes(5 << 20)
    web.chunked = True
    with pytest.raises(UserError, match="more than 1 MiB: refused"):
        fetch(web.remote("file"), tmp_path)
    assert everything_under(tmp_path) == []


def test_a_length_is_not_needed(web: Web, tmp_path: Path) -> None:
    web.files["file"] = bytes(1000)
    web.chunked = True
    totals: list[int | None] = []
    assert fetch(web.remote("file"), tmp_path, lambda _, __, total: totals.append(total)).read_bytes() == bytes(1000)
    assert totals == [None]


def test_an_interruption_leaves_nothing_behind(web: Web, tmp_path: Path) -> None:
    web.files["file"] = bytes(1000)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(web.remote("file"), tmp_path, interrupt)
    assert everything_under(tmp_path) == []


def test_a_folder_that_cannot_be_written(web: Web, tmp_path: Path) -> None:
    web.files["file"] = b"x"
    (tmp_path / "taken").write_text("a file, not a folder")
    with pytest.raises(UserError, match=r"cannot download .* to .*taken: "):
        fetch(web.remote("file"), tmp_path / "taken")


@pytest.mark.parametrize("url", ["file:///etc/hostname", "nonsense", "http://"])
def test_addresses_that_are_none(url: str, tmp_path: Path) -> None:
    with pytest.raises(UserError):
        fetch(RemoteFile(url, "0" * 32), tmp_path)
    assert everything_under(tmp_path) == []


def test_progress_counts_up_to_the_whole_and_each_state_comes_once(web: Web, tmp_path: Path) -> None:
    web.files["file"] = bytes(600_000)
    states: list[tuple[int, int | None]] = []
    fetch(web.remote("file"), tmp_path, lambda _, done, total: states.append((done, total)))
    assert states == [(262_144, 600_000), (524_288, 600_000), (600_000, 600_000)]


def test_a_damaged_file_is_fetched_again_and_a_whole_one_is_not(web: Web, tmp_path: Path) -> None:
    web.files["file"] = b"whole"
    (tmp_path / "file").write_bytes(b"half")
    for _ in range(2):
        assert fetch(web.remote("file"), tmp_path).read_bytes() == b"whole"
    assert web.asked == ["file"]


def test_a_later_try_begins_anew(web: Web, tmp_path: Path) -> None:
    web.files["file"] = bytes(range(256)) * 10
    web.missing_bytes = 500
    with pytest.raises(UserError, match="cannot download"):
        fetch(web.remote("file"), tmp_path)
    web.missing_bytes = 0
    assert fetch(web.remote("file"), tmp_path).read_bytes() == web.files["file"]
    assert everything_under(tmp_path) == ["file"]


def test_nothing_is_said_on_the_way(web: Web, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    web.files["file"] = b"x"
    fetch(web.remote("file"), tmp_path)
    assert capfd.readouterr() == ("", "")


def test_the_catalogue_is_whole() -> None:
    for name, known in KNOWN.items():
        assert known.remote or known.by_hand, name
        for remote in known.remote:
            assert remote.url.startswith(("https://", "http://ufldl.stanford.edu/")), remote.url
            assert len(remote.md5) == 32
            int(remote.md5, 16)
            assert remote.file_name
