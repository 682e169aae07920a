"""Modes of a run that its views must know."""

from typing import Final

WATCH_ONLY: Final = "watch"
"""Without capture (`traceml watch train.py`): machine and command are sampled, no steps are recorded."""
