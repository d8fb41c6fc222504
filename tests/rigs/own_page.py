"""The system of docs/own_system.md as a module that other processes can import: ``own_page:SYSTEM``."""

from __future__ import annotations

import re
from pathlib import Path

_PAGE = (Path(__file__).parents[2] / "docs" / "own_system.md").read_text()
(_CODE,) = re.findall(r"```python\n(.*?)```", _PAGE, re.DOTALL)
exec(compile(_CODE, "own_system.md", "exec", dont_inherit=True))
