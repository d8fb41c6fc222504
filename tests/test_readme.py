"""What the README shows works as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_example_of_ones_own_model_and_data_runs(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "own.py").write_text(code.replace("rounds=20", "rounds=2"))
    done = subprocess.run([sys.executable, "own.py"], cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    folder, overall, own = done.stdout.split()
    assert (tmp_path / folder / "result.json").exists()
    assert 0 <= float(overall) <= 1
    assert 0 <= float(own) <= 1


def test_every_linked_file_is_there():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (Path(__file__).parent.parent / target).exists(), target
