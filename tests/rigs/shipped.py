"""What the package has without the fewer epochs, draws and trials of fast tests (``conftest.py``)."""

from coterie.privacy.audits import ofl
from coterie.runs import benefit, tuning

SHIPPED = tuning.MOST_EPOCHS, benefit.DRAWS, benefit.SLOW_DRAWS, ofl.TRIALS
