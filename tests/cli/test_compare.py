"""``coterie compare``: one budget, one table, what the servers learned, and how it goes on."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import QUICK, Command
from rich.console import Console

import coterie
from coterie.cli.comparing import benefit_table, form_tables, lead_tables, tables
from coterie.cli.options import tried_values
from coterie.protocol.errors import UserError
from coterie.report.comparison import TOPICS, with_interval
from coterie.runs.audited import kept
from coterie.runs.findings import merged


def test_a_comparison(cli: Command) -> None:
    words = ["compare", "fedavg", "ifca", *QUICK, "--seeds", "2", "--set", "ifca.clusters=2", "--set", "lr=0.2"]
    ended = cli(*words, "--out", "c")
    assert ended.code == 0
    for word in (
        "One budget, that of fedavg: 2 rounds, 4 clients",
        "lr 0.2",
        "ifca",
        "±",
        "over local",
        "c/report.html",
    ):
        assert word in ended.out
    content = json.loads(Path("c/compare.json").read_text())
    assert content["benefits"]
    assert "client/0" not in ended.out  # rows of made clients are in the report alone
    assert "client/0" in Path("c/report.html").read_text()
    assert content["seeds"] == [0, 1]
    assert [row["method"] for row in content["rows"]] == ["fedavg", "ifca", "local"]
    for row in content["rows"]:
        for key in ("local_accuracy", "fine_tuned_local_accuracy"):
            values = [json.loads((Path("c") / name / "result.json").read_text())[key] for name in row["runs"]]
            assert row[key]["values"] == pytest.approx(values)
            assert row[key]["mean"] == pytest.approx(np.mean(values))
            assert row[key]["std"] == pytest.approx(np.std(values, ddof=1))
            assert row[key]["interval"] == pytest.approx(12.7062 * abs(values[0] - values[1]) / 2, rel=1e-4)
    partitions = [Path(f"c/{name}-1/partition.json").read_text() for name in ("fedavg", "ifca", "local")]
    assert len(set(partitions)) == 1
    assert "clusters = 2" in Path("c/ifca-0/config.toml").read_text()
    before = Path("c/fedavg-0/metrics.jsonl").read_text()
    Path("c/ifca-1/result.json").unlink()
    assert cli(*words, "--out", "c", "--resume").code == 0
    assert Path("c/fedavg-0/metrics.jsonl").read_text() == before
    again = json.loads(Path("c/compare.json").read_text())["rows"][1]
    moved = {"seconds"}
    assert {k: v for k, v in again.items() if k not in moved} == {
        k: v for k, v in content["rows"][1].items() if k not in moved
    }


@pytest.mark.long
def test_a_comparison_that_is_attacked_says_what_the_servers_learned(cli: Command) -> None:
    words = ["compare", "fedavg", "fedcaprivacy@hardened", *QUICK, "--crypto", "emulated", "--set", "clusters=2"]
    ended = cli(*words, "--audit", "--no-fine-tune", "--out", "c")
    assert ended.code == 0, ended.err
    rows = {row["method"]: row for row in json.loads(Path("c/compare.json").read_text())["rows"]}
    assert list(rows) == ["fedavg", "fedcaprivacy@hardened", "local"]
    assert rows["fedavg"]["learned"]["models"]["mean"] == rows["fedavg"]["learned"]["identity"]["mean"] == 1
    assert "models" not in rows["fedcaprivacy@hardened"]["learned"]  # its servers see none to attack
    assert rows["local"]["learned"] == {}
    assert "its servers read every client's model (100 %)" in ended.out
    assert "one seed" in ended.out
    assert "its server learns nothing of models or data" in ended.out
    assert Path("c/fedcaprivacy@hardened-0/views.bin").exists()
    kept = json.loads(Path("c/fedavg-0/result.json").read_text())["audit"]
    for row in kept["attacks"]:
        line = next(line for line in ended.out.splitlines() if line.strip().startswith(row["name"]))
        assert row["verdict"] in line
    assert "gradient-inversion: no party receives a single client's model or update in the clear" in ended.out
    page = Path("c/report.html").read_text()
    assert page.count("What the attacks found") == 1 + 3  # of all methods, and of every run
    assert "What the servers learned on their own" in page
    assert "One budget, that of fedavg" in page


def test_an_audit_afterwards_tells_the_comparison(cli: Command) -> None:
    """Table, verdict and figure have one source: the audits over both seeds, as the pooled table beneath them."""
    words = ["compare", "fedavg", *QUICK, "--no-fine-tune", "--record", "--seeds", "2", "--out", "c"]
    assert cli(*words).code == 0
    assert json.loads(Path("c/compare.json").read_text())["rows"][0].get("learned") is None
    assert cli("audit", "c").code == 0
    rows = {row["method"]: row for row in json.loads(Path("c/compare.json").read_text())["rows"]}
    assert rows["local"]["learned"] == {}
    pooled = merged([kept(f"c/fedavg-{seed}")["attacks"] for seed in (0, 1)])  # type: ignore[index]
    for topic, found in rows["fedavg"]["learned"].items():
        verdicts = {row["verdict"] for row in pooled if row["topic"] == topic}
        assert (found is not None and found["mean"] > 0) == bool(verdicts - {"nothing found", "cannot tell"})
        assert found is not None or "cannot tell" in verdicts
    page = Path("c/report.html").read_text()
    assert "What the servers learned on their own" in page
    assert "not attacked" not in page
    assert coterie.load("c").figure("leaks").axes


@pytest.mark.long
def test_a_record_that_was_cut_short_is_not_attacked(cli: Command) -> None:
    """A method that sends more would be judged on fewer rounds than the others."""
    words = ["compare", "fedavg", *QUICK, "--rounds", "6", "--model", "mlp", "--no-fine-tune", "--audit"]
    ended = cli(*words, "--record-mib", "1", "--out", "c")
    assert ended.code == 0, ended.err
    assert "it was not attacked: " in ended.out
    assert "--record-mib" in ended.out
    assert json.loads(Path("c/compare.json").read_text())["rows"][0]["learned"] is None


def test_a_narrow_console_cuts_no_name_and_no_number() -> None:
    """Several tables instead of one where it does not fit."""

    def spread(mean: float) -> dict[str, float]:
        return {"mean": mean, "interval": 0.012}

    shares = {"local_accuracy": 0.911, "fine_tuned_local_accuracy": 0.876, "global_accuracy": 0.654, "ari": 0.98}
    costs = {"bytes_up": 1.23e9, "seconds": 400, "virtual_seconds": 4000}
    row = {key: spread(mean) for key, mean in {**shares, **costs}.items()}
    row |= {"runs": ["a", "b"], "learned": {topic: spread(0.123) for topic in TOPICS}}
    rows = [
        {**row, "method": "fedcaprivacy@hardened", "crypto": "emulated"},
        {**row, "method": "local", "system": "local", "crypto": "none"},
    ]
    for width, parts in ((160, 1), (100, 3), (80, 4), (72, 4)):
        shell = Console(width=width, record=True, file=io.StringIO())
        made = tables(rows, shell)
        for table in made:
            shell.print(table)
        shown = shell.export_text()
        assert len(made) == parts
        assert shown.count("fedcaprivacy@hardened") == parts
        assert "…" not in shown
        assert "Sent by local: that rounds begin and end" in " ".join(shown.split())
        assert all(
            word in shown for word in ("emulated", "91.1", "87.6", "65.4", "0.98", "1.23 GB", "6 min 40 s", "12")
        )


def test_eighty_columns_cut_no_head_and_no_cell() -> None:
    """Neither of gains, leads and forms: what has no room stands in a further table, or is named."""

    def spread(mean: float) -> dict[str, Any]:
        return {"mean": mean, "interval": 0.123, "values": [mean]}

    others = ("local_balanced_accuracy", "own_classes_accuracy", "all_classes_accuracy")
    fields = [f"{form}{one}" for form in ("", "fine_tuned_", "prior_") for one in ("local_accuracy", *others)]
    over = {f"{form}local_accuracy": {"worst_decile": spread(0.6), "interval": 0.1} for form in ("", "prior_")}
    row = {field: spread(0.911) for field in fields} | {"prior_local_dropped": spread(0.1), "clients": over}
    client = {"client": "client/0", "name": "a hospital far away", "seed": 3, "alone": 0.5, "together": 0.6}
    client |= {"gain": -0.1, "low": -0.2, "high": 0.1, "verdict": "undecided", "samples": 1234}
    leads = {field: spread(0.05) for field in ("local_accuracy", "fine_tuned_local_accuracy", "global_accuracy")}
    content = {
        "rows": [{**row, "method": "fedcaprivacy@hardened", "runs": ["a"]}],
        "leads": [{"over": "fedcaprivacy@literal", **leads}],
        "benefits": [{"method": "fedcaprivacy@hardened", "tuned": False, "clients": [client]}],
    }
    for width in (80, 140):
        shell = Console(width=width, record=True, file=io.StringIO())
        leading, forms, gained = lead_tables(content, shell), form_tables(content, shell), benefit_table(content, shell)
        for table in (*leading, *forms, gained):
            shell.print(table)
        shown = " ".join(shell.export_text().split())
        assert "…" not in shown
        assert (len(leading), len(forms)) == ((2, 3) if width == 80 else (1, 1))
        for words in ("worst decile", "+5.0 [-7.3, +17.3]", "91.1 ± 12.3", "-10.0 [-20.0, +10.0]", "undecided"):
            assert all(word in shown for word in words.split()), words
        assert ("for want of room here: alone, together, tested." in shown) == (width == 80)
        assert ("1234" in shown) == (width == 140)
    for width in range(40, 200):
        heads = {str(column.header) for column in benefit_table(content, Console(width=width)).columns}
        assert ("alone" in heads) == ("together" in heads)  # one says nothing without the other


def test_a_lead_that_rounds_to_nothing_has_no_minus() -> None:
    assert with_interval({"mean": -0.0003, "interval": 0.002}, share=True) == "+0.0 [-0.2, +0.2]"


DIVERGES = """
import coterie.method as fl

