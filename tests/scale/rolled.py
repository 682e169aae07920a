"""A rank that takes very many steps, and the totals that its whole run must have."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from bench.synthetic import dtype_of, step_rows
from numpy.typing import NDArray

from traceml.analyze import recordings
from traceml.recording import layout
from traceml.recording.tail import Tail
from traceml.runs.folder import RECORDING
from traceml.schema import catalog as c
from traceml.schema.recorded import RankRecording

ROW_BYTES = dtype_of(c.STEP_COLUMNS).itemsize
SUMMED = tuple(f.name for f in c.STEP_BLOCK if f.how == "sum" and f.name not in ("steps", "step_ns"))


@dataclass
class LongRank:
    """One rank's recording, which grows piece by piece and remembers the exact sums of what it wrote."""

    run_dir: Path
    name: str = "rank-0.7.steps"
    rows: int = 0
    steps: int = 0
    step_ns: int = 0
    sums: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.run_dir / RECORDING).mkdir(parents=True, exist_ok=True)
        self.path = self.run_dir / RECORDING / self.name
        header = {"identity": {"rank": 0, "pid": 7, "world_size": 1}}
        self.path.write_bytes(layout.header_bytes(c.STEP_COLUMNS, header))

    def append(self, count: int) -> NDArray[np.void]:
        """`count` further steps, one row each."""
        rows = step_rows(self.steps + 1, count, seed=self.rows)
        self.write(rows)
        return rows

    def write(self, rows: NDArray[np.void]) -> None:
        """Append these rows; one with the same step as the row after it does not count."""
        rows["sequence"] = np.arange(self.rows + 1, self.rows + 1 + len(rows))
        with self.path.open("r+b") as file:
            file.seek(layout.HEADER_SIZE + self.rows * ROW_BYTES)
            file.write(rows.tobytes())
        self.rows += len(rows)
        counting = rows[np.append(rows["step"][1:] != rows["step"][:-1], True)]
        self.steps += len(counting)
        self.step_ns += int((counting["end_ns"] - counting["begin_ns"]).sum())
        for name in SUMMED:
            self.sums[name] = self.sums.get(name, 0) + int(counting[name].sum())

    def disk_bytes(self) -> int:
        """What the recording and its blocks really take on disk."""
        paths = self.path.parent.glob(self.path.stem + ".*")
        return sum(os.stat(p).st_blocks * 512 for p in paths)


def read_one(run_dir: Path, **bounds: int) -> RankRecording:
    """The one rank of this run, read by a new tail."""
    (found,) = Tail(run_dir, **bounds).read().ranks
    return found


def check_totals(found: RankRecording, expected: LongRank) -> None:
    """Every sum over the whole run is the exact one."""
    assert recordings.steps_of(found) == expected.steps
    assert recordings.step_ns(found) == expected.step_ns
    for name, value in expected.sums.items():
        assert recordings.column_sum(found, name) == value, name
