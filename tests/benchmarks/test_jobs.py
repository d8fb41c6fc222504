"""``benchmarks.jobs``: our job is a command that the command line takes, and a record has a picture and a table."""

from __future__ import annotations

import sys
from pathlib import Path

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


def test_a_record_has_a_table_and_a_picture(tmp_path: Path) -> None:
    one = {"accuracy": 0.5, "seconds": 2.0, "cpu_seconds": 1.0, "peak_mb": 500.0}
    times = {name: [one, one] for name in ("coterie", *jobs.PACKAGES)}
    row = {
        "job": "a job",
        "medians": dict.fromkeys(times, 2.0),
        "over_coterie": dict.fromkeys(jobs.PACKAGES, 1.0),
        "times": times,
    }
    record = {"packages": jobs.PACKAGES, "repeats": 2, "jobs": [row]}
    peaks = {"jobs": [{"job": "a job", "peak_mb": dict.fromkeys(times, 500.0)}]}
    assert "| a job | 2.0 | 2.0 (1.0 x) |" in pages.TABLES["jobs"]({"jobs": record, "memory": peaks})
    jobs.picture(record, tmp_path / "speed.png")
    assert (tmp_path / "speed.png").stat().st_size > 1000