@fl.settings
class Settings(fl.Averaging):
    "lr: so large that weights leave what a float holds."
    lr: float = 1e30

SYSTEM = fl.averaging("diverges", Settings)
"""


def test_an_error_names_the_method_and_its_folder(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("diverging.py").write_text(DIVERGES)
    monkeypatch.syspath_prepend(".")
    words = [*QUICK, "--no-fine-tune", "--no-local", "--out", "c"]
    ended = cli("compare", "fedavg", "diverging:SYSTEM", *words, "--set", "diverging:SYSTEM.lr=1e30")
    assert ended.code == 1
    assert "diverging:SYSTEM, seed 0, in c/diverging_SYSTEM-0: " in ended.err
    assert Path("c/fedavg-0/result.json").exists()


def test_a_setting_that_a_method_refuses_names_it(cli: Command) -> None:
    ended = cli("compare", "fedavg", "fedprox", *QUICK, "--set", "fedprox.mu=-1", "--out", "c")
    assert (ended.code, Path("c").exists()) == (2, False)
    assert "fedprox" in ended.err


def test_values_as_written() -> None:
    assert tried_values(["lr=.03, .1", "ifca.clusters=2,4"]) == {"lr": [".03", ".1"], "ifca.clusters": ["2", "4"]}
    for texts in (["lr"], ["=1,2"], ["lr=1,2", "lr=3,4"]):
        with pytest.raises(UserError, match="--tune takes"):
            tried_values(texts)
