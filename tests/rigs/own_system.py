"""The system of docs/own_system.md, as a module."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "own_system.md").read_text()


def page_module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Written into a folder, which becomes the working one."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (folder / "secure_mean.py").write_text(code)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(folder)
    return sys.modules.get("secure_mean") or importlib.import_module("secure_mean")
