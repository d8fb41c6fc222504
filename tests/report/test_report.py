"""The report as a page: loads nothing, says what result.json says, cannot be broken by what is in the folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_folders import edit, edit_rounds, without_heads, write_comparison, write_run

from coterie.protocol.errors import RunError, UserError
from coterie.record import load
from coterie.report import html, plots, render

SMALL: dict[str, Any] = {"clients": 6, "rounds": 4}
BADGE = "EMULATED CIPHER"


class Page(HTMLParser):
    """Start tags with their attributes, values of <data>, the text, and whether every tag was closed."""

    VOID = ("meta", "br", "img", "link", "input")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html, self.tags, self.open, self.data, self.headings = html, [], [], [], []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "data":
            self.data.append(float(dict(attrs)["value"] or "nan"))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)
        if "style" not in self.open:
            self.text += data

    def attributes(self, name: str) -> list[str]:
        return [attrs[name] or "" for _, attrs in self.tags if name in attrs]


def page_of(folder: Path) -> Page:
    return Page(render([folder]).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "one", **SMALL)


@pytest.fixture(scope="module")
def page(run: Path) -> Page:
    return page_of(run)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return page_of(write_comparison(tmp_path_factory.mktemp("compared"), seeds=1, **SMALL))


def test_loads_nothing(page: Page, compared: Page) -> None:
    for each in (page, compared):
        assert "http:" not in each.html
        assert "https:" not in each.html
        assert "@import" not in each.html
        names = {tag for tag, _ in each.tags}
        assert not names & {"script", "link", "iframe", "object", "embed", "base", "form"}
        for link in each.attributes("href") + each.attributes("src"):
            assert link.startswith(("#", "data:image/png;base64,", "data:text/csv;charset=utf-8,")), link
        assert "url(" not in each.html
        policy = dict(next(attrs for tag, attrs in each.tags if "http-equiv" in attrs))
        assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def test_tags_are_closed_and_ids_are_unique_and_found(page: Page, compared: Page) -> None:
    for each in (page, compared):
        assert each.open == []
        ids = Counter(each.attributes("id"))
        assert max(ids.values()) == 1
        wanted = {link[1:] for link in each.attributes("href") if link.startswith("#")}
        assert wanted <= set(ids)


def test_every_figure_has_words(page: Page) -> None:
    figures = [attrs for tag, attrs in page.tags if tag == "svg"]
    assert len(figures) == 2 * page.html.count("<figure>") >= 12  # for a screen and for a telephone
    for attrs in figures:
        assert attrs["role"] == "img"
        assert len(attrs["aria-label"] or "") > 10


def test_the_summary_is_that_of_the_files(run: Path, page: Page) -> None:
    told = json.loads((run / "result.json").read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    turns = told["clients"] * told["rounds"]
    assert page.data == [
        told["global_accuracy"],
        told["local_accuracy"],
        told["grouping"]["ari"],
        pytest.approx(sum(line["bytes_up"]["client"] for line in lines) / turns),
        pytest.approx(sum(line["bytes_down"]["client"] for line in lines) / turns),
        told["seconds"],
        told["virtual_seconds"],
    ]
    flat = page.text.replace("\u202f", " ")
    for words in (
        "FedCAPrivacy",
        "6 clients trained the model mlp on digits for 4 rounds.",
        "by its own Dirichlet draw: unequal sizes, unequal labels (dirichlet:0.3).",
        f"{100 * told['global_accuracy']:.1f} % of the whole test set",
        "mode paper",
        "seed 0",
        "use version 0.1.0",
    ):
        assert words in flat
    for role, words in told["sees"].items():
        assert role in flat
        assert words in flat


def test_totals_include_the_set_up(run: Path, page: Page) -> None:
    told = json.loads((run / "result.json").read_text())
    assert "authority > client Keys" in page.text
    assert f"{told['bytes_up'] / 1e6:.0f}\u202fMB sent by all parties together" in page.text


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("crypto", ["real", "emulated", "none"])
def test_badge_iff_emulated(tmp_path: Path, crypto: str) -> None:
    title = "FedCAPrivacy" + (" (emulated cipher)" if crypto == "emulated" else "")
    text = page_of(write_run(tmp_path / "one", crypto=crypto, title=title, **SMALL)).text
    assert (BADGE in text) == (crypto == "emulated")
    assert ("protects nobody" in text) == (crypto == "emulated")
    assert ("real cipher" in text.split("Accuracy and loss")[0]) == (crypto == "real")
    assert ("bit for bit, CKKS up to the cipher's noise" in text) == (crypto == "emulated")
    assert "only in distribution" in text or crypto != "emulated"


@pytest.mark.usefixtures("no_figures")
def test_a_comparison_shows_whose_clusters_are_the_groups(tmp_path: Path) -> None:
    """The mean over the seeds with half of its interval; a dash for a method without clusters."""
    folder = write_comparison(tmp_path, seeds=3, **SMALL)
    found = [json.loads((folder / f"fedcaprivacy-{s}/result.json").read_text())["grouping"]["ari"] for s in range(3)]
    costs = without_heads(page_of(folder).html).partition("<h3>Costs")[2]
    table = costs.partition("</table>")[0]
    assert '<th class="n">groups found</th>' in table
    half = 4.302653 * np.std(found, ddof=1) / 3**0.5
    assert f">{np.mean(found):.2f} ± {half:.2f}</data>" in table
    assert ">–</td>" in table.partition(">FedAvg<")[2].partition("</tr>")[0]


def test_comparison_flags_each_emulated_method_and_no_other(compared: Page) -> None:
    rows = re.findall(
        r"<tr><td class=\"words\"><span class=\"method\">.*?</tr>", without_heads(compared.html), re.DOTALL
    )
    assert [BADGE in row for row in rows] == ["FedCAPrivacy" in row for row in rows]
    assert len(rows) == 2 * 3  # in the table of scores and in that of costs
    legends = [text for text in re.findall(r"<text[^>]*>([^<]*)</text>", compared.html) if "emulated" in text]
    assert legends == ["FedCAPrivacy (emulated cipher)"] * 6


def test_late_answers_need_no_deadline(page: Page) -> None:
    assert "answers that came after their round" in page.text
    assert "deadline" not in page.text


FALSE_IDENTITIES = "a client's set holds false identities, too"


@pytest.mark.usefixtures("no_figures")
def test_sets_that_hide_a_client_s_own_cluster_are_not_shown_as_clusters(tmp_path: Path) -> None:
    """Soft clusters overlap by themselves; mingled ones hold more than the observer knows to be true."""
    soft = write_run(tmp_path / "soft", **SMALL)
    sets = [[0, 1], [0], [1, 2], [1], [2], []]
    edit_rounds(soft, lambda r, line: line["notes"].update(membership=sets if r == 3 else None))
    edit(soft / "observed.json", membership=sets)
    assert FALSE_IDENTITIES not in page_of(soft).text
    edit(soft / "observed.json", membership=[[0], [0], [2], [1], [2], []])
    assert FALSE_IDENTITIES in page_of(soft).text


HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)> $\\frac{ _x \x00\u202e'


def test_hostile_words_stay_words(tmp_path: Path) -> None:
    folder = write_run(
        tmp_path / "<u>&x",
        title=HOSTILE,
        data=HOSTILE,
        partition=HOSTILE,
        model=HOSTILE,
        mode=HOSTILE,
        version=HOSTILE,
        sees={HOSTILE: HOSTILE},
        settings={"note": "<script>"},
        **SMALL,
    )
    names = (HOSTILE, "_hidden", "$\\frac{$", "client", "a id=\"b\" url(#c) font: 'DejaVu Sans'")
    hostile = {
        "late": [HOSTILE],
        "lost": {HOSTILE: HOSTILE},
        "refused": {HOSTILE: 1},
        "bytes_up": {name: 7 - place for place, name in enumerate(names)},
        "message_bytes": {HOSTILE: 7},
        "phase_seconds": {HOSTILE: 1.0},
    }
    edit_rounds(folder, lambda r, line: line.update(hostile))
    other = write_run(tmp_path / "plain", crypto="none", **SMALL)
    alone, both = page_of(folder), Page(render([folder, other], tmp_path / "both.html").read_text())
    for each in (alone, both):
        assert each.open == []
        assert not {tag for tag, _ in each.tags} & {"script", "img", "u"}
        assert not [name for _, attrs in each.tags for name in attrs if name.startswith("on")]
        assert each.text.count("<script>alert(1)</script>") > 10
    assert 'note = "<script>"' in alone.text


def test_what_is_missing_is_absent(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "bare", crypto="none", **SMALL)
    (folder / "partition.json").unlink()
    (folder / "observed.json").unlink()
    edit(folder / "result.json", sees=None, title=None, mode=None, model=None, set_up=None, virtual_seconds=None)
    edit(folder / "result.json", virtual_seconds=None, grouping=None)
    result = json.loads((folder / "result.json").read_text()) | {"global_accuracy": None, "virtual_seconds": None}
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "metrics.jsonl").write_text('{"round": 1}\n{"round": 4, "local_accuracy": 0.5}\n')
    page = page_of(folder)
    assert page.headings == ["Accuracy and loss", "Settings, and how to repeat it"]
    assert page.html.count("<svg") == 2
    assert page.data == [result["local_accuracy"], result["seconds"]]
    assert "fedcaprivacy" in page.text
    both = Page(render([folder, write_run(tmp_path / "full", **SMALL)], tmp_path / "both.html").read_text())
    assert "Accuracy for its cost" not in both.headings


def test_full_headings(page: Page) -> None:
    assert page.headings == [
        "Accuracy and loss",
        "Clusters",
        "Who holds which classes",
        "Bytes and time",
        "Who was there",
        "What each party sees",
        "Settings, and how to repeat it",
    ]


def test_the_same_folder_gives_the_same_bytes(run: Path, page: Page) -> None:
    assert render([run]).read_text() == page.html


def test_config_can_be_copied_out(run: Path, page: Page) -> None:
    assert (run / "config.toml").read_text() in page.text
    assert "coterie run --config config.toml" in page.text


GOOD = '{"round": 1, "global_accuracy": 0.5}'


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("metrics.jsonl", GOOD + "\n{not json\n", "metrics.jsonl, line 2: not valid JSON"),
        ("metrics.jsonl", GOOD + '\n{"round": 2, "global_acc', "metrics.jsonl, line 2: not valid JSON"),
        ("metrics.jsonl", GOOD + "\n[1]\n", "metrics.jsonl, line 2: Expected `object`"),
        ("metrics.jsonl", '{"global_accuracy": 0.5}\n', "metrics.jsonl, line 1: Object missing required field `round`"),
        ("metrics.jsonl", '{"round": 1, "global_accuracy": "high"}', r"line 1: Expected `float.*\$.global_accuracy"),
        ("metrics.jsonl", '{"round": 1, "global_accuracy": 87.3}', "line 1: Expected `float` <= 1"),
        ("metrics.jsonl", '{"round": 1, "bytes_up": {"client": -1}}', "line 1: Expected `int` >= 0"),
        ("metrics.jsonl", '{"round": 1, "notes": {"membership": [["a"]]}}', "line 1: Expected `int`"),
        ("metrics.jsonl", '{"round": 1, "grouping": {"ari": 2, "clusters": 1, "per_client": 1, "sizes": [6]}}', "<= 1"),
        ("metrics.jsonl", '{"round": 1, "grouping": {"clusters": 1, "per_client": 1, "sizes": [-6]}}', "`int` >= 0"),
        ("metrics.jsonl", '{"round": 1, "grouping": {"clusters": 1, "sizes": [6]}}', "field `per_client`"),
        ("metrics.jsonl", f"{GOOD}\n{GOOD}\n", "line 2: round 1 after round 1"),
        ("metrics.jsonl", GOOD, "ends with round 1, but result.json says 4"),
        ("metrics.jsonl", "\n", "no round in it"),
        ("metrics.jsonl", "[" * 100_000, "line 1: not"),
        ("metrics.jsonl", '{"round": 4, "notes": {"membership": [[0], [1]]}}', "2 entries for 6 clients"),
        ("metrics.jsonl", b'{"round": 1}\n\xff\xfe', "not text in UTF-8"),
        ("result.json", "", "result.json: not valid JSON"),
        ("result.json", "{}", "result.json: Object missing required field"),
        ("config.toml", "a = ", "config.toml: not valid TOML"),
        ("partition.json", '{"label_counts": [[1], [2]]}', "label_counts has 2 entries for 6 clients"),
        ("partition.json", '{"groups": [0, 1]}', "groups has 2 entries for 6 clients"),
        ("partition.json", '{"groups": [0, 1, 0, 1, 0, -1]}', "Expected `int` >= 0"),
        ("partition.json", '{"label_counts": [[1], [2], [1, 2], [1], [1], [1]]}', "differ in length"),
        (
            "partition.json",
            '{"label_counts": [[1], [2], [1], [1], [1], [1]], "class_names": ["a", "b"]}',
            "differ in length",
        ),
        ("observed.json", '{"affinity": [[1], [1], [1], [1], [1], [1]]}', "affinity must be 6 x 6"),
        ("observed.json", "null", "observed.json: Expected `object`"),
        ("metrics.jsonl", None, "metrics.jsonl: missing"),
        ("config.toml", None, "config.toml: missing"),
        ("result.json", None, "result.json: missing; the run has not finished"),
    ],
)
def test_bad_files_are_named(run: Path, tmp_path: Path, file: str, text: str | bytes | None, says: str) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    for known in ("config.toml", "metrics.jsonl", "result.json", "partition.json", "observed.json"):
        (folder / known).write_bytes((run / known).read_bytes())
    if text is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=says) as caught:
        render([folder])
    assert file in str(caught.value)
    assert not (folder / "report.html").exists()


def test_a_diverged_loss_is_a_gap_not_an_error(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one", **SMALL)
    losses = {2: float("nan"), 3: float("inf")}
    edit_rounds(folder, lambda r, line: line.update(global_loss=losses.get(r, line["global_loss"])))
    edit_rounds(folder, lambda r, line: line["bands"].update(global_loss=[None, 0.2, None, losses.get(r), None]))
    read = load.load(folder)
    assert [line.global_loss is None for line in read.rounds] == [False, False, True, True]
    assert plots.loss(read)


def test_folders_that_are_no_runs(tmp_path: Path, run: Path) -> None:
    with pytest.raises(UserError, match="no folder to report on"):
        render([])
    with pytest.raises(UserError, match="nowhere: no such folder"):
        render([tmp_path / "nowhere"])
    with pytest.raises(UserError, match="no run in it"):
        render([tmp_path])
    with pytest.raises(UserError, match="different folders"):
        render([run, write_run(tmp_path / "a" / "b", **SMALL)])
    with pytest.raises(UserError, match="no such folder to write"):
        render([run], tmp_path / "nowhere" / "x.html")


def test_a_failed_write_leaves_nothing_and_the_old_report(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "report.html"
    target.write_text("old")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    monkeypatch.setattr(html, "run_page", lambda _: "new")
    with pytest.raises(RunError, match=r"No space left.*make room"):
        render([run], target)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert target.read_text() == "old"


def test_a_report_is_drawn_without_a_plotting_library(run: Path) -> None:
    code = (
        "import sys, pathlib; from coterie.report import render; render([pathlib.Path(sys.argv[1])]);"
        "heavy = {'matplotlib', 'PIL', 'torch', 'sklearn', 'pandas', 'tenseal', 'scipy.stats'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_strange_compare_json_breaks_no_page(tmp_path: Path) -> None:
    """Topics that nobody knows, bytes below 0, gains without what they are made of, and no rows at all."""
    folder = write_comparison(tmp_path / "c", seeds=1, **SMALL)
    spread = {"mean": 0.5, "values": [0.5], "interval": None}
    row = {
        "method": HOSTILE,
        "runs": ["fedavg-0"],
        "local_accuracy": spread,
        "bytes_up": {**spread, "mean": -1.0},
        "learned": {"<unknown>": None, "models": {**spread, "mean": 0.01}},
    }
    gain = {"client": "<client>", "samples": 1, "gain": 0.1, "low": 0.1}
    shared = {"clients": 6, "rounds": 4, "budget_from": "x", "devices": "uniform"}
    told = {**shared, "rows": [row], "benefits": [{"method": HOSTILE, "tuned": False, "clients": [gain]}]}
    (folder / "compare.json").write_text(json.dumps(told))
    page = page_of(folder)
    assert page.open == []
    assert not {tag for tag, _ in page.tags} & {"script", "img", "unknown", "client"}
    assert "next to nothing, at most 1.0 %, of models" in page.text.replace("\u202f", " ")
    (folder / "compare.json").write_text(json.dumps({**told, "rows": [], "benefits": []}))
    assert page_of(folder).open == []


# -- contributions that a defence took for poisoned


without_figures = pytest.mark.usefixtures("no_figures")


def judged(folder: Path, name: str = "Krum", **content: Any) -> str:
    out = write_run(folder, system=name.lower(), title=name, **SMALL)
    edit(out / "result.json", **content)
    return render([out]).read_text()


@without_figures
def test_without_attackers_there_are_false_alarms_alone(tmp_path: Path) -> None:
    found = judged(tmp_path / "run", detection={"rate": None, "false_alarms": 0.125, "rounds": 4})
    assert "Flagged attackers" not in found
    assert "of the honest contributions were flagged as poisoned" in found


@without_figures
def test_with_attackers_both_shares_are_told(tmp_path: Path) -> None:
    attack = {"attack": "scale:10", "attackers": 0.2, "attacker_names": ["client/1"]}
    found = judged(tmp_path / "run", detection={"rate": 0.5, "false_alarms": 0.125, "rounds": 4}, **attack)
    assert "Flagged attackers" in found
    assert "of the other contributions were flagged as poisoned" in found


@without_figures
def test_a_comparison_says_what_false_alarms_are(tmp_path: Path) -> None:
    judged(tmp_path / "a", detection={"rate": None, "false_alarms": 0.125, "rounds": 4})
    judged(tmp_path / "b", "FedAvg")
    both = render([tmp_path / "a", tmp_path / "b"], tmp_path / "both.html").read_text()
    assert "False alarms: the share of other contributions that it took for poisoned." in both
    assert "Attackers flagged: the share" not in both


@without_figures
def test_a_backdoor_is_told_by_the_name_of_its_class(tmp_path: Path) -> None:
    attack = {"attack": "backdoor:3", "attackers": 0.2, "attacker_names": ["client/1"], "backdoor_success": 0.25}
    assert "are class 0 with the trigger" in judged(tmp_path / "run", **attack)
    dealt = json.loads((tmp_path / "run" / "partition.json").read_text())
    names = [f"<{k}>" for k in range(len(dealt["label_counts"][0]))]
    edit(tmp_path / "run" / "partition.json", class_names=names)
    found = render([tmp_path / "run"]).read_text()
    assert "are class &lt;0&gt; with the trigger" in found
    assert "<0>" not in found
