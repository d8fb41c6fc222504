"""Objects of a user's own modules (systems, models, audits), named ``module:ATTRIBUTE`` wherever a name is expected."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from coterie.protocol.errors import UserError


def import_object(path: str, what: str) -> Any:
    """The object that ``module:ATTRIBUTE`` names. The module may lie in the current folder.

    what: the kind of object, for the error. Raises UserError when there is no such module or attribute.
    """
    module, _, attribute = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever the module's own code raises
        known = isinstance(error, ImportError | AttributeError | ValueError)
        why = error if known else f"its code fails with {error!r}"
        raise UserError(f"{what} {path!r} cannot be imported: {why}; write it as module:ATTRIBUTE") from None
