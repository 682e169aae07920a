"""Sums over a rank's whole run, exact to the nanosecond: steps that were rolled up, and the rows kept."""

import numpy as np

from traceml.analyze.window import PHASE_KEYS, WAIT
from traceml.schema import catalog as c
from traceml.schema.recorded import RankRecording

_WAIT_COLUMNS = tuple(w.key for w in c.WAIT_PLACES)


def steps_of(recorded: RankRecording) -> int:
    """Completed steps."""
    return _earlier(recorded, "steps") + len(recorded.rows)


def step_ns(recorded: RankRecording) -> int:
    """Time inside completed steps."""
    rows = recorded.rows
    return _earlier(recorded, "step_ns") + int((rows["end_ns"] - rows["begin_ns"]).sum())


def column_sum(recorded: RankRecording, *names: str) -> int:
    """Sum of these columns over all steps."""
    return sum(_earlier(recorded, name) + int(recorded.rows[name].sum()) for name in names)


def _earlier(recorded: RankRecording, name: str) -> int:
    """This column of the steps that were rolled up; 0 if none were."""
    return int(recorded.earlier[name]) if recorded.earlier is not None else 0


def run_totals(recorded: RankRecording) -> dict[str, float | None]:
    """`run.totals`: steps and seconds of one rank, including warm-up; phases and wait add up to `step_s`."""
    measured = int(recorded.earlier["flags"]) if recorded.earlier is not None else -1
    measured &= int(np.bitwise_and.reduce(recorded.rows["flags"])) if len(recorded.rows) else -1
    found: dict[str, float | None] = {
        "rank": recorded.rank,
        "steps": steps_of(recorded),
        "step_s": step_ns(recorded) / 1e9,
    }
    for bit, key in enumerate(PHASE_KEYS):
        total = column_sum(recorded, key)
        # A phase that was not measured in some steps is unknown for the run, unless it has some time.
        found[f"{key}_s"] = total / 1e9 if measured & (1 << bit) or total else None
    for slot, name in enumerate(recorded.user_names):
        if name:
            found[f"user.{name}_s"] = column_sum(recorded, f"user{slot}") / 1e9
    found[f"{WAIT}_s"] = column_sum(recorded, *_WAIT_COLUMNS) / 1e9
    return found
