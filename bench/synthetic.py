"""Synthetic recordings with any number of ranks and steps.

Used by `bench/scale.py` and `tests/scale`. The files are the same that ranks, monitor and relay write to the
run folder on node 0: those of its own ranks and those received from other nodes, eight ranks per machine.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceml.recording import layout
from traceml.recording.reader import row_dtype
from traceml.runs.folder import RECORDING
from traceml.schema import catalog as c

Columns = tuple[tuple[str, str], ...]
RANKS_PER_NODE = 8
PHASE_NS = {"input": 2_000_000, "forward": 30_000_000, "backward": 50_000_000, "sync": 10_000_000}
PHASE_NS |= {"optimizer": 5_000_000, "validation": 0, "checkpoint": 0}
SPARE_ROWS = 64


def dtype_of(columns: Columns) -> np.dtype[np.void]:
    """The rows of a recording with these columns."""
    size = layout.padded_row_size(layout.row_struct(columns).size)
    return row_dtype(columns, size)


def step_rows(first: int, count: int, seed: int, slower: float = 1.0) -> NDArray[np.void]:
    """Rows of `count` steps from `first` on. Same arguments, same rows. The phases add up to the step."""
    random = np.random.default_rng((seed, first))
    rows = np.zeros(count, dtype=dtype_of(c.STEP_COLUMNS))
    rows["step"] = rows["sequence"] = np.arange(first, first + count)
    took = np.zeros(count, dtype=np.int64)
    for key, typical_ns in PHASE_NS.items():
        if typical_ns:
            rows[key] = typical_ns * random.uniform(0.95, 1.05, count) * (slower if key == "input" else 1.0)
            took += rows[key]
    rows["wait_forward"] = random.integers(100_000, 300_000, count)
    took += rows["wait_forward"]
    rows["end_ns"] = 100_000_000 * np.arange(first, first + count) + took
    rows["begin_ns"] = rows["end_ns"] - took
    rows["gc_us"] = random.integers(0, 10, count)
    rows["rss_bytes"] = 2_000_000_000 + random.integers(0, 1_000_000, count)
    rows["samples"], rows["micro_batches"], rows["switches"] = 32, 1, 12
    measured = [i for i, p in enumerate(c.PHASES) if p.key in PHASE_NS]
    rows["flags"] = sum(1 << i for i in measured) | c.FLAG_RSS
    return rows


@dataclass(slots=True)
class SyntheticRun:
    """A run folder with this many ranks; `append` adds steps to all of them."""

    folder: Path
    ranks: int
    slow_rank: int | None = None
    steps: int = 0
    samples: int = 0
    is_there: bool = False  # another process made the folder, with `steps` and `samples`
    paths: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / RECORDING).mkdir(parents=True, exist_ok=True)
        for rank in range(self.ranks):
            node, local = divmod(rank, RANKS_PER_NODE)
            between = f".node{node}" if node else ""
            path = self.folder / RECORDING / f"rank-{rank}{between}.{1000 + local}.steps"
            self.paths.append(path)
            if self.is_there:
                continue
            path.write_bytes(layout.header_bytes(c.STEP_COLUMNS, self._header(rank)))
            epoch = {"kind": "epoch_start", "rank": rank, "step": 1, "time_ns": 1, "duration_ns": 1000}
            path.with_suffix(".events.jsonl").write_text(json.dumps({**epoch, "workers": 2}) + "\n")
        for node in range(0 if self.is_there else -(-self.ranks // RANKS_PER_NODE)):
            for kind, columns in (("system", c.SYSTEM_COLUMNS), ("process", c.PROCESS_COLUMNS)):
                self._gauges(kind, node).write_bytes(layout.header_bytes(columns, {"kind": kind}))

    def append(self, count: int, kinds: int = 16) -> None:
        """Add steps to all ranks. There are `kinds` different ranks, apart from the slow one."""
        made = [step_rows(self.steps + 1, count, seed).tobytes() for seed in range(min(kinds, self.ranks))]
        size = dtype_of(c.STEP_COLUMNS).itemsize
        for rank, path in enumerate(self.paths):
            data = made[rank % len(made)]
            if rank == self.slow_rank:
                data = step_rows(self.steps + 1, count, rank, slower=20.0).tobytes()
            with path.open("r+b") as file:
                file.seek(layout.HEADER_SIZE + self.steps * size)
                file.write(data)
                # Real files also end in rows that are reserved but not written.
                file.truncate(layout.HEADER_SIZE + (self.steps + count + SPARE_ROWS) * size)
        self.steps += count

    def sample(self, count: int) -> None:
        """Add gauge samples on every node."""
        at = 100_000_000 + 1_000_000_000 * np.arange(self.samples, self.samples + count)
        for node in range(-(-self.ranks // RANKS_PER_NODE)):
            system = np.zeros(count, dtype=dtype_of(c.SYSTEM_COLUMNS))
            system["time_ns"], system["cpu_percent"], system["ram_percent"] = at, 40.0, 25.0
            system["ram_bytes"] = 8e9
            here = min(RANKS_PER_NODE, self.ranks - node * RANKS_PER_NODE)
            process = np.zeros(count * here, dtype=dtype_of(c.PROCESS_COLUMNS))
            process["time_ns"] = np.repeat(at, here)
            process["pid"] = np.tile(np.arange(1000, 1000 + here), count)
            process["cpu_percent"], process["rss_bytes"] = 100.0, 2e9
            for kind, rows in (("system", system), ("process", process)):
                before = self.samples * (here if kind == "process" else 1)
                rows["sequence"] = before + np.arange(1, len(rows) + 1)
                with self._gauges(kind, node).open("ab") as file:
                    file.write(rows.tobytes())
        self.samples += count

    def _gauges(self, kind: str, node: int) -> Path:
        return self.folder / RECORDING / (f"{kind}.node{node}.gauges" if node else f"{kind}.gauges")

    def _header(self, rank: int) -> dict[str, Any]:
        node, local = divmod(rank, RANKS_PER_NODE)
        who = {"rank": rank, "local_rank": local, "node_rank": node, "world_size": self.ranks}
        return {
            "identity": {**who, "host": f"box{node}", "pid": 1000 + local},
            "process": {"python": "3.11.7", "torch": "2.13.0", "threads": 1, "packages": {}, "clock_ns": 1},
            "device": {"type": "cpu"},
            "overhead": {"switch_ns": 200, "row_ns": 1000},
        }
