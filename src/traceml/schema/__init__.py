"""The data types that all stages share. Standard library only."""

WATCH_ONLY = "watch"
"""The mode of a run without capture (`traceml watch train.py`): machine and command are sampled, no steps."""
