"""Coterie's helper: the second server, which holds the other share of every row, and makes the groups."""

from __future__ import annotations

import coterie.method as fl
from coterie.protocols.hidden_counts import HelperCounts
from coterie.protocols.hidden_servers import HelperRows
from coterie.protocols.key_centre import HeldKeys
from coterie.protocols.norm_check import HelperNorms
from coterie.protocols.sealed_groups import HelperGroups
from coterie.protocols.setup_sums import HelperSums
from coterie.protocols.shared_groups import Running
from coterie.systems.coterie.config import CoterieConfig
from coterie.systems.coterie.messages import HELPER


class Helper(fl.Party, role=HELPER):
    keys = HeldKeys(bytes, bytes)
    rows = HelperRows()
    norms = HelperNorms()
    sums = HelperSums()
    groups = HelperGroups()
    counts = HelperCounts()
    config: CoterieConfig
    running: Running | None = None
