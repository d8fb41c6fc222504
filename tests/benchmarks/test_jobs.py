"""``benchmarks.jobs``: our job is a command that the command line takes, and a record has a picture and a table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from command import Command

from benchmarks import jobs, pages


@pytest.mark.parametrize("job", jobs.JOBS, ids=lambda job: job.name)
def test_our_job_is_one_that_its_user_can_start(job: jobs.Job, tmp_path: Path, cli: Command) -> None:
    words = [word if word != "mnist" else "nowhere" for word in jobs.ours(job, tmp_path)[3:]]
    ended = cli(*words)
    assert ended.code == 2
    assert "nowhere" in ended.err  # and nothing else is wrong with it


def test_a_job_runs_modules_that_were_compiled_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert "PYTHONDONTWRITEBYTECODE" not in jobs.JOBS[0].environment(tmp_path)


def test_a_job_is_timed_and_its_last_accuracy_read() -> None:
    said = "print('accuracy 0.1'); print('accuracy on all test data    72.8 %')"
    found = jobs.timed([sys.executable, "-c", said], {})
    assert found["accuracy"] == pytest.approx(0.728)
    assert found["cpu_seconds"] > 0
    assert found["seconds"] > 0
    with pytest.raises(RuntimeError, match="no such thing"):
        jobs.timed([sys.executable, "-c", "raise SystemExit('no such thing')"], {})


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_the_peak_is_that_of_a_process_and_its_children_together() -> None:
    child = "import time; x = bytearray(60 << 20); time.sleep(1)"
    both = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    alone = jobs.peak_mb([sys.executable, "-c", "import time; time.sleep(0.5)"], {})
    assert alone < 60 < jobs.peak_mb([sys.executable, "-c", both], {}) - alone < 120


ONE = {"accuracy": 0.5, "seconds": 2.0, "cpu_seconds": 1.0, "peak_mb": 500.0}


def test_a_record_of_an_older_version_has_a_table_and_a_picture(tmp_path: Path) -> None:
    times = {name: [ONE, ONE] for name in ("coterie", *jobs.PACKAGES)}
    row = {
        "job": "a job",
        "medians": dict.fromkeys(times, 2.0),
        "over_coterie": dict.fromkeys(jobs.PACKAGES, 1.0),
        "times": times,
    }
    record = {"packages": jobs.PACKAGES, "repeats": 2, "jobs": [row]}
    peaks: Any = {"jobs": [{"job": "a job", "peak_mb": dict.fromkeys(times, 500.0)}]}
    shown = pages.TABLES["jobs"]({"jobs": record, "memory": peaks})
    assert "| a job | 2.0 | – | – | 2.0 (1.0 x) |" in shown
    assert "| 0.50 / 0.50 / 0.50 / 0.50 |" in shown
    peaks["jobs"][0]["peak_mb"].pop("flower")
    assert "| 0.50 / – / 0.50 / 0.50 |" in pages.TABLES["jobs"]({"jobs": record, "memory": peaks})
    jobs.picture(record, tmp_path / "speed.png")
    assert (tmp_path / "speed.png").stat().st_size > 1000


def test_a_ratio_is_the_median_of_those_of_each_turn_and_of_one_run_alone() -> None:
    ours, theirs = ([{"seconds": s} for s in seconds] for seconds in ((1.0, 4.0, 2.0), (2.0, 4.0, 10.0)))
    stamps = {"coterie": "today", "flower": "today", "fedjax": "before"}
    found = jobs.figures({"coterie": ours, "flower": theirs, "fedjax": theirs}, stamps)
    assert found["medians"] == {"coterie": 2.0, "flower": 4.0, "fedjax": 4.0}
    assert found["over_coterie"] == {"flower": 2.0}  # of 2, 1 and 5
    found = jobs.figures({"coterie": ours, "flower": [*theirs[1:], theirs[0]]}, stamps)
    assert found["over_coterie"] == {"flower": 2.5}  # of 4, 2.5 and 1; those of the medians are 4 over 2


def test_only_ours_is_measured_anew_with_its_training_and_the_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, str]] = []
    monkeypatch.setattr(jobs, "saved", lambda path: path)
    monkeypatch.setattr(jobs, "script", lambda name: lambda job, folder: [name, job.key, str(folder)])

    def ours(job: jobs.Job, folder: Path) -> list[str]:
        (folder / "run").mkdir()
        lines = ({"phase_seconds": {"client/Fit": 0.25}}, {"phase_seconds": {"server/Update": 9.0}})
        (folder / "run" / "metrics.jsonl").write_text("\n".join(map(json.dumps, (lines[0], *lines))))
        return ["coterie", job.key, str(folder)]

    def timed(command: list[str], surroundings: object) -> dict[str, float]:
        made.append((command[0], command[1]))
        return dict(ONE)

    monkeypatch.setattr(jobs, "ours", ours)
    monkeypatch.setattr(jobs, "timed", timed)
    whole = jobs.run({"date": "before"}, ["mlp-some", "cnn-some-fp32"])
    assert (
        made == [*[(name, "mlp-some") for name in ("coterie", *jobs.PACKAGES)] * 3] + [("coterie", "cnn-some-fp32")] * 3
    )
    assert [row["job"] for row in whole["jobs"]] == [jobs.JOBS[0].name, jobs.JOBS[3].name]
    assert whole["jobs"][0]["over_coterie"] == dict.fromkeys(jobs.PACKAGES, 1.0)
    made.clear()
    again = jobs.run({"date": "today"}, ["coterie", "mlp-some"], whole)
    assert made == [("coterie", "mlp-some")] * 3
    first = again["jobs"][0]
    assert list(first["times"]) == ["coterie", *jobs.PACKAGES]
    assert first["made"] == {"coterie": {"date": "today"}, **{key: {"date": "before"} for key in jobs.PACKAGES}}
    assert first["over_coterie"] == {}  # not in turns
    assert {one["training_s"] for one in first["times"]["coterie"]} == {0.5}
    assert again["jobs"][1] == whole["jobs"][1]
    row = pages.TABLES["jobs"]({"jobs": again, "memory": {"jobs": []}}).splitlines()[2]
    assert row.split(" | ")[1:7] == ["2.0", "0.5", "yes", "2.0", "2.0", "2.0"]


def test_machines_are_told_apart_by_what_they_have_for_products() -> None:
    def part(flags: list[str], ratio: float, **others: float) -> dict[str, object]:
        made = {"date": "today", "commit": None, "machine": {"cpu": "a processor", "vector_flags": flags}}
        rows = {"a job": ratio, **others}
        return {
            "jobs": [{"job": job, "over_coterie": {"flower": r}, "made": {"coterie": made}} for job, r in rows.items()]
        }

    elsewhere = [part(["amx_bf16", "avx2", "avx512f"], 2.0), part(["avx2", "avx512f"], 3.0, other=1.0)]
    shown = pages.TABLES["machines"]({"jobs": part(["avx2"], 4.0), "elsewhere": elsewhere}).splitlines()
    assert shown[0] == "| processor | products | a job | when, commit |"
    assert [row.split(" | ")[1:3] for row in shown[2:]] == [
        ["float32 by AVX2", "flower 4.0"],
        ["bfloat16 by AMX", "flower 2.0"],
        ["float32 by AVX-512", "flower 3.0"],
    ]
