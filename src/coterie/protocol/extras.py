"""Commands that install what an extra of Coterie needs."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires


def to_install(extra: str) -> str:
    """``pip install 'pandas>=2.2' 'pyarrow>=17'``, however Coterie was installed.

    Not ``coterie[tables]``: no package index has Coterie, so there the name may be anybody's.
    """
    try:
        wanted = [one for one in requires("coterie") or () if re.search(rf"extra == ['\"]{extra}['\"]", one)]
    except PackageNotFoundError:  # a source tree that is only on the path
        wanted = []
    packages = " ".join(f"'{one.partition(';')[0].strip()}'" for one in wanted)
    return f"pip install {packages or repr(f'.[{extra}]') + ' in the folder of Coterie'}"
