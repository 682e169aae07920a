"""Run folders for tests of exports: made by hand, with ranks on machines whose clocks differ."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from bench.synthetic import dtype_of, step_rows

from traceml.recording import layout
from traceml.schema import catalog as c

STARTED_NS = 1_790_000_000_000_000_000
CLOCKS_NS = (5_000_000_000, 777_000_000_000)
"""What the clock of each machine showed at that moment."""


def two_machines(folder: Path, steps: int = 20) -> Path:
    """A run with a rank on each of two machines, which train in step; their rows are those of one seed."""
    recording = folder / layout.FOLDER
    recording.mkdir(parents=True)
    for node, clock_ns in enumerate(CLOCKS_NS):
        rows = step_rows(1, steps, seed=1)
        took_ns = rows["end_ns"] - rows["begin_ns"]
        rows["end_ns"] = clock_ns + 1_000_000_000 + np.cumsum(took_ns)
        rows["begin_ns"] = rows["end_ns"] - took_ns
        who = {
            "rank": node,
            "local_rank": 0,
            "node_rank": node,
            "world_size": 2,
            "host": f"box{node}",
            "pid": 50,
        }
        facts = {"identity": who, "process": {"wall_ns": STARTED_NS, "clock_ns": clock_ns}}
        between = f".node{node}" if node else ""
        path = recording / f"rank-{node}{between}.50.steps"
        path.write_bytes(layout.header_bytes(c.STEP_COLUMNS, facts) + rows.tobytes())
        event = {
            "kind": "checkpoint",
            "step": 3,
            "time_ns": int(rows["begin_ns"][2]),
            "duration_ns": 2_000_000,
        }
        path.with_suffix(".events.jsonl").write_text(json.dumps(event) + "\n")
        gauges = recording / f"system{between}.gauges"
        gauges.write_bytes(layout.header_bytes(c.SYSTEM_COLUMNS, {"kind": "system"}) + sample(clock_ns))
    return folder


def sample(time_ns: int) -> bytes:
    """One row of a machine's gauges."""
    row = np.full(1, 0, dtype=dtype_of(c.SYSTEM_COLUMNS))
    for name, code in c.SYSTEM_COLUMNS:
        row[name] = np.nan if code == "d" else 0
    row["time_ns"], row["cpu_percent"], row["sequence"] = time_ns, 40.0, 1
    return row.tobytes()
